//! The memory and files of a bare queue: one buffer per transfer in flight, and the list of free buffers.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use io::buf::CHUNK_BYTES;
use io::{Buf, Pool};

use super::{BLOCK_BYTES_MAX, Load, Noise, QueueError, Transfer};

/// Files and buffers. The owner keeps them until the kernel has completed all transfers in flight.
pub(crate) struct Places {
    files: Vec<OwnedFd>,
    bufs: Vec<Buf>,
    free: Vec<u32>,
    busy: Vec<bool>,
}

impl Places {
    pub(crate) fn new(load: Load) -> Result<Places, QueueError> {
        assert!(load.depth > 0 && load.block_bytes <= BLOCK_BYTES_MAX, "{load:?}");
        // A pool has complete chunks only, and lends buffers of one class from at most three quarters of them.
        let pool = Pool::new((load.depth as usize + 1).div_ceil(3) * 4 * CHUNK_BYTES);
        let bufs: Option<Vec<Buf>> = (0..load.depth).map(|_| pool.get(load.block_bytes as usize)).collect();
        let mut bufs = bufs.ok_or(QueueError::Memory)?;
        // Written now, so that no page fault occurs during a measurement; and not with zeroes, which some devices write
        // faster than other data.
        for (place, buf) in bufs.iter_mut().enumerate() {
            Noise::new(place as u64).fill(buf.space());
        }
        let busy = vec![false; bufs.len()];
        Ok(Places { files: load.files, bufs, free: (0..load.depth).rev().collect(), busy })
    }

    /// Takes a buffer slot for a transfer.
    pub(crate) fn take(&mut self, transfer: Transfer) -> Option<u32> {
        let place = self.free.pop()?;
        assert!((transfer.file as usize) < self.files.len(), "no such file: {transfer:?}");
        self.bufs[place as usize].set_len(transfer.len as usize);
        self.busy[place as usize] = true;
        Some(place)
    }

    /// Frees a slot: the kernel no longer uses its buffer.
    pub(crate) fn give_back(&mut self, place: u32) {
        assert!(std::mem::take(&mut self.busy[place as usize]), "a completion without a transfer");
        self.free.push(place);
    }

    /// Returns the number of transfers in flight.
    pub(crate) fn busy(&self) -> usize {
        self.bufs.len() - self.free.len()
    }

    pub(crate) fn depth(&self) -> usize {
        self.bufs.len()
    }

    pub(crate) fn fd(&self, file: u32) -> RawFd {
        self.files[file as usize].as_raw_fd()
    }

    pub(crate) fn fds(&self) -> Vec<RawFd> {
        self.files.iter().map(AsRawFd::as_raw_fd).collect()
    }

    pub(crate) fn bufs(&mut self) -> impl Iterator<Item = &mut Buf> {
        self.bufs.iter_mut()
    }

    pub(crate) fn buf(&mut self, place: u32) -> &mut Buf {
        &mut self.bufs[place as usize]
    }

    /// Returns the bytes that a completed transfer has read; empty while the kernel may write to the buffer.
    pub(crate) fn content(&self, place: u32) -> &[u8] {
        let index = place as usize;
        if self.busy[index] {
            return &[];
        }
        &self.bufs[index]
    }
}
