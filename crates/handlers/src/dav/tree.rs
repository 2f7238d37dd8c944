//! File and directory operations of the dav module: checks for existence, removal, copies, moves. All use the engine.
//!
//! ```text
//!   remove_tree   directory --entries--> files and links: unlink   directories: added to the list, before continuing this one
//!                 no entries left --> rmdir
//!   copy_tree     directory --entries--> files: copy_file   directories: mkdir, added to the list   links: copied as their target file
//!                 the list is empty --> times of the directories
//!   copy_file     NAME.PID-NUMBER --bytes, permissions, time--> rename to NAME
//! ```
//!
//! A walk keeps a list of pending directories instead of recursing, so a deep tree needs only heap memory. Failures
//! inside a tree are logged and the walk continues, as in nginx.

use std::ffi::{CString, OsString};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use io::op::{DeviceId, DirEntry, EntryAttributes, OpenHow, Stat};
use io::{DiskVia, Errno};
use rt::file::Create;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Timespec, Timestamps};

use exchange::files;
use exchange::request::Request;
use telemetry::{Level, Reason};
use transfer::body::choose;
use transfer::received;

/// The device and the engine of a location.
#[derive(Clone, Copy, Debug)]
pub(super) struct Disk {
    device: DeviceId,
    pub(super) via: DiskVia,
}

/// An operation that failed.
#[derive(Debug)]
pub(super) struct OperationError {
    call: &'static str,
    path: Vec<u8>,
    pub(super) errno: Errno,
}

impl OperationError {
    /// Logs nginx's line, and returns nginx's status; `missing` is the status for a path that does not exist.
    pub(super) fn log(&self, request: &Request, missing: u16) -> u16 {
        let (level, status) = match self.errno {
            Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG => (Level::Error, missing),
            Errno::ACCESS | Errno::PERM => (Level::Error, 403),
            Errno::EXIST => (Level::Error, 405),
            Errno::NOSPC => (Level::Crit, 507),
            _ => (Level::Crit, 500),
        };
        self.write(request, level);
        status
    }

    /// Logs nginx's line, and returns 500: nginx's status for calls whose errors it does not distinguish.
    pub(super) fn log_failed(&self, request: &Request) -> u16 {
        self.write(request, Level::Crit);
        500
    }

    fn write(&self, request: &Request, level: Level) {
        let (call, path, reason) = (self.call, files::display(&self.path), Reason(self.errno));
        request.log(level, format_args!("{call} \"{path}\" failed ({reason})"));
    }
}

/// The result of an operation.
type Done<T = ()> = Result<T, OperationError>;

/// Number of bytes of entries per read.
const ENTRIES_BYTES: u32 = 32 << 10;

/// Number of bytes per read and write of a copy.
const COPY_BYTES: u64 = 256 << 10;

/// The number of the next temporary copy.
static NEXT: AtomicU64 = AtomicU64::new(0);

impl Disk {
    /// Returns the device of the root of the request's location, and its engine.
    pub(super) fn of(request: &Request) -> Disk {
        let device = files::device(request);
        Disk { device, via: choose::path_engine(request.scope().core.sending.aio, &rt::caps()) }
    }

    /// Checks that `root_beneath` and `disable_symlinks` allow to change a path: the location must be able to open the
    /// directory that contains it.
    pub(super) async fn guard(&self, request: &Request, path: &[u8]) -> Result<(), u16> {
        let opening = &request.scope().core.files.opening;
        if !opening.beneath && opening.links.is_none() {
            return Ok(());
        }
        let path = path.strip_suffix(b"/").unwrap_or(path);
        let mut above = path;
        // Searches the nearest existing directory; missing ones below it may be created.
        while let Some(slash) = memchr::memrchr(b'/', above).filter(|slash| *slash > 0) {
            above = &above[..slash];
            match files::stat_path(request, above).await {
                Ok(_) => return Ok(()),
                Err(failure) if failure.errno == Errno::NOENT && above.len() > files::root_len(request) => {}
                Err(failure) => {
                    request.log(Level::Error, format_args!("{}", failure.at(above)));
                    return Err(files::status_of(failure.errno));
                }
            }
        }
        Ok(())
    }

