//! The master process: opens privileged resources, starts the worker, handles signals.
//!
//! The master never reads from the network. It has one `poll` and no signal handler, and one thread, besides that of `observer`. [`run`] starts a server from a
//! parsed configuration; the loop then runs in [`Master`]:
//!
//! ```text
//! signal or message --> handle_* changes the state --> keep_serving starts a missing worker --> poll
//! ```
//!
//! ```text
//! Starting --first worker ready--> Running <--HUP, worker ready-- Idle
//!    |                               |  +-------- WINCH ----------> ^
//!    | first worker failed           |                              |
//!    +------------> Ending <--- TERM, INT, QUIT --------------------+
//! ```
//! The capabilities of the master are in `capabilities`, reloads in `reload`, replacement of the binary in `upgrade`, systemd in
//! `supervise`. A worker process is in `process`, a configuration with its sockets in `cycle`. The server without a master is in
//! `single`, requests of operators are in `operators`, renewal of expiring certificates is in `upkeep`, and the observation of the
//! paths of a sandbox is in `observer`.

mod acme;
mod capabilities;
mod child;
mod cycle;
mod daemon;
#[cfg(test)]
mod frame_tests;
mod link;
mod observer;
mod operators;
mod process;
mod reload;
mod respawn;
mod signer;
mod signer_line;
mod single;
mod supervise;
mod upgrade;
mod upkeep;

use std::os::fd::BorrowedFd;
use std::process::{ExitCode, ExitStatus};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::thread::CapabilitySet;

pub(crate) use cycle::{Cycle, log_obstacle, open_logs, resolve_user};
pub(crate) use daemon::{is_daemon, launch};
pub(crate) use upkeep::{Renew, Renewal};

use crate::adapter::{self, Site};
use crate::admin::server::AdminServer;
use crate::control::acme::AcmeChange;
use crate::control::message::{ToMaster, ToWorker};
use crate::inherit;
use crate::limits::descriptors_line;
use crate::listen::{ListenAddr, errno_text, reachable};
use crate::log::{self, Level, Log, set_stderr_append};
use crate::paths::Request;
use crate::pidfile::PidFile;
use crate::reload_report::WaitingCommands;
use crate::reloads::Reloads;
use crate::restrict::{self, Plan};
use crate::signals::{Arrived, Signals, timeout_until};
use crate::systemd::Notifier;
use acme::Acme;
use daemon::Readiness;
use observer::PathObserver;
use process::{Heard, Stage, WorkerProcess, describe};
use reload::Pending;
use respawn::Respawn;
use signer::Signer;
use supervise::Liveness;
use upgrade::{NewBinary, Predecessor};
use upkeep::Upkeep;

/// Maximum time for a fast shutdown of a worker before it is killed. nginx allows a second. Here a worker may save the index of a
/// cache for three seconds, and wait for a disk for two.
const STOP_TIME: Duration = Duration::from_secs(6);

/// Time after the end of `worker_shutdown_timeout` until a worker is killed.
const QUIT_GRACE: Duration = Duration::from_secs(5);

/// The phase of the master.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The first worker is not ready yet; if it fails, the master exits.
    Starting,
    /// One worker always serves.
    Running,
    /// SIGWINCH was received: no worker runs until the next reload.
    Idle,
    /// All workers are ending, and the master exits with the last one.
    Ending,
}

