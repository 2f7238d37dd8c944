//! Why a command failed: the message, and the exit status by its cause.
//!
//! A usage error, such as an option with a wrong value, has status 2 in every command; anything else, such as a server that does not
//! respond, has status 1. nginx's options have the statuses of nginx.

use std::fmt;
use std::process::ExitCode;

use super::output::print_error;

/// Exit status of a usage error.
pub(super) const MISUSED: u8 = 2;

/// Why a command failed.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct CommandFailure {
    message: String,
    is_misuse: bool,
}

impl CommandFailure {
    /// Returns a usage error: the arguments are wrong, whatever the state of the machine is.
    pub(super) fn misuse(message: impl fmt::Display) -> CommandFailure {
        CommandFailure { message: message.to_string(), is_misuse: true }
    }

    /// Prints the message after `ringroad` and a name; returns the exit status.
    pub(super) fn report(&self, name: &str) -> ExitCode {
        print_error(format_args!("ringroad {name}: {}\n", self.message));
        if self.is_misuse { ExitCode::from(MISUSED) } else { ExitCode::FAILURE }
    }
}

/// A failure that is no usage error.
impl From<String> for CommandFailure {
    fn from(message: String) -> CommandFailure {
        CommandFailure { message, is_misuse: false }
    }
}

impl From<&str> for CommandFailure {
    fn from(message: &str) -> CommandFailure {
        CommandFailure::from(message.to_owned())
    }
}
