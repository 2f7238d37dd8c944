//! System calls that neither rustix nor the standard library offers in a safe form.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};

use rustix::io::Errno;

/// Whether the inherited listening sockets have been taken over.
static HAS_ADOPTED: AtomicBool = AtomicBool::new(false);

/// Takes ownership of the listening sockets that this process inherited, by the descriptor numbers that its environment
/// names. Returns for each number the socket, or the reason why it is not a usable listening socket. The reason is
/// `EALREADY` when the process has called this function before.
///
/// Call it before the process opens a listening socket.
pub fn adopt_listeners(numbers: &[RawFd]) -> Vec<(RawFd, Result<OwnedFd, Errno>)> {
    let is_late = HAS_ADOPTED.swap(true, Ordering::AcqRel);
    let mut adopted: Vec<(RawFd, Result<OwnedFd, Errno>)> = Vec::with_capacity(numbers.len());
    for &number in numbers {
        let is_twice = adopted.iter().any(|(known, _)| *known == number);
        let listens = match is_late || is_twice {
            true => Err(Errno::ALREADY),
            false => check_listens(number),
        };
        // SAFETY: the number is an open descriptor of a socket that listens. No code of this process owns it: the
        // process opened none by itself yet, and takes over each number once.
        let owned = listens.map(|()| unsafe { OwnedFd::from_raw_fd(number) });
        adopted.push((number, owned));
    }
    adopted
}

/// Checks that a number is the descriptor of a listening socket (socket(7), `SO_ACCEPTCONN`) or of a datagram socket. Refuses the numbers of
/// the standard streams.
fn check_listens(number: RawFd) -> Result<(), Errno> {
    if number <= libc::STDERR_FILENO {
        return Err(Errno::BADF);
    }
    let mut value: libc::c_int = 0;
    let mut len = size_of_val(&value) as libc::socklen_t;
    let pointer = (&raw mut value).cast();
    // SAFETY: the kernel writes at most `len` bytes to `value`, which is that long, and refuses a number that is no
    // socket's.
    let failed = unsafe { libc::getsockopt(number, libc::SOL_SOCKET, libc::SO_TYPE, pointer, &mut len) };
    if failed == 0 && value == libc::SOCK_DGRAM {
        return Ok(());
    }
    // SAFETY: as above.
    let failed =
        unsafe { libc::getsockopt(number, libc::SOL_SOCKET, libc::SO_ACCEPTCONN, pointer, &mut len) };
    match (failed, value) {
        (0, 0) => Err(Errno::INVAL),
        (0, _) => Ok(()),
        _ => Err(last_error()),
    }
}

/// Blocks all signals in the calling thread, so that the kernel delivers them to the thread that handles signals. SIGSYS
/// is not blocked: the kernel kills a process that blocks it when a seccomp filter refuses a call.
pub fn block_signals() -> Result<(), Errno> {
    let mut all = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigfillset(3) writes a complete set to the given address.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    // SAFETY: the set was just filled.
    unsafe { libc::sigdelset(all.as_mut_ptr(), libc::SIGSYS) };
    // SAFETY: the set was just filled; a null pointer means that the old mask is not needed.
    let failed = unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), std::ptr::null_mut()) };
    if failed == 0 { Ok(()) } else { Err(Errno::from_raw_os_error(failed)) }
}

/// System calls that a seccomp filter refused, one bit for each number.
static REFUSED: [AtomicU64; 16] = [const { AtomicU64::new(0) }; 16];

/// The descriptor of the eventfd(2) that [`note_refused_calls`] returned; -1 before.
static REFUSED_BELL: AtomicI32 = AtomicI32::new(-1);

/// Installs a handler for the signal that a seccomp filter sends for a refused call (`SECCOMP_RET_TRAP`): the call fails
/// with `EPERM`, and [`take_refused_calls`] returns its number. Returns a descriptor that becomes readable with each
/// refusal. On other architectures than x86-64 and AArch64 a refused call kills the process.
pub fn note_refused_calls() -> Result<OwnedFd, Errno> {
    let bell = rustix::event::eventfd(
        0,
        rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK,
    )?;
    // The handler's own copy is never closed, so that the handler cannot write to another file.
    let own = rustix::io::fcntl_dupfd_cloexec(&bell, 3)?;
    REFUSED_BELL.store(std::os::fd::IntoRawFd::into_raw_fd(own), Ordering::Release);
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    {
        // SAFETY: all fields of the structure are integers, for which zero is a valid value.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = refuse as *const () as libc::sighandler_t;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER;
        // SAFETY: the handler has the signature for `SA_SIGINFO`, and makes only calls that a signal handler may make.
        if unsafe { libc::sigaction(libc::SIGSYS, &action, std::ptr::null_mut()) } != 0 {
            return Err(last_error());
        }
    }
    Ok(bell)
}

/// Returns the numbers of the calls that were refused since the last call of this function, each once.
pub fn take_refused_calls() -> Vec<u32> {
    let mut numbers = Vec::new();
    for (index, word) in (0_u32..).zip(&REFUSED) {
        let bits = word.swap(0, Ordering::AcqRel);
        numbers.extend((0..u64::BITS).filter(|bit| bits >> bit & 1 == 1).map(|bit| index * u64::BITS + bit));
    }
    numbers
}

