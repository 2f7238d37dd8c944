//! The worker process: receives a bundle, drops its privileges, serves, and handles the messages of the master.
//!
//! The master starts the worker as `/proc/self/exe worker`, with the control channel as standard input. The main thread
//! only handles the master's messages and signals; the server's threads are started after the privileges are dropped.
//! When the channel is closed, the master has exited, and the worker exits immediately.
//!
//! ```text
//! wait for Start --> read text --> limits --> groups, user --> files --> threads --> calls --> Ready
//!        |                |_____________|___________|_____________|
//!        |                          any failure --> Failed, status 2
//!        v                                                          |
//!   channel closed: status 0          Reload: reply, then serve ----+
//!                                     Quit: finish, then status 0
//!                                     Stop, channel closed: status 0 immediately
//! ```

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::adapter::{self, Config, Files, NotReloaded, Resources, Steering, Worker};
use crate::admin::feed::Feed;
use crate::admin::{complete, contained, unpack};
use crate::control::acme::AcmeChange;
use crate::control::message::{Bundle, ToMaster, ToWorker};
use crate::control::{Channel, FROM_MASTER, Limits, Packet, Received};
use crate::listen::{ListenAddr, errno_text};
use crate::log::{ErrorTarget, Log};
use crate::restrict::{Plan, Restrictions};
use crate::signals::{Signals, timeout_until};
use crate::signatures::SignerSockets;

/// Name of the hidden subcommand.
pub(crate) const SUBCOMMAND: &str = "worker";

/// nginx's exit status of a worker that cannot serve.
const EXIT_CANNOT_SERVE: u8 = 2;

/// Time for the other threads to flush their logs after a panic of one thread. It is short, so that the next worker
/// serves within 200 ms.
const FLUSH_TIME: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// Minimum time between two messages with the addresses of names. The master limits their number.
const ADDRESSES_PAUSE: Duration = Duration::from_millis(100);

/// Minimum time between two reports that a replaced path has caused a refusal.
const REPORT_PAUSE: Duration = Duration::from_millis(200);

/// Reason of a failure if a message has fewer descriptors than it announces.
const TOO_FEW: &str = "the worker process has too many open files, raise worker_rlimit_nofile";

/// Runs until the master or a signal stops the worker.
pub(crate) fn run() -> ExitCode {
    let closed = sandbox::close_unexpected();
    // The kernel has named the process `exe`, after /proc/self/exe. Tools expect the name of the program.
    let _ = nix::sys::prctl::set_name(c"ringroad");
    let (Ok(signals), Ok(channel)) = (Signals::block(), take_channel(FROM_MASTER)) else {
        return ExitCode::from(EXIT_CANNOT_SERVE);
    };
    let mut control = Control { channel, signals, addresses_at: None, replaced_at: None };
    let Some((bundle, fds)) = control.wait_for_start() else {
        return ExitCode::SUCCESS;
    };
    match Serving::start(*bundle, fds, &closed) {
        Ok(serving) => control.serve(serving),
        Err(message) => {
            control.answer(&ToMaster::Failed(message));
            ExitCode::from(EXIT_CANNOT_SERVE)
        }
    }
}

/// The sources of events of the worker.
#[derive(Debug)]
struct Control {
    /// The channel to the master. If it is closed, this process exits.
    channel: Channel,
    /// Signals, which operators may send to a worker directly.
    signals: Signals,
    /// Earliest time of the next message with addresses of names; `None` if they may be sent now.
    addresses_at: Option<Instant>,
    /// Earliest time of the next report about a replaced path; `None` if it may be sent now.
    replaced_at: Option<Instant>,
}

/// The running server.
#[derive(Debug)]
struct Serving {
    /// The threads.
    worker: Worker,
    /// The current configuration, to decide whether the next one can replace it in this process.
    config: Arc<Config>,
    /// The master's numbers of the configuration versions of this process, indexed by the server's number, which counts
    /// from 1.
    generations: Vec<u64>,
    /// The listen addresses.
    addresses: Vec<ListenAddr>,
    /// Clients that watch requests.
    feed: Feed,
    /// Log of this thread.
    log: Log,
    /// The targets of the main `error_log`, which are needed when logs are reopened.
    targets: Vec<ErrorTarget>,
    /// Timeout for a QUIT by signal; a QUIT of the master includes its timeout.
    shutdown_timeout: Option<Duration>,
    /// Whether a fast or graceful shutdown has begun.
    leaving: bool,
    /// The connection to the signing process, if this process holds no private keys.
    signer: Option<Arc<SignerSockets>>,
    /// The sandbox of this process.
    restrictions: Restrictions,
}

