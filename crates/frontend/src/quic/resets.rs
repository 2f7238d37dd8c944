//! Decides which packets without a connection are answered by a stateless reset (RFC 9000 section 10.3).
//!
//! A client that moves to another address also retires the ID that it has used. Packets that it has sent before can arrive after that,
//! and a reset would end its connection. So an ID gets no reset for its first packet, but for one that arrives later than any packet
//! in flight: a client whose connection is lost sends again and again.

use std::time::{Duration, Instant};

/// Time from the first packet with an unknown ID until a packet with it is answered. Packets in flight arrive earlier.
const IN_FLIGHT_MAX: Duration = Duration::from_millis(500);

/// Number of IDs that are remembered. A flood of packets with random IDs delays the resets of others, which are a help and no duty.
const IDS: usize = 256;

/// The bytes of an ID that are compared.
type Id = [u8; 8];

/// The first packets with unknown IDs.
#[derive(Default)]
pub(super) struct UnknownIds {
    /// By the remainder of the ID. Empty until the first unknown ID.
    first_seen: Vec<Option<(Id, Instant)>>,
}

impl UnknownIds {
    /// Whether a packet that belongs to no connection may be answered. Packets with a long header always are: the response to them is no reset.
    pub(super) fn may_answer(&mut self, packet: &[u8], now: Instant) -> bool {
        if packet.first().is_some_and(|first| first & 0x80 != 0) {
            return true;
        }
        // A shorter packet gets no reset.
        let Some(id) = packet.get(1..).and_then(|rest| rest.first_chunk::<8>()) else { return false };
        self.first_seen.resize(IDS, None);
        let slot = &mut self.first_seen[u64::from_be_bytes(*id) as usize % IDS];
        match slot {
            Some((known, since)) if known == id => now.saturating_duration_since(*since) >= IN_FLIGHT_MAX,
            _ => {
                *slot = Some((*id, now));
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ids_that_are_used_later_are_answered() {
        let (mut ids, start) = (UnknownIds::default(), Instant::now());
        let packet = |number: u8| [&[0x40][..], &[number; 8], &[0; 30]].concat();
        let at = |milliseconds| start + Duration::from_millis(milliseconds);
        assert!(!ids.may_answer(&packet(1), at(0)));
        assert!(!ids.may_answer(&packet(1), at(499)));
        assert!(!ids.may_answer(&packet(2), at(499)));
        assert!(ids.may_answer(&packet(1), at(500)));
        assert!(ids.may_answer(&packet(1), at(60_000)));
        assert!(!ids.may_answer(&[0x40, 1, 1], at(60_000)), "it is too short");
        assert!(ids.may_answer(&[0xc0], at(0)), "the response is no reset");
    }
}
