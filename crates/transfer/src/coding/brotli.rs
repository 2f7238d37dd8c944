//! The brotli coding (RFC 7932).
//!
//! The encoder allocates from a [`Store`], which retains the memory for the next body: tables of half a megabyte to
//! many megabytes, depending on the quality.

use std::any::{Any, TypeId};

use brotli::enc::combined_alloc::BrotliAlloc;
use brotli::enc::encode::{
    BrotliEncoderDestroyInstance, BrotliEncoderOperation, BrotliEncoderParameter, BrotliEncoderStateStruct,
};
use brotli::{Allocator, SliceWrapper, SliceWrapperMut};

use crate::coding::CodingError;

/// The settings of `brotli`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// `brotli_comp_level`, 0 to 11.
    pub quality: u8,
    /// Base 2 logarithm of `brotli_window`, 10 to 24.
    pub window_bits: u8,
}

/// The smallest window, as a power of two (RFC 7932 section 9.1).
pub const WINDOW_BITS_MIN: u8 = 10;
/// The largest window, as a power of two.
pub const WINDOW_BITS_MAX: u8 = 24;

/// The smallest window with a separate table at the middle qualities.
const TABLE_WINDOW_BITS_MIN: u8 = 17;

impl Settings {
    /// Returns the bytes that are compressed in about half a millisecond. From quality 4 on a block is 64 KiB or more,
    /// and all the work is done at its end.
    pub(super) fn slice_max(self) -> usize {
        match self.quality {
            0 | 1 => 64 << 10,
            _ => 16 << 10,
        }
    }

    /// Returns the maximum length of a body that is compressed in well under a millisecond, including the work at its
    /// end. `None` if every call for a slice is that short, for a body of any length.
    pub(super) fn inline_max(self) -> Option<u64> {
        match self.quality {
            0..=3 => None,
            4 => Some(32 << 10),
            5 => Some(24 << 10),
            6 => Some(16 << 10),
            7 => Some(14 << 10),
            8 => Some(10 << 10),
            9 => Some(8 << 10),
            10 => Some(768),
            _ => Some(512),
        }
    }

    /// See [`super::Settings::memory_estimate`].
    pub(super) fn memory_estimate(self, size: Option<u64>) -> u64 {
        let ring = 2 << self.window_bits(size);
        let tables = match self.quality {
            0..=3 => 1 << 20,
            4 => 4 << 20,
            5 | 6 => 4 << 20,
            7 => 8 << 20,
            8 => 16 << 20,
            9 => 32 << 20,
            _ => 4 * ring + (1 << 20),
        };
        // The working memory at the end of a block.
        let work = size.unwrap_or(u64::MAX).saturating_mul(20).min(6 << 20);
        ring + tables + work
    }

    /// Returns the window for a body. A short body needs no window larger than itself. But with small windows at the
    /// middle qualities the encoder has no table of suitable size and would use its largest table, of 32 MiB.
    fn window_bits(self, size: Option<u64>) -> u8 {
        let least = if matches!(self.quality, 5..=9) { TABLE_WINDOW_BITS_MIN } else { WINDOW_BITS_MIN };
        let size = size.unwrap_or(u64::MAX);
        (least..self.window_bits).find(|bits| size <= 1 << bits).unwrap_or(self.window_bits)
    }
}

/// Compresses bodies, one after the other.
pub struct Encoder(Box<BrotliEncoderStateStruct<Store>>);

impl Encoder {
    pub(super) fn new(settings: Settings, size: Option<u64>) -> Encoder {
        Encoder::with(Store::default(), settings, size)
    }

    fn with(mut store: Store, settings: Settings, size: Option<u64>) -> Encoder {
        store.retains_all = false;
        store.counts_positions = COUNTING.contains(&settings.quality);
        let mut state = BrotliEncoderStateStruct::new(store);
        let mut set = |parameter, value| state.set_parameter(parameter, value);
        set(BrotliEncoderParameter::BROTLI_PARAM_QUALITY, settings.quality.into());
        set(BrotliEncoderParameter::BROTLI_PARAM_LGWIN, settings.window_bits(size).into());
        if let Some(size) = size {
            set(BrotliEncoderParameter::BROTLI_PARAM_SIZE_HINT, size.try_into().unwrap_or(u32::MAX));
        }
        Encoder(Box::new(state))
    }

    /// Reuses the memory for another body.
    pub(super) fn restarted(mut self, settings: Settings, size: Option<u64>) -> Encoder {
        self.0.m8.retains_all = true;
        BrotliEncoderDestroyInstance(&mut self.0);
        let store = std::mem::take(&mut self.0.m8);
        Encoder::with(store, settings, size)
    }

