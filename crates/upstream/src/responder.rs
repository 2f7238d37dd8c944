//! Sends an OCSP request over HTTP to a responder (RFC 6960 appendix A.1), and receives the response into memory.
//!
//! The responder's URL may be part of a client's certificate, so the responder is not trusted. Time and response size are limited;
//! the time limit includes all tries at further addresses. As in nginx the request is a GET, so HTTP caches may serve the response.

use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use http::fields::Method;
use http::gateway::{BodyEvent, Decoder, HeadEvent};
use http::response::parse::{Limits, ParsedResponse};
use http::uri::{Escape, escape};
use io::Segments;
use io::op::PeerAddr;
use rt::{ConnectOptions, Socket, Timer};

use crate::link::call;
use exchange::ocsp::{Fetch, Fetching, Inquiry, Responder};
use exchange::thread::Thread;
use exchange::{error_log, refusals};
use peers::resolve::{Conf, system_addresses};
use telemetry::{ForLog, Level, Reason};
use tls::ocsp::RESPONSE_BYTES_MAX;

/// Time limit of a request, for all addresses of the responder together. nginx has the same timeout.
const RESPONDER_TIME: Duration = Duration::from_secs(60);

/// Maximum size in bytes of the header section of a response.
const HEAD_BYTES_MAX: u32 = 8 << 10;

/// Maximum number of addresses of a responder that are tried.
const ADDRESSES_MAX: usize = 4;

/// Media type of responses (RFC 6960 appendix C.2).
const RESPONSE_TYPE: &[u8] = b"application/ocsp-response";

/// The function that sends requests to responders, for `exchange::ocsp`.
pub const FETCH: Fetch = Fetch(fetch);

fn fetch(thread: Rc<Thread>, inquiry: Inquiry) -> Fetching {
    Box::pin(async move {
        let timer = Timer::new();
        timer.set(rt::now() + RESPONDER_TIME);
        let response = timer.limit(pin!(fetch_from_any(&thread, &inquiry))).await;
        response.unwrap_or_else(|rt::Elapsed| {
            Err(format!("OCSP responder timed out ({})", Reason(io::Errno::TIMEDOUT)))
        })
    })
}

async fn fetch_from_any(thread: &Thread, inquiry: &Inquiry) -> Result<Vec<u8>, String> {
    let addresses = addresses(inquiry).await?;
    let request = request(&inquiry.responder, &inquiry.request);
    let mut last = String::new();
    for address in addresses.into_iter().take(ADDRESSES_MAX) {
        match fetch_from(thread, address, request.clone()).await {
            Ok(response) => return Ok(response),
            Err(message) => last = message,
        }
    }
    Err(last)
}

/// Returns the addresses of the responder.
async fn addresses(inquiry: &Inquiry) -> Result<Vec<SocketAddr>, String> {
    let Inquiry { responder: Responder { host, port, .. }, at, by_system, .. } = inquiry;
    let with_port = |ip: &IpAddr| SocketAddr::new(*ip, *port);
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(vec![with_port(&address)]);
    }
    let Conf { resolver, timeout } = at.scope().of::<Conf>();
    let not_found = |reason: &dyn std::fmt::Display| format!("{host} could not be resolved ({reason})");
    match resolver {
        Some(resolver) => match resolver.find(host.as_bytes(), *timeout, None).await {
            Ok((addresses, _)) => Ok(addresses.iter().map(with_port).collect()),
            Err(unresolved) => Err(not_found(&unresolved)),
        },
        None if *by_system => match system_addresses(host).await {
            Ok(addresses) => Ok(addresses.iter().map(with_port).collect()),
            Err(reason) => Err(not_found(&reason)),
        },
        None => Err(format!("no resolver defined to resolve {host}")),
    }
}

/// Encodes the only request of a connection (HTTP/1.0).
fn request(responder: &Responder, content: &[u8]) -> Vec<u8> {
    let Responder { host, port, path } = responder;
    let mut base64 = Vec::new();
    http::base64::encode(content, &mut base64);
    let slash = if path.ends_with('/') { "" } else { "/" };
    let mut request = format!("GET {path}{slash}").into_bytes();
    escape(Escape::UriComponent, &base64, &mut request);
    let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
    let port = if *port == 80 { String::new() } else { format!(":{port}") };
    request.extend_from_slice(format!(" HTTP/1.0\r\nHost: {host}{port}\r\n\r\n").as_bytes());
    request
}

