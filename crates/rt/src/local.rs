//! Synchronisation between tasks of one thread: an event, a wait group, and a semaphore.
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
    /// Wakes the first task without removing it from the queue: it removes itself when it is served.
    fn wake_first(&self) {
        let first = self.0.borrow().first().cloned();
        first.into_iter().for_each(Waker::wake);
    }

    /// Wakes all tasks and removes them; those that have to wait longer register again.
    fn wake_all(&self) {
        let count = self.0.borrow().len();
        for _ in 0..count {
            let next = self.0.borrow_mut().pop();
            next.into_iter().for_each(|(_, waker)| waker.wake());
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

    /// Stores the task's waker; appends the task to the queue if it is not in the queue.
    fn register(&mut self, context: &Context<'_>) {
        let mut list = self.queue.0.borrow_mut();
        match self.ticket.and_then(|ticket| list.get_mut(ticket)) {
            Some(waker) => waker.clone_from(context.waker()),
            None => self.ticket = Some(list.push(context.waker().clone())),
        }
    }

    /// Whether this task is the first in the queue, or the queue is empty.
    fn is_first(&self) -> bool {
        let list = self.queue.0.borrow();
        self.ticket.map_or(list.is_empty(), |ticket| list.is_first(ticket))
    }

    /// Whether this task has waited and was removed from the queue by a wake-up.
    fn was_woken(&self) -> bool {
        self.ticket.is_some_and(|ticket| !self.queue.0.borrow().contains(ticket))
    }
}

impl Drop for WaitTicket<'_> {
    /// Wakes the next task, which may have waited only because of this one.
    fn drop(&mut self) {
        let removed = self.ticket.and_then(|ticket| self.queue.0.borrow_mut().remove(ticket));
        if removed.is_some_and(|(_, was_first)| was_first) {
            self.queue.wake_first();
        }
    }
}

/// A one-time event, such as the request to shut down. Clones refer to the same event.
#[derive(Clone, Default)]
pub struct Event(Rc<EventState>);

#[derive(Default)]
struct EventState {
    set: Cell<bool>,
    queue: Waiters,
}

impl Event {
    /// Returns an event that is not set.
    pub fn new() -> Event {
        Event::default()
    }

    /// Sets the event: all waiting tasks continue, and later ones do not wait.
    pub fn set(&self) {
        self.0.set.set(true);
        self.0.queue.wake_all();
    }

    /// Clears the event: further waits block again.
    pub fn clear(&self) {
        self.0.set.set(false);
    }

    /// Whether the event is set.
    pub fn is_set(&self) -> bool {
        self.0.set.get()
    }

    /// Wakes all tasks that currently wait, without setting the event.
    pub fn pulse(&self) {
        // A waiting task that was removed from the queue detects that it was woken.
        self.0.queue.wake_all();
    }

    /// Waits until [`Event::set`], or for the next [`Event::pulse`].
    pub async fn wait(&self) {
        let mut waiting = WaitTicket::new(&self.0.queue);
        poll_fn(|context| {
            if self.is_set() || waiting.was_woken() {
                return Poll::Ready(());
            }
            waiting.register(context);
            Poll::Pending
        })
        .await;
    }
}

/// A counter of live objects, such as connections, that tasks can wait for. Clones refer to the same counter.
#[derive(Clone, Default)]
pub struct WaitGroup(Rc<WaitGroupState>);

#[derive(Default)]
struct WaitGroupState {
    count: Cell<usize>,
    queue: Waiters,
}

/// An object counted by a [`WaitGroup`] until this is dropped.
pub struct Counted(Rc<WaitGroupState>);

impl WaitGroup {
    /// Returns a counter of zero.
    pub fn new() -> WaitGroup {
        WaitGroup::default()
    }

    /// Increments the count until the returned value is dropped.
    pub fn enter(&self) -> Counted {
        self.0.count.set(self.0.count.get() + 1);
        Counted(Rc::clone(&self.0))
    }

    /// Returns the count.
    pub fn count(&self) -> usize {
        self.0.count.get()
    }

    /// Waits until the count is zero.
    pub async fn wait_empty(&self) {
        self.at_most(0).await;
    }

    /// Waits until the count is at most `count`.
    pub async fn at_most(&self, count: usize) {
        let mut waiting = WaitTicket::new(&self.0.queue);
        poll_fn(|context| {
            if self.count() <= count {
                return Poll::Ready(());
            }
            waiting.register(context);
            Poll::Pending
        })
        .await;
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        assert!(self.0.count.get() > 0, "a dropped object was counted");
        self.0.count.set(self.0.count.get() - 1);
        self.0.queue.wake_all();
    }
}

/// A number of permits, granted in the order of the requests. Clones refer to the same semaphore.
#[derive(Clone)]
pub struct Semaphore(Rc<SemaphoreState>);

struct SemaphoreState {
    free: Cell<usize>,
    queue: Waiters,
}

/// A permit of a [`Semaphore`], released when it is dropped.
pub struct Permit(Rc<SemaphoreState>);

impl Semaphore {
    /// Creates a semaphore with N permits.
    pub fn new(permits: usize) -> Semaphore {
        Semaphore(Rc::new(SemaphoreState { free: Cell::new(permits), queue: Waiters::default() }))
    }

    /// Waits for a permit.
    pub async fn acquire(&self) -> Permit {
        let mut waiting = WaitTicket::new(&self.0.queue);
        poll_fn(|context| {
            if waiting.is_first()
                && let Some(permit) = self.take()
            {
                return Poll::Ready(permit);
            }
            waiting.register(context);
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
