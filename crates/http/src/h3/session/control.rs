//! Unidirectional streams of the peer (RFC 9114 section 6.2): the control stream (section 7.2) and the QPACK streams (RFC 9204 section
//! 4.2). Streams of unknown types are ignored.

use super::{Http3Output, Http3Session};
use crate::h3::error::Http3Fault;
use crate::h3::frame::{FrameStart, kind, push_varint, read_varint, stream_type};
use crate::h3::settings::Http3Settings;
use crate::multiplexed::Priority;
use crate::multiplexed::coding::long_integer;

/// A received event of a unidirectional stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UniEvent {
    /// All input was used, and more is needed.
    More,
    /// The stream has an unknown type: its caller stops it with H3_STREAM_CREATION_ERROR, and passes no more of its bytes.
    Ignored,
    /// The settings of the peer have arrived.
    Settings,
    /// The peer sent GOAWAY. A client opens no more streams, and those from `id` on are not processed.
    GoAway {
        /// Identifier of a stream or, from a client, of a push.
        id: u64,
    },
    /// The priority of a response has changed (RFC 9218 section 7.2).
    Priority {
        /// The stream, which was opened.
        stream: u64,
        /// Its priority.
        priority: Priority,
    },
    /// Streams that wait for entries of the QPACK table may continue:
    /// [`Http3Session::take_unblocked`](super::Http3Session::take_unblocked) returns them.
    Unblocked,
}

/// Result of one call of [`Http3Session::receive_uni`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UniStep {
    /// Number of input bytes processed.
    pub used: usize,
    /// The event.
    pub event: UniEvent,
}

/// The peer's control stream.
#[derive(Debug)]
pub(super) struct ControlStream {
    id: u64,
    start: FrameStart,
    frame: ControlFrame,
    /// The incomplete payload of a frame.
    payload: Vec<u8>,
}

/// The frame whose payload is incomplete.
#[derive(Clone, Copy, Debug)]
enum ControlFrame {
    None,
    /// A frame with its type and the length of its payload.
    Known {
        kind: u64,
        len: usize,
    },
    /// An ignored frame with the number of missing bytes.
    Ignored(u64),
}

/// The peer's QPACK decoder stream, with an incomplete instruction.
#[derive(Debug)]
pub(super) struct DecoderStream {
    id: u64,
    incomplete: Vec<u8>,
}

/// Maximum length in bytes of the payload of a control frame. SETTINGS and PRIORITY_UPDATE are the longest, with less than 1 KiB in
/// practice.
const PAYLOAD_MAX: u64 = 4 << 10;

impl Http3Session {
    /// Processes bytes of a unidirectional stream that the peer has opened. Required bytes are appended to `out`.
    ///
    /// # Errors
    /// The connection must end.
    pub fn receive_uni(
        &mut self,
        id: u64,
        input: &[u8],
        out: &mut Http3Output,
    ) -> Result<UniStep, Http3Fault> {
        let is_typed = self.control.as_ref().is_some_and(|control| control.id == id)
            || self.encoder_stream == Some(id)
            || self.decoder_stream.as_ref().is_some_and(|decoder| decoder.id == id);
        let mut used = 0;
        if !is_typed {
            let (read, stream_type) = self.read_type(id, input);
            let Some(stream_type) = stream_type else { return Ok(more(read)) };
            if !self.open_uni(id, stream_type)? {
                return Ok(UniStep { used: input.len(), event: UniEvent::Ignored });
            }
            used = read;
        }
        let rest = &input[used..];
        let step = if self.encoder_stream == Some(id) {
            self.receive_inserts(rest, out)?
        } else if self.decoder_stream.as_ref().is_some_and(|decoder| decoder.id == id) {
            self.receive_acknowledgements(rest)?
        } else {
            self.receive_control(rest)?
        };
        Ok(UniStep { used: used + step.used, event: step.event })
    }

    /// Reads the type of a new stream.
    fn read_type(&mut self, id: u64, input: &[u8]) -> (usize, Option<u64>) {
        let index = match self.untyped.iter().position(|(other, _)| *other == id) {
            Some(index) => index,
            None => {
                self.untyped.push((id, FrameStart::default()));
                self.untyped.len() - 1
            }
        };
        let (used, stream_type) = self.untyped[index].1.read_type(input);
        if stream_type.is_some() {
            self.untyped.swap_remove(index);
        }
        (used, stream_type)
    }

