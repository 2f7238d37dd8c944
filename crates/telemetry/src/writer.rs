//! The queued lines of an open file or socket, and the task that writes them. The task makes one write at a time,
//! directly ([`crate::prompt`]) or through the engine. A slow disk delays lines; it delays requests only during a
//! direct write.
//!
//! If [`Stream::max`] bytes are queued, further lines are dropped, counted, and reported in the error log. In the
//! steady state a line needs no allocation, because it is appended to reused memory.

use std::cell::{Cell, RefCell};
use std::pin::pin;
use std::rc::Rc;
use std::time::{Duration, Instant};

use io::facts::{DeviceId, Stat};
use io::{Disk, Errno};
use rt::{File, Timer};
use rustix::fs::FileType;

use crate::bell::Bell;
use crate::gzip::Packer;
use crate::losses::{Cause, Losses, PAUSE};
use crate::prompt::Prompt;
use crate::reports::{Outgoing, Report, ReportLog};
use crate::syslog::{SendError, Socket};
use crate::tear::Tear;
use crate::{Hold, Level, Target};

/// Maximum number of bytes of lines per write.
pub(super) const WRITE_MAX: usize = 256 << 10;

/// Maximum number of bytes of memory that an idle log retains; memory of a burst is freed.
const RETAINED_MAX: usize = 256 << 10;

/// Time between retries if memory for a write is scarce, or if a syslog server's queue is full: the first and the
/// maximum.
const WAIT_FIRST: Duration = Duration::from_millis(5);
const WAIT_MOST: Duration = Duration::from_millis(200);

/// Time after which messages for a syslog server that does not read are dropped, if the socket is no longer needed.
const LAST_WAIT: Duration = Duration::from_secs(5);

/// Maximum number of messages that are sent before other tasks run.
const SENDS_MAX: usize = 64;

/// Time after a refusal during which a sent datagram does not show that the server works: the kernel reports a refusal with
/// a later send.
const REFUSED_TIME: Duration = Duration::from_secs(10);

/// Length in bytes of the header before a queued message, which contains the length of the message.
pub(super) const FRAME_HEAD: usize = 4;

/// The file or socket of a stream.
pub(super) enum Destination {
    File(File),
    Syslog(Socket),
}

/// The queued lines of an open file or socket.
pub(super) struct Stream {
    destination: Destination,
    target: Target,
    hold: Option<Hold>,
    /// Maximum number of queued bytes.
    max: usize,
    waiting: RefCell<Vec<u8>>,
    bell: Bell,
    /// Time when delayed lines must be written.
    flush_at: Cell<Option<Instant>>,
    /// Whether delayed lines must be written now.
    released: Cell<bool>,
    writing: Cell<bool>,
    prompt: Prompt,
    /// Whether unwritten lines exist.
    busy: Cell<bool>,
    /// Whether the last write succeeded, and no line was dropped since.
    is_working: Cell<bool>,
    /// Time of the last message that a server refused over UDP.
    refused: Cell<Option<Instant>>,
    /// Whether no more lines will be appended: the task ends when all lines are written.
    closing: Cell<bool>,
    losses: Losses,
    tear: Tear,
    outgoing: Rc<Outgoing>,
}

impl Stream {
    /// Creates the stream and starts its task.
    pub(super) fn start(
        destination: Destination,
        target: Target,
        hold: Option<Hold>,
        max: usize,
        outgoing: &Rc<Outgoing>,
    ) -> Rc<Stream> {
        let losses = Losses::of(&target.to_string());
        let tear = Tear::shared(losses.torn());
        let stream = Rc::new(Stream {
            destination,
            target,
            hold,
            max: max.max(hold.map_or(0, |hold| hold.bytes.saturating_mul(2))),
            waiting: RefCell::default(),
            bell: Bell::default(),
            flush_at: Cell::new(None),
            released: Cell::new(false),
            writing: Cell::new(false),
            prompt: Prompt::default(),
            busy: Cell::new(false),
            is_working: Cell::new(true),
            refused: Cell::new(None),
            closing: Cell::new(false),
            losses,
            tear,
            outgoing: Rc::clone(outgoing),
        });
        let writer = Rc::clone(&stream);
        rt::spawn(async move { writer.run().await });
        stream
    }

