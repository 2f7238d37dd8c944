//! The threads of a worker process: their start, orders to them, and their end.
//!
//! [`Worker::start`] starts the threads. Each has its engine, its listening sockets and its connections, and an inbox
//! for orders: another configuration, other log files, a graceful or immediate end.

mod engine;
mod events;
mod key;
mod notes;
mod panics;
mod worker_thread;

use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use rt::mailbox;
use rt::thread::Setup;

use crate::memory::Ledger;
use crate::process::notes::Written;
use caching::inspect::EntryQuery;
pub use engine::Choice;
pub(crate) use engine::pools_for_rehearsal;
use events::{Events, InForce, Running, Turn};
use exchange::files::root_facts;
use exchange::module::ModuleTable;
use exchange::thread::ConfigVersion;
use frontend::quic::Forwards;
pub use frontend::quic::Steering;
pub use key::ProcessKey;
use modules::status::watch::{Filter, admits};
use peers::Upstreams;
use site::config::Config;
use site::settings::listen::ListenAddr;
use site::shared_zone::Zones;
use telemetry::shared::Shared;
use telemetry::watch::Watcher;
use upstream::names;
pub use worker_thread::ReportLines;
use worker_thread::{Order, Start};

/// Open descriptors that a worker process needs in addition to its configuration.
#[derive(Debug, Default)]
pub struct Resources {
    /// Listening sockets: one for each address, or one for each thread with `reuseport`.
    pub listeners: Vec<(ListenAddr, Vec<OwnedFd>)>,
    /// Open log files.
    pub logs: Vec<(PathBuf, OwnedFd)>,
    /// The sockets of QUIC that belong to the process, or to a thread.
    pub steering: Steering,
}

impl Resources {
    fn try_clone(&self) -> std::io::Result<Resources> {
        let mut copy = Resources { steering: self.steering, ..Resources::default() };
        for (address, fds) in &self.listeners {
            let fds: std::io::Result<Vec<OwnedFd>> = fds.iter().map(OwnedFd::try_clone).collect();
            copy.listeners.push((address.clone(), fds?));
        }
        for (path, fd) in &self.logs {
            copy.logs.push((path.clone(), fd.try_clone()?));
        }
        Ok(copy)
    }
}

/// The reason why threads could not be started, or did not execute an order.
#[derive(Debug)]
pub enum StartError {
    /// `use io_uring` although io_uring is not available.
    NoRing(io::probe::Fallback),
    /// A thread or its engine failed to start.
    Thread(rt::thread::StartError<io::BuildError>),
    /// A thread pool failed to start.
    Pool(io::disk::threads::PoolError),
    /// A descriptor could not be duplicated for a thread.
    Descriptor(std::io::Error),
    /// The arguments of `engine_fault` are invalid.
    Faults(io::fault::FaultParseError),
    /// A thread has ended or hangs.
    NoResponse,
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::NoRing(refusal) => {
                write!(f, "\"use io_uring\": likely cause: {}; remedy: {}", refusal.cause, refusal.remedy)
            }
            StartError::Thread(error) => error.fmt(f),
            StartError::Pool(error) => error.fmt(f),
            StartError::Descriptor(error) => {
                write!(f, "a descriptor could not be duplicated for a thread: {error}")
            }
            StartError::Faults(error) => write!(f, "\"engine_fault\": {error}"),
            StartError::NoResponse => f.write_str("a worker thread does not respond"),
        }
    }
}

impl std::error::Error for StartError {}

/// The reason why a worker's threads ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitReason {
    /// All threads ended as ordered.
    Ordered,
    /// A thread panicked.
    Panicked,
}

/// The threads of a worker process.
pub struct Worker {
    modules: &'static ModuleTable,
    threads: Vec<rt::thread::Worker<()>>,
    orders: Vec<mailbox::Sender<Order>>,
    choice: Choice,
    events: Arc<Events>,
    /// The number of the current configuration.
    newest: AtomicU64,
    /// State shared by the threads.
    shared: Arc<Shared>,
    /// The current configuration, whose zones the next one takes over.
    config: Mutex<Arc<Config>>,
}

/// Returns a version of the configuration for these modules; `events` reports the end of its use.
fn version(
    modules: &'static ModuleTable,
    config: &Arc<Config>,
    number: u64,
    events: &Arc<Events>,
) -> ConfigVersion {
    ConfigVersion::new(modules, config, root_facts(config), number, InForce::new(number, events))
}

