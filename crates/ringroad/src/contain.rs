//! The panic boundary of an operator's commands and of the reading of a configuration: a fault of this program in one of
//! these ends the command, never the server.
//!
//! The panic hook has already printed the position of the fault to the standard error output.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs a command; a panic becomes an error with its message. The command changes no state of the server before it has
/// succeeded, or replaces it in one step.
pub(crate) fn contain<T>(what: &str, command: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(command)).map_err(|panic| {
        format!("a fault of this program ended {what}, please report it: {}", message(&*panic))
    })
}

/// Returns the message of a panic.
fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a message")
}

#[cfg(test)]
mod tests {
    use super::contain;

    #[test]
    fn a_panic_becomes_an_error() {
        assert_eq!(contain("it", || 1), Ok(1));
        let failed = contain("it", || -> u8 { panic!("{} is wrong", 2) });
        let expected = "a fault of this program ended it, please report it: 2 is wrong";
        assert_eq!(failed, Err(expected.to_owned()));
    }
}
