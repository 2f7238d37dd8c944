//! Bodies from files, and the methods to move them to the socket.
//!
//! [`choose`] selects the mover; [`read`], [`sendfile`] and [`shared`] implement them. A body that filters change goes
//! through `exchange::filter` instead, which reads it with the same engine. All movers write to an [`Outlet`], which
//! does the framing of the client's protocol.

pub mod buffer_turns;
pub mod choose;
pub mod outlet;
pub mod pace;
mod page_cache_bypass;
pub mod ranged;
pub mod read;
mod read_quota;
pub mod rules;
mod sendfile;
mod shared;
mod small_files;
pub mod source;

use std::fmt;
use std::future::Future;
use std::ops::Range;
use std::rc::Rc;

use io::facts::DeviceId;
use io::segments::Source;
use io::{Buf, Disk, DiskVia, Errno, Segments, SharedBytes};
use rt::Either;
use smallvec::{SmallVec, smallvec};

use crate::body::rules::FileRules;
use crate::files::{Opened, RootFacts, Roots};
use choose::Mover;
pub use outlet::{Outlet, SendError};
pub use pace::Rate;

/// A body from a file, or from ranges of a file.
pub struct FileBody {
    /// The open file.
    pub file: rt::File,
    /// The disk of the file.
    pub device: DeviceId,
    /// The method by which the bytes reach the socket.
    pub mover: Mover,
    /// Whether the file is read with O_DIRECT; decided when it is sent.
    pub direct: bool,
    /// Whether a small file is resident; `None` until [`small_files`] has checked.
    in_memory: Option<bool>,
    /// Offset of the body in the file, which offsets of pieces are relative to.
    base: u64,
    /// Identifies the file, for [`page_cache_bypass`].
    name: u64,
    /// For a range of a file without a root, such as a cache file: whether direct system calls may bypass the engine.
    calls_directly: Option<bool>,
    /// The root below which the file was opened.
    at: OpenContext,
    /// The pieces to send, in order.
    pub pieces: SmallVec<[Piece; 1]>,
}

impl fmt::Debug for FileBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileBody").field("mover", &self.mover).finish_non_exhaustive()
    }
}

/// The root below which a file was opened, and the rules there.
#[derive(Clone)]
pub struct OpenContext {
    /// The settings for sending its bytes.
    pub rules: FileRules,
    /// The facts of all roots.
    pub roots: Rc<Roots>,
    /// The index of the file's root.
    pub root: usize,
}

/// A single read that fetches a complete body.
pub struct OneRead {
    via: DiskVia,
    chunk: read::Chunk,
    buf: Buf,
}

/// A piece of a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Text between ranges.
    Text(Vec<u8>),
    /// Bytes of the file.
    Range {
        /// The first byte.
        start: u64,
        /// The byte after the last one.
        end: u64,
    },
}

/// File size in bytes from which `read_ahead` applies, as in nginx.
const READ_AHEAD_FROM: u64 = 128 << 10;

/// Maximum length in bytes of a body that is copied after its header section instead of sent by sendfile(2), whose two
/// additional system calls cost more than the copy.
const COPIED_MAX: u64 = 16 << 10;

impl FileBody {
    /// Returns the body of the complete file that was opened for this request.
    pub fn new(opened: Opened, mover: Mover, at: OpenContext) -> FileBody {
        let Opened { file, stat, device } = opened;
        let name = io::page_cache::name_of_file(&stat);
        FileBody { name, ..FileBody::over(at, file, device, mover, 0..stat.size) }
    }

    /// Returns a body that is a range of a file, such as a cache file. `calls_directly` states whether the file is on a
    /// local disk, so that direct system calls do not wait for a file server.
    pub fn of_range(
        file: rt::File,
        device: DeviceId,
        part: Range<u64>,
        mover: Mover,
        calls_directly: bool,
        at: OpenContext,
    ) -> FileBody {
        let calls_directly = Some(calls_directly);
        FileBody { calls_directly, ..FileBody::over(at, file, device, mover, part) }
    }

    /// Returns a body of this range of a file.
    /// Returns the device of the file with the backend of an operation.
    fn disk(&self, via: DiskVia) -> Disk {
        Disk { device: self.device, via }
    }

