//! Adapter between crates `site` and `server`, and the code that controls processes.
//!
//! It converts levels, limits (per thread in the server, per process here), and errors of the configuration language.
//! Listening sockets and log targets have the types of the server in both crates.
//!
//! The server has no default error log, because the command line determines it; [`load`] passes it as a directive that
//! applies if the configuration has none. Master and worker load the same text through this module, with the same result.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use conf::MapLoader;
use io::engine::{Caps, NetKind};
use io::probe::Probe;
use server::Sending;
use server::process::StartError;
use site::allowed_paths::{AllowedPath, AllowedPaths};
use site::config::Loaded;
use site::needs::Access;
use site::settings::events::Method;
use site::settings::main::Sandbox;

pub(crate) use server::acme::issuers;
pub(crate) use server::directives as table;
pub(crate) use server::process::{ProcessKey, Resources, Steering};
pub(crate) use server::telemetry::shared::set_respawned;
pub(crate) use server::telemetry::watch::{WATCHERS_MAX, Watcher};
pub(crate) use server::{Course, Event, Note, Passed, Phase, Question};
pub(crate) use server::{
    DirectiveEntry, certificate_warnings, configure_arguments, counters, directive_entries, directive_help,
    directive_names, missing_names, reference, state_files,
};
pub(crate) use server::{EntryQuery, Filter};
pub(crate) use site::config::Config;
pub(crate) use site::expected_refusals::{ExpectedRefusals, expected_refusals};
pub(crate) use site::ids::LocationId;
pub(crate) use site::route::{Candidate, FoundLocation, chain_of, covers, find_location, route};

use super::{Files, NotReloaded, Problem, Refused, Settings, Site, strict};
use crate::contain::contain;
use crate::control::acme::AcmeChange;
use crate::limits::ProcessLimits;
use crate::listen::ListenSpec;
use crate::loader::DiskLoader;
use crate::log::{Level, place_of};
use crate::paths::Request;
use crate::reloads::Reloads;

/// The level of an `error_log` directive without a level, and of the default error log.
const DEFAULT_LEVEL: &str = "error";

/// Sets the numbers of reloads that the pages of this process show.
pub(crate) fn publish_reloads(reloads: Reloads) {
    let Reloads { by_outcome, is_last_refused } = reloads;
    server::telemetry::reloads::Reloads { by_outcome, is_last_refused }.publish();
}

/// Reads a configuration and all files that it includes.
pub(crate) fn load(request: &Request, files: Files<'_>) -> Result<Site, Refused> {
    let memory: Option<MapLoader> = match files {
        Files::Disk => None,
        Files::Memory(files) => Some(files.iter().cloned().collect()),
    };
    let disk = DiskLoader::new(request);
    let loader: &dyn conf::Loader = match &memory {
        Some(memory) => memory,
        None => &disk,
    };
    // Included names are relative to the directory of the main file, all other paths to the prefix.
    let source = source_of(request).with_defaults(default_error_log(request.places.error_log.as_deref()));
    // A reload reads the file in the process that must not end.
    let read = || contain("the reading of the configuration", || load_text(&source, request, loader));
    let (loaded, mut keys) = tls::apart::collect(read);
    let loaded = loaded
        .unwrap_or_else(|fault| Err(Refused { level: Level::Alert, message: fault, syntax_is_ok: false }))?;
    let settings = settings(&loaded, request);
    // A worker, which reads from memory, has names instead of keys.
    if settings.signs_apart && memory.is_none() {
        strict::check(&source, loader, &settings)?;
        strict::retain_keys_of_files(&mut keys, &loaded.config);
    } else {
        keys.clear();
    }
    let files = loaded.sources.iter().map(|file| (file.path.clone(), file.text.to_vec())).collect();
    let data = loaded.config.data_files().map(|(path, bytes)| (path.to_owned(), bytes.to_vec())).collect();
    let warnings = loaded.warnings.iter().map(|warning| (level_of(warning), warning.to_string())).collect();
    Ok(Site { config: loaded.config, settings, files, data, keys: keys.into(), warnings })
}

fn source_of(request: &Request) -> conf::Source {
    conf::Source::new(&request.main).with_globals(&request.globals).with_origin(request.origin())
}

