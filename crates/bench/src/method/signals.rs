//! Handling of SIGINT, SIGTERM and SIGHUP during a measurement: the signal is recorded, and programs, cgroups, mounts
//! and files are then cleaned up in order. A second signal has no further effect.
//!
//! Started programs do not get the terminal's signal, because each has a separate session. So a server is not ended
//! while the load still sends requests to it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::signal::{SigSet, Signal};

/// The signals by which users and systems request an orderly termination.
const SIGNALS: [Signal; 3] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP];

/// Blocks the signals in this thread and in all threads that it starts. They stay pending until [`watch`].
pub(crate) fn block() {
    // Can fail only for an invalid signal number.
    let _ = set().thread_block();
}

/// Sets `interrupted` when a signal arrives. Does nothing unless the signals are blocked; they then terminate the
/// program by default.
pub(crate) fn watch(interrupted: Arc<AtomicBool>) {
    let is_blocked = SigSet::thread_get_mask().is_ok_and(|mask| mask.contains(Signal::SIGTERM));
    if !is_blocked {
        return;
    }
    // The thread ends with the process. If it could not be started, no signal would end the run, so the signals are
    // unblocked.
    let started = std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
        while let Ok(signal) = set().wait() {
            if !interrupted.swap(true, Ordering::Relaxed) {
                eprintln!("{signal}: ending the programs of the run");
            }
        }
    });
    if started.is_err() {
        let _ = set().thread_unblock();
    }
}

fn set() -> SigSet {
    let mut set = SigSet::empty();
    for signal in SIGNALS {
        set.add(signal);
    }
    set
}
