//! Expiry times of servers' certificates, for metrics and for warnings.
//!
//! Of a chain only the server's own certificate counts, because intermediate certificates are renewed with it. For a
//! certificate of `acme_certificate`, which changes while the server runs, metrics show the current expiry time. There are no
//! warnings of its expiry, because the error log has the failures of its renewal.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use ::tls::certificate;
use ::tls::x509::Certificate;
use exchange::acme::Acme;
use site::config::{Http, Server};

use super::conf::Conf;
use exchange::tls_arguments::PemSource;
use telemetry::time_zone::since_1970;

/// The path of a certificate, and its expiry time in seconds since 1970.
pub(super) type Expiry = (PathBuf, i64);

/// Returns the expiry times of these certificates, as far as they can be parsed.
pub(super) fn read_expiries(certificates: &[PemSource]) -> Vec<Expiry> {
    let end = |origin: &PemSource| {
        let PemSource::File(file) = origin else { return None };
        let chain = certificate::certificates(&file.bytes).ok()?;
        let end = Certificate::from_der(chain.first()?)?.expires()?;
        Some((file.path.clone(), end))
    };
    certificates.iter().filter_map(end).collect()
}

/// The text shown instead of a file for the certificate of an ACME authority.
const OF_AUTHORITY: &str = "$acme_certificate";

/// Returns the certificates of all servers without duplicates: the server's first name, the file, the expiry time. The
/// time is 0 if an authority has not issued a certificate yet. Of several certificates with the same names, such as those
/// of an authority for servers with the same first name, it returns the first one to expire.
pub fn expiries(http: &Http) -> Vec<(&str, &Path, i64)> {
    let mut found = of_files(http);
    for server in &http.servers {
        let scope = &http.locations[server.root.0 as usize].scope;
        let is_shown = scope.of::<Conf>().certificates.items().iter().any(|it| matches!(it, PemSource::Acme));
        if let Some(slot) = scope.of::<Acme>().slot.as_ref().filter(|_| is_shown) {
            let end = if slot.is_placeholder() { None } else { slot.get().expires() };
            found.insert((name_of(server), Path::new(OF_AUTHORITY), end.unwrap_or(0)));
        }
    }
    first_to_expire(found)
}

/// Returns the certificate with the smallest time for each server and file.
fn first_to_expire<'a>(certificates: BTreeSet<(&'a str, &'a Path, i64)>) -> Vec<(&'a str, &'a Path, i64)> {
    let mut found: Vec<_> = certificates.into_iter().collect();
    // The set is ordered, so the first of equal names has the smallest time.
    found.dedup_by_key(|&mut (server, path, _)| (server, path));
    found
}

/// Returns the certificates in files of all servers, without duplicates.
fn of_files(http: &Http) -> BTreeSet<(&str, &Path, i64)> {
    let of_server =
        |server: &Server| http.locations[server.root.0 as usize].scope.of::<Conf>().expiries.as_slice();
    let servers = http.servers.iter().flat_map(|server| {
        of_server(server).iter().map(move |(path, end)| (name_of(server), path.as_path(), *end))
    });
    servers.collect()
}

fn name_of(server: &Server) -> &str {
    if server.name.is_empty() { "_" } else { &server.name }
}

/// Seconds of a day; warnings count complete days.
const DAY_S: i64 = 24 * 60 * 60;

/// Seconds before the expiry at which a warning is given; automatic renewal happens earlier.
const NEAR_S: i64 = 14 * DAY_S;

/// Returns warnings of certificates in files that have expired or will soon, and the time until these warnings change.
pub fn certificate_warnings(http: &Http, now: SystemTime) -> (Vec<String>, Option<Duration>) {
    let (now, _) = since_1970(now);
    let (mut warnings, mut next) = (Vec::new(), None);
    for (server, path, end) in of_files(http) {
        let (path, left) = (path.display(), end - now);
        let change = match left {
            ..=0 => {
                warnings.push(format!("certificate \"{path}\" of server \"{server}\" has expired"));
                continue;
            }
            1..=NEAR_S => {
                let days = left / DAY_S;
                warnings.push(format!(
                    "certificate \"{path}\" of server \"{server}\" expires in less than {} days",
                    days + 1
                ));
                if days == 0 { left } else { left % DAY_S + 1 }
            }
            _ => left - NEAR_S,
        };
        next = next.into_iter().chain(u64::try_from(change)).min();
    }
    (warnings, next.map(Duration::from_secs))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two servers can have the same first name and certificates of different orders. A metric must not be listed twice.
    #[test]
    fn a_server_and_a_certificate_are_listed_once() {
        let (acme, file) = (Path::new(OF_AUTHORITY), Path::new("a.pem"));
        let all = [("a", acme, 20), ("a", acme, 10), ("a", file, 5), ("b", acme, 30)];
        assert_eq!(first_to_expire(all.into()), [("a", acme, 10), ("a", file, 5), ("b", acme, 30)]);
    }
}