/// Returns all errors of a configuration that [`load`] rejects, as far as parsing can continue after an error.
pub(crate) fn problems(request: &Request) -> Vec<Problem> {
    let source = source_of(request);
    let found = server::examine(&source, &request.places.prefix, &DiskLoader::new(request));
    let problem = |(index, error): (usize, conf::Error)| Problem {
        level: level_of(&error),
        message: error.to_string(),
        excerpt: if index < EXCERPTS_MAX { conf::excerpt(&error, &found.sources) } else { None },
        error,
    };
    found.errors.into_iter().enumerate().map(problem).collect()
}

/// Returns the position of the directive that names a file, for a message about this file: ` in FILE:LINE`, or nothing if
/// the file is a default.
pub(crate) fn place_of_file(request: &Request, file: &Path) -> String {
    let source = source_of(request);
    let Ok(tree) = conf::parse(&source, &DiskLoader::new(request)) else { return String::new() };
    let names_it = |word: &conf::Word| request.places.prefix.join(&word.text) == file;
    let mut place = None;
    conf::visit(&tree, table(), &mut |visit| {
        if visit.statement.args.iter().any(names_it) {
            place.get_or_insert(visit.statement.span());
        }
    });
    place_of(place)
}

/// Returns the position of the first directive with this name and these arguments, for the end of a message; nothing if there is
/// none.
pub(crate) fn place_of_directive(request: &Request, matches: impl Fn(&str, &[&str]) -> bool) -> String {
    let source = source_of(request);
    let Ok(tree) = conf::parse(&source, &DiskLoader::new(request)) else { return String::new() };
    let mut position = None;
    conf::visit(&tree, table(), &mut |visit| {
        let args: Vec<&str> = visit.statement.args.iter().map(|word| word.text.as_str()).collect();
        if matches(visit.statement.name.text.as_str(), &args) {
            position.get_or_insert(visit.statement.span());
        }
    });
    place_of(position)
}

/// Maximum number of problems that are shown with their line. The file is read again for each of them, and a
/// configuration may have thousands.
const EXCERPTS_MAX: usize = 200;

/// Loads a text, and converts an error to the type of this crate.
fn load_text(source: &conf::Source, request: &Request, loader: &dyn conf::Loader) -> Result<Loaded, Refused> {
    server::load(source, &request.places.prefix, loader).map_err(|error| Refused {
        level: level_of(&error),
        message: error.to_string(),
        // Except for unreadable files, an error without a position concerns the complete configuration, like a missing
        // block.
        syntax_is_ok: error.span().is_none() && matches!(error.kind(), conf::ErrorKind::Message(_)),
    })
}

/// The files of a configuration, to be read again: from the disk, or those that a server has read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reread<'a> {
    pub(crate) request: &'a Request,
    pub(crate) memory: Option<&'a [(PathBuf, Vec<u8>)]>,
}

/// Returns an `error_log` directive for the text of `-g`.
fn default_error_log(path: Option<&Path>) -> String {
    match path {
        None => format!("error_log stderr {DEFAULT_LEVEL};"),
        Some(path) => {
            let quoted = path.display().to_string().replace('\\', "\\\\").replace('"', "\\\"");
            format!("error_log \"{quoted}\" {DEFAULT_LEVEL};")
        }
    }
}

/// Converts a level of crate `conf`, which has three levels.
fn level_of(error: &conf::Error) -> Level {
    match error.level() {
        conf::Level::Notice => Level::Notice,
        conf::Level::Warn => Level::Warn,
        conf::Level::Emerg => Level::Emerg,
    }
}

