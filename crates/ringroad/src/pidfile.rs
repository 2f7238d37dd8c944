//! The file with the process id of the master: written when every socket listens, removed at the end.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::listen::error_text;
use crate::log::Log;

/// Longest pid file that is read, in bytes; a number has at most ten digits.
const PID_BYTES_MAX: u64 = 64;

/// A pid file that this process wrote.
#[derive(Debug)]
pub(crate) struct PidFile {
    path: PathBuf,
}

impl PidFile {
    /// Writes the number of this process. With one write, so that no reader finds half of it.
    pub(crate) fn write(path: &Path) -> Result<PidFile, String> {
        let failed = |error: io::Error| open_failed(path, &error);
        let mut file = writable().truncate(true).open(path).map_err(failed)?;
        file.write_all(format!("{}\n", std::process::id()).as_bytes()).map_err(failed)?;
        Ok(PidFile { path: path.to_owned() })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Makes room for the pid file of a new binary: `.oldbin` is added to the name, as nginx does.
    pub(crate) fn step_aside(&mut self) -> Result<(), String> {
        self.rename(with_old(&self.path))
    }

    /// Takes the name back. The file left by a new binary is replaced.
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

    /// Removes the file. It stays when another server has put its number there meanwhile.
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

/// The name of a pid file while a new binary has its own.
fn with_old(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".oldbin");
    name.into()
}

/// The number in a pid file; `None` if it holds something else.
pub(crate) fn read(path: &Path) -> io::Result<Option<u32>> {
    Ok(parse(&read_text(path)?))
}

/// The content of a pid file, for messages about it.
pub(crate) fn read_text(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    io::Read::read_to_end(&mut io::Read::take(File::open(path)?, PID_BYTES_MAX), &mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).trim_end_matches(['\r', '\n']).to_owned())
}

/// A process id: positive, so that no signal ever goes to a group.
pub(crate) fn parse(text: &str) -> Option<u32> {
    let pid: i32 = text.trim().parse().ok()?;
    u32::try_from(pid).ok().filter(|pid| *pid > 0)
}

/// For `-t`: whether the file could be written. One that was not there is not there afterwards.
pub(crate) fn try_write(path: &Path) -> Result<(), String> {
    let existed = path.exists();
    // Not truncated: a running server's number must survive the test.
    let opened = writable().truncate(false).open(path);
    opened.map_err(|error| open_failed(path, &error))?;
    if !existed {
        let _ = std::fs::remove_file(path);
    }
    Ok(())
}

/// A new file has nginx's mode: all users may read it, and only the owner may write to it even with umask 0, as in a
/// daemon.
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
