//! Content codings (RFC 9110 section 8.4.1): the code that `gzip`, `brotli` and `zstd` share.
//!
//! [`pool`] retains the memory of encoders, which is costly to set up, for the thread's next body, and [`budget`] limits the
//! memory of those in use. [`stored`] continues a body without an encoder. Each coding has a
//! file with its settings and its encoder. The compression stage of a body is in `exchange::filter`;
//! `exchange::accept_encoding` determines which clients accept which coding.

pub mod brotli;
pub mod budget;
pub mod gzip;
pub mod pool;
pub mod stored;
#[cfg(test)]
mod tests;
pub mod zstd;

use std::fmt;

/// A coding and its settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settings {
    /// `gzip`
    Gzip(gzip::Settings),
    /// `br`
    Brotli(brotli::Settings),
    /// `zstd`
    Zstd(zstd::Settings),
}

/// The reason why a body cannot be compressed or decompressed further.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CodingError {
    /// A function of the library failed, and gives this reason.
    Failed(&'static str, Option<String>),
    /// The compressed body ended early: `inflate()` returned this number.
    EndedEarly(i32),
    /// The encoder panicked.
    Panicked,
}

impl fmt::Display for CodingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CodingError::Failed(function, None) => write!(f, "{function}() failed"),
            CodingError::Failed(function, Some(reason)) => write!(f, "{function}() failed: {reason}"),
            CodingError::EndedEarly(returned) => write!(f, "inflate() returned {returned} on response end"),
            CodingError::Panicked => f.write_str("the encoder panicked"),
        }
    }
}

impl Settings {
    /// Returns the name in `Accept-Encoding` and `Content-Encoding`.
    pub fn name(&self) -> &'static str {
        match self {
            Settings::Gzip(_) => "gzip",
            Settings::Brotli(_) => "br",
            Settings::Zstd(_) => "zstd",
        }
    }

    /// Returns the maximum input bytes per call on a worker thread.
    pub fn slice_max(&self) -> usize {
        match self {
            Settings::Gzip(gzip) => gzip.slice_max(),
            Settings::Brotli(brotli) => brotli.slice_max(),
            Settings::Zstd(_) => 64 << 10,
        }
    }

    /// Whether another thread must compress a body of this length (`None`: unknown), because even with slices a call may
    /// take more than a millisecond.
    pub fn is_long_work(&self, size: Option<u64>) -> bool {
        let inline_max = match self {
            // The work of gzip is proportional to its input.
            Settings::Gzip(_) => None,
            Settings::Brotli(brotli) => brotli.inline_max(),
            Settings::Zstd(zstd) => zstd.inline_max(),
        };
        inline_max.is_some_and(|most| size.is_none_or(|size| size > most))
    }

    /// Returns an estimate of an encoder's memory in bytes, which is rather too large, for a body of this length.
    pub fn memory_estimate(&self, size: Option<u64>) -> u64 {
        match self {
            Settings::Gzip(_) => gzip::MEMORY,
            Settings::Brotli(brotli) => brotli.memory_estimate(size),
            Settings::Zstd(zstd) => zstd.memory_estimate(size),
        }
    }

    /// Whether setting up an encoder without pooled memory takes so long that a body of any length goes to another
    /// thread.
    pub fn is_slow_to_start(&self) -> bool {
        matches!(self, Settings::Brotli(brotli::Settings { quality: 6..=9, .. }))
    }
}

/// An encoder: the memory and the progress of one body.
pub enum AnyEncoder {
    /// `gzip`
    Gzip(gzip::Encoder),
    /// `br`
    Brotli(brotli::Encoder),
    /// `zstd`
    Zstd(zstd::Encoder),
}

impl AnyEncoder {
    fn new(settings: &Settings, size: Option<u64>) -> Result<AnyEncoder, CodingError> {
        Ok(match settings {
            Settings::Gzip(settings) => AnyEncoder::Gzip(gzip::Encoder::new(*settings)),
            Settings::Brotli(settings) => AnyEncoder::Brotli(brotli::Encoder::new(*settings, size)),
            Settings::Zstd(settings) => AnyEncoder::Zstd(zstd::Encoder::new(settings, size)?),
        })
    }

    /// Starts the next body, with the memory of `kept` if it has the same coding. An encoder of gzip also retains its
    /// settings, which must be equal.
    pub fn begin(
        kept: Option<AnyEncoder>,
        settings: &Settings,
        size: Option<u64>,
    ) -> Result<AnyEncoder, CodingError> {
        match (kept, settings) {
            (Some(AnyEncoder::Gzip(mut encoder)), Settings::Gzip(_)) => {
                encoder.restart();
                Ok(AnyEncoder::Gzip(encoder))
            }
            (Some(AnyEncoder::Brotli(encoder)), Settings::Brotli(settings)) => {
                Ok(AnyEncoder::Brotli(encoder.restarted(*settings, size)))
            }
            (Some(AnyEncoder::Zstd(mut encoder)), Settings::Zstd(settings)) => {
                encoder.restart(settings, size)?;
                Ok(AnyEncoder::Zstd(encoder))
            }
            (_, settings) => AnyEncoder::new(settings, size),
        }
    }

    /// Compresses these bytes and appends the available output.
    pub fn push(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<(), CodingError> {
        match self {
            AnyEncoder::Gzip(encoder) => encoder.push(input, out),
            AnyEncoder::Brotli(encoder) => encoder.push(input, out),
            AnyEncoder::Zstd(encoder) => encoder.push(input, out),
        }
    }

    /// Appends all output so far, up to where a decoder can read it.
    pub fn flush(&mut self, out: &mut Vec<u8>) -> Result<(), CodingError> {
        match self {
            AnyEncoder::Gzip(encoder) => encoder.flush(out),
            AnyEncoder::Brotli(encoder) => encoder.flush(out),
            AnyEncoder::Zstd(encoder) => encoder.flush(out),
        }
    }

    /// Appends the remaining output and ends the body.
    pub fn finish(&mut self, out: &mut Vec<u8>) -> Result<(), CodingError> {
        match self {
            AnyEncoder::Gzip(encoder) => encoder.finish(out),
            AnyEncoder::Brotli(encoder) => encoder.finish(out),
            AnyEncoder::Zstd(encoder) => encoder.finish(out),
        }
    }

    /// Returns the rest of the body, which continues without this encoder. All bytes so far must have been flushed.
    pub fn continue_stored(&mut self) -> stored::Stored {
        match self {
            AnyEncoder::Gzip(encoder) => stored::Stored::after_gzip(encoder.take_checksum()),
            AnyEncoder::Brotli(_) => stored::Stored::after_brotli(),
            AnyEncoder::Zstd(_) => stored::Stored::after_zstd(),
        }
    }

    /// Returns the approximate bytes of memory.
    pub fn memory(&self) -> usize {
        match self {
            AnyEncoder::Gzip(encoder) => encoder.memory(),
            AnyEncoder::Brotli(encoder) => encoder.memory(),
            AnyEncoder::Zstd(encoder) => encoder.memory(),
        }
    }
}
