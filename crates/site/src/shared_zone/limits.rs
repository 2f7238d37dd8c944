//! Code that `limit_conn` and `limit_req` share: the settings of a block besides the limits, and the keys.

use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};

use conf::{Error, Statement};

use crate::config::{Cx, Layered, Settings};
use crate::template::Template;
use crate::variables::HasVariables;
use telemetry::{ForLog, Level};

/// The limits of a block and their settings.
#[derive(Clone, Debug)]
pub struct Conf<L> {
    /// The limits. As with all lists, the first one in a block replaces the inherited limits.
    pub limits: Layered<L>,
    /// Log level of lines about rejected requests.
    pub level: Level,
    /// The status of a rejected request.
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

/// The result of a check of a request against a zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitResult {
    /// The request is within the limit.
    Passed,
    /// The request is delayed.
    Delayed,
    /// The request is rejected.
    Rejected,
    /// The request would be delayed without the dry run.
    DelayedDryRun,
    /// The request would be rejected without the dry run.
    RejectedDryRun,
}

/// Returns the result in a dry run, if `only_tells`.
pub fn dry_run(result: LimitResult, only_tells: bool) -> LimitResult {
    match result {
        LimitResult::Delayed if only_tells => LimitResult::DelayedDryRun,
        LimitResult::Rejected if only_tells => LimitResult::RejectedDryRun,
        _ => result,
    }
}

/// Number of requests per result, in the order of [`LimitResult`]. The threads share it, because each of these requests
/// takes a lock of the zone anyway.
#[derive(Debug, Default)]
pub struct Results([AtomicU64; 5]);

impl Results {
    /// Counts a request.
    pub fn count(&self, result: LimitResult) {
        self.0[result as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Returns all numbers.
    pub fn all(&self) -> [u64; 5] {
        std::array::from_fn(|index| self.0[index].load(Ordering::Relaxed))
    }
}

/// The log levels that nginx accepts for its limits.
const LOG_LEVELS: &[(&str, Level)] =
    &[("info", Level::Info), ("notice", Level::Notice), ("warn", Level::Warn), ("error", Level::Error)];

impl<L> Conf<L> {
    /// Implements the setter of `limit_*_log_level`.
    pub fn set_level(&mut self, cx: &Cx<'_>) -> Result<(), Error> {
        cx.choice(&mut self.level, LOG_LEVELS)
    }

    /// Implements the setter of `limit_*_status`.
    pub fn set_status(&mut self, cx: &Cx<'_>) -> Result<(), Error> {
        cx.number_in(&mut self.status, 400, 599)
    }

    /// Returns the suffix of log lines.
    pub fn dry(&self) -> &'static str {
        if self.dry_run { ", dry run" } else { "" }
    }
}

/// Returns nginx's error for a statement without `zone=`.
pub fn without_zone(statement: &Statement) -> Error {
    Error::at(statement, format_args!("\"{}\" must have \"zone\" parameter", statement.name.text))
}

/// Returns the key of a request by a template with the text `text`. An empty key is not limited. A key that is too long
/// for nginx is logged.
pub fn key_of<R: HasVariables>(request: &R, key: &Template, text: &str, len_max: usize) -> Option<Vec<u8>> {
    let key = key.rendered(request);
    if key.len() > len_max {
        let value = key.for_log();
        let what = format_args!("the value of the \"{text}\" key is more than {len_max} bytes: \"{value}\"");
        request.log(Level::Error, what);
        return None;
    }
    (!key.is_empty()).then_some(key)
}
