//! Shared ownership of descriptors by operations.

use std::cell::Cell;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::rc::{Rc, Weak};

use rustix::io::Errno;

/// A descriptor that is shared on one thread and closed with its last owner. An operation in flight is an owner, so
/// that the number cannot be reused for another file during the operation.
#[derive(Clone, Debug)]
pub struct Fd(Rc<Descriptor>);

#[derive(Debug)]
struct Descriptor {
    fd: OwnedFd,
    /// Whether it was opened with `O_DIRECT`; `None` until it is queried.
    direct: Cell<Option<bool>>,
    /// Whether it is not seekable, such as a pipe, a terminal or a socket; `None` until it is queried.
    stream: Cell<Option<bool>>,
    /// Whether pages leave the page cache after reads and writes.
    uncached: Cell<bool>,
    /// Whether its owner has marked it as a datagram socket.
    datagrams: Cell<bool>,
    /// Whether its owner has marked it as a TCP connection.
    tcp: Cell<bool>,
    /// Whether a multishot receive has returned bytes, so that an unreported end of the stream is possible.
    end_unknown: Cell<bool>,
}

/// A weak reference that identifies the [`Fd`] of a table entry: the same number may belong to another file later.
#[derive(Clone, Debug, Default)]
pub(crate) struct WeakFd(Weak<Descriptor>);

impl WeakFd {
    /// Whether this refers to `fd`, and not to an earlier owner of the number.
    pub(crate) fn is(&self, fd: &Fd) -> bool {
        std::ptr::eq(self.0.as_ptr(), Rc::as_ptr(&fd.0))
    }

    /// Whether the descriptor was closed or removed from its [`Fd`].
    pub(crate) fn is_gone(&self) -> bool {
        self.0.strong_count() == 0
    }
}

impl Fd {
    /// Returns the descriptor without its shared ownership, or `self` if another owner or an operation holds it.
    pub fn into_owned(self) -> Result<OwnedFd, Fd> {
        Rc::try_unwrap(self.0).map(|shared| shared.fd).map_err(Fd)
    }

    /// Whether no other owner and no operation holds the descriptor.
    pub(crate) fn is_sole(&self) -> bool {
        Rc::strong_count(&self.0) == 1
    }

    /// Returns a reference that does not keep the descriptor open.
    pub(crate) fn downgrade(&self) -> WeakFd {
        WeakFd(Rc::downgrade(&self.0))
    }

    /// Makes reads of a file that was opened for reading bypass the page cache. `flags` are its other status flags,
    /// such as `O_NONBLOCK`.
    pub fn set_direct(&self, flags: rustix::fs::OFlags) -> Result<(), Errno> {
        // A shared file is changed only once.
        if self.0.direct.get() == Some(true) {
            return Ok(());
        }
        rustix::fs::fcntl_setfl(&self.0.fd, flags | rustix::fs::OFlags::DIRECT)?;
        self.0.direct.set(Some(true));
        Ok(())
    }

    /// Makes reads of a file that was opened with `O_DIRECT` use the page cache. `flags` as for [`Fd::set_direct`].
    pub fn set_buffered(&self, flags: rustix::fs::OFlags) -> Result<(), Errno> {
        rustix::fs::fcntl_setfl(&self.0.fd, flags)?;
        self.0.direct.set(Some(false));
        Ok(())
    }

    /// Records the flags of the open, which saves querying the kernel.
    pub fn opened_with(self, flags: rustix::fs::OFlags) -> Fd {
        self.0.direct.set(Some(flags.contains(rustix::fs::OFlags::DIRECT)));
        self
    }

    /// Disables the kernel's readahead (posix_fadvise(2)): for callers that know the next read, and for many concurrent
    /// files, whose pages would be evicted before their use.
    pub fn expect_random_reads(&self) {
        let _ = rustix::fs::fadvise(&self.0.fd, 0, None, rustix::fs::Advice::Random);
    }

    /// Reverts [`Fd::expect_random_reads`]: the kernel uses its default readahead.
    pub fn expect_usual_reads(&self) {
        let _ = rustix::fs::fadvise(&self.0.fd, 0, None, rustix::fs::Advice::Normal);
    }

