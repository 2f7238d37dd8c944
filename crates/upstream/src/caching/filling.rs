//! A response on its way into the cache, and its readers meanwhile, on any thread.
//!
//! ```text
//!   upstream --> the fill's task --+--> store (file)  --- on disk up to here ---+
//!                                  |                                            v
//!                                  +--> window of the last pieces (memory) --> readers, each at its own place
//! ```
//! A reader takes bytes from the pieces in memory, and older ones from the file: a slow client holds no memory and does
//! not delay others. When the disk fails half-way the fill waits for the slowest reader instead, so that no present
//! reader loses the body; new readers are refused then.
//!
//! Main types: [`Filling`], its [`FillingReader`].

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

use cache::{CHUNK_BYTES, FillReader, Meta, Reader};
use http::reply::ReplyHead;
use io::SharedBytes;
use io::op::Source;
use rt::watch::{self, Publisher, Waiting, Watcher};

use crate::Heading;
use crate::caching::asked::{Asked, Part};
use crate::caching::stored::{PendingRead, source_of};
use transfer::body::BodyError;
use transfer::body::source::BodySource;

/// A response whose bytes still arrive. One task pushes; readers of all threads take. The lock is held to take or push
/// pieces, never across an await.
pub struct Filling {
    /// Its facts.
    pub meta: Arc<Meta>,
    /// Its head as it is stored, where there is one.
    head: Option<SharedHead>,
    /// The whole that it is a part of, if it is a part.
    part: Option<Part>,
    state: Mutex<FillingState>,
    /// Counts what readers wait for: pieces that have come, and the end.
    news: Publisher,
    /// Names readers.
    next_reader: AtomicU64,
    /// Whether the upstream has answered a range request with it.
    refuses_parts: AtomicBool,
}

/// A header section for readers of all threads, with its parsed form.
pub struct SharedHead {
    raw: Arc<[u8]>,
    parsed: ReplyHead,
}

impl SharedHead {
    /// The parsed form of these bytes.
    pub fn new(raw: Arc<[u8]>, parsed: ReplyHead) -> SharedHead {
        SharedHead { raw, parsed }
    }
}

#[derive(Default)]
struct FillingState {
    /// The last pieces, each with the place of its first byte.
    window: VecDeque<(u64, SharedBytes)>,
    window_bytes: u64,
    /// Bytes before this one are never read from the file: a part that begins within a chunk leaves out the bytes of
    /// that chunk.
    unwritten_below: u64,
    /// Bytes that have come, counted from the start of the body also where a part of it is fetched.
    arrived: u64,
    /// When the last of them came, or the head.
    moved: Option<Instant>,
    /// The file that the body is written to, once there is one.
    file: Option<FillReader>,
    disk: Disk,
    end: Option<End>,
    /// Where readers are: the window waits for the slowest when there is no disk behind it.
    readers: Vec<ReaderPosition>,
    /// The fill, when it waits for the slowest reader.
    filler: Option<Waker>,
}

/// Where one reader is.
struct ReaderPosition {
    reader: u64,
    at: u64,
}

/// The use of the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Disk {
    /// Everything goes to it.
    #[default]
    Works,
    /// Nothing more goes to it; the bytes received so far can be read.
    Lost,
}

/// How a fill ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The body is whole.
    Whole,
    /// The upstream broke off.
    Broken,
}

// The window is no cache: it bridges the time between a byte's coming and its being in the file, and spares fast clients
// the way there. It is memory of the thread that receives: where half of that is lent, what everybody has taken and the file
// has goes at once.

/// Bytes of the window above those that have not reached the disk: clients that are a little slower than others do not
/// wait for the file then.
const WINDOW_BYTES: u64 = 1 << 20;

/// Bytes that the window holds at most when it has to wait for readers because the disk is lost.
const STRANDED_BYTES_MAX: u64 = 4 << 20;

/// Reads of the file that one reader has in flight.
const READS: usize = 2;

/// Bytes that one reader asks the file for at once.
const READ_BYTES: u64 = 256 << 10;

impl Filling {
    /// A response whose header section has arrived.
    pub fn new(meta: Arc<Meta>, head: SharedHead) -> Arc<Filling> {
        Filling::with(meta, Some(head), None, FillingState::default())
    }

