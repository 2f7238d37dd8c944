//! A scripted HTTP/1 origin, which behaves correctly or incorrectly as the test requires, and counts events.
//!
//! [`Origin::start`] responds to each request with the [`Reply`] that a closure returns; [`Origin::raw`] passes each
//! [`Connection`] to a closure that reads and writes freely; [`Objects`] provides the replies of a correct origin. The
//! test controls the timing: a reply waits at a [`Gate`](crate::Gate), and the test waits for events with
//! [`Origin::wait_for`]. Each connection has a thread; dropping the origin ends all threads.
//!
//! A fault is an event that must never happen: a request that violates the protocol, a panic in the closure, or an
//! action of a reply whose position was never reached. Dropping the origin panics with the fault, unless the test has
//! taken it with [`Origin::take_faults`].
//!
//! ```
//! use testkit::origin::{At, Do, Origin, Reply};
//! use testkit::{Client, Content, Gate};
//!
//! let gate = Gate::new();
//! let reply = Reply::ok().content(Content::new(1, 1000)).wait_at(10, &gate).at(At::Body(600), Do::Reset);
//! let origin = Origin::start(move |_| reply.clone());
//! let mut client = Client::connect(origin.addr());
//! client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
//! gate.wait_reached();
//! assert_eq!(origin.stats().in_flight, 1);
//! gate.open();
//! assert!(client.try_response().is_err());
//! origin.wait_for("the end", |stats| stats.in_flight == 0);
//! ```

pub mod connection;
mod hub;
mod listen;
pub mod objects;
mod ranges;
pub mod reply;
pub mod request;
mod send;

use std::path::Path;
use std::sync::{Arc, Mutex};

pub use connection::{Connection, Ended};
pub use hub::Stats;
pub use listen::OnAccept;
pub use objects::{Etag, Object, Objects};
pub use reply::{At, Do, Framing, Reply};
pub use request::OriginRequest;

use crate::gate::lock;
use crate::server::ListenAddr;
use crate::wait::Deadline;
use hub::Hub;
use listen::{Listener, Script};

/// A closure that returns the reply to a request.
type Handler = Arc<dyn Fn(&OriginRequest) -> Reply + Send + Sync>;

/// A running origin.
pub struct Origin {
    hub: Arc<Hub>,
    listener: Listener,
    handler: Arc<Mutex<Handler>>,
}

impl Origin {
    /// Starts an origin on a port of 127.0.0.1; `handler` returns the reply to every request.
    #[track_caller]
    pub fn start(handler: impl Fn(&OriginRequest) -> Reply + Send + Sync + 'static) -> Origin {
        Origin::start_on(Listener::tcp_any(), handler)
    }

    /// Starts a correct origin with these objects on a port of 127.0.0.1.
    #[track_caller]
    pub fn objects(objects: &Objects) -> Origin {
        Origin::start(objects.handler())
    }

    /// Like [`Origin::start`], on a unix socket.
    #[track_caller]
    pub fn start_unix(
        path: &Path,
        handler: impl Fn(&OriginRequest) -> Reply + Send + Sync + 'static,
    ) -> Origin {
        Origin::start_on(ListenAddr::Unix(path.to_owned()), handler)
    }

    /// Like [`Origin::start`], on the given address: another loopback address with port 0.
    #[track_caller]
    pub fn start_on(
        address: ListenAddr,
        handler: impl Fn(&OriginRequest) -> Reply + Send + Sync + 'static,
    ) -> Origin {
        let handler: Arc<Mutex<Handler>> = Arc::new(Mutex::new(Arc::new(handler)));
        let current = Arc::clone(&handler);
        Origin::with_script(address, handler, Arc::new(move |connection| serve(connection, &current)))
    }

    /// Responds to the requests with these replies in order, and to further requests with 599.
    #[track_caller]
    pub fn replies(replies: impl IntoIterator<Item = Reply>) -> Origin {
        let replies: Vec<Reply> = replies.into_iter().collect();
        Origin::start(move |request| {
            let next = replies.get(request.sequence as usize - 1).cloned();
            next.unwrap_or_else(|| Reply::new(599).reason("No Reply Left"))
        })
    }

    /// Starts an origin on a port of 127.0.0.1 that passes every connection to `script`, and closes it when `script`
    /// returns.
    #[track_caller]
    pub fn raw(script: impl Fn(&mut Connection) + Send + Sync + 'static) -> Origin {
        Origin::raw_on(Listener::tcp_any(), script)
    }

