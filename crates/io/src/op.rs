//! Operations of an engine, and their completions.
//!
//! An [`Op`] owns all memory and descriptors that the kernel may touch while the operation is in flight; its
//! [`Completion`] returns them. The engine never borrows memory from its caller.

use std::ffi::CString;
use std::net::SocketAddr;
use std::os::fd::{IntoRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

use rustix::io::Errno;

use crate::buf::Buf;
use crate::facts::{DeviceId, DirEntry, EntryAttributes, Space, Stat};
use crate::fd::Fd;
use crate::segments::Segments;

/// Identifier of an operation in flight, in the engine's table.
pub type OpId = crate::slab::Key;

/// The disk backend that carries out an operation on a file or path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DiskVia {
    /// io_uring.
    Ring,
    /// Linux native AIO, for direct reads only; the first thread pool executes all other operations.
    Libaio,
    /// The thread pool with this index in [`crate::engine::EngineConfig::pools`].
    Pool(u8),
    /// A blocking call on the worker thread.
    Sync,
}

/// The device and the backend of an operation on a file or path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Disk {
    /// The device whose limit on concurrent operations applies.
    pub device: DeviceId,
    /// The backend.
    pub via: DiskVia,
}

/// Kind of an operation on a file or path, for metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskKind {
    /// Opens a file.
    Open,
    /// Reads the metadata of a file.
    Stat,
    /// Reads from a file.
    Read,
    /// Writes to a file.
    Write,
    /// Sends a file to a socket.
    Sendfile,
    /// Creates, renames or removes files and directories.
    Names,
    /// Makes the data of a file durable.
    Sync,
    /// Another operation.
    Other,
}

impl DiskKind {
    /// Number of kinds.
    pub const COUNT: usize = DiskKind::Other as usize + 1;
}

/// Destination of received bytes.
#[derive(Debug)]
pub enum RecvInto {
    /// Into this buffer, behind its content, up to its capacity. The completion returns the buffer with old and new
    /// content; the result counts the new bytes only.
    Owned(Buf),
    /// Into a buffer that the engine picks when data arrives: an idle connection holds no buffer.
    Pool,
    /// As `Pool`, but with a buffer of [`RECV_LARGE_BYTES`] if one is available: for peers that send bodies. A response
    /// of some KiB then needs a single receive.
    Large,
    /// As `Pool`, repeatedly (multishot) until the operation is cancelled or a completion without `more` arrives.
    Stream,
}

/// Size in bytes of the buffers of [`RecvInto::Large`], enough for a header section and an HTML page. The size is a
/// class of the buffer pool.
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
    /// Whether each symbolic link of the path must have the same owner as its target; otherwise the open fails with
    /// `ELOOP`. No single system call checks that, so a thread opens the file, whatever the backend.
    pub same_owner: bool,
    /// Whether the path is unlikely to be in the dentry cache. io_uring then passes the open to a kernel worker
    /// immediately (`IOSQE_ASYNC`), without a first non-blocking attempt that would fail after half of the lookup.
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

/// The event that [`NetOp::Poll`] waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// Data, a new connection or the end of the stream.
    Readable,
    /// Space in the send buffer.
    Writable,
    /// End of the peer's data, or of the connection. Data does not complete the wait and is not consumed.
    HangUp,
}

/// An I/O operation. Operations are enums and not traits: io_uring builds their submission entries in a match, and the
/// other backends make their system calls in another match.
#[derive(Debug)]
pub enum Op {
    /// An operation on a socket or another descriptor, for the network backend.
    Net(NetOp),
    /// An operation on a file or path.
    Disk {
        /// Its device and its backend.
        at: Disk,
        /// The operation.
        op: DiskOp,
    },
}

