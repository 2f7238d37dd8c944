//! The sandbox of a worker process: the paths and ports that its configuration needs, and the restrictions in their order.
//!
//! [`Plan::of`] collects what is permitted. The master does this too when it starts a worker: if the running worker may use
//! everything that a new configuration needs, a reload is done in place ([`Plan::reasons`]); a process cannot get more rights.
//!
//! The kernel's rules belong to directories and files, not to their names. A directory that was replaced since the start of the
//! worker is therefore a reason for a new worker too.

use std::collections::BTreeSet;
use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use io::probe::Probe;
use rustix::fs::{Mode, OFlags};
use sandbox::{Calls, RefusedCalls, Rule};
use site::allowed_paths::{AllowedPath, AllowedPaths, Enforced};
use site::config::Config;
use site::needs::{Access, Ports, needs};
use site::settings::main::Sandbox;

use crate::log::Log;

/// Files that the C library and this program read, whatever the configuration is.
const READ: &[&str] = &[
    // Names of hosts, getaddrinfo(3).
    "/etc/gai.conf",
    "/etc/host.conf",
    "/etc/hosts",
    "/etc/nsswitch.conf",
    "/etc/protocols",
    "/etc/resolv.conf",
    "/etc/services",
    "/run/systemd/resolve",
    // Plug-ins for name lookups, with those of [`LIBRARIES`].
    "/etc/ld.so.cache",
    // Local time, tzset(3).
    "/etc/localtime",
    "/usr/share/zoneinfo",
    // Random numbers on kernels without getrandom(2).
    "/dev/random",
    "/dev/urandom",
    // Limits, pressure and capabilities of the machine.
    "/proc/meminfo",
    "/proc/stat",
    "/proc/sys/fs",
    "/proc/sys/kernel/io_uring_disabled",
    "/proc/sys/net/core",
    "/proc/sys/vm/overcommit_memory",
    "/sys/devices/system/cpu",
    "/sys/fs/cgroup",
];

/// Directories of libraries, which the C library loads for name lookups.
pub(crate) const LIBRARIES: &[&str] = &["/lib", "/lib64", "/usr/lib", "/usr/lib64"];

/// As [`READ`], for directories of /proc. The kernel forgets their inodes, and with them the rules, unless they stay open.
const PROCESS: &[&str] = &["/proc/self", "/proc/pressure"];

/// Files that the C library writes.
const WRITE: &[&str] = &["/dev/null"];

/// Port of name servers. Queries use UDP; a truncated response is requested again over TCP (RFC 7766).
pub(crate) const DNS: u16 = 53;

/// The restrictions that a configuration allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Paths without symbolic links.
    allowed: AllowedPaths,
    /// Device and inode of each path, in the same order; `None` if it does not exist any more.
    identities: Vec<Option<(u64, u64)>>,
    /// Ports of TCP connections; `None` for all.
    connect: Option<BTreeSet<u16>>,
    has_jit: bool,
    is_dumpable: bool,
    net_raw: bool,
}

/// The restrictions of this process.
#[derive(Debug, Default)]
pub(crate) struct Restrictions {
    refused: Option<RefusedCalls>,
    /// Directories whose rules last as long as they are open; never read.
    _pinned: Vec<OwnedFd>,
}

impl Plan {
    /// Returns the restrictions; `None` if the configuration has `sandbox off`.
    pub(crate) fn of(config: &Config) -> Option<Plan> {
        let main = config.main();
        if main.sandbox == Sandbox::Off {
            return None;
        }
        let needs = needs(config);
        let mut allowed = AllowedPaths::of(&needs.paths);
        for (paths, access) in [(READ, Access::Read), (LIBRARIES, Access::Read), (WRITE, Access::Write)] {
            for path in paths.iter().filter_map(|path| fs::canonicalize(path).ok()) {
                allowed.add(path, access);
            }
        }
        // The table of symbols of this program, for the place of a panic.
        if let Ok(program) = std::env::current_exe() {
            allowed.add(program, Access::Read);
        }
        let identities = allowed.iter().map(|allowed| identity(&allowed.path)).collect();
        let known = || needs.known_ports.iter().copied().chain([DNS]).collect();
        let connect = match needs.connect {
            Ports::Any if main.sandbox == Sandbox::On => None,
            Ports::Any | Ports::Only(_) => Some(known()),
        };
        let has_keys = config.tls_listens().next().is_some()
            || config.data_files().any(|(_, bytes)| tls::apart::has_keys(bytes));
        Some(Plan {
            allowed,
            identities,
            connect,
            has_jit: main.pcre_jit,
            is_dumpable: !has_keys || main.worker_rlimit_core.is_some(),
            net_raw: config.binds_transparently(),
        })
    }

