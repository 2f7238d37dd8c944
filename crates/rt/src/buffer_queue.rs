//! Waiting requests for buffers of the thread's pool, first in, first out.
//!
//! The pool gives no notification when a dropped buffer returns to it. So the runtime checks the queue once per turn.
//! Tasks and completions of the thread drop their buffers within a turn. Buffers with shared content may be released by
//! other threads at any time, and are granted in the next turn, which [`crate::reactor::BUFFER_WAIT_MAX`] limits. The
//! futures are in [`crate::buffers`].

use std::cell::RefCell;

use io::{Buf, Pool};

use crate::executor::Waiter;
use crate::wait_list::{Ticket, WaitList};

/// The waiting requests, and the buffers that were granted and not taken yet.
#[derive(Default)]
pub(crate) struct BufferQueue {
    waiting: RefCell<WaitList<Request>>,
    granted: RefCell<Vec<(Ticket, Buf)>>,
}

/// A waiting request for a buffer.
struct Request {
    bytes: usize,
    reserve_bytes: u64,
    waiter: Waiter,
}

/// Takes a buffer from the pool if that leaves enough memory to others, or uses only memory reserved for bodies.
fn take(pool: &Pool, bytes: usize, reserve_bytes: u64) -> Option<Buf> {
    let leaves_enough = pool.spare_bytes() >= reserve_bytes.saturating_add(bytes as u64);
    if leaves_enough || pool.is_from_body_reserve(bytes) { pool.get(bytes) } else { None }
}

impl BufferQueue {
    /// Whether a request waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.borrow().is_empty()
    }

    /// Returns a buffer immediately if no other request waits and memory is free; otherwise queues the request.
    pub(crate) fn request(&self, pool: &Pool, bytes: usize, reserve_bytes: u64) -> Result<Buf, Ticket> {
        let mut waiting = self.waiting.borrow_mut();
        let at_once = waiting.is_empty().then(|| take(pool, bytes, reserve_bytes));
        at_once.flatten().ok_or_else(|| waiting.push(Request { bytes, reserve_bytes, waiter: Waiter::Empty }))
    }

    /// Returns the buffer that was granted to a request.
    pub(crate) fn take_granted(&self, ticket: Ticket) -> Option<Buf> {
        let mut granted = self.granted.borrow_mut();
        let index = granted.iter().position(|(known, _)| *known == ticket)?;
        Some(granted.swap_remove(index).1)
    }

    /// Calls `register` with the waiter of a request.
    pub(crate) fn register(&self, ticket: Ticket, register: impl FnOnce(&mut Waiter)) {
        if let Some(request) = self.waiting.borrow_mut().get_mut(ticket) {
            register(&mut request.waiter);
        }
    }

    /// Grants free buffers to the requests in order, and passes their waiters to `wake`.
    pub(crate) fn serve(&self, pool: &Pool, mut wake: impl FnMut(Waiter)) {
        loop {
            let mut waiting = self.waiting.borrow_mut();
            let first = waiting.first().and_then(|first| take(pool, first.bytes, first.reserve_bytes));
            let Some(buf) = first else { return };
            let (ticket, request) = waiting.pop().expect("the first one waits");
            drop(waiting);
            assert!(buf.capacity() >= request.bytes, "a granted buffer has the requested size");
            self.granted.borrow_mut().push((ticket, buf));
            wake(request.waiter);
        }
    }

    /// Removes a request, and the buffer that it was granted.
    pub(crate) fn remove(&self, ticket: Ticket) {
        drop(self.take_granted(ticket));
        drop(self.waiting.borrow_mut().remove(ticket));
    }
}
