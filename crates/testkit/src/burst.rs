//! Many concurrent clients in a few threads, and one that reads slowly.
//!
//! [`Burst`] opens all its connections first, then sends all requests, and reads in a poll loop. So a thousand clients
//! leave most of the CPU time to the server under test. Each client yields an [`Outcome`]: status, fields, a checksum
//! of the body, and the times of its first and last byte. [`SlowClient`] reads up to a given byte and waits at a gate.
//!
//! Each client sends one request on a separate connection.

use std::mem::take;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Condvar, Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::client::request_bytes;
use crate::files::Content;
use crate::gate::{Gate, Stop, lock, wait_on};
use crate::receive::{BodyChecks, Receiver};
use crate::response::{BodyLength, Head, Response};
use crate::server::ListenAddr;
use crate::socket::Socket;
use crate::wait::Deadline;

/// Default number of threads: a single thread leaves the other core of a small machine to the server.
const THREADS: usize = 1;

/// Default number of stored bytes of each body: 64 KiB.
const KEPT_BYTES: usize = 64 * 1024;

/// Maximum size of an expected body: it is generated once, for all clients.
const EXPECTED_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// Maximum number of bytes per read, which limits how long one connection delays the others.
const READ_BYTES: usize = 64 * 1024;

/// File descriptors of the process in addition to those of the clients.
const OTHER_FDS: u64 = 256;

/// The result of one client.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Index of the client, from 0 in the order of the requests.
    pub client: usize,
    /// Status of the response, 0 without a response.
    pub status: u16,
    /// The head of the final response.
    pub head: Option<Head>,
    /// The heads of interim responses.
    pub interim: Vec<Head>,
    /// The first bytes of the body, without framing; see [`Burst::keep`].
    pub body: Vec<u8>,
    /// Length of the body in bytes.
    pub body_bytes: u64,
    /// The [`Checksum`](crate::Checksum) of the body.
    pub checksum: u64,
    /// First offset at which the body differs from that of [`Burst::expect`]; for a body that is too short, its length.
    pub wrong_at: Option<u64>,
    /// Time from the common start of sending to the first byte of the response.
    pub first_byte: Option<Duration>,
    /// Time from the same start to the last byte, if the response is complete.
    pub last_byte: Option<Duration>,
    /// Error of the connection or the framing.
    pub fault: Option<String>,
}

impl Outcome {
    /// Whether the response is complete and, if a body was expected, equal to it.
    pub fn is_right(&self) -> bool {
        self.fault.is_none() && self.wrong_at.is_none() && self.last_byte.is_some()
    }

    /// Returns the value of a field of the final response.
    pub fn field(&self, name: &str) -> Option<&str> {
        self.head.as_ref()?.field(name)
    }

    /// Returns the response. Panics unless it is complete and its complete body was stored.
    #[track_caller]
    pub fn response(&self) -> Response {
        let whole = self.fault.is_none() && self.body.len() as u64 == self.body_bytes;
        let Some(head) = self.head.clone().filter(|_| whole) else {
            panic!("client {} has no complete response: {:?}", self.client, self.fault)
        };
        let length = BodyLength::Bytes(self.body_bytes);
        Response { status: self.status, head, body: self.body.clone(), length }
    }
}

/// Panics with the first few clients that have a wrong response or another status.
#[track_caller]
pub fn assert_all_right(outcomes: &[Outcome], status: u16) {
    let wrong: Vec<&Outcome> =
        outcomes.iter().filter(|one| !one.is_right() || one.status != status).collect();
    let shown: Vec<String> = wrong.iter().take(3).map(|one| format!("{:.600}", format!("{one:?}"))).collect();
    assert!(wrong.is_empty(), "{} of {} clients: {}", wrong.len(), outcomes.len(), shown.join("\n"));
}

