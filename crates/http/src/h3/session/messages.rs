//! Header sections, bodies and trailers of request streams, in both directions (RFC 9114 section 4).

use super::{Http3Output, Http3Session};
use crate::h3::error::{Http3Fault, RequestFault, StreamFailure};
use crate::h3::frame::{kind, push_frame_start};
use crate::h3::qpack::{QpackError, STATIC_PREFIX, Section};
use crate::h3::request::{RequestStep, RequestStream};
use crate::multiplexed::trailers::{TrailerFields, TrailerReader};
use crate::multiplexed::{Block, NeverIndexed};

/// Result of decoding a header block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodedSection {
    /// All fields were passed on.
    Fields,
    /// The block waits for entries of the QPACK table: nothing was passed on. The stream must not receive before
    /// [`Http3Session::take_unblocked`] returns it; then [`Block::Gathered`] is its block.
    Blocked,
}

impl Http3Session {
    /// Processes received bytes of a request stream up to the next event.
    ///
    /// # Errors
    /// The connection or the stream must end.
    pub fn receive(
        &mut self,
        stream: &mut RequestStream,
        input: &[u8],
    ) -> Result<RequestStep, StreamFailure> {
        let rules = self.rules();
        stream.receive(input, rules, &mut self.calm)
    }

    /// Handles the end of a request stream: the peer sends no more.
    ///
    /// # Errors
    /// The message is incomplete or malformed.
    pub fn receive_end(&mut self, stream: &mut RequestStream) -> Result<(), StreamFailure> {
        stream.receive_end()
    }

    /// Decodes a header block, and passes its fields to `field`. `input` must be that of the event.
    ///
    /// # Errors
    /// The block is invalid: the connection must end (RFC 9204 section 2.2).
    pub fn decode(
        &mut self,
        stream: &mut RequestStream,
        block: Block,
        input: &[u8],
        out: &mut Http3Output,
        field: impl FnMut(&[u8], &[u8]),
    ) -> Result<DecodedSection, Http3Fault> {
        let bytes = match block {
            Block::Input(start, end) => input.get(start..end).unwrap_or_default(),
            Block::Gathered => &stream.block,
        };
        match self.decoder.decode(bytes, field).map_err(Http3Fault::Decompression)? {
            Section::Complete { required } => {
                if required > 0 {
                    self.write_decoder(out, |decoder, out| {
                        decoder.acknowledge_section(stream.id(), required, out);
                    });
                }
                (stream.block, stream.has_waited) = (Vec::new(), false);
                Ok(DecodedSection::Fields)
            }
            // The peer has evicted entries that a section refers to (RFC 9204 section 2.1.1): its prefix has another meaning now.
            Section::Blocked { .. } if stream.has_waited => {
                Err(Http3Fault::Decompression(QpackError::Prefix))
            }
            Section::Blocked { required } => {
                if self.blocked.len() >= usize::from(self.limits.blocked_max) {
                    return Err(Http3Fault::BlockedStreams);
                }
                if block != Block::Gathered {
                    stream.block = bytes.to_vec();
                }
                stream.has_waited = true;
                self.blocked.push((stream.id(), required));
                Ok(DecodedSection::Blocked)
            }
        }
    }

    /// Decodes a trailer section. Returns its fields without those that must not be passed on; `None` if it waits for entries of the
    /// QPACK table, as [`DecodedSection::Blocked`].
    ///
    /// # Errors
    /// The section is invalid.
    pub fn decode_trailers(
        &mut self,
        stream: &mut RequestStream,
        block: Block,
        input: &[u8],
        out: &mut Http3Output,
    ) -> Result<Option<TrailerFields>, StreamFailure> {
        let mut reader = TrailerReader::default();
        match self.decode(stream, block, input, out, |name, value| reader.field(name, value))? {
            DecodedSection::Blocked => Ok(None),
            DecodedSection::Fields => Ok(Some(reader.finish().ok_or(RequestFault::Trailers)?)),
        }
    }

    /// Takes the number of a stream whose header block can be decoded now.
    pub fn take_unblocked(&mut self) -> Option<u64> {
        let index = self.blocked.iter().position(|(_, required)| self.decoder.has(*required))?;
        Some(self.blocked.swap_remove(index).0)
    }

    /// Takes the names of the never-indexed fields of the last block (RFC 9204 section 7.1.3), if the block has any.
    pub fn take_never_indexed(&mut self) -> Option<Box<NeverIndexed>> {
        self.decoder.take_never_indexed()
    }

    /// Forgets the header section of a stream that is reset, or that this end does not read to its end.
    pub fn abandon(&mut self, stream: &mut RequestStream, out: &mut Http3Output) {
        stream.block = Vec::new();
        self.blocked.retain(|(id, _)| *id != stream.id());
        if !stream.is_received {
            stream.is_received = true;
            self.write_decoder(out, |decoder, out| decoder.cancel_stream(stream.id(), out));
        }
    }

    /// Appends a header section to the bytes of a request stream, from a block of the functions of [`qpack`](crate::h3::qpack). Returns
    /// the number of bytes appended.
    pub fn push_head(&mut self, stream: &mut RequestStream, block: &[u8], out: &mut Vec<u8>) -> usize {
        stream.has_head = true;
        push_section(block, out)
    }

    /// Appends the header section of an interim response.
    pub fn push_interim(&mut self, block: &[u8], out: &mut Vec<u8>) -> usize {
        push_section(block, out)
    }

    /// Appends a trailer section.
    pub fn push_trailers(&mut self, block: &[u8], out: &mut Vec<u8>) -> usize {
        push_section(block, out)
    }

    /// Appends the start of a DATA frame with `len` bytes of a body, which the caller sends next, in any pieces. One frame may have a
    /// complete body.
    pub fn push_data(&self, len: u64, out: &mut Vec<u8>) {
        push_frame_start(out, kind::DATA, len);
    }

    /// Notes that the message of this end is complete.
    pub fn finish(&mut self, stream: &mut RequestStream) {
        if !std::mem::replace(&mut stream.is_finished, true) {
            self.calm.note_message();
        }
    }
}

/// Appends a HEADERS frame.
fn push_section(block: &[u8], out: &mut Vec<u8>) -> usize {
    let before = out.len();
    push_frame_start(out, kind::HEADERS, (STATIC_PREFIX.len() + block.len()) as u64);
    out.extend_from_slice(&STATIC_PREFIX);
    out.extend_from_slice(block);
    out.len() - before
}
