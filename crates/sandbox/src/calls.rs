//! Restricts system calls by a seccomp filter with a list of permitted calls, seccomp(2).
//!
//! A call that is not in the list is not executed and fails with `EPERM`, and [`RefusedCalls`] returns its name, so that
//! the process can log it. A thread that has SIGSYS blocked gets no chance to do so, and the process is killed by this signal: so
//! ends posix_spawn(3), for which the C library blocks all signals, and a call of another architecture, such as `int 0x80`.
//! Operations of an io_uring are not system calls: a filter does not see them, and crate `io` restricts each ring to the
//! operations that it uses.
//!
//! The lists hold what the C library, the standard library and the engines of crate `io` use once all threads and rings
//! exist. The kernel keeps the calls without conditions in a bitmap and does not run the filter for them (Linux 5.11).

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::thread::SecureComputingMode;
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};

use crate::lists::{
    COMMON, COMMON_OF_X86_64, FCHMODAT2, FILES, FILES_OF_X86_64, Named, REFUSED, SOCKETS, WORKER,
};
use crate::{Error, failed};

/// The purpose of a process, which determines its permitted calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Calls {
    /// Serves clients: engines, files, sockets, threads.
    Worker,
    /// As [`Calls::Worker`], and maps memory that is writable and executable, for patterns that are compiled to machine code.
    WorkerWithJit,
    /// Obtains certificates: files and sockets with blocking calls.
    Agent,
    /// Answers requests on open descriptors: no files, no new sockets.
    Signer,
}

/// Reports calls that the filter has refused.
#[derive(Debug)]
pub struct RefusedCalls {
    bell: OwnedFd,
}