    fn over(at: OpenContext, file: rt::File, device: DeviceId, mover: Mover, range: Range<u64>) -> FileBody {
        FileBody {
            file,
            device,
            mover,
            direct: false,
            in_memory: None,
            base: range.start,
            name: 0,
            calls_directly: None,
            at,
            pieces: smallvec![Piece::Range { start: 0, end: range.end - range.start }],
        }
    }

    /// Takes the pieces, with their offsets in the file.
    pub fn take_pieces(&mut self) -> SmallVec<[Piece; 1]> {
        let (mut pieces, base) = (std::mem::take(&mut self.pieces), self.base);
        for piece in &mut pieces {
            if let Piece::Range { start, end } = piece {
                (*start, *end) = (*start + base, *end + base);
            }
        }
        pieces
    }

    /// Returns the header section and the complete body of a small resident file that is sent by reading. Other bodies
    /// go through [`send`].
    pub fn try_read(&mut self, head: &mut Vec<u8>, chunk_max: Option<u64>) -> Option<Segments> {
        let most = match self.mover {
            Mover::Read { via, direct: false } if via != DiskVia::Sync => u64::MAX,
            Mover::Resident { .. } => COPIED_MAX,
            _ => return None,
        };
        match self.pieces.as_slice() {
            &[Piece::Range { start, end }] if end - start <= most.min(chunk_max.unwrap_or(most)) => {
                small_files::try_read(self, head, start + self.base..end + self.base)
            }
            _ => None,
        }
    }

    /// Returns the single read of a small file that is sent by reading and not resident. Bodies of several reads go
    /// through [`send`].
    pub fn in_one_read(&mut self, chunk_max: Option<u64>) -> Option<OneRead> {
        let &[Piece::Range { start, end }] = self.pieces.as_slice() else { return None };
        // Checked before the file is prepared: bodies that are sent in pieces prepare it themselves.
        if end - start > read::TRY_READ_MAX || buffer_turns::are_on() {
            return None;
        }
        small_files::turn(self);
        let Mover::Read { via, .. } = self.mover else { return None };
        self.prepare();
        let (chunk, buf) = read::in_one(self, start + self.base..end + self.base, chunk_max)?;
        Some(OneRead { via, chunk, buf })
    }

    /// Reads the complete body and appends it to the header section.
    pub async fn read_after_head(self, head: Vec<u8>, read: OneRead) -> Result<Segments, BodyError> {
        let OneRead { via, chunk, buf } = read;
        let buf = read::from_disk(&self, via, &chunk, buf).await?;
        let mut data = Segments::new();
        data.push(Source::Vec(head));
        data.push_range(Source::Buf(buf), chunk.skip as usize, (chunk.skip + chunk.requested()) as usize);
        Ok(data)
    }

    /// Enables O_DIRECT, if the mover requires it and the file system supports it. Otherwise sets the kernel's readahead
    /// for the reads of a long file (`read_ahead`).
    pub fn prepare(&mut self) {
        self.direct = match self.mover {
            Mover::Read { direct: true, .. } | Mover::Shared { direct: true, .. } => {
                crate::files::set_direct(&self.file).is_ok()
            }
            _ => false,
        };
        let is_long = |piece: &Piece| matches!(piece, Piece::Range { end, .. } if *end > READ_AHEAD_FROM);
        if self.direct || !self.pieces.iter().any(is_long) {
            return;
        }
        if self.read_ahead() {
            self.file.fd().expect_sequential_reads();
        } else if matches!(self.mover, Mover::Read { .. }) && buffer_turns::are_on() {
            // With many bodies, pages from the kernel's readahead are evicted before they are used.
            self.file.fd().expect_random_reads();
        } else if self.is_range() && matches!(self.mover, Mover::Sendfile(_) | Mover::Resident { .. }) {
            // The verification of checksums has disabled readahead for this open file.
            self.file.fd().expect_usual_reads();
        }
    }

    /// Whether the location has `read_ahead` on.
    fn read_ahead(&self) -> bool {
        self.at.rules.read_ahead
    }

    /// Returns the result, or `None` after `send_timeout`.
    async fn in_time<T>(&self, awaited: impl Future<Output = T>) -> Option<T> {
        match rt::select(awaited, rt::sleep_until(rt::now() + self.at.rules.send_timeout)).await {
            Either::Left(it) => Some(it),
            Either::Right(()) => None,
        }
    }

