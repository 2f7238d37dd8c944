//! Settings of TLS, and the preparation of handshakes from them.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::expiry::{self, Expiry};
use super::stapling::Stapled;
use ::tls::certificate::{self, FileError, Identity};
use ::tls::commands::Commands;
use ::tls::server::{Server, ServerSettings, Slot, Versions};
use ::tls::sessions::SessionCache;
use ::tls::tickets::{self, TicketKeys};
use ::tls::x509::{Purpose, Roots};
use ::tls::{Trust, ciphers, groups};
use conf::{Error, Span};
use exchange::acme::Acme;
use exchange::certificates::{CacheLimits, CertificateCache, NamedCertificates};
use exchange::http2::Http2;
use exchange::http3::Http3;
use exchange::ocsp::client::Depth;
use exchange::ocsp::{Responder, StatusCache};
use exchange::secured::VerifyClient;
use exchange::tls::Tls;
use exchange::tls_arguments::{File, OptionalFile, PemSource};
use site::config::{BlockEnd, BlockKind, Http, Layered, Scope, Section, Settings};
use site::settings::names::ServerName;

/// The settings of a block.
#[derive(Clone, Debug)]
pub(super) struct Conf {
    /// `ssl_certificate`
    pub(super) certificates: Layered<PemSource>,
    /// `ssl_certificate_key`
    pub(super) keys: Layered<PemSource>,
    /// `ssl_password_file`: the passwords, one per line.
    pub(super) passwords: Arc<Vec<Vec<u8>>>,
    /// `ssl_certificate_cache`
    pub(super) certificate_cache: Option<CacheLimits>,
    /// The base directory of relative file names.
    pub(super) prefix: PathBuf,
    /// `ssl_protocols`
    pub(super) versions: Versions,
    /// The block of `ssl_protocols`; 0 if there is none.
    pub(super) versions_block: u32,
    /// `ssl_ciphers`
    pub(super) ciphers: String,
    /// `ssl_ecdh_curve`
    pub(super) groups: String,
    /// `ssl_prefer_server_ciphers`
    pub(super) prefers_own_ciphers: bool,
    /// `ssl_buffer_size`
    pub(super) buffer_size: u64,
    /// `ssl_verify_client`
    pub(super) verify: VerifyClient,
    /// `ssl_verify_depth`
    pub(super) verify_depth: u64,
    /// `ssl_client_certificate`
    pub(super) client_certificate: Option<OptionalFile>,
    /// `ssl_trusted_certificate`
    pub(super) trusted_certificate: Option<OptionalFile>,
    /// `ssl_crl`
    pub(super) crl: Option<OptionalFile>,
    /// `ssl_session_cache`
    pub(super) cache: Option<Arc<SessionCache>>,
    /// `ssl_session_tickets`
    pub(super) tickets: bool,
    /// `ssl_session_ticket_key`
    pub(super) ticket_keys: Layered<File>,
    /// `ssl_session_timeout`
    pub(super) session_timeout: Duration,
    /// `ssl_early_data`
    pub(super) early_data: bool,
    /// `ssl_stapling`
    pub(super) stapling: bool,
    /// Position of `ssl_stapling` in the configuration.
    pub(super) stapling_span: Option<Span>,
    /// `ssl_stapling_responder`
    pub(super) stapling_responder: Option<String>,
    /// `ssl_stapling_verify`
    pub(super) verifies_stapling: bool,
    /// Messages for warnings.
    pub(super) notes: Notes,
    /// `ssl_ocsp`
    pub(super) ocsp: Option<Depth>,
    /// `ssl_ocsp_responder`
    pub(super) ocsp_responder: Option<Responder>,
    /// `ssl_ocsp_cache`
    pub(super) ocsp_cache: Option<Arc<StatusCache>>,
    /// `ssl_stapling_file`
    pub(super) stapling_file: Option<File>,
    /// `ssl_reject_handshake`
    pub(super) rejects: bool,
    /// `ssl_certificate_compression`
    pub(super) compresses_certificates: bool,
    /// `ssl_alpn` of `stream`; `None` in `http`, whose protocols are known.
    pub(super) alpn: Option<Vec<Vec<u8>>>,
    /// `ssl_conf_command`
    pub(super) commands: Layered<(String, String)>,
    /// Expiry times of the server's certificates.
    pub(super) expiries: Vec<Expiry>,
    /// The names of the module's directives in the server block, if it has no certificate.
    pub(super) written: Vec<String>,
}

