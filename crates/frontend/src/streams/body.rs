//! Reads the body of a stream's request for a handler.
//!
//! ```text
//!   Inbox --> ReceivedBody --above client_body_buffer_size--> temporary file
//!     `-----> IncomingBody --> a handler that reads it piece by piece
//! ```
//! When bytes are consumed, the window of the stream is enlarged, so a client sends no faster than its body is consumed.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::connection::Expect;
use http::fields::BodyLength;
use http::h2::STREAM_WINDOW_MAX;
use http::multiplexed::BlockWriter;
use io::segments::Source;
use rt::Timer;

use crate::streams::transport::StreamTransport;
use crate::streams::{Link, WINDOW_MIN};
use exchange::course::BodyNeed;
use exchange::request::Request;
use exchange::request_body::{
    BodyFailure, Feed, WITHOUT_FILE_BYTES_MAX, WithoutFile, is_file_required, must_be_read, spill,
};
use exchange::transport::Received;
use site::settings::core::Core;
use telemetry::Level;
use transfer::incoming::{BodyAborted, PieceSource};
use transfer::received::ReceivedBody;

/// Window in bytes of a body that is written to memory or to a file, once its first bytes have arrived: no upstream limits its
/// speed, so a measurement of the round trip would only delay it. The share of the connection limits the sum of the windows.
const STORED_BODY_WINDOW: u32 = STREAM_WINDOW_MAX;

impl<L: Link> StreamTransport<L> {
    /// Whether the complete body has been received and fits into memory.
    pub(super) fn holds_complete_body(&self, request: &Request) -> bool {
        let held_max = request.scope().core.reading.client_body_buffer_size;
        let link = &self.link;
        !request.head.body().has_body() || link.is_body_complete() && link.held() as u64 <= held_max
    }

    /// Reads the complete body: into memory up to `client_body_buffer_size`, a larger body into a file. If writing the file fails
    /// and the handler accepts pieces, the received and the remaining bytes are returned to be fed to it.
    pub(super) async fn receive_complete_body(
        &mut self,
        request: &mut Request,
        body_need: BodyNeed,
    ) -> Result<Option<Box<Feed<()>>>, BodyFailure> {
        if request.body.is_some() {
            return Ok(None);
        }
        let thread_config = Rc::clone(&request.thread_config);
        let core = &thread_config.config.location(request.location).scope.core;
        let mut body = ReceivedBody::default();
        let done = if !must_be_read(request) {
            Ok(())
        } else {
            self.link.widen(WINDOW_MIN);
            match self.receive_body(request, core, &mut body, body_need).await {
                Ok(true) => Ok(()),
                Ok(false) => {
                    // Bytes may still wait although the client has sent its last byte.
                    let rest = (self.link.held() > 0 || !self.link.is_body_complete()).then_some(());
                    let most = size_max(request);
                    self.earlier = body.byte_count();
                    return Ok(Some(Box::new(Feed { held: Some(body), rest, most, ..Feed::of(core) })));
                }
                Err(failure) => Err(failure),
            }
        };
        if done.is_err() {
            body.clean().await;
            // A partial body is useless, and the remaining bytes cannot be read again.
            body = ReceivedBody::default();
        }
        (request.body, request.is_body_consumed) = (Some(body.into()), true);
        done.map(|()| None)
    }

