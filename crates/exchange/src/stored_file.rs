//! A file that is temporary until it is complete, and is then renamed in one step: copies of responses (`proxy_store`)
//! and uploads (`dav`).
//!
//! Writes use the disk engine of the location. The last step opens the final directory by the rules of the location, and
//! renames the file to a name in that open directory.

use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use io::facts::DeviceId;
use io::op::OpenHow;
use io::{Disk, DiskVia, Errno, Segments};
use rustix::fs::OFlags;

use crate::disk_space::DiskSpace;
use crate::files::{self, ChangePath, CopyError};
use crate::thread::Thread;
use conf::Error;
use site::config::Cx;
use transfer::temp_directory::TempDirectory;

/// The destination of a file.
#[derive(Clone)]
pub struct Destination {
    /// The final path.
    pub place: ChangePath,
    /// The directory of temporary files.
    pub temp: TempDirectory,
    /// Permission bits of the file. Directories get the same bits, and search permission wherever they have read
    /// permission.
    pub mode: u32,
    /// Whether missing parent directories are created.
    pub creates_directories: bool,
    /// The modification time to set, in seconds since 1970.
    pub modified: Option<i64>,
    /// Expected length in bytes, if known.
    pub length: Option<u64>,
    /// The engine that writes it.
    pub via: DiskVia,
}

impl Destination {
    /// Returns the final path for messages.
    fn shown(&self) -> PathBuf {
        PathBuf::from(OsStr::from_bytes(self.place.full()))
    }
}

