//! `ringroad drain` and `ringroad undrain`: put a running server into the drained state, or end this state.

use std::process::ExitCode;

use serde_json::json;

use super::call::{call, socket_path};
use super::failure::CommandFailure;
use super::options::Arguments;
use super::output::print;

/// Sends the command to the server, and prints the new state.
pub(super) fn run(given: &Arguments, is_drained: bool) -> ExitCode {
    let name = if is_drained { "drain" } else { "undrain" };
    match socket_path(given).and_then(|path| call(&path, &json!({ "command": name }))) {
        Ok((_, answer)) => {
            print(match (is_drained, answer["was_drained"].as_bool()) {
                (true, Some(true)) => "the server was drained already\n",
                (true, _) => {
                    "readiness checks fail, connections are closed after their next response; \"ringroad undrain\" ends this state\n"
                }
                (false, Some(false)) => "the server was not drained\n",
                (false, _) => "readiness checks pass\n",
            });
            ExitCode::SUCCESS
        }
        Err(message) => CommandFailure::from(message).report(name),
    }
}
