//! Handles completions of the ring.
//!
//! Whether further completions of an operation follow is shown only by the flags of a completion, never by its result.
//! A multishot operation that the kernel ends is restarted here, unless it ended with an error for the caller.

use rustix::io::Errno;

use super::Uring;
use super::entry::Tag;
use super::recv::{Group, RecvRing};
use super::ring::Cqe;
use super::state::Phase;
use crate::buf::Buf;
use crate::op::{Completion, DiskOp, NetOp, Op, OpId, Payload, RecvInto};
use crate::slot::{Slot, Slots};

/// `IORING_CQE_F_*`: a provided buffer was used, and its number is in the upper half; more completions follow; this is
/// the notification that a zero-copy send no longer needs its memory.
const BUFFER: u32 = 1 << 0;
const MORE: u32 = 1 << 1;
const NOTIFICATION: u32 = 1 << 3;

/// The destination of the completions of a turn.
struct Out<'a> {
    slots: &'a mut Slots,
    done: &'a mut Vec<Completion>,
}

impl Uring {
    /// Handles a completion.
    pub(super) fn complete(&mut self, cqe: Cqe, slots: &mut Slots, done: &mut Vec<Completion>) {
        // The buffer is taken first, so that it returns to the pool however the completion is handled.
        let mut buf = None;
        if cqe.flags & BUFFER != 0 {
            buf = self.provided(&cqe);
        }
        let mut out = Out { slots, done };
        match Tag::unpack(cqe.user_data) {
            Some(Tag::Op(id)) => self.complete_op(id, cqe, &mut buf, &mut out),
            Some(Tag::Cancel(id)) => {
                // ENOENT or EALREADY. In most cases the operation has just completed. But an operation that was woken
                // and is about to run cannot be found either, and would continue.
                if out.slots.get(id).is_some_and(|slot| slot.ring.phase == Phase::Kernel) {
                    self.recancel.push(id);
                }
            }
            // The ring only ends the wait: the owner checks all its queues after each turn.
            Some(Tag::Doorbell) => self.doorbell_armed = cqe.flags & MORE != 0,
            None => out.slots.unmatched += 1,
        }
    }

    fn provided(&mut self, cqe: &Cqe) -> Option<Buf> {
        let bid = (cqe.flags >> 16) as u16;
        let ring = match RecvRing::group_of(bid) {
            Group::Small => &mut self.recv,
            Group::Large => &mut self.recv_large,
        };
        let mut buf = ring.as_mut()?.take(bid)?;
        buf.set_len(cqe.result.max(0) as usize);
        Some(buf)
    }

    fn complete_op(&mut self, id: OpId, cqe: Cqe, buf: &mut Option<Buf>, out: &mut Out<'_>) {
        let Some(slot) = out.slots.get(id).filter(|slot| slot.ring.phase != Phase::Idle) else {
            out.slots.unmatched += 1;
            return;
        };
        let (op, state) = (&slot.op, &slot.ring);
        let result = match cqe.result {
            // The result of a notification is a set of flags that includes the sign bit.
            _ if cqe.flags & NOTIFICATION != 0 => Ok(0),
            0.. => Ok(cqe.result as u32),
            error => Err(Errno::from_raw_os_error(-error)),
        };
        let more = cqe.flags & MORE != 0;
        match op {
            // The slot of a zero-copy send that awaits its notification has no operation.
            _ if state.phase == Phase::Notice => self.sent(id, result, cqe.flags, true, out),
            Op::Net(NetOp::Send { zero_copy, .. }) => {
                let zero_copy = *zero_copy && self.zero_copy && !state.copying;
                if zero_copy || state.phase != Phase::Kernel {
                    self.sent(id, result, cqe.flags, zero_copy, out);
                } else {
                    // A single completion, the most frequent case.
                    self.finish(id, result, out.slots, out.done);
                }
            }
            Op::Net(NetOp::Recv { into: RecvInto::Pool | RecvInto::Large, .. }) => {
                self.received(id, result, more, buf.take(), out);
            }
            Op::Net(NetOp::Recv { into: RecvInto::Stream, .. }) => match result {
                Ok(1..) => {
                    assert!(buf.is_some(), "bytes of a stream come in a provided buffer");
                    let payload = buf.take().map_or(Payload::None, Payload::Buf);
                    if more {
                        self.add_unchecked_end(id, out.slots);
                    }
                    self.streamed(id, result, more, payload, out);
                }
                _ => self.received(id, result, more, buf.take(), out),
            },
            Op::Net(NetOp::Accept { multishot: true, .. }) => match result {
                Ok(_) => {
                    let payload = cqe.into_fd().map_or(Payload::None, Payload::Accepted);
                    self.streamed(id, Ok(0), more, payload, out);
                }
                Err(Errno::INTR) if !more => self.again(id, out),
                Err(errno) if !more => self.finish(id, Err(errno), out.slots, out.done),
                Err(_) => {}
            },
            Op::Disk { op, .. } if op.moved_file().is_some() => self.file_done(id, result, out),
            Op::Disk { op: DiskOp::Link { .. }, .. } => self.link_done(id, result, out),
            _ => self.once_done(id, result, cqe, out),
        }
    }