/// The next step of the event loop.
#[derive(Debug, PartialEq, Eq)]
enum NextStep {
    /// Continue to serve, or to shut down.
    Continue,
    /// Stop the threads now.
    End,
    /// Exit, because the threads are no longer reliable.
    Fail,
}

impl Control {
    /// Receives the first message. Returns `None` if the master has exited, or the process was not started by a master.
    fn wait_for_start(&mut self) -> Option<(Box<Bundle>, Vec<OwnedFd>)> {
        loop {
            match self.channel.receive() {
                Ok(Received::Packet(packet)) => match ToWorker::decode(&packet.body) {
                    Ok(ToWorker::Start(bundle)) => return Some((bundle, packet.fds)),
                    Ok(_) | Err(_) => return None,
                },
                Ok(Received::Nothing) => {}
                Ok(Received::Closed) | Err(_) => return None,
            }
            let mut wait =
                [PollFd::new(&self.channel, PollFlags::IN), PollFd::new(&self.signals, PollFlags::IN)];
            if poll(&mut wait, None).is_err_and(|errno| errno != Errno::INTR) {
                return None;
            }
            let ends = |signal| matches!(signal, Signal::SIGTERM | Signal::SIGINT | Signal::SIGQUIT);
            while let Some(arrived) = self.signals.next() {
                if ends(arrived.signal) {
                    return None;
                }
            }
        }
    }

