//! A descriptor as operations own it.

use std::cell::Cell;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::rc::{Rc, Weak};

use rustix::io::Errno;

/// A descriptor that is shared on one thread and closed with its last owner. An operation in flight owns
/// one, so that the number cannot be given to another file under it.
#[derive(Clone, Debug)]
pub struct Fd(Rc<Descriptor>);

#[derive(Debug)]
struct Descriptor {
    fd: OwnedFd,
    /// Whether it was opened with `O_DIRECT`, once fetched from the kernel.
    direct: Cell<Option<bool>>,
    /// Whether it is not seekable, as a pipe, a terminal or a socket, once fetched from the kernel.
    stream: Cell<Option<bool>>,
    /// Whether read and written bytes shall leave the page cache.
    uncached: Cell<bool>,
    /// Whether its owner has marked it as a socket of datagrams.
    datagrams: Cell<bool>,
    /// Whether its owner has marked it as a TCP connection.
    tcp: Cell<bool>,
    /// Whether bytes came by a stream, and nothing has shown since that no end came with them.
    in_doubt: Cell<bool>,
}

/// Remembers which [`Fd`] a table entry is about, without keeping it open: the same number may mean
/// another file later.
#[derive(Clone, Debug, Default)]
pub(crate) struct WeakFd(Weak<Descriptor>);

impl WeakFd {
    /// Whether this is about `fd` and not about an earlier owner of the number.
    pub(crate) fn is(&self, fd: &Fd) -> bool {
        std::ptr::eq(self.0.as_ptr(), Rc::as_ptr(&fd.0))
    }

    /// Whether the descriptor has been closed or taken out of its [`Fd`].
    pub(crate) fn is_gone(&self) -> bool {
        self.0.strong_count() == 0
    }
}

impl Fd {
    /// The bare descriptor, when no other owner and no operation holds it.
    pub fn into_owned(self) -> Result<OwnedFd, Fd> {
        Rc::try_unwrap(self.0).map(|shared| shared.fd).map_err(Fd)
    }

    /// Whether no other owner and no operation holds the descriptor.
    pub(crate) fn is_sole(&self) -> bool {
        Rc::strong_count(&self.0) == 1
    }

    /// A reference that does not keep the descriptor open.
    pub(crate) fn downgrade(&self) -> WeakFd {
        WeakFd(Rc::downgrade(&self.0))
    }

    /// Makes reads of a file that was opened for reading go bypassing the page cache. `flags` are its other status
    /// flags, such as `O_NONBLOCK`.
    pub fn set_direct(&self, flags: rustix::fs::OFlags) -> Result<(), Errno> {
        // A file that several share is changed once.
        if self.0.direct.get() == Some(true) {
            return Ok(());
        }
        rustix::fs::fcntl_setfl(&self.0.fd, flags | rustix::fs::OFlags::DIRECT)?;
        self.0.direct.set(Some(true));
        Ok(())
    }

    /// Makes reads of a file that was opened with `O_DIRECT` go through the page cache. `flags` as for [`Fd::set_direct`].
    pub fn set_buffered(&self, flags: rustix::fs::OFlags) -> Result<(), Errno> {
        rustix::fs::fcntl_setfl(&self.0.fd, flags)?;
        self.0.direct.set(Some(false));
        Ok(())
    }

    /// Records the flags of the open, which saves a question to the kernel.
    pub fn opened_with(self, flags: rustix::fs::OFlags) -> Fd {
        self.0.direct.set(Some(flags.contains(rustix::fs::OFlags::DIRECT)));
        self
    }

    /// Disables the kernel's read-ahead (posix_fadvise(2)): for callers that know the next read, and where pages read
    /// ahead for many files would be evicted before their use.
    pub fn expect_random_reads(&self) {
        let _ = rustix::fs::fadvise(&self.0.fd, 0, None, rustix::fs::Advice::Random);
    }

