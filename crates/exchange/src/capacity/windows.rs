//! Divides the memory of a thread for bodies over HTTP/2 among its connections.
//!
//! A window is a promise: the peer may fill it immediately, and its bytes stay in memory until they are consumed. A
//! [`Share`] counts both for one connection of a client, or for one response of an upstream: the bytes that the peer may
//! still send, and the bytes that were received and not consumed.
//!
//! * The first `base` bytes of each share are not counted here: they are a cost of the connection, as its socket is. So
//!   a request is never refused for lack of windows, however much other clients hold.
//! * Above it, a share may reserve an eighth of the free bytes. N greedy connections therefore leave 1 / (1 + N/8) of all
//!   bytes free, and a further connection can reserve as much as each of them.
//! * The responses of upstreams may reserve at most half of all bytes, of which each may reserve an eighth of the free ones.
//!   A window cannot be withdrawn, and the client of a response may be as silent as an idle call of gRPC: so responses are
//!   never cut off, and clients that do not read them leave the other half to the bodies of all clients.
//! * If a connection is stopped nevertheless before it has a mebibyte, connections that hold more than it and have sent
//!   nothing for a second are closed, the longest silent first.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::task::Waker;
use std::time::{Duration, Instant};

use rt::local::Event;
use transfer::recency::{ListSlot, Recency};

use super::waiting::STALL;

/// Maximum sum of all reserved bytes of a thread: as much as the default of `buffer_pool`.
pub const WINDOWS_BYTES_MAX: u64 = 256 << 20;

/// Maximum number of these bytes that responses of upstreams may reserve.
const UPSTREAMS_BYTES_MAX: u64 = WINDOWS_BYTES_MAX / 2;

/// Divisor of the free bytes that one share may reserve.
const SHARE_DIVISOR: u64 = 8;

/// Number of bytes below which a connection that gets no further window counts as stopped.
const STOPPED_BELOW: u64 = 16 << 10;

/// Number of bytes that a stopped connection may claim from others: enough for the windows of several bodies.
const CLAIM_MAX: u64 = 1 << 20;

/// Maximum number of connections that are compared, or closed, per search.
const CHECKS_MAX: usize = 64;
const CLOSED_MAX: usize = 8;

/// Minimum time between two searches for connections to close; released bytes are available again by then.
const SEARCH_EVERY: Duration = Duration::from_millis(100);

/// All shares of a thread.
#[derive(Clone, Default)]
pub struct Windows(Rc<Budget>);

#[derive(Default)]
struct Budget {
    /// Sum of the reserved bytes.
    reserved: Cell<u64>,
    /// The part of it that is reserved for responses of upstreams.
    reserved_upstreams: Cell<u64>,
    /// Shares of clients with reserved bytes; the one whose client has been silent longest is the oldest.
    listed: RefCell<Recency<Weak<Share>>>,
    /// Connections that got less than they need.
    waiting: RefCell<Vec<Weak<Share>>>,
    /// Set if a connection waits.
    shortage: Event,
    /// The fewest bytes that a stopped connection has reserved.
    stopped_reserved: Cell<Option<u64>>,
}

/// The bytes of one connection of a client, or of one response of an upstream.
pub struct Share {
    budget: Rc<Budget>,
    /// Number of bytes that are not counted.
    base: u64,
    reserved: Cell<u64>,
    /// Number of bytes that were received and not consumed.
    held: Cell<u64>,
    /// Time of the last received bytes.
    received_at: Cell<Instant>,
    slot: Cell<Option<ListSlot>>,
    /// Wakes the task of a client's connection, which may be closed. `None` for a response of an upstream.
    task: Option<Waker>,
    is_chosen: Cell<bool>,
    is_waiting: Cell<bool>,
    is_stopped: Cell<bool>,
    is_retried: Cell<bool>,
}

impl Windows {
    /// Creates the share of a connection of a client. `task` is woken if the connection was chosen to be closed, or if
    /// more bytes may be available.
    #[must_use]
    pub fn of_client(&self, base: u64, task: Waker) -> Rc<Share> {
        self.share(base, Some(task))
    }

