//! Which long files are read bypassing the page cache, where the configuration leaves that open: files that do not stay
//! in it ([`PageCacheAdmission`], as in caches). While they stay, all are admitted. Otherwise most are read directly,
//! and the page cache keeps its content. Main function: [`turn`]. Files of a single read are in
//! [`small_files`](super::small_files).

use std::ops::Range;
use std::os::fd::AsRawFd;

use io::DiskVia;
use io::op::Fd;
use io::page_cache::{self, PageCacheAdmission, ProbeOptions, Residency};
use rustix::fs::{Mode, OFlags};

use crate::body::choose::LONG_FROM;
use crate::body::{FileBody, choose};

/// Longer files have few concurrent requests, which share the read-ahead.
pub(super) const LONGEST: u64 = 8 << 20;

/// Shared by all threads, as the page cache is. All files are admitted where they stay.
static FILES: PageCacheAdmission = PageCacheAdmission::new(1);

/// Makes the file of a body bypass the page cache if that is better for this range. Returns the engine that reads then.
pub(super) fn turn(body: &mut FileBody, range: &Range<u64>) -> Option<DiskVia> {
    let via = choose::direct_engine(body.at.rules.aio, &rt::caps());
    // An earlier piece of the same body has turned it.
    if body.direct {
        return Some(via);
    }
    if !may(body, range) || stays(body, range) {
        return None;
    }
    body.direct = become_direct(body);
    body.direct.then_some(via)
}

/// Sets the open file of a body to direct reads, or opens it again where others share it; whether that could be done.
pub(super) fn become_direct(body: &mut FileBody) -> bool {
    if body.file.is_sole() {
        return crate::files::set_direct(&body.file).is_ok();
    }
    let Some(again) = opened_again(&body.file) else { return false };
    body.file = again;
    true
}

/// The same file, open for direct reads: other requests continue with the open one.
#[expect(clippy::disallowed_methods, reason = "the name is in /proc, so that the open waits for no disk")]
fn opened_again(file: &rt::File) -> Option<rt::File> {
    // Its name in /proc leads to the file itself, so the open waits for no disk.
    let name = format!("/proc/self/fd/{}", file.fd().as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::DIRECT;
    let again = rustix::fs::open(name, flags, Mode::empty()).ok()?;
    Some(rt::File::new(Fd::from(again).opened_with(flags)))
}

/// Whether the choice is ours.
fn may(body: &FileBody, range: &Range<u64>) -> bool {
    (LONG_FROM..=LONGEST).contains(&(range.end - range.start)) && is_left_open(body)
}

/// Whether the way to read the file is not configured, and it is a whole file on a disk of this machine.
pub(super) fn is_left_open(body: &FileBody) -> bool {
    !body.at.rules.is_written && !body.is_part() && body.calls_directly()
}

/// Whether the range is in memory, or the file is admitted.
fn stays(body: &FileBody, range: &Range<u64>) -> bool {
    if body
        .file
        .seen_resident(range.start)
        .is_some_and(|(_, since)| page_cache::is_believed(since, rt::now()))
    {
        return true;
    }
    let (fd, len) = (body.file.fd(), range.end - range.start);
    let options = ProbeOptions { is_local: true, ahead: 1 };
    let in_memory = page_cache::residency(fd, range.start, len, options) == Residency::Resident;
    if in_memory {
        body.file.note_resident(range.clone());
    }
    FILES.goes_through(body.name, in_memory, rt::now())
}