    /// Handles events until the threads have ended or the master has exited.
    fn serve(&mut self, mut serving: Serving) -> ExitCode {
        let (method, remark) = serving.worker.method(&serving.config);
        let is_outdated = serving.restrictions.is_outdated();
        self.answer(&ToMaster::Ready { method, remark, is_outdated });
        // Messages that the master sent during the start may have been received together with the first one. poll(2)
        // does not report them.
        let mut next = self.handle_master(&mut serving);
        while next == NextStep::Continue && !serving.worker.is_finished() && !serving.worker.has_panicked() {
            let sending = if self.channel.wants_to_send() { PollFlags::OUT } else { PollFlags::empty() };
            let mut wait = vec![
                PollFd::new(&self.channel, PollFlags::IN | sending),
                PollFd::new(&self.signals, PollFlags::IN),
                PollFd::from_borrowed_fd(serving.worker.events(), PollFlags::IN),
            ];
            // After a report, the descriptor is polled again when the pause has ended.
            let refusals = serving.restrictions.refusals(self.replaced_at.is_none());
            wait.extend(refusals.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
            serving.feed.poll(&mut wait);
            let until =
                serving.feed.deadline().into_iter().chain(self.addresses_at).chain(self.replaced_at).min();
            if let Err(errno) = poll(&mut wait, until.map(timeout_until).as_ref())
                && errno != Errno::INTR
            {
                serving.log.alert(format_args!("poll() failed ({})", errno_text(errno)));
                break;
            }
            for number in serving.worker.take_retired() {
                if let Some(generation) = serving.generation(number) {
                    self.answer(&ToMaster::Retired(generation));
                }
            }
            self.send_addresses(&serving.worker);
            self.report_replaced(&serving.restrictions);
            if let Some(number) = serving.worker.take_turned() {
                self.answer(&ToMaster::Pong(number));
            }
            serving.restrictions.log_refusals(&serving.log);
            serving.feed.turn(&serving.worker);
            while let Some(arrived) = self.signals.next() {
                serving.handle_signal(arrived.signal);
            }
            next = self.handle_master(&mut serving);
        }
        serving.feed.finish(&serving.worker);
        serving.end(next)
    }

    /// Handles all messages that the master has sent so far.
    fn handle_master(&mut self, serving: &mut Serving) -> NextStep {
        loop {
            let packet = match self.channel.receive() {
                Ok(Received::Packet(packet)) => packet,
                Ok(Received::Nothing) => break,
                Ok(Received::Closed) => {
                    serving.log.alert("the master process has exited, exiting");
                    return NextStep::End;
                }
                Err(error) => {
                    serving.log.alert(format_args!("{error}, exiting"));
                    return NextStep::End;
                }
            };
            match ToWorker::decode(&packet.body) {
                Ok(message) => {
                    let (answer, next) = serving.handle(message, packet);
                    if let Some(answer) = answer {
                        self.answer(&answer);
                    }
                    if next != NextStep::Continue {
                        return next;
                    }
                }
                Err(_) => {
                    serving.log.alert("a malformed message from the master process, exiting");
                    return NextStep::End;
                }
            }
        }
        // A failure to send is detected as a closed channel at the next turn.
        let _ = self.channel.flush();
        NextStep::Continue
    }

    /// Sends changed addresses of names, after a pause since the last ones. If the master does not read at present, a later message
    /// has the newest addresses.
    fn send_addresses(&mut self, worker: &Worker) {
        self.addresses_at.take_if(|at| *at <= Instant::now());
        if self.addresses_at.is_some() || self.channel.wants_to_send() {
            return;
        }
        if let Some(addresses) = worker.take_addresses() {
            self.answer(&ToMaster::Addresses(addresses));
            self.addresses_at = Some(Instant::now() + ADDRESSES_PAUSE);
        }
    }

    /// Reports that a replaced path has caused a refusal, after a pause since the last report.
    fn report_replaced(&mut self, restrictions: &Restrictions) {
        self.replaced_at.take_if(|at| *at <= Instant::now());
        if self.replaced_at.is_none() && restrictions.take_replaced() {
            self.answer(&ToMaster::Replaced);
            self.replaced_at = Some(Instant::now() + REPORT_PAUSE);
        }
    }

    /// Sends a message. A failure means that the master has exited, which is detected at the next turn.
    fn answer(&mut self, answer: &ToMaster) {
        let _ = self.channel.send(&answer.encode(), Vec::new());
    }
}

impl Serving {
    /// Starts with a bundle. The order matters. Limits are set and the configuration is parsed with privileges, so that
    /// the text has the same meaning as for the master. Then the privileges are dropped and files are restricted, before a
    /// thread is started or an io_uring is created. System calls are restricted last.
    fn start(mut bundle: Bundle, mut fds: Vec<OwnedFd>, closed: &[String]) -> Result<Serving, String> {
        let signer = connect_to_signer(&mut bundle, &mut fds)?;
        let (limits, credentials) = (bundle.limits.clone(), bundle.credentials.clone());
        let (acme, paths) = (bundle.acme.clone(), std::mem::take(&mut bundle.paths));
        adapter::set_respawned(bundle.respawned);
        adapter::publish_reloads(bundle.reloads);
        let (generation, addresses_of_names) = (bundle.generation, bundle.addresses.clone());
        adapter::set_ticket_secret(&bundle.tickets);
        adapter::set_quic_secret(&bundle.quic_secret);
        let Parsed { config, targets, log, shutdown_timeout, resources } = Parsed::from(bundle, fds)?;
        for message in limits.apply() {
            log.alert(message);
        }
        for name in closed {
            log.notice(format_args!("closed the inherited descriptor of \"{name}\""));
        }
        let plan = Plan::received(&config, paths);
        let open = plan.as_ref().map(Plan::before_user).transpose()?;
        if let Some(credentials) = credentials {
            credentials.assume(config.binds_transparently()).map_err(|error| error.to_string())?;
        }
        limits.enter_directory()?;
        let mut restrictions = match (&plan, open) {
            (Some(plan), Some(open)) => plan.before_threads(open, &log)?,
            _ => Restrictions::default(),
        };
        let addresses = addresses(&resources);
        apply(&config, &acme, &log);
        let worker = Worker::start(&config, resources, &addresses_of_names)?;
        if let Some(plan) = &plan {
            plan.after_start(&mut restrictions, &log)?;
        }
        let generations = vec![generation];
        Ok(Serving {
            worker,
            config,
            generations,
            addresses,
            feed: Feed::default(),
            log,
            targets,
            shutdown_timeout,
            leaving: false,
            signer,
            restrictions,
        })
    }

