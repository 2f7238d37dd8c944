//! Which long files are read past the page cache, where the configuration leaves that open: those that do not stay in it
//! ([`Retention`], as in caches). While they stay, all are let in; where they do not, most are read directly, and what is in
//! memory stays there. Main function: [`turn`]. Those that one read brings are the business of [`short`](super::short).

use std::ops::Range;
use std::os::fd::AsRawFd;
use std::sync::LazyLock;
use std::time::Instant;

use io::DiskVia;
use io::op::{Fd, Stat};
use io::residency::{self, Manner, State};
use io::retention::Retention;
use rustix::fs::{Mode, OFlags};

use crate::body::choose::LONG_FROM;
use crate::body::sendfile::is_believed;
use crate::body::{FileBody, choose};

/// Longer files are asked for by few at a time, who then share what is read ahead.
pub(super) const LONGEST: u64 = 8 << 20;

/// What all threads have seen: they share the page cache. All files are let in where they stay.
static FILES: Retention = Retention::new(1);

/// What times are counted from.
static START: LazyLock<Instant> = LazyLock::new(rt::now);

/// For so long what was let in may be on its way: many may ask for a new file at once.
const SETTLING_MS: u64 = 100;

/// Has the file of a body read past the page cache where that is better for this range. Answers the engine that reads then.
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

/// The same file, open for direct reads: others go on using the open one.
#[expect(clippy::disallowed_methods, reason = "the name is in /proc, so that the open waits for no disk")]
fn opened_again(file: &rt::File) -> Option<rt::File> {
    // A name of its own in /proc, behind which is the file itself: the open waits for no disk.
    let name = format!("/proc/self/fd/{}", file.fd().as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::DIRECT;
    let again = rustix::fs::open(name, flags, Mode::empty()).ok()?;
    Some(rt::File::new(Fd::from(again).opened_with(flags)))
}

/// Tells a file from others, nearly always.
pub(super) fn name(stat: &Stat) -> u64 {
    // By Fibonacci hashing: the upper half says where it belongs.
    (stat.inode ^ stat.device.0.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Whether the choice is ours.
fn may(body: &FileBody, range: &Range<u64>) -> bool {
    (LONG_FROM..=LONGEST).contains(&(range.end - range.start)) && is_left_open(body)
}

/// Whether the configuration says nothing of how the file is to be read, which is a whole one on a disk of this machine.
pub(super) fn is_left_open(body: &FileBody) -> bool {
    !body.at.rules.is_written && !body.is_part() && body.calls_directly()
}

/// Whether the range is in memory, or the file is let in.
fn stays(body: &FileBody, range: &Range<u64>) -> bool {
    if body.file.seen_resident(range.start).is_some_and(|(_, since)| is_believed(since)) {
        return true;
    }
    let (fd, len) = (body.file.fd(), range.end - range.start);
    let in_memory =
        residency::find(fd, range.start, len, Manner { is_local: true, ahead: 1 }) == State::Resident;
    if in_memory {
        body.file.note_resident(range.clone());
    }
    goes_through(&FILES, body.name, in_memory, now_ms())
}

/// Milliseconds since the start.
pub(super) fn now_ms() -> u64 {
    rt::now().duration_since(*START).as_millis() as u64
}

/// A file was looked at: whether it is read by way of the page cache.
pub(super) fn goes_through(files: &Retention, name: u64, in_memory: bool, now_ms: u64) -> bool {
    if !in_memory && files.is_settling(name, now_ms, SETTLING_MS) {
        return true;
    }
    files.note(name, in_memory);
    in_memory || files.lets_in(name, now_ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(number: u64) -> u64 {
        number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1
    }

    /// Asks for so many files that are missing; how many were let in.
    fn ask(files: &Retention, numbers: Range<u64>, now_ms: u64) -> usize {
        numbers.filter(|&number| goes_through(files, name(number), false, now_ms)).count()
    }

    #[test]
    fn files_that_are_asked_for_once_are_all_let_in() {
        assert_eq!(ask(&Retention::new(1), 0..10_000, 0), 10_000);
    }

    #[test]
    fn what_does_not_stay_is_let_in_seldom_and_all_again_when_it_does() {
        let files = Retention::new(1);
        for round in 0..200 {
            // Long after the last time.
            ask(&files, 0..100, 10 * SETTLING_MS * round);
        }
        assert!(ask(&files, 1000..3560, 300_000) <= 20, "{files:?}");
        // One of them is asked for again and again, and is there each time.
        for _ in 0..100 {
            while !goes_through(&files, name(7), false, 300_000) {}
            assert!(goes_through(&files, name(7), true, 300_001));
        }
        assert_eq!(ask(&files, 5000..5100, 400_000), 100, "{files:?}");
    }

    #[test]
    fn a_new_file_that_many_ask_for_at_once_is_let_in_for_all() {
        let files = Retention::new(1);
        assert!((0..SETTLING_MS).all(|now_ms| goes_through(&files, name(1), false, now_ms)));
        assert_eq!(ask(&files, 2..102, 0), 100, "{files:?}");
    }
}
