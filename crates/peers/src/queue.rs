//! `queue`: requests that wait until a server of their group may be used, on all threads.
//!
//! ```text
//!   no server --> WaitQueue: clients take turns --the first--> a request ends, or a check of the time: a server, or wait again
//!                     `--> full, or timeout: no server
//! ```
//! Only the first request of the queue looks for a server, so later requests do not overtake it. A client with many waiting requests delays
//! another by one of them: each request gets a turn, one after the last turn of its client. If the queue is full, the request with the
//! last turn has to leave, which may be the new one.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rt::watch::{Publisher, Watcher};

use super::{Group, Shared};
use site::address::ClientNetwork;

/// Time after which the first request looks for a server again, without a sign of another request: `fail_timeout` may have passed, or a
/// check may have changed a server.
const RECHECK_EVERY: Duration = Duration::from_millis(250);

/// `queue`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueLimits {
    /// Maximum number of waiting requests.
    pub most: usize,
    /// Maximum time that a request waits.
    pub timeout: Duration,
}

/// Numbers of a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueState {
    /// Number of waiting requests.
    pub size: usize,
    /// Maximum number of waiting requests.
    pub most: usize,
    /// Number of requests for which the queue was full.
    pub overflows: u64,
}

/// Turn of a request, and its number among those with the same turn.
type Key = (u64, u64);

/// The waiting requests of a group.
#[derive(Default)]
pub(super) struct WaitQueue {
    /// By turn.
    waiting: BTreeMap<Key, Waiter>,
    /// Clients with waiting requests.
    clients: HashMap<ClientNetwork, ClientWaits>,
    /// Turn of the request that last left the queue as its first.
    turn: u64,
    /// Number of requests so far.
    count: u64,
    overflows: u64,
}

struct Waiter {
    client: ClientNetwork,
    /// Advances when the request is the first and should look for a server. Dropped when the request has to leave.
    signal: Publisher,
}

/// The waiting requests of a client.
struct ClientWaits {
    count: usize,
    last_turn: u64,
}

impl fmt::Debug for WaitQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WaitQueue").field("size", &self.waiting.len()).finish_non_exhaustive()
    }
}

impl WaitQueue {
    /// Whether no request waits.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Returns the numbers of the queue.
    pub(super) fn state(&self, limits: QueueLimits) -> QueueState {
        QueueState { size: self.waiting.len(), most: limits.most, overflows: self.overflows }
    }

    /// Wakes the first request.
    pub(super) fn wake_first(&self) {
        if let Some((_, first)) = self.waiting.first_key_value() {
            first.signal.publish(first.signal.value() + 1);
        }
    }

    /// Adds a request, if there is space or another one has to leave.
    fn add(&mut self, client: ClientNetwork, most: usize) -> Option<(Key, Watcher)> {
        let turn = self.clients.get(&client).map_or(self.turn, |waits| waits.last_turn + 1);
        let key = (turn, self.count);
        if self.waiting.len() >= most {
            self.overflows += 1;
            let last = self.waiting.last_key_value().map(|(&last, _)| last).filter(|&last| key < last)?;
            self.remove(last);
        }
        self.count += 1;
        let waits = self.clients.entry(client).or_insert(ClientWaits { count: 0, last_turn: turn });
        waits.count += 1;
        waits.last_turn = turn;
        let (signal, watcher) = rt::watch::channel(0);
        self.waiting.insert(key, Waiter { client, signal });
        if self.is_first(key) {
            self.wake_first();
        }
        Some((key, watcher))
    }

    /// Removes a request.
    fn remove(&mut self, key: Key) {
        let Some(waiter) = self.waiting.remove(&key) else { return };
        if let Some(waits) = self.clients.get_mut(&waiter.client) {
            waits.count -= 1;
            if waits.count == 0 {
                self.clients.remove(&waiter.client);
            }
        }
    }

    pub(super) fn is_first(&self, key: Key) -> bool {
        self.waiting.first_key_value().is_some_and(|(&first, _)| first == key)
    }

