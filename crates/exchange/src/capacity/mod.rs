//! The limits of a thread on open connections and descriptors, and the order in which it closes them when a limit is reached.
//!
//! Client connections and upstream connections share `worker_connections`, as in nginx. The process's descriptors have
//! a reserve for the files, upstreams and temporary files of accepted connections. If connections, descriptors or
//! receive buffers run out, the connections that cost least are closed first; `waiting` has the order.
//!
//! Connections to upstreams leave the last slots to clients. Requests without a slot for their upstream wait in a queue
//! (`slot_queue`), for about a second. A request fails earlier if no connection ends or can be closed in this time, and releases the slot
//! of its client connection. Otherwise a proxy that passes requests to itself would wait for itself.

mod descriptors;
mod slot_queue;
mod waiting;
mod windows;

use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

use io::Fd;
use rt::Timer;
use rt::local::{Counted, Event, WaitGroup};
use rt::net::Stopper;

use descriptors::Descriptors;
use slot_queue::{SlotQueue, Turn};
use telemetry::limited::Limited;
pub use waiting::Waits;
pub(crate) use waiting::{Entry, GRACE};
use waiting::{Lists, Rank, STALL};
pub use windows::{Share, WINDOWS_BYTES_MAX, Windows};

/// The exhausted resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// Connection slots of the thread (`worker_connections`).
    Connection,
    /// Descriptors of the process.
    Descriptor,
}

/// Divisor for the share of a thread's connections that upstreams leave to clients. nginx begins to close idle
/// connections when as few are free.
const CLIENTS_DIVISOR: usize = 16;

/// Maximum number of quiet connections closed in one call, and divisor for their share of all quiet connections
/// (nginx's numbers). With fewer, each accept would have to wait for a close.
const RECLAIMED_MAX: usize = 32;
const RECLAIMED_DIVISOR: usize = 8;

/// Divisor for the share of a thread's slots from which on also sends of short responses are observed.
const BUSY_DIVISOR: usize = 4;

/// Number of descriptors that an accepted connection may need: its socket, a file, an upstream, a temporary file.
const DESCRIPTORS_EACH: u64 = 4;

/// Bounds of the descriptor reserve for accepted connections, which is an eighth of the limit and never more than a
/// quarter.
const RESERVE_MIN: u64 = 16;
const RESERVE_MAX: u64 = 512;

/// Number of free slots that a multishot accept needs for each listening socket. The kernel may accept the complete
/// accept queue of the socket (default `backlog` 511), and further connections may arrive during that time.
const WIDE: usize = 1024;

/// Maximum number of bytes of the page cache that the send queue of a connection keeps whose client reads nothing: unsent bytes, a
/// packet of 64 KiB, a first window of 64 KiB, and the rest of the folio that these are a part of. The kernel reads a file into
/// folios of up to 2 MiB while memory is not fragmented, and evicts a folio only as a whole.
const PINNED_MAX: u64 = rt::net::UNSENT_MAX as u64 + (128 << 10) + (2 << 20);

/// Divisor for the share of a thread's memory limit that send queues may occupy with pages of files.
const PINNED_DIVISOR: u64 = 4;

/// Maximum number of handshakes of QUIC whose clients have not proved their address, and divisor for their share of a thread's slots. Forged
/// packets could otherwise occupy the slots and the memory of handshakes.
const UNVALIDATED_MAX: usize = 1000;
const UNVALIDATED_DIVISOR: usize = 4;

/// Interval of the search for connections to close, for changes without an event, such as a body that begins to stall.
const RECHECK_EVERY: Duration = Duration::from_millis(250);

/// Time after the last choice of a connection during which the chosen connections may not have ended yet. The end takes a few event-loop
/// turns; on a busy machine these take longer than [`GRACE`].
const ENDING: Duration = STALL;

/// Maximum time for which a request waits for a slot for its upstream: until the connections that are in use now can turn out to stall,
/// and until connections have been closed for the requests that came before.
const SLOT_WAIT_MAX: Duration = Duration::from_secs(3);

