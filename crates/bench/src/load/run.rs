//! Executes a plan: starts the threads at the same time, and adds up their counts.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Instant;

use io::engine::NetKind;
use io::probe::Probe;

use super::outcome::{Outcome, Tally, ThreadUse};
use super::plan::{Length, LoopKind, Plan};
use super::quic::QuicWorker;
use super::worker::Worker;
use crate::failure::Failure;
use crate::method::pin;

/// File descriptors beside those of connections: engines, standard streams, files of the program.
const DESCRIPTORS_SPARE: u64 = 200;

/// Executes a load.
///
/// # Errors
/// Fails if the plan has no URL, if no connection can be established, or if no response was received.
pub(crate) fn run(plan: &Plan) -> Result<Outcome, Failure> {
    let Some(first) = plan.targets.first() else {
        return Err(Failure::Usage("no URL to request".to_owned()));
    };
    if let Some(other) = plan.targets.iter().find(|target| target.peer != first.peer) {
        let text = format!("{} and {} are of different servers", first.text, other.text);
        return Err(Failure::Usage(text));
    }
    let net = engine_for(plan)?;
    raise_descriptors(u64::from(plan.connections))?;
    let outcome = run_threads(plan, net)?;
    if outcome.tally.responses == 0 {
        return Err(Failure::Other(format!(
            "no response from {} within {:.1} s (errors: {})",
            first.text, outcome.seconds, outcome.tally.errors
        )));
    }
    Ok(outcome)
}

/// Runs one thread on each processor, and collects their counts.
fn run_threads(plan: &Plan, net: NetKind) -> Result<Outcome, Failure> {
    let cpus = if plan.cpus.is_empty() { pin::available() } else { plan.cpus.clone() };
    let threads = cpus.len().min(plan.connections as usize);
    let aborted = &AtomicBool::new(false);
    let counts = std::thread::scope(|scope| {
        let mut workers = Vec::with_capacity(threads);
        for (index, &cpu) in cpus.iter().enumerate().take(threads) {
            let (ready, is_ready) = mpsc::channel();
            let (go, start) = mpsc::channel();
            let share = LoadThread { plan, net, share: (index, threads), cpu, aborted };
            let thread = std::thread::Builder::new().name(format!("load-{index}"));
            let thread = thread
                .spawn_scoped(scope, move || share.run(&ready, &start))
                .map_err(Failure::kernel("start a thread"))?;
            workers.push((thread, is_ready, go));
        }
        // A thread that could not connect has ended without a message. The others then end without a start.
        let are_ready = workers.iter().all(|(_, is_ready, _)| is_ready.recv().is_ok());
        // All threads start at the same time, independent of the order in which they became ready.
        let start = Instant::now();
        let mut running = Vec::with_capacity(threads);
        for (thread, _, go) in workers {
            if are_ready {
                let _ = go.send(start);
            }
            running.push(thread);
        }
        // A panic, a bug in this program, has been printed already.
        let died = |_| Failure::Other("a thread of the load generator ended early".to_owned());
        running.into_iter().map(|thread| thread.join().map_err(died)?).collect::<Result<Vec<_>, Failure>>()
    })?;
    Ok(add_up(plan, net, counts))
}

/// Adds up the counts of all threads.
fn add_up(plan: &Plan, net: NetKind, counts: Vec<(Tally, ThreadUse)>) -> Outcome {
    let mut tally = Tally::new();
    counts.iter().for_each(|(one, _)| tally.add(one));
    let threads: Vec<ThreadUse> = counts.into_iter().map(|(_, used)| used).collect();
    let seconds = match (plan.loop_kind, plan.length) {
        // An open loop counts responses by their due time, so its rate is that of the planned time.
        (LoopKind::Open { .. }, Length::Time(length)) if !plan.stop.load(Ordering::Relaxed) => {
            length.as_secs_f64()
        }
        _ => threads.iter().map(|used| used.seconds).fold(0.0, f64::max),
    };
    let engine = if net == NetKind::Uring && plan.quic.is_none() { "io_uring" } else { "epoll" };
    Outcome { engine, seconds, tally, threads, loop_kind: plan.loop_kind }
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

/// One thread of a load.
struct LoadThread<'a> {
    plan: &'a Plan,
    net: NetKind,
    /// Number of this thread, and the number of threads.
    share: (usize, usize),
    cpu: usize,
    /// Set if another thread has failed.
    aborted: &'a AtomicBool,
}

impl LoadThread<'_> {
    /// Connects, reports that it is ready, and runs its share of the load from the start that it receives.
    fn run(&self, ready: &Sender<()>, start: &Receiver<Instant>) -> Result<(Tally, ThreadUse), Failure> {
        let done = self.work(ready, start);
        if done.is_err() {
            // After a failure of one thread the others must not continue.
            self.aborted.store(true, Ordering::Relaxed);
        }
        done
    }

    fn work(&self, ready: &Sender<()>, start: &Receiver<Instant>) -> Result<(Tally, ThreadUse), Failure> {
        // Pinned first, so that its memory is local to its processor.
        pin::this_thread(self.cpu)?;
        if let Some(network) = &self.plan.network {
            network.enter().map_err(Failure::kernel("enter a network namespace"))?;
        }
        // Requests are scheduled to the microsecond; with the default timer slack the kernel wakes a thread up to 50 us
        // late.
        let _refused = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
        if let Some(settings) = &self.plan.quic {
            let mut worker = QuicWorker::new(self.plan, settings, self.share)?;
            worker.connect()?;
            let Some(start) = report_ready(ready, start) else { return Ok(Default::default()) };
            let used = worker.run(start, self.aborted)?;
            return Ok((worker.tally, ThreadUse { cpu: self.cpu, ..used }));
        }
        let mut worker = Worker::new(self.plan, self.net, self.share)?;
        worker.connect()?;
        let Some(start) = report_ready(ready, start) else { return Ok(Default::default()) };
        let used = worker.run(start, self.aborted)?;
        Ok((worker.tally, ThreadUse { cpu: self.cpu, ..used }))
    }
}

/// Reports that a thread is ready, and waits for the start; `None` if another thread could not connect.
fn report_ready(ready: &Sender<()>, start: &Receiver<Instant>) -> Option<Instant> {
    let _ = ready.send(());
    start.recv().ok()
}
