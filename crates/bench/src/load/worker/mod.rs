//! One thread of a load: its connections on an engine, and the results of their requests.
//!
//! The engine's interface is used directly, without tasks or timers. A request is one send and its share of a multishot
//! receive, so that one entry into the kernel serves many connections. The clock is read once per turn, and timeouts
//! are found by a periodic sweep over all connections.
//!
//! This file decides when something is done; [`steps`] has the steps of a connection, [`count`] the counting.

mod count;
mod steps;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use io::engine::{EngineConfig, NetKind};
use io::op::PeerAddr;
use io::{Completion, Engine, Errno, Op, OpId, Wait};

use super::link::{Link, Pending, State};
use super::outcome::{Failed, Tally, ThreadUse};
use super::plan::{GRAIN, GRAIN_FROM, LoopKind, Plan, Reuse};
use super::reader::Heads;
use super::request::Requests;
use super::schedule::Schedule;
use crate::failure::Failure;
use crate::method::pause;

/// Interval in nanoseconds between two sweeps for timeouts.
const SWEEP: u64 = 20_000_000;
/// Time in nanoseconds that a server has to close a connection after it announced the close.
const CLOSING_MAX: u64 = 1_000_000_000;
/// Number of operations beside those of connections: closes, and abandoned operations that have not completed.
const OPS_SPARE: u32 = 256;

/// One thread's share of a load.
pub(crate) struct Worker<'a> {
    plan: &'a Plan,
    /// Number of this thread, and the number of threads.
    share: (usize, usize),
    engine: Box<dyn Engine>,
    links: Vec<Link>,
    requests: Requests,
    heads: Heads,
    /// Due times of the requests.
    schedule: Schedule,
    /// Connections without a request, the one that has been idle longest first.
    idle: VecDeque<u32>,
    /// Number of requests that have been started and have no outcome yet.
    under_way: u64,
    /// Origin of all times here.
    clock: Instant,
    /// Time of the end of the last turn.
    now: u64,
    /// Time of the end of the last wait.
    woken: u64,
    /// Time in nanoseconds within which due requests are sent together; 0 if each is sent separately.
    grain: u64,
    pub(crate) tally: Tally,
    /// Whether any connection has been established so far.
    has_connected: bool,
    /// Failure that ends the load immediately.
    failure: Option<Failure>,
    /// Completions of the last turn.
    batch: Vec<Completion>,
    /// Plaintext of the last received TLS records.
    plain: Vec<u8>,
}

