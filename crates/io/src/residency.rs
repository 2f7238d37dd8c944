//! Whether bytes of a file are in the page cache: the question that decides between `sendfile` on the worker
//! thread and a read by a disk engine.
//!
//! [`is_resident`] never waits for a device. It is a snapshot: the kernel may drop a page right after the
//! answer, which costs one wait and no wrong byte. Nothing here reads content.
//!
//! Two calls answer together. A read of one byte with `RWF_NOWAIT` (preadv2(2), Linux 4.14) fails with
//! EAGAIN where a page is missing or still being read. The kernel may start to read the missing page (6.18
//! does, that page alone), and a quick device may even bring it before the call ends. cachestat(2) (Linux 6.5) counts the pages of a range at once, but counts pages that are
//! still being read too. Short ranges need reads alone.

use std::io::IoSliceMut;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use rustix::io::{Errno, ReadWriteFlags};

use crate::op::Fd;
use crate::sys;

/// Set when the kernel does not know cachestat(2). A refusal with EPERM is about one file and not kept: since
/// 6.14 (and in the stable kernels of that time) the caller must own the file or be allowed to write it,
/// which a server that runs as `nobody` seldom is.
static NO_CACHESTAT: AtomicBool = AtomicBool::new(false);

/// Pages that are looked at one by one; for more of them the kernel is asked to count.
const SINGLE_PAGES_MAX: u64 = 3;

/// Pages between two that are looked at where the kernel does not count: half of the smallest usual
/// readahead, so that a hole left by one is found.
const SPACING_PAGES: u64 = 8;

/// Most pages that are looked at for one range; longer ranges are looked at in wider steps. One look is a system
/// call that copies a byte, the chunk that it is about has a hundred thousand of them to be sent.
const LOOKS_MAX: u64 = 16;

/// Whether trying something cheap first is likely to pay: what succeeds lately is tried, what fails is left
/// alone for a while. All threads share it; a steady state writes nothing.
#[derive(Debug)]
pub struct Hunch(AtomicU8);

/// Below this nothing is tried.
const CONFIDENT: u8 = 64;

impl Default for Hunch {
    fn default() -> Hunch {
        Hunch(AtomicU8::new(CONFIDENT))
    }
}

impl Hunch {
    /// Whether to try. Each time it is not, the next trial comes nearer: one in about thirteen.
    pub fn is_worth_trying(&self) -> bool {
        let confidence = self.0.load(Ordering::Relaxed);
        if confidence < CONFIDENT {
            self.0.store(confidence + 4, Ordering::Relaxed);
        }
        confidence >= CONFIDENT
    }

    /// Says how it went.
    pub fn note(&self, success: bool) {
        let before = self.0.load(Ordering::Relaxed);
        let after = if success { before.saturating_add(16) } else { before / 4 };
        if after != before {
            self.0.store(after, Ordering::Relaxed);
        }
    }
}

/// Whether all pages of `len` bytes at `offset`, which must lie inside the file, are in the page cache.
/// Where the file system cannot tell without waiting (FUSE, NFS), and for files open with `O_DIRECT`, the
/// answer is no.
pub fn is_resident(file: &Fd, offset: u64, len: u64) -> bool {
    let count = if NO_CACHESTAT.load(Ordering::Relaxed) { None } else { Some(cached_pages as Count) };
    let answer = look(file, offset, len, count);
    if answer == Err(Errno::NOSYS) {
        NO_CACHESTAT.store(true, Ordering::Relaxed);
        return look(file, offset, len, None) == Ok(true);
    }
    answer == Ok(true)
}

/// Counts the cached pages of a byte range.
type Count = fn(&Fd, u64, u64) -> Result<u64, Errno>;

fn cached_pages(file: &Fd, offset: u64, len: u64) -> Result<u64, Errno> {
    sys::cachestat(file, offset, len).map(|found| found.cached)
}

