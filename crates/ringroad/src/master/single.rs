//! `master_process off`: master and worker in one process, for development, as in nginx.
//!
//! The start combines the steps of master and worker: limits, threads, a log line for each address, the pid file, and the
//! notification of the process that waits for the daemon. As in nginx, privileges are not dropped. Reloads are only in place,
//! because no master could start a new worker.

use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::time::Instant;

use nix::sys::signal::Signal;
use rustix::event::{PollFd, PollFlags, poll};

use super::acme::Acme;
use super::daemon::Readiness;
use super::operators::{admit, calls, differences, drain, explained};
use super::reload::{log_changes, replacement_reasons};
use super::upgrade::Predecessor;
use super::upkeep::Upkeep;
use super::{Cycle, announce, greet, log_method, log_retired, move_pid_file, polled_channel, write_pid_file};
use crate::adapter::{self, Files, NotReloaded, Resources, Worker};
use crate::admin::feed::Feed;
use crate::admin::server::AdminServer;
use crate::admin::{Call, complete, contained, refuse, send_response};
use crate::control::acme::AcmeChange;
use crate::inherit;
use crate::listen::{Listeners, error_text};
use crate::paths::Request;
use crate::pidfile::PidFile;
use crate::reload_report::WaitingCommands;
use crate::reloads::{ReloadOutcome, Reloads};
use crate::restrict::Plan;
use crate::signals::{Arrived, Signals, timeout_until};
use crate::systemd::Notifier;

/// Serves until a signal ends the process.
pub(super) fn run(
    request: Request,
    mut cycle: Cycle,
    admin_server: AdminServer,
    signals: Signals,
    (readiness, notifier): (Option<Readiness>, Notifier),
    upkeep: Upkeep,
) -> ExitCode {
    cycle.log = cycle.log.with_echo(true);
    greet(&cycle.log);
    for message in cycle.site.settings.limits.apply() {
        cycle.log.alert(message);
    }
    if Plan::of(&cycle.site.config).is_some() {
        cycle.log.notice("sandbox: not applied, because master and worker are one process");
    }
    let acme = Acme::default();
    for change in acme.changes(adapter::issuers(&cycle.site.config)) {
        if let Err(message) = adapter::apply(&cycle.site.config, &change) {
            cycle.log.alert(format_args!("acme: {message}"));
        }
    }
    let worker = match start(&cycle) {
        Ok(worker) => worker,
        Err(message) => {
            cycle.log.emerg(message);
            forget(&cycle.listeners, None);
            return ExitCode::FAILURE;
        }
    };
    let (method, remark) = worker.method(&cycle.site.config);
    log_method(&cycle.log, &method, remark.as_deref());
    announce(&cycle, None);
    let pid_file = match write_pid_file(&request, &cycle) {
        Ok(file) => file,
        Err(message) => {
            cycle.log.emerg(message);
            worker.stop();
            worker.wait();
            forget(&cycle.listeners, None);
            return ExitCode::FAILURE;
        }
    };
    cycle.log = cycle.log.with_echo(false);
    if let Some(readiness) = readiness {
        readiness.notify(&cycle.log);
    }
    let (feed, quit_at, ping) = (Feed::default(), None, 0);
    let reloads = Reloads::default();
    let mut single = Single {
        request,
        cycle,
        worker,
        acme,
        upkeep,
        quit_at,
        is_quitting: false,
        admin_server,
        feed,
        notifier,
        ping,
        reloads,
        waiting: WaitingCommands::default(),
        pid_file,
    };
    single.notifier.ready("serving configuration 1");
    single.serve(&signals);
    single.feed.finish(&single.worker);
    finish(single)
}

/// Removes the files of unix sockets that `kept` does not use, unless the master that executed this process still serves them.
fn forget(listeners: &Listeners, kept: Option<&Listeners>) {
    if !inherit::is_new_binary() || !Predecessor::find().lives() {
        listeners.forget(kept);
    }
}

/// Stops the threads and removes the files of the process.
fn finish(single: Single) -> ExitCode {
    let Single { cycle, worker, mut acme, pid_file, .. } = single;
    acme.stop();
    // If a thread has panicked, the other threads still serve and must be stopped.
    worker.stop();
    let ended_well = worker.wait();
    forget(&cycle.listeners, None);
    if let Some(pid_file) = pid_file {
        pid_file.remove(&cycle.log);
    }
    if !ended_well {
        cycle.log.alert("a worker thread has panicked");
        return ExitCode::FAILURE;
    }
    cycle.log.notice("exit");
    ExitCode::SUCCESS
}

/// State of the process: the counterpart of the master, with the server inside.
#[derive(Debug)]
struct Single {
    /// The source that a reload reads again.
    request: Request,
    /// The configuration in force.
    cycle: Cycle,
    /// The threads that serve the configuration.
    worker: Worker,
    /// The process that obtains certificates, and its results.
    acme: Acme,
    /// Checks certificates that expire soon.
    upkeep: Upkeep,
    /// Time when the graceful shutdown begins; clients move to other servers until then.
    quit_at: Option<Instant>,
    /// Whether the graceful shutdown has begun.
    is_quitting: bool,
    /// The admin socket; `feed` serves its clients that watch requests.
    admin_server: AdminServer,
    feed: Feed,
    notifier: Notifier,
    /// The number of the last ping to the threads.
    ping: u64,
    /// Numbers of reloads since the start.
    reloads: Reloads,
    /// The commands that wait for the result of a reload.
    waiting: WaitingCommands,
    pid_file: Option<PidFile>,
}

