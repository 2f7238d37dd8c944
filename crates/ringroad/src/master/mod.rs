//! The master process: opens privileged resources, starts the worker, obeys signals.
//!
//! It never reads a byte from the network and has one thread, one `poll` and no handler. [`run`] starts a server
//! from a configuration that was read; the loop then lives in [`Master`]:
//!
//! ```text
//! signal or message --> handle_* changes the plan --> keep_serving starts what is missing --> poll
//! ```
//!
//! ```text
//! Starting --first worker ready--> Running <--HUP, worker ready-- Idle
//!    |                               |  +-------- WINCH ----------> ^
//!    | first worker failed           |                              |
//!    +------------> Ending <--- TERM, INT, QUIT --------------------+
//! ```
//! A reload is in `reload`, a change of the binary in `upgrade`, systemd in `supervise`, a worker as a process in `process`, one configuration with its sockets in `cycle`,
//! the server without a master in `single`, what operators ask for in `operators`,
//! certificates near their end in `upkeep`.

mod acme;
mod cycle;
mod daemon;
mod operators;
mod process;
mod reload;
mod respawn;
mod single;
mod supervise;
mod upgrade;
mod upkeep;

use std::process::{ExitCode, ExitStatus};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

pub(crate) use cycle::{Cycle, open_logs, resolve_user};
pub(crate) use daemon::{is_daemon, launch};
pub(crate) use upkeep::{Renew, Renewal};

use crate::admin::desk::Desk;
use crate::control::acme::AcmeChange;
use crate::control::message::{ToMaster, ToWorker};
use crate::inherit;
use crate::limits::descriptors_line;
use crate::listen::{ListenAddr, errno_text, reachable};
use crate::log::{Level, Log, let_stderr_append};
use crate::pidfile::PidFile;
use crate::places::Request;
use crate::signals::{Arrived, Signals, timeout_until};
use crate::site::{self, Site};
use crate::systemd::Notifier;
use acme::Acme;
use daemon::Readiness;
use process::{Heard, Stage, WorkerProcess, describe};
use reload::Pending;
use respawn::Respawn;
use supervise::Pulse;
use upgrade::{NewBinary, Predecessor};
use upkeep::Upkeep;

/// How long a worker may take for a fast stop before it is killed. nginx gives its workers a second; ours may save the
/// index of a cache for three, and wait for a disk for two.
const STOP_TIME: Duration = Duration::from_secs(6);

/// How long beyond `worker_shutdown_timeout` a worker may take before it is killed.
const QUIT_GRACE: Duration = Duration::from_secs(5);

/// Most messages of a worker at a time. It sends a handful for each reload. One that never stops must not keep the
/// master from its signals.
const MESSAGES_MAX: usize = 1000;

/// The state of the master.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The first worker is not ready yet; its failure is the end.
    Starting,
    /// One worker serves, always.
    Running,
    /// After SIGWINCH: no worker until the next reload.
    Idle,
    /// Every worker is to end, and the master with the last one.
    Ending,
}

/// The master's state.
#[derive(Debug)]
struct Master {
    /// The source to read again at a reload.
    request: Request,
    /// The configuration in force.
    cycle: Cycle,
    /// The next configuration, while it is being brought into force.
    pending: Option<Pending>,
    /// A reload was requested while another one was in flight.
    reload_again: bool,
    /// Signals about workers that arrived before the first worker was ready. They count from then on.
    postponed: Vec<Signal>,
    /// The number of the newest configuration, in force or not.
    generation: u64,
    /// Addresses of names, as a worker sent them last: a name server that fails must not leave the next worker without.
    addresses: String,
    /// All that live: one that serves, one that starts during a reload, any number that finish.
    workers: Vec<WorkerProcess>,
    phase: Phase,
    /// The process that obtains certificates, and its results.
    acme: Acme,
    /// Certificates near their end.
    upkeep: Upkeep,
    /// When the graceful end begins, while clients are sent elsewhere (`shutdown_delay`).
    quit_at: Option<Instant>,
    /// Where operators ask.
    desk: Desk,
    /// How often workers died lately before they were ready.
    respawn: Respawn,
    /// Workers that have died unasked since the start.
    respawned: u64,
    /// No worker is started before this.
    start_at: Option<Instant>,
    pid_file: Option<PidFile>,
    /// No shell waits for the end of this process: SIGWINCH and SIGUSR2 mean something only then.
    is_detached: bool,
    /// The new binary, while it and this one run.
    new_binary: Option<NewBinary>,
    /// The old master while it runs, if this is its new binary.
    predecessor: Option<Predecessor>,
    notifier: Notifier,
    /// The configuration that systemd knows to be in force; 0 is none.
    told_generation: u64,
    pulse: Pulse,
    /// A terminal waits for the start of the daemon.
    readiness: Option<Readiness>,
    signals: Signals,
    /// The exit status will show it.
    failed: bool,
}

