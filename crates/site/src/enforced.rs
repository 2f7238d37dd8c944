//! The restrictions that the kernel enforces for this process, and the reasons of its refusals.
//!
//! A path that was replaced since the start is reported to the main thread by a descriptor ([`Enforced::replaced`]). Only the master
//! can help: it starts a process with rules for the new files.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use crate::allowed_paths::RefusedPath;
use crate::needs::Access;
use crate::path_snapshot::PathSnapshot;

/// The restrictions that the kernel enforces for this process.
#[derive(Clone, Debug, Default)]
pub struct Enforced {
    /// The paths, as they were when the rules were opened.
    pub paths: PathSnapshot,
    /// The TCP ports that may be connected to; `None` for all ports.
    pub ports: Option<BTreeSet<u16>>,
    /// An eventfd that is written to when a replaced path has caused a refusal.
    pub replaced: Option<Arc<OwnedFd>>,
}

static ENFORCED: OnceLock<Enforced> = OnceLock::new();

/// The reason why a sandbox refuses a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathRefusal {
    /// This path above it led to another file or directory when the process was started, or did not exist.
    Replaced(PathBuf),
    /// No directive allows the path.
    NotAllowed(RefusedPath),
}

impl Enforced {
    /// Records that the kernel enforces these restrictions from now on. Only the first call has an effect, because the kernel
    /// never removes a restriction.
    pub fn begin(self) {
        let _ = ENFORCED.set(self);
    }

    /// Returns the restrictions of this process; `None` without a sandbox.
    pub fn get() -> Option<&'static Enforced> {
        ENFORCED.get()
    }

    /// Returns why the sandbox refuses a path; `None` if another reason has caused the error. Blocks on the disk. If the path was
    /// replaced, the descriptor is written to.
    #[expect(clippy::disallowed_methods, reason = "a write to an eventfd that does not block")]
    pub fn refusal(&self, path: &Path, access: Access) -> Option<PathRefusal> {
        if let Some(replaced) = self.paths.replaced_above(path, access) {
            if let Some(event) = &self.replaced {
                // A failure means that the counter is full, so the descriptor is readable.
                let _ = rustix::io::write(event, &1_u64.to_ne_bytes());
            }
            return Some(PathRefusal::Replaced(replaced.to_owned()));
        }
        self.paths.allowed().refusal(path, access).map(PathRefusal::NotAllowed)
    }
}