    /// Like [`Origin::raw`], on the given address.
    #[track_caller]
    pub fn raw_on(address: ListenAddr, script: impl Fn(&mut Connection) + Send + Sync + 'static) -> Origin {
        let unused: Handler = Arc::new(|_| Reply::new(500));
        Origin::with_script(address, Arc::new(Mutex::new(unused)), Arc::new(script))
    }

    #[track_caller]
    fn with_script(address: ListenAddr, handler: Arc<Mutex<Handler>>, script: Script) -> Origin {
        let hub = Arc::new(Hub::default());
        let listener = Listener::start(address, Arc::clone(&hub), script);
        Origin { hub, listener, handler }
    }

    /// Sets another handler from the next request on. Has no effect on an origin with a raw script.
    pub fn set_handler(&self, handler: impl Fn(&OriginRequest) -> Reply + Send + Sync + 'static) {
        *lock(&self.handler) = Arc::new(handler);
    }

    /// Returns its address. Its text is valid as an argument of `server` and, after `http://`, of `proxy_pass`.
    pub fn addr(&self) -> &ListenAddr {
        self.listener.addr()
    }

    /// Returns its port. Panics on a unix socket.
    pub fn port(&self) -> u16 {
        self.addr().tcp().port()
    }

    /// Returns its counters so far.
    pub fn stats(&self) -> Stats {
        self.hub.stats()
    }

    /// Returns the first 100 000 requests in the order in which their header sections were received.
    pub fn requests(&self) -> Vec<OriginRequest> {
        self.hub.requests()
    }

    /// Returns the latest request. Panics if there is none.
    #[track_caller]
    pub fn last_request(&self) -> OriginRequest {
        self.requests().pop().unwrap_or_else(|| panic!("the origin has had no request"))
    }

    /// Removes the recorded requests and the counts by target; the other counters continue.
    pub fn forget_requests(&self) {
        self.hub.forget_requests();
    }

    /// Waits until the counters meet a condition, and returns them; panics with them at the default deadline.
    #[track_caller]
    pub fn wait_for(&self, what: &str, done: impl FnMut(&Stats) -> bool) -> Stats {
        self.wait_for_by(what, Deadline::default(), done)
    }

    /// Like [`Origin::wait_for`], with the given deadline.
    #[track_caller]
    pub fn wait_for_by(&self, what: &str, deadline: Deadline, done: impl FnMut(&Stats) -> bool) -> Stats {
        let reached = self.hub.wait_for(deadline, done);
        let stats = self.stats();
        assert!(reached, "gave up waiting for {what} at the origin: {stats:?}");
        stats
    }

    /// Sets what happens to connections from the next one on.
    pub fn on_accept(&self, what: OnAccept) {
        self.listener.on_accept(what);
    }

    /// Refuses connections and keeps the port reserved. When this returns, the next connection is refused.
    pub fn refuse(&self) {
        self.listener.refuse();
    }

    /// Accepts connections again.
    pub fn accept_again(&self) {
        self.listener.accept_again();
    }

    /// Closes all open connections, in any state.
    pub fn end_connections(&self) {
        self.hub.end_connections();
    }

    /// Takes the faults, for tests that expect them.
    pub fn take_faults(&self) -> Vec<String> {
        self.hub.take_faults()
    }
}

impl Drop for Origin {
    fn drop(&mut self) {
        self.listener.end();
        let ended = self.hub.end();
        let faults = self.hub.take_faults();
        if std::thread::panicking() {
            eprintln!("testkit: the origin of the failed test: {:?}, faults {faults:?}", self.hub.stats());
            return;
        }
        assert!(ended, "a script of the origin does not end");
        assert!(faults.is_empty(), "at the origin: {}", faults.join("\n"));
    }
}

/// Serves the requests of one connection.
fn serve(connection: &mut Connection, handler: &Mutex<Handler>) {
    while let Some(request) = connection.read_request() {
        let handler = Arc::clone(&lock(handler));
        let reply = handler(&request);
        match connection.reply(&request, &reply) {
            Ended::Kept if request.keeps_alive() => {}
            Ended::Reset => return connection.reset(),
            Ended::Kept | Ended::Close | Ended::Aborted => return,
        }
    }
}
