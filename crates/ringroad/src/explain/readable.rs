//! Checks whether the worker's user may read a file. Root, as which the command may run, can read every file.
//!
//! Only mode bits are evaluated; access control lists (acl(5)) and security modules may grant or deny more.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::unistd::{Gid, getgrouplist};

use crate::adapter::Site;
use crate::privilege::{self, Credentials};

const READ: u32 = 4;
const SEARCH: u32 = 1;

/// The user of the workers.
#[derive(Debug)]
pub(super) struct FileReader {
    user: Credentials,
    groups: Vec<u32>,
}

impl FileReader {
    /// Returns the user of the workers; `None` if the workers have the same user as this command. Must be called before the command
    /// drops privileges.
    pub(super) fn of(site: &Site) -> Option<FileReader> {
        let user = privilege::resolve(site.settings.user.as_ref()).ok()?.credentials?;
        let name = std::ffi::CString::new(user.user.as_str()).unwrap_or_default();
        let listed = getgrouplist(&name, Gid::from_raw(user.gid)).unwrap_or_default();
        let groups = listed.into_iter().map(Gid::as_raw).chain([user.gid]).collect();
        Some(FileReader { user, groups })
    }

    /// Returns a sentence that explains why the user cannot read a path; `None` if the user can.
    pub(super) fn obstacle(&self, path: &Path) -> Option<String> {
        let mut above: Vec<&Path> = path.ancestors().skip(1).collect();
        above.reverse();
        let needs = above.into_iter().map(|directory| (directory, SEARCH)).chain([(path, READ)]);
        for (path, right) in needs {
            let meta = std::fs::metadata(path).ok()?;
            if !allows(&meta, &self.user, &self.groups, right) {
                let (right, letter) = if right == READ { ("be read", 'r') } else { ("be searched", 'x') };
                let (shown, name) = (path.display(), &self.user.user);
                return Some(format!(
                    "{shown} cannot {right} by the worker's user {name}: 403 (chmod o+{letter}, or another \"user\")"
                ));
            }
        }
        None
    }
}

/// Whether the mode grants a right to a user. Only the first matching class of owner, group and others counts,
/// path_resolution(7).
fn allows(meta: &std::fs::Metadata, user: &Credentials, groups: &[u32], right: u32) -> bool {
    let shift = match () {
        () if user.uid == 0 => return true,
        () if meta.uid() == user.uid => 6,
        () if groups.contains(&meta.gid()) => 3,
        () => 0,
    };
    meta.mode() >> shift & right != 0
}
