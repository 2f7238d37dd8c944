//! A client that sends datagrams: those that have arrived and were not processed yet, and the responses.
//!
//! The endpoint of a UDP socket adds datagrams; the session takes them and responds. Both run on one thread. The queue of a session is
//! limited, and so is the memory of all sessions of a thread: as in the kernel, datagrams that arrive while it is full are lost.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::net::IpAddr;
use std::rc::Rc;

use io::Errno;
use rt::local::Event;

use crate::datagram_memory::DatagramMemory;

/// Maximum number of bytes that wait for the session of a client.
const QUEUED_BYTES_MAX: usize = 256 << 10;

/// Number of bytes that an entry of the queue needs besides its datagrams, which may be empty: its fields, and what the allocator adds.
const ENTRY_BYTES: usize = 64;

/// Datagrams of one sender, joined by the kernel (UDP_GRO).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Joined {
    /// The bytes of all datagrams.
    pub bytes: Vec<u8>,
    /// Size in bytes of each datagram except the last, which may be shorter.
    pub segment: usize,
}

impl Joined {
    /// Returns the number of datagrams. An empty datagram counts.
    pub fn count(&self) -> u64 {
        self.bytes.len().div_ceil(self.segment.max(1)).max(1) as u64
    }

    /// Returns the size of segments for a send, if there are several datagrams.
    pub fn split(&self) -> Option<u16> {
        u16::try_from(self.segment).ok().filter(|_| self.count() > 1)
    }

    /// Removes and returns the first datagrams; `None` if all datagrams are among them.
    fn split_off_after(&mut self, count: u64) -> Option<Joined> {
        if self.count() <= count {
            return None;
        }
        let at = self.segment.saturating_mul(usize::try_from(count).unwrap_or(usize::MAX));
        debug_assert!(at < self.bytes.len(), "fewer datagrams than there are");
        Some(Joined { bytes: self.bytes.split_off(at), segment: self.segment })
    }
}

/// How a session reaches the socket that its client has sent to.
pub trait DatagramReturn {
    /// Sends datagrams to the client.
    fn send(&self, bytes: &[u8], segment: Option<u16>) -> Result<(), Errno>;

    /// Makes the next datagram of the client begin another session. `rest` are datagrams that belong to that session.
    fn leave(&self, rest: Vec<Joined>);
}

/// One client of a session.
pub struct DatagramClient {
    queue: RefCell<VecDeque<Joined>>,
    /// A datagram that was passed on, and may be needed again.
    retained: RefCell<Option<Joined>>,
    /// Number of bytes of `queue` and `retained`, with [`ENTRY_BYTES`] for each entry.
    held: Cell<usize>,
    /// The memory of all sessions of the thread, and the network that the share of this session depends on.
    memory: Rc<DatagramMemory>,
    network: IpAddr,
    arrived: Event,
    /// Number of datagrams that have arrived.
    received: Cell<u64>,
    /// Set when the session has to end.
    ended: Event,
    back: Box<dyn DatagramReturn>,
}

impl DatagramClient {
    /// Creates a client without datagrams.
    pub fn new(
        back: Box<dyn DatagramReturn>,
        memory: &Rc<DatagramMemory>,
        network: IpAddr,
    ) -> DatagramClient {
        DatagramClient {
            queue: RefCell::default(),
            retained: RefCell::default(),
            held: Cell::new(0),
            memory: Rc::clone(memory),
            network,
            arrived: Event::new(),
            received: Cell::new(0),
            ended: Event::new(),
            back,
        }
    }

    /// Adds datagrams that have arrived, if there is memory for all or for the first.
    pub fn push(&self, mut joined: Joined) {
        self.received.set(self.received.get() + joined.count());
        let fits = self.hold(&joined) || (joined.split_off_after(1).is_some() && self.hold(&joined));
        if fits {
            joined.bytes.shrink_to_fit();
            self.queue.borrow_mut().push_back(joined);
        }
        self.arrived.set();
    }

    /// Takes the next datagrams, at most `count`.
    pub fn take(&self, count: u64) -> Option<Joined> {
        let mut queue = self.queue.borrow_mut();
        let mut first = queue.pop_front()?;
        self.release(&first);
        if let Some(rest) = first.split_off_after(count)
            && self.hold(&rest)
        {
            queue.push_front(rest);
        }
        Some(first)
    }

    /// Retains a datagram that was taken, if there is memory for it.
    pub fn retain(&self, mut joined: Joined) {
        // After a division the vector has the capacity for all datagrams.
        joined.bytes.shrink_to_fit();
        self.forget_retained();
        if self.hold(&joined) {
            self.retained.replace(Some(joined));
        }
    }

    /// Whether a datagram is retained.
    pub fn has_retained(&self) -> bool {
        self.retained.borrow().is_some()
    }

    /// Returns the retained datagram, which is no longer retained then.
    pub fn take_retained(&self) -> Option<Joined> {
        let joined = self.retained.take()?;
        self.release(&joined);
        Some(joined)
    }

    /// Drops the retained datagram.
    pub fn forget_retained(&self) {
        drop(self.take_retained());
    }

    /// Counts the memory of an entry. Returns `false` if there is none.
    fn hold(&self, joined: &Joined) -> bool {
        let (held, more) = (self.held.get(), joined.bytes.len() + ENTRY_BYTES);
        let fits = held + more <= QUEUED_BYTES_MAX && self.memory.add(self.network, held, more);
        if fits {
            self.held.set(held + more);
        }
        fits
    }

