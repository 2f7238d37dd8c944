//! A worker thread: accepts connections, executes orders, ends.

use std::any::Any;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use io::Errno;
use rt::mailbox;
use rt::{Either, select};

use crate::memory::{self, Ledger};
use crate::process::Resources;
use crate::process::events::{Events, Turn};
use crate::process::notes::{self, Written};
use crate::process::panics;
use caching::inspect::{EntryQuery, inspect};
use exchange::cut_off;
use exchange::error_log;
use exchange::reclaim;
use exchange::thread::{ConfigVersion, Thread};
use frontend::accept::ThreadListeners;
use frontend::quic::Forwards;
use peers::resolve::refresher::Refresher;
use site::config::Config;
use telemetry::files::LogFiles;
use telemetry::reports;
use telemetry::shared::Shared;
use telemetry::{Level, Reason, Target};
use upstream::names;

/// The arguments of a thread.
pub(super) struct Start {
    pub(super) shared: Arc<Shared>,
    /// Memory freed under memory pressure.
    pub(super) memory: Arc<Ledger>,
    /// Notes of engines that were logged.
    pub(super) notes: Arc<Written>,
    pub(super) version: ConfigVersion,
    pub(super) resources: Resources,
    /// Packets of QUIC for other threads.
    pub(super) forwards: Arc<Forwards>,
    /// Set for the first thread only, which performs the tasks of the process, such as resolving names.
    pub(super) events: Option<Arc<Events>>,
    /// Whether this is the only thread, which then shares no socket with another thread.
    pub(super) alone: bool,
    pub(super) orders: mailbox::Receiver<Order>,
}

/// Orders to a thread.
pub(super) enum Order {
    /// All threads are started, so this thread may accept connections. Always the first order.
    Begin,
    /// Activate another configuration; acknowledged when this thread uses it.
    Configure { version: ConfigVersion, resources: Resources, taken: SyncSender<()> },
    /// Continue in these log files.
    Reopen(Vec<(PathBuf, OwnedFd)>),
    /// Look up the cache entries of a request, and call this function with them.
    Inspect(Box<EntryQuery>, ReportLines),
    /// Complete an event-loop turn; dropping the value acknowledges it.
    Turn(Arc<Turn>),
    /// End all connections of QUIC.
    EndQuic,
    /// End gracefully.
    Quit(Option<Duration>),
    /// End immediately.
    Stop,
}

/// Receives the lines of a result.
pub type ReportLines = Box<dyn FnOnce(Vec<String>) + Send>;

/// Maximum time that a fast stop waits until the indexes of the caches are saved. Saving writes 24 bytes per entry, and
/// needs less than a second for a million entries. If a disk hangs, the next start reads the directories instead.
const SAVE_MAX: Duration = Duration::from_secs(3);

/// Maximum time in which requests that are cut off write their log lines and close their connections. A connection that waits for
/// anything else is dropped.
const CUT_OFF_MAX: Duration = Duration::from_millis(300);

