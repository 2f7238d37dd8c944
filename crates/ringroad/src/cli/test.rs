//! `-t` and `-T`: loads the configuration, tries to open the files and sockets of a start, and reports with nginx's
//! messages.
//!
//! The lines have nginx's order: first whether the syntax is valid, then errors that would prevent a start, then the
//! result of the test. Warnings are printed as they are found. Everything goes to standard error, except the dump of
//! `-T`.

use std::process::ExitCode;

use super::diff;
use super::letters::Options;
use super::output::{print, print_error};
use super::trial::{Trial, WouldFail, try_start};
use crate::adapter::{Refused, Site};
use crate::log::Log;
use crate::paths::Request;

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
        Ok(site) => try_start(request, &site, log, Trial::Opens).map(|()| site),
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

/// Prints the files in nginx's form: a comment with the name, the unchanged bytes, and a newline.
fn dump(site: &Site) {
    for (path, text) in &site.files {
        print(format!("# configuration file {}:\n", path.display()));
        print(text);
        print("\n");
    }
}
