//! Checks whether the worker's user will be able to access a directory. `-t` reports an obstacle to temporary files, before
//! a transfer needs the directory; `serve` reports an obstacle to reading the site.
//!
//! The calling process may be root, so permissions are computed from owner, group and mode. Directories with an access
//! control list (acl(5)) are assumed to be writable, because their modes do not show the permissions.

use std::ffi::CString;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Stat};
use rustix::io::Errno;

use crate::listen::errno_text;
use crate::privilege::Credentials;

/// A user with all groups, as ids.
struct User {
    uid: u32,
    groups: Vec<u32>,
    /// Whether the master creates directories for this user.
    is_served: bool,
}

/// The permission to read, as a mode bit for other users.
const READ: u32 = 0o4;
/// The permission to write, as a mode bit for other users.
const WRITE: u32 = 0o2;
/// The permission to search, as a mode bit for other users.
const SEARCH: u32 = 0o1;

/// Returns why workers with these credentials cannot write to a directory. Returns `None` if they can, or if this is
/// not known.
pub(crate) fn obstacle(path: &Path, credentials: Option<&Credentials>) -> Option<String> {
    let user = User::of(credentials);
    if user.uid == 0 {
        return None;
    }
    let (existing, stat) = match deepest(path) {
        Ok(found) => found,
        Err((path, errno)) => {
            return Some(format!("stat() \"{}\" failed ({})", path.display(), errno_text(errno)));
        }
    };
    // Symbolic links are resolved, because the target must be reachable through its parent directories.
    let base = std::fs::canonicalize(&existing).ok()?;
    if let Some(closed) = base.ancestors().skip(1).find(|above| user.lacks(above, None, SEARCH)) {
        return Some(format!("their user cannot search \"{}\"", closed.display()));
    }
    if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
        return Some(format!("\"{}\" is not a directory", base.display()));
    }
    // The master creates the last directory of a path, and changes its owner.
    let wanted = match () {
        () if user.is_served && existing == path => return None,
        () if user.is_served && path.parent() == Some(&existing) => SEARCH,
        () => WRITE | SEARCH,
    };
    user.lacks(&base, Some(&stat), wanted).then(|| match wanted {
        SEARCH => format!("their user cannot search \"{}\"", base.display()),
        _ => format!("their user cannot write to \"{}\"", base.display()),
    })
}

/// Returns why a user cannot list an existing directory and open its files. Returns `None` if the user can, or if this
/// is not known.
pub(crate) fn reading_obstacle(directory: &Path, credentials: &Credentials) -> Option<String> {
    let user = User::of(Some(credentials));
    if user.uid == 0 {
        return None;
    }
    if let Some(closed) = directory.ancestors().skip(1).find(|above| user.lacks(above, None, SEARCH)) {
        return Some(format!("this user cannot search \"{}\"", closed.display()));
    }
    let is_closed = user.lacks(directory, None, READ | SEARCH);
    is_closed.then(|| format!("this user cannot read \"{}\"", directory.display()))
}

/// Returns the existing part of a path.
fn deepest(path: &Path) -> Result<(PathBuf, Stat), (PathBuf, Errno)> {
    let mut here = path;
    loop {
        match rustix::fs::stat(here) {
            Ok(stat) => return Ok((here.to_owned(), stat)),
            Err(Errno::NOENT) => match here.parent() {
                Some(parent) if !parent.as_os_str().is_empty() => here = parent,
                _ => return Err((here.to_owned(), Errno::NOENT)),
            },
            Err(errno) => return Err((here.to_owned(), errno)),
        }
    }
}

impl User {
    fn of(credentials: Option<&Credentials>) -> User {
        let Some(credentials) = credentials else {
            let mut groups: Vec<u32> =
                nix::unistd::getgroups().unwrap_or_default().iter().map(|group| group.as_raw()).collect();
            groups.push(nix::unistd::getegid().as_raw());
            return User { uid: nix::unistd::geteuid().as_raw(), groups, is_served: false };
        };
        let gid = nix::unistd::Gid::from_raw(credentials.gid);
        let name = CString::new(credentials.user.as_str()).unwrap_or_default();
        let groups = nix::unistd::getgrouplist(&name, gid).unwrap_or_else(|_| vec![gid]);
        let groups = groups.iter().map(|group| group.as_raw()).collect();
        User { uid: credentials.uid, groups, is_served: true }
    }

    /// Whether this user lacks one of these rights.
    fn lacks(&self, path: &Path, stat: Option<&Stat>, wanted: u32) -> bool {
        let stat = stat.copied().or_else(|| rustix::fs::stat(path).ok());
        let is_lacking =
            stat.is_some_and(|stat| wanted & !self.rights(stat.st_mode, stat.st_uid, stat.st_gid) != 0);
        is_lacking && !has_list(path)
    }

    /// Returns the three mode bits that apply to this user: of the owner, the group or others (path_resolution(7)).
    fn rights(&self, mode: u32, uid: u32, gid: u32) -> u32 {
        let shift = match () {
            () if uid == self.uid => 6,
            () if self.groups.contains(&gid) => 3,
            () => 0,
        };
        mode >> shift & 0o7
    }
}

/// Whether a directory has an access control list.
fn has_list(path: &Path) -> bool {
    let mut none: [u8; 0] = [];
    rustix::fs::getxattr(path, "system.posix_acl_access", &mut none).is_ok_and(|bytes| bytes > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_matching_permission_class_decides() {
        let user = User { uid: 7, groups: vec![8, 9], is_served: true };
        assert_eq!(user.rights(0o751, 7, 8), 7);
        assert_eq!(user.rights(0o057, 7, 8), 0, "the owner has no more than the owner's bits");
        assert_eq!(user.rights(0o751, 1, 9), 5);
        assert_eq!(user.rights(0o751, 1, 1), 1);
    }
}
