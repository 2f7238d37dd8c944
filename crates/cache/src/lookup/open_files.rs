//! Recently opened files of entries stay open, for each thread: the next request neither opens the file again nor reads
//! the header and table of a large one again. Keeping a file open costs more than it saves if no request repeats, so
//! only the second open within about a second keeps it.
//!
//! A file from here is as good as a newly opened one: before each use fstat(2) checks the open file, and one that has
//! lost its name, or was changed since its header was read, is closed. A file is kept for two seconds at most after its
//! last use, so deleting entries or unmounting the disk waits for no longer.
//!
//! ```text
//!   kept or used --> young --a second, or half the limit--> old --the same--> closed
//!                      ^------------- used again ------------|
//! ```

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use io::op::Stat;
use rt::File;

use crate::entries::chunks::Chunks;
use crate::format::header::Header;
use crate::key::{Key, KeyHash};

/// Most files that are kept open by one thread, for all of its caches: few beside the descriptors of connections.
const OPEN_MAX: usize = 256;

/// How long an unused file stays young, and then old.
const AGE: Duration = Duration::from_secs(1);

/// A file that is kept open.
#[derive(Clone)]
pub(crate) struct OpenFile {
    /// The object of the index that it belongs to.
    pub(crate) version: u32,
    /// Whether it was to be opened for direct reads; the file system may not have been able to.
    pub(crate) direct: bool,
    pub(crate) file: File,
    /// Of a large entry that is whole.
    pub(crate) read: Option<Rc<CachedHeader>>,
}

impl OpenFile {
    /// Whether these bytes of the file are in memory, or were recently.
    pub(crate) fn is_resident(&self, start: u64, bytes: u64) -> bool {
        let end = start + bytes;
        if let Some((seen_end, at)) = self.file.seen_resident(start)
            && end <= seen_end
            && io::page_cache::is_believed(at, rt::now())
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

/// The header and the records of a large entry, as they were read from the start of its file.
pub(crate) struct CachedHeader {
    /// Header and texts.
    pub(crate) image: Arc<[u8]>,
    pub(crate) header: Arc<Header>,
    pub(crate) chunks: Arc<Chunks>,
    /// The file as it was before that.
    pub(crate) seen: Option<Stat>,
}

impl CachedHeader {
    /// Of `prefix`, the start of the file, only the bytes that the header names are kept.
    pub(crate) fn new(
        prefix: &[u8],
        header: &Arc<Header>,
        chunks: &Arc<Chunks>,
        seen: Option<Stat>,
    ) -> Rc<CachedHeader> {
        let end = header.text.end.max(header.head.end);
        assert!(end <= prefix.len(), "texts lie within the bytes that were read");
        let (header, chunks) = (Arc::clone(header), Arc::clone(chunks));
        Rc::new(CachedHeader { image: Arc::from(&prefix[..end]), header, chunks, seen })
    }
}

/// An entry of a directory: the directory by its random number.
pub(crate) type Name = (u64, Key);

type Files = HashMap<Name, OpenFile, KeyHash>;

/// Entries with a remembered open: as many as are kept open, and some more.
const RECENT: usize = 512;

struct OpenFiles {
    /// Half a key in each place, of the entry that was opened last of those that belong there.
    recently_opened: RefCell<Box<[u64; RECENT]>>,
    young: RefCell<Files>,
    old: RefCell<Files>,
}

impl Default for OpenFiles {
    fn default() -> OpenFiles {
        let (young, old) = Default::default();
        OpenFiles { recently_opened: RefCell::new(Box::new([0; RECENT])), young, old }
    }
}

thread_local! {
    /// Belongs to the task that lets go of old files, and so ends with the thread's runtime.
    static OPEN_FILES: RefCell<Weak<OpenFiles>> = const { RefCell::new(Weak::new()) };
}

/// The open file of an entry, if it is kept and its name still leads to it.
pub(crate) fn find(name: Name, version: u32, direct: bool) -> Option<OpenFile> {
    let files = OPEN_FILES.with_borrow(Weak::upgrade)?;
    let mut young = files.young.borrow_mut();
    let mut open = match young.get(&name) {
        Some(open) => open.clone(),
        None => {
            let open = files.old.borrow_mut().remove(&name)?;
            young.insert(name, open.clone());
            open
        }
    };
    let is_right = open.version == version && open.direct == direct;
    // Of an open file, so it is in memory.
    let stat = if is_right { open.file.stat_inline().ok() } else { None };
    let Some(stat) = stat.filter(|stat| stat.links > 0) else {
        young.remove(&name);
        return None;
    };
    // It has a new header, which is to be read.
    open.read.take_if(|read| read.seen != Some(stat));
    Some(open)
}

/// Whether the file of an entry, which was opened just now, is to be kept: it was opened before, not long ago.
pub(crate) fn is_worth_keeping(name: Name) -> bool {
    let files = OPEN_FILES.with_borrow(Weak::upgrade).unwrap_or_else(begin);
    let key = u128::from_be_bytes(name.1.0);
    let (mark, place) = ((key >> 64) as u64 ^ name.0, key as usize % RECENT);
    let before = std::mem::replace(&mut files.recently_opened.borrow_mut()[place], mark);
    before == mark
}

/// Keeps the file of an entry open.
pub(crate) fn keep(name: Name, open: OpenFile) {
    let files = OPEN_FILES.with_borrow(Weak::upgrade).unwrap_or_else(begin);
    let mut young = files.young.borrow_mut();
    if young.len() >= OPEN_MAX / 2 {
        let old = files.old.replace(std::mem::take(&mut young));
        // Files are closed after the tables are whole again.
        drop(young);
        drop(old);
        young = files.young.borrow_mut();
    }
    young.insert(name, open);
    debug_assert!(young.len() <= OPEN_MAX / 2);
}

/// Starts the task that lets go.
fn begin() -> Rc<OpenFiles> {
    let files = Rc::new(OpenFiles::default());
    OPEN_FILES.set(Rc::downgrade(&files));
    let holder = Rc::clone(&files);
    rt::spawn(async move {
        loop {
            rt::sleep_until(rt::now() + AGE).await;
            let old = holder.old.replace(holder.young.take());
            drop(old);
            if holder.old.borrow().is_empty() {
                return;
            }
        }
    });
    files
}