    /// Counts that the memory of an entry is free.
    fn release(&self, joined: &Joined) {
        let (held, less) = (self.held.get(), joined.bytes.len() + ENTRY_BYTES);
        self.memory.remove(self.network, held, less);
        self.held.set(held - less);
    }

    /// Calls a function with the first datagram, without removing it.
    pub fn look<T>(&self, look: impl FnOnce(&[u8]) -> T) -> Option<T> {
        let queue = self.queue.borrow();
        let first = queue.front()?;
        Some(look(&first.bytes[..first.segment.min(first.bytes.len())]))
    }

    /// Returns the number of datagrams that have arrived.
    pub fn received(&self) -> u64 {
        self.received.get()
    }

    /// Waits until a datagram arrives.
    pub async fn arrived(&self) {
        self.arrived.wait().await;
    }

    /// Forgets that datagrams have arrived; called before the queue is processed.
    pub fn clear_arrived(&self) {
        self.arrived.clear();
    }

    /// Sends datagrams to the client.
    pub fn send(&self, bytes: &[u8], segment: Option<u16>) -> Result<(), Errno> {
        self.back.send(bytes, segment)
    }

    /// Makes the next datagram of the client begin another session, also the datagrams that wait.
    pub fn leave(&self) {
        let rest = Vec::from(self.queue.take());
        rest.iter().for_each(|joined| self.release(joined));
        self.back.leave(rest);
    }

    /// Requests the end of the session.
    pub fn end(&self) {
        self.ended.set();
    }

    /// Waits until the session has to end.
    pub async fn ended(&self) {
        self.ended.wait().await;
    }

    /// Whether the session has to end.
    pub fn is_ended(&self) -> bool {
        self.ended.is_set()
    }
}

impl Drop for DatagramClient {
    fn drop(&mut self) {
        let held = self.held.get();
        self.memory.remove(self.network, held, held);
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    struct Nowhere;

    impl DatagramReturn for Nowhere {
        fn send(&self, _: &[u8], _: Option<u16>) -> Result<(), Errno> {
            Ok(())
        }

        fn leave(&self, _: Vec<Joined>) {}
    }

    fn client(memory: &Rc<DatagramMemory>) -> DatagramClient {
        DatagramClient::new(Box::new(Nowhere), memory, Ipv4Addr::LOCALHOST.into())
    }

    #[test]
    fn joined_datagrams_are_counted_and_divided() {
        let client = client(&Rc::default());
        client.push(Joined { bytes: b"aabbc".to_vec(), segment: 2 });
        client.push(Joined { bytes: Vec::new(), segment: 0 });
        assert_eq!(client.received(), 4);
        assert_eq!(client.look(<[u8]>::to_vec), Some(b"aa".to_vec()));
        let first = client.take(2).expect("two");
        assert_eq!((first.bytes.as_slice(), first.count(), first.split()), (&b"aabb"[..], 2, Some(2)));
        let second = client.take(9).expect("one");
        assert_eq!((second.bytes.as_slice(), second.count(), second.split()), (&b"c"[..], 1, None));
        assert_eq!(client.take(1).map(|empty| empty.count()), Some(1));
        assert_eq!(client.take(1), None);
    }

    #[test]
    fn datagrams_above_the_limit_are_lost() {
        let client = client(&Rc::default());
        for _ in 0..6 {
            client.push(Joined { bytes: vec![0; 60_000], segment: 60_000 });
        }
        let mut count = 0;
        while client.take(1).is_some() {
            count += 1;
        }
        assert_eq!((count, client.received()), (4, 6));
    }

    #[test]
    fn the_first_of_joined_datagrams_has_memory_if_all_have_none() {
        let memory = Rc::default();
        let clients = [(); 300].map(|()| client(&memory));
        for client in &clients {
            client.push(Joined { bytes: vec![0; 12_000], segment: 1200 });
        }
        let last = clients.last().expect("many").take(9).expect("the first");
        assert_eq!((last.bytes.len(), last.bytes.capacity(), last.count()), (1200, 1200, 1));
    }

    #[test]
    fn empty_datagrams_are_limited_too() {
        let client = client(&Rc::default());
        for _ in 0..10_000 {
            client.push(Joined { bytes: Vec::new(), segment: 0 });
        }
        assert_eq!(client.queue.borrow().len(), QUEUED_BYTES_MAX / ENTRY_BYTES);
    }

    #[test]
    fn memory_is_free_again_when_datagrams_are_taken_or_the_session_ends() {
        let memory = Rc::default();
        let first = client(&memory);
        first.push(Joined { bytes: vec![0; 50_000], segment: 10_000 });
        let all = memory.used();
        let taken = first.take(1).expect("one");
        assert!(memory.used() < all);
        first.retain(taken);
        assert!(first.has_retained() && memory.used() >= all);
        first.forget_retained();
        while first.take(1).is_some() {}
        assert_eq!((memory.used(), first.held.get()), (0, 0));
        first.push(Joined { bytes: vec![0; 50_000], segment: 50_000 });
        first.leave();
        assert_eq!(memory.used(), 0);
        first.push(Joined { bytes: vec![0; 50_000], segment: 50_000 });
        let last = first.take(1).expect("one");
        first.retain(last);
        drop(first);
        assert_eq!(memory.used(), 0);
    }
}
