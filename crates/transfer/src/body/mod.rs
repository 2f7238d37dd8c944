//! Bodies that come from files, and the ways to move them to the socket.
//!
//! [`choose`] selects the mover; [`read`], [`sendfile`] and [`shared`] are the ways. Where modules change the body it
//! goes through `exchange::filter` instead, which reads it by the same engine. All of them end in an [`Outlet`]: the
//! framing of the client's protocol.

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

use io::op::{DeviceId, Source};
use io::{Buf, DiskVia, Errno, Segments, SharedBytes};
use rt::Either;
use smallvec::{SmallVec, smallvec};

use crate::body::rules::FileRules;
use crate::files::{Opened, RootFacts, Roots};
use choose::Mover;
pub use outlet::{Outlet, SendError};
pub use pace::Rate;

/// A file, or pieces of one, as a body.
pub struct FileBody {
    /// The open file.
    pub file: rt::File,
    /// The disk that it is on.
    pub device: DeviceId,
    /// How its bytes get to the socket.
    pub mover: Mover,
    /// Whether the file is read bypassing the page cache, decided when it is sent.
    pub direct: bool,
    /// Whether a short file is in memory, once [`short`] knows.
    in_memory: Option<bool>,
    /// Where the body starts in the file: places of pieces are counted from there.
    base: u64,
    /// Identifies the file, for [`page_cache_bypass`].
    name: u64,
    /// Of a part of a file that is below no root: whether calls beside the engine may be made.
    calls_directly: Option<bool>,
    /// Where it was opened.
    at: Place,
    /// The parts to send, in order.
    pub pieces: SmallVec<[Piece; 1]>,
}

impl fmt::Debug for FileBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileBody").field("mover", &self.mover).finish_non_exhaustive()
    }
}

/// Where a file was opened: the rules there, and the root that it was found under.
#[derive(Clone)]
pub struct Place {
    /// How its bytes move.
    pub rules: FileRules,
    /// The facts of all roots.
    pub roots: Rc<Roots>,
    /// Which of them it is.
    pub root: usize,
}

/// A read that brings all of a body.
pub struct OneRead {
    via: DiskVia,
    chunk: read::Chunk,
    buf: Buf,
}

/// A piece of a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Text between parts.
    Text(Vec<u8>),
    /// Bytes of the file.
    Range {
        /// The first byte.
        start: u64,
        /// The byte after the last one.
        end: u64,
    },
}

/// Smaller files are read at once, or nearly so: nginx's limit.
const READ_AHEAD_FROM: u64 = 128 << 10;

/// Bytes that are copied behind their head though sendfile would not: the two calls that it takes beside the send of the
/// head cost more than the copy.
const COPIED_MAX: u64 = 16 << 10;

impl FileBody {
    /// The whole file that was opened for this request.
    pub fn new(opened: Opened, mover: Mover, at: Place) -> FileBody {
        let Opened { file, stat, device } = opened;
        let name = io::page_cache::name_of_file(&stat);
        FileBody { name, ..FileBody::over(at, file, device, mover, 0..stat.size) }
    }

    /// A body that is a part of a file, such as of one in a cache; `calls_directly` is whether it is on a disk of this
    /// machine, so that direct calls do not wait for a server.
    pub fn of_part(
        file: rt::File,
        device: DeviceId,
        part: Range<u64>,
        mover: Mover,
        calls_directly: bool,
        at: Place,
    ) -> FileBody {
        let calls_directly = Some(calls_directly);
        FileBody { calls_directly, ..FileBody::over(at, file, device, mover, part) }
    }

