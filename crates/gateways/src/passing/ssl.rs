//! TLS directives for upstreams: `proxy_ssl_*` and those with other prefixes.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ::tls::certificate::{self, FileError, Identity};
use ::tls::client::{Client, ClientSettings};
use ::tls::commands::Commands;
use ::tls::server::Versions;
use ::tls::x509::{Purpose, Roots};
use ::tls::{Trust, ciphers, groups};
use conf::{Args, Error, Span, Spec};

use crate::Directive;
use crate::passing::conf::{Conf as PassingConf, HasConf, conf};
use crate::passing::protocol::Rows;
use crate::passing::spec::row;
use exchange::certificates::{CacheLimits, CertificateCache, NamedCertificates};
use exchange::tls_arguments::{
    File, OptionalFile, PemSource, named_file, read_certificate_cache, read_command, read_file,
    read_optional_file, read_passwords, read_versions, value_or_cancel,
};
use site::config::{Cx, Layered, Scope};
use site::template::Template;
use upstream::SecureSettings;

/// One argument.
const ONE: Args = Args::Exactly(1);

/// Settings of the directives.
#[derive(Clone, Debug)]
pub(crate) struct Conf {
    certificate: Option<PemSource>,
    key: Option<PemSource>,
    /// The base directory of relative names with variables.
    prefix: PathBuf,
    certificate_cache: Option<CacheLimits>,
    passwords: Arc<Vec<Vec<u8>>>,
    versions: Versions,
    /// Number of the block with `_ssl_protocols`; 0 if none.
    versions_block: u32,
    ciphers: String,
    name: Option<Template>,
    sends_name: bool,
    reuses_sessions: bool,
    verify: bool,
    verify_depth: u64,
    trusted: Option<OptionalFile>,
    crl: Option<OptionalFile>,
    commands: Layered<(String, String)>,
}

impl Default for Conf {
    fn default() -> Conf {
        Conf {
            certificate: None,
            key: None,
            prefix: PathBuf::new(),
            certificate_cache: None,
            passwords: Arc::default(),
            versions: Versions { tls12: true, tls13: true },
            versions_block: 0,
            ciphers: "DEFAULT".to_owned(),
            name: None,
            sends_name: false,
            reuses_sessions: true,
            verify: false,
            verify_depth: 1,
            trusted: None,
            crl: None,
            commands: Layered::default(),
        }
    }
}

impl<F: HasConf> Rows<F> {
    /// TLS to upstreams.
    pub(crate) const TLS: &'static [Directive] = &[
        Directive::scope(
            row("_ssl_certificate", ONE, "The file with this server's certificate for upstreams, in PEM."),
            |scope, cx| {
                own::<F>(scope).certificate = read_origin::<F>(scope, cx, "certificate")?;
                Ok(())
            },
        ),
        Directive::scope(row("_ssl_certificate_key", ONE, "The file with the key, in PEM."), |scope, cx| {
            own::<F>(scope).key = read_origin::<F>(scope, cx, "certificate key")?;
            Ok(())
        }),
        Directive::scope(
            row("_ssl_password_file", ONE, "The file with passwords of keys, one in each line."),
            |scope, cx| {
                own::<F>(scope).passwords = Arc::new(read_passwords(cx)?);
                Ok(())
            },
        ),
        Directive::scope(
            row("_ssl_protocols", Args::AtLeast(1), "Versions of TLS.").many().default("TLSv1.2 TLSv1.3"),
            |scope, cx| {
                let conf = own::<F>(scope);
                read_versions(&mut conf.versions, &mut conf.versions_block, cx)
            },
        ),
        Directive::scope(
            row("_ssl_ciphers", ONE, "Cipher suites of TLS 1.2, in OpenSSL's syntax.").default("DEFAULT"),
            |scope, cx| {
                own::<F>(scope).ciphers = cx.arg(0).to_owned();
                Ok(())
            },
        ),
        Directive::scope(
            Spec {
                default: F::TLS_NAME,
                ..row("_ssl_name", ONE, "Name to verify in the upstream's certificate, and for SNI.")
            },
            |scope, cx| {
                let text = cx.arg(0);
                own::<F>(scope).name = Some(cx.template(text)?);
                Ok(())
            },
        ),
        Directive::scope(
            row("_ssl_server_name", Args::Flag, "Whether the server name is sent to upstreams (SNI).")
                .default("off"),
            |scope, cx| cx.flag(&mut own::<F>(scope).sends_name),
        ),
        Directive::scope(
            row("_ssl_session_reuse", Args::Flag, "Whether sessions are resumed.").default("on"),
            |scope, cx| cx.flag(&mut own::<F>(scope).reuses_sessions),
        ),
        Directive::scope(
            row("_ssl_verify", Args::Flag, "Whether the upstream's certificate is verified.").default("off"),
            |scope, cx| cx.flag(&mut own::<F>(scope).verify),
        ),
        Directive::scope(
            row("_ssl_verify_depth", ONE, "Maximum number of intermediate certificates.").default("1"),
            |scope, cx| cx.number(&mut own::<F>(scope).verify_depth),
        ),
        Directive::scope(
            row("_ssl_trusted_certificate", ONE, "The file with trusted CA certificates, in PEM."),
            |scope, cx| {
                own::<F>(scope).trusted = read_optional_file(cx, "certificate")?;
                Ok(())
            },
        ),
        Directive::scope(row("_ssl_crl", ONE, "The file with CRLs, in PEM."), |scope, cx| {
            own::<F>(scope).crl = read_optional_file(cx, "certificate revocation list")?;
            Ok(())
        }),
        Directive::scope(
            row(
                "_ssl_certificate_cache",
                Args::Between(1, 3),
                "Caches certificates whose file names have variables; or `off`.",
            )
            .default("off"),
            |scope, cx| {
                own::<F>(scope).certificate_cache = read_certificate_cache(cx)?;
                Ok(())
            },
        ),
        Directive::scope(
            row("_ssl_conf_command", Args::Exactly(2), "A command of OpenSSL's configuration.").many(),
            |scope, cx| {
                let command = read_command(cx)?;
                let block = cx.block;
                own::<F>(scope).commands.make_mut(block).push(command);
                Ok(())
            },
        ),
    ];
}

