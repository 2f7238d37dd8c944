//! One end of a connection: the streams that QUIC carries, without QUIC.
//!
//! ```text
//!   unidirectional streams --receive_uni--> UniEvent: settings, priorities, GOAWAY
//!   request streams -------receive--------> RequestEvent: a head, bytes of a body, trailers
//!                               `---------> Http3Output: own control stream, own QPACK decoder stream
//! ```
//! Main types: [`Http3Session`], [`Http3Output`]. The caller stores a [`RequestStream`] for each request, and passes it to each method
//! that concerns the request. QUIC limits the number of streams and the bytes in flight. A server never pushes, and a client permits no
//! push, so no push stream exists.

mod control;
mod messages;
#[cfg(test)]
mod tests;

use std::time::Duration;

use super::error::Http3Fault;
use super::frame::{FrameStart, VARINT_MAX, kind, push_varint, stream_type};
use super::qpack::Decoder;
use super::request::{RequestStream, StreamRules};
use super::settings::{self, Http3Limits, Http3Settings};
use crate::multiplexed::calm::Calm;
use crate::multiplexed::{Priority, Strain};

pub use control::{UniEvent, UniStep};
pub use messages::DecodedSection;

/// Bytes to send on the unidirectional streams of this end, which it opens when there are such bytes.
#[derive(Debug, Default)]
pub struct Http3Output {
    /// Control stream.
    pub control: Vec<u8>,
    /// QPACK decoder stream. It is never used if the announced capacity of the table is 0.
    pub decoder: Vec<u8>,
}

/// Lower bound in bytes of the limit on a header block. A head that is larger than `head_max` but within this limit gets an error
/// response.
const BLOCK_MIN: usize = 64 << 10;

/// One end of a connection.
#[derive(Debug)]
pub struct Http3Session {
    is_server: bool,
    limits: Http3Limits,
    decoder: Decoder,
    calm: Calm,
    /// Settings of the peer, once received.
    peer: Option<Http3Settings>,
    /// Streams of the peer whose type is incomplete.
    untyped: Vec<(u64, FrameStart)>,
    control: Option<control::ControlStream>,
    /// Number of the peer's QPACK encoder stream.
    encoder_stream: Option<u64>,
    decoder_stream: Option<control::DecoderStream>,
    /// Priorities of streams that are not open yet.
    updates: Vec<(u64, Priority)>,
    /// Streams that wait for entries of the QPACK table, with the number of entries that must have arrived.
    blocked: Vec<(u64, u64)>,
    /// Number of request streams that the client has opened.
    opened: u64,
    /// Identifier of the last GOAWAY in each direction.
    goaway_sent: Option<u64>,
    goaway_received: Option<u64>,
    /// The last MAX_PUSH_ID.
    push_max: Option<u64>,
    /// Whether the own decoder stream was begun.
    has_decoder_output: bool,
}

/// Identifier of the first GOAWAY of a server: the last possible request stream (RFC 9114 section 5.2).
const GOAWAY_FIRST: u64 = VARINT_MAX - 3;

impl Http3Session {
    /// Creates the server end of a new connection; the start of its control stream is appended to `out`.
    #[must_use]
    pub fn server(limits: Http3Limits, out: &mut Http3Output) -> Http3Session {
        Http3Session::begin(true, limits, out)
    }

    /// Creates the client end of a new connection; the start of its control stream is appended to `out`.
    #[must_use]
    pub fn client(limits: Http3Limits, out: &mut Http3Output) -> Http3Session {
        Http3Session::begin(false, limits, out)
    }

    fn begin(is_server: bool, limits: Http3Limits, out: &mut Http3Output) -> Http3Session {
        push_varint(&mut out.control, stream_type::CONTROL);
        settings::push_own(&mut out.control, &limits, is_server);
        Http3Session {
            is_server,
            limits,
            decoder: Decoder::new(limits.table_capacity as usize),
            calm: Calm::default(),
            peer: None,
            untyped: Vec::new(),
            control: None,
            encoder_stream: None,
            decoder_stream: None,
            updates: Vec::new(),
            blocked: Vec::new(),
            opened: 0,
            goaway_sent: None,
            goaway_received: None,
            push_max: None,
            has_decoder_output: false,
        }
    }