/// Sends the request to one address; returns the content of the response.
async fn fetch_from(thread: &Thread, address: SocketAddr, request: Vec<u8>) -> Result<Vec<u8>, String> {
    let slot = thread.slot_for_upstream(None).await;
    let _slot = slot.ok_or("worker_connections are not enough")?;
    let options = ConnectOptions { nodelay: true, ..ConnectOptions::default() };
    let peer = PeerAddr::Inet(address);
    let mut socket = match Socket::connect_with(peer.clone(), &options).await {
        Ok(socket) => socket,
        Err(error) => {
            if let Some(line) = refusals::refused_port(thread, &peer, error.errno) {
                error_log::write(thread, Level::Error, format_args!("{line}"));
            }
            let (call, reason) = (call(error.step, &options), Reason(error.errno));
            return Err(format!("{call} to {address} failed ({reason})"));
        }
    };
    socket.reader.set_multishot(false);
    let (sent, _) = socket.writer.send(Segments::from(request), false).await;
    sent.map_err(|errno| format!("send() to {address} failed ({})", Reason(errno)))?;
    let mut reply = Received::default();
    loop {
        if let Some(content) = reply.content().map_err(|what| format!("OCSP responder {what}"))? {
            return Ok(content);
        }
        match socket.reader.recv().await {
            Ok(Some(buf)) => reply.bytes.extend_from_slice(&buf),
            Ok(None) => reply.is_over = true,
            Err(errno) => return Err(format!("recv() from {address} failed ({})", Reason(errno))),
        }
    }
}

/// Response received so far.
struct Received {
    decoder: Decoder,
    /// Received bytes that are not decoded yet.
    bytes: Vec<u8>,
    /// Decoded content. `None` until the header section is complete.
    content: Option<Vec<u8>>,
    is_over: bool,
}

impl Default for Received {
    fn default() -> Received {
        let limits = Limits { head_max: HEAD_BYTES_MAX, ..Limits::default() };
        let decoder = Decoder::http1(Method::Get, limits);
        Received { decoder, bytes: Vec::new(), content: None, is_over: false }
    }
}

/// nginx's text for an invalid response, after "OCSP responder".
const INVALID: &str = "sent invalid response";

impl Received {
    /// Decodes the received bytes; returns the content when it is complete.
    fn content(&mut self) -> Result<Option<Vec<u8>>, String> {
        let early = || Err("prematurely closed connection".to_owned());
        while self.content.is_none() {
            let mut head = ParsedResponse::new();
            match self.decoder.head(&mut head, &self.bytes).map_err(|_| INVALID)? {
                HeadEvent::Head(len) => {
                    check(&head, &self.bytes)?;
                    debug_assert!(len as usize <= self.bytes.len(), "the header section was received");
                    assert!(self.content.is_none(), "a response has one header section");
                    self.bytes.drain(..len as usize);
                    self.content = Some(Vec::new());
                }
                HeadEvent::Interim(len) => drop(self.bytes.drain(..len as usize)),
                HeadEvent::More if self.is_over => return early(),
                HeadEvent::More => return Ok(None),
                HeadEvent::NoHead | HeadEvent::Written(_) => return Err(INVALID.to_owned()),
            }
        }
        let content = self.content.get_or_insert_default();
        loop {
            let step = self.decoder.body(&self.bytes).map_err(|_| INVALID)?;
            if let BodyEvent::Data { start, end } = step.event {
                content.extend_from_slice(&self.bytes[start..end]);
            }
            debug_assert!(step.consumed <= self.bytes.len(), "only received bytes are processed");
            self.bytes.drain(..step.consumed);
            match step.event {
                _ if content.len() > RESPONSE_BYTES_MAX => {
                    return Err(format!("sent more than {RESPONSE_BYTES_MAX} bytes"));
                }
                BodyEvent::End => return Ok(Some(std::mem::take(content))),
                BodyEvent::Data { .. } => {}
                BodyEvent::More if !self.is_over => return Ok(None),
                BodyEvent::More if self.decoder.close() => return Ok(Some(std::mem::take(content))),
                BodyEvent::More => return early(),
            }
        }
    }
}

