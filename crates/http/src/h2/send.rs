//! Frames that an end sends on its own initiative: heads, bodies, resets, and GOAWAY.
//!
//! Each method appends frames to `out` in the order of its calls. They must be sent in this order, because the table of
//! [`hpack`](super::hpack) depends on it.

use super::error::ErrorCode;
use super::frame::{self, END_HEADERS, END_STREAM, FRAME_HEADER_LEN, FrameHeader, FrameType, PAYLOAD_MAX};
use super::session::{Role, Session};
use super::settings::WINDOW_MAX;
use super::stream::{End, StreamState};

/// Number of frames credited for DATA: receivers send WINDOW_UPDATE for stream and connection after each, and grpc-go also PING.
const CREDIT_FOR_DATA: u32 = 3;

/// Minimum payload in bytes that earns [`CREDIT_FOR_DATA`] if a window has limited the frame: a peer could open windows of one
/// byte to receive frames of one byte. A frame that leaves the windows open earns the credit with any payload, because the body
/// had no more bytes, as in short gRPC messages. Each frame of a client earns it, because servers respond to each with
/// WINDOW_UPDATE.
const DATA_MIN: usize = 128;

impl<T> Session<T> {
    /// Appends a header section, from a block of [`push_status`](super::hpack::push_status) and
    /// [`push_field`](super::hpack::push_field). Returns the number of bytes appended; 0 if the stream has ended.
    pub fn push_head(&mut self, id: u32, block: &[u8], ends: bool, out: &mut Vec<u8>) -> usize {
        let Some(stream) = self.streams.get_mut(id).filter(|stream| stream.state.sends()) else { return 0 };
        stream.has_head = true;
        if ends {
            stream.state.end_sending();
        }
        let before = out.len();
        let end_stream = if ends && !stream.is_malformed { END_STREAM } else { 0 };
        out.extend_from_slice(&[0; FRAME_HEADER_LEN]);
        self.encoder.compress(block, out);
        let len = out.len() - before - FRAME_HEADER_LEN;
        if len <= PAYLOAD_MAX {
            let flags = END_HEADERS | end_stream;
            let header = FrameHeader { len, kind: FrameType::Headers, flags, stream: id };
            out[before..before + FRAME_HEADER_LEN].copy_from_slice(&header.bytes());
        } else {
            let whole = out.split_off(before + FRAME_HEADER_LEN);
            out.truncate(before);
            push_fragments(id, &whole, end_stream, out);
        }
        if ends {
            self.calm.note_message();
        }
        out.len() - before
    }

    /// Appends the header section of an interim response.
    pub fn push_interim(&mut self, id: u32, block: &[u8], out: &mut Vec<u8>) {
        self.push_head(id, block, false, out);
        self.streams.get_mut(id).into_iter().for_each(|stream| stream.has_head = false);
    }

    /// Returns the number of DATA bytes that may be sent on a stream now.
    #[must_use]
    pub fn sendable(&self, id: u32) -> usize {
        let Some(stream) = self.streams.get(id).filter(|stream| stream.state.sends()) else { return 0 };
        usize::try_from(stream.send_window.min(self.send_window)).unwrap_or(0)
    }

    /// Returns the number of bytes that the window of a stream alone permits.
    #[must_use]
    pub fn window(&self, id: u32) -> usize {
        let stream = self.streams.get(id).filter(|stream| stream.state.sends());
        stream.map_or(0, |stream| usize::try_from(stream.send_window).unwrap_or(0))
    }

    /// Whether the window of the connection is closed, so that no stream can send data.
    #[must_use]
    pub fn is_closed_for_all(&self) -> bool {
        self.send_window <= 0
    }

    /// Returns the maximum payload of DATA in bytes.
    #[must_use]
    pub fn payload_max(&self) -> usize {
        self.peer.payload_max
    }

    /// Whether frames, possibly only the end, may be sent on a stream.
    #[must_use]
    pub fn sends(&self, id: u32) -> bool {
        self.streams.get(id).is_some_and(|stream| stream.state.sends())
    }

