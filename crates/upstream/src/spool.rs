//! Reads a body ahead of its client: into memory up to `proxy_buffers`, then into a temporary file.
//!
//! ```text
//! upstream --> pump (a task) --> Spool: memory, file --> Spooled (a stream) --> client
//! ```
//!
//! The upstream sends its response at full speed, however slow the client is. The cost of a slow client is limited: memory by
//! `proxy_buffers`, the file by `proxy_max_temp_file_size`; then the pump waits. Pieces are sent in the order of arrival, from
//! memory or from the file.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::path::PathBuf;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use io::facts::DeviceId;
use io::segments::Source;
use io::{Buf, Disk, DiskVia, Errno};

use crate::attempt::cut;
use crate::body::Live;
use crate::hidden::Hidden;
use crate::settings::Settings;
use crate::state::{Fault, Try};
use exchange::disk_space::DiskSpace;
use exchange::error_log;
use exchange::thread::Thread;
use telemetry::{Level, Reason};
use transfer::body::BodyError;
use transfer::body::source::{BodySource, SEND_BYTES, Spliced};
use transfer::temp_directory::TempDirectory;

/// State shared by the pump and the stream.
struct Spool {
    pieces: VecDeque<Piece>,
    /// Total capacity in bytes of the buffers in memory.
    held: u64,
    /// The file and its device.
    file: Option<(rt::File, DeviceId)>,
    /// Whether writing to the file has failed: then only memory is used.
    has_no_file: bool,
    /// Error that caused the loss of bytes that could not be written.
    lost: Option<Errno>,
    /// Offset of the next write in the file; reset to 0 when the client has taken all bytes in it.
    file_end: u64,
    /// Number of bytes in the file that the client has not taken.
    in_file: u64,
    via: DiskVia,
    end: Option<Result<(), Fault>>,
    /// Whether the client has disconnected.
    is_dropped: bool,
    stream: Option<Waker>,
    pump: Option<Waker>,
}

/// A piece of the body.
enum Piece {
    Memory(Buf),
    File { start: u64, end: u64 },
}

/// Limits of one spool.
struct Limits {
    memory: u64,
    /// Maximum size of a read in bytes.
    read: usize,
    /// Maximum size of a write to the file in bytes.
    write: usize,
    file: u64,
    directory: TempDirectory,
    /// The thread, for logging file errors.
    thread: Rc<Thread>,
    record: Rc<Try>,
}

/// Time that the client has to take a piece before the first bytes are written to a file: it spares fast clients, which are only
/// briefly behind the upstream, the cost of a file.
const SPOOL_AFTER: Duration = Duration::from_millis(20);

/// Maximum size in bytes of a read from the file.
const FILE_PIECE: u64 = 64 << 10;

/// Maximum size in bytes of a read from an upstream: a socket seldom has more.
const READ_MAX: u64 = 64 << 10;

/// Minimum size in bytes of a read from an upstream, regardless of the buffers' size.
const READ_MIN: u64 = 4 << 10;

impl Limits {
    fn of(settings: &Settings, thread: &Rc<Thread>, record: &Rc<Try>) -> Limits {
        let memory = u64::from(settings.buffers.0) * settings.buffers.1;
        Limits {
            memory,
            // Half of the memory, so that one half is sent while the other is filled; at most as much as may be in flight to the
            // client.
            read: (memory / 2).clamp(READ_MIN, READ_MAX).min(piece_max(settings)) as usize,
            write: settings.temp_file_write_size.unwrap_or(READ_MAX).min(READ_MAX) as usize,
            file: settings.max_temp_file_size,
            directory: settings.temp_path.clone(),
            thread: Rc::clone(thread),
            record: Rc::clone(record),
        }
    }
}

/// Returns the size of one piece in bytes. Several pieces may be in flight to the client, limited by `proxy_busy_buffers_size` if
/// set. nginx's small default would only cause more calls for the same bytes.
fn piece_max(settings: &Settings) -> u64 {
    settings.busy_buffers_size.map_or(FILE_PIECE, |busy| busy.min(FILE_PIECE))
}

