//! Recently opened files of entries stay open, per thread, and what was read from them is retained: the header and table
//! of a large entry, and all of a small one. The next request only checks that the file is the same. Retaining files
//! that are requested once costs more than it saves, so a file is retained at its second open, unless too many other
//! files were opened since the first one.
//!
//! A retained file is as safe as a newly opened one: before each use, fstat(2) checks the open file, once for all
//! requests of an event-loop turn, which were received before. A file that was unlinked, or changed since its header was
//! read, is closed. A file is closed at most two seconds after its last use, so deleting entries or unmounting the disk
//! is not delayed for longer.
//!
//! ```text
//!   retained or used --> young --a second, or half the limit--> old --the same--> closed
//!                          ^------------- used again ------------|
//! ```

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use io::facts::Stat;
use rt::File;

use crate::entries::Image;
use crate::entries::chunks::Chunks;
use crate::format::Header;
use crate::key::{Key, KeyHash};

/// Maximum number of files that one thread keeps open, for all of its caches: few compared with the descriptors of
/// connections.
const OPEN_MAX: usize = 256;

/// Maximum number of bytes of small entries that enter the young or the old files of one thread.
const COMPLETE_BYTES_MAX: u64 = 2 << 20;

/// The same as a divisor of the memory limit of the process (cgroup), if it has one: many threads in a small container must leave
/// memory to connections.
const MEMORY_DIVISOR: u64 = 256;

/// Time for which an unused file stays young, and then old.
const AGE: Duration = Duration::from_secs(1);

/// A retained open file.
#[derive(Clone)]
pub(crate) struct OpenFile {
    /// Version of the index entry that it belongs to.
    pub(crate) version: u32,
    /// Whether it was opened for direct reads; the file system may not support them.
    pub(crate) direct: bool,
    pub(crate) file: File,
    /// Present for a complete entry, as far as there is memory for it.
    pub(crate) read: Option<Rc<ReadBefore>>,
}

/// Content read from a file, and the attributes of the file before the read.
pub(crate) struct ReadBefore {
    pub(crate) seen: Stat,
    pub(crate) content: Content,
}

/// See [`ReadBefore`].
pub(crate) enum Content {
    /// The start of the file of a large entry.
    Start(CachedHeader),
    /// All of a small entry.
    Complete(Arc<Image>),
}

impl ReadBefore {
    pub(crate) fn header(&self) -> &Arc<Header> {
        match &self.content {
            Content::Start(read) => &read.header,
            Content::Complete(image) => &image.header,
        }
    }

    /// Returns the memory in bytes that [`COMPLETE_BYTES_MAX`] limits. The other entries need little.
    fn complete_bytes(&self) -> u64 {
        match &self.content {
            Content::Start(_) => 0,
            Content::Complete(image) => image.bytes.len() as u64,
        }
    }
}

impl OpenFile {
    /// Whether these bytes of the file are resident, or were recently.
    pub(crate) fn is_resident(&self, start: u64, bytes: u64) -> bool {
        let end = start + bytes;
        if let Some((seen_end, at)) = self.file.seen_resident(start)
            && end <= seen_end
            && io::page_cache::is_assumed_resident(at, rt::now())
        {
            return true;
        }
        let is_resident = io::page_cache::is_resident(self.file.fd(), start, bytes);
        if is_resident {
            self.file.note_resident(start..end);
        }
        is_resident
    }
}

/// The header and the records of a large entry, read from the start of its file.
pub(crate) struct CachedHeader {
    /// Encoded header and texts.
    pub(crate) image: Arc<[u8]>,
    pub(crate) header: Arc<Header>,
    pub(crate) chunks: Arc<Chunks>,
}

impl CachedHeader {
    /// Creates a cached header, which stores only the header and texts of `prefix`, the start of the file.
    pub(crate) fn new(prefix: &[u8], header: &Arc<Header>, chunks: &Arc<Chunks>) -> CachedHeader {
        let end = header.text.end.max(header.head.end);
        assert!(end <= prefix.len(), "the texts are within the bytes that were read");
        let (header, chunks) = (Arc::clone(header), Arc::clone(chunks));
        CachedHeader { image: Arc::from(&prefix[..end]), header, chunks }
    }
}

/// An entry of a cache directory; the directory is identified by its random number.
pub(crate) type Name = (u64, Key);

type Files = HashMap<Name, OpenFile, KeyHash>;

/// Number of slots for recent opens: somewhat more than the number of retained files.
const RECENT: usize = 512;

struct OpenFiles {
    /// For each slot, half of the key of the entry that was opened last.
    recently_opened: RefCell<Box<[u64; RECENT]>>,
    young: RefCell<Files>,
    /// Bytes of small entries that entered the young files.
    complete_bytes: Cell<u64>,
    complete_bytes_max: u64,
    old: RefCell<Files>,
}

