//! Limits the bytes that bodies read ahead into the page cache or into shared memory.
//!
//! If a cgroup limits memory, pages read for one body evict pages of another, and a page that is evicted before it is
//! sent is read twice. So the bytes being read from disk are limited per thread and disk. A body acquires a quota,
//! holds it until its bytes are in memory, and releases it before they are sent. Quotas are granted in order of the
//! requests. A hanging disk holds only its own quotas, and no buffers. Shared memory stays in use until it is sent, so
//! its quotas are held until then, and bodies take turns while quotas are scarce.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use io::facts::DeviceId;

/// Divisor of a thread's buffer limit that gives the quota limit per disk. The buffer limit is a quarter of the memory
/// limit, so the quota limit is a sixteenth of the memory limit. Without a memory limit it is 64 MiB, more than any disk
/// needs to be busy.
const LIMIT_DIVISOR: u64 = 4;

thread_local! {
    static QUEUES: RefCell<Vec<DiskQueue>> = const { RefCell::new(Vec::new()) };
}

/// The memory that bytes are read into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Into {
    /// The page cache; residency is probed afterwards.
    PageCache,
    /// Chunks of shared memory (`aio_sendfile`).
    Shared,
}

/// A disk, and the kind of memory that it is read into.
type QueueKey = (DeviceId, Into);

/// The quotas of one disk, granted and requested.
struct DiskQueue {
    key: QueueKey,
    granted_bytes: u64,
    waiting: VecDeque<Rc<Waiter>>,
}

/// A body that waits for a quota.
struct Waiter {
    bytes: u64,
    is_granted: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

/// Permission to read this many bytes ahead; dropping it releases the quota.
pub(super) struct ReadQuota {
    key: QueueKey,
    waiter: Rc<Waiter>,
}

/// Waits for a quota of `bytes` for this disk.
pub(super) async fn acquire(device: DeviceId, into: Into, bytes: u64) -> ReadQuota {
    let key = (device, into);
    let waiter = Rc::new(Waiter { bytes, is_granted: Cell::new(false), waker: RefCell::default() });
    with_queue(key, |queue| queue.waiting.push_back(Rc::clone(&waiter)));
    serve(key);
    // If the caller drops this future while it waits, the drop of `quota` removes the waiter from the queue.
    let quota = ReadQuota { key, waiter };
    poll_fn(|context| {
        if quota.waiter.is_granted.get() {
            return Poll::Ready(());
        }
        quota.waiter.waker.replace(Some(context.waker().clone()));
        Poll::Pending
    })
    .await;
    quota
}

/// Grants quotas in order, as many as the limit allows, but at least one.
fn serve(key: QueueKey) {
    let bytes_max = bytes_max();
    let mut served = Vec::new();
    with_queue(key, |queue| {
        while let Some(waiter) = queue.waiting.front() {
            if queue.granted_bytes > 0 && queue.granted_bytes + waiter.bytes > bytes_max {
                break;
            }
            queue.granted_bytes += waiter.bytes;
            waiter.is_granted.set(true);
            served.extend(queue.waiting.pop_front());
        }
    });
    for waiter in served {
        if let Some(waker) = waiter.waker.take() {
            waker.wake();
        }
    }
}

/// Whether more than half of the limit is granted, or a body waits.
pub(super) fn is_scarce(device: DeviceId, into: Into) -> bool {
    with_queue((device, into), |queue| queue.granted_bytes > bytes_max() / 2 || !queue.waiting.is_empty())
}

fn bytes_max() -> u64 {
    rt::pool().bytes_max() / LIMIT_DIVISOR
}

fn with_queue<R>(key: QueueKey, use_it: impl FnOnce(&mut DiskQueue) -> R) -> R {
    QUEUES.with_borrow_mut(|queues| {
        // A linear search suffices, because a server has few disks.
        let at = queues.iter().position(|queue| queue.key == key).unwrap_or_else(|| {
            queues.push(DiskQueue { key, granted_bytes: 0, waiting: VecDeque::new() });
            queues.len() - 1
        });
        use_it(&mut queues[at])
    })
}

impl Drop for ReadQuota {
    fn drop(&mut self) {
        with_queue(self.key, |queue| match self.waiter.is_granted.get() {
            true => queue.granted_bytes -= self.waiter.bytes,
            false => queue.waiting.retain(|other| !Rc::ptr_eq(other, &self.waiter)),
        });
        serve(self.key);
    }
}