/// The state of the master.
#[derive(Debug)]
struct Master {
    /// The source that a reload reads again.
    request: Request,
    /// The configuration in force.
    cycle: Cycle,
    /// The next configuration, during a reload.
    pending: Option<Pending>,
    /// Whether a reload was requested while another reload was in flight.
    reload_again: bool,
    /// The commands that wait for the result of a reload.
    waiting: WaitingCommands,
    /// The commands that wait for the failure of an upgrade.
    upgrading: WaitingCommands,
    /// Signals that affect workers and arrived before the first worker was ready. They are handled when it is ready.
    postponed: Vec<Signal>,
    /// The number of the newest configuration, which may not be in force.
    generation: u64,
    /// The bank of the sockets of QUIC that the last worker uses, or that of the old master.
    bank: u8,
    /// Addresses of host names that a worker sent last. The next worker uses them if the name server fails.
    addresses: String,
    /// All live workers: one that serves, one that starts during a reload, any number that finish their requests.
    workers: Vec<WorkerProcess>,
    phase: Phase,
    /// The process that obtains certificates, and its results.
    acme: Acme,
    /// The process that holds the private keys, with `sandbox strict`.
    signer: Signer,
    /// Checks certificates that expire soon.
    upkeep: Upkeep,
    /// Finds replaced directories, for which a worker with a sandbox has no rule.
    observer: PathObserver,
    /// Time when the graceful shutdown begins; clients move to other servers until then (`shutdown_delay`).
    quit_at: Option<Instant>,
    /// The admin socket.
    admin_server: AdminServer,
    /// Delays restarts if workers repeatedly exit before they are ready.
    respawn: Respawn,
    /// Number of workers that have ended unexpectedly since the start.
    respawned: u64,
    /// Numbers of reloads since the start, which pages of workers show.
    reloads: Reloads,
    /// Earliest time at which another worker is started.
    start_at: Option<Instant>,
    pid_file: Option<PidFile>,
    /// Whether the process is a daemon, for which no shell waits. Only a daemon handles SIGWINCH and SIGUSR2.
    is_detached: bool,
    /// The new binary, while both binaries run.
    new_binary: Option<NewBinary>,
    /// The old master while it runs, if this process is its new binary.
    predecessor: Option<Predecessor>,
    notifier: Notifier,
    /// The number of the configuration that systemd was last notified of; 0 if none.
    notified_generation: u64,
    /// The liveness check of the worker, by pings.
    liveness: Liveness,
    /// The pipe to the process that waits for the start of the daemon.
    readiness: Option<Readiness>,
    signals: Signals,
    /// The capabilities that were dropped at the start.
    dropped: CapabilitySet,
    /// Whether the exit status must indicate a failure.
    failed: bool,
}

/// Serves a configuration until a signal ends the process. Errors of the start are written to `log`. This log is closed
/// afterwards, because the configuration may name other files.
///
/// `renew` renews certificates that the calling command has created; it is called while the server runs.
pub(crate) fn run(request: Request, site: Site, log: Log, renew: Option<Renew>) -> ExitCode {
    set_stderr_append();
    if !restrict::is_supported(&site.config, &log) {
        return ExitCode::FAILURE;
    }
    let (daemon, has_master) = (is_daemon(), site.settings.master_process);
    let is_new_binary = inherit::is_new_binary();
    let inherited = inherit::take(daemon, &log);
    let Ok(cycle) = Cycle::open(&request, site, 1, Some(&inherited.listeners), &log) else {
        return ExitCode::FAILURE;
    };
    let mut admin_server = AdminServer::default();
    if let Err(message) = admin_server.listen(cycle.site.settings.admin_socket.as_deref(), is_new_binary) {
        log.emerg(message);
        cycle.listeners.forget(Some(&inherited.listeners));
        return ExitCode::FAILURE;
    }
    inherited.close_unused(&cycle.listeners, &log);
    let readiness = match daemon.then(daemon::detach).transpose() {
        Ok(readiness) => readiness,
        Err(message) => {
            log.emerg(message);
            return ExitCode::FAILURE;
        }
    };
    let signals = match Signals::block() {
        Ok(signals) => signals,
        Err(errno) => {
            log.emerg(format_args!("signalfd() failed ({errno})"));
            return ExitCode::FAILURE;
        }
    };
    let notifier = Notifier::from_environment(is_new_binary, &log);
    drop(log);
    let upkeep = Upkeep::new(renew, &cycle.site);
    if !has_master {
        return single::run(request, cycle, admin_server, signals, (readiness, notifier), upkeep);
    }
    let mut master = Master {
        admin_server,
        is_detached: daemon || is_new_binary || notifier.is_supervised(),
        predecessor: is_new_binary.then(Predecessor::find),
        bank: if is_new_binary { 1 - inherit::bank() } else { 0 },
        notifier,
        readiness,
        ..Master::new(request, cycle, signals, upkeep)
    };
    // Until the first worker serves, messages are also written to the terminal. For a new binary this is not done, because its
    // standard error may be the log of the old binary.
    master.cycle.log = master.cycle.log.clone().with_echo(!is_new_binary);
    master.serve()
}

