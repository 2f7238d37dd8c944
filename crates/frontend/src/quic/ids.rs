//! QuicConnection IDs that lead the packets of a connection back to its thread (RFC 9000 section 5.1): the program of
//! [`io::sys::steer_datagrams`] reads them.
//!
//! ```text
//!   bytes 0, 1: a random number, whose remainder modulo the number of threads is the thread
//!   byte 2:     random, but the lowest bit is the bank
//!   bytes 3, 4: random
//!   bytes 5-7:  a check of bytes 0 to 3, which distinguishes the ID from those that clients choose
//! ```

use std::time::Duration;

use io::sys::{STEERED_ID_BYTES, id_check};
use quinn_proto::{ConnectionId, ConnectionIdGenerator, InvalidCid};

/// Length in bytes of the IDs.
const ID_BYTES: usize = STEERED_ID_BYTES as usize;

/// The sockets of an address of QUIC that belong to a thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Steering {
    /// Index of the thread.
    pub thread: u16,
    /// Number of threads.
    pub threads: u16,
    /// The bank of the worker process: 0 or 1.
    pub bank: u8,
}

impl Steering {
    /// Whether packets with this ID belong to the thread.
    fn owns(self, id: &[u8]) -> bool {
        let [high, low, bank, ..] = *id else { return false };
        u16::from_be_bytes([high, low]) % self.threads.max(1) == self.thread && bank & 1 == self.bank
    }

    /// Returns the thread to which [`io::sys::steer_datagrams`] leads a packet; `None` if it belongs to the other bank, or is too short.
    pub(super) fn thread_of(self, packet: &[u8]) -> Option<u16> {
        let is_long = packet.first()? & 0x80 != 0;
        let id = packet.get(if is_long { 6 } else { 1 }..)?;
        let [high, low, bank, ..] = *id else { return None };
        // The client has chosen the ID of its first Initial and 0-RTT packets.
        let is_early = is_long && packet[0] & 0x20 == 0;
        let is_chosen = is_early && !(packet[5] == STEERED_ID_BYTES && has_check(id));
        let is_own = is_chosen || bank & 1 == self.bank;
        is_own.then(|| u16::from_be_bytes([high, low]) % self.threads.max(1))
    }
}

/// Whether an ID has the check of this server.
fn has_check(id: &[u8]) -> bool {
    let Some((first, rest)) = id.split_first_chunk::<4>() else { return false };
    rest.get(1..4).is_some_and(|check| *check == id_check(u32::from_be_bytes(*first)).to_be_bytes()[1..])
}

/// Generator of the IDs of a thread.
pub(super) struct Ids(pub(super) Steering);

impl ConnectionIdGenerator for Ids {
    fn generate_cid(&mut self) -> ConnectionId {
        let Steering { thread, threads, bank } = self.0;
        let threads = threads.max(1);
        let mut id = [0; ID_BYTES];
        tls::quic::fill_random(&mut id);
        let number = u16::from_be_bytes([id[0], id[1]]);
        // The largest multiple is left out, which the thread could exceed.
        let multiple = number / threads % (u16::MAX / threads).max(1);
        let number = multiple * threads + thread % threads;
        id[..2].copy_from_slice(&number.to_be_bytes());
        id[2] = id[2] & !1 | bank & 1;
        let check = id_check(u32::from_be_bytes([id[0], id[1], id[2], id[3]])).to_be_bytes();
        id[5..].copy_from_slice(&check[1..]);
        debug_assert!(self.0.owns(&id), "the program of the kernel finds the thread");
        ConnectionId::new(&id)
    }

    /// A packet of another thread, which the kernel has joined with packets of this thread, must not be answered by a reset.
    fn validate(&self, id: &ConnectionId) -> Result<(), InvalidCid> {
        if self.0.owns(id) { Ok(()) } else { Err(InvalidCid) }
    }

    fn cid_len(&self) -> usize {
        ID_BYTES
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_lead_to_their_thread_and_bank() {
        for threads in [1, 2, 3, 7, 64, 1000] {
            for (thread, bank) in [(0, 0), (threads - 1, 1)] {
                let place = Steering { thread, threads, bank };
                let mut ids = Ids(place);
                for _ in 0..200 {
                    let id = ids.generate_cid();
                    assert!(ids.validate(&id).is_ok(), "{place:?} {id}");
                    assert!(Ids(Steering { bank: 1 - bank, ..place }).validate(&id).is_err());
                    let short = [&[0x40], &id[..]].concat();
                    let long = |first| [&[first, 0, 0, 0, 1, 8], &id[..]].concat();
                    for packet in [short, long(0xe0), long(0xc0)] {
                        assert_eq!(place.thread_of(&packet), Some(thread), "{place:?} {packet:?}");
                    }
                    let other = Steering { bank: 1 - bank, ..place };
                    assert_eq!(other.thread_of(&long(0xe0)), None);
                    assert_eq!(other.thread_of(&long(0xd0)), None, "an ID of this server in a 0-RTT packet");
                    let mut chosen = long(0xc0);
                    chosen[13] ^= 1;
                    assert_eq!(other.thread_of(&chosen), Some(thread), "an ID that the client has chosen");
                }
            }
        }
    }
}
