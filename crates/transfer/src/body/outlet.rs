//! Where a body goes: the interface between the movers of bodies and the protocol of the client.
//!
//! Main type: [`Outlet`]. A response that is in memory as a whole needs none. A body that is read or filtered while it is
//! sent goes into a `&mut dyn Outlet`, so that there is one copy of each mover ([`read`](super::read) and its siblings)
//! for all protocols; its methods are polled, so that a wait needs no box. The futures over them are at the end.

use std::future::poll_fn;
use std::task::{Context, Poll};

use io::Errno;
use io::op::Source;
use rt::File;
use rt::net::FilePart;

/// Names and values of the fields that follow a body.
pub type Trailers = [(Vec<u8>, Vec<u8>)];

/// The caller's next send after a flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Follows {
    /// Bytes that are in memory already.
    AtHand,
    /// Bytes that are not in memory yet, so that nothing is held back for them.
    Later,
    /// Nothing, or bytes that need not leave along with these.
    Nothing,
}

/// Takes the header section of a response and then its body, as bytes or as parts of files. How the client finds the
/// end of the body is its business, and so are the rate and the timeout.
///
/// A `poll_` method finishes its work: the caller polls it again, with the same arguments, until it is ready.
pub trait Outlet {
    /// Whether bytes of a file may leave by [`Outlet::poll_file`]. Where they have to be framed or encrypted they cannot.
    fn takes_files(&self) -> bool;

    /// Bytes of one read, if configured.
    fn chunk_bytes(&self) -> Option<u64>;

    /// Bytes of a file that leave at once, where the engine would take `most`.
    fn file_bytes(&self, most: u64) -> u64;

    /// Starts with the head; it leaves with the first bytes of the body.
    fn begin(&mut self, head: Vec<u8>);

    /// Adds a part of `source` to the bytes of the next send.
    fn push_range(&mut self, source: Source, start: usize, end: usize);

    /// Whether another piece fits before a flush.
    fn has_room(&self) -> bool;

    /// Whether buffers of the pool are among the added bytes.
    fn holds_buffers(&self) -> bool;

    /// Sends the added bytes.
    fn poll_flush(&mut self, context: &mut Context<'_>, follows: Follows) -> Poll<Result<(), SendError>>;

    /// Waits until the client accepts bytes, `wanted` of them or a large part of its socket buffer; returns how many,
    /// not 0.
    fn poll_room(&mut self, context: &mut Context<'_>, wanted: u64) -> Poll<Result<u64, SendError>>;

    /// Moves bytes of a file by the engine, behind the flushed ones; how many went. Only of an outlet that takes files.
    fn poll_file(
        &mut self,
        context: &mut Context<'_>,
        part: &FilePart<'_>,
    ) -> Poll<Result<Result<u32, Errno>, SendError>>;

    /// As [`Outlet::poll_file`] by a call of this thread, of bytes that are in memory. Added bytes go before them, with
    /// `together` in the same packet.
    fn poll_file_now(
        &mut self,
        context: &mut Context<'_>,
        part: &FilePart<'_>,
        together: bool,
    ) -> Poll<Result<Result<u32, Errno>, SendError>>;

    /// Whether a body that leaves in parts of files holds back packets that are not full (`tcp_nopush`).
    fn set_cork(&self, on: bool);

    /// Sends the added bytes, and ends the body. `trailers` follow it where the client can take them.
    fn poll_end(&mut self, context: &mut Context<'_>, trailers: &Trailers) -> Poll<Result<(), SendError>>;

    /// Bytes of the response that the client was sent so far, head and framing included.
    fn sent(&self) -> u64;

    /// The memory of the head, once that has left.
    fn take_spare(&mut self) -> Vec<u8>;
}

/// Why the rest of a response was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendError {
    /// The client took nothing for `send_timeout`.
    TimedOut,
    /// The connection is gone.
    Gone(Errno),
}

impl dyn Outlet + '_ {
    /// Adds bytes to the next send.
    pub fn push(&mut self, source: Source) {
        let end = source.bytes().len();
        self.push_range(source, 0, end);
    }

    /// Sends the added bytes; `more` means that further bytes are in memory already.
    pub async fn flush(&mut self, more: bool) -> Result<(), SendError> {
        let follows = if more { Follows::AtHand } else { Follows::Nothing };
        poll_fn(|context| self.poll_flush(context, follows)).await
    }

    /// Sends the added bytes when no further bytes are in memory.
    pub async fn pause(&mut self) -> Result<(), SendError> {
        poll_fn(|context| self.poll_flush(context, Follows::Later)).await
    }

    /// Sends the added bytes if buffers of the pool are among them. A header section alone still waits for its body.
    pub(super) async fn let_go(&mut self) -> Result<(), SendError> {
        if self.holds_buffers() { self.flush(false).await } else { Ok(()) }
    }

    /// See [`Outlet::poll_room`].
    pub(super) async fn room(&mut self, wanted: u64) -> Result<u64, SendError> {
        poll_fn(|context| self.poll_room(context, wanted)).await
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
        let part = FilePart { file, offset, len, device: Default::default(), via: io::DiskVia::Sync };
        poll_fn(|context| self.poll_file_now(context, &part, together)).await
    }

    /// See [`Outlet::poll_end`].
    pub async fn end(&mut self, trailers: &Trailers) -> Result<(), SendError> {
        poll_fn(|context| self.poll_end(context, trailers)).await
    }
}
