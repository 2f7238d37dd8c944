//! One end of a connection: converts received bytes to events, and writes required frames immediately.
//!
//! ```text
//!   received bytes --receive--> Event: a head, bytes of a body, a reset, an open window
//!                        |
//!                        `----> out: acknowledgements, windows, resets
//! ```
//! Main types: [`Session`], [`Event`]. Frames that an end sends on its own initiative are in [`send`](super::send). A frame other
//! than DATA is processed when it is complete, so the caller must buffer up to 16 KiB; bytes of DATA are returned as they arrive.
//! Client and server differ in the right to open streams, and in the frames that count as abuse.

use super::calm::Calm;
use super::error::{ErrorCode, Fault, StreamFault};
use super::frame::{
    self, ACK, END_HEADERS, END_STREAM, FRAME_HEADER_LEN, FrameHeader, Kind, PADDED, PAYLOAD_MAX,
};
use super::hpack::{Decoder, Encoder, NeverIndexed};
use super::late::LateStreams;
use super::priority::Priority;
use super::round::Round;
use super::settings::{self, PeerSettings, WINDOW_DEFAULT, WINDOW_MAX};
use super::stream::{End, Stream, StreamState, Streams};
use crate::fields::HeaderId;
use crate::framing::{TRAILER_LEN_MAX, may_be_trailer};

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

/// Maximum number of frames per header block, in addition to one per KiB.
const FRAGMENTS_MAX: usize = 8;

/// Lower bound in bytes of the limit on a header block. A head that is larger than `head_max` but within this limit gets an error
/// response.
const BLOCK_MIN: usize = 64 << 10;

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
        /// Error code ([`ErrorCode`]).
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
        /// Error code ([`ErrorCode`]).
        code: u32,
    },
}

/// Location of a header block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Block {
    /// A range of the input: start and end.
    Input(usize, usize),
    /// Memory of the session, since the block arrived in several frames.
    Gathered,
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
    trailers: Vec<(Vec<u8>, Vec<u8>)>,
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
        if self.gathering.is_some() && header.kind != Kind::Continuation {
            return Err(Fault::Continuation);
        }
        if header.kind == Kind::Data {
            return self.begin_data(header, input, out);
        }
        let used = FRAME_HEADER_LEN + header.len;
        let Some(payload) = input.get(FRAME_HEADER_LEN..used) else { return Ok(MORE) };
        let event = match header.kind {
            Kind::Headers => self.headers(header, payload)?,
            Kind::Continuation => self.continuation(header, payload)?,
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
            Kind::Settings => is_server || !header.has(ACK),
            Kind::Ping => is_server,
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
}

const MORE: Step = Step { used: 0, event: Event::More };

/// Refuses a stream that depends on itself (RFC 7540 section 5.3.1). Otherwise dependencies are ignored. As in nginx the error ends
/// the connection, because an idle stream cannot be reset. A client ignores dependencies, because the error of one stream would end
/// all requests of the connection.
fn check_dependency(role: Role, stream: u32, priority: &[u8]) -> Result<(), Fault> {
    let parent = frame::number(priority).map(|number| number & WINDOW_MAX);
    if role == Role::Server && parent == Some(stream) { Err(Fault::Dependency) } else { Ok(()) }
}

/// Header sections.
impl<T> Session<T> {
    /// Handles HEADERS (RFC 9113 section 6.2).
    fn headers(&mut self, header: FrameHeader, payload: &[u8]) -> Result<Event, Fault> {
        if header.stream == 0 {
            return Err(Fault::WrongStream);
        }
        let (mut start, mut end) = (0, payload.len());
        if header.has(PADDED) {
            let padding = usize::from(*payload.first().ok_or(Fault::FrameLength)?);
            start = 1;
            end = end.checked_sub(padding).filter(|&end| end >= start).ok_or(Fault::Padding)?;
        }
        if header.has(frame::PRIORITY) {
            start += 5;
            if start > end {
                return Err(Fault::FrameLength);
            }
            check_dependency(self.role, header.stream, &payload[start - 5..start])?;
        }
        let ends = header.has(END_STREAM);
        if header.has(END_HEADERS) {
            let block = Block::Input(FRAME_HEADER_LEN + start, FRAME_HEADER_LEN + end);
            return Ok(Event::Head { stream: header.stream, ends, block });
        }
        self.block.clear();
        self.block.extend_from_slice(&payload[start..end]);
        self.gathering = Some(Gathering { stream: header.stream, ends, fragments: 1 });
        Ok(Event::Nothing)
    }

