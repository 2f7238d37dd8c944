//! SIGINT, SIGTERM and SIGHUP while something is measured: noted, not obeyed at once, so that programs, control
//! groups, mounts and files end in order. A second one changes nothing, since the first is being obeyed.
//!
//! Programs that were started do not get the terminal's signal: each has a session of its own. So a server does not end
//! under a load that is still asking it, and is ended like the others.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::signal::{SigSet, Signal};

/// Those by which users and systems end a program in order.
const SIGNALS: [Signal; 3] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP];

/// Blocks them in this thread and in all that it will start. What arrives waits for [`watch`].
pub(crate) fn block() {
    // Refused only for a number that is no signal.
    let _ = set().thread_block();
}

/// Sets `interrupted` when one arrives. Does nothing unless they are blocked: then they end the program as ever.
pub(crate) fn watch(interrupted: Arc<AtomicBool>) {
    let is_blocked = SigSet::thread_get_mask().is_ok_and(|mask| mask.contains(Signal::SIGTERM));
    if !is_blocked {
        return;
    }
    // Ends with the process. Without the thread no signal would end the run: then they have to be obeyed at once.
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

/// The same as the kernel wants them.
fn set() -> SigSet {
    let mut set = SigSet::empty();
    for signal in SIGNALS {
        set.add(signal);
    }
    set
}
