//! The settings of module `http_v2`, which a connection needs before its first request and requests need later, and the memory that
//! HTTP/2 connections share.

use std::cell::RefCell;

use http::h2::Scratch;

use crate::config::Settings;

/// The settings of module `http_v2`.
#[derive(Clone, Copy, Debug)]
pub struct Http2 {
    /// `http2`
    pub enabled: bool,
    /// `http2_max_concurrent_streams`
    pub streams_max: u32,
    /// `http2_body_preread_size`: bytes of a body that a client may send before the handler reads it.
    pub preread: u32,
    /// `http2_chunk_size`: maximum payload of a DATA frame in bytes.
    pub chunk_size: u64,
    /// `http2_recv_buffer_size`: maximum number of bytes received before other connections get their turn.
    pub recv_buffer_size: u64,
}

impl Settings for Http2 {}

impl Default for Http2 {
    fn default() -> Http2 {
        Http2 {
            enabled: false,
            streams_max: 128,
            preread: 64 << 10,
            chunk_size: 8 << 10,
            recv_buffer_size: 256 << 10,
        }
    }
}

/// Memory that the HTTP/2 connections of a thread use in turns, so that idle connections need none.
#[derive(Default)]
pub struct SharedMemory {
    /// Memory for decoding a header section, within one step.
    pub scratch: RefCell<Scratch>,
    /// Memory of sent frames, empty; the last one first, because it is in the CPU cache.
    frames: RefCell<Vec<Vec<u8>>>,
}

/// Maximum number of retained vectors: about as many as sends are in flight in one turn of a busy thread.
const FRAMES_MAX: usize = 16;

/// Maximum capacity in bytes of a retained vector: the frames of a usual send.
const FRAME_BYTES_MAX: usize = 128 << 10;

impl SharedMemory {
    /// Returns memory for frames.
    pub fn take_frames(&self) -> Vec<u8> {
        self.frames.borrow_mut().pop().unwrap_or_default()
    }

    /// Retains memory of frames that were sent.
    pub fn recycle_frames(&self, mut memory: Vec<u8>) {
        let mut frames = self.frames.borrow_mut();
        if (1..=FRAME_BYTES_MAX).contains(&memory.capacity()) && frames.len() < FRAMES_MAX {
            memory.clear();
            frames.push(memory);
        }
    }

    /// Releases the retained memory; returns the number of bytes of frames.
    pub fn release(&self) -> usize {
        *self.scratch.borrow_mut() = Scratch::default();
        self.frames.take().iter().map(Vec::capacity).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_frames_is_retained_up_to_a_limit() {
        let memory = SharedMemory::default();
        assert_eq!(memory.take_frames().capacity(), 0);
        memory.recycle_frames(vec![1; 100]);
        let taken = memory.take_frames();
        assert_eq!((taken.len(), taken.capacity()), (0, 100));
        memory.recycle_frames(Vec::new());
        memory.recycle_frames(Vec::with_capacity(FRAME_BYTES_MAX + 1));
        assert_eq!(memory.release(), 0);
        for _ in 0..=FRAMES_MAX {
            memory.recycle_frames(Vec::with_capacity(10));
        }
        assert_eq!(memory.release(), 10 * FRAMES_MAX);
        assert_eq!(memory.take_frames().capacity(), 0);
    }
}
