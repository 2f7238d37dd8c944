//! The limits of a thread on open connections and descriptors, and the order in which it closes them to make room.
//!
//! Connections of clients and connections to upstreams share `worker_connections`, as in nginx. The process's
//! descriptors have a reserve, which files, upstreams and temporary files of accepted connections use. Where either runs
//! out, or buffers for received bytes do, the connections that cost least are given up first; `waiting` has the order.
//!
//! A thread stops accepting before it takes the last places for upstreams away from itself: a request that is refused
//! an upstream ends soon, and gives its place back. Without that, a proxy that passes to itself waits for itself.

mod descriptors;
pub mod disk;
mod giver;
mod waiting;
mod windows;

use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

use io::Fd;
use rt::Timer;
use rt::local::{Counted, Event, WaitGroup};
use rt::net::Stopper;

use descriptors::Descriptors;
pub use disk::DiskRoom;
pub use giver::GivesRoom;
use telemetry::limited::Limited;
pub(crate) use waiting::GRACE;
pub use waiting::Waits;
use waiting::{Entry, Lists, Rank, STALL};
pub use windows::{Window, Windows};

/// The exhausted resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// Another connection (`worker_connections`).
    Connection,
    /// Another descriptor.
    Descriptor,
}

/// Of the connections of a thread, the part that upstreams leave to clients: nginx begins to close idle connections
/// when as few are free.
const CLIENTS_PART: usize = 16;

/// Quiet connections that are given up at once at most, and the part of all that this is (nginx's numbers). Each
/// accept would have to wait for one otherwise.
const GIVEN_UP_MAX: usize = 32;
const GIVEN_UP_PART: usize = 8;

/// Descriptors that an accepted connection may need: its own, a file, an upstream, a temporary file.
const DESCRIPTORS_EACH: u64 = 4;

/// Descriptors that are left to accepted connections: an eighth, within these bounds, and never more than a quarter.
const RESERVE_MIN: u64 = 16;
const RESERVE_MAX: u64 = 512;

/// Free places from which on an accept may stay armed in the ring: the kernel empties the whole queue of a listening
/// socket then (default `backlog` 511), and more may come meanwhile.
const WIDE: usize = 1024;

/// Interval of the search for room, for changes without an event, such as a body that begins to stall.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// The room of one thread.
pub struct Room {
    lists: Lists,
    began: Instant,
    /// Connections of clients and to upstreams.
    places: WaitGroup,
    places_max: usize,
    /// The most since the last look.
    most: Cell<usize>,
    threads: u64,
    descriptors: Option<Descriptors>,
    /// Descriptors that were free when they were counted last, and accepts since.
    free_then: Cell<u64>,
    accepted_since: Cell<u64>,
    /// Whether accepting waits for room.
    is_awaited: Cell<bool>,
    changed: Event,
    listeners: RefCell<Vec<Stopper>>,
    /// Requests for room on a file system in flight.
    making: WaitGroup,
    /// Bodies of requests that are in memory for lack of a temporary file.
    pub bodies: WaitGroup,
    /// The log lines about them.
    pub alarms: Alarms,
    /// Bytes of request bodies that clients of HTTP/2 may send.
    pub windows: Windows,
}

/// Lines of the error log that a flood would repeat.
#[derive(Default)]
pub struct Alarms {
    /// At `worker_connections`.
    pub connections: Limited,
    /// At `worker_connections`, for a connection to another server.
    pub upstreams: Limited,
    /// At the limit of descriptors.
    pub descriptors: Limited,
    /// At the limit of buffers.
    pub buffers: Limited,
    /// Where a temporary file cannot be made or written.
    pub temp_files: Limited,
}

impl Room {
    /// The room of one of this many threads.
    pub fn new(places_max: usize, threads: usize) -> Room {
        Room {
            lists: Lists::default(),
            began: rt::now(),
            places: WaitGroup::new(),
            places_max: places_max.max(1),
            most: Cell::new(0),
            threads: threads.max(1) as u64,
            descriptors: Descriptors::open(),
            free_then: Cell::new(0),
            accepted_since: Cell::new(0),
            is_awaited: Cell::new(false),
            changed: Event::new(),
            listeners: RefCell::default(),
            making: WaitGroup::new(),
            bodies: WaitGroup::new(),
            alarms: Alarms::default(),
            windows: Windows::default(),
        }
    }

    /// A place for a connection, until the response is dropped.
    pub fn enter(&self) -> Counted {
        let counted = self.places.enter();
        self.most.set(self.most.get().max(self.places.count()));
        counted
    }

    /// Sets the sockets that this thread accepts from.
    pub fn set_listeners(&self, listeners: Vec<Stopper>) {
        self.listeners.replace(listeners);
    }

