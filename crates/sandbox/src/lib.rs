//! Kernel restrictions of a process: files and ports (Landlock), system calls (seccomp), capabilities, descriptors.
//!
//! A process restricts itself in this order, because each step needs what the next one takes away:
//!
//! ```text
//! close_unexpected -> empty_bounding_set -> FileRules::permit -> change of the user -> drop_privileges
//!                                  -> FileRules::enforce -> threads and rings -> restrict_calls
//! ```
//!
//! Rules are opened before the change of the user, which may have no permission to reach their files yet.
//!
//! [`FileRules::enforce`] comes before the first thread, because Landlock restricts the calling thread and the threads that
//! it starts later, and before the first io_uring, which keeps the rights of its creator. [`restrict_calls`] comes last
//! and covers all threads. No restriction can be removed. This crate knows no configuration and no HTTP.
//!
//! Crates of the workspace that it may use: `io`.
//!
//! Each module imports only modules of the rows below it.
//!
//! | module | content |
//! |---|---|
//! | [`files`] | files, TCP ports, abstract unix sockets and signals: Landlock |
//! | [`calls`] | system calls: a seccomp filter, and the names of refused calls |
//! | [`lists`] | the lists of system calls |
//! | [`privileges`] | capabilities and attributes of the process |
//! | [`descriptors`] | closes descriptors that the process inherited by mistake |

#![forbid(unsafe_code)]

mod calls;
mod descriptors;
mod files;
mod lists;
mod privileges;

use std::fmt;
use std::io;

pub use calls::{Calls, RefusedCalls, restrict_calls};
pub use descriptors::close_unexpected;
pub use files::{FileRules, Report, RuleError};
pub use privileges::{drop_privileges, empty_bounding_set, limit_bounding_set};

/// A restriction that the kernel did not accept.
#[derive(Debug)]
pub enum Error {
    /// A call failed.
    Call(&'static str, io::Error),
    /// Landlock failed.
    Landlock(landlock::RulesetError),
    /// The seccomp filter was not compiled or not installed.
    Seccomp(seccompiler::Error),
}

impl Error {
    /// Whether the kernel was built without this restriction. `EINVAL` has further causes, such as an invalid filter.
    pub fn is_unsupported(&self) -> bool {
        let Error::Seccomp(seccompiler::Error::Seccomp(error)) = self else { return false };
        match error.raw_os_error() {
            Some(libc::ENOSYS) => true,
            Some(libc::EINVAL) => !calls::supports_calls(),
            _ => false,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Call(call, error) => write!(f, "{call} failed: {error}"),
            Error::Landlock(error) => write!(f, "Landlock: {error}"),
            Error::Seccomp(error) => write!(f, "seccomp: {error}"),
        }
    }
}

impl std::error::Error for Error {}

/// Converts the error of a call.
fn failed(call: &'static str) -> impl Fn(rustix::io::Errno) -> Error {
    move |errno| Error::Call(call, errno.into())
}
