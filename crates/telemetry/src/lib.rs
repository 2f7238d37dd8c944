//! Log lines for files and syslog servers, and metrics. This crate does not depend on the request: the modules of the server
//! determine the lines and their formats. A line is written by a direct call while the disk is fast ([`prompt`]). Such a call
//! blocks its thread for up to 0.2 s when the disk becomes slow. Other lines are written by tasks, through the engine.
//!
//! ```text
//! request --> line --> LogTarget: queued bytes (limited) --> writer task --> write(2), engine or datagram socket
//! ```
//!
//! Crates of the workspace that it may use: `io`, `rt`, `http`, `conf`.
//!
//! Each module imports only modules of the rows below it.
//!
//! | module | content |
//! |---|---|
//! | [`shared`] | counters of the process, and access to those of each thread |
//! | [`watch`] | finished requests for `ringroad log` and `ringroad top` |
//! | [`turns`], [`disks`] | event-loop turns and file operations, as observed by `rt` |
//! | [`traffic`], [`tally`] | requests by server and location; connections and requests of a thread |
//! | [`reloads`] | reloads, counted by the master |
//! | [`named`] | logs with variables in their names |
//! | [`links`] | symbolic links that may be followed |
//! | [`files`] | all targets of a thread |
//! | [`sink`] | a target on one thread: the interface for writing to a log |
//! | [`writer`], [`tear`] | writes queued lines; lines that a failed write has torn |
//! | [`prompt`] | writes lines within the turn |
//! | [`losses`], [`limited`] | lost lines; at most one line per second for a cause |
//! | [`gzip`] | compresses lines |
//! | [`otlp`], [`spans`] | the messages of OpenTelemetry's protocol; counts of spans |
//! | [`reports`] | messages of the tasks that write logs |
//! | [`syslog`] | syslog servers |
//! | [`json`], [`printable`], [`reason`] | parts of lines |
//! | [`metric`] | metrics as rows: name, labels, help; counter cells of threads, output pages |
//! | [`histogram`] | histograms of times |
//! | [`clock`] | the time of day |
//! | [`time_zone`] | the time zone of the machine |
//! | [`bell`] | wakes the task that writes |
//!
//! A metric is a row next to the code that counts, or next to the code that reads the counts: [`tally`] (connections and
//! requests, in a cell of each thread), [`traffic`], `peers/metrics.rs`, `caching/tally.rs` and `metrics.rs`,
//! `modules/status/limits.rs` (results of `limit_req` and `limit_conn`, counted by zone in `site/shared_zone/limits.rs`),
//! `modules/status/process.rs`. `modules/status/metrics.rs` lists all sections of the page; docs/counters.md is generated from
//! the rows.
#![forbid(unsafe_code)]

mod bell;
pub mod clock;
pub mod disks;
pub mod files;
mod gzip;
pub mod histogram;
mod json;
pub mod limited;
pub mod links;
pub mod losses;
pub mod metric;
pub mod named;
pub mod otlp;
mod printable;
mod prompt;
mod reason;
pub mod reloads;
pub mod reports;
pub mod shared;
pub mod sink;
pub mod spans;
pub mod syslog;
pub mod tally;
mod tear;
pub mod time_zone;
pub mod traffic;
pub mod turns;
pub mod watch;
mod writer;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use conf::Layered;

pub use json::Object as JsonLine;
pub use printable::{ForLog, LogText, append_printable};
pub use reason::Reason;

/// `error_log` of one block
#[derive(Clone, Debug, Default)]
pub struct ErrorLog {
    /// The targets and their levels. If empty, the default of the process applies.
    pub targets: Layered<ErrorTarget>,
}

/// A target of an `error_log`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorTarget {
    /// The target.
    pub target: Target,
    /// The index of the target in the configuration's list.
    pub id: TargetId,
    /// The least severe level that is logged.
    pub level: Level,
    /// The format of a line.
    pub form: Form,
}

