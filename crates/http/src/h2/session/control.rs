//! Control frames of the connection and its streams (RFC 9113 sections 6.3 to 6.9).

use super::head::check_dependency;
use super::{Event, Role, Session};
use crate::h2::error::{ErrorCode, Fault, StreamFault};
use crate::h2::frame::{self, ACK, FrameHeader, FrameType};
use crate::h2::settings::WINDOW_MAX;
use crate::h2::stream::{End, StreamState};
use crate::multiplexed::Priority;

impl<T> Session<T> {
    pub(super) fn control(
        &mut self,
        header: FrameHeader,
        payload: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Event, Fault> {
        self.spend()?;
        self.has_settings = true;
        let is_of_stream = header.stream != 0;
        match header.kind {
            FrameType::Priority | FrameType::ResetStream if !is_of_stream => return Err(Fault::WrongStream),
            FrameType::Settings | FrameType::Ping | FrameType::GoAway | FrameType::PriorityUpdate
                if is_of_stream =>
            {
                return Err(Fault::WrongStream);
            }
            _ => {}
        }
        match header.kind {
            FrameType::Priority if payload.len() == 5 => {
                check_dependency(self.role, header.stream, payload).map(|()| Event::Nothing)
            }
            FrameType::Priority => self.wrong_priority(header.stream, out),
            FrameType::ResetStream => self.reset_by_peer(header.stream, payload),
            FrameType::Settings => self.settings(header, payload, out),
            FrameType::PushPromise => Err(Fault::PushPromise),
            FrameType::Ping => self.pinged(header, payload, out),
            FrameType::GoAway => match (frame::number(payload), payload.get(4..).and_then(frame::number)) {
                (Some(last), Some(code)) => Ok(Event::GoAway { last: last & WINDOW_MAX, code }),
                _ => Err(Fault::FrameLength),
            },
            FrameType::WindowUpdate => self.window_update(header.stream, payload, out),
            FrameType::PriorityUpdate => self.priority_update(payload),
            FrameType::Data | FrameType::Headers | FrameType::Continuation | FrameType::Unknown => {
                Ok(Event::Nothing)
            }
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
        frame::push(out, FrameType::Settings, ACK, 0, &[]);
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
        frame::push(out, FrameType::Ping, ACK, 0, payload);
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
        frame::push(out, FrameType::Ping, 0, 0, &[0; 8]);
    }

    /// Sends GOAWAY with the last served stream (RFC 9113 section 6.8).
    pub fn send_goaway(&mut self, last: u32, code: ErrorCode, out: &mut Vec<u8>) {
        frame::push_go_away(out, last, code);
    }
}
