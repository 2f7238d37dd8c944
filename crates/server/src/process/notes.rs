//! Writes notes of the engines to the error log.
//!
//! An engine detects some limits late, because it registers memory as needed. So notes are collected repeatedly. Equal
//! notes of several threads are logged once.

use std::fmt::Display;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use exchange::error_log;
use exchange::thread::Thread;
use telemetry::Level;

/// Time until the second check, when the first requests have been served, and time between all further checks. The
/// notes are not urgent, and an idle thread should sleep.
const FIRST: Duration = Duration::from_secs(1);
const EVERY: Duration = Duration::from_secs(10);

/// Notes that were already logged, at most one of each kind.
#[derive(Debug, Default)]
pub(super) struct Written(Mutex<Vec<std::mem::Discriminant<io::Note>>>);

impl Written {
    /// Whether this kind of note is new; marks it as logged.
    fn is_new(&self, note: &io::Note) -> bool {
        let kind = std::mem::discriminant(note);
        let mut written = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = !written.contains(&kind);
        if is_new {
            written.push(kind);
        }
        is_new
    }
}

/// Checks for notes until the thread ends.
pub(super) async fn watch(thread: Rc<Thread>, written: Arc<Written>) {
    let mut pause = Duration::ZERO;
    loop {
        while let Some(note) = rt::take_note() {
            if written.is_new(&note) {
                write(&thread, &note);
            }
        }
        pause = if pause.is_zero() { FIRST } else { EVERY };
        rt::sleep_until(rt::now() + pause).await;
    }
}

/// Logs at the level of a degraded but working server.
fn write(thread: &Thread, note: &impl Display) {
    error_log::write(thread, Level::Warn, format_args!("{note}"));
}

#[cfg(test)]
mod tests {
    use super::*;
    use io::{Errno, Note};

    #[test]
    fn equal_messages_of_threads_are_logged_once() {
        let written = Written::default();
        let note = |registered_bytes| Note::BuffersUnregistered { errno: Errno::NOMEM, registered_bytes };
        assert!(written.is_new(&note(0)));
        assert!(!written.is_new(&note(4096)));
    }
}
