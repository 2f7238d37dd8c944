//! Fuzz target of the master's side of the control channels: workers and an ACME agent that an attacker controls send frames in any
//! order, between reloads and other signals.
//!
//! The master is the real one: it reads a configuration, starts processes, receives frames from sockets, and writes its log. Only
//! the processes are simulated. A simulated process knows the messages that it has received, and so whether a frame that it sends
//! is a correct response. It checks for all frames:
//!
//! * no panic, and no turn of the master's loop takes long;
//! * a correct response never ends its process; an incorrect one always does;
//! * the configuration in force changes only by the response of the process that was sent the new configuration;
//! * one worker serves or starts, unless the master ends or SIGWINCH was received;
//! * queues, lists and texts have their limits, and the log has complete lines without control characters.
//!
//! It is a test of this crate, because it needs the complete master. It sends [`FRAMES`] frames; `RINGROAD_FUZZ_FRAMES` sets another
//! number and `RINGROAD_FUZZ_SEED` another seed.

mod closed;
mod signer_tests;

use std::collections::{BTreeMap, VecDeque};
use std::io::{IoSlice, Write};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use acme::agent::{Challenge, Level as AgentLevel};
use nix::sys::signal::Signal;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use super::child::simulated;
use super::process::Stage;
use super::upkeep::Upkeep;
use super::{Cycle, Master, Phase};
use crate::adapter::{self, Files};
use crate::control::acme::{AcmeChange, FromAgent, ToAgent};
use crate::control::message::{ToMaster, ToWorker};
use crate::control::{Channel, FROM_MASTER, Received};
use crate::log::Log;
use crate::paths::{Paths, Request};
use crate::signals::Signals;

/// Number of frames without `RINGROAD_FUZZ_FRAMES`.
const FRAMES: u64 = 20_000;

/// Number of frames to one master. After them it shuts down, and the next one starts.
const FRAMES_PER_MASTER: u64 = 5_000;

/// Maximum time of a turn of the master's loop. It may read a configuration.
const TURN_MAX: Duration = Duration::from_secs(10);

/// Texts of frames.
const TEXTS: [&str; 10] = [
    "",
    "epoll",
    "bind() to 0.0.0.0:80 failed (13: Permission denied)",
    "\n2026/11/28 00:00:00 [notice] 1#1: exit",
    "\u{1b}[2J\u{9b}31m\u{7f}\r",
    "group\thost\t-\t1\t1\t-\t127.0.0.1:80\n",
    "\u{202e}\u{feff}\u{fffd}",
    "one/a.example",
    "../../etc/shadow",
    "a.example",
];

/// A small generator of random numbers (xorshift64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }

    /// Returns true once in this many calls.
    fn once_in(&mut self, calls: usize) -> bool {
        self.below(calls) == 0
    }

    /// Returns a small number, or any number.
    fn number(&mut self) -> u64 {
        if self.once_in(10) { self.next() } else { self.below(12) as u64 }
    }

    fn text(&mut self) -> String {
        let text = TEXTS[self.below(TEXTS.len())];
        if self.once_in(50) { text.repeat(40_000 / text.len().max(1)) } else { text.to_owned() }
    }
}

/// What a simulated process has received and not answered.
#[derive(Default)]
struct Duties {
    is_agent: bool,
    /// Whether it has sent its first message.
    has_begun: bool,
    /// Whether this message was that of a failed start, after which it must not send another one.
    has_failed: bool,
    /// The number of the configuration that it serves.
    generation: u64,
    reloads: VecDeque<u64>,
    replaced: Vec<u64>,
    acme: VecDeque<u64>,
    pings: VecDeque<u64>,
    /// For an agent: the challenges that it has installed, and the number of its changes.
    installed: Vec<Challenge>,
    changes: u64,
    /// Number of messages that count towards a budget.
    unrequested: u32,
}

/// A simulated process.
struct Process {
    channel: Channel,
    duties: Duties,
    /// Whether it has sent bytes that are not a complete frame, so that later frames are not understood.
    is_garbled: bool,
}

