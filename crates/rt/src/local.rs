//! Synchronisation of the tasks of one thread: an event, a count, a number of permits.
//!
//! Nothing here is `Send`. Main types: [`Event`], [`WaitGroup`], [`Semaphore`].

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use crate::wait_list::{Ticket, WaitList};

/// The wakers of the waiting tasks.
#[derive(Default)]
struct Waiters(RefCell<WaitList<Waker>>);

impl Waiters {
    /// Wakes the first without taking it out: it does that itself when it is served.
    fn wake_first(&self) {
        let first = self.0.borrow().first().cloned();
        first.into_iter().for_each(Waker::wake);
    }

    /// Wakes all and takes them out; those that have to wait longer register again.
    fn wake_all(&self) {
        let count = self.0.borrow().len();
        for _ in 0..count {
            let next = self.0.borrow_mut().pop();
            next.into_iter().for_each(Waker::wake);
        }
    }
}

/// A task that may wait; it leaves the queue when its future is dropped.
struct WaitTicket<'a> {
    queue: &'a Waiters,
    ticket: Option<Ticket>,
}

impl<'a> WaitTicket<'a> {
    fn new(queue: &'a Waiters) -> WaitTicket<'a> {
        WaitTicket { queue, ticket: None }
    }

    /// Keeps the waker; a new one goes to the end.
    fn register(&mut self, context: &Context<'_>) {
        let mut list = self.queue.0.borrow_mut();
        match self.ticket.and_then(|ticket| list.get_mut(ticket)) {
            Some(waker) => waker.clone_from(context.waker()),
            None => self.ticket = Some(list.push(context.waker().clone())),
        }
    }

    /// Whether this one is the first.
    fn is_first(&self) -> bool {
        let list = self.queue.0.borrow();
        self.ticket.map_or(list.is_empty(), |ticket| list.is_first(ticket))
    }

    /// Whether it has waited and was taken out.
    fn was_woken(&self) -> bool {
        self.ticket.is_some_and(|ticket| !self.queue.0.borrow().contains(ticket))
    }
}

impl Drop for WaitTicket<'_> {
    /// The one behind is woken: it may have been passed over for this one.
    fn drop(&mut self) {
        let removed = self.ticket.and_then(|ticket| self.queue.0.borrow_mut().remove(ticket));
        if removed.is_some_and(|(_, was_first)| was_first) {
            self.queue.wake_first();
        }
    }
}

/// Something that happens once, such as the order to shut down. Clones are the same event.
#[derive(Clone, Default)]
pub struct Event(Rc<EventState>);

#[derive(Default)]
struct EventState {
    set: Cell<bool>,
    queue: Waiters,
}

impl Event {
    /// An event that has not happened.
    pub fn new() -> Event {
        Event::default()
    }

    /// Sets the event: all waiting tasks continue, and later ones do not wait.
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

    /// Wakes all tasks that wait now, without setting the event.
    pub fn pulse(&self) {
        // A waiter that finds itself out of the queue knows that it was woken.
        self.0.queue.wake_all();
    }

    /// Waits until [`Event::set`], or for the next [`Event::pulse`].
    pub async fn wait(&self) {
        let mut place = WaitTicket::new(&self.0.queue);
        poll_fn(|context| {
            if self.is_set() || place.was_woken() {
                return Poll::Ready(());
            }
            place.register(context);
            Poll::Pending
        })
        .await;
    }
}

/// A count of things that exist, such as connections, and a way to wait for none. Clones are the same.
#[derive(Clone, Default)]
pub struct WaitGroup(Rc<WaitGroupState>);

#[derive(Default)]
struct WaitGroupState {
    count: Cell<usize>,
    queue: Waiters,
}

/// One of the things that a [`WaitGroup`] counts, until it is dropped.
pub struct Counted(Rc<WaitGroupState>);

impl WaitGroup {
    /// A count of zero.
    pub fn new() -> WaitGroup {
        WaitGroup::default()
    }

    /// Counts one more while the returned value lives.
    pub fn enter(&self) -> Counted {
        self.0.count.set(self.0.count.get() + 1);
        Counted(Rc::clone(&self.0))
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.count.get()
    }

    /// Waits until the count is zero.
    pub async fn none_left(&self) {
        self.at_most(0).await;
    }

    /// Waits until there are at most `count`.
    pub async fn at_most(&self, count: usize) {
        let mut place = WaitTicket::new(&self.0.queue);
        poll_fn(|context| {
            if self.count() <= count {
                return Poll::Ready(());
            }
            place.register(context);
            Poll::Pending
        })
        .await;
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        assert!(self.0.count.get() > 0, "who leaves was counted");
        self.0.count.set(self.0.count.get() - 1);
        self.0.queue.wake_all();
    }
}

/// A number of permits, handed out in the order of the requests. Clones are the same.
#[derive(Clone)]
pub struct Semaphore(Rc<SemaphoreState>);

struct SemaphoreState {
    free: Cell<usize>,
    queue: Waiters,
}

/// A permit of a [`Semaphore`], given back when it is dropped.
pub struct Permit(Rc<SemaphoreState>);

impl Semaphore {
    /// N permits.
    pub fn new(permits: usize) -> Semaphore {
        Semaphore(Rc::new(SemaphoreState { free: Cell::new(permits), queue: Waiters::default() }))
    }

    /// A permit if one is free and no task waits.
    pub fn try_acquire(&self) -> Option<Permit> {
        if !self.0.queue.0.borrow().is_empty() {
            return None;
        }
        self.take()
    }

    /// Waits for a permit.
    pub async fn acquire(&self) -> Permit {
        let mut place = WaitTicket::new(&self.0.queue);
        poll_fn(|context| {
            if place.is_first()
                && let Some(permit) = self.take()
            {
                return Poll::Ready(permit);
            }
            place.register(context);
            Poll::Pending
        })
        .await
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
