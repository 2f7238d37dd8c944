//! `ringroad engines [--json] [--user USER]`: shows the available I/O engines of this machine, why others are not
//! available, and which ones a server would select.
//!
//! If started as root, the command first changes to the workers' user, because the limit on locked memory applies to
//! that user and not to root.

use std::process::ExitCode;

use io::probe::Probe;
use nix::unistd::{Uid, User};

use super::failure::CommandFailure;
use super::options::Arguments;
use super::output::print;
use crate::adapter;
use crate::privilege::{self, UserSpec};

/// Probes with the privileges of a worker.
pub(super) fn run(given: &Arguments) -> ExitCode {
    let user = match become_worker(given) {
        Ok(user) => user,
        Err(message) => return CommandFailure::from(message).report("engines"),
    };
    let probe = Probe::run();
    let (net, why) = match probe.uring_refusal() {
        None => ("io_uring", "all features that the engine needs are available".to_owned()),
        Some(_) => ("epoll", probe.summary()),
    };
    let disk = adapter::default_movers();
    if given.has("json") {
        let more = serde_json::json!({ "user": user, "disk": disk }).to_string();
        let more = more.trim_start_matches('{').trim_end_matches('}');
        print(format!("{}\n", probe.to_json().replacen(",\"rows\":[", &format!(",{more},\"rows\":["), 1)));
        return ExitCode::SUCCESS;
    }
    print(format!(
        "Probed as user {user}, as a worker.\n\n{}\nA server without \"use\" and \"aio\" selects on this machine:\n\
         network  {net}: {why}\ndisk     {disk}\n",
        probe.to_table()
    ));
    ExitCode::SUCCESS
}

/// As root, changes to the workers' user. Returns the name of the user that the process then has.
fn become_worker(given: &Arguments) -> Result<String, String> {
    let name = given.value("user").map(|name| name.to_string_lossy().into_owned());
    if !Uid::effective().is_root() {
        if name.is_some() {
            return Err("--user needs root privileges, because the command changes to this user".to_owned());
        }
        let user = User::from_uid(Uid::effective()).ok().flatten();
        return Ok(user.map_or_else(|| Uid::effective().to_string(), |user| user.name));
    }
    let spec = name.map(|user| UserSpec { user, group: None, position: None });
    let Some(credentials) = privilege::resolve(spec.as_ref())?.credentials else {
        return Ok("root".to_owned());
    };
    credentials.assume(false).map_err(|error| error.to_string())?;
    Ok(credentials.user)
}
