//! A stream that another protocol has taken over (RFC 8441, RFC 9220): the bytes of its DATA frames, in both directions.

use std::task::{Context, Poll, Waker, ready};

use io::segments::Source;
use io::{Buf, Errno, Segments};

use crate::streams::Link;
use transfer::duplex::Duplex;

/// Both directions of one stream.
pub(super) struct StreamDuplex<'a, L> {
    link: &'a L,
    /// Whether added bytes have not been converted to frames yet.
    is_queued: bool,
}

impl<'a, L: Link> StreamDuplex<'a, L> {
    pub(super) fn new(link: &'a L) -> StreamDuplex<'a, L> {
        StreamDuplex { link, is_queued: false }
    }
}

impl<L: Link> Duplex for StreamDuplex<'_, L> {
    fn poll_recv(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Buf>, Errno>> {
        let polled = self.link.poll_piece(context);
        let piece = ready!(polled).map_err(|_| Errno::CONNRESET)?;
        let Some(piece) = piece else { return Poll::Ready(Ok(None)) };
        self.link.take(piece.bytes().len());
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
        if self.link.held() == 0 {
            return None;
        }
        match self.poll_recv(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(received) => Some(received),
            Poll::Pending => None,
        }
    }

    fn poll_send(&mut self, context: &mut Context<'_>, data: &mut Segments) -> Poll<Result<(), Errno>> {
        if !data.is_empty() {
            self.link.add(std::mem::take(data), None)?;
            self.is_queued = true;
        }
        if self.is_queued {
            ready!(self.link.poll_framed(context))?;
            self.is_queued = false;
        }
        Poll::Ready(Ok(()))
    }

    fn end_sending(&mut self) {
        // A client that has disconnected needs no end.
        let _ = self.link.add(Segments::new(), Some(Vec::new()));
    }
}
