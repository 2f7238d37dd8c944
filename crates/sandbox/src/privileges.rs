//! Capabilities and attributes of the process, capabilities(7).

use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, capability_is_in_bounding_set, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs,
};

use crate::{Error, failed};

/// Capabilities that a process of root keeps: only with the first ones root can use the files of other users, and with the last
/// one it registers memory with io_uring without a limit.
const OF_ROOT: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::IPC_LOCK);

/// Empties the bounding set, so that no program that the process executes can get a capability. Returns false if the
/// process may not change the set. Must be called before the user is changed, because the change removes the right to it.
pub fn empty_bounding_set() -> Result<bool, Error> {
    Ok(limit_bounding_set(CapabilitySet::empty())?.is_some())
}

/// Removes all capabilities except these from the bounding set. Returns those that were in it, or `None` if the process may
/// not change the set, for which it needs `CAP_SETPCAP`.
pub fn limit_bounding_set(kept: CapabilitySet) -> Result<Option<CapabilitySet>, Error> {
    let held = capabilities(None).map_err(failed("capget"))?;
    if !held.effective.contains(CapabilitySet::SETPCAP) {
        return Ok(None);
    }
    let mut removed = CapabilitySet::empty();
    for number in 0..u64::BITS {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        match capability_is_in_bounding_set(capability) {
            Ok(true) if !kept.contains(capability) => {
                let dropped = remove_capability_from_bounding_set(capability);
                dropped.map_err(failed("prctl(PR_CAPBSET_DROP)"))?;
                removed |= capability;
            }
            Ok(_) => {}
            // The kernel knows only the capabilities up to this one.
            Err(rustix::io::Errno::INVAL) => break,
            Err(errno) => return Err(failed("prctl(PR_CAPBSET_READ)")(errno)),
        }
    }
    Ok(Some(removed))
}

/// Sets no_new_privs, and drops all capabilities except `CAP_NET_RAW` with `net_raw`, and those of [`OF_ROOT`] if the
/// process still runs as root. Without `dumpable` no process of the same user can trace this process or read its memory, and a
/// crash writes no core file.
pub fn drop_privileges(net_raw: bool, dumpable: bool) -> Result<(), Error> {
    set_no_new_privs(true).map_err(failed("prctl(PR_SET_NO_NEW_PRIVS)"))?;
    // Fails only on kernels without ambient capabilities, before 4.3.
    let _ = clear_ambient_capability_set();
    let mut kept = CapabilitySet::empty();
    kept.set(CapabilitySet::NET_RAW, net_raw);
    kept.set(OF_ROOT, rustix::process::geteuid().is_root());
    let held = capabilities(None).map_err(failed("capget"))?;
    let kept = held.permitted & kept;
    let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    set_capabilities(None, sets).map_err(failed("capset"))?;
    let behavior = if dumpable { DumpableBehavior::Dumpable } else { DumpableBehavior::NotDumpable };
    set_dumpable_behavior(behavior).map_err(failed("prctl(PR_SET_DUMPABLE)"))
}
