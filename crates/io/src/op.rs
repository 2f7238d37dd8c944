//! What can be asked of an engine, and what it answers.
//!
//! An [`Op`] owns everything that the kernel may touch while it runs; a [`Completion`] gives it back. The
//! engine never borrows memory from its caller.

use std::cell::Cell;
use std::ffi::CString;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::rc::{Rc, Weak};
use std::sync::Arc;

use rustix::io::Errno;

use crate::buf::Buf;
pub(crate) use crate::segments::Ends;
pub use crate::segments::{SEGMENTS_MAX, Segment, Segments, Source};

/// A descriptor that is shared on one thread and closed with its last owner. An operation in flight owns
/// one, so that the number cannot be given to another file under it.
#[derive(Clone, Debug)]
pub struct Fd(Rc<Shared>);

#[derive(Debug)]
struct Shared {
    fd: OwnedFd,
    /// Whether it was opened with `O_DIRECT`, once somebody has asked the kernel.
    direct: Cell<Option<bool>>,
    /// Whether it has no places, as a pipe, a terminal or a socket, once somebody has asked.
    stream: Cell<Option<bool>>,
    /// Whether what is read and written is to leave the page cache.
    uncached: Cell<bool>,
    /// Whether it is a socket of datagrams, whose owner has said so.
    datagrams: Cell<bool>,
    /// Whether it is a TCP connection, whose owner has said so.
    tcp: Cell<bool>,
    /// Whether bytes came by a stream, and nothing has shown since that no end came with them.
    in_doubt: Cell<bool>,
}

/// Remembers which [`Fd`] a table entry is about, without keeping it open: the same number may mean
/// another file later.
#[derive(Clone, Debug, Default)]
pub(crate) struct WeakFd(Weak<Shared>);

impl WeakFd {
    /// Whether this is about `fd` and not about an earlier owner of the number.
    pub(crate) fn is(&self, fd: &Fd) -> bool {
        std::ptr::eq(self.0.as_ptr(), Rc::as_ptr(&fd.0))
    }

    /// The descriptor, while somebody holds it.
    pub(crate) fn upgrade(&self) -> Option<Fd> {
        self.0.upgrade().map(Fd)
    }

    /// Whether the descriptor has been closed or taken out of its [`Fd`].
    pub(crate) fn is_gone(&self) -> bool {
        self.0.strong_count() == 0
    }
}

impl Fd {
    /// The descriptor alone, when nobody else and no operation holds it.
    pub fn into_owned(self) -> Result<OwnedFd, Fd> {
        Rc::try_unwrap(self.0).map(|shared| shared.fd).map_err(Fd)
    }

    /// Whether nobody else and no operation holds the descriptor.
    pub(crate) fn is_sole(&self) -> bool {
        Rc::strong_count(&self.0) == 1
    }

    /// A reference that does not keep the descriptor open.
    pub(crate) fn downgrade(&self) -> WeakFd {
        WeakFd(Rc::downgrade(&self.0))
    }

    /// Makes reads of a file that was opened for reading go past the page cache. `flags` are its other status
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

    /// Says with which flags the file was opened, so that nobody has to ask the kernel.
    pub fn opened_with(self, flags: rustix::fs::OFlags) -> Fd {
        self.0.direct.set(Some(flags.contains(rustix::fs::OFlags::DIRECT)));
        self
    }

    /// Tells the kernel that it reads what is asked for and nothing ahead of it (posix_fadvise(2)): for who knows better
    /// what comes next, and where what is read ahead for many would be dropped again before it is used.
    pub fn expect_random_reads(&self) {
        let _ = rustix::fs::fadvise(&self.0.fd, 0, None, rustix::fs::Advice::Random);
    }

    /// Takes back what [`Fd::expect_random_reads`] has told it: it reads ahead as it would of any file.
    pub fn expect_usual_reads(&self) {
        let _ = rustix::fs::fadvise(&self.0.fd, 0, None, rustix::fs::Advice::Normal);
    }

    /// Tells the kernel that the file will be read from its start to its end: it reads twice as far ahead then
    /// (posix_fadvise(2), which waits for nothing with this advice). A hint that is refused costs nothing.
    pub fn expect_sequential_reads(&self) {
        let _ = rustix::fs::fadvise(&self.0.fd, 0, None, rustix::fs::Advice::Sequential);
    }