/// Progress of the clients of a burst.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Number of connected clients.
    pub connected: usize,
    /// Number of clients that have sent their request.
    pub sent: usize,
    /// Number of clients that have received the head of the final response.
    pub heads: usize,
    /// Number of clients that have ended, successfully or not.
    pub ended: usize,
    /// Bytes of bodies received so far by all clients.
    pub body_bytes: u64,
}

/// The parameters of a burst.
#[derive(Debug)]
pub struct Burst {
    to: ListenAddr,
    requests: Vec<Vec<u8>>,
    threads: usize,
    checks: BodyChecks,
    gate: Option<Gate>,
    deadline: Deadline,
}

impl Burst {
    /// Creates a burst for this server, without clients.
    pub fn new(to: &ListenAddr) -> Burst {
        let checks = BodyChecks { stored_max: KEPT_BYTES, ..BodyChecks::default() };
        let deadline = Deadline::default();
        Burst { to: to.clone(), requests: Vec::new(), threads: THREADS, checks, gate: None, deadline }
    }

    /// Adds clients that send a GET for the same target.
    pub fn get(self, target: &str, clients: usize) -> Burst {
        let request = request_bytes("GET", target, &[]);
        (0..clients).fold(self, |burst, _| burst.request(request.clone()))
    }

    /// Adds a client that sends these bytes.
    pub fn request(mut self, bytes: impl Into<Vec<u8>>) -> Burst {
        self.requests.push(bytes.into());
        self
    }

    /// Compares every body with this content as it arrives.
    #[track_caller]
    pub fn expect(mut self, content: Content) -> Burst {
        assert!(content.size() <= EXPECTED_BYTES_MAX, "{} bytes to compare with", content.size());
        self.checks.expected = Some(content.bytes(0..content.size()).into());
        self
    }

    /// Stores this many bytes of each body; 65536 by default.
    pub fn keep(mut self, bytes: usize) -> Burst {
        self.checks.stored_max = bytes;
        self
    }

    /// Marks the requests as HEAD requests, whose responses have no body.
    pub fn to_head(mut self) -> Burst {
        self.checks.to_head = true;
        self
    }

    /// Uses this number of threads; one by default.
    pub fn threads(mut self, threads: usize) -> Burst {
        self.threads = threads.max(1);
        self
    }

    /// Waits at a gate when all clients are connected, before anything is sent.
    pub fn hold(mut self, gate: &Gate) -> Burst {
        self.gate = Some(gate.clone());
        self
    }

    /// Limits the total time. A client that has not ended then gets a timeout as its fault.
    pub fn deadline(mut self, deadline: Deadline) -> Burst {
        self.deadline = deadline;
        self
    }

    /// Runs until the last client has ended.
    #[track_caller]
    pub fn run(self) -> Vec<Outcome> {
        self.start().join()
    }

    /// Starts the clients in the background.
    #[track_caller]
    pub fn start(mut self) -> Running {
        allow_fds(self.requests.len() as u64 + OTHER_FDS);
        let threads = self.threads.min(self.requests.len().max(1));
        let all = Arc::new(Shared {
            progress: Mutex::new(Progress::default()),
            changed: Condvar::new(),
            stop: Stop::default(),
            barrier: Barrier::new(threads),
            began: OnceLock::new(),
            next: AtomicUsize::new(0),
        });
        let requests: Arc<Mutex<Vec<Vec<u8>>>> = Arc::new(Mutex::new(take(&mut self.requests)));
        let burst = Arc::new(self);
        let start = |_| {
            let (burst, all, requests) = (Arc::clone(&burst), Arc::clone(&all), Arc::clone(&requests));
            std::thread::spawn(move || Loop::run(&burst, &all, &requests))
        };
        let threads = (0..threads).map(start).collect();
        Running { all, threads }
    }
}

/// A running burst. Dropping it ends the clients.
pub struct Running {
    all: Arc<Shared>,
    threads: Vec<JoinHandle<Vec<Outcome>>>,
}

impl Running {
    /// Returns the progress of the clients.
    pub fn progress(&self) -> Progress {
        *lock(&self.all.progress)
    }