    /// Whether direct system calls may bypass the engine for this file.
    fn calls_directly(&self) -> bool {
        self.calls_directly.unwrap_or_else(|| self.root().calls_directly())
    }

    /// Reads resident bytes with a direct system call, if that is likely to succeed; otherwise reads nothing.
    fn read_resident(&self, offset: u64, len: u32, buf: &mut Buf) -> u32 {
        self.try_resident(|| self.file.read_resident(offset, len, buf)).unwrap_or(0)
    }

    /// As [`FileBody::read_resident`], for a short body: one read serves all requests for it in an event-loop turn.
    fn read_of_turn(&self, offset: u64, len: u32, buf: &mut Buf) -> u32 {
        self.try_resident(|| self.file.read_of_turn(offset, len, buf)).unwrap_or(0)
    }

    /// Returns resident bytes without a copy, if another request has read them in this event-loop turn.
    fn shared_of_turn(&self, offset: u64, len: u32) -> Option<SharedBytes> {
        self.try_resident(|| self.file.shared_of_turn(offset, len)).flatten()
    }

    fn try_resident<T>(&self, read: impl FnOnce() -> Result<T, Errno>) -> Option<T> {
        match self.calls_directly {
            Some(true) => read().ok(),
            Some(false) => None,
            None if self.in_memory == Some(true) => self.root().try_known_resident(read),
            None => self.root().try_resident(read),
        }
    }

    /// Whether this is a range of a file, such as a cache file, whose open file is shared.
    fn is_range(&self) -> bool {
        self.calls_directly.is_some()
    }

    /// Returns the facts of the file's root.
    fn root(&self) -> &RootFacts {
        self.at.roots.of(self.at.root)
    }
}

/// The reason why a body could not be sent completely.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyError {
    /// The client has closed the connection, or is too slow.
    Send(SendError),
    /// The disk failed.
    Read(Errno),
    /// The file has become shorter since it was opened.
    Shrunk {
        /// The current end of the file.
        at: u64,
    },
    /// No buffer is available.
    NoMemory,
    /// The filter of the body failed.
    Filter,
    /// The source of a [`source::BodySource`] failed before the end.
    Broken,
    /// An upstream has reset its HTTP/2 stream with this code.
    Reset(u32),
}

impl From<SendError> for BodyError {
    fn from(error: SendError) -> BodyError {
        BodyError::Send(error)
    }
}

/// Sends `head`, then all pieces.
pub async fn send(outlet: &mut dyn Outlet, head: Vec<u8>, body: &mut FileBody) -> Result<(), BodyError> {
    // As in nginx, only for sendfile(2): a send of bytes in memory specifies itself whether more bytes follow.
    let corks = !matches!(body.mover, Mover::Read { .. });
    if corks {
        outlet.set_cork(true);
    }
    let result = send_pieces(outlet, head, body).await;
    if corks {
        outlet.set_cork(false);
    }
    result
}

async fn send_pieces(outlet: &mut dyn Outlet, head: Vec<u8>, body: &mut FileBody) -> Result<(), BodyError> {
    body.prepare();
    let pieces = body.take_pieces();
    outlet.begin(head);
    let count = pieces.len();
    for (index, piece) in pieces.into_iter().enumerate() {
        let last = index + 1 == count;
        if !outlet.has_space() {
            outlet.flush(true).await?;
        }
        match piece {
            Piece::Text(text) => outlet.push(Source::Vec(text)),
            Piece::Range { start, end } => match body.mover {
                Mover::Read { via, .. } => read::send(outlet, body, via, start..end, last).await?,
                Mover::Resident { otherwise } => match page_cache_bypass::turn(body, &(start..end)) {
                    Some(via) => read::send(outlet, body, via, start..end, last).await?,
                    None => sendfile::send_resident(outlet, body, otherwise, start..end, last).await?,
                },
                Mover::Sendfile(via) => sendfile::send(outlet, body, via, start..end, last).await?,
                // Boxed: the rarest mover has the largest state.
                Mover::Shared { via, chunk, .. } => {
                    Box::pin(shared::send(outlet, body, via, chunk, start..end, last)).await?;
                }
            },
        }
    }
    outlet.flush(false).await?;
    Ok(())
}
