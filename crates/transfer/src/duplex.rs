//! A plain byte connection in both directions: the remainder of a client's connection or stream after another protocol
//! takes it over.

use std::task::{Context, Poll};

use io::{Buf, Errno, Fd, Segments};
use rt::Socket;

/// A connection in both directions. Each direction may be polled while the other waits.
pub trait Duplex {
    /// Returns the next bytes; `None` at the end. Dropping the polling future loses no bytes.
    fn poll_recv(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Buf>, Errno>>;

    /// As [`Duplex::poll_recv`], but returns `None` instead of waiting.
    fn try_recv(&mut self) -> Option<Result<Option<Buf>, Errno>>;

    /// Sends all of `data`; it must be polled again, with the same segments, until it is ready.
    fn poll_send(&mut self, context: &mut Context<'_>, data: &mut Segments) -> Poll<Result<(), Errno>>;

    /// Closes the sending direction, as shutdown(SHUT_WR).
    fn end_sending(&mut self);

    /// Returns the socket, unless other streams share it.
    fn socket(&self) -> Option<&Fd> {
        None
    }

    /// Returns the socket whose bytes they are; `None` if TLS or frames are around them.
    fn plain(&mut self) -> Option<&mut Socket> {
        None
    }
}

impl Duplex for Socket {
    fn poll_recv(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Buf>, Errno>> {
        self.reader.poll_recv(context)
    }

    fn try_recv(&mut self) -> Option<Result<Option<Buf>, Errno>> {
        self.reader.try_recv()
    }

    fn poll_send(&mut self, context: &mut Context<'_>, data: &mut Segments) -> Poll<Result<(), Errno>> {
        self.writer.poll_send(context, data, false)
    }

    fn end_sending(&mut self) {
        self.writer.shutdown();
    }

    fn socket(&self) -> Option<&Fd> {
        Some(self.fd())
    }

    fn plain(&mut self) -> Option<&mut Socket> {
        Some(self)
    }
}