    /// Waits until the clients have reached the state that the closure checks; panics at the default deadline.
    #[track_caller]
    pub fn wait_for(&self, what: &str, mut done: impl FnMut(&Progress) -> bool) -> Progress {
        let reached =
            wait_on(&self.all.progress, &self.all.changed, Deadline::default(), |progress| done(progress));
        let progress = self.progress();
        assert!(reached, "gave up waiting for {what} of the clients: {progress:?}");
        progress
    }

    /// Waits until the last client has ended; returns the outcomes in order.
    #[track_caller]
    pub fn join(mut self) -> Vec<Outcome> {
        let mut outcomes = Vec::new();
        for thread in take(&mut self.threads) {
            let part = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            outcomes.extend(part);
        }
        outcomes.sort_by_key(|outcome| outcome.client);
        outcomes
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.all.stop.stop();
        for thread in take(&mut self.threads) {
            let _ = thread.join();
        }
    }
}

/// The shared state of the threads of a burst.
struct Shared {
    progress: Mutex<Progress>,
    changed: Condvar,
    stop: Stop,
    /// Barrier at which all threads wait until all clients are connected.
    barrier: Barrier,
    began: OnceLock<Instant>,
    /// Index of the request for the next connection.
    next: AtomicUsize,
}

impl Shared {
    fn update(&self, change: impl FnOnce(&mut Progress)) {
        change(&mut lock(&self.progress));
        self.changed.notify_all();
    }
}

/// One connection of a burst.
struct One {
    socket: Option<Socket>,
    request: Vec<u8>,
    sent: usize,
    receiver: Receiver,
    outcome: Outcome,
}

/// The clients of one thread.
struct Loop<'a> {
    all: &'a Shared,
    poll: OwnedFd,
    ones: Vec<One>,
    /// Number of clients that have not ended.
    open: usize,
    began: Instant,
}

