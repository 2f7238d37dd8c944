//! Blocking system calls, made on the worker thread itself. A slow device stalls the complete worker thread here. So
//! this backend is used only if the configuration selects it (`aio off`), if no other backend is available, or for
//! bytes that are in memory.

use crate::disk::job;
use crate::op::{Completion, OpId};
use crate::slot::Slots;

/// Carries out a file operation immediately. Returns whether it was a `sendfile` to a socket without space, for the
/// network backend.
pub(crate) fn start(id: OpId, slots: &mut Slots, done: &mut Vec<Completion>) -> bool {
    let op = slots.op(id);
    let uncached = job::is_uncached(op);
    let outcome = job::carry_out(op, uncached);
    let full = outcome.is_full_socket();
    outcome.deliver(id, slots, done);
    full
}