/// Begins to read a body ahead, unless splice(2) can pass it on.
pub(super) fn start(live: Box<Live>, settings: &Settings, thread: &Rc<Thread>) -> Spooled {
    let spool = Spool {
        pieces: VecDeque::new(),
        held: 0,
        file: None,
        has_no_file: false,
        lost: None,
        file_end: 0,
        in_file: 0,
        via: rt::caps().best_disk(),
        end: None,
        is_dropped: false,
        stream: None,
        pump: None,
    };
    let (spool, record) = (Rc::new(RefCell::new(spool)), Rc::clone(live.record()));
    let limits = Limits::of(settings, thread, &record);
    let mut unread = Some(Box::new(Unread { live, limits }));
    if !unread.as_ref().is_some_and(|unread| unread.live.is_spliced()) {
        begin(&mut unread, &spool);
    }
    let (trailers, needs_client) = (settings.trailers(), !settings.ignore_client_abort);
    let piece_max = piece_max(settings) as usize;
    let busy_max = settings.busy_buffers_size.map(|bytes| bytes as usize);
    let client_space = Cell::new(u64::MAX);
    Spooled {
        spool,
        unread,
        record,
        reading: None,
        client_space,
        piece_max,
        busy_max,
        trailers,
        needs_client,
    }
}

/// A body that is not read ahead yet: splice(2) passes it on as long as the client is fast.
struct Unread {
    live: Box<Live>,
    limits: Limits,
}

/// Begins to read ahead.
fn begin(unread: &mut Option<Box<Unread>>, spool: &Rc<RefCell<Spool>>) {
    if let Some(unread) = unread.take() {
        let Unread { live, limits } = *unread;
        rt::spawn(pump(live, Rc::clone(spool), limits));
    }
}

/// Reads until the end, or until the body is dropped.
async fn pump(mut live: Box<Live>, spool: Rc<RefCell<Spool>>, limits: Limits) {
    let result = fill(&mut live, &spool, &limits).await;
    if let Some(Err(fault)) = result {
        live.fail(fault);
    }
    drop(live);
    let mut spool = spool.borrow_mut();
    spool.end = Some(result.unwrap_or(Ok(())));
    wake(&mut spool.stream);
}

/// Reads the body into the spool; `None` if the client disconnects.
async fn fill(live: &mut Live, spool: &Rc<RefCell<Spool>>, limits: &Limits) -> Option<Result<(), Fault>> {
    loop {
        wait_for_space(spool, limits).await?;
        if let Some(due) = live.not_before() {
            unless_disconnected(spool, rt::sleep_until(due)).await?;
        }
        // Bytes for the file are read in pieces of the size of its writes.
        let is_spilled = !spool.borrow().has_memory(limits, limits.read as u64);
        let bytes_max = if is_spilled { limits.read.min(limits.write) } else { limits.read };
        let size = live.remaining().map_or(bytes_max, |left| bytes_max.min(left.max(1) as usize));
        let buf = match unless_disconnected(spool, live.next(size)).await? {
            Ok(Some(buf)) => buf,
            Ok(None) => return Some(Ok(())),
            Err(fault) => return Some(Err(fault)),
        };
        // A buffer of the pool may be larger than the bytes that there was memory for.
        if !is_spilled || spool.borrow().has_memory(limits, buf.capacity() as u64) {
            spool.borrow_mut().hold(buf);
        } else {
            spill(spool, limits, buf).await;
            let lost = spool.borrow().lost;
            if let Some(errno) = lost {
                return Some(Err(Fault::Local(errno)));
            }
        }
    }
}

/// Returns the output of a future, or `None` if the client disconnects first.
async fn unless_disconnected<F: Future>(spool: &RefCell<Spool>, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    poll_fn(|context| {
        if spool.borrow_mut().is_over(context) {
            return Poll::Ready(None);
        }
        future.as_mut().poll(context).map(Some)
    })
    .await
}

