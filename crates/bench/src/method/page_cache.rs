//! Evicts file contents from the page cache: the complete page cache as root, single files otherwise.

use std::fs::{self, File};
use std::path::Path;

use rustix::fs::{Advice, fadvise};

use crate::failure::Failure;

/// Writes dirty pages back and drops the complete page cache, including dentries and inodes (proc_sys_vm(5),
/// `drop_caches`). Requires root.
pub(crate) fn drop_all() -> Result<(), Failure> {
    // Dirty pages would not be dropped.
    rustix::fs::sync();
    let path = Path::new("/proc/sys/vm/drop_caches");
    fs::write(path, "3").map_err(|error| match error.kind() {
        std::io::ErrorKind::PermissionDenied => {
            Failure::Other("dropping the page cache needs root".to_owned())
        }
        _ => Failure::file("write", path)(error),
    })
}

/// Drops the cached pages of one file, which requires only read permission (posix_fadvise(2)). Dentries and inodes stay
/// cached, as do pages that another process has mapped.
pub(crate) fn drop_file(path: &Path) -> Result<(), Failure> {
    let file = File::open(path).map_err(Failure::file("open", path))?;
    let refused = Failure::file("drop cached pages of", path);
    // Dirty pages cannot be dropped.
    file.sync_data().map_err(refused)?;
    fadvise(&file, 0, None, Advice::DontNeed).map_err(|error| refused(error.into()))
}
