//! Namespaces of a run: mounts that vanish with it, and a loopback without pacing.
//!
//! bbr paces what it sends by a model of the path, also over loopback, where there is no path: rates and latencies
//! are then those of its timers. A network namespace of its own has its own default, so nothing of the machine changes.

use std::fs::{self, OpenOptions};
use std::io::{self, Seek, Write};

use nix::sched::{CloneFlags, unshare};
use rustix::fs::FlockOperation;
use rustix::mount::{MountPropagationFlags, mount_change};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType, recv, send, socket};

use crate::failure::Failure;

/// What new sockets of a namespace use.
const CONGESTION_CONTROL: &str = "/proc/sys/net/ipv4/tcp_congestion_control";
/// What users other than root may choose.
const ALLOWED: &str = "/proc/sys/net/ipv4/tcp_allowed_congestion_control";

/// Used instead of bbr: the kernel's own default.
const REPLACEMENT: &str = "cubic";

/// Moves this process into namespaces of its own, as root and where that helps. Call it before the first thread.
/// Returns a sentence on the congestion control of what will be measured.
pub(crate) fn enter(stay_in_host_network: bool) -> Result<String, Failure> {
    let is_root = rustix::process::geteuid().is_root();
    if is_root && unshare(CloneFlags::CLONE_NEWNS).is_ok() {
        // Other processes do not see mounts of the run, and they are gone with its last process. Where this is refused,
        // mounts are only removed in order at the end.
        let _ = mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC);
    }
    let control = congestion_control();
    if !control.starts_with("bbr") {
        return Ok(control);
    }
    if stay_in_host_network {
        return Ok(format!("{control}, which paces loopback (--host-network)"));
    }
    if !is_root {
        return Ok(format!("{control}, which paces loopback; as root the run would use {REPLACEMENT}"));
    }
    match own_network() {
        Ok(()) => Ok(format!(
            "{REPLACEMENT}, in a network namespace of the run (this machine's default: {control})"
        )),
        Err(error) => Err(Failure::Kernel {
            doing: "a network namespace without bbr (--host-network does without)".to_owned(),
            error,
        }),
    }
}

/// The default for new connections here.
pub(crate) fn congestion_control() -> String {
    fs::read_to_string(CONGESTION_CONTROL)
        .map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned())
}

/// A namespace of its own for this process, with a loopback device that is up.
fn own_network() -> io::Result<()> {
    // Opened here it stays the machine's own list, which another namespace can read and not write.
    let allowed = OpenOptions::new().write(true).open(ALLOWED);
    unshare(CloneFlags::CLONE_NEWNET)?;
    bring_up_loopback()?;
    match fs::write(CONGESTION_CONTROL, REPLACEMENT) {
        // Only what the machine allows to everybody may become the default of a namespace.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            let mut allowed = allowed?;
            // Another run that is here would take back what this one allows; closing the list unlocks it.
            rustix::fs::flock(&allowed, FlockOperation::LockExclusive)?;
            let before = fs::read_to_string(ALLOWED)?;
            allowed.write_all(format!("{} {REPLACEMENT}", before.trim()).as_bytes())?;
            let outcome = fs::write(CONGESTION_CONTROL, REPLACEMENT);
            // The default stays when the list is as it was.
            allowed.rewind()?;
            allowed.write_all(before.trim().as_bytes())?;
            outcome
        }
        outcome => outcome,
    }
}

/// The first interface of every namespace is the loopback.
const LOOPBACK_INDEX: u32 = 1;

/// One message of rtnetlink(7): `RTM_NEWLINK` with the flag `IFF_UP`, and its acknowledgement.
fn bring_up_loopback() -> io::Result<()> {
    /// rtnetlink(7): a message that makes or changes a device.
    const RTM_NEWLINK: u16 = 16;
    /// Of the message: it is a request, and a response is wanted.
    const REQUEST_WITH_ACK: u16 = 1 | 4;
    /// netdevice(7): the device is to be up.
    const IFF_UP: u32 = 1;
    /// netlink(7): the response, with 0 or an error number.
    const NLMSG_ERROR: u16 = 2;
    let mut message = Vec::with_capacity(32);
    // struct nlmsghdr: length, type, flags, sequence, port.
    message.extend(32_u32.to_ne_bytes());
    message.extend(RTM_NEWLINK.to_ne_bytes());
    message.extend(REQUEST_WITH_ACK.to_ne_bytes());
    message.extend([0; 8]);
    // struct ifinfomsg: family and type, index, flags, mask of flags to change.
    message.extend([0; 4]);
    message.extend(LOOPBACK_INDEX.to_ne_bytes());
    message.extend(IFF_UP.to_ne_bytes());
    message.extend(IFF_UP.to_ne_bytes());
    // Protocol 0 of this family is NETLINK_ROUTE.
    let socket = socket(AddressFamily::NETLINK, SocketType::RAW, None)?;
    send(&socket, &message, SendFlags::empty())?;
    let mut answer = [0_u8; 256];
    let (_, length) = recv(&socket, &mut answer, RecvFlags::empty())?;
    let kind = u16::from_ne_bytes([answer[4], answer[5]]);
    let error = i32::from_ne_bytes([answer[16], answer[17], answer[18], answer[19]]);
    match (kind, error) {
        (NLMSG_ERROR, 0) if length >= 20 => Ok(()),
        (NLMSG_ERROR, error) if length >= 20 => Err(io::Error::from_raw_os_error(-error)),
        _ => Err(io::Error::other("rtnetlink returned something else")),
    }
}