    /// Reports one of several results of a multishot operation.
    fn streamed(
        &mut self,
        id: OpId,
        result: Result<u32, Errno>,
        more: bool,
        payload: Payload,
        out: &mut Out<'_>,
    ) {
        out.slots.finish(id, result, true, payload, out.done);
        if !more {
            self.again(id, out);
        }
    }

    /// Handles the end of a receive into provided buffers, or a lack of buffers.
    fn received(
        &mut self,
        id: OpId,
        result: Result<u32, Errno>,
        more: bool,
        buf: Option<Buf>,
        out: &mut Out<'_>,
    ) {
        if more {
            return;
        }
        let cancelled = out.slots.held(id).ring.cancelled;
        match result {
            Err(Errno::NOBUFS) if !cancelled && self.use_small_buffer(id, out.slots) => self.again(id, out),
            Err(Errno::NOBUFS) if !cancelled => {
                self.counters.recv_starved += 1;
                out.slots.held(id).ring.phase = Phase::Starved;
                self.starved.push_back(id);
            }
            Err(Errno::NOBUFS) => self.finish(id, Err(Errno::CANCELED), out.slots, out.done),
            Err(Errno::INTR) => self.again(id, out),
            // Cancelled by the engine, to be restarted (see `end_check.rs`).
            Err(Errno::CANCELED) if !cancelled => self.again(id, out),
            // These receives poll first, so a socket never returns this error. A descriptor that returns it cannot be
            // polled: a caller that waits for its readiness would retry in an endless loop.
            Err(Errno::AGAIN) => self.finish(id, Err(Errno::NOTSOCK), out.slots, out.done),
            _ => {
                assert!(buf.is_some() || !matches!(result, Ok(1..)), "bytes come in a provided buffer");
                out.slots.end(id, out.done, |slot, done| {
                    self.flights.end(&mut slot.ring);
                    (done.result, done.payload) = (result, buf.map_or(Payload::None, Payload::Buf));
                });
            }
        }
    }

    /// Makes a receive that found no large buffer use a small one; returns `false` if it requested a small one.
    fn use_small_buffer(&mut self, id: OpId, slots: &mut Slots) -> bool {
        let NetOp::Recv { into: into @ RecvInto::Large, .. } = slots.net(id) else { return false };
        *into = RecvInto::Pool;
        if let Some(large) = &mut self.recv_large {
            large.widen(&self.pool);
        }
        true
    }

    /// Restarts an operation that the kernel has ended, unless its caller has cancelled it.
    fn again(&mut self, id: OpId, out: &mut Out<'_>) {
        let state = &mut out.slots.held(id).ring;
        if state.cancelled {
            self.finish(id, Err(Errno::CANCELED), out.slots, out.done);
            return;
        }
        state.phase = Phase::Kernel;
        self.counters.rearmed += 1;
        self.stage(id, out.slots, out.done);
    }

