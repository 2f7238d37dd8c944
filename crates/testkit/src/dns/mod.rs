//! A scripted DNS server, over UDP and TCP on one port of 127.0.0.1.
//!
//! [`DnsServer`] has a table of [`Answer`]s by name and type, which a test may change at any time, and counts its
//! queries. A response can be omitted, delayed (by a gate), truncated, or have a different question. The response for a
//! name that is not in the table is NXDOMAIN; for a name with entries of other types only, it is empty.

pub mod message;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags, poll};

use crate::gate::{Gate, Stop, lock, wait_on};
use crate::wait::Deadline;
pub use message::{Data, Kind, Question, Record};

/// Maximum number of attempts to find a port that is free for both UDP and TCP.
const ATTEMPTS: u32 = 20;

/// The server's response to a question.
#[derive(Clone, Debug)]
pub enum Answer {
    /// These records; an empty list is a response too.
    Records(Vec<Record>),
    /// NXDOMAIN: the name does not exist.
    NxDomain,
    /// SERVFAIL: the server failed.
    ServFail,
    /// REFUSED.
    Refused,
    /// Any other response code.
    Code(u8),
    /// Over UDP only the truncation flag; over TCP this response.
    Truncated(Box<Answer>),
    /// No response, over UDP and TCP.
    Lost,
    /// This response, after the test has opened the gate.
    Late(Gate, Box<Answer>),
    /// This response with a different id, as from an attacker who guesses.
    WrongId(Box<Answer>),
    /// This response with a different question name.
    WrongQuestion(Box<Answer>),
    /// The first response this many times, then the second one.
    Times(u64, Box<Answer>, Box<Answer>),
    /// Both, one after the other: e.g. a forged response before the right one.
    Both(Box<Answer>, Box<Answer>),
    /// These bytes after the id of the question.
    Raw(Vec<u8>),
}

impl Answer {
    /// Returns addresses of either family with one TTL.
    #[track_caller]
    pub fn addresses(addresses: &[&str], ttl_seconds: u32) -> Answer {
        Answer::Records(addresses.iter().map(|address| Record::address(address, ttl_seconds)).collect())
    }
}

/// A received question, with its transport.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The question.
    pub question: Question,
    /// Whether it was received over TCP.
    pub over_tcp: bool,
    /// Address of the sender.
    pub from: SocketAddr,
}

/// A running server; dropping it ends its threads.
pub struct DnsServer {
    addr: SocketAddr,
    shared: Arc<Shared>,
    wake: UnixStream,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    stop: Stop,
}

#[derive(Default)]
struct State {
    answers: BTreeMap<(String, Kind), (Answer, u64)>,
    asked: Vec<Asked>,
    /// Number of running threads of delayed responses and TCP connections.
    threads: u64,
    streams: Vec<TcpStream>,
}

impl DnsServer {
    /// Starts a server with an empty table.
    #[track_caller]
    pub fn start() -> DnsServer {
        DnsServer::start_at(Ipv4Addr::LOCALHOST.into())
    }

    /// Starts a server on a given address of this machine.
    #[track_caller]
    pub fn start_at(ip: IpAddr) -> DnsServer {
        let (udp, tcp, addr) = bind(ip);
        let shared = Arc::new(Shared::default());
        let (wake, woken) = UnixStream::pair().unwrap_or_else(|error| panic!("socketpair: {error}"));
        let serving = Serving { udp: Arc::new(udp), tcp, woken, shared: Arc::clone(&shared) };
        let thread = Some(std::thread::spawn(move || serving.run()));
        DnsServer { addr, shared, wake, thread }
    }

    /// Returns its address, in the form that `resolver` accepts.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Sets the response for a name and a type.
    pub fn set(&self, name: &str, kind: Kind, answer: Answer) -> &DnsServer {
        lock(&self.shared.state).answers.insert((name.to_ascii_lowercase(), kind), (answer, 0));
        self
    }

    /// Sets a name's addresses, each under the type of its family.
    #[track_caller]
    pub fn set_addresses(&self, name: &str, addresses: &[&str], ttl_seconds: u32) -> &DnsServer {
        let (v6, v4): (Vec<&str>, Vec<&str>) = addresses.iter().partition(|address| address.contains(':'));
        self.set(name, Kind::A, Answer::addresses(&v4, ttl_seconds));
        self.set(name, Kind::Aaaa, Answer::addresses(&v6, ttl_seconds))
    }

