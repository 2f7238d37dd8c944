//! Names of open files, for rules with a path.
//!
//! A descriptor number does not identify a file: it is reused as soon as the file is closed, and files are also opened
//! without the engine. So the kernel's path of the file (proc_pid_fd(5)) is read each time. The path with which the
//! file was opened, which may contain links, is also used if it belongs to the same file.

use std::collections::HashMap;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use crate::fd::Fd;

/// Files that the engine has opened.
#[derive(Default)]
pub(super) struct Paths(HashMap<RawFd, Names>);

/// The path with which a file was opened, and the kernel's path.
struct Names {
    requested: String,
    real: String,
}

impl Paths {
    /// Records that a file was opened at `path`.
    pub(super) fn opened(&mut self, file: BorrowedFd<'_>, path: &str) {
        let names = Names { requested: path.to_owned(), real: real_name(file.as_raw_fd()) };
        self.0.insert(file.as_raw_fd(), names);
    }

    /// Returns the paths of an open file: the kernel's first, then the one with which it was opened.
    pub(super) fn of(&self, file: &Fd) -> Vec<String> {
        let real = real_name(file.as_raw_fd());
        let requested = self.0.get(&file.as_raw_fd()).filter(|names| names.real == real);
        let requested = requested.map(|names| names.requested.clone());
        [Some(real), requested].into_iter().flatten().collect()
    }
}

/// Returns the kernel's path of an open file; for an unnamed file, it begins with its directory.
fn real_name(file: RawFd) -> String {
    let name = rustix::fs::readlink(format!("/proc/self/fd/{file}"), Vec::new());
    name.map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}
