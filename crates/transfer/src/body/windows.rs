//! Who of many bodies has the kernel read ahead into the page cache, or into shared memory, and how much at once.
//!
//! Pages that are read for one body push out those of another where a control group limits memory, and a page that goes
//! before it is sent is read twice. So what is on its way from a disk is limited for each thread and each disk: a body asks
//! for a window, holds it until the bytes have come, and gives it back before they are sent. Who asks first is served
//! first. A disk that hangs holds its own windows, and no buffer that others wait for. Shared memory is no one else's until
//! it is sent, so its windows are held until then, and bodies take turns where they are short.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use io::op::DeviceId;

/// The part of what the thread may take for buffers that may be on its way from one disk. Of a quarter of the memory limit
/// it is a sixteenth of the limit; without one 64 MiB, more than any disk needs to be busy.
const PART: u64 = 4;

thread_local! {
    static LANES: RefCell<Vec<Lane>> = const { RefCell::new(Vec::new()) };
}

/// What bytes are read into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Into {
    /// The page cache, which is asked whether they have stayed.
    PageCache,
    /// Chunks of shared memory (`aio_sendfile`).
    Shared,
}

/// A disk, and what is read into.
type Way = (DeviceId, Into);

/// The windows of one disk.
struct Lane {
    way: Way,
    lent_bytes: u64,
    waiting: VecDeque<Rc<Ask>>,
}

/// Somebody in line.
struct Ask {
    bytes: u64,
    is_granted: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

/// Leave to have so many bytes read into the page cache, until it is dropped.
pub(super) struct Window {
    way: Way,
    ask: Rc<Ask>,
}

/// Waits for a window of so many bytes of this disk.
pub(super) async fn window(device: DeviceId, into: Into, bytes: u64) -> Window {
    let way = (device, into);
    let ask = Rc::new(Ask { bytes, is_granted: Cell::new(false), waker: RefCell::default() });
    with_lane(way, |lane| lane.waiting.push_back(Rc::clone(&ask)));
    serve(way);
    // Dropped while it waits, it leaves the line.
    let window = Window { way, ask };
    poll_fn(|context| {
        if window.ask.is_granted.get() {
            return Poll::Ready(());
        }
        window.ask.waker.replace(Some(context.waker().clone()));
        Poll::Pending
    })
    .await;
    window
}

/// Grants windows to those who are first in line, as many as there is room for, and at least one.
fn serve(way: Way) {
    let most = most();
    let mut served = Vec::new();
    with_lane(way, |lane| {
        while let Some(ask) = lane.waiting.front() {
            if lane.lent_bytes > 0 && lane.lent_bytes + ask.bytes > most {
                break;
            }
            lane.lent_bytes += ask.bytes;
            ask.is_granted.set(true);
            served.extend(lane.waiting.pop_front());
        }
    });
    for ask in served {
        if let Some(waker) = ask.waker.take() {
            waker.wake();
        }
    }
}

/// Whether more than half of the windows are lent, or somebody waits for one.
pub(super) fn are_short(device: DeviceId, into: Into) -> bool {
    with_lane((device, into), |lane| lane.lent_bytes > most() / 2 || !lane.waiting.is_empty())
}

fn most() -> u64 {
    rt::pool().bytes_max() / PART
}

fn with_lane<R>(way: Way, use_it: impl FnOnce(&mut Lane) -> R) -> R {
    LANES.with_borrow_mut(|lanes| {
        // A server has few disks.
        let at = lanes.iter().position(|lane| lane.way == way).unwrap_or_else(|| {
            lanes.push(Lane { way, lent_bytes: 0, waiting: VecDeque::new() });
            lanes.len() - 1
        });
        use_it(&mut lanes[at])
    })
}

impl Drop for Window {
    fn drop(&mut self) {
        with_lane(self.way, |lane| match self.ask.is_granted.get() {
            true => lane.lent_bytes -= self.ask.bytes,
            false => lane.waiting.retain(|other| !Rc::ptr_eq(other, &self.ask)),
        });
        serve(self.way);
    }
}