/// The handler of SIGSYS. Notes the number of the refused call, and sets its result.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
extern "C" fn refuse(_: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    /// `SYS_SECCOMP` of sigaction(2): another sender of the signal has another code.
    const SYS_SECCOMP: libc::c_int = 1;
    // SAFETY: the kernel passes a valid structure.
    if unsafe { (*info).si_code } != SYS_SECCOMP {
        return;
    }
    // SAFETY: with `SA_SIGINFO` the third argument points to the saved registers of the interrupted thread, which are
    // exclusively of this handler until it returns.
    let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext };
    let failed = -i64::from(libc::EPERM);
    #[cfg(target_arch = "x86_64")]
    let number = std::mem::replace(&mut registers.gregs[libc::REG_RAX as usize], failed);
    #[cfg(target_arch = "aarch64")]
    let number = {
        registers.regs[0] = failed as u64;
        registers.regs[8] as i64
    };
    let bit = usize::try_from(number).unwrap_or_default();
    if let Some(word) = REFUSED.get(bit / u64::BITS as usize) {
        word.fetch_or(1 << (bit % u64::BITS as usize), Ordering::AcqRel);
    }
    let one = 1_u64.to_ne_bytes();
    // SAFETY: write(2) reads 8 bytes of a local variable, and a signal handler may call it. A failure means that the
    // count of the descriptor is at its maximum, so it is readable.
    let _ = unsafe { libc::write(REFUSED_BELL.load(Ordering::Acquire), one.as_ptr().cast(), one.len()) };
}

/// The fields of `TCP_INFO` (tcp(7)) that are used here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpInfo {
    /// Smoothed round-trip time, microseconds.
    pub rtt_us: u32,
    /// Variation of the round-trip time, microseconds.
    pub rttvar_us: u32,
    /// Congestion window, segments.
    pub snd_cwnd: u32,
    /// Window that is advertised to the peer, bytes.
    pub rcv_space: u32,
    /// Bytes that the peer has acknowledged.
    pub bytes_acked: u64,
    /// Bytes that were passed to the socket and never sent.
    pub unsent: u32,
    /// Whether the connection no longer exists, for example because the peer has reset it (the state is `TCP_CLOSE`).
    pub is_closed: bool,
}

/// `TCP_CLOSE` of linux's net/tcp_states.h.
const TCP_CLOSE: u8 = 7;

/// Reads `TCP_INFO` of a socket; fails if it is not a TCP socket.
pub fn tcp_info(socket: BorrowedFd<'_>) -> Result<TcpInfo, Errno> {
    // `struct tcp_info` of linux/tcp.h up to and including `tcpi_notsent_bytes`, which is at byte 144 since
    // Linux 4.6. The structure of the C library ends before this field.
    const WORDS: usize = 148 / size_of::<u32>();
    let mut info = [0u32; WORDS];
    let mut len = size_of_val(&info) as libc::socklen_t;
    let value = info.as_mut_ptr().cast();
    // SAFETY: the kernel writes at most `len` bytes to `info`, which is that long, and the new length to
    // `len`; both outlive the call.
    let failed =
        unsafe { libc::getsockopt(socket.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, value, &mut len) };
    if failed != 0 {
        return Err(last_error());
    }
    if len as usize != size_of_val(&info) {
        return Err(Errno::NOTSUP);
    }
    let field = |byte: usize| info[byte / size_of::<u32>()];
    let wide = |byte: usize| {
        let [low, high] = [field(byte), field(byte + 4)].map(u32::to_ne_bytes);
        let mut bytes = [0; 8];
        bytes[..4].copy_from_slice(&low);
        bytes[4..].copy_from_slice(&high);
        u64::from_ne_bytes(bytes)
    };
    Ok(TcpInfo {
        rtt_us: field(68),
        rttvar_us: field(72),
        snd_cwnd: field(80),
        rcv_space: field(96),
        bytes_acked: wide(120),
        unsent: field(144),
        is_closed: field(0).to_ne_bytes()[0] == TCP_CLOSE,
    })
}

/// Returns the address of the peer of an Internet socket that getpeername(2) does not return any more, because the peer has reset the
/// connection (`SO_PEERNAME`, net/core/sock.c).
pub fn lost_peer(socket: BorrowedFd<'_>) -> Result<SocketAddr, Errno> {
    // The kernel refuses a length above that of the address.
    let len = size_of::<libc::sockaddr_in6>();
    match lost_peer_of(socket, len) {
        Err(Errno::INVAL) => lost_peer_of(socket, size_of::<libc::sockaddr_in>()),
        peer => peer,
    }
}

/// Returns the address as [`lost_peer`] does, if it has this length in bytes.
fn lost_peer_of(socket: BorrowedFd<'_>, len: usize) -> Result<SocketAddr, Errno> {
    // `struct sockaddr_in6`, which is longer than `sockaddr_in`: family, port, flow information, address, scope.
    let mut bytes = [0u8; size_of::<libc::sockaddr_in6>()];
    let mut len = len.min(bytes.len()) as libc::socklen_t;
    let value = bytes.as_mut_ptr().cast();
    // SAFETY: the kernel writes at most `len` bytes to `bytes`, which is that long, and the new length to
    // `len`; both outlive the call.
    let failed =
        unsafe { libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERNAME, value, &mut len) };
    if failed != 0 {
        return Err(last_error());
    }
    let port = u16::from_be_bytes([bytes[2], bytes[3]]);
    let part = |start: usize| std::array::from_fn(|index| bytes[start + index]);
    match libc::c_int::from(u16::from_ne_bytes([bytes[0], bytes[1]])) {
        libc::AF_INET => Ok(SocketAddr::new(IpAddr::V4(Ipv4Addr::from(part(4))), port)),
        libc::AF_INET6 => {
            let address: [u8; 16] = std::array::from_fn(|index| bytes[8 + index]);
            let [flow, scope] = [part(4), part(24)].map(u32::from_ne_bytes);
            Ok(SocketAddr::V6(SocketAddrV6::new(address.into(), port, flow, scope)))
        }
        _ => Err(Errno::AFNOSUPPORT),
    }
}

