//! Warnings about status pages that all clients can read: on an address that other machines can reach, without an
//! access rule. Numbers reveal the content and the load of a site, and changes can make it unavailable.

use conf::{Error, Level};

use super::{Conf, Page};
use exchange::config::{Http, Location};
use exchange::settings::listen::ListenAddr;

/// Warns of each page without access restrictions.
pub(super) fn check(http: &Http, warnings: &mut Vec<Error>) {
    let shows = |location: &&Location| location.scope.of::<Conf>().page.is_some_and(Page::is_private);
    for location in http.locations.iter().filter(shows) {
        let Some(page) = location.scope.of::<Conf>().page else { continue };
        if guards::restricts(&location.scope) {
            continue;
        }
        let reached = http.listens.iter().filter(|listen| listen.has_server(location.server));
        let Some(listen) = reached.into_iter().find(|listen| is_public(&listen.spec.addr)) else { continue };
        let what = format_args!(
            "\"{}\" in location \"{}\" {} all clients of {}: add \"allow\" and \"deny\"",
            page.name(),
            location.name,
            if page.may_write() { "can be changed by" } else { "is open to" },
            listen.spec.text
        );
        warnings.push(Error::without_location(what).with_level(Level::Warn));
    }
}

/// Whether other machines may reach an address.
fn is_public(address: &ListenAddr) -> bool {
    match address {
        ListenAddr::Inet(address) => !address.ip().is_loopback(),
        ListenAddr::Unix(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::warnings;

    #[test]
    fn pages_open_to_all_clients_cause_a_warning() {
        let found = |listen: &str, text: &str| {
            warnings(&format!("http {{ server {{ listen {listen}; location = /m {{ metrics; {text} }} }} }}"))
        };
        let expected =
            "\"metrics\" in location \"= /m\" is open to all clients of 80: add \"allow\" and \"deny\"";
        assert_eq!(found("80", ""), [expected]);
        for (listen, text) in [
            ("127.0.0.1:80", ""),
            ("unix:/run/x", ""),
            ("80", "allow 127.0.0.1; deny all;"),
            ("80", "auth_basic a; auth_basic_user_file b;"),
            ("80", "auth_request /a;"),
        ] {
            assert_eq!(found(listen, text), [""; 0], "{listen} {text}");
        }
    }
}
