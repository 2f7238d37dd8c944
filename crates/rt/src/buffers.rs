//! Waiting for a buffer of the thread's pool.
//!
//! ```text
//!   requested --no other request waits, and enough memory is free-------> served
//!     `-----> queued --first in the queue, enough memory is free--> granted --polled--^
//! ```

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use io::{Buf, Pool};

use crate::reactor::{self, Reactor};
use crate::wait_list::Ticket;

/// Waits for a buffer of at least `bytes` that leaves `reserve_bytes` of the pool to others. Requests are served in
/// order, whatever their size, so that a large request does not starve.
///
/// A waiting task should hold no other buffer: two such tasks may wait for each other.
pub fn buffer(bytes: usize, reserve_bytes: u64) -> BufferRequest {
    BufferRequest { reactor: reactor::current(), bytes, reserve_bytes, ticket: None }
}

/// Whether any task waits for a buffer.
pub fn buffers_are_awaited() -> bool {
    reactor::with_current(|reactor| !reactor.buffer_waiters.is_empty())
}

/// Returns a buffer of at least `bytes` immediately, or `None`. A body buffer is not returned while other tasks wait
/// for buffers.
pub fn try_buffer(bytes: usize) -> Option<Buf> {
    let is_passing_by = Pool::is_for_bodies(bytes) && buffers_are_awaited();
    if is_passing_by { None } else { reactor::with_current(|reactor| reactor.pool.get(bytes)) }
}

/// Whether more than half of the pool is in use: then data that is retained for long should be copied out of its
/// buffer. The pool is queried once per turn.
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

/// Waits until a buffer for received bytes is requested and none is free.
pub async fn buffers_ran_out() {
    let shortage = reactor::with_current(|reactor| reactor.shortage.clone());
    shortage.wait().await;
}

/// See [`buffer`]. Dropping it removes the request from the queue and returns a granted buffer.
pub struct BufferRequest {
    reactor: Rc<Reactor>,
    bytes: usize,
    reserve_bytes: u64,
    /// Set once the request had to wait.
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
            None => match queue.request(&this.reactor.pool, this.bytes, this.reserve_bytes) {
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