    /// Returns the attributes of a path: of a link itself and not its target, unless a slash follows.
    pub(super) async fn stat(&self, path: &[u8]) -> Done<Stat> {
        let flags = (OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC).bits() as i32;
        let how = OpenHow { flags, ..OpenHow::default() };
        let call = "lstat()";
        let opened = rt::File::open(None, text(call, path)?, how, self.device, self.via).await;
        let file = opened.map_err(fault(call, path))?;
        file.stat(self.device, self.via).await.map_err(fault(call, path))
    }

    /// Whether a path does not exist; fails if it is a directory.
    pub(super) async fn is_missing(&self, path: &[u8]) -> Result<bool, ()> {
        let Ok(path) = text("stat()", path) else { return Ok(true) };
        match rt::file::stat_path(path, self.device, self.via).await {
            Ok(stat) if FileType::from_raw_mode(stat.mode) == FileType::Directory => Err(()),
            found => Ok(found.is_err()),
        }
    }

    /// Removes a file, or a link but not its target.
    pub(super) async fn unlink(&self, path: &[u8]) -> Done {
        let call = "unlink()";
        let done = rt::file::unlink(text(call, path)?, self.device, self.via).await;
        done.map_err(fault(call, path))
    }

    /// Removes an empty directory.
    async fn rmdir(&self, path: &[u8]) -> Done {
        let call = "rmdir()";
        let done = rt::file::rmdir(text(call, path)?, self.device, self.via).await;
        done.map_err(fault(call, path))
    }

    /// Creates a directory.
    pub(super) async fn mkdir(&self, path: &[u8], mode: u32) -> Done {
        let call = "mkdir()";
        let done = rt::file::mkdir(text(call, path)?, mode, self.device, self.via).await;
        done.map_err(fault(call, path))
    }

    /// Renames a file or a directory.
    pub(super) async fn rename(&self, from: &[u8], to: &[u8]) -> Done {
        let call = "rename()";
        let (from, to_text) = (text(call, from)?, text(call, to)?);
        let done = rt::file::rename(from, to_text, self.device, self.via).await;
        done.map_err(fault(call, to))
    }

    /// Opens a directory to read its entries.
    async fn open_directory(&self, path: &[u8]) -> Done<rt::File> {
        let flags = (OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC).bits() as i32;
        let how = OpenHow { flags, ..OpenHow::default() };
        let call = "opendir()";
        let opened = rt::File::open(None, text(call, path)?, how, self.device, self.via).await;
        opened.map_err(fault(call, path))
    }

    /// Returns the next entries of a directory; none at its end.
    async fn entries(&self, folder: &rt::File, path: &[u8]) -> Done<Vec<DirEntry>> {
        let look = EntryAttributes::Itself;
        let read = folder.read_dir(ENTRIES_BYTES, look, self.device, self.via).await;
        read.map_err(fault("readdir()", path))
    }

    /// Returns the next entries of a directory, which is opened first if necessary; nothing at its end.
    async fn next_entries(
        &self,
        path: &[u8],
        file: Option<rt::File>,
    ) -> Done<Option<(rt::File, Vec<DirEntry>)>> {
        let file = match file {
            Some(file) => file,
            None => self.open_directory(path).await?,
        };
        let entries = self.entries(&file, path).await?;
        Ok((!entries.is_empty()).then_some((file, entries)))
    }

    /// Removes a directory with its content. An entry that cannot be removed is logged, and its directory remains too.
    pub(super) async fn remove_tree(&self, request: &Request, path: &[u8]) -> Result<(), u16> {
        let top = self.open_directory(path).await.map_err(|trouble| trouble.log_failed(request))?;
        let root = path.strip_suffix(b"/").unwrap_or(path);
        // The loop reads the last directory of the list. Its ancestors are open; its siblings have not been opened yet.
        let mut left = vec![(root.to_vec(), Some(top))];
        while let Some((path, file)) = left.pop() {
            let entries = match self.next_entries(&path, file).await {
                Ok(entries) => entries,
                Err(trouble) => {
                    trouble.log(request, 0);
                    None
                }
            };
            let Some((file, entries)) = entries else {
                if !left.is_empty() {
                    log_failure(request, self.rmdir(&path).await);
                }
                continue;
            };
            left.push((path.clone(), Some(file)));
            for entry in entries {
                let path = [&path, &b"/"[..], &entry.name].concat();
                match FileType::from_raw_mode(entry.kind) {
                    FileType::Directory => left.push((path, None)),
                    _ => {
                        log_failure(request, self.unlink(&path).await);
                    }
                }
            }
        }
        // As written: with a trailing slash after a link to a directory this fails, as in nginx.
        self.rmdir(path).await.map_err(|trouble| trouble.log(request, 404))
    }

