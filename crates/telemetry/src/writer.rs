//! Lines that wait for one open file or socket, and the task that writes them: one write at a time, so that a slow
//! disk delays lines but never a request.
//!
//! When the target falls behind by [`Stream::max`] bytes further lines are dropped, counted, and reported in the error
//! log. In the steady state a line costs no allocation: it is appended to reused memory.

use std::cell::{Cell, RefCell};
use std::pin::pin;
use std::rc::Rc;
use std::time::{Duration, Instant};

use io::op::{DeviceId, Stat};
use io::{DiskVia, Errno};
use rt::{File, Timer};
use rustix::fs::FileType;

use crate::bell::Bell;
use crate::gzip::Packer;
use crate::losses::{Cause, Losses, PAUSE};
use crate::prompt::Prompt;
use crate::reports::{Outgoing, Report, Whose};
use crate::syslog::{SendError, Socket};
use crate::{Hold, Level, Target};

/// Bytes of one write.
pub(super) const WRITE_MAX: usize = 256 << 10;

/// Memory that an idle log keeps; memory of a burst beyond it is freed.
const KEPT_MAX: usize = 256 << 10;

/// How long memory for a write, or room in a syslog server's queue, is waited for: first, and at most.
const WAIT_FIRST: Duration = Duration::from_millis(5);
const WAIT_MOST: Duration = Duration::from_millis(200);

/// How long messages for a syslog server that does not read are kept when nothing needs the socket any more.
const LAST_PATIENCE: Duration = Duration::from_secs(5);

/// Messages that are sent before other tasks have their turn.
const SENDS_MAX: usize = 64;

/// Bytes before a message, which contain its length.
pub(super) const FRAME_HEAD: usize = 4;

/// Where the bytes go.
pub(super) enum Way {
    File(File),
    Syslog(Socket),
}

/// Lines on their way to one open file or socket.
pub(super) struct Stream {
    way: Way,
    target: Target,
    hold: Option<Hold>,
    /// Bytes that may wait.
    max: usize,
    waiting: RefCell<Vec<u8>>,
    bell: Bell,
    /// When lines go out that are held back.
    flush_at: Cell<Option<Instant>>,
    /// Held back lines are written now.
    released: Cell<bool>,
    writing: Cell<bool>,
    prompt: Prompt,
    /// Whether there are lines that are not written.
    busy: Cell<bool>,
    /// Whether the last write was well, and nothing was dropped since.
    works: Cell<bool>,
    /// Nothing more will be appended: the task ends when all is written.
    closing: Cell<bool>,
    losses: Losses,
    outgoing: Rc<Outgoing>,
}

impl Stream {
    /// Starts the task.
    pub(super) fn start(
        way: Way,
        target: Target,
        hold: Option<Hold>,
        max: usize,
        outgoing: &Rc<Outgoing>,
    ) -> Rc<Stream> {
        let stream = Rc::new(Stream {
            way,
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
            works: Cell::new(true),
            closing: Cell::new(false),
            losses: Losses::default(),
            outgoing: Rc::clone(outgoing),
        });
        let writer = Rc::clone(&stream);
        rt::spawn(async move { writer.run().await });
        stream
    }

    /// Appends what `line` writes. It goes out in this turn, unless lines gather for a buffer.
    pub(super) fn append(&self, line: impl FnOnce(&mut Vec<u8>)) {
        if self.waiting.borrow().len() >= self.max {
            self.losses.drop_one();
            self.works.set(false);
            return self.tell();
        }
        // Taken out, because the value of a variable may itself write to this log.
        let mut waiting = self.waiting.take();
        line(&mut waiting);
        let meanwhile = self.waiting.replace(waiting);
        if !meanwhile.is_empty() {
            self.waiting.borrow_mut().extend_from_slice(&meanwhile);
        }
        if !self.busy.replace(true) {
            self.begin();
        }
        if !self.writing.get() && self.may_go() {
            self.bell.ring();
        }
    }

    /// The first line after a pause.
    fn begin(&self) {
        self.outgoing.count_busy(true);
        if let Some(flush) = self.hold.and_then(|hold| hold.flush) {
            self.flush_at.set(Some(rt::now() + flush));
            // The task has to set its alarm.
            self.bell.ring();
        }
    }

    /// Lets lines go out that are held back.
    pub(super) fn release(&self) {
        self.released.set(true);
        self.bell.ring();
    }

    /// Writes what there is, and ends.
    pub(super) fn close(&self) {
        self.closing.set(true);
        self.bell.ring();
    }

