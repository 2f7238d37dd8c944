//! Tries the steps of a start without starting a server, for `-t` and for `ringroad check`.

use std::time::Duration;

use crate::adapter::{self, Site};
use crate::admin::socket::AdminSocket;
use crate::listen::Listeners;
use crate::log::{Level, Log};
use crate::master::{log_obstacle, open_logs, resolve_user};
use crate::paths::Request;
use crate::pidfile;
use crate::{reach, restrict};

/// A resource that a start needs is not available; the log has the reason.
#[derive(Debug)]
pub(super) struct WouldFail;

/// How a start is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trial {
    /// As `-t` of nginx: log files are opened, and created if they are missing.
    Opens,
    /// Nothing is created: permissions are checked instead.
    ChecksOnly,
}

/// Timeout for resolving names of upstream servers: that of a resolver for one name server.
const NAMES_TIME: Duration = Duration::from_secs(5);

/// Tries the steps of a start, without starting a server. Further steps are tried after an error, so that the log has all of them.
pub(super) fn try_start(request: &Request, site: &Site, log: &Log, trial: Trial) -> Result<(), WouldFail> {
    let settings = &site.settings;
    let user = resolve_user(site, log);
    let mut is_failed = user.is_err();
    let user = user.unwrap_or_default();
    let written = match (&settings.pid, trial) {
        (None, _) => Ok(()),
        (Some(pid_file), Trial::Opens) => {
            request.places.create_log_directory(pid_file);
            pidfile::try_write(pid_file)
        }
        (Some(pid_file), Trial::ChecksOnly) => log_obstacle(pid_file, request).map_or(Ok(()), Err),
    };
    if let (Some(pid_file), Err(message)) = (&settings.pid, written) {
        log.emerg(message + &adapter::place_of_file(request, pid_file));
        is_failed = true;
    }
    match trial {
        Trial::Opens => is_failed |= open_logs(&settings.log_files, request, log).is_err(),
        Trial::ChecksOnly => {
            for path in &settings.log_files {
                if let Some(obstacle) = log_obstacle(path, request) {
                    log.emerg(obstacle + &adapter::place_of_file(request, path));
                    is_failed = true;
                }
            }
        }
    }
    if let Some(obstacle) = settings.admin_socket.as_deref().and_then(AdminSocket::obstacle) {
        log.emerg(obstacle);
        is_failed = true;
    }
    if let Some(warning) = settings.connections_warning() {
        log.write(Level::Warn, warning);
    }
    // Transfers continue without temporary files if possible, so this is only a warning.
    for (folder, place) in site.config.written_temp_directories() {
        if let Some(obstacle) = reach::obstacle(folder, user.as_ref()) {
            let folder = folder.display();
            let what = format!("workers cannot write temporary files to \"{folder}\": {obstacle} in {place}");
            log.write(Level::Warn, what);
        }
    }
    // Only warnings: the server may run on another machine, and names are also resolved later.
    for missing in adapter::missing_names(&site.config, NAMES_TIME) {
        log.write(Level::Warn, missing);
    }
    // Only a warning: the server may run with other privileges or in another container.
    if let Some(warning) = adapter::ring_warning(&site.config) {
        log.write(Level::Warn, warning);
    }
    is_failed |= !restrict::is_supported(&site.config, log);
    is_failed |= Listeners::try_open(&settings.listens, log).is_err();
    if is_failed { Err(WouldFail) } else { Ok(()) }
}