/// Reads the file of a certificate or key; a name with variables is evaluated at each handshake. An empty name cancels an inherited
/// one.
fn read_origin<F: HasConf>(
    scope: &mut Scope,
    cx: &mut Cx<'_>,
    what: &str,
) -> Result<Option<PemSource>, Error> {
    let Some(text) = value_or_cancel(cx) else { return Ok(None) };
    if !text.contains('$') {
        return Ok(Some(PemSource::File(read_file(cx, what)?)));
    }
    own::<F>(scope).prefix = cx.conf_prefix.to_owned();
    Ok(Some(PemSource::Named(named_file(cx, text)?, text.to_owned())))
}

/// Returns the settings of this block, copied at its first directive.
fn own<F: HasConf>(scope: &mut Scope) -> &mut Conf {
    Arc::make_mut(&mut conf::<F>(scope).ssl)
}

/// Prepares the TLS client at the end of a block that may use TLS.
pub(super) fn finish(conf: &mut PassingConf, span: &Span) -> Result<(), Error> {
    // Without ALPN the protocol is HTTP/1.
    let alpn = if conf.is_http2 { vec![b"h2".to_vec()] } else { Vec::new() };
    conf.upstream.secure = match conf.pass.as_deref().filter(|pass| pass.may_be_secure()) {
        Some(_) => {
            Some(Arc::new(conf.ssl.settings(conf.prefix, alpn).map_err(|message| Error::at(span, message))?))
        }
        None => None,
    };
    Ok(())
}

/// Maximum number of intermediate certificates of a server whose certificate is verified without directives of a location.
const VERIFY_DEPTH: u64 = 8;

/// Files with the CAs that a system trusts: Debian and Alpine, Fedora, openSUSE.
const SYSTEM_CAS: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem"];

/// Prepares a TLS client of a directive for connections outside of locations. It verifies servers by the CAs of a file, else by those of
/// the system, and with the CRLs of a file; it offers these protocols by ALPN. `row` names the file with CAs in the block.
pub(crate) fn verifying_client(
    cx: &mut Cx<'_>,
    (directive, row): (&str, &str),
    trusted: Option<File>,
    crl: Option<File>,
    alpn: Vec<Vec<u8>>,
) -> Result<SecureSettings, Error> {
    let trusted = match trusted {
        Some(file) => file,
        None => system_cas(cx).ok_or_else(|| {
            let error =
                cx.error(format_args!("no CA certificates of the system were found for \"{directive}\""));
            error.advise(format_args!("install ca-certificates, or name a file with \"{row}\""))
        })?,
    };
    let conf = Conf {
        verify: true,
        verify_depth: VERIFY_DEPTH,
        trusted: Some(Ok(trusted)),
        crl: crl.map(Ok),
        sends_name: true,
        ..Conf::default()
    };
    conf.settings(directive, alpn).map_err(|fault| cx.error(fault))
}

