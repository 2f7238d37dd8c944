//! Errors of building an engine, with the likely cause and the remedy.

use std::fmt;

use rustix::io::Errno;

use crate::uring::SetupError;

/// The reason why an engine could not be built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BuildError {
    /// An error of the doorbell's eventfd, or of its registration.
    Doorbell(Errno),
    /// An error of the epoll instance.
    Epoll(Errno),
    /// An error of the io_uring.
    Ring(SetupError),
    /// An error of the libaio context.
    Libaio(Errno),
}

impl fmt::Display for BuildError {
    /// Writes the failed call, the kernel's error, the likely cause and the remedy.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (call, errno) = match self {
            BuildError::Ring(error) => return error.fmt(f),
            BuildError::Doorbell(errno) => ("eventfd", *errno),
            BuildError::Epoll(errno) => ("epoll", *errno),
            BuildError::Libaio(errno) => ("io_setup", *errno),
        };
        let (cause, remedy) = match (self, errno) {
            (BuildError::Libaio(_), Errno::AGAIN) => (
                "all processes together would have more requests than the system allows",
                "raise fs.aio-max-nr or lower worker_aio_requests",
            ),
            (BuildError::Libaio(_), Errno::NOTSUP) => {
                ("this kernel's completion ring has another layout", "use io_uring or threads")
            }
            (_, Errno::MFILE) => {
                ("the process has no descriptor left", "raise worker_rlimit_nofile or \"ulimit -n\"")
            }
            (_, Errno::NFILE) => ("the system has no descriptor left", "raise fs.file-max"),
            (_, Errno::NOMEM) => {
                ("the kernel has no memory left", "give the container or the system more memory")
            }
            (_, Errno::NOSYS | Errno::PERM) => {
                ("a seccomp profile or the kernel's configuration forbids the call", "allow the call")
            }
            _ => ("the kernel refused", "choose another engine"),
        };
        write!(f, "{call}: {errno}: {cause}; {remedy}")
    }
}

impl std::error::Error for BuildError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_for_a_full_aio_limit_names_the_sysctl() {
        let text = BuildError::Libaio(Errno::AGAIN).to_string();
        assert!(text.contains("fs.aio-max-nr") && text.contains("worker_aio_requests"), "{text}");
    }
}
