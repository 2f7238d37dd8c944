//! `-t` and `-T`: loads the configuration, tries to open the files and sockets of a start, and reports with nginx's
//! messages.
//!
//! The lines have nginx's order: first whether the syntax is valid, then errors that would prevent a start, then the
//! result of the test. Warnings are printed as they are found. Everything goes to standard error, except the dump of
//! `-T`.

use std::process::ExitCode;
use std::time::Duration;

use super::diff;
use super::letters::Options;
use super::output::{print, print_error};
use crate::adapter::{self, Refused, Site};
use crate::admin::socket::AdminSocket;
use crate::listen::Listeners;
use crate::log::{Level, Log};
use crate::master::{open_logs, resolve_user};
use crate::paths::Request;
use crate::pidfile;
use crate::reach;

/// A resource that a start needs is not available; the log has the reason.
struct WouldFail;

/// Reports on a configuration that was loaded or rejected.
pub(super) fn run(
    request: &Request,
    loaded: Result<Site, Refused>,
    options: &Options,
    log: &Log,
) -> ExitCode {
    let file = request.main.display();
    let say = |text: &str| {
        if !options.quiet {
            print_error(format_args!("ringroad: {text}\n"));
        }
    };
    let syntax_is_ok = loaded.as_ref().map_or_else(|refused| refused.syntax_is_ok, |_| true);
    if syntax_is_ok {
        say(&format!("the configuration file {file} syntax is ok"));
    }
    let site = match loaded {
        Ok(site) => try_start(request, &site, log).map(|()| site),
        Err(refused) => {
            if syntax_is_ok {
                log.write(refused.level, refused.message);
            }
            Err(WouldFail)
        }
    };
    let Ok(site) = site else {
        // A failure is reported even with -q.
        print_error(format_args!("ringroad: configuration file {file} test failed\n"));
        return ExitCode::FAILURE;
    };
    say(&format!("configuration file {file} test is successful"));
    if options.dump {
        dump(&site);
    }
    if options.diff {
        return diff::run(request);
    }
    ExitCode::SUCCESS
}

/// Timeout for resolving names of upstream servers: that of a resolver for one name server.
const NAMES_TIME: Duration = Duration::from_secs(5);

/// Tries the steps of a start, without starting a server.
fn try_start(request: &Request, site: &Site, log: &Log) -> Result<(), WouldFail> {
    let settings = &site.settings;
    let user = resolve_user(site, log).map_err(|_| WouldFail)?;
    if let Some(pid_file) = &settings.pid {
        request.places.create_log_directory(pid_file);
        pidfile::try_write(pid_file).map_err(|message| {
            log.emerg(message + &adapter::place_of_file(request, pid_file));
            WouldFail
        })?;
    }
    open_logs(&settings.log_files, request, log).map_err(|_| WouldFail)?;
    if let Some(obstacle) = settings.admin_socket.as_deref().and_then(AdminSocket::obstacle) {
        log.emerg(obstacle);
        return Err(WouldFail);
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
    Listeners::try_open(&settings.listens, log).map_err(|_| WouldFail)
}

/// Prints the files in nginx's form: a comment with the name, the unchanged bytes, and a newline.
fn dump(site: &Site) {
    for (path, text) in &site.files {
        print(format!("# configuration file {}:\n", path.display()));
        print(text);
        print("\n");
    }
}
