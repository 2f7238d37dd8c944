//! A response being stored in the cache, and its readers on any thread.
//!
//! ```text
//!   upstream --> the fill's task --+--> store (file)  --- readable up to here ---+
//!                                  |                                             v
//!                                  +--> window of the last pieces (memory) --> readers, each at its own offset
//! ```
//! A reader takes bytes from the window in memory, and older bytes from the file: a slow client occupies no memory and does not
//! delay others. If the disk fails, the fill waits for the slowest reader instead, so that present readers still receive the
//! complete body; new readers are refused then.
//!
//! Main types: [`Filling`] and its [`FillingReader`].

use std::collections::VecDeque;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

use cache::{CHUNK_BYTES, FillReader, Meta, Reader, StoreError};
use http::response::parse::ParsedResponse;
use io::SharedBytes;
use io::segments::Source;
use rt::watch::{self, Publisher, Waiting, Watcher};

use crate::requested_range::{Part, RequestedRange};
use transfer::body::BodyError;
use transfer::body::source::BodySource;
use upstream::Heading;

/// A response whose bytes are still arriving. One task pushes pieces; readers on all threads take them. The lock is held to push or
/// take pieces, never across an await.
pub struct Filling {
    /// The metadata of the response.
    pub meta: Arc<Meta>,
    /// The stored head, if any.
    head: Option<SharedHead>,
    /// The range and the complete length, if this response is a 206.
    part: Option<Part>,
    state: Mutex<FillingState>,
    /// Counts the events that readers wait for: arrival of pieces, and the end.
    updates: Publisher,
    /// The ID of the next reader.
    next_reader: AtomicU64,
    /// Whether the upstream sent this complete response to a range request.
    ignores_ranges: AtomicBool,
}

/// A header section for readers on all threads, with its parsed form.
pub struct SharedHead {
    raw: Arc<[u8]>,
    parsed: Arc<ParsedResponse>,
}

impl SharedHead {
    /// Creates it from the bytes and their parsed form.
    pub fn new(raw: Arc<[u8]>, parsed: impl Into<Arc<ParsedResponse>>) -> SharedHead {
        SharedHead { raw, parsed: parsed.into() }
    }
}

#[derive(Default)]
struct FillingState {
    /// The last pieces, each with the offset of its first byte.
    window: VecDeque<(u64, SharedBytes)>,
    window_bytes: u64,
    /// Bytes below this offset are never read from the file: a part that begins within a chunk does not store the bytes of that
    /// chunk.
    unwritten_below: u64,
    /// Offset after the last received byte, counted from the start of the complete body.
    arrived: u64,
    /// Time at which the last byte, or the head, arrived.
    moved: Option<Instant>,
    /// The file that the body is written to, once it exists.
    file: Option<FillReader>,
    disk: Disk,
    end: Option<End>,
    /// Positions of the readers: without a working disk the window waits for the slowest.
    readers: Vec<ReaderPosition>,
    /// Wakes the fill when it waits for the slowest reader.
    filler: Option<Waker>,
}

/// Position of one reader.
struct ReaderPosition {
    reader: u64,
    at: u64,
}

/// State of the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Disk {
    /// All bytes are written to it.
    #[default]
    Works,
    /// No more bytes are written to it; the bytes written before can be read.
    Lost,
}

/// How a fill ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The body is complete.
    Complete,
    /// The body is incomplete: the connection to the upstream failed, or the fill was abandoned because it had no readers.
    Broken,
}

// The window is not a cache: it bridges the time until a byte is in the file, and saves fast clients the read from the file. It
// uses the memory of the receiving thread. If half of that memory is in use, bytes that are in the file and were taken by all
// readers are dropped immediately.

/// Maximum size in bytes of the window, excluding bytes that are not on disk: slightly slower clients need not read the file.
const WINDOW_BYTES: u64 = 1 << 20;

/// Maximum size in bytes of the window after the disk has failed; the fill then waits for the readers.
const STRANDED_BYTES_MAX: u64 = 4 << 20;

/// Maximum number of file reads in flight per reader.
const READS: usize = 2;

/// Size in bytes of one read from the file.
const READ_BYTES: u64 = 256 << 10;

impl Filling {
    /// Creates the filling for a response whose header section has arrived.
    pub fn new(meta: Arc<Meta>, head: SharedHead) -> Arc<Filling> {
        Filling::with(meta, Some(head), None, FillingState::default())
    }