/// Waits until there is room for another piece; `None` if the client disconnects.
async fn wait_for_space(spool: &RefCell<Spool>, limits: &Limits) -> Option<()> {
    let read = limits.read as u64;
    if spool.borrow().has_memory(limits, read) {
        return unless_disconnected(spool, std::future::ready(())).await;
    }
    let may_spill = |spool: &Spool| !spool.has_no_file && spool.file_len() + read <= limits.file;
    if spool.borrow().in_file == 0 && may_spill(&spool.borrow()) {
        // A client that takes a piece within this time is not slow.
        let until: Instant = rt::now() + SPOOL_AFTER;
        let mut patience = pin!(rt::sleep_until(until));
        return poll_fn(|context| {
            if spool.borrow_mut().is_over(context) {
                return Poll::Ready(None);
            }
            match spool.borrow().has_memory(limits, read) {
                true => Poll::Ready(Some(())),
                false => patience.as_mut().poll(context).map(Some),
            }
        })
        .await;
    }
    poll_fn(|context| {
        let mut spool = spool.borrow_mut();
        if spool.is_over(context) {
            return Poll::Ready(None);
        }
        match spool.has_memory(limits, read) || may_spill(&spool) {
            true => Poll::Ready(Some(())),
            false => Poll::Pending,
        }
    })
    .await
}

/// Moves the first `bytes_max` bytes to a separate buffer, if the buffer has more. If memory is scarce, the buffer remains as it is.
fn split(buf: &mut Buf, bytes_max: usize) -> Option<Buf> {
    if buf.len() <= bytes_max {
        return None;
    }
    let mut first = rt::pool().get(bytes_max)?;
    first.set_len(0);
    if first.append(&buf[..bytes_max]) < bytes_max {
        return None;
    }
    cut(buf, bytes_max);
    Some(first)
}

/// Writes received bytes to the file, in writes of limited size. If a write fails, the bytes stay in memory, and from then on the
/// pump waits for the client.
async fn spill(spool: &RefCell<Spool>, limits: &Limits, mut buf: Buf) {
    while let Some(first) = split(&mut buf, limits.write) {
        store(spool, limits, first).await;
    }
    store(spool, limits, buf).await;
}

/// Writes a piece to the file, or holds it in memory.
async fn store(spool: &RefCell<Spool>, limits: &Limits, buf: Buf) {
    if spool.borrow().has_no_file {
        return spool.borrow_mut().hold(buf);
    }
    let (mut buf, mut space) = (buf, DiskSpace::new(&limits.thread, &limits.directory));
    let failed = loop {
        let mut failed = match write(spool, limits, buf).await {
            Ok(()) => return,
            Err(failed) => failed,
        };
        match failed.rest.take() {
            Some(rest) if space.make(failed.errno).await => buf = rest,
            rest => break Box::new(FailedWrite { rest, ..*failed }),
        }
    };
    let FailedWrite { call, path, errno, rest } = *failed;
    if let Some(more) = limits.thread.capacity.alarms.temp_files.due(rt::now()) {
        let (path, reason) = (path.display(), Reason(errno));
        error_log::write(
            &limits.thread,
            Level::Crit,
            format_args!(
                "{call}() \"{path}\" failed ({reason}) while reading upstream; the response goes on without a temporary file, \
                 and its upstream waits for the client{more}"
            ),
        );
    }
    let mut spool = spool.borrow_mut();
    spool.has_no_file = true;
    match rest {
        Some(rest) => spool.hold(rest),
        // The engine did not return the bytes.
        None => spool.lost = Some(errno),
    }
}

/// A failed write.
struct FailedWrite {
    call: &'static str,
    path: PathBuf,
    errno: Errno,
    /// The bytes that were not written.
    rest: Option<Buf>,
}

