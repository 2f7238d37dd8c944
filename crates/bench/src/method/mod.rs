//! How things are measured, whatever is measured: rounds of pairs in turn, medians with their spread, the folder that
//! everything is made in, programs that are started and ended, and what they may use.

pub(crate) mod cgroup;
pub(crate) mod enter;
pub(crate) mod page_cache;
pub(crate) mod proc_stat;
pub(crate) mod process;
pub(crate) mod rounds;
pub(crate) mod stats;
pub(crate) mod workspace;

use std::time::Duration;

use rustix::event::{Timespec, poll};

/// Lets time pass, where there is no event to wait for. A signal may end it early.
pub(crate) fn pause(length: Duration) {
    if let Ok(length) = Timespec::try_from(length) {
        let _ = poll(&mut [], Some(&length));
    }
}
