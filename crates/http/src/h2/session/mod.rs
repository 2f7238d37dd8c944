//! One end of a connection: converts received bytes to events, and writes required frames immediately.
//!
//! ```text
//!   received bytes --receive--> Event: a head, bytes of a body, a reset, an open window
//!                        |
//!                        `----> out: acknowledgements, windows, resets
//! ```
//! Main types: [`Session`], [`Event`]. Received frames are processed in `head`, `data` and `control`. Frames that an end sends on its
//! own initiative are in [`send`](super::send). A frame other than DATA is processed when it is complete, so the caller must buffer up
//! to 16 KiB; bytes of DATA are returned as they arrive. Client and server differ in the right to open streams, and in the frames that
//! count as abuse.

mod control;
mod data;
mod head;

use super::error::{Fault, StreamFault};
use super::frame::{self, ACK, FRAME_HEADER_LEN, FrameHeader, FrameType, PAYLOAD_MAX};
use super::hpack::{Decoder, Encoder};
use super::late::LateStreams;
use super::round::Round;
use super::settings::{self, PeerSettings, WINDOW_DEFAULT};
use super::stream::Streams;
use crate::multiplexed::calm::Calm;
use crate::multiplexed::trailers::TrailerFields;
use crate::multiplexed::{Block, Priority};

/// Limits and sizes of a connection, from the configuration.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum number of open streams (`http2_max_concurrent_streams`).
    pub streams_max: u32,
    /// Number of body bytes that the peer may send before the handler takes them (`http2_body_preread_size`).
    pub initial_window: u32,
    /// Number of body bytes that the peer may send on all streams of a new connection, at least [`WINDOW_DEFAULT`].
    pub connection_window: u32,
    /// Maximum size of a header section in bytes (`large_client_header_buffers`).
    pub head_max: u32,
}

impl Default for Limits {
    fn default() -> Limits {
        let initial_window = 64 << 10;
        Limits { streams_max: 128, initial_window, connection_window: 16 << 20, head_max: 33 << 10 }
    }
}

/// Role of this end of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Receives requests.
    Server,
    /// Sends requests.
    Client,
}

/// Maximum number of streams that a client opens before it has received the server's limit (RFC 9113 section 6.5.2 recommends at
/// least as many).
const STREAMS_BEFORE_SETTINGS: u32 = 100;

/// A received event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The frame is incomplete; more bytes are needed.
    More,
    /// A frame that needs no further action.
    Nothing,
    /// For a server, the head of a request, which must be passed to [`Session::decode`] and then to [`Session::open`]. For a
    /// client, the head of a response or its trailers, which must be decoded.
    Head {
        /// Its stream.
        stream: u32,
        /// Whether it ends the message.
        ends: bool,
        /// Location of the header block.
        block: Block,
    },
    /// Bytes of a body, at this range of the input; possibly none at its end.
    Data {
        /// Its stream.
        stream: u32,
        /// Index of the first byte.
        start: usize,
        /// Index after the last byte.
        end: usize,
        /// Whether they end the body.
        ends: bool,
    },
    /// The stream was reset by either end: nothing more is received or sent on it.
    Reset {
        /// The stream.
        stream: u32,
        /// Whether the peer reset it.
        by_peer: bool,
        /// Error code ([`ErrorCode`](super::ErrorCode)).
        code: u32,
    },
    /// More bytes may be sent on this stream, or on all streams if the number is 0.
    Window {
        /// The stream.
        stream: u32,
    },
    /// The priority of a response has changed (RFC 9218 section 7.1).
    Priority {
        /// The stream, which is open. [`Session::take_update`] returns the priority of a stream that was not open.
        stream: u32,
        /// Its priority.
        priority: Priority,
    },
    /// The PING of this end was acknowledged.
    Pong,
    /// A measured round trip has ended: [`Session::limited`] returns the streams whose windows were too small for it.
    Round,
    /// The peer sent GOAWAY. A client opens no more streams; a server serves no streams above `last`.
    GoAway {
        /// The last stream that may have been processed.
        last: u32,
        /// Error code ([`ErrorCode`](super::ErrorCode)).
        code: u32,
    },
}