    /// Creates the share of a response of an upstream.
    #[must_use]
    pub fn of_upstream(&self, base: u64) -> Rc<Share> {
        self.share(base, None)
    }

    fn share(&self, base: u64, task: Option<Waker>) -> Rc<Share> {
        Rc::new(Share {
            budget: Rc::clone(&self.0),
            base,
            reserved: Cell::new(0),
            held: Cell::new(0),
            received_at: Cell::new(rt::now()),
            slot: Cell::new(None),
            task,
            is_chosen: Cell::new(false),
            is_waiting: Cell::new(false),
            is_stopped: Cell::new(false),
            is_retried: Cell::new(false),
        })
    }

    /// Returns the number of reserved bytes.
    #[must_use]
    pub fn reserved(&self) -> u64 {
        self.0.reserved.get()
    }

    /// Waits until connections got less than they need, and chooses connections to be closed in favour of those that are
    /// stopped. Returns their number.
    pub async fn relieve(&self) -> usize {
        self.0.shortage.wait().await;
        self.0.shortage.clear();
        rt::sleep_until(rt::now() + SEARCH_EVERY).await;
        let chosen = self.0.choose(rt::now());
        // Connections that still get less than they need wait again.
        self.0.wake_waiting();
        chosen
    }
}

impl Budget {
    /// Returns the number of bytes that a client, or a response of an upstream, may still reserve.
    fn free(&self, is_upstream: bool) -> u64 {
        let free = WINDOWS_BYTES_MAX.saturating_sub(self.reserved.get());
        let of_upstreams = UPSTREAMS_BYTES_MAX.saturating_sub(self.reserved_upstreams.get());
        if is_upstream { free.min(of_upstreams) } else { free }
    }

    /// Counts that a share has reserved `bytes` instead of `before`.
    fn count(&self, before: u64, bytes: u64, is_upstream: bool) {
        debug_assert!(self.reserved.get() >= before, "the bytes before the change were counted");
        debug_assert!(
            !is_upstream || self.reserved_upstreams.get() >= before,
            "the bytes before the change were counted"
        );
        let sums = [Some(&self.reserved), is_upstream.then_some(&self.reserved_upstreams)];
        sums.into_iter().flatten().for_each(|sum| sum.set(sum.get() - before + bytes));
        debug_assert!(self.reserved.get() <= WINDOWS_BYTES_MAX, "shares reserve only free bytes");
        debug_assert!(
            self.reserved_upstreams.get() <= UPSTREAMS_BYTES_MAX,
            "responses leave half to clients"
        );
    }

    /// Chooses connections that hold more than a stopped one and have been silent for long.
    fn choose(&self, now: Instant) -> usize {
        let Some(least) = self.stopped_reserved.take() else { return 0 };
        let mut listed = self.listed.borrow_mut();
        let (mut chosen, mut next) = (0, listed.oldest());
        for _ in 0..CHECKS_MAX {
            let Some(slot) = next.filter(|_| chosen < CLOSED_MAX) else { break };
            next = listed.newer(slot);
            let Some(share) = listed[slot].upgrade() else { continue };
            let is_silent = now.saturating_duration_since(share.received_at.get()) >= STALL;
            if is_silent
                && share.reserved.get() > least
                && !share.is_stopped.get()
                && !share.is_chosen.replace(true)
            {
                share.wake();
                chosen += 1;
            } else {
                // The next search begins with other connections.
                listed.touch(slot);
            }
        }
        chosen
    }

    /// Wakes the connections that got less than they need.
    fn wake_waiting(&self) {
        for share in self.waiting.take().iter().filter_map(Weak::upgrade) {
            share.is_waiting.set(false);
            share.is_retried.set(true);
            share.wake();
        }
    }
}

impl Share {
    /// Returns the number of bytes that the peer may send. `wanted` is the number that it needs, `promised` the number
    /// that it may send already, which is never reduced.
    pub fn permit(self: &Rc<Self>, wanted: u64, promised: u64) -> u64 {
        let held = self.held.get();
        let needed = wanted.max(promised).saturating_add(held).saturating_sub(self.base);
        let least = (promised + held).saturating_sub(self.base);
        let mine = self.reserved.get();
        let most = self.budget.free(self.task.is_none()) / SHARE_DIVISOR;
        let reserved = needed.min(most).max(least.min(mine));
        self.reserve(reserved);
        let permitted = (self.base + reserved).saturating_sub(held).min(wanted).max(promised);
        self.is_stopped.set(permitted < wanted.min(STOPPED_BELOW));
        if permitted < wanted && self.task.is_some() {
            self.wait();
        }
        permitted
    }

