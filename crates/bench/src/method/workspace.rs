//! The working directory that contains all files of a run, and its removal.
//!
//! A signal does not end the program immediately: it sets a flag, which scenarios check between two measurements, and
//! their resources are then dropped in order.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::failure::Failure;

/// Prefix of the names of working directories; the process id follows.
const NAME: &str = "ringroad-bench-";

/// The working directory of this run. Dropping it removes the directory, unless `keep` is set.
pub(crate) struct Workspace {
    pub(crate) path: PathBuf,
    keep: bool,
    /// Whether a signal has requested the end.
    pub(crate) interrupted: Arc<AtomicBool>,
}

impl Workspace {
    /// Creates a uniquely named directory below `parent`.
    pub(crate) fn new(parent: &Path, keep: bool) -> Result<Workspace, Failure> {
        remove_abandoned(parent);
        let kept = if keep { "kept-" } else { "" };
        let path = parent.join(format!("{NAME}{kept}{}", std::process::id()));
        fs::create_dir(&path).map_err(Failure::file("create the directory", &path))?;
        Ok(Workspace { path, keep, interrupted: Arc::default() })
    }

    /// Returns a subdirectory, which is created if it does not exist.
    pub(crate) fn directory(&self, name: &str) -> Result<PathBuf, Failure> {
        let path = self.path.join(name);
        fs::create_dir_all(&path).map_err(Failure::file("create the directory", &path))?;
        Ok(path)
    }

    /// Fails unless the file system has `bytes` and another twentieth of free space.
    pub(crate) fn need_space(&self, bytes: u64) -> Result<(), Failure> {
        let figures = rustix::fs::statvfs(&self.path)
            .map_err(Failure::kernel(format!("statvfs {}", self.path.display())))?;
        let free_bytes = figures.f_bavail * figures.f_frsize;
        let needed_bytes = bytes + bytes / 20;
        if free_bytes < needed_bytes {
            return Err(Failure::Other(format!(
                "{} has {} MiB free and the run needs {} MiB: choose another directory with --work, or --quick",
                self.path.display(),
                free_bytes >> 20,
                needed_bytes >> 20
            )));
        }
        Ok(())
    }

    /// Returns the flag that a signal sets.
    pub(crate) fn interruption(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.interrupted)
    }
}

/// Writes a file atomically: a process that waits for the file, or reads it later, never sees an incomplete one.
pub(crate) fn write_whole(path: &Path, text: &str) -> Result<(), Failure> {
    let partial = path.with_extension("part");
    let failure = Failure::file("write", path);
    fs::write(&partial, text).map_err(failure)?;
    fs::rename(&partial, path).map_err(failure)
}

/// Returns what killed runs left behind in a directory (SIGKILL, crash of the machine): entries that are named after a
/// process that does not exist any more. `owner` returns the part of a name that is the process id.
pub(crate) fn abandoned(
    parent: &Path,
    owner: fn(&str) -> Option<&str>,
) -> impl Iterator<Item = fs::DirEntry> {
    let is_abandoned = move |entry: &fs::DirEntry| {
        let name = entry.file_name();
        let id = name.to_str().and_then(owner).and_then(|id| id.parse::<u32>().ok());
        id.is_some_and(|id| !Path::new(&format!("/proc/{id}")).exists())
    };
    fs::read_dir(parent).into_iter().flatten().flatten().filter(is_abandoned)
}

/// Removes such directories of this user. Directories that were to be kept have a different name.
fn remove_abandoned(parent: &Path) {
    let own = rustix::process::geteuid().as_raw();
    for entry in abandoned(parent, |name| name.strip_prefix(NAME)) {
        if entry.metadata().is_ok_and(|found| found.is_dir() && found.uid() == own) {
            let done = fs::remove_dir_all(entry.path()).map_or("cannot be removed", |()| "removed");
            eprintln!("ringroad bench: from a killed run, {done}: {}", entry.path().display());
        }
    }
}

impl Drop for Workspace {
    fn drop(&mut self) {
        if self.keep {
            eprintln!("kept: {}", self.path.display());
        } else if let Err(error) = fs::remove_dir_all(&self.path) {
            eprintln!("ringroad bench: not removed: {}: {error}", self.path.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_directories_of_killed_runs_are_removed() {
        let parent = std::env::temp_dir().join(format!("ringroad-workspace-{}", std::process::id()));
        // An impossible process id, a running process, a directory to be kept, and an unrelated directory.
        let names =
            ["ringroad-bench-4294967295", "ringroad-bench-1", "ringroad-bench-kept-4294967295", "other"];
        for name in names {
            fs::create_dir_all(parent.join(name).join("files")).unwrap();
        }
        drop(Workspace::new(&parent, false).unwrap());
        let is_there = names.map(|name| parent.join(name).exists());
        fs::remove_dir_all(parent).unwrap();
        assert_eq!(is_there, [false, true, true, true]);
    }
}