    /// Appends a line, which `line` writes. Without buffering, the task writes or submits the line in this event-loop
    /// turn, unless an earlier write is in progress.
    pub(super) fn append(&self, line: impl FnOnce(&mut Vec<u8>)) {
        if self.waiting.borrow().len() >= self.max {
            self.losses.drop_one();
            self.is_working.set(false);
            return self.report_losses();
        }
        // The queue is moved out of the cell, because evaluating a variable may write to this log.
        let mut waiting = self.waiting.take();
        line(&mut waiting);
        let meanwhile = self.waiting.replace(waiting);
        if !meanwhile.is_empty() {
            self.waiting.borrow_mut().extend_from_slice(&meanwhile);
        }
        if !self.busy.replace(true) {
            self.begin();
        }
        if !self.writing.get() && self.may_flush() {
            self.bell.ring();
        }
    }

    /// Notes the first line after all lines were written.
    fn begin(&self) {
        self.outgoing.count_busy(true);
        if let Some(flush) = self.hold.and_then(|hold| hold.flush) {
            self.flush_at.set(Some(rt::now() + flush));
            // The task must set its timer.
            self.bell.ring();
        }
    }

    /// Writes delayed lines immediately.
    pub(super) fn release(&self) {
        self.released.set(true);
        self.bell.ring();
    }

    /// Lets the task write the queued lines, and end.
    pub(super) fn close(&self) {
        self.closing.set(true);
        self.bell.ring();
    }

    /// Whether lines are queued and need not wait for more lines.
    fn may_flush(&self) -> bool {
        let waiting = self.waiting.borrow().len();
        let enough = self.hold.map_or(0, |hold| hold.bytes);
        waiting > 0 && (waiting >= enough || self.released.get() || self.closing.get())
    }

    /// Runs the task.
    async fn run(&self) {
        let timer = Timer::new();
        let mut output = Output::new(self.hold);
        if let Destination::File(file) = &self.destination {
            self.check(file, &mut output).await;
        }
        loop {
            // Lines that arrive during a write need no signal: the task checks for them before the next wait.
            self.writing.set(true);
            while self.may_flush() {
                match &self.destination {
                    Destination::File(file) => self.write_some(file, &mut output, &timer).await,
                    Destination::Syslog(socket) => self.send_some(socket).await,
                }
            }
            self.writing.set(false);
            self.released.set(false);
            if self.closing.get() {
                // This is the last call: losses are reported now if the pause between reports has passed.
                return self.report_losses();
            }
            let alarm =
                [self.flush_at.get(), self.losses.due(self.is_working.get())].into_iter().flatten().min();
            match alarm {
                None => self.bell.wait().await,
                Some(at) => {
                    timer.set(at);
                    if timer.limit(self.bell.wait()).await.is_err() {
                        self.released.set(self.flush_at.get().is_some_and(|at| at <= rt::now()));
                        self.report_losses();
                    }
                }
            }
        }
    }

    async fn check(&self, file: &File, output: &mut Output) {
        let Ok(stat) = file.stat(output.disk).await else { return };
        output.disk.device = device_of(&stat);
        // Buffered lines are delayed in any case, so a direct write would have no advantage.
        if self.hold.is_none() && self.outgoing.calls_directly() {
            self.prompt.check(file, &stat, output.disk.device).await;
        }
    }

    /// Writes lines by a direct system call. Returns `false` if the engine must write them.
    fn write_by_call(&self, file: &File) -> bool {
        let (written, waiting) = {
            let waiting = self.waiting.borrow();
            (self.prompt.write(file, &waiting), waiting.len())
        };
        match written {
            None => return false,
            Some(Ok(count)) => {
                self.tear.written(&self.waiting.borrow()[..count]);
                self.written(count, Ok(()), 0);
            }
            Some(Err(errno)) => {
                let lines = self.tear.failed(&self.waiting.borrow(), 0);
                self.written(waiting, Err(errno), lines);
            }
        }
        true
    }

    /// Handles the result of a write that has written or lost `count` bytes, and lost `lines` lines.
    fn written(&self, count: usize, result: Result<(), Errno>, lines: u64) {
        self.consume(count);
        self.is_working.set(result.is_ok());
        // A failed write is not retried, because the next one would probably fail too.
        if let Err(errno) = result {
            self.losses.fail(lines, Cause::Write(errno));
        }
        self.report_losses();
    }

    /// Reports lost lines in the error log, if a report is due.
    fn report_losses(&self) {
        if self.losses.is_any()
            && let Some(text) = self.losses.report(self.is_working.get(), &self.target)
        {
            let log = ReportLog::Process(self.target.clone());
            self.outgoing.report(Report { level: Level::Alert, text, log });
        }
    }