/// The reason for a failure: the call, the path, and the error.
pub type Fault = (&'static str, PathBuf, Errno);

/// Writes a file. If dropped before the file is complete, it removes the temporary file.
pub struct Writer {
    plan: Box<Destination>,
    thread: Rc<Thread>,
    file: Option<(rt::File, PathBuf)>,
    /// The device of the file, once it is created.
    device: DeviceId,
    written: u64,
}

/// Maximum number of bytes per write.
const WRITE_MAX: usize = 256 << 10;

impl Writer {
    /// Returns a writer to this destination; no file is created yet.
    pub fn new(plan: Destination, thread: Rc<Thread>) -> Writer {
        Writer { plan: Box::new(plan), thread, file: None, device: DeviceId::default(), written: 0 }
    }

    /// Appends bytes.
    pub async fn append(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        let (file, path) = self.opened().await?;
        // Stored immediately, so that the file is removed if a write fails.
        self.file = Some((file.clone(), path.clone()));
        for piece in bytes.chunks(WRITE_MAX) {
            let mut space = DiskSpace::new(&self.thread, &self.plan.temp);
            while let Err(errno) = self.write(&file, piece).await {
                if !space.make(errno).await {
                    return Err(("write", path, errno));
                }
            }
            self.written += piece.len() as u64;
        }
        Ok(())
    }

    /// Writes a piece at the end of the file.
    async fn write(&self, file: &rt::File, bytes: &[u8]) -> Result<(), Errno> {
        // Not a buffer of the pool, which slow clients may have used up.
        let data = Segments::from(bytes.to_vec());
        let (result, _) = file.write_segments_at(self.written, data, self.disk()).await;
        result.map(drop)
    }

    fn disk(&self) -> Disk {
        Disk { device: self.device, via: self.plan.via }
    }

    /// Returns the temporary file, which is created for the first piece.
    async fn opened(&mut self) -> Result<(rt::File, PathBuf), Fault> {
        if let Some(opened) = self.file.take() {
            return Ok(opened);
        }
        let mut space = DiskSpace::new(&self.thread, &self.plan.temp);
        loop {
            match self.plan.temp.create(true).await {
                Err((_, errno)) if space.make(errno).await => {}
                made => {
                    let (file, path, device) = made.map_err(|(path, errno)| ("open", path, errno))?;
                    self.device = device;
                    return Ok((file, path));
                }
            }
        }
    }

    /// Renames the file to its final path, unless its length differs from the expected length. Creates an empty file if nothing was written.
    pub async fn publish(mut self) -> Result<(), Fault> {
        if self.plan.length.is_some_and(|length| length != self.written) {
            return Ok(());
        }
        let (file, temp) = self.opened().await?;
        // Stored until the end, so that the file is removed after a failure, or if the caller drops this future.
        self.file = Some((file.clone(), temp.clone()));
        // No fdatasync(2) is necessary: written bytes are visible to all processes even before they are on the disk.
        finish((&file, &temp, self.disk()), &self.plan, self.written).await?;
        self.file = None;
        Ok(())
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if let Some((_, path)) = self.file.take() {
            remove(path, self.disk());
        }
    }
}

/// Removes a temporary file without waiting for it.
fn remove(path: PathBuf, disk: Disk) {
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else { return };
    rt::spawn(async move {
        // A failure has no consequences, because the name is not used again.
        let _ = rt::file::unlink(path, disk).await;
    });
}

/// Sets permissions and time, creates the parent directories, and finally renames the file.
async fn finish(
    (file, temp, disk): (&rt::File, &Path, Disk),
    plan: &Destination,
    length: u64,
) -> Result<(), Fault> {
    // Before the rename, so that no process opens the file with the wrong permissions.
    let dressed = files::dress(file, Some(plan.mode), plan.modified.map(|seconds| (seconds, 0))).await;
    dressed.map_err(|errno| ("fchmod", temp.to_owned(), errno))?;
    let parent = match plan.creates_directories {
        true => plan.place.parent_or_new(directory_mode(plan.mode)).await,
        false => plan.place.parent().await,
    };
    let (parent, name) = parent.map_err(|errno| ("open", plan.shown(), errno))?;
    let from =
        CString::new(temp.as_os_str().as_bytes()).map_err(|_| ("rename", temp.to_owned(), Errno::INVAL))?;
    // The rename is atomic: readers of an older file continue with it, new readers open the new file.
    match rt::file::rename_into(from.clone(), (&parent, name.clone()), disk).await {
        Err(Errno::XDEV) => {
            copy_across(file, (&parent, name), plan, length).await?;
            // A failure only leaves a file in the directory of temporary files.
            let _ = rt::file::unlink(from, disk).await;
            Ok(())
        }
        renamed => renamed.map_err(|errno| ("rename", plan.shown(), errno)),
    }
}

/// Returns the permissions of directories for files with these permissions: readers of the files may also search the
/// directories, as in nginx.
pub fn directory_mode(mode: u32) -> u32 {
    mode | (mode & 0o444) >> 2
}

/// Parses the permission bits of `proxy_store_access` and `dav_access`. As in nginx, without `user:` the owner may read
/// and write.
pub fn access(cx: &Cx<'_>) -> Result<u32, Error> {
    let (mut mode, mut user) = (0, 0o600);
    for text in cx.statement.texts() {
        let fault = || cx.error(format_args!("invalid value \"{text}\""));
        let (who, what) = text.split_once(':').ok_or_else(fault)?;
        let bits = match what {
            "rw" => 6,
            "r" => 4,
            _ => return Err(fault()),
        };
        mode |= match who {
            "user" => {
                user = 0;
                bits << 6
            }
            "group" => bits << 3,
            "all" => bits,
            _ => return Err(fault()),
        };
    }
    Ok(mode | user)
}

/// Copies the file to another file system, first to a temporary name in the final directory, so that the rename is atomic.
async fn copy_across(
    file: &rt::File,
    (parent, name): (&rt::File, CString),
    plan: &Destination,
    length: u64,
) -> Result<(), Fault> {
    let fault = |call| move |errno| (call, plan.shown(), errno);
    let beside = files::temp_name(name.as_bytes()).map_err(fault("open"))?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let how = OpenHow { flags: flags.bits() as i32, mode: 0o600, is_cold: true, ..OpenHow::default() };
    let disk = Disk { device: DeviceId::default(), via: plan.via };
    let copy = parent.open_at(beside.clone(), how, disk).await.map_err(fault("open"))?;
    let mut done = files::copy_bytes((file, &copy), length, disk).await.map_err(|error| match error {
        CopyError::Read(errno) => ("read", plan.shown(), errno),
        CopyError::Write(errno) => ("write", plan.shown(), errno),
    });
    if done.is_ok() {
        let modified = plan.modified.map(|seconds| (seconds, 0));
        done = files::dress(&copy, Some(plan.mode), modified).await.map_err(fault("fchmod"));
    }
    if done.is_ok() {
        let renamed = parent.rename_at(beside.clone(), (parent, name), disk).await;
        done = renamed.map_err(fault("rename"));
    }
    if done.is_err() {
        let _ = parent.unlink_at(beside, false, disk).await;
    }
    done
}