    /// Creates the filling for a part, with the header section of the complete response. If it is not stored, bytes before the
    /// slowest reader are dropped, as after a disk failure.
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
        let (updates, _) = watch::channel(0);
        let (next_reader, ignores_ranges) = (AtomicU64::new(0), AtomicBool::new(false));
        Arc::new(Filling { meta, head, part, state: Mutex::new(state), updates, next_reader, ignores_ranges })
    }

    /// Returns the stored header section, for a reader.
    pub fn heading(&self) -> Option<Heading> {
        let SharedHead { raw, parsed } = self.head.as_ref()?;
        Some(Heading::new(Source::Shared(Arc::clone(raw)), Arc::clone(parsed)))
    }

    /// Returns the range and the complete length, if this response is a 206.
    pub fn part(&self) -> Option<&Part> {
        self.part.as_ref()
    }

    /// Records that the upstream ignores ranges.
    pub fn set_ignores_ranges(&self) {
        self.ignores_ranges.store(true, Ordering::Relaxed);
    }

    /// Whether the upstream may support ranges: `false` after it has sent a complete response to a range request.
    pub fn has_parts(&self) -> bool {
        !self.ignores_ranges.load(Ordering::Relaxed)
    }

    /// Adds the next bytes of the body, which the store already has (or no longer accepts), and wakes waiting readers. The readers
    /// share the memory that the bytes were received into.
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
        self.notify();
    }

    /// Records that the disk accepts no more bytes.
    pub fn lose_disk(&self) {
        self.state().disk = Disk::Lost;
    }

    /// Waits, after a disk failure, until the slowest reader has made room. Returns `false` without readers: the fill then ends,
    /// and new readers are refused.
    pub async fn wait_for_readers(&self) -> bool {
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

    /// Whether the filling has no readers at present.
    pub fn is_unread(&self) -> bool {
        self.state().readers.is_empty()
    }

    /// Ends the filling if it has no readers, in one step, so that no reader can join while it ends.
    pub fn end_if_unread(&self) -> bool {
        let mut state = self.state();
        let is_unread = state.readers.is_empty();
        if is_unread {
            state.end = Some(End::Broken);
        }
        is_unread
    }

    /// Ends the filling.
    pub fn finish(&self, end: End) {
        let mut state = self.state();
        state.end = Some(end);
        drop(state);
        self.notify();
    }

    /// Wakes waiting readers. Only the fill calls it, so calls never overlap.
    fn notify(&self) {
        self.updates.publish(self.updates.value() + 1);
    }

    /// Creates a reader of a range. From here on the bytes that it needs are not dropped unless the file has them. `None` if some
    /// may already be lost.
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
        let updates = self.updates.watch();
        let waiting = Waiting::new(&updates);
        let (from_file, progress_limit) = (FromFile::Idle, None);
        Some(FillingReader {
            filling: Arc::clone(self),
            reader,
            range,
            from_file,
            updates,
            waiting,
            progress_limit,
        })
    }

    /// Returns the length of the body in bytes, if known.
    pub fn length(&self) -> Option<u64> {
        let state = self.state();
        let whole = (state.end == Some(End::Complete)).then_some(state.arrived);
        self.meta.length.or(whole)
    }

    /// Whether all bytes before a range have arrived.
    pub fn has_reached(&self, requested: RequestedRange) -> bool {
        let start = match self.length() {
            Some(length) => Some(requested.within(length).start),
            None => requested.start(),
        };
        start.is_some_and(|start| start <= self.arrived())
    }

    /// Whether the complete body has arrived.
    pub fn is_complete(&self) -> bool {
        self.state().end == Some(End::Complete)
    }

    /// Returns the time at which the filling counts as stalled if no byte arrives; `None` if it has ended.
    pub fn stalls_at(&self, limit: Duration) -> Option<Instant> {
        let state = self.state();
        state.moved.filter(|_| state.end.is_none()).map(|moved| moved + limit)
    }

    /// Returns the offset after the last received byte.
    pub fn arrived(&self) -> u64 {
        self.state().arrived
    }

    fn state(&self) -> MutexGuard<'_, FillingState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FillingState {
    /// Drops pieces that no reader needs, the oldest first.
    fn trim(&mut self) {
        let on_disk = self.file.as_ref().map_or(0, FillReader::on_disk);
        let pool = rt::pool();
        let is_short = pool.spare_bytes() < pool.bytes_max() / 2;
        let slowest = self.readers.iter().map(|place| place.at).min().unwrap_or(self.arrived);
        // Pieces that are never written to the file come first in the window. They are few, and stay in it.
        let index = match self.disk {
            Disk::Works => self.window.partition_point(|(at, _)| *at < self.unwritten_below),
            Disk::Lost => 0,
        };
        while let Some((at, piece)) = self.window.get(index) {
            let end = at + piece.len() as u64;
            let is_on_disk = *at >= self.unwritten_below && end <= on_disk;
            let spare = match self.disk {
                Disk::Works => is_on_disk && (self.window_bytes > WINDOW_BYTES || end <= slowest && is_short),
                // Bytes in the file can still be read from there.
                Disk::Lost => end <= slowest || is_on_disk,
            };
            if !spare {
                break;
            }
            debug_assert!(self.window_bytes >= piece.len() as u64, "each piece in the window is counted");
            self.window_bytes -= piece.len() as u64;
            self.window.remove(index);
        }
    }

    /// Returns the remaining bytes of the piece that contains offset `at`.
    fn piece(&self, at: u64) -> Option<(&SharedBytes, usize)> {
        let (first, _) = self.window.front()?;
        if at < *first {
            return None;
        }
        let index = self.window.partition_point(|(start, _)| *start <= at) - 1;
        let (start, piece) = &self.window[index];
        debug_assert!(*start <= at, "the piece begins at or before the position");
        let offset = (at - start) as usize;
        (offset < piece.len()).then_some((piece, offset))
    }
}

