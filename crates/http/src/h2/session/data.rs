//! Bodies: DATA (RFC 9113 section 6.1).

use super::{Data, Event, MORE, Role, Session, Step};
use crate::h2::error::{Fault, StreamFault};
use crate::h2::flow;
use crate::h2::frame::{self, END_STREAM, FRAME_HEADER_LEN, FrameHeader, PADDED};
use crate::h2::stream::{End, StreamState};

impl<T> Session<T> {
    /// Handles the start of DATA (RFC 9113 section 6.1). The complete payload counts for the windows, including padding (section
    /// 6.9.1).
    pub(super) fn begin_data(
        &mut self,
        header: FrameHeader,
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Step, Fault> {
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
        flow::measure(&mut self.round, stream, len as u32, out);
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
    pub(super) fn receive_data(&mut self, mut data: Data, input: &[u8], start: usize) -> Step {
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
