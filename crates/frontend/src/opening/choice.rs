//! The first bytes of a connection, and the protocol that they show. HTTP/2 is negotiated by ALPN (RFC 9113 section 3.2), or starts
//! with the preface in clear text, by prior knowledge (section 3.3).

use http::h2::PREFACE;
use io::Errno;

use crate::input::receive_in_time;
use crate::opening::{Opening, Protocol};
use exchange::capacity::Waits;
use telemetry::tally::Stage;

/// Number of bytes of the preface that suffice to distinguish it from any HTTP/1 request.
const PREFACE_BYTES_MIN: usize = 4;

impl Opening {
    /// Waits for the first bytes within `client_header_timeout`; `false` if the connection must end.
    pub(super) async fn wait_for_first_bytes(&mut self) -> bool {
        // Behind a proxy the first request may arrive together with the header of the PROXY protocol.
        if !self.early.bytes().is_empty() {
            return true;
        }
        self.stage.set(Stage::Waiting);
        // Many connections end after the first response, and a multishot receive in flight would then have to be cancelled.
        self.wire.set_multishot(false);
        if self.receives_deferred_bytes() {
            // Requests on other connections are received before this one is served, so that all of them share one probe of the page
            // cache.
            rt::yield_to_ready().await;
            return true;
        }
        let end = rt::now() + self.default.core().reading.client_header_timeout;
        loop {
            self.timer.set(end);
            let waiting = self.thread.capacity.waits(Waits::First, &self.timer, self.wire.fd());
            let received = receive_in_time(&mut self.wire, &self.timer).await;
            let may_stay = !waiting.is_chosen() && !self.thread.is_draining() && rt::now() < end;
            drop(waiting);
            match received {
                Ok(Ok(received)) => {
                    self.wire.set_multishot(true);
                    return received.is_some_and(|buf| self.early.add(buf, usize::MAX));
                }
                // Woken to release a configuration version, which otherwise would live as long as the client waits.
                Err(rt::Elapsed)
                    if may_stay
                        && self.renew()
                        && self.listen_socket.serves(&self.default.thread_config, &self.info) => {}
                Ok(Err(_)) | Err(rt::Elapsed) => return false,
            }
        }
    }

    /// Receives the first bytes by a direct call if the address has `deferred`: then the kernel delivers a connection only when its
    /// first bytes have arrived.
    fn receives_deferred_bytes(&mut self) -> bool {
        if self.thread.calls_directly
            && self
                .listen_socket
                .listen(&self.default.thread_config)
                .is_some_and(|listen| listen.spec.deferred)
            && let Some(Ok(Some(received))) = self.wire.recv_now()
        {
            self.wire.set_multishot(true);
            return self.early.add(received, usize::MAX);
        }
        false
    }

    /// Whether the handshake negotiated HTTP/2. A handshake of `stream`, before its `pass`, is not one of this address.
    pub(super) fn has_agreed_on_http2(&self) -> bool {
        self.info.is_tls && self.info.secured.get().is_some_and(|secured| secured.alpn == b"h2")
    }

    /// Whether the first byte of the connection may be the first byte of the preface. With TLS the protocol was negotiated.
    pub(super) fn may_be_http2(&self) -> bool {
        self.early.bytes().first() == Some(&PREFACE[0]) && !self.info.is_tls
    }

    /// Chooses HTTP/2 if the connection begins with the preface, and HTTP/2 without ALPN is enabled; `None` if the connection must
    /// end before this is known.
    pub(super) async fn choose_by_preface(&mut self) -> Option<Protocol> {
        let listen = self.listen_socket.listen(&self.default.thread_config);
        let is_told = listen.is_some_and(|listen| listen.is_http2(&self.info.local));
        if !is_told && !self.default.http2().enabled {
            return Some(Protocol::Http1);
        }
        self.timer.set(rt::now() + self.default.core().reading.client_header_timeout);
        loop {
            let bytes = self.early.bytes();
            let count = bytes.len().min(PREFACE.len());
            if bytes[..count] != PREFACE[..count] {
                return Some(Protocol::Http1);
            }
            if count >= PREFACE_BYTES_MIN {
                return Some(Protocol::Http2);
            }
            let waiting = self.thread.capacity.waits(Waits::Head, &self.timer, self.wire.fd());
            let received = self.early.receive(&mut self.wire, &self.timer, 0).await;
            drop(waiting);
            match received {
                Ok(true) => {}
                // The deadline has passed, the connection was chosen to make room, or memory has run out.
                Err(Errno::TIMEDOUT | Errno::NOBUFS) => return None,
                // The parser of the header section handles the end of the connection.
                Ok(false) | Err(_) => return Some(Protocol::Http1),
            }
        }
    }
}
