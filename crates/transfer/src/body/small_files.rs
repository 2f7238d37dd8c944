//! Decides which short files are read with O_DIRECT if the configuration does not specify it: files that do not stay
//! resident, as for long files ([`page_cache_bypass`]).
//!
//! A read attempt of resident bytes (`RWF_NOWAIT`) starts a read of missing bytes. So if the attempt is likely to fail,
//! or a file may bypass the page cache, cachestat(2) is called first, which reads nothing. The kernel may forbid
//! cachestat(2), as to a worker that cannot write the files (Linux 6.14). Then all short files use the page cache:
//! residency is unknown, and direct reads would read resident files from the disk.

use std::ops::Range;

use io::page_cache::{self, PageCacheAdmission, TryPredictor};
use io::{DiskVia, Segments};

use crate::body::{FileBody, Mover, choose, page_cache_bypass, read};

/// Shared by all threads. There may be very many short files, each requested once in many seconds.
static FILES: PageCacheAdmission = PageCacheAdmission::keeping(1, RETAINED_MS);

/// Time in ms that an admitted file is remembered without a request for it.
const RETAINED_MS: u64 = 60_000;

/// Predicts whether cachestat(2) is permitted; files mostly have the same owner.
static COUNTS: TryPredictor = TryPredictor::new();

/// As [`read::try_read`], but counts the resident pages first if the count matters.
pub(super) fn try_read(body: &mut FileBody, head: &mut Vec<u8>, range: Range<u64>) -> Option<Segments> {
    if !may(body, &range) {
        return read::try_read(body, head, range);
    }
    let is_likely = body.root().finds_data();
    if FILES.is_selective() || !is_likely {
        body.in_memory = counted(body, &range);
        if body.in_memory == Some(false) {
            return None;
        }
    }
    let data = read::try_read(body, head, range);
    if data.is_some() {
        FILES.note(body.name, true, rt::now());
    } else if is_likely && COUNTS.is_confident() {
        // The read is in flight now, and a count could not distinguish its pages from resident ones.
        body.in_memory = Some(false);
    }
    data
}

/// Switches a file that is not resident to O_DIRECT if that is better.
pub(super) fn turn(body: &mut FileBody) {
    if body.in_memory.is_some_and(|in_memory| !FILES.uses_page_cache(body.name, in_memory, rt::now()))
        && page_cache_bypass::become_direct(body)
    {
        let via = choose::direct_engine(body.at.rules.aio, &rt::caps());
        body.mover = Mover::Read { via, direct: true };
    }
}

/// Whether the settings allow both methods. Only for ranges from the start of a file, because other ranges are mostly
/// requested together with the bytes before them.
fn may(body: &FileBody, range: &Range<u64>) -> bool {
    range.start == 0
        && (1..=read::TRY_READ_MAX).contains(&range.end)
        && matches!(body.mover, Mover::Read { via, direct: false } if via != DiskVia::Sync)
        && page_cache_bypass::is_unspecified(body)
}

/// Whether the range is resident or being read, if that can be determined.
fn counted(body: &FileBody, range: &Range<u64>) -> Option<bool> {
    if !COUNTS.should_try() {
        return None;
    }
    let answer = page_cache::are_counted(body.file.fd(), range.start, range.end - range.start);
    COUNTS.note(answer.is_some());
    answer
}