/// An operation of the network backend.
#[derive(Debug, Default)]
pub enum NetOp {
    /// No operation; completes with 0.
    #[default]
    Nop,
    /// Accepts a connection from a listening socket, close-on-exec and non-blocking: [`Payload::Accepted`]. With
    /// `multishot`, accepts repeatedly; only for a socket that no other thread accepts from.
    Accept {
        /// The listening socket.
        listener: Fd,
        /// Whether to continue after the first connection (multishot).
        multishot: bool,
    },
    /// Receives bytes from a socket: [`Payload::Buf`]; a result of 0 is the end of the stream.
    Recv {
        /// The connected socket.
        socket: Fd,
        /// The destination of the bytes.
        into: RecvInto,
    },
    /// Sends bytes to a socket. Completes with the number of bytes sent, which may be less than requested, and returns
    /// the segments. With `zero_copy`, a first completion with `more` carries the count, and the terminal completion
    /// returns the segments.
    Send {
        /// The connected socket.
        socket: Fd,
        /// The bytes.
        data: Segments,
        /// Whether more data follows immediately (`MSG_MORE`).
        more: bool,
        /// Whether the kernel may send from the buffers without copying them (zero-copy); engines without zero-copy
        /// sends copy.
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
    /// Closes a descriptor; completes with 0.
    Close {
        /// The descriptor, which has no other owner.
        fd: OwnedFd,
    },
}

/// An operation on a file or path. An operation that io_uring does not support, or that consists of several system
/// calls, is executed by a thread.
#[derive(Debug)]
pub enum DiskOp {
    /// Opens a file: [`Payload::Opened`].
    Open {
        /// The directory that a relative path starts from; `None` is the working directory.
        dir: Option<Fd>,
        /// The path.
        path: CString,
        /// Flags.
        how: OpenHow,
    },
    /// Returns size, times and kind of a file: [`Payload::Stat`].
    Stat {
        /// The file.
        target: StatTarget,
    },
    /// Reads at most `len` bytes at `offset` into the start of the buffer and sets the buffer's length to the count:
    /// [`Payload::Buf`]. A result of 0 is the end of the file. A count below `len` is legal at any offset.
    Read {
        /// The file.
        file: Fd,
        /// Byte offset in the file; a multiple of the alignment when the file is open with `O_DIRECT`.
        offset: u64,
        /// Requested bytes, at most the buffer's capacity.
        len: u32,
        /// The buffer.
        buf: Buf,
    },
    /// Writes the buffer's content at `offset`, or at the end of a file opened with `O_APPEND`; returns the buffer:
    /// [`Payload::Buf`].
    Write {
        /// The file.
        file: Fd,
        /// Byte offset in the file.
        offset: u64,
        /// The content.
        buf: Buf,
    },
    /// Moves at most `len` bytes from a file to a socket without passing through user space (sendfile). Completes with
    /// the count, or with `EAGAIN` when the socket's send buffer is full (wait with [`NetOp::Poll`]). The backend is
    /// [`DiskVia::Sync`] for bytes known to be resident, else a pool; instead of any other, the first pool executes it.
    Sendfile {
        /// The connected socket.
        socket: Fd,
        /// The file.
        file: Fd,
        /// Byte offset in the file.
        offset: u64,
        /// Requested bytes.
        len: u32,
    },
    /// Reads the next entries of a directory, as many as the kernel puts into a buffer of `bytes_max`:
    /// [`Payload::Entries`]. Continues where the previous `ReadDir` on the same open directory ended. Completes with
    /// the number of entries; 0 is the end. io_uring has no such operation, so a thread does it.
    ReadDir {
        /// The directory, open for reading.
        dir: Fd,
        /// Size of the buffer for names and their records in bytes, at least [`READ_DIR_BYTES_MIN`]; bounds the time
        /// for which a thread is occupied.
        bytes_max: u32,
        /// The attributes to return of each entry.
        attributes: EntryAttributes,
    },
    /// Calls stat on many names below a directory without following links: [`Payload::Stats`], one per name in the same
    /// order. Completes with their number. io_uring would need one operation per name and would pass each to a kernel
    /// worker.
    StatMany {
        /// The directory that the names are relative to.
        dir: Fd,
        /// The names; their number bounds the time for which a thread is occupied.
        names: Arc<[CString]>,
    },
    /// Writes the segments at `offset`, or at the end of a file opened with `O_APPEND`, without copying bytes that
    /// other owners share. Completes with the count, which may be less than requested, and returns the segments:
    /// [`Payload::Segments`]. Not for files open with `O_DIRECT`, which need aligned memory such as that of a [`Buf`].
    WriteSegments {
        /// The file.
        file: Fd,
        /// Byte offset in the file.
        offset: u64,
        /// The content.
        data: Segments,
    },
    /// Creates and writes a new file, or completes `NewFile::open_temp`, and gives it its final name: several system calls
    /// in a row by one thread. Completes with 0 and returns all arguments: [`Payload::NewFile`]. After an error, nothing is
    /// left of a file that this operation created.
    Put {
        /// The arguments.
        new: Box<NewFile>,
    },
    /// Removes a file or an empty directory.
    Unlink {
        /// The directory that a relative path starts from; `None` is the working directory.
        dir: Option<Fd>,
        /// The path.
        path: CString,
        /// Whether the path is a directory (`AT_REMOVEDIR`).
        is_directory: bool,
    },
    /// Renames a file or directory and replaces an existing file with the new name.
    Rename {
        /// The directory that a relative old path starts from; `None` is the working directory.
        from_dir: Option<Fd>,
        /// The old path.
        from: CString,
        /// The directory that a relative new path starts from; `None` is the working directory.
        to_dir: Option<Fd>,
        /// The new path.
        to: CString,
    },
    /// Creates a directory.
    MkDir {
        /// The directory that a relative path starts from; `None` is the working directory.
        dir: Option<Fd>,
        /// The path.
        path: CString,
        /// Permission bits, before the process's umask is applied.
        mode: u32,
    },
    /// Gives an open file a name, also an unnamed file (`O_TMPFILE`); fails with `EEXIST` if the name is taken.
    Link {
        /// The file.
        file: Fd,
        /// Its new path, on the same file system.
        to: CString,
    },
    /// Announces to the kernel that a range of a file will be used soon, so that it starts readahead (posix_fadvise(2),
    /// `POSIX_FADV_WILLNEED`).
    Advise {
        /// The file.
        file: Fd,
        /// Byte offset in the file.
        offset: u64,
        /// Number of bytes; 0 means up to the end of the file.
        len: u32,
    },
    /// Returns the free and total space of a file's file system: [`Payload::Space`]. io_uring has no such operation, so
    /// a thread does it.
    Space {
        /// A file or directory on the file system.
        target: StatTarget,
    },
    /// Flushes a file's data to the device (fdatasync).
    Sync {
        /// The file.
        file: Fd,
    },
}

impl Op {
    /// The operation that only completes.
    pub const NOP: Op = Op::Net(NetOp::Nop);

