//! The brotli coding (RFC 7932).
//!
//! The encoder takes its memory from a [`Store`], which keeps it for the next body: tables of half a megabyte
//! to many, by the quality.

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

/// The smallest window and the largest (RFC 7932 section 9.1).
pub const WINDOW_BITS_MIN: u8 = 10;
/// The largest window, as a power of two.
pub const WINDOW_BITS_MAX: u8 = 24;

/// The smallest window with a separate table at the middle qualities.
const TABLE_WINDOW_BITS_MIN: u8 = 17;

impl Settings {
    /// Bytes that are compressed in about half a millisecond. From the fourth quality on a block is 64 KiB or
    /// more, and all the work is done at its end.
    pub(super) fn slice_max(self) -> usize {
        match self.quality {
            0 | 1 => 64 << 10,
            _ => 16 << 10,
        }
    }

    /// Bytes of a body that are compressed in well under a millisecond, with everything that happens at its end.
    /// `None` where a body of any length never takes longer at once.
    pub(super) fn at_once_max(self) -> Option<u64> {
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

    /// A body that is known to be short needs no window larger than itself. But for small windows and the middle
    /// qualities the encoder has no table of their size, and would take its largest one, of 32 MiB.
    fn window_bits(self, size: Option<u64>) -> u8 {
        let least = if matches!(self.quality, 5..=9) { TABLE_WINDOW_BITS_MIN } else { WINDOW_BITS_MIN };
        let size = size.unwrap_or(u64::MAX);
        (least..self.window_bits).find(|bits| size <= 1 << bits).unwrap_or(self.window_bits)
    }
}

/// Compresses one body after the other.
pub struct Encoder(Box<BrotliEncoderStateStruct<Store>>);

impl Encoder {
    pub(super) fn new(settings: Settings, size: Option<u64>) -> Encoder {
        Encoder::with(Store::default(), settings, size)
    }

    fn with(store: Store, settings: Settings, size: Option<u64>) -> Encoder {
        let mut state = BrotliEncoderStateStruct::new(store);
        let mut set = |parameter, value| state.set_parameter(parameter, value);
        set(BrotliEncoderParameter::BROTLI_PARAM_QUALITY, settings.quality.into());
        set(BrotliEncoderParameter::BROTLI_PARAM_LGWIN, settings.window_bits(size).into());
        if let Some(size) = size {
            set(BrotliEncoderParameter::BROTLI_PARAM_SIZE_HINT, size.try_into().unwrap_or(u32::MAX));
        }
        Encoder(Box::new(state))
    }

    /// The same memory for another body.
    pub(super) fn restarted(mut self, settings: Settings, size: Option<u64>) -> Encoder {
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

    /// Until all input is taken and everything that is ready is in `out`.
    fn run(
        &mut self,
        operation: BrotliEncoderOperation,
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), CodingError> {
        let is_last = operation == BrotliEncoderOperation::BROTLI_OPERATION_FINISH;
        let (mut left, mut taken) = (input.len(), 0);
        loop {
            // Without an output buffer it keeps the output, and lends it below.
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
                return Err(CodingError("BrotliEncoderCompressStream() failed".into()));
            }
            while self.0.has_more_output() {
                // A size of 0 lends everything; the memory continues behind it.
                let mut len = 0;
                let lent = self.0.take_output(&mut len);
                out.extend_from_slice(&lent[..len]);
            }
            if left == 0 && (!is_last || self.0.is_finished()) {
                return Ok(());
            }
        }
    }

    /// Bytes of memory that it holds.
    pub(super) fn memory(&self) -> usize {
        size_of_val(&*self.0) + self.0.m8.held
    }
}

/// Memory of an encoder, which is given out again.
#[derive(Default)]
pub(super) struct Store {
    /// Pieces that wait; each is a `Vec` of one of the encoder's types.
    free: Vec<Box<dyn Any + Send>>,
    /// Bytes in all pieces, given out or not.
    held: usize,
}

/// A piece of memory of one encoder.
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

    /// The values are fresh, as they would be from the system, but in large tables of positions: bytes of another body
    /// there are compared with this one before they are used, and clearing would cost more than short bodies do.
    fn alloc_cell(&mut self, len: usize) -> BrotliMemory<T> {
        if len == 0 {
            return BrotliMemory(Vec::new());
        }
        // Only one that fits well: a large table must not be held by a small one.
        let fits = |piece: &Box<dyn Any + Send>| {
            let vec = piece.downcast_ref::<Vec<T>>();
            vec.is_some_and(|vec| (len..=len.saturating_mul(2)).contains(&vec.capacity()))
        };
        let place = self.free.iter().position(fits);
        let kept = place.and_then(|place| self.free.swap_remove(place).downcast::<Vec<T>>().ok());
        match kept {
            Some(mut vec) => {
                let is_table = TypeId::of::<T>() == TypeId::of::<u32>() && len >= TABLE_MIN;
                if !is_table {
                    vec.clear();
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
        // Small ones are cheaper to make than to search for.
        if piece.0.capacity() * size_of::<T>() >= PIECE_MIN {
            self.free.push(Box::new(piece.0));
        } else {
            self.held = self.held.saturating_sub(piece.0.capacity() * size_of::<T>());
        }
    }
}

/// Positions in a large table.
const TABLE_MIN: usize = 16 << 10;

/// Bytes of a piece that is kept.
const PIECE_MIN: usize = 4 << 10;

impl BrotliAlloc for Store {}
