//! State that the tasks of one worker thread share: the configuration in force, the list of connections, logs,
//! counters. Nothing here is visible to other threads.

use std::any::Any;
use std::cell::{OnceCell, Ref, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use http::date::DateCache;
use http::response::Opening;
use io::engine::NetKind;
use rt::local::{Counted, Event, WaitGroup};

use crate::config::{Config, ServerId};
use crate::extensions::Extensions;
use crate::request::{ConnInfo, Generation, Request};
use crate::room::{Room, Waits};
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
    /// Facts about the roots, by location.
    roots: Arc<Vec<RootFacts>>,
    /// Counts the configurations of a worker from 1.
    number: u64,
    /// Dropped when nothing uses this configuration any more.
    in_force: Arc<dyn Any + Send + Sync>,
}

impl ConfigVersion {
    /// The version of this number, with the facts of its roots by location; `in_force` is dropped when nothing uses it
    /// any more.
    pub fn new(
        config: &Arc<Config>,
        roots: Vec<RootFacts>,
        number: u64,
        in_force: Arc<dyn Any + Send + Sync>,
    ) -> ConfigVersion {
        ConfigVersion { config: Arc::clone(config), roots: Arc::new(roots), number, in_force }
    }
}

/// The state of one worker thread.
pub struct Thread {
    /// State that all threads share.
    pub shared: Arc<Shared>,
    /// The kernel's number of this thread, for log lines.
    pub tid: i32,
    /// Whether calls that wait for nothing may be made beside the engine, where they cost less than a trip through it.
    pub calls_directly: bool,
    /// Whether the network's engine is a ring.
    pub has_ring: bool,
    generation: RefCell<Rc<Generation>>,
    /// Logs, opened once.
    pub logs: LogFiles,
    /// Set when this thread accepts no more and ends its connections as they become idle.
    pub draining: Event,
    /// Connections that are open.
    pub connections: WaitGroup,
    /// Caches that this thread runs.
    pub caches: WaitGroup,
    /// Fetches for caches in flight: a thread that ends waits for them too.
    pub fetches: WaitGroup,
    /// The `stub_status` counters of this thread.
    pub tally: Arc<Tally>,
    /// Limits on open connections and descriptors.
    pub room: Room,
    /// Limits on the work of handshakes in a turn of the event loop.
    pub handshakes: Turns,
    /// The time of day, for lines and headers.
    pub clock: Rc<Clock>,
    /// How the head that was written last began.
    pub opening: RefCell<Opening>,
    /// Ended requests, with their memory, to be used again: the last one first, as it is in the cache.
    #[expect(clippy::vec_box, reason = "a request is lent and comes back: its box moves, it does not")]
    spare_requests: RefCell<Vec<Box<Request>>>,
    /// Encoders that wait for a body.
    pub encoders: Rc<Pool>,
    /// State of modules on this thread.
    locals: Extensions,
}

/// Recycled requests: as many as are in flight at once on a busy thread.
const SPARE_REQUESTS_MAX: usize = 256;

impl Thread {
    /// The state of the calling thread.
    pub fn new(shared: Arc<Shared>, version: ConfigVersion, logs: LogFiles, files: Opened) -> Thread {
        let places_max = version.config.events().worker_connections as usize;
        let mut locals = Extensions::default();
        for module in version.config.modules.modules() {
            (module.thread.make)(&mut locals);
        }
        let room = Room::new(places_max, version.config.main().workers.count());
        Thread {
            tally: shared.new_tally(),
            clock: Rc::clone(logs.clock()),
            shared,
            calls_directly: version.config.events().calls_directly(),
            has_ring: rt::caps().net == NetKind::Uring,
            tid: rustix::thread::gettid().as_raw_nonzero().get(),
            generation: RefCell::new(Rc::new(generation(version, &logs, files))),
            logs,
            draining: Event::new(),
            connections: WaitGroup::new(),
            caches: WaitGroup::new(),
            fetches: WaitGroup::new(),
            room,
            handshakes: Turns::default(),
            opening: RefCell::default(),
            encoders: Rc::default(),
            locals,
            spare_requests: RefCell::default(),
        }
    }

    /// Lets the modules start their work on this thread.
    pub fn begin(self: &Rc<Self>) {
        self.tell_modules(None);
    }

