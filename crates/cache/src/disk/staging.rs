//! Files that are not entries yet: [`TempFile`], in the cache's own staging directory or in another one
//! (`use_temp_path=on`).
//!
//! A file in another directory is unnamed (`O_TMPFILE` of open(2)), so the kernel removes it when the process exits. A
//! complete file is linked into the cache's directory, or copied there if the two are on different file systems. A
//! failure of the other directory does not count as a failure of the cache's disk: it is logged once, and for a while
//! files are created inside the cache.

use std::ffi::{CStr, CString, OsString};
use std::os::unix::ffi::OsStringExt;
use std::sync::Arc;

use io::segments::Source;
use io::{Errno, Segments};
use rt::File;
use rt::file::Create;

use crate::disk::directory::{DIRECTORY_MODE, Directory, FILE_MODE};
use crate::disk::finishing::Finishing;
use crate::error::Refused;
use crate::key::Parents;
use crate::note::Note;

/// A directory for incomplete files, other than the cache's own.
pub(crate) type StagingDir = Arc<CStr>;

/// Number of bytes per step of a copy, which uses one buffer of the pool.
const COPY_BYTES: u64 = 256 << 10;

/// A file that is not an entry yet; dropping this removes it.
pub(crate) struct TempFile {
    dir: Arc<Directory>,
    file: File,
    /// Temporary path; `None` if the file is unnamed or was renamed to its final name.
    path: Option<CString>,
    /// The staging directory outside of the cache; then the file is unnamed.
    staging: Option<StagingDir>,
}

impl TempFile {
    /// Creates a file in this staging directory, or inside of the cache if that fails.
    pub(crate) async fn create_in(
        dir: &Arc<Directory>,
        staging: Option<&StagingDir>,
    ) -> Result<TempFile, Refused> {
        if let Some(staging) = staging.filter(|_| dir.health.is_staging_usable(dir.clock_ms())) {
            match unnamed(staging, dir).await {
                Ok(file) => {
                    let (dir, staging) = (Arc::clone(dir), Some(Arc::clone(staging)));
                    return Ok(TempFile { dir, file, path: None, staging });
                }
                Err(errno) => staging_failed(dir, staging, "creating a file", errno),
            }
        }
        TempFile::create(dir).await
    }

    /// Creates a file inside of the cache, and the cache's staging directory if it was removed by hand.
    pub(crate) async fn create(dir: &Arc<Directory>) -> Result<TempFile, Refused> {
        // If the caller is dropped while the file is being created, the file is still created, and then removed.
        Finishing::new(TempFile::make(Arc::clone(dir))).await
    }

    async fn make(dir: Arc<Directory>) -> Result<TempFile, Refused> {
        let path = dir.temp_path();
        let mut made = dir.create(path.clone(), Create::New).await;
        if made.as_ref().err() == Some(&Errno::NOENT) {
            // The second attempt reports a failure.
            let _ = dir.make_dir(dir.staging_path()).await;
            made = dir.create(path.clone(), Create::New).await;
        }
        match made {
            Ok(file) => Ok(TempFile::named(&dir, file, path)),
            Err(errno) => {
                dir.write_failed("creating a file", errno);
                Err(Refused::Disk)
            }
        }
    }

