//! The body of a request while it arrives, for a handler that passes it on before it is complete.
//!
//! The transport reads (`exchange::transport`) and the handler consumes, concurrently in one task. At most one piece
//! lies between them, so a client is read no faster than its body is passed on. A handler requests this with
//! `exchange::phases::Step::StreamBody`. If the response begins before the body has ended, the remaining bytes come
//! from a [`PieceSource`], if the transport has one: an HTTP/2 stream continues in both directions.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::task::{Context, Poll, Waker, ready};

use io::segments::Source;
use io::{Buf, Errno};
use smallvec::{SmallVec, smallvec};

/// A body that is being passed on.
#[derive(Default)]
pub struct IncomingBody {
    state: RefCell<IncomingState>,
    taker: Cell<Option<Waker>>,
    producer: Cell<Option<Waker>>,
    received: Cell<u64>,
    /// Whether bytes that were received earlier precede the next ones of the transport.
    has_earlier: Cell<bool>,
    /// The source of the remaining bytes after the transport's reader has ended.
    source: RefCell<Option<Box<dyn PieceSource>>>,
    /// Whether bytes were consumed already, so that a further reader would get an incomplete body.
    is_started: Cell<bool>,
}

/// A source of the remaining body after the transport's reader has ended.
pub trait PieceSource {
    /// Returns the next piece; `None` at the end.
    fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Source>, BodyAborted>>;
}

#[derive(Default)]
struct IncomingState {
    piece: Piece,
    end: Option<Result<(), BodyAborted>>,
}

/// A piece of a body, in the buffers that it was received into.
pub type Piece = SmallVec<[Source; 4]>;

/// Maximum number of buffers per piece, so that one call can send the piece.
pub const PIECE_BUFFERS_MAX: usize = 8;

/// Maximum number of received bytes that are gathered for one piece.
pub const PIECE_BYTES_MAX: usize = 64 << 10;

/// The reason why a body did not arrive completely.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyAborted {
    /// The client timed out.
    TimedOut,
    /// The client closed the connection, or the body was invalid by the rules of HTTP/2.
    Closed,
    /// The client reset the HTTP/2 stream of the request, or closed its connection.
    StreamClosed,
    /// Its chunked framing is invalid.
    Invalid,
    /// The body is larger than allowed: the number of bytes received, and of further bytes announced.
    TooLarge(u64, u64),
    /// Its start is in a temporary file that cannot be read.
    Lost(Errno),
    /// The pool had no buffer for received bytes.
    NoBuffer,
}

impl BodyAborted {
    /// Returns the status of the response.
    pub fn status(self) -> u16 {
        match self {
            BodyAborted::TimedOut => 408,
            BodyAborted::Closed | BodyAborted::Invalid => 400,
            // As in nginx, which distinguishes the protocols here.
            BodyAborted::StreamClosed => 499,
            BodyAborted::TooLarge(..) => 413,
            BodyAborted::Lost(_) | BodyAborted::NoBuffer => 500,
        }
    }
}

impl IncomingBody {
    /// Returns the next piece; `None` at the end.
    pub async fn next(&self) -> Result<Option<Piece>, BodyAborted> {
        poll_fn(|context| {
            if let Some(piece) = self.try_next() {
                return Poll::Ready(Ok(Some(piece)));
            }
            let end = self.state.borrow().end;
            if let Some(end) = end {
                return Poll::Ready(end.map(|()| None));
            }
            let Some(source) = &mut *self.source.borrow_mut() else {
                self.taker.set(Some(context.waker().clone()));
                return Poll::Pending;
            };
            let piece = ready!(source.poll_piece(context));
            if !matches!(piece, Ok(Some(_))) {
                self.state.borrow_mut().end = Some(piece.as_ref().map(|_| ()).map_err(|cut| *cut));
            }
            self.is_started.set(true);
            Poll::Ready(piece.map(|piece| piece.map(|piece| smallvec![piece])))
        })
        .await
    }

    /// Sets the source of the remaining bytes; no more pieces are added.
    pub fn continue_from(&self, source: Box<dyn PieceSource>) {
        *self.source.borrow_mut() = Some(source);
        wake(&self.taker);
    }

    /// Returns the bytes that were received and not consumed yet, if any.
    pub fn try_next(&self) -> Option<Piece> {
        let mut state = self.state.borrow_mut();
        if state.piece.is_empty() {
            return None;
        }
        let piece = std::mem::take(&mut state.piece);
        self.is_started.set(true);
        wake(&self.producer);
        Some(piece)
    }

