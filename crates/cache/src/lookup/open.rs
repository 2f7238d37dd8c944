//! [`Opener`]: opens the file of an entry by its plan, and reads cached pages at once. A path in the kernel's lookup
//! cache is opened on the calling thread if that has worked recently; the engine does the rest.

use std::sync::Arc;

use io::op::OpenHow;
use io::page_cache::{PageCacheAdmission, TryPredictor};
use io::{Buf, Errno};
use rt::File;
use rustix::fs::OFlags;

use crate::config::Access;
use crate::disk::directory::{Directory, READ_FLAGS};
use crate::index::{BLOCK_BYTES, Known};
use crate::key::Key;
use crate::lookup::open_files::{self, OpenFile};
use crate::lookup::plan::ReadPlan;

/// Opens the files of one cache.
pub(crate) struct Opener {
    dir: Arc<Directory>,
    /// Whether paths of entries lately were in the kernel's lookup cache.
    names: TryPredictor,
    /// Whether entries lately were in the page cache.
    data: TryPredictor,
    /// Whether entries that were not in the page cache, and were let in, stay there.
    admission: PageCacheAdmission,
}

/// One in this many entries that are not resident is admitted to the page cache, where admitted entries are retained:
/// this makes one read in eight a little slower, and soon all entries are resident.
const ADMITTED_ONE_IN_MIN: u32 = 8;

impl Opener {
    pub(crate) fn new(dir: &Arc<Directory>) -> Opener {
        Opener {
            dir: Arc::clone(dir),
            names: TryPredictor::default(),
            data: TryPredictor::default(),
            admission: PageCacheAdmission::new(ADMITTED_ONE_IN_MIN),
        }
    }

    /// How the file of an entry is to be opened and read.
    pub(crate) fn plan(&self, key: &Key, access: Access, known: Option<Known>) -> ReadPlan {
        ReadPlan::new(key, access, known, &self.admission)
    }

    /// Lets the rest of a file bypass the page cache, if this reader may decide it.
    pub(crate) fn bypass(&self, file: &File, plan: ReadPlan) {
        if plan.bypass_page_cache && file.is_sole() && !file.fd().is_direct() {
            // A file system without O_DIRECT continues with the page cache.
            let _ = file.fd().set_direct(OFlags::NONBLOCK);
        }
    }

    /// The open file of an entry, if it is kept open and its bytes are in memory, or are read past that anyhow.
    pub(crate) fn open_file(&self, key: &Key, known: Option<Known>, plan: ReadPlan) -> Option<OpenFile> {
        let known = known.filter(|known| plan.calls_directly && known.measured)?;
        let open = open_files::find((self.dir.id(), *key), known.version, plan.direct)?;
        if !plan.bypass_page_cache {
            return Some(open);
        }
        let bytes = u64::from(known.blocks) * BLOCK_BYTES;
        let range = open.read.as_ref().map_or(0..bytes, |read| read.header.body_range());
        let is_resident = open.is_resident(range.start, range.end - range.start);
        self.admission.note(plan.name, is_resident, rt::now());
        is_resident.then_some(open)
    }

    /// Opens the file of a key to be read.
    pub(crate) async fn open(&self, key: &Key, plan: ReadPlan) -> Result<File, Errno> {
        let (dir, path) = (&self.dir, || self.dir.path_of(key).0);
        let mut flags = READ_FLAGS;
        if plan.direct {
            flags |= OFlags::DIRECT;
        }
        let mut how = OpenHow { flags: flags.bits() as i32, ..OpenHow::default() };
        if plan.calls_directly {
            how.is_cold = true;
            if self.names.is_worth_trying() {
                let opened = File::open_cached(None, &path(), how);
                // Not in memory, or the kernel or file system cannot tell.
                let missed = matches!(opened, Err(Errno::AGAIN | Errno::INVAL | Errno::NOSYS));
                self.names.note(!missed);
                if !missed {
                    return opened;
                }
            }
        }
        match File::open(None, path(), how, dir.device(), plan.opens).await {
            // A file system without direct I/O.
            Err(Errno::INVAL) if flags.contains(OFlags::DIRECT) => {
                how.flags = (flags - OFlags::DIRECT).bits() as i32;
                Box::pin(File::open(None, path(), how, dir.device(), plan.opens)).await
            }
            opened => opened,
        }
    }

    /// The start of a file, if that is in memory; the empty buffer comes back if it is not, or is taken not to be.
    pub(crate) fn read_resident(
        &self,
        file: &File,
        bytes: u64,
        plan: ReadPlan,
        mut buf: Buf,
    ) -> Result<Buf, Buf> {
        if file.fd().is_direct() || !plan.calls_directly || !self.data.is_worth_trying() {
            return Err(buf);
        }
        debug_assert!(buf.is_empty(), "the start of the file goes to the start of the buffer");
        let read = file.read_resident(0, bytes as u32, &mut buf);
        self.data.note(read.is_ok());
        if plan.bypass_page_cache {
            self.admission.note(plan.name, read.is_ok(), rt::now());
        }
        match read {
            Ok(count) if count > 0 => Ok(buf),
            _ => {
                buf.set_len(0);
                Err(buf)
            }
        }
    }
}