    fn tell_modules(self: &Rc<Self>, before: Option<&Generation>) {
        for module in self.generation().config.modules.modules() {
            (module.thread.configured)(self, before);
        }
    }

    /// Makes a module close an idle connection, to make room; returns whether there was one.
    pub fn give_up_idle(&self) -> bool {
        self.generation().config.modules.modules().iter().any(|module| (module.thread.give_up_idle)(self))
    }

    /// State of a module on this thread.
    pub fn local<T: 'static>(&self) -> &T {
        let found = self.locals.get();
        found.unwrap_or_else(|| panic!("no module keeps {} on a thread", std::any::type_name::<T>()))
    }

    /// The texts of the present second.
    pub fn dates(&self) -> Ref<'_, DateCache> {
        self.clock.dates()
    }

    /// The configuration that the next request starts under.
    pub fn generation(&self) -> Rc<Generation> {
        Rc::clone(&self.generation.borrow())
    }

    /// Whether a request that starts now would start under this one.
    pub fn is_in_force(&self, generation: &Rc<Generation>) -> bool {
        Rc::ptr_eq(generation, &self.generation.borrow())
    }

    /// Puts another configuration in force. Requests in flight keep theirs; connections that wait for a request wake up
    /// and let go of the old one.
    pub fn replace(self: &Rc<Self>, version: ConfigVersion, files: Opened) {
        let old = self.generation.replace(Rc::new(generation(version, &self.logs, files)));
        // Spare requests hold the old configuration.
        self.spare_requests.borrow_mut().clear();
        self.room.wake(|_| true);
        self.tell_modules(Some(&old));
        drop(old);
    }

    /// Writes on into log files that were opened again under the same names.
    pub fn reopen_logs(&self, files: Opened) {
        self.logs.reopen(files);
        self.generation.borrow().named.dismiss();
    }

    /// Stops: idle connections end at once, others after the response in flight.
    pub fn drain(&self) {
        self.draining.set();
        for module in self.generation().config.modules.modules() {
            (module.thread.drain)(self);
        }
        self.room.wake(|kind| kind == Waits::Idle);
    }

    /// Whether this thread is stopping.
    pub fn is_draining(&self) -> bool {
        self.draining.is_set()
    }

    /// Whether connections end with their next response: this thread is stopping, or clients are to go elsewhere.
    pub fn is_leaving(&self) -> bool {
        self.is_draining() || self.shared.is_leaving()
    }

    /// Counts a client's connection for as long as the response lives.
    pub fn enter(&self) -> (Counted, Counted) {
        (self.connections.enter(), self.room.enter())
    }

    /// A request for a connection, with the memory of the one that ended last.
    pub fn take_request(
        &self,
        generation: &Rc<Generation>,
        conn: &Rc<ConnInfo>,
        server: ServerId,
    ) -> Box<Request> {
        let spare = self.spare_requests.borrow_mut().pop();
        let mut request =
            spare.unwrap_or_else(|| Box::new(Request::new(Rc::clone(generation), Rc::clone(conn), server)));
        request.begin(generation, conn, server);
        request
    }

    /// Gives up the memory of ended requests; of how many.
    pub fn drop_spare_requests(&self) -> usize {
        std::mem::take(&mut *self.spare_requests.borrow_mut()).len()
    }

    /// Ends a request: lets go of all that it holds and keeps its memory.
    pub fn keep_request(&self, mut request: Box<Request>) {
        request.clear();
        let mut spare = self.spare_requests.borrow_mut();
        if spare.len() < SPARE_REQUESTS_MAX && Rc::ptr_eq(&request.generation, &self.generation.borrow()) {
            spare.push(request);
        }
    }
}

/// A configuration as this thread holds it; its logs are looked up here, and by no request.
fn generation(version: ConfigVersion, logs: &LogFiles, files: Opened) -> Generation {
    let ConfigVersion { config, roots, number, in_force } = version;
    let sinks = logs.resolve(&config.http.targets, files);
    let open_files = Caches::new(&config.http.open_file_caches);
    let roots = Rc::new(Roots(roots));
    Generation {
        config,
        roots,
        open_files,
        number,
        _in_force: in_force,
        sinks,
        named: NamedLogs::new(logs.outgoing()),
        traffic: OnceCell::new(),
    }
}
