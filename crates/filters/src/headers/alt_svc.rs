//! `http3_alt_svc`: the field by which clients learn of HTTP/3.

use exchange::request::{Address, Request};

/// Adds `Alt-Svc` (RFC 7838) with the port of HTTP/3: that of the connection if HTTP/3 has the same, else the first of the server.
pub(super) fn add(seconds: &u64, request: &mut Request) {
    let conn = &request.conn;
    if request.depth > 0 || !conn.is_tls || conn.is_quic {
        return;
    }
    let own = match &conn.local {
        Address::Inet(local) => Some(local.port()),
        Address::Unix(_) => None,
    };
    let listens = request.thread_config.config.http.listens.iter();
    let ports = listens.filter(|listen| listen.spec.addr.is_quic() && listen.has_server(request.server));
    let mut ports = ports.filter_map(|listen| Some(listen.spec.addr.inet()?.port())).filter(|port| *port > 0);
    let Some(first) = ports.next() else { return };
    let port = own.filter(|own| first == *own || ports.any(|port| port == *own)).unwrap_or(first);
    let fields = &mut request.response.fields;
    // A value of `add_header`, or of an upstream, has priority.
    if !fields.iter().any(|(name, _)| name.eq_ignore_ascii_case(b"alt-svc")) {
        fields.push(b"Alt-Svc", format!("h3=\":{port}\"; ma={seconds}").as_bytes());
    }
}
