//! The interface of this crate to crates `site` and `server`, for configurations and for the threads of a worker. Types of listening
//! sockets, users and log targets are used directly.
//!
//! [`Site`] is a valid configuration, [`Settings`] its settings for processes, sockets and files. [`Worker`] is the
//! server running in this process.

mod convert;
mod strict;

use std::path::PathBuf;
use std::time::Duration;

pub(crate) use convert::{
    Candidate, Config, Course, DirectiveEntry, EntryQuery, Event, ExpectedRefusals, Filter, FoundLocation,
    Note, Passed, Phase, ProcessKey, Question, Reread, Resources, Steering, WATCHERS_MAX, Watcher, Worker,
    apply, certificate_warnings, chain_of, changes, configure_arguments, counters, covers, default_movers,
    directive_entries, directive_help, directive_names, expected_refusals, explain, find_location, issuers,
    load, missing_names, mover, place_of_directive, place_of_file, problems, publish_reloads, quic_secret,
    reference, rehearse, ring_warning, route, sandbox_of, set_quic_secret, set_respawned, set_ticket_secret,
    state_files, table, tickets,
};

use std::sync::Arc;

use tls::apart::SecretKey;

use crate::limits::ProcessLimits;
use crate::listen::{ListenAddr, ListenSpec};
use crate::log::{ErrorTarget, Level};
use crate::privilege::UserSpec;

/// A configuration that can be served.
#[derive(Clone, Debug)]
pub(crate) struct Site {
    pub(crate) config: Arc<Config>,
    pub(crate) settings: Settings,
    /// All files that were read, the main one first.
    pub(crate) files: Vec<(PathBuf, Vec<u8>)>,
    /// Other files that were read, such as certificates.
    pub(crate) data: Vec<(PathBuf, Vec<u8>)>,
    /// The private keys of the configuration, if a signing process is to hold them.
    pub(crate) keys: Arc<[SecretKey]>,
    /// Lines for the log, including their positions.
    pub(crate) warnings: Vec<(Level, String)>,
}

/// Why a configuration cannot be served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    pub(crate) level: Level,
    /// Message with file and line, if there is a position.
    pub(crate) message: String,
    /// Whether every line is valid, and the error concerns the complete configuration, such as a missing block.
    pub(crate) syntax_is_ok: bool,
}

/// One of several errors.
#[derive(Clone, Debug)]
pub(crate) struct Problem {
    pub(crate) level: Level,
    /// Message as in [`Refused`].
    pub(crate) message: String,
    /// The line with the position marked, for a terminal.
    pub(crate) excerpt: Option<String>,
    /// Position and kind.
    pub(crate) error: conf::Error,
}

/// The settings that concern the master.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// The `user` directive.
    pub(crate) user: Option<UserSpec>,
    /// `worker_processes`, with `auto` resolved.
    pub(crate) threads: u32,
    pub(crate) daemon: bool,
    pub(crate) master_process: bool,
    /// Whether a signing process holds the private keys (`sandbox strict`).
    pub(crate) signs_apart: bool,
    /// Pid file; `None` disables it.
    pub(crate) pid: Option<PathBuf>,
    pub(crate) limits: ProcessLimits,
    /// `admin_socket`
    pub(crate) admin_socket: Option<PathBuf>,
    pub(crate) shutdown_delay: Duration,
    pub(crate) shutdown_timeout: Option<Duration>,
    /// `env`: variables to inherit (`None`), or to set.
    pub(crate) env: Vec<(String, Option<String>)>,
    /// `worker_connections`, per thread.
    pub(crate) connections: u32,
    /// The listen addresses, without duplicates.
    pub(crate) listens: Vec<ListenSpec>,
    /// The listen addresses that use TLS.
    pub(crate) tls_listens: Vec<ListenAddr>,
    /// Files that the master opens for writing.
    pub(crate) log_files: Vec<PathBuf>,
    /// Directories that the workers write to.
    pub(crate) temp_directories: Vec<PathBuf>,
    /// `error_log` of the process, or the default.
    pub(crate) error_log: Vec<ErrorTarget>,
}

/// Why a new configuration is not in effect.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NotReloaded {
    /// It was rejected before any thread used it.
    Unchanged(String),
    /// Some threads use it and others do not respond.
    InParts(String),
}

/// Source of the text of a configuration.
#[derive(Debug)]
pub(crate) enum Files<'a> {
    /// The file system.
    Disk,
    /// The files that another process read.
    Memory(&'a [(PathBuf, Vec<u8>)]),
}

impl Settings {
    /// Returns a warning if the limit on descriptors is too low for the configured connections of all threads.
    pub(crate) fn connections_warning(&self) -> Option<String> {
        let limit = self.limits.descriptors_expected()?;
        let wanted = u64::from(self.connections) * u64::from(self.threads);
        (wanted > limit).then(|| {
            let Settings { connections, threads, .. } = self;
            let share = limit / u64::from((*threads).max(1));
            format!("{connections} worker_connections exceed open file resource limit: {share} for each of {threads} threads")
        })
    }
}
