//! Reports of the writers of logs. They run beside the requests and have no error log, so they leave their reports
//! here, and a task of the thread writes them.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::bell::Bell;
use crate::{Level, Target};

/// State that the writers of one thread share.
#[derive(Default)]
pub struct Outgoing {
    /// Writers that have lines which are not written.
    busy: Cell<usize>,
    reports: RefCell<Vec<Report>>,
    bell: Bell,
    calls_directly: bool,
}

/// A line for the error log.
pub(super) struct Report {
    pub(super) level: Level,
    pub(super) text: String,
    pub(super) whose: Whose,
}

/// Writes a report to the error log of a request, which may have ended.
pub type Reporter = Box<dyn FnOnce(Level, &str)>;

/// Which error log takes a report.
pub(super) enum Whose {
    /// The process's, but not through the target that it is about.
    Process(Target),
    /// The error log of the line's request.
    Request(Reporter),
}

impl Outgoing {
    /// No reports; `calls_directly` is whether writers may make calls beside the engine.
    pub(super) fn new(calls_directly: bool) -> Outgoing {
        Outgoing { calls_directly, ..Outgoing::default() }
    }

    /// Whether writers may make calls beside the engine.
    pub(super) fn calls_directly(&self) -> bool {
        self.calls_directly
    }

    /// Leaves a report.
    pub(super) fn report(&self, report: Report) {
        self.reports.borrow_mut().push(report);
        self.bell.ring();
    }

    /// A writer got its first line, or wrote its last one.
    pub(super) fn count_busy(&self, busy: bool) {
        let count = self.busy.get();
        self.busy.set(if busy { count + 1 } else { count.saturating_sub(1) });
    }

    /// Whether everything is written.
    pub fn is_idle(&self) -> bool {
        self.busy.get() == 0
    }

    /// Writes the reports that are there. `process` writes one to the error log of the process, but not through the
    /// target that the report is about.
    pub fn write(&self, process: &impl Fn(&Target, Level, &str)) {
        for Report { level, text, whose } in self.reports.take() {
            match whose {
                Whose::Process(target) => process(&target, level, &text),
                Whose::Request(write) => write(level, &text),
            }
        }
    }
}

/// Writes reports for as long as the thread runs; see [`Outgoing::write`].
pub async fn watch(outgoing: Rc<Outgoing>, process: impl Fn(&Target, Level, &str)) {
    loop {
        outgoing.bell.wait().await;
        outgoing.write(&process);
    }
}
