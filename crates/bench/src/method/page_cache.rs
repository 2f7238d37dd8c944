//! Making file contents cold: the whole page cache as root, single files without.

use std::fs::{self, File};
use std::path::Path;

use rustix::fs::{Advice, fadvise};

use crate::failure::Failure;

/// Writes what is dirty and drops the whole page cache, and cached names and inodes too (proc_sys_vm(5),
/// `drop_caches`). Only root may.
pub(crate) fn drop_all() -> Result<(), Failure> {
    // Dirty pages stay otherwise.
    rustix::fs::sync();
    let path = Path::new("/proc/sys/vm/drop_caches");
    fs::write(path, "3").map_err(|error| match error.kind() {
        std::io::ErrorKind::PermissionDenied => Failure::Root { doing: "dropping the page cache" },
        _ => Failure::File { path: path.to_owned(), doing: "write", error },
    })
}

/// Drops one file's pages, which needs no right but to open it (posix_fadvise(2)). Names and inodes stay cached, and
/// so does what another process has mapped.
pub(crate) fn drop_file(path: &Path) -> Result<(), Failure> {
    let file = File::open(path).map_err(Failure::file("open", path))?;
    let refused =
        |error: std::io::Error| Failure::File { path: path.to_owned(), doing: "drop cached pages of", error };
    // Dirty pages cannot be dropped.
    file.sync_data().map_err(refused)?;
    fadvise(&file, 0, None, Advice::DontNeed).map_err(|error| refused(error.into()))
}
