//! Measurement methods of all scenarios: medians with their spread, the working directory, the start and end of
//! programs, and resource limits.

pub(crate) mod cgroup;
pub(crate) mod disturbance;
pub(crate) mod enter;
pub(crate) mod huge_pages;
pub(crate) mod machine;
pub(crate) mod memory;
pub(crate) mod namespace;
pub(crate) mod page_cache;
pub(crate) mod pin;
pub(crate) mod proc_stat;
pub(crate) mod process;
pub(crate) mod signals;
pub(crate) mod stats;
pub(crate) mod syscalls;
pub(crate) mod system_stat;
pub(crate) mod timeline;
pub(crate) mod wire;
pub(crate) mod workspace;

// `process` starts programs through `enter`. `cgroup`, `page_cache`, `namespace`, `wire`, `huge_pages` and `pin` set the
// conditions.
// `disturbance`, `machine`, `memory`, `syscalls` and `timeline` observe, by means of `proc_stat` and `system_stat`.
// `stats` summarises the measurements.

use std::time::Duration;

use rustix::event::{Timespec, poll};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Sleeps, where there is no event to wait for. A signal may end the sleep early.
pub(crate) fn pause(length: Duration) {
    if let Ok(length) = Timespec::try_from(length) {
        let _ = poll(&mut [], Some(&length));
    }
}

/// Number of file descriptors for a server: ten thousand connections, and a file for each of a thousand of them.
pub(crate) const SERVER_DESCRIPTORS: u64 = 16_384;

/// Raises the soft limit of file descriptors to `wanted`, or to the hard limit if that is lower; returns the new limit.
/// The default is low so that programs that use select(2) do not break.
pub(crate) fn raise_descriptors(wanted: u64) -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let wanted = limit.maximum.unwrap_or(wanted).min(wanted);
    if limit.current.is_some_and(|current| current < wanted) {
        // If the limit cannot be raised, connections fail, and the failures are counted.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum: limit.maximum });
    }
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}
