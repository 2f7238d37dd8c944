//! A load over HTTP/3: connections of `quinn-proto` on sockets of their own, with the codec of [`http::h3`].
//!
//! A thread waits for its sockets with epoll(7), handles everything that has arrived, and then sends the packets that are ready. The
//! timers of its connections are looked at once a millisecond. The network may be bad: the thread then discards a share of
//! the datagrams in both directions.
//!
//! [`link`] has one connection; this file decides when it is opened, which requests it gets, and when it is closed.

mod link;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bare::Noise;
use http::h3::qpack::{push_field, push_request};
use io::op::PeerAddr;
use io::sys::DATAGRAM_BYTES;
use quinn_proto::{ClientConfig, Endpoint, EndpointConfig, TransportConfig};
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, EventData, EventFlags};

use super::link::Pending;
use super::outcome::{Failed, Tally, ThreadUse};
use super::plan::{Length, LoopKind, Plan, QuicSettings, Reuse};
use super::request::Requests;
use super::schedule::Schedule;
use super::worker::{nanos, thread_times};
use crate::failure::Failure;
use link::QuicLink;

/// Interval in nanoseconds between two looks at the timers.
const TICK: u64 = 1_000_000;

/// Number of messages received at once; each may consist of several datagrams.
const MESSAGES: usize = 8;

/// Number of concurrent handshakes before a load: more would overflow the receive buffer of a server.
const HANDSHAKES_MAX: usize = 32;

/// Time after which a silent connection ends.
const IDLE_TIMEOUT: Duration = Duration::from_secs(600);

/// A connection, and the request that waits until it is open and the server permits another stream.
#[derive(Default)]
struct Slot {
    link: Option<QuicLink>,
    waiting: Option<Waiting>,
    /// Whether the slot is in the queue of slots that can take a request.
    is_queued: bool,
}

/// A request with its header block.
struct Waiting {
    pending: Pending,
    block: Vec<u8>,
}

/// One thread's share of a load over HTTP/3.
pub(crate) struct QuicWorker<'a> {
    plan: &'a Plan,
    settings: &'a QuicSettings,
    /// Number of this thread, and the number of threads.
    share: (usize, usize),
    server: SocketAddr,
    /// Settings of the connections, which share the sessions that can be resumed.
    config: ClientConfig,
    /// Finds the connection of a packet by its connection ID.
    endpoint: Endpoint,
    /// The instance of epoll(7). The data of an event is the index of the slot.
    poll: OwnedFd,
    slots: Vec<Slot>,
    /// Slots that can take a request, in the order in which they became so.
    idle: VecDeque<u32>,
    requests: Requests,
    /// Due times of the requests.
    schedule: Schedule,
    /// Number of requests that have been started and have no outcome yet.
    under_way: u64,
    /// Origin of all times here.
    clock: Instant,
    /// Time of the end of the last wait.
    now: u64,
    /// Time of the next look at the timers.
    next_tick: u64,
    /// Decides which datagrams are lost.
    noise: Noise,
    pub(crate) tally: Tally,
    /// Received messages.
    space: Vec<u8>,
    /// Packets that are sent together.
    packets: Vec<u8>,
}