    /// Has what is read from and written to this file leave the page cache at once (`RWF_DONTCACHE`, Linux 6.14),
    /// so that a copy that nobody reads again displaces nothing. Where the kernel or the file system has no such
    /// thing, everything goes on as without it; with `O_DIRECT` there is nothing to leave.
    pub fn set_uncached(&self) {
        self.0.uncached.set(true);
    }

    /// Whether reads and writes are to be made with `RWF_DONTCACHE`.
    pub fn is_uncached(&self) -> bool {
        self.0.uncached.get() && !self.is_direct()
    }

    /// The file system has no uncached reads and writes (EOPNOTSUPP): it is not asked again.
    pub(crate) fn refuse_uncached(&self) {
        self.0.uncached.set(false);
    }

    /// Says that this is a socket of datagrams: a short receive does not mean that there is nothing left, and an
    /// empty one is no end.
    pub fn set_datagrams(&self) {
        self.0.datagrams.set(true);
    }

    /// Whether it is a socket of datagrams.
    pub(crate) fn has_datagrams(&self) -> bool {
        self.0.datagrams.get()
    }

    /// Says that this is a TCP connection: a send that it takes shows that no reset had come before, and the kernel
    /// tells the end of the peer's bytes with the last of them. Nothing is lost without it but a system call a turn.
    pub fn set_tcp(&self) {
        self.0.tcp.set(true);
    }

    /// Notes that bytes have come by a receive that stays armed; whether that is news.
    pub(crate) fn set_in_doubt(&self) -> bool {
        !self.0.in_doubt.replace(true)
    }

    /// Notes that a send has been asked for: it fails where a reset has come before.
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

    /// Whether reads bypass the page cache (`O_DIRECT`); the kernel is asked once.
    pub fn is_direct(&self) -> bool {
        self.0.direct.get().unwrap_or_else(|| {
            let flags = rustix::fs::fcntl_getfl(&self.0.fd);
            let direct = flags.is_ok_and(|flags| flags.contains(rustix::fs::OFlags::DIRECT));
            self.0.direct.set(Some(direct));
            direct
        })
    }

    /// Whether it has no places to read or write at (lseek(2): ESPIPE); the kernel is asked once.
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
        Fd(Rc::new(Shared { fd, direct, stream, uncached, datagrams, tcp, in_doubt }))
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

/// Name of an operation in flight: a slot and its generation, so that a name that has been used up never
/// means the slot's next operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OpId {
    /// Place in the engine's table; dense and small, so that callers can index a table of their own.
    pub slot: u32,
    /// Counts the uses of the slot.
    pub generation: u32,
}

/// The device that a file is on (`st_dev`), for the limits that keep a slow device from taking every
/// kernel worker and pool thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct DeviceId(pub u64);

/// Which disk backend carries out an operation on a file or path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DiskVia {
    /// io_uring.
    Ring,
    /// Linux native AIO; direct reads only, everything else goes to the first thread pool.
    Libaio,
    /// The thread pool of this number in [`crate::engine::EngineConfig::pools`].
    Pool(u8),
    /// A blocking call on the worker thread.
    Sync,
}

/// Where received bytes go.
#[derive(Debug)]
pub enum RecvInto {
    /// Into this buffer, from its start, up to its capacity.
    Owned(Buf),
    /// Into a buffer that the engine picks when there is data: a connection that waits costs no memory.
    Pool,
    /// As `Pool`, again and again until it is cancelled or a completion without `more` comes.
    Stream,
}

/// How a file is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenHow {
    /// `O_*` access mode and flags; `O_CLOEXEC` is always added.
    pub flags: i32,
    /// Permission bits of a file that is created.
    pub mode: u32,
    /// `RESOLVE_*` flags of openat2(2).
    pub resolve: u64,
    /// Whether each symbolic link on the way must belong to the owner of what it leads to; `ELOOP` where one
    /// does not. No single call of the kernel does that, so it is a thread's work, whatever the backend.
    pub same_owner: bool,
    /// Whether the path is not expected in memory: a ring hands it to a kernel worker at once, without a first try
    /// that would look up half of it in vain.
    pub is_cold: bool,
}

/// Address of a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerAddr {
    /// IPv4 or IPv6.
    Inet(SocketAddr),
    /// A unix stream socket.
    Unix(PathBuf),
}

