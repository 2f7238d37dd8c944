//! Ends of streams that the kernel forgets.
//!
//! A multishot receive takes the available bytes and waits for the next wake-up. An end that came before the receive
//! ran causes no further wake-up, and the kernel checks for it only if the socket reports more bytes: TCP does for a
//! FIN, but not for a reset, and a unix socket does for nothing (Linux 6.18; axboe/liburing issue 1549). It happens
//! when bytes and end are there as the receive is armed; on older kernels also when they come between two turns. Such a
//! receive would wait for ever.
//!
//! So a stream with received bytes is in doubt. A send that TCP accepts clears the doubt, because it would have failed.
//! At the start of the next turn one poll(2) checks all remaining streams. A receive whose socket has ended is
//! cancelled and armed again, which finds the end. When responses follow requests at once, the check never happens.

use std::os::fd::AsRawFd;

use super::in_flight::{InFlight, Phase};
use super::{Uring, entry};
use crate::op::{Fd, Op, OpId, RecvInto};
use crate::slot::Slots;
use crate::sys;

/// Events of poll(2) on a socket whose peer has ended.
const ENDED: libc::c_short = libc::POLLERR | libc::POLLHUP | libc::POLLRDHUP;

/// Streams in doubt.
#[derive(Default)]
pub(super) struct Doubts {
    streams: Vec<OpId>,
    /// The question to the kernel, entry by entry about `streams`; kept for its memory.
    polled: Vec<libc::pollfd>,
}

impl Uring {
    /// Notes that a stream has brought bytes and stays armed.
    pub(super) fn doubt(&mut self, id: OpId, slots: &mut Slots) {
        if socket_of(id, slots).is_some_and(Fd::set_in_doubt) {
            self.doubts.streams.push(id);
        }
    }

    /// Checks the streams that are still in doubt, and restarts those whose sockets have ended.
    pub(super) fn settle_doubts(&mut self, slots: &mut Slots) {
        if self.doubts.streams.is_empty() {
            return;
        }
        let mut doubts = std::mem::take(&mut self.doubts);
        doubts.streams.retain(|&id| {
            let Some(socket) = socket_of(id, slots).filter(|socket| socket.take_doubt()) else {
                return false;
            };
            // One that waits for a buffer is restarted unchanged; one that was cancelled is not missed.
            let waits = |flight: &mut InFlight| flight.phase == Phase::Kernel && !flight.cancelled;
            if !self.flights.get(id).is_some_and(waits) {
                return false;
            }
            let events = libc::POLLRDHUP;
            doubts.polled.push(libc::pollfd { fd: socket.as_raw_fd(), events, revents: 0 });
            true
        });
        let mut unknown = false;
        if !doubts.polled.is_empty() {
            self.counters.looks += 1;
            // If the kernel cannot tell, a restart is right for all of them.
            unknown = sys::poll_now(&mut doubts.polled).is_err();
        }
        assert_eq!(
            doubts.streams.len(),
            doubts.polled.len(),
            "the kernel is asked about each stream in doubt"
        );
        for (id, polled) in doubts.streams.drain(..).zip(doubts.polled.drain(..)) {
            if unknown || polled.revents & ENDED != 0 {
                self.push(entry::cancel(id));
            }
        }
        self.doubts = doubts;
    }
}

/// The socket of a stream that is in flight.
fn socket_of(id: OpId, slots: &mut Slots) -> Option<&Fd> {
    match slots.get(id)?.op.as_ref()? {
        Op::Recv { socket, into: RecvInto::Stream } => Some(socket),
        _ => None,
    }
}