    /// Begins a stream; returns whether its type is known.
    fn open_uni(&mut self, id: u64, stream_type: u64) -> Result<bool, Http3Fault> {
        let is_new = match stream_type {
            stream_type::CONTROL => {
                let control = ControlStream {
                    id,
                    start: FrameStart::default(),
                    frame: ControlFrame::None,
                    payload: Vec::new(),
                };
                self.control.replace(control).is_none()
            }
            stream_type::ENCODER => self.encoder_stream.replace(id).is_none(),
            stream_type::DECODER => {
                let decoder = DecoderStream { id, incomplete: Vec::new() };
                self.decoder_stream.replace(decoder).is_none()
            }
            // RFC 9114 section 6.2.2: clients do not push; without MAX_PUSH_ID servers may not either (section 4.6).
            stream_type::PUSH if self.is_server => return Err(Http3Fault::WrongStreamType),
            stream_type::PUSH => return Err(Http3Fault::Push),
            _ => {
                self.calm.spend(1)?;
                return Ok(false);
            }
        };
        if is_new { Ok(true) } else { Err(Http3Fault::DuplicateStream) }
    }

    /// Handles the end of a unidirectional stream of the peer, by FIN or RESET_STREAM.
    ///
    /// # Errors
    /// The stream must not end (RFC 9114 section 6.2.1, RFC 9204 section 4.2).
    pub fn end_uni(&mut self, id: u64) -> Result<(), Http3Fault> {
        let is_critical = self.control.as_ref().is_some_and(|control| control.id == id)
            || self.encoder_stream == Some(id)
            || self.decoder_stream.as_ref().is_some_and(|decoder| decoder.id == id);
        if is_critical {
            return Err(Http3Fault::ClosedCriticalStream);
        }
        // A stream may end before its type (RFC 9114 section 6.2).
        let before = self.untyped.len();
        self.untyped.retain(|(other, _)| *other != id);
        if self.untyped.len() < before {
            self.calm.spend(1)?;
        }
        Ok(())
    }

    /// Processes the frames of the control stream up to the next event.
    fn receive_control(&mut self, input: &[u8]) -> Result<UniStep, Http3Fault> {
        // The stream is absent while its frame is processed.
        let Some(mut control) = self.control.take() else { return Ok(more(input.len())) };
        let step = self.receive_frames(&mut control, input);
        self.control = Some(control);
        step
    }

    fn receive_frames(&mut self, control: &mut ControlStream, input: &[u8]) -> Result<UniStep, Http3Fault> {
        let mut at = 0;
        loop {
            match &mut control.frame {
                ControlFrame::None => {
                    let (used, start) = control.start.read(&input[at..]);
                    at += used;
                    let Some((kind, len)) = start else { return Ok(more(at)) };
                    control.frame = self.begin_frame(kind, len)?;
                }
                ControlFrame::Ignored(left) => {
                    let count = usize::try_from(*left).unwrap_or(usize::MAX).min(input.len() - at);
                    at += count;
                    *left -= count as u64;
                    if *left > 0 {
                        return Ok(more(at));
                    }
                    control.frame = ControlFrame::None;
                }
                &mut ControlFrame::Known { kind, len } => {
                    let count = (len - control.payload.len()).min(input.len() - at);
                    let bytes = &input[at..at + count];
                    at += count;
                    let event = if count == len {
                        self.control_frame(kind, bytes)?
                    } else {
                        control.payload.extend_from_slice(bytes);
                        if control.payload.len() < len {
                            return Ok(more(at));
                        }
                        let payload = std::mem::take(&mut control.payload);
                        self.control_frame(kind, &payload)?
                    };
                    control.frame = ControlFrame::None;
                    if let Some(event) = event {
                        return Ok(UniStep { used: at, event });
                    }
                }
            }
        }
    }

    /// Checks type and length of a frame of the control stream.
    fn begin_frame(&mut self, kind: u64, len: u64) -> Result<ControlFrame, Http3Fault> {
        // RFC 9114 section 6.2.1.
        if self.peer.is_none() && kind != kind::SETTINGS {
            return Err(Http3Fault::MissingSettings);
        }
        self.calm.spend(1)?;
        match kind {
            kind::SETTINGS if self.peer.is_some() => return Err(Http3Fault::FrameUnexpected),
            kind::SETTINGS | kind::GOAWAY | kind::CANCEL_PUSH => {}
            // RFC 9114 section 7.2.7, RFC 9218 section 7.2: only clients send these.
            kind::MAX_PUSH_ID | kind::PRIORITY_UPDATE | kind::PRIORITY_UPDATE_PUSH if self.is_server => {}
            kind::MAX_PUSH_ID
            | kind::PRIORITY_UPDATE
            | kind::PRIORITY_UPDATE_PUSH
            | kind::DATA
            | kind::HEADERS
            | kind::PUSH_PROMISE => return Err(Http3Fault::FrameUnexpected),
            _ if kind::is_of_http2(kind) => return Err(Http3Fault::FrameUnexpected),
            _ => return Ok(ControlFrame::Ignored(len)),
        }
        let has_one_number = matches!(kind, kind::GOAWAY | kind::CANCEL_PUSH | kind::MAX_PUSH_ID);
        match len {
            0 if has_one_number => Err(Http3Fault::FrameLength),
            9.. if has_one_number => Err(Http3Fault::FrameLength),
            0..=PAYLOAD_MAX => Ok(ControlFrame::Known { kind, len: len as usize }),
            _ => Err(Http3Fault::FrameTooLong),
        }
    }

