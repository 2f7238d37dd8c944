//! Active health checks: when each server of a group is checked, and what the results change. One thread of the process makes the
//! checks of all groups.
//!
//! ```text
//!            +------------- interval, jitter ------------+
//!            v                                           |
//!   start -> due -- a slot is free: probe -> result: Group::record_check
//! ```
//! The caller makes a probe ([`HealthCheck::probe`]). The number of probes in flight is limited ([`PROBES_MAX`]), so that servers
//! that do not respond take neither connections nor descriptors from requests. A check with many such servers leaves slots to
//! the other checks: it gets at most half of the slots that the others do not use.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use io::op::PeerAddr;
use rt::local::Event;

use exchange::error_log;
use exchange::thread::Thread;
use peers::Group;
use peers::health::{Check, CheckedServer, Health};
use telemetry::Level;
use telemetry::limited::Limited;

/// Maximum number of probes in flight in the process.
const PROBES_MAX: usize = 256;

/// Divisor for the share of `worker_connections` of the thread that probes may use.
const CONNECTIONS_DIVISOR: usize = 8;

/// One check of the servers of a group.
pub struct HealthCheck {
    /// The group.
    pub group: Arc<Group>,
    /// The rules for results.
    pub check: Check,
    /// Name of the `match` block, for messages; empty without one.
    pub name: String,
    /// Time between the end of a probe and the next one of the same server.
    pub interval: Duration,
    /// Maximum of the random time that is added to the interval.
    pub jitter: Duration,
    /// Port to connect to, instead of that of the server.
    pub port: Option<u16>,
    /// Makes one probe.
    pub probe: Box<dyn Fn(PeerAddr) -> Probing>,
}

/// A probe in flight.
pub type Probing = Pin<Box<dyn Future<Output = ProbeResult>>>;

/// Result of a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeResult {
    /// The server has passed.
    Passed,
    /// The server has failed, for this reason.
    Failed(String),
    /// This server could not make the probe, for this reason. The result says nothing about the upstream server.
    NotMade(String),
}

/// The checks of a configuration, made until this is dropped.
pub struct Checker {
    end: Rc<Event>,
}

impl Drop for Checker {
    fn drop(&mut self) {
        self.end.set();
    }
}

/// Starts to make these checks on this thread. `changed` is called whenever the health of a server has changed.
pub fn start(thread: &Rc<Thread>, checks: Vec<HealthCheck>, changed: &Rc<dyn Fn()>) -> Checker {
    let checker = Checker { end: Rc::new(Event::new()) };
    let connections = thread.thread_config().config.events().worker_connections as usize;
    let slots = Rc::new(ProbeSlots {
        max: (connections / CONNECTIONS_DIVISOR).clamp(1, PROBES_MAX),
        used: Cell::new(0),
        waiting: RefCell::default(),
    });
    for check in checks {
        let schedule = Rc::new(Schedule {
            thread: Rc::clone(thread),
            check,
            slots: Rc::clone(&slots),
            queue: RefCell::default(),
            known: RefCell::default(),
            version: Cell::new(None),
            in_flight: Cell::new(0),
            wake: Event::new(),
            not_made: Limited::default(),
            changed: Rc::clone(changed),
            end: Rc::clone(&checker.end),
        });
        rt::spawn(async move {
            let end = Rc::clone(&schedule.end);
            let _ = rt::select(end.wait(), schedule.run()).await;
        });
    }
    checker
}

/// The limit on probes in flight, which all checks share.
struct ProbeSlots {
    max: usize,
    used: Cell<usize>,
    /// Checks that found no slot, each at most once.
    waiting: RefCell<VecDeque<Event>>,
}

impl ProbeSlots {
    /// Takes a slot for a check that has `own` slots.
    fn take(&self, own: usize, wake: &Event) -> bool {
        debug_assert!(own <= self.used.get(), "the slots of one check are slots of all checks");
        let left = self.max - (self.used.get() - own).min(self.max);
        if own > 0 && own >= left.div_ceil(2) {
            // The end of one of its own probes wakes it.
            return false;
        }
        if self.used.get() >= self.max {
            self.waiting.borrow_mut().push_back(wake.clone());
            return false;
        }
        self.used.set(self.used.get() + 1);
        true
    }

    fn release(&self) {
        self.used.set(self.used.get() - 1);
        let next = self.waiting.borrow_mut().pop_front();
        next.into_iter().for_each(|wake| wake.set());
    }
}

/// The servers of one check, each with the time of its next probe.
struct Schedule {
    thread: Rc<Thread>,
    check: HealthCheck,
    slots: Rc<ProbeSlots>,
    queue: RefCell<BTreeMap<(Instant, u32), CheckedServer>>,
    /// IDs of the servers in the group.
    known: RefCell<HashSet<u32>>,
    /// The list of servers that `known` belongs to.
    version: Cell<Option<u32>>,
    in_flight: Cell<usize>,
    wake: Event,
    not_made: Limited,
    changed: Rc<dyn Fn()>,
    end: Rc<Event>,
}

impl Schedule {
    async fn run(self: Rc<Self>) {
        let updates = self.check.group.updates();
        let mut seen = updates.value();
        loop {
            self.wake.clear();
            self.refresh();
            let is_waiting = self.begin_due();
            let woken = rt::select(self.wake.wait(), updates.above(seen));
            let result = match self.first().filter(|_| !is_waiting) {
                Some((due, _)) => match rt::select(woken, rt::sleep_until(due)).await {
                    rt::Either::Left(woken) => Some(woken),
                    rt::Either::Right(()) => None,
                },
                None => Some(woken.await),
            };
            match result {
                Some(rt::Either::Right(Ok(value))) => seen = value,
                // The state of the group was replaced: a configuration without this check is in use.
                Some(rt::Either::Right(Err(rt::watch::Closed))) => return,
                Some(rt::Either::Left(())) | None => {}
            }
        }
    }

