//! Requests of connections with several concurrent streams, common to HTTP/2 and HTTP/3: a [`Link`] is a stream of one of the protocols.
//!
//! `exchange::pump` runs a request until its response, through the [`transport`] of its stream: [`body`] reads, [`outlet`] sends bodies that
//! are not in memory, [`client`] is the interface for handlers, and [`duplex`] that of a protocol that takes the stream over. [`run`]
//! is the task of a request, [`requests`] prepares it, [`held`] has requests that wait for their turn, [`head`] writes header sections, and [`inbox`] holds received bytes of its body.

mod body;
pub(crate) mod client;
mod duplex;
mod head;
pub(crate) mod held;
pub(crate) mod inbox;
pub(crate) mod outlet;
pub(crate) mod requests;
pub(crate) mod run;
pub(crate) mod transport;

use std::cell::Cell;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use http::multiplexed::BlockWriter;
use io::segments::Source;
use io::sys::TcpInfo;
use io::{Errno, Segments};

use exchange::request::Request;
use exchange::thread::Thread;
use transfer::incoming::BodyAborted;

/// Minimum window in bytes of a body or tunnel that is being read, however small the configured window is.
pub(crate) const WINDOW_MIN: u32 = 64 << 10;

/// One stream of a connection. Clones refer to the same stream.
pub(crate) trait Link: Clone + 'static {
    /// Code of a reset.
    type Code: Copy;

    /// Compression of header blocks.
    type Blocks: BlockWriter;

    /// Returns the thread of the connection.
    fn thread(&self) -> &Rc<Thread>;

    /// Prepares for the response of a request.
    fn begin_response(&self, request: &Request);

    /// Sends the header section of a response. `ends` means that no body follows.
    ///
    /// # Errors
    /// The client has disconnected.
    fn send(&self, head: &[u8], ends: bool) -> Result<(), Errno>;

    /// Sends a complete response, whose first `head_len` bytes are its header section. Returns the length of the frames of the
    /// header section, and whether the complete body was put into frames.
    ///
    /// # Errors
    /// The client has disconnected.
    fn send_complete(&self, head_len: usize, data: Segments) -> Result<(usize, bool), Errno>;

    /// Sends the header block of an interim response.
    fn send_interim(&self, block: &[u8]);

    /// Adds bytes to a body; `end` ends it with a block of trailers, possibly empty.
    ///
    /// # Errors
    /// The client has disconnected.
    fn add(&self, data: Segments, end: Option<Vec<u8>>) -> Result<(), Errno>;

    /// Becomes ready when all added bytes were put into frames, and the end too if it was added.
    fn poll_framed(&self, context: &Context<'_>) -> Poll<Result<(), Errno>>;

    /// Returns the number of body bytes that may be read for the stream, by its window.
    fn poll_space(&self, context: &Context<'_>) -> Poll<Result<u64, Errno>>;

    /// Becomes ready when the stream can no longer send.
    fn poll_closed(&self, context: &Context<'_>) -> Poll<Errno>;

    /// Returns the number of bytes that one read should return for the stream.
    fn read_ahead(&self) -> u64;

    /// Returns a number that increases as the client accepts bytes.
    fn progress(&self) -> u64;

    /// Returns the progress at the start of a wait for the client's window of the stream.
    fn first_progress(&self) -> Option<u64>;

    /// Returns the number of body bytes that were put into frames.
    fn moved(&self) -> u64;

    /// Returns the number of bytes that can be sent immediately.
    fn send_space(&self) -> u64;

    /// Removes the pieces that are not in frames yet.
    fn discard(&self);

    /// Resets the stream with the code of its upstream's HTTP/2 stream, if it is one for clients.
    fn pass_reset(&self, code: u32);

    /// Resets the stream of a client that has not extended its window in time.
    fn reset_timed_out(&self);

    /// Returns the code of a reset for a request without response.
    fn code_without_response() -> Self::Code;

    /// Ends the stream, whose work is done; `reset` is the error code if the request violated the protocol.
    fn release(&self, reset: Option<Self::Code>);

    /// Whether the stream is one of extended CONNECT.
    fn is_tunnel(&self) -> bool;

    /// Returns the next piece of the request's body; `None` at its end.
    fn poll_piece(&self, context: &Context<'_>) -> Poll<Result<Option<Source>, BodyAborted>>;

    /// Notes that bytes of a body were consumed, so that the client may send more.
    fn take(&self, bytes: usize);

    /// Enlarges the window of a body that is being read.
    fn widen(&self, window: u32);

    /// Returns the number of received bytes of the body that no handler has read.
    fn held(&self) -> usize;

    /// Whether the complete body has been received.
    fn is_body_complete(&self) -> bool;

    /// Drops the received bytes of the body.
    fn clear_body(&self);

    /// Returns the trailer section of the request.
    fn received_trailers(&self) -> Vec<(Vec<u8>, Vec<u8>)>;

    /// Waits until the client has disconnected or cancelled the stream.
    fn hung_up(&self) -> Pin<Box<dyn Future<Output = ()>>>;

    /// Notes whether the request waits for a slot for its upstream, so that the connection's task decides again whether all requests wait.
    fn note_slot_wait(&self, waits: bool);

    /// Returns the kernel's facts about the connection; `None` if it is not TCP.
    fn tcp_info(&self) -> Option<TcpInfo>;
}

/// The requests of a stream that wait for a slot for their upstream: a request and its subrequests, such as those of `mirror`.
#[derive(Debug, Default)]
pub(crate) struct SlotWaits(Cell<usize>);

impl SlotWaits {
    /// Counts a request that begins or ends to wait.
    pub(crate) fn note(&self, waits: bool) {
        let count = self.0.get();
        debug_assert!(waits || count > 0, "each wait begins before it ends");
        self.0.set(if waits { count + 1 } else { count.saturating_sub(1) });
    }

    /// Whether a request waits.
    pub(crate) fn any(&self) -> bool {
        self.0.get() > 0
    }
}

/// Whether a field is connection-specific; HTTP/2 and HTTP/3 do not allow such fields (RFC 9113 section 8.2.2, RFC 9114 section 4.2).
pub(crate) fn is_of_connection(name: &[u8]) -> bool {
    const NAMES: [&[u8]; 5] =
        [b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"];
    matches!(name.len(), 7 | 10 | 16 | 17) && NAMES.iter().any(|known| name.eq_ignore_ascii_case(known))
}

#[cfg(test)]
mod tests {
    use super::SlotWaits;

    #[test]
    fn a_stream_waits_until_all_its_requests_have_a_slot() {
        let waits = SlotWaits::default();
        waits.note(true);
        waits.note(true);
        waits.note(false);
        assert!(waits.any());
        waits.note(false);
        assert!(!waits.any());
    }
}
