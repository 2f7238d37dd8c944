//! Counts the system calls of a server: by the tracepoint `raw_syscalls:sys_enter`, for each of its threads
//! (perf_event_open(2)). If this is not permitted, the reason is returned instead of a figure.
//!
//! Counting slows down every system call of those threads. So system calls and times are measured in separate runs.

use std::fs;
use std::io;
use std::path::Path;

use perf_event::events::Tracepoint;
use perf_event::{Builder, Counter};
use rustix::mount::{MountFlags, mount};

/// Counters of the threads that exist at the start, and of the threads that they start.
pub(crate) struct Calls {
    counters: Vec<Counter>,
}

impl Calls {
    /// Starts counting for all threads of these processes. An error is a reason for display in a table.
    pub(crate) fn start(processes: impl IntoIterator<Item = u32>) -> Result<Calls, String> {
        let id = tracepoint()?;
        let mut counters = Vec::new();
        for thread in processes.into_iter().flat_map(threads) {
            let built = Builder::new(Tracepoint::with_id(id))
                .observe_pid(thread)
                .any_cpu()
                .inherit(true)
                .include_kernel()
                .include_hv()
                .build();
            match built.and_then(|mut counter| counter.enable().map(|()| counter)) {
                Ok(counter) => counters.push(counter),
                // The thread has exited since its id was read.
                Err(error) if error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error()) => {}
                Err(error) => return Err(format!("perf_event_open: {error}")),
            }
        }
        Ok(Calls { counters })
    }

    pub(crate) fn count(&mut self) -> Result<u64, String> {
        let counts: io::Result<Vec<u64>> = self.counters.iter_mut().map(Counter::read).collect();
        counts.map(|counts| counts.iter().sum()).map_err(|error| format!("reading a perf event: {error}"))
    }
}

/// Returns the ids of a process's current threads.
fn threads(process: u32) -> Vec<i32> {
    let Ok(entries) = fs::read_dir(format!("/proc/{process}/task")) else { return Vec::new() };
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect()
}

/// Returns the id of the tracepoint from tracefs. As root, mounts tracefs if necessary (the mount is private to the
/// run).
fn tracepoint() -> Result<u64, String> {
    const TRACEFS: &str = "/sys/kernel/tracing";
    let path = Path::new(TRACEFS).join("events/raw_syscalls/sys_enter/id");
    if !path.exists() && rustix::process::geteuid().is_root() {
        // If it is refused or not available, the following read fails with the reason.
        let _ = mount("tracefs", TRACEFS, "tracefs", MountFlags::empty(), None);
    }
    let text = fs::read_to_string(&path).map_err(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => "counting system calls needs root (tracefs)".to_owned(),
        _ => format!("counting system calls needs tracefs: {error}"),
    })?;
    text.trim().parse().map_err(|_| format!("{} holds no number", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_of_an_existing_thread_are_counted_or_the_reason_is_given() {
        match Calls::start([std::process::id()]) {
            Ok(mut calls) => {
                for _ in 0..100 {
                    fs::metadata("/proc/self").unwrap();
                }
                assert!(calls.count().unwrap() >= 100);
            }
            Err(reason) => assert!(!reason.is_empty() && !reason.contains('\n')),
        }
    }
}