    /// Copies the content of a directory to an existing directory. A link to a file is copied as that file, as in
    /// nginx; other links are omitted, and so are special files. Returns the status of the first failure or omission,
    /// if any.
    pub(super) async fn copy_tree(
        &self,
        request: &Request,
        from: &[u8],
        to: &[u8],
    ) -> Result<Option<u16>, u16> {
        // Through a link the destination may be inside the source, and the copy would never end.
        let target = self.stat(to).await.map_err(|trouble| trouble.log_failed(request))?;
        let mut left = vec![(from.to_vec(), to.to_vec(), None)];
        let mut times = Vec::new();
        let mut is_top = true;
        let mut failed = None;
        while let Some((from, to, modified)) = left.pop() {
            let folder = match self.open_directory(&from).await {
                Ok(folder) => folder,
                Err(trouble) if is_top => return Err(trouble.log_failed(request)),
                Err(trouble) => {
                    failed = failed.or(log_failure(request, Err(trouble)));
                    continue;
                }
            };
            is_top = false;
            times.extend(modified.map(|modified| (to.clone(), modified)));
            loop {
                let entries = match self.entries(&folder, &from).await {
                    Ok(entries) if entries.is_empty() => break,
                    Ok(entries) => entries,
                    Err(trouble) => {
                        failed = failed.or(log_failure(request, Err(trouble)));
                        break;
                    }
                };
                for entry in entries {
                    let from = [&from, &b"/"[..], &entry.name].concat();
                    let to = [&to, &b"/"[..], &entry.name].concat();
                    let kind = FileType::from_raw_mode(entry.kind);
                    let stat = match kind {
                        FileType::Symlink => self.link_target(request, &from).await,
                        _ => entry.stat.and_then(Result::ok),
                    };
                    let done = match (kind, stat) {
                        (FileType::Directory, Some(stat))
                            if (stat.device, stat.inode) != (target.device, target.inode) =>
                        {
                            let mode = exchange::stored_file::directory_mode(stat.mode & 0o7777);
                            let made = self.mkdir(&to, mode).await;
                            left.push((from, to, Some(stat.modified)));
                            made
                        }
                        (FileType::RegularFile | FileType::Symlink, Some(stat)) => {
                            self.copy_file(request, (&stat, None), &from, &to).await
                        }
                        _ => {
                            let path = files::display(&from);
                            request.log(Level::Error, format_args!("\"{path}\" is omitted from the copy"));
                            failed = failed.or(Some(500));
                            continue;
                        }
                    };
                    failed = failed.or(log_failure(request, done));
                }
            }
        }
        // Last, because creating entries in a directory changes its time. The copy is complete without these times.
        for (path, modified) in times {
            log_failure(request, dress(path, None, modified).await);
        }
        Ok(failed)
    }

    /// Returns the attributes of a link's target, if this is a regular file and the location follows all links.
    async fn link_target(&self, request: &Request, path: &[u8]) -> Option<Stat> {
        let opening = &request.scope().core.files.opening;
        if opening.beneath || opening.links.is_some() {
            return None;
        }
        let path = text("stat()", path).ok()?;
        let stat = rt::file::stat_path(path, self.device, self.via).await.ok()?;
        (FileType::from_raw_mode(stat.mode) == FileType::RegularFile).then_some(stat)
    }

    /// Copies a file with its time. The permissions are `mode`, such as those of a replaced file, else those of the
    /// source. The copy gets its name when it is complete.
    pub(super) async fn copy_file(
        &self,
        request: &Request,
        (stat, mode): (&Stat, Option<u32>),
        from: &[u8],
        to: &[u8],
    ) -> Done {
        let how = OpenHow { flags: OFlags::CLOEXEC.bits() as i32, ..OpenHow::default() };
        let opened = rt::File::open(None, text("open()", from)?, how, self.device, self.via).await;
        let source = opened.map_err(fault("open()", from))?;
        // A link is copied as the file that it refers to, with the size, mode and time of that file.
        let of_file = match FileType::from_raw_mode(stat.mode) {
            FileType::Symlink => Some(source.stat_inline().map_err(fault("fstat()", from))?),
            _ => None,
        };
        let stat = of_file.as_ref().unwrap_or(stat);
        let beside = temp_path_of(to);
        let new = mode.unwrap_or(stat.mode & 0o7777);
        let made = rt::File::create(text("open()", &beside)?, Create::New, new, self.device, self.via).await;
        let copy = made.map_err(fault("open()", &beside))?;
        let mut done = self.pour(&source, from, (&copy, &beside), stat.size).await;
        if done.is_ok() {
            done = dress(beside.clone(), mode, stat.modified).await;
        }
        drop(copy);
        if done.is_ok() {
            done = self.rename(&beside, to).await;
        }
        if done.is_err() {
            log_failure(request, self.unlink(&beside).await);
        }
        done
    }

