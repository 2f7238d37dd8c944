//! A temporary directory for the duration of one test.
//!
//! [`TempDir`] creates it below the system's temporary directory and removes it when dropped. All users may read it,
//! independent of the umask, because a server started by root reads its files as another user.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// Distinguishes directories of one process; the process id distinguishes the processes.
static NEXT: AtomicU32 = AtomicU32::new(0);

/// A new directory, removed with its content on drop.
#[derive(Debug)]
pub struct TempDir {
    path: PathBuf,
    keep: bool,
}

impl TempDir {
    /// Creates a directory with `label` in its name, mode 0755.
    pub fn new(label: &str) -> TempDir {
        TempDir::new_in(&std::env::temp_dir(), label)
    }

    /// Creates one on a different file system than [`TempDir::new`], to which all users may write; returns `None`, with
    /// the reason reported, if /dev/shm is not a separate file system.
    pub fn on_other_filesystem(label: &str) -> Option<TempDir> {
        let shm = Path::new("/dev/shm");
        let device =
            |path: &Path| fs::metadata(path).ok().map(|stat| std::os::unix::fs::MetadataExt::dev(&stat));
        let here = device(&std::env::temp_dir());
        if device(shm).is_none_or(|there| Some(there) == here) {
            crate::engines::skip("no second file system");
            return None;
        }
        let dir = TempDir::new_in(shm, label);
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777))
            .unwrap_or_else(|error| panic!("chmod {}: {error}", dir.path().display()));
        Some(dir)
    }

    fn new_in(parent: &Path, label: &str) -> TempDir {
        loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let name = format!("ringroad-{label}-{}-{number}", std::process::id());
            let path = parent.join(name);
            match fs::create_dir(&path) {
                Ok(()) => {
                    fs::set_permissions(&path, fs::Permissions::from_mode(0o755))
                        .unwrap_or_else(|error| panic!("chmod {}: {error}", path.display()));
                    assert_reachable(parent);
                    return TempDir { path, keep: false };
                }
                // A killed test process with the same id has left its directory.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => panic!("mkdir {}: {error}", path.display()),
            }
        }
    }

    /// Returns the path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Keeps the directory on drop, for inspection after a failure.
    pub fn keep(&mut self) {
        self.keep = true;
    }

    /// Writes a file relative to the directory, with its parent directories; returns its path.
    pub fn write(&self, relative: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path.join(relative);
        make_parent(&path);
        write(&path, bytes).unwrap_or_else(|error| panic!("write {}: {error}", path.display()));
        path
    }

    /// Creates a directory relative to the directory, with its parents; returns its path.
    pub fn dir(&self, relative: &str) -> PathBuf {
        let path = self.path.join(relative);
        create_dir_all(&path).unwrap_or_else(|error| panic!("mkdir {}: {error}", path.display()));
        path
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        if self.keep {
            eprintln!("testkit: kept {}", self.path.display());
        } else {
            // A directory that cannot be removed does not fail the test.
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

/// Panics if other users cannot enter the directory for temporary files. Otherwise a test run by root would wait until
/// its deadline for a worker that runs as an unprivileged user and cannot access its files.
#[track_caller]
fn assert_reachable(folder: &Path) {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let folder = folder.canonicalize().unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    for above in folder.ancestors() {
        let mode = fs::metadata(above).map_or(0, |stat| stat.permissions().mode());
        assert!(
            mode & 0o001 != 0,
            "other users cannot enter {} (mode {:04o}), so the workers of a server that root starts find no file in {}: \
             set TMPDIR to another directory, or run the tests as another user",
            above.display(),
            mode & 0o7777,
            folder.display()
        );
    }
}

/// Writes a file that all users may read.
pub fn write(path: impl AsRef<Path>, bytes: impl AsRef<[u8]>) -> io::Result<()> {
    fs::write(&path, bytes)?;
    permit_others(path.as_ref())
}

/// Copies a file; all users may read the copy.
pub fn copy(from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<()> {
    fs::copy(from, &to)?;
    permit_others(to.as_ref())
}

/// Creates a directory and its parents, searchable for all users. Existing directories are not changed.
pub fn create_dir_all(path: impl AsRef<Path>) -> io::Result<()> {
    let path = path.as_ref();
    if path.is_dir() {
        return Ok(());
    }
    path.parent().map_or(Ok(()), create_dir_all)?;
    match fs::create_dir(path) {
        Ok(()) => permit_others(path),
        // Two threads of a test may create the same directory.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}

/// Permits all users to read a file or enter a directory, as with the usual umask.
pub(crate) fn permit_others(path: &Path) -> io::Result<()> {
    let mode = fs::metadata(path)?.permissions().mode() & 0o7777;
    let mode = mode | (mode & 0o500) >> 3 | (mode & 0o500) >> 6;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

/// Creates the parent directory of `path`.
pub(crate) fn make_parent(path: &Path) {
    if let Some(parent) = path.parent() {
        create_dir_all(parent).unwrap_or_else(|error| panic!("mkdir {}: {error}", parent.display()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_are_unique_and_removed() {
        let first = TempDir::new("unit");
        let second = TempDir::new("unit");
        assert_ne!(first.path(), second.path());
        let file = first.write("a/b/c.txt", "x");
        assert_eq!(fs::read(&file).expect("it was just written"), b"x");
        let gone = first.path().to_owned();
        drop(first);
        assert!(!gone.exists());
        assert!(second.path().exists());
    }
}
