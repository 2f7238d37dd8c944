//! The connection between both ends, in memory, and its adapter for h2.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// One direction of the connection.
#[derive(Debug, Default)]
pub struct Direction {
    bytes: VecDeque<u8>,
    /// Capacity in bytes.
    room: usize,
    /// Whether no more bytes will arrive.
    pub is_closed: bool,
    /// Total number of bytes passed.
    pub passed: u64,
}

impl Direction {
    /// Creates a direction with this capacity.
    #[must_use]
    pub fn new(room: usize) -> Direction {
        Direction { room, ..Direction::default() }
    }

    /// Stores as many bytes as fit; returns their number.
    pub fn put(&mut self, bytes: &[u8]) -> usize {
        let count = bytes.len().min(self.room.saturating_sub(self.bytes.len()));
        self.bytes.extend(&bytes[..count]);
        self.passed += count as u64;
        count
    }

    /// Removes up to `most` bytes.
    pub fn take(&mut self, most: usize) -> Vec<u8> {
        let count = most.min(self.bytes.len());
        self.bytes.drain(..count).collect()
    }

    /// Whether no bytes are in transit.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
}

/// A direction that both ends share.
pub type Shared = Rc<RefCell<Direction>>;

/// The I/O object of h2: each call transfers only a part of the possible bytes.
#[derive(Debug)]
pub struct Io {
    /// Direction from the peer.
    pub incoming: Shared,
    /// Direction to the peer.
    pub outgoing: Shared,
    /// Maximum number of bytes transferred per call.
    pub chunk_max: usize,
}

impl AsyncRead for Io {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut incoming = self.incoming.borrow_mut();
        if incoming.is_empty() {
            return if incoming.is_closed { Poll::Ready(Ok(())) } else { Poll::Pending };
        }
        buf.put_slice(&incoming.take(self.chunk_max.min(buf.remaining())));
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Io {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let part = &buf[..buf.len().min(self.chunk_max)];
        match self.outgoing.borrow_mut().put(part) {
            0 if !buf.is_empty() => Poll::Pending,
            count => Poll::Ready(Ok(count)),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.outgoing.borrow_mut().is_closed = true;
        Poll::Ready(Ok(()))
    }
}
