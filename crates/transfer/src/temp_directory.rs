//! [`TempDirectory`]: a directory of temporary files (`client_body_temp_path`, `proxy_temp_path` and its siblings), with
//! the helper threads that create files in it.
//!
//! Each directory has separate threads: a disk that does not respond delays no work in directories on other disks. The
//! disk itself is not known before such work. Configuration versions that name the same directory share its threads,
//! which end with the last of these versions.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use io::Errno;
use io::facts::DeviceId;
use rt::HelperPool;
use rustix::fs::{Mode, OFlags};

/// Maximum number of threads per directory. More threads would hardly make one disk faster.
const THREADS_MAX: usize = 8;

/// The pools of the directories of all configuration versions in use.
static POOLS: Mutex<BTreeMap<PathBuf, Weak<HelperPool>>> = Mutex::new(BTreeMap::new());

/// Maximum number of names tried: other processes may have files with the same number, such as a worker that is
/// exiting.
const NAMES_MAX: usize = 64;

/// The number of the next file. The first one is the time of day in us, so that processes rarely use the same numbers.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// Digits of a file's name.
const DIGITS: usize = 10;

/// A directory of temporary files.
#[derive(Clone, Debug)]
pub struct TempDirectory(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    path: PathBuf,
    /// Number of digits of each level of subdirectories.
    levels: Vec<u8>,
    helpers: Arc<HelperPool>,
}

impl TempDirectory {
    /// Returns the directory with this path, and with subdirectories whose names have these numbers of digits.
    pub fn new(path: PathBuf, levels: &[u8]) -> TempDirectory {
        let helpers = pool_of(&path);
        TempDirectory(Arc::new(Inner { path, levels: levels.to_vec(), helpers }))
    }

    /// Returns its path.
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// Returns the number of digits of each level of subdirectories.
    pub fn levels(&self) -> &[u8] {
        &self.0.levels
    }

    /// Runs `work`, which may wait for the disk of the directory, on a helper thread; `None` when it panicked.
    pub async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        self.0.helpers.run(work).await
    }

    /// Creates a temporary file. Returns the file, its path (a former path, unless it is `named`), and its device. The
    /// kernel removes a file without a name even if the process crashes.
    ///
    /// # Errors
    /// The intended path, and the error.
    pub async fn create(&self, named: bool) -> Result<(rt::File, PathBuf, DeviceId), (PathBuf, Errno)> {
        let start =
            rt::wall().duration_since(std::time::UNIX_EPOCH).map_or(0, |time| time.as_micros() as u64);
        let directory = Arc::clone(&self.0);
        // A helper thread creates the file, because this may need several calls, and each may wait for the disk.
        let made = self.run(move || make(&directory.path, &directory.levels, named, start)).await;
        let (fd, path, device) = made.unwrap_or_else(|| Err((self.path().to_owned(), Errno::IO)))?;
        Ok((rt::File::new(fd), path, device))
    }
}

/// Returns the pool of a directory, and forgets the pools that have ended.
fn pool_of(directory: &Path) -> Arc<HelperPool> {
    let mut pools = POOLS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(pool) = pools.get(directory).and_then(Weak::upgrade) {
        return pool;
    }
    pools.retain(|_, pool| pool.strong_count() > 0);
    let pool = Arc::new(HelperPool::new("temp-files", THREADS_MAX));
    pools.insert(directory.to_owned(), Arc::downgrade(&pool));
    pool
}

