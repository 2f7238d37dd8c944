//! All log targets of one worker thread: the open files, and the targets of a configuration.

use std::cell::RefCell;
use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::rc::{Rc, Weak};
use std::time::Duration;

use rt::File;

use crate::clock::Clock;
use crate::reports::Outgoing;
use crate::sink::LogTarget;
use crate::syslog::Socket;
use crate::writer::{Destination, Stream};
use crate::{Level, Target, TargetSpec, Targets};

/// Maximum number of queued bytes per target on all threads together: several seconds of a busy server.
const BACKLOG_MAX: usize = 16 << 20;

/// Minimum of a thread's share in bytes, for any number of threads.
const BACKLOG_LEAST: usize = 256 << 10;

/// Maximum time that an ending thread waits for its logs; the same as for other operations on a slow disk.
const LAST_WRITES: Duration = Duration::from_secs(2);

/// The log targets of one thread.
pub struct LogFiles {
    /// Targets that a configuration references, the present or an old one.
    sinks: RefCell<Vec<Weak<LogTarget>>>,
    outgoing: Rc<Outgoing>,
    clock: Rc<Clock>,
    backlog_max: usize,
    /// Reused memory for values that are compared and discarded.
    scratch: RefCell<Vec<u8>>,
}

/// Open files by path, as received from the master.
pub type Opened = Vec<(PathBuf, OwnedFd)>;

impl LogFiles {
    /// Creates the state without targets, for one of `threads` threads. `calls_directly` states whether system calls
    /// are allowed without the engine.
    pub fn new(threads: usize, calls_directly: bool) -> LogFiles {
        LogFiles {
            sinks: RefCell::default(),
            outgoing: Rc::new(Outgoing::new(calls_directly)),
            clock: Rc::default(),
            backlog_max: (BACKLOG_MAX / threads.max(1)).max(BACKLOG_LEAST),
            scratch: RefCell::default(),
        }
    }

    /// Returns the targets of a configuration, in the order of its list. Targets whose paths are in `files` write to the
    /// new descriptors from now on.
    pub fn resolve(&self, targets: &Targets, files: Opened) -> Vec<Rc<LogTarget>> {
        let files = by_path(files);
        self.renew(&files);
        // A target is reused if both its file and its buffering are equal. Other buffering needs a separate target,
        // because lines of the last configuration may still be delayed.
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
        // Requests in flight may still use targets that this configuration does not have.
        all.extend(
            known.iter().filter(|old| !sinks.iter().any(|new| Rc::ptr_eq(old, new))).map(Rc::downgrade),
        );
        self.sinks.replace(all);
        sinks
    }

    /// Continues with these files, which were reopened under the same names.
    pub fn reopen(&self, files: Opened) {
        self.renew(&by_path(files));
    }

    /// Returns the time of day for the lines of this thread.
    pub fn clock(&self) -> &Rc<Clock> {
        &self.clock
    }

    /// Returns the state that the writers of this thread share.
    pub fn outgoing(&self) -> &Rc<Outgoing> {
        &self.outgoing
    }

    /// Calls `look` with an empty buffer, whose memory is reused.
    pub fn with_scratch<T>(&self, look: impl FnOnce(&mut Vec<u8>) -> T) -> T {
        let mut scratch = self.scratch.take();
        scratch.clear();
        let answer = look(&mut scratch);
        self.scratch.replace(scratch);
        answer
    }

    /// Writes the queued lines when the thread ends; gives up on blocked writes. `write` is passed to
    /// [`Outgoing::write`].
    pub async fn flush(&self, write: impl Fn(&Target, Level, &str)) {
        let until = rt::now() + LAST_WRITES;
        loop {
            // Reports are written first because they are lines too.
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

    /// Returns the targets that some configuration still references.
    fn alive(&self) -> Vec<Rc<LogTarget>> {
        self.sinks.borrow().iter().filter_map(Weak::upgrade).collect()
    }

    /// Replaces the open files of targets.
    fn renew(&self, files: &HashMap<PathBuf, File>) {
        for sink in self.alive() {
            // The master does not open sockets and the standard error stream, so these stay unchanged.
            if let Target::File(path) = &sink.spec().target
                && files.contains_key(path)
                && let Some(stream) = self.stream(sink.spec(), files)
            {
                sink.renew(stream);
            }
        }
    }

    /// Opens a target for lines. Returns `None` if its file could not be opened.
    fn stream(&self, spec: &TargetSpec, files: &HashMap<PathBuf, File>) -> Option<Rc<Stream>> {
        let destination = match &spec.target {
            Target::File(path) => Destination::File(files.get(path)?.clone()),
            // Duplicated only if it is a target: standard error of a daemon is a log file, which would stay open after a
            // rotation.
            Target::Stderr => {
                Destination::File(File::new(std::io::stderr().as_fd().try_clone_to_owned().ok()?))
            }
            Target::Syslog(peer) => Destination::Syslog(Socket::new(peer)),
        };
        Some(Stream::start(destination, spec.target.clone(), spec.hold, self.backlog_max, &self.outgoing))
    }
}

/// Returns a map by path; two targets may have the same path.
fn by_path(files: Opened) -> HashMap<PathBuf, File> {
    files.into_iter().map(|(path, fd)| (path, File::new(fd))).collect()
}
