//! The memory of all encoders in use on one thread, which is limited.
//!
//! ```text
//!   body --- admit ---> encoder --- resize ---> ... --- drop
//!              |            ^
//!              | waits      | recalled, if its client or its source lets it wait
//! ```
//!
//! A body waits for memory in the order of the requests. Meanwhile encoders that wait for a slow client, or for a source that
//! pauses, are recalled, the longest wait first: the rest of their bodies is sent without compression ([`Stored`]). A body
//! that has waited long is sent like that from its beginning. So no body is refused, none waits for another client, and the
//! memory does not grow.
//!
//! [`Stored`]: crate::coding::stored::Stored

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::{Duration, Instant};

use rt::local::Event;
use rt::select;

/// Divisor of a thread's buffer limit (`buffer_pool`) that gives the limit for its encoders: 128 MiB, about four hundred
/// encoders of gzip. If a cgroup limits memory, an eighth of that limit for all threads.
const LIMIT_DIVISOR: u64 = 2;

/// Time that an encoder may wait for its client or its source while others need its memory. A client that reads needs less.
const STALL: Duration = Duration::from_millis(100);

/// Time that a body waits for memory before it is sent without compression.
const WAIT_MAX: Duration = Duration::from_millis(500);

/// The encoders of one thread that are in use.
#[derive(Default)]
pub struct Budget(Rc<Account>);

#[derive(Default)]
struct Account {
    bytes: Cell<u64>,
    /// Bytes of recalled encoders, which will be free soon.
    recalled: Cell<u64>,
    /// The maximum of `bytes` since the last query.
    most: Cell<u64>,
    in_use: RefCell<Vec<Rc<Entry>>>,
    waiting: RefCell<VecDeque<Rc<Queued>>>,
}

/// An encoder in use.
struct Entry {
    bytes: Cell<u64>,
    /// The time since which it waits for its client or its source.
    since: Cell<Option<Instant>>,
    recall: Event,
}

/// A body that waits for memory.
struct Queued {
    bytes: u64,
    granted: Event,
}

/// Permission to use an encoder; dropping it releases its memory to others.
pub struct Share {
    state: Rc<Account>,
    entry: Rc<Entry>,
}

fn limit() -> u64 {
    rt::pool().bytes_max() / LIMIT_DIVISOR
}

impl Budget {
    /// Waits for the memory of an encoder. `None` if the body should be sent without compression.
    pub async fn admit(&self, bytes: u64) -> Option<Share> {
        let state = &self.0;
        if state.waiting.borrow().is_empty() && state.has_room(bytes) {
            return Some(state.enter(bytes));
        }
        let place = Place { state, waiter: Rc::new(Queued { bytes, granted: Event::new() }) };
        state.waiting.borrow_mut().push_back(Rc::clone(&place.waiter));
        let until = rt::now() + WAIT_MAX;
        while !place.waiter.granted.is_set() && rt::now() < until {
            state.recall_stalled();
            let pause = rt::sleep_until((rt::now() + STALL).min(until));
            select(place.waiter.granted.wait(), pause).await;
        }
        // Entered before the place is dropped, which grants what is free then.
        place.waiter.granted.is_set().then(|| state.enter(bytes))
    }

    /// Returns the bytes of all encoders in use, and the maximum since the last call.
    pub fn bytes(&self) -> (u64, u64) {
        let bytes = self.0.bytes.get();
        (bytes, self.0.most.replace(bytes))
    }
}

impl Account {
    /// Whether an encoder of this size fits. One encoder is always possible.
    fn has_room(&self, bytes: u64) -> bool {
        let used = self.bytes.get();
        used == 0 || used + bytes <= limit()
    }

    fn enter(self: &Rc<Self>, bytes: u64) -> Share {
        let entry = Rc::new(Entry { bytes: Cell::new(bytes), since: Cell::new(None), recall: Event::new() });
        self.in_use.borrow_mut().push(Rc::clone(&entry));
        self.add(bytes);
        Share { state: Rc::clone(self), entry }
    }

    fn add(&self, bytes: u64) {
        self.bytes.set(self.bytes.get() + bytes);
        self.most.set(self.most.get().max(self.bytes.get()));
    }

    /// Recalls encoders that stall, the longest wait first, until their memory suffices for all that wait.
    fn recall_stalled(&self) {
        let now = rt::now();
        let wanted: u64 = self.waiting.borrow().iter().map(|waiter| waiter.bytes).sum();
        let in_use = self.in_use.borrow();
        let since = |entry: &Entry| {
            let since = entry.since.get().filter(|&since| now.saturating_duration_since(since) >= STALL);
            since.filter(|_| !entry.recall.is_set())
        };
        let mut stalled: Vec<_> = in_use.iter().filter_map(|entry| Some((since(entry)?, entry))).collect();
        stalled.sort_by_key(|&(since, _)| since);
        for (_, entry) in stalled {
            if self.recalled.get() >= wanted {
                return;
            }
            self.recalled.set(self.recalled.get() + entry.bytes.get());
            entry.recall.set();
        }
    }

    /// Grants the memory that is free, in order.
    fn serve(&self) {
        let mut granted = 0;
        for waiter in self.waiting.borrow().iter() {
            let is_only = granted == 0 && self.bytes.get() == 0;
            granted += waiter.bytes;
            if !waiter.granted.is_set() && !is_only && self.bytes.get() + granted > limit() {
                return;
            }
            waiter.granted.set();
        }
    }
}

/// The place of a body in the queue.
struct Place<'s> {
    state: &'s Account,
    waiter: Rc<Queued>,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.state.waiting.borrow_mut().retain(|other| !Rc::ptr_eq(other, &self.waiter));
        self.state.serve();
    }
}

impl Share {
    /// Corrects the estimate by the size of the encoder.
    pub fn resize(&self, bytes: u64) {
        let before = self.entry.bytes.replace(bytes);
        if self.entry.recall.is_set() {
            self.state.recalled.set(self.state.recalled.get() - before + bytes);
        }
        self.state.bytes.set(self.state.bytes.get() - before);
        self.state.add(bytes);
        if bytes < before {
            self.state.serve();
        }
    }

    /// Runs a future that waits for the client or for the source. `Err` if the encoder is recalled meanwhile; the future can
    /// be continued.
    pub async fn during<F: Future + Unpin>(&self, wait: F) -> Result<F::Output, Recalled> {
        self.entry.since.set(Some(rt::now()));
        let _ends = WaitEnds(&self.entry);
        match select(wait, self.entry.recall.wait()).await {
            rt::Either::Left(output) => Ok(output),
            rt::Either::Right(()) => Err(Recalled),
        }
    }
}

/// The encoder has to be given back, because another body needs its memory.
#[derive(Clone, Copy, Debug)]
pub struct Recalled;

/// Resets the start of a wait, also if its future is dropped.
struct WaitEnds<'e>(&'e Entry);

impl Drop for WaitEnds<'_> {
    fn drop(&mut self) {
        self.0.since.set(None);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let bytes = self.entry.bytes.get();
        self.state.bytes.set(self.state.bytes.get() - bytes);
        if self.entry.recall.is_set() {
            self.state.recalled.set(self.state.recalled.get() - bytes);
        }
        self.state.in_use.borrow_mut().retain(|other| !Rc::ptr_eq(other, &self.entry));
        self.state.serve();
    }
}
