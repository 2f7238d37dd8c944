//! A worker process: its threads, what they are told, and how they end.
//!
//! [`Worker::start`] makes the threads; each has its engine, its listeners and its connections, and an inbox
//! for orders: another configuration, other log files, an end soon or at once.

mod accept;
mod engine;
pub(crate) mod shared;
mod worker_thread;

use std::fmt;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rt::mailbox;
use rt::thread::Setup;

use crate::config::Config;
use crate::files::RootFacts;
use crate::modules::core::{Affinity, Workers};
use crate::modules::http_core::listen::ListenAddr;
pub use engine::{Choice, EngineKey};
use shared::Shared;
use worker_thread::{Order, Start};

/// What a worker process is given beside its configuration.
#[derive(Debug, Default)]
pub struct Resources {
    /// Listening sockets: one for each address, or one for each thread where `reuseport` says so.
    pub listeners: Vec<(ListenAddr, Vec<OwnedFd>)>,
    /// Open log files.
    pub logs: Vec<(PathBuf, OwnedFd)>,
}

/// Why threads could not be started, or did not take an order.
#[derive(Debug)]
pub enum StartError {
    /// `use io_uring` where there is none.
    NoRing(io::probe::Fallback),
    /// A thread, its engine or its settings.
    Thread(rt::thread::StartError<io::BuildError>),
    /// A thread pool.
    Pool(io::disk::threads::PoolError),
    /// A descriptor could not be copied for a thread.
    Descriptor(std::io::Error),
    /// The faults of `engine_fault` are no plan.
    Faults(io::fault::FaultParseError),
    /// A thread has ended or is stuck.
    NoAnswer,
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
                write!(f, "a descriptor could not be copied for a thread: {error}")
            }
            StartError::Faults(error) => write!(f, "\"engine_fault\": {error}"),
            StartError::NoAnswer => f.write_str("a worker thread does not answer"),
        }
    }
}

impl std::error::Error for StartError {}

/// Why a worker's threads ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitReason {
    /// All of them as they were told.
    Ordered,
    /// One of them panicked.
    Panicked,
}

/// The threads of a worker process.
pub struct Worker {
    threads: Vec<rt::thread::Worker<()>>,
    orders: Vec<mailbox::Sender<Order>>,
    choice: Choice,
}

/// Orders that may wait for a thread; more means that it is stuck.
const ORDERS_MAX: usize = 64;

/// How long the engine of a thread that ends waits for operations on a slow disk.
const DRAIN: Duration = Duration::from_secs(2);

impl Worker {
    /// Starts the threads; each accepts when this returns. Call it after the privileges are gone.
    pub fn start(config: &Arc<Config>, resources: Resources) -> Result<Worker, StartError> {
        let count = config.main().workers.count();
        let choice = Choice::make(config)?;
        let roots = Arc::new(RootFacts::of_all(config));
        let shared = Arc::new(Shared::default());
        let mut worker = Worker { threads: Vec::new(), orders: Vec::new(), choice };
        for (number, part) in split(resources, count)?.into_iter().enumerate() {
            let (sender, orders) = mailbox::channel(ORDERS_MAX);
            let setup = Setup {
                name: format!("worker {number}"),
                cpus: config.main().affinity.of_thread(number),
                panic_hook: Some(report_panic),
            };
            let start = Start {
                shared: Arc::clone(&shared),
                config: Arc::clone(config),
                roots: Arc::clone(&roots),
                resources: part,
                alone: count == 1,
                orders,
            };
            let engine = worker.choice.engine_config();
            let thread = rt::thread::start(setup, DRAIN, || io::build(engine), || worker_thread::run(start));
            worker.threads.push(thread.map_err(StartError::Thread)?);
            worker.orders.push(sender);
        }
        Ok(worker)
    }

    /// Which engine runs, in words for the log.
    pub fn engine(&self) -> &Choice {
        &self.choice
    }

    /// Puts another configuration in force, whose process key is the same. `resources` has the sockets of
    /// addresses that are new and all log files; sockets of addresses that are gone are closed.
    pub fn reload(&self, config: &Arc<Config>, resources: Resources) -> Result<(), StartError> {
        let roots = Arc::new(RootFacts::of_all(config));
        for (orders, resources) in self.orders.iter().zip(split(resources, self.orders.len())?) {
            let (config, roots) = (Arc::clone(config), Arc::clone(&roots));
            send(orders, Order::Configure { config, roots, resources })?;
        }
        Ok(())
    }

    /// Writes on into these log files.
    pub fn reopen(&self, logs: Vec<(PathBuf, OwnedFd)>) -> Result<(), StartError> {
        let resources = Resources { logs, ..Resources::default() };
        for (orders, part) in self.orders.iter().zip(split(resources, self.orders.len())?) {
            send(orders, Order::Reopen(part.logs))?;
        }
        Ok(())
    }

    /// Ends gracefully: accepts no more, ends idle connections, finishes answers under way; after `patience`
    /// those are cut off too.
    pub fn quit(&self, patience: Option<Duration>) {
        for orders in &self.orders {
            // A thread that does not take the order has ended.
            let _ = send(orders, Order::Quit(patience));
        }
    }

    /// Ends at once.
    pub fn stop(&self) {
        for orders in &self.orders {
            let _ = send(orders, Order::Stop);
        }
    }

    /// Whether all threads have ended.
    pub fn is_finished(&self) -> bool {
        self.threads.iter().all(rt::thread::Worker::is_finished)
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

fn send(orders: &mailbox::Sender<Order>, order: Order) -> Result<(), StartError> {
    orders.send(order).map_err(|_| StartError::NoAnswer)
}

/// A part for each thread: sockets of its own where there are as many, else copies.
fn split(resources: Resources, count: usize) -> Result<Vec<Resources>, StartError> {
    let mut parts: Vec<Resources> = (0..count).map(|_| Resources::default()).collect();
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

/// A task that panics costs one connection; the operator should know.
#[expect(clippy::print_stderr, reason = "the thread's log may be what panicked")]
fn report_panic(message: &str) {
    eprintln!("a task panicked: {message}");
}

impl Workers {
    /// Threads that serve.
    pub fn count(self) -> usize {
        match self {
            Workers::Auto => std::thread::available_parallelism().map_or(1, usize::from),
            Workers::Count(count) => count as usize,
        }
    }
}

impl Affinity {
    /// The processors of a thread; none means all.
    fn of_thread(&self, number: usize) -> Vec<usize> {
        match self {
            Affinity::Free => Vec::new(),
            Affinity::Auto(None) => {
                vec![number % std::thread::available_parallelism().map_or(1, usize::from)]
            }
            Affinity::Auto(Some(cpus)) => cpus.get(number % cpus.len().max(1)).copied().into_iter().collect(),
            Affinity::Sets(sets) => sets.get(number).or(sets.last()).cloned().unwrap_or_default(),
        }
    }
}
