//! All log targets of one worker thread: which are open, and how a configuration gets hold of them.

use std::cell::RefCell;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::rc::{Rc, Weak};
use std::time::Duration;

use rt::File;

use crate::clock::Clock;
use crate::reports::Outgoing;
use crate::sink::LogTarget;
use crate::syslog::Socket;
use crate::writer::{Stream, Way};
use crate::{Level, Target, TargetSpec, Targets};

/// Bytes of lines that wait for one target on all threads together: some seconds of a busy server.
const BACKLOG_MAX: usize = 16 << 20;

/// The least share of a thread, however many threads there are.
const BACKLOG_LEAST: usize = 256 << 10;

/// How long a thread that ends waits for its logs: as long as for any other operation on a slow disk.
const LAST_WRITES: Duration = Duration::from_secs(2);

/// The log targets of one thread.
pub struct LogFiles {
    /// Those that a configuration holds, the present one or an old one.
    sinks: RefCell<Vec<Weak<LogTarget>>>,
    stderr: Option<File>,
    outgoing: Rc<Outgoing>,
    clock: Rc<Clock>,
    backlog_max: usize,
    /// Memory for values that are compared and discarded.
    scratch: RefCell<Vec<u8>>,
}

/// Open files by path, as they come from the master.
pub type Opened = Vec<(PathBuf, OwnedFd)>;

impl LogFiles {
    /// No target yet, for one of this many threads; `calls_directly`: whether direct calls are allowed beside the
    /// engine.
    pub fn new(stderr: Option<OwnedFd>, threads: usize, calls_directly: bool) -> LogFiles {
        LogFiles {
            sinks: RefCell::default(),
            stderr: stderr.map(File::new),
            outgoing: Rc::new(Outgoing::new(calls_directly)),
            clock: Rc::default(),
            backlog_max: (BACKLOG_MAX / threads.max(1)).max(BACKLOG_LEAST),
            scratch: RefCell::default(),
        }
    }

    /// The targets of a configuration in the order of its list. Files that are open under the same name continue with
    /// their new descriptors.
    pub fn resolve(&self, targets: &Targets, files: Opened) -> Vec<Rc<LogTarget>> {
        let files = by_path(files);
        self.renew(&files);
        // Equal in the target and in the buffering of lines: other buffering needs a separate sink, which may still
        // hold back lines of the last configuration.
        let known = self.alive();
        let sinks: Vec<Rc<LogTarget>> = targets
            .all()
            .iter()
            .map(|spec| match known.iter().find(|sink| sink.spec() == spec) {
                Some(sink) => Rc::clone(sink),
                None => Rc::new(LogTarget::new(spec.clone(), &self.clock, self.stream(spec, &files))),
            })
            .collect();
        let mut all: Vec<Weak<LogTarget>> = sinks.iter().map(Rc::downgrade).collect();
        // Requests in flight may still hold targets that this configuration does not have.
        all.extend(
            known.iter().filter(|old| !sinks.iter().any(|new| Rc::ptr_eq(old, new))).map(Rc::downgrade),
        );
        self.sinks.replace(all);
        sinks
    }

    /// Writes on into these files: they were opened again under the same names.
    pub fn reopen(&self, files: Opened) {
        self.renew(&by_path(files));
    }

    /// The time of day for the lines of this thread.
    pub fn clock(&self) -> &Rc<Clock> {
        &self.clock
    }

    /// State that the writers of this thread share.
    pub fn outgoing(&self) -> &Rc<Outgoing> {
        &self.outgoing
    }

    /// Gives the memory for a value to `look`.
    pub fn with_scratch<T>(&self, look: impl FnOnce(&mut Vec<u8>) -> T) -> T {
        let mut scratch = self.scratch.take();
        scratch.clear();
        let answer = look(&mut scratch);
        self.scratch.replace(scratch);
        answer
    }

    /// Writes the queued lines, at the end of the thread; gives up on stuck writes. `write` is [`Outgoing::write`]'s.
    pub async fn flush(&self, write: impl Fn(&Target, Level, &str)) {
        let until = rt::now() + LAST_WRITES;
        loop {
            // Reports first: they are lines themselves.
            self.outgoing.write(&write);
            for sink in self.alive() {
                sink.release();
            }
            if self.outgoing.is_idle() || rt::now() >= until {
                return;
            }
            rt::sleep_until(rt::now() + Duration::from_millis(1)).await;
        }
    }

    /// Those that some configuration still holds.
    fn alive(&self) -> Vec<Rc<LogTarget>> {
        self.sinks.borrow().iter().filter_map(Weak::upgrade).collect()
    }

    /// Gives targets their new files.
    fn renew(&self, files: &HashMap<PathBuf, File>) {
        for sink in self.alive() {
            // Sockets and the standard stream are not opened by the master and stay as they are.
            if let Target::File(path) = &sink.spec().target
                && files.contains_key(path)
                && let Some(stream) = self.stream(sink.spec(), files)
            {
                sink.renew(stream);
            }
        }
    }

    /// Opens a target for lines; `None` when the master could not open its file.
    fn stream(&self, spec: &TargetSpec, files: &HashMap<PathBuf, File>) -> Option<Rc<Stream>> {
        let way = match &spec.target {
            Target::File(path) => Way::File(files.get(path)?.clone()),
            Target::Stderr => Way::File(self.stderr.clone()?),
            Target::Syslog(peer) => Way::Syslog(Socket::new(peer)),
        };
        Some(Stream::start(way, spec.target.clone(), spec.hold, self.backlog_max, &self.outgoing))
    }
}

/// Two targets may share a file, so each path is looked up.
fn by_path(files: Opened) -> HashMap<PathBuf, File> {
    files.into_iter().map(|(path, fd)| (path, File::new(fd))).collect()
}