    /// Handles a message. Returns the response, if the message has one, and the next step.
    fn handle(&mut self, message: ToWorker, packet: Packet) -> (Option<ToMaster>, NextStep) {
        match message {
            ToWorker::Start(bundle) | ToWorker::Reload(bundle) => {
                let generation = bundle.generation;
                return match self.reload(*bundle, packet.fds) {
                    Ok(()) => (Some(ToMaster::Reloaded(generation)), NextStep::Continue),
                    Err(NotReloaded::Unchanged(message)) => {
                        (Some(ToMaster::ReloadFailed(generation, message)), NextStep::Continue)
                    }
                    Err(NotReloaded::InParts(message)) => {
                        self.log.alert(message);
                        (None, NextStep::Fail)
                    }
                };
            }
            ToWorker::Acme(number, change) => {
                apply(&self.config, &[change], &self.log);
                return (Some(ToMaster::AcmeDone(number)), NextStep::Continue);
            }
            ToWorker::Reopen(paths) if paths.len() == packet.fds.len() => {
                self.reopen(paths.into_iter().zip(packet.fds).collect());
            }
            ToWorker::Reopen(_) => self.log.alert(format_args!("the logs are not reopened: {TOO_FEW}")),
            ToWorker::Quit(limit) => self.leave(limit),
            ToWorker::Stop => self.stop(),
            ToWorker::Leave => self.worker.leave(),
            ToWorker::EndQuic => self.worker.end_quic(),
            ToWorker::Drain(is_drained) => self.worker.drain(is_drained),
            ToWorker::Reloads(reloads) => adapter::publish_reloads(reloads),
            ToWorker::Signer => {
                if let Some(signer) = &self.signer {
                    signer.replace(packet.fds);
                }
            }
            ToWorker::Ping(number) => self.worker.request_turn(number),
            ToWorker::Explain(explanation) => {
                for socket in packet.fds {
                    contained(&self.log, socket, |socket| {
                        if let Some((text, entry_query)) = unpack(&explanation) {
                            complete(&self.worker, socket, text, entry_query);
                        }
                    });
                }
            }
            ToWorker::Watch(filter) => {
                for socket in packet.fds {
                    contained(&self.log, socket, |socket| self.feed.add(&self.worker, &filter, socket));
                }
            }
        }
        (None, NextStep::Continue)
    }

    /// Handles a signal, which operators may also send to workers directly.
    fn handle_signal(&mut self, signal: Signal) {
        match signal {
            Signal::SIGTERM | Signal::SIGINT => self.stop(),
            Signal::SIGQUIT => self.leave(self.shutdown_timeout),
            // The master handles the other signals, and sends messages.
            _ => {}
        }
    }

    /// Begins a graceful shutdown with a time limit. A second request has no effect, even with another limit.
    fn leave(&mut self, limit: Option<Duration>) {
        if !self.leaving {
            self.leaving = true;
            self.log.notice("gracefully shutting down");
            self.worker.quit(limit);
        }
    }

    fn stop(&mut self) {
        self.leaving = true;
        self.log.notice("exiting");
        self.worker.stop();
    }

    /// Ends the threads; returns the exit status.
    fn end(self, next: NextStep) -> ExitCode {
        let Serving { worker, log, .. } = self;
        worker.stop();
        if worker.has_panicked() || next == NextStep::Fail {
            // The wait is limited, because a hanging disk must not delay the start of the next worker.
            let mut wait = [PollFd::from_borrowed_fd(worker.events(), PollFlags::IN)];
            worker.take_retired();
            while !worker.is_finished() && poll(&mut wait, Some(&FLUSH_TIME)).is_ok_and(|count| count > 0) {
                worker.take_retired();
            }
            log.alert("a worker thread has panicked or does not respond, exiting");
            return ExitCode::FAILURE;
        }
        if !worker.wait() {
            log.alert("a worker thread has panicked during the shutdown");
            return ExitCode::FAILURE;
        }
        log.notice("exit");
        ExitCode::SUCCESS
    }

    /// Returns the master's number of a configuration version.
    fn generation(&self, number: u64) -> Option<u64> {
        let index = usize::try_from(number).ok()?.checked_sub(1)?;
        self.generations.get(index).copied()
    }

    /// Loads a new configuration. Everything is parsed before anything is changed.
    fn reload(&mut self, bundle: Bundle, fds: Vec<OwnedFd>) -> Result<(), NotReloaded> {
        let generation = bundle.generation;
        if self.leaving {
            return Err(NotReloaded::Unchanged("the worker process is shutting down".to_owned()));
        }
        let acme = bundle.acme.clone();
        let mut parsed = Parsed::from(bundle, fds).map_err(NotReloaded::Unchanged)?;
        if adapter::ProcessKey::of(&parsed.config) != adapter::ProcessKey::of(&self.config) {
            return Err(NotReloaded::Unchanged("the new configuration needs a new process".to_owned()));
        }
        let addresses = addresses(&parsed.resources);
        // The server already has the sockets of these addresses.
        parsed.resources.listeners.retain(|(address, _)| !self.addresses.contains(address));
        apply(&parsed.config, &acme, &self.log);
        self.worker.reload(&parsed.config, parsed.resources)?;
        self.addresses = addresses;
        self.generations.push(generation);
        self.config = parsed.config;
        parsed.log.take_stderr_from(&self.log);
        self.log = parsed.log;
        self.targets = parsed.targets;
        self.shutdown_timeout = parsed.shutdown_timeout;
        Ok(())
    }

