//! Texts for the terminal.

use std::io::Write as _;

/// Text for standard output. A reader that went away is no error of this program.
pub(super) fn print(text: impl AsRef<[u8]>) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_ref()).and_then(|()| out.flush());
}

/// Text for standard error, where nginx writes everything but `-T`.
pub(super) fn print_error(text: impl std::fmt::Display) {
    let _ = std::io::stderr().lock().write_all(text.to_string().as_bytes());
}
