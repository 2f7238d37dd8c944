//! Facts about the root of a location. Some are determined when the configuration takes effect, others from the results of
//! requests.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{CStr, OsStr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use io::Errno;
use io::facts::{DeviceId, Stat, is_local};
use io::op::OpenHow;
use io::page_cache::TryPredictor;
use rustix::fs::{Mode, OFlags};

/// Facts about the root of one location.
#[derive(Debug, Default)]
pub struct RootFacts {
    /// The device whose limits apply.
    pub device: DeviceId,
    /// Whether fstat(2) on an open file cannot block: false for network and FUSE file systems, and for roots that
    /// depend on the request.
    pub local: bool,
    /// Whether direct system calls may bypass the engine: the file system is local, `try_cached` is on, and no faults
    /// are injected, because the fault engine does not affect such calls.
    direct_calls: bool,
    /// Whether recent paths were in the kernel's dentry cache.
    names: TryPredictor,
    /// Whether recent files were in the page cache.
    data: TryPredictor,
    /// Whether recent files could be opened with `O_DIRECT`.
    direct: TryPredictor,
    /// The open root directory, if requests must not leave it (`root_beneath`). If the root is a symbolic link that is changed,
    /// this remains the old directory until a reload.
    beneath: Option<OwnedFd>,
}

/// The facts of the roots of all locations, held by one thread.
#[derive(Debug)]
pub struct Roots {
    facts: Arc<Vec<RootFacts>>,
    real: RefCell<HashMap<Box<[u8]>, RealPath>>,
}

/// A root without symbolic links (`$realpath_root`). The path is `None` if it could not be resolved.
#[derive(Debug)]
struct RealPath {
    resolved: Instant,
    path: Option<Box<[u8]>>,
}

/// Time for which a resolved root is used: a switched link takes effect soon, and few requests wait for the disk.
pub const REAL_PATH_VALID: Duration = Duration::from_secs(1);

/// Maximum number of resolved roots per thread. A root with variables may depend on the request.
const REAL_PATHS_MAX: usize = 256;

impl Roots {
    /// Returns the roots, none of them resolved.
    pub fn new(facts: Arc<Vec<RootFacts>>) -> Roots {
        Roots { facts, real: RefCell::default() }
    }

    /// Returns the facts of a root.
    pub fn of(&self, index: usize) -> &RootFacts {
        &self.facts[index]
    }

    /// Appends a root without symbolic links, as of the last second. Returns `false` if an earlier call within
    /// this second could not resolve the root.
    ///
    /// # Errors
    /// This call could not resolve the root.
    pub fn push_real(&self, root: &[u8], now: Instant, out: &mut Vec<u8>) -> Result<bool, Errno> {
        let mut real = self.real.borrow_mut();
        let is_recent = |found: &&RealPath| now.saturating_duration_since(found.resolved) < REAL_PATH_VALID;
        if let Some(found) = real.get(root).filter(is_recent) {
            out.extend_from_slice(found.path.as_deref().unwrap_or_default());
            return Ok(found.path.is_some());
        }
        if real.len() >= REAL_PATHS_MAX {
            real.clear();
        }
        let found = resolve(root);
        let path = found.as_ref().ok().map(|path| path.as_slice().into());
        real.insert(root.into(), RealPath { resolved: now, path });
        out.extend_from_slice(&found?);
        Ok(true)
    }
}

/// Returns a path without symbolic links.
#[expect(
    clippy::disallowed_methods,
    reason = "the value of a variable is needed immediately; at most once a second per root, usually from the dentry cache"
)]
fn resolve(path: &[u8]) -> Result<Vec<u8>, Errno> {
    let real = std::fs::canonicalize(OsStr::from_bytes(path));
    let errno = |error: std::io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
    real.map(|path| path.into_os_string().into_vec()).map_err(errno)
}

impl RootFacts {
    /// Determines the facts of a root. Blocks on the disk: for start and reload only.
    #[expect(clippy::disallowed_methods, reason = "called while a configuration is loaded, not by requests")]
    pub fn of(root: &Path, beneath: bool, direct_calls: bool) -> RootFacts {
        let Ok(stat) = rustix::fs::stat(root) else { return RootFacts::default() };
        let local = rustix::fs::statfs(root).is_ok_and(|facts| is_local(facts.f_type as u64));
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let open = || rustix::fs::open(root, flags, Mode::empty()).ok();
        let device = DeviceId(stat.st_dev);
        RootFacts {
            device,
            local,
            direct_calls: local && direct_calls,
            names: TryPredictor::default(),
            data: TryPredictor::default(),
            direct: TryPredictor::default(),
            beneath: beneath.then(open).flatten(),
        }
    }

    /// Whether a direct lookup of a path in the kernel's caches is likely to succeed.
    pub fn may_try(&self) -> bool {
        self.direct_calls && self.names.should_try()
    }

