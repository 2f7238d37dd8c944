//! Bodies of a coding without compression: for the rest of a body whose encoder was given back, or for a complete one.
//!
//! Each coding has blocks that contain the bytes as they are. They need no memory, and every decoder reads them. The body
//! of an encoder may continue with them after a flush, which ends at a byte.

use crate::coding::{Settings, gzip};

/// The end of a body that is not compressed.
pub struct Stored {
    form: Form,
    /// Whether the blocks of an encoder precede.
    is_continued: bool,
}

enum Form {
    Gzip(gzip::Checksum),
    Brotli,
    Zstd,
}

/// Maximum length of a block of deflate (RFC 1951 section 3.2.4).
const DEFLATE_MAX: usize = u16::MAX as usize;
/// Maximum length of a meta-block of brotli whose length has four nibbles (RFC 7932 section 9.2).
const BROTLI_MAX: usize = 1 << 16;
/// Maximum length of a block of zstd: that of the smallest window (RFC 8878 section 3.1.1.2.4).
const ZSTD_MAX: usize = 1 << 10;

/// The magic number of a frame, a descriptor without any option, and a window of 1 KiB (RFC 8878 section 3.1.1).
const ZSTD_HEADER: [u8; 6] = [0x28, 0xb5, 0x2f, 0xfd, 0, 0];

impl Stored {
    /// Begins a body without an encoder.
    pub fn new(settings: &Settings) -> Stored {
        let form = match settings {
            Settings::Gzip(_) => Form::Gzip(gzip::Checksum::default()),
            Settings::Brotli(_) => Form::Brotli,
            Settings::Zstd(_) => Form::Zstd,
        };
        Stored { form, is_continued: false }
    }

    /// Continues the body of an encoder of gzip, whose bytes have this checksum.
    pub(super) fn after_gzip(checksum: gzip::Checksum) -> Stored {
        Stored { form: Form::Gzip(checksum), is_continued: true }
    }

    /// Continues the body of an encoder of brotli.
    pub(super) fn after_brotli() -> Stored {
        Stored { form: Form::Brotli, is_continued: true }
    }

    /// Continues the body of an encoder of zstd.
    pub(super) fn after_zstd() -> Stored {
        Stored { form: Form::Zstd, is_continued: true }
    }

    /// Appends these bytes of the body.
    pub fn push(&mut self, input: &[u8], out: &mut Vec<u8>) {
        let most = match self.form {
            Form::Gzip(_) => DEFLATE_MAX,
            Form::Brotli => BROTLI_MAX,
            Form::Zstd => ZSTD_MAX,
        };
        for block in input.chunks(most) {
            self.begin(out, Some(block.len()));
            out.extend_from_slice(block);
            if let Form::Gzip(checksum) = &mut self.form {
                checksum.update(block);
            }
        }
    }

    /// Ends the body.
    pub fn finish(&mut self, out: &mut Vec<u8>) {
        self.begin(out, None);
        if let Form::Gzip(checksum) = &self.form {
            checksum.write(out);
        }
    }

    /// Appends the header of a block, or the last, empty block.
    fn begin(&mut self, out: &mut Vec<u8>, len: Option<usize>) {
        let is_first = !std::mem::replace(&mut self.is_continued, true);
        match self.form {
            Form::Gzip(_) => {
                if is_first {
                    out.extend_from_slice(&gzip::HEADER);
                }
                let count = len.unwrap_or(0) as u16;
                out.push(u8::from(len.is_none()));
                out.extend_from_slice(&count.to_le_bytes());
                out.extend_from_slice(&(!count).to_le_bytes());
            }
            Form::Brotli => {
                // From the lowest bit on: a window of 64 KiB at the start of the stream, whether it is the last meta-block,
                // and whether it is empty, or the number of nibbles (0 means four), the length, the missing compression.
                let header = len.map_or(0b11, |len| (len as u32 - 1) << 3 | 1 << 19) << u32::from(is_first);
                let bytes = if len.is_some() { 3 } else { 1 };
                out.extend_from_slice(&header.to_le_bytes()[..bytes]);
            }
            Form::Zstd => {
                if is_first {
                    out.extend_from_slice(&ZSTD_HEADER);
                }
                // From the lowest bit on: whether it is the last block, its type (0 is raw), its length.
                let header = (len.unwrap_or(0) as u32) << 3 | u32::from(len.is_none());
                out.extend_from_slice(&header.to_le_bytes()[..3]);
            }
        }
    }
}
