//! Refuses reads of status pages by pages of other sites that use DNS rebinding.
//!
//! A site's own name may resolve to 127.0.0.1. A browser on this machine then lets pages of that site read responses of this
//! server, because they have the same origin, and `allow 127.0.0.1` permits the request. Only its `Host` shows the site's name.

use std::net::IpAddr;

use super::conf::Conf;
use exchange::phases::Step;
use exchange::request::Request;
use http::fields::Method;
use site::address::Address;
use telemetry::Level;

/// Returns the refusal of a read under a name that the configuration does not have, if the client is on this machine.
pub(crate) fn refuse(request: &Request) -> Option<Step> {
    let names = request.scope().of::<Conf>().hosts.items();
    let is_read = matches!(request.method, Method::Get | Method::Head);
    if !is_read || !is_loopback(request.client()) || is_expected(names, request) {
        return None;
    }
    let host = String::from_utf8_lossy(&request.host);
    request.log(
        Level::Error,
        format_args!(
            "host \"{host}\" is refused, because a page of another site may use it to read this page (DNS rebinding): \
             add it to \"api_hosts\" or \"server_name\" if it is yours"
        ),
    );
    Some(Step::Status(403))
}

fn is_loopback(client: &Address) -> bool {
    matches!(client, Address::Inet(client) if client.ip().to_canonical().is_loopback())
}

/// Whether the requested host cannot be another site's, or the configuration has it.
fn is_expected(names: &[Box<str>], request: &Request) -> bool {
    let host = request.host.as_slice();
    !may_be_public(host)
        || names.iter().any(|known| known.as_bytes().eq_ignore_ascii_case(host))
        || has_server_name(request, host)
}

/// Whether a host, in lower case and without port, may be a name of the public DNS: it has a dot, is no address, and is not below
/// `localhost` (RFC 6761 section 6.3). A name whose last label is a number is an address in another form.
fn may_be_public(host: &[u8]) -> bool {
    let Ok(host) = str::from_utf8(host) else { return true };
    let Some((_, last)) = host.rsplit_once('.') else { return false };
    let is_number = last.bytes().all(|byte| byte.is_ascii_digit());
    let is_address = host.starts_with('[') || host.parse::<IpAddr>().is_ok();
    !is_number && !is_address && last != "localhost"
}

/// Whether a `server_name` of the selected server matches the host. The default server is also selected for other hosts.
fn has_server_name(request: &Request, host: &[u8]) -> bool {
    let mut listens = request.config().http.listens.iter().filter(|listen| listen.has_server(request.server));
    listens.any(|listen| listen.lookup(&request.conn.local).1.is_name_of(request.server, host))
}

#[cfg(test)]
mod tests {
    use super::may_be_public;

    #[test]
    fn names_with_a_dot_may_be_public() {
        for host in ["evil.test", "a.b.c", "127.0.0.1.evil.test", "localhost.evil.test", "1.a"] {
            assert!(may_be_public(host.as_bytes()), "{host}");
        }
        for host in
            ["", "localhost", "a.localhost", "printer", "127.0.0.1", "127.1", "[::1]", "[::ffff:1.2.3.4]"]
        {
            assert!(!may_be_public(host.as_bytes()), "{host}");
        }
    }
}