    /// Appends the frame header before `len` bytes of a body, which the caller appends; at most [`Session::sendable`].
    pub fn push_data(&mut self, id: u32, len: usize, ends: bool, out: &mut Vec<u8>) {
        let Some(stream) = self.streams.get_mut(id) else { return };
        stream.send_window -= len as i64;
        self.send_window -= len as i64;
        if ends {
            stream.state.end_sending();
        }
        let is_limited = stream.send_window <= 0 || self.send_window <= 0;
        let flags = if ends && !stream.is_malformed { END_STREAM } else { 0 };
        FrameHeader { len, kind: FrameType::Data, flags, stream: id }.push(out);
        if len >= DATA_MIN || len > 0 && !is_limited || self.role == Role::Client {
            self.calm.pay_back(CREDIT_FOR_DATA);
        }
        if ends {
            self.calm.note_message();
        }
    }

    /// Resets a stream, unless it has ended.
    pub fn reset(&mut self, id: u32, code: ErrorCode, out: &mut Vec<u8>) {
        let Some(stream) = self.streams.get_mut(id).filter(|stream| !stream.state.is_reset()) else { return };
        let is_over = stream.state == StreamState::Closed(End::Done) && !stream.is_malformed;
        stream.state = StreamState::Closed(End::Reset);
        if !is_over {
            frame::push_reset(out, id, code);
        }
    }

    /// Ends a stream whose work is done, so that it no longer counts. If the client still sends a body, RST_STREAM with NO_ERROR
    /// asks it to stop (RFC 9113 section 8.1); a stream whose response is incomplete is reset. As a client, cancels a response
    /// that is no longer needed.
    pub fn release(&mut self, id: u32, out: &mut Vec<u8>) -> Option<T> {
        let stream = self.streams.remove(id)?;
        let (end, code) = match stream.state {
            StreamState::Closed(end) => (end, None),
            _ if self.role == Role::Client => (End::Reset, Some(ErrorCode::Cancel)),
            StreamState::HalfClosedLocal => (End::Reset, Some(ErrorCode::NoError)),
            // RFC 8441 section 5: the connection behind a tunnel was reset.
            _ if stream.is_tunnel => (End::Reset, Some(ErrorCode::Cancel)),
            StreamState::Open | StreamState::HalfClosedRemote => (End::Reset, Some(ErrorCode::Internal)),
        };
        if let Some(code) = code {
            frame::push_reset(out, id, code);
        }
        if code == Some(ErrorCode::NoError) {
            self.late.add(&stream);
        }
        self.streams.note_end(id, end);
        Some(stream.user)
    }

    /// Announces the end of the connection to the client; streams that it opens before it receives this are served.
    pub fn announce_end(&mut self, out: &mut Vec<u8>) {
        self.send_goaway(WINDOW_MAX, ErrorCode::NoError, out);
        frame::push(out, FrameType::Ping, 0, 0, b"goingaway"[..8].as_ref());
    }

    /// Stops accepting streams, and announces the last stream to the client.
    pub fn end(&mut self, out: &mut Vec<u8>) {
        if self.last_served.is_none() {
            self.last_served = Some(self.streams.last);
            self.send_goaway(self.streams.last, ErrorCode::NoError, out);
        }
    }
}

/// Appends a header block that is longer than a frame (RFC 9113 section 6.10).
fn push_fragments(stream: u32, block: &[u8], end_stream: u8, out: &mut Vec<u8>) {
    let (count, mut kind) = (block.len().div_ceil(PAYLOAD_MAX), FrameType::Headers);
    for (index, fragment) in block.chunks(PAYLOAD_MAX).enumerate() {
        let end_stream = if index == 0 { end_stream } else { 0 };
        let flags = end_stream | if index + 1 == count { END_HEADERS } else { 0 };
        frame::push(out, kind, flags, stream, fragment);
        kind = FrameType::Continuation;
    }
}