/// Maximum number of queued orders per thread. A thread with more unprocessed orders hangs.
const ORDERS_MAX: usize = 64;

/// Maximum time until all threads have activated a configuration. Threads wait only in the engine, so a thread that
/// needs longer hangs.
const TAKE_TIME: Duration = Duration::from_secs(10);

/// Maximum size in bytes of the resolved addresses that are passed to another process: enough for some hundred names.
/// Further names are resolved again.
const ADDRESSES_MAX: usize = 32 << 10;

/// Maximum time that the engine of an ending thread waits for operations on a slow disk.
const DRAIN: Duration = Duration::from_secs(2);

impl Worker {
    /// Starts the threads. When the function returns, all threads accept connections. Must be called after privileges
    /// were dropped. `addresses` are the resolved names of another process ([`Worker::take_addresses`]).
    pub fn start(config: &Arc<Config>, resources: Resources, addresses: &str) -> Result<Worker, StartError> {
        Worker::start_with_modules(modules::all(), config, resources, addresses)
    }

    /// As [`Worker::start`], with the modules that read the configuration.
    pub fn start_with_modules(
        modules: &'static ModuleTable,
        config: &Arc<Config>,
        resources: Resources,
        addresses: &str,
    ) -> Result<Worker, StartError> {
        let choice = Choice::make(config)?;
        for block in config.sections() {
            block.of::<Upstreams>().begin_with(addresses);
        }
        let spare = resources.try_clone().map_err(StartError::Descriptor)?;
        let (worker, started) = Worker::start_threads(modules, config, choice, resources)?;
        let Err(error) = started else { return Ok(worker) };
        let second = worker.choice.without_ring(config, &error);
        // The threads started so far hold memory that the next attempt needs.
        worker.stop();
        worker.wait();
        let (worker, started) = Worker::start_threads(modules, config, second.ok_or(error)??, spare)?;
        started.map(|()| worker)
    }

    /// Starts the threads one after the other until a start fails. The threads begin to accept connections when all are
    /// started.
    fn start_threads(
        modules: &'static ModuleTable,
        config: &Arc<Config>,
        choice: Choice,
        resources: Resources,
    ) -> Result<(Worker, Result<(), StartError>), StartError> {
        rt::panics::note_places();
        let count = config.main().workers.count();
        let events = Events::new().map_err(|errno| StartError::Descriptor(errno.into()))?;
        config.http.zones.begin(&Zones::default());
        let version = version(modules, config, 1, &events);
        let shared = Arc::new(Shared::default());
        let for_lines = Arc::clone(&events);
        shared.watch.set_bell(move || for_lines.note_lines());
        let (memory, notes) = (Arc::new(Ledger::default()), Arc::new(Written::default()));
        let forwards = Arc::new(Forwards::default());
        let newest = AtomicU64::new(1);
        let (threads, orders, in_force) = (Vec::new(), Vec::new(), Mutex::new(Arc::clone(config)));
        let mut worker = Worker {
            modules,
            threads,
            orders,
            choice,
            events,
            newest,
            shared: Arc::clone(&shared),
            config: in_force,
        };
        for (number, part) in split(resources, count)?.into_iter().enumerate() {
            let (sender, orders) = mailbox::channel(ORDERS_MAX);
            let setup = Setup {
                name: format!("worker {number}"),
                cpus: config.main().affinity.of_thread(number),
                panic_hook: Some(panics::report),
            };
            let start = Start {
                shared: Arc::clone(&shared),
                memory: Arc::clone(&memory),
                notes: Arc::clone(&notes),
                version: version.clone(),
                resources: part,
                forwards: Arc::clone(&forwards),
                events: (number == 0).then(|| Arc::clone(&worker.events)),
                alone: count == 1,
                orders,
            };
            let engine = worker.choice.engine_config();
            let running = Running::new(&worker.events);
            let main = |refusal| async move {
                let _running = running;
                worker_thread::run(start, refusal).await;
            };
            let thread = rt::thread::start(setup, DRAIN, || io::build(engine), main);
            match thread {
                Ok(thread) => worker.threads.push(thread),
                Err(error) => return Ok((worker, Err(StartError::Thread(error)))),
            }
            worker.orders.push(sender);
        }
        for orders in &worker.orders {
            // A thread that does not receive the order has panicked, which is reported as usual.
            let _ = send(orders, Order::Begin);
        }
        Ok((worker, Ok(())))
    }

