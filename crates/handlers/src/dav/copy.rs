//! Copies of files and of directories with their content.
//!
//! ```text
//!   copy_file   open the source, fstat --> NAME.PID-NUMBER: bytes, permissions, time --> renameat to NAME
//!   copy_tree   directory --entries--> files: copy_file   directories: mkdirat, added to the list
//!               links: copied as their target file, where the location follows all links
//!               the list is empty --> times of the directories
//! ```
//!
//! Kind, size, permissions and time are those of the opened file, never those of a path. Failures inside a tree are
//! logged and the walk continues, as in nginx.

use std::ffi::{CStr, CString};

use io::facts::Stat;
use io::op::OpenHow;
use io::{Disk, Errno};
use rustix::fs::{FileType, OFlags};

use super::remove::{Tree, join};
use super::resource::{Done, Resource, fault, is_directory, is_file};
use exchange::files::{self, CopyError};
use telemetry::Level;

/// A name in an open directory, with its path for messages.
#[derive(Clone, Copy)]
pub(super) struct Name<'a> {
    pub(super) dir: &'a rt::File,
    pub(super) name: &'a CStr,
    pub(super) path: &'a [u8],
}

/// Opens a file to copy it, and returns its attributes.
pub(super) async fn open_source(disk: Disk, from: Name<'_>, follows: bool) -> Done<(rt::File, Stat)> {
    // Without O_NONBLOCK the open of a FIFO would wait for a writer.
    let mut flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    if !follows {
        flags |= OFlags::NOFOLLOW;
    }
    let how = OpenHow { flags: flags.bits() as i32, ..OpenHow::default() };
    let opened = from.dir.open_at(from.name.to_owned(), how, disk).await;
    let file = opened.map_err(fault("open()", from.path))?;
    let stat = file.stat(disk).await.map_err(fault("fstat()", from.path))?;
    Ok((file, stat))
}

/// Copies an open file with its time. The permissions are `mode`, such as those of a replaced file, else those of the
/// source. The copy gets its name when it is complete.
pub(super) async fn copy_file(
    disk: Disk,
    (source, stat): (&rt::File, &Stat),
    from: &[u8],
    to: Name<'_>,
    mode: Option<u32>,
) -> Done {
    if !is_file(stat) {
        let errno = if is_directory(stat) { Errno::ISDIR } else { Errno::INVAL };
        return Err(fault("open()", from)(errno));
    }
    let beside = files::temp_name(to.name.to_bytes()).map_err(fault("open()", to.path))?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let new = mode.unwrap_or(stat.mode & 0o7777);
    let how = OpenHow { flags: flags.bits() as i32, mode: new, is_cold: true, ..OpenHow::default() };
    let copy = to.dir.open_at(beside.clone(), how, disk).await.map_err(fault("open()", to.path))?;
    let mut done = match files::copy_bytes((source, &copy), stat.size, disk).await {
        Ok(()) => Ok(()),
        Err(CopyError::Read(errno)) => Err(fault("read()", from)(errno)),
        Err(CopyError::Write(errno)) => Err(fault("write()", to.path)(errno)),
    };
    if done.is_ok() {
        let modified = Some((stat.modified, stat.modified_nanos));
        done = files::dress(&copy, mode, modified).await.map_err(fault("futimens()", to.path));
    }
    if done.is_ok() {
        let renamed = to.dir.rename_at(beside.clone(), (to.dir, to.name.to_owned()), disk).await;
        done = renamed.map_err(fault("rename()", to.path));
    }
    if done.is_err() {
        // The first failure is reported.
        let _ = to.dir.unlink_at(beside, false, disk).await;
    }
    done
}

/// Copies the content of an open directory to another one, which exists. A link to a file is copied as that file, as in
/// nginx; other links are omitted, and so are special files. Returns the status of the first failure or omission, if
/// any.
pub(super) async fn copy_tree(from: &Tree<'_>, to: &Tree<'_>, follows: bool) -> Result<Option<u16>, u16> {
    let failed = |errno| to.fault("fstat()", b"", errno).log_failed(to.request);
    // Through a link the destination may be inside the source, and the copy would never end.
    let target = to.top.stat(to.disk).await.map_err(failed)?;
    let mut copy =
        TreeCopy { from, to, follows, target, left: vec![Vec::new()], times: Vec::new(), status: None };
    while let Some(path) = copy.left.pop() {
        let done = copy.directory(&path).await;
        copy.note(done);
    }
    // Last, because creating entries in a directory changes its time. The copy is complete without these times.
    for (path, modified) in std::mem::take(&mut copy.times) {
        to.log(set_time(to, &path, modified).await);
    }
    Ok(copy.status)
}

