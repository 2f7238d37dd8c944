//! The other end of an echo: connections that send a message and wait until it is back, or that are made and wait for
//! their end. One thread on each of the generator's processors, with an engine of its own.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use io::engine::{EngineConfig, NetKind};
use io::op::{PeerAddr, RecvInto, Source};
use io::probe::Probe;
use io::{Completion, Engine, Fd, Op, OpId, Payload, Segments, Wait};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::failure::Failure;
use crate::load::owners::Owners;
use crate::load::{Outcome, Pace, Tally, ThreadUse, thread_use};
use crate::method::pin;

/// How long connections may take to be made, all of them together.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// How often the end and an interruption are looked for where nothing comes.
const LOOK: Duration = Duration::from_millis(20);

/// What is done on each connection, again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Task {
    /// So many bytes go there and come back.
    Messages { bytes: usize },
    /// It is made, and the server ends it.
    Connections,
}

/// One load.
#[derive(Clone, Debug)]
pub(super) struct Load {
    /// Where the server listens.
    pub(super) port: u16,
    /// What is done with each connection.
    pub(super) task: Task,
    /// Of all threads together.
    pub(super) connections: u32,
    /// How long it is counted.
    pub(super) length: Duration,
    /// A pinned thread on each.
    pub(super) cpus: Vec<usize>,
    /// Ends it early.
    pub(super) stop: Arc<AtomicBool>,
}

/// Carries a load out. Messages count as answers, and so do connections that were ended in order.
pub(super) fn run(load: &Load) -> Result<Outcome, Failure> {
    let net = Probe::run().best_net();
    let threads = load.cpus.len().min(load.connections as usize).max(1);
    // All begin at once, and one that cannot begin still lets the others go on to their end.
    let ready = &Barrier::new(threads);
    let results: Vec<Result<(Tally, ThreadUse, f64), Failure>> = std::thread::scope(|scope| {
        let start = |index: usize| {
            scope.spawn(move || {
                let client = Client::connected(load, net, (index, threads));
                ready.wait();
                client?.run()
            })
        };
        let handles: Vec<_> = (0..threads).map(start).collect();
        let died = |_| Err(Failure::Other("a thread of the echo's client has panicked".to_owned()));
        handles.into_iter().map(|handle| handle.join().unwrap_or_else(died)).collect()
    });
    let (mut tally, mut uses, mut seconds) = (Tally::new(), Vec::new(), 0.0_f64);
    for result in results {
        let (counted, used, took) = result?;
        tally.add(&counted);
        uses.push(used);
        seconds = seconds.max(took);
    }
    if tally.answers == 0 {
        return Err(Failure::Other(format!("the echo server answered nothing (errors: {})", tally.errors)));
    }
    let engine = if net == NetKind::Uring { "io_uring" } else { "epoll" };
    Ok(Outcome { engine, seconds, tally, threads: uses, pace: Pace::Closed, series: Vec::new() })
}

/// What an operation is for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Connect,
    Receive,
    Send,
}

/// One connection.
#[derive(Default)]
struct Link {
    socket: Option<Fd>,
    /// The message while it is not on its way.
    message: Vec<u8>,
    /// Bytes of it that have not come back.
    left: usize,
    /// When it was sent, or the connection begun.
    since: Option<Instant>,
    is_connected: bool,
}

/// The client's one thread: its connections on an engine of their own.
struct Client<'a> {
    load: &'a Load,
    cpu: usize,
    engine: Box<dyn Engine>,
    owners: Owners<(u32, Role)>,
    links: Vec<Link>,
    /// What every message is.
    pattern: Vec<u8>,
    tally: Tally,
    /// Of the last turn's completions.
    now: Instant,
    failure: Option<Failure>,
}