    /// A part of one, with the header section of the whole. Where it is not stored, bytes behind the slowest reader are
    /// gone, as after a failure of the disk.
    pub fn of_part(meta: Arc<Meta>, head: Option<SharedHead>, part: Part, is_stored: bool) -> Arc<Filling> {
        let arrived = part.range.start;
        let unwritten_below = arrived.checked_next_multiple_of(CHUNK_BYTES).unwrap_or(arrived);
        let disk = if is_stored { Disk::Works } else { Disk::Lost };
        Filling::with(
            meta,
            head,
            Some(part),
            FillingState { arrived, unwritten_below, disk, ..FillingState::default() },
        )
    }

    fn with(
        meta: Arc<Meta>,
        head: Option<SharedHead>,
        part: Option<Part>,
        state: FillingState,
    ) -> Arc<Filling> {
        let state = FillingState { moved: Some(rt::now()), ..state };
        let (news, _) = watch::channel(0);
        let (next_reader, refuses_parts) = (AtomicU64::new(0), AtomicBool::new(false));
        Arc::new(Filling { meta, head, part, state: Mutex::new(state), news, next_reader, refuses_parts })
    }

    /// Its header section as stored, for a reader.
    pub fn heading(&self) -> Option<Heading> {
        let SharedHead { raw, parsed } = self.head.as_ref()?;
        Some(Heading::new(Source::Shared(Arc::clone(raw)), parsed.clone()))
    }

    /// The whole that it is a part of, if it is a part.
    pub fn part(&self) -> Option<&Part> {
        self.part.as_ref()
    }

    /// Remembers that the upstream ignores ranges.
    pub fn refuse_parts(&self) {
        self.refuses_parts.store(true, Ordering::Relaxed);
    }

    /// Whether a part of it can be had from the upstream, as far as is known.
    pub fn has_parts(&self) -> bool {
        !self.refuses_parts.load(Ordering::Relaxed)
    }

    /// Takes the next bytes of the body, which the store has already (or takes no longer), and wakes the readers that
    /// wait for them. They share the memory that the bytes were received into.
    pub fn push(&self, piece: SharedBytes, file: Option<FillReader>) {
        let mut state = self.state();
        let (at, len) = (state.arrived, piece.len() as u64);
        state.window.push_back((at, piece));
        state.window_bytes += len;
        state.arrived += len;
        state.moved = Some(rt::now());
        if file.is_some() {
            state.file = file;
        }
        state.trim();
        drop(state);
        self.tell();
    }

    /// The disk takes no more.
    pub fn lose_disk(&self) {
        self.state().disk = Disk::Lost;
    }

