//! Data about a process from `/proc`: its threads and their users, its descriptors, its children.
//!
//! See proc_pid_status(5) for the fields. A thread or process that ends while its data is read is omitted, as if it had
//! ended before.

use std::ffi::OsStr;
use std::fs;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::process::{PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

/// A process id, as in system calls.
pub type Pid = i32;

/// Facts about one thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadFacts {
    /// The thread id.
    pub tid: Pid,
    /// Name of the thread, at most 15 bytes.
    pub name: String,
    /// Real, effective, saved and file system user id.
    pub uids: [u32; 4],
    /// Real, effective, saved and file system group id.
    pub gids: [u32; 4],
    /// The supplementary groups.
    pub groups: Vec<u32>,
    /// The effective capabilities, as a bit mask.
    pub capabilities: u64,
}

/// Returns all threads of a process; empty if the process has exited.
pub fn threads(pid: Pid) -> Vec<ThreadFacts> {
    let tasks = format!("/proc/{pid}/task");
    entries::<Pid>(Path::new(&tasks))
        .filter_map(|tid| {
            let status = fs::read_to_string(format!("{tasks}/{tid}/status")).ok()?;
            Some(parse_status(&status))
        })
        .collect()
}

/// Returns the number of open descriptors of a process; zero if it has exited or its descriptors are not readable.
pub fn open_fds(pid: Pid) -> usize {
    entries::<u32>(Path::new(&format!("/proc/{pid}/fd"))).count()
}

/// Returns the targets of a process's descriptors (`socket:[123]`, `/var/log/x`, `anon_inode:[io_uring]`).
pub fn fd_targets(pid: Pid) -> Vec<String> {
    let folder = format!("/proc/{pid}/fd");
    entries::<u32>(Path::new(&folder))
        .filter_map(|fd| fs::read_link(format!("{folder}/{fd}")).ok())
        .map(|target| target.to_string_lossy().into_owned())
        .collect()
}

/// Returns duplicates of a process's sockets that are connected to this address, for reading the options that the
/// process has set. The second value is false if the kernel does not permit duplicates (pidfd_getfd(2), Linux 5.6); the
/// list is then empty.
pub fn sockets_to(pid: Pid, peer: SocketAddr) -> (Vec<OwnedFd>, bool) {
    let process = rustix::process::Pid::from_raw(pid);
    let Some(Ok(process)) = process.map(|pid| pidfd_open(pid, PidfdFlags::empty())) else {
        return (Vec::new(), false);
    };
    let mut is_allowed = false;
    let folder = format!("/proc/{pid}/fd");
    let copies = entries::<i32>(Path::new(&folder))
        .filter_map(|fd| {
            let copy = pidfd_getfd(process.as_fd(), fd, PidfdGetfdFlags::empty());
            is_allowed |= copy.is_ok();
            copy.ok()
        })
        .filter(|copy| {
            let to = rustix::net::getpeername(copy).ok().flatten();
            to.and_then(|to| SocketAddr::try_from(to).ok()) == Some(peer)
        })
        .collect();
    (copies, is_allowed)
}

/// Returns the children of a process that have not ended, in ascending order: the workers of a master.
pub fn children(parent: Pid) -> Vec<Pid> {
    let mut found: Vec<Pid> = entries(Path::new("/proc"))
        .filter(|&pid| matches!(state_and_parent(pid), Some((state, of)) if of == parent && runs(pid, state)))
        .collect();
    found.sort_unstable();
    found
}

/// Whether a process exists and has not ended.
pub fn is_alive(pid: Pid) -> bool {
    matches!(state_and_parent(pid), Some((state, _)) if runs(pid, state))
}

/// Whether all threads of a process are stopped by a signal. Workers of the kernel for io_uring are threads of the process too.
pub(crate) fn is_stopped(pid: Pid) -> bool {
    let tasks = format!("/proc/{pid}/task");
    let runs = |tid: Pid| {
        let stat = fs::read_to_string(format!("{tasks}/{tid}/stat")).unwrap_or_default();
        let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
        state.is_some_and(|state| state != 'T') && !stat.contains("(iou-")
    };
    !entries::<Pid>(Path::new(&tasks)).any(runs)
}

/// Whether a process in this state has not ended. The main thread of a killed process may be a zombie while its other
/// threads still run and accept connections.
fn runs(pid: Pid, state: char) -> bool {
    match state {
        'X' => false,
        'Z' => entries::<Pid>(&Path::new("/proc").join(pid.to_string()).join("task")).count() > 1,
        _ => true,
    }
}

