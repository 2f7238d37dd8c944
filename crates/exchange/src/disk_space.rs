//! Frees space on a full file system: the caches on it evict entries in favour of temporary files.

use std::rc::Rc;

use io::Errno;

use crate::thread::Thread;
use transfer::temp_directory::TempDirectory;

/// Bytes that a cache frees per call: enough for several writes, because a write requests space only after it failed.
const RECLAIMED_BYTES: u64 = 4 << 20;

/// Maximum number of attempts per write: other writes may use the freed space first.
const ATTEMPTS_MAX: u32 = 3;

/// A request for space for one write or one new file.
pub struct DiskSpace<'a> {
    thread: &'a Rc<Thread>,
    directory: &'a TempDirectory,
    tries: u32,
}

impl<'a> DiskSpace<'a> {
    /// Creates a request for a file in this directory.
    pub fn new(thread: &'a Rc<Thread>, directory: &'a TempDirectory) -> DiskSpace<'a> {
        DiskSpace { thread, directory, tries: 0 }
    }

    /// Frees space after this error; returns whether a retry of the call may succeed.
    pub async fn make(&mut self, errno: Errno) -> bool {
        let is_full = matches!(errno, Errno::NOSPC | Errno::DQUOT);
        if !is_full
            || self.tries == ATTEMPTS_MAX
            || self.thread.thread_config().config.http.space_reclaimers.is_empty()
        {
            return false;
        }
        self.tries += 1;
        let making = &self.thread.capacity.making;
        if making.count() > 0 {
            // The space that a concurrent request frees suffices for several.
            making.wait_empty().await;
            return true;
        }
        let _making = making.enter();
        self.evict().await
    }

    /// Lets the first cache with entries on this file system evict some.
    #[expect(clippy::disallowed_methods, reason = "it runs on a helper thread of TempDirectory")]
    async fn evict(&self) -> bool {
        let directory = self.directory.path().to_owned();
        // A directory that does not exist yet will be on the file system of its parent.
        let stat = move || directory.ancestors().find_map(|path| rustix::fs::stat(path).ok());
        let Some(Some(stat)) = self.directory.run(stat).await else { return false };
        let thread_config = self.thread.thread_config();
        for reclaimer in &thread_config.config.http.space_reclaimers {
            if reclaimer.device() == Some(stat.st_dev) && reclaimer.reclaim(RECLAIMED_BYTES).await {
                return true;
            }
        }
        false
    }
}