/// Returns the bytes that the peer of a TCP socket has acknowledged; fails on sockets of other families.
pub fn tcp_bytes_acked(socket: BorrowedFd<'_>) -> Result<u64, Errno> {
    tcp_info(socket).map(|info| info.bytes_acked)
}

/// Returns the bytes that were sent to a socket and are still queued in the kernel (`SIOCOUTQ`, tcp(7) and unix(7)).
pub fn send_queue_bytes(socket: BorrowedFd<'_>) -> Result<u32, Errno> {
    let mut queued: libc::c_int = 0;
    // SAFETY: this ioctl writes one integer to the given place, which outlives the call. SIOCOUTQ and
    // TIOCOUTQ are one number.
    let failed = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &mut queued) };
    if failed == 0 { Ok(queued.max(0) as u32) } else { Err(last_error()) }
}

/// Returns the size of a socket's send buffer and the memory in use (`SO_MEMINFO`, Linux 4.12). The memory in use
/// exceeds the queued bytes, because each packet needs memory in addition to its data.
pub fn send_buffer(socket: BorrowedFd<'_>) -> Result<(u32, u32), Errno> {
    // The numbers of linux/sock_diag.h: SK_MEMINFO_WMEM_ALLOC, SK_MEMINFO_SNDBUF, SK_MEMINFO_WMEM_QUEUED.
    const ALLOCATED: usize = 2;
    const SIZE: usize = 3;
    const QUEUED: usize = 5;
    let mut numbers = [0_u32; 9];
    let mut len = size_of_val(&numbers) as libc::socklen_t;
    let pointer = numbers.as_mut_ptr().cast();
    // SAFETY: the kernel writes at most `len` bytes to `numbers`, which outlives the call.
    let failed = unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_MEMINFO, pointer, &mut len)
    };
    if failed != 0 {
        return Err(last_error());
    }
    Ok((numbers[SIZE], numbers[ALLOCATED].max(numbers[QUEUED])))
}

/// Makes accept return a connection only when it has data or after `seconds` (0 disables this), by `TCP_DEFER_ACCEPT`
/// of tcp(7). Fails on sockets of other families.
pub fn set_defer_accept(listener: BorrowedFd<'_>, seconds: u32) -> Result<(), Errno> {
    set_tcp_number(listener, libc::TCP_DEFER_ACCEPT, seconds)
}

/// Sets the maximum number of pending connections that carried data in their SYN (`TCP_FASTOPEN` of tcp(7), RFC 7413);
/// 0 disables it. `net.ipv4.tcp_fastopen` decides whether the system accepts such data.
pub fn set_fastopen(listener: BorrowedFd<'_>, queue: u32) -> Result<(), Errno> {
    set_tcp_number(listener, libc::TCP_FASTOPEN, queue)
}

/// Sets the number of unsent bytes from which on a TCP socket accepts no more (`TCP_NOTSENT_LOWAT` of tcp(7)). Accepted
/// connections inherit it from their listener. Fails on sockets of other families.
pub fn set_unsent_max(socket: BorrowedFd<'_>, bytes: u32) -> Result<(), Errno> {
    set_tcp_number(socket, libc::TCP_NOTSENT_LOWAT, bytes)
}

/// Allows a socket to be bound to an address of another machine, such as a client's, and to receive data for it
/// (`IP_TRANSPARENT` of ip(7), `IPV6_TRANSPARENT`). Without `CAP_NET_RAW` or `CAP_NET_ADMIN`, fails with `EPERM`.
pub fn set_transparent(socket: BorrowedFd<'_>, ipv6: bool) -> Result<(), Errno> {
    match ipv6 {
        true => set_number(socket, libc::IPPROTO_IPV6, libc::IPV6_TRANSPARENT, 1),
        false => set_number(socket, libc::IPPROTO_IP, libc::IP_TRANSPARENT, 1),
    }
}

/// Delays the choice of the port of a bind to port 0 until the socket is connected (`IP_BIND_ADDRESS_NO_PORT` of ip(7),
/// also effective for IPv6). One local port then serves connections to different peers, so that an address does not run
/// out of ports.
pub fn set_bind_address_no_port(socket: BorrowedFd<'_>) -> Result<(), Errno> {
    set_number(socket, libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, 1)
}

/// Sets an integer option of tcp(7).
fn set_tcp_number(socket: BorrowedFd<'_>, option: libc::c_int, value: u32) -> Result<(), Errno> {
    set_number(socket, libc::IPPROTO_TCP, option, value)
}

/// Sets an integer option of setsockopt(2).
fn set_number(
    socket: BorrowedFd<'_>,
    level: libc::c_int,
    option: libc::c_int,
    value: u32,
) -> Result<(), Errno> {
    let value = libc::c_int::try_from(value).unwrap_or(libc::c_int::MAX);
    let (fd, len) = (socket.as_raw_fd(), size_of_val(&value) as libc::socklen_t);
    // SAFETY: the kernel reads `len` bytes of `value`, which is that long and outlives the call.
    let failed = unsafe { libc::setsockopt(fd, level, option, (&raw const value).cast(), len) };
    if failed == 0 { Ok(()) } else { Err(last_error()) }
}