impl<'a> Loop<'a> {
    fn run(burst: &Burst, all: &'a Shared, requests: &Mutex<Vec<Vec<u8>>>) -> Vec<Outcome> {
        let ones = connect(burst, all, requests);
        all.barrier.wait();
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC);
        let poll = poll.unwrap_or_else(|error| panic!("epoll_create: {error}"));
        if burst.gate.as_ref().is_none_or(|gate| gate.pass(&all.stop)) {
            let began = *all.began.get_or_init(Instant::now);
            let open = ones.iter().filter(|one| one.socket.is_some()).count();
            let mut own = Loop { all, poll, ones, open, began };
            own.serve(burst.deadline);
            return own.ones.into_iter().map(finish).collect();
        }
        ones.into_iter().map(finish).collect()
    }

    fn serve(&mut self, deadline: Deadline) {
        for index in 0..self.ones.len() {
            self.register(index);
        }
        let mut events = Vec::with_capacity(256);
        let mut buffer = vec![0; READ_BYTES];
        while self.open > 0 && !self.all.stop.is_stopped() {
            let Some(left) = deadline.left() else { break };
            // Limited, so that a stop request is noticed within 100 ms.
            let left = left.min(Duration::from_millis(100));
            let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(left.subsec_nanos()) };
            events.clear();
            // If interrupted there are no events, and the next iteration polls again.
            let _ = epoll::wait(&self.poll, spare_capacity(&mut events), Some(&timeout));
            for event in &events {
                let (index, flags) = (event.data.u64() as usize, event.flags);
                if flags.contains(epoll::EventFlags::OUT) {
                    self.send(index);
                }
                if flags.intersects(epoll::EventFlags::IN | epoll::EventFlags::HUP | epoll::EventFlags::ERR) {
                    self.receive(index, &mut buffer);
                }
            }
        }
        for one in self.ones.iter_mut().filter(|one| one.socket.is_some()) {
            one.outcome.fault.get_or_insert_with(|| "the deadline passed".to_owned());
        }
    }

    fn register(&mut self, index: usize) {
        let Some(socket) = &self.ones[index].socket else { return };
        let data = epoll::EventData::new_u64(index as u64);
        let outcome = epoll::add(&self.poll, socket, data, epoll::EventFlags::IN | epoll::EventFlags::OUT);
        if let Err(error) = outcome {
            self.end(index, Some(format!("epoll_ctl: {error}")));
        }
    }

    fn send(&mut self, index: usize) {
        let one = &mut self.ones[index];
        let Some(socket) = &one.socket else { return };
        match socket.write(&one.request[one.sent..]) {
            Ok(count) => one.sent += count,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return,
            // The request is not sent further, but the response to its first bytes may still arrive.
            Err(_) => one.sent = one.request.len(),
        }
        if one.sent == one.request.len() {
            let data = epoll::EventData::new_u64(index as u64);
            let _ = epoll::modify(&self.poll, socket, data, epoll::EventFlags::IN);
            self.all.update(|progress| progress.sent += 1);
        }
    }

    fn receive(&mut self, index: usize, buffer: &mut [u8]) {
        let one = &mut self.ones[index];
        let Some(socket) = &one.socket else { return };
        let count = match socket.read(buffer) {
            Ok(count) => count,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return,
            Err(error) => return self.end(index, Some(format!("receive: {error}"))),
        };
        let (had_head, had_bytes) = (one.receiver.head.is_some(), one.receiver.body_bytes);
        if count > 0 {
            one.outcome.first_byte.get_or_insert_with(|| self.began.elapsed());
        }
        let outcome = match count {
            0 => one.receiver.feed_end(),
            count => one.receiver.feed(&buffer[..count]),
        };
        let got_head = !had_head && one.receiver.head.is_some();
        let got_bytes = one.receiver.body_bytes - had_bytes;
        self.all.update(|progress| {
            progress.heads += usize::from(got_head);
            progress.body_bytes += got_bytes;
        });
        match outcome {
            Err(fault) => self.end(index, Some(fault.to_string())),
            Ok(()) if count == 0 || self.ones[index].receiver.is_ended() => self.end(index, None),
            Ok(()) => {}
        }
    }

    fn end(&mut self, index: usize, fault: Option<String>) {
        let one = &mut self.ones[index];
        if fault.is_none() {
            one.outcome.last_byte = Some(self.began.elapsed());
        }
        one.outcome.fault = fault;
        // Closing also removes the socket from the poll set, because no other descriptor refers to it.
        one.socket = None;
        self.open -= 1;
        self.all.update(|progress| progress.ended += 1);
    }
}

/// Opens connections while requests remain. The threads share the requests.
fn connect(burst: &Burst, all: &Shared, requests: &Mutex<Vec<Vec<u8>>>) -> Vec<One> {
    let mut ones = Vec::new();
    loop {
        let client = all.next.fetch_add(1, Ordering::Relaxed);
        let Some(request) = lock(requests).get_mut(client).map(take) else { return ones };
        let mut outcome = Outcome { client, ..Outcome::default() };
        let connected = Socket::connect(&burst.to).and_then(|socket| {
            rustix::io::ioctl_fionbio(&socket, true)?;
            Ok(socket)
        });
        let socket = match connected {
            Ok(socket) => Some(socket),
            Err(error) => {
                outcome.fault = Some(format!("connect: {error}"));
                None
            }
        };
        all.update(|progress| match socket {
            Some(_) => progress.connected += 1,
            None => progress.ended += 1,
        });
        ones.push(One { socket, request, sent: 0, receiver: Receiver::new(burst.checks.clone()), outcome });
    }
}

fn finish(one: One) -> Outcome {
    let (receiver, mut outcome) = (one.receiver, one.outcome);
    outcome.checksum = receiver.checksum();
    outcome.status = receiver.head.as_ref().map_or(0, |head| head.status);
    outcome.head = receiver.head;
    outcome.interim = receiver.interim;
    outcome.body = receiver.kept;
    outcome.body_bytes = receiver.body_bytes;
    outcome.wrong_at = receiver.wrong_at;
    outcome
}

