//! [`put`]: a complete file appears under its name.
//!
//! ```text
//!   unnamed file in the final directory --> written --> linked to its name
//!     |                                                    | the name is taken
//!     | not supported, or links are forbidden              v
//!     +--> file with a temporary name --> written --> renamed to its name
//! ```

use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::{Errno, retry_on_intr};

use crate::disk::job::{Slices, link, write};
use crate::op::NewFile;
use crate::segments::{Segment, Segments};

/// Writes a file and gives it its final name. Nothing is left of a file that this function has created and cannot complete.
pub(super) fn put(new: &NewFile) -> Result<(), Errno> {
    if let Some(file) = &new.open_temp {
        write_all(new, file.as_fd())?;
        return rename(new);
    }
    match create_unnamed(new) {
        Ok(file) => {
            write_all(new, file.as_fd())?;
            match name(new, file.as_fd()) {
                // The file system has no links, or a security module forbids them.
                Err(Errno::PERM | Errno::ACCESS | Errno::OPNOTSUPP | Errno::NOSYS) => put_renamed(new),
                answer => answer,
            }
        }
        // The file system has no unnamed files, as NFS. A kernel without them returns EISDIR (open(2)).
        Err(Errno::OPNOTSUPP | Errno::ISDIR) => put_renamed(new),
        Err(errno) => Err(errno),
    }
}

/// Creates an unnamed file in the final directory. This takes no lock of the directory, for which the threads that create entries would
/// contend.
fn create_unnamed(new: &NewFile) -> Result<OwnedFd, Errno> {
    let flags = OFlags::WRONLY | OFlags::TMPFILE | OFlags::CLOEXEC;
    retry_on_intr(|| rustix::fs::open(directory_of(new), flags, Mode::from_raw_mode(new.mode)))
}

/// Returns the final directory.
fn directory_of(new: &NewFile) -> &[u8] {
    let to = new.to.to_bytes();
    match to.iter().rposition(|&byte| byte == b'/') {
        Some(0) => b"/",
        Some(end) => &to[..end],
        None => b".",
    }
}

/// Gives a complete unnamed file its final name. link(2) replaces nothing, so if that name is taken, the file first gets the
/// temporary name.
fn name(new: &NewFile, file: BorrowedFd<'_>) -> Result<(), Errno> {
    match link(file, &new.to) {
        Err(Errno::EXIST) => {}
        answer => return answer,
    }
    link(file, &new.temp)?;
    rename(new).inspect_err(|_| remove_temp(new))
}

/// Creates the file under its temporary name, writes it and renames it.
fn put_renamed(new: &NewFile) -> Result<(), Errno> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let mode = Mode::from_raw_mode(new.mode);
    let file = retry_on_intr(|| rustix::fs::open(new.temp.as_c_str(), flags, mode))?;
    write_all(new, file.as_fd()).and_then(|()| rename(new)).inspect_err(|_| remove_temp(new))
}

fn rename(new: &NewFile) -> Result<(), Errno> {
    rustix::fs::rename(new.temp.as_c_str(), new.to.as_c_str())
}

/// Removes the file after an error, which is more useful than an error of the removal.
fn remove_temp(new: &NewFile) {
    let _ = rustix::fs::unlinkat(CWD, new.temp.as_c_str(), AtFlags::empty());
}

fn write_all(new: &NewFile, file: BorrowedFd<'_>) -> Result<(), Errno> {
    let pieces = new.data.iter().flat_map(|data| data.parts().map(Segment::bytes));
    let mut slices: Slices<'_> = pieces.map(IoSlice::new).collect();
    let (mut rest, mut offset) = (&mut slices[..], 0);
    while !rest.is_empty() {
        let count = write(file, &rest[..rest.len().min(PIECES_MAX)], offset, new.uncached).result?;
        if count == 0 {
            return Err(Errno::IO);
        }
        offset += count as u64;
        IoSlice::advance_slices(&mut rest, count);
    }
    let bytes: usize = new.data.iter().map(Segments::len).sum();
    assert_eq!(offset, bytes as u64, "a file is put with all of its bytes");
    Ok(())
}

/// Maximum number of pieces per write (the kernel's `UIO_MAXIOV`).
const PIECES_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use std::ffi::CString;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    use testkit::TempDir;
    use testkit::seccomp::{self, Call};

    use super::*;

    fn c_path(path: &Path) -> CString {
        CString::new(path.to_str().unwrap()).unwrap()
    }

    fn new_file(dir: &TempDir, to: &str, data: &'static [u8]) -> NewFile {
        let data = vec![data.to_vec().into()];
        let (temp, to) = (c_path(&dir.path().join("temp")), c_path(&dir.path().join(to)));
        NewFile { temp, to, open_temp: None, mode: 0o600, data, uncached: false }
    }

    /// Where a file system has unnamed files, [`put`] needs this function only for names that are taken.
    #[test]
    fn without_unnamed_files_a_file_is_renamed() {
        let dir = TempDir::new("io-put");
        assert_eq!(put_renamed(&new_file(&dir, "none/whole", b"first")), Err(Errno::NOENT));
        assert!(!dir.path().join("temp").exists(), "nothing is left");
        for content in [&b"first"[..], b"second"] {
            assert_eq!(put_renamed(&new_file(&dir, "whole", content)), Ok(()));
            assert_eq!(std::fs::read(dir.path().join("whole")).unwrap(), content);
            assert!(!dir.path().join("temp").exists());
        }
    }

    #[test]
    fn where_links_are_forbidden_a_file_is_renamed() {
        for errno in [Errno::PERM, Errno::NOSYS] {
            let forbidden = seccomp::forbid_with(Call::Linkat, errno.raw_os_error(), || {
                let dir = TempDir::new("io-put");
                assert_eq!(put(&new_file(&dir, "whole", b"first")), Ok(()));
                assert_eq!(std::fs::read(dir.path().join("whole")).unwrap(), b"first");
                assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left");
            });
            if forbidden.is_none() {
                return;
            }
        }
    }

    #[test]
    fn a_taken_name_is_replaced_and_never_absent() {
        let dir = TempDir::new("io-put");
        assert_eq!(put(&new_file(&dir, "whole", b"first")), Ok(()));
        let old = std::fs::File::open(dir.path().join("whole")).unwrap();
        assert_eq!(put(&new_file(&dir, "whole", b"second")), Ok(()));
        assert_eq!(std::fs::read(dir.path().join("whole")).unwrap(), b"second");
        assert_eq!(std::io::read_to_string(old).unwrap(), "first");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left");
        let mode = std::fs::metadata(dir.path().join("whole")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        // A directory cannot be replaced.
        std::fs::create_dir(dir.path().join("directory")).unwrap();
        assert_eq!(put(&new_file(&dir, "directory", b"third")), Err(Errno::ISDIR));
        assert!(!dir.path().join("temp").exists(), "nothing is left");
    }

    #[test]
    fn the_final_directory_may_be_the_root_or_the_current_one() {
        let of = |to: &str| {
            let new = NewFile {
                temp: c"temp".into(),
                to: CString::new(to).unwrap(),
                open_temp: None,
                mode: 0o600,
                data: Vec::new(),
                uncached: false,
            };
            directory_of(&new).to_vec()
        };
        assert_eq!([of("/a"), of("a"), of("/a/b")], [b"/".to_vec(), b".".to_vec(), b"/a".to_vec()]);
    }
}
