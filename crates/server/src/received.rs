//! The body of a request, where something asked for it: in memory, or in a temporary file when it is large.
//!
//! Reading it is the connection's (`connection::body`); a handler asks for it with [`crate::phases::Step::ReadBody`].

use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use io::op::DeviceId;
use io::{DiskVia, Errno};
use rustix::fs::{Mode, OFlags};

use crate::body::choose;
use crate::modules::http_core::conf::{BodyInFile, Conf};

/// A body that was read.
#[derive(Default)]
pub(crate) struct ReceivedBody {
    memory: Vec<u8>,
    file: Option<TempFile>,
    /// Bytes in the file.
    in_file: u64,
}

/// A temporary file.
pub(crate) struct TempFile {
    pub(crate) file: rt::File,
    /// Where it is, or was: one that nobody is to find has no name any more.
    path: PathBuf,
    /// Whether its name is to go with the request.
    clean: bool,
    via: DiskVia,
}

impl ReceivedBody {
    /// The bytes, when they are in memory (`$request_body`).
    pub(crate) fn memory(&self) -> Option<&[u8]> {
        self.file.is_none().then_some(&self.memory)
    }

    /// The path of its file, when it has one (`$request_body_file`).
    pub(crate) fn path(&self) -> Option<&Path> {
        self.file.as_ref().map(|file| file.path.as_path())
    }

    /// The file, when it has one, the bytes in it, and the engine that reads them.
    pub(crate) fn file(&self) -> Option<(&rt::File, u64, DiskVia)> {
        self.file.as_ref().map(|file| (&file.file, self.in_file, file.via))
    }

    /// Bytes of the whole.
    pub(crate) fn len(&self) -> u64 {
        self.in_file + self.memory.len() as u64
    }

    /// Bytes that are in memory now.
    pub(crate) fn held(&self) -> usize {
        self.memory.len()
    }

    /// Takes more bytes of it.
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        self.memory.extend_from_slice(bytes);
    }

    /// Moves what is in memory to a file, which is made for the first of it.
    ///
    /// # Errors
    /// What failed, with the path, and why.
    pub(crate) async fn spill(&mut self, conf: &Conf) -> Result<(), (&'static str, PathBuf, Errno)> {
        let file = match self.file.take() {
            Some(file) => file,
            None => TempFile::create(conf).await.map_err(|(path, errno)| ("open", path, errno))?,
        };
        // Pieces of the size of a buffer, because a body may be held in more memory than one has.
        let mut done = Ok(());
        for bytes in self.memory.chunks(WRITE_MAX) {
            done = file.write(self.in_file, bytes).await;
            if done.is_err() {
                break;
            }
            self.in_file += bytes.len() as u64;
        }
        // After an error too: a part of a body is of no use to anybody.
        self.memory.clear();
        let path = file.path.clone();
        self.file = Some(file);
        done.map_err(|errno| ("write", path, errno))
    }

    /// Takes the name of a file away that was to live as long as the request.
    pub(crate) async fn clean(&self) {
        let Some(file) = self.file.as_ref().filter(|file| file.clean) else { return };
        if let Ok(path) = CString::new(file.path.as_os_str().as_bytes()) {
            // Somebody may have moved it, which is what the name is for.
            let _ = rt::file::unlink(path, DeviceId::default(), file.via).await;
        }
    }
}

/// Bytes of one write: a buffer of the pool.
const WRITE_MAX: usize = 256 << 10;

/// Names that are tried: others may have files of the same number, such as a worker that ends.
const NAMES_MAX: usize = 64;

/// The number of the next file, from some start.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// Digits of a file's name.
const DIGITS: usize = 10;

impl TempFile {
    /// Makes a file in the folder that is configured, and the folder too where it is missing.
    async fn create(conf: &Conf) -> Result<TempFile, (PathBuf, Errno)> {
        let (folder, levels) = &conf.client_body_temp_path;
        let named = conf.client_body_in_file_only != BodyInFile::Off;
        let (file, path) = create(folder, levels, named).await?;
        Ok(TempFile {
            file,
            path,
            clean: conf.client_body_in_file_only == BodyInFile::Clean,
            via: choose::path_engine(conf, &rt::caps()),
        })
    }

    async fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
        let mut buf = rt::pool().get(bytes.len()).ok_or(Errno::NOMEM)?;
        if buf.append(bytes) < bytes.len() {
            return Err(Errno::NOMEM);
        }
        let (result, _) = self.file.write_at(offset, buf, DeviceId::default(), self.via).await;
        result.map(drop)
    }
}