impl Master {
    /// Creates the state of a master in the foreground that has no worker yet.
    fn new(request: Request, cycle: Cycle, signals: Signals, upkeep: Upkeep) -> Master {
        Master {
            request,
            cycle,
            pending: None,
            reload_again: false,
            waiting: WaitingCommands::default(),
            upgrading: WaitingCommands::default(),
            postponed: Vec::new(),
            generation: 1,
            bank: 0,
            addresses: String::new(),
            workers: Vec::new(),
            phase: Phase::Starting,
            acme: Acme::default(),
            signer: Signer::default(),
            upkeep,
            observer: PathObserver::default(),
            quit_at: None,
            admin_server: AdminServer::default(),
            respawn: Respawn::default(),
            respawned: 0,
            reloads: Reloads::default(),
            start_at: None,
            pid_file: None,
            is_detached: false,
            new_binary: None,
            predecessor: None,
            notifier: Notifier::default(),
            notified_generation: 0,
            liveness: Liveness::default(),
            readiness: None,
            signals,
            dropped: CapabilitySet::empty(),
            failed: false,
        }
    }

    /// Runs the loop, until the master must exit and the last worker has exited.
    fn serve(&mut self) -> ExitCode {
        greet(&self.cycle.log);
        let is_unrestricted = self.cycle.site.config.main().is_unrestricted;
        let dropped = if is_unrestricted {
            Ok(CapabilitySet::empty())
        } else {
            capabilities::drop_unneeded(&self.cycle.site)
        };
        match dropped {
            Ok(dropped) => self.dropped = dropped,
            Err(error) => {
                self.cycle.log.alert(format_args!("capabilities of the master are not dropped: {error}"));
            }
        }
        self.cycle.log.notice("start worker processes");
        loop {
            self.keep();
            if self.phase == Phase::Ending && self.workers.is_empty() {
                break;
            }
            self.wait();
            self.handle_events();
        }
        self.signer.stop();
        self.forget_listeners();
        if let Some(file) = self.pid_file.take() {
            file.remove(&self.cycle.log);
        }
        self.cycle.log.notice("exit");
        if self.failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
    }

    /// Starts missing processes, and checks certificates.
    fn keep(&mut self) {
        self.keep_serving();
        self.keep_signer();
        self.keep_acme();
        self.keep_certificates();
        self.keep_paths();
    }

    /// Handles everything that has happened: requests of operators, messages, signals, ends of processes, deadlines.
    fn handle_events(&mut self) {
        self.serve_operators();
        // Messages that arrived before a reload are handled first.
        self.handle_messages();
        while let Some(arrived) = self.signals.next() {
            self.handle_signal(arrived);
        }
        // Messages are handled before exits: the last message of a worker may contain the reason for its exit.
        self.handle_messages();
        self.reap();
        self.reap_new_binary();
        self.check_predecessor();
        self.kill_overdue();
        self.notify();
        if self.quit_at.take_if(|at| *at <= Instant::now()).is_some() {
            self.quit();
        }
    }

    /// Starts a worker if no worker serves or is starting.
    fn keep_serving(&mut self) {
        let wanted = matches!(self.phase, Phase::Starting | Phase::Running);
        let there = self.workers.iter().any(|worker| !matches!(worker.stage, Stage::Leaving { .. }));
        // A time in the past is cleared. Otherwise it would remain the next deadline while a reload starts a worker, and
        // `poll` would not wait.
        self.start_at.take_if(|at| *at <= Instant::now());
        if !wanted || there || self.start_at.is_some() {
            return;
        }
        if self.phase == Phase::Running {
            self.cycle.restore_listeners();
        }
        match self.start_worker(None, false) {
            Ok(worker) => self.workers.push(worker),
            Err(message) => {
                self.cycle.log.alert(&message);
                self.handle_fault(&message);
            }
        }
    }

    /// Starts a worker process with the next configuration, or the one in force, and the current state: addresses of names,
    /// certificates, counters. `is_renewal` is for a worker that replaces the serving one because of replaced paths.
    fn start_worker(&mut self, next: Option<&Cycle>, is_renewal: bool) -> Result<WorkerProcess, String> {
        if next.unwrap_or(&self.cycle).site.settings.signs_apart {
            self.start_signer(next)?;
        }
        let cycle = next.unwrap_or(&self.cycle);
        let mut acme = self.acme.changes(adapter::issuers(&cycle.site.config));
        let mut sockets = None;
        if cycle.site.settings.signs_apart {
            acme = self.signer.take_keys(cycle, &acme);
            // The next configuration waits until there is room, a worker in place of one that has exited does not.
            let must_fit = next.is_some() || self.phase == Phase::Starting;
            sockets = Some(self.signer.open_line(cycle.site.settings.threads, &self.workers, must_fit)?);
        }
        let (counts, bank) = ((self.respawned, self.reloads), self.free_bank());
        let plan = match self.plan().filter(|_| is_renewal) {
            Some(old) => Plan::of_renewal(&cycle.site.config, old),
            None => Plan::of(&cycle.site.config),
        };
        let mut worker = WorkerProcess::start(cycle, &self.addresses, counts, acme, sockets, bank, plan)?;
        self.bank = bank;
        operators::brief(&self.admin_server, &mut worker);
        self.cycle.log.notice(format_args!("start worker process {}", worker.pid()));
        Ok(worker)
    }

