//! How a file gets its name: room for it ([`Store::reserve`]), the file while it has none ([`Temp`]), and the rename, which
//! is one operation with what is written last ([`Whole`]).

use std::ffi::CString;
use std::sync::Arc;

use io::{Buf, Errno, Segments};
use rt::file::{self, Create, NewFile};
use rt::{File, mailbox};

use crate::elsewhere::{TempFolder, bring_home};
use crate::error::Refused;
use crate::index::Origin;
use crate::key::{Folders, Key};
use crate::meta::New;
use crate::settling::Asked;
use crate::space::{Blocks, NoRoom};
use crate::store::{FILE_MODE, FOLDER_MODE, Store, now_s};

/// Entries that one fill removes to get its room; a fill that needs more passes through, and the manager goes on.
const EVICTED_MAX: usize = 32;

/// How often a fill removes entries before it gives up: others may take the room that it made.
const TRIES: usize = 3;

impl Store {
    /// Reserves blocks for an entry of this key. When the cache is as good as full, a key that nobody has asked for
    /// before pushes nothing out.
    pub(crate) async fn reserve(self: &Arc<Store>, key: &Key, blocks: u64) -> Result<Blocks, Refused> {
        if blocks > self.space.max() {
            return Err(Refused::TooLarge);
        }
        let is_short = self.space.above_watermark(blocks) > 0;
        let is_known = || self.index.peek(&key.0).is_some_and(|known| known.blocks > 0);
        if is_short && !is_known() && !self.index.admits(&key.0) {
            self.bell.ring();
            return Err(Refused::NotAdmitted);
        }
        let mut reserved = self.space.none();
        self.grow(&mut reserved, blocks).await?;
        Ok(reserved)
    }

    /// Reserves so many more as well, and removes entries for them when there is no room.
    pub(crate) async fn grow(self: &Arc<Store>, reserved: &mut Blocks, more: u64) -> Result<(), Refused> {
        if reserved.count() + more > self.space.max() {
            return Err(Refused::TooLarge);
        }
        for _ in 0..TRIES {
            let (short, refused) = match self.space.reserve(more) {
                Ok(more) => {
                    reserved.join(more);
                    return Ok(());
                }
                Err(NoRoom::Unmeasured) => return Err(Refused::NoRoom),
                Err(NoRoom::Size(short)) => (short, Refused::NoRoom),
                Err(NoRoom::Free(short)) => (short, Refused::DiskFull),
            };
            // The manager makes room for those who come next.
            self.bell.ring();
            let victims = self.evict(short, EVICTED_MAX);
            if victims.is_empty() {
                return Err(refused);
            }
            self.remove_and_wait(victims).await;
        }
        Err(Refused::NoRoom)
    }
}

/// A file that is no entry yet; removed when it is dropped.
pub(crate) struct Temp {
    store: Arc<Store>,
    file: File,
    /// `None` once it has another name, and for one that has none yet.
    path: Option<CString>,
    /// Where it is, when that is not inside of the cache: it has no name then.
    elsewhere: Option<TempFolder>,
}

impl Temp {
    /// Makes one, and its folder when somebody has removed that.
    pub(crate) async fn create(store: &Arc<Store>, create: Create, mode: u32) -> Result<Temp, Refused> {
        let (device, via) = (store.device, store.via());
        let path = store.temp_path();
        let mut made = File::create(path.clone(), create, mode, device, via).await;
        if made.as_ref().err() == Some(&Errno::NOENT) {
            store.make_temp_folder().await?;
            made = File::create(path.clone(), create, mode, device, via).await;
        }
        match made {
            Ok(file) => Ok(Temp::named(store, file, path)),
            Err(errno) => {
                store.write_failed("making a file", errno);
                Err(Refused::Disk(errno))
            }
        }
    }

    /// One that has a name inside of the cache.
    pub(crate) fn named(store: &Arc<Store>, file: File, path: CString) -> Temp {
        Temp { store: Arc::clone(store), file, path: Some(path), elsewhere: None }
    }