/// Result of one call of [`Session::receive`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Number of input bytes processed.
    pub used: usize,
    /// The event.
    pub event: Event,
}

/// A header block whose fragments are incomplete.
#[derive(Debug)]
struct Gathering {
    stream: u32,
    ends: bool,
    fragments: usize,
}

/// A DATA frame whose bytes are incomplete.
#[derive(Clone, Copy, Debug)]
struct Data {
    stream: u32,
    /// Remaining bytes of the body.
    left: usize,
    /// Remaining bytes of padding after them.
    padding: usize,
    ends: bool,
    /// Whether its bytes are ignored.
    is_ignored: bool,
}

/// One end of a connection. `T` is stored with each stream.
#[derive(Debug)]
pub struct Session<T> {
    pub(super) role: Role,
    limits: Limits,
    decoder: Decoder,
    pub(super) encoder: Encoder,
    pub(super) peer: PeerSettings,
    pub(super) streams: Streams<T>,
    pub(super) send_window: i64,
    pub(super) receive_window: i64,
    /// Whether the window of the connection is reopened as bytes arrive.
    pub(super) opens_itself: bool,
    /// The measurement of a round trip.
    pub(super) round: Round,
    has_preface: bool,
    has_settings: bool,
    /// Whether the peer has acknowledged the settings.
    is_acknowledged: bool,
    gathering: Option<Gathering>,
    block: Vec<u8>,
    data: Option<Data>,
    /// Trailers of the request that has just ended.
    trailers: TrailerFields,
    /// Priorities of streams that are not open yet.
    updates: Vec<(u32, Priority)>,
    /// Streams that ended before their requests.
    pub(super) late: LateStreams,
    /// Counts of frames and requests without effect.
    pub(super) calm: Calm,
    /// Number of streams refused since the last call of [`Session::take_refused`].
    refused: u32,
    /// The last stream that is served, once announced.
    pub(super) last_served: Option<u32>,
}

impl<T> Session<T> {
    /// Creates the server end of a new connection; its first frames are appended to `out`.
    #[must_use]
    pub fn new(limits: Limits, out: &mut Vec<u8>) -> Session<T> {
        settings::push_own(out, limits.streams_max, limits.initial_window);
        Session::begin(Role::Server, limits, out)
    }

    /// Creates the client end of a new connection; its first frames are appended to `out`.
    #[must_use]
    pub fn client(limits: Limits, out: &mut Vec<u8>) -> Session<T> {
        out.extend_from_slice(frame::PREFACE);
        settings::push_own_of_client(out, limits.initial_window, limits.head_max);
        let mut session = Session::begin(Role::Client, limits, out);
        session.peer.streams_max = STREAMS_BEFORE_SETTINGS;
        session
    }

    fn begin(role: Role, limits: Limits, out: &mut Vec<u8>) -> Session<T> {
        let connection_window = limits.connection_window.max(WINDOW_DEFAULT);
        if connection_window > WINDOW_DEFAULT {
            frame::push_window_update(out, 0, connection_window - WINDOW_DEFAULT);
        }
        Session {
            role,
            limits,
            decoder: Decoder::default(),
            encoder: Encoder::default(),
            peer: PeerSettings::default(),
            streams: Streams::default(),
            send_window: i64::from(WINDOW_DEFAULT),
            receive_window: i64::from(connection_window),
            opens_itself: true,
            round: Round::default(),
            has_preface: role == Role::Client,
            has_settings: false,
            is_acknowledged: false,
            gathering: None,
            block: Vec::new(),
            data: None,
            trailers: Vec::new(),
            updates: Vec::new(),
            late: LateStreams::default(),
            calm: Calm::default(),
            refused: 0,
            last_served: None,
        }
    }