/// Content of a frame.
#[derive(Debug)]
enum Message {
    Worker(ToMaster),
    Agent(FromAgent),
}

impl Process {
    /// Receives everything that the master has sent.
    fn receive(&mut self) {
        while let Ok(Received::Packet(packet)) = self.channel.receive() {
            let duties = &mut self.duties;
            match (ToWorker::decode(&packet.body), ToAgent::decode(&packet.body)) {
                (Ok(ToWorker::Start(bundle)), _) => duties.generation = bundle.generation,
                (Ok(ToWorker::Reload(bundle)), _) => duties.reloads.push_back(bundle.generation),
                (Ok(ToWorker::Acme(number, _)), _) => duties.acme.push_back(number),
                (Ok(ToWorker::Ping(number)), _) => duties.pings.push_back(number),
                (Err(_), Ok(ToAgent::Start { .. })) => duties.is_agent = true,
                _ => {}
            }
        }
    }
}

impl Duties {
    /// Whether the master has to accept this message; `None` if that depends on a limit.
    fn accepts(&self, message: &Message) -> Option<bool> {
        let message = match message {
            Message::Worker(message) if !self.is_agent => message,
            Message::Agent(message) if self.is_agent => return self.accepts_of_agent(message),
            _ => return Some(false),
        };
        let is_short = |text: &str| text.len() <= 32 << 10;
        Some(match message {
            ToMaster::Ready { method, remark, .. } => {
                !self.has_begun && method.len() <= 64 && remark.as_deref().is_none_or(is_short)
            }
            ToMaster::Failed(text) => !self.has_begun && is_short(text),
            _ if !self.has_begun || self.has_failed => false,
            ToMaster::Reloaded(number) => self.reloads.front() == Some(number),
            ToMaster::ReloadFailed(number, text) => self.reloads.front() == Some(number) && is_short(text),
            ToMaster::Retired(number) => self.replaced.contains(number),
            ToMaster::AcmeDone(number) => self.acme.front() == Some(number),
            ToMaster::Pong(number) => self.pings.contains(number),
            ToMaster::Addresses(text) if !is_short(text) => false,
            ToMaster::Addresses(_) | ToMaster::Replaced => {
                return (self.unrequested < 1000).then_some(true);
            }
        })
    }

    fn accepts_of_agent(&self, message: &FromAgent) -> Option<bool> {
        let is_accepted = match message {
            FromAgent::Log(_, text) => text.len() <= 32 << 10,
            FromAgent::Change(_, AcmeChange::Certificate { id, .. }) => id == &id_of_order(),
            FromAgent::Change(_, AcmeChange::Remove(challenge)) => self.installed.contains(challenge),
            FromAgent::Change(_, AcmeChange::Install(Challenge::Tls { name, pem })) => {
                name == "a.example" && pem.len() < 10_000
            }
            FromAgent::Change(_, AcmeChange::Install(Challenge::Http { token, text })) => {
                let is_word = |text: &str| {
                    (1..=512).contains(&text.len())
                        && text.chars().all(|letter| letter.is_ascii_alphanumeric() || "-_".contains(letter))
                };
                text.split_once('.')
                    .is_some_and(|(first, rest)| first == token && is_word(first) && is_word(rest))
            }
        };
        // The limits of waiting changes depend on the workers.
        (!is_accepted || self.unrequested < 40).then_some(is_accepted)
    }