    fn reserve(self: &Rc<Self>, bytes: u64) {
        let before = self.reserved.replace(bytes);
        self.budget.count(before, bytes, self.task.is_none());
        match (bytes > 0, self.slot.get()) {
            (true, None) if self.task.is_some() => {
                self.received_at.set(rt::now());
                let slot = self.budget.listed.borrow_mut().insert(Rc::downgrade(self));
                self.slot.set(Some(slot));
            }
            (false, Some(_)) => self.unlist(),
            _ => {}
        }
    }

    /// Releases the reserved bytes above this number, since the peer will not send more.
    pub fn limit_to(self: &Rc<Self>, bytes: u64) {
        self.reserve(self.reserved.get().min(bytes.saturating_sub(self.base)));
    }

    fn unlist(&self) {
        if let Some(slot) = self.slot.take() {
            drop(self.budget.listed.borrow_mut().remove(slot));
        }
    }

    /// Waits for more bytes.
    fn wait(self: &Rc<Self>) {
        if !self.is_waiting.replace(true) {
            self.budget.waiting.borrow_mut().push(Rc::downgrade(self));
        }
        let (stopped, mine) = (&self.budget.stopped_reserved, self.reserved.get());
        if self.is_stopped.get() && mine < CLAIM_MAX {
            stopped.set(Some(stopped.get().map_or(mine, |least| least.min(mine))));
        }
        self.budget.shortage.set();
    }

    fn wake(&self) {
        self.task.as_ref().into_iter().for_each(Waker::wake_by_ref);
    }

    /// Counts received bytes.
    pub fn hold(&self, bytes: usize) {
        self.held.set(self.held.get() + bytes as u64);
        if let Some(slot) = self.slot.get() {
            self.received_at.set(rt::now());
            self.budget.listed.borrow_mut().touch(slot);
        }
    }

    /// Counts bytes that were consumed or discarded.
    pub fn release(&self, bytes: usize) {
        assert!(bytes as u64 <= self.held.get(), "only reserved bytes are released");
        self.held.set(self.held.get() - bytes as u64);
    }

    /// Returns the number of bytes that were received and not consumed.
    #[must_use]
    pub fn held(&self) -> u64 {
        self.held.get()
    }

    /// Returns the number of reserved bytes.
    #[must_use]
    pub fn reserved(&self) -> u64 {
        self.reserved.get()
    }

    /// Whether the connection has to end in favour of another.
    #[must_use]
    pub fn is_chosen(&self) -> bool {
        self.is_chosen.get()
    }

    /// Whether the connection, which got less than it needs, should ask again; clears this state.
    #[must_use]
    pub fn is_retried(&self) -> bool {
        self.is_retried.replace(false)
    }

    /// Whether the connection got less than it needs, so that its client has to wait.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.is_stopped.get()
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.unlist();
        self.budget.count(self.reserved.get(), 0, self.task.is_none());
    }
}

#[cfg(test)]
mod tests {
    use io::engine::{EngineConfig, NetKind};

    use super::*;

    const BASE: u64 = 128 << 10;

    /// Runs a test with a clock.
    fn run(test: impl FnOnce(Windows)) {
        let engine = io::build(EngineConfig { net: NetKind::Epoll, ..EngineConfig::default() });
        rt::Runtime::new(engine.expect("epoll is everywhere")).block_on(async { test(Windows::default()) });
    }

    fn client(windows: &Windows) -> Rc<Share> {
        windows.of_client(BASE, Waker::noop().clone())
    }