/// Writes a piece to the file.
async fn write(spool: &RefCell<Spool>, limits: &Limits, buf: Buf) -> Result<(), Box<FailedWrite>> {
    let known = spool.borrow().file.clone();
    let (file, device) = match known {
        Some(file) => file,
        None => match limits.directory.create(false).await {
            Ok((file, path, device)) => {
                // The body has one file, so the path is not set yet.
                let _ = limits.record.temp_file.set(path);
                spool.borrow_mut().file = Some((file.clone(), device));
                (file, device)
            }
            Err((path, errno)) => {
                return Err(Box::new(FailedWrite { call: "open", path, errno, rest: Some(buf) }));
            }
        },
    };
    let (start, via) = {
        let mut spool = spool.borrow_mut();
        if spool.in_file == 0 {
            spool.file_end = 0;
        }
        (spool.file_end, spool.via)
    };
    let len = buf.len() as u64;
    let (result, rest) = file.write_at(start, buf, Disk { device, via }).await;
    // On a full file system the start of a piece may have been written; the returned buffer contains only the remaining bytes.
    let left = match (&result, &rest) {
        (Ok(_), _) => 0,
        (Err(_), Some(rest)) => rest.len() as u64,
        (Err(_), None) => len,
    };
    spool.borrow_mut().add_to_file(start, start + len - left);
    result.map(drop).map_err(|errno| {
        let path = limits.directory.path().to_owned();
        Box::new(FailedWrite { call: "write", path, errno, rest })
    })
}

impl Spool {
    fn has_memory(&self, limits: &Limits, bytes: u64) -> bool {
        // One piece is always allowed, regardless of the configuration.
        self.held == 0 || self.held + bytes <= limits.memory
    }

    /// Returns the length of the file on disk. Its space is reused only when the client has received all of it: otherwise a client
    /// that is always slightly behind would cause the complete response to be written.
    fn file_len(&self) -> u64 {
        if self.in_file == 0 { 0 } else { self.file_end }
    }

    /// Records that these bytes are in the file.
    fn add_to_file(&mut self, start: u64, end: u64) {
        if start == end {
            return;
        }
        assert!(start < end, "a write has bytes");
        self.file_end = end;
        self.in_file += end - start;
        match self.pieces.back_mut() {
            Some(Piece::File { end: last, .. }) if *last == start => *last = end,
            _ => self.pieces.push_back(Piece::File { start, end }),
        }
        wake(&mut self.stream);
    }

    /// Removes bytes that were read from the first piece, which is in the file. Only now may the pump overwrite them.
    fn remove_from_file(&mut self, bytes: u64) {
        assert!(bytes <= self.in_file, "only bytes in the file are removed");
        if let Some(Piece::File { start, end }) = self.pieces.front_mut() {
            *start += bytes;
            debug_assert!(*start <= *end, "a read stays within one piece of the file");
            if *start == *end {
                self.pieces.pop_front();
            }
        }
        self.in_file -= bytes;
        wake(&mut self.pump);
    }

    /// Appends a received buffer to the bytes in memory, and wakes the stream.
    fn hold(&mut self, buf: Buf) {
        self.held += buf.capacity() as u64;
        self.pieces.push_back(Piece::Memory(buf));
        wake(&mut self.stream);
    }

    /// Whether the client has disconnected. Otherwise registers the pump to be woken when the client disconnects or takes a piece.
    fn is_over(&mut self, context: &Context<'_>) -> bool {
        if !self.is_dropped {
            register(&mut self.pump, context);
        }
        self.is_dropped
    }
}

/// Stores the waker of a task in place of an earlier one.
fn register(place: &mut Option<Waker>, context: &Context<'_>) {
    match place {
        Some(waker) => waker.clone_from(context.waker()),
        None => *place = Some(context.waker().clone()),
    }
}

/// Wakes the stored task, if any.
fn wake(place: &mut Option<Waker>) {
    if let Some(waker) = place.take() {
        waker.wake();
    }
}

/// A read from the file in flight.
type SpoolRead = Pin<Box<dyn Future<Output = Result<Buf, Errno>>>>;

/// The client's side of a spool.
pub(super) struct Spooled {
    spool: Rc<RefCell<Spool>>,
    unread: Option<Box<Unread>>,
    record: Rc<Try>,
    reading: Option<SpoolRead>,
    /// Number of bytes that the client accepts, for the next read of the file.
    client_space: Cell<u64>,
    /// Maximum size of a returned piece in bytes.
    piece_max: usize,
    /// Maximum number of bytes in flight to the client.
    busy_max: Option<usize>,
    /// The filter of trailer fields; `None` if none are passed on.
    trailers: Option<Hidden>,
    needs_client: bool,
}