    /// Handles a complete frame of the control stream.
    fn control_frame(&mut self, kind: u64, payload: &[u8]) -> Result<Option<UniEvent>, Http3Fault> {
        if kind == kind::SETTINGS {
            self.peer = Some(Http3Settings::read(payload)?);
            return Ok(Some(UniEvent::Settings));
        }
        let (id, used) = read_varint(payload).ok_or(Http3Fault::FrameLength)?;
        let rest = &payload[used..];
        match kind {
            kind::PRIORITY_UPDATE => return self.priority_update(id, rest),
            // No push was promised.
            kind::PRIORITY_UPDATE_PUSH => return Err(Http3Fault::PriorityUpdate),
            _ if !rest.is_empty() => return Err(Http3Fault::FrameLength),
            kind::GOAWAY => {
                let is_of_wrong_type = !self.is_server && !id.is_multiple_of(4);
                if is_of_wrong_type || self.goaway_received.is_some_and(|before| id > before) {
                    return Err(Http3Fault::GoAway);
                }
                self.goaway_received = Some(id);
                return Ok(Some(UniEvent::GoAway { id }));
            }
            kind::MAX_PUSH_ID => {
                if self.push_max.is_some_and(|before| id < before) {
                    return Err(Http3Fault::Push);
                }
                self.push_max = Some(id);
            }
            // RFC 9114 section 7.2.3: no push was promised, and none is permitted.
            _ => return Err(Http3Fault::Push),
        }
        Ok(None)
    }

    /// Handles PRIORITY_UPDATE (RFC 9218 section 7.2). The priority of a stream that is not open yet is stored.
    fn priority_update(&mut self, id: u64, text: &[u8]) -> Result<Option<UniEvent>, Http3Fault> {
        // QUIC permits another stream for each that has ended.
        let permitted = self.opened + u64::from(self.limits.streams_max);
        if !id.is_multiple_of(4) || id / 4 >= permitted {
            return Err(Http3Fault::PriorityUpdate);
        }
        let priority = Priority::read(text);
        if id / 4 < self.opened {
            return Ok(Some(UniEvent::Priority { stream: id, priority }));
        }
        let opened = self.opened;
        self.updates.retain(|(other, _)| *other / 4 >= opened && *other != id);
        self.updates.push((id, priority));
        debug_assert!(self.updates.len() <= self.limits.streams_max as usize);
        Ok(None)
    }

    /// Processes bytes of the encoder stream (RFC 9204 section 4.3).
    fn receive_inserts(&mut self, input: &[u8], out: &mut Http3Output) -> Result<UniStep, Http3Fault> {
        let copies = self.decoder.receive(input).map_err(Http3Fault::EncoderStream)?;
        self.calm.spend(i32::try_from(copies).unwrap_or(i32::MAX / 2))?;
        self.write_decoder(out, |decoder, out| decoder.acknowledge_inserts(out));
        let is_unblocked = self.blocked.iter().any(|(_, required)| self.decoder.has(*required));
        let event = if is_unblocked { UniEvent::Unblocked } else { UniEvent::More };
        Ok(UniStep { used: input.len(), event })
    }

    /// Processes bytes of the decoder stream (RFC 9204 section 4.4). The encoder of this end adds no entry, so nothing can be
    /// acknowledged.
    fn receive_acknowledgements(&mut self, input: &[u8]) -> Result<UniStep, Http3Fault> {
        let Some(stream) = &mut self.decoder_stream else { return Ok(more(input.len())) };
        for &byte in input {
            stream.incomplete.push(byte);
            let first = stream.incomplete[0];
            // Section Acknowledgment and Insert Count Increment.
            if first & 0xc0 != 0x40 {
                return Err(Http3Fault::DecoderStream);
            }
            match long_integer(&stream.incomplete, 6) {
                Ok(_) => {
                    stream.incomplete.clear();
                    self.calm.spend(1)?;
                }
                Err(crate::multiplexed::CodingError::Truncated) => {}
                Err(_) => return Err(Http3Fault::DecoderStream),
            }
        }
        Ok(more(input.len()))
    }

    /// Appends instructions to the own decoder stream, after its type.
    pub(super) fn write_decoder(
        &mut self,
        out: &mut Http3Output,
        write: impl FnOnce(&mut crate::h3::qpack::Decoder, &mut Vec<u8>),
    ) {
        let start = out.decoder.len();
        if !self.has_decoder_output {
            push_varint(&mut out.decoder, stream_type::DECODER);
        }
        let before = out.decoder.len();
        write(&mut self.decoder, &mut out.decoder);
        match out.decoder.len() > before {
            true => self.has_decoder_output = true,
            false => out.decoder.truncate(start),
        }
    }
}

/// Returns the step that has used all input.
fn more(used: usize) -> UniStep {
    UniStep { used, event: UniEvent::More }
}
