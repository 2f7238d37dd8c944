//! Reports panics of tasks to the error log. A panic ends only one task, but it is a fault of the server.

use std::cell::RefCell;
use std::rc::{Rc, Weak};

use exchange::error_log;
use exchange::thread::Thread;
use telemetry::Level;

thread_local! {
    static THREAD: RefCell<Weak<Thread>> = const { RefCell::new(Weak::new()) };
}

/// Sets the thread whose error log gets the reports.
pub(super) fn report_to(thread: &Rc<Thread>) {
    THREAD.set(Rc::downgrade(thread));
}

/// Reports a panic. If the log is what panicked, or does not exist any more, the report goes to standard error.
#[expect(clippy::print_stderr, reason = "the thread's log may be what panicked")]
pub(super) fn report(cause: &str) {
    let thread = THREAD.with_borrow(Weak::upgrade);
    let write = |thread: &Rc<Thread>| {
        let line = || error_log::write(thread, Level::Alert, format_args!("a task panicked: {cause}"));
        rt::panics::catch_call(line).is_ok()
    };
    if !thread.as_ref().is_some_and(write) {
        eprintln!("a task panicked: {cause}");
    }
}
