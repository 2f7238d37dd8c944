//! Counts the lost lines of a target, and decides when to report them in the error log. The first loss is reported
//! immediately, then one report per minute follows while lines are lost, and one more when writes succeed again.

use std::cell::Cell;
use std::time::{Duration, Instant};

use crate::syslog::SendError;
use crate::{Reason, Target};
use io::Errno;

/// Time between two reports about the same log, as in nginx.
pub(super) const PAUSE: Duration = Duration::from_secs(60);

/// Minimum time between two reports about a log whose writes alternately fail and succeed.
const PAUSE_LEAST: Duration = Duration::from_secs(1);

/// Number of lines that were lost since the last report.
#[derive(Default)]
pub(super) struct Losses {
    /// Number of lines dropped because too many were queued.
    dropped: Cell<u64>,
    /// Number of lines lost in failed writes.
    failed: Cell<u64>,
    cause: Cell<Option<Cause>>,
    reported: Cell<Option<Instant>>,
}

/// The last failure.
#[derive(Clone, Copy)]
pub(super) enum Cause {
    Write(Errno),
    Send(SendError),
}

impl Losses {
    /// Counts a line that was dropped at the limit.
    pub(super) fn drop_one(&self) {
        self.dropped.set(self.dropped.get() + 1);
    }

    /// Counts `lines` lines that were lost in a write.
    pub(super) fn fail(&self, lines: u64, cause: Cause) {
        self.failed.set(self.failed.get() + lines);
        self.cause.set(Some(cause));
    }

    /// Whether an unreported loss exists.
    pub(super) fn is_any(&self) -> bool {
        self.dropped.get() + self.failed.get() > 0
    }

    /// Returns the time of the next report. `works` states whether the last write succeeded.
    pub(super) fn due(&self, works: bool) -> Option<Instant> {
        let pause = if works { PAUSE_LEAST } else { PAUSE };
        self.is_any().then(|| self.reported.get().map_or_else(rt::now, |last| last + pause))
    }

    /// Returns the text of a report if it is due, and counts it as reported.
    pub(super) fn report(&self, works: bool, target: &Target) -> Option<String> {
        if self.due(works)? > rt::now() {
            return None;
        }
        self.reported.set(Some(rt::now()));
        let (dropped, failed) = (self.dropped.take(), self.failed.take());
        let lines =
            |count: u64| if count == 1 { "1 line was".to_owned() } else { format!("{count} lines were") };
        let mut text = match self.cause.take().filter(|_| failed > 0) {
            None => format!("writing to \"{target}\" is too slow, {} dropped", lines(dropped)),
            Some(cause) => {
                let what = match cause {
                    // nginx's text, which monitoring systems search for.
                    Cause::Write(errno) => format!("write() to \"{target}\" failed ({})", Reason(errno)),
                    Cause::Send(error) => {
                        format!("{error} while logging to syslog, server: {}", server(target))
                    }
                };
                let dropped =
                    if dropped > 0 { format!(" and {} dropped", lines(dropped)) } else { String::new() };
                format!("{what}, {} lost{dropped}", lines(failed))
            }
        };
        if works {
            text.push_str("; it works again");
        }
        Some(text)
    }
}

fn server(target: &Target) -> &str {
    match target {
        Target::Syslog(peer) => &peer.server,
        Target::File(_) | Target::Stderr => "",
    }
}