    /// Returns whether the body is complete; if not, its file failed and the handler reads the remaining bytes in pieces.
    async fn receive_body(
        &mut self,
        request: &mut Request,
        core: &Core,
        body: &mut ReceivedBody,
        body_need: BodyNeed,
    ) -> Result<bool, BodyFailure> {
        let mut held_max = usize::try_from(core.reading.client_body_buffer_size).unwrap_or(usize::MAX);
        let without = WithoutFile::of(core, body_need);
        let in_file = is_file_required(core, body_need);
        self.send_continue(request);
        let mut has_begun = false;
        loop {
            // The timeout applies to each piece and not to the complete body: a large body may take long.
            let piece = self.next_piece(core).await.map_err(|aborted| failed(request, aborted))?;
            let done = piece.is_none();
            if let Some(piece) = piece {
                if !std::mem::replace(&mut has_begun, true) {
                    self.link.widen(stored_window(request));
                }
                request.received += piece.bytes().len() as u64;
                match piece {
                    Source::Buf(buf) => body.take(buf),
                    other => body.add(other.bytes()),
                }
            }
            check(request, body)?;
            // A body with a file is stored completely in it, so that readers need not combine two sources.
            if body.held() > held_max || done && (in_file || body.path().is_some()) {
                let left = match request.head.body() {
                    BodyLength::Exactly(length) => length.saturating_sub(body.byte_count()),
                    BodyLength::None | BodyLength::Unknown => 0,
                };
                match spill(request, core, body, (without, left)).await? {
                    WithoutFile::Fails => {}
                    WithoutFile::Pieces => return Ok(false),
                    WithoutFile::Memory => held_max = WITHOUT_FILE_BYTES_MAX,
                }
            }
            if done {
                body.seal();
                return Ok(true);
            }
        }
    }

    /// Waits for the end of a body whose announced length is 0.
    pub(super) async fn receive_end(&self, request: &mut Request) -> Result<(), Received> {
        if self.link.is_body_complete() {
            return Ok(());
        }
        let thread_config = Rc::clone(&request.thread_config);
        let core = &thread_config.config.location(request.location).scope.core;
        let Err(aborted) = self.next_piece(core).await else { return Ok(()) };
        Err(match failed(request, aborted) {
            BodyFailure::Refused(status) => Received::Refused(status),
            BodyFailure::Abandoned(status) => Received::Abandoned(status),
        })
    }

    /// Returns the next piece of the body, within `client_body_timeout`; `None` at its end.
    async fn next_piece(&self, core: &Core) -> Result<Option<Source>, BodyAborted> {
        let link = &self.link;
        self.timer.set(rt::now() + core.reading.client_body_timeout);
        let next = poll_fn(|context| link.poll_piece(context));
        let piece = match self.timer.limit(next).await {
            Ok(piece) => piece?,
            Err(rt::Elapsed) => return Err(BodyAborted::TimedOut),
        };
        if let Some(piece) = &piece {
            link.take(piece.bytes().len());
        }
        Ok(piece)
    }

    /// Prepares feeding the body to a handler.
    pub(super) fn prepare_feed(
        &mut self,
        request: &mut Request,
        is_stored: bool,
    ) -> Result<Feed<()>, BodyFailure> {
        let thread_config = Rc::clone(&request.thread_config);
        let core = &thread_config.config.location(request.location).scope.core;
        let rest = request.head.body().has_body().then_some(());
        if rest.is_some() {
            let window = core.reading.client_body_buffer_size.max(WINDOW_MIN.into());
            self.link.widen(u32::try_from(window).unwrap_or(u32::MAX));
            self.send_continue(request);
        }
        self.stored_window = is_stored.then(|| stored_window(request));
        Ok(Feed { rest, most: size_max(request), ..Feed::of(core) })
    }

    /// Reads the body at the speed of the handler.
    pub(super) async fn feed_to_end(&mut self, feed: &mut Feed<()>) -> Result<(), BodyAborted> {
        feed.feed_held().await?;
        let Feed { incoming, rest: Some(()), most, timeout, .. } = feed else { return Ok(()) };
        let mut body = self.body_from(incoming.received(), *timeout, *most);
        while let Some(piece) = poll_fn(|context| body.poll_next(context)).await? {
            if let Some(window) = self.stored_window.take() {
                self.link.widen(window);
            }
            let bytes = piece.bytes().len();
            incoming.count(bytes as u64);
            incoming.add_source(piece);
            // Enlarges the window before the wait, because the start of the response may end this future. A slow upstream still
            // slows down the client, because no further piece is read.
            body.consumed(bytes);
            if !incoming.has_space() {
                incoming.consumed().await;
            }
        }
        Ok(())
    }