/// What poll waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// Data, a connection or an end to read.
    Readable,
    /// Room to write.
    Writable,
    /// The end of what the peer sends, or of the connection. Data does not end the wait and is left alone.
    HangUp,
}

/// One operation. Closed on purpose: a match builds the submission entry, another makes the system call.
#[derive(Debug)]
pub enum Op {
    /// Nothing; completes with 0.
    Nop,
    /// A connection from a listening socket, close-on-exec and non-blocking: [`Payload::Accepted`]. With
    /// `multishot` again and again; only for a socket that no other thread accepts from.
    Accept {
        /// The listening socket.
        listener: Fd,
        /// Whether to go on after the first connection.
        multishot: bool,
    },
    /// Bytes from a socket: [`Payload::Buf`]; a result of 0 is the end of the stream.
    Recv {
        /// The connected socket.
        socket: Fd,
        /// Where to.
        into: RecvInto,
    },
    /// Bytes to a socket. Completes with the count, which may be short, and gives the segments back. With
    /// `zero_copy` a first completion with `more` brings the count and the terminal one the segments.
    Send {
        /// The connected socket.
        socket: Fd,
        /// The bytes.
        data: Segments,
        /// Whether more follows at once (`MSG_MORE`).
        more: bool,
        /// Whether the kernel may send from the buffers themselves; engines without that copy.
        zero_copy: bool,
    },
    /// Connects a socket; completes with 0.
    Connect {
        /// The new, non-blocking socket.
        socket: Fd,
        /// The peer.
        peer: PeerAddr,
    },
    /// Waits for readiness of a descriptor; completes with the poll(2) events.
    Poll {
        /// The descriptor.
        fd: Fd,
        /// What for.
        interest: Interest,
    },
    /// Closes; completes with 0.
    Close {
        /// The descriptor, which nobody else holds.
        fd: OwnedFd,
    },
    /// Opens a file: [`Payload::Opened`].
    Open {
        /// The folder that a relative path starts from; the working directory without one.
        dir: Option<Fd>,
        /// The path.
        path: CString,
        /// Flags.
        how: OpenHow,
        /// The device that counts the operation.
        device: DeviceId,
        /// The backend.
        via: DiskVia,
    },
    /// Size, times and kind of a file: [`Payload::Stat`].
    Stat {
        /// What to look at.
        target: StatTarget,
        /// The device that counts the operation.
        device: DeviceId,
        /// The backend.
        via: DiskVia,
    },
    /// Reads at most `len` bytes at `offset` into the start of the buffer, whose length becomes the count:
    /// [`Payload::Buf`]. A result of 0 is the end of the file; a short one is legal anywhere.
    Read {
        /// The file.
        file: Fd,
        /// Byte offset in the file; a multiple of the alignment when the file is open with `O_DIRECT`.
        offset: u64,
        /// Bytes wanted, at most the buffer's capacity.
        len: u32,
        /// The buffer.
        buf: Buf,
        /// The device that counts the operation when it cannot be done at once.
        device: DeviceId,
        /// The backend.
        via: DiskVia,
    },
    /// Writes the buffer's content at `offset`, or at the end of a file opened with `O_APPEND`; gives the
    /// buffer back: [`Payload::Buf`].
    Write {
        /// The file.
        file: Fd,
        /// Byte offset in the file.
        offset: u64,
        /// The content.
        buf: Buf,
        /// The device that counts the operation.
        device: DeviceId,
        /// The backend.
        via: DiskVia,
    },
    /// Moves at most `len` bytes from a file to a socket without passing through user space; completes
    /// with the count, `EAGAIN` when the socket is full (wait with [`Op::Poll`]).
    Sendfile {
        /// The connected socket.
        socket: Fd,
        /// The file.
        file: Fd,
        /// Byte offset in the file.
        offset: u64,
        /// Bytes wanted.
        len: u32,
        /// The device that counts the operation.
        device: DeviceId,
        /// `Sync` for bytes known to be resident, else a pool; the other backends use the first pool.
        via: DiskVia,
    },
    /// The next entries of a folder, as many as the kernel puts into a buffer of `bytes_max`; goes on where the
    /// last such operation on the same open folder ended: [`Payload::Entries`]. Completes with their count, 0 is
    /// the end. A ring has nothing like it, so it is a thread's work there.
    ReadDir {
        /// The folder, open for reading.
        dir: Fd,
        /// Bytes of names and their records at once, at least [`READ_DIR_BYTES_MIN`]; bounds how long a thread
        /// is held.
        bytes_max: u32,
        /// How each entry is looked at.
        look: EntryLook,
        /// The device that counts the operation.
        device: DeviceId,
        /// The backend.
        via: DiskVia,
    },
    /// Looks at many names below a folder, links not followed: [`Payload::Stats`], one for each name in their order.
    /// Completes with their count. A ring would take one operation for each, and hand it to a thread.
    StatMany {
        /// The folder that the names are relative to.
        dir: Fd,
        /// The names; how many there are bounds how long a thread is held.
        names: Arc<[CString]>,
        /// The device that counts the operation.
        device: DeviceId,
        /// The backend.
        via: DiskVia,
    },
    /// Writes the segments at `offset`, or at the end of a file opened with `O_APPEND`: bytes that others go on to
    /// share are written without a copy. Completes with the count, which may be short, and gives the segments back:
    /// [`Payload::Segments`]. Not for files open with `O_DIRECT`, whose memory must be aligned, as a [`Buf`]'s is.
    WriteSegments {
        /// The file.
        file: Fd,
        /// Byte offset in the file.
        offset: u64,
        /// The content.
        data: Segments,
        /// The device that counts the operation.
        device: DeviceId,
        /// The backend.
        via: DiskVia,
    },
    /// Makes a whole file out of bytes, or finishes one, and gives it its name: several calls that follow one another, by
    /// one thread. Completes with 0 and gives everything back: [`Payload::NewFile`]. Of a file that it began nothing is
    /// left after an error.
    Put {
        /// What is made.
        new: Box<NewFile>,
        /// The device that counts the operation.
        device: DeviceId,
        /// The backend.
        via: DiskVia,
    },
    /// Removes a file or an empty folder.
    Unlink {
        /// The path.
        path: CString,
        /// Whether it is a folder (`AT_REMOVEDIR`).
        folder: bool,
        /// The device that counts the operation.
        device: DeviceId,
        /// The backend.
        via: DiskVia,
    },
    /// Renames a file or folder; what has the new name is replaced.
    Rename {
        /// The old path.
        from: CString,
        /// The new path.
        to: CString,
        /// The device that counts the operation.
        device: DeviceId,
        /// The backend.
        via: DiskVia,
    },
    /// Makes a folder.
    MkDir {
        /// The path.
        path: CString,
        /// Permission bits, less the process's umask.
        mode: u32,
        /// The device that counts the operation.
        device: DeviceId,
        /// The backend.
        via: DiskVia,
    },
    /// Gives an open file a name, `EEXIST` where the name is taken: also one that has none yet (`O_TMPFILE`).
    Link {
        /// The file.
        file: Fd,
        /// Its new path, on the same file system.
        to: CString,
        /// The device that counts the operation.
        device: DeviceId,
        /// The backend.
        via: DiskVia,
    },
    /// Cuts a file, or makes it longer with a hole (ftruncate).
    Truncate {
        /// The file, open for writing.
        file: Fd,
        /// Its new length in bytes.
        len: u64,
        /// The device that counts the operation.
        device: DeviceId,
        /// The backend.
        via: DiskVia,
    },
    /// Reserves disk space for a range of a file (fallocate), so that writing there cannot fail for want of it.
    /// `EOPNOTSUPP` where the file system cannot.
    Allocate {
        /// The file, open for writing.
        file: Fd,
        /// Byte offset in the file.
        offset: u64,
        /// Bytes.
        len: u64,
        /// Whether the file's length stays as it is (`FALLOC_FL_KEEP_SIZE`).
        keep_size: bool,
        /// The device that counts the operation.
        device: DeviceId,
        /// The backend.
        via: DiskVia,
    },
    /// Tells the kernel how a range of a file will be used (posix_fadvise(2)).
    Advise {
        /// The file.
        file: Fd,
        /// Byte offset in the file.
        offset: u64,
        /// Bytes; 0 for all up to the end.
        len: u32,
        /// The advice.
        advice: Advice,
        /// The device that counts the operation.
        device: DeviceId,
        /// The backend.
        via: DiskVia,
    },
    /// Space on the file system of a file: [`Payload::Space`]. A ring has nothing like it, so it is a thread's work
    /// there.
    Space {
        /// A file or folder on it.
        target: StatTarget,
        /// The device that counts the operation.
        device: DeviceId,
        /// The backend.
        via: DiskVia,
    },
    /// Writes a file's data to the device (fdatasync).
    Sync {
        /// The file.
        file: Fd,
        /// The device that counts the operation.
        device: DeviceId,
        /// The backend.
        via: DiskVia,
    },
}

