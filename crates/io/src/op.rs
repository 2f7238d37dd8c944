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
pub use crate::facts::{DirEntry, EntryAttributes, Space, Stat, is_local};
pub use crate::fd::Fd;
pub(crate) use crate::fd::WeakFd;
pub(crate) use crate::segments::Ends;
pub use crate::segments::{SEGMENTS_MAX, Segment, Segments, Source};

/// Identifier of an operation in flight, in the engine's table.
pub type OpId = crate::slab::Key;

/// The device that a file is on (`st_dev`). Limits per device keep a slow device from occupying every kernel worker and
/// pool thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct DeviceId(pub u64);

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

/// The event that [`Op::Poll`] waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// Data, a new connection or the end of the stream.
    Readable,
    /// Space in the send buffer.
    Writable,
    /// End of the peer's data, or of the connection. Data does not complete the wait and is not consumed.
    HangUp,
}

/// An I/O operation. It is an enum and not a trait: io_uring builds the submission entries of all operations in one
/// match, and the other backends make the system calls in another match.
#[derive(Debug, Default)]
pub enum Op {
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
    /// Opens a file: [`Payload::Opened`].
    Open {
        /// The directory that a relative path starts from; `None` is the working directory.
        dir: Option<Fd>,
        /// The path.
        path: CString,
        /// Flags.
        how: OpenHow,
        /// The device whose limit on concurrent operations applies.
        device: DeviceId,
        /// The backend.
        via: DiskVia,
    },
    /// Returns size, times and kind of a file: [`Payload::Stat`].
    Stat {
        /// The file.
        target: StatTarget,
        /// The device whose limit on concurrent operations applies.
        device: DeviceId,
        /// The backend.
        via: DiskVia,
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
        /// The device whose limit applies if the read cannot complete immediately.
        device: DeviceId,
        /// The backend.
        via: DiskVia,
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
        /// The device whose limit on concurrent operations applies.
        device: DeviceId,
        /// The backend.
        via: DiskVia,
    },
    /// Moves at most `len` bytes from a file to a socket without passing through user space (sendfile). Completes with
    /// the count, or with `EAGAIN` when the socket's send buffer is full (wait with [`Op::Poll`]).
    Sendfile {
        /// The connected socket.
        socket: Fd,
        /// The file.
        file: Fd,
        /// Byte offset in the file.
        offset: u64,
        /// Requested bytes.
        len: u32,
        /// The device whose limit on concurrent operations applies.
        device: DeviceId,
        /// The backend: `Sync` for bytes known to be resident, else a pool. With any other value the first pool
        /// executes the operation.
        via: DiskVia,
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
        /// The device whose limit on concurrent operations applies.
        device: DeviceId,
        /// The backend.
        via: DiskVia,
    },
    /// Calls stat on many names below a directory without following links: [`Payload::Stats`], one per name in the same
    /// order. Completes with their number. io_uring would need one operation per name and would pass each to a kernel
    /// worker.
    StatMany {
        /// The directory that the names are relative to.
        dir: Fd,
        /// The names; their number bounds the time for which a thread is occupied.
        names: Arc<[CString]>,
        /// The device whose limit on concurrent operations applies.
        device: DeviceId,
        /// The backend.
        via: DiskVia,
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
        /// The device whose limit on concurrent operations applies.
        device: DeviceId,
        /// The backend.
        via: DiskVia,
    },
    /// Creates and writes a new file, or completes `NewFile::open_temp`, and gives it its final name: several system calls
    /// in a row by one thread. Completes with 0 and returns all arguments: [`Payload::NewFile`]. After an error, a file
    /// that this operation created is removed.
    Put {
        /// The arguments.
        new: Box<NewFile>,
        /// The device whose limit on concurrent operations applies.
        device: DeviceId,
        /// The backend.
        via: DiskVia,
    },
    /// Removes a file or an empty directory.
    Unlink {
        /// The directory that a relative path starts from; `None` is the working directory.
        dir: Option<Fd>,
        /// The path.
        path: CString,
        /// Whether the path is a directory (`AT_REMOVEDIR`).
        is_directory: bool,
        /// The device whose limit on concurrent operations applies.
        device: DeviceId,
        /// The backend.
        via: DiskVia,
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
        /// The device whose limit on concurrent operations applies.
        device: DeviceId,
        /// The backend.
        via: DiskVia,
    },
    /// Creates a directory.
    MkDir {
        /// The directory that a relative path starts from; `None` is the working directory.
        dir: Option<Fd>,
        /// The path.
        path: CString,
        /// Permission bits, before the process's umask is applied.
        mode: u32,
        /// The device whose limit on concurrent operations applies.
        device: DeviceId,
        /// The backend.
        via: DiskVia,
    },
    /// Gives an open file a name, also an unnamed file (`O_TMPFILE`); fails with `EEXIST` if the name is taken.
    Link {
        /// The file.
        file: Fd,
        /// Its new path, on the same file system.
        to: CString,
        /// The device whose limit on concurrent operations applies.
        device: DeviceId,
        /// The backend.
        via: DiskVia,
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
        /// The device whose limit on concurrent operations applies.
        device: DeviceId,
        /// The backend.
        via: DiskVia,
    },
    /// Returns the free and total space of a file's file system: [`Payload::Space`]. io_uring has no such operation, so
    /// a thread does it.
    Space {
        /// A file or directory on the file system.
        target: StatTarget,
        /// The device whose limit on concurrent operations applies.
        device: DeviceId,
        /// The backend.
        via: DiskVia,
    },
    /// Flushes a file's data to the device (fdatasync).
    Sync {
        /// The file.
        file: Fd,
        /// The device whose limit on concurrent operations applies.
        device: DeviceId,
        /// The backend.
        via: DiskVia,
    },
}