    /// Announces to the kernel that the file will be read sequentially, which doubles its readahead (posix_fadvise(2),
    /// which does not block with this advice). Errors are ignored.
    pub fn expect_sequential_reads(&self) {
        let _ = rustix::fs::fadvise(&self.0.fd, 0, None, rustix::fs::Advice::Sequential);
    }

    /// Makes the kernel drop pages of this file from the page cache immediately after reads and writes
    /// (`RWF_DONTCACHE`, Linux 6.14). So a copy that is not read again evicts nothing. It has no effect with
    /// `O_DIRECT`, or without support in the kernel or the file system.
    pub fn set_uncached(&self) {
        self.0.uncached.set(true);
    }

    /// Whether reads and writes use `RWF_DONTCACHE`.
    pub fn is_uncached(&self) -> bool {
        self.0.uncached.get() && !self.is_direct()
    }

    /// Records that the file system does not support `RWF_DONTCACHE` (EOPNOTSUPP).
    pub(crate) fn refuse_uncached(&self) {
        self.0.uncached.set(false);
    }

    /// Marks a datagram socket: a short receive does not mean that no more data is available, and an empty datagram is
    /// not an end.
    pub fn set_datagrams(&self) {
        self.0.datagrams.set(true);
    }

    /// Whether it is a datagram socket.
    pub(crate) fn has_datagrams(&self) -> bool {
        self.0.datagrams.get()
    }

    /// Marks a TCP connection. On TCP, a successful send shows that no reset was received before, and the kernel
    /// reports a FIN with the last bytes before it. Without the mark, io_uring checks for the end of the stream by one
    /// more system call in the turn after received bytes.
    pub fn set_tcp(&self) {
        self.0.tcp.set(true);
    }

    /// Records that a multishot receive has returned bytes; returns whether this changes the state.
    pub(crate) fn set_end_unknown(&self) -> bool {
        !self.0.end_unknown.replace(true)
    }

    /// Records that a send was submitted: it fails if a reset was received before.
    pub(crate) fn note_send(&self) {
        if self.0.tcp.get() {
            self.0.end_unknown.set(false);
        }
    }

    /// Records that a receive was submitted, which detects an end of the stream itself.
    pub(crate) fn note_receive(&self) {
        self.0.end_unknown.set(false);
    }

    /// Whether an end may have been received without being reported; also clears the state, so that one check follows
    /// each receive.
    pub(crate) fn take_end_unknown(&self) -> bool {
        self.0.end_unknown.take()
    }

    /// Whether reads bypass the page cache (`O_DIRECT`); queries the kernel once.
    pub fn is_direct(&self) -> bool {
        self.0.direct.get().unwrap_or_else(|| {
            let flags = rustix::fs::fcntl_getfl(&self.0.fd);
            let direct = flags.is_ok_and(|flags| flags.contains(rustix::fs::OFlags::DIRECT));
            self.0.direct.set(Some(direct));
            direct
        })
    }

    /// Whether the file is not seekable, such as a pipe (lseek(2): ESPIPE); queries the kernel once.
    pub(crate) fn is_stream(&self) -> bool {
        self.0.stream.get().unwrap_or_else(|| {
            let offset = rustix::fs::seek(&self.0.fd, rustix::fs::SeekFrom::Current(0));
            let stream = offset == Err(Errno::SPIPE);
            self.0.stream.set(Some(stream));
            stream
        })
    }
}

impl From<OwnedFd> for Fd {
    fn from(fd: OwnedFd) -> Fd {
        let no = || Cell::new(false);
        let (direct, stream) = (Cell::new(None), Cell::new(None));
        let (uncached, datagrams, tcp, end_unknown) = (no(), no(), no(), no());
        Fd(Rc::new(Descriptor { fd, direct, stream, uncached, datagrams, tcp, end_unknown }))
    }
}

impl AsFd for Fd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.fd.as_fd()
    }
}

impl AsRawFd for Fd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.fd.as_raw_fd()
    }
}