impl<'a> Worker<'a> {
    /// Creates thread number `share.0` of `share.1`, with its engine.
    pub(crate) fn new(plan: &'a Plan, net: NetKind, share: (usize, usize)) -> Result<Worker<'a>, Failure> {
        let connections = (plan.connections as usize).saturating_sub(share.0).div_ceil(share.1);
        let config = EngineConfig {
            net,
            disk_ring: false,
            ops_max: (connections as u32).saturating_mul(4).saturating_add(OPS_SPARE),
            recv_buffer_bytes: plan.receive_bytes,
            ..EngineConfig::default()
        };
        let engine = io::build(config).map_err(Failure::other)?;
        Ok(Worker {
            plan,
            share,
            engine,
            links: (0..connections).map(|_| Link::new()).collect(),
            requests: Requests::new(plan, share),
            heads: Heads::new(&plan.method, plan.response_kind, plan.expect.crc32c.is_some()),
            schedule: Schedule::new(plan.loop_kind, share, (0, 0), Some(0)),
            idle: VecDeque::with_capacity(connections),
            under_way: 0,
            clock: Instant::now(),
            now: 0,
            woken: 0,
            grain: grain(plan, share.1),
            tally: Tally::new(),
            has_connected: false,
            failure: None,
            batch: Vec::with_capacity(connections * 2),
            plain: Vec::new(),
        })
    }

    /// Establishes the keep-alive connections, so that the load starts with all of them. A refused connection, or one
    /// whose TLS handshake stalls, is retried later; only if all fail the load fails.
    pub(crate) fn connect(&mut self) -> Result<(), Failure> {
        if self.plan.reuse == Reuse::PerRequest {
            return Ok(());
        }
        let deadline = self.now.saturating_add(nanos(self.plan.timeout));
        (0..self.links.len()).for_each(|link| self.begin_connect(link));
        let is_connecting =
            |link: &Link| matches!(link.state, State::Connecting { .. }) || link.is_handshaking();
        while self.links.iter().any(is_connecting) {
            self.wait(self.now + SWEEP)?;
            self.complete_batch();
            self.sweep();
            if self.plan.tls.is_some() && self.now >= deadline {
                self.end_handshakes();
            }
            if self.plan.stop.load(Ordering::Relaxed) {
                return Err(Failure::Interrupted);
            }
        }
        self.failure.take().map_or(Ok(()), Err)
    }

    /// Closes the connections whose handshake has not completed in time.
    fn end_handshakes(&mut self) {
        for index in 0..self.links.len() {
            if self.links[index].is_handshaking() {
                self.fail(index, Failed::Timeout);
            }
        }
        if self.links.iter().all(|link| link.state != State::Open) {
            let seconds = self.plan.timeout.as_secs_f64();
            self.failure = Some(Failure::Other(format!("TLS: no handshake completed within {seconds} s")));
        }
    }

    /// Runs the load; returns the resource usage of the thread meanwhile.
    pub(crate) fn run(&mut self, start: Instant, aborted: &AtomicBool) -> Result<ThreadUse, Failure> {
        let (cpu_before, delayed_before) = thread_times();
        let begin = nanos(start.saturating_duration_since(self.clock));
        self.schedule = Schedule::of_plan(self.plan, self.share, begin);
        let end = self.schedule.end();
        // The connections that were established before are not counted.
        self.tally = Tally::new();
        self.read_clock();
        (0..self.links.len()).for_each(|link| self.offer(link));

        let mut next_sweep = self.now;
        let mut is_stopped = false;
        while !is_stopped {
            self.complete_batch();
            if self.now >= next_sweep {
                next_sweep = self.now + SWEEP;
                self.sweep();
                is_stopped = self.plan.stop.load(Ordering::Relaxed) || aborted.load(Ordering::Relaxed);
            }
            self.dispatch();
            if let Some(failure) = self.failure.take() {
                return Err(failure);
            }
            if self.schedule.is_done(self.plan, &self.tally, self.under_way, self.now) {
                break;
            }
            // After the end of the load only outstanding responses are awaited.
            let next_look = if self.now < end { next_sweep.min(end) } else { next_sweep };
            self.pause(next_look)?;
        }
        if !is_stopped {
            self.count_unanswered();
        }
        let (cpu, delayed) = thread_times();
        Ok(ThreadUse {
            cpu_seconds: cpu - cpu_before,
            delayed_seconds: delayed - delayed_before,
            seconds: start.elapsed().as_secs_f64(),
            ..ThreadUse::default()
        })
    }

    /// Waits for the next event or due request, until `latest` at most.
    fn pause(&mut self, latest: u64) -> Result<(), Failure> {
        let due = self.wake_at(latest);
        let tick = self.woken + self.grain;
        if self.idle.is_empty() || due >= tick.min(latest) {
            self.wait(due)?;
            self.woken = self.now;
            return Ok(());
        }
        // The next request is due within the grain: it is sent together with all requests that are due by the end of
        // the grain. Responses accumulate until then, so that they do not wake this thread. Each latency counts from
        // its due time, so it may be too long by up to the grain, and never too short.
        self.turn(Wait::No)?;
        self.complete_batch();
        let left = tick.saturating_sub(self.now);
        if left > 0 {
            pause(Duration::from_nanos(left));
            self.read_clock();
        }
        self.woken = self.now;
        Ok(())
    }

    /// Returns the time of the next action if no completion arrives.
    fn wake_at(&self, latest: u64) -> u64 {
        if self.idle.is_empty() {
            return latest.max(self.now);
        }
        self.schedule.next_due(self.now).map_or(latest, |due| due.min(latest)).max(self.now)
    }

    /// Waits for completions, until `latest` at most. All of them get the time at which the turn ended.
    fn wait(&mut self, latest: u64) -> Result<(), Failure> {
        self.turn(Wait::Until(self.clock + Duration::from_nanos(latest)))
    }

    fn turn(&mut self, wait: Wait) -> Result<(), Failure> {
        let turned = self.engine.turn(wait, &mut self.batch);
        turned.map_err(Failure::kernel("the engine"))?;
        self.read_clock();
        Ok(())
    }

    fn complete_batch(&mut self) {
        let mut batch = std::mem::take(&mut self.batch);
        for completion in batch.drain(..) {
            self.complete(completion);
        }
        self.batch = batch;
    }

    fn read_clock(&mut self) {
        self.now = nanos(self.clock.elapsed());
    }

    /// Returns the address of the server, which is the same for all targets.
    fn peer(&self) -> &PeerAddr {
        &self.plan.targets[0].peer
    }

    /// Submits an operation of a connection, whose index is the token.
    fn submit(&mut self, index: usize, op: Op) -> Option<OpId> {
        let Ok(id) = self.engine.submit(op, index as u64) else {
            // Cannot happen: the table has slots for all operations of all connections.
            self.failure = Some(Failure::Other("the engine has no free slot for an operation".to_owned()));
            return None;
        };
        Some(id)
    }

    /// Puts a connection without a request into the queue of idle connections.
    fn offer(&mut self, index: usize) {
        if self.client_has_space(index) && !self.links[index].is_queued {
            self.links[index].is_queued = true;
            self.idle.push_back(index as u32);
        }
    }

    /// Whether a connection can send a request.
    fn client_has_space(&self, index: usize) -> bool {
        let link = &self.links[index];
        match self.plan.reuse {
            Reuse::KeepAlive => link.state == State::Open && link.pending.is_none(),
            Reuse::PerRequest => match link.state {
                State::Closed { retry_at } => retry_at <= self.now,
                _ => false,
            },
        }
    }

    /// Gives due requests to idle connections: in a closed loop to all of them.
    fn dispatch(&mut self) {
        while let Some(&index) = self.idle.front() {
            let index = index as usize;
            if self.client_has_space(index) {
                let Some(due) = self.schedule.take(self.now) else { break };
                self.begin(index, due);
                self.flush(index);
            }
            self.idle.pop_front();
            self.links[index].is_queued = false;
            self.offer(index);
        }
    }

    /// Encodes a request for a connection, and opens the connection if each request has a separate one.
    fn begin(&mut self, index: usize, due: u64) {
        let link = &mut self.links[index];
        self.requests.push(&mut link.out);
        link.pending = Some(Pending { due, sent: self.now });
        self.under_way += 1;
        if self.plan.reuse == Reuse::PerRequest {
            self.begin_connect(index);
        }
    }

    /// Finds connections that have timed out or may be retried.
    fn sweep(&mut self) {
        let timeout = nanos(self.plan.timeout);
        for index in 0..self.links.len() {
            let link = &self.links[index];
            match link.state {
                State::Closed { retry_at } if retry_at <= self.now && !link.is_queued => self.revive(index),
                State::Connecting { since } if since + timeout <= self.now => {
                    self.connect_failed(index, Errno::TIMEDOUT);
                }
                State::Open => {
                    let is_late = |pending: &Pending| pending.sent + timeout <= self.now;
                    if link.pending.as_ref().is_some_and(is_late) {
                        self.fail(index, Failed::Timeout);
                    }
                }
                State::Closing { since } if since + CLOSING_MAX <= self.now => self.replace_connection(index),
                _ => {}
            }
        }
    }
}

/// Returns the seconds that this thread has used a processor, and those that it has waited for one.
pub(super) fn thread_times() -> (f64, f64) {
    // The clock exists on every machine, so the call cannot fail.
    let clock = nix::time::clock_gettime(nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID);
    let cpu_seconds = clock.map_or(0.0, |time| time.tv_sec() as f64 + time.tv_nsec() as f64 / 1e9);
    // "ran, waited for a processor, time slices", in nanoseconds (kernel: Documentation/scheduler/sched-stats).
    let schedstat = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let delayed = schedstat.split_ascii_whitespace().nth(1).and_then(|word| word.parse::<u64>().ok());
    (cpu_seconds, delayed.unwrap_or(0) as f64 / 1e9)
}

/// Returns the time in nanoseconds within which due requests of one of `threads` threads are sent together.
fn grain(plan: &Plan, threads: usize) -> u64 {
    match (plan.loop_kind, plan.reuse, plan.grain) {
        // Opening a connection for each request needs several turns, each of which the grain would delay.
        (_, Reuse::PerRequest, _) | (LoopKind::Closed, ..) => 0,
        (.., Some(grain)) => nanos(grain),
        (LoopKind::Open { rate }, ..) if rate / threads as f64 >= GRAIN_FROM => nanos(GRAIN),
        (LoopKind::Open { .. }, ..) => 0,
    }
}

pub(super) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