    /// Returns the bank of the sockets of QUIC for the next worker: not that of the last worker while this one finishes its connections. If
    /// another master serves, its worker uses the other bank.
    fn free_bank(&self) -> u8 {
        let is_used = self.workers.iter().any(|worker| worker.bank == self.bank);
        let is_shared =
            self.new_binary.is_some() || self.predecessor.as_ref().is_some_and(Predecessor::lives);
        if is_used && !is_shared { 1 - self.bank } else { self.bank }
    }

    /// Makes new connections of QUIC go to the newest worker that serves. If an older worker has not finished its connections at the same
    /// sockets, they end.
    pub(super) fn steer(&mut self) {
        let serving = self.workers.iter().filter(|worker| worker.stage == Stage::Serving);
        let Some(newest) = serving.max_by_key(|worker| worker.generation) else { return };
        let (bank, pid) = (newest.bank, newest.pid());
        self.cycle.listeners.steer(bank, &self.cycle.log);
        for worker in self.workers.iter_mut().filter(|worker| worker.bank == bank && worker.pid() != pid) {
            worker.send(&ToWorker::EndQuic, Vec::new());
        }
    }

    /// Keeps the ACME process running while workers serve, and handles its messages. The start of the server does not
    /// wait for this process.
    fn keep_acme(&mut self) {
        let Master { acme, workers, signer, cycle, phase, new_binary, .. } = self;
        match phase {
            Phase::Starting => return,
            Phase::Ending => return acme.stop(),
            // The new binary's process obtains certificates from now on.
            Phase::Running | Phase::Idle if new_binary.is_some() => return acme.stop(),
            Phase::Running | Phase::Idle => {}
        }
        acme.hear(&cycle.log, |number, change| send_all(workers, signer, number, change));
        acme.reap(&cycle.log);
        for change in acme.keep(cycle) {
            let number = acme.next_number();
            send_all(workers, signer, number, &change);
        }
    }

    /// Checks the certificates of a serving server, and reloads after a renewal.
    fn keep_certificates(&mut self) {
        let log = self.cycle.log.clone();
        if self.checks_certificates() && self.upkeep.check(&self.cycle.site, &log) {
            self.reload();
        }
    }

    /// Observes the paths of the serving worker's sandbox. If paths were replaced, a new worker with the present configuration
    /// replaces the worker.
    fn keep_paths(&mut self) {
        let Master { observer, workers, cycle, phase, pending, quit_at, .. } = self;
        if pending.is_some() {
            return;
        }
        let is_serving = *phase == Phase::Running && quit_at.is_none();
        let serving = workers.iter().find(|worker| worker.stage == Stage::Serving).filter(|_| is_serving);
        let plan = || Some((Arc::clone(&cycle.site.config), serving?.plan.clone()?));
        observer.observe(serving.map(|worker| (worker.pid(), worker.generation)), plan, &cycle.log);
        let leaving = workers.iter().filter(|worker| matches!(worker.stage, Stage::Leaving { .. })).count();
        if let Some(reasons) = observer.take_due(leaving, &cycle.log, Instant::now()) {
            self.renew_worker(&reasons);
        }
    }

    /// Whether this master checks certificates: not while it starts or ends, and not while a new binary runs, which checks them
    /// instead.
    fn checks_certificates(&self) -> bool {
        self.phase == Phase::Running && self.new_binary.is_none() && self.quit_at.is_none()
    }

    /// Waits for a signal, a message, a writable channel, or the next deadline.
    fn wait(&self) {
        let mut polled = vec![PollFd::new(&self.signals, PollFlags::IN)];
        let workers = self.workers.iter().filter_map(WorkerProcess::channel);
        polled.extend(workers.chain(self.acme.channel()).chain(self.signer.channel()).map(polled_channel));
        polled.extend(self.admin_server.polled().map(|asks| PollFd::from_borrowed_fd(asks, PollFlags::IN)));
        polled.extend(self.observer.event().map(|event| PollFd::from_borrowed_fd(event, PollFlags::IN)));
        let before = self.predecessor.as_ref().and_then(Predecessor::end);
        polled.extend(before.map(|end| PollFd::from_borrowed_fd(end, PollFlags::IN)));
        let timeout = self.next_deadline().map(timeout_until);
        match poll(&mut polled, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => self.cycle.log.alert(format_args!("poll() failed ({})", errno_text(errno))),
        }
    }

