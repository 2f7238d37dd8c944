//! The capabilities of the master: those that it does not need are dropped at the start.
//!
//! A worker, the agent and a new binary are executed by the master, so none of them can have a capability that the master has
//! dropped (capabilities(7): an exec never adds a capability that is not in the bounding set). The kernel has no way back, so a
//! reload whose configuration needs a dropped capability is refused, with the directive and its position.
//!
//! | capability | needed for |
//! |---|---|
//! | `CHOWN` | directories of workers get their user as owner |
//! | `DAC_OVERRIDE` | files and directories of other users: configuration, keys, logs, pid file, sockets |
//! | `DAC_READ_SEARCH` | the same files, only for reading; kept only without `DAC_OVERRIDE`, because it also opens files by handles |
//! | `FOWNER` | removes the socket of another user from a directory with the sticky bit |
//! | `IPC_LOCK` | workers that run as root register memory with io_uring without a limit, as they do without a master |
//! | `KILL` | ends workers and the agent, which have another user |
//! | `NET_BIND_SERVICE` | ports below 1024 |
//! | `SETGID`, `SETUID` | workers and the agent change to their user |
//! | `SETPCAP` | workers and the agent empty their bounding set |
//! | `SYS_RESOURCE` | limits of workers: open files, core files, memory that io_uring registers |
//! | `SYS_NICE` | `worker_priority` |
//! | `NET_RAW` | `proxy_bind … transparent`, which a worker keeps |

use rustix::io::Errno;
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities, set_no_new_privs};

use crate::adapter::{Site, place_of_directive};
use crate::paths::Request;

/// The capabilities that every configuration needs.
const ALWAYS: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::IPC_LOCK)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::NET_BIND_SERVICE)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::SETPCAP)
    .union(CapabilitySet::SYS_RESOURCE);

/// Drops the capabilities that the configuration does not need, and sets no_new_privs. Returns the dropped ones.
///
/// A master that is not root and has capabilities, for example those of its file, does not set no_new_privs: a new binary would
/// not get the capabilities of its file.
pub(super) fn drop_unneeded(site: &Site) -> Result<CapabilitySet, sandbox::Error> {
    let failed = |call| move |errno: Errno| sandbox::Error::Call(call, errno.into());
    let held = capabilities(None).map_err(failed("capget"))?;
    let mut needed = needed(site);
    needed.set(CapabilitySet::DAC_READ_SEARCH, !held.permitted.contains(CapabilitySet::DAC_OVERRIDE));
    // If the bounding set cannot be changed, the process cannot get these capabilities either, unless it is root and executes a
    // program.
    let removed = sandbox::limit_bounding_set(needed)?.unwrap_or(CapabilitySet::empty());
    let dropped = (held.permitted - needed) | removed;
    let CapabilitySets { effective, permitted, inheritable } = held;
    let (effective, permitted) = (effective & needed, permitted & needed);
    // This limits the ambient set too.
    let sets = CapabilitySets { effective, permitted, inheritable: inheritable & needed };
    set_capabilities(None, sets).map_err(failed("capset"))?;
    if rustix::process::geteuid().is_root() || permitted.is_empty() {
        set_no_new_privs(true).map_err(failed("prctl(PR_SET_NO_NEW_PRIVS)"))?;
    }
    Ok(dropped)
}

/// Returns the capabilities that the master or its workers need for a configuration.
fn needed(site: &Site) -> CapabilitySet {
    let mut needed = ALWAYS;
    needed.set(CapabilitySet::SYS_NICE, raises_priority(site));
    needed.set(CapabilitySet::NET_RAW, site.config.binds_transparently());
    needed
}

/// Whether `worker_priority` is higher than the priority of this process.
fn raises_priority(site: &Site) -> bool {
    let present = rustix::process::getpriority_process(None).unwrap_or(0);
    site.settings.limits.priority.is_some_and(|nice| nice < present)
}

/// Returns why a configuration cannot be used without a restart: the first directive that needs a dropped capability.
pub(super) fn obstacle(dropped: CapabilitySet, site: &Site, request: &Request) -> Option<String> {
    let missing = needed(site) & dropped;
    let (directive, name, position) = if missing.contains(CapabilitySet::SYS_NICE) {
        let position = place_of_directive(request, |name, _| name == "worker_priority");
        ("worker_priority", "CAP_SYS_NICE", position)
    } else if missing.contains(CapabilitySet::NET_RAW) {
        let is_transparent =
            |name: &str, args: &[&str]| name.ends_with("_bind") && args.contains(&"transparent");
        ("transparent", "CAP_NET_RAW", place_of_directive(request, is_transparent))
    } else {
        return None;
    };
    Some(format!(
        "\"{directive}\" needs {name}, which the master process has dropped at its start: restart the server to use it{position}"
    ))
}