    /// Adds a copy of bytes to the next piece.
    pub fn add(&self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let mut state = self.state.borrow_mut();
        match state.piece.last_mut() {
            Some(Source::Vec(all)) => all.extend_from_slice(bytes),
            _ => state.piece.push(Source::Vec(bytes.to_vec())),
        }
        wake(&self.taker);
    }

    /// Adds a buffer to the next piece.
    pub fn take(&self, buf: Buf) {
        if !buf.is_empty() {
            self.state.borrow_mut().piece.push(Source::Buf(buf));
            wake(&self.taker);
        }
    }

    /// Adds bytes that were received earlier.
    pub fn add_source(&self, source: Source) {
        self.state.borrow_mut().piece.push(source);
        wake(&self.taker);
    }

    /// Whether more bytes may be added before the piece is consumed.
    pub fn has_space(&self) -> bool {
        let state = self.state.borrow();
        let bytes: usize = state.piece.iter().map(|source| source.bytes().len()).sum();
        bytes < PIECE_BYTES_MAX && state.piece.len() < PIECE_BUFFERS_MAX
    }

    /// Waits until the piece was consumed.
    pub async fn consumed(&self) {
        poll_fn(|context: &mut Context<'_>| {
            if self.state.borrow().piece.is_empty() {
                return Poll::Ready(());
            }
            self.producer.set(Some(context.waker().clone()));
            Poll::Pending
        })
        .await;
    }

    /// Counts received bytes of the request.
    pub fn count(&self, bytes: u64) {
        self.received.set(self.received.get() + bytes);
    }

    /// Returns the received bytes of the request, including framing.
    pub fn received(&self) -> u64 {
        self.received.get()
    }

    /// Whether the start of the body was consumed already.
    pub fn is_started(&self) -> bool {
        self.is_started.get()
    }

    /// Sets whether bytes that were received earlier precede the next ones of the transport.
    pub fn set_has_earlier(&self, has_earlier: bool) {
        self.has_earlier.set(has_earlier);
    }

    /// Whether bytes that were received earlier precede the next ones of the transport.
    pub fn has_earlier(&self) -> bool {
        self.has_earlier.get()
    }

    /// Marks the end of the body.
    pub fn end(&self, result: Result<(), BodyAborted>) {
        self.state.borrow_mut().end = Some(result);
        wake(&self.taker);
    }

    /// Whether the complete body was read from the client.
    pub fn is_complete(&self) -> bool {
        matches!(self.state.borrow().end, Some(Ok(())))
    }
}

fn wake(waker: &Cell<Option<Waker>>) {
    if let Some(waker) = waker.take() {
        waker.wake();
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use super::*;

    fn taken(polled: Poll<Result<Option<Piece>, BodyAborted>>) -> Vec<u8> {
        let Poll::Ready(Ok(Some(piece))) = polled else { panic!("no piece") };
        piece.iter().flat_map(|source| source.bytes().to_vec()).collect()
    }

    fn is_over(polled: Poll<Result<Option<Piece>, BodyAborted>>) -> Result<bool, BodyAborted> {
        let Poll::Ready(result) = polled else { panic!("it waits") };
        result.map(|piece| piece.is_none())
    }

    #[test]
    fn pieces_arrive_one_at_a_time_and_then_the_end() {
        let body = IncomingBody::default();
        let mut context = Context::from_waker(Waker::noop());
        assert!(pin!(body.next()).poll(&mut context).is_pending());
        body.add(b"ab");
        body.add(b"c");
        assert!(pin!(body.consumed()).poll(&mut context).is_pending());
        assert!(!body.is_started());
        assert_eq!(taken(pin!(body.next()).poll(&mut context)), b"abc");
        assert!(body.is_started() && pin!(body.consumed()).poll(&mut context).is_ready());
        body.add(b"d");
        body.end(Ok(()));
        assert_eq!(taken(Poll::Ready(Ok(body.try_next()))), b"d");
        assert_eq!(is_over(pin!(body.next()).poll(&mut context)), Ok(true));
    }

    #[test]
    fn bytes_received_before_an_error_are_returned_first() {
        let body = IncomingBody::default();
        let mut context = Context::from_waker(Waker::noop());
        body.add(b"ab");
        body.end(Err(BodyAborted::TimedOut));
        assert_eq!(taken(pin!(body.next()).poll(&mut context)), b"ab");
        assert_eq!(is_over(pin!(body.next()).poll(&mut context)), Err(BodyAborted::TimedOut));
        assert!(!body.is_complete());
    }
}