/// Returns the number of pages of a range in the page cache, including those that are still being read (cachestat(2),
/// Linux 6.5). Fails with `EPERM` since 6.14 for a file that the caller neither owns nor may write.
pub fn cached_pages(file: &impl AsFd, offset: u64, len: u64) -> Result<u64, Errno> {
    // The number is the same on all architectures; not all C library headers define it.
    const SYS_CACHESTAT: libc::c_long = 451;
    let range = [offset, len];
    // The cached pages, and four other numbers.
    let mut found = [0_u64; 5];
    let (file, flags) = (file.as_fd().as_raw_fd(), 0);
    // SAFETY: the kernel reads the two numbers of `struct cachestat_range` and writes the five of `struct
    // cachestat`, which `range` and `found` have room for; both outlive the call.
    let failed = unsafe { libc::syscall(SYS_CACHESTAT, file, range.as_ptr(), found.as_mut_ptr(), flags) };
    if failed == 0 { Ok(found[0]) } else { Err(last_error()) }
}

/// Starts the kernel's read of `len` bytes of a file into the page cache if the first page is missing; returns whether
/// the first page is resident. The kernel reads as far ahead as for a reader of all `len` bytes. The call neither waits
/// nor copies: it is a read with `RWF_NOWAIT` (preadv2(2)) to address 0, which is never mapped. Linux starts the read
/// before it finds out that it would have to wait (since 5.10; mm/filemap.c, `filemap_get_pages`).
pub(crate) fn begin_reading(file: impl AsFd, offset: u64, len: u64) -> Result<bool, Errno> {
    let len = usize::try_from(len).unwrap_or(usize::MAX);
    let nowhere = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: len };
    let (file, offset) =
        (file.as_fd().as_raw_fd(), libc::off_t::try_from(offset).unwrap_or(libc::off_t::MAX));
    // SAFETY: the kernel reads the one `iovec`. It writes to no memory of this process: the page at address 0 is never
    // mapped in this process (mmap(2) refuses it below `vm.mmap_min_addr`), so the copy of the first byte fails, with
    // EFAULT.
    let count = unsafe { libc::preadv2(file, &raw const nowhere, 1, offset, libc::RWF_NOWAIT) };
    match if count < 0 { last_error() } else { Errno::FAULT } {
        // The bytes were resident; at the end of the file, nothing has to be copied.
        Errno::FAULT => Ok(true),
        Errno::AGAIN | Errno::INTR => Ok(false),
        errno => Err(errno),
    }
}

/// Fills in `revents` with the state of the sockets, without waiting (poll(2)).
pub(crate) fn poll_now(sockets: &mut [libc::pollfd]) -> Result<(), Errno> {
    let count = sockets.len() as libc::nfds_t;
    loop {
        // SAFETY: the kernel reads and writes `count` entries, which the slice has, and the call does not wait.
        let answered = unsafe { libc::poll(sockets.as_mut_ptr(), count, 0) };
        match answered {
            0.. => return Ok(()),
            _ if last_error() == Errno::INTR => {}
            _ => return Err(last_error()),
        }
    }
}

/// Returns the error number of the last system call of this thread.
pub(crate) fn last_error() -> Errno {
    let error = std::io::Error::last_os_error();
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

/// Maximum number of messages of one call of [`receive_datagrams`].
pub const DATAGRAMS_MAX: usize = 16;

/// Size in bytes of the buffer of one message: with UDP_GRO (udp(7)) the kernel joins datagrams up to the maximum length of an IP packet.
pub const DATAGRAM_BYTES: usize = 64 << 10;

/// Size in bytes of the control messages of one received message: destination address, ECN mark, segment size.
const CONTROL_BYTES: usize = 128;

/// Memory of control messages, with the alignment of `cmsghdr`.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Control([u8; CONTROL_BYTES]);

/// Facts about a received message, which is one datagram or several datagrams of one sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagrams {
    /// The sender.
    pub from: SocketAddr,
    /// The destination address, if the socket was prepared with [`prepare_datagrams`].
    pub to: Option<IpAddr>,
    /// The two bits of Explicit Congestion Notification (RFC 3168 section 5).
    pub ecn: u8,
    /// Number of bytes.
    pub len: usize,
    /// Size in bytes of each datagram except the last, which may be shorter.
    pub segment: usize,
}

/// A message to be sent: one datagram or several datagrams to one receiver.
#[derive(Clone, Copy, Debug)]
pub struct DatagramsToSend<'a> {
    /// The receiver.
    pub to: SocketAddr,
    /// The source address; `None` lets the kernel select it.
    pub from: Option<IpAddr>,
    /// The two bits of Explicit Congestion Notification.
    pub ecn: u8,
    /// Size in bytes of each datagram except the last, if the kernel has to split the bytes (`UDP_SEGMENT`, udp(7)).
    pub segment: Option<u16>,
    /// The bytes.
    pub bytes: &'a [u8],
}

/// Prepares a socket for [`receive_datagrams`]: destination addresses, ECN marks, joined datagrams (UDP_GRO, Linux 5.0), and no fragmentation of
/// sent datagrams, which path MTU discovery needs (RFC 9000 section 14). Returns whether datagrams are never fragmented.
///
/// # Errors
/// The socket does not return destination addresses.
pub fn prepare_datagrams(socket: BorrowedFd<'_>, ipv6: bool) -> Result<bool, Errno> {
    prepare_fragmented_datagrams(socket, ipv6)?;
    let ip = libc::IPPROTO_IP;
    if ipv6 {
        let _ = set_number(socket, libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, 1);
    }
    let _ = set_number(socket, ip, libc::IP_RECVTOS, 1);
    let whole = set_number(socket, ip, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE as u32);
    let whole_6 = match ipv6 {
        true => {
            set_number(socket, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_PROBE as u32)
        }
        false => Ok(()),
    };
    Ok(whole.and(whole_6).is_ok())
}

