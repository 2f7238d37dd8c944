//! `ringroad health [URL]`: exits with 0 if a running server serves, for health checks of images without a shell.
//!
//! Without a URL the request goes to a location of the configuration with `health ready`, else `health live`. The thread that accepted
//! the connection responds, so the command tests the complete path of a request.

use std::process::ExitCode;
use std::time::Duration;

use super::call::shown;
use super::failure::CommandFailure;
use super::fetch::{self, Asked};
use super::options::Arguments;
use super::output::print;

/// Default of `--timeout` in seconds.
const TIMEOUT_S: u64 = 5;

/// Maximum length of the shown text in characters.
const TEXT_MAX: usize = 120;

/// Makes a request, and prints its result in one line.
pub(super) fn run(given: &Arguments) -> ExitCode {
    match check(given) {
        Ok(line) => {
            print(format!("{line}\n"));
            ExitCode::SUCCESS
        }
        Err(failure) => failure.report("health"),
    }
}

/// Returns the line about a successful check, or the reason of a failure.
fn check(given: &Arguments) -> Result<String, CommandFailure> {
    let seconds = match given.value("timeout") {
        None => TIMEOUT_S,
        Some(text) => {
            let text = text.to_string_lossy();
            let seconds = text.parse().ok().filter(|seconds| (1..=3600).contains(seconds));
            seconds.ok_or_else(|| {
                CommandFailure::misuse(format_args!(
                    "--timeout \"{text}\" is not a number of seconds from 1 to 3600"
                ))
            })?
        }
    };
    let directives = [("health", "ready"), ("health", "live")];
    let asked = Asked::of(given, &directives, Duration::from_secs(seconds))?;
    let reply = fetch::get(&asked, "").map_err(|reason| format!("{}: {reason}", asked.url))?;
    let body = String::from_utf8_lossy(&reply.body);
    let text: String = body.lines().next().unwrap_or_default().trim().chars().take(TEXT_MAX).collect();
    let line = format!("{}: status {}, \"{}\"", asked.url, reply.status, shown(&text));
    match (200..400).contains(&reply.status) {
        true => Ok(line),
        false => Err((line + &asked.refusal(reply.status)).into()),
    }
}