/// Serves a configuration until a signal ends it. `log` is where start-up errors go; it is closed then, so that
/// no file is held open that the configuration does not name.
///
/// `renew` is called while the server runs, for certificates that the command itself has made.
pub(crate) fn run(request: Request, site: Site, log: Log, renew: Option<Renew>) -> ExitCode {
    let_stderr_append();
    let (daemon, has_master) = (is_daemon(), site.settings.master_process);
    let is_new_binary = inherit::is_new_binary();
    let inherited = inherit::take(daemon, &log);
    let Ok(cycle) = Cycle::open(&request, site, 1, Some(&inherited.listeners), &log) else {
        return ExitCode::FAILURE;
    };
    inherited.close_unused(&cycle.listeners, &log);
    let mut desk = Desk::default();
    if let Err(message) = desk.listen(cycle.site.settings.admin_socket.as_deref(), is_new_binary) {
        log.emerg(message);
        cycle.listeners.forget(None);
        return ExitCode::FAILURE;
    }
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
        return single::run(request, cycle, desk, signals, (readiness, notifier), upkeep);
    }
    let mut master = Master {
        request,
        cycle,
        pending: None,
        reload_again: false,
        postponed: Vec::new(),
        generation: 1,
        addresses: String::new(),
        workers: Vec::new(),
        phase: Phase::Starting,
        acme: Acme::default(),
        upkeep,
        quit_at: None,
        desk,
        respawn: Respawn::default(),
        respawned: 0,
        start_at: None,
        pid_file: None,
        is_detached: daemon || is_new_binary || notifier.is_supervised(),
        new_binary: None,
        predecessor: is_new_binary.then(Predecessor::parent),
        notifier,
        told_generation: 0,
        pulse: Pulse::default(),
        readiness,
        signals,
        failed: false,
    };
    // Until the first worker serves, messages go to the terminal too. Standard error of a new binary may be the log of
    // the old one.
    master.cycle.log = master.cycle.log.clone().with_echo(!is_new_binary);
    master.serve()
}

impl Master {
    /// The loop. It ends when everything is to end and the last worker is gone.
    fn serve(&mut self) -> ExitCode {
        greet(&self.cycle.log);
        self.cycle.log.notice("start worker processes");
        loop {
            self.keep_serving();
            self.keep_acme();
            self.keep_certificates();
            if self.phase == Phase::Ending && self.workers.is_empty() {
                break;
            }
            self.wait();
            self.serve_operators();
            // A reload handles earlier messages first.
            self.handle_messages();
            while let Some(arrived) = self.signals.next() {
                self.handle_signal(arrived);
            }
            // Words before deaths: the last message of a worker has the reason of its end.
            self.handle_messages();
            self.reap();
            self.reap_new_binary();
            self.look_at_predecessor();
            self.kill_late_ones();
            self.notify();
            if self.quit_at.take_if(|at| *at <= Instant::now()).is_some() {
                self.quit();
            }
        }
        self.forget_listeners();
        if let Some(file) = self.pid_file.take() {
            file.remove(&self.cycle.log);
        }
        self.cycle.log.notice("exit");
        if self.failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
    }