impl OpenFiles {
    fn new() -> OpenFiles {
        let limit = rt::caps().memory_max.map_or(u64::MAX, |limit| limit / MEMORY_DIVISOR);
        let (young, complete_bytes, old) = Default::default();
        OpenFiles {
            recently_opened: RefCell::new(Box::new([0; RECENT])),
            young,
            complete_bytes,
            complete_bytes_max: limit.min(COMPLETE_BYTES_MAX),
            old,
        }
    }

    /// Makes the young files old, and closes the old ones.
    fn age(&self) {
        let old = self.old.replace(self.young.take());
        self.complete_bytes.set(0);
        // Files are closed after the tables are consistent again.
        drop(old);
    }

    fn has_room(&self, bytes: u64) -> bool {
        self.complete_bytes.get() + bytes <= self.complete_bytes_max
    }

    /// Adds a file to the young ones, without what was read from it if that would exceed the limit.
    fn insert(&self, name: Name, mut open: OpenFile) {
        let bytes = open.read.as_ref().map_or(0, |read| read.complete_bytes());
        if self.has_room(bytes) {
            self.complete_bytes.set(self.complete_bytes.get() + bytes);
        } else {
            open.read = None;
        }
        self.young.borrow_mut().insert(name, open);
    }
}

thread_local! {
    /// Owned by the task that closes old files, so that it ends with the thread's runtime.
    static OPEN_FILES: RefCell<Weak<OpenFiles>> = const { RefCell::new(Weak::new()) };
}

/// Returns the open file of an entry, if it is retained and not unlinked.
pub(crate) fn find(name: Name, version: u32, direct: bool) -> Option<OpenFile> {
    let files = OPEN_FILES.with_borrow(Weak::upgrade)?;
    let young = files.young.borrow().get(&name).cloned();
    let mut open = match young {
        Some(open) => open,
        None => {
            let open = files.old.borrow_mut().remove(&name)?;
            files.insert(name, open.clone());
            open
        }
    };
    let is_right = open.version == version && open.direct == direct;
    // An fstat of an open file needs no disk access.
    let stat = if is_right { open.file.stat_of_turn().ok() } else { None };
    let Some(stat) = stat.filter(|stat| stat.links > 0) else {
        files.young.borrow_mut().remove(&name);
        return None;
    };
    // If the file changed, it must be read again.
    open.read.take_if(|read| read.seen != stat);
    Some(open)
}

/// Whether what was read from the file of an entry is retained, and its header `is_wanted`. The file may have changed since.
pub(crate) fn has_read(name: Name, is_wanted: impl Fn(&Header) -> bool) -> bool {
    let Some(files) = OPEN_FILES.with_borrow(Weak::upgrade) else { return false };
    let is_wanted = |open: &OpenFile| open.read.as_ref().is_some_and(|read| is_wanted(read.header()));
    let is_young = files.young.borrow().get(&name).map(is_wanted);
    is_young.or_else(|| files.old.borrow().get(&name).map(is_wanted)).unwrap_or(false)
}

/// Whether the file of an entry that was just opened should be retained: it was opened before, recently.
pub(crate) fn should_retain(name: Name) -> bool {
    let files = OPEN_FILES.with_borrow(Weak::upgrade).unwrap_or_else(begin);
    let key = u128::from_be_bytes(name.1.0);
    let (mark, index) = ((key >> 64) as u64 ^ name.0, key as usize % RECENT);
    let before = std::mem::replace(&mut files.recently_opened.borrow_mut()[index], mark);
    before == mark
}

/// Whether a small entry of this many bytes can be retained with its file.
pub(crate) fn has_room(bytes: u64) -> bool {
    OPEN_FILES.with_borrow(Weak::upgrade).is_some_and(|files| files.has_room(bytes))
}

/// Retains the open file of an entry.
pub(crate) fn retain_file(name: Name, open: OpenFile) {
    let files = OPEN_FILES.with_borrow(Weak::upgrade).unwrap_or_else(begin);
    if files.young.borrow().len() >= OPEN_MAX / 2 {
        files.age();
    }
    files.insert(name, open);
    debug_assert!(files.young.borrow().len() <= OPEN_MAX / 2);
}

/// Starts the task that closes old files.
fn begin() -> Rc<OpenFiles> {
    let files = Rc::new(OpenFiles::new());
    OPEN_FILES.set(Rc::downgrade(&files));
    let holder = Rc::clone(&files);
    rt::spawn(async move {
        loop {
            rt::sleep_until(rt::now() + AGE).await;
            holder.age();
            if holder.old.borrow().is_empty() {
                return;
            }
        }
    });
    files
}