impl Settings for Conf {}

/// Messages about the certificates of a server.
#[derive(Clone, Debug, Default)]
pub(super) struct Notes {
    /// Certificates whose OCSP responses are not fetched.
    pub(super) faults: Vec<String>,
    /// Certificates that are not used.
    pub(super) unused: Vec<String>,
}

impl Default for Conf {
    fn default() -> Conf {
        Conf {
            certificates: Layered::default(),
            keys: Layered::default(),
            passwords: Arc::default(),
            certificate_cache: None,
            prefix: PathBuf::new(),
            versions: Versions { tls12: true, tls13: true },
            versions_block: 0,
            ciphers: "HIGH:!aNULL:!MD5".to_owned(),
            groups: "auto".to_owned(),
            prefers_own_ciphers: false,
            compresses_certificates: true,
            buffer_size: 16 << 10,
            verify: VerifyClient::Off,
            verify_depth: 1,
            client_certificate: None,
            trusted_certificate: None,
            crl: None,
            cache: None,
            tickets: true,
            ticket_keys: Layered::default(),
            session_timeout: Duration::from_secs(300),
            early_data: false,
            stapling: false,
            stapling_span: None,
            stapling_responder: None,
            verifies_stapling: false,
            notes: Notes::default(),
            ocsp: None,
            ocsp_responder: None,
            ocsp_cache: None,
            stapling_file: None,
            rejects: false,
            alpn: None,
            commands: Layered::default(),
            expiries: Vec::new(),
            written: Vec::new(),
        }
    }
}

/// Prepares the handshakes of a server at the end of its block.
pub(super) fn end(http: &mut Http, scope: &mut Scope, block: &BlockEnd<'_>) -> Result<(), Error> {
    if block.kind != BlockKind::Server {
        return Ok(());
    }
    if http.section == Section::Stream {
        scope.make_mut::<Conf>().alpn.get_or_insert_default();
    }
    let conf = scope.shared::<Conf>();
    if conf.certificates.items().is_empty() && !conf.rejects {
        let names = block.statements.iter().map(|statement| &statement.name.text);
        let written: Vec<String> = names.filter(|name| name.starts_with("ssl_")).cloned().collect();
        if !written.is_empty() {
            scope.make_mut::<Conf>().written = written;
        }
        return Ok(());
    }
    let http2 = block.listens_for_http2 || scope.of::<Http2>().enabled;
    let quic = if block.listens_for_quic { scope.of::<Http3>().alpn() } else { Vec::new() };
    let names = block.names.iter().map(ServerName::shown).collect::<Vec<_>>();
    let prepared = conf.prepare(&names, &Offered { http2, quic }, scope.of::<Acme>());
    let (tls, notes) = prepared.map_err(|message| Error::at(block.span, message))?;
    scope.make_mut::<Conf>().notes = notes;
    scope.make_mut::<Conf>().expiries = expiry::read_expiries(conf.certificates.items());
    *scope.make_mut::<Tls>() = tls;
    Ok(())
}

/// The protocols that a server offers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Offered {
    /// Whether the server offers HTTP/2.
    pub(super) http2: bool,
    /// The protocols for ALPN over QUIC.
    pub(super) quic: Vec<Vec<u8>>,
}

/// Returns the protocols for ALPN, in order of preference.
fn protocols(has_http2: bool) -> Vec<Vec<u8>> {
    let first = if has_http2 { Some(b"h2".to_vec()) } else { None };
    let others = [&b"http/1.1"[..], b"http/1.0", b"http/0.9"];
    first.into_iter().chain(others.map(<[u8]>::to_vec)).collect()
}

/// Returns a file, unless it was not readable; [`Conf::check_files`] returns the error.
pub(super) fn readable(file: &Option<OptionalFile>) -> Option<&File> {
    file.as_ref().and_then(|file| file.as_ref().ok())
}