    /// A body of this range of a file.
    fn over(at: Place, file: rt::File, device: DeviceId, mover: Mover, range: Range<u64>) -> FileBody {
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

    /// Takes the pieces, with their places in the file.
    pub fn take_pieces(&mut self) -> SmallVec<[Piece; 1]> {
        let (mut pieces, base) = (std::mem::take(&mut self.pieces), self.base);
        for piece in &mut pieces {
            if let Piece::Range { start, end } = piece {
                (*start, *end) = (*start + base, *end + base);
            }
        }
        pieces
    }

    /// The header section and the whole body of a small resident file that is sent by reading. Other bodies go through
    /// [`send`].
    pub fn at_hand(&mut self, head: &mut Vec<u8>, chunk_max: Option<u64>) -> Option<Segments> {
        let most = match self.mover {
            Mover::Read { via, direct: false } if via != DiskVia::Sync => u64::MAX,
            Mover::Resident { .. } => COPIED_MAX,
            _ => return None,
        };
        match self.pieces.as_slice() {
            &[Piece::Range { start, end }] if end - start <= most.min(chunk_max.unwrap_or(most)) => {
                small_files::at_hand(self, head, start + self.base..end + self.base)
            }
            _ => None,
        }
    }

    /// The one read of the whole body, if it is a small file that is sent by reading and not resident. A body of more
    /// than one read goes through [`send`].
    pub fn in_one_read(&mut self, chunk_max: Option<u64>) -> Option<OneRead> {
        let &[Piece::Range { start, end }] = self.pieces.as_slice() else { return None };
        // Before the file is prepared: bodies sent in pieces set that themselves, with calls for a long one.
        if end - start > read::AT_HAND_MAX || buffer_turns::are_on() {
            return None;
        }
        small_files::turn(self);
        let Mover::Read { via, .. } = self.mover else { return None };
        self.prepare();
        let (chunk, buf) = read::in_one(self, start + self.base..end + self.base, chunk_max)?;
        Some(OneRead { via, chunk, buf })
    }

    /// The whole body behind its head.
    pub async fn read_behind(self, head: Vec<u8>, read: OneRead) -> Result<Segments, BodyError> {
        let OneRead { via, chunk, buf } = read;
        let buf = read::from_disk(&self, via, &chunk, buf).await?;
        let mut data = Segments::new();
        data.push(Source::Vec(head));
        data.push_range(Source::Buf(buf), chunk.skip as usize, (chunk.skip + chunk.wanted()) as usize);
        Ok(data)
    }

    /// Bypasses the page cache from here on, where the mover does and the file system can; otherwise announces the
    /// reads to the kernel (`read_ahead`).
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
            // Pages that the kernel reads ahead for many bodies are evicted before their turn comes.
            self.file.fd().expect_random_reads();
        } else if self.is_part() && matches!(self.mover, Mover::Sendfile(_) | Mover::Resident { .. }) {
            // The verification of its checksums before, through this open file, has read ahead.
            self.file.fd().expect_usual_reads();
        }
    }

    /// Whether the location asks for `read_ahead`.
    fn read_ahead(&self) -> bool {
        self.at.rules.read_ahead
    }

    /// The result within `send_timeout`, the longest time without progress.
    async fn in_time<T>(&self, awaited: impl Future<Output = T>) -> Option<T> {
        match rt::select(awaited, rt::sleep_until(rt::now() + self.at.rules.send_timeout)).await {
            Either::Left(it) => Some(it),
            Either::Right(()) => None,
        }
    }

    /// Whether calls beside the engine may be made for it.
    fn calls_directly(&self) -> bool {
        self.calls_directly.unwrap_or_else(|| self.root().calls_directly())
    }

    /// Reads resident bytes at once, if that is worth a try; otherwise nothing.
    fn read_resident(&self, offset: u64, len: u32, buf: &mut Buf) -> u32 {
        self.try_resident(|| self.file.read_resident(offset, len, buf)).unwrap_or(0)
    }

    /// As [`FileBody::read_resident`], of a short body: one read serves all requests for it in a turn.
    fn read_of_turn(&self, offset: u64, len: u32, buf: &mut Buf) -> u32 {
        self.try_resident(|| self.file.read_of_turn(offset, len, buf)).unwrap_or(0)
    }

    /// The same bytes where they lie, when another has read them in this turn.
    fn shared_of_turn(&self, offset: u64, len: u32) -> Option<SharedBytes> {
        self.try_resident(|| self.file.shared_of_turn(offset, len)).flatten()
    }

    fn try_resident<T>(&self, read: impl FnOnce() -> Result<T, Errno>) -> Option<T> {
        match self.calls_directly {
            Some(true) => read().ok(),
            Some(false) => None,
            None if self.in_memory == Some(true) => self.root().try_known(read),
            None => self.root().try_resident(read),
        }
    }

    /// Whether it is a part of a file, as of a cache entry, whose open file is shared.
    fn is_part(&self) -> bool {
        self.calls_directly.is_some()
    }

    /// The facts of the file's root.
    fn root(&self) -> &RootFacts {
        self.at.roots.of(self.at.root)
    }
}

/// Why a body could not be sent whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyError {
    /// The client is gone, or too slow.
    Send(SendError),
    /// The disk failed.
    Read(Errno),
    /// The file is shorter than it was when it was opened.
    Shrunk {
        /// Where it ends now.
        at: u64,
    },
    /// No buffer could be had.
    NoMemory,
    /// The filter of the body failed.
    Filter,
    /// Where a [`source::BodySource`] comes from, the rest of it is not to be had.
    Broken,
    /// The same, since an upstream has reset its stream of HTTP/2 with this code.
    Reset(u32),
}

impl From<SendError> for BodyError {
    fn from(error: SendError) -> BodyError {
        BodyError::Send(error)
    }
}

/// Sends all pieces behind `head`.
pub async fn send(outlet: &mut dyn Outlet, head: Vec<u8>, body: &mut FileBody) -> Result<(), BodyError> {
    // As in nginx for sendfile alone: the sends of a read body set themselves whether more follows.
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
        if !outlet.has_room() {
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
                // Boxed: the rarest way is also the one with the largest state.
                Mover::Shared { via, chunk, .. } => {
                    Box::pin(shared::send(outlet, body, via, chunk, start..end, last)).await?;
                }
            },
        }
    }
    outlet.flush(false).await?;
    Ok(())
}