    /// Moves the memory that the caller lent into `payload`, the payload of the completion. The count in `result` sets
    /// the length of received content. No other function returns the resources of an operation. It writes in place,
    /// because moving a finished payload would stall on its memory (docs/experiments/0015-operations-filled-in-place.md).
    #[inline]
    pub(crate) fn return_resources(&mut self, result: Result<u32, Errno>, payload: &mut Payload) {
        match self {
            Op::Net(NetOp::Send { data, .. }) | Op::Disk { op: DiskOp::WriteSegments { data, .. }, .. } => {
                debug_assert!(
                    !result.is_ok_and(|count| count as usize > data.len()),
                    "the count of a send is at most its length"
                );
                *payload = Payload::Segments(std::mem::take(data));
            }
            Op::Net(
                NetOp::Nop | NetOp::Recv { into: RecvInto::Pool | RecvInto::Large | RecvInto::Stream, .. },
            ) => {}
            _ => *payload = std::mem::take(self).into_lent_payload(result),
        }
    }

    fn into_lent_payload(self, result: Result<u32, Errno>) -> Payload {
        match self {
            Op::Net(op) => op.into_lent_payload(result),
            Op::Disk { op, .. } => op.into_lent_payload(result),
        }
    }

    /// Returns the payload of an operation that was not passed to a backend.
    pub(crate) fn into_payload(mut self) -> Payload {
        let mut payload = Payload::None;
        self.return_resources(Err(Errno::CANCELED), &mut payload);
        payload
    }

    /// Returns kind and device of the operation; `None` for network operations.
    pub fn on_disk(&self) -> Option<(DiskKind, DeviceId)> {
        match self {
            Op::Net(_) => None,
            Op::Disk { at, op } => Some((op.kind(), at.device)),
        }
    }
}

impl Default for Op {
    fn default() -> Op {
        Op::NOP
    }
}

impl NetOp {
    fn into_lent_payload(self, result: Result<u32, Errno>) -> Payload {
        match self {
            NetOp::Recv { into: RecvInto::Owned(mut buf), .. } => {
                buf.set_len(buf.len() + result.unwrap_or(0) as usize);
                Payload::Buf(buf)
            }
            NetOp::Send { data, .. } => Payload::Segments(data),
            NetOp::Close { fd } => {
                // close(2) releases the descriptor whatever it returns. A cancelled operation never called close.
                if result != Err(Errno::CANCELED) {
                    let _closed = fd.into_raw_fd();
                }
                Payload::None
            }
            _ => Payload::None,
        }
    }
}

impl DiskOp {
    /// Returns the memory that the caller lent as the payload of the completion. The count in `result` sets the length
    /// of content that was read.
    pub(crate) fn into_lent_payload(self, result: Result<u32, Errno>) -> Payload {
        let count = result.unwrap_or(0) as usize;
        match self {
            DiskOp::Read { mut buf, .. } => {
                buf.set_len(count);
                Payload::Buf(buf)
            }
            DiskOp::Write { buf, .. } => {
                assert!(count <= buf.len(), "the count of a write is at most its length");
                Payload::Buf(buf)
            }
            DiskOp::WriteSegments { data, .. } => {
                debug_assert!(count <= data.len(), "the count of a write is at most its length");
                Payload::Segments(data)
            }
            DiskOp::Put { new } => Payload::NewFile(new),
            _ => Payload::None,
        }
    }