    /// Changes the state by a message that the master has to accept.
    fn note(&mut self, message: &Message) {
        match message {
            Message::Worker(ToMaster::Ready { .. }) => self.has_begun = true,
            Message::Worker(ToMaster::Failed(_)) => (self.has_begun, self.has_failed) = (true, true),
            Message::Worker(ToMaster::Reloaded(number)) => {
                self.reloads.pop_front();
                self.replaced.push(std::mem::replace(&mut self.generation, *number));
            }
            Message::Worker(ToMaster::ReloadFailed(..)) => drop(self.reloads.pop_front()),
            Message::Worker(ToMaster::Retired(number)) => self.replaced.retain(|known| known != number),
            Message::Worker(ToMaster::AcmeDone(_)) => drop(self.acme.pop_front()),
            Message::Worker(ToMaster::Pong(number)) => self.pings.retain(|known| known > number),
            Message::Worker(ToMaster::Addresses(_) | ToMaster::Replaced) => self.unrequested += 1,
            Message::Agent(FromAgent::Change(_, AcmeChange::Install(challenge))) => {
                self.unrequested += 1;
                self.installed.push(challenge.clone());
            }
            Message::Agent(FromAgent::Change(_, AcmeChange::Remove(challenge))) => {
                self.unrequested += 1;
                self.installed.retain(|known| known != challenge);
            }
            Message::Agent(_) => self.unrequested += 1,
        }
    }

    /// Returns a correct message.
    fn correct(&mut self, random: &mut Random) -> Message {
        if self.is_agent {
            return Message::Agent(self.correct_of_agent(random));
        }
        if !self.has_begun {
            let remark = random.once_in(2).then(|| "io_uring cannot be used".to_owned());
            let (method, is_outdated) = ("epoll".to_owned(), random.once_in(8));
            return Message::Worker(ToMaster::Ready { method, remark, is_outdated });
        }
        let answers = [
            self.reloads.front().map(|number| match random.once_in(4) {
                true => ToMaster::ReloadFailed(*number, TEXTS[random.below(TEXTS.len())].to_owned()),
                false => ToMaster::Reloaded(*number),
            }),
            self.acme.front().map(|number| ToMaster::AcmeDone(*number)),
            self.pings.back().map(|number| ToMaster::Pong(*number)),
            self.replaced.last().map(|number| ToMaster::Retired(*number)),
        ];
        let answer = answers.into_iter().flatten().next();
        Message::Worker(answer.unwrap_or_else(|| ToMaster::Addresses(TEXTS[5].to_owned())))
    }

    fn correct_of_agent(&mut self, random: &mut Random) -> FromAgent {
        self.changes += 1;
        let change = match random.below(4) {
            0 => return FromAgent::Log(AgentLevel::Warn, TEXTS[random.below(TEXTS.len())].to_owned()),
            1 => AcmeChange::Certificate { id: id_of_order(), pem: b"pem".to_vec() },
            2 if !self.installed.is_empty() => AcmeChange::Remove(self.installed[0].clone()),
            _ => AcmeChange::Install(Challenge::Http {
                token: "token".to_owned(),
                text: "token.thumbprint".to_owned(),
            }),
        };
        FromAgent::Change(self.changes, change)
    }

    /// Returns a message that is encoded correctly.
    fn any(&self, random: &mut Random) -> Message {
        let (number, text) = (random.number(), random.text());
        if self.is_agent == random.once_in(20) {
            return Message::Worker(match random.below(9) {
                0 => ToMaster::Ready {
                    method: text,
                    remark: random.once_in(2).then(|| random.text()),
                    is_outdated: random.once_in(2),
                },
                1 => ToMaster::Failed(text),
                2 => ToMaster::Reloaded(number),
                3 => ToMaster::ReloadFailed(number, text),
                4 => ToMaster::Retired(number),
                5 => ToMaster::Addresses(text),
                6 => ToMaster::AcmeDone(number),
                7 => ToMaster::Replaced,
                _ => ToMaster::Pong(number),
            });
        }
        let challenge = match random.below(2) {
            0 => Challenge::Http { token: random.text(), text },
            _ => Challenge::Tls { name: random.text(), pem: text.into_bytes() },
        };
        Message::Agent(match random.below(4) {
            0 => FromAgent::Log(AgentLevel::Error, random.text()),
            1 => FromAgent::Change(number, AcmeChange::Install(challenge)),
            2 => FromAgent::Change(number, AcmeChange::Remove(challenge)),
            _ => FromAgent::Change(
                number,
                AcmeChange::Certificate { id: random.text(), pem: random.text().into_bytes() },
            ),
        })
    }
}