    /// Starts a worker if none serves or is about to.
    fn keep_serving(&mut self) {
        let wanted = matches!(self.phase, Phase::Starting | Phase::Running);
        let there = self.workers.iter().any(|worker| !matches!(worker.stage, Stage::Leaving { .. }));
        // Forgotten as soon as it has passed, else it would stay the next deadline while a reload starts a worker.
        self.start_at.take_if(|at| *at <= Instant::now());
        if !wanted || there || self.start_at.is_some() {
            return;
        }
        let acme = self.acme.changes(site::issuers(&self.cycle.site.config));
        match WorkerProcess::start(&self.cycle, &self.addresses, self.respawned, acme) {
            Ok(mut worker) => {
                operators::brief(&self.desk, &mut worker);
                self.cycle.log.notice(format_args!("start worker process {}", worker.pid()));
                self.workers.push(worker);
            }
            Err(message) => {
                self.cycle.log.alert(&message);
                self.handle_fault(&message);
            }
        }
    }

    /// Hears the process that obtains certificates. There is one while workers serve, and none that a start waits for.
    fn keep_acme(&mut self) {
        let Master { acme, workers, cycle, phase, new_binary, .. } = self;
        match phase {
            Phase::Starting => return,
            Phase::Ending => return acme.stop(),
            // That of the new binary orders certificates from now on.
            Phase::Running | Phase::Idle if new_binary.is_some() => return acme.stop(),
            Phase::Running | Phase::Idle => {}
        }
        acme.hear(&cycle.log, |number, change| tell_all(workers, number, change));
        acme.reap(&cycle.log);
        for change in acme.keep(cycle) {
            let number = acme.next_number();
            tell_all(workers, number, &change);
        }
    }

    /// Checks the certificates of a server that serves, and brings renewed ones into force.
    fn keep_certificates(&mut self) {
        let log = self.cycle.log.clone();
        if self.minds_certificates() && self.upkeep.check(&self.cycle.site, &log) {
            self.reload();
        }
    }

    /// Not while it starts or ends, and not beside a new binary, which does it.
    fn minds_certificates(&self) -> bool {
        self.phase == Phase::Running && self.new_binary.is_none() && self.quit_at.is_none()
    }

    /// Sleeps until a signal, a message, room to send, or the next deadline.
    fn wait(&self) {
        let mut polled = vec![PollFd::new(&self.signals, PollFlags::IN)];
        for (channel, is_sending) in self.workers.iter().filter_map(WorkerProcess::channel) {
            let sending = if is_sending { PollFlags::OUT } else { PollFlags::empty() };
            polled.push(PollFd::from_borrowed_fd(channel, PollFlags::IN | sending));
        }
        if let Some((channel, is_sending)) = self.acme.channel() {
            let sending = if is_sending { PollFlags::OUT } else { PollFlags::empty() };
            polled.push(PollFd::from_borrowed_fd(channel, PollFlags::IN | sending));
        }
        polled.extend(self.desk.polled().map(|asks| PollFd::from_borrowed_fd(asks, PollFlags::IN)));
        let before = self.predecessor.as_ref().and_then(Predecessor::end);
        polled.extend(before.map(|end| PollFd::from_borrowed_fd(end, PollFlags::IN)));
        let timeout = self.next_deadline().map(timeout_until);
        match poll(&mut polled, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => self.cycle.log.alert(format_args!("poll() failed ({})", errno_text(errno))),
        }
    }

    /// The earliest moment at which something must be done without an event.
    fn next_deadline(&self) -> Option<Instant> {
        let kills = self.workers.iter().filter_map(|worker| match worker.stage {
            Stage::Leaving { kill_at } => kill_at,
            Stage::Starting { kill_at } => Some(kill_at),
            Stage::Serving => None,
        });
        let others = self.start_at.into_iter().chain(self.quit_at).chain(self.acme.deadline());
        let others = others.chain(self.notifier.ping_at()).chain(self.desk.deadline());
        let others = others.chain(self.minds_certificates().then(|| self.upkeep.deadline()));
        kills.chain(others).chain(self.pending_deadline()).min()
    }