    pub(super) fn push(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<(), CodingError> {
        self.run(BrotliEncoderOperation::BROTLI_OPERATION_PROCESS, input, out)
    }

    pub(super) fn flush(&mut self, out: &mut Vec<u8>) -> Result<(), CodingError> {
        self.run(BrotliEncoderOperation::BROTLI_OPERATION_FLUSH, &[], out)
    }

    pub(super) fn finish(&mut self, out: &mut Vec<u8>) -> Result<(), CodingError> {
        self.run(BrotliEncoderOperation::BROTLI_OPERATION_FINISH, &[], out)
    }

    /// Runs the encoder until all input is consumed and all available output is in `out`.
    fn run(
        &mut self,
        operation: BrotliEncoderOperation,
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), CodingError> {
        let is_last = operation == BrotliEncoderOperation::BROTLI_OPERATION_FINISH;
        let (mut left, mut taken) = (input.len(), 0);
        loop {
            // Without an output buffer the encoder retains its output, which is borrowed below.
            let (mut no_room, mut nothing, mut total) = (0, 0, None);
            let went_well = self.0.compress_stream(
                operation,
                &mut left,
                input,
                &mut taken,
                &mut no_room,
                &mut [],
                &mut nothing,
                &mut total,
                &mut |_, _, _, _| (),
            );
            if !went_well {
                return Err(CodingError::Failed("BrotliEncoderCompressStream", None));
            }
            while self.0.has_more_output() {
                // With a length of 0 the encoder lends all its output and sets the length. The slice is longer.
                let mut len = 0;
                let lent = self.0.take_output(&mut len);
                out.extend_from_slice(&lent[..len]);
            }
            if left == 0 && (!is_last || self.0.is_finished()) {
                return Ok(());
            }
        }
    }

    /// Returns the bytes of memory that the encoder uses.
    pub(super) fn memory(&self) -> usize {
        size_of_val(&*self.0) + self.0.m8.held
    }
}

/// The allocator of an encoder, which reuses its memory.
#[derive(Default)]
pub(super) struct Store {
    /// Free pieces; each is a `Vec` of one of the encoder's types.
    free: Vec<FreePiece>,
    /// Bytes in all pieces, allocated or free.
    held: usize,
    /// Bytes in free pieces.
    free_bytes: usize,
    /// Whether the body has ended, so that its tables are free for the next one.
    retains_all: bool,
    /// Whether the encoder counts the valid positions of its large table.
    counts_positions: bool,
}

/// The qualities whose encoder has a counter for each row of its table of positions (`H5`, `H6`, `H9` of the library) and
/// reads only counted positions. The counters are a separate piece, which is cleared. The other qualities read their table
/// without such a check, so they rely on zeroes.
const COUNTING: std::ops::RangeInclusive<u8> = 5..=9;

/// Minimum number of positions in a table with counters: 2^14 rows of 2^4 positions. All these tables have a power of two.
const COUNTED_MIN: usize = 256 << 10;

impl Store {
    /// Whether the content of a recycled piece does not matter, so that it is not cleared: clearing a large table would cost
    /// more than compressing a short body. Every other piece is cleared.
    fn is_counted_table<T: 'static>(&self, len: usize) -> bool {
        let is_positions = TypeId::of::<T>() == TypeId::of::<u32>();
        self.counts_positions && is_positions && len >= COUNTED_MIN && len.is_power_of_two()
    }
}

/// A piece that is not in use, with its size in bytes.
struct FreePiece {
    vec: Box<dyn Any + Send>,
    bytes: usize,
}

/// A piece of memory of an encoder.
#[derive(Default)]
pub(super) struct BrotliMemory<T>(Vec<T>);

impl<T> SliceWrapper<T> for BrotliMemory<T> {
    fn slice(&self) -> &[T] {
        &self.0
    }
}

impl<T> SliceWrapperMut<T> for BrotliMemory<T> {
    fn slice_mut(&mut self) -> &mut [T] {
        &mut self.0
    }
}

impl<T: Clone + Default + Send + 'static> Allocator<T> for Store {
    type AllocatedMemory = BrotliMemory<T>;

    /// The values are initialised, except in tables whose valid positions are counted.
    fn alloc_cell(&mut self, len: usize) -> BrotliMemory<T> {
        if len == 0 {
            return BrotliMemory(Vec::new());
        }
        // Only a piece of similar size: a small table must not occupy a large piece.
        let fits = |piece: &FreePiece| {
            let vec = piece.vec.downcast_ref::<Vec<T>>();
            vec.is_some_and(|vec| (len..=len.saturating_mul(2)).contains(&vec.capacity()))
        };
        let index = self.free.iter().position(fits);
        let kept = index.and_then(|index| {
            let piece = self.free.remove(index);
            self.free_bytes -= piece.bytes;
            piece.vec.downcast::<Vec<T>>().ok()
        });
        match kept {
            Some(mut vec) => {
                if !self.is_counted_table::<T>(len) {
                    vec.clear();
                } else if cfg!(test) {
                    garble(&mut *vec);
                }
                vec.resize(len, T::default());
                BrotliMemory(*vec)
            }
            None => {
                self.held += len * size_of::<T>();
                BrotliMemory(vec![T::default(); len])
            }
        }
    }

    fn free_cell(&mut self, piece: BrotliMemory<T>) {
        let bytes = piece.0.capacity() * size_of::<T>();
        // Small pieces are cheaper to allocate than to search for.
        if bytes < PIECE_MIN {
            self.held = self.held.saturating_sub(bytes);
            return;
        }
        self.free.push(FreePiece { vec: Box::new(piece.0), bytes });
        self.free_bytes += bytes;
        while self.free_bytes > FREE_MAX && !self.retains_all {
            let oldest = self.free.remove(0);
            self.free_bytes -= oldest.bytes;
            self.held -= oldest.bytes;
        }
    }
}

/// Maximum number of free bytes within a body. The encoder needs working memory of many different sizes at the end of each
/// block; without a limit a long body held ten times the memory that it used.
const FREE_MAX: usize = 1 << 20;

/// Minimum size in bytes of a piece that is retained.
const PIECE_MIN: usize = 4 << 10;

impl BrotliAlloc for Store {}

/// Replaces the content of a recycled table, so that a test shows if the encoder depends on it.
fn garble(table: &mut dyn Any) {
    let garbage: [u32; 1024] = std::array::from_fn(|index| 0x9e37_79b9_u32.wrapping_mul(index as u32));
    if let Some(positions) = table.downcast_mut::<Vec<u32>>() {
        positions.chunks_exact_mut(garbage.len()).for_each(|row| row.copy_from_slice(&garbage));
    }
}
