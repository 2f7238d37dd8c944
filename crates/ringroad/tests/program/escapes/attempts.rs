//! Attempts to reach files, processes and the network. Numbers of system calls are those of x86_64 (syscall_64.tbl), numbers of io_uring
//! operations those of `enum io_uring_op`.

use testkit::takeover::{Entry, Outcome};

use super::target::{CREATE, HERE, READ, TRUNCATE, Target, WRITE};
use super::{Effect, Without};

/// One attempt to escape.
pub(super) struct Attempt {
    /// Name in the documentation.
    pub(super) name: &'static str,
    pub(super) without: Without,
    pub(super) on: Effect,
    pub(super) strict: Effect,
    pub(super) run: fn(&mut Target) -> Outcome,
}

/// Creates an attempt that every sandbox refuses.
pub(super) const fn refused(
    name: &'static str,
    without: Without,
    run: fn(&mut Target) -> Outcome,
) -> Attempt {
    Attempt { name, without, on: Effect::Refused, strict: Effect::Refused, run }
}

/// Creates an attempt that no sandbox refuses.
pub(super) const fn permitted(name: &'static str, run: fn(&mut Target) -> Outcome) -> Attempt {
    Attempt { name, without: Without::Succeeds, on: Effect::Permitted, strict: Effect::Permitted, run }
}

/// Operations of io_uring.
const RING_OPENAT2: u8 = 28;
const RING_CONNECT: u8 = 16;
const RING_UNLINKAT: u8 = 36;
const RING_SYMLINKAT: u8 = 38;
const RING_SOCKET: u8 = 45;

/// An operation on a path relative to the current directory.
fn ring_path(opcode: u8, address: u64) -> Entry {
    Entry { opcode, fd: -100, address, ..Entry::default() }
}