/// Raises the soft limit of file descriptors if necessary (1024 for most users); if that fails, the clients report it.
pub fn allow_fds(count: u64) {
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_some_and(|current| current < count) {
        let current = limit.maximum.map_or(count, |maximum| maximum.min(count));
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(current), maximum: limit.maximum });
    }
}

/// A client that reads up to a byte, waits at a gate, and continues to read.
pub struct SlowClient {
    stop: Arc<Stop>,
    socket: Arc<Socket>,
    thread: Option<JoinHandle<Outcome>>,
}

impl SlowClient {
    /// Sends a request and reads. After each number of wire bytes in `stops`, the client waits at the gate with that
    /// number. A `receive_buffer` of a few thousand bytes soon blocks the server.
    #[track_caller]
    pub fn start(
        to: &ListenAddr,
        request: &[u8],
        stops: Vec<(u64, Gate)>,
        receive_buffer: Option<usize>,
    ) -> SlowClient {
        let connected = match (to, receive_buffer) {
            (ListenAddr::Tcp(address), Some(bytes)) => Socket::connect_narrow(*address, bytes),
            (to, _) => Socket::connect(to),
        };
        let socket = Arc::new(connected.unwrap_or_else(|error| panic!("connect to {to}: {error}")));
        socket.write_all(request).unwrap_or_else(|error| panic!("send: {error}"));
        let stop = Arc::new(Stop::default());
        let (own, reading) = (Arc::clone(&stop), Arc::clone(&socket));
        let thread = Some(std::thread::spawn(move || read_slowly(&reading, &own, &stops)));
        SlowClient { stop, socket, thread }
    }

    /// Closes the connection immediately, in any state of the client.
    pub fn leave(self) {}

    /// Waits for the end of the response. Open the gates first. The complete body is stored.
    #[track_caller]
    pub fn join(mut self) -> Outcome {
        let thread = self.thread.take();
        let outcome = thread.map(JoinHandle::join).transpose();
        outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic)).unwrap_or_default()
    }
}

impl Drop for SlowClient {
    fn drop(&mut self) {
        self.stop.stop();
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn read_slowly(socket: &Socket, stop: &Stop, stops: &[(u64, Gate)]) -> Outcome {
    let began = Instant::now();
    let checks = BodyChecks { stored_max: usize::MAX, ..BodyChecks::default() };
    let mut one = One {
        socket: None,
        request: Vec::new(),
        sent: 0,
        receiver: Receiver::new(checks),
        outcome: Outcome::default(),
    };
    let mut buffer = vec![0; READ_BYTES];
    let (mut taken, mut stops) = (0, stops.iter());
    let mut next = stops.next();
    while !one.receiver.is_ended() {
        if let Some((_, gate)) = next.filter(|(at, _)| *at <= taken) {
            if !gate.pass(stop) {
                break;
            }
            next = stops.next();
            continue;
        }
        let room = next.map_or(buffer.len() as u64, |(at, _)| at - taken).min(buffer.len() as u64) as usize;
        let fed = match socket.read(&mut buffer[..room]) {
            Ok(0) => one.receiver.feed_end().map(|()| 0),
            Ok(count) => {
                one.outcome.first_byte.get_or_insert_with(|| began.elapsed());
                one.receiver.feed(&buffer[..count]).map(|()| count)
            }
            Err(error) => Err(error.into()),
        };
        match fed {
            Ok(0) => break,
            Ok(count) => taken += count as u64,
            Err(fault) => {
                one.outcome.fault = Some(fault.to_string());
                break;
            }
        }
    }
    if one.outcome.fault.is_none() && !stop.is_stopped() {
        one.outcome.last_byte = Some(began.elapsed());
    }
    finish(one)
}