    /// Removes a name: its response is then NXDOMAIN.
    pub fn remove(&self, name: &str) {
        lock(&self.shared.state).answers.retain(|(known, _), _| !known.eq_ignore_ascii_case(name));
    }

    /// Returns all questions received so far.
    pub fn asked(&self) -> Vec<Asked> {
        lock(&self.shared.state).asked.clone()
    }

    /// Returns how often a name was queried with this type.
    pub fn count(&self, name: &str, kind: Kind) -> usize {
        count(&lock(&self.shared.state), name, kind)
    }

    /// Waits until a name has been queried this often with this type.
    #[track_caller]
    pub fn wait_for_count(&self, name: &str, kind: Kind, wanted: usize) {
        let (state, changed) = (&self.shared.state, &self.shared.changed);
        let reached =
            wait_on(state, changed, Deadline::default(), |state| count(state, name, kind) >= wanted);
        assert!(reached, "gave up waiting for {wanted} questions for {name}: {:?}", self.asked());
    }
}

fn count(state: &State, name: &str, kind: Kind) -> usize {
    let same = |asked: &&Asked| asked.question.name.eq_ignore_ascii_case(name) && asked.question.kind == kind;
    state.asked.iter().filter(same).count()
}

impl Drop for DnsServer {
    fn drop(&mut self) {
        self.shared.stop.stop();
        let _ = (&self.wake).write(b"!");
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        for stream in &lock(&self.shared.state).streams {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
        let (state, changed) = (&self.shared.state, &self.shared.changed);
        let ended = wait_on(state, changed, Deadline::default(), |state| state.threads == 0);
        assert!(ended || std::thread::panicking(), "a thread of the DNS server does not end");
    }
}

/// Binds a port that is free for both UDP and TCP.
#[track_caller]
fn bind(ip: IpAddr) -> (UdpSocket, TcpListener, SocketAddr) {
    let mut failure = None;
    for _ in 0..ATTEMPTS {
        let bound = UdpSocket::bind((ip, 0)).and_then(|udp| {
            let addr = udp.local_addr()?;
            Ok((udp, TcpListener::bind(addr)?, addr))
        });
        match bound {
            Ok(bound) => return bound,
            Err(error) => failure = Some(error),
        }
    }
    panic!("no port is free for UDP and TCP: {failure:?}")
}

/// Destination of a response.
#[derive(Clone)]
enum Back {
    Udp(Arc<UdpSocket>, SocketAddr),
    Tcp(Arc<TcpStream>),
}

impl Back {
    /// Sends a response; the client may have disconnected.
    fn send(&self, message: &[u8]) {
        let _ = match self {
            Back::Udp(socket, to) => socket.send_to(message, to).map(drop),
            Back::Tcp(stream) => {
                let framed = [&(message.len() as u16).to_be_bytes()[..], message].concat();
                (&**stream).write_all(&framed)
            }
        };
    }
}

/// The thread that receives questions.
struct Serving {
    udp: Arc<UdpSocket>,
    tcp: TcpListener,
    woken: UnixStream,
    shared: Arc<Shared>,
}

impl Serving {
    fn run(self) {
        let mut message = vec![0; 64 * 1024];
        while !self.shared.stop.is_stopped() {
            let mut polled = [
                PollFd::new(&*self.udp, PollFlags::IN),
                PollFd::new(&self.tcp, PollFlags::IN),
                PollFd::new(&self.woken, PollFlags::IN),
            ];
            // If interrupted no events are reported, and the next iteration polls again.
            let _ = poll(&mut polled, None);
            let [udp, tcp, _] = polled.map(|one| !one.revents().is_empty());
            if udp && let Ok((count, from)) = self.udp.recv_from(&mut message) {
                self.shared.take(&message[..count], from, &Back::Udp(Arc::clone(&self.udp), from));
            }
            if tcp && let Ok((stream, from)) = self.tcp.accept() {
                lock(&self.shared.state).streams.extend(stream.try_clone());
                let shared = Arc::clone(&self.shared);
                self.shared.spawn(move || shared.serve(Arc::new(stream), from));
            }
        }
    }
}

impl Shared {
    /// Runs a function on a new thread. Dropping the server waits for the thread.
    fn spawn(self: &Arc<Self>, work: impl FnOnce() + Send + 'static) {
        let shared = Arc::clone(self);
        lock(&self.state).threads += 1;
        std::thread::spawn(move || {
            work();
            lock(&shared.state).threads -= 1;
            shared.changed.notify_all();
        });
    }

