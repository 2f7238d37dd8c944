//! Changes below the root of a location: a path by which files are created, renamed and removed, under the same rules as
//! an open for reading (`root_beneath`, `disable_symlinks`).
//!
//! ```text
//!   path --start--> directory in which the rules apply --openat2--> parent directory (a descriptor) --> name: mkdirat,
//!   unlinkat, renameat, openat with O_NOFOLLOW
//! ```
//!
//! The kernel checks the rules while it opens the parent directory. Later operations use that descriptor and one name, so a
//! link that another program creates in the path meanwhile has no effect.

use std::ffi::CString;
use std::os::fd::AsFd;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use io::op::OpenHow;
use io::{Disk, Errno};
use rt::HelperPool;
use rustix::fs::{Mode, OFlags, ResolveFlags, Timespec, Timestamps};

use super::open::{StartDirectory, disk, how, open_retrying, rules};
use crate::request::Request;
use transfer::files::Failure;
use transfer::files::cache::Rules;

/// Maximum number of threads that set attributes of files. More threads would hardly make one disk faster.
const ATTRIBUTE_THREADS_MAX: usize = 8;

/// The threads that set attributes of files.
static ATTRIBUTES: LazyLock<HelperPool> =
    LazyLock::new(|| HelperPool::new("attributes", ATTRIBUTE_THREADS_MAX));

/// A path for changes.
#[derive(Clone)]
pub struct ChangePath {
    /// The path as composed from the root and the URI, for messages.
    full: Vec<u8>,
    start: StartDirectory,
    /// The path from `start`.
    rest: Vec<u8>,
    rules: Rules,
    disk: Disk,
}

impl ChangePath {
    /// Returns the path with the rules of the request's location.
    ///
    /// # Errors
    /// The root of the location could not be opened.
    pub fn new(request: &Request, path: Vec<u8>) -> Result<ChangePath, Failure> {
        let rules = rules(request, &path);
        ChangePath::with(request, path, rules)
    }

    /// Returns a path that the configuration names, inside or outside the root.
    ///
    /// # Errors
    /// As [`ChangePath::new`].
    pub fn anywhere(request: &Request, path: Vec<u8>) -> Result<ChangePath, Failure> {
        let rules = Rules { beneath: None, ..rules(request, &path) };
        ChangePath::with(request, path, rules)
    }

    fn with(request: &Request, path: Vec<u8>, rules: Rules) -> Result<ChangePath, Failure> {
        let disk = disk(request);
        let (start, rest) = StartDirectory::of(request, &path, rules)?;
        Ok(ChangePath { full: path, start, rest, rules, disk })
    }

    /// Returns the complete path.
    pub fn full(&self) -> &[u8] {
        &self.full
    }

    /// Whether the path is the directory in which the rules begin to apply. It cannot be renamed or removed.
    pub fn is_start(&self) -> bool {
        !matches!(self.start, StartDirectory::Top) && split(&self.rest).1 == b"."
    }

    /// Whether links may lead anywhere.
    pub fn follows_all_links(&self) -> bool {
        self.rules.is_plain()
    }

    /// Opens the path by the rules; links that the rules allow are followed, also as the last component.
    pub async fn open(&self, flags: OFlags) -> Result<rt::File, Errno> {
        self.open_rest(&self.rest, flags).await
    }

    /// Opens the directory that contains the path. Returns it with the last component, which has no slash.
    pub async fn parent(&self) -> Result<(rt::File, CString), Errno> {
        let (above, name) = split(&self.rest);
        Ok((self.open_rest(above, OFlags::PATH | OFlags::DIRECTORY).await?, text(name)?))
    }

    /// Does the same as [`ChangePath::parent`], and creates missing directories with these permissions.
    pub async fn parent_or_new(&self, mode: u32) -> Result<(rt::File, CString), Errno> {
        let (mut above, name) = split(&self.rest);
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let mut missing = Vec::new();
        let mut directory = loop {
            match self.open_rest(above, flags).await {
                Err(Errno::NOENT) if !matches!(above, b"." | b"/") => {
                    missing.push(above);
                    above = split(above).0;
                }
                opened => break opened?,
            }
        };
        for path in missing.into_iter().rev() {
            let name = text(split(path).1)?;
            match directory.mkdir_at(name, mode, self.disk).await {
                // Another process has created it.
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno),
            }
            directory = self.open_rest(path, flags).await?;
        }
        Ok((directory, text(name)?))
    }

    /// Returns the number of directories above the path that do not exist.
    pub async fn missing_directories(&self) -> usize {
        let (mut above, mut count) = (split(&self.rest).0, 0);
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        while !matches!(above, b"." | b"/") && matches!(self.open_rest(above, flags).await, Err(Errno::NOENT))
        {
            count += 1;
            above = split(above).0;
        }
        count
    }

    async fn open_rest(&self, path: &[u8], flags: OFlags) -> Result<rt::File, Errno> {
        let mut how = how(self.rules, flags);
        if self.rules.beneath.is_some() {
            how.resolve |= ResolveFlags::BENEATH.bits();
        }
        let start = self.start.clone().opened(self.disk).await.map_err(|failure| failure.errno)?;
        open_retrying(start.as_ref().map(rt::File::fd), &text(path)?, how, self.disk).await
    }
}

