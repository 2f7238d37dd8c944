//! Which long files are read past the page cache, where the configuration leaves that open: those that do not stay in it.
//!
//! Where more is asked for than there is memory, each file that is brought in pushes out another one, which is several times
//! the work of a direct read and seldom of use. So it is watched whether files that were let in are still there when they are
//! asked for again. While they are, all are let in. Where less than about a third of them is, most are read directly, and
//! what is in memory stays there; one in so many is let in, so that what is asked for often comes in, and that there is memory
//! again is seen. The decision of caches about their entries is a like one (`cache::evasion`). Main type: [`Stay`].

use std::ops::Range;
use std::os::fd::AsRawFd;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

use io::DiskVia;
use io::op::Stat;
use io::residency::{self, Manner, State};
use rustix::fs::{Mode, OFlags};

use crate::body::sendfile::{READ_BYTES, is_believed};
use crate::body::{FileBody, choose};

/// Longer files are asked for by few at a time, who then share what is read ahead.
const LONGEST: u64 = 8 << 20;

/// Of so many files at most one is let in: enough to notice that there is memory again.
const OF_MAX: u32 = 256;

/// Files that were let in and are looked at when they are asked for again.
const LET_IN: usize = 512;

/// What all threads have seen: they share the page cache.
static FILES: Stay = Stay::new();

/// What times are counted from.
static START: LazyLock<Instant> = LazyLock::new(rt::now);

/// For so long what was let in may be on its way, and its absence says nothing: many may ask for a new file at once.
const SETTLING_MS: u64 = 100;

/// The lower bits of a note are the time, the others tell the file.
const TIME: u64 = (1 << 24) - 1;

/// Whether files that are let into the page cache stay there.
#[derive(Debug)]
struct Stay {
    reads: AtomicU64,
    /// Of so many that are missing one is let in.
    of: AtomicU32,
    /// The file that was let in last of those that belong to each place, and when.
    let_in: [AtomicU64; LET_IN],
}

impl Stay {
    const fn new() -> Stay {
        Stay {
            reads: AtomicU64::new(0),
            of: AtomicU32::new(1),
            let_in: [const { AtomicU64::new(0) }; LET_IN],
        }
    }

    /// A file was looked at: whether it is read by way of the page cache. A note that is lost because two come at once does
    /// not matter.
    fn goes_through(&self, file: u64, in_memory: bool, now_ms: u64) -> bool {
        let place = &self.let_in[(file >> 32) as usize % LET_IN];
        let note = place.load(Ordering::Relaxed);
        if note | TIME == file | TIME {
            if !in_memory && now_ms.wrapping_sub(note) & TIME < SETTLING_MS {
                return true;
            }
            // It counts once.
            place.store(0, Ordering::Relaxed);
            let before = self.of.load(Ordering::Relaxed);
            let after = if in_memory { before - before.div_ceil(4) } else { before + before.div_ceil(8) };
            self.of.store(after.clamp(1, OF_MAX), Ordering::Relaxed);
        }
        in_memory || self.lets_in(file, place, now_ms)
    }

    fn lets_in(&self, file: u64, place: &AtomicU64, now_ms: u64) -> bool {
        let of = u64::from(self.of.load(Ordering::Relaxed));
        let lets_in = self.reads.fetch_add(1, Ordering::Relaxed).is_multiple_of(of);
        if lets_in {
            place.store(file & !TIME | now_ms & TIME, Ordering::Relaxed);
        }
        lets_in
    }
}

/// Opens the file of a body once more, to be read past the page cache, where that is better for this range: others may use
/// the open file too. Answers the engine that reads then.
pub(super) fn turn(body: &mut FileBody, range: &Range<u64>) -> Option<DiskVia> {
    let via = choose::direct_engine(body.core(), &rt::caps());
    // An earlier piece of the same body has turned it.
    if body.direct {
        return Some(via);
    }
    if !may(body, range) || stays(body, range) {
        return None;
    }
    // A name of its own in /proc, behind which is the file itself: the open waits for no disk.
    let name = format!("/proc/self/fd/{}", body.file.fd().as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::DIRECT;
    let file = rt::File::new(rustix::fs::open(name, flags, Mode::empty()).ok()?);
    crate::files::set_direct(&file).ok()?;
    body.file = file;
    body.direct = true;
    Some(via)
}

/// Tells a file from others, nearly always.
pub(super) fn name(stat: &Stat) -> u64 {
    // By Fibonacci hashing: the upper half says where it belongs.
    (stat.inode ^ stat.device.0.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Whether the choice is ours.
fn may(body: &FileBody, range: &Range<u64>) -> bool {
    let core = body.core();
    let is_left_open = choose::names_no_reader(core) && core.sendfile.is_none();
    let len = range.end - range.start;
    is_left_open && !body.is_part() && len > READ_BYTES && len <= LONGEST && body.calls_directly()
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
    let now_ms = rt::now().duration_since(*START).as_millis() as u64;
    FILES.goes_through(body.name, in_memory, now_ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(number: u64) -> u64 {
        number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1
    }

    /// Asks for so many files that are missing, long after the last time; how many were let in.
    fn ask(stay: &Stay, files: Range<u64>, now_ms: u64) -> usize {
        files.filter(|&number| stay.goes_through(file(number), false, now_ms)).count()
    }

    #[test]
    fn files_that_are_asked_for_once_are_all_let_in() {
        assert_eq!(ask(&Stay::new(), 0..10_000, 0), 10_000);
    }

    #[test]
    fn what_does_not_stay_is_let_in_seldom_and_all_again_when_it_does() {
        let stay = Stay::new();
        for round in 0..200 {
            ask(&stay, 0..100, 1000 * round);
        }
        assert!(ask(&stay, 1000..3560, 300_000) <= 20, "{stay:?}");
        // One of them is asked for again and again, and is there each time.
        for _ in 0..100 {
            while !stay.goes_through(file(7), false, 300_000) {}
            assert!(stay.goes_through(file(7), true, 300_001));
        }
        assert_eq!(ask(&stay, 5000..5100, 400_000), 100, "{stay:?}");
    }

    #[test]
    fn a_new_file_that_many_ask_for_at_once_is_let_in_for_all() {
        let stay = Stay::new();
        assert!((0..SETTLING_MS).all(|now_ms| stay.goes_through(file(1), false, now_ms)));
        assert_eq!(ask(&stay, 2..102, 0), 100, "{stay:?}");
    }
}