impl Op {
    /// What an operation that failed or was cancelled gives back: the memory that its caller lent it.
    pub(crate) fn into_payload(self) -> Payload {
        match self {
            Op::Recv { into: RecvInto::Owned(buf), .. } | Op::Read { buf, .. } | Op::Write { buf, .. } => {
                Payload::Buf(buf)
            }
            Op::Send { data, .. } | Op::WriteSegments { data, .. } => Payload::Segments(data),
            Op::Put { new, .. } => Payload::NewFile(new),
            _ => Payload::None,
        }
    }

    /// The disk backend that was asked for and the device that counts; `None` for the network.
    pub(crate) fn disk(&self) -> Option<(DiskVia, DeviceId)> {
        match self {
            Op::Open { via, device, .. }
            | Op::Stat { via, device, .. }
            | Op::Read { via, device, .. }
            | Op::Write { via, device, .. }
            | Op::Sendfile { via, device, .. }
            | Op::ReadDir { via, device, .. }
            | Op::StatMany { via, device, .. }
            | Op::WriteSegments { via, device, .. }
            | Op::Put { via, device, .. }
            | Op::Unlink { via, device, .. }
            | Op::Rename { via, device, .. }
            | Op::MkDir { via, device, .. }
            | Op::Link { via, device, .. }
            | Op::Truncate { via, device, .. }
            | Op::Allocate { via, device, .. }
            | Op::Advise { via, device, .. }
            | Op::Space { via, device, .. }
            | Op::Sync { via, device, .. } => Some((*via, *device)),
            Op::Nop
            | Op::Accept { .. }
            | Op::Recv { .. }
            | Op::Send { .. }
            | Op::Connect { .. }
            | Op::Poll { .. }
            | Op::Close { .. } => None,
        }
    }

