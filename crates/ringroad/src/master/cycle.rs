//! A configuration with its open resources: sockets, log files, and the user of its workers.
//!
//! nginx calls this a cycle. The master has the cycle in force and, during a reload, also the next cycle.

use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use rustix::process::geteuid;
use site::path_snapshot::PathSnapshot;

use crate::adapter::{self, Resources, Site};
use crate::control::message::Bundle;
use crate::listen::{ListenAddr, Listeners, errno_text, error_text};
use crate::log::{self, Level, Log};
use crate::owned_links;
use crate::paths::{Request, make_passage};
use crate::privilege::{self, Credentials};
use crate::reloads::Reloads;
use crate::restrict;

/// A configuration that is ready to be served.
#[derive(Clone, Debug)]
pub(crate) struct Cycle {
    /// Number of the configuration, 1-based; messages of workers contain it.
    pub(crate) generation: u64,
    pub(crate) site: Site,
    pub(crate) listeners: Listeners,
    /// The `error_log` of the main context.
    pub(crate) log: Log,
    /// The source of the configuration, which the worker parses again.
    request: Request,
    /// The open log files, by the names in the configuration.
    logs: Logs,
    /// The user of the worker; `None` stands for the user of the master.
    credentials: Option<Credentials>,
}

/// Open log files by name.
pub(crate) type Logs = Vec<(PathBuf, Rc<OwnedFd>)>;

/// A resource could not be opened. The reason has been logged.
#[derive(Debug)]
pub(crate) struct NotOpened;

impl Cycle {
    /// Opens all resources. Sockets of `old` are shared.
    pub(crate) fn open(
        request: &Request,
        site: Site,
        generation: u64,
        old: Option<&Listeners>,
        log: &Log,
    ) -> Result<Cycle, NotOpened> {
        let credentials = resolve_user(&site, log)?;
        owned_links::distrust(user_of(credentials.as_ref()), restrict::writable_directories(&site.config));
        let logs = open_logs(&site.settings.log_files, request, log)?;
        create_directories(&site, credentials.as_ref(), &request.places.prefix, log);
        if let Some(warning) = site.settings.connections_warning() {
            log.write(Level::Warn, warning);
        }
        let settings = &site.settings;
        let listeners =
            Listeners::open(&settings.listens, settings.threads, old, log).map_err(|_| NotOpened)?;
        let own_log = Log::of(&settings.error_log, |path| find(&logs, path));
        let request = request.clone();
        Ok(Cycle { generation, site, listeners, log: own_log, request, logs, credentials })
    }

    /// Creates the missing directories for workers again.
    pub(super) fn create_directories(&self) {
        create_directories(&self.site, self.credentials.as_ref(), &self.request.places.prefix, &self.log);
    }

    /// Returns the ID of the worker's user.
    pub(super) fn user(&self) -> u32 {
        user_of(self.credentials.as_ref())
    }

    /// Returns the user of the worker; `None` stands for the user of the master.
    pub(crate) fn credentials(&self) -> Option<&Credentials> {
        self.credentials.as_ref()
    }

    /// Returns the bundle for a worker that uses this bank of the sockets of QUIC, and its descriptors.
    pub(crate) fn bundle(&self, bank: u8) -> (Bundle, Vec<Rc<OwnedFd>>) {
        let listeners = &self.listeners.0;
        let sockets = listeners.iter().flat_map(|listener| listener.bank(bank));
        let files = self.logs.iter().map(|(_, file)| log::of_worker(file));
        let fds = sockets.map(Rc::clone).chain(files).collect();
        let bundle = Bundle {
            generation: self.generation,
            request: self.request.clone(),
            files: self.files_for_workers(),
            credentials: self.credentials.clone(),
            limits: self.site.settings.limits.clone(),
            listeners: listeners
                .iter()
                .map(|listener| (listener.spec.addr.clone(), listener.bank(bank).len() as u64))
                .collect(),
            logs: self.logs.iter().map(|(path, _)| path.clone()).collect(),
            addresses: String::new(),
            respawned: 0,
            reloads: Reloads::default(),
            acme: Vec::new(),
            tickets: Vec::new(),
            quic_secret: Vec::new(),
            signer_sockets: 0,
            bank,
            paths: PathSnapshot::default(),
        };
        (bundle, fds)
    }

    /// Returns all files that a worker reads instead of the disk.
    pub(super) fn files_for_workers(&self) -> Vec<(PathBuf, Vec<u8>)> {
        [self.site.files.as_slice(), &self.present_data()].concat()
    }