    /// Handles the questions of a TCP connection, each with a length prefix (RFC 1035 section 4.2.2).
    fn serve(self: &Arc<Self>, stream: Arc<TcpStream>, from: SocketAddr) {
        let back = Back::Tcp(Arc::clone(&stream));
        let mut length = [0; 2];
        while (&*stream).read_exact(&mut length).is_ok() {
            let mut message = vec![0; usize::from(u16::from_be_bytes(length))];
            if (&*stream).read_exact(&mut message).is_err() {
                return;
            }
            self.take(&message, from, &back);
        }
    }

    fn take(self: &Arc<Self>, query: &[u8], from: SocketAddr, back: &Back) {
        let Some(question) = Question::parse(query) else { return };
        let over_tcp = matches!(back, Back::Tcp(_));
        let answer = {
            let mut state = lock(&self.state);
            state.asked.push(Asked { question: question.clone(), over_tcp, from });
            state.answer(&question)
        };
        self.changed.notify_all();
        self.carry_out(&question, &answer, back);
    }

    fn carry_out(self: &Arc<Self>, question: &Question, answer: &Answer, back: &Back) {
        let code = |code: u8| {
            let outcome = message::Outcome { code, truncated: false };
            back.send(&message::answer(question, outcome, &[]));
        };
        match answer {
            Answer::Records(records) => {
                back.send(&message::answer(question, message::Outcome::default(), records));
            }
            Answer::NxDomain => code(3),
            Answer::ServFail => code(2),
            Answer::Refused => code(5),
            Answer::Code(number) => code(*number),
            Answer::Truncated(whole) => match back {
                Back::Udp(..) => {
                    let outcome = message::Outcome { code: 0, truncated: true };
                    back.send(&message::answer(question, outcome, &[]));
                }
                Back::Tcp(_) => self.carry_out(question, whole, back),
            },
            Answer::Lost => {}
            Answer::Late(gate, then) => {
                let (shared, gate, then) = (Arc::clone(self), gate.clone(), then.clone());
                let (question, back) = (question.clone(), back.clone());
                self.spawn(move || {
                    if gate.pass(&shared.stop) {
                        shared.carry_out(&question, &then, &back);
                    }
                });
            }
            Answer::WrongId(then) => {
                let question = Question { id: question.id.wrapping_add(1), ..question.clone() };
                self.carry_out(&question, then, back);
            }
            Answer::WrongQuestion(then) => {
                let question = Question { name: format!("not-{}", question.name), ..question.clone() };
                self.carry_out(&question, then, back);
            }
            // `State::answer` counts only at the top level: a `Times` within another response always yields its first
            // response.
            Answer::Times(_, first, _) => self.carry_out(question, first, back),
            Answer::Both(first, second) => {
                self.carry_out(question, first, back);
                self.carry_out(question, second, back);
            }
            Answer::Raw(bytes) => back.send(&[&question.id.to_be_bytes()[..], bytes].concat()),
        }
    }
}

impl State {
    /// Returns the response to a question, and counts the question.
    fn answer(&mut self, question: &Question) -> Answer {
        let Some((answer, given)) = self.answers.get_mut(&(question.name.clone(), question.kind)) else {
            let known = self.answers.keys().any(|(name, _)| *name == question.name);
            return if known { Answer::Records(Vec::new()) } else { Answer::NxDomain };
        };
        *given += 1;
        let (mut answer, mut given) = (&*answer, *given);
        while let Answer::Times(times, first, then) = answer {
            if given <= *times {
                answer = first;
            } else {
                given -= times;
                answer = then;
            }
        }
        answer.clone()
    }
}
