//! Listening sockets of one thread, and the connections that come in through them.

use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use io::Errno;
use rt::Listener;
use rt::local::Gauge;
use rt::net::Stopper;

use crate::connection::{self, Entrance};
use crate::files;
use crate::log::{Level, Reason, error};
use crate::modules::http_core::listen::ListenAddr;
use crate::request::Address;
use crate::thread::Thread;

/// How long accepting pauses when descriptors or memory have run out (nginx: `accept_mutex_delay`).
const PAUSE: Duration = Duration::from_millis(500);

/// The listening sockets of one thread.
pub(super) struct Doors {
    thread: Rc<Thread>,
    alone: bool,
    open: Vec<(ListenAddr, Stopper)>,
    /// Tasks that accept. One that was stopped may still bring in a connection.
    accepting: Gauge,
}

impl Doors {
    pub(super) fn new(thread: &Rc<Thread>, alone: bool) -> Doors {
        Doors { thread: Rc::clone(thread), alone, open: Vec::new(), accepting: Gauge::new() }
    }

    /// Starts to accept from these sockets, unless their address is served already.
    pub(super) fn open(&mut self, listeners: Vec<(ListenAddr, Vec<OwnedFd>)>) {
        for (address, fds) in listeners {
            if self.open.iter().any(|(open, _)| *open == address) {
                continue;
            }
            let generation = self.thread.generation();
            let spec = generation.config.listens().find(|spec| spec.addr == address);
            let own = self.alone || spec.is_some_and(|spec| spec.reuseport);
            for fd in fds {
                // On a shared socket a multishot accept would give every connection to one thread.
                let listener = Listener::new(fd, own);
                self.open.push((address.clone(), listener.stopper()));
                let accepting = accept(Rc::clone(&self.thread), listener, address.clone());
                let counted = self.accepting.enter();
                rt::spawn(async move {
                    accepting.await;
                    drop(counted);
                });
            }
        }
    }

    /// Stops at addresses that the configuration does not have any more.
    pub(super) fn close_unconfigured(&mut self) {
        let generation = self.thread.generation();
        let is_configured =
            |address: &ListenAddr| generation.config.listens().any(|spec| spec.addr == *address);
        self.open.retain(|(address, stopper)| {
            let keep = is_configured(address);
            if !keep {
                stopper.stop();
            }
            keep
        });
    }

    /// Waits until nothing more comes in after a stop: a connection that the kernel had handed over by then is
    /// served, not reset.
    pub(super) async fn closed(&self) {
        self.accepting.none_left().await;
    }

    /// Stops everywhere.
    pub(super) fn close_all(&mut self) {
        for (_, stopper) in self.open.drain(..) {
            stopper.stop();
        }
    }
}

/// Takes connections from one socket until it is stopped.
async fn accept(thread: Rc<Thread>, mut listener: Listener, address: ListenAddr) {
    let bound = match listener.local() {
        Ok(bound) => Address::from(bound),
        Err(errno) => return complain(&thread, Level::Emerg, "getsockname()", errno),
    };
    let entrance = Rc::new(Entrance::new(address, bound));
    loop {
        make_room(&thread).await;
        match listener.accept().await {
            Ok(fd) => {
                // Counted before its task first runs: a thread that ends must not overlook it.
                let counted = thread.enter();
                rt::spawn(connection::serve(Rc::clone(&thread), Rc::clone(&entrance), fd, counted));
            }
            Err(Errno::CANCELED) => return,
            Err(Errno::CONNABORTED | Errno::INTR | Errno::AGAIN) => {}
            Err(errno) => {
                complain(&thread, Level::Crit, "accept4()", errno);
                // A file that is only kept open, or a connection that idles, holds a descriptor that this could use.
                let is_full = matches!(errno, Errno::MFILE | Errno::NFILE);
                let has_room = is_full && files::make_room(&thread.generation()).await;
                if !has_room && !thread.end_an_idle_one() {
                    rt::sleep_until(rt::now() + PAUSE).await;
                }
            }
        }
    }
}

/// At `worker_connections` an idle connection ends for each new one; without idle ones accepting waits, and
/// the clients wait in the kernel's queue.
async fn make_room(thread: &Thread) {
    let most = thread.connections_max.get().max(1);
    if thread.connections.count() < most {
        return;
    }
    if !thread.end_an_idle_one() {
        error::write(thread, Level::Alert, format_args!("{most} worker_connections are not enough"));
    }
    thread.connections.at_most(most - 1).await;
}

fn complain(thread: &Thread, level: Level, call: &str, errno: Errno) {
    error::write(thread, level, format_args!("{call} failed ({})", Reason(errno)));
}