/// Prepares a socket for [`receive_datagrams`]: destination addresses and joined datagrams. Sent datagrams may be fragmented.
///
/// # Errors
/// The socket does not return destination addresses.
pub fn prepare_fragmented_datagrams(socket: BorrowedFd<'_>, ipv6: bool) -> Result<(), Errno> {
    // An IPv6 socket may also receive IPv4 packets, to which the options of IPv4 apply.
    match ipv6 {
        true => set_number(socket, libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, 1)?,
        false => set_number(socket, libc::IPPROTO_IP, libc::IP_PKTINFO, 1)?,
    }
    join_received_datagrams(socket);
    Ok(())
}

/// Makes the kernel join received datagrams (UDP_GRO, Linux 5.0). Without it each message is one datagram.
pub fn join_received_datagrams(socket: BorrowedFd<'_>) {
    let _ = set_number(socket, libc::SOL_UDP, libc::UDP_GRO, 1);
}

/// Whether the datagrams of a socket are never fragmented, as [`prepare_datagrams`] makes them (ip(7), `IP_PMTUDISC_PROBE`).
pub fn sends_whole_datagrams(socket: BorrowedFd<'_>) -> bool {
    let mut value: libc::c_int = 0;
    let mut len = size_of_val(&value) as libc::socklen_t;
    let (fd, pointer) = (socket.as_raw_fd(), (&raw mut value).cast());
    // SAFETY: the kernel writes at most `len` bytes to `value`, which is that long and outlives the call.
    let failed = unsafe { libc::getsockopt(fd, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, pointer, &mut len) };
    failed == 0 && value == libc::IP_PMTUDISC_PROBE
}

/// Length in bytes of the connection IDs that [`steer_datagrams`] recognizes.
pub const STEERED_ID_BYTES: u8 = 8;

/// Multiplier of [`id_check`]: 2^32 divided by the golden ratio, which mixes all bits into the highest ones.
const CHECK_MULTIPLIER: u32 = 0x9e37_79b1;

/// Returns the last three bytes of a connection ID of this server, by its first four bytes: an ID that a client has chosen is taken for one with a
/// probability of 2^-24.
pub fn id_check(first: u32) -> u32 {
    first.wrapping_mul(CHECK_MULTIPLIER) >> 8
}

/// Attaches a classic BPF program to a group of UDP sockets with the same address (SO_ATTACH_REUSEPORT_CBPF, socket(7)), which selects the
/// socket of a QUIC packet by its destination connection ID. The group consists of two banks of `threads` sockets each, in the order
/// in which they were bound. The first two bytes of the ID modulo `threads` select the socket in its bank, and the lowest bit of the third
/// byte selects the bank. Initial and 0-RTT packets whose ID the client has chosen (RFC 9000 section 7.2) go to the bank `current`: those
/// whose ID has another length than [`STEERED_ID_BYTES`], or not the bytes of [`id_check`].
pub fn steer_datagrams(socket: BorrowedFd<'_>, threads: u16, current: u8) -> Result<(), Errno> {
    let (threads, current) = (u32::from(threads.max(1)), u32::from(current & 1));
    let (load_byte, load_half, load_word) = (
        libc::BPF_LD | libc::BPF_B | libc::BPF_ABS,
        libc::BPF_LD | libc::BPF_H | libc::BPF_ABS,
        libc::BPF_LD | libc::BPF_W | libc::BPF_ABS,
    );
    let alu = |operation: u32| libc::BPF_ALU | operation | libc::BPF_K;
    let to_x = libc::BPF_MISC | libc::BPF_TAX;
    let step = |code: u32, k: u32| (code as u16, 0_u8, 0_u8, k);
    let jump = |test: u32, k: u32, yes: u8, no: u8| ((libc::BPF_JMP | test) as u16, yes, no, k);
    let to_end = |steps: u32| step(libc::BPF_JMP | libc::BPF_JA, steps);
    // The first byte of the ID is at offset 1 of a short header, and at offset 6 of a long header (RFC 9000 section 17).
    let program = [
        step(load_byte, 0),
        jump(libc::BPF_JSET, 0x80, 0, 16),
        // A long header; types 0 and 1 are Initial and 0-RTT packets.
        jump(libc::BPF_JSET, 0x20, 11, 0),
        step(load_byte, 5),
        jump(libc::BPF_JEQ, STEERED_ID_BYTES.into(), 0, 7),
        step(load_word, 6),
        step(alu(libc::BPF_MUL), CHECK_MULTIPLIER),
        step(alu(libc::BPF_RSH), 8),
        step(to_x, 0),
        step(load_word, 10),
        step(alu(libc::BPF_AND), 0x00ff_ffff),
        jump(libc::BPF_JEQ | libc::BPF_X, 0, 2, 0),
        // The client has chosen the ID.
        step(libc::BPF_LD | libc::BPF_IMM, current),
        to_end(1),
        step(load_byte, 8),
        step(to_x, 0),
        step(load_half, 6),
        to_end(3),
        // A short header.
        step(load_byte, 3),
        step(to_x, 0),
        step(load_half, 1),
        // The index in the bank is stored while the offset of the bank is computed.
        step(alu(libc::BPF_MOD), threads),
        step(libc::BPF_ST, 0),
        step(libc::BPF_MISC | libc::BPF_TXA, 0),
        step(alu(libc::BPF_AND), 1),
        step(alu(libc::BPF_MUL), threads),
        step(to_x, 0),
        step(libc::BPF_LD | libc::BPF_MEM, 0),
        step(libc::BPF_ALU | libc::BPF_ADD | libc::BPF_X, 0),
        step(libc::BPF_RET | libc::BPF_A, 0),
    ];
    let mut steps = program.map(|(code, jt, jf, k)| libc::sock_filter { code, jt, jf, k });
    let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    let (value, len) = ((&raw const program).cast(), size_of_val(&program) as libc::socklen_t);
    // SAFETY: the kernel copies the program, whose length is that of `steps`; both outlive the call.
    let failed = unsafe {
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_ATTACH_REUSEPORT_CBPF, value, len)
    };
    if failed == 0 { Ok(()) } else { Err(last_error()) }
}

