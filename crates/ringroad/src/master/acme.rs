//! The master's view of the agent that obtains certificates. The agent is started when the first worker serves, replaced when the
//! orders change, and restarted when it crashes.
//!
//! ```text
//! no orders --> Off       orders --> Running --crash--> pause, doubled for each crash --> Running
//!                                       | orders changed
//!                                       +--> killed, started again
//! ```
//! The agent may be killed at any time, so the master never waits for it. Its results are stored for workers that start later.

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use acme::agent::{Challenge, Level as AgentLevel, available, is_challenge_of};
use acme::settings::{Issuer, Order};

use super::child::{ChildProcess, Dying};
use super::link::Link;
use super::process::{command_without_log, describe};
use crate::adapter;
use crate::agent;
use crate::control::acme::{AcmeChange, FROM_AGENT, FromAgent, ToAgent};
use crate::control::budget::Budget;
use crate::control::{Channel, Received};
use crate::listen::{errno_text, error_text};
use crate::log::{Level, Log};
use crate::master::Cycle;

/// Pause before the restart after a first crash of the agent.
const PAUSE_MIN: Duration = Duration::from_secs(1);

/// Maximum pause. CAs limit the number of orders, and each start may create some.
const PAUSE_MAX: Duration = Duration::from_secs(60 * 60);

/// Run time of an agent after which its crash does not double the pause.
const LONG_LIFE: Duration = Duration::from_secs(10 * 60);

/// Maximum number of installed challenges, as in workers.
const CHALLENGES_MAX: usize = 1000;

/// Maximum size in bytes of a challenge: its token and text, or its name and certificate. A certificate with its key has less
/// than 2 KiB.
const CHALLENGE_BYTES_MAX: usize = 16 * 1024;

/// Maximum number of changes that wait for confirmation by workers. The agent waits up to half a minute for each change, and
/// each may be a certificate of up to 1 MiB in the queue to a worker.
const WAITING_MAX: usize = 50;

/// Certificates and challenges, and the agent that provides them.
#[derive(Debug, Default)]
pub(super) struct Acme {
    agent: Option<Agent>,
    /// Agents that were killed. The next one starts when they have exited, because they may still write a state.
    dying: Dying,
    /// Whether an agent has exited, and workers have not yet received the resulting changes.
    has_ended: bool,
    /// The orders for which the agent was started.
    issuers: Vec<Issuer>,
    /// Whether the agent was started with `sandbox off`.
    is_unrestricted: bool,
    /// Earliest time of the next start of an agent.
    start_at: Option<Instant>,
    /// The pause after the next crash.
    pause: Duration,
    /// Certificates that agents have delivered, by order.
    certificates: BTreeMap<String, Vec<u8>>,
    /// Challenges that are installed in all workers.
    challenges: Vec<Challenge>,
    /// Changes that some workers have not confirmed.
    waiting: Vec<Waiting>,
    /// The number of the last change, in messages to workers.
    number: u64,
}

/// The agent's process.
#[derive(Debug)]
struct Agent {
    child: ChildProcess,
    link: Link,
    started: Instant,
    /// The messages that it may still send.
    messages: Budget,
}

/// A change that some workers have not confirmed.
#[derive(Debug)]
struct Waiting {
    /// Number of the change in messages to workers.
    number: u64,
    /// Number of the change in messages to the agent.
    agents_number: u64,
    /// Process IDs of workers that have not confirmed the change.
    workers: Vec<u32>,
}

impl Agent {
    fn new(child: ChildProcess, channel: Channel) -> Agent {
        let started = Instant::now();
        Agent { child, link: Link::new(channel), started, messages: Budget::new(started) }
    }
}

impl Acme {
    /// Returns the initial state of a worker: the certificates of these CAs, and the installed challenges.
    pub(super) fn changes(&self, issuers: &[Issuer]) -> Vec<AcmeChange> {
        let mut changes: Vec<AcmeChange> =
            self.known(issuers).into_iter().map(|(id, pem)| AcmeChange::Certificate { id, pem }).collect();
        changes.extend(self.challenges.iter().cloned().map(AcmeChange::Install));
        changes
    }

    /// Returns the available certificates: those in state directories, or newer ones that an agent delivered.
    fn known(&self, issuers: &[Issuer]) -> Vec<(String, Vec<u8>)> {
        orders_of(issuers)
            .filter_map(|(issuer, order)| {
                let id = issuer.id_of(order);
                let pem = available(issuer, order, self.certificates.get(&id).map(Vec::as_slice))?;
                Some((id, pem))
            })
            .collect()
    }