/// Opens a temporary file, unnamed unless `named`: the kernel removes an unnamed file even if the process crashes.
#[expect(clippy::disallowed_methods, reason = "it runs on a helper thread, of TempDirectory")]
fn make(
    directory: &Path,
    levels: &[u8],
    named: bool,
    start: u64,
) -> Result<(OwnedFd, PathBuf, DeviceId), (PathBuf, Errno)> {
    let mut last = (directory.to_owned(), Errno::EXIST);
    let _ = NEXT.compare_exchange(0, start, Ordering::Relaxed, Ordering::Relaxed);
    for _ in 0..NAMES_MAX {
        let path = path_of(directory, levels, NEXT.fetch_add(1, Ordering::Relaxed));
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
        let open = || rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR);
        let opened = match open() {
            Err(Errno::NOENT) => create_parents(&path, Mode::RWXU).and_then(|()| open()),
            opened => opened,
        };
        match opened {
            Ok(fd) => {
                let removed = if named { Ok(()) } else { rustix::fs::unlink(&path) };
                // If fstat(2) fails, the file counts on the default device, as files of unknown disks do.
                let device = rustix::fs::fstat(&fd).map_or(DeviceId::default(), |stat| DeviceId(stat.st_dev));
                return match removed {
                    Ok(()) => Ok((fd, path, device)),
                    Err(errno) => Err((path, errno)),
                };
            }
            // An earlier or a concurrent process has used this number.
            Err(Errno::EXIST) => last.0 = path,
            Err(errno) => return Err((path, errno)),
        }
    }
    Err(last)
}

/// Creates the missing directories above a file, with these permissions.
#[expect(clippy::disallowed_methods, reason = "it runs on a helper thread, of TempDirectory")]
fn create_parents(path: &Path, mode: Mode) -> Result<(), Errno> {
    let Some(directory) = path.parent() else { return Err(Errno::NOENT) };
    let make = || match rustix::fs::mkdir(directory, mode) {
        // Another thread has created it.
        Err(Errno::EXIST) => Ok(()),
        made => made,
    };
    match make() {
        Err(Errno::NOENT) => create_parents(directory, mode).and_then(|()| make()),
        made => made,
    }
}

/// Returns a path such as `7/45/0000123457`: the digits of each level are taken from the end of the number.
fn path_of(directory: &Path, levels: &[u8], number: u64) -> PathBuf {
    let name = format!("{:0width$}", number % 10u64.pow(DIGITS as u32), width = DIGITS);
    let (mut path, mut end) = (directory.to_owned(), name.len());
    for &digits in levels {
        let start = end.saturating_sub(digits.into());
        path.push(&name[start..end]);
        end = start;
    }
    path.push(name);
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_stored_files_match_nginx() {
        let path = |levels: &[u8]| path_of(Path::new("/t"), levels, 123_457).display().to_string();
        assert_eq!(path(&[]), "/t/0000123457");
        assert_eq!(path(&[1, 2]), "/t/7/45/0000123457");
        assert_eq!(path(&[2, 2, 2]), "/t/57/34/12/0000123457");
        assert_eq!(path_of(Path::new("/t"), &[], u64::MAX).display().to_string().len(), 13);
    }

    #[test]
    fn configurations_share_the_threads_of_a_directory() {
        let one = TempDirectory::new(PathBuf::from("/one"), &[]);
        let same = TempDirectory::new(PathBuf::from("/one"), &[1]);
        let other = TempDirectory::new(PathBuf::from("/other"), &[]);
        assert!(
            Arc::ptr_eq(&one.0.helpers, &same.0.helpers) && !Arc::ptr_eq(&one.0.helpers, &other.0.helpers)
        );
        drop((one, same));
        let new = TempDirectory::new(PathBuf::from("/new"), &[]);
        let pools = POOLS.lock().expect("no panic");
        let named = |path: &str| pools.contains_key(Path::new(path));
        assert!(named("/other") && named("/new") && !named("/one"), "a pool ends with its last directory");
        drop((other, new));
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a test may wait")]
    fn directories_are_created_and_files_are_named_only_if_needed() {
        let directory = testkit::TempDir::new("received");
        let deep = directory.path().join("a/b");
        let (_fd, path, _) = make(&deep, &[1], false, 5).expect("it can be made");
        assert!(rustix::fs::stat(&path).is_err() && rustix::fs::stat(&deep).is_ok());
        let (_fd, path, device) = make(&deep, &[1], true, 5).expect("it can be made");
        assert_eq!(rustix::fs::stat(&path).map(|stat| stat.st_dev), Ok(device.0));
        let (_, errno) =
            make(Path::new("/proc/nobody"), &[], true, 5).expect_err("nothing can be made there");
        assert_eq!(errno, Errno::NOENT);
    }
}