    /// Marks a connection as waiting while the response lives: it may be chosen to make room, which ends its timer.
    pub fn waits(&self, kind: Waits, timer: &Timer, socket: &Fd) -> Waiting<'_> {
        let entry = self.lists.insert(kind, timer, socket, self.now_ms());
        if self.is_awaited.get() {
            self.changed.pulse();
        }
        Waiting { room: self, entry }
    }

    /// Wakes connections that wait for a request: all, or the idle ones only.
    pub fn wake(&self, wanted: impl Fn(Waits) -> bool) {
        self.lists.wake(|kind| matches!(kind, Waits::First | Waits::Idle) && wanted(kind));
    }

    /// Whether an accept may bring in as many connections as the kernel has.
    pub fn is_wide(&self) -> bool {
        let wide = WIDE * self.listeners.borrow().len();
        let free =
            self.free_then.get().saturating_sub(self.accepted_since.get() * DESCRIPTORS_EACH * self.threads);
        let has_descriptors = self.descriptors.is_none() || free >= self.reserve() + wide as u64;
        self.free_places() >= wide && has_descriptors
    }

    /// Connections that are open, those to upstreams included, and the most that there were since the last call.
    pub fn connections(&self) -> (usize, usize) {
        let count = self.places.count();
        (count, self.most.replace(count))
    }

    /// Frees memory of lists that were longer, and the state that keeps longer tables elsewhere.
    pub async fn trim(&self) {
        self.lists.trim();
        self.listeners.borrow().iter().for_each(Stopper::rearm);
        // One turn for the cancellation, one for the new accept.
        rt::yield_now().await;
        rt::yield_now().await;
    }

    /// A connection was accepted.
    pub fn count_accepted(&self) {
        self.accepted_since.set(self.accepted_since.get() + 1);
    }

    /// The resource that one more accepted connection would lack. Fetches the number of free descriptors from the
    /// kernel if it is not certain.
    pub fn lacks(&self) -> Option<Want> {
        if self.free_places() == 0 {
            return Some(Want::Connection);
        }
        let Some(descriptors) = &self.descriptors else { return None };
        let needed = (self.accepted_since.get() + 1) * DESCRIPTORS_EACH * self.threads;
        if self.free_then.get() < self.reserve() + needed {
            self.free_then.set(descriptors.free());
            self.accepted_since.set(0);
        }
        (self.free_then.get() <= self.reserve()).then_some(Want::Descriptor)
    }

    fn reserve(&self) -> u64 {
        let limit = self.descriptors.as_ref().map_or(0, Descriptors::limit);
        (limit / 8).clamp(RESERVE_MIN, RESERVE_MAX).min(limit / 4)
    }

    /// The log line about a lack, unless it was written just now.
    pub(crate) fn alarm(&self, want: Want) -> Option<String> {
        let alarm = match want {
            Want::Connection => &self.alarms.connections,
            Want::Descriptor => &self.alarms.descriptors,
        };
        let more = alarm.due(rt::now())?;
        Some(match want {
            Want::Connection => format!("{} worker_connections are not enough{more}", self.places_max),
            Want::Descriptor => {
                let limit = self.descriptors.as_ref().map_or(0, Descriptors::limit);
                format!(
                    "{limit} descriptors are not enough, no connection is accepted until one is free{more}"
                )
            }
        })
    }

    /// Waits until there may be room.
    pub(crate) async fn changed(&self) {
        self.is_awaited.set(true);
        let pause = if self.has_quiet() { GRACE } else { LOOK_AGAIN };
        let until = rt::sleep_until(rt::now() + pause);
        let ended =
            rt::select(self.places.at_most(self.places.count().saturating_sub(1)), self.changed.wait());
        rt::select(ended, until).await;
        self.is_awaited.set(false);
    }

    /// Places that upstreams leave to clients.
    pub(crate) fn places_for_clients(&self) -> usize {
        self.places_max / CLIENTS_PART
    }

    /// Whether a connection to an upstream leaves enough places to clients.
    pub(crate) fn has_place_for_upstream(&self) -> bool {
        self.free_places() > self.places_for_clients()
    }

    /// Whether there are connections that may turn out to be silent.
    pub(crate) fn has_quiet(&self) -> bool {
        self.lists.quiet() > 0
    }

    /// Chooses incomplete requests that stall, when buffers are short. Returns how many.
    pub(crate) fn end_stalled(&self) -> usize {
        let now_ms = self.now_ms();
        let choose = |rank| self.lists.choose(rank, GIVEN_UP_MAX, STALL, now_ms);
        choose(Rank::Head) + choose(Rank::Body)
    }

    fn free_places(&self) -> usize {
        self.places_max.saturating_sub(self.places.count())
    }

    fn now_ms(&self) -> u32 {
        rt::now().saturating_duration_since(self.began).as_millis() as u32
    }

    /// Chooses connections to be given up; whether there were any. They end when their tasks run.
    pub(crate) fn give_up(&self, give_up_idle: impl FnOnce() -> bool) -> bool {
        let now_ms = self.now_ms();
        let most = (self.lists.quiet() / GIVEN_UP_PART).clamp(1, GIVEN_UP_MAX);
        if self.lists.choose(Rank::Quiet, most, Duration::ZERO, now_ms) > 0 || give_up_idle() {
            return true;
        }
        // One that came just now may turn out to be silent in a moment.
        if self.lists.quiet() > 0 {
            return false;
        }
        [Rank::Head, Rank::Body]
            .into_iter()
            .any(|rank| self.lists.choose(rank, 1, Duration::ZERO, now_ms) > 0)
    }
}

/// A connection that may be chosen to make room.
pub struct Waiting<'a> {
    room: &'a Room,
    entry: Entry,
}

impl Waiting<'_> {
    /// Whether it has to end to make room for another.
    pub fn is_chosen(&self) -> bool {
        self.room.lists.is_chosen(self.entry)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.room.lists.remove(self.entry);
    }
}