    /// Processes the next frame of `input`, or a part of a DATA frame. Required frames are appended to `out`.
    ///
    /// # Errors
    /// The connection must end, with [`Session::fail`].
    pub fn receive(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<Step, Fault> {
        if let Some(data) = self.data {
            return Ok(self.receive_data(data, input, 0));
        }
        if !self.has_preface {
            return self.receive_preface(input);
        }
        let Some(header) = FrameHeader::read(input) else { return Ok(MORE) };
        // Checked before the length: if the first bytes are not a frame, the preface is invalid (RFC 9113 section 3.4).
        if !self.has_settings && !self.may_begin_with(header) {
            return Err(Fault::NoSettings);
        }
        if header.len > PAYLOAD_MAX {
            return Err(Fault::FrameTooLong);
        }
        if self.gathering.is_some() && header.kind != FrameType::Continuation {
            return Err(Fault::Continuation);
        }
        if header.kind == FrameType::Data {
            return self.begin_data(header, input, out);
        }
        let used = FRAME_HEADER_LEN + header.len;
        let Some(payload) = input.get(FRAME_HEADER_LEN..used) else { return Ok(MORE) };
        let event = match header.kind {
            FrameType::Headers => self.headers(header, payload)?,
            FrameType::Continuation => self.continuation(header, payload)?,
            _ => self.control(header, payload, out)?,
        };
        let event = match event {
            Event::Head { stream, ends, block } => self.head(stream, ends, block, input, out)?,
            event => event,
        };
        Ok(Step { used, event })
    }

    /// Whether this may be the first frame. As in nginx, clients may begin with PING or an acknowledgement: their settings are the
    /// default values until SETTINGS arrive.
    fn may_begin_with(&self, header: FrameHeader) -> bool {
        let is_server = self.role == Role::Server;
        match header.kind {
            FrameType::Settings => is_server || !header.has(ACK),
            FrameType::Ping => is_server,
            _ => false,
        }
    }

    fn receive_preface(&mut self, input: &[u8]) -> Result<Step, Fault> {
        let here = &input[..input.len().min(frame::PREFACE.len())];
        if !frame::PREFACE.starts_with(here) {
            return Err(Fault::Preface);
        }
        self.has_preface = here.len() == frame::PREFACE.len();
        let used = if self.has_preface { here.len() } else { 0 };
        let event = if self.has_preface { Event::Nothing } else { Event::More };
        Ok(Step { used, event })
    }

    /// Whether a header block, or the start of the connection, is incomplete. No other frame may arrive until it is complete.
    #[must_use]
    pub fn is_in_head(&self) -> bool {
        self.gathering.is_some() || !self.has_settings
    }

    /// Returns the number of open streams.
    #[must_use]
    pub fn open_streams(&self) -> usize {
        self.streams.len()
    }

    /// Returns the caller's data of a stream.
    #[must_use]
    pub fn get(&self, stream: u32) -> Option<&T> {
        self.streams.get(stream).map(|stream| &stream.user)
    }

    /// Returns the caller's data of each stream.
    pub fn each(&self) -> impl Iterator<Item = (u32, &T)> {
        self.streams.iter().map(|stream| (stream.id, &stream.user))
    }

    /// Releases the memory of long header sections.
    pub fn trim(&mut self) {
        self.decoder.trim();
    }

    /// Takes the number of streams refused since the last call.
    pub fn take_refused(&mut self) -> u32 {
        std::mem::take(&mut self.refused)
    }

    /// Resets a stream for an error of the peer.
    fn reset_for(&mut self, id: u32, fault: StreamFault, out: &mut Vec<u8>) -> Result<Event, Fault> {
        self.note_provoked(id);
        self.reset(id, fault.code(), out);
        self.spend_for_fault()?;
        Ok(Event::Reset { stream: id, by_peer: false, code: fault.code() as u32 })
    }
}

const MORE: Step = Step { used: 0, event: Event::More };

#[cfg(test)]
impl<T> Session<T> {
    pub(super) fn receive_window_for_test(&mut self, bytes: i64) {
        (self.receive_window, self.opens_itself) = (bytes, false);
    }

    pub(super) fn held_for_test(&self) -> usize {
        self.block.len()
    }
}
