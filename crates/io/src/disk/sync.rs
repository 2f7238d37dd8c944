//! The blocking calls, made on the worker thread itself: for measurements, for file systems in memory, and
//! where nothing else is left. A slow device stalls the whole thread here, which is why it is never chosen
//! on its own account.

use crate::disk::job;
use crate::op::{Completion, OpId};
use crate::slot::Slots;

/// Carries out a file operation at once. Returns whether it was a `sendfile` that met a full socket, for the network
/// backend.
pub(crate) fn start(id: OpId, slots: &mut Slots, done: &mut Vec<Completion>) -> bool {
    let op = slots.op(id);
    let uncached = job::is_uncached(op);
    let outcome = job::carry_out(op, uncached);
    let full = outcome.is_full_socket();
    outcome.deliver(id, slots, done);
    full
}
