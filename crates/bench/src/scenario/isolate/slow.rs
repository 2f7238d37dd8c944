//! A deliberately slow disk, and clients that wait for it.
//!
//! As root, the disk is an ext4 on a loop device whose reads per second are limited for the server's cgroup
//! ([`crate::method::cgroup::Group::limit_reads`]): equally slow for nginx and Ringroad. Without root, Ringroad's fault
//! engine delays opens and reads below a directory; nginx has no equivalent.

use std::fs::{self, File};
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::mount::{UnmountFlags, unmount};

use super::FILE_BYTES;
use crate::context::Bench;
use crate::failure::Failure;
use crate::method::cgroup::{Group, Limits};
use crate::method::{page_cache, pause};
use crate::peers::tool::in_path;

/// Size of the image: one block and one inode for each client's file, and a reserve.
const IMAGE_BYTES: u64 = 128 << 20;

/// Time for the requests to reach the disk before the measurement begins.
const SETTLE: Duration = Duration::from_millis(300);

/// The disk with the files that clients wait for.
pub(super) struct SlowDisk {
    pub(super) directory: PathBuf,
    kind: SlowdownMethod,
    pub(super) description: String,
}

/// How the disk is slowed down.
enum SlowdownMethod {
    /// A throttled device (major, minor) with its limit of reads per second.
    Throttled {
        device: (u32, u32),
        reads: u32,
        _mounted: Mounted,
    },
    Faults,
}

impl SlowDisk {
    /// Creates the kind of disk that this process has the rights for, with a file for each client.
    pub(super) fn make(bench: &Bench, files: u32, reads: u32) -> Result<SlowDisk, Failure> {
        let directory = bench.workspace.directory("isolate-slow")?;
        let throttled = if bench.is_root() {
            throttled(bench, &directory, reads)
        } else {
            Err("it needs root".to_owned())
        };
        let disk = match throttled {
            Ok(disk) => disk,
            Err(reason) => {
                let faults = SlowDisk::of_faults(directory);
                let description = format!("{}; no throttled device: {reason}", faults.description);
                SlowDisk { description, ..faults }
            }
        };
        // Each client has a separate file: pages read for one client must not serve another.
        for number in 0..files {
            let path = disk.directory.join(number.to_string());
            fs::write(&path, vec![b's'; FILE_BYTES]).map_err(Failure::file("write", &path))?;
        }
        rustix::fs::sync();
        Ok(disk)
    }

    /// Creates a disk that uses the fault engine instead of a device.
    pub(super) fn of_faults(directory: PathBuf) -> SlowDisk {
        let description = "the fault engine delays each open and read by a minute".to_owned();
        SlowDisk { directory, kind: SlowdownMethod::Faults, description }
    }

    /// Whether the disk is also slow for nginx: faults of Ringroad's engine are not.
    pub(super) fn slows_nginx(&self) -> bool {
        matches!(self.kind, SlowdownMethod::Throttled { .. })
    }

    /// Returns directives for Ringroad's `events {}`.
    pub(super) fn faults(&self) -> String {
        match self.kind {
            SlowdownMethod::Throttled { .. } => String::new(),
            SlowdownMethod::Faults => {
                // Resident files would be read without the engine, and thus without its faults.
                let directory = self.directory.display();
                let fault = |operation| format!(" engine_fault {operation} delay=60s path={directory}/;");
                format!(" try_cached off;{}{}", fault("open"), fault("read"))
            }
        }
    }

    /// Returns the cgroup for a server that is to be slowed down.
    pub(super) fn group(&self) -> Result<Option<Group>, Failure> {
        match self.kind {
            SlowdownMethod::Throttled { .. } => {
                Group::new(&Limits { reads: true, ..Limits::default() }).map(Some)
            }
            SlowdownMethod::Faults => Ok(None),
        }
    }

    /// Makes the disk slow, and drops the page cache.
    pub(super) fn slow_down(&self, group: Option<&Group>) -> Result<(), Failure> {
        if let (SlowdownMethod::Throttled { device, reads, .. }, Some(group)) = (&self.kind, group) {
            // Dentries and inodes are dropped too, so that opens wait as well.
            page_cache::drop_all()?;
            group.limit_reads(*device, Some(*reads))?;
        }
        Ok(())
    }

