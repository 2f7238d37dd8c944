//! Unread request bodies, and a close after which the client still reads its response.
//!
//! ```text
//!   kept:   response --> rest of the body, thrown away --> next request
//!   closed: response --> our side ends --> what still comes, thrown away for lingering_time --> close
//! ```
//! A close with bytes in the socket that were not read is a reset, and a reset takes the response back on its way.

use http::framing::{ChunkedDecoder, Event};
use http::request::BodyLength;
use io::Errno;

use crate::h1::Connection;
use exchange::request::Request;
use exchange::room::Waits;
use exchange::settings::core::Core;
use exchange::settings::keeping::LingeringClose;
use telemetry::Level;

impl Connection {
    /// Reads the rest of the request's body and throws it away; `false` when the connection cannot continue.
    pub(super) async fn receive_and_discard(&mut self, request: &mut Request) -> bool {
        let core = &request.scope().core;
        let (patience, most) = (core.keeping.lingering_timeout, core.reading.client_max_body_size);
        let until = rt::now() + core.keeping.lingering_time;
        let Some(mut body) = Rest::of(request) else { return true };
        loop {
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
                    return false;
                }
            }
            if rt::now() >= until || body.exceeds(most) {
                return false;
            }
            self.timer.set((rt::now() + patience).min(until));
            match self.receive_unless_given_up(Waits::Lingering, 0).await {
                Ok(true) => {}
                Ok(false) | Err(_) => return false,
            }
        }
    }

    /// Whether the part of a chunked body that came with the head breaks the framing: 400 then, where a body
    /// that breaks it later can only end the connection.
    pub(super) fn begins_badly(&self, request: &Request) -> bool {
        // Bytes of a known number cannot break anything.
        let rest = Rest::of(request);
        let broken = rest.is_some_and(|mut rest| rest.take(self.input.bytes(), |_| ()).is_err());
        if broken {
            request.log(Level::Info, format_args!("client sent invalid chunked body"));
        }
        broken
    }

    /// Whether the client may have sent something that was not read: closing now could reset the connection and destroy
    /// the response on its way.
    pub(super) fn client_may_send(&self, request: &Request) -> bool {
        request.head.body().has_body()
            || !self.input.bytes().is_empty()
            || request.head.in_request_line()
            || request.response.status >= 400 && !request.completed
    }

    /// Lets the client read the response before a reset could destroy it: ends our side and reads on for a while.
    pub(super) async fn linger(&mut self, request: &Request) {
        let core = &request.scope().core;
        if self.lingers(request, core) {
            Box::pin(self.read_on(core)).await;
        }
    }

    fn lingers(&self, request: &Request, core: &Core) -> bool {
        match core.keeping.lingering_close {
            LingeringClose::Off => false,
            LingeringClose::On => self.client_may_send(request),
            LingeringClose::Always => true,
        }
    }

    /// Whether nothing comes between the end of a response after which the connection is not kept, and its close.
    pub(super) fn closes_at_once(&self, request: &Request, core: &Core) -> bool {
        let has_more_to_do =
            request.background.is_some() || request.body.is_some() || core.subrequests.post_action.is_some();
        !has_more_to_do && !self.lingers(request, core)
    }

    async fn read_on(&mut self, core: &Core) {
        self.wire.shutdown_write();
        let until = rt::now() + core.keeping.lingering_time;
        while rt::now() < until {
            self.timer.set((rt::now() + core.keeping.lingering_timeout).min(until));
            let _waiting = self.thread.room.waits(Waits::Lingering, &self.timer, self.wire.fd());
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

/// The rest of a body.
pub(super) enum Rest {
    /// This many bytes.
    Bytes(u64),
    /// Chunks up to the last one.
    Chunks(ChunkedDecoder),
}

impl Rest {
    /// All of the body that follows a request's head; nothing if it has none.
    pub(super) fn of(request: &Request) -> Option<Rest> {
        let strict = request.scope().core.reading.http_strict;
        match request.head.body() {
            BodyLength::None => None,
            BodyLength::Exactly(length) => Some(Rest::Bytes(length)),
            BodyLength::Unknown => Some(Rest::Chunks(ChunkedDecoder::strict(strict))),
        }
    }

    /// Bytes that remain, if known.
    pub(super) fn left(&self) -> Option<u64> {
        match self {
            Rest::Bytes(left) => Some(*left),
            Rest::Chunks(_) => None,
        }
    }

    /// How much of `input` belongs to the body, and whether that was its end. `keep` gets its content.
    pub(super) fn take(&mut self, input: &[u8], mut keep: impl FnMut(&[u8])) -> Result<(usize, bool), ()> {
        match self {
            Rest::Bytes(left) => {
                let used = (*left).min(input.len() as u64) as usize;
                keep(&input[..used]);
                *left -= used as u64;
                Ok((used, *left == 0))
            }
            Rest::Chunks(decoder) => {
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

    /// Whether a chunked body has grown above the limit; 0 is no limit.
    fn exceeds(&self, most: u64) -> bool {
        matches!(self, Rest::Chunks(decoder) if most > 0 && decoder.total() > most)
    }
}
