//! The variables of the core of `stream`.

use http::proxy_protocol::Header;

use crate::http_core::variables::{
    NGINX_VERSION, milliseconds, number, push_binary, push_proxy_port, push_seconds, push_tlv, some,
};
use exchange::module::{SessionPrefixed, SessionVariable};
use exchange::session::Session;

type Get = fn(&Session, &mut Vec<u8>) -> bool;

const fn variable(name: &'static str, get: Get, help: &'static str) -> SessionVariable {
    SessionVariable { name, get, set: None, help }
}

pub(super) const VARIABLES: &[SessionVariable] = &[
    // A key for `limit_conn_zone`: of the same length for all clients of an address family.
    variable(
        "binary_remote_addr",
        |session, out| push_binary(session.client(), out),
        "The client's address as 4 or 16 bytes.",
    ),
    // Without the header of the PROXY protocol, and without the records of TLS.
    variable(
        "bytes_received",
        |session, out| number(session.counts.received.get(), out),
        "Bytes received from the client.",
    ),
    // Known at the end of the session: the relay counts what the kernel has accepted.
    variable(
        "bytes_sent",
        |session, out| number(session.counts.sent.get(), out),
        "Bytes sent to the client.",
    ),
    // Unique over all threads and over both blocks, so that a connection can be followed in logs.
    variable("connection", |session, out| number(session.conn.number, out), "The number of the connection."),
    // Looked up once, when the configuration is read.
    variable(
        "hostname",
        |session, out| some(session.config().stream.hostname.as_bytes(), out),
        "The machine's name.",
    ),
    // The time of the current event, not of the evaluation.
    variable("msec", |_, out| milliseconds(out), "Seconds since 1970, with milliseconds."),
    variable(
        "nginx_version",
        |_, out| some(NGINX_VERSION.as_bytes(), out),
        "The version of nginx that this server follows.",
    ),
    // The process ID identifies worker processes, but not threads.
    variable("pid", |_, out| number(std::process::id().into(), out), "The process ID of the worker process."),
    // For log lines of servers that have addresses of both protocols.
    variable(
        "protocol",
        |session, out| some(if session.datagrams.is_some() { b"UDP" } else { b"TCP" }, out),
        "`TCP` or `UDP`.",
    ),
    // The addresses of the header, whether or not its sender is trusted; `set_real_ip_from` decides about `$remote_addr`.
    variable(
        "proxy_protocol_addr",
        |session, out| proxy(session, |header, out| some(&header.src_addr, out), out),
        "The client's address from a PROXY protocol header; empty without one.",
    ),
    variable(
        "proxy_protocol_port",
        |session, out| proxy(session, |header, out| push_proxy_port(header.src_port, out), out),
        "The client's port from a PROXY protocol header; empty without one.",
    ),
    variable(
        "proxy_protocol_server_addr",
        |session, out| proxy(session, |header, out| some(&header.dst_addr, out), out),
        "The server's address from a PROXY protocol header; empty without one.",
    ),
    variable(
        "proxy_protocol_server_port",
        |session, out| proxy(session, |header, out| push_proxy_port(header.dst_port, out), out),
        "The server's port from a PROXY protocol header; empty without one.",
    ),
    // The peer of the socket, or the address that `set_real_ip_from` determined.
    variable("remote_addr", |session, out| session.client().show_address(out), "The client's address."),
    variable("remote_port", |session, out| session.client().show_port(out), "The client's port."),
    variable(
        "server_addr",
        |session, out| session.conn.local.show_address(out),
        "The address that the client reached.",
    ),
    variable(
        "server_port",
        |session, out| session.conn.local.show_port(out),
        "The port that the client reached.",
    ),
    // Measured from the accept, so it includes handshakes and the first bytes.
    variable(
        "session_time",
        |session, out| push_seconds(session.elapsed(), out),
        "Seconds since the start of the session, with milliseconds.",
    ),
    // As in nginx these are numbers of HTTP, although no client gets them. Before the end there is none.
    variable(
        "status",
        |session, out| match session.status {
            0 => some(b"000", out),
            status => number(status.into(), out),
        },
        "The status of the session: 200, 400, 403, 500, 502 or 503.",
    ),
    variable(
        "time_iso8601",
        |session, out| some(session.thread().dates().iso_8601(), out),
        "Local time as in ISO 8601.",
    ),
    variable(
        "time_local",
        |session, out| some(session.thread().dates().common_log(), out),
        "Local time as in the common log format.",
    ),
];

pub(super) const PREFIXED: &[SessionPrefixed] = &[SessionPrefixed {
    prefix: "proxy_protocol_tlv_",
    get: |session, name, out| push_tlv(session, session.conn.proxy.get().map(|header| &**header), name, out),
    help: "A value from a PROXY protocol header; empty without one.",
}];

/// Appends a value from the PROXY protocol; nothing if the connection does not use it.
fn proxy(session: &Session, show: fn(&Header, &mut Vec<u8>) -> bool, out: &mut Vec<u8>) -> bool {
    session.conn.proxy.get().is_some_and(|header| show(header, out))
}