    /// Starts the agent if orders exist and no agent runs. Stops the agent if its orders have changed. Returns changes for
    /// workers after an agent has ended.
    pub(super) fn keep(&mut self, cycle: &Cycle) -> Vec<AcmeChange> {
        let wanted: Vec<Issuer> = adapter::issuers(&cycle.site.config)
            .iter()
            .filter(|issuer| !issuer.orders.is_empty())
            .cloned()
            .collect();
        let is_unrestricted = cycle.site.config.main().is_unrestricted;
        if self.issuers != wanted || self.is_unrestricted != is_unrestricted {
            self.stop();
            (self.issuers, self.is_unrestricted) = (wanted, is_unrestricted);
            (self.start_at, self.pause) = (None, Duration::ZERO);
        }
        let changes = self.changes_after_exit();
        self.start_at.take_if(|at| *at <= Instant::now());
        let must_wait = self.start_at.is_some() || !self.dying.is_empty();
        if self.issuers.is_empty() || self.agent.is_some() || must_wait {
            return changes;
        }
        match self.start(cycle) {
            Ok(agent) => {
                cycle.log.notice(format_args!("start acme process {}", agent.child.id()));
                self.agent = Some(agent);
            }
            Err(message) => {
                cycle.log.alert(message);
                self.wait_to_start();
            }
        }
        changes
    }

    /// Returns changes for workers after an agent has exited. They remove the agent's challenges, and contain all available
    /// certificates: the agent may have stored a certificate without delivering it, and the next agent would not deliver it
    /// either.
    fn changes_after_exit(&mut self) -> Vec<AcmeChange> {
        if !std::mem::take(&mut self.has_ended) {
            return Vec::new();
        }
        let over = std::mem::take(&mut self.challenges).into_iter().map(AcmeChange::Remove);
        let kept = self.known(&self.issuers).into_iter().map(|(id, pem)| AcmeChange::Certificate { id, pem });
        over.chain(kept).collect()
    }

    fn start(&self, cycle: &Cycle) -> Result<Agent, String> {
        let (channel, theirs) = Channel::pair_within(FROM_AGENT)
            .map_err(|errno| format!("socketpair() failed ({})", errno_text(errno)))?;
        let env = &cycle.site.settings.env;
        let mut command = command_without_log(cycle, "ringroad: acme process", agent::SUBCOMMAND, env);
        // The file with the root certificates that the operator has selected.
        command.envs(std::env::var_os("SSL_CERT_FILE").map(|path| ("SSL_CERT_FILE", path)));
        let child = ChildProcess::spawn(command, theirs);
        let child =
            child.map_err(|error| format!("starting the acme process failed ({})", error_text(&error)))?;
        let known = self.known(&self.issuers);
        for (issuer, order) in orders_of(&self.issuers) {
            let id = issuer.id_of(order);
            if known.iter().all(|(known, _)| *known != id) {
                let (shown, name) = (order.shown(), &issuer.name);
                let what = format!("acme: there is no certificate for {shown} from issuer \"{name}\" yet");
                let line = format!("{what}; clients get a certificate that they do not trust");
                cycle.log.write(Level::Warn, line);
            }
        }
        let (issuers, credentials) = (self.issuers.clone(), cycle.credentials().cloned());
        let is_restricted = !self.is_unrestricted;
        let start = ToAgent::Start { issuers, known, credentials, is_restricted };
        let mut agent = Agent::new(child, channel);
        agent.link.send(&start.encode(), Vec::new());
        Ok(agent)
    }

    fn wait_to_start(&mut self) {
        self.pause = (self.pause * 2).clamp(PAUSE_MIN, PAUSE_MAX);
        self.start_at = Some(Instant::now() + self.pause);
    }

    /// Kills the agent. This is possible at any time.
    pub(super) fn stop(&mut self) {
        if let Some(agent) = self.agent.take() {
            self.dying.kill(agent.child);
        }
        self.waiting.clear();
        self.reap_dying();
    }

    /// Detects the exit of killed agents.
    fn reap_dying(&mut self) {
        self.has_ended |= self.dying.reap();
    }

    /// Returns the process ID of the agent.
    pub(super) fn id(&self) -> Option<u32> {
        self.agent.as_ref().map(|agent| agent.child.id())
    }

