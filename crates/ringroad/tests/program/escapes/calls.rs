//! Attempts to use interfaces of the kernel that a server does not need. Arguments are invalid where a valid call would change the
//! machine; the kernel checks privileges first.

use super::Without;
use super::attempts::{Attempt, permitted, refused};
use super::target::HERE;

/// MSG_RING, an operation of io_uring that the engine does not use.
const RING_MSG_RING: u8 = 40;

/// URING_CMD, by which a process sends commands to devices.
const RING_URING_CMD: u8 = 46;

pub(super) static CALLS: &[Attempt] = &[
    refused("create an io_uring, io_uring_setup(2)", Without::Succeeds, |target| {
        let parameters = target.thread.bytes(&[0; 120]);
        target.call(425, &[1, parameters])
    }),
    refused("change an io_uring, io_uring_register(2)", Without::Varies, |target| {
        // IORING_REGISTER_PERSONALITY.
        let ring = target.ring_fd();
        target.call(427, &[ring, 9, 0, 0])
    }),
    refused("use an operation of io_uring that the server does not use", Without::Refused, |target| {
        let ring = target.ring_fd();
        target.submit(&testkit::takeover::Entry {
            opcode: RING_MSG_RING,
            fd: ring as i32,
            ..Default::default()
        })
    }),
    refused("send a command to a device by io_uring", Without::Refused, |target| {
        target.submit(&testkit::takeover::Entry { opcode: RING_URING_CMD, fd: 0, ..Default::default() })
    }),
    refused("create a context of native AIO, io_setup(2)", Without::Succeeds, |target| {
        let context = target.thread.bytes(&[0; 8]);
        target.call(206, &[1, context])
    }),
    refused("mount a file system, mount(2)", Without::Refused, |target| {
        let (kind, at) = (target.text("tmpfs"), target.outside(""));
        target.call(165, &[kind, at, kind, 0, 0])
    }),
    refused("mount a file system, fsopen(2)", Without::Refused, |target| {
        let kind = target.text("tmpfs");
        target.call(430, &[kind, 0])
    }),
    refused("copy a mount, open_tree(2)", Without::Refused, |target| {
        let at = target.text("/");
        // OPEN_TREE_CLONE.
        target.call(428, &[HERE, at, 1])
    }),
    refused("unmount a file system, umount2(2)", Without::Refused, |target| {
        let at = target.outside("");
        target.call(166, &[at, 0])
    }),
    refused("change the root, pivot_root(2)", Without::Refused, |target| {
        let at = target.outside("");
        target.call(155, &[at, at])
    }),
    refused("change the root, chroot(2)", Without::Refused, |target| {
        let at = target.outside("");
        target.call(161, &[at])
    }),
    // A flag that no kernel has.
    refused("enter a namespace, setns(2)", Without::Invalid, |target| target.call(308, &[0, 1])),
    refused("create a user namespace, unshare(2)", Without::Invalid, |target| {
        target.call(272, &[0x1000_0000])
    }),
    refused("become root, setuid(2)", Without::Refused, |target| target.call(105, &[0])),
    refused("become root, setresuid(2)", Without::Refused, |target| target.call(117, &[0, 0, 0])),
    refused("become root, setreuid(2)", Without::Refused, |target| target.call(113, &[0, 0])),
    refused("join the group of root, setgid(2)", Without::Refused, |target| target.call(106, &[0])),
    refused("change its groups, setgroups(2)", Without::Refused, |target| target.call(116, &[0, 0])),
    refused("regain capabilities, capset(2)", Without::Refused, |target| {
        // _LINUX_CAPABILITY_VERSION_3, this thread.
        let mut head = [0; 8];
        head[..4].copy_from_slice(&0x2008_0522_u32.to_ne_bytes());
        let (head, sets) = (target.thread.bytes(&head), target.thread.bytes(&[0xff; 24]));
        target.call(126, &[head, sets])
    }),
    // PR_SET_DUMPABLE.
    refused("let others trace it, prctl(2) with `PR_SET_DUMPABLE`", Without::Succeeds, |target| {
        target.call(157, &[4, 1, 0, 0, 0])
    }),
    // PR_SET_PTRACER with PR_SET_PTRACER_ANY.
    refused("let others trace it, prctl(2) with `PR_SET_PTRACER`", Without::Varies, |target| {
        target.call(157, &[0x5961_6d61, u64::MAX, 0, 0, 0])
    }),
    refused("read a keyring, keyctl(2)", Without::Varies, |target| {
        // KEYCTL_GET_KEYRING_ID of the session.
        target.call(250, &[0, -3_i64 as u64, 0])
    }),
    refused("store a key, add_key(2)", Without::Varies, |target| {
        let (kind, name) = (target.text("user"), target.text("escape"));
        target.call(248, &[kind, name, name, 1, -2_i64 as u64])
    }),
    refused("request a key, request_key(2)", Without::Invalid, |target| {
        let (kind, name) = (target.text("user"), target.text("no such key"));
        target.call(249, &[kind, name, 0, 0])
    }),
    // O_CLOEXEC, UFFD_USER_MODE_ONLY.
    refused("handle page faults, userfaultfd(2)", Without::Succeeds, |target| {
        target.call(323, &[0o2_000_001])
    }),
    refused("load a BPF program, bpf(2)", Without::Refused, |target| {
        let attributes = target.thread.bytes(&[0; 128]);
        target.call(321, &[5, attributes, 128])
    }),
    refused("measure a process, perf_event_open(2)", Without::Varies, |target| {
        // PERF_TYPE_SOFTWARE of this thread, without the kernel.
        let mut attributes = [0; 112];
        attributes[0] = 1;
        attributes[4] = 112;
        attributes[40] = 0x60;
        let attributes = target.thread.bytes(&attributes);
        target.call(298, &[attributes, 0, u64::MAX, u64::MAX, 0])
    }),
    refused("watch all files, fanotify_init(2)", Without::Varies, |target| target.call(300, &[0, 0])),
    refused("create shared memory, shmget(2)", Without::Succeeds, |target| {
        target.call(29, &[0, 4096, 0o600])
    }),
    refused("create a message queue, msgget(2)", Without::Succeeds, |target| target.call(68, &[0, 0o600])),
    refused("restart the machine, reboot(2)", Without::Refused, |target| {
        // No command has this number.
        target.call(169, &[0xfee1_dead, 0x2812_1969, 0x1234, 0])
    }),
    refused("replace the kernel, kexec_load(2)", Without::Varies, |target| target.call(246, &[0, 0, 0, 0])),
    refused("load a kernel module, init_module(2)", Without::Varies, |target| target.call(175, &[0, 0, 0])),
    refused("unload a kernel module, delete_module(2)", Without::Varies, |target| {
        let name = target.text("no such module");
        target.call(176, &[name, 0])
    }),
    refused("swap to a file, swapon(2)", Without::Refused, |target| target.call(167, &[0, 0])),
    refused("set the clock, clock_settime(2)", Without::Refused, |target| {
        let now = target.thread.bytes(&[0; 16]);
        target.call(227, &[0, now])
    }),
    refused("adjust the clock, settimeofday(2)", Without::Refused, |target| {
        let now = target.thread.bytes(&[0; 16]);
        target.call(164, &[now, 0])
    }),
    refused("change quotas, quotactl(2)", Without::Invalid, |target| {
        // Q_QUOTAOFF of a device that does not exist.
        let name = target.text("/no/such/device");
        target.call(179, &[0x8000_0300, name, 0, 0])
    }),
    refused("start accounting, acct(2)", Without::Refused, |target| target.call(163, &[0])),
    refused("read the kernel's log, syslog(2)", Without::Varies, |target| target.call(103, &[10, 0, 0])),
    refused("change the host name, sethostname(2)", Without::Refused, |target| {
        let name = target.text("escape");
        target.call(170, &[name, 6])
    }),
    refused("access ports of the machine, iopl(2)", Without::Varies, |target| target.call(172, &[3])),
    refused("change the personality, personality(2)", Without::Succeeds, |target| {
        // The current value remains.
        target.call(135, &[0xffff_ffff])
    }),
    refused("change segment descriptors, modify_ldt(2)", Without::Varies, |target| {
        let entry = target.thread.bytes(&[0; 16]);
        target.call(154, &[0, entry, 16])
    }),
    refused("insert characters into a terminal, ioctl(2) with `TIOCSTI`", Without::Invalid, |target| {
        let character = target.text("x");
        target.call(16, &[0, 0x5412, character])
    }),
    refused("create memory that is writable and executable, mmap(2)", Without::Succeeds, |target| {
        target.call(9, &[0, 4096, 7, 0x22, u64::MAX, 0])
    }),
    refused("make written memory executable, mprotect(2)", Without::Succeeds, |target| {
        let memory = target.call(9, &[0, 4096, 3, 0x22, u64::MAX, 0])?;
        target.call(10, &[memory, 4096, 5])
    }),
    permitted("map a file that it has written as code, mmap(2)", |target| {
        let path = target.cached("code")?;
        let file = target.open(path, 2)?;
        target.call(1, &[file, path, 8])?;
        target.call(9, &[0, 4096, 5, 2, file, 0])
    }),
    permitted("read the attributes of any file, stat(2)", |target| {
        let (path, into) = (target.outside("secret"), target.thread.bytes(&[0; 144]));
        target.call(4, &[path, into])
    }),
    permitted("create an unnamed file in memory, memfd_create(2)", |target| {
        let name = target.text("memory");
        target.call(319, &[name, 0])
    }),
    permitted("send a UDP datagram, as to a DNS server", |target| {
        let socket = target.call(41, &[2, 2, 0])?;
        let address = target.other_port();
        target.call(44, &[socket, address, 1, 0, address, 16])
    }),
];
