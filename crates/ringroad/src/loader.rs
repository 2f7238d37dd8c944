//! Loads configuration files from the disk for crate `conf`, which makes no I/O itself.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use conf::Loader;

use crate::owned_links;
use crate::paths::Request;

/// Reads files. The main file may be replaced by a text in memory.
#[derive(Debug)]
pub(crate) struct DiskLoader<'a> {
    request: &'a Request,
}

impl<'a> DiskLoader<'a> {
    pub(crate) fn new(request: &'a Request) -> DiskLoader<'a> {
        DiskLoader { request }
    }
}

impl Loader for DiskLoader<'_> {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        match &self.request.text {
            Some(text) if path == self.request.main => Ok(text.clone().into_bytes()),
            _ => std::fs::read(path),
        }
    }

    fn read_written(&self, path: &Path) -> io::Result<Vec<u8>> {
        owned_links::read_written(path)
    }

    fn glob(&self, pattern: &Path) -> io::Result<Vec<PathBuf>> {
        Ok(conf::expand_glob(pattern, &list, &|path| path.symlink_metadata().is_ok()))
    }
}

/// Returns the names in a directory; the empty path is the working directory.
fn list(folder: &Path) -> io::Result<Vec<OsString>> {
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    std::fs::read_dir(folder)?.map(|entry| entry.map(|entry| entry.file_name())).collect()
}
