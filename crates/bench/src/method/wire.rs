//! A pair of virtual network devices (veth(4)) between the servers and the load generator.
//!
//! Over loopback the receipt of a packet is executed by the sender, so half of the client's network stack is charged to the
//! server. Over a veth pair with receive packet steering the processors of each side execute its receipts, as with two
//! machines:
//!
//! ```text
//!   network namespace of the run           another one
//!   servers -- ringroad-s -- veth pair -- ringroad-c -- threads of the load generator
//! ```

use std::fs::{self, File};
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use nix::sched::{CloneFlags, setns};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use crate::method::namespace;
use crate::method::pin::Split;

/// Names of the devices of the servers and of the generator.
const DEVICES: [&str; 2] = ["ringroad-s", "ringroad-c"];
/// Their addresses, of a network for documentation (RFC 5737), which no host uses.
const ADDRESSES: [Ipv4Addr; 2] = [Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2)];

const NETWORK: &str = "192.0.2.0/24";

/// The pair, which is removed with this value.
pub(crate) struct Wire {
    /// Network namespace of the load generator.
    pub(crate) generator: Network,
}

/// A network namespace that threads can enter.
#[derive(Clone, Debug)]
pub(crate) struct Network(Arc<File>);

impl Network {
    /// Moves the calling thread into the namespace.
    pub(crate) fn enter(&self) -> io::Result<()> {
        setns(self.0.as_fd(), CloneFlags::CLONE_NEWNET).map_err(io::Error::from)
    }

    /// Executes `work` in a thread of the namespace.
    fn inside(&self, work: impl FnOnce() -> io::Result<()> + Send) -> io::Result<()> {
        let thread = || self.enter().and_then(|()| work());
        std::thread::scope(|scope| scope.spawn(thread).join())
            .unwrap_or_else(|_| Err(io::Error::other("a panic")))
    }
}

impl Wire {
    /// Address of the servers.
    pub(crate) const SERVER: Ipv4Addr = ADDRESSES[0];

    /// Creates the pair in the network namespace of a run. `work` is a directory for temporary mounts. The error is the
    /// reason why that is impossible.
    pub(crate) fn new(is_own_network: bool, split: &Split, work: &Path) -> Result<Wire, String> {
        if !is_own_network {
            return Err("needs root, iproute2, and a run without --host-network".to_owned());
        }
        let create = || {
            let generator = another_network()?;
            let wire = Wire { generator };
            let [ours, theirs] = DEVICES;
            ip(&["link", "add", ours, "type", "veth", "peer", "name", theirs])?;
            // The directory of this process has the descriptors of all its threads.
            let descriptor = std::os::fd::AsRawFd::as_raw_fd(&*wire.generator.0);
            ip(&["link", "set", theirs, "netns", &format!("/proc/{}/fd/{descriptor}", std::process::id())])?;
            set_up(0, &split.server, work)?;
            wire.generator.inside(|| set_up(1, &split.load, work))?;
            Ok::<_, io::Error>(wire)
        };
        create().map_err(|error| error.to_string())
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        // The other device vanishes with it.
        let _ = ip(&["link", "delete", DEVICES[0]]);
    }
}

/// Creates a network namespace; it exists as long as a descriptor or a thread uses it.
fn another_network() -> io::Result<Network> {
    let create = || {
        namespace::another_network()?;
        File::open("/proc/thread-self/ns/net")
    };
    let file = std::thread::scope(|scope| scope.spawn(create).join());
    file.unwrap_or_else(|_| Err(io::Error::other("a panic"))).map(|file| Network(Arc::new(file)))
}

/// Sets address and receive steering of a device of the calling thread's namespace.
fn set_up(index: usize, cpus: &[usize], work: &Path) -> io::Result<()> {
    let device = DEVICES[index];
    ip(&["address", "add", &format!("{}/24", ADDRESSES[index]), "dev", device])?;
    ip(&["link", "set", device, "up"])?;
    // The default congestion control of a further namespace is that of the host, which may be bbr.
    ip(&["route", "replace", NETWORK, "dev", device, "congctl", namespace::REPLACEMENT])?;
    // A mount of sysfs has the devices of the namespace of its creator.
    let path = work.join(format!("sysfs-{device}"));
    fs::create_dir_all(&path)?;
    mount("sysfs", &path, "sysfs", MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC, None)?;
    let steering = path.join(format!("class/net/{device}/queues/rx-0/rps_cpus"));
    let written = fs::write(&steering, mask(cpus));
    unmount(&path, UnmountFlags::DETACH)?;
    written.map_err(|error| io::Error::other(format!("receive steering (rps_cpus): {error}")))
}

/// Returns a set of processors as the kernel parses it: hexadecimal words of 32 bits, the highest first.
fn mask(cpus: &[usize]) -> String {
    let words = cpus.iter().max().map_or(1, |most| most / 32 + 1);
    let word = |word: usize| {
        let bits = cpus.iter().filter(|cpu| *cpu / 32 == word).fold(0u32, |bits, cpu| bits | 1 << (cpu % 32));
        format!("{bits:08x}")
    };
    (0..words).rev().map(word).collect::<Vec<_>>().join(",")
}

fn ip(args: &[&str]) -> io::Result<()> {
    let output = Command::new("ip").args(args).output();
    let output = output.map_err(|error| io::Error::other(format!("ip (package iproute2): {error}")))?;
    let said = String::from_utf8_lossy(&output.stderr);
    let failed = || io::Error::other(format!("ip {}: {}", args.join(" "), said.trim()));
    if output.status.success() { Ok(()) } else { Err(failed()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_written_as_hexadecimal_words() {
        assert_eq!(mask(&[0]), "00000001");
        assert_eq!(mask(&[1, 4]), "00000012");
        assert_eq!(mask(&[33, 0]), "00000002,00000001");
    }
}