impl AsFd for RefusedCalls {
    /// Returns a descriptor that is readable when [`RefusedCalls::take`] returns names.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

impl RefusedCalls {
    /// Returns the names of the calls that were refused since the last call of this function, each once.
    pub fn take(&self) -> Vec<String> {
        let mut count = [0; 8];
        // The descriptor does not block; it is readable if a call was refused.
        let _ = rustix::io::read(&self.bell, &mut count);
        io::sys::take_refused_calls().into_iter().map(name).collect()
    }
}

/// Whether the kernel supports filters of system calls, prctl(2): it rejects a null pointer as the filter (`EFAULT`) only after it has
/// accepted the mode (`EINVAL`).
pub(crate) fn supports_calls() -> bool {
    let without_filter = rustix::thread::set_secure_computing_mode(SecureComputingMode::Filter);
    without_filter != Err(rustix::io::Errno::INVAL)
}

/// Permits only the calls of a list, in all threads of the process and in those that it starts later.
pub fn restrict_calls(calls: Calls) -> Result<RefusedCalls, Error> {
    let bell = io::sys::note_refused_calls().map_err(failed("sigaction"))?;
    let arch = TargetArch::try_from(std::env::consts::ARCH).map_err(backend)?;
    // The flags of clone3(2) are in memory, where a filter cannot check them. With this error the C library uses clone(2).
    let no_clone3 = filter(
        BTreeMap::from([(libc::SYS_clone3, Vec::new())]),
        (SeccompAction::Allow, SeccompAction::Errno(libc::ENOSYS as u32)),
        arch,
    )?;
    let only = filter(rules(calls).map_err(backend)?, (SeccompAction::Trap, SeccompAction::Allow), arch)?;
    // The first filter comes first, because the second one does not permit seccomp(2).
    for program in [no_clone3, only] {
        seccompiler::apply_filter_all_threads(&program).map_err(Error::Seccomp)?;
    }
    Ok(RefusedCalls { bell })
}

fn backend(error: BackendError) -> Error {
    Error::Seccomp(seccompiler::Error::Backend(error))
}

/// Compiles a filter with the actions for calls outside of and in `rules`.
fn filter(
    rules: BTreeMap<i64, Vec<SeccompRule>>,
    (outside, inside): (SeccompAction, SeccompAction),
    arch: TargetArch,
) -> Result<BpfProgram, Error> {
    let filter = SeccompFilter::new(rules, outside, inside, arch).map_err(backend)?;
    BpfProgram::try_from(filter).map_err(backend)
}

/// Returns the name of a call, or its number if it is in no list.
fn name(number: u32) -> String {
    let lists = [COMMON, FILES, FCHMODAT2, SOCKETS, WORKER, REFUSED, CONDITIONAL];
    let known = lists.into_iter().flatten().find(|(known, _)| *known == i64::from(number));
    match known {
        Some((_, name)) => name.trim_start_matches("SYS_").to_owned(),
        None => format!("number {number}"),
    }
}

/// Calls that are in no list, for their names.
const CONDITIONAL: Named = &[
    (CACHESTAT, "cachestat"),
    (libc::SYS_clone, "clone"),
    (libc::SYS_io_uring_register, "io_uring_register"),
    (libc::SYS_ioctl, "ioctl"),
    (libc::SYS_kill, "kill"),
    (libc::SYS_mmap, "mmap"),
    (libc::SYS_mprotect, "mprotect"),
    (libc::SYS_prctl, "prctl"),
    (libc::SYS_prlimit64, "prlimit64"),
    (libc::SYS_socket, "socket"),
    (libc::SYS_socketpair, "socketpair"),
    (libc::SYS_tgkill, "tgkill"),
];

/// The number of cachestat(2) (Linux 6.5) on all architectures.
const CACHESTAT: i64 = 451;

/// `IORING_REGISTER_BUFFERS_UPDATE` and `IORING_UNREGISTER_RING_FDS`: what crate `io` registers in a ring that serves.
const REGISTRATIONS: [u64; 2] = [16, 21];

/// The mask of the type in the second argument of socket(2); the other bits are `SOCK_NONBLOCK` and `SOCK_CLOEXEC`.
const SOCKET_TYPE: u64 = 0xf;

/// Calls that send, with the index of their flags. `MSG_FASTOPEN` connects to an address without a check by Landlock.
const SENDS: [(i64, u8); 3] = [(libc::SYS_sendto, 3), (libc::SYS_sendmsg, 2), (libc::SYS_sendmmsg, 3)];

/// Options of `SOL_SOCKET` for filters of packets. A process that was taken over could attach one to a listening socket that it shares
/// with the next process, and lock it.
const PACKET_FILTERS: [libc::c_int; 7] = [
    libc::SO_ATTACH_FILTER,
    libc::SO_DETACH_FILTER,
    libc::SO_LOCK_FILTER,
    libc::SO_ATTACH_BPF,
    libc::SO_ATTACH_REUSEPORT_CBPF,
    libc::SO_ATTACH_REUSEPORT_EBPF,
    SO_DETACH_REUSEPORT_BPF,
];

/// Detaches a program that distributes connections (Linux 5.3).
const SO_DETACH_REUSEPORT_BPF: libc::c_int = 68;

/// Flags of clone(2) that create namespaces.
const NAMESPACES: libc::c_int = libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET;

/// `PR_GET_AUXV` (Linux 6.4), with which crate `rustix` finds the size of a page.
const PR_GET_AUXV: u64 = 0x4155_5856;

/// `PR_SET_VMA`, with which the C library names memory.
const PR_SET_VMA: u64 = 0x5356_4d41;

/// Calls that make memory executable.
const MEMORY: [i64; 2] = [libc::SYS_mmap, libc::SYS_mprotect];

/// Compares argument `index`.
fn argument(index: u8, op: SeccompCmpOp, value: u64) -> Result<SeccompCondition, BackendError> {
    SeccompCondition::new(index, SeccompCmpArgLen::Dword, op, value)
}

/// Returns a rule for each value that argument `index` may have.
fn one_of(index: u8, values: &[u64]) -> Result<Vec<SeccompRule>, BackendError> {
    let rule = |&value| SeccompRule::new(vec![argument(index, SeccompCmpOp::Eq, value)?]);
    values.iter().map(rule).collect()
}

/// Returns a rule for arguments whose bits in `mask` have this value.
fn masked(index: u8, mask: u64, value: u64) -> Result<SeccompRule, BackendError> {
    SeccompRule::new(vec![argument(index, SeccompCmpOp::MaskedEq(mask), value)?])
}

/// Returns the rules for a purpose. A call without conditions has an empty list.
fn rules(calls: Calls) -> Result<BTreeMap<i64, Vec<SeccompRule>>, BackendError> {
    let lists: &[Named] = match calls {
        Calls::Worker | Calls::WorkerWithJit => &[SOCKETS, WORKER],
        Calls::Agent => &[SOCKETS],
        Calls::Signer => &[],
    };
    let files: &[Named] = if calls == Calls::Signer { &[] } else { &[FILES, FCHMODAT2, FILES_OF_X86_64] };
    let permitted =
        [COMMON, COMMON_OF_X86_64].into_iter().chain([files, lists].into_iter().flatten().copied());
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
        permitted.flatten().map(|(number, _)| (*number, Vec::new())).collect();
    rules.insert(CACHESTAT, Vec::new());
    let own = u64::from(std::process::id());
    // A thread, and no process and no namespace.
    let (thread, mask) = (libc::CLONE_THREAD as u64, (NAMESPACES | libc::CLONE_THREAD) as u64);
    rules.insert(libc::SYS_clone, vec![masked(0, mask, thread)?]);
    // A process that aborts sends itself a signal.
    rules.insert(libc::SYS_kill, one_of(0, &[own])?);
    rules.insert(libc::SYS_tgkill, one_of(0, &[own])?);
    let has_jit = calls == Calls::WorkerWithJit;
    rules.extend(if has_jit { MEMORY.map(|call| (call, Vec::new())) } else { memory()? });
    let options = [
        libc::PR_CAPBSET_READ,
        libc::PR_GET_DUMPABLE,
        libc::PR_GET_NAME,
        libc::PR_GET_NO_NEW_PRIVS,
        libc::PR_GET_SECCOMP,
        libc::PR_SET_NAME,
    ];
    let names = options.map(|option| option as u64);
    rules.insert(libc::SYS_prctl, one_of(0, &[&names[..], &[PR_GET_AUXV, PR_SET_VMA]].concat())?);
    // Limits are read, not set: the third argument is a null pointer.
    let no_limit = SeccompCondition::new(2, SeccompCmpArgLen::Qword, SeccompCmpOp::Eq, 0)?;
    rules.insert(libc::SYS_prlimit64, vec![SeccompRule::new(vec![no_limit])?]);
    rules.insert(libc::SYS_ioctl, one_of(1, &[libc::FIONBIO, libc::FIONREAD, libc::TIOCOUTQ, libc::TCGETS])?);
    if matches!(calls, Calls::Worker | Calls::WorkerWithJit) {
        rules.insert(libc::SYS_io_uring_register, one_of(1, &REGISTRATIONS)?);
    }
    for (call, flags) in SENDS {
        if let Some(rule) = rules.get_mut(&call) {
            *rule = vec![masked(flags, libc::MSG_FASTOPEN as u64, 0)?];
        }
    }
    if calls != Calls::Signer {
        rules.insert(libc::SYS_socket, sockets()?);
        rules.insert(libc::SYS_setsockopt, options_of_sockets()?);
        rules.insert(libc::SYS_socketpair, one_of(0, &[libc::AF_UNIX as u64])?);
    }
    Ok(rules)
}

/// Returns rules for memory, which is writable or executable: the C library maps the code of its plug-ins for name lookups.
fn memory() -> Result<[(i64, Vec<SeccompRule>); 2], BackendError> {
    let (write, execute) = (libc::PROT_WRITE as u64, libc::PROT_EXEC as u64);
    let mapped = vec![masked(2, execute, 0)?, masked(2, write, 0)?];
    Ok([(MEMORY[0], mapped), (MEMORY[1], vec![masked(2, execute, 0)?])])
}

/// Returns rules for options of sockets: all except [`PACKET_FILTERS`].
fn options_of_sockets() -> Result<Vec<SeccompRule>, BackendError> {
    let level = libc::SOL_SOCKET as u64;
    let other = |option: &libc::c_int| argument(2, SeccompCmpOp::Ne, *option as u64);
    let mut of_socket = vec![argument(1, SeccompCmpOp::Eq, level)?];
    of_socket.extend(PACKET_FILTERS.iter().map(other).collect::<Result<Vec<_>, _>>()?);
    Ok(vec![SeccompRule::new(vec![argument(1, SeccompCmpOp::Ne, level)?])?, SeccompRule::new(of_socket)?])
}

/// Returns rules for TCP, UDP and unix sockets: no other protocols, such as MPTCP, whose ports Landlock does not restrict, and for the netlink sockets with which getaddrinfo(3) finds the addresses
/// of this machine (`NETLINK_ROUTE`).
fn sockets() -> Result<Vec<SeccompRule>, BackendError> {
    let mut rules = one_of(0, &[libc::AF_UNIX as u64])?;
    let kinds = [(libc::SOCK_STREAM, libc::IPPROTO_TCP), (libc::SOCK_DGRAM, libc::IPPROTO_UDP)];
    for family in [libc::AF_INET, libc::AF_INET6] {
        for (kind, protocol) in kinds {
            // 0 is the usual protocol of the type.
            for protocol in [0, protocol] {
                let family = argument(0, SeccompCmpOp::Eq, family as u64)?;
                let kind = argument(1, SeccompCmpOp::MaskedEq(SOCKET_TYPE), kind as u64)?;
                let protocol = argument(2, SeccompCmpOp::Eq, protocol as u64)?;
                rules.push(SeccompRule::new(vec![family, kind, protocol])?);
            }
        }
    }
    let netlink = argument(0, SeccompCmpOp::Eq, libc::AF_NETLINK as u64)?;
    let route = argument(2, SeccompCmpOp::Eq, libc::NETLINK_ROUTE as u64)?;
    rules.push(SeccompRule::new(vec![netlink, route])?);
    Ok(rules)
}
