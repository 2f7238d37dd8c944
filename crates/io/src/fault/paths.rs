//! Names of open files, for rules with a path.
//!
//! A descriptor's number does not identify a file: it is given to another file as soon as it is closed, and files are
//! opened beside the engine too. So the kernel's name of the file (proc_pid_fd(5)) is read each time. The name by which
//! it was opened, which may lead through links, counts as long as that is the same file.

use std::collections::HashMap;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use crate::op::Fd;

/// Files that the engine has opened.
#[derive(Default)]
pub(super) struct Paths(HashMap<RawFd, Names>);

/// One file, by the name that it was opened with and the kernel's.
struct Names {
    given: String,
    real: String,
}

impl Paths {
    /// A file was opened at `path`.
    pub(super) fn opened(&mut self, file: BorrowedFd<'_>, path: &str) {
        let names = Names { given: path.to_owned(), real: real_name(file.as_raw_fd()) };
        self.0.insert(file.as_raw_fd(), names);
    }

    /// The names of an open file, the one that it was opened with last.
    pub(super) fn of(&self, file: &Fd) -> Vec<String> {
        let real = real_name(file.as_raw_fd());
        let given = self.0.get(&file.as_raw_fd()).filter(|names| names.real == real);
        let given = given.map(|names| names.given.clone());
        [Some(real), given].into_iter().flatten().collect()
    }
}

/// The kernel's name of an open file; of one without a name it begins with its directory.
fn real_name(file: RawFd) -> String {
    let name = rustix::fs::readlink(format!("/proc/self/fd/{file}"), Vec::new());
    name.map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}