    /// Whether there is something to write, and it need not wait for more.
    fn may_go(&self) -> bool {
        let waiting = self.waiting.borrow().len();
        let enough = self.hold.map_or(0, |hold| hold.bytes);
        waiting > 0 && (waiting >= enough || self.released.get() || self.closing.get())
    }

    /// The task.
    async fn run(&self) {
        let timer = Timer::new();
        let mut output = Output::new(self.hold);
        if let Way::File(file) = &self.way {
            self.look_at(file, &mut output).await;
        }
        loop {
            // Lines that come meanwhile need no ring: they are seen before the next wait.
            self.writing.set(true);
            while self.may_go() {
                match &self.way {
                    Way::File(file) => self.write_some(file, &mut output, &timer).await,
                    Way::Syslog(socket) => self.send_some(socket).await,
                }
            }
            self.writing.set(false);
            self.released.set(false);
            if self.closing.get() {
                // There is no later call, so unreported losses are reported now if the pause allows it.
                return self.tell();
            }
            let alarm = [self.flush_at.get(), self.losses.due(self.works.get())].into_iter().flatten().min();
            match alarm {
                None => self.bell.wait().await,
                Some(at) => {
                    timer.set(at);
                    if timer.limit(self.bell.wait()).await.is_err() {
                        self.released.set(self.flush_at.get().is_some_and(|at| at <= rt::now()));
                        self.tell();
                    }
                }
            }
        }
    }

    async fn look_at(&self, file: &File, output: &mut Output) {
        let Ok(stat) = file.stat(DeviceId::default(), output.via).await else { return };
        output.device = device_of(&stat);
        // Lines that gather are late anyway.
        if self.hold.is_none() && self.outgoing.calls_directly() {
            self.prompt.look_at(file, &stat, output.device).await;
        }
    }

    /// Writes lines by a call of the thread; `false` leaves them to the engine.
    fn write_by_call(&self, file: &File) -> bool {
        let (written, waiting) = {
            let waiting = self.waiting.borrow();
            (self.prompt.write(file, &waiting), waiting.len())
        };
        match written {
            None => return false,
            Some(Ok(count)) => self.written(count, Ok(()), 0),
            Some(Err(errno)) => {
                let lines = count_lines(&self.waiting.borrow());
                self.written(waiting, Err(errno), lines);
            }
        }
        true
    }

    /// This many bytes were written, or lost with this many lines.
    fn written(&self, count: usize, result: Result<(), Errno>, lines: u64) {
        self.consume(count);
        self.works.set(result.is_ok());
        // Not tried again: how much of it was written is unknown, and duplicate lines are worse.
        if let Err(errno) = result {
            self.losses.fail(lines, Cause::Write(errno));
        }
        self.tell();
    }

    /// Reports lost lines in the error log, if that is due.
    fn tell(&self) {
        if self.losses.is_any()
            && let Some(text) = self.losses.report(self.works.get(), &self.target)
        {
            let whose = Whose::Process(self.target.clone());
            self.outgoing.report(Report { level: Level::Alert, text, whose });
        }
    }

    /// Forgets bytes at the start that have been written or lost.
    fn consume(&self, count: usize) {
        let mut waiting = self.waiting.borrow_mut();
        waiting.drain(..count);
        if waiting.is_empty() {
            if waiting.capacity() > KEPT_MAX.max(self.hold.map_or(0, |hold| hold.bytes)) {
                *waiting = Vec::new();
            }
            self.flush_at.set(None);
            self.busy.set(false);
            self.outgoing.count_busy(false);
        }
    }

    /// One buffer for a file.
    async fn write_some(&self, file: &File, output: &mut Output, timer: &Timer) {
        if self.write_by_call(file) {
            return;
        }
        let count = self.waiting.borrow().len().min(WRITE_MAX);
        let lines = {
            let waiting = self.waiting.borrow();
            output.fill(&waiting[..count]);
            count_lines(&waiting[..count])
        };
        let began = Instant::now();
        let mut result = Ok(());
        while result.is_ok() && !output.bytes.is_empty() {
            let Some(mut buf) = rt::pool().get(output.bytes.len().min(WRITE_MAX)) else {
                // Memory is short: the lines wait, and are dropped when there are too many.
                rt::sleep_until(rt::now() + WAIT_FIRST).await;
                self.tell();
                continue;
            };
            // Copied into memory that the engine knows; the output of a packer may be longer than that.
            let taken = buf.append(&output.bytes);
            output.bytes.drain(..taken);
            let mut write = pin!(file.write_at(0, buf, output.device, output.via));
            result = loop {
                timer.set(rt::now() + PAUSE);
                match timer.limit(write.as_mut()).await {
                    Ok((result, _)) => break result.map(drop),
                    // Stuck for a minute.
                    Err(rt::Elapsed) => self.tell(),
                }
            };
        }
        self.prompt.note(began, Instant::now());
        self.written(count, result, lines);
    }