    /// Adds new servers, and removes those that the group no longer has.
    fn refresh(&self) {
        let group = &self.check.group;
        let version = Some(group.servers_version());
        if self.version.replace(version) == version {
            return;
        }
        let servers = group.servers_to_check();
        let ids: HashSet<u32> = servers.iter().map(|server| server.id).collect();
        let before = self.known.replace(ids);
        let (known, mut queue) = (self.known.borrow(), self.queue.borrow_mut());
        queue.retain(|(_, id), _| known.contains(id));
        for server in servers.into_iter().filter(|server| !before.contains(&server.id)) {
            // Servers that were checked before a reload are not checked all at the same time.
            let delay = if server.was_checked { random_below(self.check.interval) } else { Duration::ZERO };
            queue.insert((rt::now() + delay, server.id), server);
        }
    }

    /// Begins the probes that are due. Returns whether probes wait for a slot.
    fn begin_due(self: &Rc<Self>) -> bool {
        let now = rt::now();
        while let Some((due, id)) = self.first() {
            if due > now {
                return false;
            }
            if !self.slots.take(self.in_flight.get(), &self.wake) {
                return true;
            }
            let server = self.queue.borrow_mut().remove(&(due, id));
            let Some(server) = server else { return false };
            self.in_flight.set(self.in_flight.get() + 1);
            let slot = TakenSlot(Rc::clone(self));
            rt::spawn(async move {
                let schedule = Rc::clone(&slot.0);
                let probing = schedule.probe(&server);
                if let rt::Either::Right(result) = rt::select(schedule.end.wait(), probing).await {
                    schedule.finish(server, result);
                }
                drop(slot);
            });
        }
        false
    }

    /// Returns the time of the next probe, and the ID of its server.
    fn first(&self) -> Option<(Instant, u32)> {
        self.queue.borrow().first_key_value().map(|(&first, _)| first)
    }

    fn probe(&self, server: &CheckedServer) -> Probing {
        let address = match (&server.address, self.check.port) {
            (PeerAddr::Inet(address), Some(port)) => {
                PeerAddr::Inet(std::net::SocketAddr::new(address.ip(), port))
            }
            (address, _) => address.clone(),
        };
        (self.check.probe)(address)
    }

    /// Records a result, and schedules the next probe of the server.
    fn finish(&self, server: CheckedServer, result: ProbeResult) {
        let about = About { check: &self.check, server: &server };
        let record = |has_passed| {
            let HealthCheck { group, check, .. } = &self.check;
            group.record_check(server.id, check, has_passed, rt::now())
        };
        let log = |level, what: fmt::Arguments<'_>| error_log::write(&self.thread, level, what);
        let changed = match &result {
            ProbeResult::Passed => record(true),
            ProbeResult::Failed(_) => record(false),
            ProbeResult::NotMade(reason) => {
                if let Some(more) = self.not_made.due(rt::now()) {
                    log(Level::Alert, format_args!("a check could not be made: {reason}, {about}{more}"));
                }
                None
            }
        };
        match (changed, &result) {
            (Some(Health::Unhealthy), ProbeResult::Failed(reason)) => {
                log(Level::Warn, format_args!("peer is unhealthy: {reason}, {about}"));
            }
            (Some(Health::Healthy), _) => log(Level::Notice, format_args!("peer is healthy, {about}")),
            _ => {}
        }
        if changed.is_some() {
            (self.changed)();
        }
        if self.known.borrow().contains(&server.id) {
            let due = rt::now() + self.check.interval + random_below(self.check.jitter);
            self.queue.borrow_mut().insert((due, server.id), server);
        }
    }
}

/// A probe in flight; dropping it releases its slot.
struct TakenSlot(Rc<Schedule>);

impl Drop for TakenSlot {
    fn drop(&mut self) {
        let schedule = &self.0;
        schedule.in_flight.set(schedule.in_flight.get() - 1);
        schedule.slots.release();
        schedule.wake.set();
    }
}

/// Formats `health check "name" of peer 10.0.0.1:80 in upstream "back"`.
struct About<'a> {
    check: &'a HealthCheck,
    server: &'a CheckedServer,
}

impl fmt::Display for About<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let HealthCheck { name, group, port, .. } = self.check;
        write!(f, "health check \"{name}\" of peer {} in upstream \"{}\"", self.server.name, group.name)?;
        port.map_or(Ok(()), |port| write!(f, ", port {port}"))
    }
}

/// Returns a random time below a limit.
fn random_below(limit: Duration) -> Duration {
    // The keys of `RandomState` are seeded by the kernel's random generator, and differ for each call.
    let random = RandomState::new().hash_one(0) >> 32;
    limit.mul_f64(random as f64 / (1_u64 << 32) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_gets_half_of_the_slots_that_others_leave() {
        let slots = ProbeSlots { max: 8, used: Cell::new(0), waiting: RefCell::default() };
        let wake = Event::new();
        let fill = |mut own| {
            while slots.take(own, &wake) {
                own += 1;
            }
            own
        };
        let taken: Vec<usize> = (0..5).map(|_| fill(0)).collect();
        assert_eq!(taken, [4, 2, 1, 1, 0]);
        assert_eq!(slots.waiting.borrow().len(), 1, "the last one waits for any slot");
        slots.release();
        assert!(wake.is_set() && slots.take(0, &wake));
    }

    #[test]
    fn random_times_are_below_their_limit() {
        let limit = Duration::from_millis(3);
        assert!((0..100).all(|_| random_below(limit) < limit));
        assert_eq!(random_below(Duration::ZERO), Duration::ZERO);
    }
}