    /// Returns the earliest deadline.
    fn next_deadline(&self) -> Option<Instant> {
        let kills = self.workers.iter().filter_map(WorkerProcess::kill_at);
        let others = self.start_at.into_iter().chain(self.quit_at).chain(self.acme.deadline());
        let others = others.chain(self.signer.deadline());
        let others = others.chain(self.notifier.ping_at()).chain(self.admin_server.deadline());
        let others = others.chain(self.workers.iter().filter_map(WorkerProcess::channel_deadline));
        let others = others.chain(self.checks_certificates().then(|| self.upkeep.deadline()));
        let others = others.chain(self.observer_deadline());
        kills.chain(others).chain(self.pending_deadline()).min()
    }

    /// Logs a notice for a signal in nginx's words, and handles the signal.
    fn handle_signal(&mut self, Arrived { signal, sender }: Arrived) {
        let action = match signal {
            Signal::SIGTERM | Signal::SIGINT => ", exiting",
            Signal::SIGQUIT => ", shutting down",
            Signal::SIGHUP => ", reconfiguring",
            Signal::SIGUSR1 => ", reopening logs",
            Signal::SIGWINCH if self.is_detached => ", stop accepting connections",
            Signal::SIGWINCH => ", ignored: not a daemon",
            Signal::SIGUSR2 => self.upgrade_action(),
            _ => "",
        };
        let (number, name) = (signal as i32, signal.as_str());
        let from = if sender == 0 { String::new() } else { format!(" from {sender}") };
        self.cycle.log.notice(format_args!("signal {number} ({name}) received{from}{action}"));
        match signal {
            Signal::SIGHUP => self.waiting.add(sender),
            Signal::SIGUSR2 => self.upgrading.add(sender),
            _ => {}
        }
        if self.phase == Phase::Starting && upgrade::is_postponed(signal) {
            self.postponed.push(signal);
        } else {
            self.obey(signal);
        }
    }

    /// Performs the action of a signal.
    fn obey(&mut self, signal: Signal) {
        match signal {
            Signal::SIGTERM | Signal::SIGINT => self.end_workers(&ToWorker::Stop, Some(STOP_TIME)),
            Signal::SIGQUIT => self.begin_quit(),
            Signal::SIGHUP if self.phase == Phase::Ending || self.quit_at.is_some() => self.waiting.abandon(),
            Signal::SIGHUP if self.new_binary.is_some() => self.restart_workers(),
            Signal::SIGHUP => self.reload(),
            Signal::SIGUSR2 if self.is_detached => self.change_binary(),
            Signal::SIGUSR2 => self.upgrading.refuse(upgrade::NOT_A_DAEMON),
            Signal::SIGUSR1 => self.reopen_logs(),
            Signal::SIGWINCH if self.is_detached && self.phase == Phase::Running => {
                self.phase = Phase::Idle;
                // The worker of a reload in flight is stopped too. The next reload reads the configuration again.
                self.abandon_pending();
                self.waiting.abandon();
                self.reload_again = false;
                let limit = self.cycle.site.settings.shutdown_timeout;
                self.dismiss(|_| true, limit);
            }
            _ => {}
        }
    }

    /// Stops all workers, fast or gracefully.
    fn end_workers(&mut self, message: &ToWorker, time: Option<Duration>) {
        if self.phase != Phase::Ending {
            self.notify_end();
        }
        self.phase = Phase::Ending;
        self.abandon_pending();
        self.waiting.abandon();
        let kill_at = time.map(|time| Instant::now() + time);
        for worker in &mut self.workers {
            worker.send(message, Vec::new());
            worker.stage = Stage::Leaving { kill_at };
        }
    }

    /// Makes clients move to other servers for `shutdown_delay`, then begins the graceful shutdown. A second request begins the
    /// shutdown immediately.
    fn begin_quit(&mut self) {
        let delay = self.cycle.site.settings.shutdown_delay;
        if delay.is_zero() || self.quit_at.take().is_some() || self.phase != Phase::Running {
            return self.quit();
        }
        self.cycle.log.notice(format_args!("readiness checks fail for {} ms", delay.as_millis()));
        // A reload in flight is cancelled, because its new worker would not get the message below.
        self.abandon_pending();
        self.waiting.abandon();
        self.quit_at = Some(Instant::now() + delay);
        for worker in &mut self.workers {
            worker.send(&ToWorker::Leave, Vec::new());
        }
    }