impl Single {
    /// Handles signals until the threads have ended.
    fn serve(&mut self, signals: &Signals) {
        while !self.worker.is_finished() && !self.worker.has_panicked() {
            self.keep_acme();
            if !self.is_leaving() && self.upkeep.check(&self.cycle.site, &self.cycle.log) {
                self.reload();
            }
            let events = PollFd::from_borrowed_fd(self.worker.events(), PollFlags::IN);
            let mut polled = vec![PollFd::new(signals, PollFlags::IN), events];
            polled.extend(self.acme.channel().map(polled_channel));
            polled
                .extend(self.admin_server.polled().map(|asks| PollFd::from_borrowed_fd(asks, PollFlags::IN)));
            self.feed.poll(&mut polled);
            // An interruption of poll(2) is handled like any other event.
            let until = self.acme.deadline().into_iter().chain(self.quit_at).chain(self.notifier.ping_at());
            let until = until.chain(self.admin_server.deadline()).chain(self.feed.deadline());
            let until = until.chain((!self.is_leaving()).then(|| self.upkeep.deadline())).min();
            let _ = poll(&mut polled, until.map(timeout_until).as_ref());
            if self.quit_at.take_if(|at| *at <= Instant::now()).is_some() {
                self.quit();
            }
            for number in self.worker.take_retired() {
                // Configuration numbers are 1-based in the worker and in this process.
                log_retired(&self.cycle.log, number, std::process::id());
            }
            self.serve_operators();
            self.feed.turn(&self.worker);
            while let Some(arrived) = signals.next() {
                self.handle_signal(arrived);
            }
            if self.worker.take_turned() == Some(self.ping) {
                self.notifier.ping();
            }
            if self.notifier.take_ping(Instant::now()) {
                self.ping += 1;
                self.worker.request_turn(self.ping);
            }
        }
    }

    /// Handles the requests of operators.
    fn serve_operators(&mut self) {
        for (call, socket) in calls(&mut self.admin_server, &[], &self.cycle.log) {
            let log = self.cycle.log.clone();
            contained(&log, socket, |socket| self.serve_operator(call, socket));
        }
    }

    /// Handles one request of an operator.
    fn serve_operator(&mut self, call: Call, socket: OwnedFd) {
        match call {
            Call::Log(filter) => {
                let admitted = admit(&mut self.admin_server, filter, socket);
                let copy =
                    admitted.and_then(|watching| Some((watching.socket.try_clone().ok()?, watching.filter)));
                if let Some((socket, filter)) = copy {
                    self.feed.add(&self.worker, &filter, socket);
                }
            }
            Call::Diff => send_response(&socket, &differences(&self.cycle, &self.request, None)),
            Call::Explain(query) => {
                if let Some((text, entry_query)) = explained(&self.cycle, &self.request, &query, &socket) {
                    complete(&self.worker, socket, text, entry_query);
                }
            }
            Call::Drain(_) if self.is_leaving() => refuse(&socket, "the server is shutting down"),
            Call::Drain(is_drained) => {
                drain(&mut self.admin_server, is_drained, &self.cycle.log, &socket);
                self.worker.drain(is_drained);
            }
        }
    }

    /// Handles messages of the process that obtains certificates. The server runs in this process, so changes are applied
    /// directly.
    fn keep_acme(&mut self) {
        let Single { acme, cycle, .. } = self;
        let apply = |change: &AcmeChange| {
            if let Err(message) = adapter::apply(&cycle.site.config, change) {
                cycle.log.alert(format_args!("acme: {message}"));
            }
        };
        acme.hear(&cycle.log, |_, change| {
            apply(change);
            Vec::new()
        });
        acme.reap(&cycle.log);
        acme.keep(cycle).iter().for_each(apply);
    }

