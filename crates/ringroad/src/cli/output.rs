//! Output to the terminal.

use std::io::Write as _;

/// Writes text to standard output. A closed pipe is not an error.
pub(super) fn print(text: impl AsRef<[u8]>) {
    let _ = try_print(text);
}

/// Writes text to standard output. Returns an error if the reader, such as head(1), has closed the pipe.
pub(super) fn try_print(text: impl AsRef<[u8]>) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_ref())?;
    out.flush()
}

/// Writes text to standard error, where nginx writes everything except `-T`.
pub(super) fn print_error(text: impl std::fmt::Display) {
    let _ = std::io::stderr().lock().write_all(text.to_string().as_bytes());
}
