//! A connection with bytes in both directions and nothing else: the rest of a client's connection, or of one stream of it,
//! when another protocol takes it over.

use std::task::{Context, Poll};

use io::{Buf, Errno, Segments};
use rt::Socket;

/// Both directions. Each may be polled while the other waits.
pub trait Duplex {
    /// The next bytes; `None` at their end. Dropping the polling future loses nothing.
    fn poll_recv(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Buf>, Errno>>;

    /// Bytes that are here already.
    fn try_recv(&mut self) -> Option<Result<Option<Buf>, Errno>>;

    /// Sends all of `data`; polled again, with the same segments, until it is ready.
    fn poll_send(&mut self, context: &mut Context<'_>, data: &mut Segments) -> Poll<Result<(), Errno>>;

    /// Ends the direction towards the other end.
    fn end_sending(&mut self);
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
}