    fn named(dir: &Arc<Directory>, file: File, path: CString) -> TempFile {
        TempFile { dir: Arc::clone(dir), file, path: Some(path), staging: None }
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Whether the file is outside of the cache.
    pub(crate) fn is_outside(&self) -> bool {
        self.staging.is_some()
    }

    /// Returns the staging directory of the file, if it is outside of the cache.
    pub(crate) fn staging(&self) -> Option<&StagingDir> {
        self.staging.as_ref()
    }

    /// Writes all of `data` at `offset`.
    pub(crate) async fn write(&self, offset: u64, data: Segments) -> Result<(), Refused> {
        let written = self.dir.write(&self.file, offset, data).await;
        written.map_err(|errno| write_failed(&self.dir, self.staging.as_ref(), errno))
    }

    /// Writes `data` at the start of the file and renames it to the name of an entry.
    pub(crate) async fn publish(mut self, to: (CString, Parents), data: Vec<Segments>) -> Result<(), Errno> {
        debug_assert!(!self.is_outside(), "the file was moved into the cache");
        let path = self.path.clone().ok_or(Errno::NOENT)?;
        self.dir.publish(to, path, Some(&self.file), data).await?;
        self.path = None;
        Ok(())
    }

    /// Moves a complete file into the cache's own staging directory, under a temporary name.
    pub(crate) async fn move_into_cache(self) -> Result<TempFile, Refused> {
        let Some(staging) = self.staging.clone() else { return Ok(self) };
        let dir = Arc::clone(&self.dir);
        let path = dir.temp_path();
        let mut linked = self.link(&path).await;
        if linked == Err(Errno::NOENT) {
            let _ = dir.make_dir(dir.staging_path()).await;
            linked = self.link(&path).await;
        }
        let moved = match linked {
            Ok(()) => TempFile::named(&dir, self.file.clone(), path),
            Err(Errno::XDEV) => self.copy(&staging).await?,
            Err(errno) => {
                dir.write_failed("moving an entry into the cache", errno);
                return Err(Refused::Disk);
            }
        };
        dir.health.staging_succeeded();
        Ok(moved)
    }

    async fn link(&self, path: &CStr) -> Result<(), Errno> {
        self.file.link(path.to_owned(), self.dir.disk()).await
    }

    /// Copies the file from another file system. Missing chunks of a partial entry remain holes.
    async fn copy(&self, staging: &StagingDir) -> Result<TempFile, Refused> {
        let (dir, disk) = (&self.dir, self.dir.disk());
        let failed = |errno| {
            staging_failed(dir, staging, "reading a file", errno);
            Refused::Disk
        };
        let len = self.file.stat(disk).await.map_err(failed)?.size;
        let copy = TempFile::create(dir).await?;
        if dir.is_uncached {
            copy.file.set_uncached();
        }
        let mut at = 0;
        while at < len {
            let most = (len - at).min(COPY_BYTES);
            let buf = self.file.read_piece(at, most as u32, disk).await.map_err(failed)?;
            let end = at + buf.len() as u64;
            // The last range is always written, because it sets the length of the file.
            let is_hole = end < len && buf.iter().all(|&byte| byte == 0);
            if !is_hole {
                let mut data = Segments::new();
                data.push(Source::Buf(buf));
                copy.write(at, data).await?;
            }
            at = end;
        }
        Ok(copy)
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        let Some(path) = self.path.take() else { return };
        let dir = Arc::clone(&self.dir);
        rt::spawn(async move {
            match dir.unlink(path).await {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(errno) => dir.write_failed("removing a file", errno),
            }
        });
    }
}

/// Records that writing the file of an entry failed, in this staging directory or inside of the cache.
pub(crate) fn write_failed(dir: &Directory, staging: Option<&StagingDir>, errno: Errno) -> Refused {
    let doing = "writing an entry";
    match staging {
        Some(staging) => staging_failed(dir, staging, doing, errno),
        None => dir.write_failed(doing, errno),
    }
    Refused::Disk
}

/// Records that a call on a file of this staging directory failed.
fn staging_failed(dir: &Directory, staging: &StagingDir, doing: &'static str, errno: Errno) {
    dir.counts.write_errors.count();
    if dir.health.staging_failed(dir.clock_ms()) {
        let path = OsString::from_vec(staging.to_bytes().to_vec()).into();
        dir.note(Note::StagingFailed { path, doing, errno });
    }
}

/// Creates an unnamed file in a directory, which is created if it is missing, on behalf of the cache in `dir`.
async fn unnamed(staging: &StagingDir, dir: &Directory) -> Result<File, Errno> {
    let path = || CString::from(&**staging);
    // Usually the directory is on the disk of the cache, so that its files can be linked there.
    let disk = dir.disk();
    let made = File::create(path(), Create::Unnamed, FILE_MODE, disk).await;
    if made.as_ref().err() != Some(&Errno::NOENT) {
        return made;
    }
    // The second attempt returns the result.
    let _ = rt::file::mkdir(path(), DIRECTORY_MODE, disk).await;
    File::create(path(), Create::Unnamed, FILE_MODE, disk).await
}