/// Receives the queued messages of a UDP socket, without waiting: one for each buffer of [`DATAGRAM_BYTES`] in `space`, and at most
/// [`DATAGRAMS_MAX`]. Calls `each` with the facts about each message and its bytes. Returns the number of messages.
///
/// # Errors
/// `EAGAIN` if there are none; otherwise those of recvmmsg(2).
pub fn receive_datagrams(
    socket: BorrowedFd<'_>,
    space: &mut [u8],
    mut each: impl FnMut(&Datagrams, &mut [u8]),
) -> Result<usize, Errno> {
    let count = (space.len() / DATAGRAM_BYTES).min(DATAGRAMS_MAX);
    // SAFETY: all fields of the structure are integers, for which zero is a valid value.
    let mut names: [libc::sockaddr_storage; DATAGRAMS_MAX] = unsafe { std::mem::zeroed() };
    let mut controls = [Control([0; CONTROL_BYTES]); DATAGRAMS_MAX];
    let mut pieces = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; DATAGRAMS_MAX];
    // SAFETY: all fields of the structures are integers and pointers, for which zero is a valid value.
    let mut messages: [libc::mmsghdr; DATAGRAMS_MAX] = unsafe { std::mem::zeroed() };
    let chunks = space.chunks_exact_mut(DATAGRAM_BYTES);
    for (index, chunk) in chunks.take(count).enumerate() {
        pieces[index] = libc::iovec { iov_base: chunk.as_mut_ptr().cast(), iov_len: chunk.len() };
        let header = &mut messages[index].msg_hdr;
        header.msg_name = (&raw mut names[index]).cast();
        header.msg_namelen = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
        header.msg_iov = &raw mut pieces[index];
        header.msg_iovlen = 1;
        header.msg_control = (&raw mut controls[index]).cast();
        header.msg_controllen = CONTROL_BYTES as _;
    }
    let (fd, len) = (socket.as_raw_fd(), count as libc::c_uint);
    // SAFETY: each of the first `len` headers refers to memory of the lengths that it states, which outlives the call.
    let received = unsafe {
        libc::recvmmsg(fd, messages.as_mut_ptr(), len, libc::MSG_DONTWAIT as _, std::ptr::null_mut())
    };
    let received = usize::try_from(received).map_err(|_| last_error())?;
    for (index, chunk) in space.chunks_exact_mut(DATAGRAM_BYTES).take(received).enumerate() {
        let message = &messages[index];
        let len = (message.msg_len as usize).min(chunk.len());
        let control = &controls[index].0[..(message.msg_hdr.msg_controllen as usize).min(CONTROL_BYTES)];
        let Some(from) = address_of(&names[index]) else { continue };
        let mut facts = Datagrams { from, to: None, ecn: 0, len, segment: len };
        read_control(control, &mut facts);
        each(&facts, &mut chunk[..len]);
    }
    Ok(received)
}

/// Sends a message without waiting.
///
/// # Errors
/// `EAGAIN` if the send buffer of the socket is full; `EIO` or `EINVAL` if the kernel or the device cannot split it; otherwise those of sendmsg(2).
pub fn send_datagrams(socket: BorrowedFd<'_>, message: &DatagramsToSend<'_>) -> Result<(), Errno> {
    let mut control = Control([0; CONTROL_BYTES]);
    let mut used = 0;
    let is_ipv4 = match message.to {
        SocketAddr::V4(_) => true,
        // An IPv4 packet of an IPv6 socket has the options of IPv4.
        SocketAddr::V6(to) => to.ip().to_ipv4_mapped().is_some(),
    };
    if message.ecn != 0 {
        let mark = libc::c_int::from(message.ecn & 3).to_ne_bytes();
        let kind =
            if is_ipv4 { (libc::IPPROTO_IP, libc::IP_TOS) } else { (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) };
        put_control(&mut control.0, &mut used, kind, &mark);
    }
    match message.from {
        Some(IpAddr::V4(from)) => {
            // `struct in_pktinfo`: the index of the interface, the source address, the address of the header.
            let mut info = [0; size_of::<libc::in_pktinfo>()];
            info[4..8].copy_from_slice(&from.octets());
            put_control(&mut control.0, &mut used, (libc::IPPROTO_IP, libc::IP_PKTINFO), &info);
        }
        Some(IpAddr::V6(from)) => {
            // `struct in6_pktinfo`: the source address, the index of the interface.
            let mut info = [0; size_of::<libc::in6_pktinfo>()];
            info[..16].copy_from_slice(&from.octets());
            put_control(&mut control.0, &mut used, (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO), &info);
        }
        None => {}
    }
    if let Some(segment) = message.segment {
        put_control(&mut control.0, &mut used, (libc::SOL_UDP, libc::UDP_SEGMENT), &segment.to_ne_bytes());
    }
    let mut piece =
        libc::iovec { iov_base: message.bytes.as_ptr().cast_mut().cast(), iov_len: message.bytes.len() };
    let (mut name, name_len) = name_of(message.to);
    // SAFETY: all fields of the structure are integers and pointers, for which zero is a valid value.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_name = (&raw mut name).cast();
    header.msg_namelen = name_len;
    header.msg_iov = &raw mut piece;
    header.msg_iovlen = 1;
    if used > 0 {
        header.msg_control = (&raw mut control).cast();
        header.msg_controllen = used as _;
    }
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the header refers to memory of the lengths that it states, which outlives the call. The kernel only reads it.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const header, flags) };
    if sent < 0 { Err(last_error()) } else { Ok(()) }
}