    /// Begins to receive a stream that the peer has opened, or that a client opens. Streams must be passed in the order of their
    /// numbers. Returns `None` if a GOAWAY has excluded the stream: it must be reset with H3_REQUEST_REJECTED (RFC 9114 section 5.2).
    pub fn open(&mut self, id: u64) -> Option<RequestStream> {
        debug_assert!(id.is_multiple_of(4), "the number of a request stream");
        let goaway = if self.is_server { self.goaway_sent } else { self.goaway_received };
        if goaway.is_some_and(|first| id >= first) {
            return None;
        }
        self.opened = self.opened.max(id / 4 + 1);
        Some(RequestStream::new(id))
    }

    /// Returns the settings of the peer, once they have arrived.
    #[must_use]
    pub fn peer(&self) -> Option<&Http3Settings> {
        self.peer.as_ref()
    }

    /// Takes the priority that was received before its stream was opened, directly after [`Http3Session::open`].
    pub fn take_update(&mut self, id: u64) -> Option<Priority> {
        let index = self.updates.iter().position(|(other, _)| *other == id)?;
        Some(self.updates.swap_remove(index).1)
    }

    /// Returns the identifier of the peer's last GOAWAY. For a client, this stream and later ones are not processed.
    #[must_use]
    pub fn goaway(&self) -> Option<u64> {
        self.goaway_received
    }

    /// Releases the memory of long header sections.
    pub fn trim(&mut self) {
        self.decoder.trim();
        self.untyped.shrink_to_fit();
        self.updates.shrink_to_fit();
        self.blocked.shrink_to_fit();
    }

    fn rules(&self) -> StreamRules {
        let block_max = (self.limits.head_max as usize * 2).max(BLOCK_MIN);
        StreamRules { is_server: self.is_server, block_max }
    }
}

/// Ending the connection (RFC 9114 section 5.2).
impl Http3Session {
    /// Announces the end of the connection to the client; streams that it opens before it receives this are served. A round trip later
    /// [`Http3Session::end`] should follow.
    pub fn announce_end(&mut self, out: &mut Http3Output) {
        self.send_goaway(GOAWAY_FIRST, out);
    }

    /// Stops accepting streams, and announces the first stream that is not served.
    pub fn end(&mut self, out: &mut Http3Output) {
        self.send_goaway(if self.is_server { 4 * self.opened } else { 0 }, out);
    }

    fn send_goaway(&mut self, id: u64, out: &mut Http3Output) {
        // The identifier must not increase.
        if self.goaway_sent.is_some_and(|sent| sent <= id) {
            return;
        }
        self.goaway_sent = Some(id);
        let mut payload = Vec::with_capacity(8);
        push_varint(&mut payload, id);
        super::frame::push_frame(&mut out.control, kind::GOAWAY, &payload);
    }
}

/// Limits on work without effect (RFC 9114 section 10.5), by the counts of [`calm`](crate::multiplexed::calm).
impl Http3Session {
    /// Credits elapsed time to the peer.
    pub fn pass_time(&mut self, seconds: u64) {
        self.calm.pass_time(seconds);
    }

    /// Returns the strain by frames without effect.
    #[must_use]
    pub fn strain(&self) -> Strain {
        self.calm.strain()
    }

    /// Returns the minimum time between the starts of two requests, which grows with the work that the client has wasted.
    #[must_use]
    pub fn start_delay(&self) -> Duration {
        self.calm.start_delay()
    }

    /// Counts the waste of a request that the client has cancelled, by RESET_STREAM or STOP_SENDING, and forgets its header section.
    ///
    /// # Errors
    /// The client has cancelled too many requests that were held back.
    pub fn cancelled(&mut self, stream: &mut RequestStream, out: &mut Http3Output) -> Result<(), Http3Fault> {
        self.abandon(stream, out);
        if self.is_server {
            self.calm.note_cancelled(stream.progress())?;
        }
        Ok(())
    }

    /// Counts the waste of a request that this end is about to reset for an error of the client.
    ///
    /// # Errors
    /// The client has caused too many errors.
    pub fn provoked(&mut self, stream: &mut RequestStream, out: &mut Http3Output) -> Result<(), Http3Fault> {
        self.abandon(stream, out);
        if self.is_server {
            self.calm.note_provoked(stream.progress());
            self.calm.spend(crate::multiplexed::calm::COST_OF_FAULT)?;
        }
        Ok(())
    }
}
