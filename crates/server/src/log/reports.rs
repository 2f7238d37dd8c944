//! What the writers of logs have to say themselves. They run beside the requests and own no error log, so they leave
//! their reports here, and a task of the thread writes them.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::config::LocationId;
use crate::log::bell::Bell;
use crate::log::{Level, Target, error};
use crate::request::Generation;
use crate::thread::Thread;

/// What the writers of one thread share.
#[derive(Default)]
pub(crate) struct Outgoing {
    /// Writers that have lines which are not written.
    busy: Cell<usize>,
    reports: RefCell<Vec<Report>>,
    bell: Bell,
}

/// A line for the error log.
pub(super) struct Report {
    pub(super) level: Level,
    pub(super) text: String,
    pub(super) whose: Whose,
}

/// Which error log takes a report.
pub(super) enum Whose {
    /// The process's, but not through the target that it is about.
    Process(Target),
    /// That of the request whose line it was.
    Request(Origin),
}

/// What is kept of a request for a report after its end.
pub(super) struct Origin {
    pub(super) generation: Rc<Generation>,
    pub(super) location: LocationId,
    /// The number of the connection.
    pub(super) connection: u64,
    /// `, client: …, server: …`
    pub(super) about: String,
}

impl Outgoing {
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
    pub(super) fn is_idle(&self) -> bool {
        self.busy.get() == 0
    }

    /// Writes the reports that are there.
    pub(super) fn write(&self, thread: &Thread) {
        for Report { level, text, whose } in self.reports.take() {
            match whose {
                Whose::Process(target) => {
                    error::write_beside(thread, &target, level, format_args!("{text}"));
                }
                Whose::Request(origin) => error::write_of(thread, &origin, level, &text),
            }
        }
    }
}

/// Writes reports for as long as the thread runs.
pub(crate) async fn watch(thread: Rc<Thread>) {
    let outgoing = Rc::clone(thread.logs.outgoing());
    loop {
        outgoing.bell.wait().await;
        outgoing.write(&thread);
    }
}
