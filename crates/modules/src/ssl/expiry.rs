//! When the certificates of servers end, for numbers and for warnings.
//!
//! Of a chain the server's own certificate counts: those between it and a root are renewed with it. A certificate with
//! variables in its name, or of `acme_certificate`, is not read here.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use ::tls::certificate;
use ::tls::x509::Certificate;
use conf::{Error, Level};
use exchange::config::Http;

use super::conf::{Conf, Origin};
use telemetry::time_zone::since_1970;

/// A certificate and its end in seconds since 1970.
pub(super) type Expiry = (PathBuf, i64);

/// The ends of these certificates, as far as they can be read.
pub(super) fn of(certificates: &[Origin]) -> Vec<Expiry> {
    let end = |origin: &Origin| {
        let Origin::File(file) = origin else { return None };
        let chain = certificate::certificates(&file.bytes).ok()?;
        let end = Certificate::from_der(chain.first()?)?.expires()?;
        Some((file.path.clone(), end))
    };
    certificates.iter().filter_map(end).collect()
}

/// The certificates of all servers, each once: the server's first name, the file, the end.
pub(crate) fn expiries(http: &Http) -> BTreeSet<(&str, &Path, i64)> {
    let of_server = |server: &'_ exchange::config::Server| {
        http.locations[server.root.0 as usize].scope.of::<Conf>().expiries.as_slice()
    };
    let servers = http.servers.iter().flat_map(|server| {
        let name = if server.name.is_empty() { "_" } else { server.name.as_str() };
        of_server(server).iter().map(move |(path, end)| (name, path.as_path(), *end))
    });
    servers.collect()
}

/// Warnings count whole days.
const DAY_S: i64 = 24 * 60 * 60;

/// Seconds before the end of a certificate that are worth a warning: those who renew certificates automatically do it
/// earlier.
const NEAR_S: i64 = 14 * DAY_S;

/// Warns of certificates that have ended or will soon.
pub(super) fn warn(http: &Http, warnings: &mut Vec<Error>) {
    let (now, _) = since_1970(SystemTime::now());
    for (server, path, end) in expiries(http) {
        let path = path.display();
        let message = match end - now {
            ..=0 => format!("certificate \"{path}\" of server \"{server}\" has expired"),
            left @ 1..=NEAR_S => {
                let days = left / DAY_S;
                format!(
                    "certificate \"{path}\" of server \"{server}\" expires in less than {} days",
                    days + 1
                )
            }
            _ => continue,
        };
        warnings.push(Error::nowhere(message).with_level(Level::Warn));
    }
}
