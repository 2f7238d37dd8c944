//! Arguments of TLS directives that are the same for clients and upstreams: files, certificate caches, commands,
//! passwords, versions.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ::tls::commands::{Commands, Obeyed};
use ::tls::server::Versions;
use conf::{Error, value};

use crate::certificates::CacheLimits;
use site::config::Cx;
use site::template::Template;
use site::uses::FileUse;

/// A file that a directive names, with its bytes.
#[derive(Clone, Debug)]
pub struct File {
    /// Its path; `data:` if the directive contains the PEM text.
    pub path: PathBuf,
    /// Its bytes.
    pub bytes: Arc<Vec<u8>>,
}

/// The source of a certificate or its key. The bytes of a file are part of the configuration. Certificates that an ACME
/// authority issues are not, so that a renewal needs no reload.
#[derive(Clone, Debug)]
pub enum PemSource {
    /// A file.
    File(File),
    /// Issued by the authority of `acme_certificate`.
    Acme,
    /// A file whose name has variables, read during handshakes; with the text of the directive.
    Named(Template, String),
    /// An empty name.
    Empty,
}

impl PemSource {
    /// Returns the file name that a handshake evaluates.
    pub fn template(&self) -> Template {
        match self {
            PemSource::File(file) if file.path == Path::new("data:") => {
                Template::text(&format!("data:{}", String::from_utf8_lossy(&file.bytes)))
            }
            PemSource::File(file) => Template::text(&file.path.to_string_lossy()),
            PemSource::Acme | PemSource::Empty => Template::default(),
            PemSource::Named(template, _) => template.clone(),
        }
    }

    /// Returns the name for messages.
    pub fn shown(&self) -> String {
        match self {
            PemSource::File(file) => file.path.display().to_string(),
            PemSource::Acme => "$acme_certificate".to_owned(),
            PemSource::Named(_, text) => text.clone(),
            PemSource::Empty => String::new(),
        }
    }
}

/// Default of `inactive=`, as in nginx: time that an unused certificate stays cached.
const CERTIFICATE_INACTIVE: Duration = Duration::from_secs(10);
/// Default of `valid=`, as in nginx: time that a cached certificate is used without a check of its file.
const CERTIFICATE_VALID: Duration = Duration::from_secs(60);

/// Compiles the name of a certificate or key, which is read during handshakes. Text after `data:` is no file.
pub fn named_file(cx: &mut Cx<'_>, text: &str) -> Result<Template, Error> {
    let template = cx.template(text)?;
    if !text.starts_with("data:") {
        cx.uses_path(template.clone(), cx.conf_prefix, FileUse::Read);
    }
    Ok(template)
}

/// Parses `off`, or `max=` with `inactive=` and `valid=`.
pub fn read_certificate_cache(cx: &mut Cx<'_>) -> Result<Option<CacheLimits>, Error> {
    let (mut max, mut is_off) = (None, false);
    let (mut inactive, mut valid) = (CERTIFICATE_INACTIVE, CERTIFICATE_VALID);
    for text in cx.statement.texts() {
        let invalid = || cx.error(format_args!("invalid parameter \"{text}\""));
        let seconds = |text| value::seconds(text).map(Duration::from_secs).map_err(|_| invalid());
        match text.split_once('=') {
            Some(("max", count)) => {
                let count = value::number(count).ok().and_then(|count| usize::try_from(count).ok());
                max = Some(count.filter(|count| *count > 0).ok_or_else(invalid)?);
            }
            Some(("inactive", time)) => inactive = seconds(time)?,
            Some(("valid", time)) => valid = seconds(time)?,
            None if text == "off" => is_off = true,
            _ => return Err(invalid()),
        }
    }
    match max {
        _ if is_off => Ok(None),
        Some(max) => Ok(Some(CacheLimits { max, inactive, valid })),
        None => {
            let name = &cx.statement.name.text;
            Err(cx.error(format_args!("\"{name}\" must have the \"max\" parameter")))
        }
    }
}

