//! Bytes that a shortened receive has left for the next one of the same socket.

use std::collections::HashMap;
use std::os::fd::{AsRawFd, RawFd};

use crate::op::{Fd, WeakFd};

/// Left-over bytes by socket.
#[derive(Default)]
pub(super) struct Carried(HashMap<RawFd, (WeakFd, Vec<u8>)>);

impl Carried {
    /// Leaves bytes for the socket's next receive.
    pub(super) fn put(&mut self, socket: &Fd, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.0.insert(socket.as_raw_fd(), (socket.downgrade(), bytes.to_vec()));
        }
    }

    /// Bytes left for the socket; those of an earlier owner of its number are dropped.
    pub(super) fn take(&mut self, socket: &Fd) -> Option<Vec<u8>> {
        let (owner, bytes) = self.0.remove(&socket.as_raw_fd())?;
        owner.is(socket).then_some(bytes)
    }
}
