//! State that all scenarios of a run share: scale, working directory, peers and progress display.

use std::cell::Cell;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::failure::Failure;
use crate::method::workspace::Workspace;
use crate::peers::port::Ports;
use crate::peers::tool::Peer;

/// How much is measured. Scenarios choose their sizes, durations and repetitions by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Scale {
    /// A fraction of a second for each figure: for tests, which only show that everything runs.
    Instant,
    /// All scenarios together in five minutes on two processors.
    Quick,
    /// All scenarios together in about 65 minutes: the scale of published reports.
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
    pub(crate) ports: Ports,
    /// Whether the network namespace belongs to the run.
    pub(crate) is_own_network: bool,
    /// Path of the ringroad program to measure.
    pub(crate) ringroad: PathBuf,
    /// Paths of peers from the command line, which take precedence over `PATH`.
    pub(crate) peer_paths: Vec<(Peer, PathBuf)>,
    /// Repetitions of each figure if set on the command line.
    pub(crate) repetitions: Option<u32>,
    /// Length of each measurement if set on the command line.
    pub(crate) seconds: Option<f64>,
    /// End of the time of the present scenario, if the run has a time limit.
    pub(crate) deadline: Cell<Option<Instant>>,
}

/// Time limit of all scenarios together with `--quick`. The remaining seconds of five minutes are for steps that cannot be
/// omitted, such as the fill of a cache that is measured afterwards.
const QUICK_LIMIT: Duration = Duration::from_secs(260);

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
            Scale::Quick => (normal / 5).max(Duration::from_millis(300)),
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

    /// Gives the next scenario its share of the remaining time, if the run has a time limit: `share` of `shares`, which are
    /// those of all remaining scenarios. Time that a scenario does not use is that of the next ones.
    pub(crate) fn begin_scenario(&self, share: u32, shares: u32) {
        let left = QUICK_LIMIT.saturating_sub(self.progress.started.elapsed());
        let time = left * share / shares.max(1);
        self.deadline.set((self.scale == Scale::Quick).then(|| Instant::now() + time));
    }

    /// Whether the time of the scenario is over. Its remaining measurements are then omitted.
    pub(crate) fn is_late(&self) -> bool {
        self.deadline.get().is_some_and(|deadline| Instant::now() > deadline)
    }

    /// Whether this process may drop caches, create cgroups and limit disks.
    pub(crate) fn is_root(&self) -> bool {
        rustix::process::geteuid().is_root()
    }

    /// Shows the current step to the user on standard error. Results go into the report instead.
    pub(crate) fn progress(&self, text: std::fmt::Arguments<'_>) {
        if self.scale != Scale::Instant {
            self.progress.show(text);
        }
    }

    /// Returns [`Failure::Interrupted`] if the user has interrupted the run; called between two measurements.
    pub(crate) fn check_interrupted(&self) -> Result<(), Failure> {
        if self.workspace.interrupted.load(Ordering::Relaxed) { Err(Failure::Interrupted) } else { Ok(()) }
    }
}

/// Progress of a run. Each step is a line on standard error.
pub(crate) struct Progress {
    started: Instant,
    /// Number of scenarios of the run.
    scenarios: usize,
    /// Number of completed scenarios.
    done: Cell<usize>,
}

impl Progress {
    /// Creates the progress display for a run of this number of scenarios.
    pub(crate) fn new(scenarios: usize) -> Progress {
        Progress { started: Instant::now(), scenarios, done: Cell::new(0) }
    }

    pub(crate) fn advance(&self) {
        self.done.set(self.done.get() + 1);
    }

    fn show(&self, step: std::fmt::Arguments<'_>) {
        let (seconds, present) = (self.started.elapsed().as_secs_f64(), self.done.get() + 1);
        eprintln!("{present:>2}/{}  {seconds:>4.0} s  {step}", self.scenarios);
    }
}