/// Length in bytes of `cmsghdr`, whose size is a multiple of the alignment of control messages.
const CONTROL_HEADER: usize = size_of::<libc::cmsghdr>();

/// Appends a control message (cmsg(3)) to `control`, of which the first `used` bytes are in use. All messages of this file fit.
fn put_control(
    control: &mut [u8; CONTROL_BYTES],
    used: &mut usize,
    (level, kind): (libc::c_int, libc::c_int),
    data: &[u8],
) {
    let start = *used;
    let len = CONTROL_HEADER + data.len();
    let header = (len.to_ne_bytes(), level.to_ne_bytes(), kind.to_ne_bytes());
    control[start..start + 8].copy_from_slice(&header.0);
    control[start + 8..start + 12].copy_from_slice(&header.1);
    control[start + 12..start + 16].copy_from_slice(&header.2);
    control[start + CONTROL_HEADER..start + len].copy_from_slice(data);
    *used = start + len.next_multiple_of(size_of::<usize>());
}

// `put_control` and `read_control` rely on the layout of a 64-bit system: a length of 8 bytes, level, type.
const _: () = assert!(CONTROL_HEADER == 16 && size_of::<usize>() == 8);

/// Reads the control messages of a received message.
fn read_control(mut control: &[u8], facts: &mut Datagrams) {
    let int = |bytes: &[u8]| bytes.first_chunk().map_or(0, |bytes| libc::c_int::from_ne_bytes(*bytes));
    while let Some((header, _)) = control.split_at_checked(CONTROL_HEADER) {
        let len = header.first_chunk().map_or(0, |len| usize::from_ne_bytes(*len));
        let Some(data) = control.get(CONTROL_HEADER..len) else { return };
        match (int(&header[8..]), int(&header[12..])) {
            (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                // The address in the header of the packet is the last field.
                let address = data.get(8..12).and_then(|bytes| bytes.first_chunk::<4>());
                facts.to = address.map(|bytes| IpAddr::from(*bytes)).or(facts.to);
            }
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                facts.to = data.first_chunk::<16>().map(|bytes| IpAddr::from(*bytes)).or(facts.to);
            }
            // IPv4 has one byte, IPv6 an int; both have the mark in the first byte on little-endian systems.
            (libc::IPPROTO_IP, libc::IP_TOS) => facts.ecn = data.first().map_or(0, |tos| tos & 3),
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => facts.ecn = (int(data) & 3) as u8,
            (libc::SOL_UDP, libc::UDP_GRO) => {
                let segment = usize::try_from(int(data)).unwrap_or_default();
                facts.segment = if segment > 0 { segment } else { facts.len };
            }
            _ => {}
        }
        let Some(rest) = control.get(len.next_multiple_of(size_of::<usize>())..) else { return };
        control = rest;
    }
}

/// Returns the address in a structure that the kernel has filled; `None` for another family.
fn address_of(name: &libc::sockaddr_storage) -> Option<SocketAddr> {
    match libc::c_int::from(name.ss_family) {
        libc::AF_INET => {
            // SAFETY: the kernel has written an address of this family, and the storage is large and aligned enough for each.
            let name = unsafe { &*(&raw const *name).cast::<libc::sockaddr_in>() };
            let ip = Ipv4Addr::from(name.sin_addr.s_addr.to_ne_bytes());
            Some(SocketAddr::new(ip.into(), u16::from_be(name.sin_port)))
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let name = unsafe { &*(&raw const *name).cast::<libc::sockaddr_in6>() };
            let (ip, port) = (name.sin6_addr.s6_addr.into(), u16::from_be(name.sin6_port));
            Some(SocketAddrV6::new(ip, port, name.sin6_flowinfo, name.sin6_scope_id).into())
        }
        _ => None,
    }
}

