//! The body of a request, as its bytes arrive: pieces that wait for the handler.

use std::collections::VecDeque;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use io::Buf;
use io::segments::Source;

use crate::streams::WINDOW_MIN;
use exchange::capacity::Share;
use transfer::incoming::BodyAborted;

/// A body received from the client.
#[derive(Default)]
pub(crate) struct Inbox {
    /// Copies, so that the engine's buffers are released immediately.
    pieces: VecDeque<Source>,
    held: Held,
    /// The result, once the body has ended.
    end: Option<Result<(), BodyAborted>>,
    /// The trailers, which arrive at the end of the body.
    pub(crate) trailers: Vec<(Vec<u8>, Vec<u8>)>,
    /// Waker of the task that waits for the next piece.
    taker: Option<Waker>,
}

/// Counts the bytes in an inbox.
#[derive(Default)]
struct Held {
    bytes: usize,
    /// The share of the connection, in which they are counted too.
    share: Option<Rc<Share>>,
}

/// Capacity in bytes of a buffer of a body outside of the pool. Short frames share it: a piece of its own for each of them would take
/// many times the memory of its bytes.
const PIECE_OUTSIDE: u32 = 64 << 10;

/// Minimum capacity in bytes of a buffer that collects bytes of a body.
const PIECE_MIN: usize = 4 << 10;

impl Inbox {
    /// Returns an empty inbox, whose bytes are also counted in the share of their connection.
    pub(crate) fn new(share: Option<&Rc<Share>>) -> Inbox {
        Inbox { held: Held { bytes: 0, share: share.cloned() }, ..Inbox::default() }
    }

    /// Whether a task waits for the next piece.
    pub(crate) fn is_awaited(&self) -> bool {
        self.taker.is_some()
    }

    /// Adds a copy of bytes.
    pub(crate) fn add(&mut self, mut bytes: &[u8]) {
        self.held.add(bytes.len());
        // Frames may be short: bytes are appended to the last buffer if they fit.
        if let Some(Source::Buf(last)) = self.pieces.back_mut() {
            bytes = &bytes[last.append(bytes)..];
        }
        while !bytes.is_empty() {
            // Bytes that wait for their consumer must not take the buffers that others need.
            let waits = self.held.bytes > WINDOW_MIN as usize && rt::buffers_are_scarce();
            let buf = if waits { None } else { rt::pool().get(bytes.len().max(PIECE_MIN)) };
            let piece = match buf.or_else(|| Buf::outside_pools(PIECE_OUTSIDE)) {
                Some(mut buf) => {
                    bytes = &bytes[buf.append(bytes)..];
                    Source::Buf(buf)
                }
                None => Source::Vec(std::mem::take(&mut bytes).to_vec()),
            };
            self.pieces.push_back(piece);
        }
        self.taker.take().into_iter().for_each(Waker::wake);
    }

    /// Ends the body.
    pub(crate) fn finish(&mut self, result: Result<(), BodyAborted>) {
        self.end.get_or_insert(result);
        self.taker.take().into_iter().for_each(Waker::wake);
    }

    /// Whether the complete body has been received.
    pub(crate) fn is_complete(&self) -> bool {
        self.end == Some(Ok(()))
    }

    /// Drops the received bytes.
    pub(crate) fn clear(&mut self) {
        self.pieces.clear();
        self.held.remove(self.held.bytes);
    }

    /// Returns the number of bytes in the inbox.
    pub(crate) fn held(&self) -> usize {
        self.held.bytes
    }

    /// Whether the client may send more of the body.
    pub(crate) fn is_open(&self) -> bool {
        self.end.is_none()
    }

    /// Returns the next piece; `None` at the end.
    pub(crate) fn poll_piece(&mut self, context: &Context<'_>) -> Poll<Result<Option<Source>, BodyAborted>> {
        if let Some(piece) = self.pieces.pop_front() {
            self.held.remove(piece.bytes().len());
            return Poll::Ready(Ok(Some(piece)));
        }
        match self.end {
            Some(end) => Poll::Ready(end.map(|()| None)),
            None => {
                self.taker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Held {
    fn add(&mut self, bytes: usize) {
        self.bytes += bytes;
        self.share.iter().for_each(|share| share.hold(bytes));
    }

    fn remove(&mut self, bytes: usize) {
        assert!(bytes <= self.bytes, "only bytes of the queue are removed");
        self.bytes -= bytes;
        self.share.iter().for_each(|share| share.release(bytes));
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.remove(self.bytes);
    }
}
