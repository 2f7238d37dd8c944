//! What every scenario of one run shares: how long it may take, where its files go, what the machine has.

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
    pub(crate) started: Instant,
    /// The folder that everything is made in; removed at the end unless it is to be kept.
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
            eprintln!("  {:>4.0} s  {text}", self.started.elapsed().as_secs_f64());
        }
    }

    /// Ends a scenario between two measurements when the user asked for the end.
    pub(crate) fn check_interrupted(&self) -> Result<(), Failure> {
        if self.workspace.is_interrupted() { Err(Failure::Interrupted) } else { Ok(()) }
    }
}
