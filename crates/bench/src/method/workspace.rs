//! The one folder below which a run makes all its files, and its removal.
//!
//! A signal does not end the program at once: it is noted here, scenarios look at it between two measurements, and what
//! they hold is dropped in order.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::failure::Failure;

/// A folder of this run. Dropping it removes it, unless it is to be kept.
pub(crate) struct Workspace {
    path: PathBuf,
    keep: bool,
    interrupted: Arc<AtomicBool>,
}

impl Workspace {
    /// Makes a folder with a name of its own below `parent`.
    pub(crate) fn new(parent: &Path, keep: bool) -> Result<Workspace, Failure> {
        let path = parent.join(format!("ringroad-bench-{}", std::process::id()));
        fs::create_dir(&path).map_err(|error| Failure::File {
            path: path.clone(),
            doing: "create the folder",
            error,
        })?;
        Ok(Workspace { path, keep, interrupted: Arc::default() })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// A folder below, made if it is not there.
    pub(crate) fn folder(&self, name: &str) -> Result<PathBuf, Failure> {
        let path = self.path.join(name);
        fs::create_dir_all(&path).map_err(|error| Failure::File {
            path: path.clone(),
            doing: "create the folder",
            error,
        })?;
        Ok(path)
    }

    /// Fails unless the file system has room for so many bytes, and a twentieth more.
    pub(crate) fn need_space(&self, bytes: u64) -> Result<(), Failure> {
        let figures = rustix::fs::statvfs(&self.path).map_err(|error| Failure::Kernel {
            doing: format!("statvfs {}", self.path.display()),
            error: error.into(),
        })?;
        let free_bytes = figures.f_bavail * figures.f_frsize;
        let needed_bytes = bytes + bytes / 20;
        if free_bytes < needed_bytes {
            return Err(Failure::Space { path: self.path.clone(), needed_bytes, free_bytes });
        }
        Ok(())
    }

    /// What a signal handler sets.
    pub(crate) fn interruption(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.interrupted)
    }

    pub(crate) fn is_interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }
}

impl Drop for Workspace {
    fn drop(&mut self) {
        if self.keep {
            eprintln!("kept: {}", self.path.display());
        } else if let Err(error) = fs::remove_dir_all(&self.path) {
            eprintln!("ringroad bench: left behind: {}: {error}", self.path.display());
        }
    }
}