impl<'a> Client<'a> {
    /// One thread's part: pinned, and for messages with all of its connections made.
    fn connected(load: &'a Load, net: NetKind, share: (usize, usize)) -> Result<Client<'a>, Failure> {
        let cpu = load.cpus.get(share.0).copied().unwrap_or(0);
        pin::this_thread(cpu)?;
        let count = (load.connections as usize).saturating_sub(share.0).div_ceil(share.1);
        let bytes = match load.task {
            Task::Messages { bytes } => bytes,
            Task::Connections => 0,
        };
        let config = EngineConfig {
            net,
            disk_ring: false,
            ops_max: (count as u32).saturating_mul(4) + 256,
            recv_buffer_bytes: (bytes as u32).max(4096),
            ..EngineConfig::default()
        };
        let engine = io::build(config).map_err(|error| Failure::Other(error.to_string()))?;
        // Each byte says where it belongs, so that what comes back in another order is noticed.
        let pattern: Vec<u8> = (0..bytes).map(|at| (at % 251) as u8).collect();
        let link = || Link { message: pattern.clone(), ..Link::default() };
        let links = (0..count).map(|_| link()).collect();
        let (owners, tally, now) = (Owners::new(), Tally::new(), Instant::now());
        let mut client = Client { load, cpu, engine, owners, links, pattern, tally, now, failure: None };
        if bytes > 0 {
            client.connect_all()?;
        }
        Ok(client)
    }

    /// Makes all connections before anything is counted.
    fn connect_all(&mut self) -> Result<(), Failure> {
        (0..self.links.len()).for_each(|index| self.connect(index));
        let deadline = Instant::now() + CONNECT_LIMIT;
        while self.failure.is_none() && self.links.iter().any(|link| !link.is_connected) {
            if Instant::now() > deadline {
                return Err(Failure::Other(format!(
                    "the echo server took too few connections within {} s",
                    CONNECT_LIMIT.as_secs()
                )));
            }
            self.turn(deadline)?;
        }
        self.failure.take().map_or(Ok(()), Err)
    }

    /// The load itself, with what this thread spent on it.
    fn run(mut self) -> Result<(Tally, ThreadUse, f64), Failure> {
        let (start, before) = (Instant::now(), thread_use(&*self.engine));
        self.now = start;
        for index in 0..self.links.len() {
            match self.load.task {
                Task::Messages { .. } => self.send(index),
                Task::Connections => self.connect(index),
            }
        }
        let end = start + self.load.length;
        while self.now < end && !self.load.stop.load(Ordering::Relaxed) {
            self.turn(end)?;
            if let Some(failure) = self.failure.take() {
                return Err(failure);
            }
        }
        let (seconds, after) = (start.elapsed().as_secs_f64(), thread_use(&*self.engine));
        let used = ThreadUse {
            cpu: Some(self.cpu),
            cpu_seconds: after.cpu_seconds - before.cpu_seconds,
            delayed_seconds: after.delayed_seconds - before.delayed_seconds,
            kernel_entries: after.kernel_entries - before.kernel_entries,
        };
        Ok((self.tally, used, seconds))
    }

    /// Waits for what has come, and does what follows from it.
    fn turn(&mut self, end: Instant) -> Result<(), Failure> {
        let mut batch = Vec::with_capacity(self.links.len());
        let latest = end.min(Instant::now() + LOOK);
        let turned = self.engine.turn(Wait::Until(latest), &mut batch);
        turned.map_err(Failure::kernel("the engine"))?;
        self.now = Instant::now();
        batch.into_iter().for_each(|completion| self.complete(completion));
        Ok(())
    }

    /// Hands a completion to the connection that it belongs to.
    fn complete(&mut self, completion: Completion) {
        let Some((index, role)) = self.owners.of(completion.id) else { return };
        let index = index as usize;
        match role {
            Role::Connect => self.connect_ended(index, completion),
            Role::Send => self.sent(index, completion),
            Role::Receive => self.received(index, completion),
        }
    }

    /// Starts an operation and remembers whose it is.
    fn submit(&mut self, index: usize, role: Role, op: Op) -> Option<OpId> {
        match self.engine.submit(op) {
            Ok(id) => {
                self.owners.set(id, (index as u32, role));
                Some(id)
            }
            Err(_) => {
                self.failure = Some(Failure::Other("the engine has no room for an operation".to_owned()));
                None
            }
        }
    }

    /// Begins a connection, whose end is told to [`Client::connect_ended`].
    fn connect(&mut self, index: usize) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = match rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None) {
            Ok(socket) => socket,
            Err(errno) => return self.fail("socket", errno),
        };
        // A message is one write: waiting for more to send with it would be waiting for nothing.
        if let Err(errno) = rustix::net::sockopt::set_tcp_nodelay(&socket, true) {
            return self.fail("setsockopt TCP_NODELAY", errno);
        }
        let socket = Fd::from(socket);
        socket.set_tcp();
        let link = &mut self.links[index];
        link.since = Some(self.now);
        link.socket = Some(socket.clone());
        let peer = PeerAddr::Inet(SocketAddr::from((Ipv4Addr::LOCALHOST, self.load.port)));
        self.submit(index, Role::Connect, Op::Connect { socket, peer });
    }

    /// Notes what ends the measurement: a connection that fails would be a figure of something else.
    fn fail(&mut self, doing: &str, errno: io::Errno) {
        self.failure = Some(Failure::Kernel { doing: doing.to_owned(), error: errno.into() });
    }

    /// A connection is made, or was refused.
    fn connect_ended(&mut self, index: usize, completion: Completion) {
        if let Err(errno) = completion.result {
            return self.fail(&format!("connect to 127.0.0.1:{}", self.load.port), errno);
        }
        self.tally.connections += 1;
        self.links[index].is_connected = true;
        self.receive(index);
    }

    /// Arms the receive of a connection: for all messages, or for the end.
    fn receive(&mut self, index: usize) {
        let into = match self.load.task {
            Task::Messages { .. } => RecvInto::Stream,
            Task::Connections => RecvInto::Pool,
        };
        if let Some(socket) = self.links[index].socket.clone() {
            self.submit(index, Role::Receive, Op::Recv { socket, into });
        }
    }

    /// Sends one message; the next one follows when this one is back.
    fn send(&mut self, index: usize) {
        let link = &mut self.links[index];
        link.since = Some(self.now);
        link.left = self.pattern.len();
        let Some(socket) = link.socket.clone() else { return };
        // The vector comes back with the end of the send: the same bytes go out every time.
        let mut data = Segments::new();
        data.push(Source::Vec(std::mem::take(&mut link.message)));
        self.submit(index, Role::Send, Op::Send { socket, data, more: false, zero_copy: false });
    }

    /// The end of a send, which may have been short.
    fn sent(&mut self, index: usize, completion: Completion) {
        let (Ok(count), Payload::Segments(mut data)) = (completion.result, completion.payload) else {
            return self.ended(index);
        };
        self.tally.sent_bytes += u64::from(count);
        data.advance(count as usize);
        let link = &mut self.links[index];
        if !data.is_empty() {
            let Some(socket) = link.socket.clone() else { return };
            self.submit(index, Role::Send, Op::Send { socket, data, more: false, zero_copy: false });
            return;
        }
        link.message = data.take_vec().unwrap_or_default();
        // The whole message may be back before the end of its send is told.
        if link.left == 0 {
            self.send(index);
        }
    }

    /// Bytes that are back: each is compared with what was sent.
    fn received(&mut self, index: usize, completion: Completion) {
        // Given up: what still comes is of no interest.
        if self.links[index].socket.is_none() {
            return;
        }
        let more = completion.more;
        match (completion.result, completion.payload) {
            (Ok(1..), Payload::Buf(bytes)) => self.read(index, &bytes),
            (Ok(0), _) if self.load.task == Task::Connections => {
                self.count(index);
                self.close(index);
                // The next one takes its place at once.
                return self.connect(index);
            }
            _ => return self.ended(index),
        }
        if !more {
            self.receive(index);
        }
    }

    /// A part of a message, which has to be what was sent.
    fn read(&mut self, index: usize, bytes: &[u8]) {
        let link = &mut self.links[index];
        let at = self.pattern.len() - link.left;
        self.tally.bytes += bytes.len() as u64;
        self.tally.body_bytes += bytes.len() as u64;
        if self.pattern.get(at..at + bytes.len()) != Some(bytes) {
            self.tally.errors.bad_check += 1;
            return self.close(index);
        }
        link.left -= bytes.len();
        if link.left > 0 {
            return;
        }
        let is_sent = !link.message.is_empty();
        self.count(index);
        if is_sent {
            self.send(index);
        }
    }

    /// Counts a message that is back whole, or a connection that was accepted and closed.
    fn count(&mut self, index: usize) {
        self.tally.answers += 1;
        let Some(since) = self.links[index].since else { return };
        let nanos = u64::try_from(self.now.saturating_duration_since(since).as_nanos()).unwrap_or(u64::MAX);
        self.tally.latency.saturating_record(nanos.max(1));
    }

    /// A server does not end a connection that is in use: counted, and not begun again.
    fn ended(&mut self, index: usize) {
        if self.links[index].socket.is_some() {
            self.tally.errors.reset += 1;
            self.close(index);
        }
    }

    /// Gives a connection up with everything that is under way on it.
    fn close(&mut self, index: usize) {
        if let Some(Ok(fd)) = self.links[index].socket.take().map(Fd::into_owned) {
            // Refused, it is closed by being dropped.
            let _ = self.engine.submit(Op::Close { fd });
        }
    }
}