    /// Replaces the log files: same names, new descriptors.
    fn reopen(&mut self, logs: Vec<(PathBuf, OwnedFd)>) {
        let (shared, count) = (share(&logs), logs.len());
        // Without descriptors for all files, the previous log is retained, so that the error can be logged.
        let reopened = self.worker.reopen(logs);
        let reopened = reopened.and((shared.len() == count).then_some(()).ok_or_else(|| TOO_FEW.to_owned()));
        if let Err(message) = reopened {
            return self.log.alert(format_args!("the logs are not reopened: {message}"));
        }
        let log = Log::of(&self.targets, |path| find(&shared, path));
        log.take_stderr_from(&self.log);
        self.log = log;
        self.log.notice("reopening logs");
    }
}

/// Takes the sockets to the signing process, the last descriptors of a bundle, and uses them for all keys. Must be called before
/// the configuration is read.
fn connect_to_signer(
    bundle: &mut Bundle,
    fds: &mut Vec<OwnedFd>,
) -> Result<Option<Arc<SignerSockets>>, String> {
    if bundle.descriptors() != fds.len() {
        return Err(TOO_FEW.to_owned());
    }
    let count = usize::try_from(std::mem::take(&mut bundle.signer_sockets)).unwrap_or(usize::MAX);
    if count == 0 {
        return Ok(None);
    }
    let client = Arc::new(SignerSockets::new(fds.split_off(fds.len() - count)));
    tls::apart::connect(Arc::clone(&client) as _);
    Ok(Some(client))
}

/// A parsed bundle.
struct Parsed {
    config: Arc<Config>,
    targets: Vec<ErrorTarget>,
    log: Log,
    shutdown_timeout: Option<Duration>,
    resources: Resources,
}

impl Parsed {
    /// Assigns the descriptors in the order in which the bundle names their owners.
    fn from(bundle: Bundle, fds: Vec<OwnedFd>) -> Result<Parsed, String> {
        if bundle.descriptors() != fds.len() {
            return Err(TOO_FEW.to_owned());
        }
        let site = adapter::load(&bundle.request, Files::Memory(&bundle.files));
        let site = site.map_err(|refused| refused.message)?;
        let mut fds = fds.into_iter();
        let mut listeners = Vec::with_capacity(bundle.listeners.len());
        for (address, count) in bundle.listeners {
            let count = usize::try_from(count).unwrap_or(usize::MAX);
            listeners.push((address, fds.by_ref().take(count).collect()));
        }
        let steering = Steering { bank: bundle.bank, ..Steering::default() };
        let logs: Vec<(PathBuf, OwnedFd)> = bundle.logs.into_iter().zip(fds).collect();
        let shared = share(&logs);
        let log = Log::of(&site.settings.error_log, |path| find(&shared, path));
        Ok(Parsed {
            config: site.config,
            targets: site.settings.error_log,
            log,
            shutdown_timeout: site.settings.shutdown_timeout,
            resources: Resources { listeners, logs, steering },
        })
    }
}

/// Applies changes of certificates and challenges. A change that fails is logged and has no effect.
fn apply(config: &Config, changes: &[AcmeChange], log: &Log) {
    for change in changes {
        if let Err(message) = adapter::apply(config, change) {
            log.alert(format_args!("acme: {message}"));
        }
    }
}

/// Returns the addresses that the server will listen on.
fn addresses(resources: &Resources) -> Vec<ListenAddr> {
    resources.listeners.iter().map(|(address, _)| address.clone()).collect()
}

/// Duplicates descriptors for this thread's log: the server owns the received ones.
fn share(logs: &[(PathBuf, OwnedFd)]) -> Vec<(PathBuf, Rc<OwnedFd>)> {
    let own = |(path, fd): &(PathBuf, OwnedFd)| Some((path.clone(), Rc::new(fd.try_clone().ok()?)));
    logs.iter().filter_map(own).collect()
}

fn find(logs: &[(PathBuf, Rc<OwnedFd>)], path: &std::path::Path) -> Option<Rc<OwnedFd>> {
    logs.iter().find(|(known, _)| known == path).map(|(_, fd)| Rc::clone(fd))
}

/// Takes the control channel from standard input, which is replaced by /dev/null.
pub(crate) fn take_channel(limits: Limits) -> Result<Channel, Errno> {
    let stdin = std::io::stdin();
    let socket = rustix::io::fcntl_dupfd_cloexec(stdin.as_fd(), 3)?;
    let null = rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::stdio::dup2_stdin(null)?;
    Channel::new(socket, limits)
}
