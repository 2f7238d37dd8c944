//! State that the tasks of one worker thread share: the current configuration, the list of connections, logs, counters.
//! Other threads cannot access it.

use std::any::Any;
use std::cell::{Cell, OnceCell, Ref, RefCell};
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use http::date::DateCache;
use http::response::encode::Opening;
use io::engine::NetKind;
use rt::local::{Counted, Event, WaitGroup};

use crate::capacity::{Capacity, Waits};
use crate::module::{ModuleTable, Plan, SessionPlan};
use crate::request::{ConnInfo, Request, ThreadConfig};
use crate::session::Session;
use site::config::{Config, ServerId};
use site::extensions::Extensions;
use site::variables::Variables;
use telemetry::Level;
use telemetry::clock::Clock;
use telemetry::files::{LogFiles, Opened};
use telemetry::named::NamedLogs;
use telemetry::shared::Shared;
use telemetry::tally::Tally;
use tls::turns::Turns;
use transfer::coding::pool::Pool;
use transfer::files::cache::Caches;
use transfer::files::{RootFacts, Roots};

/// A configuration with its resources, before it takes effect.
#[derive(Clone)]
pub struct ConfigVersion {
    /// The configuration.
    pub config: Arc<Config>,
    modules: &'static ModuleTable,
    plans: Arc<[Plan]>,
    variables: Variables<Request>,
    session_plans: Arc<[SessionPlan]>,
    session_variables: Variables<Session>,
    /// Facts about the roots, by location.
    roots: Arc<Vec<RootFacts>>,
    /// Number of the configuration version in this worker, from 1 on.
    number: u64,
    /// Dropped when this configuration is no longer used.
    in_force: Arc<dyn Any + Send + Sync>,
}

impl ConfigVersion {
    /// Returns the version with this number and the facts of its roots by location, for the modules that read the
    /// configuration. `in_force` is dropped when the configuration is no longer used.
    pub fn new(
        modules: &'static ModuleTable,
        config: &Arc<Config>,
        roots: Vec<RootFacts>,
        number: u64,
        in_force: Arc<dyn Any + Send + Sync>,
    ) -> ConfigVersion {
        ConfigVersion {
            config: Arc::clone(config),
            modules,
            plans: modules.plans(config),
            variables: Variables::new(modules.variables(), &config.http),
            session_plans: modules.session_plans(config),
            session_variables: Variables::new(modules.session_variables(), &config.stream),
            roots: Arc::new(roots),
            number,
            in_force,
        }
    }
}

/// The state of one worker thread.
pub struct Thread {
    /// State that all threads share.
    pub shared: Arc<Shared>,
    /// The kernel's thread ID, for log lines.
    pub tid: i32,
    /// Whether system calls that do not wait may bypass the engine, which is cheaper.
    pub calls_directly: bool,
    /// Whether the network engine is io_uring.
    pub has_ring: bool,
    thread_config: RefCell<Rc<ThreadConfig>>,
    /// Log files, each opened once.
    pub logs: LogFiles,
    /// Set when this thread stops accepting and closes its connections as they become idle.
    pub draining: Event,
    /// Counts open client connections.
    pub connections: WaitGroup,
    /// Counts the caches that this thread runs.
    pub caches: WaitGroup,
    /// Counts cache fetches in flight; a stopping thread waits for them too.
    pub fetches: WaitGroup,
    /// The counters of connections and requests on this thread.
    pub tally: Arc<Tally>,
    /// Limits on open connections and descriptors.
    pub capacity: Capacity,
    /// Limits the work of TLS handshakes in one event-loop turn.
    pub handshakes: Turns,
    /// The time of day, for log lines and header fields.
    pub clock: Rc<Clock>,
    /// The beginning of the last header section written.
    pub opening: RefCell<Opening>,
    /// Ended requests whose memory is reused; the last one first, because it is in the CPU cache.
    #[expect(clippy::vec_box, reason = "a request is large: only its box moves to a connection and back")]
    spare_requests: RefCell<Vec<Box<Request>>>,
    /// Idle encoders.
    pub encoders: Rc<Pool>,
    /// Memory for the frames of one send, empty. The HTTP/2 connections use it in turns, so that it is in the CPU cache.
    pub frames: Cell<Vec<u8>>,
    /// State of modules on this thread.
    locals: Extensions,
}

/// Maximum number of spare requests: about as many as are in flight on a busy thread.
const SPARE_REQUESTS_MAX: usize = 256;

impl Thread {
    /// Creates the state of the calling thread.
    pub fn new(shared: Arc<Shared>, version: ConfigVersion, logs: LogFiles, files: Opened) -> Thread {
        let slots_max = version.config.events().worker_connections as usize;
        let mut locals = Extensions::default();
        for module in version.modules.modules() {
            (module.thread.make)(&mut locals);
        }
        let capacity = Capacity::new(slots_max, version.config.main().workers.count());
        Thread {
            tally: shared.new_tally(),
            clock: Rc::clone(logs.clock()),
            shared,
            calls_directly: version.config.events().calls_directly(),
            has_ring: rt::caps().net == NetKind::Uring,
            tid: rustix::thread::gettid().as_raw_nonzero().get(),
            thread_config: RefCell::new(Rc::new(thread_config(version, &logs, files))),
            logs,
            draining: Event::new(),
            connections: WaitGroup::new(),
            caches: WaitGroup::new(),
            fetches: WaitGroup::new(),
            capacity,
            handshakes: Turns::default(),
            opening: RefCell::default(),
            encoders: Rc::default(),
            frames: Cell::default(),
            locals,
            spare_requests: RefCell::default(),
        }
    }

