//! Probes the page cache: bytes of a file are resident, being read, or missing. The result decides between `sendfile`
//! on the worker thread and a read by a disk engine.
//!
//! [`is_resident`] never waits for a device. The result is a snapshot: the kernel may evict a page right after the
//! check, which costs one blocking read but never yields wrong bytes. Only [`read_cached`] reads content.
//!
//! The probe combines two system calls. A read of one byte with `RWF_NOWAIT` (preadv2(2), Linux 4.14) fails with
//! `EAGAIN` if the page is missing or still being read. The kernel may start to read the missing page (6.18 reads that
//! page alone). A fast device may even complete that read before the call returns. cachestat(2) (Linux 6.5) counts the
//! cached pages of a range in one call, but includes pages that are still being read. For short ranges, reads alone are
//! enough.

use std::io::IoSliceMut;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::{Errno, ReadWriteFlags};

use crate::fd::Fd;
use crate::sys::{self, cached_pages};

/// Set when the kernel does not support cachestat(2). A failure with `EPERM` concerns one file and is not recorded:
/// since 6.14 (and in the stable kernels of that time), the caller must own the file or have write permission, which an
/// unprivileged server seldom has.
static NO_CACHESTAT: AtomicBool = AtomicBool::new(false);

/// Maximum number of pages that are probed one by one; longer ranges are counted by cachestat(2).
const SINGLE_PAGES_MAX: u64 = 3;

/// Distance in pages between two probes where cachestat(2) is unavailable: half of the smallest usual readahead, so
/// that a hole of that size is found.
const SPACING_PAGES: u64 = 8;

/// Maximum number of probed pages of one range; longer ranges are probed in wider steps. One probe is a system call
/// that copies a byte, while the range has a hundred thousand bytes to send.
const PROBES_MAX: u64 = 16;

/// Side effects that a probe is allowed to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeOptions {
    /// Whether the file is on a local disk, so that the pages may be counted before the first page was probed: the
    /// count starts no read.
    pub is_local: bool,
    /// Number of bytes that the kernel starts to read when a probe finds the first page missing.
    pub ahead: u64,
}

impl ProbeOptions {
    /// For any file: pages are probed one by one, and no other page is read.
    pub const CAREFUL: ProbeOptions = ProbeOptions { is_local: false, ahead: 1 };
}

/// Whether all pages of `len` bytes at `offset`, which must lie inside the file, are in the page cache. Returns `false`
/// if the file system cannot tell without waiting (FUSE, NFS), and for files open with `O_DIRECT`.
pub fn is_resident(file: &Fd, offset: u64, len: u64) -> bool {
    residency(file, offset, len, ProbeOptions::CAREFUL) == Residency::Resident
}

/// The page cache state of a range of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Residency {
    /// All pages are in the page cache.
    Resident,
    /// At least one page is not in the page cache, and as far as known is being read.
    InFlight {
        /// Byte offset of a page that is not in the page cache.
        at: u64,
    },
    /// Not all pages are in the page cache, or the state is unknown.
    Missing,
}

/// Returns the page cache state of `len` bytes at `offset`, which must lie inside the file; see [`is_resident`].
pub fn residency(file: &Fd, offset: u64, len: u64, options: ProbeOptions) -> Residency {
    let count = if NO_CACHESTAT.load(Ordering::Relaxed) { None } else { Some(cached_pages as Count) };
    let answer = probe(file, offset, len, count, options);
    let answer = if answer == Err(Errno::NOSYS) {
        NO_CACHESTAT.store(true, Ordering::Relaxed);
        probe(file, offset, len, None, options)
    } else {
        answer
    };
    answer.unwrap_or(Residency::Missing)
}

/// Whether all pages of `len` bytes at `offset`, which must lie inside the file, are in the page cache or being read;
/// `None` if counting is not permitted. Unlike [`residency`], it never starts a read. Pages of a remote file may be
/// counted too if the process is permitted to count them.
pub fn are_counted(file: &Fd, offset: u64, len: u64) -> Option<bool> {
    if NO_CACHESTAT.load(Ordering::Relaxed) {
        return None;
    }
    let page_bytes = rustix::param::page_size() as u64;
    let pages = (offset + len).div_ceil(page_bytes) - offset / page_bytes;
    cached_pages(file, offset, len).ok().map(|cached| cached >= pages)
}

