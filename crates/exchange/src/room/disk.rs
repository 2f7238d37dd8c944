//! Room on a file system that is full: the caches of the configuration that are there give some to temporary files.

use std::path::Path;
use std::rc::Rc;

use io::Errno;

use crate::thread::Thread;

/// Bytes that a cache gives at once: several writes' worth, since each one asks only after it has failed.
const GIVEN_BYTES: u64 = 4 << 20;

/// How often one write asks: others may take the room that was made.
const TRIES: u32 = 3;

/// A request for room of one write or one new file.
pub struct DiskRoom<'a> {
    thread: &'a Rc<Thread>,
    folder: &'a Path,
    tries: u32,
}

impl<'a> DiskRoom<'a> {
    /// For a file in this directory.
    pub fn new(thread: &'a Rc<Thread>, folder: &'a Path) -> DiskRoom<'a> {
        DiskRoom { thread, folder, tries: 0 }
    }

    /// After this error: whether there may be room now, so that the call is worth another try.
    pub async fn make(&mut self, errno: Errno) -> bool {
        let is_full = matches!(errno, Errno::NOSPC | Errno::DQUOT);
        if !is_full || self.tries == TRIES || self.thread.generation().config.http.room_givers.is_empty() {
            return false;
        }
        self.tries += 1;
        let making = &self.thread.room.making;
        if making.count() > 0 {
            // The room made for another one is enough for several.
            making.none_left().await;
            return true;
        }
        let _making = making.enter();
        self.evict().await
    }

    /// Has the first cache that has something on this file system remove it.
    #[expect(clippy::disallowed_methods, reason = "it runs on a thread of its own, by rt::offload")]
    async fn evict(&self) -> bool {
        let folder = self.folder.to_owned();
        // A directory that is to be made will be where the one above it is.
        let stat = move || folder.ancestors().find_map(|path| rustix::fs::stat(path).ok());
        let Some(Some(stat)) = rt::offload(stat).await else { return false };
        let generation = self.thread.generation();
        for giver in &generation.config.http.room_givers {
            if giver.device() == Some(stat.st_dev) && giver.give(GIVEN_BYTES).await {
                return true;
            }
        }
        false
    }
}
