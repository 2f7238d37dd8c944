//! Determines how many descriptors this process can still open.
//!
//! The size of `/proc/self/fd` is the number of open descriptors since Linux 6.2 (proc_fd_getattr). Older kernels
//! return 0. Then [`Descriptors::open`] returns `None`, and a caller notices the limit only by `EMFILE`.

use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags};
use rustix::process::{Resource, getrlimit};

/// Counts the open descriptors of this process.
#[derive(Debug)]
pub(super) struct Descriptors {
    directory: OwnedFd,
    limit: u64,
}

impl Descriptors {
    /// Opens the directory; returns `None` if the kernel does not report the number.
    #[expect(clippy::disallowed_methods, reason = "a directory of the kernel, which waits for no disk")]
    pub(super) fn open() -> Option<Descriptors> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::open("/proc/self/fd", flags, Mode::empty()).ok()?;
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let descriptors = Descriptors { directory, limit };
        descriptors.used().map(|_| descriptors)
    }

    /// Returns the limit (`RLIMIT_NOFILE`) at the time of [`Descriptors::open`].
    pub(super) fn limit(&self) -> u64 {
        self.limit
    }

    /// Returns the number of descriptors that can still be opened. Costs one system call, which does not wait.
    pub(super) fn free(&self) -> u64 {
        self.limit.saturating_sub(self.used().unwrap_or(0))
    }

    fn used(&self) -> Option<u64> {
        let stat = rustix::fs::fstat(&self.directory).ok()?;
        u64::try_from(stat.st_size).ok().filter(|&count| count > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a test may wait for a disk")]
    fn opening_a_file_reduces_the_free_descriptors() {
        let Some(descriptors) = Descriptors::open() else {
            eprintln!("skipped: this kernel does not report the number of open descriptors");
            return;
        };
        // Concurrent tests open and close files too; this opens many more than they use.
        let before = descriptors.free();
        let held: Vec<_> = (0..500).map_while(|_| std::fs::File::open("/proc/self/stat").ok()).collect();
        let after = descriptors.free();
        assert!(before - after > held.len() as u64 / 2, "{before} {after}");
        assert!(after < descriptors.limit());
    }
}
