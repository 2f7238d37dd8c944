//! Collects the body of a subrequest in memory, for modules that use its content, such as keys.

use std::task::{Context, Poll};

use io::Errno;
use io::segments::Source;
use transfer::body::outlet::{Follows, SendError, Trailers};
use transfer::body::{BodyError, Outlet};

use crate::filter::output;
use crate::request::Request;

/// Returns the body of a response after its filters, without a content coding of this server.
///
/// # Errors
/// The body is incomplete, or has more than `max` bytes.
pub async fn collect(request: &mut Request, max: usize) -> Result<Vec<u8>, BodyError> {
    request.response.encoder = None;
    let mut memory = Memory { bytes: Vec::new(), max };
    output::send(&mut memory, Vec::new(), request).await?;
    Ok(memory.bytes)
}

/// An outlet that stores the bytes.
struct Memory {
    bytes: Vec<u8>,
    max: usize,
}

impl Memory {
    fn check(&self) -> Poll<Result<(), SendError>> {
        Poll::Ready(if self.bytes.len() > self.max { Err(TOO_LONG) } else { Ok(()) })
    }
}

/// The body has too many bytes.
const TOO_LONG: SendError = SendError::Closed(Errno::FBIG);

impl Outlet for Memory {
    fn chunk_bytes(&self) -> Option<u64> {
        None
    }

    fn file_bytes(&self, most: u64) -> u64 {
        most
    }

    fn begin(&mut self, _: Vec<u8>) {}

    fn push_range(&mut self, source: Source, start: usize, end: usize) {
        // One byte more shows that there are too many.
        let end = end.min(start.saturating_add((self.max + 1).saturating_sub(self.bytes.len())));
        self.bytes.extend_from_slice(&source.bytes()[start..end]);
    }

    fn has_space(&self) -> bool {
        true
    }

    fn holds_buffers(&self) -> bool {
        false
    }

    fn poll_flush(&mut self, _: &mut Context<'_>, _: Follows) -> Poll<Result<(), SendError>> {
        self.check()
    }

    fn poll_space(&mut self, _: &mut Context<'_>, wanted: u64) -> Poll<Result<u64, SendError>> {
        Poll::Ready(Ok(wanted.max(1)))
    }

    fn poll_end(&mut self, _: &mut Context<'_>, _: &Trailers) -> Poll<Result<(), SendError>> {
        self.check()
    }

    fn sent(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn take_spare(&mut self) -> Vec<u8> {
        Vec::new()
    }
}
