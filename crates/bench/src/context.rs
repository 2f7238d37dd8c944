//! State that all scenarios of a run share: scale, working directory, peers and progress display.

use std::cell::RefCell;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::failure::Failure;
use crate::method::workspace::Workspace;

/// How much is measured. Scenarios choose their sizes, durations and repetitions by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Scale {
    /// A fraction of a second for each figure: for tests, which only show that everything runs.
    Instant,
    /// All scenarios together in five minutes on two processors.
    Quick,
    /// All scenarios together in about an hour: the scale of published reports.
    Normal,
    /// Every combination of the parameters of each scenario, without a time limit.
    Full,
}

/// State of one run of the benchmark suite.
pub(crate) struct Bench {
    pub(crate) scale: Scale,
    pub(crate) progress: Progress,
    /// The directory for all files of the run; removed at the end unless `--keep` is set.
    pub(crate) workspace: Workspace,
    /// Path of the ringroad program to measure.
    pub(crate) ringroad: PathBuf,
    /// Paths of peers from the command line, which take precedence over `PATH`.
    pub(crate) peer_paths: Vec<(String, PathBuf)>,
    /// Repetitions of each figure if set on the command line.
    pub(crate) repetitions: Option<u32>,
    /// Length of each measurement if set on the command line.
    pub(crate) seconds: Option<f64>,
}

impl Bench {
    /// Returns the number of repetitions of each figure: at least three for results that are published.
    pub(crate) fn repetitions(&self) -> u32 {
        self.repetitions.unwrap_or(match self.scale {
            Scale::Instant | Scale::Quick => 1,
            Scale::Normal => 3,
            Scale::Full => 5,
        })
    }

    /// Returns the length of one measurement; `normal` is the length that a published result needs.
    pub(crate) fn length(&self, normal: Duration) -> Duration {
        if let Some(seconds) = self.seconds {
            return Duration::from_secs_f64(seconds);
        }
        match self.scale {
            Scale::Instant => Duration::from_millis(100),
            Scale::Quick => (normal / 5).max(Duration::from_millis(500)),
            Scale::Normal | Scale::Full => normal,
        }
    }

    /// Returns a number or a size by scale; `normal` is that of published results.
    pub(crate) fn scaled<T>(&self, instant: T, quick: T, normal: T) -> T {
        match self.scale {
            Scale::Instant => instant,
            Scale::Quick => quick,
            Scale::Normal | Scale::Full => normal,
        }
    }

    /// Whether this process may drop caches, create cgroups and limit disks.
    pub(crate) fn is_root(&self) -> bool {
        rustix::process::geteuid().is_root()
    }

    /// Shows the current step to the user on standard error. Results go into the report instead.
    pub(crate) fn progress(&self, text: std::fmt::Arguments<'_>) {
        if self.scale != Scale::Instant {
            self.progress.show(&text.to_string());
        }
    }

    /// Returns [`Failure::Interrupted`] if the user has interrupted the run; called between two measurements.
    pub(crate) fn check_interrupted(&self) -> Result<(), Failure> {
        if self.workspace.interrupted.load(Ordering::Relaxed) { Err(Failure::Interrupted) } else { Ok(()) }
    }
}

/// Maximum length of the progress line in columns: a line that wraps could not be overwritten.
const LINE_MAX: usize = 79;

/// Progress of a run. On a terminal it is one line with the remaining time, overwritten at each step; otherwise each
/// step is logged on a separate line.
pub(crate) struct Progress {
    started: Instant,
    is_terminal: bool,
    parts: RefCell<Parts>,
}

/// Progress through the scenarios of a run.
struct Parts {
    /// Expected duration of each scenario in seconds. Only the ratios matter: the completed scenarios calibrate the
    /// estimate for the remaining ones on this machine.
    expected: Vec<f64>,
    done: usize,
    begun: Instant,
    /// The step shown last.
    step: String,
}

impl Progress {
    /// Creates the progress display for scenarios with these expected durations in seconds.
    pub(crate) fn new(expected: Vec<f64>) -> Progress {
        let started = Instant::now();
        let parts = RefCell::new(Parts { expected, done: 0, begun: started, step: String::new() });
        Progress { started, is_terminal: std::io::stderr().is_terminal(), parts }
    }

    pub(crate) fn advance(&self) {
        let mut parts = self.parts.borrow_mut();
        parts.done += 1;
        parts.begun = Instant::now();
    }

    /// Refreshes the remaining time on a terminal before another measurement of the same step.
    pub(crate) fn tick(&self) {
        let step = self.parts.borrow().step.clone();
        if self.is_terminal && !step.is_empty() {
            self.show(&step);
        }
    }

    fn show(&self, text: &str) {
        text.clone_into(&mut self.parts.borrow_mut().step);
        let now = Instant::now();
        let line = format!("  {:>4.0} s  {text}", (now - self.started).as_secs_f64());
        if !self.is_terminal {
            eprintln!("{line}");
            return;
        }
        let left = left(&self.parts.borrow(), self.started, now);
        let line: String = format!("{left:>12} {line}").chars().take(LINE_MAX).collect();
        eprint!("\r\x1b[2K{line}");
        let _ = std::io::stderr().flush();
    }

    /// Ends the progress line on a terminal, before other output is written.
    pub(crate) fn end(&self) {
        self.parts.borrow_mut().step.clear();
        if self.is_terminal {
            eprint!("\r\x1b[2K");
        }
    }
}

fn left(parts: &Parts, started: Instant, now: Instant) -> String {
    let sum = |of: &[f64]| of.iter().sum::<f64>();
    let (done, rest) = parts.expected.split_at(parts.done.min(parts.expected.len()));
    let Some((present, later)) = rest.split_first() else { return String::new() };
    // Scaled by the elapsed time of the completed scenarios.
    let factor = match sum(done) {
        0.0 => 1.0,
        expected => (parts.begun - started).as_secs_f64() / expected,
    };
    let present = (present * factor - (now - parts.begun).as_secs_f64()).max(1.0);
    let seconds = present + sum(later) * factor;
    if seconds < 90.0 { format!("{seconds:.0} s left") } else { format!("{:.0} min left", seconds / 60.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_remaining_time_is_estimated_from_the_elapsed_time() {
        let started = Instant::now();
        let at = |seconds: u64| started + Duration::from_secs(seconds);
        let mut parts =
            Parts { expected: vec![60.0, 120.0, 60.0], done: 0, begun: started, step: String::new() };
        assert_eq!(left(&parts, started, at(10)), "4 min left");
        // The first scenario took twice as long as expected, so the estimate for the others doubles.
        (parts.done, parts.begun) = (1, at(120));
        assert_eq!(left(&parts, started, at(120)), "6 min left");
        (parts.done, parts.begun) = (2, at(360));
        assert_eq!(left(&parts, started, at(440)), "40 s left");
        assert_eq!(left(&parts, started, at(900)), "1 s left", "longer than expected");
        parts.done = 3;
        assert_eq!(left(&parts, started, at(900)), "");
    }
}