    /// Returns the channel for poll(2), and whether it has unsent data.
    pub(super) fn channel(&self) -> Option<(BorrowedFd<'_>, bool)> {
        self.agent.as_ref().and_then(|agent| agent.link.polled())
    }

    /// Returns the time when an agent must be started, or killed because of its channel.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let limit = self.agent.as_ref().and_then(|agent| agent.link.deadline());
        self.start_at.into_iter().chain(limit).min()
    }

    /// Handles the messages of the agent. `tell` sends a change with its number to the workers, and returns the process IDs of
    /// the workers that will confirm it.
    pub(super) fn hear(&mut self, log: &Log, mut tell: impl FnMut(u64, &AcmeChange) -> Vec<u32>) {
        loop {
            let Some(agent) = &mut self.agent else { return };
            let packet = match agent.link.receive() {
                Ok(Received::Packet(packet)) => packet,
                // `reap` detects the exit of the agent.
                Ok(Received::Nothing | Received::Closed) => break,
                Err(error) => return self.give_up(log, &error.to_string()),
            };
            if !agent.messages.take(Instant::now()) {
                return self.give_up(log, "too many messages");
            }
            match FromAgent::decode(&packet.body) {
                Ok(FromAgent::Log(level, text)) => log.write(level_of(level), text),
                Ok(FromAgent::Change(..)) if agent.link.queued() > WAITING_MAX => {
                    return self.give_up(log, "the process does not read its messages");
                }
                Ok(FromAgent::Change(agents_number, change)) => {
                    if let Err(reason) = self.check(&change) {
                        return self.give_up(log, reason);
                    }
                    self.remember(&change);
                    self.number += 1;
                    let workers = tell(self.number, &change);
                    self.waiting.push(Waiting { number: self.number, agents_number, workers });
                    self.confirm();
                }
                Err(_) => return self.give_up(log, "a malformed message"),
            }
        }
        let Some(agent) = &mut self.agent else { return };
        agent.link.flush();
        if let Some(fault) = agent.link.take_fault(Instant::now()) {
            let pid = agent.child.id();
            self.end(log, &format!("acme process {pid} {fault}"));
        }
    }

    fn give_up(&mut self, log: &Log, reason: &str) {
        self.end(log, &format!("acme process: control channel: {reason}"));
    }

    /// Kills an agent that breaks a rule. The next one starts after a pause.
    fn end(&mut self, log: &Log, what: &str) {
        log.alert(format_args!("{what}, killing the process"));
        self.stop();
        self.wait_to_start();
    }

    /// Checks a change. The agent parses data from the network, so it is not trusted. It must not exhaust the master's memory, or
    /// make a worker use a certificate that was not ordered.
    fn check(&self, change: &AcmeChange) -> Result<(), &'static str> {
        if self.waiting.len() >= WAITING_MAX {
            return Err("too many changes");
        }
        match change {
            AcmeChange::Install(_) if self.challenges.len() >= CHALLENGES_MAX => Err("too many challenges"),
            AcmeChange::Install(challenge) if size_of(challenge) > CHALLENGE_BYTES_MAX => {
                Err("a challenge that is too large")
            }
            AcmeChange::Install(challenge) => {
                let mut names = orders_of(&self.issuers).flat_map(|(_, order)| &order.names);
                let is_wanted = names.any(|name| is_challenge_of(challenge, name));
                is_wanted.then_some(()).ok_or("a challenge that is not wanted")
            }
            AcmeChange::Remove(challenge) if !self.challenges.contains(challenge) => {
                Err("the removal of a challenge that is not installed")
            }
            AcmeChange::Remove(_) => Ok(()),
            AcmeChange::Certificate { id, .. } => {
                let mut wanted = orders_of(&self.issuers).map(|(issuer, order)| issuer.id_of(order));
                wanted.any(|wanted| wanted == *id).then_some(()).ok_or("a certificate that is not wanted")
            }
        }
    }

    fn remember(&mut self, change: &AcmeChange) {
        match change {
            AcmeChange::Install(challenge) => self.challenges.push(challenge.clone()),
            AcmeChange::Remove(challenge) => self.challenges.retain(|known| known != challenge),
            AcmeChange::Certificate { id, pem } => {
                self.certificates.insert(id.clone(), pem.clone());
            }
        }
    }

    /// Handles the confirmation of a change by a worker.
    pub(super) fn handle_done(&mut self, number: u64, worker: u32) {
        for waiting in self.waiting.iter_mut().filter(|waiting| waiting.number == number) {
            waiting.workers.retain(|known| *known != worker);
        }
        self.confirm();
    }

    /// Handles the end of a worker, which will not confirm any more changes.
    pub(super) fn handle_end_of(&mut self, worker: u32) {
        for waiting in &mut self.waiting {
            waiting.workers.retain(|known| *known != worker);
        }
        self.confirm();
    }

    /// Notifies the agent of changes that all workers have confirmed.
    fn confirm(&mut self) {
        let Some(agent) = &mut self.agent else { return };
        self.waiting.retain(|waiting| {
            if waiting.workers.is_empty() {
                agent.link.send(&ToAgent::Done(waiting.agents_number).encode(), Vec::new());
            }
            !waiting.workers.is_empty()
        });
    }

    /// Detects the exit of the agent, and schedules its restart.
    pub(super) fn reap(&mut self, log: &Log) {
        self.reap_dying();
        let Some(agent) = &mut self.agent else { return };
        let Some(status) = agent.child.try_wait() else { return };
        let (pid, how) = (agent.child.id(), describe(status));
        if agent.started.elapsed() >= LONG_LIFE {
            self.pause = Duration::ZERO;
        }
        self.agent = None;
        self.has_ended = true;
        self.waiting.clear();
        self.wait_to_start();
        let seconds = self.pause.as_secs();
        log.alert(format_args!("acme process {pid} {how}, the next one starts in {seconds} s"));
    }

    /// Returns a number for a change whose confirmation the agent does not wait for.
    pub(super) fn next_number(&mut self) -> u64 {
        self.number += 1;
        self.number
    }
}

