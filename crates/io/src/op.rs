//! Operations of an engine, and their completions.
//!
//! An [`Op`] owns everything that the kernel may touch while it runs; a [`Completion`] gives it back. The
//! engine never borrows memory from its caller.

use std::ffi::CString;
use std::net::SocketAddr;
use std::os::fd::{IntoRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

use rustix::io::Errno;

use crate::buf::Buf;
pub use crate::facts::{DirEntry, EntryLook, Space, Stat, is_local};
pub use crate::fd::Fd;
pub(crate) use crate::fd::WeakFd;
pub(crate) use crate::segments::Ends;
pub use crate::segments::{SEGMENTS_MAX, Segment, Segments, Source};

/// Name of an operation in flight: a slot and its generation, so that a name that has been used up never
/// means the slot's next operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OpId {
    /// Place in the engine's table; dense and small, so that callers can use it as an index.
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
    /// Into this buffer, behind its content, up to its capacity. The buffer comes back with old and new content; the
    /// result counts the new bytes.
    Owned(Buf),
    /// Into a buffer that the engine picks when there is data: a connection that waits costs no memory.
    Pool,
    /// As `Pool`, but a buffer of [`RECV_LARGE_BYTES`] where there is one: for peers that send bodies. A response of
    /// some KiB then takes one receive.
    Large,
    /// As `Pool`, again and again until it is cancelled or a completion without `more` comes.
    Stream,
}

/// Bytes of the buffers of [`RecvInto::Large`]: a header section and a page of HTML. It is a class of the pool.
pub const RECV_LARGE_BYTES: u32 = 16 << 10;

/// How a file is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenHow {
    /// `O_*` access mode and flags; `O_CLOEXEC` is always added.
    pub flags: i32,
    /// Permission bits of a file that is created.
    pub mode: u32,
    /// `RESOLVE_*` flags of openat2(2).
    pub resolve: u64,
    /// Whether each symbolic link of the path must have the same owner as its target; `ELOOP` where one has not. No
    /// single call of the kernel does that, so a thread does it, whatever the backend.
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