    /// Removes the first request, which has a server now. The next one looks for another server.
    pub(super) fn take_first(&mut self) {
        if let Some((&key, _)) = self.waiting.first_key_value() {
            self.turn = key.0;
            self.remove(key);
            self.wake_first();
        }
    }
}

/// A request in the queue, until this is dropped.
pub struct Queued {
    shared: Arc<Shared>,
    pub(super) key: Key,
    watcher: Watcher,
    seen: u64,
    timeout: Duration,
}

/// The request has to leave the queue, because it is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overflow;

impl Queued {
    /// Adds a request to the queue of a group. `None` if the group has no queue.
    pub(super) fn new(group: &Group, client: ClientNetwork) -> Option<Result<Queued, Overflow>> {
        let QueueLimits { most, timeout } = group.queue?;
        let shared = Arc::clone(group.state());
        let added = shared.lock().queue.add(client, most);
        Some(match added {
            Some((key, watcher)) => Ok(Queued { shared, key, watcher, seen: 0, timeout }),
            None => Err(Overflow),
        })
    }

    /// Returns the maximum time that the request waits.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Waits until the request should look for a server.
    ///
    /// # Errors
    /// The request has to leave the queue.
    pub async fn turn(&mut self) -> Result<(), Overflow> {
        let signalled = self.watcher.above(self.seen);
        let result = if self.seen == 0 {
            signalled.await
        } else {
            // The request was the first once.
            match rt::select(signalled, rt::sleep_until(rt::now() + RECHECK_EVERY)).await {
                rt::Either::Left(result) => result,
                rt::Either::Right(()) => return Ok(()),
            }
        };
        self.seen = result.map_err(|rt::watch::Closed| Overflow)?;
        Ok(())
    }
}

impl Drop for Queued {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        let was_first = state.queue.is_first(self.key);
        state.queue.remove(self.key);
        if was_first {
            state.queue.wake_first();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;

    fn client(number: u32) -> ClientNetwork {
        Some(IpAddr::from(Ipv4Addr::from_bits(number)))
    }

    /// Removes all requests in their order, and returns their clients.
    fn order(queue: &mut WaitQueue) -> Vec<u32> {
        let mut order = Vec::new();
        while let Some((_, Waiter { client: Some(IpAddr::V4(client)), .. })) = queue.waiting.first_key_value()
        {
            order.push(client.to_bits());
            queue.take_first();
        }
        order
    }

    fn fill(queue: &mut WaitQueue, clients: &[u32], most: usize) -> Vec<bool> {
        clients.iter().map(|&number| queue.add(client(number), most).is_some()).collect()
    }

    #[test]
    fn clients_take_turns() {
        let mut queue = WaitQueue::default();
        fill(&mut queue, &[1, 1, 1, 2, 3, 2], 10);
        assert_eq!(order(&mut queue), [1, 2, 3, 1, 2, 1]);
        assert!(queue.clients.is_empty());
        // Turns that have passed are no advantage of a new client over another new client.
        fill(&mut queue, &[4, 4, 5], 10);
        assert_eq!(order(&mut queue), [4, 5, 4]);
    }

    #[test]
    fn a_full_queue_gives_the_last_place_of_a_greedy_client_to_another() {
        let mut queue = WaitQueue::default();
        assert_eq!(fill(&mut queue, &[1, 1, 1, 1], 3), [true, true, true, false]);
        assert_eq!(fill(&mut queue, &[2, 2, 3, 4], 3), [true, false, true, false]);
        assert_eq!(queue.overflows, 5);
        assert_eq!(order(&mut queue), [1, 2, 3]);
    }

    #[test]
    fn only_the_first_request_is_woken() {
        let mut queue = WaitQueue::default();
        let (_, first) = queue.add(client(1), 9).expect("space");
        let (_, second) = queue.add(client(2), 9).expect("space");
        assert_eq!((first.value(), second.value()), (1, 0));
        queue.wake_first();
        assert_eq!((first.value(), second.value()), (2, 0));
        queue.take_first();
        assert!(first.is_closed() && second.value() == 1);
    }
}
