//! A file that is temporary until it is complete, and then gets its name in one step: copies of responses (`proxy_store`)
//! and uploads (`dav`).
//!
//! Writes go through the disk engine of the location. The last step is a few calls that a thread for long work makes in
//! a row, since each may wait for the disk.

use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use io::op::DeviceId;
use io::{DiskVia, Errno};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, Timespec, Timestamps};

use crate::config::Cx;
use crate::room::DiskRoom;
use crate::thread::Thread;
use conf::Error;
use transfer::received;

/// The destination of a file.
#[derive(Clone, Debug)]
pub struct Destination {
    /// Where it will be.
    pub path: PathBuf,
    /// The directory of temporary files.
    pub temp: PathBuf,
    /// The digits of its levels.
    pub levels: Vec<u8>,
    /// Permission bits; directories get the same, and those with a right to read get the right to enter.
    pub mode: u32,
    /// Whether missing directories above it are made.
    pub makes_folders: bool,
    /// The time of its content, which becomes the file's.
    pub modified: Option<i64>,
    /// Bytes of the whole, if known.
    pub length: Option<u64>,
    /// The engine that writes it.
    pub via: DiskVia,
}

/// Why a file was given up: what failed, where, and why.
pub type Fault = (&'static str, PathBuf, Errno);

/// Writes a file. Dropped before it is complete, it takes the temporary one away.
pub struct Writer {
    plan: Destination,
    thread: Rc<Thread>,
    file: Option<(rt::File, PathBuf)>,
    written: u64,
}

/// Bytes of one write: a buffer of the pool.
const WRITE_MAX: usize = 256 << 10;

impl Writer {
    /// A writer to that destination; nothing is there yet.
    pub fn new(plan: Destination, thread: Rc<Thread>) -> Writer {
        Writer { plan, thread, file: None, written: 0 }
    }

    /// Takes bytes.
    pub async fn append(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        let (file, path) = self.opened().await?;
        // Kept at once: a copy that fails takes its file away.
        self.file = Some((file.clone(), path.clone()));
        for piece in bytes.chunks(WRITE_MAX) {
            let mut room = DiskRoom::new(&self.thread, &self.plan.temp);
            while let Err(errno) = write_piece(&file, self.written, piece, self.plan.via).await {
                if !room.make(errno).await {
                    return Err(("write", path, errno));
                }
            }
            self.written += piece.len() as u64;
        }
        Ok(())
    }

    /// The temporary file, made for the first piece.
    async fn opened(&mut self) -> Result<(rt::File, PathBuf), Fault> {
        if let Some(opened) = self.file.take() {
            return Ok(opened);
        }
        let mut room = DiskRoom::new(&self.thread, &self.plan.temp);
        loop {
            match received::create(&self.plan.temp, &self.plan.levels, true).await {
                Err((_, errno)) if room.make(errno).await => {}
                made => return made.map_err(|(path, errno)| ("open", path, errno)),
            }
        }
    }

    /// Gives the file its name, unless it turned out shorter or longer than it was said to be. An empty one is made here.
    pub async fn publish(mut self) -> Result<(), Fault> {
        if self.plan.length.is_some_and(|length| length != self.written) {
            return Ok(());
        }
        let (file, temp) = self.opened().await?;
        // A process that opens the name finds all bytes: the kernel shows written bytes, flushed or not.
        file.close().await;
        let plan = self.plan.clone();
        let from = temp.clone();
        // Several calls that may wait for the disk, on a thread that may.
        let done = rt::offload(move || finish(&from, &plan)).await;
        let done = done.unwrap_or_else(|| Err(("rename", temp.clone(), Errno::IO)));
        if done.is_err() {
            remove(temp, self.plan.via);
        }
        done
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if let Some((_, path)) = self.file.take() {
            remove(path, self.plan.via);
        }
    }
}

/// Removes a temporary file without waiting for it.
fn remove(path: PathBuf, via: DiskVia) {
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else { return };
    rt::spawn(async move {
        // Nothing follows from a failure: the name is not used again.
        let _ = rt::file::unlink(path, DeviceId::default(), via).await;
    });
}

async fn write_piece(file: &rt::File, offset: u64, bytes: &[u8], via: DiskVia) -> Result<(), Errno> {
    let mut buf = rt::pool().get(bytes.len()).ok_or(Errno::NOMEM)?;
    if buf.append(bytes) < bytes.len() {
        return Err(Errno::NOMEM);
    }
    let (result, _) = file.write_at(offset, buf, DeviceId::default(), via).await;
    result.map(drop)
}

/// Permissions, time, the folders above it, and the name at last.
#[expect(clippy::disallowed_methods, reason = "it runs on a thread of its own, by rt::offload")]
fn finish(temp: &Path, plan: &Destination) -> Result<(), Fault> {
    // Before it has its name, so that no process opens it with the wrong permissions.
    dress(temp, plan)?;
    // In one step: readers of an older file keep that, and new ones find the new one.
    let mut renamed = rustix::fs::rename(temp, &plan.path);
    if renamed == Err(Errno::NOENT) && plan.makes_folders {
        let mode = Mode::from_raw_mode(folder_mode(plan.mode));
        received::make_folders(&plan.path, mode).map_err(|errno| ("mkdir", plan.path.clone(), errno))?;
        renamed = rustix::fs::rename(temp, &plan.path);
    }
    match renamed {
        Err(Errno::XDEV) => copy_over(temp, plan),
        renamed => renamed.map_err(|errno| ("rename", plan.path.clone(), errno)),
    }
}

/// The permissions of directories for files with these: readers of the files may also enter their directories, as in
/// nginx.
pub fn folder_mode(mode: u32) -> u32 {
    mode | (mode & 0o444) >> 2
}

/// Permission bits as `proxy_store_access` and `dav_access` write them. nginx's rule: without `user:` the owner may read
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

#[expect(clippy::disallowed_methods, reason = "it runs on a thread of its own, by rt::offload")]
fn dress(path: &Path, plan: &Destination) -> Result<(), Fault> {
    let mode = Mode::from_raw_mode(plan.mode);
    rustix::fs::chmod(path, mode).map_err(|errno| ("chmod", path.to_owned(), errno))?;
    let Some(modified) = plan.modified else { return Ok(()) };
    let time = Timespec { tv_sec: modified, tv_nsec: 0 };
    let times = Timestamps { last_access: time, last_modification: time };
    let set = rustix::fs::utimensat(CWD, path, &times, AtFlags::empty());
    set.map_err(|errno| ("utimensat", path.to_owned(), errno))
}

/// On another file system the copy is made beside its place, so that it still appears as a whole.
#[expect(clippy::disallowed_methods, reason = "it runs on a thread of its own, by rt::offload")]
fn copy_over(temp: &Path, plan: &Destination) -> Result<(), Fault> {
    let mut name = plan.path.clone().into_os_string();
    // The name of the temporary file is unique.
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

#[expect(clippy::disallowed_methods, reason = "it runs on a thread of its own, by rt::offload")]
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
