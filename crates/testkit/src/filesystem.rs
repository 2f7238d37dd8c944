//! A small file system for a single test: full after a few MB, read-only on request.
//!
//! [`Filesystem::new`] creates an ext4 image in a temporary directory and mounts it through a loop device, which
//! requires root; otherwise the test is skipped with the reason in the gate's table. It is unmounted when dropped, and
//! by a guard process if the test is killed.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::fs::{FallocateFlags, fallocate, statvfs};
use rustix::mount::{MountFlags, UnmountFlags, mount_remount, unmount};

use crate::program;
use crate::tempdir::TempDir;

/// Name of the file that [`Filesystem::fill`] creates.
const FILLER: &str = "filler";

/// A mounted file system, unmounted on drop.
#[derive(Debug)]
pub struct Filesystem {
    /// Declared before the directory and so unmounted first: a mount would prevent the removal of the directory.
    mount: Mount,
    _dir: TempDir,
}

impl Filesystem {
    /// Creates and mounts a file system on an image of this many MiB, some of which the file system uses itself.
    /// Returns `None`, with the reason reported, if that is not possible.
    #[must_use]
    pub fn new(mebibytes: u64) -> Option<Filesystem> {
        match Filesystem::try_new(mebibytes) {
            Ok(filesystem) => Some(filesystem),
            Err(reason) => {
                crate::engines::skip(format_args!("cannot create a separate file system: {reason}"));
                None
            }
        }
    }

    fn try_new(mebibytes: u64) -> Result<Filesystem, String> {
        if !rustix::process::geteuid().is_root() {
            return Err("not root".to_owned());
        }
        let dir = TempDir::new("filesystem");
        let (image, point) = (dir.path().join("image"), dir.dir("mounted"));
        let made = fs::File::create(&image).and_then(|file| file.set_len(mebibytes << 20));
        made.map_err(|error| format!("{}: {error}", image.display()))?;
        let (image, text) = (image.display().to_string(), point.display().to_string());
        // No blocks are reserved for root: otherwise the file system would be full for the server's user before it is
        // for the test.
        run("mkfs.ext4", &["-q", "-F", "-m", "0", &image])?;
        run("mount", &["-o", "loop", &image, &text])?;
        let mount = Mount::guard(point)?;
        fs::set_permissions(&mount.point, fs::Permissions::from_mode(0o777))
            .map_err(|error| format!("chmod {text}: {error}"))?;
        Ok(Filesystem { mount, _dir: dir })
    }

    /// Returns the mount point. All users may write there.
    pub fn path(&self) -> &Path {
        &self.mount.point
    }

    /// Returns the number of bytes that can still be written.
    pub fn free_bytes(&self) -> u64 {
        let point = self.path();
        let state = statvfs(point).unwrap_or_else(|error| panic!("statvfs {}: {error}", point.display()));
        state.f_bavail * state.f_frsize
    }

    /// Occupies space until about this many bytes are free. A repeated call replaces the space occupied before.
    #[track_caller]
    pub fn fill(&self, free_bytes: u64) {
        self.unfill();
        let count = self.free_bytes().saturating_sub(free_bytes);
        let path = self.path().join(FILLER);
        let fill = || -> io::Result<()> {
            let file = fs::File::create(&path)?;
            if count == 0 { Ok(()) } else { Ok(fallocate(&file, FallocateFlags::empty(), 0, count)?) }
        };
        fill().unwrap_or_else(|error| panic!("take {count} bytes in {}: {error}", path.display()));
    }

    /// Frees the space that [`Filesystem::fill`] occupied.
    pub fn unfill(&self) {
        let _ = fs::remove_file(self.path().join(FILLER));
    }

    /// Makes the file system read-only, or writable again. Making it read-only fails while a file is open for
    /// writing.
    pub fn remount(&self, read_only: bool) -> io::Result<()> {
        let flags = if read_only { MountFlags::RDONLY } else { MountFlags::empty() };
        Ok(mount_remount(self.path(), flags, c"")?)
    }
}

/// A mount, and the process that unmounts it if this one is killed.
#[derive(Debug)]
struct Mount {
    point: PathBuf,
    guard: Option<Child>,
}

impl Mount {
    /// Starts the guard. It waits for the end of its standard input, whose other end only this process has.
    fn guard(point: PathBuf) -> Result<Mount, String> {
        // `mount` is created first, so that its drop unmounts the file system if the guard cannot be started.
        let mut mount = Mount { point, guard: None };
        let mut command = Command::new("sh");
        command.arg("-c").arg("read -r end; umount -l \"$0\" && rm -r \"${0%/*}\"").arg(&mount.point);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        mount.guard = Some(command.spawn().map_err(|error| format!("start {command:?}: {error}"))?);
        Ok(mount)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // If a server still uses the file system, it is detached; the kernel unmounts it when the last file is closed.
        if unmount(&self.point, UnmountFlags::empty()).is_err() {
            let _ = unmount(&self.point, UnmountFlags::DETACH);
        }
        if let Some(guard) = &mut self.guard {
            let _ = guard.kill();
            let _ = guard.wait();
        }
    }
}

fn run(program: &str, args: &[&str]) -> Result<(), String> {
    let found = std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|folder| folder.join(program).exists()));
    // In Debian these programs are only in root's PATH.
    let path = if found { program.to_owned() } else { format!("/usr/sbin/{program}") };
    if !found && !Path::new(&path).exists() {
        return Err(format!("{program} is not installed"));
    }
    let finished = program::run(&path, args);
    let text = finished.stderr.trim();
    if finished.status.success() { Ok(()) } else { Err(format!("{program}: {} {text}", finished.status)) }
}