    /// The file whose bytes the operation moves.
    pub(crate) fn moved_file(&self) -> Option<&Fd> {
        match self {
            Op::Read { file, .. } | Op::Write { file, .. } | Op::WriteSegments { file, .. } => Some(file),
            _ => None,
        }
    }

    /// Whether this is more than one call of the kernel, or a call that no ring has: work for a thread.
    pub(crate) fn needs_thread(&self) -> bool {
        match self {
            Op::Sendfile { .. } | Op::ReadDir { .. } | Op::StatMany { .. } => true,
            Op::Space { .. } | Op::Put { .. } => true,
            Op::Open { how, .. } => how.same_owner,
            _ => false,
        }
    }
}

/// A file that [`Op::Put`] makes.
#[derive(Debug)]
pub struct NewFile {
    /// Its name until it is whole.
    pub temp: CString,
    /// Its name then; what has that is replaced.
    pub to: CString,
    /// The file that has the first name, where it was begun before; else it is made, and must not be there.
    pub begun: Option<Fd>,
    /// Permission bits of one that is made, less the process's umask.
    pub mode: u32,
    /// What is written at its start.
    pub data: Vec<Segments>,
    /// Whether that is to leave the page cache, where the file system can ([`Fd::set_uncached`]).
    pub uncached: bool,
}

/// Smallest buffer of [`Op::ReadDir`]: a record with the longest name takes about 280 bytes.
pub const READ_DIR_BYTES_MIN: u32 = 1024;

/// How a range of a file will be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// Not again soon: pages that are written to the device leave the page cache (`POSIX_FADV_DONTNEED`).
    DontNeed,
    /// Soon: the kernel begins to read it (`POSIX_FADV_WILLNEED`).
    WillNeed,
}

/// Space on a file system (statvfs(3)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// Bytes of a block, the unit in which files take space.
    pub block_bytes: u64,
    /// Bytes of all blocks.
    pub total_bytes: u64,
    /// Bytes of the blocks that are free to anybody, without those kept for the superuser.
    pub available_bytes: u64,
    /// Files that can still be made; 0 as well where the file system does not count them.
    pub available_files: u64,
}