    /// Returns the engine in use, with its description for the log.
    pub fn engine(&self) -> &Choice {
        &self.choice
    }

    /// Activates another configuration with the same process key, and waits until no thread starts a request under the
    /// old configuration. `resources` has the sockets of new addresses and all log files; sockets of removed addresses
    /// are closed. Returns the configuration's number, which [`Worker::take_retired`] reports later. After
    /// [`StartError::Descriptor`] the old configuration is still active. After any other error some threads may use the
    /// new configuration and others the old one, so the process should exit.
    pub fn reload(&self, config: &Arc<Config>, resources: Resources) -> Result<u64, StartError> {
        let count = self.orders.len();
        let parts = split(resources, count)?;
        let number = self.newest.load(Ordering::Relaxed) + 1;
        let mut in_force = self.config.lock().unwrap_or_else(PoisonError::into_inner);
        config.http.zones.begin(&in_force.http.zones);
        for (block, before) in config.sections().into_iter().zip(in_force.sections()) {
            block.of::<Upstreams>().begin(before.of::<Upstreams>());
        }
        names::begin(config, &in_force);
        *in_force = Arc::clone(config);
        drop(in_force);
        let version = version(self.modules, config, number, &self.events);
        let (taken, answers) = mpsc::sync_channel(count);
        for (orders, resources) in self.orders.iter().zip(parts) {
            send(orders, Order::Configure { version: version.clone(), resources, taken: taken.clone() })?;
        }
        self.newest.store(number, Ordering::Relaxed);
        // From here on, only the threads hold `taken`. If a thread ends without a response, the channel is closed,
        // which ends the wait.
        drop((version, taken));
        let deadline = Instant::now() + TAKE_TIME;
        for _ in 0..count {
            let left = deadline.saturating_duration_since(Instant::now());
            answers.recv_timeout(left).map_err(|_| StartError::NoResponse)?;
        }
        Ok(number)
    }

