//! The file with the process id of the master. It is written when the server accepts requests, and removed when the
//! master exits.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::listen::error_text;
use crate::log::Log;

/// Maximum number of bytes read from a pid file; a process id has at most ten digits.
const PID_BYTES_MAX: u64 = 64;

/// A pid file written by this process.
#[derive(Debug)]
pub(crate) struct PidFile {
    path: PathBuf,
}

impl PidFile {
    /// Writes the id of this process by one write, so that no reader sees an incomplete number.
    pub(crate) fn write(path: &Path) -> Result<PidFile, String> {
        let failed = |error: io::Error| open_failed(path, &error);
        let mut file = writable().truncate(true).open(path).map_err(failed)?;
        file.write_all(format!("{}\n", std::process::id()).as_bytes()).map_err(failed)?;
        Ok(PidFile { path: path.to_owned() })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Renames the pid file by appending `.oldbin`, as in nginx, so that a new binary can write its pid file.
    pub(crate) fn rename_to_oldbin(&mut self) -> Result<(), String> {
        self.rename(with_old(&self.path))
    }

    /// Renames the pid file back. A file left by a new binary is replaced.
    pub(crate) fn step_back(&mut self, path: &Path) -> Result<(), String> {
        self.rename(path.to_owned())
    }

    fn rename(&mut self, to: PathBuf) -> Result<(), String> {
        std::fs::rename(&self.path, &to).map_err(|error| {
            let (from, to, reason) = (self.path.display(), to.display(), error_text(&error));
            format!("rename() {from} to {to} failed ({reason})")
        })?;
        self.path = to;
        Ok(())
    }

    /// Removes the file, unless another server has written its id there.
    pub(crate) fn remove(self, log: &Log) {
        if read(&self.path).is_ok_and(|pid| pid != Some(std::process::id())) {
            return;
        }
        if let Err(error) = std::fs::remove_file(&self.path) {
            let (path, reason) = (self.path.display(), error_text(&error));
            log.alert(format_args!("unlink() \"{path}\" failed ({reason})"));
        }
    }
}

/// Returns the name of the pid file while a new binary runs.
fn with_old(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".oldbin");
    name.into()
}

/// Reads the id from a pid file; `None` if the content is not a process id.
pub(crate) fn read(path: &Path) -> io::Result<Option<u32>> {
    Ok(parse(&read_text(path)?))
}

/// Returns the content of a pid file, for messages.
pub(crate) fn read_text(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    io::Read::read_to_end(&mut io::Read::take(File::open(path)?, PID_BYTES_MAX), &mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).trim_end_matches(['\r', '\n']).to_owned())
}

/// Parses a process id. It must be positive, because kill(2) would signal a process group for a negative number.
pub(crate) fn parse(text: &str) -> Option<u32> {
    let pid: i32 = text.trim().parse().ok()?;
    u32::try_from(pid).ok().filter(|pid| *pid > 0)
}

/// For `-t`: checks whether the file is writable. A file that did not exist is removed again.
pub(crate) fn try_write(path: &Path) -> Result<(), String> {
    let existed = path.exists();
    // Not truncated: the id of a running server must survive the test.
    let opened = writable().truncate(false).open(path);
    opened.map_err(|error| open_failed(path, &error))?;
    if !existed {
        let _ = std::fs::remove_file(path);
    }
    Ok(())
}

/// Returns options for a file with nginx's mode: readable by all users, writable only by the owner, even with the umask
/// 0 of a daemon.
fn writable() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).create(true).mode(0o644);
    options
}

fn open_failed(path: &Path, error: &io::Error) -> String {
    format!("open() \"{}\" failed ({})", path.display(), error_text(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_positive_number_is_a_process() {
        assert_eq!(parse("4711"), Some(4711));
        for text in ["", "0", "-1", "12x", "4294967295", "99999999999"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
