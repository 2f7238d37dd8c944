//! A body that arrives while it is sent: from another server, or while another request fetches it.
//!
//! Main type: [`BodySource`], the source behind `exchange::response::Body::Source`. `upstream` makes them,
//! `exchange::streaming` sends them.

use std::future::poll_fn;
use std::task::{Context, Poll};

use io::op::Source;

use crate::body::BodyError;

/// A body, piece by piece. It holds a bounded number of bytes, whatever the client's speed.
pub trait BodySource {
    /// The next piece, which is not empty; `None` at the proper end. After that, and after an error, it is not polled
    /// again.
    ///
    /// # Errors
    /// The body is not whole: the sent part must not look complete.
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Source>, BodyError>>;

    /// The fields that followed the body, for after its end.
    fn trailers(&mut self) -> Vec<(Vec<u8>, Vec<u8>)> {
        Vec::new()
    }

    /// Whether the head is to leave at once where nothing of the body is here, and each piece too: it is read no
    /// faster than it is sent, so that there is nothing to gather.
    fn is_unbuffered(&self) -> bool {
        false
    }

    /// Whether its pieces are read from a disk on demand, so that bodies can take turns with it.
    fn is_read_at_will(&self) -> bool {
        false
    }

    /// Whether a disk of this machine has the next piece, after a poll that was pending. Such a wait is short, and an
    /// encoder is not flushed for it.
    fn is_reading(&self) -> bool {
        false
    }

    /// How many bytes the client accepts now: a body that is read on demand is read in pieces of about this size.
    fn set_room(&mut self, _bytes: u64) {}

    /// Bytes of one send after which no further piece is requested.
    fn send_bytes(&self) -> usize {
        SEND_BYTES
    }

    /// Whether it is of no use any more when the client has ended its side.
    fn minds_client(&self) -> bool {
        true
    }
}

/// The result of [`next`].
pub enum Next {
    /// More of the body.
    Piece(Source),
    /// There is no more.
    End,
    /// Nothing is here now.
    Nothing,
}

/// The next piece; without `wait` only one that is here.
pub async fn next(stream: &mut dyn BodySource, wait: bool) -> Result<Next, BodyError> {
    poll_fn(|context| match stream.poll_next(context) {
        Poll::Ready(Ok(Some(source))) => Poll::Ready(Ok(Next::Piece(source))),
        Poll::Ready(Ok(None)) => Poll::Ready(Ok(Next::End)),
        Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
        Poll::Pending if wait => Poll::Pending,
        Poll::Pending => Poll::Ready(Ok(Next::Nothing)),
    })
    .await
}

/// Bytes of one send after which no further piece is requested: the bytes that a socket takes at once, and a bounded
/// time of a thread for one connection.
pub const SEND_BYTES: usize = 256 << 10;
