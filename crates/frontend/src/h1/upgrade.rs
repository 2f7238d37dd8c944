//! Connections that turn out to be HTTP/2: negotiated by ALPN (RFC 9113 section 3.2), or starting with the preface in clear text,
//! by prior knowledge (section 3.3).

use http::h2::PREFACE;
use io::Errno;

use crate::h1::Connection;
use crate::h2::{self, Start};
use exchange::capacity::Waits;

/// Number of bytes of the preface that suffice to distinguish it from any HTTP/1 request.
const PREFACE_BYTES_MIN: usize = 4;

impl Connection {
    /// Whether the handshake negotiated HTTP/2.
    pub(super) fn has_agreed_on_http2(&self) -> bool {
        self.info.secured.get().is_some_and(|secured| secured.alpn == b"h2")
    }

    /// Whether the first byte of the connection may be the first byte of the preface.
    pub(super) fn may_be_http2(&self) -> bool {
        self.input.bytes().first() == Some(&PREFACE[0])
    }

    /// Whether the connection begins with the preface, if HTTP/2 without ALPN is enabled; `None` if the connection must end before this
    /// is known.
    pub(super) async fn is_http2(&mut self) -> Option<bool> {
        let listen = self.entrance.listen(&self.generation);
        let is_told = listen.is_some_and(|listen| listen.is_http2(&self.info.local));
        let is_on = is_told || h2::settings_of(&self.entrance, &self.generation, &self.info).enabled;
        // With TLS the protocol was negotiated.
        if !is_on || self.info.secured.get().is_some() || self.info.is_tls {
            return Some(false);
        }
        self.timer.set(rt::now() + self.core().reading.client_header_timeout);
        loop {
            let bytes = self.input.bytes();
            let count = bytes.len().min(PREFACE.len());
            if bytes[..count] != PREFACE[..count] {
                return Some(false);
            }
            if count >= PREFACE_BYTES_MIN {
                return Some(true);
            }
            match self.receive_unless_reclaimed(Waits::Head, 0).await {
                Ok(true) => {}
                Err(Errno::TIMEDOUT | Errno::CANCELED | Errno::NOBUFS) => return None,
                // The parser of the header section handles the end of the connection.
                Ok(false) | Err(_) => return Some(false),
            }
        }
    }

    /// Continues the connection with HTTP/2.
    pub(super) async fn continue_with_http2(self) {
        let Connection { thread, entrance, info, input, wire, stage, .. } = self;
        let calls_directly = thread.calls_directly;
        let early = input.bytes().to_vec();
        let start = Start { thread, entrance, info: std::rc::Rc::clone(&info), wire, early, stage };
        let mut wire = h2::serve(start).await;
        wire.send_close_notify();
        info.client.take();
        if calls_directly {
            wire.close_directly();
        }
    }
}
