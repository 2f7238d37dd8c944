//! Bytes that a shortened receive leaves for the next receive on the same socket.

use std::collections::HashMap;
use std::os::fd::{AsRawFd, RawFd};

use crate::fd::{Fd, WeakFd};

/// Remaining bytes by socket.
#[derive(Default)]
pub(super) struct Carried(HashMap<RawFd, (WeakFd, Vec<u8>)>);

impl Carried {
    /// Stores bytes for the socket's next receive.
    pub(super) fn put(&mut self, socket: &Fd, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.0.insert(socket.as_raw_fd(), (socket.downgrade(), bytes.to_vec()));
        }
    }

    /// Removes and returns the bytes stored for the socket; drops those of an earlier socket with the same number.
    pub(super) fn take(&mut self, socket: &Fd) -> Option<Vec<u8>> {
        let (owner, bytes) = self.0.remove(&socket.as_raw_fd())?;
        owner.is(socket).then_some(bytes)
    }
}