/// Checks that a header section has status 200, and no media type other than that of OCSP responses.
fn check(head: &ParsedResponse, bytes: &[u8]) -> Result<(), String> {
    let status = head.status().code();
    if status != 200 {
        return Err(format!("sent status {status}"));
    }
    let mut lines = head.lines(bytes);
    let kind = lines.find(|line| line.name.eq_ignore_ascii_case(b"content-type")).map(|line| line.value);
    match kind {
        Some(kind) if !kind.split(|byte| *byte == b';').next().is_some_and(is_response_type) => {
            Err(format!("sent invalid \"Content-Type\" header: \"{}\"", kind.for_log()))
        }
        _ => Ok(()),
    }
}

/// Whether a `Content-Type` is that of an OCSP response (RFC 6960 appendix A.2).
fn is_response_type(kind: &[u8]) -> bool {
    kind.trim_ascii().eq_ignore_ascii_case(RESPONSE_TYPE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn responder(url: &str) -> Responder {
        Responder::parse(url).expect("a URL")
    }

    /// Receives a response in two pieces, for each position of the cut; returns the result, which must be equal for all positions.
    fn receive(text: &str) -> Result<Vec<u8>, String> {
        let outcome = |cut: usize| {
            let mut received = Received::default();
            for piece in [&text.as_bytes()[..cut], &text.as_bytes()[cut..]] {
                received.bytes.extend_from_slice(piece);
                if let Some(content) = received.content()? {
                    return Ok(content);
                }
            }
            received.is_over = true;
            received.content().map(|content| content.expect("it is over"))
        };
        let first = outcome(0);
        (1..text.len()).for_each(|cut| assert_eq!(outcome(cut), first, "{cut}: {text}"));
        first
    }

    #[test]
    fn the_request_matches_nginx() {
        let text =
            |url: &str, content: &[u8]| String::from_utf8(request(&responder(url), content)).expect("ASCII");
        let expected = "GET /x/%2B%2F%2F%2B HTTP/1.0\r\nHost: a.example\r\n\r\n";
        assert_eq!(text("http://a.example/x", &[0xfb, 0xff, 0xfe]), expected);
        let expected = "GET /AA%3D%3D HTTP/1.0\r\nHost: [::1]:81\r\n\r\n";
        assert_eq!(text("http://[::1]:81", &[0]), expected);
    }

    #[test]
    fn a_response_is_complete_or_refused() {
        let with = |head: &str, body: &str| receive(&format!("HTTP/1.0 {head}\r\n\r\n{body}"));
        let typed = "200 OK\r\nContent-Type: application/ocsp-response";
        assert_eq!(with(typed, "abc"), Ok(b"abc".to_vec()));
        assert_eq!(with(&format!("{typed}; x\r\nContent-Length: 2"), "abc"), Ok(b"ab".to_vec()));
        assert_eq!(with("200 OK", "abc"), Ok(b"abc".to_vec()));
        let chunked = format!("HTTP/1.1 {typed}\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n");
        assert_eq!(receive(&chunked), Ok(b"ab".to_vec()));
        for (head, body, expected) in [
            ("200 OK\r\nContent-Type: text/html", "x", "sent invalid \"Content-Type\" header: \"text/html\""),
            ("404 Not Found", "", "sent status 404"),
            ("200 OK\r\nContent-Length: 4", "abc", "prematurely closed connection"),
            ("200 OK\r\nContent-Length: x", "abc", INVALID),
        ] {
            assert_eq!(with(head, body), Err(expected.to_owned()), "{head}");
        }
        assert_eq!(receive("HTTP/1.0 200 OK\r\n"), Err("prematurely closed connection".to_owned()));
        assert_eq!(receive("SSH-2.0\r\n\r\n"), Err(INVALID.to_owned()));
    }

    #[test]
    fn a_response_has_a_maximum_size() {
        let bytes = b"HTTP/1.0 200 OK\r\n\r\n".to_vec();
        let mut received = Received { bytes, ..Received::default() };
        received.bytes.extend(std::iter::repeat_n(b'x', RESPONSE_BYTES_MAX + 1));
        assert_eq!(received.content(), Err("sent more than 65536 bytes".to_owned()));
    }
}
