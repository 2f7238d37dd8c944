//! What tasks of one thread wait for in each other: an event, a count, a number of permits.
//!
//! Nothing here is `Send`. Main types: [`Event`], [`Gauge`], [`Semaphore`].

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// Those who wait, in order. Each has a ticket, so that one that is dropped takes itself out.
#[derive(Default)]
struct Queue {
    waiting: RefCell<VecDeque<(u64, Waker)>>,
    tickets: Cell<u64>,
}

impl Queue {
    /// A number that no other waiter of this queue has.
    fn ticket(&self) -> u64 {
        self.tickets.set(self.tickets.get() + 1);
        self.tickets.get()
    }

    /// Registers or refreshes the waker of a ticket; a new one goes to the end.
    fn register(&self, ticket: u64, context: &Context<'_>) {
        let mut waiting = self.waiting.borrow_mut();
        match waiting.iter_mut().find(|(number, _)| *number == ticket) {
            Some((_, waker)) => waker.clone_from(context.waker()),
            None => waiting.push_back((ticket, context.waker().clone())),
        }
    }

    /// Takes a waiter out. The one behind it is woken: it may have been passed over for this one.
    fn remove(&self, ticket: u64) {
        let found = self.waiting.borrow().iter().position(|(number, _)| *number == ticket);
        let Some(place) = found else { return };
        let removed = self.waiting.borrow_mut().remove(place);
        drop(removed);
        if place == 0 {
            self.wake_first();
        }
    }

    /// Whether nobody waits before the holder of this ticket.
    fn is_first(&self, ticket: u64) -> bool {
        self.waiting.borrow().front().is_none_or(|(number, _)| *number == ticket)
    }

    /// Wakes the first without taking it out: it does that itself when it is served.
    fn wake_first(&self) {
        let first = self.waiting.borrow().front().map(|(_, waker)| waker.clone());
        if let Some(waker) = first {
            waker.wake();
        }
    }

    /// Wakes all and takes them out; those that have to wait longer register again.
    fn wake_all(&self) {
        for (_, waker) in self.waiting.take() {
            waker.wake();
        }
    }
}

/// Takes a waiter out of its queue when its future is dropped.
struct Place<'a> {
    queue: &'a Queue,
    ticket: u64,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.queue.remove(self.ticket);
    }
}

/// Something that happens once, such as the order to shut down. Clones are the same event.
#[derive(Clone, Default)]
pub struct Event(Rc<EventState>);

#[derive(Default)]
struct EventState {
    set: Cell<bool>,
    queue: Queue,
}

impl Event {
    /// An event that has not happened.
    pub fn new() -> Event {
        Event::default()
    }

    /// It happens: all who wait go on, and all who come later do not wait.
    pub fn set(&self) {
        self.0.set.set(true);
        self.0.queue.wake_all();
    }

    /// Takes it back: further waits wait again.
    pub fn clear(&self) {
        self.0.set.set(false);
    }

    /// Whether it has happened.
    pub fn is_set(&self) -> bool {
        self.0.set.get()
    }

    /// Wakes all who wait now and remembers nothing.
    pub fn pulse(&self) {
        // A waiter that finds itself out of the queue knows that it was woken.
        self.0.queue.wake_all();
    }

    /// Waits until [`Event::set`], or for the next [`Event::pulse`].
    pub async fn wait(&self) {
        let queue = &self.0.queue;
        let place = Place { queue, ticket: queue.ticket() };
        let mut entered = false;
        poll_fn(|context| {
            let left = entered && !queue.waiting.borrow().iter().any(|(number, _)| *number == place.ticket);
            if self.is_set() || left {
                return Poll::Ready(());
            }
            entered = true;
            queue.register(place.ticket, context);
            Poll::Pending
        })
        .await;
    }
}

/// A count of things that exist, such as connections, and a way to wait for none. Clones are the same.
#[derive(Clone, Default)]
pub struct Gauge(Rc<GaugeState>);

#[derive(Default)]
struct GaugeState {
    count: Cell<usize>,
    queue: Queue,
}

/// One of the things that a [`Gauge`] counts, until it is dropped.
pub struct Counted(Rc<GaugeState>);

impl Gauge {
    /// A count of zero.
    pub fn new() -> Gauge {
        Gauge::default()
    }

    /// Counts one more, as long as the answer lives.
    pub fn enter(&self) -> Counted {
        self.0.count.set(self.0.count.get() + 1);
        Counted(Rc::clone(&self.0))
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.count.get()
    }

    /// Waits until there is none.
    pub async fn none_left(&self) {
        self.at_most(0).await;
    }

    /// Waits until there are at most `count`.
    pub async fn at_most(&self, count: usize) {
        let queue = &self.0.queue;
        let place = Place { queue, ticket: queue.ticket() };
        poll_fn(|context| {
            if self.count() <= count {
                return Poll::Ready(());
            }
            queue.register(place.ticket, context);
            Poll::Pending
        })
        .await;
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.count.set(self.0.count.get() - 1);
        self.0.queue.wake_all();
    }
}

/// A number of permits, handed out in the order in which they were asked for. Clones are the same.
#[derive(Clone)]
pub struct Semaphore(Rc<SemaphoreState>);

struct SemaphoreState {
    free: Cell<usize>,
    queue: Queue,
}

/// A permit of a [`Semaphore`], given back when it is dropped.
pub struct Permit(Rc<SemaphoreState>);

impl Semaphore {
    /// So many permits.
    pub fn new(permits: usize) -> Semaphore {
        Semaphore(Rc::new(SemaphoreState { free: Cell::new(permits), queue: Queue::default() }))
    }

    /// A permit if one is free and nobody waits.
    pub fn try_acquire(&self) -> Option<Permit> {
        if !self.0.queue.waiting.borrow().is_empty() {
            return None;
        }
        self.take()
    }

    /// Waits for a permit.
    pub async fn acquire(&self) -> Permit {
        let queue = &self.0.queue;
        let place = Place { queue, ticket: queue.ticket() };
        poll_fn(|context| {
            if let Some(permit) = self.take_if_first(place.ticket) {
                return Poll::Ready(permit);
            }
            queue.register(place.ticket, context);
            Poll::Pending
        })
        .await
    }

    fn take_if_first(&self, ticket: u64) -> Option<Permit> {
        if self.0.queue.is_first(ticket) { self.take() } else { None }
    }

    fn take(&self) -> Option<Permit> {
        let left = self.0.free.get().checked_sub(1)?;
        self.0.free.set(left);
        Some(Permit(Rc::clone(&self.0)))
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.free.set(self.0.free.get() + 1);
        self.0.queue.wake_first();
    }
}