    /// Returns the contents of the other files that were read, such as certificates. Files that workers write are read again, so
    /// that a worker that replaces a crashed one continues with its state. If a signing process holds the private keys, their
    /// names replace them, and files with passwords are empty.
    fn present_data(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let mut data = self.site.data.clone();
        if self.site.settings.signs_apart {
            for (path, bytes) in &mut data {
                if let Some(stand_in) = self.site.config.stand_in(path) {
                    *bytes = stand_in.to_vec();
                } else if let Some(text) = tls::apart::without_keys(bytes, &self.site.keys) {
                    *bytes = text;
                }
            }
        }
        for path in adapter::state_files(&self.site.config) {
            let Some(known) = data.iter_mut().find(|(known, _)| *known == path) else { continue };
            match owned_links::read_written(&path) {
                Ok(bytes) => known.1 = bytes,
                // No worker has written it.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => {
                    let reason = error_text(&error);
                    let line = format!(
                        "open() \"{}\" failed ({reason}), using its previous content",
                        path.display()
                    );
                    self.log.write(Level::Error, line);
                }
            }
        }
        data
    }

    /// Returns the resources for a server in this process.
    pub(crate) fn resources(&self) -> std::io::Result<Resources> {
        let mut resources = Resources::default();
        for listener in &self.listeners.0 {
            let sockets: std::io::Result<Vec<OwnedFd>> =
                listener.bank(0).iter().map(|socket| socket.try_clone()).collect();
            resources.listeners.push((listener.spec.addr.clone(), sockets?));
        }
        for (path, file) in &self.logs {
            resources.logs.push((path.clone(), file.try_clone()?));
        }
        Ok(resources)
    }

    /// Lets the sockets accept connections again that a worker has shut down: their state is shared by all processes.
    pub(crate) fn restore_listeners(&mut self) {
        self.listeners.restore(self.site.settings.threads, &self.log);
    }

    /// Reopens the log files after a log rotation, and returns them in the order of the bundle. A file that cannot be opened
    /// keeps its old descriptor. Its directive is not named: the master would parse the configuration for each file.
    pub(crate) fn reopen_logs(&mut self) -> Logs {
        for (path, file) in &mut self.logs {
            match log::open_file(path) {
                Ok(fresh) => *file = Rc::new(fresh),
                Err(errno) => self.log.emerg(open_failed(path, errno, "")),
            }
        }
        let log = Log::of(&self.site.settings.error_log, |path| find(&self.logs, path));
        log.take_stderr_from(&self.log);
        self.log = log;
        self.logs.clone()
    }

    /// Returns the addresses that `old` did not listen on, with their actual ports.
    pub(crate) fn new_addresses(&self, old: Option<&Cycle>) -> Vec<ListenAddr> {
        let known = |address: &ListenAddr| old.is_some_and(|old| old.listeners.find(address).is_some());
        let listeners = self.listeners.0.iter();
        let fresh = listeners.filter(|listener| !known(&listener.spec.addr));
        fresh.map(|listener| listener.actual.clone()).collect()
    }
}

/// Checks the `user` directive against the user database.
pub(crate) fn resolve_user(site: &Site, log: &Log) -> Result<Option<Credentials>, NotOpened> {
    match privilege::resolve(site.settings.user.as_ref()) {
        Ok(resolved) => {
            if let Some(warning) = resolved.warning {
                log.write(Level::Warn, warning);
            }
            Ok(resolved.credentials)
        }
        Err(message) => {
            log.emerg(message);
            Err(NotOpened)
        }
    }
}

/// Opens all log files, each once.
pub(crate) fn open_logs(paths: &[PathBuf], request: &Request, log: &Log) -> Result<Logs, NotOpened> {
    let mut logs = Logs::new();
    for path in paths {
        request.places.create_log_directory(path);
        match log::open_file(path) {
            Ok(file) => logs.push((path.clone(), Rc::new(file))),
            Err(errno) => {
                log.emerg(open_failed(path, errno, &adapter::place_of_file(request, path)));
                return Err(NotOpened);
            }
        }
    }
    Ok(logs)
}

/// Returns why this process could not open a log or a pid file for writing, without creating the file. Permissions are those of
/// access(2).
pub(crate) fn log_obstacle(path: &Path, request: &Request) -> Option<String> {
    use rustix::fs::{Access, access};
    let denied = match access(path, Access::WRITE_OK) {
        Ok(()) => return None,
        Err(rustix::io::Errno::NOENT) => {
            let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty())?;
            match access(directory, Access::WRITE_OK | Access::EXEC_OK) {
                Ok(()) => return None,
                // A start creates this directory.
                Err(rustix::io::Errno::NOENT) if request.places.creates_log_directory(path) => return None,
                Err(errno) => errno,
            }
        }
        Err(errno) => errno,
    };
    Some(open_failed(path, denied, ""))
}

/// Creates directories for workers, such as those of temporary files, and makes the worker's user their owner. Without these
/// directories only large request bodies fail, so an error does not prevent the start. If workers have the user of the master, they report
/// directories that they cannot use.
fn create_directories(site: &Site, user: Option<&Credentials>, prefix: &Path, log: &Log) {
    let issuers = adapter::issuers(&site.config);
    let states = issuers.iter().filter_map(|issuer| issuer.state_path.as_ref()).filter(|_| user.is_some());
    for path in site.settings.temp_directories.iter().chain(states) {
        // The default prefix does not exist if no package is installed.
        if path.parent() == Some(prefix) && user.is_some() {
            let _ = make_passage(prefix);
        }
        let Some(user) = user else {
            let _ = owned_links::make_directory(path);
            continue;
        };
        if let Err((call, errno)) = owned_links::give_directory(path, user.uid, user.gid) {
            let (path, reason, remedy) = (path.display(), errno_text(errno), owned_links::remedy(errno));
            log.write(Level::Warn, format!("{call} \"{path}\" failed ({reason}){remedy}"));
        }
    }
}

/// Returns the ID of the user of workers.
fn user_of(credentials: Option<&Credentials>) -> u32 {
    credentials.map_or_else(|| geteuid().as_raw(), |user| user.uid)
}

/// Returns the message about a log that cannot be opened. `place` is the position of its directive, or empty.
fn open_failed(path: &Path, errno: rustix::io::Errno, place: &str) -> String {
    let remedy = match errno {
        rustix::io::Errno::ACCESS => {
            "; the user that starts the server opens the logs: start as root, or configure another file"
        }
        rustix::io::Errno::NOENT => "; the directory of the file does not exist",
        _ => owned_links::remedy(errno),
    };
    format!("open() \"{}\" failed ({}){place}{remedy}", path.display(), errno_text(errno))
}

/// Finds a log file. The list is small, so a linear search is sufficient.
fn find(logs: &Logs, path: &Path) -> Option<Rc<OwnedFd>> {
    logs.iter().find(|(known, _)| known == path).map(|(_, file)| Rc::clone(file))
}
