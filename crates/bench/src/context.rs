//! What every scenario of one run shares: how long it may take, where its files go, what the machine has.

use std::cell::RefCell;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::failure::Failure;
use crate::method::workspace::Workspace;

/// How much is measured. Scenarios choose their sizes, lengths and repetitions by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Scale {
    /// A fraction of a second for each figure: shows that everything runs, measures nothing. For tests.
    Instant,
    /// All scenarios together in five minutes on two processors.
    Quick,
    /// All scenarios together in forty minutes: what a report is made of.
    Normal,
    /// The product of all that a scenario can vary. No limit.
    Full,
}

/// One run of the suite.
pub(crate) struct Bench {
    pub(crate) scale: Scale,
    /// For lines of progress.
    pub(crate) progress: Progress,
    /// The directory that everything is made in; removed at the end unless it is to be kept.
    pub(crate) workspace: Workspace,
    /// This program, or another build of it to measure.
    pub(crate) ringroad: PathBuf,
    /// Peers where the user knows better than `PATH`.
    pub(crate) peer_paths: Vec<(String, PathBuf)>,
    /// Repetitions of each figure when the user set them.
    pub(crate) repetitions: Option<u32>,
    /// Length of each measurement when the user set it.
    pub(crate) seconds: Option<f64>,
}

impl Bench {
    /// Repetitions of each figure: at least three where the result is for keeping.
    pub(crate) fn repetitions(&self) -> u32 {
        self.repetitions.unwrap_or(match self.scale {
            Scale::Instant | Scale::Quick => 1,
            Scale::Normal => 3,
            Scale::Full => 5,
        })
    }

    /// Length of one measurement; `normal` is what a kept result needs.
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

    /// Whether this process may drop caches, make control groups and limit disks.
    pub(crate) fn is_root(&self) -> bool {
        rustix::process::geteuid().is_root()
    }

    /// A line about what is being done, for who watches. Results go into the report.
    pub(crate) fn progress(&self, text: std::fmt::Arguments<'_>) {
        if self.scale != Scale::Instant {
            self.progress.show(&text.to_string());
        }
    }

    /// Ends a scenario between two measurements when the user asked for the end.
    pub(crate) fn check_interrupted(&self) -> Result<(), Failure> {
        if self.workspace.is_interrupted() { Err(Failure::Interrupted) } else { Ok(()) }
    }
}

/// What the one line of a terminal has room for: a longer one would not be written over.
const LINE_MAX: usize = 79;

/// How far a run has come. On a terminal it is one line with the time left, which the next one replaces; elsewhere there is
/// a line for each step.
pub(crate) struct Progress {
    started: Instant,
    is_terminal: bool,
    parts: RefCell<Parts>,
}

/// The scenarios of a run.
struct Parts {
    /// How long each is expected to take, in seconds. What counts is their ratio: the ones that are over say how long the
    /// others take on this machine.
    expected: Vec<f64>,
    /// Those that are over.
    done: usize,
    /// When the present one began.
    begun: Instant,
    /// The step that was shown last.
    step: String,
}

impl Progress {
    /// Of scenarios that are expected to take so many seconds.
    pub(crate) fn new(expected: Vec<f64>) -> Progress {
        let started = Instant::now();
        let parts = RefCell::new(Parts { expected, done: 0, begun: started, step: String::new() });
        Progress { started, is_terminal: std::io::stderr().is_terminal(), parts }
    }

    /// A scenario is over.
    pub(crate) fn advance(&self) {
        let mut parts = self.parts.borrow_mut();
        parts.done += 1;
        parts.begun = Instant::now();
    }

    /// Another measurement of the same step: on a terminal the time left goes on.
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

    /// Ends the line of a terminal, before something else is written.
    pub(crate) fn end(&self) {
        self.parts.borrow_mut().step.clear();
        if self.is_terminal {
            eprint!("\r\x1b[2K");
        }
    }
}

/// The time left, in words.
fn left(parts: &Parts, started: Instant, now: Instant) -> String {
    let sum = |of: &[f64]| of.iter().sum::<f64>();
    let (done, rest) = parts.expected.split_at(parts.done.min(parts.expected.len()));
    let Some((present, later)) = rest.split_first() else { return String::new() };
    // By what this run took so far, where a scenario is over.
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
    fn the_time_left_follows_what_the_run_took_so_far() {
        let started = Instant::now();
        let at = |seconds: u64| started + Duration::from_secs(seconds);
        let mut parts =
            Parts { expected: vec![60.0, 120.0, 60.0], done: 0, begun: started, step: String::new() };
        assert_eq!(left(&parts, started, at(10)), "4 min left");
        // Twice as long as expected: the others will take twice as long, too.
        (parts.done, parts.begun) = (1, at(120));
        assert_eq!(left(&parts, started, at(120)), "6 min left");
        (parts.done, parts.begun) = (2, at(360));
        assert_eq!(left(&parts, started, at(440)), "40 s left");
        assert_eq!(left(&parts, started, at(900)), "1 s left", "longer than expected");
        parts.done = 3;
        assert_eq!(left(&parts, started, at(900)), "");
    }
}