/// Extracts the settings for the master, with limits for the complete process.
fn settings(loaded: &Loaded, request: &Request) -> Settings {
    let config = &loaded.config;
    let main = config.main();
    let threads = u32::try_from(main.workers.count()).unwrap_or(u32::MAX);
    let each_thread = u64::from(threads);
    // The text of `ringroad serve` is not in a file.
    let is_in_file = request.text.is_none();
    let listen = |spec: &ListenSpec| ListenSpec {
        position: spec.position.clone().filter(|_| is_in_file),
        ..spec.clone()
    };
    Settings {
        user: main.user.clone(),
        threads,
        daemon: main.daemon,
        master_process: main.master_process,
        signs_apart: main.sandbox == Sandbox::Strict,
        // If the command line disables the pid file, as `serve` does, the configuration's default is ignored.
        pid: request.places.pid.is_some().then(|| main.pid.clone()),
        limits: ProcessLimits {
            // All threads share one descriptor table.
            descriptors: main.worker_rlimit_nofile.map(|count| count.saturating_mul(each_thread)),
            core_bytes: main.worker_rlimit_core,
            priority: (main.worker_priority != 0).then_some(main.worker_priority),
            directory: main.working_directory.clone(),
        },
        admin_socket: main.admin_socket.clone(),
        shutdown_delay: main.shutdown_delay,
        // Zero means no limit, as in nginx.
        shutdown_timeout: main.worker_shutdown_timeout.filter(|time| !time.is_zero()),
        env: main.env.clone(),
        connections: config.events().worker_connections,
        listens: config.listens().map(listen).collect(),
        tls_listens: config.tls_listens().map(|spec| spec.addr.clone()).collect(),
        log_files: config.log_files(),
        // `serve` creates no directories in the served directory of the user.
        temp_directories: if request.places.pid.is_some() { config.temp_directories() } else { Vec::new() },
        error_log: main.error_log.targets.items().to_vec(),
    }
}

/// Maximum number of log lines about the changes of a reload.
const CHANGES_MAX: usize = 100;

/// Returns the differences between two configurations, one line per directive, with its position.
pub(crate) fn changes(old: &Site, new: &Site, request: &Request) -> Vec<String> {
    let source = source_of(request);
    let parse = |site: &Site| {
        let loader: MapLoader = site.files.iter().cloned().collect();
        conf::parse(&source, &loader).map(|tree| tree.statements).unwrap_or_default()
    };
    let (found, count) = conf::changes(&parse(old), &parse(new), CHANGES_MAX);
    let mut lines: Vec<String> = found.iter().map(ToString::to_string).collect();
    // Of changed other files, such as certificates and databases, only the names are listed. The server itself writes state files, so
    // their content is no change of the configuration.
    let states = state_files(&new.config);
    let known = |path: &PathBuf| old.data.iter().find(|(known, _)| known == path);
    let is_other = |(path, bytes): &&(PathBuf, Vec<u8>)| {
        !states.contains(path) && known(path).is_some_and(|(_, old)| old != bytes)
    };
    let files: Vec<_> = new.data.iter().filter(is_other).collect();
    let left = CHANGES_MAX.saturating_sub(lines.len());
    lines.extend(files.iter().take(left).map(|(path, _)| format!("the content of \"{}\"", path.display())));
    match (count + files.len()).saturating_sub(lines.len()) {
        0 => {}
        more => lines.push(format!("{more} further changes")),
    }
    lines
}

/// For a test of the configuration: returns the start error of `use io_uring` if io_uring is not available.
pub(crate) fn ring_warning(config: &Config) -> Option<String> {
    if config.events().method != Some(Method::Uring) {
        return None;
    }
    let refusal = Probe::run().uring_refusal().cloned()?;
    Some(StartError::NoRing(refusal).to_string())
}

/// Applies a change of a certificate or a challenge in this process.
pub(crate) fn apply(config: &Config, change: &AcmeChange) -> Result<(), String> {
    match change {
        AcmeChange::Install(challenge) => server::acme::install(challenge),
        AcmeChange::Remove(challenge) => {
            server::acme::remove(challenge);
            Ok(())
        }
        AcmeChange::Certificate { id, pem } => server::acme::set_certificate(config, id, pem),
    }
}

/// Returns the secret from which keys of session tickets are derived, for a worker; empty if no server uses tickets.
pub(crate) fn tickets() -> Vec<u8> {
    server::tickets::chain_for_worker().map(|chain| chain.to_bytes()).unwrap_or_default()
}

/// Returns the secret of QUIC for a worker, for servers without `quic_host_key`.
pub(crate) fn quic_secret() -> Vec<u8> {
    server::quic::shared_secret().to_vec()
}

/// Sets this secret in a worker, before an address of QUIC is opened.
pub(crate) fn set_quic_secret(secret: &[u8]) {
    server::quic::set_shared_secret(secret);
}

/// Sets this secret in a worker. Must be called before the configuration is loaded, so that clients can resume sessions
/// of an earlier worker.
pub(crate) fn set_ticket_secret(bytes: &[u8]) {
    if let Some(chain) = server::tickets::Chain::from_bytes(bytes) {
        server::tickets::set_chain(chain);
    }
}