/// Returns the reason why a file cannot be used, in nginx's words.
fn unusable(what: &str, path: &Path, error: &FileError) -> String {
    format!("cannot load {what} \"{}\": {error}", path.display())
}

impl Conf {
    /// Prepares the handshakes of a server with these names. Returns the settings, and messages for warnings.
    pub(super) fn prepare(
        &self,
        names: &[String],
        offered: &Offered,
        acme: &Acme,
    ) -> Result<(Tls, Notes), String> {
        self.check_files()?;
        let trust = self.trust()?.map(Arc::new);
        let mut stapled = Stapled::default();
        let server = match self.certificates.items() {
            [] => None,
            _ => Some(self.server(names, offered, acme, &mut stapled)?),
        };
        let Stapled { staples, faults, unused } = stapled;
        let (named, checks) = (self.named().map(Arc::new), self.checks()?.map(Arc::new));
        let (rejects, client) = (self.rejects, self.verify);
        let tls = Tls { server, rejects, client, trust, named, staples, checks, borrowed: Vec::new() };
        Ok((tls, Notes { faults, unused }))
    }

    fn server(
        &self,
        names: &[String],
        offered: &Offered,
        acme: &Acme,
        stapled: &mut Stapled,
    ) -> Result<Server, String> {
        let chosen = Commands::of(self.commands.items()).map_err(|refused| refused.to_string())?;
        let ciphers = chosen.ciphers.as_ref().unwrap_or(&self.ciphers);
        let suites = ciphers::parse(ciphers);
        let suites_13 = chosen.suites_13.clone().unwrap_or_else(ciphers::all_13);
        let versions = chosen.versions(self.versions);
        if !versions.tls12 && !versions.tls13 {
            return Err("\"ssl_conf_command\" leaves no version of \"ssl_protocols\"".to_owned());
        }
        if suites.is_empty() && versions.tls12 && !versions.tls13 {
            return Err(format!("no cipher of \"ssl_ciphers\" \"{ciphers}\" is supported"));
        }
        let groups = groups::parse(chosen.groups.as_deref().unwrap_or(&self.groups));
        let groups = groups.map_err(|name| format!("unknown curve name \"{name}\" in \"ssl_ecdh_curve\""))?;
        if groups.supported.is_empty() {
            return Err(format!("no curve of \"ssl_ecdh_curve\" \"{}\" is supported", self.groups));
        }
        // TLS 1.2 is only offered with at least one of its cipher suites.
        let versions = Versions { tls12: versions.tls12 && !suites.is_empty(), ..versions };
        let (identities, slots) = self.identities(acme, stapled)?;
        let settings = ServerSettings {
            identities,
            stapled: stapled.staples.iter().map(|staple| Arc::clone(staple.slot())).collect(),
            slots,
            versions,
            suites: if versions.tls12 { suites } else { Vec::new() },
            suites_13: if versions.tls13 { suites_13 } else { Vec::new() },
            groups: groups.supported,
            prefers_own_ciphers: chosen.prefers_own_ciphers.unwrap_or(self.prefers_own_ciphers),
            prioritizes_chacha: chosen.prioritizes_chacha,
            compresses_certificates: self.compresses_certificates,
            client_authorities: self.client_authorities()?,
            alpn: self.alpn.clone().unwrap_or_else(|| protocols(offered.http2)),
            quic_alpn: if versions.tls13 { offered.quic.clone() } else { Vec::new() },
            tickets: if chosen.without_tickets { None } else { self.tickets()? },
            sessions: self.cache.clone(),
            session_timeout: self.session_timeout,
            scope: self.scope(names),
            record_bytes: usize::try_from(self.buffer_size).unwrap_or(usize::MAX),
            early_data: self.early_data,
        };
        Server::new(settings).map_err(|error| format!("TLS cannot be set up: {error}"))
    }