impl<'a> QuicWorker<'a> {
    /// Creates thread number `share.0` of `share.1`.
    pub(crate) fn new(
        plan: &'a Plan,
        settings: &'a QuicSettings,
        share: (usize, usize),
    ) -> Result<QuicWorker<'a>, Failure> {
        let PeerAddr::Inet(server) = plan.targets[0].peer else {
            return Err(Failure::Usage("HTTP/3 needs an IP address, not a Unix socket".to_owned()));
        };
        let crypto = settings.tls.quic(&server.to_string(), "localhost", settings.early_data);
        let mut config = ClientConfig::new(crypto.map_err(Failure::other)?);
        let mut transport = TransportConfig::default();
        transport.max_idle_timeout(IDLE_TIMEOUT.try_into().ok());
        config.transport_config(Arc::new(transport));
        let connections = (plan.connections as usize).saturating_sub(share.0).div_ceil(share.1);
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(Failure::kernel("epoll"))?;
        Ok(QuicWorker {
            plan,
            settings,
            share,
            server,
            config,
            endpoint: Endpoint::new(Arc::new(EndpointConfig::default()), None, true, None),
            poll,
            slots: (0..connections).map(|_| Slot::default()).collect(),
            idle: VecDeque::with_capacity(connections),
            requests: Requests::new(plan, share),
            schedule: Schedule::new(plan.loop_kind, share, (0, 0), Some(0)),
            under_way: 0,
            clock: Instant::now(),
            now: 0,
            next_tick: 0,
            noise: Noise::new(plan.seed.wrapping_add(share.0 as u64)),
            tally: Tally::new(),
            space: vec![0; MESSAGES * DATAGRAM_BYTES],
            packets: Vec::new(),
        })
    }

    /// Opens the connections, so that the load starts with all of them.
    pub(crate) fn connect(&mut self) -> Result<(), Failure> {
        if self.plan.reuse == Reuse::PerRequest {
            return Ok(());
        }
        let is_open = |slot: &Slot| slot.link.as_ref().is_some_and(|link| link.is_open);
        let (mut begun, mut deadline) = (0, nanos(self.plan.timeout));
        let mut finished = 0;
        while finished < self.slots.len() {
            while begun < self.slots.len().min(finished + HANDSHAKES_MAX) {
                self.open(begun)?;
                begun += 1;
            }
            self.turn(self.now + TICK)?;
            if self.slots[..begun].iter().any(|slot| slot.link.is_none()) {
                return Err(Failure::Other(format!("QUIC: {} refused a connection", self.server)));
            }
            let before =
                std::mem::replace(&mut finished, self.slots.iter().filter(|slot| is_open(slot)).count());
            if finished > before {
                deadline = self.now + nanos(self.plan.timeout);
            }
            if self.now >= deadline {
                let seconds = self.plan.timeout.as_secs_f64();
                return Err(Failure::Other(format!("QUIC: no handshake completed within {seconds} s")));
            }
            if self.plan.stop.load(Ordering::Relaxed) {
                return Err(Failure::Interrupted);
            }
        }
        Ok(())
    }

    /// Runs the load; returns the resource usage of the thread meanwhile.
    pub(crate) fn run(&mut self, start: Instant, aborted: &AtomicBool) -> Result<ThreadUse, Failure> {
        let (cpu_before, delayed_before) = thread_times();
        let begin = nanos(start.saturating_duration_since(self.clock));
        self.schedule = Schedule::of_plan(self.plan, self.share, begin);
        self.tally = Tally::new();
        self.read_clock();
        (0..self.slots.len()).for_each(|index| self.offer(index));
        loop {
            self.dispatch()?;
            if self.schedule.is_done(self.plan, &self.tally, self.under_way, self.now) {
                self.count_unanswered();
                break;
            }
            // After its end, a load that was stopped counts nothing more.
            if self.plan.stop.load(Ordering::Relaxed) || aborted.load(Ordering::Relaxed) {
                break;
            }
            let due = self.schedule.next_due(self.now).filter(|_| !self.idle.is_empty());
            self.turn(due.map_or(self.next_tick, |due| due.min(self.next_tick)))?;
        }
        let (cpu, delayed) = thread_times();
        Ok(ThreadUse {
            cpu_seconds: cpu - cpu_before,
            delayed_seconds: delayed - delayed_before,
            seconds: start.elapsed().as_secs_f64(),
            ..ThreadUse::default()
        })
    }

    /// In an open loop, counts every request that was due: one without a response counts with the time until now.
    fn count_unanswered(&mut self) {
        if self.plan.loop_kind == LoopKind::Closed {
            return;
        }
        for slot in &mut self.slots {
            let mut ended = Vec::new();
            if let Some(link) = &mut slot.link {
                link.expire(u64::MAX, &mut ended);
            }
            let waiting = slot.waiting.take().map(|waiting| waiting.pending);
            let pending = ended.into_iter().map(|(pending, _)| pending).chain(waiting);
            pending.for_each(|pending| self.tally.count_failed(Failed::Timeout, pending.due, self.now));
        }
        while let Some(due) = self.schedule.take(self.now) {
            self.tally.count_failed(Failed::Timeout, due, self.now);
        }
    }

    /// Begins a connection in a slot.
    fn open(&mut self, index: usize) -> Result<(), Failure> {
        let (config, now) = (self.config.clone(), self.instant());
        let reading = (self.plan.expect.crc32c.is_some(), self.settings.loss_percent);
        let mut link = QuicLink::new(&mut self.endpoint, config, self.server, reading, now)?;
        let added =
            epoll::add(&self.poll, link.socket.as_fd(), EventData::new_u64(index as u64), EventFlags::IN);
        added.map_err(Failure::kernel("epoll"))?;
        link.transmit(&mut self.packets, &mut self.noise, now);
        self.slots[index].link = Some(link);
        Ok(())
    }

    /// Waits for packets until `latest` at most, and handles them and the timers that are due.
    fn turn(&mut self, latest: u64) -> Result<(), Failure> {
        let wait = Duration::from_nanos(latest.saturating_sub(self.now));
        let wait = rustix::event::Timespec::try_from(wait).map_err(Failure::other)?;
        let mut events = Vec::with_capacity(self.slots.len().max(1));
        match epoll::wait(&self.poll, spare_capacity(&mut events), Some(&wait)) {
            Ok(_) | Err(io::Errno::INTR) => {}
            Err(errno) => return Err(Failure::kernel("epoll")(errno)),
        }
        self.read_clock();
        let now = self.instant();
        let mut ended = Vec::new();
        for event in &events {
            let index = event.data.u64() as usize;
            let Some(link) = &mut self.slots[index].link else { continue };
            link.receive(&mut self.endpoint, &mut self.space, &mut self.noise, now, &mut ended);
            self.proceed(index, &mut ended)?;
        }
        if self.now >= self.next_tick {
            self.next_tick = self.now + TICK;
            let expired = self.now.saturating_sub(nanos(self.plan.timeout));
            for index in 0..self.slots.len() {
                let waiting = self.slots[index].waiting.as_ref();
                if waiting.is_some_and(|waiting| waiting.pending.sent <= expired) {
                    self.close(index);
                    self.offer(index);
                }
                let Some(link) = &mut self.slots[index].link else { continue };
                link.time(&mut self.endpoint, now, &mut ended);
                link.expire(expired, &mut ended);
                self.proceed(index, &mut ended)?;
            }
        }
        Ok(())
    }

    /// Counts the requests of a connection that have ended, and gives it its next ones.
    fn proceed(&mut self, index: usize, ended: &mut Vec<link::Ended>) -> Result<(), Failure> {
        let has_ended = !ended.is_empty();
        for (pending, result) in ended.drain(..) {
            self.under_way -= 1;
            match result {
                Ok(response) => self.tally.count(self.plan, pending, response, self.now),
                Err(failed) => self.tally.count_failed(failed, pending.due, self.now),
            }
        }
        self.send_waiting(index);
        let Some(link) = &mut self.slots[index].link else { return Ok(()) };
        let is_used_up = self.plan.reuse == Reuse::PerRequest && has_ended;
        if !link.is_lost && !is_used_up {
            link.transmit(&mut self.packets, &mut self.noise, self.clock + Duration::from_nanos(self.now));
            self.offer(index);
            return Ok(());
        }
        self.close(index);
        if self.plan.reuse == Reuse::KeepAlive && !self.schedule.is_over(self.now) {
            self.open(index)?;
            self.tally.connections += 1;
        }
        self.offer(index);
        Ok(())
    }

    /// Closes the connection of a slot; its requests have failed.
    fn close(&mut self, index: usize) {
        let now = self.instant();
        let slot = &mut self.slots[index];
        let Some(link) = slot.link.take() else { return };
        let is_open = link.is_open;
        let failed = if is_open { Failed::Reset } else { Failed::Connect };
        let in_flight = link.close(&mut self.endpoint, &mut self.packets, &mut self.noise, now);
        for pending in in_flight.chain(slot.waiting.take().map(|waiting| waiting.pending)) {
            self.under_way -= 1;
            self.tally.count_failed(failed, pending.due, self.now);
        }
    }

    /// Puts a slot that can take a request into the queue.
    fn offer(&mut self, index: usize) {
        let has_space = self.has_space(index);
        let slot = &mut self.slots[index];
        if has_space && !slot.is_queued {
            slot.is_queued = true;
            self.idle.push_back(index as u32);
        }
    }

    /// Whether a slot can take a request: its connection has a free stream, or each request has a connection of its own.
    fn has_space(&self, index: usize) -> bool {
        let slot = &self.slots[index];
        match (&slot.link, self.plan.reuse) {
            (Some(link), Reuse::KeepAlive) => {
                let is_blocked = !link.is_open || link.is_lost || slot.waiting.is_some();
                !is_blocked && link.in_flight() < self.settings.streams as usize
            }
            (link, Reuse::PerRequest) => link.is_none(),
            (None, Reuse::KeepAlive) => false,
        }
    }

    /// Gives due requests to the slots that can take them.
    fn dispatch(&mut self) -> Result<(), Failure> {
        let mut touched = Vec::new();
        while let Some(&index) = self.idle.front() {
            let index = index as usize;
            if self.has_space(index) {
                let Some(due) = self.schedule.take(self.now) else { break };
                let pending = Pending { due, sent: self.now };
                self.under_way += 1;
                self.slots[index].waiting = Some(Waiting { pending, block: self.block() });
                if self.plan.reuse == Reuse::PerRequest {
                    self.open(index)?;
                    self.tally.connections += 1;
                    self.proceed(index, &mut Vec::new())?;
                } else {
                    self.send_waiting(index);
                    touched.push(index);
                }
            }
            self.idle.pop_front();
            self.slots[index].is_queued = false;
            self.offer(index);
        }
        let now = self.instant();
        for index in touched {
            // Without new packets this returns immediately.
            if let Some(link) = &mut self.slots[index].link {
                link.transmit(&mut self.packets, &mut self.noise, now);
            }
        }
        Ok(())
    }

    /// Returns the header block of the next request.
    fn block(&mut self) -> Vec<u8> {
        let mut path = Vec::new();
        self.requests.push(&mut path);
        let mut block = Vec::new();
        let host = self.plan.targets[0].host.as_bytes();
        push_request(&mut block, self.plan.method.as_bytes(), b"https", &path, host);
        for line in &self.plan.headers {
            if let Some((name, value)) = line.split_once(':') {
                push_field(&mut block, name.to_ascii_lowercase().as_bytes(), value.trim().as_bytes());
            }
        }
        block
    }

    /// Sends the request that waits, if its connection is open and has a stream for it.
    fn send_waiting(&mut self, index: usize) {
        let Slot { link: Some(link), waiting, .. } = &mut self.slots[index] else { return };
        if link.is_open
            && let Some(Waiting { pending, block }) = waiting
            && link.request(block, &self.plan.body, *pending)
        {
            *waiting = None;
        }
    }

    fn read_clock(&mut self) {
        self.now = nanos(self.clock.elapsed());
    }

    fn instant(&self) -> Instant {
        self.clock + Duration::from_nanos(self.now)
    }
}

