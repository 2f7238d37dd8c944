//! The cgroups of a run: a memory limit that includes the page cache, a set of processors that also binds kernel
//! workers, and a limit on reads of one device. Supports versions 1 and 2; the groups are removed at the end. Requires
//! root or a delegated group.
//!
//! Version 1 has a hierarchy per controller, so limits of two controllers need two directories; version 2 has one
//! hierarchy for all. A process joins the groups by [`crate::method::process::Launch::groups`].

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::failure::Failure;
use crate::method::workspace::abandoned;

/// Time until an empty group must be removable: its last process may still be exiting.
const REMOVE_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Clone, Debug, Default)]
pub(crate) struct Limits {
    /// Limit in bytes of anonymous memory and page cache together.
    pub(crate) memory_bytes: Option<u64>,
    /// Allowed processors; unlike a CPU affinity they also bind io-wq workers, which the kernel starts.
    pub(crate) cpus: Option<Vec<usize>>,
    /// Whether reads of a device can be limited later ([`Group::limit_reads`]).
    pub(crate) reads: bool,
}

/// A cgroup of this run. Dropping it removes the group; its processes must have ended before.
#[derive(Debug)]
pub(crate) struct Group {
    /// Its directory in each hierarchy. A process must join all of them.
    pub(crate) directories: Vec<PathBuf>,
    /// Directory of the controller that limits reads.
    reads: Option<(Version, PathBuf)>,
}

/// The two cgroup interfaces of the kernel, of which a machine may have either.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    /// One hierarchy per controller.
    One,
    /// One hierarchy for all controllers (Linux 4.5).
    Two,
}

impl Group {
    /// Creates the group. Fails with the reason if the controller is not available or access is denied.
    pub(crate) fn new(limits: &Limits) -> Result<Group, Failure> {
        let mut group = Group { directories: Vec::new(), reads: None };
        let name = group_name();
        if let Some(cpus) = &limits.cpus {
            let (_, directory) = group.make("cpuset", &name)?;
            set(&directory, "cpuset.cpus", &list(cpus))?;
            // Empty in a new group of version 1, and no process can join the group until it is set. Version 2 treats an
            // empty value as "all".
            set(&directory, "cpuset.mems", &memory_nodes())?;
        }
        if let Some(bytes) = limits.memory_bytes {
            let (version, directory) = group.make("memory", &name)?;
            match version {
                Version::One => set(&directory, "memory.limit_in_bytes", &bytes.to_string())?,
                Version::Two => {
                    set(&directory, "memory.max", &bytes.to_string())?;
                    // Swapped-out pages would exceed the limit. Without swap the file does not exist.
                    let _ = set(&directory, "memory.swap.max", "0");
                }
            }
        }
        if limits.reads {
            group.reads = Some(group.make("blkio", &name)?);
        }
        Ok(group)
    }

    /// Limits the reads per second from a block device (major, minor); `None` removes the limit.
    pub(crate) fn limit_reads(&self, device: (u32, u32), per_second: Option<u32>) -> Result<(), Failure> {
        let (version, directory) = self.reads.as_ref().expect("the group was made for it");
        let (major, minor) = device;
        match version {
            Version::One => {
                // Zero removes the line (Documentation/admin-guide/cgroup-v1/blkio-controller.rst).
                let line = format!("{major}:{minor} {}", per_second.unwrap_or(0));
                set(directory, "blkio.throttle.read_iops_device", &line)
            }
            Version::Two => {
                let limit = per_second.map_or_else(|| "max".to_owned(), |limit| limit.to_string());
                set(directory, "io.max", &format!("{major}:{minor} riops={limit}"))
            }
        }
    }

    /// Creates a directory for one controller, or returns the existing one if the hierarchy is the same.
    fn make(&mut self, controller: &str, name: &str) -> Result<(Version, PathBuf), Failure> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let (version, base) = hierarchy(&mounts, controller).ok_or_else(|| {
            Failure::Other(format!("no control group hierarchy with the {controller} controller is mounted"))
        })?;
        for entry in abandoned(&base, |name| name.strip_prefix(NAME_PREFIX)?.split('-').next()) {
            // Fails for a group that contains processes: it is still in use.
            let _ = fs::remove_dir(entry.path());
        }
        if version == Version::Two {
            enable(&base, if controller == "blkio" { "io" } else { controller })?;
        }
        let directory = base.join(name);
        if !self.directories.contains(&directory) {
            fs::create_dir(&directory).map_err(Failure::file("create the control group", &directory))?;
            self.directories.push(directory.clone());
        }
        Ok((version, directory))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for directory in &self.directories {
            let deadline = Instant::now() + REMOVE_TIMEOUT;
            while let Err(error) = fs::remove_dir(directory) {
                if error.kind() == io::ErrorKind::NotFound {
                    break;
                }
                if Instant::now() >= deadline {
                    eprintln!("ringroad bench: not removed: {}: {error}", directory.display());
                    break;
                }
                crate::method::pause(Duration::from_millis(20));
            }
        }
    }
}

