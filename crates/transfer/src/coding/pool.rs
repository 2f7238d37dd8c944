//! The encoders of one thread: idle ones for its next bodies, and the limit for those in use.
//!
//! Setting up an encoder costs as much as compressing some tens of kilobytes, because its tables are new memory.

use std::cell::RefCell;

use crate::coding::budget::Budget;
use crate::coding::{AnyEncoder, Settings};

/// The encoders of a thread.
#[derive(Default)]
pub struct Pool {
    idle: RefCell<Vec<IdleState>>,
    /// The memory of encoders in use.
    pub budget: Budget,
}

struct IdleState {
    settings: Settings,
    state: AnyEncoder,
    memory: usize,
}

/// Maximum number of bytes of all idle encoders of a thread: about fifty encoders of gzip.
const MEMORY_MAX: usize = 16 << 20;

/// Maximum number of bytes of one idle encoder: brotli up to level 7 and zstd up to level 8. Encoders of higher levels
/// are not retained.
const STATE_MAX: usize = 12 << 20;

impl Pool {
    /// Takes an encoder that was used with these settings.
    pub fn take(&self, settings: &Settings) -> Option<AnyEncoder> {
        let mut idle = self.idle.borrow_mut();
        // The latest encoder, because its memory is most likely in the CPU cache.
        let index = idle.iter().rposition(|idle| idle.settings == *settings)?;
        Some(idle.remove(index).state)
    }

    /// Adds an encoder whose body has ended or was aborted; drops the oldest encoders if the limit is exceeded.
    pub fn put(&self, settings: Settings, state: AnyEncoder) {
        let memory = state.memory();
        if memory > STATE_MAX {
            return;
        }
        let mut idle = self.idle.borrow_mut();
        idle.push(IdleState { settings, state, memory });
        let mut held: usize = idle.iter().map(|idle| idle.memory).sum();
        while held > MEMORY_MAX {
            held -= idle.remove(0).memory;
        }
    }

    /// Drops all encoders; returns the number of bytes of their memory.
    pub fn clear(&self) -> usize {
        self.idle.take().iter().map(|idle| idle.memory).sum()
    }
}