    /// Lets the modules start their work on this thread.
    pub fn begin(self: &Rc<Self>) {
        self.notify_modules(None);
    }

    fn notify_modules(self: &Rc<Self>, before: Option<&ThreadConfig>) {
        for module in self.thread_config().modules.modules() {
            (module.thread.configured)(self, before);
        }
    }

    /// Lets a module close an idle connection to free a slot; returns whether there was one.
    pub fn close_idle(&self) -> bool {
        self.thread_config().modules.modules().iter().any(|module| (module.thread.close_idle)(self))
    }

    /// Returns the state of a module on this thread.
    pub fn local<T: 'static>(&self) -> &T {
        let found = self.locals.get();
        found.unwrap_or_else(|| panic!("no module has {} on a thread", std::any::type_name::<T>()))
    }

    /// Returns the formatted dates of the current second.
    pub fn dates(&self) -> Ref<'_, DateCache> {
        self.clock.dates()
    }

    /// Returns the configuration for the next request.
    pub fn thread_config(&self) -> Rc<ThreadConfig> {
        Rc::clone(&self.thread_config.borrow())
    }

    /// Whether this is the configuration for new requests.
    pub fn is_in_force(&self, thread_config: &Rc<ThreadConfig>) -> bool {
        Rc::ptr_eq(thread_config, &self.thread_config.borrow())
    }

    /// Activates another configuration. Requests in flight continue with the old one; connections that wait for a request
    /// wake up and release it.
    pub fn replace(self: &Rc<Self>, version: ConfigVersion, files: Opened) {
        let old = self.thread_config.replace(Rc::new(thread_config(version, &self.logs, files)));
        // Spare requests hold references to the old configuration.
        self.spare_requests.borrow_mut().clear();
        self.capacity.wake(|_| true);
        self.notify_modules(Some(&old));
        drop(old);
    }

    /// Continues in log files that were reopened under the same names.
    pub fn reopen_logs(&self, files: Opened) {
        self.logs.reopen(files);
        self.thread_config.borrow().named.dismiss();
    }

    /// Stops: closes idle connections immediately, others after the response in flight.
    pub fn drain(&self) {
        self.draining.set();
        for module in self.thread_config().modules.modules() {
            (module.thread.drain)(self);
        }
        self.capacity.wake(|kind| kind == Waits::Idle);
    }

    /// Lets the modules finish their work, after the last request.
    pub async fn flush(self: &Rc<Self>) {
        for module in self.thread_config().modules.modules() {
            if let Some(work) = (module.thread.flush)(self) {
                work.await;
            }
        }
    }

    /// Whether this thread is stopping.
    pub fn is_draining(&self) -> bool {
        self.draining.is_set()
    }

    /// Whether connections are closed after their next response: during shutdown, or during `shutdown_delay`.
    pub fn is_leaving(&self) -> bool {
        self.is_draining() || self.shared.is_leaving()
    }

    /// Counts a client connection until the result is dropped.
    pub fn enter(&self) -> (Counted, Counted) {
        (self.connections.enter(), self.capacity.enter())
    }

    /// Returns a request for a connection, with the memory of the last ended request.
    pub fn take_request(
        &self,
        thread_config: &Rc<ThreadConfig>,
        conn: &Rc<ConnInfo>,
        server: ServerId,
    ) -> Box<Request> {
        let spare = self.spare_requests.borrow_mut().pop();
        let mut request = spare
            .unwrap_or_else(|| Box::new(Request::new(Rc::clone(thread_config), Rc::clone(conn), server)));
        request.begin(thread_config, conn, server);
        request
    }

    /// Logs a complete message about a connection that has no request, to the error log of `server`.
    pub fn log_about(
        &self,
        thread_config: &Rc<ThreadConfig>,
        conn: &Rc<ConnInfo>,
        server: ServerId,
        level: Level,
        message: fmt::Arguments<'_>,
    ) {
        let request = self.take_request(thread_config, conn, server);
        request.log_plain(level, message);
        self.recycle_request(request);
    }

    /// Releases the memory of spare requests; returns their number.
    pub fn drop_spare_requests(&self) -> usize {
        std::mem::take(&mut *self.spare_requests.borrow_mut()).len()
    }

    /// Ends a request: releases its resources and retains its memory.
    pub fn recycle_request(&self, mut request: Box<Request>) {
        request.clear();
        let mut spare = self.spare_requests.borrow_mut();
        if spare.len() < SPARE_REQUESTS_MAX
            && Rc::ptr_eq(&request.thread_config, &self.thread_config.borrow())
        {
            spare.push(request);
        }
    }
}

/// Returns this thread's view of a configuration. Its logs are looked up here, not per request.
fn thread_config(version: ConfigVersion, logs: &LogFiles, files: Opened) -> ThreadConfig {
    let ConfigVersion { config, modules, plans, variables, roots, number, in_force, .. } = version;
    let (session_plans, session_variables) = (version.session_plans, version.session_variables);
    let sinks = logs.resolve(&config.http.targets, files);
    let open_files = Caches::new(&config.http.open_file_caches);
    let roots = Rc::new(Roots::new(roots));
    ThreadConfig {
        config,
        modules,
        plans,
        variables,
        session_plans,
        session_variables,
        roots,
        open_files,
        number,
        _in_force: in_force,
        sinks,
        named: NamedLogs::new(logs.outgoing()),
        traffic: OnceCell::new(),
        session_traffic: OnceCell::new(),
    }
}