/// The answer, or ENOSYS when `count` is not there.
fn look(file: &Fd, offset: u64, len: u64, count: Option<Count>) -> Result<bool, Errno> {
    if len == 0 {
        return Ok(true);
    }
    let page_bytes = rustix::param::page_size() as u64;
    let (first, last) = (offset / page_bytes, (offset + len - 1) / page_bytes);
    let pages = last - first + 1;
    // The first page decides whether the file can be looked at. It comes before the count, because that
    // checks permissions, for which NFS asks its server.
    match is_page_there(file, first * page_bytes) {
        Ok(true) => {}
        Ok(false) => return Ok(false),
        Err(Errno::OPNOTSUPP) if is_in_memory(file) => return all_counted(file, offset, len, pages, count),
        Err(_) => return Ok(false),
    }
    let looks = if pages <= SINGLE_PAGES_MAX {
        pages
    } else {
        match count.map(|count| count(file, offset, len)) {
            Some(Ok(counted)) if counted < pages => return Ok(false),
            // All are there, or on their way: a device brings the middle and the end of a range last.
            Some(Ok(_)) => SINGLE_PAGES_MAX,
            Some(Err(Errno::NOSYS)) => return Err(Errno::NOSYS),
            Some(Err(_)) | None => (pages / SPACING_PAGES + 1).clamp(SINGLE_PAGES_MAX, LOOKS_MAX),
        }
    };
    let place = |number: u64| (first + (pages - 1) * number / (looks - 1).max(1)) * page_bytes;
    Ok((1..looks).all(|number| is_page_there(file, place(number)) == Ok(true)))
}

/// A file in memory (tmpfs, memfd) has no `RWF_NOWAIT`; what is not there was swapped out, or is a hole and
/// costs nothing. Where the kernel does not count either, it counts as memory.
fn all_counted(file: &Fd, offset: u64, len: u64, pages: u64, count: Option<Count>) -> Result<bool, Errno> {
    match count.map(|count| count(file, offset, len)) {
        Some(Ok(counted)) => Ok(counted >= pages),
        Some(Err(Errno::NOSYS)) => Err(Errno::NOSYS),
        Some(Err(_)) | None => Ok(true),
    }
}