/// Returns whether the sandbox allows to read a file: the directive that allows it, else as an error the one that would. Returns `None`
/// if it is off.
pub(crate) fn sandbox_of(config: &Config, path: &Path) -> Option<Result<String, String>> {
    if config.main.sandbox == Sandbox::Off {
        return None;
    }
    let allowed = AllowedPaths::of(&site::needs::needs(config).paths);
    if let Some(refused) = allowed.refusal(path, Access::Read) {
        let link =
            refused.link.as_ref().map(|link| format!("the symbolic link {} leads out: ", link.display()));
        let (link, directive) = (link.unwrap_or_default(), refused.directive());
        return Some(Err(format!("{link}refused with 403, allowed by \"{directive}\"")));
    }
    Some(Ok(
        match std::fs::canonicalize(path).ok().and_then(|real| allowed.allowing(&real, Access::Read).cloned())
        {
            None => "allowed".to_owned(),
            Some(AllowedPath { directive, position, .. }) => match position {
                Some(span) => format!("allowed by {directive} at {span}"),
                None => format!("allowed by the default of {directive}"),
            },
        },
    ))
}

/// Describes how bodies are transferred in each location on this machine.
pub(crate) fn explain(config: &Config) -> String {
    server::explain(config, &caps(config.events().method))
}

/// Loads the files of a configuration again and runs the course of a request, which has no effects outside of this process.
/// `prepare` is called between the two, to drop privileges that only the reading needs.
pub(crate) fn rehearse(
    files: Reread<'_>,
    question: &Question,
    prepare: impl FnOnce(&Config) -> Result<(), String>,
) -> Result<(Arc<Config>, Course), String> {
    let Reread { request, memory } = files;
    let loaded = match memory {
        Some(memory) => load(request, Files::Memory(memory)),
        None => load(request, Files::Disk),
    };
    let mut config = loaded.map_err(|refused| refused.message)?.config;
    let fresh = Arc::get_mut(&mut config).ok_or("the configuration is in use")?;
    // The plans of its locations note the steps of their handlers.
    fresh.http.traces = true;
    prepare(&config)?;
    let course = server::rehearse(&config, question)?;
    Ok((config, course))
}

/// Returns the default engine for file bodies on this machine.
pub(crate) fn default_movers() -> String {
    server::movers(&Sending::default(), &caps(None))
}

/// Returns the engine for the body of a file of this size in a location.
pub(crate) fn mover(config: &Config, location: LocationId, bytes: u64) -> String {
    site::route::mover(config, &caps(config.events().method), location, bytes)
}

/// Returns the features of this machine for the method of a configuration.
fn caps(method: Option<Method>) -> Caps {
    let probe = Probe::of_process();
    let net = match method {
        Some(Method::Uring) => NetKind::Uring,
        Some(Method::Epoll) => NetKind::Epoll,
        None => probe.best_net(),
    };
    Caps {
        net,
        disk_ring: probe.uring_refusal().is_none(),
        disk_libaio: probe.libaio(),
        // The existence of pools was checked when the configuration was loaded.
        pools: u8::MAX,
        send_zero_copy: probe.send_zero_copy(),
        recv_buffer_bytes: io::engine::EngineConfig::default().recv_buffer_bytes,
        memory_max: None,
    }
}

/// The server's threads in this process.
#[derive(Debug)]
pub(crate) struct Worker(server::process::Worker);

impl Worker {
    /// Starts the threads, and waits until every thread accepts connections. Must be called after the privileges are
    /// dropped. `addresses` are the resolved names that [`Worker::take_addresses`] of another process returned.
    pub(crate) fn start(
        config: &Arc<Config>,
        resources: Resources,
        addresses: &str,
    ) -> Result<Worker, String> {
        let started = server::process::Worker::start(config, resources, addresses);
        started.map(Worker).map_err(|error| error.to_string())
    }

