//! A body that is read ahead of its client: in memory as far as `proxy_buffers` go, then in a temporary file.
//!
//! ```text
//! upstream --> pump (a task) --> Spool: memory, file --> Spooled (a stream) --> client
//! ```
//!
//! The upstream sends its response at full speed, however slow the client is, and the cost of a slow client is bounded:
//! memory by `proxy_buffers`, the file by `proxy_max_temp_file_size`, and then the pump waits. Pieces leave in the
//! order in which they came, whether they are in memory or in the file.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::path::PathBuf;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use io::op::{DeviceId, Source};
use io::{Buf, DiskVia, Errno};
use smallvec::SmallVec;

use crate::Settings;
use crate::attempt::cut;
use crate::body::Live;
use crate::state::{Fault, Try};
use exchange::error_log;
use exchange::room::DiskRoom;
use exchange::thread::Thread;
use telemetry::{Level, Reason};
use transfer::body::BodyError;
use transfer::body::source::{BodySource, SEND_BYTES};
use transfer::received;

/// State that pump and stream share.
struct Spool {
    pieces: VecDeque<Piece>,
    /// Bytes of buffers in memory.
    held: u64,
    file: Option<rt::File>,
    /// Nothing can be written to a file: only bytes in memory are read ahead.
    has_no_file: bool,
    /// Bytes that could not be written were lost for this reason.
    lost: Option<Errno>,
    /// Where the next bytes go in the file. It starts again when all of it has been taken.
    file_end: u64,
    /// Bytes in the file that were not taken.
    in_file: u64,
    via: DiskVia,
    end: Option<Result<(), Fault>>,
    /// The client is gone.
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
    /// Bytes of a read.
    read: usize,
    /// Bytes of a write to the file.
    write: usize,
    file: u64,
    folder: PathBuf,
    levels: SmallVec<[u8; 3]>,
    /// The log for errors of the file.
    thread: Rc<Thread>,
}

/// How long the client has to take something before the first bytes go to a file: one that reads as fast as it can
/// often needs a moment, and a file for that would be a waste.
const PATIENCE: Duration = Duration::from_millis(20);

/// Bytes that are read from the file at once.
const FILE_PIECE: u64 = 64 << 10;

/// The largest read from an upstream: a socket seldom holds more.
const READ_MAX: u64 = 64 << 10;

/// The smallest one, whatever the buffers' size.
const READ_MIN: u64 = 4 << 10;

impl Limits {
    fn of(settings: &Settings, thread: &Rc<Thread>) -> Limits {
        let memory = u64::from(settings.buffers.0) * settings.buffers.1;
        Limits {
            memory,
            // Half of it, so that one part is sent while the other is read; no more than may be on its way to the client.
            read: (memory / 2).clamp(READ_MIN, READ_MAX).min(piece_max(settings)) as usize,
            write: settings.temp_file_write_size.unwrap_or(READ_MAX).min(READ_MAX) as usize,
            file: settings.max_temp_file_size,
            folder: settings.temp_path.0.clone(),
            levels: settings.temp_path.1.clone(),
            thread: Rc::clone(thread),
        }
    }
}

/// Bytes of one piece: several may be on their way to the client together, limited by `proxy_busy_buffers_size` if set.
/// nginx's small default would only make more calls of the same bytes.
fn piece_max(settings: &Settings) -> u64 {
    settings.busy_buffers_size.map_or(FILE_PIECE, |busy| busy.min(FILE_PIECE))
}

/// Begins to read a body ahead.
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
    rt::spawn(pump(live, Rc::clone(&spool), Limits::of(settings, thread)));
    let (pass_trailers, minds_client) = (settings.pass_trailers, !settings.ignore_client_abort);
    let piece_max = piece_max(settings) as usize;
    let busy_max = settings.busy_buffers_size.map(|bytes| bytes as usize);
    Spooled { spool, record, reading: None, piece_max, busy_max, pass_trailers, minds_client }
}

/// Reads to the end, or until the body is dropped.
async fn pump(mut live: Box<Live>, spool: Rc<RefCell<Spool>>, limits: Limits) {
    let result = fill(&mut live, &spool, &limits).await;
    if let Some(Err(fault)) = result {
        live.give_up(fault);
    }
    drop(live);
    let mut spool = spool.borrow_mut();
    spool.end = Some(result.unwrap_or(Ok(())));
    wake(&mut spool.stream);
}