    /// One notice for each signal in nginx's words, then its effect.
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
        if self.phase == Phase::Starting && upgrade::is_postponed(signal) {
            self.postponed.push(signal);
        } else {
            self.obey(signal);
        }
    }

    /// Carries out a signal.
    fn obey(&mut self, signal: Signal) {
        match signal {
            Signal::SIGTERM | Signal::SIGINT => self.end_workers(&ToWorker::Stop, Some(STOP_TIME)),
            Signal::SIGQUIT => self.begin_quit(),
            Signal::SIGHUP if self.phase == Phase::Ending || self.quit_at.is_some() => {}
            Signal::SIGHUP if self.new_binary.is_some() => self.bring_workers_back(),
            Signal::SIGHUP => self.reload(),
            Signal::SIGUSR2 if self.is_detached => self.change_binary(),
            Signal::SIGUSR1 => self.reopen_logs(),
            Signal::SIGWINCH if self.is_detached && self.phase == Phase::Running => {
                self.phase = Phase::Idle;
                // The worker of a reload in flight is dismissed as well. The next reload reads everything again.
                self.abandon_pending();
                self.reload_again = false;
                let limit = self.cycle.site.settings.shutdown_timeout;
                self.dismiss(|_| true, limit);
            }
            _ => {}
        }
    }

    /// Everything ends, fast or with grace.
    fn end_workers(&mut self, message: &ToWorker, time: Option<Duration>) {
        if self.phase != Phase::Ending {
            self.notify_end();
        }
        self.phase = Phase::Ending;
        self.abandon_pending();
        let kill_at = time.map(|time| Instant::now() + time);
        for worker in &mut self.workers {
            worker.tell(message, Vec::new());
            worker.stage = Stage::Leaving { kill_at };
        }
    }

    /// Sends clients elsewhere for `shutdown_delay` before everything ends with grace. A second request does not wait any
    /// longer.
    fn begin_quit(&mut self) {
        let delay = self.cycle.site.settings.shutdown_delay;
        if delay.is_zero() || self.quit_at.take().is_some() || self.phase != Phase::Running {
            return self.quit();
        }
        self.cycle.log.notice(format_args!("readiness checks fail for {} ms", delay.as_millis()));
        // A worker that is to replace the present one would not know of it.
        self.abandon_pending();
        self.quit_at = Some(Instant::now() + delay);
        for worker in &mut self.workers {
            worker.tell(&ToWorker::Leave, Vec::new());
        }
    }

    /// A second request to finish changes nothing; a fast stop may still follow.
    fn quit(&mut self) {
        if self.phase == Phase::Ending {
            return;
        }
        let limit = self.cycle.site.settings.shutdown_timeout;
        self.end_workers(&ToWorker::Quit(limit), limit.map(|limit| limit + QUIT_GRACE));
        // No process accepts any more: a client should be refused, not kept waiting in the queue.
        self.forget_listeners();
        self.cycle.listeners.0.clear();
    }

    /// Tells the workers to finish and end.
    fn dismiss(&mut self, meant: impl Fn(&WorkerProcess) -> bool, limit: Option<Duration>) {
        let kill_at = limit.map(|limit| Instant::now() + limit + QUIT_GRACE);
        let meant =
            |worker: &&mut WorkerProcess| !matches!(worker.stage, Stage::Leaving { .. }) && meant(worker);
        for worker in self.workers.iter_mut().filter(meant) {
            worker.tell(&ToWorker::Quit(limit), Vec::new());
            worker.stage = Stage::Leaving { kill_at };
        }
    }

    /// The worker may not be allowed to open the files: it gets descriptors.
    fn reopen_logs(&mut self) {
        let logs = self.cycle.reopen_logs();
        let (paths, files): (Vec<_>, Vec<_>) = logs.into_iter().unzip();
        self.cycle.log.notice("reopening logs");
        let message = ToWorker::Reopen(paths);
        for worker in &mut self.workers {
            worker.tell(&message, files.clone());
        }
    }

    /// Hears every worker out.
    fn handle_messages(&mut self) {
        // By number: a message may start further workers, which come at the end.
        for index in 0..self.workers.len() {
            self.workers[index].flush();
            let mut count = 0;
            loop {
                let heard = match count {
                    MESSAGES_MAX => {
                        self.workers[index].give_up("control channel: too many messages".to_owned())
                    }
                    _ => self.workers[index].hear(),
                };
                match heard {
                    Heard::Message(message) => self.handle_message(index, message),
                    Heard::Nothing | Heard::Silence => break,
                    Heard::Nonsense(reason) => {
                        let pid = self.workers[index].pid();
                        self.cycle.log.alert(format_args!("worker process {pid}: {reason}, killing it"));
                        break;
                    }
                }
                count += 1;
            }
        }
    }

    /// Messages of a worker that was told to end meanwhile have no effect.
    fn handle_message(&mut self, index: usize, message: ToMaster) {
        match message {
            ToMaster::Ready { method, remark } => {
                let worker = &mut self.workers[index];
                if matches!(worker.stage, Stage::Starting { .. }) {
                    worker.stage = Stage::Serving;
                    let generation = worker.generation;
                    tell_method(&self.cycle.log, &method, remark.as_deref());
                    self.handle_ready(generation);
                }
            }
            // Its end, which follows, decides on the next step.
            ToMaster::Failed(message) => self.cycle.log.emerg(message),
            ToMaster::Reloaded(generation) => self.handle_reloaded(generation, index),
            ToMaster::Pong(number) => {
                let pid = self.workers[index].pid();
                self.handle_pong(number, pid);
            }
            ToMaster::AcmeDone(number) => self.acme.handle_done(number, self.workers[index].pid()),
            ToMaster::ReloadFailed(generation, message) => self.handle_reload_failed(generation, &message),
            ToMaster::Retired(generation) => {
                let pid = self.workers[index].pid();
                tell_retired(&self.cycle.log, generation, pid);
            }
            // One that leaves knows less than its successor.
            ToMaster::Addresses(addresses) if self.workers[index].stage == Stage::Serving => {
                self.addresses = addresses;
            }
            ToMaster::Addresses(_) => {}
        }
    }

    /// A worker accepts: the first one ends the start, a later one may end a reload.
    fn handle_ready(&mut self, generation: u64) {
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
                    readiness.tell(&self.cycle.log);
                } else if self.predecessor.is_some() && self.cycle.site.settings.daemon {
                    daemon::leave_stderr(&self.cycle.log);
                }
                if self.request.text.is_some() {
                    tell_urls(&self.cycle);
                }
                for signal in std::mem::take(&mut self.postponed) {
                    self.obey(signal);
                }
            }
            // One that was started for a dead one.
            Phase::Running if self.quit_at.is_some() => {
                for worker in &mut self.workers {
                    worker.tell(&ToWorker::Leave, Vec::new());
                }
            }
            Phase::Running | Phase::Idle => self.commit_replacement(generation),
            Phase::Ending => {}
        }
    }

    /// Looks at each worker: one SIGCHLD may stand for several deaths, signal(7).
    fn reap(&mut self) {
        let mut index = 0;
        while index < self.workers.len() {
            match self.workers[index].reap() {
                Some(status) => {
                    let mut worker = self.workers.remove(index);
                    // Its last words may still be in the channel.
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

    /// A process is gone. The next step depends on whether it was told to end.
    fn handle_end(&mut self, worker: &WorkerProcess, status: ExitStatus) {
        let (pid, how) = (worker.pid(), describe(status));
        self.acme.handle_end_of(pid);
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

    /// A worker did not become ready for this reason: the next one starts at once unless this happens repeatedly. A worker
    /// that was ready is replaced at once, however often it dies: a delay would lock out clients that the next one serves.
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
                .alert(format_args!("workers cannot start (\"{fault}\"), the next one is tried in {ms} ms"));
            self.start_at = Some(Instant::now() + delay);
        }
    }

    /// SIGKILL is sent once; the reaping follows as for any other end.
    fn kill_late_ones(&mut self) {
        let now = Instant::now();
        let stuck = self.take_stuck_pending(now);
        for worker in &mut self.workers {
            let what = match worker.stage {
                Stage::Leaving { kill_at: Some(at) } if at <= now => "does not end",
                Stage::Starting { kill_at } if kill_at <= now => "does not start",
                Stage::Serving if stuck == Some(worker.pid()) => "does not take the new configuration",
                _ => continue,
            };
            self.cycle.log.alert(format_args!("worker process {} {what}, killing it", worker.pid()));
            worker.kill();
            match &mut worker.stage {
                Stage::Leaving { kill_at } => *kill_at = None,
                // Its end counts as a fault; until then there is nothing to be repeated.
                Stage::Starting { kill_at } => *kill_at = now + process::ANSWER_TIME,
                Stage::Serving => {}
            }
        }
    }
}

/// Sends a change to all live workers, and returns them.
fn tell_all(workers: &mut [WorkerProcess], number: u64, change: &AcmeChange) -> Vec<u32> {
    let message = ToWorker::Acme(number, change.clone());
    // One that leaves accepts no more connections.
    let stay = |worker: &&mut WorkerProcess| !matches!(worker.stage, Stage::Leaving { .. });
    let mut told = Vec::new();
    for worker in workers.iter_mut().filter(stay) {
        worker.tell(&message, Vec::new());
        told.push(worker.pid());
    }
    told
}

/// The lines at the start of a log.
fn greet(log: &Log) {
    log.notice(concat!("ringroad/", env!("CARGO_PKG_VERSION")));
    let system = rustix::system::uname();
    let (name, release) = (system.sysname().to_string_lossy(), system.release().to_string_lossy());
    log.notice(format_args!("OS: {name} {release}"));
    log.notice(descriptors_line());
}

/// The line that nginx writes at this place, and why the engine is not the best one.
fn tell_method(log: &Log, method: &str, remark: Option<&str>) {
    log.notice(format_args!("using the \"{method}\" event method"));
    if let Some(remark) = remark {
        log.write(Level::Warn, remark);
    }
}

/// The last request under a configuration that was replaced in place has ended. Scripts wait for the words at the
/// end of this line, which a retired process would have caused.
fn tell_retired(log: &Log, generation: u64, pid: u32) {
    log.notice(format_args!("configuration {generation} of worker process {pid} exited with code 0"));
}

/// One line for each address that `old` did not listen on; port 0 shows as the port chosen by the kernel.
fn announce(cycle: &Cycle, old: Option<&Cycle>) {
    for address in cycle.new_addresses(old) {
        cycle.log.notice(format_args!("listening on {address}"));
    }
}

/// Writes the pid file that the configuration names, if it names one.
fn write_pid_file(request: &Request, cycle: &Cycle) -> Result<Option<PidFile>, String> {
    let Some(path) = &cycle.site.settings.pid else { return Ok(None) };
    request.places.prepare_folder_of(path);
    PidFile::write(path).map(Some)
}

/// For a start by hand without a configuration: where to look with a browser.
fn tell_urls(cycle: &Cycle) {
    for listener in &cycle.listeners.0 {
        if let ListenAddr::Inet(address) = listener.actual {
            let is_tls = cycle.site.settings.tls_listens.contains(&listener.options.address);
            let scheme = if is_tls { "https" } else { "http" };
            let line = format!("{scheme}://{}/\n", reachable(address));
            let _ = rustix::io::write(rustix::stdio::stdout(), line.as_bytes());
        }
    }
}