    /// Removes bytes from the start of the queue that have been written or lost.
    fn consume(&self, count: usize) {
        let mut waiting = self.waiting.borrow_mut();
        assert!(count <= waiting.len(), "only waiting bytes are written");
        waiting.drain(..count);
        if waiting.is_empty() {
            if waiting.capacity() > RETAINED_MAX.max(self.hold.map_or(0, |hold| hold.bytes)) {
                *waiting = Vec::new();
            }
            self.flush_at.set(None);
            self.busy.set(false);
            self.outgoing.count_busy(false);
        }
    }

    /// Writes one buffer to a file.
    async fn write_some(&self, file: &File, output: &mut Output, timer: &Timer) {
        if output.packer.is_none() {
            self.tear.prepare(&mut self.waiting.borrow_mut());
        }
        if self.write_by_call(file) {
            return;
        }
        let count = {
            let waiting = self.waiting.borrow();
            let text = first_lines(&waiting, WRITE_MAX);
            output.fill(text);
            text.len()
        };
        let began = Instant::now();
        let (mut result, mut unwritten) = (Ok(()), 0);
        while result.is_ok() && !output.bytes.is_empty() {
            let Some(mut buf) = rt::pool().get(output.bytes.len()) else {
                // Memory is scarce: the lines stay queued, and are dropped when they reach the limit.
                rt::sleep_until(rt::now() + WAIT_FIRST).await;
                self.report_losses();
                continue;
            };
            // The engine needs the bytes in a buffer of the pool, whose largest buffer has four times WRITE_MAX.
            let taken = buf.append(&output.bytes);
            debug_assert!(taken <= output.bytes.len(), "a buffer takes at most the bytes of the output");
            output.bytes.drain(..taken);
            let mut write = pin!(file.write_at(0, buf, output.disk));
            result = loop {
                timer.set(rt::now() + PAUSE);
                match timer.limit(write.as_mut()).await {
                    Ok((result, rest)) => {
                        unwritten = rest.map_or(taken, |rest| rest.len());
                        break result.map(drop);
                    }
                    // The write has been blocked for a minute.
                    Err(rt::Elapsed) => self.report_losses(),
                }
            };
        }
        self.prompt.note(began, Instant::now());
        let lines = {
            let waiting = self.waiting.borrow();
            let text = &waiting[..count];
            match result {
                // A compressed batch that was partly written cannot be read.
                Err(_) if output.packer.is_some() => count_lines(text),
                Err(_) => self.tear.failed(text, count.saturating_sub(unwritten + output.bytes.len())),
                Ok(()) => {
                    self.tear.written(text);
                    0
                }
            }
        };
        self.written(count, result, lines);
    }

    /// Sends messages to a syslog server, until its queue is full.
    async fn send_some(&self, socket: &Socket) {
        // No event signals that the server reads again: a unix datagram socket is writable even if the queue of its
        // peer is full.
        let (mut pause, mut stuck) = (WAIT_FIRST, Duration::ZERO);
        loop {
            let (used, busy) = self.send_batch(socket);
            if used > 0 {
                self.consume(used);
                self.report_losses();
                pause = WAIT_FIRST;
                stuck = Duration::ZERO;
            }
            if self.waiting.borrow().is_empty() {
                return;
            }
            if !busy {
                rt::yield_now().await;
                continue;
            }
            if self.closing.get() && stuck > LAST_WAIT {
                return self.drop_all();
            }
            rt::sleep_until(rt::now() + pause).await;
            self.report_losses();
            stuck += pause;
            pause = WAIT_MOST.min(pause * 2);
        }
    }

    /// Sends some messages. Returns the number of processed bytes, and whether the server's queue is full.
    fn send_batch(&self, socket: &Socket) -> (usize, bool) {
        let waiting = self.waiting.borrow();
        let mut used = 0;
        for _ in 0..SENDS_MAX {
            let Some(message) = first_message(&waiting[used..]) else { break };
            if !self.send(socket, message) {
                return (used, true);
            }
            used += FRAME_HEAD + message.len();
        }
        (used, false)
    }

