//! Connections that switch to another protocol (101 Switching Protocols).

use std::fmt;
use std::pin::Pin;

use io::Errno;
use rt::Timer;

use transfer::duplex::Duplex;

/// Takes over a client's connection, or its stream, after the header section of the response was sent.
pub trait Takeover: fmt::Debug {
    /// Runs to the end of the connection. `early` contains the client's bytes after its request.
    fn run<'a>(
        self: Box<Self>,
        client: &'a mut dyn Duplex,
        timer: &'a Timer,
        early: &'a [u8],
    ) -> Pin<Box<dyn Future<Output = TakeoverEnd> + 'a>>;
}

/// The result of a connection that was taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TakeoverEnd {
    /// The reason of the end.
    pub reason: Ended,
    /// Number of bytes sent to the client.
    pub sent: u64,
}

/// The reason why a connection that was taken over ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Both ends have closed their sides.
    Closed,
    /// Timeout without input.
    Idle,
    /// One side has ended, and the other sent nothing for the time that is allowed then.
    HalfClosed,
    /// The server shuts down, and `worker_shutdown_timeout` has passed.
    CutOff,
    /// The upstream connection failed.
    Upstream(Errno),
    /// The client connection failed.
    Client(Errno),
}
