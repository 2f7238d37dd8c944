//! Deadlines: a sleep, and the reusable timer of a connection, over the wheel of [`crate::timers`].

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Instant;

use pin_project_lite::pin_project;

use crate::executor::Waiter;
use crate::reactor::{self, Reactor};
use crate::timers::{Deadline, Due};
use crate::wheel::Key;

/// A future that waits until a time. Created by [`sleep_until`].
pub struct Sleep {
    reactor: Rc<Reactor>,
    deadline: Instant,
    entry: Option<Key>,
}

/// Waits until `deadline`, and at most a millisecond longer.
pub fn sleep_until(deadline: Instant) -> Sleep {
    Sleep { reactor: reactor::current(), deadline, entry: None }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Sleep>, context: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        if this.reactor.now.get() >= this.deadline {
            return Poll::Ready(());
        }
        let running = this.reactor.executor.running.get();
        let mut timers = this.reactor.timers.borrow_mut();
        match this.entry.and_then(|key| timers.sleeper(key)) {
            Some(waiter) => waiter.register(running, context),
            None => {
                let mut waiter = Waiter::Empty;
                waiter.register(running, context);
                this.entry = Some(timers.insert(this.deadline, Due::Sleep(waiter)));
            }
        }
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(key) = self.entry {
            self.reactor.timers.borrow_mut().remove(key);
        }
    }
}

/// The error after a deadline has passed, or after [`Timer::expire_now`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Elapsed;

impl fmt::Display for Elapsed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the deadline has passed")
    }
}

impl std::error::Error for Elapsed {}

/// A deadline that can be set repeatedly. Clones refer to the same timer, so that a list of connections can hold one.
#[derive(Clone, Default)]
pub struct Timer(Rc<Deadline>);

impl Timer {
    /// Returns a timer of this thread without a deadline.
    pub fn new() -> Timer {
        Timer::default()
    }

    /// Sets or moves the deadline; reverts [`Timer::expire_now`].
    pub fn set(&self, deadline: Instant) {
        self.0.set(deadline);
    }

    /// Removes the deadline; reverts [`Timer::expire_now`].
    pub fn clear(&self) {
        self.0.clear();
    }

    /// Returns the deadline.
    pub fn deadline(&self) -> Option<Instant> {
        self.0.at.get()
    }

    /// Makes the current [`Timer::limit`] on this timer expire immediately. If there is none, the next one expires,
    /// unless the timer is set or cleared before.
    pub fn expire_now(&self) {
        self.0.expired.set(true);
        reactor::with_current(|reactor| reactor.wake(self.0.waiter.take()));
    }

    /// Returns the output of `future`, or [`Elapsed`] when the deadline passes first; then `future` is dropped. The
    /// deadline may be moved during the wait, through a clone. A timer supports one limit at a time.
    pub fn limit<F: Future>(&self, future: F) -> Limit<'_, F> {
        Limit { timer: self, future }
    }

    /// Returns ready when the deadline has passed; for a hand-written future.
    pub fn poll_elapsed(&self, context: &Context<'_>) -> Poll<Elapsed> {
        self.0.poll_elapsed(context)
    }
}

pin_project! {
    /// The future of [`Timer::limit`].
    #[must_use = "futures do nothing unless polled"]
    pub struct Limit<'t, F> {
        timer: &'t Timer,
        #[pin]
        future: F,
    }
}

impl<F: Future> Future for Limit<'_, F> {
    type Output = Result<F::Output, Elapsed>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let limit = self.project();
        match limit.future.poll(context) {
            Poll::Ready(output) => Poll::Ready(Ok(output)),
            Poll::Pending => limit.timer.poll_elapsed(context).map(Err),
        }
    }
}

/// A timer from the thread's list of unused timers, to which it returns when it is dropped. For short waits that mostly end before
/// their deadline: the entry of such a timer in the wheel moves lazily, so that a wait seldom changes the wheel.
pub struct SpareTimer(Rc<Deadline>);

impl SpareTimer {
    /// Returns a timer with this deadline.
    pub fn until(deadline: Instant) -> SpareTimer {
        let spare = reactor::with_current(|reactor| reactor.timers.borrow_mut().take_spare());
        let timer = spare.unwrap_or_default();
        timer.set(deadline);
        SpareTimer(timer)
    }

    /// Returns ready when the deadline has passed.
    pub fn poll_elapsed(&self, context: &Context<'_>) -> Poll<Elapsed> {
        self.0.poll_elapsed(context)
    }
}

impl Drop for SpareTimer {
    fn drop(&mut self) {
        self.0.clear();
        self.0.waiter.take();
        reactor::with_current_if_any(|reactor| reactor.timers.borrow_mut().add_spare(&self.0));
    }
}

impl Deadline {
    fn set(self: &Rc<Deadline>, deadline: Instant) {
        self.expired.set(false);
        self.at.set(Some(deadline));
        let entry = self.entry.get();
        if entry.is_some_and(|(_, at)| at <= deadline) {
            return;
        }
        reactor::with_current(|reactor| {
            let mut timers = reactor.timers.borrow_mut();
            entry.into_iter().for_each(|(key, _)| timers.remove(key));
            timers.put(self, deadline);
        });
    }

    fn clear(&self) {
        self.expired.set(false);
        self.at.set(None);
    }

    fn poll_elapsed(&self, context: &Context<'_>) -> Poll<Elapsed> {
        if self.is_over() {
            return Poll::Ready(Elapsed);
        }
        let mut waiter = self.waiter.take();
        reactor::with_current(|reactor| waiter.register(reactor.executor.running.get(), context));
        self.waiter.set(waiter);
        Poll::Pending
    }

    fn is_over(&self) -> bool {
        self.expired.get() || self.at.get().is_some_and(|deadline| deadline <= reactor::now())
    }
}

impl Drop for Deadline {
    fn drop(&mut self) {
        let Some((key, _)) = self.entry.get() else { return };
        reactor::with_current_if_any(|reactor| {
            // An unused deadline is dropped while the timers are borrowed. Its entry then remains until it expires.
            if let Ok(mut timers) = reactor.timers.try_borrow_mut() {
                timers.remove_of(key, self);
            }
        });
    }
}