/// Parses an OpenSSL configuration command; an unsupported one is an error at the statement.
pub fn read_command(cx: &mut Cx<'_>) -> Result<(String, String), Error> {
    let (name, value) = (cx.arg(0), cx.arg(1));
    match Commands::default().apply(name, value) {
        Ok(Obeyed::Yes) => {}
        Ok(Obeyed::WithoutEffect(reason)) => {
            cx.warn(format_args!("command \"{name} {value}\" has no effect, {reason}"));
        }
        Err(refused) => return Err(cx.error(refused)),
    }
    Ok((name.to_owned(), value.to_owned()))
}

/// A file that is an error only if its feature is on; `Err` has the message.
pub type OptionalFile = Result<File, String>;

/// Returns the argument of a directive; `None` if it is empty. In nginx an empty value cancels an inherited one.
pub fn value_or_cancel<'a>(cx: &Cx<'a>) -> Option<&'a str> {
    Some(cx.arg(0)).filter(|text| !text.is_empty())
}

/// Reads the file that a directive names. Relative paths start from the configuration file's directory.
pub fn read_file(cx: &mut Cx<'_>, what: &str) -> Result<File, Error> {
    try_file(cx, what)?.map_err(|message| cx.error(message))
}

/// Reads a file like [`read_file`], for a directive whose feature may be off. Then nginx does not open the file, so an unreadable
/// file must not be an error. Returns `None` for an empty name, which cancels an inherited file.
pub fn read_optional_file(cx: &mut Cx<'_>, what: &str) -> Result<Option<OptionalFile>, Error> {
    value_or_cancel(cx).map(|_| try_file(cx, what)).transpose()
}

fn try_file(cx: &mut Cx<'_>, what: &str) -> Result<OptionalFile, Error> {
    let text = cx.arg(0);
    if text.contains('$') {
        return Err(cx.error(format_args!(
            "variables in \"{text}\" are not supported yet: specify a file name without variables"
        )));
    }
    if let Some((kind @ ("engine" | "store"), _)) = text.split_once(':') {
        let message =
            format_args!("keys of an \"{kind}:\" are not supported in \"{text}\": name a file in PEM");
        return Err(cx.error(message));
    }
    let (path, bytes) = match text.strip_prefix("data:") {
        Some(pem) => (Path::new("data:").to_owned(), Arc::new(pem.as_bytes().to_vec())),
        None => {
            let path = cx.conf_prefix.join(text);
            match cx.read_data(&path) {
                Ok(bytes) => (path, bytes),
                Err(error) => {
                    return Ok(Err(format!("cannot load {what} \"{}\": {}", path.display(), error.kind())));
                }
            }
        }
    };
    Ok(Ok(File { path, bytes }))
}

/// Reads a password file.
pub fn read_passwords(cx: &mut Cx<'_>) -> Result<Vec<Vec<u8>>, Error> {
    let file = read_file(cx, "password file")?;
    cx.http.stand_ins.insert(file.path.clone(), b"");
    let lines = file.bytes.split(|byte| *byte == b'\n').map(|line| line.trim_ascii_end().to_vec());
    Ok(lines.filter(|line| !line.is_empty()).collect())
}

/// Parses protocol versions. Versions below TLS 1.2 are ignored if others are listed too. Several directives in a block
/// add up; `block` is the block of the last directive.
pub fn read_versions(versions: &mut Versions, block: &mut u32, cx: &mut Cx<'_>) -> Result<(), Error> {
    const OLD: [&str; 4] = ["SSLv2", "SSLv3", "TLSv1", "TLSv1.1"];
    let mut read = match *block == cx.block {
        true => *versions,
        false => Versions { tls12: false, tls13: false },
    };
    let mut old = Vec::new();
    for text in cx.statement.texts() {
        let is = |name: &str| text.eq_ignore_ascii_case(name);
        match () {
            () if is("TLSv1.2") => read.tls12 = true,
            () if is("TLSv1.3") => read.tls13 = true,
            () if OLD.into_iter().any(is) => old.push(text),
            () => return Err(cx.error(format_args!("invalid value \"{text}\""))),
        }
    }
    let names = old.join(", ");
    if !read.tls12 && !read.tls13 {
        return Err(cx.error(format_args!("{names} are not supported: add TLSv1.2 or TLSv1.3")));
    }
    // An invalid directive changes nothing, because the missing versions would cause a second error.
    (*versions, *block) = (read, cx.block);
    if !old.is_empty() {
        cx.warn(format_args!("versions that are not supported are left out: {names}"));
    }
    Ok(())
}