    /// Begins the graceful shutdown. A second call has no effect; a fast shutdown may still follow.
    fn quit(&mut self) {
        if self.phase == Phase::Ending {
            return;
        }
        // An upgrade that is taken back: the workers of the old binary get new connections of QUIC again, while those of this binary finish.
        if self.predecessor.as_ref().is_some_and(Predecessor::lives) {
            self.cycle.listeners.steer(1 - self.bank, &self.cycle.log);
        }
        let limit = self.cycle.site.settings.shutdown_timeout;
        self.end_workers(&ToWorker::Quit(limit), limit.map(|limit| limit + QUIT_GRACE));
        // No process accepts connections any more: clients must be refused instead of waiting in the accept queue.
        self.forget_listeners();
        self.cycle.listeners.0.clear();
    }

    /// Starts the graceful shutdown of the selected workers.
    fn dismiss(&mut self, meant: impl Fn(&WorkerProcess) -> bool, limit: Option<Duration>) {
        let kill_at = limit.map(|limit| Instant::now() + limit + QUIT_GRACE);
        let meant =
            |worker: &&mut WorkerProcess| !matches!(worker.stage, Stage::Leaving { .. }) && meant(worker);
        for worker in self.workers.iter_mut().filter(meant) {
            worker.send(&ToWorker::Quit(limit), Vec::new());
            worker.stage = Stage::Leaving { kill_at };
        }
    }

    /// Reopens the log files. The worker receives descriptors, because it may lack permission to open the files.
    fn reopen_logs(&mut self) {
        let mut logs = self.cycle.reopen_logs();
        // During a reload, some workers use the old and some the new configuration. A worker ignores files that its
        // configuration does not name.
        logs.extend(self.reopen_pending_logs());
        let (paths, files): (Vec<_>, Vec<_>) = logs.into_iter().unzip();
        self.cycle.log.notice("reopening logs");
        let message = ToWorker::Reopen(paths);
        for worker in &mut self.workers {
            worker.send(&message, files.iter().map(log::of_worker).collect());
        }
    }

    /// Handles the messages of all workers.
    fn handle_messages(&mut self) {
        // The loop uses indexes, because a message may start further workers, which are appended.
        for index in 0..self.workers.len() {
            self.workers[index].flush();
            loop {
                match self.workers[index].hear() {
                    Heard::Message(message) => self.handle_message(index, message),
                    Heard::Nothing | Heard::Silence => break,
                    Heard::Nonsense(reason) => {
                        let pid = self.workers[index].pid();
                        self.cycle
                            .log
                            .alert(format_args!("worker process {pid}: {reason}, killing the process"));
                        break;
                    }
                }
            }
        }
    }

    /// Handles a message that was expected from this worker. If the worker is shutting down, most messages have no effect.
    fn handle_message(&mut self, index: usize, message: ToMaster) {
        match message {
            ToMaster::Ready { method, remark, is_outdated } => {
                let worker = &mut self.workers[index];
                if matches!(worker.stage, Stage::Starting { .. }) {
                    worker.stage = Stage::Serving;
                    if let Some(plan) = worker.plan.as_mut().filter(|_| is_outdated) {
                        plan.note_outdated();
                    }
                    let generation = worker.generation;
                    log_method(&self.cycle.log, &method, remark.as_deref());
                    self.handle_ready(generation);
                }
            }
            // The exit of the worker, which follows, is handled by `handle_end`.
            ToMaster::Failed(message) => self.cycle.log.emerg(message),
            ToMaster::Reloaded(generation) => self.handle_reloaded(generation, index),
            ToMaster::Pong(number) => {
                let pid = self.workers[index].pid();
                self.handle_pong(number, pid);
            }
            ToMaster::AcmeDone(number) => {
                self.acme.handle_done(number, self.workers[index].pid());
                self.signer.note_unused();
            }
            ToMaster::ReloadFailed(generation, message) => {
                let pid = self.workers[index].pid();
                self.handle_reload_failed(generation, pid, &message);
            }
            ToMaster::Retired(generation) => {
                let worker = &mut self.workers[index];
                worker.remove_keys(generation);
                self.signer.note_unused();
                log_retired(&self.cycle.log, generation, worker.pid());
            }
            // A worker that is shutting down has older addresses than its successor.
            ToMaster::Addresses(addresses) if self.workers[index].stage == Stage::Serving => {
                self.addresses = addresses;
            }
            ToMaster::Addresses(_) => {}
            ToMaster::Replaced => {
                if self.workers[index].stage == Stage::Serving {
                    self.observer.compare();
                }
            }
        }
    }

