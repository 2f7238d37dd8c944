//! A target of log lines on one thread. Requests access it through their configuration, without a lookup.

use std::cell::RefCell;
use std::rc::Rc;

use crate::clock::Clock;
use crate::writer::{Stream, begin_frame, end_frame};
use crate::{Level, Target, TargetSpec, syslog};

/// A log target. When logs are reopened, its open file is replaced and the target stays.
pub struct LogTarget {
    spec: TargetSpec,
    clock: Rc<Clock>,
    stream: RefCell<Option<Rc<Stream>>>,
}

impl LogTarget {
    /// Creates a target. `stream` is `None` if the file could not be opened: this was reported at the start, and its
    /// lines are lost.
    pub(super) fn new(spec: TargetSpec, clock: &Rc<Clock>, stream: Option<Rc<Stream>>) -> LogTarget {
        LogTarget { spec, clock: Rc::clone(clock), stream: RefCell::new(stream) }
    }

    pub(super) fn spec(&self) -> &TargetSpec {
        &self.spec
    }

    /// Continues with another file. Queued lines are still written to the old file.
    pub(super) fn renew(&self, stream: Rc<Stream>) {
        // The old file may be blocked forever; the new file is used immediately.
        if let Some(old) = self.stream.replace(Some(stream)) {
            old.close();
        }
    }

    /// Writes lines immediately that were delayed by `buffer=`.
    pub(super) fn release(&self) {
        if let Some(stream) = &*self.stream.borrow() {
            stream.release();
        }
    }

    /// Adds a line: `line` appends the text, and this function a newline or the header of a syslog message. `level` is the
    /// level of a line of the error log.
    pub fn append(&self, level: Option<Level>, line: impl FnOnce(&mut Vec<u8>)) {
        // The handle is cloned, because evaluating a variable may log an error and thus call this function again.
        let Some(stream) = self.stream.borrow().clone() else { return };
        match &self.spec.target {
            Target::File(_) | Target::Stderr => stream.append(|out| {
                line(out);
                out.push(b'\n');
            }),
            Target::Syslog(peer) => stream.append(|out| {
                let start = begin_frame(out);
                peer.header(level, &syslog::syslog_time(self.clock.dates().common_log()), out);
                let text = out.len();
                line(out);
                if level.is_some() {
                    syslog::Peer::cut(text, out);
                }
                end_frame(start, out);
            }),
        }
    }
}

impl Drop for LogTarget {
    fn drop(&mut self) {
        if let Some(stream) = self.stream.take() {
            stream.close();
        }
    }
}