    /// Returns a descriptor that becomes readable when a thread has ended or panicked, or a configuration is no longer
    /// used. It stays readable until [`Worker::take_retired`] is called.
    pub fn events(&self) -> BorrowedFd<'_> {
        self.events.bell()
    }

    /// Returns the numbers of configurations whose last request has ended since the last call, except the current
    /// configuration. The worker's first configuration has the number 1.
    pub fn take_retired(&self) -> Vec<u64> {
        let newest = self.newest.load(Ordering::Relaxed);
        let retired: Vec<u64> =
            self.events.take_retired().into_iter().filter(|&number| number != newest).collect();
        if !retired.is_empty() {
            // A configuration of many servers has a hundred MiB and more.
            thread_alloc::release_pages();
        }
        retired
    }

    /// Returns the addresses of all names if they have changed since the last call, for the successor process. Must be
    /// called after [`Worker::take_retired`].
    pub fn take_addresses(&self) -> Option<String> {
        let config = self.config.lock().unwrap_or_else(PoisonError::into_inner);
        self.events.take_names().then(|| {
            let known = config.http.of::<Upstreams>().known_addresses(ADDRESSES_MAX);
            let left = ADDRESSES_MAX.saturating_sub(known.len());
            known + &config.stream.of::<Upstreams>().known_addresses(left)
        })
    }

    /// Requests an event-loop turn of every thread. [`Worker::events`] becomes readable when all have completed one.
    pub fn request_turn(&self, number: u64) {
        let turn = Turn::new(number, &self.events);
        for orders in &self.orders {
            // The end of a thread is reported separately.
            let _ = send(orders, Order::Turn(Arc::clone(&turn)));
        }
    }

    /// Returns the number of the newest [`Worker::request_turn`] that every thread has completed. Each number is
    /// returned only once. Must be called after [`Worker::take_retired`].
    pub fn take_turned(&self) -> Option<u64> {
        Some(self.events.take_turned()).filter(|&number| number > 0)
    }

    /// Makes all threads write to these reopened log files.
    pub fn reopen(&self, logs: Vec<(PathBuf, OwnedFd)>) -> Result<(), StartError> {
        let resources = Resources { logs, ..Resources::default() };
        for (orders, part) in self.orders.iter().zip(split(resources, self.orders.len())?) {
            send(orders, Order::Reopen(part.logs))?;
        }
        Ok(())
    }

    /// Begins a graceful shutdown: the threads stop accepting, close idle connections, and finish the responses in
    /// flight. After `patience` the remaining responses are aborted.
    pub fn quit(&self, patience: Option<Duration>) {
        for orders in &self.orders {
            // A thread that does not receive the order has ended.
            let _ = send(orders, Order::Quit(patience));
        }
    }

    /// Ends all connections of QUIC, because another process uses the sockets from now on.
    pub fn end_quic(&self) {
        for orders in &self.orders {
            let _ = send(orders, Order::EndQuic);
        }
    }

    /// Prepares for shutdown: connections are closed after their next response, and readiness checks fail.
    pub fn leave(&self) {
        self.shared.set_leaving();
    }

    /// Starts or stops draining, on an operator's command. While the server is drained, connections are closed after
    /// their next response, and readiness checks fail.
    pub fn drain(&self, is_drained: bool) {
        self.shared.set_drained(is_drained);
    }

    /// Watches finished requests that match the filter. Returns `None` if too many watchers exist. When lines are
    /// available, [`Worker::events`] becomes readable and [`Worker::take_has_lines`] returns true.
    pub fn watch(&self, filter: Filter) -> Option<Arc<Watcher>> {
        self.shared.watch.add(admits(filter))
    }

    /// Stops watching.
    pub fn unwatch(&self, watcher: &Arc<Watcher>) {
        self.shared.watch.remove(watcher);
    }

    /// Whether a watcher has received lines since the last call. Must be called after [`Worker::take_retired`].
    pub fn take_has_lines(&self) -> bool {
        self.shared.watch.take_has_lines()
    }

    /// Sends the first thread an order to look up the cache entries of a request. If this thread has ended,
    /// `report_lines` is not called.
    pub fn inspect(&self, entry_query: EntryQuery, report_lines: ReportLines) {
        if let Some(orders) = self.orders.first() {
            let _ = send(orders, Order::Inspect(Box::new(entry_query), report_lines));
        }
    }

    /// Begins a fast shutdown.
    pub fn stop(&self) {
        for orders in &self.orders {
            let _ = send(orders, Order::Stop);
        }
    }

    /// Whether all threads have ended their tasks. Their engines may still wait for a disk; [`Worker::wait`] waits for
    /// the engines too.
    pub fn is_finished(&self) -> bool {
        self.events.running() == 0
    }

    /// Whether a thread has panicked. Its connections are no longer served, so the process should exit.
    pub fn has_panicked(&self) -> bool {
        self.events.has_panicked()
    }

    /// Waits for the end of all threads.
    pub fn wait(self) -> ExitReason {
        let mut reason = ExitReason::Ordered;
        for thread in self.threads {
            if thread.join().is_err() {
                reason = ExitReason::Panicked;
            }
        }
        reason
    }
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (threads, running) = (self.threads.len(), self.events.running());
        let mut text = f.debug_struct("Worker");
        text.field("threads", &threads).field("running", &running).field("engine", &self.choice);
        text.field("configuration", &self.newest).finish()
    }
}

fn send(orders: &mailbox::Sender<Order>, order: Order) -> Result<(), StartError> {
    orders.send(order).map_err(|_| StartError::NoResponse)
}

/// Splits resources for the threads. Each thread gets a separate socket of an address if one exists for each thread,
/// otherwise a duplicate.
fn split(resources: Resources, count: usize) -> Result<Vec<Resources>, StartError> {
    let number = |index: usize| u16::try_from(index).unwrap_or(u16::MAX);
    let steering = |index| Steering { thread: number(index), threads: number(count), ..resources.steering };
    let part = |index| Resources { steering: steering(index), ..Resources::default() };
    let mut parts: Vec<Resources> = (0..count).map(part).collect();
    for (address, fds) in resources.listeners {
        if fds.len() == count {
            for (part, fd) in parts.iter_mut().zip(fds) {
                part.listeners.push((address.clone(), vec![fd]));
            }
        } else {
            for part in &mut parts {
                let copies: Result<Vec<OwnedFd>, _> = fds.iter().map(OwnedFd::try_clone).collect();
                part.listeners.push((address.clone(), copies.map_err(StartError::Descriptor)?));
            }
        }
    }
    for part in &mut parts {
        for (path, fd) in &resources.logs {
            part.logs.push((path.clone(), fd.try_clone().map_err(StartError::Descriptor)?));
        }
    }
    Ok(parts)
}