    /// Undoes [`Fd::expect_random_reads`]: the kernel reads ahead as for any file.
    pub fn expect_usual_reads(&self) {
        let _ = rustix::fs::fadvise(&self.0.fd, 0, None, rustix::fs::Advice::Normal);
    }

    /// Announces to the kernel that the file will be read from its start to its end: it reads twice as far ahead then
    /// (posix_fadvise(2), which waits for nothing with this advice). A hint that is refused costs nothing.
    pub fn expect_sequential_reads(&self) {
        let _ = rustix::fs::fadvise(&self.0.fd, 0, None, rustix::fs::Advice::Sequential);
    }

    /// Makes reads and writes of this file leave the page cache at once (`RWF_DONTCACHE`, Linux 6.14), so that a copy
    /// that is not read again displaces nothing. Without support in the kernel or the file system it has no effect, nor
    /// with `O_DIRECT`.
    pub fn set_uncached(&self) {
        self.0.uncached.set(true);
    }

    /// Whether reads and writes are to be made with `RWF_DONTCACHE`.
    pub fn is_uncached(&self) -> bool {
        self.0.uncached.get() && !self.is_direct()
    }

    /// The file system has no uncached reads and writes (EOPNOTSUPP), which is remembered.
    pub(crate) fn refuse_uncached(&self) {
        self.0.uncached.set(false);
    }

    /// Marks a socket of datagrams: a short receive does not mean that there is nothing left, and an empty one is no
    /// end.
    pub fn set_datagrams(&self) {
        self.0.datagrams.set(true);
    }

    /// Whether it is a socket of datagrams.
    pub(crate) fn has_datagrams(&self) -> bool {
        self.0.datagrams.get()
    }

    /// Marks a TCP connection: a successful send shows that no reset had come before, and the kernel reports the end of
    /// the peer's bytes with the last of them. Nothing is lost without it but a system call a turn.
    pub fn set_tcp(&self) {
        self.0.tcp.set(true);
    }

    /// Notes that bytes have come by a receive that stays armed; whether that is news.
    pub(crate) fn set_in_doubt(&self) -> bool {
        !self.0.in_doubt.replace(true)
    }

    /// Notes that a send was submitted: it fails where a reset has come before.
    pub(crate) fn note_send(&self) {
        if self.0.tcp.get() {
            self.0.in_doubt.set(false);
        }
    }

    /// Notes that a new receive looks at the connection, and whatever it brings is news.
    pub(crate) fn note_receive(&self) {
        self.0.in_doubt.set(false);
    }

    /// Whether an end may have come with the bytes unseen; it is not asked twice about the same bytes.
    pub(crate) fn take_doubt(&self) -> bool {
        self.0.in_doubt.take()
    }

    /// Whether reads bypass the page cache (`O_DIRECT`); the kernel is called once.
    pub fn is_direct(&self) -> bool {
        self.0.direct.get().unwrap_or_else(|| {
            let flags = rustix::fs::fcntl_getfl(&self.0.fd);
            let direct = flags.is_ok_and(|flags| flags.contains(rustix::fs::OFlags::DIRECT));
            self.0.direct.set(Some(direct));
            direct
        })
    }

    /// Whether it has no places to read or write at (lseek(2): ESPIPE); the kernel is called once.
    pub(crate) fn is_stream(&self) -> bool {
        self.0.stream.get().unwrap_or_else(|| {
            let place = rustix::fs::seek(&self.0.fd, rustix::fs::SeekFrom::Current(0));
            let stream = place == Err(Errno::SPIPE);
            self.0.stream.set(Some(stream));
            stream
        })
    }
}

impl From<OwnedFd> for Fd {
    fn from(fd: OwnedFd) -> Fd {
        let no = || Cell::new(false);
        let (direct, stream) = (Cell::new(None), Cell::new(None));
        let (uncached, datagrams, tcp, in_doubt) = (no(), no(), no(), no());
        Fd(Rc::new(Descriptor { fd, direct, stream, uncached, datagrams, tcp, in_doubt }))
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