/// Starts the kernel's read of a range if its first page is not in the page cache; returns whether the first page is
/// resident. Does not wait. Only for callers that know that part of the range is missing, by [`is_resident`] or
/// otherwise. A first page that is resident or being read hides missing pages behind it.
pub fn begin_reading(file: &Fd, offset: u64, len: u64) -> bool {
    sys::begin_reading(file, offset, len) == Ok(true)
}

/// Returns how many of `len` bytes at `offset` precede the first page that is neither resident nor being read. The
/// range must lie inside the file, and at least one page must be missing. Returns 0 if the first page is missing, or if
/// the state is unknown. Starts no read.
pub fn cached_start(file: &Fd, offset: u64, len: u64) -> u64 {
    if len == 0 || NO_CACHESTAT.load(Ordering::Relaxed) {
        return 0;
    }
    let page_bytes = rustix::param::page_size() as u64;
    let pages = offset / page_bytes..(offset + len - 1) / page_bytes + 1;
    let hole = first_hole(pages, |from, count| {
        cached_pages(file, from * page_bytes, count * page_bytes).map(|cached| cached >= count)
    });
    let start = hole.map_or(0, |hole| (hole * page_bytes).saturating_sub(offset));
    assert!(start < len, "a part of the bytes is missing");
    start
}

/// Returns the first missing page, by a binary search with counts of ranges.
fn first_hole(
    pages: Range<u64>,
    mut are_there: impl FnMut(u64, u64) -> Result<bool, Errno>,
) -> Result<u64, Errno> {
    let Range { start: mut there, mut end } = pages;
    assert!(there < end, "one page is missing");
    // A page before `end` is missing, and no page before `there` is.
    while end - there > 1 {
        let middle = there.midpoint(end);
        match are_there(there, middle - there)? {
            true => there = middle,
            false => end = middle,
        }
    }
    Ok(there)
}

/// `RWF_DONTCACHE` (Linux 6.14); without support, the kernel or file system returns `EOPNOTSUPP`.
pub(crate) const UNCACHED: ReadWriteFlags = ReadWriteFlags::from_bits_retain(libc::RWF_DONTCACHE as u32);

/// Reads from the page cache without waiting for the device; fails with `EAGAIN` if the first byte is not resident
/// (`RWF_NOWAIT`, preadv2(2)). Not for files open with `O_DIRECT`, whose reads would wait.
pub fn read_cached(file: &Fd, offset: u64, space: &mut [u8]) -> Result<usize, Errno> {
    let parts = &mut [IoSliceMut::new(space)];
    if file.is_uncached() {
        // A failed attempt starts a readahead, whose pages must be dropped too.
        match rustix::io::preadv2(file, parts, offset, ReadWriteFlags::NOWAIT | UNCACHED) {
            Err(Errno::OPNOTSUPP) => {}
            result => return result,
        }
    }
    rustix::io::preadv2(file, parts, offset, ReadWriteFlags::NOWAIT)
}

/// Counts the cached pages of a byte range.
type Count = fn(&Fd, u64, u64) -> Result<u64, Errno>;