    /// Returns the reasons why a process with these restrictions cannot serve a configuration with the restrictions `new`.
    pub(crate) fn reasons(&self, new: &Plan) -> Vec<String> {
        let mut reasons: Vec<String> = Vec::new();
        for AllowedPath { path, access, directive, .. } in new.allowed.iter() {
            let permitting = self.allowed.allowing(path, *access);
            let is_replaced = |permitting: &AllowedPath| {
                let mut known = self.allowed.iter().zip(&self.identities);
                known.any(|(allowed, identity_then)| {
                    allowed == permitting && *identity_then != identity(&permitting.path)
                })
            };
            let reason = match permitting {
                None => "the sandbox does not permit it",
                Some(permitting) if is_replaced(permitting) => "it was replaced since the worker was started",
                Some(_) => continue,
            };
            let of = if directive.is_empty() { String::new() } else { format!(" of \"{directive}\"") };
            reasons.push(format!("\"{}\"{of}: {reason}", path.display()));
        }
        let ports = |plan: &Plan| plan.connect.clone();
        match (ports(self), ports(new)) {
            (Some(_), None) => reasons.push("the sandbox needs connections to any port".to_owned()),
            (Some(old), Some(new)) => reasons.extend(
                new.difference(&old).map(|port| format!("the sandbox needs connections to port {port}")),
            ),
            (None, _) => {}
        }
        if self.is_dumpable && !new.is_dumpable {
            reasons.push("the first private key".to_owned());
        }
        reasons
    }

    /// Performs the step before the change of the user.
    pub(crate) fn before_user(&self) -> Result<(), String> {
        sandbox::empty_bounding_set().map(drop).map_err(failed)
    }

    /// Performs the steps after the change of the user, before the first thread is started. What the kernel lacks is
    /// logged.
    pub(crate) fn before_threads(&self, log: &Log) -> Result<Restrictions, String> {
        // The probes connect to a port of their own.
        Probe::of_process();
        sandbox::drop_privileges(self.net_raw, self.is_dumpable).map_err(failed)?;
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let pinned =
            PROCESS.iter().filter_map(|path| rustix::fs::open(*path, flags, Mode::empty()).ok()).collect();
        // Each process has its own directory in /proc, so these are not in the plan.
        let own = PROCESS.iter().map(|path| Rule { path: Path::new(path), write: false });
        let planned = self.allowed.iter();
        let planned =
            planned.map(|allowed| Rule { path: &allowed.path, write: allowed.access == Access::Write });
        let rules: Vec<Rule<'_>> = planned.chain(own).collect();
        let report = sandbox::restrict_files(&rules, self.connect.as_ref()).map_err(failed)?;
        if !report.lacks.is_empty() {
            log.notice(format_args!("sandbox: {report}"));
        }
        if report.restricts_files() {
            let mut paths = self.allowed.clone();
            paths.add(PathBuf::from("/proc"), Access::Read);
            Enforced { paths, ports: self.connect.clone() }.begin();
        }
        Ok(Restrictions { refused: None, _pinned: pinned })
    }

    /// Performs the last step, when all threads and rings exist.
    pub(crate) fn after_start(&self, restrictions: &mut Restrictions, log: &Log) -> Result<(), String> {
        let calls = if self.has_jit { Calls::WorkerWithJit } else { Calls::Worker };
        match sandbox::restrict_calls(calls) {
            Ok(refused) => restrictions.refused = Some(refused),
            Err(error) if error.is_unsupported() => {
                log.notice("sandbox: the kernel cannot restrict system calls (CONFIG_SECCOMP_FILTER)");
            }
            Err(error) => return Err(failed(error)),
        }
        Ok(())
    }
}

impl Restrictions {
    /// Returns a descriptor that is readable when a call was refused.
    pub(crate) fn refusals(&self) -> Option<BorrowedFd<'_>> {
        self.refused.as_ref().map(AsFd::as_fd)
    }

    /// Logs the calls that were refused since the last call.
    pub(crate) fn log_refusals(&self, log: &Log) {
        let Some(refused) = &self.refused else { return };
        for name in refused.take() {
            log.alert(format_args!(
                "sandbox: the system call {name} was refused: a defect of the server, or an attack; \"sandbox off\" permits it"
            ));
        }
    }
}

/// Returns device and inode of a file.
fn identity(path: &Path) -> Option<(u64, u64)> {
    fs::metadata(path).ok().map(|facts| (facts.dev(), facts.ino()))
}

fn failed(error: sandbox::Error) -> String {
    format!("the sandbox cannot be set up: {error}; \"sandbox off\" serves without it")
}
