//! Closes descriptors that the process inherited by mistake.

use std::os::fd::{AsRawFd, RawFd};

use rustix::fs::{Mode, OFlags, RawDir};

/// The first descriptor after the standard streams.
const FIRST: RawFd = 3;

/// Closes all descriptors except the standard streams; returns what they referred to, as in `/proc/self/fd`. Must be
/// the first call of a process that owns no other descriptor yet. Without /proc nothing is closed.
pub fn close_unexpected() -> Vec<String> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(folder) = rustix::fs::open("/proc/self/fd", flags, Mode::empty()) else { return Vec::new() };
    let mut buffer = Vec::with_capacity(8192);
    let mut entries = RawDir::new(&folder, buffer.spare_capacity_mut());
    let mut found = Vec::new();
    while let Some(Ok(entry)) = entries.next() {
        let number = entry.file_name().to_str().ok().and_then(|name| name.parse::<RawFd>().ok());
        found.extend(number.filter(|&number| number >= FIRST && number != folder.as_raw_fd()));
    }
    let mut closed = Vec::new();
    for number in found {
        let name = rustix::fs::readlink(format!("/proc/self/fd/{number}"), Vec::new());
        if nix::unistd::close(number).is_ok() {
            closed.push(name.map(|name| name.to_string_lossy().into_owned()).unwrap_or_default());
        }
    }
    closed
}