#[cfg(test)]
impl Acme {
    /// Starts the next agent without a pause.
    pub(super) fn skip_pause(&mut self) {
        (self.start_at, self.pause) = (None, Duration::ZERO);
    }

    /// Lets the time pass that an agent has to exit after it has closed the channel.
    pub(super) fn skip_exit_time(&mut self) {
        self.agent.iter_mut().for_each(|agent| agent.link.skip_exit_time());
    }

    /// Checks that an agent has not exceeded a limit.
    pub(super) fn assert_limits(&self) {
        assert!(self.waiting.len() <= WAITING_MAX && self.challenges.len() <= CHALLENGES_MAX);
        assert!(self.challenges.iter().all(|challenge| size_of(challenge) <= CHALLENGE_BYTES_MAX));
        let ids: Vec<String> = orders_of(&self.issuers).map(|(issuer, order)| issuer.id_of(order)).collect();
        assert!(self.certificates.keys().all(|id| ids.contains(id)), "{:?}", self.certificates.keys());
    }
}

/// Returns all orders, each with its CA.
fn orders_of(issuers: &[Issuer]) -> impl Iterator<Item = (&Issuer, &Order)> {
    issuers.iter().flat_map(|issuer| issuer.orders.iter().map(move |order| (issuer, order)))
}

/// Returns the size of a challenge in bytes.
fn size_of(challenge: &Challenge) -> usize {
    match challenge {
        Challenge::Http { token, text } => token.len() + text.len(),
        Challenge::Tls { name, pem } => name.len() + pem.len(),
    }
}

