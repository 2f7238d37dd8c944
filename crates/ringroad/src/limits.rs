//! Limits of the worker process: file descriptors, core files, priority, working directory, umask.

use std::path::PathBuf;

use rustix::fs::Mode;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::listen::{errno_text, error_text};

/// The process settings of the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProcessLimits {
    /// `worker_rlimit_nofile` times the number of threads; if unset, or above the permitted maximum, the soft limit is
    /// raised to the hard one.
    pub(crate) descriptors: Option<u64>,
    /// `worker_rlimit_core`, bytes.
    pub(crate) core_bytes: Option<u64>,
    /// `worker_priority`, a nice value.
    pub(crate) priority: Option<i32>,
    /// `working_directory`
    pub(crate) directory: Option<PathBuf>,
}

impl ProcessLimits {
    /// Applies umask, limits and priority, before the privileges are dropped. Returns the failures as nginx's messages. A
    /// worker serves despite such a failure.
    pub(crate) fn apply(&self) -> Vec<String> {
        // As in a daemon of nginx: files get exactly the requested modes, for example those of `dav_access`.
        rustix::process::umask(Mode::empty());
        let mut refused = Vec::new();
        match self.descriptors {
            Some(count) if set(Resource::Nofile, "RLIMIT_NOFILE", count, &mut refused) => {}
            Some(_) | None => raise_to_hard_limit(&mut refused),
        }
        raise_locked_memory();
        if let Some(bytes) = self.core_bytes {
            set(Resource::Core, "RLIMIT_CORE", bytes, &mut refused);
        }
        // Without a setting a worker keeps the priority of the master.
        if let Some(nice) = self.priority
            && let Err(errno) = rustix::process::setpriority_process(None, nice)
        {
            refused.push(format!("setpriority({nice}) failed ({})", errno_text(errno)));
        }
        refused
    }

    /// Changes to the working directory. As in nginx this is done as the worker's user, and a failure ends the worker.
    pub(crate) fn enter_directory(&self) -> Result<(), String> {
        let Some(directory) = &self.directory else { return Ok(()) };
        std::env::set_current_dir(directory)
            .map_err(|error| format!("chdir(\"{}\") failed ({})", directory.display(), error_text(&error)))
    }

    /// Returns the number of descriptors that the worker will be able to open. Whether a process can raise its hard
    /// limit depends on capabilities, the user namespace and `fs.nr_open`. So this process tries it, and restores its
    /// limit.
    pub(crate) fn descriptors_expected(&self) -> Option<u64> {
        let present = getrlimit(Resource::Nofile);
        let (Some(count), Some(hard)) = (self.descriptors, present.maximum) else {
            return self.descriptors.or(present.maximum);
        };
        let raised = Rlimit { current: present.current, maximum: Some(count) };
        if count > hard && setrlimit(Resource::Nofile, raised).is_err() {
            return Some(hard);
        }
        if count > hard {
            // Lowering a limit is always permitted, setrlimit(2).
            let _ = setrlimit(Resource::Nofile, present);
        }
        Some(count)
    }
}

/// Returns the log line `getrlimit(RLIMIT_NOFILE): 1024:1048576`
pub(crate) fn descriptors_line() -> String {
    let limit = getrlimit(Resource::Nofile);
    // nginx prints the kernel's representation of "unlimited", the largest number.
    let shown = |value: Option<u64>| value.unwrap_or(u64::MAX);
    format!("getrlimit(RLIMIT_NOFILE): {}:{}", shown(limit.current), shown(limit.maximum))
}

/// Sets both the soft and the hard limit, as nginx does, so that the worker cannot raise the limit later. Returns
/// whether this succeeded.
fn set(resource: Resource, name: &str, value: u64, refused: &mut Vec<String>) -> bool {
    let new = Rlimit { current: Some(value), maximum: Some(value) };
    let outcome = setrlimit(resource, new);
    if let Err(errno) = outcome {
        refused.push(format!("setrlimit({name}, {value}) failed ({})", errno_text(errno)));
    }
    outcome.is_ok()
}

/// Raises the soft limit of descriptors to the hard limit. The usual soft limit of 1024 would limit the connections of
/// a server without `worker_rlimit_nofile`.
pub(crate) fn raise_to_hard_limit(refused: &mut Vec<String>) {
    let old = getrlimit(Resource::Nofile);
    let new = Rlimit { current: old.maximum, maximum: old.maximum };
    if old.current == old.maximum {
        return;
    }
    if let Err(errno) = setrlimit(Resource::Nofile, new) {
        refused.push(format!("setrlimit(RLIMIT_NOFILE) failed ({})", errno_text(errno)));
    }
}

/// Raises the limit of locked memory: buffers registered with io_uring count as locked memory (io_uring_register(2)),
/// and the usual limit of 8 MiB is too low for one thread. As root the limit is removed; other users raise the soft
/// limit to the hard limit. If the limit stays too low, the engine works without registered buffers and reports this.
fn raise_locked_memory() {
    let none = Rlimit { current: None, maximum: None };
    if setrlimit(Resource::Memlock, none).is_err() {
        let old = getrlimit(Resource::Memlock);
        let _ = setrlimit(Resource::Memlock, Rlimit { current: old.maximum, maximum: old.maximum });
    }
}
