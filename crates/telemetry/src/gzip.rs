//! Compressed logs. Each written buffer is a separate gzip member (RFC 1952), and consecutive members form a valid
//! file. Thus no state exists between members, and no trailer is needed at the end.

use flate2::{Compress, Compression, Crc, FlushCompress, Status};

/// A compressor of members, which reuses its memory.
pub(super) struct Packer {
    compress: Compress,
}

/// Header of a member (RFC 1952, 2.3.1): magic, deflate, no flags, no time, no extra flags, Unix.
const HEADER: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3];

/// Number of bytes that are added when the output is full.
const STEP: usize = 4096;

impl Packer {
    /// Creates a packer; `level` is 1 to 9.
    pub(super) fn new(level: u32) -> Packer {
        Packer { compress: Compress::new(Compression::new(level), false) }
    }

    /// Appends a member that contains these bytes.
    pub(super) fn pack(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(&HEADER);
        self.compress.reset();
        loop {
            out.reserve(STEP);
            let rest = &bytes[self.compress.total_in() as usize..];
            let status = self.compress.compress_vec(rest, out, FlushCompress::Finish);
            // For any other status, the output needs more room.
            if status.expect("the stream was reset, so compression cannot fail") == Status::StreamEnd {
                break;
            }
        }
        let mut crc = Crc::new();
        crc.update(bytes);
        out.extend_from_slice(&crc.sum().to_le_bytes());
        // The length modulo 2^32, RFC 1952.
        out.extend_from_slice(&crc.amount().to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn concatenated_gzip_members_are_one_file() {
        let (mut packer, mut out) = (Packer::new(1), Vec::new());
        // Incompressible bytes need more room than their length.
        let noise: Vec<u8> =
            (0..100_000_u32).flat_map(|n| n.wrapping_mul(2_654_435_761).to_be_bytes()).collect();
        for part in [&b"one\n"[..], b"", &noise] {
            packer.pack(part, &mut out);
        }
        let mut read = Vec::new();
        flate2::read::MultiGzDecoder::new(out.as_slice()).read_to_end(&mut read).expect("valid members");
        assert_eq!(read, [b"one\n", noise.as_slice()].concat());
    }
}
