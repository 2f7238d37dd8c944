//! Decides which long files are read with O_DIRECT if the configuration does not specify it: files that do not stay
//! resident ([`PageCacheAdmission`], as in caches). While files stay resident, all are admitted. Otherwise most are read
//! directly, and the page cache retains its content. Main function: [`turn`]. [`small_files`](super::small_files)
//! decides about files that need a single read.

use std::ops::Range;
use std::os::fd::AsRawFd;

use io::DiskVia;
use io::Fd;
use io::page_cache::{self, PageCacheAdmission, ProbeOptions, Residency};
use rustix::fs::{Mode, OFlags};

use crate::body::choose::LONG_FROM;
use crate::body::{FileBody, choose};

/// Maximum length in bytes of a range that is read directly. Longer files have few concurrent requests, which share the
/// readahead.
pub(super) const LONGEST: u64 = 8 << 20;

/// Shared by all threads, as the page cache is. All files are admitted if they stay resident.
static FILES: PageCacheAdmission = PageCacheAdmission::new(1);

/// Switches the file of a body to O_DIRECT if that is better for this range. Returns the engine that then reads.
pub(super) fn turn(body: &mut FileBody, range: &Range<u64>) -> Option<DiskVia> {
    let via = choose::direct_engine(body.at.rules.aio, &rt::caps());
    // An earlier piece of the same body has switched it.
    if body.direct {
        return Some(via);
    }
    if !may(body, range) || stays_resident(body, range) {
        return None;
    }
    body.direct = become_direct(body);
    body.direct.then_some(via)
}

/// Sets the open file of a body to direct reads, or opens the file again if other requests share it. Returns whether the
/// body is read directly.
pub(super) fn become_direct(body: &mut FileBody) -> bool {
    if body.file.is_sole() {
        return crate::files::set_direct(&body.file).is_ok();
    }
    let Some(again) = opened_again(&body.file) else { return false };
    body.file = again;
    true
}

/// Opens the same file for direct reads; other requests continue with the existing open file.
#[expect(clippy::disallowed_methods, reason = "the name is in /proc, so that the open waits for no disk")]
fn opened_again(file: &rt::File) -> Option<rt::File> {
    // The file's name in /proc leads to the inode itself, so the open does not wait for the disk.
    let name = format!("/proc/self/fd/{}", file.fd().as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::DIRECT;
    let again = rustix::fs::open(name, flags, Mode::empty()).ok()?;
    Some(rt::File::new(Fd::from(again).opened_with(flags)))
}

/// Whether the length of the range and the configuration allow both methods.
fn may(body: &FileBody, range: &Range<u64>) -> bool {
    (LONG_FROM..=LONGEST).contains(&(range.end - range.start)) && is_unspecified(body)
}

/// Whether the configuration does not specify how to read the file, and it is a complete file on a local disk.
pub(super) fn is_unspecified(body: &FileBody) -> bool {
    !body.at.rules.is_written && !body.is_range() && body.calls_directly()
}

/// Whether the range is resident, or the file is admitted.
fn stays_resident(body: &FileBody, range: &Range<u64>) -> bool {
    if body
        .file
        .seen_resident(range.start)
        .is_some_and(|(_, since)| page_cache::is_assumed_resident(since, rt::now()))
    {
        return true;
    }
    let (fd, len) = (body.file.fd(), range.end - range.start);
    let options = ProbeOptions { is_local: true, ahead: 1 };
    let in_memory = page_cache::residency(fd, range.start, len, options) == Residency::Resident;
    if in_memory {
        body.file.note_resident(range.clone());
    }
    FILES.uses_page_cache(body.name, in_memory, rt::now())
}