/// A reader of a body that is still arriving. It belongs to one thread.
pub struct FillingReader {
    filling: Arc<Filling>,
    reader: u64,
    /// The range to read. Its end may be beyond the end of the body, if that is unknown.
    range: Range<u64>,
    from_file: FromFile,
    updates: Watcher,
    waiting: Waiting,
    progress_limit: Option<ProgressLimit>,
}

/// Maximum time that a reader waits for a fetch without progress.
struct ProgressLimit {
    limit: Duration,
    timer: rt::Timer,
}

/// State of reading from the file.
enum FromFile {
    Idle,
    Reading(PendingRead),
    Ready(Box<Reader>),
}

/// Source of the next bytes.
enum NextBytes {
    /// In the window.
    Piece(SharedBytes),
    /// The file, readable up to this offset.
    File(FillReader, u64),
    /// Not received yet.
    Wait,
    /// No further bytes: the body has ended or is broken.
    End(Result<(), BodyError>),
}

impl FillingReader {
    /// Sets a limit for the time without progress, which [`FillingReader::poll_stalled`] reports.
    #[must_use]
    pub fn with_limit(mut self, limit: Duration) -> FillingReader {
        self.progress_limit = Some(ProgressLimit { limit, timer: rt::Timer::new() });
        self
    }

    /// Becomes ready when the fetch has made no progress for the limit. Call it if no piece is available.
    pub fn poll_stalled(&self, context: &Context<'_>) -> Poll<()> {
        let Some(ProgressLimit { limit, timer }) = &self.progress_limit else { return Poll::Pending };
        // A read from the file is in progress or has completed.
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

    /// Returns the filling that this reader reads.
    pub fn filling(&self) -> &Arc<Filling> {
        &self.filling
    }

    /// Returns the range to read.
    pub fn requested(&self) -> Range<u64> {
        self.range.clone()
    }

    /// Sets the range to read.
    pub fn narrow(&mut self, range: Range<u64>) {
        self.range = range;
        self.advance(0);
    }

    /// Determines the source of the next bytes.
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
            // All received bytes were read, and the end is known.
            (_, Some(End::Complete)) if at >= state.arrived => NextBytes::End(Ok(())),
            (_, Some(_)) => NextBytes::End(Err(BodyError::Broken)),
            _ if at < state.arrived => NextBytes::End(Err(BodyError::Broken)),
            _ => NextBytes::Wait,
        }
    }

    /// Publishes the position of this reader, so that a waiting fill can continue.
    fn advance(&mut self, bytes: u64) {
        self.range.start += bytes;
        let (reader, at) = (self.reader, self.range.start);
        debug_assert!(at <= self.range.end, "a reader gets only bytes of its range");
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

    /// Continues reading from the file.
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
                        // The readable range of the file is exhausted; later bytes may be in the window.
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
            // Read before the lookup, so that later arrivals are noticed below.
            let seen = self.updates.value();
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
                // The filling keeps its publisher while any reader exists, so that the notifications do not end.
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

/// A read in flight; it returns the reader with the bytes.
pub type PendingRead = Pin<Box<dyn Future<Output = (Box<Reader>, Result<Option<cache::Piece>, StoreError>)>>>;

/// Returns the bytes of a piece, moved to the start of its buffer. Only the first piece of a range and the last may need this.
pub fn source_of(piece: cache::Piece) -> Source {
    let cache::Piece { mut buf, start, end } = piece;
    debug_assert!(start <= end && end <= buf.len(), "a piece is part of its buffer");
    if start > 0 {
        buf.copy_within(start..end, 0);
    }
    buf.set_len(end - start);
    Source::Buf(buf)
}