    /// Handles a signal.
    fn handle_signal(&mut self, Arrived { signal, sender }: Arrived) {
        let (number, name, log) = (signal as i32, signal.as_str(), &self.cycle.log);
        log.notice(format_args!("signal {number} ({name}) received from {sender}"));
        match signal {
            Signal::SIGTERM | Signal::SIGINT => {
                log.notice("exiting");
                self.notifier.stopping();
                self.worker.stop();
            }
            Signal::SIGQUIT => {
                let delay = self.cycle.site.settings.shutdown_delay;
                if delay.is_zero() || self.quit_at.take().is_some() {
                    return self.quit();
                }
                log.notice(format_args!("readiness checks fail for {} ms", delay.as_millis()));
                self.worker.leave();
                self.quit_at = Some(Instant::now() + delay);
            }
            Signal::SIGHUP if self.is_leaving() => {}
            Signal::SIGHUP => {
                self.waiting.add(sender);
                self.notifier.reloading();
                self.reload();
                if self.notifier.is_reloading() {
                    self.notifier.ready(&format!("serving configuration {}", self.cycle.generation));
                }
            }
            Signal::SIGUSR2 => {
                let mut commands = WaitingCommands::default();
                commands.add(sender);
                commands.refuse("\"master_process off\": no master executes a new binary");
            }
            Signal::SIGUSR1 => {
                let logs = self.cycle.reopen_logs();
                let own = |(path, file): (_, std::rc::Rc<OwnedFd>)| Some((path, file.try_clone().ok()?));
                let count = logs.len();
                let own: Vec<_> = logs.into_iter().filter_map(own).collect();
                let is_complete = own.len() == count;
                match self.worker.reopen(own) {
                    Ok(()) if is_complete => self.cycle.log.notice("reopening logs"),
                    Ok(()) => self.cycle.log.alert("some logs are not reopened: too many open files"),
                    Err(message) => self.cycle.log.alert(message),
                }
            }
            _ => {}
        }
    }

    /// Whether a shutdown of the server was requested.
    fn is_leaving(&self) -> bool {
        self.quit_at.is_some() || self.is_quitting
    }

    /// Begins the graceful shutdown. A second call has no effect.
    fn quit(&mut self) {
        if std::mem::replace(&mut self.is_quitting, true) {
            return;
        }
        self.notifier.stopping();
        self.cycle.log.notice("gracefully shutting down");
        self.worker.quit(self.cycle.site.settings.shutdown_timeout);
        // Clients must be refused instead of waiting in the accept queue.
        forget(&self.cycle.listeners, None);
        self.cycle.listeners.0.clear();
    }

    /// Reloads the configuration, and counts the reload.
    fn reload(&mut self) {
        self.waiting.begin();
        self.cycle.log.forget_error();
        let outcome = if self.reload_in_place() { ReloadOutcome::InPlace } else { ReloadOutcome::Refused };
        self.reloads.count(outcome);
        self.waiting.finish(outcome, self.cycle.generation, &self.cycle.log.first_error());
        adapter::publish_reloads(self.reloads);
    }

    /// Reloads the configuration in place; returns whether this succeeded.
    fn reload_in_place(&mut self) -> bool {
        let log = self.cycle.log.clone();
        log.notice("reconfiguring");
        let site = match adapter::load(&self.request, Files::Disk) {
            Ok(site) => site,
            Err(refused) => {
                log.write(refused.level, refused.message);
                return false;
            }
        };
        log_changes(&self.cycle.site, &site, &self.request, &log);
        let reasons = replacement_reasons(&self.cycle, &site, None).join(", ");
        if !reasons.is_empty() {
            // No master exists that could start a new process.
            let message = "the new configuration needs a new process: restart, or use master_process on";
            log.emerg(format_args!("{message} ({reasons})"));
            return false;
        }
        for change in self.acme.changes(adapter::issuers(&site.config)) {
            if let Err(message) = adapter::apply(&site.config, &change) {
                log.alert(format_args!("acme: {message}"));
            }
        }
        let generation = self.cycle.generation + 1;
        let Ok(cycle) = Cycle::open(&self.request, site, generation, Some(&self.cycle.listeners), &log)
        else {
            return false;
        };
        let swapped = resources(&cycle).map_err(NotReloaded::Unchanged).and_then(|mut resources| {
            // The server already has the sockets of the other addresses.
            resources.listeners.retain(|(address, _)| self.cycle.listeners.find(address).is_none());
            self.worker.reload(&cycle.site.config, resources)
        });
        match swapped {
            Ok(_) => {
                announce(&cycle, Some(&self.cycle));
                let old = std::mem::replace(&mut self.cycle, cycle);
                let path = self.cycle.site.settings.admin_socket.as_deref();
                if let Err(message) = self.admin_server.listen(path, false) {
                    self.cycle.log.emerg(message);
                }
                self.cycle.log.take_stderr_from(&old.log);
                forget(&old.listeners, Some(&self.cycle.listeners));
                move_pid_file(&mut self.pid_file, &self.request, &self.cycle);
                let pid = std::process::id();
                self.cycle.log.notice(format_args!(
                    "configuration {} of worker process {pid} was replaced by {generation} in place",
                    old.generation
                ));
                true
            }
            Err(NotReloaded::Unchanged(message) | NotReloaded::InParts(message)) => {
                log.emerg(message);
                forget(&cycle.listeners, Some(&self.cycle.listeners));
                false
            }
        }
    }
}

/// Starts the server with all open sockets and files.
fn start(cycle: &Cycle) -> Result<Worker, String> {
    Worker::start(&cycle.site.config, resources(cycle)?, "")
}

/// Returns duplicates of the descriptors: the server closes its copies when they are no longer needed.
fn resources(cycle: &Cycle) -> Result<Resources, String> {
    cycle.resources().map_err(|error| format!("dup() failed ({})", error_text(&error)))
}
