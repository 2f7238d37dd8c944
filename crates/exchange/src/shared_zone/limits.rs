//! Parts that `limit_conn` and `limit_req` share: the settings of a block beside the limits themselves, and the keys.

use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};

use conf::{Error, Statement};

use crate::config::{Cx, Layered, Settings};
use crate::request::Request;
use crate::template::Template;
use telemetry::Level;

/// The settings of a block.
#[derive(Clone, Debug)]
pub struct Conf<L> {
    /// As with all lists, the first one in a block replaces those of the block around it.
    pub limits: Layered<L>,
    /// Of lines about refused requests.
    pub level: Level,
    /// The status of a refused request.
    pub status: u32,
    /// Whether violations are only logged.
    pub dry_run: bool,
}

impl<L: Clone + Debug + Send + Sync + 'static> Settings for Conf<L> {}

impl<L> Default for Conf<L> {
    fn default() -> Self {
        Conf { limits: Layered::default(), level: Level::Error, status: 503, dry_run: false }
    }
}

/// What became of a request by a zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitResult {
    /// It is within the limit.
    Passed,
    /// It waits.
    Delayed,
    /// It is refused.
    Rejected,
    /// It would wait if the limit were not a dry run.
    DelayedDryRun,
    /// It would be refused.
    RejectedDryRun,
}

/// The result of a dry run.
pub fn dry_run(result: LimitResult, only_tells: bool) -> LimitResult {
    match result {
        LimitResult::Delayed if only_tells => LimitResult::DelayedDryRun,
        LimitResult::Rejected if only_tells => LimitResult::RejectedDryRun,
        _ => result,
    }
}

/// How often requests met each result, in the order of [`LimitResult`]. The threads share it: each of these requests takes
/// a lock of the zone anyway.
#[derive(Debug, Default)]
pub struct Results([AtomicU64; 5]);

impl Results {
    /// Counts a request.
    pub fn count(&self, result: LimitResult) {
        self.0[result as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// All numbers.
    pub fn all(&self) -> [u64; 5] {
        std::array::from_fn(|place| self.0[place].load(Ordering::Relaxed))
    }
}

/// The levels that nginx takes for the lines of its limits.
const LOG_LEVELS: &[(&str, Level)] =
    &[("info", Level::Info), ("notice", Level::Notice), ("warn", Level::Warn), ("error", Level::Error)];

impl<L> Conf<L> {
    /// The setter of `limit_*_log_level`.
    pub fn set_level(&mut self, cx: &Cx<'_>) -> Result<(), Error> {
        cx.choice(&mut self.level, LOG_LEVELS)
    }

    /// The setter of `limit_*_status`.
    pub fn set_status(&mut self, cx: &Cx<'_>) -> Result<(), Error> {
        cx.number_in(&mut self.status, 400, 599)
    }

    /// The end of log lines.
    pub fn dry(&self) -> &'static str {
        if self.dry_run { ", dry run" } else { "" }
    }
}

/// nginx's words for a statement without the parameter.
pub fn without_zone(statement: &Statement) -> Error {
    Error::at(statement, format_args!("\"{}\" must have \"zone\" parameter", statement.name.text))
}

/// The key of a request by a template, which is written as `text`. An empty one is not limited; one that nginx could
/// not store is logged.
pub fn key_of(request: &Request, key: &Template, text: &str, len_max: usize) -> Option<Vec<u8>> {
    let key = key.rendered(request);
    if key.len() > len_max {
        let value = key.escape_ascii();
        let what = format_args!("the value of the \"{text}\" key is more than {len_max} bytes: \"{value}\"");
        request.log(Level::Error, what);
        return None;
    }
    (!key.is_empty()).then_some(key)
}
