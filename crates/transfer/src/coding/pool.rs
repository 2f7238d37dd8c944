//! Encoders of one thread that wait for the next body.
//!
//! Setting one up costs as much as compressing some tens of kilobytes, since its tables are fresh memory.

use std::cell::RefCell;

use crate::coding::{Settings, State};

/// Encoders that are used again.
#[derive(Default)]
pub struct Pool(RefCell<Vec<Kept>>);

struct Kept {
    settings: Settings,
    state: State,
    memory: usize,
}

/// Bytes that waiting encoders of a thread hold together. Some fifty of those of gzip fit in; one of the highest
/// levels, which is larger alone, is not kept.
const MEMORY_MAX: usize = 16 << 20;

/// Bytes that one of them may hold: brotli up to level 7 and zstd up to 8 do.
const STATE_MAX: usize = 12 << 20;

impl Pool {
    /// One that was used with these settings.
    pub fn take(&self, settings: &Settings) -> Option<State> {
        let mut kept = self.0.borrow_mut();
        // The latest one: its memory is the likeliest to be in the processor's cache.
        let place = kept.iter().rposition(|kept| kept.settings == *settings)?;
        Some(kept.remove(place).state)
    }

    /// Recycles an encoder whose body has ended or was given up; the oldest are dropped where there is too little room.
    pub fn put(&self, settings: Settings, state: State) {
        let memory = state.memory();
        if memory > STATE_MAX {
            return;
        }
        let mut kept = self.0.borrow_mut();
        kept.push(Kept { settings, state, memory });
        let mut held: usize = kept.iter().map(|kept| kept.memory).sum();
        while held > MEMORY_MAX {
            held -= kept.remove(0).memory;
        }
    }

    /// Lets go of all; returns their bytes.
    pub fn clear(&self) -> usize {
        self.0.take().iter().map(|kept| kept.memory).sum()
    }
}