    /// Sends a message, or counts it as lost. Returns `false` if the message must be retried later.
    fn send(&self, socket: &Socket, message: &[u8]) -> bool {
        let mut sent = socket.send(message);
        if let Err(error @ SendError::Failed(_, errno)) = sent
            && errno != Errno::MSGSIZE
        {
            // Over UDP the error belongs to an earlier message. A unix socket returns an error for the present message.
            if socket.peer().is_inet() && errno == Errno::CONNREFUSED {
                self.refused.set(Some(rt::now()));
                self.lose(error);
            }
            sent = socket.send(message);
        }
        let is_recent = |at: Instant| rt::now().saturating_duration_since(at) < REFUSED_TIME;
        match sent {
            // It is unknown yet whether this message arrives.
            Ok(()) if self.refused.get().is_some_and(is_recent) => {}
            Ok(()) => self.is_working.set(true),
            Err(SendError::Busy) => return false,
            Err(error) => self.lose(error),
        }
        true
    }

    /// Counts a message that will not be sent.
    fn lose(&self, error: SendError) {
        self.is_working.set(false);
        self.losses.fail(1, Cause::Send(error));
    }

    /// Drops all messages, because the server has not read for a long time and the socket is no longer needed.
    fn drop_all(&self) {
        let count = {
            let waiting = self.waiting.borrow();
            while_some(&waiting, |_| self.losses.drop_one())
        };
        self.is_working.set(false);
        self.consume(count);
        self.report_losses();
    }
}

/// State of a write, in reused memory.
struct Output {
    bytes: Vec<u8>,
    packer: Option<Packer>,
    disk: Disk,
}

impl Output {
    fn new(hold: Option<Hold>) -> Output {
        let packer = hold.and_then(|hold| hold.gzip).map(Packer::new);
        let disk = Disk { device: DeviceId::default(), via: rt::caps().best_disk() };
        Output { bytes: Vec::new(), packer, disk }
    }

    /// Fills the buffer with the bytes to write for these lines, compressed if configured.
    fn fill(&mut self, lines: &[u8]) {
        self.bytes.clear();
        match &mut self.packer {
            Some(packer) => packer.pack(lines, &mut self.bytes),
            None => self.bytes.extend_from_slice(lines),
        }
    }
}

/// Returns the complete lines in the first `max` bytes, or `max` bytes of a longer line. Other threads may write to the
/// file between two writes, so a write must not end within a line.
pub(super) fn first_lines(waiting: &[u8], max: usize) -> &[u8] {
    let text = &waiting[..waiting.len().min(max)];
    memchr::memrchr(b'\n', text).map_or(text, |end| &text[..=end])
}

pub(super) fn count_lines(text: &[u8]) -> u64 {
    memchr::memchr_iter(b'\n', text).count() as u64
}

/// Returns the device on which a log's operations count. Only regular files count on their disk. Other files are
/// separate devices: a pipe without a reader must not use up the share of its directory's disk.
pub(super) fn device_of(stat: &Stat) -> DeviceId {
    match FileType::from_raw_mode(stat.mode) {
        FileType::RegularFile => stat.device,
        _ => DeviceId(u64::MAX - stat.inode),
    }
}

/// Reserves the header of a frame. Returns the start of its message, for [`end_frame`].
pub(super) fn begin_frame(out: &mut Vec<u8>) -> usize {
    out.extend_from_slice(&[0; FRAME_HEAD]);
    out.len()
}

/// Writes the header of a frame whose message starts at `start`.
pub(super) fn end_frame(start: usize, out: &mut [u8]) {
    assert!(start >= FRAME_HEAD && start <= out.len(), "the message follows the head of its frame");
    // The limit of the queue is far below 4 GiB.
    let len = (out.len() - start) as u32;
    out[start - FRAME_HEAD..start].copy_from_slice(&len.to_le_bytes());
}

/// Returns the message of the first frame.
fn first_message(frames: &[u8]) -> Option<&[u8]> {
    let (head, rest) = frames.split_first_chunk::<FRAME_HEAD>()?;
    rest.get(..u32::from_le_bytes(*head) as usize)
}

/// Calls `visit` for all messages. Returns the number of bytes of their frames.
fn while_some(frames: &[u8], mut visit: impl FnMut(&[u8])) -> usize {
    let mut used = 0;
    while let Some(message) = first_message(&frames[used..]) {
        visit(message);
        used += FRAME_HEAD + message.len();
    }
    used
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_ends_with_a_line() {
        assert_eq!(first_lines(b"one\ntwo\n", 8), b"one\ntwo\n");
        assert_eq!(first_lines(b"one\ntwo\n", 7), b"one\n");
        assert_eq!(first_lines(b"longer\n", 4), b"long", "a line that is longer than a write");
        assert_eq!(first_lines(b"", 4), b"");
    }
}