async fn set_time(tree: &Tree<'_>, path: &[u8], modified: (i64, u32)) -> Done {
    let directory = tree.open(path, OFlags::RDONLY | OFlags::DIRECTORY).await?;
    let set = files::dress(&directory, None, Some(modified)).await;
    set.map_err(|errno| tree.fault("futimens()", path, errno))
}

/// A copy of a tree in progress.
struct TreeCopy<'a, 'r> {
    from: &'a Tree<'r>,
    to: &'a Tree<'r>,
    /// Whether links to files are copied as these files.
    follows: bool,
    /// The top of the destination.
    target: Stat,
    /// Paths of directories below both tops that are not copied yet.
    left: Vec<Vec<u8>>,
    /// Modification times of the copied directories.
    times: Vec<(Vec<u8>, (i64, u32))>,
    /// The status of the first failure or omission.
    status: Option<u16>,
}

impl TreeCopy<'_, '_> {
    fn note(&mut self, done: Done) {
        let status = self.from.log(done);
        self.status = self.status.or(status);
    }

    /// Copies a directory without the content of the directories in it.
    async fn directory(&mut self, path: &[u8]) -> Done {
        let (from, to) = (self.from, self.to);
        let source = from.open(path, OFlags::RDONLY | OFlags::DIRECTORY).await?;
        let stat = source.stat(from.disk).await.map_err(|errno| from.fault("fstat()", path, errno))?;
        if (stat.device, stat.inode) == (self.target.device, self.target.inode) {
            return self.omitted(path);
        }
        if !path.is_empty() {
            self.make(path, &stat).await?;
            self.times.push((path.to_vec(), (stat.modified, stat.modified_nanos)));
        }
        let copy = to.open(path, OFlags::PATH | OFlags::DIRECTORY).await?;
        loop {
            let entries = from.entries(&source, path).await?;
            if entries.is_empty() {
                return Ok(());
            }
            for entry in entries {
                let path = join(path, &entry.name);
                let kind = FileType::from_raw_mode(entry.kind);
                let done = match kind {
                    FileType::Directory => {
                        self.left.push(path);
                        continue;
                    }
                    FileType::RegularFile => self.file((&source, &copy), &path, &entry.name, false).await,
                    FileType::Symlink if self.follows => {
                        self.file((&source, &copy), &path, &entry.name, true).await
                    }
                    _ => self.omitted(&path),
                };
                self.note(done);
            }
        }
    }

    /// Creates the directory for a copy.
    async fn make(&self, path: &[u8], stat: &Stat) -> Done {
        let to = self.to;
        let slash = memchr::memrchr(b'/', path);
        let (above, name) = slash.map_or((&b""[..], path), |slash| (&path[..slash], &path[slash + 1..]));
        let above = to.open(above, OFlags::PATH | OFlags::DIRECTORY).await?;
        let mode = exchange::stored_file::directory_mode(stat.mode & 0o7777);
        let made = match CString::new(name) {
            Ok(name) => above.mkdir_at(name, mode, to.disk).await,
            Err(_) => Err(Errno::INVAL),
        };
        made.map_err(|errno| to.fault("mkdir()", path, errno))
    }

    /// Copies a file, or the file that a link leads to.
    async fn file(
        &mut self,
        (source, copy): (&rt::File, &rt::File),
        path: &[u8],
        name: &[u8],
        is_link: bool,
    ) -> Done {
        let (from, to) = (join(self.from.path, path), join(self.to.path, path));
        let name = CString::new(name).map_err(|_| fault("open()", &from)(Errno::INVAL))?;
        let disk = self.from.disk;
        let opened = open_source(disk, Name { dir: source, name: &name, path: &from }, is_link).await;
        match opened {
            Ok((file, stat)) if is_file(&stat) => {
                copy_file(disk, (&file, &stat), &from, Name { dir: copy, name: &name, path: &to }, None).await
            }
            Ok(_) => self.omitted(path),
            Err(_) if is_link => self.omitted(path),
            Err(error) => Err(error),
        }
    }

    /// Logs that an entry is not copied.
    fn omitted(&mut self, path: &[u8]) -> Done {
        let path = join(self.from.path, path);
        let path = files::display(&path);
        self.from.request.log(Level::Error, format_args!("\"{path}\" is omitted from the copy"));
        self.status = self.status.or(Some(500));
        Ok(())
    }
}

/// Opens a resource to copy it as a file: a link leads to its file, by the rules of the location.
pub(super) async fn open_resource(from: &Resource) -> Done<(rt::File, Stat)> {
    from.place("open()")?;
    let opened = from.path.open(OFlags::RDONLY).await;
    let file = opened.map_err(fault("open()", from.full()))?;
    let stat = file.stat(from.disk).await.map_err(fault("fstat()", from.full()))?;
    Ok((file, stat))
}
