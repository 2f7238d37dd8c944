//! Entries that are written in a folder other than the cache's own (`use_temp_path=on`) before they are whole.
//!
//! Such a file has no name (`O_TMPFILE` of open(2)), so that nothing is left of it when the process dies. Once whole it
//! gets one in the cache's folder, or is copied there where the two are not on one file system. A folder that fails is no
//! failure of the cache's disk: for a while entries are written inside of the cache, and it is told once.

use std::ffi::{CStr, CString, OsString};
use std::os::unix::ffi::OsStringExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use io::op::DeviceId;
use io::{DiskVia, Errno};
use rt::File;
use rt::file::{self, Create};

use crate::error::Refused;
use crate::note::Note;
use crate::place::Temp;
use crate::store::{FILE_MODE, FOLDER_MODE, Store, now_ms};

/// A folder for files that are not whole yet.
pub(crate) type TempFolder = Arc<CStr>;

/// How long a folder that has failed is left alone.
const PAUSE_MS: u64 = 30_000;

/// Bytes that are copied at once: a buffer of the pool.
const COPY_BYTES: u64 = 256 << 10;

/// Whether the folders work that files are written in first.
#[derive(Debug, Default)]
pub(crate) struct Elsewhere {
    /// Left alone until then; 0 when they work.
    until_ms: AtomicU64,
}

impl Elsewhere {
    fn works(&self) -> bool {
        self.until_ms.load(Ordering::Relaxed) <= now_ms()
    }

    /// It failed; answers whether that is news.
    fn fail(&self) -> bool {
        self.until_ms.swap(now_ms() + PAUSE_MS, Ordering::Relaxed) == 0
    }

    fn succeed(&self) {
        self.until_ms.store(0, Ordering::Relaxed);
    }
}

impl Store {
    /// Makes the file of a fill: in this folder, where that works, else inside of the cache.
    pub(crate) async fn temp_in(self: &Arc<Store>, folder: Option<&TempFolder>) -> Result<Temp, Refused> {
        if let Some(folder) = folder.filter(|_| self.elsewhere.works()) {
            match unnamed(folder, self.via()).await {
                Ok(file) => return Ok(Temp::unnamed(self, file, Arc::clone(folder))),
                Err(errno) => self.temp_failed(folder, "making a file", errno),
            }
        }
        Temp::create(self, Create::New, FILE_MODE).await
    }

    /// A call on a file of this folder failed.
    pub(crate) fn temp_failed(&self, folder: &TempFolder, doing: &'static str, errno: Errno) {
        self.counters.write_errors.count();
        if self.elsewhere.fail() {
            let path = OsString::from_vec(folder.to_bytes().to_vec()).into();
            self.note(Note::TempElsewhere { name: self.name(), path, doing, errno });
        }
    }
}

/// A file without a name in a folder, which is made where it is missing.
async fn unnamed(folder: &TempFolder, via: DiskVia) -> Result<File, Errno> {
    let folder = || CString::from(&**folder);
    let device = DeviceId::default();
    let made = File::create(folder(), Create::Unnamed, FILE_MODE, device, via).await;
    if made.as_ref().err() != Some(&Errno::NOENT) {
        return made;
    }
    // The result is that of the second try.
    let _ = file::mkdir(folder(), FOLDER_MODE, device, via).await;
    File::create(folder(), Create::Unnamed, FILE_MODE, device, via).await
}

/// Brings a whole file into the cache's own folder, under a temporary name.
pub(crate) async fn bring_home(
    store: &Arc<Store>,
    file: &File,
    folder: &TempFolder,
) -> Result<Temp, Refused> {
    let (device, via) = (store.device, store.via());
    let path = store.temp_path();
    let mut linked = file.link(path.clone(), device, via).await;
    if linked == Err(Errno::NOENT) {
        store.make_temp_folder().await?;
        linked = file.link(path.clone(), device, via).await;
    }
    let home = match linked {
        Ok(()) => Temp::named(store, file.clone(), path),
        Err(Errno::XDEV) => copy(store, file, folder).await?,
        Err(errno) => {
            store.write_failed("bringing an entry into the cache", errno);
            return Err(Refused::Disk(errno));
        }
    };
    store.elsewhere.succeed();
    Ok(home)
}

/// Copies a file from another file system. What a partial entry does not have stays a hole.
async fn copy(store: &Arc<Store>, file: &File, folder: &TempFolder) -> Result<Temp, Refused> {
    let via = store.via();
    let failed = |errno| {
        store.temp_failed(folder, "reading a file", errno);
        Refused::Disk(errno)
    };
    let len = file.stat(DeviceId::default(), via).await.map_err(failed)?.size;
    let home = Temp::create(store, Create::New, FILE_MODE).await?;
    if store.config.direct {
        home.file().set_uncached();
    }
    let mut at = 0;
    while at < len {
        let most = (len - at).min(COPY_BYTES);
        let buf = rt::pool().get(most as usize).ok_or(Refused::NoMemory)?;
        let (read, buf) = file.read_at(at, most as u32, buf, DeviceId::default(), via).await;
        let (Ok(count @ 1..), Some(mut buf)) = (read, buf) else {
            return Err(failed(read.err().unwrap_or(Errno::IO)));
        };
        buf.set_len(count as usize);
        let end = at + u64::from(count);
        // The last piece gives the file its length.
        let is_hole = end < len && buf.iter().all(|&byte| byte == 0);
        if !is_hole {
            home.write_buf(at, buf).await?;
        }
        at = end;
    }
    Ok(home)
}
