//! How things are measured, whatever is measured: rounds of pairs in turn, medians with their spread, the directory that
//! everything is made in, programs that are started and ended, and what they may use.

pub(crate) mod cgroup;
pub(crate) mod disturbance;
pub(crate) mod enter;
pub(crate) mod machine;
pub(crate) mod memory;
pub(crate) mod namespace;
pub(crate) mod page_cache;
pub(crate) mod pin;
pub(crate) mod proc_stat;
pub(crate) mod process;
pub(crate) mod rounds;
pub(crate) mod signals;
pub(crate) mod stats;
pub(crate) mod syscalls;
pub(crate) mod system_stat;
pub(crate) mod timeline;
pub(crate) mod workspace;

// `process` starts programs through `enter`; `cgroup`, `page_cache`, `namespace` and `pin` set the conditions;
// `disturbance`, `machine`, `memory`, `syscalls` and `timeline` look, over `proc_stat` and `system_stat`; `rounds` and `stats`
// make figures of what was measured.

use std::time::Duration;

use rustix::event::{Timespec, poll};

/// Lets time pass, where there is no event to wait for. A signal may end it early.
pub(crate) fn pause(length: Duration) {
    if let Ok(length) = Timespec::try_from(length) {
        let _ = poll(&mut [], Some(&length));
    }
}
