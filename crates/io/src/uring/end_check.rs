//! Ends of streams that the kernel does not report.
//!
//! A multishot receive takes the available bytes and waits for the next wake-up. An end that was received before the
//! receive ran causes no further wake-up. The kernel checks for it only if the socket reports more bytes: TCP does so
//! for a FIN, but not for a reset, and a unix socket never does (Linux 6.18; axboe/liburing issue 1549). This happens
//! if bytes and end are available when the receive is submitted; on older kernels also if they arrive between two
//! turns. Such a receive would wait forever.
//!
//! So a stream that has received bytes is recorded in [`UncheckedEnds`]. A send that TCP accepts makes its check
//! unnecessary, because after a reset the send would have failed. At the start of the next turn, one poll(2) checks all
//! remaining streams. A receive whose socket has ended is cancelled and submitted again, which finds the end. If TCP
//! connections get their responses immediately, no check is made.

use std::os::fd::AsRawFd;

use super::Uring;
use super::entry;
use super::state::Phase;
use crate::fd::Fd;
use crate::op::{NetOp, Op, OpId, RecvInto};
use crate::slot::Slots;
use crate::sys;

/// Events of poll(2) on a socket whose peer has closed the connection.
const ENDED: libc::c_short = libc::POLLERR | libc::POLLHUP | libc::POLLRDHUP;

/// Streams whose end may not have been reported.
#[derive(Default)]
pub(super) struct UncheckedEnds {
    streams: Vec<OpId>,
    /// Arguments of poll(2), one entry for each of `streams`; a field so that its memory is reused.
    polled: Vec<libc::pollfd>,
}

impl Uring {
    /// Records that a stream has returned bytes and its receive is still in flight.
    pub(super) fn add_unchecked_end(&mut self, id: OpId, slots: &mut Slots) {
        if socket_of(id, slots).is_some_and(Fd::set_end_unknown) {
            self.unchecked_ends.streams.push(id);
        }
    }

    /// Checks the recorded streams, and restarts the receives whose sockets have ended.
    pub(super) fn check_ends(&mut self, slots: &mut Slots) {
        if self.unchecked_ends.streams.is_empty() {
            return;
        }
        let mut unchecked_ends = std::mem::take(&mut self.unchecked_ends);
        unchecked_ends.streams.retain(|&id| {
            // A receive that waits for a buffer is restarted anyway; a cancelled one needs no check.
            let waits =
                slots.get(id).is_some_and(|slot| slot.ring.phase == Phase::Kernel && !slot.ring.cancelled);
            let Some(socket) = socket_of(id, slots).filter(|socket| socket.take_end_unknown() && waits)
            else {
                return false;
            };
            let events = libc::POLLRDHUP;
            unchecked_ends.polled.push(libc::pollfd { fd: socket.as_raw_fd(), events, revents: 0 });
            true
        });
        let mut unknown = false;
        if !unchecked_ends.polled.is_empty() {
            self.counters.end_checks += 1;
            // If poll(2) fails, all receives are restarted, which is always correct.
            unknown = sys::poll_now(&mut unchecked_ends.polled).is_err();
        }
        assert_eq!(
            unchecked_ends.streams.len(),
            unchecked_ends.polled.len(),
            "poll(2) checks each recorded stream"
        );
        for (id, polled) in unchecked_ends.streams.drain(..).zip(unchecked_ends.polled.drain(..)) {
            if unknown || polled.revents & ENDED != 0 {
                self.push(entry::cancel(id));
            }
        }
        self.unchecked_ends = unchecked_ends;
    }
}

/// Returns the socket of a stream that is in flight.
fn socket_of(id: OpId, slots: &mut Slots) -> Option<&Fd> {
    match &slots.get(id)?.op {
        Op::Net(NetOp::Recv { socket, into: RecvInto::Stream }) => Some(socket),
        _ => None,
    }
}
