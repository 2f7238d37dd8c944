//! The memory of datagrams that wait for the sessions of a thread.
//!
//! The first bytes of each session are not counted, so an ordinary datagram of a new client always has space. The other bytes come from a
//! budget of the thread. A client network gets at most an eighth of what the others leave free, however many ports it uses.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::IpAddr;

/// Maximum number of bytes that wait for all sessions of a thread, without [`UNCOUNTED_BYTES`] of each session: as many as 64 sessions may
/// have at once. Sessions whose upstream is known pass their datagrams on in the next event-loop turn.
const WAITING_BYTES_MAX: usize = 16 << 20;

/// Number of bytes of a session that are not counted: a datagram of an Ethernet packet (1500 bytes) with its entry in the queue.
const UNCOUNTED_BYTES: usize = 2 << 10;

/// Divisor for the share of the free bytes that the sessions of one client network get.
const SHARE_DIVISOR: usize = 8;

/// The budget of a thread.
#[derive(Default)]
pub struct DatagramMemory {
    /// Counted bytes of all sessions.
    used: Cell<usize>,
    /// Counted bytes of each client network that has any.
    by_network: RefCell<HashMap<IpAddr, usize>>,
}

impl DatagramMemory {
    /// Adds `more` bytes to the `held` bytes of a session. Returns `false` if they are refused.
    pub(crate) fn add(&self, network: IpAddr, held: usize, more: usize) -> bool {
        let added = counted(held + more) - counted(held);
        if added == 0 {
            return true;
        }
        let mut by_network = self.by_network.borrow_mut();
        let entry = by_network.entry(network);
        let mine = match &entry {
            Entry::Occupied(entry) => *entry.get(),
            Entry::Vacant(_) => 0,
        };
        let free = WAITING_BYTES_MAX.saturating_sub(self.used.get());
        if mine + added > free / SHARE_DIVISOR {
            return false;
        }
        *entry.or_default() += added;
        self.used.set(self.used.get() + added);
        true
    }

    /// Removes `less` bytes from the `held` bytes of a session.
    pub(crate) fn remove(&self, network: IpAddr, held: usize, less: usize) {
        let removed = counted(held) - counted(held - less);
        if removed == 0 {
            return;
        }
        self.used.set(self.used.get() - removed);
        if let Entry::Occupied(mut entry) = self.by_network.borrow_mut().entry(network) {
            *entry.get_mut() -= removed;
            if *entry.get() == 0 {
                entry.remove();
            }
        }
    }

    /// Returns the number of counted bytes.
    #[cfg(test)]
    pub(crate) fn used(&self) -> usize {
        debug_assert_eq!(self.by_network.borrow().values().sum::<usize>(), self.used.get());
        self.used.get()
    }
}

/// Returns the counted part of the bytes of a session.
fn counted(held: usize) -> usize {
    held.saturating_sub(UNCOUNTED_BYTES)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn network(number: u32) -> IpAddr {
        Ipv4Addr::from_bits(number).into()
    }

    /// Adds bytes to sessions of a network until they are refused. Returns the bytes of each session.
    fn fill(memory: &DatagramMemory, of: IpAddr, sessions: usize) -> Vec<usize> {
        let mut held = vec![0; sessions];
        for held in &mut held {
            while *held < 256 << 10 && memory.add(of, *held, 1000) {
                *held += 1000;
            }
        }
        held
    }

    #[test]
    fn one_network_gets_an_eighth_of_what_the_others_leave() {
        let memory = DatagramMemory::default();
        let greedy = fill(&memory, network(1), 1000);
        let used = memory.used();
        assert!((WAITING_BYTES_MAX / 10..=WAITING_BYTES_MAX / 9).contains(&used), "{used}");
        assert!(greedy.iter().all(|&held| held >= 2000), "each session has its first bytes");
        let other = fill(&memory, network(2), 1);
        assert!(other[0] >= 256 << 10, "a session of another network reaches its own limit");
        for held in greedy {
            memory.remove(network(1), held, held);
        }
        memory.remove(network(2), other[0], other[0]);
        assert_eq!((memory.used(), memory.by_network.borrow().len()), (0, 0));
    }

    #[test]
    fn a_flood_from_many_networks_leaves_first_datagrams_to_others() {
        let memory = DatagramMemory::default();
        for number in 0..400 {
            fill(&memory, network(number), 1);
        }
        assert!(memory.used() <= WAITING_BYTES_MAX);
        assert!(memory.add(network(1001), 0, 1500), "a first datagram has space");
    }

    #[test]
    fn bytes_are_counted_above_the_first_ones_only() {
        let memory = DatagramMemory::default();
        assert!(memory.add(network(1), 0, 2000) && memory.add(network(1), 2000, 2000));
        assert_eq!(memory.used(), 4000 - UNCOUNTED_BYTES);
        memory.remove(network(1), 4000, 3000);
        assert_eq!(memory.used(), 0);
        memory.remove(network(1), 1000, 1000);
        assert_eq!(memory.used(), 0);
    }
}
