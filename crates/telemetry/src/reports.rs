//! Reports of the tasks that write logs. These tasks run outside of requests and have no error log. They enqueue
//! reports here, and a task of the thread writes the reports.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::bell::Bell;
use crate::{Level, Target};

/// State that all writers of one thread share.
#[derive(Default)]
pub struct Outgoing {
    /// Number of writers with unwritten lines.
    busy: Cell<usize>,
    reports: RefCell<Vec<Report>>,
    bell: Bell,
    calls_directly: bool,
}

/// A line for the error log.
pub(super) struct Report {
    pub(super) level: Level,
    pub(super) text: String,
    pub(super) log: ReportLog,
}

/// Writes a report to the error log of a request. The request may have ended.
pub type Reporter = Box<dyn FnOnce(Level, &str)>;

/// The error log that receives a report.
pub(super) enum ReportLog {
    /// The error log of the process, except the target that the report is about.
    Process(Target),
    /// The error log of the request that caused the line.
    Request(Reporter),
}

impl Outgoing {
    /// Creates the state without reports. `calls_directly` states whether writers may make system calls without the
    /// engine.
    pub(super) fn new(calls_directly: bool) -> Outgoing {
        Outgoing { calls_directly, ..Outgoing::default() }
    }

    /// Whether writers may make system calls without the engine.
    pub(super) fn calls_directly(&self) -> bool {
        self.calls_directly
    }

    /// Enqueues a report.
    pub(super) fn report(&self, report: Report) {
        self.reports.borrow_mut().push(report);
        self.bell.ring();
    }

    /// Counts a writer that got its first line (`busy`), or wrote its last line.
    pub(super) fn count_busy(&self, busy: bool) {
        let count = self.busy.get();
        self.busy.set(if busy { count + 1 } else { count.saturating_sub(1) });
    }

    /// Whether all lines are written.
    pub fn is_idle(&self) -> bool {
        self.busy.get() == 0
    }

    /// Writes the queued reports. `process` writes a report to the error log of the process, except the target that the
    /// report is about.
    pub fn write(&self, process: &impl Fn(&Target, Level, &str)) {
        for Report { level, text, log } in self.reports.take() {
            match log {
                ReportLog::Process(target) => process(&target, level, &text),
                ReportLog::Request(write) => write(level, &text),
            }
        }
    }
}

/// Writes reports until the thread ends; see [`Outgoing::write`].
pub async fn watch(outgoing: Rc<Outgoing>, process: impl Fn(&Target, Level, &str)) {
    loop {
        outgoing.bell.wait().await;
        outgoing.write(&process);
    }
}