fn level_of(level: AgentLevel) -> Level {
    match level {
        AgentLevel::Info => Level::Info,
        AgentLevel::Notice => Level::Notice,
        AgentLevel::Warn => Level::Warn,
        AgentLevel::Error => Level::Error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns an agent whose process is a program that sleeps for this time.
    fn agent(seconds: &str, channel: Channel) -> Agent {
        let (_, input) = Channel::pair_within(FROM_AGENT).expect("two sockets");
        let mut command = std::process::Command::new("sleep");
        command.arg(seconds);
        Agent::new(ChildProcess::spawn(command, input).expect("it is everywhere"), channel)
    }

    #[test]
    fn changes_by_an_agent_are_limited() {
        let order = Order { names: vec!["a.example".to_owned()], ..Order::default() };
        let issuer = Issuer { orders: vec![order.clone()], ..Issuer::new("one") };
        let id = issuer.id_of(&order);
        let mut acme = Acme { issuers: vec![issuer], ..Acme::default() };
        let certificate = |id: &str| AcmeChange::Certificate { id: id.to_owned(), pem: Vec::new() };
        assert_eq!(acme.check(&certificate(&id)), Ok(()));
        assert_eq!(acme.check(&certificate("one/other")), Err("a certificate that is not wanted"));
        let http =
            |token: &str, text: &str| Challenge::Http { token: token.to_owned(), text: text.to_owned() };
        let tls = |name: &str| Challenge::Tls { name: name.to_owned(), pem: Vec::new() };
        for foreign in [http("../t", "../t.x"), http("t", "<script>"), tls("b.example")] {
            let refused = Err("a challenge that is not wanted");
            assert_eq!(acme.check(&AcmeChange::Install(foreign)), refused);
        }
        assert_eq!(acme.check(&AcmeChange::Install(tls("a.example"))), Ok(()));
        let challenge = http("t", "t.x");
        let remove = AcmeChange::Remove(challenge.clone());
        assert_eq!(acme.check(&remove), Err("the removal of a challenge that is not installed"));
        let install = AcmeChange::Install(challenge.clone());
        for _ in 0..CHALLENGES_MAX {
            assert_eq!(acme.check(&install), Ok(()));
            acme.remember(&install);
        }
        assert_eq!(acme.check(&install), Err("too many challenges"));
        acme.remember(&AcmeChange::Remove(challenge));
        assert_eq!((acme.check(&install), acme.challenges.len()), (Ok(()), 0));
        let large = http("t", &format!("t.{}", "x".repeat(CHALLENGE_BYTES_MAX)));
        assert_eq!(acme.check(&AcmeChange::Install(large)), Err("a challenge that is too large"));
        for number in 0..WAITING_MAX as u64 {
            assert_eq!(acme.check(&certificate(&id)), Ok(()));
            acme.waiting.push(Waiting { number, agents_number: number, workers: vec![7] });
        }
        for change in [certificate(&id), install] {
            assert_eq!(acme.check(&change), Err("too many changes"));
        }
    }

    /// The agent was killed between storing the file and sending the message.
    #[test]
    fn workers_get_certificates_stored_before_the_agent_was_killed() {
        let path = std::env::temp_dir().join(format!("ringroad-agent-{}", std::process::id()));
        let order = Order { names: vec!["a.example".to_owned()], ..Order::default() };
        let issuer =
            Issuer { orders: vec![order.clone()], state_path: Some(path.clone()), ..Issuer::new("one") };
        let state = acme::state::StateDirectory::open(&path).expect("it can be made");
        state.set_certificate(&order.digest(), b"chain and key").expect("it is written");
        let challenge = Challenge::Http { token: "t".to_owned(), text: "t.x".to_owned() };
        let expected = [
            AcmeChange::Remove(challenge.clone()),
            AcmeChange::Certificate { id: issuer.id_of(&order), pem: b"chain and key".to_vec() },
        ];
        let (channel, _theirs) = Channel::pair_within(FROM_AGENT).expect("two sockets");
        let agent = Some(agent("0", channel));
        let mut acme = Acme { issuers: vec![issuer], challenges: vec![challenge], agent, ..Acme::default() };
        let log = Log::echo_only();
        assert!(acme.changes_after_exit().is_empty(), "it still runs");
        while acme.agent.is_some() {
            acme.reap(&log);
        }
        assert_eq!(acme.changes_after_exit(), expected);
        assert!(acme.changes_after_exit().is_empty(), "workers know");
        std::fs::remove_dir_all(&path).expect("it was made here");
    }

    /// The master killed the agent, for example for a malformed message or because a new binary runs.
    #[test]
    fn challenges_of_a_killed_agent_are_removed() {
        let (channel, _theirs) = Channel::pair_within(FROM_AGENT).expect("two sockets");
        let agent = Some(agent("60", channel));
        let challenge = Challenge::Http { token: "t".to_owned(), text: "t.x".to_owned() };
        let mut acme = Acme { challenges: vec![challenge.clone()], agent, ..Acme::default() };
        acme.stop();
        while !acme.dying.is_empty() {
            acme.reap(&Log::echo_only());
        }
        assert_eq!(acme.changes_after_exit(), [AcmeChange::Remove(challenge)]);
        assert!(acme.challenges.is_empty());
    }

    #[test]
    fn a_change_is_confirmed_when_all_workers_have_applied_it() {
        let mut acme = Acme::default();
        let waiting =
            |number, workers: &[u32]| Waiting { number, agents_number: 1, workers: workers.to_vec() };
        acme.waiting = vec![waiting(1, &[7, 8]), waiting(2, &[8])];
        acme.handle_done(1, 7);
        assert_eq!(acme.waiting[0].workers, [8]);
        acme.handle_end_of(8);
        assert!(acme.waiting.iter().all(|waiting| waiting.workers.is_empty()), "{:?}", acme.waiting);
    }
}