/// The limits of one thread, and its connections that may be closed.
pub struct Capacity {
    lists: Lists,
    began: Instant,
    /// Counts client connections and upstream connections.
    slots: WaitGroup,
    slots_max: usize,
    /// Number of connections so far.
    entered: Cell<u64>,
    /// Maximum number of connections since the last query.
    most: Cell<usize>,
    threads: u64,
    descriptors: Option<Descriptors>,
    /// Number of free descriptors at the last count, and number of accepts since.
    free_at_count: Cell<u64>,
    accepted_since: Cell<u64>,
    /// Requests that wait for a slot for their upstream.
    slot_queue: SlotQueue,
    /// Time at which a connection was last chosen to be closed.
    chosen_at: Cell<Option<Instant>>,
    /// Whether accepting waits for a free slot.
    is_awaited: Cell<bool>,
    changed: Event,
    listeners: RefCell<Vec<Stopper>>,
    /// Counts requests for disk space in flight.
    pub(crate) making: WaitGroup,
    /// Counts request bodies that stay in memory for lack of a temporary file.
    pub bodies: WaitGroup,
    /// Counts handshakes of QUIC whose clients have not proved their address.
    pub unvalidated: WaitGroup,
    /// Rate limits of the log lines about exhausted resources.
    pub alarms: Alarms,
    /// The memory for bodies over HTTP/2.
    pub windows: Windows,
}

/// Rate limits of error log lines that a flood would repeat.
#[derive(Default)]
pub struct Alarms {
    /// `worker_connections` is reached.
    pub connections: Limited,
    /// `worker_connections` is reached, for a connection to an upstream.
    pub upstreams: Limited,
    /// The limit of descriptors is reached.
    pub descriptors: Limited,
    /// The limit of buffers is reached.
    pub buffers: Limited,
    /// The limit of windows is reached.
    pub windows: Limited,
    /// A temporary file cannot be created or written.
    pub temp_files: Limited,
    /// The sandbox refuses a path or a port.
    pub sandbox: Limited,
}

impl Capacity {
    /// Creates the limits of one of `threads` threads.
    pub fn new(slots_max: usize, threads: usize) -> Capacity {
        Capacity {
            lists: Lists::default(),
            began: rt::now(),
            slots: WaitGroup::new(),
            slots_max: slots_max.max(1),
            entered: Cell::new(0),
            most: Cell::new(0),
            threads: threads.max(1) as u64,
            descriptors: Descriptors::open(),
            free_at_count: Cell::new(0),
            accepted_since: Cell::new(0),
            slot_queue: SlotQueue::new(),
            chosen_at: Cell::new(None),
            is_awaited: Cell::new(false),
            changed: Event::new(),
            listeners: RefCell::default(),
            making: WaitGroup::new(),
            bodies: WaitGroup::new(),
            unvalidated: WaitGroup::new(),
            alarms: Alarms::default(),
            windows: Windows::default(),
        }
    }

    /// Takes a slot for a connection, until the result is dropped.
    pub fn enter(&self) -> Counted {
        let counted = self.slots.enter();
        self.entered.set(self.entered.get() + 1);
        self.most.set(self.most.get().max(self.slots.count()));
        counted
    }

    /// Sets the sockets that this thread accepts from.
    pub fn set_listeners(&self, listeners: Vec<Stopper>) {
        self.listeners.replace(listeners);
    }