/// Prefix of group names. The process id follows, which distinguishes groups of a killed run from those of a running
/// one.
const NAME_PREFIX: &str = "ringroad-bench-";

fn group_name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("{NAME_PREFIX}{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Returns the mount point of a controller: that of its own hierarchy (version 1), or of the unified hierarchy if it
/// offers the controller.
fn hierarchy(mountinfo: &str, controller: &str) -> Option<(Version, PathBuf)> {
    let mut two = None;
    for line in mountinfo.lines() {
        // proc_pid_mountinfo(5): the fifth field is the mount point; type, source and super options follow after " - ".
        let Some((head, tail)) = line.split_once(" - ") else { continue };
        let Some(point) = head.split(' ').nth(4) else { continue };
        let mut tail = tail.split(' ');
        let (kind, options) = (tail.next(), tail.nth(1).unwrap_or_default());
        match kind {
            Some("cgroup") if options.split(',').any(|option| option == controller) => {
                return Some((Version::One, PathBuf::from(point)));
            }
            Some("cgroup2") if two.is_none() => two = Some(PathBuf::from(point)),
            _ => {}
        }
    }
    let base = two?;
    let wanted = if controller == "blkio" { "io" } else { controller };
    let offered = fs::read_to_string(base.join("cgroup.controllers")).unwrap_or_default();
    offered.split_ascii_whitespace().any(|offered| offered == wanted).then_some((Version::Two, base))
}

/// Enables a controller for child groups, which version 2 requires.
fn enable(base: &Path, controller: &str) -> Result<(), Failure> {
    let file = "cgroup.subtree_control";
    let enabled = fs::read_to_string(base.join(file)).unwrap_or_default();
    if enabled.split_ascii_whitespace().any(|enabled| enabled == controller) {
        return Ok(());
    }
    set(base, file, &format!("+{controller}"))
}

/// Writes a value to a control file; an error names the file.
fn set(directory: &Path, name: &str, value: &str) -> Result<(), Failure> {
    let path = directory.join(name);
    fs::write(&path, value).map_err(Failure::file("write to", &path))
}

/// Formats a list of processors in the syntax of cpuset(7).
fn list(cpus: &[usize]) -> String {
    let words: Vec<String> = cpus.iter().map(ToString::to_string).collect();
    words.join(",")
}

/// Returns all NUMA nodes: only processors are partitioned.
fn memory_nodes() -> String {
    let online = fs::read_to_string("/sys/devices/system/node/online").unwrap_or_default();
    let online = online.trim();
    if online.is_empty() { "0".to_owned() } else { online.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
30 25 0:26 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
31 30 0:27 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
32 30 0:28 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
33 30 0:29 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";

    #[test]
    fn a_cgroup_v1_controller_is_found_in_the_mount_options() {
        let found = |controller| hierarchy(MOUNTS, controller).map(|(_, path)| path);
        assert_eq!(found("memory"), Some(PathBuf::from("/sys/fs/cgroup/memory")));
        assert_eq!(found("cpuacct"), Some(PathBuf::from("/sys/fs/cgroup/cpu,cpuacct")));
        assert_eq!(hierarchy(&MOUNTS.replace("/sys/fs/cgroup/unified", "/nowhere"), "blkio"), None);
    }

    #[test]
    fn cgroup_v2_offers_the_controllers_of_its_file() {
        let base = std::env::temp_dir().join(format!("ringroad-cgroup2-{}", std::process::id()));
        fs::create_dir_all(&base).unwrap();
        fs::write(base.join("cgroup.controllers"), "cpuset io memory\n").unwrap();
        let mounts = format!("33 30 0:29 / {} rw - cgroup2 cgroup2 rw\n", base.display());
        assert_eq!(hierarchy(&mounts, "blkio"), Some((Version::Two, base.clone())));
        assert_eq!(hierarchy(&mounts, "memory"), Some((Version::Two, base.clone())));
        assert_eq!(hierarchy(&mounts, "pids"), None);
        fs::remove_dir_all(&base).unwrap();
    }

    #[test]
    fn a_group_is_removed_with_its_handle() {
        // Root or a mounted hierarchy may be missing; then the reason must be one line.
        match Group::new(&Limits { memory_bytes: Some(64 << 20), ..Limits::default() }) {
            Ok(group) => {
                let directories = group.directories.clone();
                assert!(directories.iter().all(|directory| directory.exists()));
                drop(group);
                assert!(directories.iter().all(|directory| !directory.exists()), "{directories:?}");
            }
            Err(failure) => assert!(!failure.to_string().contains('\n'), "{failure}"),
        }
    }
}
