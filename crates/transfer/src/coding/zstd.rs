//! The zstd coding (RFC 8878), within the window that browsers allow (RFC 9659).

use std::sync::Arc;

use zstd_safe::zstd_sys::ZSTD_EndDirective;
use zstd_safe::{CCtx, CParameter, InBuffer, OutBuffer, ResetDirective};

use crate::coding::CodingError;

/// The settings of `zstd`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// `zstd_comp_level`, which may be negative.
    pub level: i32,
    /// `zstd_target_cblock_size`
    pub target_block: Option<u32>,
    /// `zstd_dict_file`
    pub dictionary: Option<Arc<Vec<u8>>>,
}

/// The highest level.
pub const LEVEL_MAX: i32 = 22;

/// Returns the lowest level: each level below zero is faster and compresses less.
pub fn level_min() -> i32 {
    zstd_safe::min_c_level()
}

/// The smallest and the largest target block size (`ZSTD_TARGETCBLOCKSIZE_MIN`, `_MAX`).
pub const TARGET_BLOCKS: (u32, u32) = (1340, 128 << 10);

/// Base 2 logarithm of the largest window that a client of HTTP must have (RFC 9659 section 3).
const WINDOW_LOG_MAX: u32 = 23;
/// The highest level whose default window does not exceed that size.
const LEVEL_IN_WINDOW_MAX: i32 = 19;

impl Settings {
    /// See [`super::Settings::memory_estimate`].
    pub(super) fn memory_estimate(&self, size: Option<u64>) -> u64 {
        let most: u64 = match self.level {
            ..=1 => 2 << 20,
            2 => 3 << 20,
            3..=6 => 6 << 20,
            7 | 8 => 8 << 20,
            9..=11 => 16 << 20,
            12..=14 => 45 << 20,
            15..=18 => 70 << 20,
            19 => 90 << 20,
            20 => 170 << 20,
            _ => 650 << 20,
        };
        // A short body has short tables.
        size.map_or(most, |size| size.saturating_mul(36).saturating_add(512 << 10).min(most))
    }

    /// Returns the maximum length of a body that is compressed in well under a millisecond, including its end and the
    /// set-up of its tables. `None` if every call for a slice is that short, for a body of any length. The work is done
    /// at the end of a block, which is 128 KiB.
    pub(super) fn inline_max(&self) -> Option<u64> {
        match (self.level, &self.dictionary) {
            // Loading a dictionary costs more than most bodies.
            (_, Some(_)) => Some(0),
            (..=2, None) => None,
            // The first call clears tables.
            (3, None) => Some(128 << 10),
            (4 | 5, None) => Some(64 << 10),
            (6, None) => Some(48 << 10),
            (7 | 8, None) => Some(32 << 10),
            (9 | 10, None) => Some(16 << 10),
            (11 | 12, None) => Some(6 << 10),
            (13 | 14, None) => Some(4 << 10),
            _ => Some(1 << 10),
        }
    }
}

/// Compresses bodies, one after the other.
pub struct Encoder {
    context: CCtx<'static>,
    /// The dictionary that the context has loaded.
    dictionary: Option<Arc<Vec<u8>>>,
}

/// Minimum output space per call in bytes.
const OUTPUT_MIN: usize = 16 << 10;

impl Encoder {
    pub(super) fn new(settings: &Settings, size: Option<u64>) -> Result<Encoder, CodingError> {
        let context = CCtx::try_create();
        let context = context.ok_or(CodingError::Failed("ZSTD_createCCtx", None))?;
        let mut encoder = Encoder { context, dictionary: None };
        encoder.restart(settings, size)?;
        Ok(encoder)
    }

    /// Prepares for another body; tables of the same size are reused.
    pub(super) fn restart(&mut self, settings: &Settings, size: Option<u64>) -> Result<(), CodingError> {
        let context = &mut self.context;
        checked("ZSTD_CCtx_reset", context.reset(ResetDirective::SessionOnly))?;
        let set = |context: &mut CCtx<'static>, parameter| {
            checked("ZSTD_CCtx_setParameter", context.set_parameter(parameter))
        };
        set(context, CParameter::CompressionLevel(settings.level))?;
        let window_log = if settings.level > LEVEL_IN_WINDOW_MAX { WINDOW_LOG_MAX } else { 0 };
        set(context, CParameter::WindowLog(window_log))?;
        set(context, CParameter::TargetCBlockSize(settings.target_block.unwrap_or(0)))?;
        // Only a hint: if the length differs, the body is compressed less well but correctly.
        let hint = size.unwrap_or(0).min(i32::MAX as u64);
        set(context, CParameter::SrcSizeHint(hint as u32))?;
        if self.dictionary != settings.dictionary {
            let dictionary = settings.dictionary.as_deref().map_or(&[][..], Vec::as_slice);
            checked("ZSTD_CCtx_loadDictionary", context.load_dictionary(dictionary))?;
            self.dictionary.clone_from(&settings.dictionary);
        }
        Ok(())
    }

    pub(super) fn push(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<(), CodingError> {
        let mut from = InBuffer::around(input);
        while from.pos() < input.len() {
            self.step(&mut from, out, ZSTD_EndDirective::ZSTD_e_continue)?;
        }
        Ok(())
    }

    pub(super) fn flush(&mut self, out: &mut Vec<u8>) -> Result<(), CodingError> {
        while self.step(&mut InBuffer::around(&[]), out, ZSTD_EndDirective::ZSTD_e_flush)? > 0 {}
        Ok(())
    }

    pub(super) fn finish(&mut self, out: &mut Vec<u8>) -> Result<(), CodingError> {
        while self.step(&mut InBuffer::around(&[]), out, ZSTD_EndDirective::ZSTD_e_end)? > 0 {}
        Ok(())
    }

    /// Compresses and returns how many output bytes are still pending.
    fn step(
        &mut self,
        from: &mut InBuffer<'_>,
        out: &mut Vec<u8>,
        end: ZSTD_EndDirective,
    ) -> Result<usize, CodingError> {
        out.reserve(OUTPUT_MIN);
        let start = out.len();
        let mut to = OutBuffer::around_pos(out, start);
        checked("ZSTD_compressStream2", self.context.compress_stream2(&mut to, from, end))
    }

    /// Returns the bytes of memory that the encoder uses.
    pub(super) fn memory(&self) -> usize {
        self.context.sizeof()
    }
}

fn checked(call: &'static str, result: zstd_safe::SafeResult) -> Result<usize, CodingError> {
    result.map_err(|code| CodingError::Failed(call, Some(zstd_safe::get_error_name(code).to_owned())))
}