/// The event that poll waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// Data, a connection or an end to read.
    Readable,
    /// Room to write.
    Writable,
    /// The end of the peer's bytes, or of the connection. Data does not end the wait and is left alone.
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
        /// Whether to continue after the first connection.
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
        /// The event.
        interest: Interest,
    },
    /// Closes; completes with 0.
    Close {
        /// The descriptor, without another owner.
        fd: OwnedFd,
    },
    /// Opens a file: [`Payload::Opened`].
    Open {
        /// The directory that a relative path starts from; the working directory without one.
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
        /// The file.
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
        /// Requested bytes, at most the buffer's capacity.
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
        /// Requested bytes.
        len: u32,
        /// The device that counts the operation.
        device: DeviceId,
        /// `Sync` for bytes known to be resident, else a pool; the other backends use the first pool.
        via: DiskVia,
    },
    /// The next entries of a directory, as many as the kernel puts into a buffer of `bytes_max`; continues where the
    /// last such operation on the same open directory ended: [`Payload::Entries`]. Completes with their count, 0 is the
    /// end. A ring has nothing like it, so it is a thread's work there.
    ReadDir {
        /// The directory, open for reading.
        dir: Fd,
        /// Bytes of names and their records at once, at least [`READ_DIR_BYTES_MIN`]; bounds how long a thread
        /// is held.
        bytes_max: u32,
        /// The attributes to return of each entry.
        look: EntryLook,
        /// The device that counts the operation.
        device: DeviceId,
        /// The backend.
        via: DiskVia,
    },
    /// Looks at many names below a directory, links not followed: [`Payload::Stats`], one for each name in their order.
    /// Completes with their count. A ring would take one operation for each, and hand it to a thread.
    StatMany {
        /// The directory that the names are relative to.
        dir: Fd,
        /// The names; how many there are bounds how long a thread is held.
        names: Arc<[CString]>,
        /// The device that counts the operation.
        device: DeviceId,
        /// The backend.
        via: DiskVia,
    },
    /// Writes the segments at `offset`, or at the end of a file opened with `O_APPEND`: bytes that are still shared are
    /// written without a copy. Completes with the count, which may be short, and gives the segments back:
    /// [`Payload::Segments`]. Not for files open with `O_DIRECT`, whose memory must be aligned, as that of a [`Buf`]
    /// is.
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
        /// The kind of the new file.
        new: Box<NewFile>,
        /// The device that counts the operation.
        device: DeviceId,
        /// The backend.
        via: DiskVia,
    },
    /// Removes a file or an empty directory.
    Unlink {
        /// The path.
        path: CString,
        /// Whether it is a directory (`AT_REMOVEDIR`).
        folder: bool,
        /// The device that counts the operation.
        device: DeviceId,
        /// The backend.
        via: DiskVia,
    },
    /// Renames a file or directory; an existing file of the new name is replaced.
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
    /// Makes a directory.
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
    /// Reserves disk space for a range of a file (fallocate), so that writing there cannot fail for lack of it.
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
    /// Announces to the kernel how a range of a file will be used (posix_fadvise(2)).
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
        /// A file or directory on it.
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
    /// Puts the memory that the caller lent into the completion with this result, where it lies: the only function that
    /// returns the resources of an operation. A payload that is made elsewhere and moved in would be waited for
    /// (decision 0015).
    #[inline]
    pub(crate) fn give_back(&mut self, result: Result<u32, Errno>, payload: &mut Payload) {
        match self {
            Op::Send { data, .. } | Op::WriteSegments { data, .. } => {
                debug_assert!(
                    !result.is_ok_and(|count| count as usize > data.len()),
                    "no more is sent than there was"
                );
                *payload = Payload::Segments(std::mem::take(data));
            }
            Op::Nop | Op::Recv { into: RecvInto::Pool | RecvInto::Large | RecvInto::Stream, .. } => {}
            _ => *payload = std::mem::replace(self, Op::Nop).into_lent(result),
        }
    }

    fn into_lent(self, result: Result<u32, Errno>) -> Payload {
        let count = result.unwrap_or(0) as usize;
        match self {
            Op::Recv { into: RecvInto::Owned(mut buf), .. } => {
                buf.set_len(buf.len() + count);
                Payload::Buf(buf)
            }
            Op::Read { mut buf, .. } => {
                buf.set_len(count);
                Payload::Buf(buf)
            }
            Op::Write { buf, .. } => {
                assert!(count <= buf.len(), "no more is written than there was");
                Payload::Buf(buf)
            }
            Op::Put { new, .. } => Payload::NewFile(new),
            Op::Close { fd } => {
                // Whatever close(2) returns the number is gone, but not when it was never called.
                if result != Err(Errno::CANCELED) {
                    let _closed = fd.into_raw_fd();
                }
                Payload::None
            }
            _ => Payload::None,
        }
    }

    /// The payload of an operation that no backend has seen.
    pub(crate) fn into_payload(mut self) -> Payload {
        let mut payload = Payload::None;
        self.give_back(Err(Errno::CANCELED), &mut payload);
        payload
    }

    /// The requested disk backend and the device that counts; `None` for the network.
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

    /// The file that the operation reads or writes.
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
    /// Its name then; an existing file of that name is replaced.
    pub to: CString,
    /// The file that has the first name, if it exists: else it is made, and must not be there.
    pub begun: Option<Fd>,
    /// Permission bits of one that is made, less the process's umask.
    pub mode: u32,
    /// The bytes to write at its start.
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

/// The file of [`Op::Stat`] and [`Op::Space`].
#[derive(Debug)]
pub enum StatTarget {
    /// An open file.
    File(Fd),
    /// A path, followed through symbolic links.
    Path(CString),
}

/// The payload of a completion.
#[derive(Debug, Default)]
pub enum Payload {
    /// Nothing.
    #[default]
    None,
    /// A received or read buffer, or the one that was written.
    Buf(Buf),
    /// The segments of a send or a write.
    Segments(Segments),
    /// The arguments of [`Op::Put`].
    NewFile(Box<NewFile>),
    /// A new connection.
    Accepted(OwnedFd),
    /// An open file.
    Opened(OwnedFd),
    /// Facts about a file. Boxed as all that is large and rare: each completion has room for the largest of these.
    Stat(Box<Stat>),
    /// Entries of a directory.
    Entries(Vec<DirEntry>),
    /// Attributes of many names.
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
    /// The payload.
    pub payload: Payload,
}

// Both are moved from place to place on their way; larger fields are boxed.
const _: () = assert!(size_of::<Op>() <= 64 && size_of::<Completion>() <= 56);