    fn kind(&self) -> DiskKind {
        match self {
            DiskOp::Open { .. } => DiskKind::Open,
            DiskOp::Stat { .. } | DiskOp::StatMany { .. } => DiskKind::Stat,
            DiskOp::Read { .. } => DiskKind::Read,
            DiskOp::Write { .. } | DiskOp::WriteSegments { .. } | DiskOp::Put { .. } => DiskKind::Write,
            DiskOp::Sendfile { .. } => DiskKind::Sendfile,
            DiskOp::Unlink { .. } | DiskOp::Rename { .. } | DiskOp::MkDir { .. } | DiskOp::Link { .. } => {
                DiskKind::Names
            }
            DiskOp::Sync { .. } => DiskKind::Sync,
            DiskOp::ReadDir { .. } | DiskOp::Advise { .. } | DiskOp::Space { .. } => DiskKind::Other,
        }
    }

    /// Returns the file that the operation reads or writes.
    pub(crate) fn moved_file(&self) -> Option<&Fd> {
        match self {
            DiskOp::Read { file, .. } | DiskOp::Write { file, .. } | DiskOp::WriteSegments { file, .. } => {
                Some(file)
            }
            _ => None,
        }
    }

    /// Whether the operation is a read that bypasses the page cache.
    pub(crate) fn reads_directly(&self) -> bool {
        matches!(self, DiskOp::Read { file, .. } if file.is_direct())
    }

    /// Whether the operation consists of several system calls, or of a call that io_uring does not support: a thread
    /// executes it.
    pub(crate) fn needs_thread(&self) -> bool {
        match self {
            DiskOp::Sendfile { .. } | DiskOp::ReadDir { .. } | DiskOp::StatMany { .. } => true,
            DiskOp::Space { .. } | DiskOp::Put { .. } => true,
            DiskOp::Open { how, .. } => how.same_owner,
            _ => false,
        }
    }
}

/// The arguments of [`DiskOp::Put`]: a file to create.
#[derive(Debug)]
pub struct NewFile {
    /// Temporary path, needed if the final name is taken or the file system has no unnamed files (`O_TMPFILE`).
    pub temp: CString,
    /// Final path; an existing file with that name is replaced.
    pub to: CString,
    /// The open file at `temp`, if it was created before. With `None`, [`DiskOp::Put`] creates a file, and `temp` must
    /// not exist.
    pub open_temp: Option<Fd>,
    /// Permission bits of a file that is created, before the umask is applied.
    pub mode: u32,
    /// Data to write at the start of the file.
    pub data: Vec<Segments>,
    /// Whether the data leaves the page cache after the write, where the file system supports that
    /// ([`Fd::set_uncached`]).
    pub uncached: bool,
}

/// Smallest buffer of [`DiskOp::ReadDir`] in bytes: a record with the longest name needs about 280 bytes.
pub const READ_DIR_BYTES_MIN: u32 = 1024;

/// The file of [`DiskOp::Stat`] and [`DiskOp::Space`].
#[derive(Debug)]
pub enum StatTarget {
    /// An open file.
    File(Fd),
    /// A path; symbolic links are followed.
    Path(CString),
}

/// The data and resources that a completion returns.
#[derive(Debug, Default)]
pub enum Payload {
    /// No payload.
    #[default]
    None,
    /// The buffer that was received into, read into or written from.
    Buf(Buf),
    /// The segments of a send or a write.
    Segments(Segments),
    /// The arguments of [`DiskOp::Put`].
    NewFile(Box<NewFile>),
    /// A new connection.
    Accepted(OwnedFd),
    /// An open file.
    Opened(OwnedFd),
    /// Attributes of a file. Large and rare payloads are boxed: each completion has room for the largest variant.
    Stat(Box<Stat>),
    /// Entries of a directory.
    Entries(Vec<DirEntry>),
    /// Attributes of many names.
    Stats(Vec<Result<Stat, Errno>>),
    /// Space on a file system.
    Space(Box<Space>),
}

/// The end of an operation, or one of several results of a multishot operation.
#[derive(Debug)]
pub struct Completion {
    /// The operation.
    pub id: OpId,
    /// The number that the caller has submitted the operation with.
    pub token: u64,
    /// The count or 0, or the error.
    pub result: Result<u32, Errno>,
    /// Whether further completions of the same operation follow. Each operation has exactly one completion with `more`
    /// unset, its terminal completion.
    pub more: bool,
    /// The payload.
    pub payload: Payload,
}

// Both are moved several times between queues and tables, so larger fields are boxed.
const _: () = assert!(size_of::<Op>() <= 72 && size_of::<Completion>() <= 64);
