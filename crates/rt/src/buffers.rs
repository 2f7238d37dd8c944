//! Waiting for a buffer of the thread's pool.
//!
//! ```text
//!   asked --no waiter, and there is enough------------------------------> served
//!     `-----> queued --first in the queue, and there is enough--> granted --polled--^
//! ```

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use io::{Buf, Pool};

use crate::reactor::{self, Reactor};
use crate::wait_list::Ticket;

/// A buffer of at least `bytes`, as soon as it can be lent with `reserve_bytes` bytes of the pool left to others.
/// Requests are served in order, whatever their size, so that a large one does not starve.
///
/// A waiting task should hold no other buffer: two such tasks may wait for each other.
pub fn buffer(bytes: usize, reserve_bytes: u64) -> BufferRequest {
    BufferRequest { reactor: reactor::current(), bytes, reserve_bytes, ticket: None }
}

/// Whether a task waits for a buffer.
pub fn buffers_are_awaited() -> bool {
    reactor::with_current(|reactor| !reactor.buffer_waiters.is_empty())
}

/// A buffer of at least `bytes`, at once or not at all: tasks that wait for a buffer for bodies go first.
pub fn buffer_at_once(bytes: usize) -> Option<Buf> {
    let is_passing_by = Pool::is_for_bodies(bytes) && buffers_are_awaited();
    if is_passing_by { None } else { reactor::with_current(|reactor| reactor.pool.get(bytes)) }
}

/// Whether more than half of the pool is in use: data held for long should leave its buffer then. Asked of the pool
/// once in a turn.
pub fn buffers_are_scarce() -> bool {
    reactor::with_current(|reactor| {
        reactor.scarce.get().unwrap_or_else(|| {
            let pool = &reactor.pool;
            let scarce = pool.spare_bytes() <= pool.bytes_max() / 2;
            reactor.scarce.set(Some(scarce));
            scarce
        })
    })
}

/// Waits until a buffer for received bytes is needed and none is free.
pub async fn buffers_ran_out() {
    let shortage = reactor::with_current(|reactor| reactor.shortage.clone());
    shortage.wait().await;
}

/// See [`buffer`]. Dropped, it leaves the queue and returns a granted buffer.
pub struct BufferRequest {
    reactor: Rc<Reactor>,
    bytes: usize,
    reserve_bytes: u64,
    /// Once it had to wait.
    ticket: Option<Ticket>,
}

impl Future for BufferRequest {
    type Output = Buf;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Buf> {
        let this = &mut *self;
        let queue = &this.reactor.buffer_waiters;
        let ticket = match this.ticket {
            Some(ticket) => match queue.take_granted(ticket) {
                Some(buf) => {
                    this.ticket = None;
                    return Poll::Ready(buf);
                }
                None => ticket,
            },
            None => match queue.ask(&this.reactor.pool, this.bytes, this.reserve_bytes) {
                Ok(buf) => return Poll::Ready(buf),
                Err(ticket) => *this.ticket.insert(ticket),
            },
        };
        queue.register(ticket, |waiter| waiter.register(this.reactor.executor.running.get(), context));
        Poll::Pending
    }
}

impl Drop for BufferRequest {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            self.reactor.buffer_waiters.remove(ticket);
        }
    }
}
