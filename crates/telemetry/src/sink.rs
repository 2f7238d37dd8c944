//! One target of log lines as one thread has it: requests hold it by way of their configuration and look nothing up.

use std::cell::RefCell;
use std::rc::Rc;

use crate::clock::Clock;
use crate::writer::{Stream, begin_frame, end_frame};
use crate::{Level, Target, TargetSpec, syslog};

/// One target. Its open file changes when logs are reopened; the sink stays.
pub struct LogTarget {
    spec: TargetSpec,
    clock: Rc<Clock>,
    stream: RefCell<Option<Rc<Stream>>>,
}

impl LogTarget {
    /// A file that could not be opened was reported at the start; its lines are lost, requests are served.
    pub(super) fn new(spec: TargetSpec, clock: &Rc<Clock>, stream: Option<Rc<Stream>>) -> LogTarget {
        LogTarget { spec, clock: Rc::clone(clock), stream: RefCell::new(stream) }
    }

    pub(super) fn spec(&self) -> &TargetSpec {
        &self.spec
    }

    /// Goes on with another file; queued lines are still written to the old one.
    pub(super) fn renew(&self, stream: Rc<Stream>) {
        // The old file may be stuck for good; the new one begins at once.
        if let Some(old) = self.stream.replace(Some(stream)) {
            old.close();
        }
    }

    /// Lets lines go out that gather for a buffer.
    pub(super) fn release(&self) {
        if let Some(stream) = &*self.stream.borrow() {
            stream.release();
        }
    }

    /// Adds what `line` appends; the end of a line, or the header of a message, is added here. `level` is that of a
    /// line of the error log.
    pub fn append(&self, level: Option<Level>, line: impl FnOnce(&mut Vec<u8>)) {
        // A separate handle: a value of the line may cause a line of the error log, and must not reopen anything.
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
