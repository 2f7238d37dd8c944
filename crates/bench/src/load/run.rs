//! Executes a plan: starts the threads, collects their counts once a second, and computes the outcome.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use io::engine::NetKind;
use io::probe::Probe;

use super::outcome::{Outcome, Second, Tally, ThreadUse};
use super::plan::{Length, LoopKind, Plan};
use super::worker::{Window, Worker};
use crate::failure::Failure;
use crate::method::pin;

/// File descriptors beside those of connections: engines, standard streams, files of the program.
const DESCRIPTORS_SPARE: u64 = 200;
/// Delay after the end of a second before its counts are collected, so that all threads have reported them.
const COLLECT_AFTER: Duration = Duration::from_millis(40);

/// Executes a load.
///
/// # Errors
/// Fails if the plan has no URL, if no connection can be established, or if no response was received.
pub(crate) fn run(plan: &Plan) -> Result<Outcome, Failure> {
    run_watched(plan, &mut |_| ())
}

/// Like [`run`]; also calls `watch` after each second.
pub(crate) fn run_watched(plan: &Plan, watch: &mut dyn FnMut(&Second)) -> Result<Outcome, Failure> {
    if plan.targets.is_empty() {
        return Err(Failure::Usage("no URL to request".to_owned()));
    }
    let net = engine_for(plan)?;
    let cpus = if plan.cpus.is_empty() { pin::available() } else { plan.cpus.clone() };
    let threads = cpus.len().min(plan.connections as usize);
    raise_descriptors(u64::from(plan.connections))?;
    let aborted = &AtomicBool::new(false);
    let outcome = std::thread::scope(|scope| {
        let (events, news) = mpsc::channel();
        let mut workers = Vec::with_capacity(threads);
        for (index, &cpu) in cpus.iter().enumerate().take(threads) {
            let (go, window) = mpsc::channel();
            let crew =
                WorkerArguments { plan, net, share: (index, threads), cpu, events: events.clone(), aborted };
            let work = move || {
                // The collector has already returned if another thread has failed.
                let _ = crew.events.send(Event::Ended(crew.work(&window)));
            };
            let thread = std::thread::Builder::new().name(format!("load-{index}"));
            thread.spawn_scoped(scope, work).map_err(Failure::kernel("start a thread"))?;
            workers.push(go);
        }
        drop(events);
        let [total, warm_up, counted] = std::array::from_fn(|_| Tally::new());
        let (series, uses) = (Vec::new(), Vec::new());
        let collector = Collector { plan, news, watch, total, warm_up, counted, series, uses };
        let outcome = collector.lead(&workers, net);
        // After a failure of one thread the others must not continue.
        aborted.store(true, Ordering::Relaxed);
        outcome
    })?;
    if outcome.tally.responses == 0 {
        let (text, errors) = (&plan.targets[0].text, &outcome.tally.errors);
        return Err(Failure::Other(format!(
            "no response from {text} within {:.1} s (errors: {errors})",
            outcome.seconds
        )));
    }
    Ok(outcome)
}

/// Returns the engine that the plan names, or the best available one; fails with the reason if the named engine is not
/// available.
fn engine_for(plan: &Plan) -> Result<NetKind, Failure> {
    let probe = Probe::run();
    match (plan.engine, probe.uring_refusal()) {
        (Some(NetKind::Uring), Some(refusal)) => {
            Err(Failure::Other(format!("io_uring is not available: {}; {}", refusal.cause, refusal.remedy)))
        }
        (Some(net), _) => Ok(net),
        (None, _) => Ok(probe.best_net()),
    }
}

/// Raises the limit of open file descriptors to the number that the connections need.
fn raise_descriptors(connections: u64) -> Result<(), Failure> {
    let needed = connections + DESCRIPTORS_SPARE;
    match crate::method::raise_descriptors(needed) {
        limit if limit < needed => Err(Failure::Usage(format!(
            "{connections} connections need {needed} descriptors and the limit is {limit}: raise it (ulimit -Hn)"
        ))),
        _ => Ok(()),
    }
}

/// A message from a thread to the collector.
enum Event {
    /// The connections of the thread are established.
    Ready,
    /// The counts of the thread since its last message, sent once a second; and whether they are of the warm-up.
    Counted(Box<Tally>, bool),
    /// The thread has ended, or could not start.
    Ended(Result<ThreadUse, Failure>),
}

struct WorkerArguments<'a> {
    plan: &'a Plan,
    net: NetKind,
    share: (usize, usize),
    cpu: usize,
    events: Sender<Event>,
    aborted: &'a AtomicBool,
}

impl WorkerArguments<'_> {
    /// Runs a thread. It is pinned first, so that its memory is local to its processor; then it connects and runs the
    /// load.
    fn work(&self, window: &Receiver<Window>) -> Result<ThreadUse, Failure> {
        pin::this_thread(self.cpu)?;
        // Requests are scheduled to the microsecond; with the default timer slack the kernel wakes a thread up to 50 us
        // late.
        let _refused = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
        let mut worker = Worker::new(self.plan, self.net, self.share)?;
        worker.connect()?;
        let _ = self.events.send(Event::Ready);
        // The collector has returned without starting the load.
        let Ok(window) = window.recv() else { return Ok(ThreadUse::default()) };
        let mut counted = |tally: &Tally, is_warm_up: bool| {
            // The collector has already returned if another thread has failed.
            let _ = self.events.send(Event::Counted(Box::new(tally.clone()), is_warm_up));
        };
        let used = worker.run(window, self.aborted, &mut counted)?;
        Ok(ThreadUse { cpu: self.cpu, ..used })
    }
}

