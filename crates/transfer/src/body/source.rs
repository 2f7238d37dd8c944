//! Bodies that arrive while they are sent: from an upstream, or while another request fetches them.
//!
//! Main type: [`BodySource`], the content of `exchange::response::Body::Source`. `exchange::streaming` sends such
//! bodies.

use std::future::poll_fn;
use std::task::{Context, Poll};
use std::time::Duration;

use io::segments::Source;
use rt::net::Pipe;

use crate::body::BodyError;

/// A body that is read piece by piece. It holds a bounded number of bytes, whatever the client's speed.
pub trait BodySource {
    /// Returns the next piece, which is not empty, or `None` at the end of a complete body. After `None` or an error it
    /// must not be polled again.
    ///
    /// # Errors
    /// The body is incomplete: the response must not end as if it were complete.
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Source>, BodyError>>;

    /// Returns the trailer fields, after the end of the body.
    fn trailers(&mut self) -> Vec<(Vec<u8>, Vec<u8>)> {
        Vec::new()
    }

    /// Whether the header section and each piece must be sent immediately, without gathering several pieces.
    fn is_unbuffered(&self) -> bool {
        false
    }

    /// Whether its pieces are read from a disk on demand, so that it can take turns with other bodies.
    fn is_read_at_will(&self) -> bool {
        false
    }

    /// Whether the next piece is being read from a local disk, after a poll that was pending. Such a wait is brief, so
    /// an encoder is not flushed for it.
    fn is_reading(&self) -> bool {
        false
    }

    /// Sets how many bytes the client accepts now. A body that is read on demand is read in pieces of about this size.
    fn set_client_space(&mut self, _bytes: u64) {}

    /// Returns the number of gathered bytes at which they are sent before a further piece is requested.
    fn send_bytes(&self) -> usize {
        SEND_BYTES
    }

    /// Returns the bytes that can be passed on by splice(2), instead of as pieces; `None` if the next bytes must be polled as pieces.
    fn spliced(&mut self) -> Option<&mut dyn Spliced> {
        None
    }

    /// Returns the longest time for which the client may let bytes of a pipe wait; then a body that is read ahead of slow clients is passed
    /// on in pieces.
    fn splice_wait_max(&self) -> Option<Duration> {
        None
    }

    /// Whether the body is useless once the client has closed the connection.
    fn needs_client(&self) -> bool {
        true
    }
}

/// A body whose bytes can be moved from its socket to a pipe.
pub trait Spliced {
    /// Returns the bytes that were received before, which precede those of the pipe.
    ///
    /// # Errors
    /// As for [`BodySource::poll_next`].
    fn take_received(&mut self) -> Result<Option<Source>, BodyError>;

    /// Moves the next bytes to the empty pipe, and waits until any have arrived. Returns their number; 0 at the end of the body, or
    /// without a free pipe: then the next bytes must be polled as pieces.
    ///
    /// # Errors
    /// As for [`BodySource::poll_next`].
    fn poll_fill(&mut self, context: &mut Context<'_>) -> Poll<Result<usize, BodyError>>;

    /// Returns the pipe, after it was filled. Bytes that remain in it are the first of the next piece.
    fn pipe(&mut self) -> Option<&mut Pipe>;
}

/// The result of [`next`].
pub enum Next {
    /// A piece of the body.
    Piece(Source),
    /// The body has ended.
    End,
    /// No piece is available now.
    Nothing,
}

/// Returns the next piece; without `wait` only a piece that is available now.
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

/// Default of [`BodySource::send_bytes`]: about as many bytes as a socket accepts per call, which limits the thread's
/// time for one connection.
pub const SEND_BYTES: usize = 256 << 10;
