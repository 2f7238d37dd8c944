//! Certificate compression by brotli and zlib (RFC 8879). Brotli is preferred, as in rustls.
//!
//! Brotli is implemented here with the crate that compresses responses. The feature of rustls would link a second
//! version of that crate.

use std::io::Write;

use brotli::enc::StandardAlloc;
use brotli::{BrotliDecompressStream, BrotliResult, BrotliState, CompressorWriter};
use rustls::CertificateCompressionAlgorithm;
use rustls::compress::{
    CertCompressor, CertDecompressor, CompressionFailed, CompressionLevel, DecompressionFailed,
    ZLIB_COMPRESSOR, ZLIB_DECOMPRESSOR,
};

/// Size of the compressor's output buffer in bytes. Certificate chains have a few KiB.
const BUFFER_BYTES: usize = 4096;

/// Base 2 logarithm of the compression window in bytes. For smaller input, the compressor uses a window of the size of
/// the input.
const WINDOW_BITS: u32 = 22;

/// Quality while a client waits for the result.
const QUALITY_FAST: u32 = 4;

/// Quality if rustls caches the result for later handshakes.
const QUALITY_BEST: u32 = 11;

/// Returns the compressors, in order of preference.
pub(crate) fn compressors() -> Vec<&'static dyn CertCompressor> {
    vec![&Brotli, ZLIB_COMPRESSOR]
}

/// Returns the decompressors, in order of preference.
pub(crate) fn decompressors() -> Vec<&'static dyn CertDecompressor> {
    vec![&Brotli, ZLIB_DECOMPRESSOR]
}

/// Brotli (RFC 7932).
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
    /// Fails if the data has another length than the peer announced, or if bytes follow its end.
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

    /// Text that repeats as certificate chains do; it contains no certificate.
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
    fn wrong_lengths_and_damaged_data_are_refused() {
        let coded = Brotli.compress(chain(), CompressionLevel::Interactive).expect("it is compressed");
        let decompress = |input: &[u8], len: usize| Brotli.decompress(input, &mut vec![0; len]).is_ok();
        assert!(decompress(&coded, chain().len()));
        assert!(!decompress(&coded, chain().len() - 1) && !decompress(&coded, chain().len() + 1));
        assert!(!decompress(&coded[..coded.len() - 1], chain().len()));
        assert!(!decompress(&[&coded[..], b"x"].concat(), chain().len()));
        for place in 0..coded.len() {
            let mut damaged = coded.clone();
            damaged[place] ^= 0x55;
            // Any result is correct if the call returns.
            decompress(&damaged, chain().len());
        }
    }
}
