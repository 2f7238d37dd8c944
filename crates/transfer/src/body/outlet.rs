//! The interface between the movers of bodies and the protocol of the client.
//!
//! Main type: [`Outlet`]. A response that is completely in memory needs no outlet. A body that is read or filtered
//! while it is sent is written to a `&mut dyn Outlet`. So one copy of each mover ([`read`](super::read) and its
//! siblings) serves all protocols. The methods of the trait are polled, so that a wait needs no allocation. Async
//! functions that call them are at the end of this file.

use std::future::poll_fn;
use std::task::{Context, Poll};

use io::segments::Source;
use io::{Disk, DiskVia, Errno};
use rt::File;
use rt::net::{FilePart, Pipe};

/// Names and values of the trailer fields of a body.
pub type Trailers = [(Vec<u8>, Vec<u8>)];

/// The caller's next send after a flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Follows {
    /// Bytes that are already in memory.
    Available,
    /// Bytes that are not in memory yet, so no bytes are held back for them.
    Later,
    /// Nothing, or bytes that need not be sent together with these.
    Nothing,
}

/// Receives the header section of a response and then its body, as bytes or as ranges of files. It does the framing of
/// the body and enforces the rate and the timeout.
///
/// The caller polls a `poll_` method again, with the same arguments, until it is ready.
pub trait Outlet {
    /// Whether ranges of files may be sent with [`Outlet::poll_file`]. This is impossible if bytes are framed or
    /// encrypted.
    fn accepts_files(&self) -> bool {
        false
    }

    /// Whether a flush only copies the added bytes, and their copy is sent later. Bytes that are read after the flush are
    /// then in time, and still in the CPU cache when they are copied.
    fn copies(&self) -> bool {
        false
    }

    /// Returns the number of bytes per read, if configured or rate-limited.
    fn chunk_bytes(&self) -> Option<u64>;

    /// Returns the maximum number of bytes of a file per call, which does not exceed `most`.
    fn file_bytes(&self, most: u64) -> u64;

    /// Starts with the header section, which is sent with the first bytes of the body.
    fn begin(&mut self, head: Vec<u8>);

    /// Adds a range of `source` to the next send.
    fn push_range(&mut self, source: Source, start: usize, end: usize);

    /// Whether another piece can be added before a flush.
    fn has_space(&self) -> bool;

    /// Whether buffers of the pool are among the added bytes.
    fn holds_buffers(&self) -> bool;

    /// Sends the added bytes.
    fn poll_flush(&mut self, context: &mut Context<'_>, follows: Follows) -> Poll<Result<(), SendError>>;

    /// Waits until the client accepts `wanted` bytes, or until much of the send buffer is free. Returns the number of
    /// bytes that the client accepts, never 0.
    fn poll_space(&mut self, context: &mut Context<'_>, wanted: u64) -> Poll<Result<u64, SendError>>;

    /// Sends bytes of a file through the engine, after the flushed bytes; returns their number. Only for outlets that
    /// accept files.
    fn poll_file(
        &mut self,
        _: &mut Context<'_>,
        _: &FilePart<'_>,
    ) -> Poll<Result<Result<u32, Errno>, SendError>> {
        Poll::Ready(Ok(Err(Errno::OPNOTSUPP)))
    }

    /// As [`Outlet::poll_file`], for resident bytes, with a system call of this thread. Added bytes are sent before
    /// them, with `together` in the same packet.
    fn poll_file_now(
        &mut self,
        context: &mut Context<'_>,
        part: &FilePart<'_>,
        _together: bool,
    ) -> Poll<Result<Result<u32, Errno>, SendError>> {
        self.poll_file(context, part)
    }

    /// Whether the bytes of pipes may be sent with [`Outlet::poll_splice`], for a body of any length.
    fn accepts_pipes(&self) -> bool {
        false
    }

    /// Sends the bytes of a pipe, after the flushed bytes. Only for outlets that accept pipes.
    fn poll_splice(&mut self, _: &mut Context<'_>, _: &mut Pipe) -> Poll<Result<(), SendError>> {
        Poll::Ready(Err(SendError::Closed(Errno::OPNOTSUPP)))
    }

    /// Sets whether partial packets are held back while ranges of files are sent (`tcp_nopush`).
    fn set_cork(&self, _on: bool) {}

    /// Sends the added bytes and ends the body. `trailers` follow if the client accepts them.
    fn poll_end(&mut self, context: &mut Context<'_>, trailers: &Trailers) -> Poll<Result<(), SendError>>;

    /// Returns the number of bytes of the response sent so far, including header section and framing.
    fn sent(&self) -> u64;

    /// Returns the memory of the header section after it was sent.
    fn take_spare(&mut self) -> Vec<u8>;
}

/// The reason why a response was not sent completely.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendError {
    /// The client accepted no bytes for `send_timeout`.
    TimedOut,
    /// The connection is closed or broken.
    Closed(Errno),
    /// The client has read nothing for some time, and the connection was chosen to make room for another.
    Reclaimed,
    /// The server shuts down, and `worker_shutdown_timeout` has passed.
    CutOff,
}

impl dyn Outlet + '_ {
    /// Adds bytes to the next send.
    pub fn push(&mut self, source: Source) {
        let end = source.bytes().len();
        self.push_range(source, 0, end);
    }

    /// Sends the added bytes; `more` means that further bytes are already in memory.
    pub async fn flush(&mut self, more: bool) -> Result<(), SendError> {
        let follows = if more { Follows::Available } else { Follows::Nothing };
        poll_fn(|context| self.poll_flush(context, follows)).await
    }

    /// Sends the added bytes immediately, because no further bytes are in memory yet.
    pub async fn pause(&mut self) -> Result<(), SendError> {
        poll_fn(|context| self.poll_flush(context, Follows::Later)).await
    }

    /// Sends the added bytes if they include buffers of the pool. A header section alone still waits for its body.
    pub(super) async fn release_buffers(&mut self) -> Result<(), SendError> {
        if self.holds_buffers() { self.flush(false).await } else { Ok(()) }
    }

    /// See [`Outlet::poll_space`].
    pub async fn wait_for_space(&mut self, wanted: u64) -> Result<u64, SendError> {
        poll_fn(|context| self.poll_space(context, wanted)).await
    }

    /// See [`Outlet::poll_file`].
    pub(super) async fn file(&mut self, part: FilePart<'_>) -> Result<Result<u32, Errno>, SendError> {
        poll_fn(|context| self.poll_file(context, &part)).await
    }

    /// See [`Outlet::poll_file_now`].
    pub(super) async fn file_now(
        &mut self,
        (file, offset, len): (&File, u64, u32),
        together: bool,
    ) -> Result<Result<u32, Errno>, SendError> {
        let disk = Disk { device: Default::default(), via: DiskVia::Sync };
        let part = FilePart { file, offset, len, disk };
        poll_fn(|context| self.poll_file_now(context, &part, together)).await
    }

    /// See [`Outlet::poll_end`].
    pub async fn end(&mut self, trailers: &Trailers) -> Result<(), SendError> {
        poll_fn(|context| self.poll_end(context, trailers)).await
    }
}