/// Whether the page at this place can be read now. The end of the file needs no page.
fn is_page_there(file: &Fd, at: u64) -> Result<bool, Errno> {
    let mut byte = [0];
    let read = rustix::io::preadv2(file, &mut [IoSliceMut::new(&mut byte)], at, ReadWriteFlags::NOWAIT);
    match read {
        Ok(_) => Ok(true),
        Err(Errno::AGAIN | Errno::INTR) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Whether a file lives in memory. Only tmpfs and hugetlbfs know seals, and unlike statfs(2) the question
/// never leaves the kernel.
fn is_in_memory(file: &Fd) -> bool {
    rustix::fs::fcntl_get_seals(file).is_ok()
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::io::Write;
    use std::os::fd::OwnedFd;
    use std::path::PathBuf;

    use rustix::fs::{Advice, MemfdFlags, Mode, OFlags};

    use super::*;

    const BYTES: usize = 300_000;

    /// How often the kernel is asked to drop a file before the test gives up.
    const EVICTIONS_MAX: u32 = 10_000;

    /// A file that is gone after the test.
    struct Scratch(PathBuf, Fd);

    impl Scratch {
        fn new(name: &str) -> Scratch {
            let path = std::env::temp_dir().join(format!("ringroad-{name}-{}", std::process::id()));
            let mut file =
                File::options().create(true).truncate(true).read(true).write(true).open(&path).unwrap();
            file.write_all(&[7; BYTES]).unwrap();
            Scratch(path, OwnedFd::from(file).into())
        }

        /// Drops the file from the page cache; whether the file system has one that can be dropped from.
        fn evict(&self) -> bool {
            if is_in_memory(&self.1) {
                eprintln!("skipped: {} is on tmpfs, which keeps everything", self.0.display());
                return false;
            }
            // The kernel leaves out pages that are being read, as by the question before this one, or that
            // somebody else holds at the moment; so it is asked until its own count says that it did.
            for _ in 0..EVICTIONS_MAX {
                rustix::fs::fsync(&self.1).unwrap();
                rustix::fs::fadvise(&self.1, 0, None, Advice::DontNeed).unwrap();
                // Where there is no count, the first time has to do.
                let left = sys::cachestat(&self.1, 0, BYTES as u64).map_or(0, |found| found.cached);
                if left == 0 {
                    return true;
                }
                std::thread::yield_now();
            }
            panic!("{} does not leave the page cache", self.0.display());
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_file(&self.0);
        }
    }

    const WAYS: [Option<Count>; 3] = [Some(cached_pages), Some(refuse), None];

    fn refuse(_: &Fd, _: u64, _: u64) -> Result<u64, Errno> {
        Err(Errno::PERM)
    }

    #[test]
    fn a_fresh_file_is_resident() {
        let file = Scratch::new("resident-fresh");
        for (offset, len) in [(0, 0), (0, 1), (0, BYTES as u64), (4096, 4096), (299_999, 1), (5000, 200_000)]
        {
            assert!(is_resident(&file.1, offset, len), "{len} bytes at {offset}");
            for count in WAYS {
                assert_eq!(look(&file.1, offset, len, count), Ok(true), "{len} bytes at {offset}");
            }
        }
    }

    /// Asks about bytes of which a part is missing. The kernel may have started to read it for the question,
    /// and a quick device may have brought it before the call ended; then, and only then, yes is true.
    fn assert_missing(file: &Fd, offset: u64, len: u64, count: Option<Count>) {
        let answer = look(file, offset, len, count);
        if answer == Ok(true) {
            let page_bytes = rustix::param::page_size() as u64;
            let pages = (offset + len - 1) / page_bytes - offset / page_bytes + 1;
            let there = sys::cachestat(file, offset, len).map(|found| found.cached);
            assert_eq!(there, Ok(pages), "{len} bytes at {offset} were said to be there");
        } else {
            assert_eq!(answer, Ok(false), "{len} bytes at {offset}");
        }
    }

    #[test]
    fn an_evicted_file_is_not() {
        let file = Scratch::new("resident-evicted");
        for count in WAYS {
            for (offset, len) in [(0, 1), (0, BYTES as u64), (4096 * 3, 8192), (299_999, 1)] {
                // Each time anew, because a question may start to bring in what it asks for.
                if !file.evict() {
                    return;
                }
                assert_missing(&file.1, offset, len, count);
            }
        }
        assert!(file.evict() && !is_resident(&file.1, 0, BYTES as u64));
    }

    #[test]
    fn a_hole_in_the_middle_is_found() {
        let file = Scratch::new("resident-hole");
        // Without readahead each read brings its own page alone.
        rustix::fs::fadvise(&file.1, 0, None, Advice::Random).unwrap();
        for count in WAYS {
            for (offset, len, answer) in
                [(0, 8192, true), (0, BYTES as u64, false), (4096, 8192, false), (290_000, 10_000, true)]
            {
                if !file.evict() {
                    return;
                }
                for at in [0, 5000, 290_000, 294_000, 298_000, 299_999] {
                    rustix::io::pread(&file.1, &mut [0; 1], at).unwrap();
                }
                match answer {
                    true => assert_eq!(look(&file.1, offset, len, count), Ok(true), "{len} at {offset}"),
                    false => assert_missing(&file.1, offset, len, count),
                }
            }
        }
    }

    #[test]
    fn a_kernel_without_the_count_is_asked_no_second_time() {
        let file = Scratch::new("resident-nosys");
        let missing: Count = |_, _, _| Err(Errno::NOSYS);
        assert_eq!(look(&file.1, 0, BYTES as u64, Some(missing)), Err(Errno::NOSYS));
        // The flag is the whole process's, so that other tests see it too; the answers stay the same.
        NO_CACHESTAT.store(true, Ordering::Relaxed);
        assert!(is_resident(&file.1, 0, BYTES as u64));
        NO_CACHESTAT.store(false, Ordering::Relaxed);
    }

    #[test]
    fn direct_files_and_files_that_cannot_be_read_are_not() {
        let file = Scratch::new("resident-unreadable");
        let written = File::options().write(true).open(&file.0).unwrap();
        assert!(!is_resident(&OwnedFd::from(written).into(), 0, 1));
        let flags = OFlags::RDONLY | OFlags::DIRECT;
        // Not all file systems have direct reads.
        if let Ok(direct) = rustix::fs::open(&file.0, flags, Mode::empty()) {
            assert!(is_in_memory(&file.1) || !is_resident(&direct.into(), 0, 1));
        }
    }

    #[test]
    fn memory_is_resident_once_it_was_written() {
        let memory = rustix::fs::memfd_create("ringroad-test", MemfdFlags::CLOEXEC).unwrap();
        rustix::io::write(&memory, &[7; 20_000]).unwrap();
        let file = Fd::from(memory);
        assert!(is_resident(&file, 0, 20_000));
        assert_eq!(look(&file, 0, 20_000, None), Ok(true));
    }
}
