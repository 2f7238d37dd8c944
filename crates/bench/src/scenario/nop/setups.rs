//! The sets of ring flags that are compared: each flag alone, and this server's flags without one of them.
//!
//! No I/O. A kernel that does not support a flag refuses the ring; the row then has the reason.

use bare::{RingSetup, flags};

/// A table of sets of flags; the first row is the reference.
pub(super) struct FlagTable {
    pub(super) title: &'static str,
    /// Names and set-ups. The number of entries is that of the batch.
    pub(super) rows: Vec<(&'static str, RingSetup)>,
}

/// Returns both tables. `poller_cpu` is the processor of the kernel thread that polls a submission queue.
pub(super) fn tables(poller_cpu: u32) -> [FlagTable; 2] {
    [
        FlagTable { title: "Set-up flags, one at a time", rows: alone(poller_cpu) },
        FlagTable { title: "This server's set-up flags, one omitted", rows: one_omitted() },
    ]
}

/// Returns rings with one flag each, and the flags that it requires.
fn alone(poller_cpu: u32) -> Vec<(&'static str, RingSetup)> {
    // DEFER_TASKRUN is rejected without SINGLE_ISSUER, and TASKRUN_FLAG without one of the two modes that run task work
    // in the owner's context (io_uring_setup(2)), so these flags are measured in pairs.
    let plain = RingSetup::plain(1);
    let with = |flags| RingSetup { flags, ..plain };
    // On one processor, the kernel thread and the loop would alternate, and each would wait for the other's time slice
    // to end.
    let polled = RingSetup { poller_cpu: Some(poller_cpu), ..with(flags::SQPOLL) };
    vec![
        ("no flag", plain),
        ("SINGLE_ISSUER", with(flags::SINGLE_ISSUER)),
        ("SINGLE_ISSUER, DEFER_TASKRUN", with(flags::SINGLE_ISSUER | flags::DEFER_TASKRUN)),
        ("COOP_TASKRUN", with(flags::COOP_TASKRUN)),
        ("COOP_TASKRUN, TASKRUN_FLAG", with(flags::COOP_TASKRUN | flags::TASKRUN_FLAG)),
        ("NO_SQARRAY", with(flags::NO_SQARRAY)),
        ("registered ring descriptor", RingSetup { registered_fd: true, ..plain }),
        ("SQPOLL", polled),
    ]
}

/// Returns the flags of this server's ring, and the same without one flag each. A flag is justified if the time without
/// it is not shorter.
fn one_omitted() -> Vec<(&'static str, RingSetup)> {
    let all = RingSetup::as_engine(1);
    let without = |flag: u32| RingSetup { flags: all.flags & !flag, ..all };
    // A ring runs its task work in one of the two modes: without one, the other one is set.
    let cooperative = |flags| RingSetup { flags: flags | flags::COOP_TASKRUN, ..all };
    let others = all.flags & !flags::DEFER_TASKRUN;
    vec![
        ("as this server's engine", all),
        ("without NO_SQARRAY", without(flags::NO_SQARRAY)),
        ("without TASKRUN_FLAG", without(flags::TASKRUN_FLAG)),
        ("COOP_TASKRUN for DEFER_TASKRUN", cooperative(others)),
        (
            "COOP_TASKRUN for both SINGLE_ISSUER and DEFER_TASKRUN",
            cooperative(others & !flags::SINGLE_ISSUER),
        ),
        ("without the registered descriptor", RingSetup { registered_fd: false, ..all }),
    ]
}
