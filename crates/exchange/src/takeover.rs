//! A connection that leaves HTTP behind (101 Switching Protocols).

use std::fmt;
use std::pin::Pin;

use io::Errno;
use rt::Timer;
use transfer::duplex::Duplex;

/// Takes over a client's connection, or its stream, after the header section of the response was sent.
pub trait Takeover: fmt::Debug {
    /// Runs to the end of the connection. `early` are the client's bytes behind its request.
    fn run<'a>(
        self: Box<Self>,
        client: &'a mut dyn Duplex,
        timer: &'a Timer,
        early: &'a [u8],
    ) -> Pin<Box<dyn Future<Output = TakeoverEnd> + 'a>>;
}

/// How a connection that was taken over came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TakeoverEnd {
    /// Why it ended.
    pub reason: Ended,
    /// Bytes that went to the client.
    pub sent: u64,
}

/// Why such a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Both ends have closed their sides.
    Closed,
    /// Nothing came for too long.
    Idle,
    /// The upstream's connection broke.
    Upstream(Errno),
    /// The client's did.
    Client(Errno),
}