    fn identities(
        &self,
        acme: &Acme,
        stapled: &mut Stapled,
    ) -> Result<(Vec<Identity>, Vec<Arc<Slot>>), String> {
        let (certificates, keys) = (self.certificates.items(), self.keys.items());
        if let Some(last) = certificates.last().filter(|_| keys.len() < certificates.len()) {
            let path = last.shown();
            return Err(format!("no \"ssl_certificate_key\" is defined for certificate \"{path}\""));
        }
        let (mut loaded, mut slots) = (Vec::new(), Vec::new());
        for pair in certificates.iter().zip(keys) {
            let (certificate, key) = match pair {
                (PemSource::File(certificate), PemSource::File(key)) => (certificate, key),
                (PemSource::File(_) | PemSource::Named(..), PemSource::Empty) => {
                    return Err(format!("cannot load certificate key \"\" of \"{}\"", pair.0.shown()));
                }
                (PemSource::Acme, PemSource::Acme) => {
                    let slot = acme.slot.as_ref();
                    slots.extend(slot.cloned());
                    slot.ok_or("\"$acme_certificate\" is used without \"acme_certificate\" in this server")?;
                    continue;
                }
                // Pairs with variables in a name are loaded during handshakes.
                (PemSource::Named(..), PemSource::Named(..) | PemSource::File(_))
                | (PemSource::File(_), PemSource::Named(..)) => {
                    continue;
                }
                _ => {
                    return Err(
                        "\"$acme_certificate\" and \"$acme_certificate_key\" belong together".to_owned()
                    );
                }
            };
            let identity = Identity::from_pem(&certificate.bytes, &key.bytes, &self.passwords);
            let identity = identity.map_err(|error| match error {
                FileError::BadKey(_) | FileError::Password | FileError::UnsupportedKey => {
                    unusable("certificate key", &key.path, &error)
                }
                FileError::KeyMismatch(reason) => {
                    let (path, key) = (certificate.path.display(), key.path.display());
                    format!("the key \"{key}\" does not belong to the certificate \"{path}\": {reason}")
                }
                _ => unusable("certificate", &certificate.path, &error),
            })?;
            loaded.push((identity, certificate.path.as_path()));
        }
        let mut identities = Vec::new();
        for (index, (identity, path)) in loaded.iter().enumerate() {
            let later = loaded[index + 1..].iter().find(|(later, _)| later.has_key_type_of(identity));
            if let Some((_, later)) = later {
                let (path, later) = (path.display(), later.display());
                stapled.unused.push(format!(
                    "certificate \"{path}\" is not used, because \"{later}\" has a key of the same type"
                ));
                continue;
            }
            let fetches = self.stapling && self.stapling_file.is_none();
            if !fetches || !self.staple(identity, path, stapled)? {
                identities.push(identity.clone());
            }
        }
        if let Some(file) = self.stapling_file.as_ref().filter(|_| self.stapling)
            && let Some(first) = identities.first_mut()
        {
            *first = first.with_ocsp(file.bytes.to_vec());
        }
        Ok((identities, slots))
    }

    /// Returns the pairs that are loaded during handshakes, because a name has variables.
    fn named(&self) -> Option<NamedCertificates> {
        let is_named = |origin: &PemSource| matches!(origin, PemSource::Named(..));
        let pairs = self.certificates.items().iter().zip(self.keys.items());
        let pairs = pairs.filter(|(certificate, key)| is_named(certificate) || is_named(key));
        let pairs: Vec<_> =
            pairs.map(|(certificate, key)| (certificate.template(), key.template())).collect();
        if pairs.is_empty() {
            return None;
        }
        let (passwords, prefix) = (Arc::clone(&self.passwords), self.prefix.clone());
        let cache = self.certificate_cache.map(CertificateCache::new);
        Some(NamedCertificates { pairs, passwords, prefix, cache })
    }

