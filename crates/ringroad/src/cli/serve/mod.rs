//! `ringroad serve DIR [--listen ADDR] [--tls]`: the files of a directory over HTTP, without a configuration file.
//!
//! The configuration is a text made here and served like any other: in the foreground, strict about HTTP, with no way
//! out of the directory. Errors and requests are logged to standard error, the address is printed. With `--tls` the certificate is one
//! of a local authority (`authority`), and what clients need to trust it is printed too.

mod authority;

use std::ffi::OsString;
use std::fmt;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use self::authority::Certificates;
use super::{print, print_error};
use crate::listen::error_text;
use crate::log::Log;
use crate::master;
use crate::places::{Places, Request};
use crate::site::{self, Files};

/// Only this machine: whoever wants to be reached from elsewhere says so.
const DEFAULT_LISTEN: &str = "127.0.0.1:8080";

/// The same with `--tls`.
const DEFAULT_LISTEN_TLS: &str = "127.0.0.1:8443";

/// The name that stands in messages about the text.
const TEXT_NAME: &str = "ringroad-serve";

/// What browsers need to know to show a site; everything else is downloaded.
const TYPES: &str = "
    text/html html htm; text/css css; text/plain txt md; text/xml xml; text/javascript js mjs;
    application/json json map; application/wasm wasm; application/pdf pdf; application/zip zip;
    image/svg+xml svg; image/png png; image/jpeg jpg jpeg; image/gif gif; image/webp webp; image/avif avif;
    image/x-icon ico; font/woff woff; font/woff2 woff2; video/mp4 mp4; video/webm webm; audio/mpeg mp3;";

/// What was asked for.
#[derive(Debug, PartialEq, Eq)]
struct Wanted {
    /// As it was written.
    folder: PathBuf,
    /// Port 0 takes any that is free.
    listen: SocketAddr,
    /// `--tls`
    tls: bool,
}

/// Why it cannot be done.
#[derive(Debug)]
enum Unservable {
    /// Not what the usage says.
    Usage,
    /// `--listen` with something that is no IP address and port.
    Address(String),
    /// The directory is not there, or cannot be read.
    Folder { folder: PathBuf, reason: String },
    /// Another program listens there.
    Taken(SocketAddr),
    /// A port that takes root, an address of another machine.
    Bind { listen: SocketAddr, reason: String },
    /// There is no certificate for `--tls`.
    Authority(authority::Unusable),
}

impl fmt::Display for Unservable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unservable::Usage => f.write_str("usage: ringroad serve DIR [--listen ADDR] [--tls]"),
            Unservable::Address(text) => {
                write!(
                    f,
                    "\"{text}\" is not an address; write IP:PORT, such as {DEFAULT_LISTEN} or [::1]:8080"
                )
            }
            Unservable::Folder { folder, reason } => {
                write!(f, "cannot serve \"{}\": {reason}", folder.display())
            }
            Unservable::Taken(listen) => {
                let mut free = *listen;
                free.set_port(0);
                write!(
                    f,
                    "{listen} is in use by another program; stop that one, or choose another port with \
                     --listen (--listen {free} takes any that is free)"
                )
            }
            Unservable::Bind { listen, reason } => write!(f, "cannot listen on {listen}: {reason}"),
            Unservable::Authority(unusable) => unusable.fmt(f),
        }
    }
}

/// Serves until a signal ends it.
pub(super) fn run(args: Vec<OsString>) -> ExitCode {
    let log = Log::echo_only();
    let request = parse(args).and_then(prepare);
    let request = match request {
        Ok(request) => request,
        Err(error) => {
            print_error(format_args!("ringroad: {error}\n"));
            return ExitCode::FAILURE;
        }
    };
    let loaded = site::load(&request, Files::Disk);
    super::run::report(&loaded, &log);
    match loaded {
        Ok(site) => master::run(request, site, log),
        Err(_) => ExitCode::FAILURE,
    }
}

/// `DIR`, `--listen` and `--tls`, in any order.
fn parse(args: Vec<OsString>) -> Result<Wanted, Unservable> {
    let (mut folder, mut listen, mut tls) = (None, None, false);
    let mut args = args.into_iter();
    while let Some(arg) = args.next() {
        let text = arg.to_string_lossy().into_owned();
        match (text.as_str(), text.strip_prefix("--listen=")) {
            ("--listen", _) => {
                let value = args.next().ok_or(Unservable::Usage)?;
                listen = Some(value.to_string_lossy().into_owned());
            }
            (_, Some(value)) => listen = Some(value.to_owned()),
            ("--tls", _) => tls = true,
            _ if text.starts_with('-') || folder.is_some() => return Err(Unservable::Usage),
            _ => folder = Some(PathBuf::from(arg)),
        }
    }
    let default = if tls { DEFAULT_LISTEN_TLS } else { DEFAULT_LISTEN };
    let listen = listen.unwrap_or_else(|| default.to_owned());
    let listen = listen.parse().map_err(|_| Unservable::Address(listen))?;
    Ok(Wanted { folder: folder.ok_or(Unservable::Usage)?, listen, tls })
}

