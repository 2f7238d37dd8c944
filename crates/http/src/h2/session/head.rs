//! Header sections (RFC 9113 sections 6.2, 6.10 and 8.1), and the streams that they open.

use super::{Block, Event, Gathering, Role, Session};
use crate::h2::error::{Fault, StreamFault};
use crate::h2::frame::{self, END_HEADERS, END_STREAM, FRAME_HEADER_LEN, FrameHeader, PADDED};
use crate::h2::hpack::NeverIndexed;
use crate::h2::settings::{WINDOW_DEFAULT, WINDOW_MAX};
use crate::h2::stream::{End, Stream, StreamState};
use crate::multiplexed::trailers::{TrailerFields, TrailerReader};

/// Maximum number of frames per header block, in addition to one per KiB.
const FRAGMENTS_MAX: usize = 8;

/// Lower bound in bytes of the limit on a header block. A head that is larger than `head_max` but within this limit gets an error
/// response.
const BLOCK_MIN: usize = 64 << 10;

impl<T> Session<T> {
    /// Handles HEADERS (RFC 9113 section 6.2).
    pub(super) fn headers(&mut self, header: FrameHeader, payload: &[u8]) -> Result<Event, Fault> {
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
    pub(super) fn continuation(&mut self, header: FrameHeader, payload: &[u8]) -> Result<Event, Fault> {
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
    pub(super) fn head(
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
                _ if self.role == Role::Client => self.response(id, ends, block, input, out),
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
    fn response(
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
    fn trailers(
        &mut self,
        id: u32,
        ends: bool,
        block: Block,
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Event, Fault> {
        let mut reader = TrailerReader::default();
        self.decode(block, input, |name, value| reader.field(name, value))?;
        let is_short = self.streams.get(id).and_then(|stream| stream.left).is_some_and(|left| left > 0);
        let Some(fields) = reader.finish().filter(|_| ends) else {
            return self.reset_for(id, StreamFault::Trailers, out);
        };
        if is_short {
            return self.reset_for(id, StreamFault::Length, out);
        }
        if let Some(stream) = self.streams.get_mut(id) {
            stream.state.end_receiving();
        }
        self.trailers = fields;
        Ok(Event::Data { stream: id, start: 0, end: 0, ends: true })
    }

    /// Takes the trailers of the request that the last event ended, without those that must not be passed on.
    pub fn take_trailers(&mut self) -> TrailerFields {
        std::mem::take(&mut self.trailers)
    }
}

/// Refuses a stream that depends on itself (RFC 7540 section 5.3.1). Otherwise dependencies are ignored. As in nginx the error ends
/// the connection, because an idle stream cannot be reset. A client ignores dependencies, because the error of one stream would end
/// all requests of the connection.
pub(super) fn check_dependency(role: Role, stream: u32, priority: &[u8]) -> Result<(), Fault> {
    let parent = frame::number(priority).map(|number| number & WINDOW_MAX);
    if role == Role::Server && parent == Some(stream) { Err(Fault::Dependency) } else { Ok(()) }
}