impl Message {
    fn encode(&self) -> Vec<u8> {
        match self {
            Message::Worker(message) => message.encode(),
            Message::Agent(message) => message.encode(),
        }
    }

    /// Decodes a body as the master does.
    fn decode(is_agent: bool, body: &[u8]) -> Option<Message> {
        match is_agent {
            true => FromAgent::decode(body).ok().map(Message::Agent),
            false => ToMaster::decode(body).ok().map(Message::Worker),
        }
    }
}

/// Returns the identifier of the only order in the configuration.
fn id_of_order() -> String {
    let order = acme::settings::Order { names: vec!["a.example".to_owned()], ..Default::default() };
    acme::settings::Issuer::new("one").id_of(&order)
}

/// Sends bytes, with descriptors now and then. Returns whether all were sent.
fn send(socket: &Channel, bytes: &[u8], random: &mut Random) -> bool {
    let descriptor = [socket.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if random.once_in(100) {
        control.push(SendAncillaryMessage::ScmRights(&descriptor));
    }
    let sent = sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL);
    sent.is_ok_and(|count| count == bytes.len())
}

/// A master with its simulated processes.
struct Arena {
    master: Master,
    processes: BTreeMap<u32, Process>,
    folder: PathBuf,
    random: Random,
}

/// Writes a configuration. `threads` is a setting that needs another process, `text` one that does not.
fn write_configuration(folder: &Path, threads: usize, text: usize) {
    let log = folder.join("error.log");
    let conf = format!(
        "worker_processes {threads}; error_log {} debug; pid {}/pid; events {{}}
        http {{ access_log off;
        acme_issuer one {{ uri https://localhost:14000/dir; state_path off; accept_terms_of_service; }}
        server {{ listen 127.0.0.1:0 ssl; server_name a.example; acme_certificate one;
        ssl_certificate $acme_certificate; ssl_certificate_key $acme_certificate_key;
        location / {{ return 200 \"{text}\"; }} }} }}",
        log.display(),
        folder.display()
    );
    std::fs::write(folder.join("a.conf"), conf).expect("the directory is writable");
}

impl Arena {
    fn new(folder: &Path, random: Random) -> Arena {
        write_configuration(folder, 1, 0);
        Arena::open(folder, random)
    }

    /// Starts a master with the configuration in a directory.
    fn open(folder: &Path, random: Random) -> Arena {
        let main = folder.join("a.conf");
        let request = Request { main, globals: String::new(), places: Paths::below(folder), text: None };
        let site = adapter::load(&request, Files::Disk).expect("a valid configuration");
        let log = Log::stderr(crate::log::Level::Emerg);
        let upkeep = Upkeep::new(None, &site);
        let cycle = Cycle::open(&request, site, 1, None, &log).expect("it can be opened");
        let master = Master::new(request, cycle, Signals::block().expect("signalfd"), upkeep);
        let master = Master { is_detached: true, ..master };
        Arena { master, processes: BTreeMap::new(), folder: folder.to_owned(), random }
    }

    /// Makes a turn of the master's loop, and checks its state.
    fn turn(&mut self) {
        let start = Instant::now();
        self.master.keep();
        self.master.handle_events();
        self.master.keep();
        assert!(start.elapsed() < TURN_MAX, "a turn took {:?}", start.elapsed());
        // Restarts are delayed, so time has to pass.
        self.master.start_at = None;
        self.master.acme.skip_pause();
        self.master.keep();
        for (id, socket) in simulated::take_channels() {
            let channel = Channel::new(socket, FROM_MASTER).expect("a new socket");
            let process = Process { channel, duties: Duties::default(), is_garbled: false };
            self.processes.insert(id, process);
        }
        self.processes.retain(|id, _| simulated::is_alive(*id));
        self.processes.values_mut().for_each(Process::receive);
        let serve = |stage: Stage| !matches!(stage, Stage::Leaving { .. });
        let serving = self.master.workers.iter().filter(|worker| serve(worker.stage)).count();
        match self.master.phase {
            Phase::Starting | Phase::Running => {
                assert!((1..=2).contains(&serving), "{serving} workers serve")
            }
            Phase::Idle | Phase::Ending => assert!(serving <= 1, "{serving} workers serve"),
        }
        assert!(self.master.addresses.len() <= 32 << 10);
        self.master.acme.assert_limits();
    }

    /// Sends a frame of a random process; returns false if there is none.
    fn send(&mut self) -> bool {
        let Arena { processes, random, master, .. } = self;
        let index = random.below(processes.len());
        let Some((&id, process)) = processes.iter_mut().nth(index) else { return false };
        process.receive();
        let message = match random.below(100) {
            0..70 => process.duties.correct(random),
            _ => process.duties.any(random),
        };
        let mut body = message.encode();
        if random.once_in(8) {
            let (at, byte) = (random.below(body.len()), random.next() as u8);
            match random.below(3) {
                0 => body[at] ^= byte,
                1 => body.truncate(at),
                _ => body.insert(at, byte),
            }
        }
        let mut frame = [(body.len() as u32).to_le_bytes(), 0_u32.to_le_bytes()].concat();
        frame.extend_from_slice(&body);
        let length = frame.len();
        if random.once_in(20) {
            let (at, byte) = (random.below(frame.len()), random.next() as u8 | 1);
            match random.below(3) {
                0 => frame[at % 8] ^= byte,
                1 => frame.truncate(at.max(1)),
                _ => frame.extend((0..=at).map(|index| index as u8)),
            }
            process.is_garbled |= frame.len() <= length;
        }
        let was_garbled = process.is_garbled;
        process.is_garbled |= !send(&process.channel, &frame, random) || frame.len() > length;
        let sent = Message::decode(process.duties.is_agent, &body).filter(|_| !was_garbled);
        let accepted = match &sent {
            Some(message) => process.duties.accepts(message).filter(|_| !process.is_garbled),
            None if process.is_garbled => None,
            None => Some(false),
        };
        if let Some(message) = sent.as_ref().filter(|_| accepted != Some(false)) {
            process.duties.note(message);
        }
        let pending = master.pending.as_ref().map(|pending| pending.committed_by());
        let (before, is_agent) = (master.cycle.generation, process.duties.is_agent);
        master.handle_events();
        master.keep_acme();
        self.check(id, is_agent, sent, accepted, before, pending);
        true
    }

    /// Checks the master's reaction to a frame.
    fn check(
        &mut self,
        id: u32,
        is_agent: bool,
        sent: Option<Message>,
        accepted: Option<bool>,
        before: u64,
        pending: Option<(u32, u64, bool)>,
    ) {
        let is_alive = match is_agent {
            true => self.master.acme.id() == Some(id),
            false => simulated::is_alive(id),
        };
        match accepted {
            Some(true) => assert!(is_alive, "{sent:?} of {id} was refused"),
            Some(false) => assert!(!is_alive, "{sent:?} of {id} was accepted"),
            None => {}
        }
        let after = self.master.cycle.generation;
        if after != before {
            let is_right = match (&sent, pending) {
                (Some(Message::Worker(ToMaster::Reloaded(number))), Some((worker, generation, true))) => {
                    id == worker && *number == generation && after == generation
                }
                (Some(Message::Worker(ToMaster::Ready { .. })), Some((worker, generation, false))) => {
                    id == worker && after == generation
                }
                // The rest of an incomplete frame may come from the next one.
                (None, Some((worker, generation, _))) => id == worker && after == generation,
                _ => false,
            };
            assert!(is_right, "{sent:?} of {id} has changed {before} to {after}, pending {pending:?}");
        }
    }

    /// Does something that an operator, the system or a process may do.
    fn disturb(&mut self) {
        let Arena { master, random, processes, folder } = self;
        let index = random.below(processes.len());
        let id = processes.keys().nth(index).copied();
        match random.below(60) {
            0..=5 => {
                write_configuration(folder, 1 + random.below(2), random.below(3));
                master.obey(Signal::SIGHUP);
            }
            6 => {
                std::fs::write(folder.join("a.conf"), "events {} http { nonsense; }")
                    .expect("it is writable");
                master.obey(Signal::SIGHUP);
            }
            7..=9 => master.obey(Signal::SIGUSR1),
            10 if master.phase == Phase::Running => {
                master.obey(Signal::SIGWINCH);
                master.obey(Signal::SIGHUP);
            }
            11..=30 => master.ping(),
            31..=40 => {
                if let Some(id) = id {
                    simulated::exit(id, random.below(3) as u8);
                }
            }
            41..=45 => drop(id.and_then(|id| processes.remove(&id))),
            _ => {}
        }
    }
}

/// Runs a master until it has received the number of frames; returns their number.
fn run(folder: &Path, random: Random) -> (u64, Random) {
    let mut arena = Arena::new(folder, random);
    arena.turn();
    let mut frames = 0;
    while frames < FRAMES_PER_MASTER && arena.master.phase != Phase::Ending {
        frames += u64::from(arena.send());
        if arena.random.once_in(3) {
            arena.turn();
        }
        if arena.master.phase != Phase::Starting && arena.random.once_in(40) {
            arena.disturb();
            arena.turn();
        }
    }
    arena.master.obey(if arena.random.once_in(2) { Signal::SIGTERM } else { Signal::SIGQUIT });
    arena.turn();
    simulated::exit_all();
    arena.turn();
    assert!(arena.master.workers.is_empty() && arena.master.phase == Phase::Ending);
    assert_eq!(simulated::count(), 0, "a process runs that the master does not know");
    check_log(folder);
    (frames, arena.random)
}

/// Checks that the log has complete lines without control characters, and empties it.
fn check_log(folder: &Path) {
    let path = folder.join("error.log");
    let text = String::from_utf8(std::fs::read(&path).expect("the log is there")).expect("it is UTF-8");
    for line in text.lines() {
        assert!(!line.contains(char::is_control), "{line:?}");
        let has_date = line.len() > 25 && line.is_char_boundary(4) && line[..4].parse::<u16>().is_ok();
        assert!(
            has_date && line.contains("] ") && line.contains(&format!("{}#", std::process::id())),
            "{line:?}"
        );
    }
    std::fs::write(path, "").expect("it is writable");
}

/// Creates the directory of a test, and simulates the processes of its thread.
fn begin(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("ringroad-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a directory");
    simulated::begin();
    folder
}

/// Writes a configuration with a signing process, and with these directives in block `http`.
fn write_strict(folder: &Path, http: &str) {
    let log = folder.join("error.log");
    let conf = format!(
        "worker_processes 1; error_log {} debug; pid {}/pid; sandbox strict; events {{}}
        http {{ access_log off; server {{ listen 127.0.0.1:0; }} {http} }}",
        log.display(),
        folder.display()
    );
    std::fs::write(folder.join("a.conf"), conf).expect("the directory is writable");
}

/// Returns a master with a signing process and a worker that serves this configuration.
fn strict(folder: &Path, http: &str) -> Arena {
    write_strict(folder, http);
    let mut arena = Arena::open(folder, Random(1));
    arena.turn();
    arena.serve();
    arena
}

/// Returns a master with a worker that serves and an agent; returns their process IDs too.
fn serving(folder: &Path) -> (Arena, u32, u32) {
    let mut arena = Arena::new(folder, Random(1));
    arena.turn();
    let worker = arena.serve();
    let agent = arena.master.acme.id().expect("an agent");
    (arena, worker, agent)
}

impl Arena {
    /// Makes the first worker ready; returns its process ID.
    fn serve(&mut self) -> u32 {
        let worker = self.master.workers[0].pid();
        self.tell(
            worker,
            &ToMaster::Ready { method: "epoll".to_owned(), remark: None, is_outdated: false }.encode(),
        );
        self.turn();
        worker
    }

    /// Sends a frame with this body.
    fn tell(&mut self, id: u32, body: &[u8]) {
        let process = self.processes.get_mut(&id).expect("a process");
        let _ = process.channel.send(body, Vec::new());
        self.master.handle_events();
        self.master.keep_acme();
    }
}

#[test]
fn a_flood_of_messages_ends_its_sender() {
    let folder = begin("flood");
    let (mut arena, worker, agent) = serving(&folder);
    let log = FromAgent::Log(AgentLevel::Error, "no reason".to_owned()).encode();
    let lines = (0..100_000).take_while(|_| {
        arena.tell(agent, &log);
        arena.master.acme.id() == Some(agent)
    });
    assert!((1000..5000).contains(&lines.count()));
    let addresses = ToMaster::Addresses("group\thost\n".to_owned()).encode();
    let messages = (0..100_000).take_while(|_| {
        arena.tell(worker, &addresses);
        simulated::is_alive(worker)
    });
    assert!((1000..5000).contains(&messages.count()));
    let text = std::fs::read_to_string(folder.join("error.log")).expect("the log");
    assert!(text.contains("control channel: too many messages, killing the process"), "{text}");
    assert!(text.contains("control channel: too many addresses, killing the process"), "{text}");
    std::fs::remove_dir_all(&folder).expect("it was made here");
}

#[test]
fn a_worker_that_does_not_read_its_messages_is_killed() {
    let folder = begin("unread");
    let (mut arena, worker, _) = serving(&folder);
    let sent = (0..100_000).take_while(|_| {
        arena.master.workers[0].send(&ToWorker::Leave, Vec::new());
        arena.master.handle_events();
        simulated::is_alive(worker)
    });
    assert!((1000..50_000).contains(&sent.count()));
    let text = std::fs::read_to_string(folder.join("error.log")).expect("the log");
    assert!(text.contains("does not read its messages, killing the process"), "{}", text.len());
    std::fs::remove_dir_all(&folder).expect("it was made here");
}

#[test]
fn only_the_worker_that_was_sent_a_configuration_answers_for_it() {
    let folder = begin("foreign");
    let (mut arena, worker, _) = serving(&folder);
    write_configuration(&folder, 2, 0);
    arena.master.obey(Signal::SIGHUP);
    arena.turn();
    let (successor, generation, is_in_place) =
        arena.master.pending.as_ref().expect("a reload").committed_by();
    assert!(successor != worker && !is_in_place);
    arena.tell(worker, &ToMaster::Reloaded(generation).encode());
    assert!(!simulated::is_alive(worker) && arena.master.cycle.generation == 1);
    arena.turn();
    arena.tell(
        successor,
        &ToMaster::Ready { method: "epoll".to_owned(), remark: None, is_outdated: false }.encode(),
    );
    assert_eq!(arena.master.cycle.generation, generation);
    std::fs::remove_dir_all(&folder).expect("it was made here");
}

#[test]
fn frames_of_processes_that_were_taken_over() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let wanted = number("RINGROAD_FUZZ_FRAMES").unwrap_or(FRAMES);
    let mut random = Random(number("RINGROAD_FUZZ_SEED").unwrap_or(0x2545_f491_4f6c_dd1d).max(1));
    let folder = begin("frames");
    let (start, mut frames, mut masters) = (Instant::now(), 0, 0);
    while frames < wanted {
        let sent;
        (sent, random) = run(&folder, random);
        frames += sent;
        masters += 1;
    }
    let rate = frames as f64 / start.elapsed().as_secs_f64();
    let mut out = std::io::stderr().lock();
    let _ = writeln!(out, "{frames} frames to {masters} masters, {rate:.0} frames/s");
    std::fs::remove_dir_all(&folder).expect("it was made here");
}
