//! Certificates in brotli and zlib (RFC 8879), in this order of preference, as rustls has them.
//!
//! Brotli is the release of the crate that codes responses too: the feature of rustls would compile and link a second
//! one.

use std::io::Write;

use brotli::enc::StandardAlloc;
use brotli::{BrotliDecompressStream, BrotliResult, BrotliState, CompressorWriter};
use rustls::CertificateCompressionAlgorithm;
use rustls::compress::{
    CertCompressor, CertDecompressor, CompressionFailed, CompressionLevel, DecompressionFailed,
    ZLIB_COMPRESSOR, ZLIB_DECOMPRESSOR,
};

/// Bytes that the compressor collects before it writes. Chains have some KiB.
const BUFFER_BYTES: usize = 4096;

/// Base 2 logarithm of the window; its memory is that of the chain where this is smaller.
const WINDOW_BITS: u32 = 22;

/// While a client waits.
const QUALITY_FAST: u32 = 4;

/// For a result that rustls keeps for further handshakes.
const QUALITY_BEST: u32 = 11;

/// The codings that this side writes.
pub(crate) fn compressors() -> Vec<&'static dyn CertCompressor> {
    vec![&Brotli, ZLIB_COMPRESSOR]
}

/// The codings that this side reads.
pub(crate) fn decompressors() -> Vec<&'static dyn CertDecompressor> {
    vec![&Brotli, ZLIB_DECOMPRESSOR]
}

/// The coding of RFC 7932.
#[derive(Debug)]
struct Brotli;

impl CertCompressor for Brotli {
    fn compress(&self, input: Vec<u8>, level: CompressionLevel) -> Result<Vec<u8>, CompressionFailed> {
        let quality = match level {
            CompressionLevel::Interactive => QUALITY_FAST,
            CompressionLevel::Amortized => QUALITY_BEST,
        };
        let output = Vec::with_capacity(input.len() / 2);
        let mut writer = CompressorWriter::new(output, BUFFER_BYTES, quality, WINDOW_BITS);
        writer.write_all(&input).map_err(|_| CompressionFailed)?;
        Ok(writer.into_inner())
    }

    fn algorithm(&self) -> CertificateCompressionAlgorithm {
        CertificateCompressionAlgorithm::Brotli
    }
}

impl CertDecompressor for Brotli {
    /// The output has the length that the peer announced; a text with another length, or with bytes behind its end, is
    /// an error.
    fn decompress(&self, input: &[u8], output: &mut [u8]) -> Result<(), DecompressionFailed> {
        let memory = StandardAlloc::default;
        let mut state = BrotliState::new_strict(memory(), memory(), memory());
        let (mut left, mut room) = (input.len(), output.len());
        let (mut read, mut written, mut total) = (0, 0, 0);
        let result = BrotliDecompressStream(
            &mut left,
            &mut read,
            input,
            &mut room,
            &mut written,
            output,
            &mut total,
            &mut state,
        );
        match result {
            BrotliResult::ResultSuccess if left == 0 && room == 0 => Ok(()),
            _ => Err(DecompressionFailed),
        }
    }

    fn algorithm(&self) -> CertificateCompressionAlgorithm {
        CertificateCompressionAlgorithm::Brotli
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Text that is no certificate, and repeats as chains do.
    fn chain() -> Vec<u8> {
        (0..200)
            .flat_map(|number: u32| format!("certificate {} of {number}; ", number % 7).into_bytes())
            .collect()
    }

    #[test]
    fn a_chain_survives_both_levels() {
        for level in [CompressionLevel::Interactive, CompressionLevel::Amortized] {
            for coding in compressors() {
                let coded = coding.compress(chain(), level).expect("it is compressed");
                assert!(coded.len() < chain().len() / 2, "{} bytes", coded.len());
                let back = decompressors().into_iter().find(|back| back.algorithm() == coding.algorithm());
                let mut output = vec![0; chain().len()];
                back.expect("both ways").decompress(&coded, &mut output).expect("it is right");
                assert_eq!(output, chain());
            }
        }
    }

    #[test]
    fn wrong_lengths_and_damage_are_refused() {
        let coded = Brotli.compress(chain(), CompressionLevel::Interactive).expect("it is compressed");
        let decompress = |input: &[u8], len: usize| Brotli.decompress(input, &mut vec![0; len]).is_ok();
        assert!(decompress(&coded, chain().len()));
        assert!(!decompress(&coded, chain().len() - 1) && !decompress(&coded, chain().len() + 1));
        assert!(!decompress(&coded[..coded.len() - 1], chain().len()));
        assert!(!decompress(&[&coded[..], b"x"].concat(), chain().len()));
        for place in 0..coded.len() {
            let mut damaged = coded.clone();
            damaged[place] ^= 0x55;
            // Whatever comes of it, it ends.
            decompress(&damaged, chain().len());
        }
    }
}