    /// Handles a worker that accepts connections: the first one ends the start, a later one may end a reload.
    fn handle_ready(&mut self, generation: u64) {
        self.steer();
        match self.phase {
            Phase::Starting => {
                announce(&self.cycle, None);
                self.phase = Phase::Running;
                match write_pid_file(&self.request, &self.cycle) {
                    Ok(file) => self.pid_file = file,
                    Err(message) => {
                        self.cycle.log.emerg(message);
                        self.failed = true;
                        self.end_workers(&ToWorker::Stop, Some(STOP_TIME));
                    }
                }
                self.cycle.log = self.cycle.log.clone().with_echo(false);
                if let Some(readiness) = self.readiness.take_if(|_| !self.failed) {
                    readiness.notify(&self.cycle.log);
                } else if self.predecessor.is_some() && self.cycle.site.settings.daemon {
                    daemon::leave_stderr(&self.cycle.log);
                }
                if self.request.text.is_some() {
                    print_urls(&self.cycle);
                }
                for signal in std::mem::take(&mut self.postponed) {
                    self.obey(signal);
                }
            }
            // A worker has replaced a crashed worker during `shutdown_delay`.
            Phase::Running if self.quit_at.is_some() => {
                for worker in &mut self.workers {
                    worker.send(&ToWorker::Leave, Vec::new());
                }
            }
            Phase::Running | Phase::Idle => self.commit_replacement(generation),
            Phase::Ending => {}
        }
    }

    /// Checks whether workers have exited. All workers are checked, because one SIGCHLD may stand for several
    /// processes, signal(7).
    fn reap(&mut self) {
        let mut index = 0;
        while index < self.workers.len() {
            match self.workers[index].reap() {
                Some(status) => {
                    let mut worker = self.workers.remove(index);
                    // Its last messages may still be in the channel.
                    while let Heard::Message(message) = worker.hear() {
                        if let ToMaster::Failed(message) = message {
                            self.cycle.log.emerg(message);
                        }
                    }
                    self.handle_end(&worker, status);
                }
                None => index += 1,
            }
        }
    }

    /// Handles the end of a worker process. The next step depends on whether the end was expected.
    fn handle_end(&mut self, worker: &WorkerProcess, status: ExitStatus) {
        let (pid, how) = (worker.pid(), describe(status));
        self.acme.handle_end_of(pid);
        self.signer.note_unused();
        let expected = matches!(worker.stage, Stage::Leaving { .. });
        let line = format!("worker process {pid} {how}");
        if status.success() {
            self.cycle.log.notice(line);
        } else {
            self.cycle.log.alert(line);
        }
        if expected {
            return;
        }
        if self.phase == Phase::Starting {
            self.failed = true;
            self.phase = Phase::Ending;
            return;
        }
        self.respawned += 1;
        let was_ready = worker.stage == Stage::Serving;
        if !self.drop_pending_of(worker) && !was_ready {
            self.handle_fault(&how);
        }
    }

    /// Handles a worker that did not become ready. The next worker starts immediately, unless this happens repeatedly. A
    /// worker that was ready is always replaced immediately, because clients cannot be served during a delay.
    fn handle_fault(&mut self, fault: &str) {
        if self.phase == Phase::Starting {
            self.failed = true;
            self.phase = Phase::Ending;
            return;
        }
        let delay = self.respawn.handle_death(fault, Instant::now());
        if !delay.is_zero() {
            let ms = delay.as_millis();
            self.cycle
                .log
                .alert(format_args!("workers cannot start (\"{fault}\"), the next attempt is in {ms} ms"));
            self.start_at = Some(Instant::now() + delay);
        }
    }

    /// Kills workers that exceed their time limit. SIGKILL is sent once; the end is handled like any other.
    fn kill_overdue(&mut self) {
        let now = Instant::now();
        let stuck = self.take_stuck_pending(now);
        for worker in &mut self.workers {
            let is_late = worker.kill_at().is_some_and(|at| at <= now);
            let what = match worker.stage {
                Stage::Leaving { .. } if is_late => "did not exit in time",
                Stage::Starting { .. } if is_late => "did not start in time",
                Stage::Serving if stuck == Some(worker.pid()) => {
                    "did not apply the new configuration in time"
                }
                _ => match worker.take_channel_fault(now) {
                    Some(fault) => fault,
                    None => continue,
                },
            };
            self.cycle.log.alert(format_args!("worker process {} {what}, killing the process", worker.pid()));
            worker.kill();
        }
    }
}

