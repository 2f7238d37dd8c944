//! Namespaces of a run: mounts that vanish with it, and loopback networking without pacing.
//!
//! bbr paces its sending by a model of the network path, also over loopback, which has none: rates and latencies then
//! depend on its timers. A separate network namespace has a separate default, so nothing on the host changes.

use std::fs::{self, OpenOptions};
use std::io::{self, Seek, Write};
use std::process::Command;

use nix::sched::{CloneFlags, unshare};
use rustix::fs::FlockOperation;
use rustix::mount::{MountPropagationFlags, mount_change};

use crate::failure::Failure;

/// The congestion control of new sockets in a namespace.
const CONGESTION_CONTROL: &str = "/proc/sys/net/ipv4/tcp_congestion_control";
/// The congestion controls that users other than root may choose.
const ALLOWED: &str = "/proc/sys/net/ipv4/tcp_allowed_congestion_control";

/// Replacement for bbr: the kernel's default.
pub(crate) const REPLACEMENT: &str = "cubic";

/// The network namespace in which a run measures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entered {
    /// A sentence about the congestion control in effect.
    pub(crate) congestion_control: String,
    /// Whether the namespace belongs to the run, which may therefore create devices in it.
    pub(crate) is_own: bool,
}

/// Moves this process into separate namespaces, if it is root and the separation helps. Must be called before the first
/// thread is started.
pub(crate) fn enter(stay_in_host_network: bool) -> Result<Entered, Failure> {
    let is_root = rustix::process::geteuid().is_root();
    if is_root && unshare(CloneFlags::CLONE_NEWNS).is_ok() {
        // Other processes do not see the mounts of the run, and the mounts vanish with its last process. If this is
        // refused, mounts are only removed by the cleanup at the end.
        let _ = mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC);
    }
    let control = congestion_control();
    let is_paced = control.starts_with("bbr");
    let own = if is_root && !stay_in_host_network { Some(own_network()) } else { None };
    let is_own = matches!(own, Some(Ok(())));
    let congestion_control = match own {
        _ if !is_paced => control,
        Some(Ok(())) => {
            format!("{REPLACEMENT}, in a network namespace of the run (this machine's default: {control})")
        }
        // Without pacing, only the scenario over a wire needs the namespace.
        Some(Err(error)) => {
            return Err(Failure::kernel("a network namespace without bbr (--host-network needs none)")(
                error,
            ));
        }
        None if stay_in_host_network => format!("{control}, which paces loopback traffic (--host-network)"),
        None => format!("{control}, which paces loopback traffic; as root the run would use {REPLACEMENT}"),
    };
    Ok(Entered { congestion_control, is_own })
}

/// Returns the default congestion control for new connections in the current namespace.
pub(crate) fn congestion_control() -> String {
    fs::read_to_string(CONGESTION_CONTROL)
        .map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned())
}

/// Moves the calling thread into a separate network namespace, with an active loopback device.
pub(crate) fn another_network() -> io::Result<()> {
    unshare(CloneFlags::CLONE_NEWNET)?;
    bring_up_loopback()
}

/// Moves this process into a separate network namespace without pacing.
fn own_network() -> io::Result<()> {
    // A descriptor opened before unshare(2) refers to the host's list, which another namespace can read but not open
    // for writing.
    let allowed = OpenOptions::new().write(true).open(ALLOWED);
    another_network()?;
    if !congestion_control().starts_with("bbr") {
        return Ok(());
    }
    match fs::write(CONGESTION_CONTROL, REPLACEMENT) {
        // Only a congestion control that the host allows to all users may become the default of a namespace.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            let mut allowed = allowed?;
            // The lock prevents another run from reverting the list in between; closing the descriptor releases the
            // lock.
            rustix::fs::flock(&allowed, FlockOperation::LockExclusive)?;
            let before = fs::read_to_string(ALLOWED)?;
            allowed.write_all(format!("{} {REPLACEMENT}", before.trim()).as_bytes())?;
            let outcome = fs::write(CONGESTION_CONTROL, REPLACEMENT);
            // The namespace's default persists after the list is restored.
            allowed.rewind()?;
            allowed.write_all(before.trim().as_bytes())?;
            outcome
        }
        outcome => outcome,
    }
}

/// Brings up the loopback interface of the namespace.
fn bring_up_loopback() -> io::Result<()> {
    let status = Command::new("ip").args(["link", "set", "lo", "up"]).status();
    let status = status.map_err(|error| io::Error::other(format!("ip (package iproute2): {error}")))?;
    if status.success() { Ok(()) } else { Err(io::Error::other(format!("ip link set lo up: {status}"))) }
}
