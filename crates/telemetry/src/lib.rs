//! Log lines on their way to files and to syslog: levels, targets, and the writers that never hold up a request.
//!
//! ```text
//! request --> line --> Sink: bytes that wait (bounded) --> writer task --> engine or datagram socket
//! ```
//!
//! Numbers: [`metric`] has rows and pages, [`tally`] connections, [`traffic`] requests by server and location. [`watch`] has
//! the requests themselves, while an operator watches.
//!
//! [`sink`] is one target on one thread, [`files`] all of a thread's, [`named`] files with names that depend on the
//! request. The modules decide on the lines and their formats.
#![forbid(unsafe_code)]

mod bell;
pub mod clock;
pub mod files;
mod gzip;
pub mod histogram;
mod json;
pub mod limited;
pub mod links;
mod losses;
pub mod metric;
pub mod named;
mod printable;
mod prompt;
mod reason;
pub mod reports;
pub mod shared;
pub mod sink;
pub mod syslog;
pub mod tally;
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
pub use printable::append_printable;
pub use reason::Reason;

/// `error_log` of one block.
#[derive(Clone, Debug, Default)]
pub struct ErrorLog {
    /// Where to, and from which level on. Empty is the built-in default of the process.
    pub targets: Layered<ErrorTarget>,
}

/// One target of an `error_log`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorTarget {
    /// Where to.
    pub target: Target,
    /// Its place in the configuration's list.
    pub id: TargetId,
    /// Lines of this level and worse.
    pub level: Level,
    /// The format of a line.
    pub form: Form,
}

/// The format of a line of the error log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    /// As nginx writes it.
    #[default]
    Text,
    /// One JSON object.
    Json,
}

impl Form {
    /// Names as the configuration has them.
    pub const NAMES: &'static [(&'static str, Form)] = &[("text", Form::Text), ("json", Form::Json)];
}

/// Where lines go.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// Appended to a file.
    File(PathBuf),
    /// The standard error stream.
    Stderr,
    /// Sent to a syslog server, a datagram for each line.
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
    /// Whether a line of this level goes anywhere.
    pub fn takes(&self, level: Level) -> bool {
        self.targets.items().iter().any(|target| level <= target.level)
    }

    /// The files among the targets.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        self.targets.items().iter().filter_map(|target| target.target.path())
    }
}

/// Place of a target in [`Targets`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TargetId(u32);

impl TargetId {
    /// The place in [`Targets`].
    pub fn place(self) -> usize {
        self.0 as usize
    }
}

/// All targets of a configuration, each once: blocks that name the same file share its descriptor and its buffer.
#[derive(Debug, Default)]
pub struct Targets(Vec<TargetSpec>);

/// One target and how lines gather for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetSpec {
    /// Where lines go.
    pub target: Target,
    kind: Kind,
    /// How lines gather before they are written.
    pub hold: Option<Hold>,
}

/// The purpose of a target: errors never wait in the buffer of an access log to the same file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `access_log`
    Access,
    /// `error_log`
    Error,
}

/// `buffer=`, `flush=`, `gzip=` of an `access_log`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hold {
    /// Lines go out when there are this many bytes of them.
    pub bytes: usize,
    /// Or when the first of them is so old.
    pub flush: Option<Duration>,
    /// The level of the compression, 1 to 9.
    pub gzip: Option<u32>,
}

impl Targets {
    /// The place of a target, which is new or known.
    pub fn intern(&mut self, kind: Kind, target: &Target) -> TargetId {
        let known = self.0.iter().position(|spec| spec.kind == kind && spec.target == *target);
        let place = known.unwrap_or_else(|| {
            self.0.push(TargetSpec { target: target.clone(), kind, hold: None });
            self.0.len() - 1
        });
        TargetId(place as u32)
    }

    /// Sets the buffering of a target; returns whether it agrees with the present one.
    pub fn hold(&mut self, id: TargetId, hold: Hold) -> bool {
        *self.0[id.place()].hold.get_or_insert(hold) == hold
    }

    /// One of them.
    pub fn get(&self, id: TargetId) -> &TargetSpec {
        &self.0[id.place()]
    }

    /// All of them, in order.
    pub fn all(&self) -> &[TargetSpec] {
        &self.0
    }
}

/// nginx's levels, worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// System is unusable.
    Emerg,
    /// Action must be taken at once.
    Alert,
    /// Critical.
    Crit,
    /// An error.
    Error,
    /// A warning.
    Warn,
    /// Worth knowing.
    Notice,
    /// Ordinary.
    Info,
    /// For developers.
    Debug,
}

impl Level {
    /// Names as the configuration has them.
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