/// Whether an argument of a process names a path in this directory.
pub(crate) fn command_line_has(pid: Pid, directory: &Path) -> bool {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    line.split(|&byte| byte == 0)
        .any(|argument| Path::new(OsStr::from_bytes(argument)).starts_with(directory))
}

/// Whether the command line of a process begins with this text.
pub(crate) fn command_line_begins(pid: Pid, text: &str) -> bool {
    fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.starts_with(text.as_bytes()))
}

/// Returns the resident memory of a process in bytes (VmRSS); zero if it has exited.
pub fn resident_bytes(pid: Pid) -> u64 {
    kib_of(pid, "VmRSS")
}

/// Returns its resident shared memory in bytes (RssShmem); zero if it has exited.
pub fn shared_bytes(pid: Pid) -> u64 {
    kib_of(pid, "RssShmem")
}

fn kib_of(pid: Pid, name: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let kib = field(&status, name).and_then(|value| value.split_whitespace().next());
    kib.and_then(|value| value.parse::<u64>().ok()).unwrap_or(0) * 1024
}

/// Returns state letter and parent from `/proc/PID/stat`; the name in parentheses may contain any character.
fn state_and_parent(pid: Pid) -> Option<(char, Pid)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, after_name) = stat.rsplit_once(") ")?;
    let mut fields = after_name.split(' ');
    let state = fields.next()?.chars().next()?;
    Some((state, fields.next()?.parse().ok()?))
}

fn parse_status(status: &str) -> ThreadFacts {
    let numbers = |name: &str| -> Vec<u32> {
        let value = field(status, name).unwrap_or("");
        value.split_whitespace().filter_map(|number| number.parse().ok()).collect()
    };
    let four = |name: &str| -> [u32; 4] {
        numbers(name).try_into().unwrap_or_else(|found| panic!("{name} of /proc status: {found:?}"))
    };
    ThreadFacts {
        tid: numbers("Pid").first().map_or(0, |&tid| tid as Pid),
        name: field(status, "Name").unwrap_or("").to_owned(),
        uids: four("Uid"),
        gids: four("Gid"),
        groups: numbers("Groups"),
        capabilities: field(status, "CapEff")
            .and_then(|mask| u64::from_str_radix(mask, 16).ok())
            .unwrap_or(0),
    }
}

/// Returns the value of one "Name:\tvalue" line.
fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim()))
}

/// Returns the entries of a directory with numeric names.
fn entries<N: std::str::FromStr>(folder: &Path) -> impl Iterator<Item = N> {
    let listing = fs::read_dir(folder).into_iter().flatten().flatten();
    listing.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    fn own_pid() -> Pid {
        std::process::id() as Pid
    }

    #[test]
    fn a_procfs_status_file_is_parsed_completely() {
        let status = "Name:\tworker 1\nState:\tS (sleeping)\nTgid:\t7\nPid:\t9\nPPid:\t1\nUid:\t1\t2\t3\t4\n\
                      Gid:\t5\t6\t7\t8\nGroups:\t10 20 \nCapEff:\t0000000000000400\n";
        let facts = parse_status(status);
        assert_eq!((facts.tid, facts.name.as_str()), (9, "worker 1"));
        assert_eq!((facts.uids, facts.gids), ([1, 2, 3, 4], [5, 6, 7, 8]));
        assert_eq!((facts.groups, facts.capabilities), (vec![10, 20], 1 << 10));
    }

    #[test]
    fn threads_and_descriptors_of_the_own_process_are_found() {
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let (started, ready) = std::sync::mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("extra".to_owned())
            .spawn(move || {
                started.send(()).expect("the test waits for this");
                stopped.recv().expect_err("the sender is dropped, never used");
            })
            .expect("one more thread can start");
        ready.recv().expect("the thread sends once");
        assert!(threads(own_pid()).iter().any(|thread| thread.name == "extra"));
        assert!(open_fds(own_pid()) >= 3);
        assert!(resident_bytes(own_pid()) > 0);
        drop(stop);
        thread.join().expect("the thread only waits");
    }

    #[test]
    fn children_live_until_they_end() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().expect("cat is everywhere");
        let pid = child.id() as Pid;
        assert!(children(own_pid()).contains(&pid));
        assert!(is_alive(pid));
        drop(child.stdin.take());
        child.wait().expect("cat ends at the end of its input");
        assert!(!children(own_pid()).contains(&pid));
        assert!(!is_alive(pid));
    }
}
