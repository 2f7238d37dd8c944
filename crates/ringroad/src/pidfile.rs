//! The file with the process id of the master. It is written when the server accepts requests, and removed when the
//! master exits.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use crate::listen::{errno_text, error_text};
use crate::log::Log;
use crate::owned_links;

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
        let mut file = open_for_writing(path, OFlags::TRUNC)?;
        let text = format!("{}\n", std::process::id());
        file.write_all(text.as_bytes()).map_err(|error| open_failed(path, &error_text(&error)))?;
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
        owned_links::rename(&self.path, &to).map_err(|errno| {
            let (from, to, reason) = (self.path.display(), to.display(), errno_text(errno));
            format!("rename() {from} to {to} failed ({reason}){}", owned_links::remedy(errno))
        })?;
        self.path = to;
        Ok(())
    }

    /// Removes the file, unless another server has written its id there.
    pub(crate) fn remove(self, log: &Log) {
        if read(&self.path).is_ok_and(|pid| pid != Some(std::process::id())) {
            return;
        }
        if let Err(errno) = owned_links::remove(&self.path) {
            let (path, reason) = (self.path.display(), errno_text(errno));
            log.alert(format_args!("unlink() \"{path}\" failed ({reason}){}", owned_links::remedy(errno)));
        }
    }
}

/// Returns the name of the pid file while a new binary runs.
pub(crate) fn with_old(path: &Path) -> PathBuf {
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
    open_for_writing(path, OFlags::empty())?;
    if !existed {
        let _ = owned_links::remove(path);
    }
    Ok(())
}

/// Opens or creates a file with nginx's mode: readable by all users, writable only by the owner, even with the umask 0 of a daemon.
/// The master may be root, so symbolic links of other users are not followed.
fn open_for_writing(path: &Path, flags: OFlags) -> Result<File, String> {
    let flags = OFlags::WRONLY | OFlags::CREATE | flags;
    let file = owned_links::open_file(path, flags, Mode::from_raw_mode(0o644));
    let failed = |errno| open_failed(path, &errno_text(errno)) + owned_links::remedy(errno);
    file.map(File::from).map_err(failed)
}

fn open_failed(path: &Path, reason: &str) -> String {
    format!("open() \"{}\" failed ({reason})", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A master that runs as root must not write to the file of another user's choice.
    #[test]
    fn a_link_of_another_user_is_neither_written_nor_followed_to_a_removal() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: only root can give files away");
            return;
        }
        let folder = std::env::temp_dir().join(format!("ringroad-pid-links-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("real")).expect("a directory");
        std::fs::write(folder.join("secret"), "text").expect("a file");
        for (target, link) in [("secret", "pid"), ("real", "there")] {
            std::os::unix::fs::symlink(target, folder.join(link)).expect("a link");
            std::os::unix::fs::lchown(folder.join(link), Some(65_533), None).expect("root");
        }
        for name in ["pid", "there/pid"] {
            let refused = PidFile::write(&folder.join(name)).expect_err("a link of another user");
            assert!(refused.contains("a symbolic link in the path"), "{refused}");
            assert!(try_write(&folder.join(name)).is_err());
        }
        assert_eq!(std::fs::read(folder.join("secret")).expect("a file"), b"text");
        let mut file = PidFile::write(&folder.join("real/pid")).expect("a file");
        assert!(file.step_back(&folder.join("there/other")).is_err());
        let moved = PidFile { path: folder.join("there/pid") };
        moved.remove(&Log::echo_only());
        assert!(folder.join("real/pid").exists());
        file.remove(&Log::echo_only());
        assert!(!folder.join("real/pid").exists());
        std::fs::remove_dir_all(&folder).expect("it was made here");
    }

    #[test]
    fn only_a_positive_number_is_a_process() {
        assert_eq!(parse("4711"), Some(4711));
        for text in ["", "0", "-1", "12x", "4294967295", "99999999999"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