impl From<rustix::fs::StatVfs> for Space {
    fn from(found: rustix::fs::StatVfs) -> Space {
        let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
        Space {
            block_bytes: found.f_frsize,
            total_bytes: bytes(found.f_blocks),
            available_bytes: bytes(found.f_bavail),
            available_files: found.f_favail,
        }
    }
}

/// What [`Op::Stat`] and [`Op::Space`] look at.
#[derive(Debug)]
pub enum StatTarget {
    /// An open file.
    File(Fd),
    /// A path, followed through symbolic links.
    Path(CString),
}

/// The facts about a file that serving it needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stat {
    /// Bytes.
    pub size: u64,
    /// Bytes that it takes on the device: fewer than its size where it has holes.
    pub allocated: u64,
    /// Last modification, seconds since 1970.
    pub modified: i64,
    /// Nanoseconds of the last modification.
    pub modified_nanos: u32,
    /// Last change of content, owner, mode or links (`st_ctime`), in seconds since 1970 and nanoseconds.
    pub changed: (i64, u32),
    /// Names that it has; 0 once it was removed.
    pub links: u32,
    /// Inode number.
    pub inode: u64,
    /// Device that holds the file.
    pub device: DeviceId,
    /// File type and permission bits (`st_mode`).
    pub mode: u32,
}

impl From<rustix::fs::Stat> for Stat {
    fn from(found: rustix::fs::Stat) -> Stat {
        Stat {
            size: found.st_size as u64,
            // In units of 512 whatever the file system's block is (stat(2)).
            allocated: found.st_blocks as u64 * 512,
            modified: found.st_mtime,
            modified_nanos: found.st_mtime_nsec as u32,
            changed: (found.st_ctime, found.st_ctime_nsec as u32),
            links: found.st_nlink as u32,
            inode: found.st_ino,
            device: DeviceId(found.st_dev),
            mode: found.st_mode,
        }
    }
}

/// How the entries of a folder are looked at while they are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryLook {
    /// Not at all: the names with their kinds.
    Kind,
    /// Each itself, links not followed.
    Itself,
    /// What each leads to, and a link itself where that is nothing.
    Followed,
}

/// One entry of a folder. The folder itself and the one above it are left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    /// The name, without a path.
    pub name: Box<[u8]>,
    /// The type bits of a mode (`S_IFMT`) of the entry itself, links not followed; 0 where it vanished before it
    /// could be looked at, on a file system that does not tell with the name.
    pub kind: u32,
    /// Its number on the file system. What is looked at in the order of these is read in the order of the disk.
    pub inode: u64,
    /// What was found by [`EntryLook`]; `None` when nothing was asked for.
    pub stat: Option<Result<Stat, Errno>>,
}

/// What comes back with a completion.
#[derive(Debug, Default)]
pub enum Payload {
    /// Nothing.
    #[default]
    None,
    /// A received or read buffer, or the one that was written.
    Buf(Buf),
    /// The segments of a send or a write.
    Segments(Segments),
    /// What [`Op::Put`] was given.
    NewFile(Box<NewFile>),
    /// A new connection.
    Accepted(OwnedFd),
    /// An open file.
    Opened(OwnedFd),
    /// Facts about a file. Boxed as all that is large and rare: each completion has room for the largest of these.
    Stat(Box<Stat>),
    /// Entries of a folder.
    Entries(Vec<DirEntry>),
    /// What was found at many names.
    Stats(Vec<Result<Stat, Errno>>),
    /// Space on a file system.
    Space(Box<Space>),
}

/// The end of an operation, or one of several results of it.
#[derive(Debug)]
pub struct Completion {
    /// Which operation.
    pub id: OpId,
    /// The count or 0, or what went wrong.
    pub result: Result<u32, Errno>,
    /// Whether further completions of the same operation follow. Each operation has exactly one
    /// completion without it, its terminal one.
    pub more: bool,
    /// What comes back.
    pub payload: Payload,
}

// Both are moved from place to place on their way; what is larger is boxed.
const _: () = assert!(size_of::<Op>() <= 64 && size_of::<Completion>() <= 56);