/// Finds out early what would otherwise be an error about a text that nobody wrote.
fn prepare(Wanted { folder, listen, tls }: Wanted) -> Result<Request, Unservable> {
    let absolute = std::fs::canonicalize(&folder).and_then(|absolute| {
        // Listing it is what a worker will have to be able to do.
        std::fs::read_dir(&absolute).map(|_| absolute)
    });
    let absolute = absolute.map_err(|error| Unservable::Folder { folder, reason: error_text(&error) })?;
    if let Err(error) = TcpListener::bind(listen) {
        return Err(match error.kind() {
            std::io::ErrorKind::AddrInUse => Unservable::Taken(listen),
            _ => Unservable::Bind { listen, reason: error_text(&error) },
        });
    }
    let certificates = tls.then(|| prepare_certificates(listen)).transpose()?;
    // The directory is the visitor's: no pid file and no log is put into it.
    let mut places = Places::below(&absolute);
    (places.error_log, places.pid) = (None, None);
    let text = configuration(listen, certificates.as_ref());
    Ok(Request { main: absolute.join(TEXT_NAME), globals: String::new(), places, text: Some(text) })
}

/// The certificate of the local authority, whose root clients have to trust.
fn prepare_certificates(listen: SocketAddr) -> Result<Certificates, Unservable> {
    let directory = authority::directory().map_err(Unservable::Authority)?;
    let certificates = authority::prepare(&directory, listen).map_err(Unservable::Authority)?;
    print(authority::advice(&certificates.root));
    Ok(certificates)
}

/// The configuration; the directory is the prefix, so that its name needs no quoting.
fn configuration(listen: SocketAddr, certificates: Option<&Certificates>) -> String {
    let (options, secured) = match certificates {
        None => ("", String::new()),
        Some(Certificates { server, .. }) => {
            let file = quoted(server);
            let lines =
                format!("ssl_certificate {file};\n        ssl_certificate_key {file};\n        http2 on;");
            (" ssl", lines)
        }
    };
    format!(
        "daemon off;
worker_processes auto;
error_log stderr warn;
events {{}}
http {{
    types {{{TYPES}
    }}
    default_type application/octet-stream;
    access_log /dev/stderr;
    server {{
        listen {listen}{options};
        {secured}
        root .;
        root_beneath on;
        http_strict on;
        autoindex on;
    }}
}}
"
    )
}

/// A path as an argument of a directive.
fn quoted(path: &Path) -> String {
    format!("\"{}\"", path.display().to_string().replace('\\', "\\\\").replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<(String, String), String> {
        let wanted = parse(line.split(' ').map(OsString::from).collect());
        let shown = |wanted: Wanted| (wanted.folder.display().to_string(), wanted.listen.to_string());
        wanted.map(shown).map_err(|error| error.to_string())
    }

    #[test]
    fn a_folder_and_an_address() {
        let site = |listen: &str| Ok(("site".to_owned(), listen.to_owned()));
        assert_eq!(read("site"), site("127.0.0.1:8080"));
        assert_eq!(read("site --listen 0.0.0.0:80"), site("0.0.0.0:80"));
        assert_eq!(read("--listen=[::1]:81 site"), site("[::1]:81"));
        assert_eq!(read("--tls site"), site("127.0.0.1:8443"));
        assert_eq!(read("site --tls --listen [::1]:81"), site("[::1]:81"));
        let usage = Err("usage: ringroad serve DIR [--listen ADDR] [--tls]".to_owned());
        for line in ["--listen", "--listen 127.0.0.1:1", "a b", "a --port 1"] {
            assert_eq!(read(line), usage, "{line}");
        }
        let wrong = read("site --listen 8080").expect_err("a port alone says too little");
        assert!(wrong.starts_with("\"8080\" is not an address"), "{wrong}");
    }

    #[test]
    fn a_taken_port_names_the_way_out() {
        let taken = TcpListener::bind("127.0.0.1:0").expect("some port is free");
        let listen = taken.local_addr().expect("it is bound");
        let wanted = Wanted { folder: std::env::temp_dir(), listen, tls: false };
        let error = prepare(wanted).expect_err("the port is taken").to_string();
        let expected = format!("{listen} is in use by another program");
        assert!(error.starts_with(&expected) && error.contains("--listen 127.0.0.1:0"), "{error}");
    }
}