    /// One that has no name, in another folder.
    pub(crate) fn unnamed(store: &Arc<Store>, file: File, folder: TempFolder) -> Temp {
        Temp { store: Arc::clone(store), file, path: None, elsewhere: Some(folder) }
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// The folder that it is in, when that is not inside of the cache.
    pub(crate) fn elsewhere(&self) -> Option<&TempFolder> {
        self.elsewhere.as_ref()
    }

    /// Writes all of `data` at `offset`.
    pub(crate) async fn write(&self, offset: u64, data: Segments) -> Result<(), Refused> {
        let (device, via) = (self.store.device, self.store.via());
        let written = self.file.write_segments_at(offset, data, device, via).await.0.map(drop);
        written.map_err(|errno| self.failed(errno))
    }

    /// The same for a buffer.
    pub(crate) async fn write_buf(&self, offset: u64, buf: Buf) -> Result<(), Refused> {
        let (device, via) = (self.store.device, self.store.via());
        self.file.write_at(offset, buf, device, via).await.0.map(drop).map_err(|errno| self.failed(errno))
    }

    fn failed(&self, errno: Errno) -> Refused {
        const DOING: &str = "writing an entry";
        match &self.elsewhere {
            Some(folder) => self.store.temp_failed(folder, DOING, errno),
            None => self.store.write_failed(DOING, errno),
        }
        Refused::Disk(errno)
    }
}

/// An entry that is whole but for its name.
pub(crate) enum Whole {
    /// All of its bytes, of which nothing is on the disk.
    Bytes(Vec<Segments>),
    /// A file without its start.
    Begun(Temp, Segments),
    /// A file.
    Written(Temp),
}

impl Whole {
    /// Gives it its name, and makes the folders on the way where they are missing.
    async fn put(self, store: &Arc<Store>, to: CString, folders: Folders) -> Result<(), Errno> {
        let (device, via) = (store.device, store.via());
        let (temp, data) = match self {
            Whole::Bytes(data) => (None, data),
            Whole::Begun(temp, start) => (Some(temp), vec![start]),
            Whole::Written(temp) => (Some(temp), Vec::new()),
        };
        let path = temp.as_ref().map_or_else(|| Some(store.temp_path()), |temp| temp.path.clone());
        let new = Box::new(NewFile {
            temp: path.ok_or(Errno::NOENT)?,
            to,
            begun: temp.as_ref().map(|temp| temp.file.fd().clone()),
            mode: FILE_MODE,
            data,
            uncached: store.config.direct,
        });
        let (mut done, back) = File::put(new, device, via).await;
        if done == Err(Errno::NOENT)
            && let Some(new) = back
        {
            let _ = Box::pin(store.make_temp_folder()).await;
            for &end in folders.ends() {
                let folder = CString::new(&new.to.as_bytes()[..end]).map_err(|_| Errno::INVAL)?;
                match Box::pin(file::mkdir(folder, FOLDER_MODE, device, via)).await {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(errno) => return Err(errno),
                }
            }
            done = File::put(new, device, via).await.0;
        }
        if let (Ok(()), Some(mut temp)) = (done, temp) {
            temp.path = None;
        }
        done
    }
}

impl Drop for Temp {
    fn drop(&mut self) {
        let Some(path) = self.path.take() else { return };
        let store = Arc::clone(&self.store);
        rt::spawn(async move {
            match file::unlink(path, store.device, store.via()).await {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(errno) => store.write_failed("removing a file", errno),
            }
        });
    }
}

impl Store {
    /// Makes the folder that entries are written in, when somebody has removed it.
    pub(crate) async fn make_temp_folder(&self) -> Result<(), Refused> {
        let folder = CString::new(self.temp.clone()).map_err(|_| Refused::Gone)?;
        // What the folder is wanted for says how that went.
        let _ = file::mkdir(folder, FOLDER_MODE, self.device, self.via()).await;
        Ok(())
    }
}

/// What has to hold when an entry takes its place.
#[derive(Clone, Copy)]
pub(crate) enum Provided<'a> {
    /// The entry in that place has this version.
    Version(u32),
    /// No newer response to the same key is complete.
    Newest(&'a New),
}

/// Makes a whole file the entry of a key in the place of this version. Once begun it goes on to its end, also when its
/// caller is dropped, and the question that it is of stays open until then. Answers the new version.
pub(crate) async fn put_in_place(
    store: &Arc<Store>,
    whole: Whole,
    key: Key,
    reserved: Blocks,
    expected: u32,
    asked: Arc<Asked>,
) -> Result<u32, Refused> {
    let (sender, mut receiver) = mailbox::channel(1);
    let store = Arc::clone(store);
    rt::spawn(async move {
        // Nobody may wait any more.
        let _ = sender.send(place(&store, whole, key, reserved, Provided::Version(expected)).await);
        drop(asked);
    });
    receiver.recv().await.unwrap_or(Err(Refused::Stopping))
}

/// Makes a whole file the entry of a key, as far as it is polled: the rename and the index are one step for all others. With
/// `expected` only in the place of that version. Answers the new version.
pub(crate) async fn place(
    store: &Arc<Store>,
    mut whole: Whole,
    key: Key,
    reserved: Blocks,
    provided: Provided<'_>,
) -> Result<u32, Refused> {
    // Before others wait for this key: it may be a copy of all of it.
    if let Whole::Written(temp) = &whole
        && let Some(folder) = &temp.elsewhere
    {
        whole = Whole::Written(Box::pin(bring_home(store, &temp.file, folder)).await?);
    }
    let lease = store.leases.take(&key).await;
    // Under the lease: no other response takes the place between the look and the rename.
    match provided {
        Provided::Version(version) => {
            if store.index.peek(&key.0).is_none_or(|known| known.version != version) {
                return Err(Refused::Gone);
            }
        }
        Provided::Newest(new) if !new.is_newest() => return Err(Refused::Older),
        Provided::Newest(_) => {}
    }
    store.may_finish()?;
    let (path, folders) = store.path_of(&key);
    if let Err(errno) = whole.put(store, path, folders).await {
        store.write_failed("putting an entry in place", errno);
        return Err(Refused::Disk(errno));
    }
    let (version, victim) =
        store.index.insert(&key.0, reserved, Origin::Written { epoch: store.epoch() }, now_s());
    store.memory.remove(&key.0);
    drop(lease);
    store.remove_victims(victim);
    Ok(version)
}