/// The format of a line of the error log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    /// nginx's format.
    #[default]
    Text,
    /// A JSON object.
    Json,
}

impl Form {
    /// The names of the formats in the configuration.
    pub const NAMES: &'static [(&'static str, Form)] = &[("text", Form::Text), ("json", Form::Json)];
}

/// The target of log lines.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// A file, to which lines are appended.
    File(PathBuf),
    /// The standard error stream.
    Stderr,
    /// A syslog server, which receives a datagram for each line.
    Syslog(Arc<syslog::Peer>),
}

impl Target {
    /// The path, if the target is a file.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Target::File(path) => Some(path),
            Target::Stderr | Target::Syslog(_) => None,
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::File(path) => path.display().fmt(f),
            Target::Stderr => f.write_str("stderr"),
            Target::Syslog(peer) => write!(f, "syslog:{}", peer.server),
        }
    }
}

impl ErrorLog {
    /// Whether any target logs lines of this level.
    pub fn accepts(&self, level: Level) -> bool {
        self.targets.items().iter().any(|target| level <= target.level)
    }

    /// Returns the files among the targets.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        self.targets.items().iter().filter_map(|target| target.target.path())
    }
}

/// Index of a target in [`Targets`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TargetId(u32);

impl TargetId {
    /// Returns the index in [`Targets`].
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// All targets of a configuration, without duplicates: blocks that name the same file share its descriptor and its
/// buffer.
#[derive(Debug, Default)]
pub struct Targets(Vec<TargetSpec>);

/// A target and its buffering.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetSpec {
    /// The target.
    pub target: Target,
    kind: LogKind,
    /// The buffering of lines, if any.
    pub hold: Option<Hold>,
}

/// The purpose of a target. Lines of the error log never wait in the buffer of an access log to the same file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogKind {
    /// `access_log`
    Access,
    /// `error_log`
    Error,
}

/// `buffer=`, `flush=`, `gzip=` of an `access_log`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hold {
    /// Number of bytes at which the queued lines are written.
    pub bytes: usize,
    /// Age of the oldest line at which the queued lines are written.
    pub flush: Option<Duration>,
    /// The compression level, 1 to 9.
    pub gzip: Option<u32>,
}

impl Targets {
    /// Returns the index of a target, and adds the target if it is new.
    pub fn intern(&mut self, kind: LogKind, target: &Target) -> TargetId {
        let known = self.0.iter().position(|spec| spec.kind == kind && spec.target == *target);
        let position = known.unwrap_or_else(|| {
            self.0.push(TargetSpec { target: target.clone(), kind, hold: None });
            self.0.len() - 1
        });
        TargetId(position as u32)
    }

    /// Sets the buffering of a target, unless it is already set. Returns whether the target has this buffering.
    pub fn hold(&mut self, id: TargetId, hold: Hold) -> bool {
        *self.0[id.index()].hold.get_or_insert(hold) == hold
    }

    /// Returns the target with this index.
    pub fn get(&self, id: TargetId) -> &TargetSpec {
        &self.0[id.index()]
    }

    /// Returns all targets, in order.
    pub fn all(&self) -> &[TargetSpec] {
        &self.0
    }
}

/// nginx's levels, the most severe first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// System is unusable.
    Emerg,
    /// Action must be taken immediately.
    Alert,
    /// Critical.
    Crit,
    /// An error.
    Error,
    /// A warning.
    Warn,
    /// A significant event.
    Notice,
    /// An ordinary event.
    Info,
    /// Details for developers.
    Debug,
}

impl Level {
    /// The names of the levels in the configuration.
    pub const NAMES: &'static [(&'static str, Level)] = &[
        ("emerg", Level::Emerg),
        ("alert", Level::Alert),
        ("crit", Level::Crit),
        ("error", Level::Error),
        ("warn", Level::Warn),
        ("notice", Level::Notice),
        ("info", Level::Info),
        ("debug", Level::Debug),
    ];
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Level::NAMES[*self as usize].0)
    }
}