/// Sends a change to all live workers; to those without private keys with a name instead of the key, which the signing process
/// gets. Returns the process IDs of workers that will confirm it.
fn send_all(
    workers: &mut [WorkerProcess],
    signer: &mut Signer,
    number: u64,
    change: &AcmeChange,
) -> Vec<u32> {
    let message = ToWorker::Acme(number, change.clone());
    let without_key = workers.iter().any(|worker| worker.keys.is_some()).then(|| {
        let (change, keys) = change.without_key();
        signer.send_keys(keys, false);
        ToWorker::Acme(number, change)
    });
    // A worker that is ending accepts no more connections.
    let stay = |worker: &&mut WorkerProcess| !matches!(worker.stage, Stage::Leaving { .. });
    let mut told = Vec::new();
    for worker in workers.iter_mut().filter(stay) {
        let message = without_key.as_ref().filter(|_| worker.keys.is_some()).unwrap_or(&message);
        worker.send(message, Vec::new());
        told.push(worker.pid());
    }
    told
}

/// Returns the entry for poll(2) of a control channel. The second value tells whether it has data that can be sent.
fn polled_channel((channel, is_sending): (BorrowedFd<'_>, bool)) -> PollFd<'_> {
    let sending = if is_sending { PollFlags::OUT } else { PollFlags::empty() };
    PollFd::from_borrowed_fd(channel, PollFlags::IN | sending)
}

/// Logs the version and the system, at the start.
fn greet(log: &Log) {
    log.notice(concat!("ringroad/", env!("CARGO_PKG_VERSION")));
    let system = rustix::system::uname();
    let (name, release) = (system.sysname().to_string_lossy(), system.release().to_string_lossy());
    log.notice(format_args!("OS: {name} {release}"));
    log.notice(descriptors_line());
}

/// Logs nginx's line about the event method, and the reason why a less preferred engine is used.
fn log_method(log: &Log, method: &str, remark: Option<&str>) {
    log.notice(format_args!("using the \"{method}\" event method"));
    if let Some(remark) = remark {
        log.write(Level::Warn, remark);
    }
}

/// Logs that the last request under a replaced configuration has ended, if the replacement was in place. Scripts wait for the
/// end of this line, which nginx logs when a worker process exits.
fn log_retired(log: &Log, generation: u64, pid: u32) {
    log.notice(format_args!("configuration {generation} of worker process {pid} exited with code 0"));
}

/// Logs a line for each address that `old` did not listen on. Port 0 is replaced by the port that the kernel chose.
fn announce(cycle: &Cycle, old: Option<&Cycle>) {
    for address in cycle.new_addresses(old) {
        cycle.log.notice(format_args!("listening on {address}"));
    }
}

/// Writes the pid file of the configuration, if configured.
fn write_pid_file(request: &Request, cycle: &Cycle) -> Result<Option<PidFile>, String> {
    let Some(path) = &cycle.site.settings.pid else { return Ok(None) };
    request.places.create_log_directory(path);
    PidFile::write(path).map(Some).map_err(|message| message + &adapter::place_of_file(request, path))
}

/// Replaces the pid file if its path has changed. If the new file cannot be written, the old file remains.
fn move_pid_file(file: &mut Option<PidFile>, request: &Request, cycle: &Cycle) {
    if file.as_ref().map(PidFile::path) == cycle.site.settings.pid.as_deref() {
        return;
    }
    match write_pid_file(request, cycle) {
        Ok(fresh) => {
            if let Some(old) = std::mem::replace(file, fresh) {
                old.remove(&cycle.log);
            }
        }
        Err(message) => cycle.log.emerg(message),
    }
}

/// Prints URLs for a browser, if the server was started manually without a configuration.
fn print_urls(cycle: &Cycle) {
    for listener in &cycle.listeners.0 {
        if let ListenAddr::Tcp(address) = listener.actual {
            let is_tls = cycle.site.settings.tls_listens.contains(&listener.spec.addr);
            let scheme = if is_tls { "https" } else { "http" };
            let line = format!("{scheme}://{}/\n", reachable(address));
            let _ = rustix::io::write(rustix::stdio::stdout(), line.as_bytes());
        }
    }
}