/// Returns the page cache state, or `ENOSYS` if `count` is unsupported.
fn probe(
    file: &Fd,
    offset: u64,
    len: u64,
    count: Option<Count>,
    options: ProbeOptions,
) -> Result<Residency, Errno> {
    if len == 0 {
        return Ok(Residency::Resident);
    }
    // Direct reads do not use the page cache, so probing it is pointless.
    if file.is_direct() {
        return Ok(Residency::Missing);
    }
    let page_bytes = rustix::param::page_size() as u64;
    let (first, last) = (offset / page_bytes, (offset + len - 1) / page_bytes);
    let pages = last - first + 1;
    let is_long = pages > SINGLE_PAGES_MAX;
    let early = if is_long && options.is_local { counted(file, offset, len, count)? } else { None };
    if early.is_some_and(|counted| counted < pages) {
        return Ok(Residency::Missing);
    }
    // Probing the first page shows whether a file that is not local can be probed. It precedes the count, because the
    // count checks permissions, for which NFS queries its server.
    match sys::begin_reading(file, first * page_bytes, options.ahead.max(1)) {
        Ok(true) => {}
        Ok(false) => return Ok(Residency::InFlight { at: first * page_bytes }),
        Err(Errno::OPNOTSUPP) if is_in_memory(file) => {
            // A file in memory (tmpfs, memfd) does not support `RWF_NOWAIT`. Missing pages were swapped out, or are
            // holes, which cost no read. Without cachestat(2), the file is treated as resident.
            let is_complete = counted(file, offset, len, count)?.is_none_or(|counted| counted >= pages);
            return Ok(if is_complete { Residency::Resident } else { Residency::Missing });
        }
        Err(_) => return Ok(Residency::Missing),
    }
    let probes = match (is_long, early) {
        (false, _) => pages,
        // All pages are cached or being read: a device reads the middle and the end of a range last.
        (true, Some(_)) => SINGLE_PAGES_MAX,
        (true, None) => match if options.is_local { None } else { counted(file, offset, len, count)? } {
            Some(counted) if counted < pages => return Ok(Residency::Missing),
            Some(_) => SINGLE_PAGES_MAX,
            None => (pages / SPACING_PAGES + 1).clamp(SINGLE_PAGES_MAX, PROBES_MAX),
        },
    };
    let offset_of = |number: u64| (first + (pages - 1) * number / (probes - 1).max(1)) * page_bytes;
    let missing = (1..probes).map(offset_of).find(|&at| is_page_resident(file, at) != Ok(true));
    Ok(missing.map_or(Residency::Resident, |at| Residency::InFlight { at }))
}

/// Returns the number of cached pages, if the kernel reports it; `ENOSYS` if the kernel does not support the call.
fn counted(file: &Fd, offset: u64, len: u64, count: Option<Count>) -> Result<Option<u64>, Errno> {
    match count.map(|count| count(file, offset, len)) {
        Some(Err(Errno::NOSYS)) => Err(Errno::NOSYS),
        answer => Ok(answer.and_then(Result::ok)),
    }
}