/// Splits a path into the directory above, and the last component without slashes.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    let end = path.iter().rposition(|&byte| byte != b'/').map_or(0, |at| at + 1);
    if end == 0 {
        return (b"/", b".");
    }
    let path = &path[..end];
    let Some(slash) = memchr::memrchr(b'/', path) else { return (b".", path) };
    let above = path[..slash].iter().rposition(|&byte| byte != b'/').map_or(&b"/"[..], |at| &path[..=at]);
    (above, &path[slash + 1..])
}

/// Opens a file below an open directory without following any link. `path` is relative and has no `..`.
pub async fn open_below(top: &rt::File, path: &[u8], flags: OFlags, disk: Disk) -> Result<rt::File, Errno> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    // Without O_NONBLOCK the open of a FIFO would wait for a writer.
    let flags = if flags.contains(OFlags::PATH) { flags } else { flags | OFlags::NONBLOCK };
    let resolve = (ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS).bits();
    let how = OpenHow { flags: flags.bits() as i32, resolve, ..OpenHow::default() };
    let opened = open_retrying(Some(top.fd()), &text(path)?, how, disk).await;
    if !matches!(opened, Err(Errno::NOSYS)) {
        return opened;
    }
    // The kernel, or a filter of system calls, lacks openat2(2): one component after another.
    let how = OpenHow { resolve: 0, ..how };
    let on_the_way = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let above = OpenHow { flags: on_the_way.bits() as i32, ..OpenHow::default() };
    let mut names = path.split(|&byte| byte == b'/').filter(|name| !name.is_empty()).peekable();
    let mut at = top.clone();
    while let Some(name) = names.next() {
        let how = if names.peek().is_some() { above } else { how };
        at = open_retrying(Some(at.fd()), &text(name)?, how, disk).await?;
    }
    Ok(at)
}

/// A failure of [`copy_bytes`]: of the source or of the destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyError {
    /// The source could not be read, or ended before the expected size.
    Read(Errno),
    /// The destination could not be written.
    Write(Errno),
}

/// Number of bytes per read and write of a copy.
const COPY_BYTES: u64 = 256 << 10;

/// Copies the first `size` bytes of an open file, where `size` is the size of that open file.
pub async fn copy_bytes((from, to): (&rt::File, &rt::File), size: u64, disk: Disk) -> Result<(), CopyError> {
    let mut offset = 0;
    while offset < size {
        let len = (size - offset).min(COPY_BYTES);
        // Fails if the file was truncated meanwhile.
        let buf = from.read_piece(offset, len as u32, disk).await.map_err(CopyError::Read)?;
        let count = buf.len() as u64;
        let (written, _) = to.write_at(offset, buf, disk).await;
        written.map_err(CopyError::Write)?;
        offset += count;
    }
    Ok(())
}

/// Sets the permissions and the modification time of an open file, on another thread: the engines have no such
/// operations. The time is in seconds since 1970 and nanoseconds.
pub async fn dress(file: &rt::File, mode: Option<u32>, modified: Option<(i64, u32)>) -> Result<(), Errno> {
    let fd = rustix::io::fcntl_dupfd_cloexec(file.as_fd(), 0)?;
    let set = ATTRIBUTES.run(move || {
        if let Some(mode) = mode {
            rustix::fs::fchmod(&fd, Mode::from_raw_mode(mode))?;
        }
        let Some((seconds, nanoseconds)) = modified else { return Ok(()) };
        let time = Timespec { tv_sec: seconds, tv_nsec: nanoseconds.into() };
        rustix::fs::futimens(&fd, &Timestamps { last_access: time, last_modification: time })
    });
    set.await.unwrap_or(Err(Errno::IO))
}

/// The number of the next temporary name.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// Returns a temporary name for the same directory, so that a rename is atomic.
pub fn temp_name(name: &[u8]) -> Result<CString, Errno> {
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    text(&[name, format!(".{}-{number:010}", std::process::id()).as_bytes()].concat())
}

fn text(path: &[u8]) -> Result<CString, Errno> {
    CString::new(path).map_err(|_| Errno::INVAL)
}

#[cfg(test)]
mod tests {
    use super::split;

    #[test]
    fn paths_are_split_into_directory_and_name() {
        for (path, above, name) in [
            ("/a/b", "/a", "b"),
            ("/a//b//", "/a", "b"),
            ("/a", "/", "a"),
            ("//a", "/", "a"),
            ("/", "/", "."),
            ("a", ".", "a"),
            ("a/b/", "a", "b"),
            (".", ".", "."),
        ] {
            assert_eq!(split(path.as_bytes()), (above.as_bytes(), name.as_bytes()), "{path}");
        }
    }
}
