//! Limits of the worker process: descriptors, core files, priority, working directory.

use std::path::PathBuf;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::listen::{errno_text, error_text};

/// The process settings of the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProcessLimits {
    /// `worker_rlimit_nofile` times threads; unset raises the soft limit to the hard one.
    pub(crate) descriptors: Option<u64>,
    /// `worker_rlimit_core`, bytes.
    pub(crate) core_bytes: Option<u64>,
    /// `worker_priority`, a nice value.
    pub(crate) priority: Option<i32>,
    /// `working_directory`
    pub(crate) directory: Option<PathBuf>,
}

impl ProcessLimits {
    /// Sets limits and priority, while the privileges for it are there. Returns the failures, in nginx's words: none of
    /// it keeps a worker from serving.
    pub(crate) fn apply(&self) -> Vec<String> {
        let mut refused = Vec::new();
        match self.descriptors {
            Some(count) => set(Resource::Nofile, "RLIMIT_NOFILE", count, &mut refused),
            None => raise_to_hard_limit(&mut refused),
        }
        raise_locked_memory();
        if let Some(bytes) = self.core_bytes {
            set(Resource::Core, "RLIMIT_CORE", bytes, &mut refused);
        }
        // Zero is where every process starts; without a setting a worker keeps the limits of the master.
        if let Some(nice) = self.priority
            && let Err(errno) = rustix::process::setpriority_process(None, nice)
        {
            refused.push(format!("setpriority({nice}) failed ({})", errno_text(errno)));
        }
        refused
    }

    /// Goes to the working directory. nginx does this as the worker's user, and ends when it fails.
    pub(crate) fn enter_directory(&self) -> Result<(), String> {
        let Some(directory) = &self.directory else { return Ok(()) };
        std::env::set_current_dir(directory)
            .map_err(|error| format!("chdir(\"{}\") failed ({})", directory.display(), error_text(&error)))
    }

    /// How many descriptors the worker will be able to open.
    pub(crate) fn descriptors_expected(&self) -> Option<u64> {
        self.descriptors.or(getrlimit(Resource::Nofile).maximum)
    }
}

/// `getrlimit(RLIMIT_NOFILE): 1024:1048576`
pub(crate) fn descriptors_line() -> String {
    let limit = getrlimit(Resource::Nofile);
    // The kernel represents "unlimited" by the largest number, which nginx prints.
    let shown = |value: Option<u64>| value.unwrap_or(u64::MAX);
    format!("getrlimit(RLIMIT_NOFILE): {}:{}", shown(limit.current), shown(limit.maximum))
}

/// Soft and hard limit alike, as nginx does: the worker has no way to raise it again.
fn set(resource: Resource, name: &str, value: u64, refused: &mut Vec<String>) {
    let new = Rlimit { current: Some(value), maximum: Some(value) };
    if let Err(errno) = setrlimit(resource, new) {
        refused.push(format!("setrlimit({name}, {value}) failed ({})", errno_text(errno)));
    }
}

/// A server without a word about descriptors should not stop at 1024 connections.
fn raise_to_hard_limit(refused: &mut Vec<String>) {
    let old = getrlimit(Resource::Nofile);
    let new = Rlimit { current: old.maximum, maximum: old.maximum };
    if old.current == old.maximum {
        return;
    }
    if let Err(errno) = setrlimit(Resource::Nofile, new) {
        refused.push(format!("setrlimit(RLIMIT_NOFILE) failed ({})", errno_text(errno)));
    }
}

/// Buffers that are registered with a ring count as locked memory, io_uring_register(2), and the usual limit of 8 MiB
/// is less than one thread's. Root takes it off while it is root; others go as far as they may. A refusal costs
/// registered buffers only, and the engine reports it when it lacks them.
fn raise_locked_memory() {
    let none = Rlimit { current: None, maximum: None };
    if setrlimit(Resource::Memlock, none).is_err() {
        let old = getrlimit(Resource::Memlock);
        let _ = setrlimit(Resource::Memlock, Rlimit { current: old.maximum, maximum: old.maximum });
    }
}
