//! A file that is temporary until it is complete, and is then renamed in one step: copies of responses (`proxy_store`)
//! and uploads (`dav`).
//!
//! Writes use the disk engine of the location. The last step consists of several system calls, which a helper thread makes,
//! because each of them may block on the disk.

use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use io::op::DeviceId;
use io::{DiskVia, Errno, Segments};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, Timespec, Timestamps};

use crate::capacity::DiskSpace;
use crate::config::Cx;
use crate::thread::Thread;
use conf::Error;
use transfer::received;

/// The destination of a file.
#[derive(Clone, Debug)]
pub struct Destination {
    /// The final path.
    pub path: PathBuf,
    /// The directory of temporary files.
    pub temp: PathBuf,
    /// The number of digits of each directory level.
    pub levels: Vec<u8>,
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

/// The reason for a failure: the call, the path, and the error.
pub type Fault = (&'static str, PathBuf, Errno);

/// Writes a file. If dropped before the file is complete, it removes the temporary file.
pub struct Writer {
    plan: Destination,
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
        Writer { plan, thread, file: None, device: DeviceId::default(), written: 0 }
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
        let (result, _) = file.write_segments_at(self.written, data, self.device, self.plan.via).await;
        result.map(drop)
    }

    /// Returns the temporary file, which is created for the first piece.
    async fn opened(&mut self) -> Result<(rt::File, PathBuf), Fault> {
        if let Some(opened) = self.file.take() {
            return Ok(opened);
        }
        let mut space = DiskSpace::new(&self.thread, &self.plan.temp);
        loop {
            match received::create(&self.plan.temp, &self.plan.levels, true).await {
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
        // No fdatasync(2) is necessary: written bytes are visible to all processes even before they are on the disk.
        file.close().await;
        let plan = self.plan.clone();
        let from = temp.clone();
        // Several calls that may block on the disk run on a thread that may block.
        let done = rt::offload_file(move || finish(&from, &plan)).await;
        let done = done.unwrap_or_else(|| Err(("rename", temp.clone(), Errno::IO)));
        if done.is_err() {
            remove(temp, self.device, self.plan.via);
        }
        done
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if let Some((_, path)) = self.file.take() {
            remove(path, self.device, self.plan.via);
        }
    }
}

/// Removes a temporary file without waiting for it.
fn remove(path: PathBuf, device: DeviceId, via: DiskVia) {
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else { return };
    rt::spawn(async move {
        // A failure has no consequences, because the name is not used again.
        let _ = rt::file::unlink(path, device, via).await;
    });
}

/// Sets permissions and time, creates the parent directories, and finally renames the file.
#[expect(clippy::disallowed_methods, reason = "it runs on a helper thread, by rt::offload_file")]
fn finish(temp: &Path, plan: &Destination) -> Result<(), Fault> {
    // Before the rename, so that no process opens the file with the wrong permissions.
    dress(temp, plan)?;
    // The rename is atomic: readers of an older file continue with it, new readers open the new file.
    let mut renamed = rustix::fs::rename(temp, &plan.path);
    if renamed == Err(Errno::NOENT) && plan.creates_directories {
        let mode = Mode::from_raw_mode(directory_mode(plan.mode));
        received::create_parents(&plan.path, mode).map_err(|errno| ("mkdir", plan.path.clone(), errno))?;
        renamed = rustix::fs::rename(temp, &plan.path);
    }
    match renamed {
        Err(Errno::XDEV) => copy_across(temp, plan),
        renamed => renamed.map_err(|errno| ("rename", plan.path.clone(), errno)),
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

#[expect(clippy::disallowed_methods, reason = "it runs on a helper thread, by rt::offload_file")]
fn dress(path: &Path, plan: &Destination) -> Result<(), Fault> {
    let mode = Mode::from_raw_mode(plan.mode);
    rustix::fs::chmod(path, mode).map_err(|errno| ("chmod", path.to_owned(), errno))?;
    let Some(modified) = plan.modified else { return Ok(()) };
    let time = Timespec { tv_sec: modified, tv_nsec: 0 };
    let times = Timestamps { last_access: time, last_modification: time };
    let set = rustix::fs::utimensat(CWD, path, &times, AtFlags::empty());
    set.map_err(|errno| ("utimensat", path.to_owned(), errno))
}

/// Copies the file to another file system, first to a temporary name in the final directory, so that the rename is atomic.
#[expect(clippy::disallowed_methods, reason = "it runs on a helper thread, by rt::offload_file")]
fn copy_across(temp: &Path, plan: &Destination) -> Result<(), Fault> {
    let mut name = plan.path.clone().into_os_string();
    // The temporary file's name makes this name unique.
    name.push(".");
    name.push(temp.file_name().unwrap_or_default());
    let beside = PathBuf::from(name);
    let fault = |call| {
        let beside = beside.clone();
        move |errno| (call, beside, errno)
    };
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let from =
        rustix::fs::open(temp, flags, Mode::empty()).map_err(|errno| ("open", temp.to_owned(), errno))?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let to = rustix::fs::open(&beside, flags, Mode::RUSR | Mode::WUSR).map_err(fault("open"))?;
    let done = pour(&from, &to)
        .map_err(fault("write"))
        .and_then(|()| dress(&beside, plan))
        .and_then(|()| rustix::fs::rename(&beside, &plan.path).map_err(fault("rename")));
    if done.is_err() {
        let _ = rustix::fs::unlink(&beside);
    }
    let _ = rustix::fs::unlink(temp);
    done
}

#[expect(clippy::disallowed_methods, reason = "it runs on a helper thread, by rt::offload_file")]
fn pour(from: &OwnedFd, to: &OwnedFd) -> Result<(), Errno> {
    let mut buf = vec![0; WRITE_MAX];
    loop {
        let len = match rustix::io::read(from.as_fd(), &mut buf) {
            Ok(0) => return Ok(()),
            Ok(len) => len,
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(errno),
        };
        let mut rest = &buf[..len];
        while !rest.is_empty() {
            let written = rustix::io::retry_on_intr(|| rustix::io::write(to.as_fd(), rest))?;
            rest = &rest[written..];
        }
    }
}