/// Returns an address in the form of the kernel, and its length.
fn name_of(address: SocketAddr) -> (libc::sockaddr_storage, libc::socklen_t) {
    // SAFETY: all fields of the structure are integers, for which zero is a valid value.
    let mut name: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let place = &raw mut name;
    match address {
        SocketAddr::V4(address) => {
            // SAFETY: the storage is large and aligned enough for each family.
            let v4 = unsafe { &mut *place.cast::<libc::sockaddr_in>() };
            v4.sin_family = libc::AF_INET as libc::sa_family_t;
            v4.sin_port = address.port().to_be();
            v4.sin_addr.s_addr = u32::from_ne_bytes(address.ip().octets());
            (name, size_of::<libc::sockaddr_in>() as libc::socklen_t)
        }
        SocketAddr::V6(address) => {
            // SAFETY: as above.
            let v6 = unsafe { &mut *place.cast::<libc::sockaddr_in6>() };
            v6.sin6_family = libc::AF_INET6 as libc::sa_family_t;
            v6.sin6_port = address.port().to_be();
            v6.sin6_addr.s6_addr = address.ip().octets();
            v6.sin6_flowinfo = address.flowinfo();
            v6.sin6_scope_id = address.scope_id();
            (name, size_of::<libc::sockaddr_in6>() as libc::socklen_t)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;

    use super::*;

    /// Reads an option, to check the effect of [`set_number`].
    fn number(socket: BorrowedFd<'_>, level: libc::c_int, option: libc::c_int) -> libc::c_int {
        let mut value: libc::c_int = -1;
        let mut len = size_of_val(&value) as libc::socklen_t;
        let (fd, pointer) = (socket.as_raw_fd(), (&raw mut value).cast());
        // SAFETY: the kernel writes at most `len` bytes to `value`, which is that long.
        let failed = unsafe { libc::getsockopt(fd, level, option, pointer, &mut len) };
        assert_eq!(failed, 0);
        value
    }

    #[test]
    fn only_listening_sockets_are_adopted_and_only_once() {
        let (listens, connected) = (TcpListener::bind("127.0.0.1:0").unwrap(), UnixStream::pair().unwrap().0);
        let file = std::fs::File::open("/dev/null").unwrap();
        let numbers = [OwnedFd::from(listens), connected.into(), file.into()];
        // Released here, as by an exec: the descriptors stay open and have no owner.
        let [listens, connected, file] = numbers.map(std::os::fd::IntoRawFd::into_raw_fd);
        let adopted = adopt_listeners(&[listens, connected, file, 2, -1, listens, 1 << 20]);
        let outcomes: Vec<Option<Errno>> = adopted.iter().map(|(_, fd)| fd.as_ref().err().copied()).collect();
        let (bad, not_listening, no_socket) = (Some(Errno::BADF), Some(Errno::INVAL), Some(Errno::NOTSOCK));
        assert_eq!(outcomes, [None, not_listening, no_socket, bad, bad, Some(Errno::ALREADY), bad]);
        assert!(matches!(adopt_listeners(&[connected])[..], [(_, Err(Errno::ALREADY))]));
    }

    #[test]
    fn options_of_upstream_sockets_are_set() {
        let (v4, v6) = (libc::AF_INET, libc::AF_INET6);
        for (ipv6, family) in [(false, v4), (true, v6)] {
            let family = rustix::net::AddressFamily::from_raw(family as u16);
            let Ok(socket) = rustix::net::socket(family, rustix::net::SocketType::STREAM, None) else {
                continue;
            };
            set_bind_address_no_port(socket.as_fd()).unwrap();
            assert_eq!(number(socket.as_fd(), libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT), 1);
            let (level, option) = match ipv6 {
                true => (libc::IPPROTO_IPV6, libc::IPV6_TRANSPARENT),
                false => (libc::IPPROTO_IP, libc::IP_TRANSPARENT),
            };
            match set_transparent(socket.as_fd(), ipv6) {
                Ok(()) => assert_eq!(number(socket.as_fd(), level, option), 1),
                Err(error) => assert_eq!(error, Errno::PERM),
            }
        }
    }

    #[test]
    fn a_deferred_connection_is_accepted_with_its_first_byte() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        set_defer_accept(listener.as_fd(), 30).unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        // The handshake is complete for the client; without the option, accept would return its connection.
        assert_eq!(listener.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
        client.write_all(b"x").unwrap();
        // On loopback the byte has arrived when the write returns.
        listener.accept().unwrap();
        set_defer_accept(listener.as_fd(), 0).unwrap();
        let _silent = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        listener.accept().unwrap();
    }

    #[test]
    fn fast_open_is_set_and_unset() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        for queue in [7, 0] {
            set_fastopen(listener.as_fd(), queue).unwrap();
            let set = number(listener.as_fd(), libc::IPPROTO_TCP, libc::TCP_FASTOPEN);
            assert_eq!(set, queue as libc::c_int);
        }
        let unix = UnixStream::pair().unwrap().0;
        assert!(set_fastopen(unix.as_fd(), 7).is_err() && set_defer_accept(unix.as_fd(), 1).is_err());
    }

    #[test]
    fn acknowledged_bytes_grow_as_the_peer_receives() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut far = listener.accept().unwrap().0;
        let before = tcp_bytes_acked(near.as_fd()).unwrap();
        near.write_all(&[7; 1000]).unwrap();
        far.read_exact(&mut [0; 1000]).unwrap();
        // The response is acknowledged with the data that follows, or before.
        far.write_all(b"x").unwrap();
        near.read_exact(&mut [0]).unwrap();
        assert_eq!(tcp_bytes_acked(near.as_fd()).unwrap() - before, 1000);
    }

    #[test]
    fn a_unix_socket_reports_its_queue_and_no_acknowledgements() {
        let (mut near, mut far) = UnixStream::pair().unwrap();
        assert!(tcp_bytes_acked(near.as_fd()).is_err());
        near.write_all(&[7; 1000]).unwrap();
        assert!(send_queue_bytes(near.as_fd()).unwrap() >= 1000);
        far.read_exact(&mut [0; 1000]).unwrap();
        assert_eq!(send_queue_bytes(near.as_fd()).unwrap(), 0);
    }
}