    /// Messages for a syslog server, as many as it takes now.
    async fn send_some(&self, socket: &Socket) {
        // There is no event to wait for: a unix datagram socket is writable while the queue of its peer is full.
        let (mut pause, mut stuck) = (WAIT_FIRST, Duration::ZERO);
        loop {
            let (used, busy) = self.send_batch(socket);
            if used > 0 {
                self.consume(used);
                self.tell();
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
            if self.closing.get() && stuck > LAST_PATIENCE {
                return self.give_up();
            }
            rt::sleep_until(rt::now() + pause).await;
            self.tell();
            stuck += pause;
            pause = WAIT_MOST.min(pause * 2);
        }
    }

    /// Sends some messages; the bytes that are done with, and whether the server reads no more for now.
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

    /// Sends one message, or counts it as lost; `false` leaves it for another time.
    fn send(&self, socket: &Socket, message: &[u8]) -> bool {
        let mut sent = socket.send(message);
        if let Err(error @ SendError::Failed(_, errno)) = sent
            && errno != Errno::MSGSIZE
        {
            // Over UDP the error is about the message before this one; a unix socket returns an error for a line that
            // it does not take.
            if socket.peer().is_inet() && errno == Errno::CONNREFUSED {
                self.lose(error);
            }
            sent = socket.send(message);
        }
        match sent {
            Ok(()) => self.works.set(true),
            Err(SendError::Busy) => return false,
            Err(error) => self.lose(error),
        }
        true
    }

    /// Counts a message that will not go out.
    fn lose(&self, error: SendError) {
        self.works.set(false);
        self.losses.fail(1, Cause::Send(error));
    }

    /// The server has not read for long, and the socket is not needed any more.
    fn give_up(&self) {
        let count = {
            let waiting = self.waiting.borrow();
            while_some(&waiting, |_| self.losses.drop_one())
        };
        self.works.set(false);
        self.consume(count);
        self.tell();
    }
}

/// The parts of a write, in memory that is reused.
struct Output {
    bytes: Vec<u8>,
    packer: Option<Packer>,
    via: DiskVia,
    device: DeviceId,
}

impl Output {
    fn new(hold: Option<Hold>) -> Output {
        let packer = hold.and_then(|hold| hold.gzip).map(Packer::new);
        Output { bytes: Vec::new(), packer, via: rt::caps().best_disk(), device: DeviceId::default() }
    }

    /// The bytes of a file for these lines.
    fn fill(&mut self, lines: &[u8]) {
        self.bytes.clear();
        match &mut self.packer {
            Some(packer) => packer.pack(lines, &mut self.bytes),
            None => self.bytes.extend_from_slice(lines),
        }
    }
}

pub(super) fn count_lines(text: &[u8]) -> u64 {
    memchr::memchr_iter(b'\n', text).count() as u64
}

/// The device whose share of the workers a log uses. A pipe without a reader must not use up the share of its
/// directory's disk, so anything but a regular file counts as a separate device.
pub(super) fn device_of(stat: &Stat) -> DeviceId {
    match FileType::from_raw_mode(stat.mode) {
        FileType::RegularFile => stat.device,
        _ => DeviceId(u64::MAX - stat.inode),
    }
}

/// Opens a frame: answers where [`end_frame`] finds its head.
pub(super) fn begin_frame(out: &mut Vec<u8>) -> usize {
    out.extend_from_slice(&[0; FRAME_HEAD]);
    out.len()
}

/// Completes the framing of a message that starts at `start`.
pub(super) fn end_frame(start: usize, out: &mut [u8]) {
    // Limited by the backlog, which is far below 4 GiB.
    let len = (out.len() - start) as u32;
    out[start - FRAME_HEAD..start].copy_from_slice(&len.to_le_bytes());
}

/// The message of the first frame.
fn first_message(frames: &[u8]) -> Option<&[u8]> {
    let (head, rest) = frames.split_first_chunk::<FRAME_HEAD>()?;
    rest.get(..u32::from_le_bytes(*head) as usize)
}

/// Visits all messages; how many bytes they take.
fn while_some(frames: &[u8], mut visit: impl FnMut(&[u8])) -> usize {
    let mut used = 0;
    while let Some(message) = first_message(&frames[used..]) {
        visit(message);
        used += FRAME_HEAD + message.len();
    }
    used
}