/// Makes a file for bytes that memory is too dear for, with the path that it has, or had: one that is not `named` cannot
/// be left behind, whatever happens to the process.
///
/// # Errors
/// The path that it was to have, and what failed.
pub(crate) async fn create(
    folder: &Path,
    levels: &[u8],
    named: bool,
) -> Result<(rt::File, PathBuf), (PathBuf, Errno)> {
    let start = rt::wall().duration_since(std::time::UNIX_EPOCH).map_or(0, |time| time.as_micros() as u64);
    // Another thread does it: it may take several calls, and each may wait for the disk.
    let (shown, levels) = (folder.to_owned(), levels.to_vec());
    let folder = shown.clone();
    let made = rt::offload(move || make(&folder, &levels, named, start)).await;
    let (fd, path) = made.unwrap_or(Err((shown, Errno::IO)))?;
    Ok((rt::File::new(fd), path))
}

/// Opens a new file. One without a name cannot be left behind, whatever happens to the process.
fn make(
    folder: &Path,
    levels: &[u8],
    named: bool,
    start: u64,
) -> Result<(OwnedFd, PathBuf), (PathBuf, Errno)> {
    let mut last = (folder.to_owned(), Errno::EXIST);
    let _ = NEXT.compare_exchange(0, start, Ordering::Relaxed, Ordering::Relaxed);
    for _ in 0..NAMES_MAX {
        let path = path_of(folder, levels, NEXT.fetch_add(1, Ordering::Relaxed));
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
        let open = || rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR);
        let opened = match open() {
            Err(Errno::NOENT) => make_folders(&path, Mode::RWXU).and_then(|()| open()),
            opened => opened,
        };
        match opened {
            Ok(fd) if named => return Ok((fd, path)),
            Ok(fd) => {
                return match rustix::fs::unlink(&path) {
                    Ok(()) => Ok((fd, path)),
                    Err(errno) => Err((path, errno)),
                };
            }
            // The number was used by a process before this one, or by one beside it.
            Err(Errno::EXIST) => last.0 = path,
            Err(errno) => return Err((path, errno)),
        }
    }
    Err(last)
}

/// The folders above a file, from the first that is missing, with these permissions.
pub(crate) fn make_folders(path: &Path, mode: Mode) -> Result<(), Errno> {
    let Some(folder) = path.parent() else { return Err(Errno::NOENT) };
    let make = || match rustix::fs::mkdir(folder, mode) {
        // Another thread was faster.
        Err(Errno::EXIST) => Ok(()),
        made => made,
    };
    match make() {
        Err(Errno::NOENT) => make_folders(folder, mode).and_then(|()| make()),
        made => made,
    }
}

/// `7/45/0000123457`: as many digits for each level, from the end of the number on.
fn path_of(folder: &Path, levels: &[u8], number: u64) -> PathBuf {
    let name = format!("{:0width$}", number % 10u64.pow(DIGITS as u32), width = DIGITS);
    let (mut path, mut end) = (folder.to_owned(), name.len());
    for &digits in levels {
        let start = end.saturating_sub(digits.into());
        path.push(&name[start..end]);
        end = start;
    }
    path.push(name);
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_nginxs() {
        let path = |levels: &[u8]| path_of(Path::new("/t"), levels, 123_457).display().to_string();
        assert_eq!(path(&[]), "/t/0000123457");
        assert_eq!(path(&[1, 2]), "/t/7/45/0000123457");
        assert_eq!(path(&[2, 2, 2]), "/t/57/34/12/0000123457");
        assert_eq!(path_of(Path::new("/t"), &[], u64::MAX).display().to_string().len(), 13);
    }

    #[test]
    fn folders_are_made_and_files_have_names_only_when_they_should() {
        let folder = testkit::TempDir::new("received");
        let deep = folder.path().join("a/b");
        let (_fd, path) = make(&deep, &[1], false, 5).expect("it can be made");
        assert!(rustix::fs::stat(&path).is_err() && rustix::fs::stat(&deep).is_ok());
        let (_fd, path) = make(&deep, &[1], true, 5).expect("it can be made");
        assert!(rustix::fs::stat(&path).is_ok());
        let (_, errno) =
            make(Path::new("/proc/nobody"), &[], true, 5).expect_err("nothing can be made there");
        assert_eq!(errno, Errno::NOENT);
    }
}
