//! Passes a body on by splice(2), from the socket of an upstream to that of the client, as long as both permit it.
//!
//! ```text
//!   upstream's socket --fill--> pipe --splice--> client's socket      bytes that were received before are sent first
//!                                 `--> pieces (streaming), if the client lets a body wait that is read ahead of it
//! ```

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use io::Errno;
use rt::{Either, select};

use crate::client;
use crate::request::Request;
use crate::streaming::Remaining;
use transfer::body::source::BodySource;
use transfer::body::{BodyError, Outlet, SendError};

/// Number of bytes after which other tasks have a turn: a fast upstream and a fast client need no wait.
const TURN_BYTES: u64 = 1 << 20;

/// Passes bytes of the body on. Returns whether all of its announced length were passed on; otherwise the next bytes must be sent in pieces.
pub(crate) async fn pass(
    outlet: &mut dyn Outlet,
    stream: &mut dyn BodySource,
    left: &mut Remaining,
    request: &Request,
) -> Result<bool, BodyError> {
    let (wait_max, needs_client) = (stream.splice_wait_max(), stream.needs_client());
    let Some(spliced) = stream.spliced().filter(|_| outlet.accepts_pipes()) else { return Ok(false) };
    while let Some(piece) = spliced.take_received()? {
        left.pass(piece.bytes().len() as u64)?;
        outlet.push(piece);
    }
    let mut in_turn = 0;
    loop {
        // Bytes that have arrived are sent together with the earlier ones.
        let now = poll_fn(|context| Poll::Ready(spliced.poll_fill(context))).await;
        let filled = match now {
            Poll::Ready(Err(error)) => {
                outlet.flush(false).await?;
                return Err(error);
            }
            Poll::Ready(Ok(filled)) => {
                let Some(flushed) = within(wait_max, outlet.flush(filled > 0)).await else {
                    return Ok(false);
                };
                flushed?;
                filled
            }
            Poll::Pending => {
                let Some(flushed) = within(wait_max, outlet.pause()).await else { return Ok(false) };
                flushed?;
                let closed = client::closed(request.client_if(needs_client));
                match select(poll_fn(|context| spliced.poll_fill(context)), closed).await {
                    Either::Left(filled) => filled?,
                    Either::Right(()) => return Err(SendError::Closed(Errno::CONNRESET).into()),
                }
            }
        };
        if filled == 0 {
            return Ok(left.is_zero());
        }
        left.pass(filled as u64)?;
        let Some(pipe) = spliced.pipe() else { continue };
        let sent = within(wait_max, poll_fn(|context| outlet.poll_splice(context, pipe))).await;
        request.conn.thread.tally.count_spliced((filled - pipe.held()) as u64);
        match sent {
            Some(sent) => sent?,
            None => {
                // The bytes in the pipe are returned as a piece.
                left.pass_later(pipe.held() as u64);
                return Ok(false);
            }
        }
        in_turn += filled as u64;
        if in_turn >= TURN_BYTES {
            in_turn = 0;
            rt::yield_now().await;
        }
    }
}

/// Returns the result of a send, or `None` if the client lets it wait for too long.
async fn within<T>(wait_max: Option<Duration>, sent: impl Future<Output = T>) -> Option<T> {
    let Some(wait_max) = wait_max else { return Some(sent.await) };
    match select(pin!(sent), rt::sleep_until(rt::now() + wait_max)).await {
        Either::Left(sent) => Some(sent),
        Either::Right(()) => None,
    }
}