/// Runs the main task of the thread. `refusal` is the reason why the CPU affinity of the thread could not be set.
pub(super) async fn run(start: Start, refusal: Option<Errno>) {
    let Start { shared, memory, notes, version, resources, forwards, events, alone, mut orders } = start;
    // If a thread cannot be started, all threads are started again with another engine. So before this order no
    // connection is accepted, and nothing is begun that outlives the threads, such as the work on caches.
    let Some(Order::Begin) = orders.recv().await else { return };
    let calls_directly = version.config.events().calls_directly();
    let logs = LogFiles::new(version.config.main().workers.count(), calls_directly);
    let config = Arc::clone(&version.config);
    let thread = Rc::new(Thread::new(shared, version, logs, resources.logs));
    panics::report_to(&thread);
    let mut listeners = ThreadListeners::new(&thread, alone, resources.steering, forwards);
    listeners.open(resources.listeners);
    thread.begin();
    if let Some(errno) = refusal {
        let reason = Reason(errno);
        error_log::write(&thread, Level::Alert, format_args!("sched_setaffinity() failed ({reason})"));
    }
    rt::spawn(memory::watch(Rc::clone(&thread), memory));
    rt::spawn(reclaim::watch_buffers(Rc::clone(&thread)));
    rt::spawn(reclaim::watch_windows(Rc::clone(&thread)));
    rt::spawn(notes::watch(Rc::clone(&thread), notes));
    rt::spawn(reports::watch(Rc::clone(thread.logs.outgoing()), report_to(&thread)));
    let begin_work = |config: &Config| Some(ProcessWork::begin(&thread, config, events.clone()?));
    let mut work = begin_work(&config);
    drop(config);
    while let Some(order) = orders.recv().await {
        match order {
            Order::Configure { version, resources, taken } => {
                let config = Arc::clone(&version.config);
                thread.replace(version, resources.logs);
                // The task of the new configuration is started before the assignment drops the old task.
                work = begin_work(&config);
                listeners.close_unconfigured();
                listeners.open(resources.listeners);
                // Fails if `Worker::reload` no longer waits.
                let _ = taken.try_send(());
            }
            Order::Reopen(logs) => thread.reopen_logs(logs),
            Order::Inspect(entry_query, report_lines) => {
                let thread_config = thread.thread_config();
                // In a separate task, because a disk may be slow.
                rt::spawn(async move { report_lines(inspect(&thread_config.config, &entry_query).await) });
            }
            Order::Turn(turn) => drop(turn),
            Order::EndQuic => listeners.end_quic(),
            Order::Begin => unreachable!("it comes once"),
            Order::Quit(patience) => {
                listeners.close_all();
                thread.drain();
                // The next process checks the servers.
                work.iter_mut().for_each(|work| work.of_modules.clear());
                quit(&thread, &mut listeners, patience, &mut orders).await;
                break;
            }
            Order::Stop => {
                listeners.close_all();
                thread.drain();
                break;
            }
        }
    }
    // Waits for the caches: after a stop, and also if a graceful shutdown has exceeded `patience`. Without caches this
    // returns immediately.
    let _ = select(caching::tasks::ended(&thread), rt::sleep_until(rt::now() + SAVE_MAX)).await;
    drop(work);
    thread.flush().await;
    thread.logs.flush(report_to(&thread)).await;
}

/// The work of the process under a configuration, on its first thread. It ends when the value is dropped.
struct ProcessWork {
    /// Keeps names resolved.
    _names: Vec<Refresher>,
    /// That of the modules, such as health checks.
    of_modules: Vec<Box<dyn Any>>,
}

impl ProcessWork {
    fn begin(thread: &Rc<Thread>, config: &Config, events: Arc<Events>) -> ProcessWork {
        let changed: Rc<dyn Fn()> = Rc::new(move || events.note_names());
        let hooks = thread.thread_config().modules.modules().iter().map(|module| module.thread.process);
        let of_modules = hooks.filter_map(|process| process(thread, &changed)).collect();
        ProcessWork { _names: names::start(thread, config, move || changed()), of_modules }
    }
}

/// Writes messages of the log writers to the process's error log.
fn report_to(thread: &Rc<Thread>) -> impl Fn(&Target, Level, &str) + use<> {
    let thread = Rc::clone(thread);
    move |about, level, text| error_log::write_except(&thread, about, level, format_args!("{text}"))
}

/// Waits until the last connection is closed, at most for `patience`. Then the requests in flight end, with their log lines. A stop
/// ends the wait immediately.
async fn quit(
    thread: &Rc<Thread>,
    listeners: &mut ThreadListeners,
    patience: Option<Duration>,
    orders: &mut mailbox::Receiver<Order>,
) {
    let patience = patience.unwrap_or(Duration::from_secs(u64::from(u32::MAX)));
    let closed = listeners.closed();
    let last = async {
        closed.await;
        thread.connections.wait_empty().await;
        thread.fetches.wait_empty().await;
        // The index of each cache is saved, so that the next process can load it quickly.
        caching::tasks::ended(thread).await;
    };
    let end = select(last, rt::sleep_until(rt::now() + patience));
    let stopped = async {
        while let Some(order) = orders.recv().await {
            match order {
                Order::Stop => return,
                Order::Reopen(logs) => thread.reopen_logs(logs),
                Order::EndQuic => listeners.end_quic(),
                Order::Begin
                | Order::Configure { .. }
                | Order::Inspect(..)
                | Order::Turn(_)
                | Order::Quit(_) => {}
            }
        }
    };
    if let Either::Left(Either::Right(())) = select(end, stopped).await {
        cut_off::begin();
        let _ = select(thread.connections.wait_empty(), rt::sleep_until(rt::now() + CUT_OFF_MAX)).await;
    }
}
