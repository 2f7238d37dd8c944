//! What process control sees of a configuration and of the server: the only place that knows crate `server`.
//!
//! [`Site`] is a configuration that was read and found right, [`Settings`] the part of it that concerns
//! processes, sockets and files. [`Worker`] is the server running in this process.

mod adapter;

use std::path::PathBuf;
use std::time::Duration;

pub(crate) use adapter::{
    Candidate, Config, Filter, Place, ProcessKey, Question, WATCHERS_MAX, Watcher, Worker, apply,
    certificate_warnings, changes, configure_arguments, counters, covers, default_movers, explain,
    foreign_module, go_on_with_tickets, issuers, load, missing_names, mover, path_and_query, place, problems,
    reference, ring_warning, route, search_pattern, set_respawned, state_files, table, tickets,
};

use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::limits::ProcessLimits;
use crate::listen::{ListenAddr, ListenOptions};
use crate::log::{ErrorTarget, Level};
use crate::privilege::UserSpec;

/// A configuration that can be served.
#[derive(Debug)]
pub(crate) struct Site {
    pub(crate) config: Arc<Config>,
    pub(crate) settings: Settings,
    /// Every file that was read, the main one first.
    pub(crate) files: Vec<(PathBuf, Vec<u8>)>,
    /// Files read beside them that are no text.
    pub(crate) data: Vec<(PathBuf, Vec<u8>)>,
    /// Lines for the log, already with their place.
    pub(crate) warnings: Vec<(Level, String)>,
}

/// Why a configuration cannot be served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    pub(crate) level: Level,
    /// With file and line where there is one.
    pub(crate) message: String,
    /// Every line was right by itself; something is missing.
    pub(crate) syntax_is_ok: bool,
}

/// One of several reasons.
#[derive(Clone, Debug)]
pub(crate) struct Problem {
    pub(crate) level: Level,
    /// As in [`Refused`].
    pub(crate) message: String,
    /// The line with a mark, for a terminal.
    pub(crate) excerpt: Option<String>,
    /// Where, and of which kind.
    pub(crate) error: conf::Error,
}

/// What concerns the master.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// `user`, as it was written.
    pub(crate) user: Option<UserSpec>,
    /// `worker_processes`, with `auto` counted out.
    pub(crate) threads: u32,
    pub(crate) daemon: bool,
    pub(crate) master_process: bool,
    /// `None`: no file is written.
    pub(crate) pid: Option<PathBuf>,
    pub(crate) limits: ProcessLimits,
    /// `admin_socket`
    pub(crate) admin_socket: Option<PathBuf>,
    pub(crate) shutdown_delay: Duration,
    pub(crate) shutdown_timeout: Option<Duration>,
    /// `env`: variables to keep, or to set.
    pub(crate) env: Vec<(String, Option<String>)>,
    /// `worker_connections`, for each thread.
    pub(crate) connections: u32,
    /// Each address once.
    pub(crate) listens: Vec<ListenOptions>,
    /// Those of them that speak TLS.
    pub(crate) tls_listens: Vec<ListenAddr>,
    /// Files that the master opens for writing.
    pub(crate) log_files: Vec<PathBuf>,
    /// Directories that the workers write to.
    pub(crate) temp_folders: Vec<PathBuf>,
    /// `error_log` of the process, or its default.
    pub(crate) error_log: Vec<ErrorTarget>,
}

/// Open descriptors for the server.
#[derive(Debug, Default)]
pub(crate) struct Resources {
    /// One socket for each address, or one for each thread.
    pub(crate) listeners: Vec<(ListenAddr, Vec<OwnedFd>)>,
    /// Open for appending.
    pub(crate) logs: Vec<(PathBuf, OwnedFd)>,
}

/// Where the text of a configuration comes from.
#[derive(Debug)]
pub(crate) enum Files<'a> {
    /// The file system.
    Disk,
    /// The files that another process read.
    Memory(&'a [(PathBuf, Vec<u8>)]),
}

impl Settings {
    /// The threads' share of descriptors is too small for the connections that they may have.
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
