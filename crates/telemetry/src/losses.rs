//! Counts lost log lines by target, and decides when they are reported in the error log. The first loss is reported immediately.
//! While the loss continues, one report a minute follows, and another report when writing works again.
//!
//! All threads share the counters, because losses are rare. All files with variables in their names are one target, because clients
//! may choose the names.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::metric::{Label, Metric, Page};
use crate::syslog::SendError;
use crate::{Reason, Target};
use io::Errno;

/// Time between two reports about the same log, as in nginx.
pub(super) const PAUSE: Duration = Duration::from_secs(60);

/// Minimum time between two reports about a log whose writes alternately fail and succeed.
const PAUSE_LEAST: Duration = Duration::from_secs(1);

/// Number of lost lines by target. Logs with the same target share a counter.
const LOST: Metric = Metric::counter(
    "log_lines_lost_total",
    "lines",
    "Lines of logs that were not written, because writes failed or were too slow, by target.",
)
.labelled(&[Label { name: "target", values: &[] }]);

/// The metrics of this file.
pub const METRICS: &[&Metric] = &[&LOST];

/// Label value for all files with variables in their names.
pub(super) const NAMED: &str = "names with variables";

/// Counters of targets that are open or have lost lines.
static TARGETS: Mutex<Vec<(String, Arc<OfTarget>)>> = Mutex::new(Vec::new());

/// State of a target that all threads share.
#[derive(Default)]
struct OfTarget {
    /// Number of lost lines since the start of the process.
    lost: AtomicU64,
    /// Whether the last line in the file is torn.
    torn: Arc<AtomicBool>,
}

/// Returns the counter of a target; adds it if necessary.
fn count_of(target: &str) -> Arc<OfTarget> {
    let mut targets = TARGETS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, count)) = targets.iter().find(|(known, _)| known == target) {
        return Arc::clone(count);
    }
    // Removes counters of earlier configurations whose targets have lost no lines.
    targets.retain(|(_, count)| Arc::strong_count(count) > 1 || count.lost.load(Ordering::Relaxed) > 0);
    let count = Arc::<OfTarget>::default();
    targets.push((target.to_owned(), Arc::clone(&count)));
    count
}

/// Appends the numbers of lost lines of all targets.
pub fn write(page: &mut Page) {
    page.head(&LOST);
    for (target, count) in &*TARGETS.lock().unwrap_or_else(PoisonError::into_inner) {
        page.number(&LOST, &[target], count.lost.load(Ordering::Relaxed));
    }
}

/// Lost lines of a target since the last report.
pub(super) struct Losses {
    /// State of the target, for all threads.
    all: Arc<OfTarget>,
    /// Number of lines dropped because too many lines waited.
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
    /// Returns empty counts for a target, which is named as in the metric.
    pub(super) fn of(target: &str) -> Losses {
        Losses {
            all: count_of(target),
            dropped: Cell::default(),
            failed: Cell::default(),
            cause: Cell::default(),
            reported: Cell::default(),
        }
    }

    /// Returns whether the last line of the target's file is torn, for all threads.
    pub(super) fn torn(&self) -> &Arc<AtomicBool> {
        &self.all.torn
    }

    /// Counts a line that was dropped because too many lines waited.
    pub(super) fn drop_one(&self) {
        self.count(1);
        self.dropped.set(self.dropped.get() + 1);
    }

    /// Adds lost lines to the metric, but not to the next report.
    pub(super) fn count(&self, lines: u64) {
        self.all.lost.fetch_add(lines, Ordering::Relaxed);
    }

    /// Counts the lines of a failed write.
    pub(super) fn fail(&self, lines: u64, cause: Cause) {
        self.count(lines);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metric::Form;

    #[test]
    fn losses_of_a_target_are_counted_together() {
        let (first, second) = (Losses::of("/a/log"), Losses::of("/a/log"));
        let other = Losses::of("/b/log");
        first.drop_one();
        second.fail(3, Cause::Write(Errno::NOSPC));
        let text = || {
            let mut page = Page::new(Form::Plain);
            write(&mut page);
            page.finish()
        };
        assert!(text().contains("ringroad_log_lines_lost_total{target=\"/a/log\"} 4\n"), "{}", text());
        assert!(text().contains("ringroad_log_lines_lost_total{target=\"/b/log\"} 0\n"), "{}", text());
        // A target that is no longer configured remains if it has lost lines.
        drop((first, second, other));
        let _next = Losses::of("/c/log");
        assert!(text().contains("/a/log") && !text().contains("/b/log"), "{}", text());
    }
}
