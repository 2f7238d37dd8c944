//! One configuration with everything that is open for it: sockets, log files, the user of its workers.
//!
//! nginx calls this a cycle. The master holds one that is in force and, while a reload is in flight, the next.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use rustix::fs::{Gid, Mode, Uid};

use crate::control::message::Bundle;
use crate::listen::{ListenAddr, Listeners, errno_text};
use crate::log::{self, Level, Log};
use crate::places::{Places, Request, make_passage};
use crate::privilege::{self, Credentials};
use crate::site::{self, Resources, Site};

/// A configuration that is ready to be served.
#[derive(Debug)]
pub(crate) struct Cycle {
    /// Counts from 1; messages of workers name it.
    pub(crate) generation: u64,
    pub(crate) site: Site,
    pub(crate) listeners: Listeners,
    /// `error_log` of the process, as far as it concerns the master.
    pub(crate) log: Log,
    /// The source, for the worker to read again.
    request: Request,
    /// Open for appending, under the names of the configuration.
    logs: Logs,
    /// The worker's user; `None` is the master's.
    credentials: Option<Credentials>,
}

/// Open log files by name.
pub(crate) type Logs = Vec<(PathBuf, Rc<OwnedFd>)>;

/// Something could not be opened; the log has the reason.
#[derive(Debug)]
pub(crate) struct NotOpened;

impl Cycle {
    /// Opens everything. Sockets of `old` are shared with it.
    pub(crate) fn open(
        request: &Request,
        site: Site,
        generation: u64,
        old: Option<&Listeners>,
        log: &Log,
    ) -> Result<Cycle, NotOpened> {
        let credentials = resolve_user(&site, log)?;
        let logs = open_logs(&site.settings.log_files, &request.places, log)?;
        if let Some(user) = &credentials {
            let states = site::issuers(&site.config).iter().filter_map(|issuer| issuer.state_path.clone());
            let folders: Vec<PathBuf> = site.settings.temp_folders.iter().cloned().chain(states).collect();
            make_folders(&folders, user, &request.places.prefix, log);
        }
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

    /// The worker's user; `None` is the master's.
    pub(crate) fn credentials(&self) -> Option<&Credentials> {
        self.credentials.as_ref()
    }

    /// The bundle of a worker, and its descriptors.
    pub(crate) fn bundle(&self) -> (Bundle, Vec<Rc<OwnedFd>>) {
        let listeners = &self.listeners.0;
        let sockets = listeners.iter().flat_map(|listener| listener.sockets.iter());
        let files = self.logs.iter().map(|(_, file)| file);
        let fds = sockets.chain(files).map(Rc::clone).collect();
        let bundle = Bundle {
            generation: self.generation,
            request: self.request.clone(),
            files: [self.site.files.as_slice(), &self.present_data()].concat(),
            credentials: self.credentials.clone(),
            limits: self.site.settings.limits.clone(),
            listeners: listeners
                .iter()
                .map(|listener| (listener.options.address.clone(), listener.sockets.len() as u64))
                .collect(),
            logs: self.logs.iter().map(|(path, _)| path.clone()).collect(),
            addresses: String::new(),
            respawned: 0,
            acme: Vec::new(),
            tickets: Vec::new(),
        };
        (bundle, fds)
    }

    /// Files read beside the text. Files that workers write themselves are read again: a worker that replaces a dead
    /// one continues with its state.
    fn present_data(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let mut data = self.site.data.clone();
        for path in site::state_files(&self.site.config) {
            if let (Some(known), Ok(bytes)) =
                (data.iter_mut().find(|(known, _)| *known == path), std::fs::read(&path))
            {
                known.1 = bytes;
            }
        }
        data
    }

    /// The same for a server in this process.
    pub(crate) fn resources(&self) -> std::io::Result<Resources> {
        let mut resources = Resources::default();
        for listener in &self.listeners.0 {
            let sockets: std::io::Result<Vec<OwnedFd>> =
                listener.sockets.iter().map(|socket| socket.try_clone()).collect();
            resources.listeners.push((listener.options.address.clone(), sockets?));
        }
        for (path, file) in &self.logs {
            resources.logs.push((path.clone(), file.try_clone()?));
        }
        Ok(resources)
    }

    /// Opens the log files again, for a log rotation, and returns them in the order of the bundle. A file that cannot
    /// be opened keeps its old descriptor.
    pub(crate) fn reopen_logs(&mut self) -> Logs {
        for (path, file) in &mut self.logs {
            match log::open_file(path) {
                Ok(fresh) => *file = Rc::new(fresh),
                Err(errno) => self.log.emerg(open_failed(path, errno)),
            }
        }
        let log = Log::of(&self.site.settings.error_log, |path| find(&self.logs, path));
        log.take_stderr_from(&self.log);
        self.log = log;
        self.logs.clone()
    }

    /// Addresses that `old` did not listen on, with their actual ports.
    pub(crate) fn new_addresses(&self, old: Option<&Cycle>) -> Vec<ListenAddr> {
        let known = |address: &ListenAddr| old.is_some_and(|old| old.listeners.find(address).is_some());
        let listeners = self.listeners.0.iter();
        let fresh = listeners.filter(|listener| !known(&listener.options.address));
        fresh.map(|listener| listener.actual.clone()).collect()
    }
}

/// The checks of the `user` directive that need the user database.
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

/// Opens every log file, each once.
pub(crate) fn open_logs(paths: &[PathBuf], places: &Places, log: &Log) -> Result<Logs, NotOpened> {
    let mut logs = Logs::new();
    for path in paths {
        places.prepare_folder_of(path);
        match log::open_file(path) {
            Ok(file) => logs.push((path.clone(), Rc::new(file))),
            Err(errno) => {
                log.emerg(open_failed(path, errno));
                return Err(NotOpened);
            }
        }
    }
    Ok(logs)
}

/// Makes the directories that the worker's user could not make where only root may write, and hands them over. Without
/// one the server still answers everything but large request bodies, so that is no reason not to start.
fn make_folders(paths: &[PathBuf], user: &Credentials, prefix: &Path, log: &Log) {
    let (uid, gid) = (Some(Uid::from_raw(user.uid)), Some(Gid::from_raw(user.gid)));
    for path in paths {
        // The default prefix of a server that was never installed is not there.
        if path.parent() == Some(prefix) {
            let _ = make_passage(prefix);
        }
        let made = match rustix::fs::mkdir(path, Mode::RWXU) {
            Err(rustix::io::Errno::EXIST) => Ok(()),
            made => made.map_err(|errno| ("mkdir()", errno)),
        };
        let owned = made.and_then(|()| rustix::fs::chown(path, uid, gid).map_err(|errno| ("chown()", errno)));
        if let Err((call, errno)) = owned {
            log.write(Level::Warn, format!("{call} \"{}\" failed ({})", path.display(), errno_text(errno)));
        }
    }
}

fn open_failed(path: &Path, errno: rustix::io::Errno) -> String {
    let remedy = match errno {
        rustix::io::Errno::ACCESS => {
            "; the user that starts the server opens the logs: start as root, or name another file"
        }
        rustix::io::Errno::NOENT => "; its directory is not there",
        _ => "",
    };
    format!("open() \"{}\" failed ({}){remedy}", path.display(), errno_text(errno))
}

/// Log files are few: a list is enough.
fn find(logs: &Logs, path: &Path) -> Option<Rc<OwnedFd>> {
    logs.iter().find(|(known, _)| known == path).map(|(_, file)| Rc::clone(file))
}