/// Whether the page at this offset can be read without waiting. Also true at the end of the file.
fn is_page_resident(file: &Fd, at: u64) -> Result<bool, Errno> {
    let mut byte = [0];
    let read = rustix::io::preadv2(file, &mut [IoSliceMut::new(&mut byte)], at, ReadWriteFlags::NOWAIT);
    match read {
        Ok(_) => Ok(true),
        Err(Errno::AGAIN | Errno::INTR) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Whether a file is stored in memory. Only tmpfs and hugetlbfs support seals, and unlike statfs(2), the check never
/// queries a server.
fn is_in_memory(file: &Fd) -> bool {
    rustix::fs::fcntl_get_seals(file).is_ok()
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::OwnedFd;
    use std::path::PathBuf;

    use rustix::fs::{Advice, MemfdFlags, Mode, OFlags};
    use testkit::TempDir;

    use super::*;

    const BYTES: usize = 300_000;

    /// Maximum number of attempts to evict a file before the test fails.
    const EVICTIONS_MAX: u32 = 10_000;

    /// A file that is removed after the test.
    struct Scratch(TempDir, Fd);

    impl Scratch {
        fn new() -> Scratch {
            let dir = TempDir::new("io-resident");
            let path = dir.write("file", [7_u8; BYTES]);
            let file = File::options().read(true).write(true).open(path).unwrap();
            Scratch(dir, OwnedFd::from(file).into())
        }

        fn path(&self) -> PathBuf {
            self.0.path().join("file")
        }

        /// Evicts the file from the page cache; returns whether the file system supports that.
        fn evict(&self) -> bool {
            if is_in_memory(&self.1) {
                eprintln!("skipped: {} is on tmpfs, which keeps everything", self.0.path().display());
                return false;
            }
            // The kernel skips pages that are being read, such as those of the probe before, and pages that another
            // task uses at the moment. So the request is repeated until cachestat(2) counts none.
            for _ in 0..EVICTIONS_MAX {
                rustix::fs::fsync(&self.1).unwrap();
                rustix::fs::fadvise(&self.1, 0, None, Advice::DontNeed).unwrap();
                // Without cachestat(2), a single attempt has to be enough.
                let left = cached_pages(&self.1, 0, BYTES as u64).unwrap_or(0);
                if left == 0 {
                    return true;
                }
                std::thread::yield_now();
            }
            panic!("{} does not leave the page cache", self.0.path().display());
        }
    }

    const WAYS: [Option<Count>; 3] = [Some(cached_pages), Some(refuse), None];

    fn refuse(_: &Fd, _: u64, _: u64) -> Result<u64, Errno> {
        Err(Errno::PERM)
    }

    #[test]
    fn a_fresh_file_is_resident() {
        let file = Scratch::new();
        for (offset, len) in [(0, 0), (0, 1), (0, BYTES as u64), (4096, 4096), (299_999, 1), (5000, 200_000)]
        {
            assert!(is_resident(&file.1, offset, len), "{len} bytes at {offset}");
            for count in WAYS {
                assert_eq!(
                    probe(&file.1, offset, len, count, ProbeOptions::CAREFUL),
                    Ok(Residency::Resident),
                    "{len} bytes at {offset}"
                );
            }
        }
    }

    /// Probes a range with missing pages. The kernel may start to read a probed page, and a fast device may complete
    /// the read before the call returns. So "resident" is wrong only if pages are missing that no probe has read.
    fn assert_missing(file: &Fd, offset: u64, len: u64, count: Option<Count>) {
        let page_bytes = rustix::param::page_size() as u64;
        let pages = (offset + len - 1) / page_bytes - offset / page_bytes + 1;
        let cached = || cached_pages(file, offset, len);
        let before = cached();
        let answer = probe(file, offset, len, count, ProbeOptions::CAREFUL);
        let after = cached();
        assert!(answer.is_ok(), "{len} bytes at {offset}: {answer:?}");
        let is_true = after == Ok(pages) || after != before;
        assert!(
            answer != Ok(Residency::Resident) || is_true,
            "{len} bytes at {offset} are resident, it says: {before:?}, then {after:?} of {pages} pages"
        );
    }

    /// Probes bytes that `prepare` has read, unless it reports that it cannot. Another process may empty the page cache
    /// of this machine between the reads and the probe, but not each time.
    fn assert_resident(
        file: &Fd,
        offset: u64,
        len: u64,
        count: Option<Count>,
        prepare: impl Fn() -> bool,
    ) -> bool {
        let mut answers = Vec::new();
        while answers.len() < 100 {
            if !prepare() {
                return false;
            }
            match probe(file, offset, len, count, ProbeOptions::CAREFUL) {
                Ok(Residency::Resident) => return true,
                other => answers.push(other),
            }
        }
        panic!("{len} bytes at {offset}: {answers:?}");
    }

    #[test]
    fn an_evicted_file_is_not_resident() {
        let file = Scratch::new();
        for count in WAYS {
            for (offset, len) in [(0, 1), (0, BYTES as u64), (4096 * 3, 8192), (299_999, 1)] {
                // Repeated each time, because a probe may start a read of its range.
                if !file.evict() {
                    return;
                }
                assert_missing(&file.1, offset, len, count);
            }
        }
        assert!(file.evict() && !is_resident(&file.1, 0, BYTES as u64));
    }

    #[test]
    fn a_nonresident_page_in_the_middle_is_found() {
        let file = Scratch::new();
        // Without readahead, each read reads its own page only.
        rustix::fs::fadvise(&file.1, 0, None, Advice::Random).unwrap();
        for count in WAYS {
            for (offset, len, answer) in
                [(0, 8192, true), (0, BYTES as u64, false), (4096, 8192, false), (290_000, 10_000, true)]
            {
                let is_prepared = || {
                    let has_gone = file.evict();
                    for at in [0, 5000, 290_000, 294_000, 298_000, 299_999] {
                        rustix::io::pread(&file.1, &mut [0; 1], at).unwrap();
                    }
                    has_gone
                };
                match answer {
                    true if !assert_resident(&file.1, offset, len, count, is_prepared) => return,
                    false if !is_prepared() => return,
                    false => assert_missing(&file.1, offset, len, count),
                    true => {}
                }
            }
        }
    }

    #[test]
    fn counting_resident_pages_reads_nothing() {
        let file = Scratch::new();
        let Some(there) = are_counted(&file.1, 0, BYTES as u64) else { return };
        assert!(there && are_counted(&file.1, 4095, 2) == Some(true));
        assert_eq!(are_counted(&file.1, BYTES as u64 - 1, 1), Some(true));
        if !file.evict() {
            return;
        }
        for _ in 0..10 {
            assert_eq!(are_counted(&file.1, 0, 4096), Some(false));
            assert_eq!(are_counted(&file.1, 0, BYTES as u64), Some(false));
        }
        rustix::fs::fadvise(&file.1, 0, None, Advice::Random).unwrap();
        rustix::io::pread(&file.1, &mut [0; 1], 4096).unwrap();
        assert_eq!(are_counted(&file.1, 4096, 4096), Some(true));
        assert_eq!(are_counted(&file.1, 4095, 2), Some(false), "the page before it is missing");
    }

    #[test]
    fn the_first_nonresident_page_is_found_by_bisection() {
        for (pages, holes) in [
            (0..256, vec![0]),
            (0..256, vec![255]),
            (7..263, vec![100, 101, 200]),
            (7..8, vec![7]),
            (3..6, vec![5]),
        ] {
            let mut asked = 0;
            let found = first_hole(pages.clone(), |from, count| {
                asked += 1;
                Ok(!holes.iter().any(|hole| (from..from + count).contains(hole)))
            });
            assert_eq!(found, Ok(holes[0]), "{pages:?}");
            assert!(asked <= 8, "{asked} questions about {pages:?}");
        }
        assert_eq!(first_hole(0..9, |_, _| Err(Errno::PERM)), Err(Errno::PERM));
    }

    #[test]
    fn cachestat_is_not_called_again_after_enosys() {
        let file = Scratch::new();
        let missing: Count = |_, _, _| Err(Errno::NOSYS);
        assert_eq!(probe(&file.1, 0, BYTES as u64, Some(missing), ProbeOptions::CAREFUL), Err(Errno::NOSYS));
        // The flag is global to the process, so other tests see it too; their results stay the same.
        NO_CACHESTAT.store(true, Ordering::Relaxed);
        assert!(is_resident(&file.1, 0, BYTES as u64));
        NO_CACHESTAT.store(false, Ordering::Relaxed);
    }

    #[test]
    fn direct_and_unreadable_files_are_not_resident() {
        let file = Scratch::new();
        let written = File::options().write(true).open(file.path()).unwrap();
        assert!(!is_resident(&OwnedFd::from(written).into(), 0, 1));
        let flags = OFlags::RDONLY | OFlags::DIRECT;
        // Not all file systems support direct reads.
        if let Ok(direct) = rustix::fs::open(file.path(), flags, Mode::empty()) {
            assert!(is_in_memory(&file.1) || !is_resident(&direct.into(), 0, 1));
        }
    }

    #[test]
    fn memory_is_resident_after_it_was_written() {
        let memory = rustix::fs::memfd_create("ringroad-test", MemfdFlags::CLOEXEC).unwrap();
        rustix::io::write(&memory, &[7; 20_000]).unwrap();
        let file = Fd::from(memory);
        assert!(is_resident(&file, 0, 20_000));
        assert_eq!(probe(&file, 0, 20_000, None, ProbeOptions::CAREFUL), Ok(Residency::Resident));
    }
}
