//! The gzip coding (RFC 1952): compression and decompression.

use flate2::{Compress, Compression, Crc, Decompress, FlushCompress, FlushDecompress, Status};

use crate::coding::CodingError;

/// The settings of `gzip`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// `gzip_comp_level`, 1 to 9.
    pub level: u8,
    /// Base 2 logarithm of `gzip_window`, 9 to 15.
    pub window_bits: u8,
}

impl Settings {
    /// Returns the level for the library. Level 1 of the library compresses less than level 1 of zlib, so its level 2 is
    /// used instead.
    fn level(self) -> Compression {
        Compression::new(u32::from(self.level.max(2)))
    }

    /// Returns the maximum number of input bytes of the first call, which should take less than half a millisecond.
    /// Later slices are smaller if the machine is slow.
    pub(super) fn slice_max(self) -> usize {
        match self.level {
            0..=3 => 32 << 10,
            4..=6 => 16 << 10,
            _ => 4 << 10,
        }
    }
}

/// The header of a member without a name and a time, made on Unix (RFC 1952 section 2.3).
pub(super) const HEADER: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3];

/// Checksum and length of a body, which follow it.
#[derive(Default)]
pub(super) struct Checksum {
    crc: Crc,
    len: u32,
}

impl Checksum {
    pub(super) fn update(&mut self, bytes: &[u8]) {
        self.crc.update(bytes);
        self.len = self.len.wrapping_add(bytes.len() as u32);
    }

    /// Appends the end of a member.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.crc.sum().to_le_bytes());
        out.extend_from_slice(&self.len.to_le_bytes());
    }
}

/// Compresses bodies, one after the other. Header and checksum are written here, so that a body can continue without the
/// encoder.
pub struct Encoder {
    deflate: Compress,
    checksum: Checksum,
    has_begun: bool,
}

/// Bytes of memory of an encoder: twice the window, and tables for 64 Ki positions.
pub(super) const MEMORY: u64 = 320 << 10;

/// Minimum output space per call in bytes; less would need more calls.
const OUTPUT_MIN: usize = 4 << 10;

impl Encoder {
    pub(super) fn new(settings: Settings) -> Encoder {
        let deflate = Compress::new_with_window_bits(settings.level(), false, settings.window_bits);
        Encoder { deflate, checksum: Checksum::default(), has_begun: false }
    }

    pub(super) fn restart(&mut self) {
        self.deflate.reset();
        self.take_checksum();
    }

    /// Returns the checksum of the body so far, which continues without this encoder.
    pub(super) fn take_checksum(&mut self) -> Checksum {
        self.has_begun = false;
        std::mem::take(&mut self.checksum)
    }

    fn begin(&mut self, out: &mut Vec<u8>) {
        if !std::mem::replace(&mut self.has_begun, true) {
            out.extend_from_slice(&HEADER);
        }
    }

    pub(super) fn push(&mut self, mut input: &[u8], out: &mut Vec<u8>) -> Result<(), CodingError> {
        self.begin(out);
        self.checksum.update(input);
        while !input.is_empty() {
            out.reserve(OUTPUT_MIN);
            let before = self.deflate.total_in();
            self.deflate
                .compress_vec(input, out, FlushCompress::None)
                .map_err(|error| failed("deflate", &error))?;
            input = &input[(self.deflate.total_in() - before) as usize..];
        }
        Ok(())
    }

    pub(super) fn flush(&mut self, out: &mut Vec<u8>) -> Result<(), CodingError> {
        self.begin(out);
        // A call that leaves space has returned all output.
        loop {
            out.reserve(OUTPUT_MIN);
            let status = self.deflate.compress_vec(&[], out, FlushCompress::Sync);
            status.map_err(|error| failed("deflate", &error))?;
            if out.len() < out.capacity() {
                return Ok(());
            }
        }
    }

    pub(super) fn finish(&mut self, out: &mut Vec<u8>) -> Result<(), CodingError> {
        self.begin(out);
        // Each call returns as much as fits; the status marks the last one.
        loop {
            out.reserve(OUTPUT_MIN);
            let status = self.deflate.compress_vec(&[], out, FlushCompress::Finish);
            if status.map_err(|error| failed("deflate", &error))? == Status::StreamEnd {
                self.checksum.write(out);
                return Ok(());
            }
        }
    }

    pub(super) fn memory(&self) -> usize {
        MEMORY as usize
    }
}

// zlib's error codes, as in nginx's log lines.
const Z_DATA_ERROR: i32 = -3;
const Z_BUF_ERROR: i32 = -5;

/// Decompresses a body, which may consist of several members (RFC 1952 section 2.2).
pub struct Decoder {
    inflate: Decompress,
    /// Whether a member is complete, so that the body may end here.
    at_end: bool,
}

impl Default for Decoder {
    fn default() -> Decoder {
        Decoder { inflate: Decompress::new_gzip(15), at_end: false }
    }
}

impl Decoder {
    /// Decompresses bytes of the body and appends at most `room` bytes; returns how many were consumed. If the space is
    /// used up, further output of the consumed bytes may follow.
    pub fn push(&mut self, input: &[u8], room: usize, out: &mut Vec<u8>) -> Result<usize, CodingError> {
        let start = out.len();
        let mut taken = 0;
        out.resize(start + room, 0);
        let mut filled = start;
        let done = loop {
            // Bytes after the end of a member start another member, or are an error at their first byte.
            if self.at_end && taken < input.len() {
                self.inflate = Decompress::new_gzip(15);
                self.at_end = false;
            }
            let (before_in, before_out) = (self.inflate.total_in(), self.inflate.total_out());
            let status = self.inflate.decompress(&input[taken..], &mut out[filled..], FlushDecompress::None);
            taken += (self.inflate.total_in() - before_in) as usize;
            filled += (self.inflate.total_out() - before_out) as usize;
            match status {
                Err(_) => break Err(CodingError::Failed("inflate", Some(format!("0, {Z_DATA_ERROR}")))),
                Ok(Status::StreamEnd) => self.at_end = true,
                Ok(Status::Ok | Status::BufError) => {}
            }
            // The next call returns the output that did not fit.
            let is_full = filled == start + room;
            if is_full || taken == input.len() {
                break Ok(taken);
            }
        };
        out.truncate(filled);
        done
    }

    /// Ends the body; returns an error if it ends in the middle of a member.
    pub fn finish(&self) -> Result<(), CodingError> {
        let early = || CodingError::EndedEarly(Z_BUF_ERROR);
        self.at_end.then_some(()).ok_or_else(early)
    }
}

fn failed(call: &'static str, error: &dyn std::fmt::Display) -> CodingError {
    CodingError::Failed(call, Some(error.to_string()))
}