    /// Whatever others have reserved, the first bytes of a connection are permitted, and a part of the free ones.
    #[test]
    fn greedy_connections_leave_windows_to_others() {
        run(|windows| {
            let greedy: Vec<_> = (0..64).map(|_| client(&windows)).collect();
            for _ in 0..10 {
                greedy.iter().for_each(|share| _ = share.permit(1 << 30, 0));
            }
            let free = WINDOWS_BYTES_MAX - windows.reserved();
            assert!((16 << 20..64 << 20).contains(&free), "{free}: about a ninth");
            let other = client(&windows);
            assert!(other.permit(2 << 20, BASE) == 2 << 20 && !other.is_stopped());
            let thousands: Vec<_> = (0..5000).map(|_| client(&windows)).collect();
            thousands.iter().for_each(|share| _ = share.permit(1 << 30, 0));
            assert!(windows.reserved() <= WINDOWS_BYTES_MAX);
            let last = client(&windows);
            assert!(last.permit(1 << 30, 0) >= BASE && !last.is_stopped());
            drop((greedy, other, thousands, last));
            assert_eq!(windows.reserved(), 0);
        });
    }

    /// Bytes that were received and are not consumed count as much as bytes that may still arrive.
    #[test]
    fn received_bytes_count_until_they_are_consumed() {
        run(|windows| {
            let share = client(&windows);
            assert_eq!((share.permit(1 << 20, BASE), windows.reserved()), (1 << 20, (1 << 20) - BASE));
            share.hold(1 << 20);
            assert_eq!((share.permit(1 << 20, 0), windows.reserved()), (1 << 20, (2 << 20) - BASE));
            share.release(1 << 20);
            assert_eq!(
                (share.permit(BASE, 1 << 20), windows.reserved()),
                (1 << 20, (1 << 20) - BASE),
                "promised"
            );
            assert_eq!((share.permit(BASE, 0), windows.reserved()), (BASE, 0));
        });
    }

    /// If a connection is stopped, one that holds more and is silent is closed.
    #[test]
    fn who_holds_much_and_sends_nothing_loses_first() {
        run(|windows| {
            let [silent, busy] = [0, 0].map(|_| client(&windows));
            for share in [&silent, &busy] {
                share.permit(16 << 20, 0);
            }
            let rest: Vec<_> = (0..30_000).map(|_| client(&windows)).collect();
            rest.iter().for_each(|share| _ = share.permit(1 << 20, 0));
            let stopped = client(&windows);
            stopped.hold(2 * BASE as usize);
            stopped.permit(1 << 20, 0);
            assert!(stopped.is_stopped());
            let later = rt::now() + STALL;
            busy.received_at.set(later);
            rest.iter().for_each(|share| share.received_at.set(later));
            assert_eq!(windows.0.choose(later), 1);
            assert!(silent.is_chosen() && !busy.is_chosen() && !stopped.is_chosen());
            drop(silent);
            windows.0.wake_waiting();
            assert!(stopped.is_retried() && stopped.permit(1 << 20, 0) > STOPPED_BELOW);
        });
    }

    /// However many responses nobody reads, bodies of clients have the other half, and a response its first bytes.
    #[test]
    fn responses_of_upstreams_leave_half_to_clients() {
        run(|windows| {
            let unread: Vec<_> = (0..5000).map(|_| windows.of_upstream(BASE)).collect();
            unread.iter().for_each(|share| assert!(share.permit(4 << 20, 0) >= BASE));
            let reserved = windows.reserved();
            assert!((UPSTREAMS_BYTES_MAX / 10 * 9..=UPSTREAMS_BYTES_MAX).contains(&reserved), "{reserved}");
            let client = client(&windows);
            client.hold(2 * BASE as usize);
            assert!(client.permit(4 << 20, 0) == 4 << 20 && !client.is_stopped());
            drop((unread, client));
            assert_eq!((windows.reserved(), windows.0.reserved_upstreams.get()), (0, 0));
        });
    }

    /// A response of an upstream whose length is known needs no more than this.
    #[test]
    fn a_response_reserves_no_more_than_its_length() {
        run(|windows| {
            let share = windows.of_upstream(BASE);
            assert_eq!((share.permit(4 << 20, 0), windows.reserved()), (4 << 20, (4 << 20) - BASE));
            share.limit_to(BASE + 1000);
            assert_eq!(windows.reserved(), 1000);
            share.limit_to(10);
            assert_eq!(windows.reserved(), 0);
        });
    }
}