    /// Waits, when the disk has failed, until the slowest reader has made room. `false` without readers: then the fill
    /// ends, and new readers are refused.
    pub async fn room(&self) -> bool {
        std::future::poll_fn(|context| {
            let mut state = self.state();
            if state.disk == Disk::Works
                || (state.window_bytes <= STRANDED_BYTES_MAX && !state.readers.is_empty())
            {
                return Poll::Ready(true);
            }
            if state.readers.is_empty() {
                state.end = Some(End::Broken);
                return Poll::Ready(false);
            }
            state.filler = Some(context.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// Whether there are no readers at the moment.
    pub fn is_unread(&self) -> bool {
        self.state().readers.is_empty()
    }

    /// Ends it when there are no readers: in one step, so that none can join an ending fill.
    pub fn end_if_unread(&self) -> bool {
        let mut state = self.state();
        let is_unread = state.readers.is_empty();
        if is_unread {
            state.end = Some(End::Broken);
        }
        is_unread
    }

    /// Nothing follows.
    pub fn finish(&self, end: End) {
        let mut state = self.state();
        state.end = Some(end);
        drop(state);
        self.tell();
    }

    /// Wakes waiting readers. Only the fill calls it, so that calls never overlap.
    fn tell(&self) {
        self.news.publish(self.news.value() + 1);
    }

    /// A reader of a part of the body, or of everything to come. From here on no bytes that it needs are dropped unless
    /// the file has them. `None` when some may be lost already.
    pub fn reader(self: &Arc<Filling>, range: Range<u64>) -> Option<FillingReader> {
        let mut state = self.state();
        let is_lost =
            state.disk == Disk::Lost && state.window.front().is_none_or(|(at, _)| *at > range.start);
        if is_lost && range.start < state.arrived || state.end == Some(End::Broken) {
            return None;
        }
        let reader = self.next_reader.fetch_add(1, Ordering::Relaxed);
        state.readers.push(ReaderPosition { reader, at: range.start });
        drop(state);
        let news = self.news.watch();
        let waiting = Waiting::new(&news);
        let (from_file, patience) = (FromFile::Idle, None);
        Some(FillingReader { filling: Arc::clone(self), reader, range, from_file, news, waiting, patience })
    }

    /// Bytes of the body, when they are known before its end.
    pub fn length(&self) -> Option<u64> {
        let state = self.state();
        let whole = (state.end == Some(End::Whole)).then_some(state.arrived);
        self.meta.length.or(whole)
    }

    /// Whether the start of a range has come, or is the next to come.
    pub fn comes_to(&self, asked: Asked) -> bool {
        let start = match self.length() {
            Some(length) => Some(asked.within(length).start),
            None => asked.start(),
        };
        start.is_some_and(|start| start <= self.arrived())
    }

    /// Whether all of the body has come.
    pub fn is_complete(&self) -> bool {
        self.state().end == Some(End::Whole)
    }

    /// When it will have brought nothing for so long; `None` when it has ended.
    pub fn stalls_at(&self, limit: Duration) -> Option<Instant> {
        let state = self.state();
        state.moved.filter(|_| state.end.is_none()).map(|moved| moved + limit)
    }

    /// Bytes of the body that have come.
    pub fn arrived(&self) -> u64 {
        self.state().arrived
    }

    fn state(&self) -> MutexGuard<'_, FillingState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FillingState {
    /// Drops pieces that no reader needs from memory, the oldest first.
    fn trim(&mut self) {
        let on_disk = self.file.as_ref().map_or(0, FillReader::on_disk);
        let pool = rt::pool();
        let is_short = pool.spare_bytes() < pool.bytes_max() / 2;
        let slowest = self.readers.iter().map(|place| place.at).min().unwrap_or(self.arrived);
        // Pieces that the file has not, before others that it has: they are few, and stay.
        let index = match self.disk {
            Disk::Works => self.window.partition_point(|(at, _)| *at < self.unwritten_below),
            Disk::Lost => 0,
        };
        while let Some((at, piece)) = self.window.get(index) {
            let end = at + piece.len() as u64;
            let is_on_disk = *at >= self.unwritten_below && end <= on_disk;
            let spare = match self.disk {
                Disk::Works => is_on_disk && (self.window_bytes > WINDOW_BYTES || end <= slowest && is_short),
                // Bytes in the file can still be read from it.
                Disk::Lost => end <= slowest || is_on_disk,
            };
            if !spare {
                break;
            }
            self.window_bytes -= piece.len() as u64;
            self.window.remove(index);
        }
    }

    /// The rest of the piece that has this byte.
    fn piece(&self, at: u64) -> Option<(&SharedBytes, usize)> {
        let (first, _) = self.window.front()?;
        if at < *first {
            return None;
        }
        let index = self.window.partition_point(|(start, _)| *start <= at) - 1;
        let (start, piece) = &self.window[index];
        let offset = (at - start) as usize;
        (offset < piece.len()).then_some((piece, offset))
    }
}

/// A body that is read while it is filled. Belongs to one thread.
pub struct FillingReader {
    filling: Arc<Filling>,
    reader: u64,
    /// The range to read. Its end may be beyond that of the body, if that is unknown.
    range: Range<u64>,
    from_file: FromFile,
    news: Watcher,
    waiting: Waiting,
    patience: Option<Patience>,
}

/// How long a reader waits for a fetch that brings nothing.
struct Patience {
    limit: Duration,
    timer: rt::Timer,
}

/// The read from the file in flight.
enum FromFile {
    Idle,
    Reading(PendingRead),
    Ready(Box<Reader>),
}

/// Where the next bytes are.
enum NextBytes {
    /// In the window.
    Piece(SharedBytes),
    /// In the file, which has this many.
    File(FillReader, u64),
    /// Still to come.
    Wait,
    /// Nowhere: the body is over, or broken off.
    End(Result<(), BodyError>),
}

impl FillingReader {
    /// The same with a limit for the time without bytes of the fetch, which [`FillingReader::poll_stalled`] reports.
    #[must_use]
    pub fn with_limit(mut self, limit: Duration) -> FillingReader {
        self.patience = Some(Patience { limit, timer: rt::Timer::new() });
        self
    }

    /// To be asked when no piece is here: ready when the fetch has brought nothing for as long as this reader waits.
    pub fn poll_stalled(&self, context: &Context<'_>) -> Poll<()> {
        let Some(Patience { limit, timer }) = &self.patience else { return Poll::Pending };
        // The read from the file has completed.
        if !matches!(self.from_file, FromFile::Idle) {
            return Poll::Pending;
        }
        let Some(at) = self.filling.stalls_at(*limit) else { return Poll::Pending };
        if at > rt::now() {
            timer.set(at);
            return timer.poll_elapsed(context).map(drop);
        }
        Poll::Ready(())
    }

    /// Its source.
    pub fn filling(&self) -> &Arc<Filling> {
        &self.filling
    }

    /// The range to read.
    pub fn wanted(&self) -> Range<u64> {
        self.range.clone()
    }

    /// Goes on with this part instead.
    pub fn narrow(&mut self, range: Range<u64>) {
        self.range = range;
        self.advance(0);
    }

    /// Where the next bytes are to be had from.
    fn next(&self) -> NextBytes {
        let state = self.filling.state();
        let at = self.range.start;
        if at >= self.range.end {
            return NextBytes::End(Ok(()));
        }
        if let Some((piece, offset)) = state.piece(at) {
            let wanted = usize::try_from(self.range.end - at).unwrap_or(usize::MAX);
            return NextBytes::Piece(piece.part(offset..piece.len().min(offset.saturating_add(wanted))));
        }
        let on_disk = state.file.as_ref().map_or(0, FillReader::on_disk);
        match (&state.file, state.end) {
            (Some(file), _) if at < on_disk && at >= state.unwritten_below => {
                NextBytes::File(file.clone(), on_disk)
            }
            // After the received bytes, with a known end.
            (_, Some(End::Whole)) if at >= state.arrived => NextBytes::End(Ok(())),
            (_, Some(_)) => NextBytes::End(Err(BodyError::Broken)),
            _ if at < state.arrived => NextBytes::End(Err(BodyError::Broken)),
            _ => NextBytes::Wait,
        }
    }

    /// Publishes the position of this reader, so that a fill that waits for it continues.
    fn advance(&mut self, bytes: u64) {
        self.range.start += bytes;
        let (reader, at) = (self.reader, self.range.start);
        let mut state = self.filling.state();
        if let Some(place) = state.readers.iter_mut().find(|place| place.reader == reader) {
            place.at = at;
        }
        if state.disk == Disk::Lost {
            state.trim();
            let filler = state.filler.take();
            drop(state);
            if let Some(waker) = filler {
                waker.wake();
            }
        }
    }

    /// Reads on from the file.
    fn poll_file(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Source>, BodyError>> {
        loop {
            match std::mem::replace(&mut self.from_file, FromFile::Idle) {
                FromFile::Idle => return Poll::Ready(Ok(None)),
                FromFile::Ready(mut reader) => {
                    self.from_file = FromFile::Reading(Box::pin(async move {
                        let piece = reader.next().await;
                        (reader, piece)
                    }));
                }
                FromFile::Reading(mut reading) => {
                    let Poll::Ready((reader, piece)) = reading.as_mut().poll(context) else {
                        self.from_file = FromFile::Reading(reading);
                        return Poll::Pending;
                    };
                    let Some(piece) = piece.map_err(|_| BodyError::Broken)? else {
                        // This part of the file is read; later bytes may be in the window by now.
                        return Poll::Ready(Ok(None));
                    };
                    self.from_file = FromFile::Ready(reader);
                    self.advance((piece.end - piece.start) as u64);
                    return Poll::Ready(Ok(Some(source_of(piece))));
                }
            }
        }
    }
}

impl BodySource for FillingReader {
    fn is_reading(&self) -> bool {
        matches!(self.from_file, FromFile::Reading(_))
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Source>, BodyError>> {
        loop {
            if let Some(source) = ready!(self.poll_file(context))? {
                return Poll::Ready(Ok(Some(source)));
            }
            // Read first: later bytes than this number are missed below.
            let seen = self.news.value();
            match self.next() {
                NextBytes::Piece(piece) => {
                    self.advance(piece.len() as u64);
                    return Poll::Ready(Ok(Some(Source::SharedBytes(piece))));
                }
                NextBytes::File(file, on_disk) => {
                    let end = on_disk.min(self.range.end).min(self.range.start + READ_BYTES);
                    let located = file.located().map_err(|_| BodyError::Broken)?;
                    self.from_file = FromFile::Ready(Box::new(located.read(self.range.start..end, READS)));
                }
                // The fill keeps its side while any reader exists, so that the notifications do not end.
                NextBytes::Wait => drop(ready!(self.waiting.poll_above(seen, context))),
                NextBytes::End(result) => return Poll::Ready(result.map(|()| None)),
            }
        }
    }
}

impl Drop for FillingReader {
    fn drop(&mut self) {
        let mut state = self.filling.state();
        state.readers.retain(|place| place.reader != self.reader);
        let filler = state.filler.take();
        drop(state);
        if let Some(waker) = filler {
            waker.wake();
        }
    }
}
