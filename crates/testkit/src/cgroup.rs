//! Memory limits for servers under test, by a cgroup of either version (cgroups(7)).

use std::fs;
use std::path::{Path, PathBuf};

use crate::{Deadline, wait};

/// A cgroup with a memory limit for one test; removed when dropped.
#[derive(Debug)]
pub struct MemoryLimit(PathBuf);

impl MemoryLimit {
    /// Creates a cgroup. Returns `None` and reports a skipped check if this machine does not permit it.
    #[must_use]
    pub fn new(name: &str, bytes: u64) -> Option<MemoryLimit> {
        let name = format!("ringroad-test-{}-{name}", std::process::id());
        // Version 2 alone, or mounted in addition to version 1.
        for (root, file) in [
            ("/sys/fs/cgroup", "memory.max"),
            ("/sys/fs/cgroup/unified", "memory.max"),
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
        ] {
            let folder = Path::new(root).join(&name);
            if fs::create_dir(&folder).is_err() {
                continue;
            }
            let limit = MemoryLimit(folder);
            if limit.0.join(file).exists() && fs::write(limit.0.join(file), bytes.to_string()).is_ok() {
                return Some(limit);
            }
        }
        crate::skip("no memory cgroup can be created here; the server has no limit");
        None
    }

    /// Returns the shell command that enters the cgroup.
    #[must_use]
    pub fn enter(&self) -> String {
        format!("echo $$ > {}", self.0.join("cgroup.procs").display())
    }

    /// Returns the number of processes that the kernel has killed in this cgroup for lack of memory.
    ///
    /// # Panics
    /// The kernel does not report the number.
    #[must_use]
    pub fn kills(&self) -> u64 {
        let text = |file: &str| fs::read_to_string(self.0.join(file)).ok();
        let text = text("memory.events").or_else(|| text("memory.oom_control")).unwrap_or_default();
        let count = text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.parse().ok());
        count.unwrap_or_else(|| panic!("no number of kills: {text:?}"))
    }
}

impl Drop for MemoryLimit {
    fn drop(&mut self) {
        let removed = || fs::remove_dir(&self.0).ok();
        // Processes leave the cgroup shortly after their exit was seen.
        let _ = wait::until("the cgroup to be empty", Deadline::default(), removed);
    }
}
