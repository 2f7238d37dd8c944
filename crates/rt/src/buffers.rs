//! Waiting for a buffer of the thread's pool: first come, first served.
//!
//! Buffers come back without saying so, by being dropped. So the queue is looked at once in each turn of the runtime,
//! which a dropped buffer always belongs to: a task of the thread held it, or a completion brought it.
//!
//! ```text
//!   asked --nobody waits, and there is enough--------------------------> served
//!     `-----> queued --first in the queue, and there is enough--> lent --polled--^
//! ```

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use io::{Buf, Pool};

use crate::runtime::{self, Inner};
use crate::task::Waiter;

/// Those who wait, in order.
#[derive(Default)]
pub(crate) struct Queue(RefCell<VecDeque<Rc<Ask>>>);

/// What somebody waits for.
struct Ask {
    bytes: usize,
    spared: u64,
    /// The buffer, from when it is lent until the one who asked looks.
    lent: Cell<Option<Buf>>,
    waiter: RefCell<Waiter>,
}

/// Takes a buffer out of the pool where that leaves enough to others, or leaves them what they cannot use.
fn take(pool: &Pool, bytes: usize, spared: u64) -> Option<Buf> {
    let leaves_enough = pool.spare_bytes() >= spared.saturating_add(bytes as u64);
    if leaves_enough || pool.is_left_to_bodies(bytes) { pool.get(bytes) } else { None }
}

impl Queue {
    /// Lends what there is to those who wait, in order, and answers whom to wake.
    pub(crate) fn serve(&self, pool: &Pool) -> Vec<Waiter> {
        let mut served = Vec::new();
        let mut asks = self.0.borrow_mut();
        while let Some(buf) = asks.front().and_then(|first| take(pool, first.bytes, first.spared)) {
            let Some(ask) = asks.pop_front() else { break };
            ask.lent.set(Some(buf));
            served.push(ask.waiter.take());
        }
        served
    }

    fn remove(&self, ask: &Rc<Ask>) {
        self.0.borrow_mut().retain(|other| !Rc::ptr_eq(other, ask));
    }
}

/// A buffer of at least `bytes`, as soon as it can be lent so that `spared` bytes of the pool are left to others. Those
/// who asked before are served before, whatever the size: who waits for a large one is not passed over for ever.
///
/// Who waits should hold no other buffer: two who do may wait for each other.
pub fn buffer(bytes: usize, spared: u64) -> Wanted {
    Wanted { runtime: runtime::current(), bytes, spared, ask: None }
}

/// Whether somebody waits for a buffer.
pub fn buffers_are_awaited() -> bool {
    runtime::with_current(|runtime| !runtime.hungry.0.borrow().is_empty())
}

/// A buffer of at least `bytes`, at once or not at all: who waits for one of those for bodies is not passed by.
pub fn buffer_at_once(bytes: usize) -> Option<Buf> {
    let is_passing_by = Pool::is_for_bodies(bytes) && buffers_are_awaited();
    if is_passing_by { None } else { runtime::with_current(|runtime| runtime.pool.get(bytes)) }
}

/// Whether more than half of the pool is in use: what is held for long should leave its buffer then. Asked of the pool
/// once in a turn.
pub fn buffers_are_scarce() -> bool {
    runtime::with_current(|runtime| {
        runtime.scarce.get().unwrap_or_else(|| {
            let pool = &runtime.pool;
            let scarce = pool.spare_bytes() <= pool.bytes_max() / 2;
            runtime.scarce.set(Some(scarce));
            scarce
        })
    })
}

/// Waits until a buffer for received bytes is wanted and there is none.
pub async fn buffers_ran_out() {
    let shortage = runtime::with_current(|runtime| runtime.shortage.clone());
    shortage.wait().await;
}

/// See [`buffer`]. Dropped, it gives its place up, and what it was lent.
pub struct Wanted {
    runtime: Rc<Inner>,
    bytes: usize,
    spared: u64,
    /// Once it had to wait.
    ask: Option<Rc<Ask>>,
}

impl Future for Wanted {
    type Output = Buf;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Buf> {
        let this = &mut *self;
        let ask = match &this.ask {
            Some(ask) => match ask.lent.take() {
                Some(buf) => {
                    this.ask = None;
                    return Poll::Ready(buf);
                }
                None => ask,
            },
            None => {
                let mut asks = this.runtime.hungry.0.borrow_mut();
                let at_once = asks.is_empty().then(|| take(&this.runtime.pool, this.bytes, this.spared));
                if let Some(buf) = at_once.flatten() {
                    return Poll::Ready(buf);
                }
                let (bytes, spared) = (this.bytes, this.spared);
                let ask = Rc::new(Ask { bytes, spared, lent: Cell::default(), waiter: RefCell::default() });
                asks.push_back(Rc::clone(&ask));
                this.ask.insert(ask)
            }
        };
        ask.waiter.borrow_mut().register(this.runtime.running.get(), context);
        Poll::Pending
    }
}

impl Drop for Wanted {
    fn drop(&mut self) {
        if let Some(ask) = &self.ask {
            self.runtime.hungry.remove(ask);
        }
    }
}