impl Op {
    /// Moves the memory that the caller lent into `payload`, the payload of the completion. The count in `result` sets
    /// the length of received content. No other function returns the resources of an operation. It writes in place,
    /// because moving a finished payload would stall on its memory (decision 0015).
    #[inline]
    pub(crate) fn return_resources(&mut self, result: Result<u32, Errno>, payload: &mut Payload) {
        match self {
            Op::Send { data, .. } | Op::WriteSegments { data, .. } => {
                debug_assert!(
                    !result.is_ok_and(|count| count as usize > data.len()),
                    "the count of a send is at most its length"
                );
                *payload = Payload::Segments(std::mem::take(data));
            }
            Op::Nop | Op::Recv { into: RecvInto::Pool | RecvInto::Large | RecvInto::Stream, .. } => {}
            _ => *payload = std::mem::take(self).into_lent_payload(result),
        }
    }

    fn into_lent_payload(self, result: Result<u32, Errno>) -> Payload {
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
                assert!(count <= buf.len(), "the count of a write is at most its length");
                Payload::Buf(buf)
            }
            Op::Put { new, .. } => Payload::NewFile(new),
            Op::Close { fd } => {
                // close(2) releases the descriptor whatever it returns. A cancelled operation never called close.
                if result != Err(Errno::CANCELED) {
                    let _closed = fd.into_raw_fd();
                }
                Payload::None
            }
            _ => Payload::None,
        }
    }

    /// Returns the payload of an operation that was not passed to a backend.
    pub(crate) fn into_payload(mut self) -> Payload {
        let mut payload = Payload::None;
        self.return_resources(Err(Errno::CANCELED), &mut payload);
        payload
    }

    /// Returns the requested disk backend and the device whose limit applies; `None` for network operations.
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

    /// Returns kind and device of the operation; `None` for network operations.
    pub fn on_disk(&self) -> Option<(DiskKind, DeviceId)> {
        let (_, device) = self.disk()?;
        let kind = match self {
            Op::Open { .. } => DiskKind::Open,
            Op::Stat { .. } | Op::StatMany { .. } => DiskKind::Stat,
            Op::Read { .. } => DiskKind::Read,
            Op::Write { .. } | Op::WriteSegments { .. } | Op::Put { .. } => DiskKind::Write,
            Op::Sendfile { .. } => DiskKind::Sendfile,
            Op::Unlink { .. } | Op::Rename { .. } | Op::MkDir { .. } | Op::Link { .. } => DiskKind::Names,
            Op::Sync { .. } => DiskKind::Sync,
            _ => DiskKind::Other,
        };
        Some((kind, device))
    }

    /// Returns the file that the operation reads or writes.
    pub(crate) fn moved_file(&self) -> Option<&Fd> {
        match self {
            Op::Read { file, .. } | Op::Write { file, .. } | Op::WriteSegments { file, .. } => Some(file),
            _ => None,
        }
    }

    /// Whether the operation consists of several system calls, or of a call that io_uring does not support: a thread
    /// executes it.
    pub(crate) fn needs_thread(&self) -> bool {
        match self {
            Op::Sendfile { .. } | Op::ReadDir { .. } | Op::StatMany { .. } => true,
            Op::Space { .. } | Op::Put { .. } => true,
            Op::Open { how, .. } => how.same_owner,
            _ => false,
        }
    }
}

/// The arguments of [`Op::Put`]: a file to create.
#[derive(Debug)]
pub struct NewFile {
    /// Temporary path until the file is complete.
    pub temp: CString,
    /// Final path; an existing file with that name is replaced.
    pub to: CString,
    /// The open file at `temp`, if it was created before. With `None`, [`Op::Put`] creates `temp`, which must not
    /// exist.
    pub open_temp: Option<Fd>,
    /// Permission bits of a file that is created, before the umask is applied.
    pub mode: u32,
    /// Data to write at the start of the file.
    pub data: Vec<Segments>,
    /// Whether the data leaves the page cache after the write, where the file system supports that
    /// ([`Fd::set_uncached`]).
    pub uncached: bool,
}

/// Smallest buffer of [`Op::ReadDir`] in bytes: a record with the longest name needs about 280 bytes.
pub const READ_DIR_BYTES_MIN: u32 = 1024;

/// The file of [`Op::Stat`] and [`Op::Space`].
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
    /// The arguments of [`Op::Put`].
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
const _: () = assert!(size_of::<Op>() <= 64 && size_of::<Completion>() <= 64);
