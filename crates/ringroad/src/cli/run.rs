//! Starts a server, tests the configuration, or sends a signal to a running server, as the options select.

use std::path::Path;
use std::process::ExitCode;
use std::rc::Rc;

use super::letters::Options;
use super::output::print_error;
use super::request::request_for;
use super::{signal, test};
use crate::adapter::{self, Files, Problem, Refused, Site};
use crate::inherit;
use crate::listen::errno_text;
use crate::log::{self, Level, Log};
use crate::master;
use crate::owned_links;
use crate::paths::{Paths, Request};
use crate::templates::Templates;

/// Executes the options.
pub(super) fn run(options: &Options) -> ExitCode {
    // In nginx's order: the log, the configuration, and then the command.
    let (request, log) = prepare(options);
    let starts = !options.test && options.signal.is_none();
    // The daemon and the next binary of an upgrade find the results.
    if options.signal.is_none()
        && !master::is_daemon()
        && !inherit::is_new_binary()
        && let Err(reason) = write_templates(&request, &log)
    {
        log.write(Level::Emerg, reason);
        return ExitCode::FAILURE;
    }
    let loaded = adapter::load(&request, Files::Disk);
    if starts
        && !master::is_daemon()
        && !inherit::is_new_binary()
        && loaded.as_ref().is_ok_and(|site| site.settings.daemon)
    {
        // The daemon loads the configuration again, and reports the warnings.
        return master::launch(&log);
    }
    report(&request, &loaded, if options.test { ERRORS_MAX } else { 1 }, &log);
    explain_prefix(options, &request);
    if options.test {
        return test::run(&request, loaded, options, &log);
    }
    let site = match loaded {
        Ok(site) => site,
        Err(refused) => {
            if refused.syntax_is_ok {
                log.write(refused.level, refused.message);
            }
            if options.signal.is_some() {
                print_error(
                    "ringroad: no signal was sent, because the pid file is named by the configuration; a running server continues with the old one\n",
                );
            }
            return ExitCode::FAILURE;
        }
    };
    match options.signal {
        Some(command) => match &site.settings.pid {
            Some(pid_file) => signal::send(command, pid_file, options, &log),
            // Only `serve` has no pid file, and `-s` cannot reach it.
            None => ExitCode::FAILURE,
        },
        None => master::run(request, site, log, None),
    }
}

/// Writes the files whose templates the environment names, by default into `conf.d` beside the configuration.
fn write_templates(request: &Request, log: &Log) -> Result<(), String> {
    let default = request.main.parent().unwrap_or(Path::new("")).join("conf.d");
    let Some(templates) = Templates::of(std::env::vars_os(), &default) else { return Ok(()) };
    for (from, to) in templates.write()? {
        log.write(Level::Notice, format_args!("wrote \"{}\" from \"{}\"", to.display(), from.display()));
    }
    Ok(())
}

/// Prints a hint that a relative `-c` starts from the prefix, if the file exists only in the working directory.
fn explain_prefix(options: &Options, request: &Request) {
    let Some(conf) = options.conf.as_deref().filter(|conf| conf.is_relative()) else { return };
    let Ok(here) = std::path::absolute(conf) else { return };
    if here.is_file() && !request.main.exists() {
        let (conf, here) = (conf.display(), here.display());
        print_error(format_args!(
            "ringroad: a relative -c starts from the prefix; for the file in this directory write -c \"{here}\", or -p \"$PWD\" -c \"{conf}\"\n"
        ));
    }
}

/// Maximum number of configuration errors that one test reports, so that they fit on a page.
const ERRORS_MAX: usize = 20;

/// Reports the errors of a configuration, except those that `-t` reports later. On standard error each error is
/// followed by its line of the configuration.
pub(super) fn report(request: &Request, loaded: &Result<Site, Refused>, errors_max: usize, log: &Log) {
    let refused = match loaded {
        Ok(site) => {
            for (level, message) in &site.warnings {
                log.write(*level, message);
            }
            return;
        }
        // `-t` first reports that the syntax is right, and then this error.
        Err(refused) if refused.syntax_is_ok => return,
        Err(refused) => refused,
    };
    let problems = adapter::problems(request);
    log.write(refused.level, &refused.message);
    let (first, others): (Vec<_>, Vec<_>) =
        problems.into_iter().partition(|problem| problem.message == refused.message);
    if let Some(excerpt) = first.iter().find_map(|problem| problem.excerpt.as_deref()) {
        print_error(excerpt);
    }
    let others = without_insides(others);
    for problem in others.iter().take(errors_max - 1) {
        log.write(problem.level, &problem.message);
        print_error(problem.excerpt.as_deref().unwrap_or_default());
    }
    let left = (others.len() + 1).saturating_sub(errors_max);
    let noun = if left == 1 { "error" } else { "errors" };
    match left {
        0 => {}
        _ if errors_max == 1 => {
            print_error(format_args!("ringroad: {left} more {noun}; \"ringroad -t\" shows them\n"));
        }
        _ => print_error(format_args!("ringroad: {left} more {noun}\n")),
    }
}

/// Omits unsupported directives within an unsupported block, such as `server` in `mail`.
fn without_insides(problems: Vec<Problem>) -> Vec<Problem> {
    let mut blocks: Vec<&'static str> = Vec::new();
    let mut is_outside = |problem: &Problem| {
        let conf::ErrorKind::NotSupported { module, .. } = problem.error.kind() else { return true };
        let is_inside =
            blocks.iter().any(|block| module.strip_prefix(block).is_some_and(|rest| rest.starts_with('_')));
        blocks.push(module);
        !is_inside
    };
    problems.into_iter().filter(|problem| is_outside(problem)).collect()
}

/// Returns the paths, and the log for the time until the configuration sets one.
fn prepare(options: &Options) -> (Request, Log) {
    let Request { main, places, .. } = request_for(options.prefix.as_deref(), options.conf.as_deref());
    let (prefix, mut places) = (places.prefix.clone(), places);
    let log = match &options.error_log {
        Some(name) if name == Path::new("stderr") => {
            places.error_log = None;
            Log::stderr(Level::Notice)
        }
        Some(name) => {
            let path = prefix.join(name);
            let log = open_named(&path);
            places.error_log = Some(path);
            log
        }
        // Used until the configuration's own error_log replaces it.
        None => open_default(&mut places),
    };
    (Request { main, globals: options.globals.clone(), places, text: None }, log)
}

/// Opens the log of `-e`. A failure is reported and the start continues, as in nginx.
fn open_named(path: &Path) -> Log {
    match log::open_file(path) {
        Ok(file) => Log::early(Rc::new(file), Level::Notice),
        Err(errno) => {
            let log = Log::echo_only();
            let (path, reason, remedy) = (path.display(), errno_text(errno), owned_links::remedy(errno));
            log.alert(format_args!(
                "could not open error log file: open() \"{path}\" failed ({reason}){remedy}"
            ));
            log
        }
    }
}

/// Opens the default log, which is used without a directive. If it is not writable, lines go to standard error.
fn open_default(places: &mut Paths) -> Log {
    if let Some(path) = &places.error_log {
        places.create_log_directory(path);
        if let Ok(file) = log::open_file(path) {
            return Log::early(Rc::new(file), Level::Notice);
        }
    }
    places.error_log = None;
    Log::echo_only()
}
