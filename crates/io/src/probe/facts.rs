//! Facts about the running system that are found without creating an io_uring: the kernel release and its known faults,
//! limits, epoll and openat2.

use rustix::event::epoll;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use rustix::thread::{CapabilitySet, capabilities};

/// A kernel release, for comparison.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Release {
    pub(super) major: u32,
    pub(super) minor: u32,
    pub(super) patch: u32,
}

/// The oldest release on which io_uring is used: it introduced DEFER_TASKRUN.
pub(super) const OLDEST: Release = Release { major: 6, minor: 1, patch: 0 };

/// A range of releases with a known fault, both ends inclusive.
pub(super) struct KernelFault {
    from: Release,
    to: Release,
    /// Whether io_uring must not be used; otherwise the fault is only reported.
    pub(super) forbids: bool,
    pub(super) what: &'static str,
}

/// Known faults of released kernels. Used only for faults that cannot be tested at the start.
const FAULTS: [KernelFault; 2] = [
    KernelFault {
        from: OLDEST,
        to: Release { patch: 7, ..OLDEST },
        forbids: true,
        what: "before 6.1.8 a multishot receive without buffers may spin (liburing issue 778)",
    },
    KernelFault {
        from: Release { major: 6, minor: 6, patch: 1 },
        to: Release { major: 6, minor: 7, patch: u32::MAX },
        forbids: false,
        what: "from 6.6.1 to 6.7 a multishot accept may return a wrong descriptor (liburing issue 1062)",
    },
];

impl Release {
    /// Parses text such as `6.1.0-18-amd64`; missing numbers are 0.
    pub(super) fn parse(text: &str) -> Release {
        let numbers = text.split(|c: char| !c.is_ascii_digit() && c != '.').next().unwrap_or_default();
        let mut parts = numbers.split('.').map(|part| part.parse().unwrap_or(0));
        let mut next = || parts.next().unwrap_or(0);
        Release { major: next(), minor: next(), patch: next() }
    }

    /// Returns the most severe known fault of this release.
    pub(super) fn fault(self) -> Option<&'static KernelFault> {
        FAULTS.iter().find(|fault| (fault.from..=fault.to).contains(&self))
    }
}

/// Returns the running kernel's release as text.
pub(super) fn release_text() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}

/// Returns the value of `kernel.io_uring_disabled` (6.6); `None` if the setting does not exist.
pub(super) fn ring_disabled() -> Option<u8> {
    number("/proc/sys/kernel/io_uring_disabled").and_then(|value| value.try_into().ok())
}

/// Returns the numbers of native AIO requests in use and allowed, for all processes together.
pub(super) fn aio_numbers() -> Option<(u64, u64)> {
    Some((number("/proc/sys/fs/aio-nr")?, number("/proc/sys/fs/aio-max-nr")?))
}

fn number(path: &str) -> Option<u64> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Returns the bytes of memory that the process may lock; `None` without a limit.
pub(super) fn memlock() -> Option<u64> {
    let unlimited = capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::IPC_LOCK));
    if unlimited { None } else { getrlimit(Resource::Memlock).current }
}

/// Checks whether an epoll instance can be created.
pub(super) fn epoll() -> Result<(), Errno> {
    epoll::create(epoll::CreateFlags::CLOEXEC).map(drop)
}

/// Checks whether openat2(2) works and restricts paths to a directory.
pub(super) fn openat2() -> Result<(), Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::openat2(CWD, "/", flags, Mode::empty(), ResolveFlags::empty())?;
    match rustix::fs::openat2(&root, "..", flags, Mode::empty(), ResolveFlags::BENEATH) {
        Err(Errno::XDEV) => Ok(()),
        Err(errno) => Err(errno),
        Ok(_) => Err(Errno::NOTSUP),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_releases_are_parsed_and_compared() {
        let parse = |text: &str| Release::parse(text);
        assert_eq!(parse("6.18.44-fc-v669"), Release { major: 6, minor: 18, patch: 44 });
        assert_eq!(parse("6.1"), OLDEST);
        assert_eq!(parse("6.1.0-18-amd64"), OLDEST);
        assert!(parse("5.15.200") < OLDEST && parse("6.10.1") > parse("6.9.12"));
        assert_eq!(parse("unknown"), Release::default());
    }

    #[test]
    fn known_kernel_bugs_have_exact_version_ranges() {
        let forbidden = |text: &str| Release::parse(text).fault().map(|fault| fault.forbids);
        assert_eq!(forbidden("6.1.7"), Some(true));
        assert_eq!(forbidden("6.1.8"), None);
        assert_eq!(forbidden("6.6.0"), None);
        assert_eq!(forbidden("6.6.1"), Some(false));
        assert_eq!(forbidden("6.7.12"), Some(false));
        assert_eq!(forbidden("6.8.0"), None);
    }
}