    /// Whether files for direct reads are opened with O_DIRECT, which saves a system call per file. Such an open fails for
    /// directories, and on file systems without O_DIRECT.
    pub fn may_open_directly(&self) -> bool {
        self.direct.should_try()
    }

    /// Records whether an open with O_DIRECT succeeded.
    pub fn note_opened_directly(&self, opened: bool) {
        self.direct.note(opened);
    }

    /// Opens a file if the kernel has its complete path cached, which [`RootFacts::may_try`] predicts; otherwise returns
    /// `None`, and the engine must open it. A successful call needs no submission, no completion and no wake-up of a task.
    pub fn open_resident(
        &self,
        dir: Option<BorrowedFd<'_>>,
        path: &CStr,
        how: OpenHow,
    ) -> Option<Result<rt::File, Errno>> {
        if how.same_owner {
            return None;
        }
        self.noted(rt::File::open_cached(dir, path, how))
    }

    /// As [`RootFacts::open_resident`], but only calls stat(2). io_uring would always pass stat(2) to a kernel worker
    /// thread.
    pub fn stat_resident(&self, path: &CStr) -> Option<Result<Stat, Errno>> {
        if !self.may_try() {
            return None;
        }
        self.noted(rt::file::stat_cached(path))
    }

    /// Whether direct system calls may bypass the engine. Then files may be held open briefly. A path that is still passed
    /// to the engine is not in the kernel's caches, or is predicted not to be.
    pub fn calls_directly(&self) -> bool {
        self.direct_calls
    }

    fn noted<T>(&self, answer: Result<T, Errno>) -> Option<Result<T, Errno>> {
        let missed = matches!(answer, Err(Errno::AGAIN | Errno::NOSYS | Errno::INVAL));
        self.names.note(!missed);
        (!missed).then_some(answer)
    }

    /// Calls `read`, which reads resident bytes, if it is likely to succeed. Returns `None` if it was not called or failed.
    pub fn try_resident<T>(&self, read: impl FnOnce() -> Result<T, Errno>) -> Option<T> {
        if !self.direct_calls || !self.data.should_try() {
            return None;
        }
        self.try_known_resident(read)
    }

    /// Whether recent probes found files resident.
    pub fn finds_data(&self) -> bool {
        self.data.is_confident()
    }

    /// As [`RootFacts::try_resident`], for bytes known to be resident.
    pub fn try_known_resident<T>(&self, read: impl FnOnce() -> Result<T, Errno>) -> Option<T> {
        let read = read();
        self.data.note(read.is_ok());
        read.ok()
    }

    /// Returns the root as a directory to open from, with `RESOLVE_BENEATH`.
    pub fn beneath(&self) -> Option<BorrowedFd<'_>> {
        self.beneath.as_ref().map(AsFd::as_fd)
    }
}

/// Whether a directory, or its parent if it does not exist yet, is on a local file system, where calls without disk
/// access never wait. Queries the file system: for start and reload only.
pub fn is_on_local_disk(directory: &Path) -> bool {
    let facts = |directory: &Path| rustix::fs::statfs(directory).ok();
    let found = facts(directory).or_else(|| facts(directory.parent()?));
    found.is_some_and(|facts| is_local(facts.f_type as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a test may wait")]
    fn a_switched_root_is_resolved_again_after_a_second() {
        let directory = testkit::TempDir::new("roots");
        let (first, second) = (directory.dir("first"), directory.dir("second"));
        let link = directory.path().join("current");
        let (root, roots, start) = (link.as_os_str().as_bytes(), Roots::new(Arc::default()), Instant::now());
        let real = |after: Duration| {
            let mut out = b"as ".to_vec();
            roots.push_real(root, start + after, &mut out).map(|found| (found, out))
        };
        let found =
            |path: &Path| Ok((true, [b"as ", path.canonicalize().unwrap().as_os_str().as_bytes()].concat()));
        let switch = |to: &str| {
            rustix::fs::symlink(to, directory.path().join("new")).unwrap();
            rustix::fs::rename(directory.path().join("new"), &link).unwrap();
        };
        let none = || Ok((false, b"as ".to_vec()));
        assert_eq!((real(Duration::ZERO), real(Duration::ZERO)), (Err(Errno::NOENT), none()));
        switch("first");
        assert_eq!((real(Duration::from_millis(999)), real(REAL_PATH_VALID)), (none(), found(&first)));
        switch("second");
        assert_eq!(real(REAL_PATH_VALID * 2 - Duration::from_millis(1)), found(&first));
        assert_eq!(real(REAL_PATH_VALID * 2), found(&second));
    }

    #[test]
    fn failing_tries_become_rare_and_successful_ones_continue() {
        let predictor = TryPredictor::default();
        let trials =
            |hit: bool| (0..1300).filter(|_| predictor.should_try()).map(|_| predictor.note(hit)).count();
        assert_eq!(trials(true), 1300);
        let misses = trials(false);
        assert!((80..120).contains(&misses), "{misses} of 1300");
        assert!(trials(true) > 1280, "it recovers with the first success");
    }
}