fn system_cas(cx: &mut Cx<'_>) -> Option<File> {
    SYSTEM_CAS.iter().find_map(|path| {
        let path = Path::new(path);
        let bytes = cx.read_data(path).ok()?;
        Some(File { path: path.to_owned(), bytes })
    })
}

impl Conf {
    /// Prepares the TLS client, which offers these protocols by ALPN.
    pub(crate) fn settings(&self, prefix: &str, alpn: Vec<Vec<u8>>) -> Result<SecureSettings, String> {
        let chosen = Commands::of(self.commands.items()).map_err(|refused| refused.to_string())?;
        let suites = ciphers::parse(chosen.ciphers.as_ref().unwrap_or(&self.ciphers));
        let versions = chosen.versions(self.versions);
        let versions = Versions { tls12: versions.tls12 && !suites.is_empty(), ..versions };
        if !versions.tls12 && !versions.tls13 {
            return Err(format!("no cipher of \"{prefix}_ssl_ciphers\" \"{}\" is supported", self.ciphers));
        }
        // The groups were validated when the command was read.
        let groups = chosen.groups.as_deref().and_then(|text| groups::parse(text).ok());
        let (identity, named) = self.identity(prefix)?;
        let client = Client::new(ClientSettings {
            identity,
            versions,
            suites: if versions.tls12 { suites } else { Vec::new() },
            suites_13: if versions.tls13 {
                chosen.suites_13.unwrap_or_else(ciphers::all_13)
            } else {
                Vec::new()
            },
            groups: groups.map_or_else(groups::auto, |groups| groups.supported),
            reuses_sessions: self.reuses_sessions,
            sends_name: self.sends_name,
            alpn,
        });
        let client = client.map_err(|error| format!("TLS to upstreams cannot be set up: {error}"))?;
        Ok(SecureSettings { client, named, name: self.name.clone(), trust: self.trust(prefix)? })
    }

    /// Returns the certificate and its key, if configured: loaded with the configuration, or at handshakes.
    fn identity(&self, prefix: &str) -> Result<(Option<Identity>, Option<NamedCertificates>), String> {
        let Some(certificate) = &self.certificate else { return Ok((None, None)) };
        let Some(key) = &self.key else {
            let name = certificate.shown();
            return Err(format!("no \"{prefix}_ssl_certificate_key\" is defined for certificate \"{name}\""));
        };
        let passwords = Arc::clone(&self.passwords);
        let (PemSource::File(certificate), PemSource::File(key)) = (certificate, key) else {
            let pairs = vec![(certificate.template(), key.template())];
            let cache = self.certificate_cache.map(CertificateCache::new);
            let named = NamedCertificates { pairs, passwords, prefix: self.prefix.clone(), cache };
            return Ok((None, Some(named)));
        };
        let identity = Identity::from_pem(&certificate.bytes, &key.bytes, &passwords);
        identity.map(|identity| (Some(identity), None)).map_err(|error| match error {
            FileError::BadKey(_) | FileError::Password | FileError::UnsupportedKey => {
                format!("cannot load certificate key \"{}\": {error}", key.path.display())
            }
            _ => format!("cannot load certificate \"{}\": {error}", certificate.path.display()),
        })
    }

    /// Returns the trusted CAs for upstream certificates.
    fn trust(&self, prefix: &str) -> Result<Option<Trust>, String> {
        if !self.verify {
            return Ok(None);
        }
        let Some(trusted) = &self.trusted else {
            return Err(format!("no {prefix}_ssl_trusted_certificate for {prefix}_ssl_verify"));
        };
        let trusted = trusted.as_ref().map_err(Clone::clone)?;
        let path = trusted.path.display();
        let mut roots = Roots::new().ok_or("no memory for certificates")?;
        let found = certificate::authorities(&trusted.bytes);
        for der in found.map_err(|error| format!("cannot load certificate \"{path}\": {error}"))? {
            roots.add(&der).map_err(|reason| format!("cannot load certificate \"{path}\": {reason}"))?;
        }
        if let Some(file) = &self.crl {
            let file = file.as_ref().map_err(Clone::clone)?;
            let path = file.path.display();
            let found = certificate::crls(&file.bytes);
            for der in found.map_err(|error| format!("cannot load revocation list \"{path}\": {error}"))? {
                roots
                    .add_crl(&der)
                    .map_err(|reason| format!("cannot load revocation list \"{path}\": {reason}"))?;
            }
        }
        let depth_max = u32::try_from(self.verify_depth).unwrap_or(u32::MAX);
        Ok(Some(Trust::new(roots, depth_max, Purpose::Server)))
    }
}