    /// Registers a connection as waiting while the result lives. It may be chosen to be closed; then its timer expires.
    pub fn waits(&self, kind: Waits, timer: &Timer, socket: &Fd) -> Waiting<'_> {
        self.waits_since(kind, timer, socket, rt::now())
    }

    /// Registers a connection as [`Capacity::waits`] does, for a wait that began earlier.
    pub fn waits_since(&self, kind: Waits, timer: &Timer, socket: &Fd, since: Instant) -> Waiting<'_> {
        Waiting { capacity: self, entry: self.begin_wait(kind, timer, Some(socket), since) }
    }

    /// Registers a connection that waits. Without a socket, which may be shared, its client is taken for silent.
    pub(crate) fn begin_wait(
        &self,
        kind: Waits,
        timer: &Timer,
        socket: Option<&Fd>,
        since: Instant,
    ) -> Entry {
        let entry = self.lists.insert(kind, timer, socket, self.ms_at(since), None);
        if self.is_awaited.get() {
            self.changed.pulse();
        }
        entry
    }

    /// Removes a connection that was registered by [`Capacity::begin_wait`].
    pub(crate) fn end_wait(&self, entry: Entry) {
        self.lists.remove(entry);
        // Other connections may be closed as soon as no new connection can turn out to be silent.
        if self.is_awaited.get() && !self.lists.has_firsts() {
            self.changed.pulse();
        }
    }

    /// Registers a connection that has sent `progress` bytes and whose client reads nothing at present. Its timer expires when it is
    /// chosen to be closed.
    pub(crate) fn begin_stall(&self, timer: &Timer, socket: &Fd, progress: u64) -> Entry {
        self.lists.insert(Waits::Reads, timer, Some(socket), self.now_ms(), Some(progress))
    }

    /// Removes a connection that was registered by [`Capacity::begin_stall`].
    pub(crate) fn end_stall(&self, entry: Entry) {
        self.lists.remove(entry);
    }

    /// Whether a registered connection has to end in favour of another.
    pub(crate) fn is_chosen(&self, entry: Entry) -> bool {
        self.lists.is_chosen(entry)
    }

    /// Wakes connections that wait for a request: all, or the idle ones only.
    pub fn wake(&self, wanted: impl Fn(Waits) -> bool) {
        self.lists.wake(|kind| matches!(kind, Waits::First | Waits::Idle | Waits::Protected) && wanted(kind));
    }

    /// Whether an accept may return as many connections as the kernel has queued.
    pub fn is_wide(&self) -> bool {
        let wide = WIDE * self.listeners.borrow().len();
        let free = self
            .free_at_count
            .get()
            .saturating_sub(self.accepted_since.get() * DESCRIPTORS_EACH * self.threads);
        let has_descriptors = self.descriptors.is_none() || free >= self.reserve() + wide as u64;
        self.free_slots() >= wide && has_descriptors
    }

    /// Returns the number of open connections, including those to upstreams, and the maximum since the last call.
    pub fn connections(&self) -> (usize, usize) {
        let count = self.slots.count();
        (count, self.most.replace(count))
    }

    /// Whether the memory limit, if there is one, permits that each connection sends files from the page cache. Pages in the send queue of
    /// a socket cannot be evicted, and a client that reads nothing keeps them there, also those of several short responses.
    pub(crate) fn may_send_pages(&self) -> bool {
        let pinned = PINNED_MAX * self.slots.count() as u64;
        rt::caps().memory_max.is_none_or(|limit| pinned <= limit / PINNED_DIVISOR)
    }

    /// Releases unused memory of the lists, and submits the accepts again: an old accept may occupy a slot at the end of
    /// the thread's operation table, which then cannot shrink.
    pub async fn trim(&self) {
        self.lists.trim();
        self.listeners.borrow().iter().for_each(Stopper::rearm);
        // One turn for the cancellation, another for the new accept.
        rt::yield_now().await;
        rt::yield_now().await;
    }

    /// Counts an accepted connection.
    pub fn count_accepted(&self) {
        self.accepted_since.set(self.accepted_since.get() + 1);
    }

    /// Returns the resource that is missing for one more accepted connection. Queries the number of free descriptors
    /// from the kernel if it is uncertain.
    pub fn exhausted(&self) -> Option<Resource> {
        if self.free_slots() <= self.slot_queue.held() {
            return Some(Resource::Connection);
        }
        let Some(descriptors) = &self.descriptors else { return None };
        let needed = (self.accepted_since.get() + 1) * DESCRIPTORS_EACH * self.threads;
        if self.free_at_count.get() < self.reserve() + needed {
            self.free_at_count.set(descriptors.free());
            self.accepted_since.set(0);
        }
        (self.free_at_count.get() <= self.reserve()).then_some(Resource::Descriptor)
    }

    /// Whether a handshake may begin whose client has not proved its address.
    pub fn admits_unvalidated(&self) -> bool {
        let most = UNVALIDATED_MAX.min((self.slots_max / UNVALIDATED_DIVISOR).max(1));
        self.unvalidated.count() < most && self.free_slots() > self.slot_queue.held()
    }

    fn reserve(&self) -> u64 {
        let limit = self.descriptors.as_ref().map_or(0, Descriptors::limit);
        (limit / 8).clamp(RESERVE_MIN, RESERVE_MAX).min(limit / 4)
    }

    /// Returns the log line about an exhausted resource, unless it was logged recently.
    pub(crate) fn alarm(&self, resource: Resource) -> Option<String> {
        let alarm = match resource {
            Resource::Connection => &self.alarms.connections,
            Resource::Descriptor => &self.alarms.descriptors,
        };
        let more = alarm.due(rt::now())?;
        Some(match resource {
            Resource::Connection => format!("{} worker_connections are not enough{more}", self.slots_max),
            Resource::Descriptor => {
                let limit = self.descriptors.as_ref().map_or(0, Descriptors::limit);
                format!(
                    "{limit} descriptors are not enough, no connection is accepted until one is free{more}"
                )
            }
        })
    }

    /// Whether so many slots are in use that responses which stall may soon be in the way of other clients.
    pub fn is_busy(&self) -> bool {
        self.slots.count() >= self.slots_max / BUSY_DIVISOR
    }

    /// Waits until a slot may be free.
    pub(crate) async fn changed(&self) {
        self.is_awaited.set(true);
        let pause = if self.has_silent() { GRACE } else { RECHECK_EVERY };
        let until = rt::sleep_until(rt::now() + pause);
        let ended = rt::select(self.slots.at_most(self.slots.count().saturating_sub(1)), self.changed.wait());
        rt::select(ended, until).await;
        self.is_awaited.set(false);
    }

    /// Returns the number of slots that upstreams leave to clients.
    fn slots_for_clients(&self) -> usize {
        self.slots_max / CLIENTS_DIVISOR
    }

    /// Returns the number of connections that have to end before there is a slot for an upstream.
    pub(crate) fn missing_for_upstream(&self) -> usize {
        (self.slots_for_clients() + 1).saturating_sub(self.free_slots())
    }

    /// Takes a slot for a connection to an upstream, if there is one and no other request waits for it.
    pub(crate) fn enter_for_upstream(&self) -> Option<Counted> {
        (self.missing_for_upstream() == 0 && self.slot_queue.is_empty()).then(|| self.enter())
    }

    /// Waits until this request is the first that gets a slot for its upstream; `None` if this takes too long.
    pub(crate) async fn turn_for_upstream(
        &self,
        connection: Option<u64>,
        began: Instant,
    ) -> Option<Turn<'_>> {
        let turn = self.slot_queue.turn(connection, &self.changed);
        match rt::select(turn, rt::sleep_until(began + SLOT_WAIT_MAX)).await {
            rt::Either::Left(turn) => Some(turn),
            rt::Either::Right(()) => None,
        }
    }

    /// Returns the number of connections that have ended so far.
    pub(crate) fn ended(&self) -> u64 {
        self.entered.get() - self.slots.count() as u64
    }

    /// Holds the slots of chosen connections for the first request, so that accepted connections do not take them.
    pub(crate) fn hold_for_upstream(&self, turn: &Turn<'_>, chosen: usize) {
        turn.hold(chosen, self.slots_for_clients() + 1);
    }

    /// Whether connections that were chosen to be closed may not have ended yet.
    pub(crate) fn is_ending(&self) -> bool {
        self.chosen_at.get().is_some_and(|at| rt::now() < at + ENDING)
    }

    /// Waits until there may be a slot for an upstream connection, or a connection to close for it.
    pub(crate) async fn changed_for_upstream(&self) {
        let enough = self.slots.count().saturating_sub(self.missing_for_upstream());
        rt::select(self.slots.at_most(enough), rt::sleep_until(rt::now() + GRACE)).await;
    }

    /// Whether a slot may become free soon for a request that has waited for this time: a chosen connection ends, or a present
    /// connection can be closed, if it turns out to stall or to be silent.
    pub(crate) fn may_free_slot(&self, waited: Duration) -> bool {
        let grace = if self.lists.has_stalls() { STALL + GRACE } else { GRACE };
        waited < SLOT_WAIT_MAX && (self.is_ending() || waited < grace)
    }

    /// Whether there are connections that may turn out to be silent.
    fn has_silent(&self) -> bool {
        self.lists.quiet() > 0
    }

    /// Chooses incomplete requests that stall, when buffers are scarce. Returns their number.
    pub(crate) fn end_stalled(&self) -> usize {
        let now_ms = self.now_ms();
        let choose = |rank| self.lists.choose(rank, RECLAIMED_MAX, STALL, now_ms);
        choose(Rank::Head) + choose(Rank::Body)
    }

    fn free_slots(&self) -> usize {
        self.slots_max.saturating_sub(self.slots.count())
    }

    fn now_ms(&self) -> u32 {
        self.ms_at(rt::now())
    }

    /// Returns the time in ms since the thread's start.
    fn ms_at(&self, time: Instant) -> u32 {
        time.saturating_duration_since(self.began).as_millis() as u32
    }

    /// Chooses connections that are closed when their tasks run next, at least `wanted` if there are as many quiet ones. `close_idle`
    /// closes an idle connection to an upstream.
    pub(crate) fn reclaim(&self, wanted: usize, close_idle: impl FnOnce() -> bool) -> Chosen {
        let chosen = self.choose(wanted, close_idle);
        debug_assert!(chosen.clients <= RECLAIMED_MAX, "one call closes a limited number of connections");
        if chosen.total() > 0 {
            self.chosen_at.set(Some(rt::now()));
        }
        chosen
    }

    /// Chooses connections that linger after their last response. An idle connection of HTTP/2 that was chosen lingers until its client has
    /// closed it, so this ends it.
    pub(crate) fn choose_lingering(&self, wanted: usize) -> usize {
        let chosen =
            self.lists.choose(Rank::Lingering, wanted.clamp(1, RECLAIMED_MAX), Duration::ZERO, self.now_ms());
        if chosen > 0 {
            self.chosen_at.set(Some(rt::now()));
        }
        chosen
    }

    fn choose(&self, wanted: usize, close_idle: impl FnOnce() -> bool) -> Chosen {
        let lingering = self.choose_lingering(wanted);
        if lingering > 0 {
            return Chosen { clients: lingering, upstreams: 0 };
        }
        let now_ms = self.now_ms();
        let most = (self.lists.quiet() / RECLAIMED_DIVISOR).max(wanted).clamp(1, RECLAIMED_MAX);
        let quiet = self.lists.choose(Rank::Quiet, most, Duration::ZERO, now_ms);
        if quiet > 0 {
            return Chosen { clients: quiet, upstreams: 0 };
        }
        if close_idle() {
            return Chosen { clients: 0, upstreams: 1 };
        }
        // A connection that was just accepted may turn out to be silent soon. Idle connections are no reason to wait: clients that send
        // their requests one after another would always have some that are too young to be closed.
        if self.lists.has_firsts() {
            return Chosen::default();
        }
        let mut ranks = [Rank::Head, Rank::Body, Rank::Reads].into_iter();
        let any = ranks.any(|rank| self.lists.choose(rank, 1, Duration::ZERO, now_ms) > 0);
        Chosen { clients: usize::from(any), upstreams: 0 }
    }
}

/// Number of connections that were chosen to be closed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Chosen {
    pub(crate) clients: usize,
    pub(crate) upstreams: usize,
}

impl Chosen {
    pub(crate) fn total(self) -> usize {
        self.clients + self.upstreams
    }
}

/// A registered connection, which may be chosen to be closed.
pub struct Waiting<'a> {
    capacity: &'a Capacity,
    entry: Entry,
}

impl Waiting<'_> {
    /// Whether the connection has to end in favour of another.
    pub fn is_chosen(&self) -> bool {
        self.capacity.lists.is_chosen(self.entry)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.capacity.end_wait(self.entry);
    }
}
