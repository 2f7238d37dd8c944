//! A client that sends datagrams: those that have arrived and were not processed yet, and the responses.
//!
//! The endpoint of a UDP socket adds datagrams; the session takes them and responds. Both run on one thread. The queue is limited: as in
//! the kernel, datagrams that arrive while it is full are lost.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use io::Errno;
use rt::local::Event;

/// Maximum number of bytes that wait for the session of a client.
const QUEUED_BYTES_MAX: usize = 256 << 10;

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
    queued_bytes: Cell<usize>,
    arrived: Event,
    /// Number of datagrams that have arrived.
    received: Cell<u64>,
    /// Set when the session has to end.
    ended: Event,
    back: Box<dyn DatagramReturn>,
}

impl DatagramClient {
    /// Creates a client without datagrams.
    pub fn new(back: Box<dyn DatagramReturn>) -> DatagramClient {
        DatagramClient {
            queue: RefCell::default(),
            queued_bytes: Cell::new(0),
            arrived: Event::new(),
            received: Cell::new(0),
            ended: Event::new(),
            back,
        }
    }

    /// Adds datagrams that have arrived, if the queue has space.
    pub fn push(&self, joined: Joined) {
        self.received.set(self.received.get() + joined.count());
        let bytes = self.queued_bytes.get() + joined.bytes.len();
        if bytes <= QUEUED_BYTES_MAX {
            self.queued_bytes.set(bytes);
            self.queue.borrow_mut().push_back(joined);
        }
        self.arrived.set();
    }

    /// Takes the next datagrams, at most `count`.
    pub fn take(&self, count: u64) -> Option<Joined> {
        let mut queue = self.queue.borrow_mut();
        let mut first = queue.pop_front()?;
        if let Some(rest) = first.split_off_after(count) {
            queue.push_front(rest);
        }
        self.queued_bytes.set(self.queued_bytes.get() - first.bytes.len());
        Some(first)
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
        self.queued_bytes.set(0);
        let rest = self.queue.take().into();
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

#[cfg(test)]
mod tests {
    use super::*;

    struct Nowhere;

    impl DatagramReturn for Nowhere {
        fn send(&self, _: &[u8], _: Option<u16>) -> Result<(), Errno> {
            Ok(())
        }

        fn leave(&self, _: Vec<Joined>) {}
    }

    #[test]
    fn joined_datagrams_are_counted_and_divided() {
        let client = DatagramClient::new(Box::new(Nowhere));
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
        let client = DatagramClient::new(Box::new(Nowhere));
        for _ in 0..6 {
            client.push(Joined { bytes: vec![0; 60_000], segment: 60_000 });
        }
        let mut count = 0;
        while client.take(1).is_some() {
            count += 1;
        }
        assert_eq!((count, client.received()), (4, 6));
    }
}