/// Coordinates the threads of a load and adds up their counts.
struct Collector<'a> {
    plan: &'a Plan,
    news: Receiver<Event>,
    watch: &'a mut dyn FnMut(&Second),
    total: Tally,
    /// Counts of the current second.
    warm_up: Tally,
    counted: Tally,
    series: Vec<Second>,
    uses: Vec<ThreadUse>,
}

impl Collector<'_> {
    /// Waits until all threads have connected, starts them, and collects their counts until they have ended.
    fn lead(mut self, workers: &[Sender<Window>], net: NetKind) -> Result<Outcome, Failure> {
        for _ in workers {
            match self.news.recv() {
                Ok(Event::Ready) => {}
                Ok(Event::Ended(Err(failure))) => return Err(failure),
                Ok(Event::Counted(..) | Event::Ended(Ok(_))) | Err(_) => return Err(worker_died()),
            }
        }
        let start = Instant::now();
        let (warm_up, end) = match self.plan.length {
            Length::Time(length) => (self.plan.warm_up, Some(start + self.plan.warm_up + length)),
            Length::Requests(_) => (Duration::ZERO, None),
        };
        // All threads start at the same time, independent of the order in which they became ready.
        let window = Window { start, counted_from: start + warm_up, end };
        for go in workers {
            go.send(window).map_err(|_| worker_died())?;
        }
        self.follow(window, workers.len())?;
        self.collect(window, Instant::now());
        self.uses.sort_by_key(|used| used.cpu);
        Ok(Outcome {
            engine: if net == NetKind::Uring { "io_uring" } else { "epoll" },
            seconds: self.seconds(window),
            tally: self.total,
            threads: self.uses,
            loop_kind: self.plan.loop_kind,
            series: self.series,
        })
    }

    /// Collects once a second until all threads have ended.
    fn follow(&mut self, window: Window, threads: usize) -> Result<(), Failure> {
        // A second of the warm-up ends at its end.
        let warm_up = Duration::from_secs((window.counted_from - window.start).as_secs());
        let mut second_end = window.start.max(window.counted_from - warm_up);
        if second_end == window.start {
            second_end += Duration::from_secs(1);
        }
        while self.uses.len() < threads {
            let wait = (second_end + COLLECT_AFTER).saturating_duration_since(Instant::now());
            match self.news.recv_timeout(wait) {
                Ok(Event::Ended(Ok(used))) => self.uses.push(used),
                Ok(Event::Ended(Err(failure))) => return Err(failure),
                Ok(Event::Counted(tally, true)) => self.warm_up.add(&tally),
                Ok(Event::Counted(tally, false)) => self.counted.add(&tally),
                Ok(Event::Ready) => {}
                Err(RecvTimeoutError::Timeout) => {
                    self.collect(window, second_end);
                    second_end += Duration::from_secs(1);
                }
                Err(RecvTimeoutError::Disconnected) => return Err(worker_died()),
            }
        }
        Ok(())
    }

    /// Adds up the counts of the second that ended at `until`.
    fn collect(&mut self, window: Window, until: Instant) {
        // Counts of the warm-up are displayed during the warm-up and not added to the total.
        self.total.add(&self.counted);
        let is_warm_up = until <= window.counted_from;
        let tally = if is_warm_up { &self.warm_up } else { &self.counted };
        let micros = |nanos: u64| nanos as f64 / 1e3;
        let second = Second {
            at: until.saturating_duration_since(window.counted_from).as_secs_f64(),
            responses: tally.responses,
            bytes: tally.bytes,
            errors: tally.errors.total(),
            p50_us: micros(tally.latency.value_at_quantile(0.5)),
            p99_us: micros(tally.latency.value_at_quantile(0.99)),
            max_us: micros(tally.latency.max()),
            is_warm_up,
        };
        self.warm_up.clear();
        self.counted.clear();
        if second.responses + second.errors == 0 {
            return;
        }
        (self.watch)(&second);
        if !is_warm_up {
            self.series.push(second);
        }
    }

    /// Returns the period that rates are computed with: the planned time in an open loop, where responses are counted
    /// by their due time, else the elapsed time.
    fn seconds(&self, window: Window) -> f64 {
        let took = self.uses.iter().map(|used| used.seconds).fold(0.0, f64::max);
        match (self.plan.loop_kind, window.end) {
            (LoopKind::Open { .. }, Some(end)) if !self.plan.stop.load(Ordering::Relaxed) => {
                (end - window.counted_from).as_secs_f64()
            }
            _ => took,
        }
    }
}

/// Returns the failure for a thread that ended without a message. Its panic, a bug in this program, has been printed
/// already.
fn worker_died() -> Failure {
    Failure::Other("a thread of the load generator ended early".to_owned())
}
