//! Lost lines of a target, and the times of their reports in the error log: at once for the first loss, then once a
//! minute while it continues, and once more when writing works again.

use std::cell::Cell;
use std::time::{Duration, Instant};

use crate::syslog::SendError;
use crate::{Reason, Target};
use io::Errno;

/// nginx's pause between two lines about the same log.
pub(super) const PAUSE: Duration = Duration::from_secs(60);

/// Least time between two lines about a log that fails and works in turns.
const PAUSE_LEAST: Duration = Duration::from_secs(1);

/// Lines that were lost since the last report.
#[derive(Default)]
pub(super) struct Losses {
    /// Dropped because too many waited.
    dropped: Cell<u64>,
    /// Lost with a write that failed.
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
    /// A line found no room.
    pub(super) fn drop_one(&self) {
        self.dropped.set(self.dropped.get() + 1);
    }

    /// N lines were lost with a write.
    pub(super) fn fail(&self, lines: u64, cause: Cause) {
        self.failed.set(self.failed.get() + lines);
        self.cause.set(Some(cause));
    }

    /// Whether there is an unreported loss.
    pub(super) fn is_any(&self) -> bool {
        self.dropped.get() + self.failed.get() > 0
    }

    /// Time of the next report; `works`: whether the last write succeeded.
    pub(super) fn due(&self, works: bool) -> Option<Instant> {
        let pause = if works { PAUSE_LEAST } else { PAUSE };
        self.is_any().then(|| self.reported.get().map_or_else(rt::now, |last| last + pause))
    }

    /// The text of a report, when it is due. This is the last report.
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
                    // nginx's words, which monitoring looks for.
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
