//! A scripted DNS server, over UDP and TCP on one port of 127.0.0.1.
//!
//! [`DnsServer`] has a table of [`Answer`]s by name and type, which a test changes while it runs, and counts its
//! queries. An answer can be lost, late (at a gate), cut short, or of another question. Names that the table lacks are
//! NXDOMAIN; a name that it has with another type only has no record of this one.

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

/// How many ports are tried to find one that is free for both UDP and TCP.
const ATTEMPTS: u32 = 20;

/// The reaction of the server to a question.
#[derive(Clone, Debug)]
pub enum Answer {
    /// These records; none of them is an answer too.
    Records(Vec<Record>),
    /// The name does not exist.
    NxDomain,
    /// The server failed.
    ServFail,
    /// The server refuses.
    Refused,
    /// Any other response code.
    Code(u8),
    /// Over UDP only the mark that it did not fit; over TCP this.
    Truncated(Box<Answer>),
    /// Nothing, over UDP and TCP.
    Lost,
    /// This, when the test has opened the gate.
    Late(Gate, Box<Answer>),
    /// This with another identifier, as from an attacker who guesses.
    WrongId(Box<Answer>),
    /// This as if another name had been asked for.
    WrongQuestion(Box<Answer>),
    /// The first answer this many times, the second one afterwards.
    Times(u64, Box<Answer>, Box<Answer>),
    /// Both, one after the other: a forged answer before the right one.
    Both(Box<Answer>, Box<Answer>),
    /// These bytes behind the identifier of the question.
    Raw(Vec<u8>),
}

impl Answer {
    /// Addresses of either family with one time to live.
    #[track_caller]
    pub fn addresses(addresses: &[&str], ttl_seconds: u32) -> Answer {
        Answer::Records(addresses.iter().map(|address| Record::address(address, ttl_seconds)).collect())
    }
}

/// A question that came, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The question.
    pub question: Question,
    /// Whether it came over TCP.
    pub over_tcp: bool,
    /// Where it came from.
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
    /// Threads of late answers and TCP connections.
    threads: u64,
    streams: Vec<TcpStream>,
}

impl DnsServer {
    /// Starts with an empty table.
    #[track_caller]
    pub fn start() -> DnsServer {
        DnsServer::start_at(Ipv4Addr::LOCALHOST.into())
    }

    /// The same at an address of this machine.
    #[track_caller]
    pub fn start_at(ip: IpAddr) -> DnsServer {
        let (udp, tcp, addr) = bind(ip);
        let shared = Arc::new(Shared::default());
        let (wake, woken) = UnixStream::pair().unwrap_or_else(|error| panic!("socketpair: {error}"));
        let serving = Serving { udp: Arc::new(udp), tcp, woken, shared: Arc::clone(&shared) };
        let thread = Some(std::thread::spawn(move || serving.run()));
        DnsServer { addr, shared, wake, thread }
    }

    /// Where it listens, in the form that `resolver` takes.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Sets the answer for a name and a type from now on.
    pub fn set(&self, name: &str, kind: Kind, answer: Answer) -> &DnsServer {
        lock(&self.shared.state).answers.insert((name.to_ascii_lowercase(), kind), (answer, 0));
        self
    }

    /// Sets a name's addresses from now on, each under the type of its family.
    #[track_caller]
    pub fn set_addresses(&self, name: &str, addresses: &[&str], ttl_seconds: u32) -> &DnsServer {
        let (v6, v4): (Vec<&str>, Vec<&str>) = addresses.iter().partition(|address| address.contains(':'));
        self.set(name, Kind::A, Answer::addresses(&v4, ttl_seconds));
        self.set(name, Kind::Aaaa, Answer::addresses(&v6, ttl_seconds))
    }

    /// Forgets a name: NXDOMAIN from now on.
    pub fn remove(&self, name: &str) {
        lock(&self.shared.state).answers.retain(|(known, _), _| !known.eq_ignore_ascii_case(name));
    }

    /// Every question so far.
    pub fn asked(&self) -> Vec<Asked> {
        lock(&self.shared.state).asked.clone()
    }

    /// How often a name was queried with this type.
    pub fn count(&self, name: &str, kind: Kind) -> usize {
        count(&lock(&self.shared.state), name, kind)
    }

    /// Waits until a name has been asked for this often with this type.
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

/// A port that is free for both.
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

/// Where an answer goes.
#[derive(Clone)]
enum Back {
    Udp(Arc<UdpSocket>, SocketAddr),
    Tcp(Arc<TcpStream>),
}

impl Back {
    /// The client may be gone.
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

/// The thread that takes questions.
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
            // Interrupted: then nothing is reported, and the next round asks again.
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
    /// Runs something on a thread that the end waits for.
    fn spawn(self: &Arc<Self>, work: impl FnOnce() + Send + 'static) {
        let shared = Arc::clone(self);
        lock(&self.state).threads += 1;
        std::thread::spawn(move || {
            work();
            lock(&shared.state).threads -= 1;
            shared.changed.notify_all();
        });
    }

    /// Takes the questions of a TCP connection, each with its length before it (RFC 1035 section 4.2.2).
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
            // The table has counted which of the two it is.
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
    /// The answer to a question, and counts it.
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
