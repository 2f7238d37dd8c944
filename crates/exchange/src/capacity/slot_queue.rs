//! The order of the requests that wait for a connection slot for their upstream.
//!
//! ```text
//!   requests of a client's connection --one of each--> first come, first served --the first--> closes connections, takes the slot
//! ```
//! So a connection with many waiting requests delays another by one request only, and only one request at a time closes
//! connections to make room. The slots that become free by this are held for it: accepted connections do not take them.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use rt::local::{Event, Permit, Semaphore};

/// The waiting requests of a thread.
pub(super) struct SlotQueue {
    /// Held by the request that is served next.
    first: Semaphore,
    /// By number of the client's connection; `None` for requests without a client.
    connections: RefCell<BTreeMap<Option<u64>, Waiting>>,
    /// Number of slots that accepted connections leave to the first request.
    held: Cell<usize>,
}

/// The waiting requests of a connection.
struct Waiting {
    first: Semaphore,
    count: usize,
}

impl SlotQueue {
    pub(super) fn new() -> SlotQueue {
        SlotQueue { first: Semaphore::new(1), connections: RefCell::default(), held: Cell::new(0) }
    }

    /// Whether no request waits.
    pub(super) fn is_empty(&self) -> bool {
        self.connections.borrow().is_empty()
    }

    /// Returns the number of slots that are held for the first request.
    pub(super) fn held(&self) -> usize {
        self.held.get()
    }

    /// Waits until all requests before this one were served or have given up. `released` is signalled when held slots are released.
    pub(super) async fn turn<'a>(&'a self, connection: Option<u64>, released: &'a Event) -> Turn<'a> {
        let registered = self.register(connection);
        let own = registered.first.clone().acquire().await;
        let first = self.first.acquire().await;
        debug_assert_eq!(self.held.get(), 0, "only the first request holds slots");
        Turn { queue: self, released, _permits: [first, own], _registered: registered }
    }

    fn register(&self, connection: Option<u64>) -> Registered<'_> {
        let mut connections = self.connections.borrow_mut();
        let waiting =
            connections.entry(connection).or_insert_with(|| Waiting { first: Semaphore::new(1), count: 0 });
        waiting.count += 1;
        Registered { queue: self, connection, first: waiting.first.clone() }
    }
}

/// A request in the queue.
struct Registered<'a> {
    queue: &'a SlotQueue,
    connection: Option<u64>,
    first: Semaphore,
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        let mut connections = self.queue.connections.borrow_mut();
        let waiting = connections.get_mut(&self.connection).expect("a request in the queue is counted");
        debug_assert!(waiting.count > 0, "a request in the queue is counted");
        waiting.count -= 1;
        if waiting.count == 0 {
            connections.remove(&self.connection);
        }
    }
}

/// The first request in the queue, until it has a slot or gives up.
pub(crate) struct Turn<'a> {
    queue: &'a SlotQueue,
    released: &'a Event,
    _permits: [Permit; 2],
    _registered: Registered<'a>,
}

impl Turn<'_> {
    /// Holds further slots for this request, at most `most` in total.
    pub(crate) fn hold(&self, slots: usize, most: usize) {
        debug_assert!(slots > 0, "slots are held for chosen connections");
        let held = &self.queue.held;
        held.set((held.get() + slots).min(most));
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if self.queue.held.replace(0) > 0 {
            self.released.pulse();
        }
    }
}