/// `None` when the client is gone.
async fn fill(live: &mut Live, spool: &Rc<RefCell<Spool>>, limits: &Limits) -> Option<Result<(), Fault>> {
    loop {
        wait_for_room(spool, limits).await?;
        if let Some(due) = live.not_before() {
            wanted(spool, rt::sleep_until(due)).await?;
        }
        // Bytes for the file are read in pieces of the size of its writes.
        let is_spilled = !spool.borrow().has_memory(limits, limits.read as u64);
        let most = if is_spilled { limits.read.min(limits.write) } else { limits.read };
        let size = live.left().map_or(most, |left| most.min(left.max(1) as usize));
        let buf = match wanted(spool, live.next(size)).await? {
            Ok(Some(buf)) => buf,
            Ok(None) => return Some(Ok(())),
            Err(fault) => return Some(Err(fault)),
        };
        if spool.borrow().has_memory(limits, buf.capacity() as u64) {
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

/// The output of a future, or `None` when the client is gone before.
async fn wanted<F: Future>(spool: &RefCell<Spool>, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    poll_fn(|context| {
        if spool.borrow_mut().is_over(context) {
            return Poll::Ready(None);
        }
        future.as_mut().poll(context).map(Some)
    })
    .await
}

/// Waits until there is room for another piece; `None` when the client is gone.
async fn wait_for_room(spool: &RefCell<Spool>, limits: &Limits) -> Option<()> {
    let read = limits.read as u64;
    if spool.borrow().has_memory(limits, read) {
        return wanted(spool, std::future::ready(())).await;
    }
    let may_spill = |spool: &Spool| !spool.has_no_file && spool.file_len() + read <= limits.file;
    if spool.borrow().in_file == 0 && may_spill(&spool.borrow()) {
        // A client that takes something meanwhile is not slow.
        let until: Instant = rt::now() + PATIENCE;
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

/// The first bytes of a buffer as a separate buffer, if it has more. Where memory is short it stays as it is.
fn split(buf: &mut Buf, most: usize) -> Option<Buf> {
    if buf.len() <= most {
        return None;
    }
    let mut first = rt::pool().get(most)?;
    first.set_len(0);
    if first.append(&buf[..most]) < most {
        return None;
    }
    cut(buf, most);
    Some(first)
}

/// Writes received bytes to the file, at most the size of one write at once. If a write fails they stay in memory, and
/// the upstream waits for the client from then on.
async fn spill(spool: &RefCell<Spool>, limits: &Limits, mut buf: Buf) {
    while let Some(first) = split(&mut buf, limits.write) {
        keep(spool, limits, first).await;
    }
    keep(spool, limits, buf).await;
}

/// Writes a piece to the file, or holds it.
async fn keep(spool: &RefCell<Spool>, limits: &Limits, buf: Buf) {
    if spool.borrow().has_no_file {
        return spool.borrow_mut().hold(buf);
    }
    let (mut buf, mut room) = (buf, DiskRoom::new(&limits.thread, &limits.folder));
    let failed = loop {
        let mut failed = match write(spool, limits, buf).await {
            Ok(()) => return,
            Err(failed) => failed,
        };
        match failed.rest.take() {
            Some(rest) if room.make(failed.errno).await => buf = rest,
            rest => break Box::new(FailedWrite { rest, ..*failed }),
        }
    };
    let FailedWrite { call, path, errno, rest } = *failed;
    if let Some(more) = limits.thread.room.alarms.temp_files.due(rt::now()) {
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
        // The engine has lost the bytes.
        None => spool.lost = Some(errno),
    }
}

/// A write that failed.
struct FailedWrite {
    call: &'static str,
    path: PathBuf,
    errno: Errno,
    /// Bytes that are not in the file.
    rest: Option<Buf>,
}

/// Writes a piece to the file.
async fn write(spool: &RefCell<Spool>, limits: &Limits, buf: Buf) -> Result<(), Box<FailedWrite>> {
    let known = spool.borrow().file.clone();
    let file = match known {
        Some(file) => file,
        None => match received::create(&limits.folder, &limits.levels, false).await {
            Ok((file, _)) => {
                spool.borrow_mut().file = Some(file.clone());
                file
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
    let (result, rest) = file.write_at(start, buf, DeviceId::default(), via).await;
    // A file system that fills up takes the start of a piece: that is not in the buffer any more.
    let left = match (&result, &rest) {
        (Ok(_), _) => 0,
        (Err(_), Some(rest)) => rest.len() as u64,
        (Err(_), None) => len,
    };
    spool.borrow_mut().add_to_file(start, start + len - left);
    let path = limits.folder.clone();
    result.map(drop).map_err(|errno| Box::new(FailedWrite { call: "write", path, errno, rest }))
}

impl Spool {
    fn has_memory(&self, limits: &Limits, bytes: u64) -> bool {
        // One piece always has a place, whatever was configured.
        self.held == 0 || self.held + bytes <= limits.memory
    }

    /// Bytes of the file on its disk. Those that the client has received are free only when it has received all:
    /// otherwise a client that is always a little behind would have the whole response written, however long it is.
    fn file_len(&self) -> u64 {
        if self.in_file == 0 { 0 } else { self.file_end }
    }

    /// These bytes are in the file now.
    fn add_to_file(&mut self, start: u64, end: u64) {
        if start == end {
            return;
        }
        self.file_end = end;
        self.in_file += end - start;
        match self.pieces.back_mut() {
            Some(Piece::File { end: last, .. }) if *last == start => *last = end,
            _ => self.pieces.push_back(Piece::File { start, end }),
        }
        wake(&mut self.stream);
    }

    fn hold(&mut self, buf: Buf) {
        self.held += buf.capacity() as u64;
        self.pieces.push_back(Piece::Memory(buf));
        wake(&mut self.stream);
    }

    /// Whether the client is gone; else the pump is woken when it goes, or takes something.
    fn is_over(&mut self, context: &Context<'_>) -> bool {
        if !self.is_dropped {
            register(&mut self.pump, context);
        }
        self.is_dropped
    }
}

fn register(place: &mut Option<Waker>, context: &Context<'_>) {
    match place {
        Some(waker) => waker.clone_from(context.waker()),
        None => *place = Some(context.waker().clone()),
    }
}

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
    record: Rc<Try>,
    reading: Option<SpoolRead>,
    /// Bytes of the returned piece.
    piece_max: usize,
    /// Bytes that may be on their way to the client together.
    busy_max: Option<usize>,
    pass_trailers: bool,
    minds_client: bool,
}

impl Spooled {
    /// Takes the next piece of the file in hand.
    fn read(&self, spool: &mut Spool) -> Option<SpoolRead> {
        let Some(Piece::File { start, end }) = spool.pieces.front_mut() else { return None };
        let (offset, len) = (*start, (*end - *start).min(FILE_PIECE).min(self.piece_max as u64));
        *start += len;
        if *start == *end {
            spool.pieces.pop_front();
        }
        let (file, via) = (spool.file.clone()?, spool.via);
        Some(Box::pin(async move {
            let mut have: Option<Buf> = None;
            loop {
                let done = have.as_ref().map_or(0, |buf| buf.len()) as u64;
                let buf = rt::pool().get((len - done) as usize).ok_or(Errno::NOMEM)?;
                let read =
                    file.read_at(offset + done, (len - done) as u32, buf, DeviceId::default(), via).await;
                let (Ok(count @ 1..), Some(mut buf)) = read else {
                    return Err(read.0.err().unwrap_or(Errno::IO));
                };
                buf.set_len(count as usize);
                let all = match have.take() {
                    None => buf,
                    Some(mut held) => {
                        held.append(&buf);
                        held
                    }
                };
                if all.len() as u64 == len {
                    return Ok(all);
                }
                // Short reads of a file are rare enough for a copy into a buffer that holds all.
                let mut larger = rt::pool().get(len as usize).ok_or(Errno::NOMEM)?;
                larger.append(&all);
                have = Some(larger);
            }
        }))
    }

    fn broken(&self, fault: Fault) -> Poll<Result<Option<Source>, BodyError>> {
        self.record.fault.set(Some(fault));
        Poll::Ready(Err(BodyError::Broken))
    }
}

impl BodySource for Spooled {
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Source>, BodyError>> {
        loop {
            if let Some(reading) = &mut self.reading {
                let read = std::task::ready!(reading.as_mut().poll(context));
                self.reading = None;
                let buf = match read {
                    Ok(buf) => buf,
                    Err(errno) => return self.broken(Fault::Local(errno)),
                };
                let mut spool = self.spool.borrow_mut();
                // Only now may the pump write there again.
                spool.in_file -= buf.len() as u64;
                wake(&mut spool.pump);
                return Poll::Ready(Ok(Some(Source::Buf(buf))));
            }
            let mut spool = self.spool.borrow_mut();
            match spool.pieces.front_mut() {
                Some(Piece::Memory(buf)) => {
                    if let Some(first) = split(buf, self.piece_max) {
                        return Poll::Ready(Ok(Some(Source::Buf(first))));
                    }
                    let Some(Piece::Memory(buf)) = spool.pieces.pop_front() else { continue };
                    spool.held -= buf.capacity() as u64;
                    wake(&mut spool.pump);
                    return Poll::Ready(Ok(Some(Source::Buf(buf))));
                }
                Some(Piece::File { .. }) => {
                    let reading = self.read(&mut spool);
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
        match self.pass_trailers {
            true => self.record.trailers.borrow().clone(),
            false => Vec::new(),
        }
    }

    fn is_reading(&self) -> bool {
        self.reading.is_some()
    }

    fn send_bytes(&self) -> usize {
        // One more piece behind this many is still within the limit.
        self.busy_max.map_or(SEND_BYTES, |most| most.saturating_sub(self.piece_max) + 1)
    }

    fn minds_client(&self) -> bool {
        self.minds_client
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