    /// Copies the bytes of a file, as many as it had when it was checked.
    async fn pour(&self, source: &rt::File, from: &[u8], (copy, to): (&rt::File, &[u8]), size: u64) -> Done {
        let mut offset = 0;
        while offset < size {
            let len = (size - offset).min(COPY_BYTES);
            // Fails if the file has become shorter since.
            let read = source.read_piece(offset, len as u32, self.device, self.via).await;
            let buf = read.map_err(fault("read()", from))?;
            let count = buf.len() as u64;
            let (written, _) = copy.write_at(offset, buf, self.device, self.via).await;
            written.map_err(fault("write()", to))?;
            offset += count;
        }
        Ok(())
    }

    /// Renames a file, and creates missing directories of the new path. Copies the file if the path is on another file system.
    pub(super) async fn move_file(
        &self,
        request: &Request,
        stat: &Stat,
        (from, to): (&[u8], &[u8]),
        directory_mode: u32,
    ) -> Done {
        let mut done = self.rename(from, to).await;
        if done.as_ref().is_err_and(|trouble| trouble.errno == Errno::NOENT) {
            let path = PathBuf::from(OsString::from_vec(to.to_vec()));
            let mode = Mode::from_raw_mode(directory_mode);
            let made = rt::offload_file(move || received::create_parents(&path, mode)).await;
            made.unwrap_or(Err(Errno::IO)).map_err(fault("mkdir()", to))?;
            done = self.rename(from, to).await;
        }
        match done {
            Err(OperationError { errno: Errno::XDEV, .. }) => {
                // The permissions of a link are not those of its file, which is copied.
                let is_link = FileType::from_raw_mode(stat.mode) == FileType::Symlink;
                let mode = (!is_link).then_some(stat.mode & 0o7777);
                self.copy_file(request, (stat, mode), from, to).await?;
                self.unlink(from).await
            }
            done => done,
        }
    }
}

/// Returns a temporary name in the same directory, so that a rename is atomic.
pub(super) fn temp_path_of(path: &[u8]) -> Vec<u8> {
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    [path, format!(".{}-{number:010}", std::process::id()).as_bytes()].concat()
}

/// Sets the modification time of a file and, if given, its permissions, on another thread: the engines have no such
/// operations.
#[expect(clippy::disallowed_methods, reason = "it runs on a helper thread, by rt::offload_file")]
async fn dress(path: Vec<u8>, mode: Option<u32>, modified: i64) -> Done {
    let time = Timespec { tv_sec: modified, tv_nsec: 0 };
    let times = Timestamps { last_access: time, last_modification: time };
    let shown = path.clone();
    let set = rt::offload_file(move || {
        if let Some(mode) = mode {
            rustix::fs::chmod(&*path, Mode::from_raw_mode(mode))?;
        }
        rustix::fs::utimensat(CWD, path, &times, AtFlags::empty())
    });
    set.await.unwrap_or(Err(Errno::IO)).map_err(fault("utimensat()", &shown))
}

/// Logs a failure inside a tree, and returns its status.
fn log_failure(request: &Request, done: Done) -> Option<u16> {
    done.err().map(|trouble| trouble.log(request, 500))
}

fn fault(call: &'static str, path: &[u8]) -> impl FnOnce(Errno) -> OperationError {
    let path = path.to_vec();
    move |errno| OperationError { call, path, errno }
}

/// Returns a path for the kernel.
fn text(call: &'static str, path: &[u8]) -> Done<CString> {
    CString::new(path).map_err(|_| OperationError { call, path: path.to_vec(), errno: Errno::INVAL })
}
