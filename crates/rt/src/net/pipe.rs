//! Pipes, through which splice(2) moves bytes from one socket to another without a copy into this process.
//!
//! ```text
//!   sending socket --> Reader::poll_splice --> Pipe --> Writer::poll_splice --> receiving socket
//!                                               `-----> Pipe::read, if the bytes are needed in memory after all
//! ```
//! All calls are made on this thread and do not block: io_uring would pass each splice to a kernel worker. A thread has a limited number
//! of pipes; without a free pipe, callers copy the bytes. A pipe is needed only while bytes are in it.

use std::rc::Rc;

use io::{Buf, Errno, Fd};
use rustix::pipe::SpliceFlags;

use crate::pipes::PipeEnds;
use crate::reactor::{self, Reactor};

pub use crate::pipes::PIPES_MAX;

/// Maximum number of bytes that are moved to a pipe by one call: the kernel counts each of the 16 slots of a pipe as a page.
pub const SPLICE_BYTES: usize = 64 << 10;

/// A pipe with the bytes that were moved to it. Dropping it discards them.
pub struct Pipe {
    reactor: Rc<Reactor>,
    /// `None` only during the drop.
    ends: Option<PipeEnds>,
    held: usize,
}

impl Pipe {
    /// Returns an empty pipe; `None` if the thread or the kernel permits no further pipe.
    pub(super) fn get(reactor: &Rc<Reactor>) -> Option<Pipe> {
        let ends = reactor.pipes.take()?;
        Some(Pipe { reactor: Rc::clone(reactor), ends: Some(ends), held: 0 })
    }

    /// Returns the number of bytes in the pipe.
    pub fn held(&self) -> usize {
        self.held
    }

    /// Moves at most `len` bytes that a socket has received to the empty pipe; 0 at the end of the stream, `EAGAIN` if there are none.
    pub(super) fn fill(&mut self, socket: &Fd, len: usize) -> Result<usize, Errno> {
        debug_assert!(self.held == 0, "EAGAIN of an empty pipe means that the socket has no bytes");
        let Some(ends) = &self.ends else { return Err(Errno::BADF) };
        let count = rustix::pipe::splice(socket, None, &ends.write, None, len, SpliceFlags::NONBLOCK)?;
        self.held += count;
        Ok(count)
    }

    /// Moves bytes of the pipe to a socket; `EAGAIN` if the socket is full.
    pub(super) fn drain(&mut self, socket: &Fd) -> Result<usize, Errno> {
        let Some(ends) = &self.ends else { return Err(Errno::BADF) };
        let count = rustix::pipe::splice(&ends.read, None, socket, None, self.held, SpliceFlags::NONBLOCK)?;
        assert!(count <= self.held, "a pipe returns the bytes that were moved to it");
        self.held -= count;
        Ok(count)
    }

    /// Reads bytes of the pipe behind the content of `buf`, as many as fit.
    ///
    /// # Errors
    /// Those of read(2).
    pub fn read(&mut self, buf: &mut Buf) -> Result<(), Errno> {
        let Some(ends) = &self.ends else { return Err(Errno::BADF) };
        let (len, wanted) = (buf.len(), self.held.min(buf.capacity() - buf.len()));
        let count = rustix::io::read(&ends.read, &mut buf.spare_capacity()[..wanted])?;
        buf.set_len(len + count);
        self.held -= count;
        Ok(())
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        if let Some(ends) = self.ends.take() {
            self.reactor.pipes.put(ends, self.held == 0);
        }
    }
}

/// Closes the unused pipes of this thread, because descriptors are scarce. Returns whether there were any.
pub fn close_unused_pipes() -> bool {
    reactor::with_current(|reactor| reactor.pipes.trim())
}