impl Spooled {
    /// Starts reading the next piece of the file.
    fn read(&self, spool: &Spool) -> Option<SpoolRead> {
        let (Some(Piece::File { start, end }), Some((file, device))) =
            (spool.pieces.front(), spool.file.clone())
        else {
            return None;
        };
        let bytes_max = FILE_PIECE.min(self.piece_max as u64).min(self.client_space.replace(u64::MAX).max(1));
        let (offset, bytes_max) = (*start, bytes_max.min(end - start) as u32);
        let disk = Disk { device, via: spool.via };
        Some(Box::pin(async move { file.read_piece(offset, bytes_max, disk).await }))
    }

    fn broken(&self, fault: Fault) -> Poll<Result<Option<Source>, BodyError>> {
        self.record.fault.set(Some(fault));
        Poll::Ready(Err(BodyError::Broken))
    }
}

impl BodySource for Spooled {
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Source>, BodyError>> {
        begin(&mut self.unread, &self.spool);
        loop {
            if let Some(reading) = &mut self.reading {
                let read = std::task::ready!(reading.as_mut().poll(context));
                self.reading = None;
                let buf = match read {
                    Ok(buf) => buf,
                    Err(errno) => return self.broken(Fault::Local(errno)),
                };
                self.spool.borrow_mut().remove_from_file(buf.len() as u64);
                return Poll::Ready(Ok(Some(Source::Buf(buf))));
            }
            let mut spool = self.spool.borrow_mut();
            match spool.pieces.front_mut() {
                Some(Piece::Memory(buf)) => {
                    if let Some(first) = split(buf, self.piece_max) {
                        return Poll::Ready(Ok(Some(Source::Buf(first))));
                    }
                    let Some(Piece::Memory(buf)) = spool.pieces.pop_front() else { continue };
                    debug_assert!(spool.held >= buf.capacity() as u64, "each buffer in memory is counted");
                    spool.held -= buf.capacity() as u64;
                    wake(&mut spool.pump);
                    return Poll::Ready(Ok(Some(Source::Buf(buf))));
                }
                Some(Piece::File { .. }) => {
                    let reading = self.read(&spool);
                    drop(spool);
                    self.reading = reading;
                    if self.reading.is_none() {
                        return self.broken(Fault::Local(Errno::BADF));
                    }
                }
                None => match spool.end {
                    Some(Ok(())) => return Poll::Ready(Ok(None)),
                    Some(Err(fault)) => return Poll::Ready(Err(fault.of_body())),
                    None => {
                        register(&mut spool.stream, context);
                        return Poll::Pending;
                    }
                },
            }
        }
    }

    fn trailers(&mut self) -> Vec<(Vec<u8>, Vec<u8>)> {
        let passed = self.trailers.as_ref().map(|hidden| self.record.passed_trailers(hidden));
        passed.unwrap_or_default()
    }

    fn is_reading(&self) -> bool {
        self.reading.is_some()
    }

    /// While buffers are scarce, the file is read only for a client that accepts the bytes.
    fn is_read_at_will(&self) -> bool {
        self.reading.is_none() && matches!(self.spool.borrow().pieces.front(), Some(Piece::File { .. }))
    }

    fn set_client_space(&mut self, bytes: u64) {
        self.client_space.set(bytes);
    }

    fn send_bytes(&self) -> usize {
        // One more piece after this many bytes is still within the limit.
        self.busy_max.map_or(SEND_BYTES, |bytes_max| bytes_max.saturating_sub(self.piece_max) + 1)
    }

    fn spliced(&mut self) -> Option<&mut dyn Spliced> {
        let unread = self.unread.as_mut().filter(|unread| unread.live.is_spliced())?;
        Some(&mut *unread.live)
    }

    fn splice_wait_max(&self) -> Option<Duration> {
        Some(SPOOL_AFTER)
    }

    fn needs_client(&self) -> bool {
        self.needs_client
    }
}

impl Drop for Spooled {
    fn drop(&mut self) {
        let mut spool = self.spool.borrow_mut();
        spool.is_dropped = true;
        spool.pieces.clear();
        wake(&mut spool.pump);
    }
}
