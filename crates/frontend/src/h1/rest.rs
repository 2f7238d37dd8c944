//! Unread request bodies, and lingering close.
//!
//! ```text
//!   keep-alive: response --> remaining body discarded --> next request
//!   closed:     response --> shutdown(SHUT_WR) --> input discarded for lingering_time --> close
//! ```
//! Closing a socket with unread bytes sends a reset, which can destroy the response in flight.

use std::time::Instant;

use http::connection;
use http::fields::BodyLength;
use http::framing::{ChunkedDecoder, Event};
use http::request::Phase;
use io::Errno;

use crate::h1::Connection;
use exchange::capacity::Waits;
use exchange::request::Request;
use site::settings::core::Core;
use site::settings::keepalive::LingeringClose;
use telemetry::Level;

impl Connection {
    /// Reads and discards the remaining request body; `false` if the connection cannot be reused.
    pub(super) async fn receive_and_discard(&mut self, request: &mut Request) -> bool {
        let core = &request.scope().core;
        let timeout = core.keepalive.lingering_timeout;
        let until = rt::now() + core.keepalive.lingering_time;
        let Some(mut body) = BodyRemainder::of(request) else { return true };
        let lingers_until = loop {
            match body.take(self.input.bytes(), |_| ()) {
                Ok((used, done)) => {
                    request.received += used as u64;
                    self.input.consume(used);
                    if done {
                        return true;
                    }
                }
                Err(()) => {
                    request.log(Level::Info, format_args!("client sent invalid chunked body"));
                    break until;
                }
            }
            if rt::now() >= until {
                break until;
            }
            self.timer.set((rt::now() + timeout).min(until));
            match self.receive_unless_reclaimed(Waits::Lingering, 0).await {
                Ok(true) => {}
                // A client that sends nothing gets no further time.
                Ok(false) | Err(_) => break rt::now(),
            }
        };
        request.extensions.insert(LingersUntil(lingers_until));
        false
    }

    /// Whether the framing of a chunked body is invalid in the bytes received with the header section: then 400 can be returned. If
    /// the framing becomes invalid later, the connection can only be closed.
    pub(super) fn begins_badly(&self, request: &Request) -> bool {
        // A body of known length has no framing that could be invalid.
        let rest = BodyRemainder::of(request);
        let broken = rest.is_some_and(|mut rest| rest.take(self.input.bytes(), |_| ()).is_err());
        if broken {
            request.log(Level::Info, format_args!("client sent invalid chunked body"));
        }
        broken
    }

    /// Whether the client may have sent bytes that were not read: closing now could cause a reset and destroy the response in
    /// flight.
    fn client_may_send(&mut self, request: &Request) -> bool {
        let head = &request.head;
        head.body().has_body()
            || !self.input.bytes().is_empty()
            || head.phase() != Phase::Done
            || request.response.status >= 400 && !request.completed
            || request.pipelined
            // A client that announced the end should send no further bytes (RFC 9112 section 9.6). If the response needed no wait,
            // none can have arrived in the meantime, and a system call is saved.
            || (connection::requests_keep_alive(head, request.bytes()) || rt::now() > request.started)
                && !self.wire.is_quiet()
    }

    /// Performs a lingering close: shuts down sending, then reads and discards input for some time, so that the client can read the
    /// response.
    pub(super) async fn linger(&mut self, request: &Request) {
        let core = &request.scope().core;
        if self.lingers(request, core) {
            let begun = request.extensions.get::<LingersUntil>();
            let until = begun.map_or_else(|| rt::now() + core.keepalive.lingering_time, |begun| begun.0);
            Box::pin(self.read_on(core, until)).await;
        }
    }

    fn lingers(&mut self, request: &Request, core: &Core) -> bool {
        match core.keepalive.lingering_close {
            LingeringClose::Off => false,
            LingeringClose::On => self.client_may_send(request),
            LingeringClose::Always => true,
        }
    }

    /// Whether the connection can be closed directly after a response without keep-alive.
    pub(super) fn closes_immediately(&mut self, request: &Request, core: &Core) -> bool {
        let has_more_to_do =
            request.background.is_some() || request.body.is_some() || core.subrequests.post_action.is_some();
        !has_more_to_do && !self.lingers(request, core)
    }

    async fn read_on(&mut self, core: &Core, until: Instant) {
        self.wire.shutdown_write();
        while rt::now() < until {
            self.timer.set((rt::now() + core.keepalive.lingering_timeout).min(until));
            let _waiting = self.thread.capacity.waits(Waits::Lingering, &self.timer, self.wire.fd());
            let received: Result<_, Errno> = match self.timer.limit(self.wire.recv()).await {
                Ok(received) => received,
                Err(rt::Elapsed) => return,
            };
            if !matches!(received, Ok(Some(_))) {
                return;
            }
        }
    }
}

/// End of the lingering close of a request whose remaining body was discarded before. `lingering_time` limits both together.
struct LingersUntil(Instant);

/// The remaining part of a body.
pub(super) enum BodyRemainder {
    /// This many bytes.
    Bytes(u64),
    /// Chunks up to the last one.
    Chunks(ChunkedDecoder),
}

impl BodyRemainder {
    /// Returns the complete body that follows a request's header section; `None` if the request has no body.
    pub(super) fn of(request: &Request) -> Option<BodyRemainder> {
        let strict = request.scope().core.reading.http_strict;
        match request.head.body() {
            BodyLength::None => None,
            BodyLength::Exactly(length) => Some(BodyRemainder::Bytes(length)),
            BodyLength::Unknown => Some(BodyRemainder::Chunks(ChunkedDecoder::strict(strict))),
        }
    }

    /// Returns the remaining bytes, if known.
    pub(super) fn remaining(&self) -> Option<u64> {
        match self {
            BodyRemainder::Bytes(left) => Some(*left),
            BodyRemainder::Chunks(_) => None,
        }
    }

    /// Determines how much of `input` belongs to the body, and whether the body ended. `keep` receives its content.
    pub(super) fn take(&mut self, input: &[u8], mut keep: impl FnMut(&[u8])) -> Result<(usize, bool), ()> {
        match self {
            BodyRemainder::Bytes(left) => {
                let used = (*left).min(input.len() as u64) as usize;
                keep(&input[..used]);
                *left -= used as u64;
                Ok((used, *left == 0))
            }
            BodyRemainder::Chunks(decoder) => {
                let mut used = 0;
                loop {
                    let step = decoder.handle(&input[used..]).map_err(drop)?;
                    if let Event::Data { start, end } = step.event {
                        keep(&input[used + start..used + end]);
                    }
                    used += step.consumed;
                    match step.event {
                        Event::Data { .. } => {}
                        Event::More => return Ok((used, false)),
                        Event::End => return Ok((used, true)),
                    }
                }
            }
        }
    }
}