    /// Returns the remaining body at the start of its response.
    pub(super) fn body_remainder(&self, request: &Request, received: u64) -> StreamBodyRemainder<L> {
        let timeout = request.scope().core.reading.client_body_timeout;
        self.body_from(received, timeout, size_max(request))
    }

    /// Returns the body after the first `received` bytes of its feed.
    fn body_from(&self, received: u64, timeout: Duration, most: u64) -> StreamBodyRemainder<L> {
        let link = self.link.clone();
        let total = self.earlier + received;
        StreamBodyRemainder { link, timer: Timer::new(), timeout, most, total }
    }

    /// Sends a 100 response to a client that expects it.
    fn send_continue(&self, request: &Request) {
        let waits = http::connection::expect(&request.head, request.bytes()) == Expect::Continue;
        if waits && self.link.held() == 0 && !self.link.is_body_complete() {
            let mut block = Vec::new();
            L::Blocks::push_status(&mut block, 100);
            self.link.send_interim(&block);
        }
    }
}

/// A body that is read piece by piece: before its response, or concurrently.
pub(super) struct StreamBodyRemainder<L> {
    link: L,
    timer: Timer,
    /// `client_body_timeout`
    timeout: Duration,
    /// The limit of [`size_max`].
    most: u64,
    /// Number of bytes received so far.
    total: u64,
}

impl<L: Link> StreamBodyRemainder<L> {
    /// Returns the next piece, within the timeout; `None` at the end.
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Source>, BodyAborted>> {
        let polled = self.link.poll_piece(context);
        let Poll::Ready(piece) = polled else {
            if self.timer.deadline().is_none() {
                self.timer.set(rt::now() + self.timeout);
            }
            return self.timer.poll_elapsed(context).map(|rt::Elapsed| Err(BodyAborted::TimedOut));
        };
        self.timer.clear();
        let Some(piece) = piece? else { return Poll::Ready(Ok(None)) };
        self.total += piece.bytes().len() as u64;
        if self.most > 0 && self.total > self.most {
            return Poll::Ready(Err(BodyAborted::TooLarge(self.total, 0)));
        }
        Poll::Ready(Ok(Some(piece)))
    }

    /// Notes that bytes were passed on, so that the client may send more.
    fn consumed(&self, bytes: usize) {
        self.link.take(bytes);
    }
}

impl<L: Link> PieceSource for StreamBodyRemainder<L> {
    fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Source>, BodyAborted>> {
        let piece = std::task::ready!(self.poll_next(context))?;
        if let Some(piece) = &piece {
            self.consumed(piece.bytes().len());
        }
        Poll::Ready(Ok(piece))
    }
}

/// Returns the window of a body that is stored.
fn stored_window(request: &Request) -> u32 {
    match request.head.body() {
        BodyLength::Exactly(length) => u32::try_from(length).unwrap_or(u32::MAX).min(STORED_BODY_WINDOW),
        BodyLength::None | BodyLength::Unknown => STORED_BODY_WINDOW,
    }
}

/// Returns `client_max_body_size` for a body without an announced length, whose size is known only as it arrives; 0 if there is no
/// limit. An announced length was compared when the location was found, perhaps with another location's limit.
fn size_max(request: &Request) -> u64 {
    match request.head.body() {
        BodyLength::Exactly(_) => 0,
        BodyLength::None | BodyLength::Unknown => request.scope().core.reading.client_max_body_size,
    }
}

/// Checks the size of a body as it arrives.
fn check(request: &Request, body: &ReceivedBody) -> Result<(), BodyFailure> {
    let (total, most) = (body.byte_count(), size_max(request));
    if most == 0 || total <= most {
        return Ok(());
    }
    request.log(Level::Error, format_args!("client intended to send too large body: {total} bytes"));
    Err(BodyFailure::Refused(413))
}

fn failed(request: &Request, aborted: BodyAborted) -> BodyFailure {
    let what = match aborted {
        BodyAborted::TimedOut => "client timed out (110: Connection timed out)",
        _ => "client prematurely closed stream",
    };
    request.log(Level::Info, format_args!("{what} while reading client request body"));
    BodyFailure::Abandoned(aborted.status())
}