    /// Returns the CAs whose names are sent to clients with a certificate request.
    fn client_authorities(&self) -> Result<Option<Vec<::tls::CertificateDer<'static>>>, String> {
        match (&self.verify, readable(&self.client_certificate)) {
            (VerifyClient::Off, _) => Ok(None),
            (_, None) => Ok(Some(Vec::new())),
            (_, Some(file)) => {
                let found = certificate::certificates(&file.bytes);
                Ok(Some(found.map_err(|error| unusable("certificate", &file.path, &error))?))
            }
        }
    }

    /// Returns the error of a file that is needed and was not readable. As in nginx, `ssl_client_certificate` is not needed if
    /// clients are not verified.
    fn check_files(&self) -> Result<(), String> {
        let of_clients = self.client_certificate.as_ref().filter(|_| self.verify != VerifyClient::Off);
        let mut files = of_clients.into_iter().chain(&self.trusted_certificate).chain(&self.crl);
        files.try_for_each(|file| file.as_ref().map(drop).map_err(Clone::clone))
    }

    /// Returns the trusted CAs for client certificates.
    fn trust(&self) -> Result<Option<Trust>, String> {
        // As in nginx, the content of the files has to be valid even if clients are not verified.
        let roots = self.roots()?;
        if self.verify == VerifyClient::Off {
            return Ok(None);
        }
        let files = [&self.client_certificate, &self.trusted_certificate];
        if self.verify != VerifyClient::OptionalNoCa && files.iter().all(|file| file.is_none()) {
            return Err(
                "no ssl_client_certificate or ssl_trusted_certificate for ssl_verify_client".to_owned()
            );
        }
        let depth_max = u32::try_from(self.verify_depth).unwrap_or(u32::MAX);
        Ok(Some(Trust::new(roots, depth_max, Purpose::Client)))
    }

    /// Returns the files with trusted certificates. As in nginx, `ssl_client_certificate` is included if clients are verified.
    pub(super) fn trusted_files(&self) -> impl Iterator<Item = &File> {
        let of_clients = readable(&self.client_certificate).filter(|_| self.verify != VerifyClient::Off);
        of_clients.into_iter().chain(readable(&self.trusted_certificate))
    }

    /// Returns the certificates of these files and the CRLs.
    pub(super) fn roots(&self) -> Result<Roots, String> {
        let mut roots = Roots::new().ok_or("no memory for certificates")?;
        for file in self.trusted_files() {
            let refused = |reason: &dyn std::fmt::Display| {
                format!("cannot load certificate \"{}\": {reason}", file.path.display())
            };
            for der in certificate::authorities(&file.bytes).map_err(|error| refused(&error))? {
                roots.add(&der).map_err(|reason| refused(&reason))?;
            }
        }
        if let Some(file) = readable(&self.crl) {
            let refused = |reason: &dyn std::fmt::Display| {
                format!("cannot load certificate revocation list \"{}\": {reason}", file.path.display())
            };
            for der in certificate::crls(&file.bytes).map_err(|error| refused(&error))? {
                roots.add_crl(&der).map_err(|reason| refused(&reason))?;
            }
        }
        Ok(roots)
    }

    fn tickets(&self) -> Result<Option<Arc<TicketKeys>>, String> {
        if !self.tickets {
            return Ok(None);
        }
        let files = self.ticket_keys.items();
        if files.is_empty() {
            return Ok(tickets::random_of_process(self.session_timeout));
        }
        if let Some(file) = files.iter().find(|file| !tickets::FILE_BYTES.contains(&file.bytes.len())) {
            return Err(format!("\"{}\" must be 48 or 80 bytes", file.path.display()));
        }
        let bytes: Vec<Vec<u8>> = files.iter().map(|file| file.bytes.to_vec()).collect();
        Ok(TicketKeys::from_files(&bytes))
    }

    /// Returns the scope of the block's sessions: unchanged after a reload without changes to it, different if client
    /// certificates are verified differently.
    fn scope(&self, names: &[String]) -> Vec<u8> {
        let mut scope = Vec::new();
        for name in names {
            scope.extend_from_slice(name.as_bytes());
            scope.push(0);
        }
        scope.extend_from_slice(format!("{:?} {}", self.verify, self.verify_depth).as_bytes());
        let files = self.certificates.items().iter().filter_map(|origin| match origin {
            PemSource::File(file) => Some(file),
            // Not included, so that sessions survive the renewal of a certificate.
            PemSource::Acme | PemSource::Named(..) | PemSource::Empty => None,
        });
        let others = [&self.client_certificate, &self.trusted_certificate, &self.crl];
        for file in files.chain(others.into_iter().filter_map(readable)) {
            scope.push(0);
            scope.extend_from_slice(&file.bytes);
        }
        for origin in self.certificates.items() {
            if let PemSource::Named(_, text) = origin {
                scope.push(0);
                scope.extend_from_slice(text.as_bytes());
            }
        }
        ::tls::digest(&scope)
    }
}