    /// Handles a completion of a send. With zero copy, the kernel uses the memory until the notification, which also
    /// follows an error that has `MORE`.
    fn sent(&mut self, id: OpId, result: Result<u32, Errno>, flags: u32, zero_copy: bool, out: &mut Out<'_>) {
        let slot = out.slots.held(id);
        let (more, notification) = (flags & MORE != 0, flags & NOTIFICATION != 0);
        // A unix socket does not support zero copy, and the memory to be locked may exceed the limit.
        let refused = zero_copy && matches!(result, Err(Errno::OPNOTSUPP | Errno::NOMEM | Errno::NOBUFS));
        match (slot.ring.phase, notification) {
            (Phase::Notice, true) => {
                out.slots.end(id, out.done, |slot, done| {
                    done.payload = slot.ring.retained.take().map_or(Payload::None, Payload::Segments);
                    self.flights.end(&mut slot.ring);
                });
            }
            (Phase::Copying, true) => self.again(id, out),
            (Phase::Kernel, false) if refused => {
                slot.ring.copying = true;
                self.counters.zero_copy_refused += 1;
                if more {
                    slot.ring.phase = Phase::Copying;
                } else {
                    self.again(id, out);
                }
            }
            (Phase::Kernel, false) if more => {
                slot.ring.phase = Phase::Notice;
                // The kernel needs only the bytes: the socket can be closed, even if the client never acknowledges them.
                if let Op::Net(NetOp::Send { data, .. }) = std::mem::take(&mut slot.op) {
                    slot.ring.retained = Some(data);
                }
                out.slots.finish(id, result, true, Payload::None, out.done);
            }
            (Phase::Kernel, false) => self.finish(id, result, out.slots, out.done),
            _ => out.slots.unmatched += 1,
        }
    }

    /// Handles the completion of a read or write of a file. If the file system is busy (`EAGAIN`), the caller repeats
    /// the operation, because it can pause before the retry.
    fn file_done(&mut self, id: OpId, result: Result<u32, Errno>, out: &mut Out<'_>) {
        if result == Err(Errno::OPNOTSUPP)
            && let Op::Disk { op, .. } = &out.slots.held(id).op
            && let Some(file) = op.moved_file().filter(|file| file.is_uncached())
        {
            file.refuse_uncached();
            self.stage(id, out.slots, out.done);
        } else {
            self.finish(id, result, out.slots, out.done);
        }
    }

    /// Handles the completion of a link. Without a privilege, linking by descriptor fails with the same error as a
    /// missing directory, so the link is retried by the path in /proc.
    fn link_done(&mut self, id: OpId, result: Result<u32, Errno>, out: &mut Out<'_>) {
        let state = &mut out.slots.held(id).ring;
        if result == Err(Errno::NOENT) && !state.by_proc {
            state.by_proc = true;
            self.stage(id, out.slots, out.done);
        } else {
            self.finish(id, result, out.slots, out.done);
        }
    }

    fn once_done(&mut self, id: OpId, result: Result<u32, Errno>, cqe: Cqe, out: &mut Out<'_>) {
        out.slots.end(id, out.done, |Slot { op, ring, .. }, done| {
            match (op, result) {
                (Op::Net(NetOp::Accept { .. }), Ok(_)) => {
                    done.payload = cqe.into_fd().map_or(Payload::None, Payload::Accepted);
                }
                (Op::Disk { op: DiskOp::Open { .. }, .. }, Ok(_)) => {
                    done.payload = cqe.into_fd().map_or(Payload::None, Payload::Opened);
                }
                (Op::Disk { op: DiskOp::Stat { .. }, .. }, Ok(_)) => {
                    done.payload = Payload::Stat(Box::new(self.flights.scratch(ring).stat()));
                }
                (op, result) => {
                    done.result = result;
                    op.return_resources(result, &mut done.payload);
                }
            }
            self.flights.end(ring);
        });
    }
}