    /// Makes the disk fast again: waiting reads complete immediately.
    pub(super) fn restore(&self, group: Option<&Group>) -> Result<(), Failure> {
        match (&self.kind, group) {
            (SlowdownMethod::Throttled { device, .. }, Some(group)) => group.limit_reads(*device, None),
            _ => Ok(()),
        }
    }
}

/// A mounted file system in an image file. Its loop device is removed with the mount (`mount -o loop`).
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        for _ in 0..50 {
            // The mount is busy until the last process of a server has exited.
            if unmount(&self.0, UnmountFlags::empty()).is_ok() {
                return;
            }
            pause(Duration::from_millis(100));
        }
        if let Err(error) = unmount(&self.0, UnmountFlags::DETACH) {
            eprintln!("ringroad bench: not removed: the mount {}: {error}", self.0.display());
        }
    }
}

/// Mounts an ext4 on a loop device and checks that its reads can be limited; returns the reason if they cannot.
fn throttled(bench: &Bench, directory: &Path, reads: u32) -> Result<SlowDisk, String> {
    // If cgroups cannot limit reads, no device is needed.
    drop(Group::new(&Limits { reads: true, ..Limits::default() }).map_err(|failure| failure.to_string())?);
    bench.workspace.need_space(IMAGE_BYTES).map_err(|failure| failure.to_string())?;
    let image = bench.workspace.path.join("isolate-image");
    let file = File::create(&image).map_err(|error| format!("create an image: {error}"))?;
    file.set_len(IMAGE_BYTES).map_err(|error| format!("extend an image: {error}"))?;
    let (image, directory_text) = (image.display().to_string(), directory.display().to_string());
    // Without a journal, whose kernel thread would read and write during the measurement; with an inode for each file.
    call("mkfs.ext4", &["-q", "-O", "^has_journal", "-N", "8192", &image])?;
    call("mount", &["-o", "loop,noatime", &image, &directory_text])?;
    let mounted = Mounted(directory.to_owned());
    let device = crate::method::timeline::device_of(directory);
    let description = format!("ext4 on a loop device limited to {reads} reads per second");
    let kind = SlowdownMethod::Throttled { device, reads, _mounted: mounted };
    Ok(SlowDisk { directory: directory.to_owned(), kind, description })
}

/// Runs a system tool; an error includes the last line of its output.
fn call(name: &str, arguments: &[&str]) -> Result<(), String> {
    let program = in_path(name).ok_or_else(|| format!("{name} is not installed"))?;
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("{name}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("{name}: {}", said.lines().next_back().unwrap_or("failed").trim()))
}

/// Clients that each request one file of the slow disk, and wait. Dropping them closes their connections.
pub(super) struct WaitingClients(Vec<TcpStream>);

impl WaitingClients {
    pub(super) fn connect(server: SocketAddr, clients: u32) -> Result<WaitingClients, Failure> {
        let connect = |_| TcpStream::connect(server);
        let sockets: std::io::Result<Vec<TcpStream>> = (0..clients).map(connect).collect();
        sockets.map(WaitingClients).map_err(Failure::kernel(format!("connecting to {server}")))
    }

    /// Sends the requests, and waits until they have reached the disk.
    pub(super) fn send_requests(&self) -> Result<(), Failure> {
        for (number, mut socket) in self.0.iter().enumerate() {
            let request = format!("GET /slow/{number} HTTP/1.1\r\nHost: bench\r\n\r\n");
            socket
                .write_all(request.as_bytes())
                .map_err(Failure::kernel("requesting a file of the slow disk"))?;
        }
        pause(SETTLE);
        Ok(())
    }

    /// Returns the number of clients that have received a response.
    pub(super) fn responded(&self) -> usize {
        let mut watched: Vec<PollFd<'_>> =
            self.0.iter().map(|socket| PollFd::new(socket, PollFlags::IN)).collect();
        poll(&mut watched, Some(&Timespec::default())).unwrap_or(0)
    }
}