/// Opens the connections of a plan, sends a request over each, and calls `held` while all of them are open and idle.
pub(crate) fn hold<T>(plan: &Plan, held: impl FnOnce() -> T) -> Result<T, Failure> {
    let settings =
        plan.quic.as_ref().ok_or_else(|| Failure::Other("the plan is not over QUIC".to_owned()))?;
    let plan = &Plan { length: Length::Requests(u64::from(plan.connections)), ..plan.clone() };
    let mut worker = QuicWorker::new(plan, settings, (0, 1))?;
    worker.connect()?;
    worker.run(Instant::now(), &AtomicBool::new(false))?;
    if worker.tally.responses < u64::from(plan.connections) || worker.tally.errors.total() > 0 {
        return Err(Failure::Other(format!("idle connections: {}", worker.tally.errors)));
    }
    // Acknowledgements and session tickets are still under way.
    let end = worker.now + nanos(SETTLING);
    while worker.now < end {
        worker.turn(worker.now + TICK)?;
    }
    Ok(held())
}

/// Time in which connections become idle: acknowledgements are delayed by at most 25 ms (RFC 9000 section 18.2).
const SETTLING: Duration = Duration::from_millis(300);

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::super::target::Target;
    use super::*;
    use crate::load;
    use crate::method::pin;

    #[test]
    fn a_silent_server_and_an_invalid_address_are_failures() {
        let client = load::tls_client(false, b"h3");
        let settings = QuicSettings { tls: client.unwrap(), streams: 1, early_data: false, loss_percent: 0 };
        let failure = |url: &str, reuse| {
            let plan = Plan {
                connections: 2,
                cpus: pin::available().into_iter().take(1).collect(),
                timeout: Duration::from_millis(50),
                length: Length::Time(Duration::from_millis(10)),
                quic: Some(settings.clone()),
                reuse,
                ..Plan::new(vec![Target::parse(url).unwrap()])
            };
            load::run(&plan).unwrap_err().to_string()
        };
        // It receives datagrams, and sends none.
        let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/", silent.local_addr().unwrap());
        assert_eq!(failure(&url, Reuse::KeepAlive), "QUIC: no handshake completed within 0.05 s");
        let said = failure(&url, Reuse::PerRequest);
        assert!(said.starts_with(&format!("no response from {url} within 0.")), "{said}");
        let said = failure("http://unix:/x.sock:/", Reuse::KeepAlive);
        assert!(said.starts_with("HTTP/3 needs an IP address, not a Unix socket"), "{said}");
    }
}
