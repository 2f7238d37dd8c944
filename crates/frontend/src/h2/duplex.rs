//! A stream that another protocol has taken over (RFC 8441): the bytes of its DATA frames, in both directions.

use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

use io::segments::Source;
use io::{Buf, Errno, Segments};

use crate::h2::shared::{Shared, Stream};
use transfer::duplex::Duplex;

/// Both directions of one stream.
pub(super) struct StreamDuplex<'a> {
    shared: &'a Shared,
    stream: &'a Rc<Stream>,
    /// Whether added bytes have not been converted to frames yet.
    is_queued: bool,
}

impl<'a> StreamDuplex<'a> {
    pub(super) fn new(shared: &'a Shared, stream: &'a Rc<Stream>) -> StreamDuplex<'a> {
        StreamDuplex { shared, stream, is_queued: false }
    }
}

impl Duplex for StreamDuplex<'_> {
    fn poll_recv(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Buf>, Errno>> {
        let polled = self.stream.inbox.borrow_mut().poll_piece(context);
        let piece = ready!(polled).map_err(|_| Errno::CONNRESET)?;
        let Some(piece) = piece else { return Poll::Ready(Ok(None)) };
        self.shared.take(self.stream, piece.bytes().len());
        Poll::Ready(match piece {
            Source::Buf(buf) => Ok(Some(buf)),
            // The pool had no buffer for these bytes when they arrived.
            other => {
                let buf = rt::pool().get(other.bytes().len());
                let mut buf = buf.filter(|buf| buf.capacity() >= other.bytes().len()).ok_or(Errno::NOMEM)?;
                buf.append(other.bytes());
                Ok(Some(buf))
            }
        })
    }

    fn try_recv(&mut self) -> Option<Result<Option<Buf>, Errno>> {
        if self.stream.inbox.borrow().held() == 0 {
            return None;
        }
        match self.poll_recv(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(received) => Some(received),
            Poll::Pending => None,
        }
    }

    fn poll_send(&mut self, context: &mut Context<'_>, data: &mut Segments) -> Poll<Result<(), Errno>> {
        if !data.is_empty() {
            self.shared.add(self.stream, std::mem::take(data), None)?;
            self.is_queued = true;
        }
        if self.is_queued {
            ready!(self.shared.poll_framed(self.stream, context))?;
            self.is_queued = false;
        }
        Poll::Ready(Ok(()))
    }

    fn end_sending(&mut self) {
        // A client that has disconnected needs no end.
        let _ = self.shared.add(self.stream, Segments::new(), Some(Vec::new()));
    }
}