    /// Returns the name of the network engine, and why it is not io_uring, unless the configuration requests another
    /// one.
    pub(crate) fn method(&self, config: &Config) -> (String, Option<String>) {
        let choice = self.0.engine();
        let refusal = choice.refusal().filter(|_| config.events().method.is_none());
        let remark = refusal.map(|refusal| {
            let (cause, remedy) = (&refusal.cause, &refusal.remedy);
            let disk = default_movers();
            format!(
                "io_uring cannot be used, likely cause: {cause}; remedy: {remedy}; used instead: epoll for the network, and for \
                 files without \"aio\" {disk}"
            )
        });
        (choice.method().to_owned(), remark)
    }

    /// Replaces the configuration in all threads, before the function returns. `resources` has the sockets of new
    /// addresses, and all log files. Returns the number of the new configuration, as [`Worker::take_retired`] returns
    /// it later.
    pub(crate) fn reload(&self, config: &Arc<Config>, resources: Resources) -> Result<u64, NotReloaded> {
        self.0.reload(config, resources).map_err(|error| match error {
            StartError::Descriptor(_) => NotReloaded::Unchanged(error.to_string()),
            _ => NotReloaded::InParts(error.to_string()),
        })
    }

    /// Returns a descriptor that is readable when the results of [`Worker::take_retired`], [`Worker::is_finished`] or
    /// [`Worker::has_panicked`] may have changed.
    pub(crate) fn events(&self) -> BorrowedFd<'_> {
        self.0.events()
    }

    /// Returns the numbers of configurations that no request uses any more; resets [`Worker::events`].
    pub(crate) fn take_retired(&self) -> Vec<u64> {
        self.0.take_retired()
    }

    /// Returns the resolved addresses of names, if they have changed; call it after [`Worker::take_retired`].
    pub(crate) fn take_addresses(&self) -> Option<String> {
        self.0.take_addresses()
    }

    /// Requests an event-loop turn of every thread.
    pub(crate) fn request_turn(&self, number: u64) {
        self.0.request_turn(number);
    }

    /// Returns the number of the newest [`Worker::request_turn`] that all threads have completed; call it after
    /// [`Worker::take_retired`].
    pub(crate) fn take_turned(&self) -> Option<u64> {
        self.0.take_turned()
    }

    /// Switches to other descriptors of the same log files.
    pub(crate) fn reopen(&self, logs: Vec<(PathBuf, OwnedFd)>) -> Result<(), String> {
        self.0.reopen(logs).map_err(|error| error.to_string())
    }

    /// Makes readiness checks fail. Requests are still served.
    pub(crate) fn leave(&self) {
        self.0.leave();
    }

    /// Ends all connections of QUIC, because another worker uses the sockets from now on.
    pub(crate) fn end_quic(&self) {
        self.0.end_quic();
    }

    /// Starts or stops draining at an operator's request: readiness checks fail, and requests are still served.
    pub(crate) fn drain(&self, is_drained: bool) {
        self.0.drain(is_drained);
    }

    /// Adds a watcher of finished requests that match the filter; `None` if too many watchers exist.
    pub(crate) fn watch(&self, filter: Filter) -> Option<Arc<Watcher>> {
        self.0.watch(filter)
    }

    /// Looks up a cache entry in a worker thread, which passes the resulting lines to `report_lines`.
    pub(crate) fn inspect(&self, entry_query: EntryQuery, report_lines: server::process::ReportLines) {
        self.0.inspect(entry_query, report_lines);
    }

    /// Removes a watcher.
    pub(crate) fn unwatch(&self, watcher: &Arc<Watcher>) {
        self.0.unwatch(watcher);
    }

    /// Whether a watcher has got lines since the last call; call it after [`Worker::take_retired`].
    pub(crate) fn take_has_lines(&self) -> bool {
        self.0.take_has_lines()
    }

    /// Begins a graceful shutdown; [`Worker::is_finished`] returns true at its end.
    pub(crate) fn quit(&self, patience: Option<Duration>) {
        self.0.quit(patience);
    }

    /// Begins a fast shutdown.
    pub(crate) fn stop(&self) {
        self.0.stop();
    }

    /// Whether every thread has ended, orderly or by a panic.
    pub(crate) fn is_finished(&self) -> bool {
        self.0.is_finished()
    }

    /// Whether the process must exit because one of its threads has panicked.
    pub(crate) fn has_panicked(&self) -> bool {
        self.0.has_panicked()
    }

    /// Waits for the threads; returns false if one of them panicked.
    pub(crate) fn wait(self) -> bool {
        self.0.wait() == server::process::ExitReason::Ordered
    }
}
