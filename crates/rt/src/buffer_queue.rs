//! Requests for buffers of the thread's pool that wait: first come, first served.
//!
//! Buffers return silently, by being dropped. So the runtime checks the queue once in each turn. A buffer is always
//! dropped within a turn: a task of the thread held it, or a completion returned it. The futures are in
//! [`crate::buffers`].

use std::cell::RefCell;

use io::{Buf, Pool};

use crate::executor::Waiter;
use crate::wait_list::{Ticket, WaitList};

/// The requests that wait, and the buffers that were granted and not taken yet.
#[derive(Default)]
pub(crate) struct BufferQueue {
    waiting: RefCell<WaitList<Request>>,
    granted: RefCell<Vec<(Ticket, Buf)>>,
}

/// A buffer that a task waits for.
struct Request {
    ticket: Option<Ticket>,
    bytes: usize,
    reserve_bytes: u64,
    waiter: Waiter,
}

/// Takes a buffer out of the pool if that leaves enough to others, or only buffers that they cannot use.
fn take(pool: &Pool, bytes: usize, reserve_bytes: u64) -> Option<Buf> {
    let leaves_enough = pool.spare_bytes() >= reserve_bytes.saturating_add(bytes as u64);
    if leaves_enough || pool.is_left_to_bodies(bytes) { pool.get(bytes) } else { None }
}

impl BufferQueue {
    /// Whether a request waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.borrow().is_empty()
    }

    /// A buffer at once, where no other request waits; else the request waits.
    pub(crate) fn ask(&self, pool: &Pool, bytes: usize, reserve_bytes: u64) -> Result<Buf, Ticket> {
        let mut waiting = self.waiting.borrow_mut();
        let at_once = waiting.is_empty().then(|| take(pool, bytes, reserve_bytes));
        at_once.flatten().ok_or_else(|| {
            let ticket = waiting.push(Request { ticket: None, bytes, reserve_bytes, waiter: Waiter::Nobody });
            if let Some(request) = waiting.get_mut(ticket) {
                request.ticket = Some(ticket);
            }
            ticket
        })
    }

    /// The buffer that was granted to a request.
    pub(crate) fn take_granted(&self, ticket: Ticket) -> Option<Buf> {
        let mut granted = self.granted.borrow_mut();
        let place = granted.iter().position(|(known, _)| *known == ticket)?;
        Some(granted.swap_remove(place).1)
    }

    /// Has a request's waiter changed by `register`.
    pub(crate) fn register(&self, ticket: Ticket, register: impl FnOnce(&mut Waiter)) {
        if let Some(request) = self.waiting.borrow_mut().get_mut(ticket) {
            register(&mut request.waiter);
        }
    }

    /// Grants free buffers to the requests in order, and returns the wakers.
    pub(crate) fn serve(&self, pool: &Pool, mut wake: impl FnMut(Waiter)) {
        loop {
            let mut waiting = self.waiting.borrow_mut();
            let first = waiting.first().and_then(|first| take(pool, first.bytes, first.reserve_bytes));
            let Some(buf) = first else { return };
            let request = waiting.pop().expect("the first one waits");
            drop(waiting);
            assert!(buf.capacity() >= request.bytes, "a granted buffer has room for what was asked for");
            let ticket = request.ticket.expect("a request has its ticket before it waits");
            self.granted.borrow_mut().push((ticket, buf));
            wake(request.waiter);
        }
    }

    /// Takes a request back, with the buffer that it was granted.
    pub(crate) fn remove(&self, ticket: Ticket) {
        drop(self.take_granted(ticket));
        drop(self.waiting.borrow_mut().remove(ticket));
    }
}
