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
    /// An error of the libaio context, for this many requests.
    Libaio {
        /// The kernel's error.
        errno: Errno,
        /// The requested number of requests in flight.
        depth: u32,
    },
}

impl BuildError {
    /// Returns the likely cause and the remedy; a [`SetupError`] of io_uring has separate texts.
    fn advice(&self) -> (&'static str, &'static str) {
        let errno = match self {
            BuildError::Doorbell(errno) | BuildError::Epoll(errno) => *errno,
            BuildError::Libaio { errno: Errno::AGAIN, .. } => {
                return (
                    "all processes together would have more requests than the system allows",
                    "raise fs.aio-max-nr or lower worker_aio_requests",
                );
            }
            BuildError::Libaio { errno: Errno::NOTSUP, .. } => {
                return ("this kernel's completion ring has another layout", "use io_uring or threads");
            }
            BuildError::Libaio { errno, .. } => *errno,
            BuildError::Ring(_) => return ("the kernel refused the ring", "use epoll"),
        };
        match errno {
            Errno::MFILE => {
                ("the process has no descriptor left", "raise worker_rlimit_nofile or \"ulimit -n\"")
            }
            Errno::NFILE => ("the system has no descriptor left", "raise fs.file-max"),
            Errno::NOMEM => ("the kernel has no memory left", "give the container or the system more memory"),
            Errno::NOSYS | Errno::PERM => {
                ("a seccomp profile or the kernel's configuration forbids the call", "allow the call")
            }
            _ => ("the kernel refused", "choose another engine"),
        }
    }

    /// Returns the likely cause.
    pub fn cause(&self) -> String {
        match self {
            BuildError::Ring(error) => error.to_string(),
            _ => self.advice().0.to_owned(),
        }
    }

    /// Returns the remedy.
    pub fn remedy(&self) -> &'static str {
        self.advice().1
    }
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (call, errno) = match self {
            BuildError::Ring(error) => return error.fmt(f),
            BuildError::Doorbell(errno) => ("eventfd", errno),
            BuildError::Epoll(errno) => ("epoll", errno),
            BuildError::Libaio { errno, .. } => ("io_setup", errno),
        };
        let (cause, remedy) = self.advice();
        write!(f, "{call}: {errno}: {cause}; {remedy}")
    }
}

impl std::error::Error for BuildError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_for_a_full_aio_limit_names_the_sysctl() {
        let error = BuildError::Libaio { errno: Errno::AGAIN, depth: 32 };
        assert!(error.to_string().contains("fs.aio-max-nr"), "{error}");
        assert!(error.remedy().contains("worker_aio_requests"));
    }
}