pub(super) static FILES: &[Attempt] = &[
    refused("open a file that the configuration does not name, by openat(2)", Without::Succeeds, |target| {
        let path = target.outside("secret");
        target.open(path, READ)
    }),
    refused("open such a file by openat2(2)", Without::Succeeds, |target| {
        let path = target.outside("secret");
        let how = target.thread.bytes(&[0; 24]);
        target.call(437, &[HERE, path, how, 24])
    }),
    refused("open such a file by io_uring", Without::Succeeds, |target| {
        let path = target.outside("secret");
        let how = target.thread.bytes(&[0; 24]);
        target.submit(&Entry { offset: how, length: 24, ..ring_path(RING_OPENAT2, path) })
    }),
    refused("open `/etc/shadow` by openat(2)", Without::Refused, |target| {
        let path = target.text("/etc/shadow");
        target.open(path, READ)
    }),
    refused("open `/etc/shadow` by io_uring", Without::Refused, |target| {
        let path = target.text("/etc/shadow");
        let how = target.thread.bytes(&[0; 24]);
        target.submit(&Entry { offset: how, length: 24, ..ring_path(RING_OPENAT2, path) })
    }),
    refused("open a file by its handle, open_by_handle_at(2)", Without::Refused, |target| {
        let handle = target.thread.bytes(&[8, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        target.call(304, &[HERE, handle, 0])
    }),
    refused("write to a file that the configuration does not name", Without::Succeeds, |target| {
        let path = target.outside("writable");
        target.open(path, WRITE)
    }),
    refused("truncate such a file, truncate(2)", Without::Succeeds, |target| {
        let path = target.outside("writable");
        target.call(76, &[path, 0])
    }),
    refused("create a file below the root of a site", Without::Succeeds, |target| {
        let path = target.root("created");
        target.open(path, CREATE)
    }),
    refused("truncate a file below the root of a site", Without::Succeeds, |target| {
        let path = target.root("page.copy");
        target.open(path, TRUNCATE)
    }),
    refused("create a directory below the root of a site", Without::Succeeds, |target| {
        let path = target.root("directory");
        target.call(258, &[HERE, path, 0o700])
    }),
    refused("create a device or FIFO below the root of a site", Without::Succeeds, |target| {
        let path = target.root("fifo");
        target.call(259, &[HERE, path, 0o010_600, 0])
    }),
    refused("delete a file below the root of a site", Without::Succeeds, |target| {
        let path = target.root("removed");
        target.call(263, &[HERE, path, 0])
    }),
    refused("delete such a file by io_uring", Without::Succeeds, |target| {
        let path = target.root("removed by ring");
        target.submit(&ring_path(RING_UNLINKAT, path))
    }),
    refused("rename a file of the cache to another directory", Without::Succeeds, |target| {
        let (from, to) = (target.cached("renamed")?, target.outside("renamed"));
        target.call(316, &[HERE, from, HERE, to, 0])
    }),
    refused("rename a file of the cache into the root of a site", Without::Succeeds, |target| {
        let (from, to) = (target.cached("moved")?, target.root("moved"));
        target.call(316, &[HERE, from, HERE, to, 0])
    }),
    refused("create a hard link to a file of the cache in another directory", Without::Succeeds, |target| {
        let (from, to) = (target.cached("linked")?, target.outside("linked"));
        target.call(265, &[HERE, from, HERE, to, 0])
    }),
    refused("create a symbolic link in the cache and follow it", Without::Succeeds, |target| {
        let (file, link) = (target.outside("secret"), target.in_cache("link"));
        target.call(266, &[file, HERE, link])?;
        target.open(link, READ)
    }),
    refused("create a symbolic link by io_uring", Without::Refused, |target| {
        let (file, link) = (target.outside("secret"), target.in_cache("link by ring"));
        target.submit(&Entry {
            opcode: RING_SYMLINKAT,
            fd: -100,
            address: file,
            offset: link,
            ..Entry::default()
        })
    }),
    permitted("change the mode of a file of its user, chmod(2)", |target| {
        let path = target.outside("owned");
        target.call(90, &[path, 0o4755])
    }),
    refused("change the owner of such a file, chown(2)", Without::Succeeds, |target| {
        let path = target.outside("owned");
        target.call(92, &[path, u64::MAX, u64::MAX])
    }),
    refused("set an extended attribute, setxattr(2)", Without::Varies, |target| {
        let (path, name) = (target.outside("owned"), target.text("user.escape"));
        target.call(188, &[path, name, name, 1, 0])
    }),
    refused("open the memory of the master, `/proc/PID/mem`", Without::Varies, |target| {
        let path = target.text(&format!("/proc/{}/mem", target.master()));
        target.open(path, WRITE)
    }),
    refused("read the environment of the master, `/proc/PID/environ`", Without::Varies, |target| {
        let path = target.text(&format!("/proc/{}/environ", target.master()));
        target.open(path, READ)
    }),
    refused("read the environment of another process of its user", Without::Succeeds, |target| {
        let path = target.text(&format!("/proc/{}/environ", target.bystander()));
        target.open(path, READ)
    }),
    refused("open a file of another process of its user, `/proc/PID/root`", Without::Succeeds, |target| {
        let path = target.text(&format!("/proc/{}/root/etc/passwd", target.bystander()));
        target.open(path, READ)
    }),
];

pub(super) static PROCESSES: &[Attempt] = &[
    refused("trace another process of its user, ptrace(2)", Without::Varies, |target| {
        let process = target.bystander();
        // PTRACE_SEIZE.
        target.call(101, &[0x4206, process, 0, 0])
    }),
    refused("read the memory of another process, process_vm_readv(2)", Without::Varies, |target| {
        let vector = target.thread.bytes(&[0; 16]);
        target.call(310, &[target.bystander(), vector, 1, vector, 1, 0])
    }),
    refused("write to the memory of another process, process_vm_writev(2)", Without::Varies, |target| {
        let vector = target.thread.bytes(&[0; 16]);
        target.call(311, &[target.bystander(), vector, 1, vector, 1, 0])
    }),
    refused(
        "copy a descriptor of another process, pidfd_open(2) and pidfd_getfd(2)",
        Without::Varies,
        |target| {
            let process = target.call(434, &[target.bystander(), 0])?;
            target.call(438, &[process, 0, 0])
        },
    ),
    refused("send a signal to another process of its user, kill(2)", Without::Succeeds, |target| {
        target.call(62, &[target.bystander(), 0])
    }),
    refused("send a signal to the master, tgkill(2)", Without::Varies, |target| {
        let master = target.master();
        target.call(234, &[master, master, 0])
    }),
    refused("send a signal with data, rt_sigqueueinfo(2)", Without::Varies, |target| {
        let info = target.thread.bytes(&[0; 128]);
        target.call(129, &[target.bystander(), 0, info])
    }),
    refused("send a signal by a descriptor, pidfd_send_signal(2)", Without::Succeeds, |target| {
        let process = target.call(434, &[target.bystander(), 0])?;
        target.call(424, &[process, 0, 0, 0])
    }),
    refused(
        "let the kernel send a signal to another process, fcntl(2) with `F_SETOWN`",
        Without::Succeeds,
        own_signal,
    ),
    refused("change limits of another process, prlimit(2)", Without::Succeeds, |target| {
        // RLIMIT_CORE.
        let limit = target.thread.bytes(&[0; 16]);
        target.call(302, &[target.bystander(), 4, limit, 0])
    }),
    refused("change the priority of another process, setpriority(2)", Without::Succeeds, |target| {
        target.call(141, &[0, target.bystander(), 19])
    }),
    refused("change the processors of another process, sched_setaffinity(2)", Without::Succeeds, |target| {
        let processors = target.thread.bytes(&[0xff; 128]);
        target.call(203, &[target.bystander(), 128, processors])
    }),
    refused("compare descriptors of two processes, kcmp(2)", Without::Varies, |target| {
        let process = target.bystander();
        target.call(312, &[process, process, 1, 0, 0])
    }),
    refused("execute a program, execve(2)", Without::Invalid, |target| {
        let path = target.text("/no/such/program");
        target.call(59, &[path, 0, 0])
    }),
    refused("execute a program in memory, memfd_create(2) and execveat(2)", Without::Invalid, |target| {
        let name = target.text("program");
        let file = target.call(319, &[name, 0])?;
        let empty = target.text("");
        // AT_EMPTY_PATH. The empty file is not executable.
        target.call(322, &[file, empty, 0, 0, 0x1000])
    }),
    // CLONE_SIGHAND without CLONE_VM is invalid.
    refused("start a process, clone(2)", Without::Invalid, |target| {
        target.call(56, &[0x800 | 17, 0, 0, 0, 0])
    }),
    refused("start a process, fork(2)", Without::Untried, |target| target.call(57, &[])),
    refused("start a process, vfork(2)", Without::Untried, |target| target.call(58, &[])),
    // CLONE_NEWUSER with CLONE_FS is invalid.
    refused("start a process in a new user namespace, clone(2)", Without::Invalid, |target| {
        target.call(56, &[0x1000_0000 | 0x200 | 17, 0, 0, 0, 0])
    }),
];

/// Makes the kernel send SIGUSR1 to another process when data arrives in a pipe. The other process is stopped, so that the signal
/// remains pending.
fn own_signal(target: &mut Target) -> Outcome {
    const FCNTL: u64 = 72;
    let victim = target.stopped_process();
    let pipe = target.thread.bytes(&[0; 8]);
    target.call(293, &[pipe, 0])?;
    let ends: [u8; 8] = target.thread.read(pipe);
    let end = |at: usize| u64::from(u32::from_ne_bytes([ends[at], ends[at + 1], ends[at + 2], ends[at + 3]]));
    // F_SETOWN; F_SETSIG; F_SETFL with O_ASYNC.
    target.call(FCNTL, &[end(0), 8, victim.pid() as u64])?;
    target.call(FCNTL, &[end(0), 10, 10])?;
    target.call(FCNTL, &[end(0), 4, 0o20000])?;
    target.call(1, &[end(4), pipe, 1])?;
    let status = std::fs::read_to_string(format!("/proc/{}/status", victim.pid())).expect("it is stopped");
    let is_pending =
        status.contains("ShdPnd:\t0000000000000200") || status.contains("SigPnd:\t0000000000000200");
    // Landlock discards the signal without an error.
    if is_pending { Ok(0) } else { Err(1) }
}

pub(super) static NETWORK: &[Attempt] = &[
    refused("connect to a TCP port that is not an upstream", Without::Succeeds, |target| {
        let socket = target.call(41, &[2, 1, 0])?;
        let address = target.other_port();
        target.call(42, &[socket, address, 16])
    }),
    refused("connect to such a port by io_uring", Without::Succeeds, |target| {
        let socket = target.call(41, &[2, 1, 0])?;
        let address = target.other_port();
        target.submit(&Entry {
            opcode: RING_CONNECT,
            fd: socket as i32,
            address,
            offset: 16,
            ..Entry::default()
        })
    }),
    // IPPROTO_MPTCP: Landlock does not restrict its ports.
    refused("create a socket of Multipath TCP", Without::Succeeds, |target| target.call(41, &[2, 1, 262])),
    // MSG_FASTOPEN, which the kernel permits to clients by default.
    refused("connect to such a port by sendto with `MSG_FASTOPEN`", Without::Succeeds, |target| {
        let socket = target.call(41, &[2, 1, 0])?;
        let (address, bytes) = (target.other_port(), target.thread.bytes(b"GET"));
        target.call(44, &[socket, bytes, 3, 0x2000_0000, address, 16])
    }),
    refused("connect to an abstract unix socket of another process", Without::Succeeds, |target| {
        let socket = target.call(41, &[1, 1, 0])?;
        let (address, length) = target.abstract_socket();
        target.call(42, &[socket, address, length])
    }),
    refused("listen on another TCP port", Without::Succeeds, |target| {
        let socket = target.call(41, &[2, 1, 0])?;
        let address = target.thread.bytes(&[2, 0, 0, 0, 127, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]);
        target.call(49, &[socket, address, 16])?;
        target.call(50, &[socket, 1])
    }),
    // SO_LOCK_FILTER. Some kernels refuse SO_ATTACH_FILTER to other users than root.
    refused("attach or lock a packet filter of a socket, setsockopt(2)", Without::Succeeds, |target| {
        let socket = target.call(41, &[2, 1, 0])?;
        let one = target.thread.bytes(&[1, 0, 0, 0]);
        target.call(54, &[socket, 1, 44, one, 4])
    }),
    refused("create a raw socket, `SOCK_RAW`", Without::Refused, |target| target.call(41, &[2, 3, 1])),
    refused("create a packet socket, `AF_PACKET`", Without::Refused, |target| target.call(41, &[17, 3, 0])),
    // NETLINK_SOCK_DIAG.
    refused(
        "create a netlink socket of another protocol than `NETLINK_ROUTE`",
        Without::Succeeds,
        |target| target.call(41, &[16, 3, 4]),
    ),
    permitted("read the addresses of the machine by a netlink socket, `NETLINK_ROUTE`", |target| {
        target.call(41, &[16, 3, 0])
    }),
    refused("create a socket to the hypervisor, `AF_VSOCK`", Without::Varies, |target| {
        target.call(41, &[40, 1, 0])
    }),
    refused("create a socket of the kernel's cryptography, `AF_ALG`", Without::Varies, |target| {
        target.call(41, &[38, 5, 0])
    }),
    refused("create a socket by io_uring", Without::Refused, |target| {
        target.submit(&Entry { opcode: RING_SOCKET, fd: 16, offset: 3, ..Entry::default() })
    }),
];