    /// Handles CONTINUATION (RFC 9113 section 6.10).
    fn continuation(&mut self, header: FrameHeader, payload: &[u8]) -> Result<Event, Fault> {
        let Some(gathering) = &mut self.gathering else { return Err(Fault::Continuation) };
        if header.stream != gathering.stream {
            return Err(Fault::Continuation);
        }
        self.block.extend_from_slice(payload);
        gathering.fragments += 1;
        let most = (self.limits.head_max as usize * 2).max(BLOCK_MIN);
        if self.block.len() > most || gathering.fragments > FRAGMENTS_MAX + self.block.len() / 1024 {
            return Err(Fault::HeadTooLarge);
        }
        if !header.has(END_HEADERS) {
            return Ok(Event::Nothing);
        }
        let (stream, ends) = (gathering.stream, gathering.ends);
        self.gathering = None;
        Ok(Event::Head { stream, ends, block: Block::Gathered })
    }

    /// Handles a complete header block: of a request, of trailers, or of a stream that is ignored.
    fn head(
        &mut self,
        id: u32,
        ends: bool,
        block: Block,
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Event, Fault> {
        if let Some(stream) = self.streams.get(id) {
            return match stream.state {
                // A client sends no header section after its RST_STREAM (RFC 9113 section 5.1).
                StreamState::Closed(End::ResetByPeer) if self.role == Role::Server => {
                    Err(Fault::ClosedStream)
                }
                StreamState::Closed(End::Reset | End::ResetByPeer) => {
                    self.skip_block(block, input).map(|()| Event::Nothing)
                }
                StreamState::HalfClosedRemote | StreamState::Closed(End::Done) => {
                    self.skip_block(block, input)?;
                    self.reset_for(id, StreamFault::HalfClosed, out)
                }
                _ if self.role == Role::Client => self.reply(id, ends, block, input, out),
                _ if stream.is_tunnel => {
                    self.skip_block(block, input)?;
                    self.reset_for(id, StreamFault::Trailers, out)
                }
                StreamState::Open | StreamState::HalfClosedLocal => {
                    self.trailers(id, ends, block, input, out)
                }
            };
        }
        if id.is_multiple_of(2) {
            return Err(Fault::StreamNumber);
        }
        if id <= self.streams.last || self.role == Role::Client {
            return match self.streams.end_of(id) {
                Some(End::Reset) => self.late_head((id, ends), block, input, out).map(|()| Event::Nothing),
                Some(End::ResetByPeer) if self.role == Role::Client => {
                    self.skip_block(block, input).map(|()| Event::Nothing)
                }
                Some(End::Done | End::ResetByPeer) => Err(Fault::ClosedStream),
                None if self.role == Role::Client && id <= self.streams.last => {
                    self.skip_block(block, input).map(|()| Event::Nothing)
                }
                None => Err(Fault::StreamNumber),
            };
        }
        self.streams.last = id;
        if self.last_served.is_some_and(|last| id > last) {
            self.skip_block(block, input)?;
            self.streams.note_end(id, End::Reset);
            return Ok(Event::Nothing);
        }
        // A stream that either end has reset is closed, although its work may not have ended (RFC 9113 section 5.1.2).
        if self.streams.are_full(self.limits.streams_max) {
            self.skip_block(block, input)?;
            self.streams.note_end(id, End::Reset);
            frame::push_reset(out, id, StreamFault::TooMany.code());
            self.refused += 1;
            self.spend_for_fault()?;
            return Ok(Event::Nothing);
        }
        Ok(Event::Head { stream: id, ends, block })
    }

    /// Handles a header block of a response: its head, an interim head, or its trailers.
    fn reply(
        &mut self,
        id: u32,
        ends: bool,
        block: Block,
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Event, Fault> {
        if let Some(stream) = self.streams.get_mut(id).filter(|_| ends) {
            if stream.left.is_some_and(|left| left > 0) {
                self.skip_block(block, input)?;
                return self.reset_for(id, StreamFault::Length, out);
            }
            stream.state.end_receiving();
        }
        Ok(Event::Head { stream: id, ends, block })
    }

    /// Decodes a header block, and passes its fields to `field`.
    ///
    /// # Errors
    /// The block is invalid.
    pub fn decode(
        &mut self,
        block: Block,
        input: &[u8],
        field: impl FnMut(&[u8], &[u8]),
    ) -> Result<(), Fault> {
        let bytes = match block {
            Block::Input(start, end) => input.get(start..end).unwrap_or_default(),
            Block::Gathered => &self.block,
        };
        let decoded = self.decoder.decode(bytes, field).map_err(Fault::Hpack);
        if block == Block::Gathered {
            self.block = Vec::new();
        }
        decoded
    }

    /// Returns the number of bytes of a block, before [`Session::decode`].
    #[must_use]
    pub fn block_len(&self, block: Block) -> usize {
        match block {
            Block::Input(start, end) => end - start,
            Block::Gathered => self.block.len(),
        }
    }

    /// Takes the names of the never-indexed fields of the last block (RFC 7541 section 7.1.3), if the block has any.
    pub fn take_never_indexed(&mut self) -> Option<Box<NeverIndexed>> {
        self.decoder.take_never_indexed()
    }

    /// Decodes a block that is ignored, to update the HPACK table.
    fn skip_block(&mut self, block: Block, input: &[u8]) -> Result<(), Fault> {
        self.spend()?;
        self.decode(block, input, |_, _| ())
    }

    /// Opens a stream after its header section was decoded. `length` is the length of its body, if announced.
    pub fn open(&mut self, id: u32, ends: bool, length: Option<u64>, user: T) {
        self.insert(id, !ends, length, user);
    }

    /// Marks a stream as a tunnel of another protocol, on which no further header section is allowed (RFC 9113 section 8.5).
    pub fn tunnel(&mut self, id: u32) {
        if let Some(stream) = self.streams.get_mut(id) {
            stream.is_tunnel = true;
        }
    }

    /// Marks the complete request of a stream as malformed: its response ends with the error code of [`Session::reset`] (RFC 9113
    /// section 8.1.1). After END_STREAM of both ends no RST_STREAM may be sent, so the response has no END_STREAM.
    pub fn mark_malformed(&mut self, id: u32) {
        if let Some(stream) = self.streams.get_mut(id) {
            stream.is_malformed = true;
        }
    }

    /// Whether a stream is a tunnel of another protocol.
    #[must_use]
    pub fn is_tunnel(&self, id: u32) -> bool {
        self.streams.get(id).is_some_and(|stream| stream.is_tunnel)
    }

    /// Whether the server allows another stream, and a stream number is available.
    #[must_use]
    pub fn may_open(&self) -> bool {
        self.streams.len() < self.peer.streams_max as usize && self.streams.last < WINDOW_MAX - 1
    }

    /// Returns the maximum number of open streams that the server permits.
    #[must_use]
    pub fn streams_max(&self) -> usize {
        self.peer.streams_max as usize
    }

    /// Opens a stream for a request, before any of it is sent; requires [`Session::may_open`].
    pub fn open_next(&mut self, user: T) -> u32 {
        let id = if self.streams.last == 0 { 1 } else { self.streams.last + 2 };
        self.streams.last = id;
        self.insert(id, true, None, user);
        id
    }

    /// Sets the length of a response's body.
    pub fn expect(&mut self, id: u32, length: u64) {
        if let Some(stream) = self.streams.get_mut(id) {
            stream.left = Some(length);
        }
    }

    /// Returns the number of bytes that the peer may send at the start of a body.
    #[must_use]
    pub fn first_window(&self) -> u32 {
        let initial = self.limits.initial_window;
        // Until the settings are acknowledged, the peer may use the default window (RFC 9113 section 6.5.3).
        if self.is_acknowledged { initial } else { initial.max(WINDOW_DEFAULT) }
    }

    fn insert(&mut self, id: u32, receives: bool, length: Option<u64>, user: T) {
        let (initial, window) = (self.limits.initial_window, self.first_window());
        self.streams.insert(Stream {
            id,
            state: if receives { StreamState::Open } else { StreamState::HalfClosedRemote },
            is_held: false,
            has_head: false,
            is_tunnel: false,
            is_malformed: false,
            receive_window: i64::from(window),
            taken: 0,
            receive_limit: initial,
            has_begun: false,
            is_long: false,
            round: (0, 0, false),
            send_window: i64::from(self.peer.initial_window),
            left: length,
            user,
        });
    }

    /// Handles a header section after a body (RFC 9113 section 8.1): it must end the request, and must have no pseudo-header fields.
    /// Its maximum length is the same as in HTTP/1.
    fn trailers(
        &mut self,
        id: u32,
        ends: bool,
        block: Block,
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Event, Fault> {
        let (mut is_good, mut bytes, mut fields) = (ends, 0, Vec::new());
        self.decode(block, input, |name, value| {
            bytes += name.len() + value.len();
            is_good &= super::head::is_trailer(name, value) && bytes <= TRAILER_LEN_MAX as usize;
            if is_good && may_be_trailer(HeaderId::of(name)) {
                fields.push((name.to_vec(), value.to_vec()));
            }
        })?;
        let is_short = self.streams.get(id).and_then(|stream| stream.left).is_some_and(|left| left > 0);
        if !is_good || is_short {
            let fault = if is_good { StreamFault::Length } else { StreamFault::Trailers };
            return self.reset_for(id, fault, out);
        }
        if let Some(stream) = self.streams.get_mut(id) {
            stream.state.end_receiving();
        }
        self.trailers = fields;
        Ok(Event::Data { stream: id, start: 0, end: 0, ends: true })
    }

    /// Takes the trailers of the request that the last event ended, without those that must not be passed on.
    pub fn take_trailers(&mut self) -> Vec<(Vec<u8>, Vec<u8>)> {
        std::mem::take(&mut self.trailers)
    }

    /// Resets a stream for an error of the peer.
    fn reset_for(&mut self, id: u32, fault: StreamFault, out: &mut Vec<u8>) -> Result<Event, Fault> {
        self.note_provoked(id);
        self.reset(id, fault.code(), out);
        self.spend_for_fault()?;
        Ok(Event::Reset { stream: id, by_peer: false, code: fault.code() as u32 })
    }
}

/// Bodies.
impl<T> Session<T> {
    /// Handles the start of DATA (RFC 9113 section 6.1). The complete payload counts for the windows, including padding (section
    /// 6.9.1).
    fn begin_data(&mut self, header: FrameHeader, input: &[u8], out: &mut Vec<u8>) -> Result<Step, Fault> {
        let id = header.stream;
        if id == 0 {
            return Err(Fault::WrongStream);
        }
        let mut start = FRAME_HEADER_LEN;
        let mut data = Data {
            stream: id,
            left: header.len,
            padding: 0,
            ends: header.has(END_STREAM),
            is_ignored: false,
        };
        if header.has(PADDED) {
            if header.len == 0 {
                return Err(Fault::FrameLength);
            }
            let Some(&padding) = input.get(start) else { return Ok(MORE) };
            start += 1;
            data.padding = padding.into();
            data.left = (header.len - 1).checked_sub(data.padding).ok_or(Fault::Padding)?;
        }
        let is_new = id > self.streams.last || id.is_multiple_of(2);
        if is_new && self.last_served.is_none_or(|last| id <= last) {
            return Err(Fault::IdleStream);
        }
        self.receive_window -= header.len as i64;
        if self.receive_window < 0 {
            return Err(Fault::WindowExceeded);
        }
        match data.left {
            0 if !data.ends => self.spend()?,
            0 => {}
            left => self.note_data(id, left)?,
        }
        if self.opens_itself {
            self.open_connection(self.limits.connection_window, out);
        }
        if let Some(fault) = self.check_data(&mut data, header.len, out)? {
            let event = self.reset_for(id, fault, out)?;
            data.is_ignored = true;
            self.data = Some(data);
            return Ok(Step { used: start, event });
        }
        // The frame contains only padding: the caller will not call `take`, so the padding is returned to the window here.
        if data.left == 0 && !data.is_ignored && !data.ends {
            self.take(id, 0, out);
        }
        Ok(self.receive_data(data, input, start))
    }

    /// Counts a DATA frame against the window of its stream. Returns a fault that ends the stream; sets `data.is_ignored` if the stream
    /// is closed. Frames that a client has queued behind its RST_STREAM do not end its other streams (RFC 9113 section 5.1 permits both).
    fn check_data(
        &mut self,
        data: &mut Data,
        len: usize,
        out: &mut Vec<u8>,
    ) -> Result<Option<StreamFault>, Fault> {
        let Some(stream) = self.streams.get_mut(data.stream) else {
            data.is_ignored = true;
            match self.streams.end_of(data.stream) {
                Some(End::Done) => return Err(Fault::ClosedStream),
                Some(End::ResetByPeer) if self.role == Role::Server => self.spend()?,
                Some(End::Reset) => self.late_data(data.stream, data.left, data.ends, out)?,
                // The client has skipped the stream number, or the stream was closed long ago.
                None if data.stream <= self.streams.last => {
                    self.spend()?;
                    frame::push_reset(out, data.stream, StreamFault::HalfClosed.code());
                    self.streams.note_end(data.stream, End::Reset);
                }
                Some(End::ResetByPeer) | None => {}
            }
            return Ok(None);
        };
        match stream.state {
            StreamState::Open | StreamState::HalfClosedLocal => {}
            StreamState::HalfClosedRemote | StreamState::Closed(End::Done) => {
                return Ok(Some(StreamFault::HalfClosed));
            }
            StreamState::Closed(end) => {
                data.is_ignored = true;
                if end == End::ResetByPeer && self.role == Role::Server {
                    self.spend()?;
                }
                return Ok(None);
            }
        }
        stream.has_begun = true;
        stream.receive_window -= len as i64;
        super::flow::measure(&mut self.round, stream, len as u32, out);
        if stream.receive_window < 0 {
            return Ok(Some(StreamFault::WindowExceeded));
        }
        // The caller does not count padding.
        stream.taken += (len - data.left) as u32;
        if let Some(left) = &mut stream.left {
            match left.checked_sub(data.left as u64) {
                Some(rest) if rest == 0 || !data.ends => *left = rest,
                _ => return Ok(Some(StreamFault::Length)),
            }
        }
        Ok(None)
    }

    /// Returns the available bytes of a frame from `start` on, and skips padding.
    fn receive_data(&mut self, mut data: Data, input: &[u8], start: usize) -> Step {
        let here = input.len().saturating_sub(start);
        let count = data.left.min(here);
        let padding = data.padding.min(here - count);
        data.left -= count;
        data.padding -= padding;
        let is_done = data.left == 0 && data.padding == 0;
        let used = start + count + padding;
        self.data = (!is_done).then_some(data);
        let ends = data.ends && is_done;
        if ends
            && !data.is_ignored
            && let Some(stream) = self.streams.get_mut(data.stream)
        {
            stream.state.end_receiving();
        }
        let event = match data.is_ignored || count == 0 && !ends {
            true if used == 0 && !is_done => Event::More,
            true => Event::Nothing,
            false => Event::Data { stream: data.stream, start, end: start + count, ends },
        };
        Step { used, event }
    }
}

/// Control frames of the connection and its streams.
impl<T> Session<T> {
    fn control(&mut self, header: FrameHeader, payload: &[u8], out: &mut Vec<u8>) -> Result<Event, Fault> {
        self.spend()?;
        self.has_settings = true;
        let is_of_stream = header.stream != 0;
        match header.kind {
            Kind::Priority | Kind::ResetStream if !is_of_stream => return Err(Fault::WrongStream),
            Kind::Settings | Kind::Ping | Kind::GoAway | Kind::PriorityUpdate if is_of_stream => {
                return Err(Fault::WrongStream);
            }
            _ => {}
        }
        match header.kind {
            Kind::Priority if payload.len() == 5 => {
                check_dependency(self.role, header.stream, payload).map(|()| Event::Nothing)
            }
            Kind::Priority => self.wrong_priority(header.stream, out),
            Kind::ResetStream => self.reset_by_peer(header.stream, payload),
            Kind::Settings => self.settings(header, payload, out),
            Kind::PushPromise => Err(Fault::PushPromise),
            Kind::Ping => self.pinged(header, payload, out),
            Kind::GoAway => match (frame::number(payload), payload.get(4..).and_then(frame::number)) {
                (Some(last), Some(code)) => Ok(Event::GoAway { last: last & WINDOW_MAX, code }),
                _ => Err(Fault::FrameLength),
            },
            Kind::WindowUpdate => self.window_update(header.stream, payload, out),
            Kind::PriorityUpdate => self.priority_update(payload),
            Kind::Data | Kind::Headers | Kind::Continuation | Kind::Unknown => Ok(Event::Nothing),
        }
    }

    /// Handles a PRIORITY frame whose length is not five bytes, which is a stream error (RFC 9113 section 6.3).
    fn wrong_priority(&mut self, id: u32, out: &mut Vec<u8>) -> Result<Event, Fault> {
        match self.streams.get(id) {
            Some(stream) if !stream.state.is_reset() => self.reset_for(id, StreamFault::FrameLength, out),
            Some(_) => Ok(Event::Nothing),
            None if id > self.streams.last => Err(Fault::FrameLength),
            None => self.report_late(id, StreamFault::FrameLength, out).map(|()| Event::Nothing),
        }
    }

    /// Handles RST_STREAM (RFC 9113 section 6.4). It no longer counts, but remains until its work is done.
    fn reset_by_peer(&mut self, id: u32, payload: &[u8]) -> Result<Event, Fault> {
        let code = frame::number(payload).filter(|_| payload.len() == 4).ok_or(Fault::FrameLength)?;
        let Some(stream) = self.streams.get_mut(id) else {
            self.late.remove(id);
            return self.about_no_stream(id);
        };
        if stream.state.is_reset() {
            return Ok(Event::Nothing);
        }
        let progress = stream.progress();
        stream.state = StreamState::Closed(End::ResetByPeer);
        self.note_cancelled(progress)?;
        Ok(Event::Reset { stream: id, by_peer: true, code })
    }

    /// Handles a late frame of a stream that does not exist.
    fn about_no_stream(&self, id: u32) -> Result<Event, Fault> {
        let is_idle = id > self.streams.last || id.is_multiple_of(2);
        if is_idle { Err(Fault::IdleStream) } else { Ok(Event::Nothing) }
    }

    /// Handles SETTINGS (RFC 9113 section 6.5).
    fn settings(&mut self, header: FrameHeader, payload: &[u8], out: &mut Vec<u8>) -> Result<Event, Fault> {
        if header.has(ACK) {
            self.is_acknowledged = true;
            return if payload.is_empty() { Ok(Event::Nothing) } else { Err(Fault::FrameLength) };
        }
        let before = self.peer;
        let smallest_table = self.peer.read(payload, self.role == Role::Client)?;
        self.encoder.set_limit(smallest_table);
        self.encoder.set_limit(self.peer.table_bytes);
        frame::push(out, Kind::Settings, ACK, 0, &[]);
        let change = i64::from(self.peer.initial_window) - i64::from(before.initial_window);
        if change == 0 {
            return Ok(Event::Nothing);
        }
        // RFC 9113 section 6.9.2.
        let fits = self.streams.iter_mut().all(|stream| stream.widen(change));
        if fits { Ok(Event::Window { stream: 0 }) } else { Err(Fault::WindowTooLarge) }
    }

    /// Handles PING (RFC 9113 section 6.7).
    fn pinged(&mut self, header: FrameHeader, payload: &[u8], out: &mut Vec<u8>) -> Result<Event, Fault> {
        if payload.len() != 8 {
            return Err(Fault::FrameLength);
        }
        if header.has(ACK) {
            return Ok(if self.round.ends(payload) { Event::Round } else { Event::Pong });
        }
        frame::push(out, Kind::Ping, ACK, 0, payload);
        Ok(Event::Nothing)
    }

    /// Handles WINDOW_UPDATE (RFC 9113 section 6.9).
    fn window_update(&mut self, id: u32, payload: &[u8], out: &mut Vec<u8>) -> Result<Event, Fault> {
        if payload.len() != 4 {
            return Err(Fault::FrameLength);
        }
        let bytes = frame::number(payload).unwrap_or_default() & WINDOW_MAX;
        if id == 0 {
            if bytes == 0 {
                return Err(Fault::ZeroIncrement);
            }
            self.send_window += i64::from(bytes);
            return match self.send_window > i64::from(WINDOW_MAX) {
                true => Err(Fault::WindowTooLarge),
                false => Ok(Event::Window { stream: 0 }),
            };
        }
        let Some(stream) = self.streams.get_mut(id) else {
            self.late_window(id, bytes, out)?;
            // The stream has ended, so it cannot be reset: the error is one of the connection (RFC 9113 section 5.4.2). A client
            // ignores it, because it would end all requests of the connection.
            return match bytes == 0 && self.role == Role::Server {
                true => Err(Fault::ZeroIncrement),
                false => self.about_no_stream(id),
            };
        };
        if stream.state.is_reset() {
            return Ok(Event::Nothing);
        }
        if bytes == 0 {
            return self.reset_for(id, StreamFault::ZeroIncrement, out);
        }
        match stream.widen(i64::from(bytes)) {
            true => Ok(Event::Window { stream: id }),
            false => self.reset_for(id, StreamFault::WindowTooLarge, out),
        }
    }

    /// Handles PRIORITY_UPDATE (RFC 9218 section 7.1). The priority of a stream that is not open yet is stored.
    fn priority_update(&mut self, payload: &[u8]) -> Result<Event, Fault> {
        let (Some(id), Some(text)) = (frame::number(payload), payload.get(4..)) else {
            return Err(Fault::FrameLength);
        };
        let (id, priority) = (id & WINDOW_MAX, Priority::read(text));
        match id {
            0 => return Err(Fault::WrongStream),
            // Only clients send the frame, and no stream is pushed.
            _ if self.role == Role::Client || id.is_multiple_of(2) => return Err(Fault::PriorityUpdate),
            _ if self.streams.get(id).is_some() => return Ok(Event::Priority { stream: id, priority }),
            _ if id <= self.streams.last => return Ok(Event::Nothing),
            _ => {}
        }
        let last = self.streams.last;
        self.updates.retain(|(other, _)| *other > last && *other != id);
        let active =
            self.streams.iter().filter(|stream| !matches!(stream.state, StreamState::Closed(_))).count();
        if active + self.updates.len() < self.limits.streams_max as usize {
            self.updates.push((id, priority));
        } else if self.is_acknowledged {
            return Err(Fault::PriorityUpdate);
        }
        Ok(Event::Nothing)
    }

    /// Takes the priority that was received before its stream was opened.
    pub fn take_update(&mut self, id: u32) -> Option<Priority> {
        let index = self.updates.iter().position(|(other, _)| *other == id)?;
        Some(self.updates.swap_remove(index).1)
    }

    /// Ends the connection with an error: required frames are appended to `out`.
    pub fn fail(&mut self, fault: Fault, out: &mut Vec<u8>) {
        // A server opens no streams, so a client announces 0. The announced stream must not increase (RFC 9113 section 6.8).
        let last = if self.role == Role::Client { 0 } else { self.streams.last };
        let last = self.last_served.map_or(last, |served| last.min(served));
        self.send_goaway(last, fault.code(), out);
    }

    /// Sends a PING to check whether the peer responds; [`Event::Pong`] is the acknowledgement.
    pub fn ping(&mut self, out: &mut Vec<u8>) {
        frame::push(out, Kind::Ping, 0, 0, &[0; 8]);
    }

    /// Sends GOAWAY with the last served stream (RFC 9113 section 6.8).
    pub fn send_goaway(&mut self, last: u32, code: ErrorCode, out: &mut Vec<u8>) {
        frame::push_go_away(out, last, code);
    }
}

#[cfg(test)]
impl<T> Session<T> {
    pub(super) fn receive_window_for_test(&mut self, bytes: i64) {
        (self.receive_window, self.opens_itself) = (bytes, false);
    }

    pub(super) fn held_for_test(&self) -> usize {
        self.block.len()
    }
}
