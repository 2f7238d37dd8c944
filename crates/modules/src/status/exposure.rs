//! Warnings about locations that are open to all clients: on an address that other machines can reach, without an access rule.
//! Numbers of status pages reveal the content and the load of a site, and changes can make it unavailable. Purges cause load on
//! the upstream, a tunnel to any target is an open proxy, and methods of WebDAV change files.

use std::collections::HashSet;

use conf::{Error, Level};

use super::conf::{Conf, Page};
use site::config::{Http, Location, Scope};
use site::settings::listen::ListenAddr;

/// Warns of each page without access restrictions.
pub(super) fn check(http: &Http, warnings: &mut Vec<Error>) {
    let shows = |location: &&Location| location.scope.of::<Conf>().page.is_some_and(Page::is_private);
    for location in http.locations.iter().filter(shows) {
        let Some(page) = location.scope.of::<Conf>().page else { continue };
        if guards::restricts(&location.scope) || gateways::restricts_by_login(&location.scope) {
            continue;
        }
        let Some(listen) = public_listen(http, location) else { continue };
        let what = format_args!(
            "\"{}\" in location \"{}\" {} all clients of {listen}: add \"allow\" and \"deny\"",
            page.name(),
            location.name,
            if page.may_write() { "can be changed by" } else { "is open to" },
        );
        warnings.push(Error::without_location(what).with_level(Level::Warn));
    }
    for opening in OPENINGS {
        check_opening(http, opening, warnings);
    }
}

/// Something that a location may allow to all clients.
struct Opening {
    /// What all clients can do.
    effect: &'static str,
    /// Returns the directive, if the settings of a location allow it.
    directive: fn(&Scope) -> Option<&str>,
}

const OPENINGS: &[Opening] = &[
    Opening { effect: "purge the cache", directive: gateways::open_purge },
    Opening {
        effect: "open tunnels to any host and port",
        directive: |scope| gateways::may_tunnel(scope).then_some("tunnel_pass"),
    },
    Opening {
        effect: "change files",
        directive: |scope| handlers::may_write(scope).then_some("dav_methods"),
    },
];

/// Warns of the first open location of each server: most are open because of a directive of an outer block.
fn check_opening(http: &Http, opening: &Opening, warnings: &mut Vec<Error>) {
    let mut warned = HashSet::new();
    for location in &http.locations {
        let Some(name) = (opening.directive)(&location.scope) else { continue };
        if is_restricted(http, location) || warned.contains(&location.server) {
            continue;
        }
        let Some(listen) = public_listen(http, location) else { continue };
        warned.insert(location.server);
        let effect = opening.effect;
        let what = format_args!(
            "\"{name}\" in location \"{}\" lets all clients of {listen} {effect}: add \"allow\" and \"deny\"",
            location.name
        );
        warnings.push(Error::without_location(what).with_level(Level::Warn));
    }
}

/// Whether access to a location is restricted, at least for the methods that its `limit_except` does not name.
fn is_restricted(http: &Http, location: &Location) -> bool {
    let limited = location.scope.core.limit_except.as_ref();
    let limited = limited.and_then(|limit| http.locations.get(limit.location.0 as usize));
    let restricts = |scope| guards::restricts(scope) || gateways::restricts_by_login(scope);
    restricts(&location.scope) || limited.is_some_and(|limited| restricts(&limited.scope))
}

/// Returns an address of a location's server that other machines can reach.
fn public_listen<'h>(http: &'h Http, location: &Location) -> Option<&'h str> {
    let mut reached = http.listens.iter().filter(|listen| listen.has_server(location.server));
    reached.find(|listen| is_public(&listen.spec.addr)).map(|listen| &*listen.spec.text)
}

/// Whether other machines may reach an address.
fn is_public(address: &ListenAddr) -> bool {
    address.inet().is_some_and(|address| !address.ip().is_loopback())
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

    #[test]
    fn open_purges_tunnels_and_uploads_cause_a_warning() {
        let found = |listen: &str, text: &str| {
            warnings(&format!(
                "http {{ map $request_method $is_purge {{ PURGE 1; }} proxy_cache_path /c keys_zone=z:1m;
                 server {{ listen {listen}; location /a {{ {text} location /a/b {{ }} }} }} }}"
            ))
        };
        let purge = "proxy_pass http://127.0.0.1; proxy_cache z; proxy_cache_purge $is_purge;";
        let purge_of_fastcgi = "fastcgi_pass 127.0.0.1:9; fastcgi_cache z; fastcgi_cache_key $uri;
            fastcgi_cache_purge $is_purge;";
        for (text, name, effect) in [
            (purge, "proxy_cache_purge", "purge the cache"),
            (purge_of_fastcgi, "fastcgi_cache_purge", "purge the cache"),
            ("tunnel_pass;", "tunnel_pass", "open tunnels to any host and port"),
            ("dav_methods PUT DELETE;", "dav_methods", "change files"),
        ] {
            let expected = format!(
                "\"{name}\" in location \"/a\" lets all clients of 80 {effect}: add \"allow\" and \"deny\""
            );
            let shown = found("80", text);
            assert_eq!(shown.len(), 1, "{shown:?}");
            let nested = expected.replace("\"/a\"", "\"/a/b\"");
            assert!(shown[0].starts_with(&expected) || shown[0].starts_with(&nested), "{shown:?}");
            for (listen, more) in [
                ("127.0.0.1:80", ""),
                ("unix:/run/x", ""),
                ("80", "allow 127.0.0.1; deny all;"),
                ("80", "auth_basic a; auth_basic_user_file b;"),
                ("80", "limit_except GET { deny all; }"),
            ] {
                // The nested location inherits the directives, but not `limit_except`.
                let nested = found(listen, &format!("{text} {more}"));
                let is_nested =
                    more.starts_with("limit_except") && nested.iter().all(|text| text.contains("/a/b"));
                assert!(nested.is_empty() || is_nested, "{listen} {more}: {nested:?}");
            }
        }
        assert_eq!(found("80", "tunnel_pass a.example:443;"), [""; 0]);
    }
}
