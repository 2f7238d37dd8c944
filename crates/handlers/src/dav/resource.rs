//! A resource of a request: its path by the rules of the location, the open directory that contains it, and operations
//! on its name in that directory.
//!
//! No operation follows a path again after the directory was opened, so that a link which another program creates
//! meanwhile has no effect.

use std::ffi::CString;

use io::facts::Stat;
use io::op::OpenHow;
use io::{Disk, Errno};
use rustix::fs::{FileType, OFlags};

use exchange::files::{self, ChangePath};
use exchange::refusals::{self, Access};
use exchange::request::Request;
use telemetry::{Level, Reason};

/// An operation that failed.
#[derive(Debug)]
pub(super) struct OperationError {
    pub(super) call: &'static str,
    pub(super) path: Vec<u8>,
    pub(super) errno: Errno,
}

/// The result of an operation.
pub(super) type Done<T = ()> = Result<T, OperationError>;

impl OperationError {
    /// Logs nginx's line, and returns nginx's status; `missing` is the status for a path that does not exist.
    pub(super) fn log(&self, request: &Request, missing: u16) -> u16 {
        let (level, status) = match self.errno {
            Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG => (Level::Error, missing),
            // LOOP and XDEV: `disable_symlinks` or `root_beneath` refuses a link.
            Errno::ACCESS | Errno::PERM | Errno::LOOP | Errno::XDEV => (Level::Error, 403),
            Errno::EXIST => (Level::Error, 405),
            Errno::NOSPC | Errno::DQUOT => (Level::Crit, 507),
            _ => (Level::Crit, 500),
        };
        self.write(request, level);
        status
    }

    /// Logs nginx's line, and returns 500, nginx's status for calls whose errors it does not distinguish; 507 if the
    /// file system is full, and 403 for a refused link.
    pub(super) fn log_failed(&self, request: &Request) -> u16 {
        match self.errno {
            Errno::NOSPC | Errno::DQUOT | Errno::LOOP | Errno::XDEV => self.log(request, 500),
            _ => {
                self.write(request, Level::Crit);
                500
            }
        }
    }

    fn write(&self, request: &Request, level: Level) {
        refusals::note_path(request, &self.path, Access::Write, self.errno);
        let (call, path, reason) = (self.call, files::display(&self.path), Reason(self.errno));
        request.log(level, format_args!("{call} \"{path}\" failed ({reason})"));
    }
}

/// Returns a function that adds the call and the path to an error.
pub(super) fn fault(call: &'static str, path: &[u8]) -> impl FnOnce(Errno) -> OperationError {
    move |errno| OperationError { call, path: path.to_vec(), errno }
}

/// A resource.
pub(super) struct Resource {
    /// Its path.
    pub(super) path: ChangePath,
    pub(super) disk: Disk,
    /// The directory that contains it, and its name there; or the reason why the directory could not be opened.
    parent: Result<(rt::File, CString), Errno>,
}

impl Resource {
    /// Opens the directory that contains a path. If this fails, the operations on the resource fail.
    pub(super) async fn of(request: &Request, path: Vec<u8>) -> Result<Resource, u16> {
        let path = ChangePath::new(request, path).map_err(|failure| {
            request.log(Level::Error, format_args!("{}", Reason(failure.errno)));
            files::status_of(failure.errno)
        })?;
        let parent = path.parent().await;
        Ok(Resource { path, disk: files::disk(request), parent })
    }

    /// Returns the complete path.
    pub(super) fn full(&self) -> &[u8] {
        self.path.full()
    }

    /// Returns the directory that contains the resource, and its name there.
    pub(super) fn place(&self, call: &'static str) -> Done<(&rt::File, CString)> {
        match &self.parent {
            Ok((dir, name)) => Ok((dir, name.clone())),
            Err(errno) => Err(fault(call, self.full())(*errno)),
        }
    }

    /// Creates the missing directories above the resource.
    pub(super) async fn make_parents(&mut self, mode: u32) -> Done {
        if matches!(self.parent, Err(Errno::NOENT)) {
            self.parent = self.path.parent_or_new(mode).await;
            self.place("mkdir()")?;
        }
        Ok(())
    }

    /// Whether the path ends with a slash, so that a link means its target.
    fn is_collection(&self) -> bool {
        self.full().ends_with(b"/")
    }

    /// Returns the attributes of the resource: of a link itself and not its target, unless a slash follows.
    pub(super) async fn stat(&self) -> Done<Stat> {
        let call = "lstat()";
        let (dir, name) = self.place(call)?;
        let how = OpenHow { flags: (OFlags::PATH | OFlags::NOFOLLOW).bits() as i32, ..OpenHow::default() };
        let opened = dir.open_at(name, how, self.disk).await;
        let mut file = opened.map_err(fault(call, self.full()))?;
        let mut stat = file.stat(self.disk).await.map_err(fault(call, self.full()))?;
        if self.is_collection() && !is_directory(&stat) {
            let opened = self.path.open(OFlags::PATH | OFlags::DIRECTORY).await;
            file = opened.map_err(fault(call, self.full()))?;
            stat = file.stat(self.disk).await.map_err(fault(call, self.full()))?;
        }
        Ok(stat)
    }

    /// Opens the resource as a directory, to read its entries. The rules of the location apply to a link.
    pub(super) async fn open_directory(&self) -> Done<rt::File> {
        let call = "opendir()";
        self.place(call)?;
        self.path.open(OFlags::RDONLY | OFlags::DIRECTORY).await.map_err(fault(call, self.full()))
    }

    /// Removes a file, or a link but not its target.
    pub(super) async fn unlink(&self) -> Done {
        self.remove("unlink()", false).await
    }

    /// Removes an empty directory. A link with a slash is not removed.
    pub(super) async fn rmdir(&self) -> Done {
        self.remove("rmdir()", true).await
    }

    async fn remove(&self, call: &'static str, is_directory: bool) -> Done {
        let (dir, name) = self.place(call)?;
        let done = dir.unlink_at(name, is_directory, self.disk).await;
        done.map_err(fault(call, self.full()))
    }

    /// Creates a directory.
    pub(super) async fn mkdir(&self, mode: u32) -> Done {
        let (dir, name) = self.place("mkdir()")?;
        let done = dir.mkdir_at(name, mode, self.disk).await;
        done.map_err(fault("mkdir()", self.full()))
    }

    /// Renames the resource. A trailing slash is retained: a link is then not renamed.
    pub(super) async fn rename(&self, to: &Resource) -> Done {
        let (to_dir, to_name) = to.place("rename()")?;
        let (dir, name) = self.place("rename()")?;
        let name = if self.is_collection() { with_slash(name) } else { name };
        let done = dir.rename_at(name, (to_dir, to_name), self.disk).await;
        done.map_err(fault("rename()", to.full()))
    }

    /// Renames the resource to a name in the same directory.
    pub(super) async fn rename_beside(&self, name: CString, to: CString) -> Done {
        let (dir, _) = self.place("rename()")?;
        let done = dir.rename_at(name, (dir, to), self.disk).await;
        done.map_err(fault("rename()", self.full()))
    }
}

fn with_slash(name: CString) -> CString {
    let mut name = name.into_bytes();
    name.push(b'/');
    // A CString has no zero byte inside.
    CString::new(name).unwrap_or_default()
}

pub(super) fn is_directory(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.mode) == FileType::Directory
}

pub(super) fn is_link(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.mode) == FileType::Symlink
}

pub(super) fn is_file(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.mode) == FileType::RegularFile
}
