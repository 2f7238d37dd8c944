//! Frames (RFC 9114 section 7): variable-length integers, the start of a frame in both directions, and the types.
//!
//! Main type: [`FrameStart`], which reads type and length from any pieces.

/// Maximum value of a variable-length integer (RFC 9000 section 16).
pub const VARINT_MAX: u64 = (1 << 62) - 1;

/// Types of frames (RFC 9114 section 11.2.1, RFC 9218 section 7.2). Other types are ignored.
pub mod kind {
    /// DATA
    pub const DATA: u64 = 0x0;
    /// HEADERS
    pub const HEADERS: u64 = 0x1;
    /// CANCEL_PUSH
    pub const CANCEL_PUSH: u64 = 0x3;
    /// SETTINGS
    pub const SETTINGS: u64 = 0x4;
    /// PUSH_PROMISE
    pub const PUSH_PROMISE: u64 = 0x5;
    /// GOAWAY
    pub const GOAWAY: u64 = 0x7;
    /// MAX_PUSH_ID
    pub const MAX_PUSH_ID: u64 = 0xd;
    /// PRIORITY_UPDATE of a request stream
    pub const PRIORITY_UPDATE: u64 = 0xf_0700;
    /// PRIORITY_UPDATE of a push stream
    pub const PRIORITY_UPDATE_PUSH: u64 = 0xf_0701;

    /// Whether HTTP/2 has frames of this type and HTTP/3 has not: they must not be received (RFC 9114 section 7.2.8).
    #[must_use]
    pub fn is_of_http2(kind: u64) -> bool {
        matches!(kind, 0x2 | 0x6 | 0x8 | 0x9)
    }
}

/// Types of unidirectional streams (RFC 9114 section 6.2, RFC 9204 section 4.2).
pub mod stream_type {
    /// Control stream.
    pub const CONTROL: u64 = 0x0;
    /// Push stream.
    pub const PUSH: u64 = 0x1;
    /// QPACK encoder stream.
    pub const ENCODER: u64 = 0x2;
    /// QPACK decoder stream.
    pub const DECODER: u64 = 0x3;
}

/// Returns the variable-length integer at the start of `input`, and its length (RFC 9000 section 16); `None` if it is incomplete.
#[must_use]
#[inline]
pub fn read_varint(input: &[u8]) -> Option<(u64, usize)> {
    let &first = input.first()?;
    let len = 1usize << (first >> 6);
    let value = u64::from(first & 0x3f);
    let rest = input.get(1..len)?;
    Some((rest.iter().fold(value, |value, &byte| value << 8 | u64::from(byte)), len))
}

/// Appends a variable-length integer in its shortest form. `value` is at most [`VARINT_MAX`].
pub fn push_varint(out: &mut Vec<u8>, value: u64) {
    debug_assert!(value <= VARINT_MAX);
    match value {
        0..0x40 => out.push(value as u8),
        0x40..0x4000 => out.extend_from_slice(&(value as u16 | 0x4000).to_be_bytes()),
        0x4000..0x4000_0000 => out.extend_from_slice(&(value as u32 | 0x8000_0000).to_be_bytes()),
        _ => out.extend_from_slice(&(value | 0xc000_0000_0000_0000).to_be_bytes()),
    }
}

/// Appends type and length of a frame.
pub fn push_frame_start(out: &mut Vec<u8>, kind: u64, len: u64) {
    push_varint(out, kind);
    push_varint(out, len);
}

/// Appends a frame with a short payload.
pub(super) fn push_frame(out: &mut Vec<u8>, kind: u64, payload: &[u8]) {
    push_frame_start(out, kind, payload.len() as u64);
    out.extend_from_slice(payload);
}

/// Length in bytes of the longest start of a frame: two integers.
const START_MAX: usize = 16;

/// The incomplete start of a frame, or the incomplete type of a stream.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FrameStart {
    bytes: [u8; START_MAX],
    len: u8,
}

impl FrameStart {
    /// Whether no byte was read.
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Reads type and length of a frame from `input`. Returns the number of used bytes, and the result if it is complete.
    pub(super) fn read(&mut self, input: &[u8]) -> (usize, Option<(u64, u64)>) {
        self.read_by(input, |bytes| {
            let (kind, used) = read_varint(bytes)?;
            let (len, more) = read_varint(&bytes[used..])?;
            Some(((kind, len), used + more))
        })
    }

    /// Reads one integer from `input`, as [`FrameStart::read`].
    pub(super) fn read_type(&mut self, input: &[u8]) -> (usize, Option<u64>) {
        self.read_by(input, read_varint)
    }

    #[inline]
    fn read_by<R>(&mut self, input: &[u8], read: impl Fn(&[u8]) -> Option<(R, usize)>) -> (usize, Option<R>) {
        if self.len == 0
            && let Some((result, used)) = read(input)
        {
            return (used, Some(result));
        }
        for (index, &byte) in input.iter().enumerate() {
            self.bytes[usize::from(self.len)] = byte;
            self.len += 1;
            if let Some((result, _)) = read(&self.bytes[..usize::from(self.len)]) {
                self.len = 0;
                return (index + 1, Some(result));
            }
        }
        (input.len(), None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 9000 appendix A.1.
    #[test]
    fn integers_of_the_rfc_are_decoded() {
        for (hex, wanted) in [
            (&[0xc2, 0x19, 0x7c, 0x5e, 0xff, 0x14, 0xe8, 0x8c][..], 151_288_809_941_952_652),
            (&[0x9d, 0x7f, 0x3e, 0x7d], 494_878_333),
            (&[0x7b, 0xbd], 15_293),
            (&[0x25], 37),
            (&[0x40, 0x25], 37),
        ] {
            assert_eq!(read_varint(hex), Some((wanted, hex.len())));
            assert_eq!(read_varint(&hex[..hex.len() - 1]), None);
        }
    }

    #[test]
    fn integers_are_encoded_in_their_shortest_form() {
        for (value, len) in [
            (0, 1),
            (63, 1),
            (64, 2),
            (16_383, 2),
            (16_384, 4),
            ((1 << 30) - 1, 4),
            (1 << 30, 8),
            (VARINT_MAX, 8),
        ] {
            let mut out = Vec::new();
            push_varint(&mut out, value);
            assert_eq!((read_varint(&out), out.len()), (Some((value, len)), len));
        }
    }

    #[test]
    fn the_start_of_a_frame_is_read_from_any_pieces() {
        let mut bytes = Vec::new();
        push_frame_start(&mut bytes, VARINT_MAX, 1 << 40);
        bytes.push(7);
        for piece in 1..=bytes.len() {
            let (mut start, mut at, mut found) = (FrameStart::default(), 0, None);
            while found.is_none() {
                let end = bytes.len().min(at + piece);
                let (used, result) = start.read(&bytes[at..end]);
                (at, found) = (at + used, result);
            }
            assert_eq!((found, at, start.is_empty()), (Some((VARINT_MAX, 1 << 40)), 16, true));
        }
    }
}
