//! Escapes control characters in text, so that the text cannot end its log line.

use std::fmt;
use std::io::Write;

/// A writer that escapes control characters as `\xHH`, as in the access log. File names and clients can contain control
/// characters. They must not start a second line or a terminal's escape sequence.
struct Printable<'a>(&'a mut Vec<u8>);

impl fmt::Write for Printable<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for piece in text.split_inclusive(char::is_control) {
            let rest = piece.strip_suffix(char::is_control).unwrap_or(piece);
            self.0.extend_from_slice(rest.as_bytes());
            for byte in &piece.as_bytes()[rest.len()..] {
                // Writing to a `Vec` cannot fail.
                let _ = write!(self.0, "\\x{byte:02X}");
            }
        }
        Ok(())
    }
}

/// Bytes that a client or an upstream chose, for the message of a log line. Text is written unchanged, as in nginx; [`append_printable`]
/// escapes its control characters. Bytes that are not UTF-8 are written as `\xHH`.
pub struct LogText<'a>(&'a [u8]);

/// Formats bytes for the message of a log line.
pub trait ForLog {
    /// Returns the bytes as [`LogText`].
    fn for_log(&self) -> LogText<'_>;
}

impl ForLog for [u8] {
    fn for_log(&self) -> LogText<'_> {
        LogText(self)
    }
}

impl fmt::Display for LogText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.0.utf8_chunks() {
            f.write_str(chunk.valid())?;
            for byte in chunk.invalid() {
                write!(f, "\\x{byte:02X}")?;
            }
        }
        Ok(())
    }
}

/// Appends a text with escaped control characters.
pub fn append_printable(out: &mut Vec<u8>, text: fmt::Arguments<'_>) {
    let _ = fmt::write(&mut Printable(out), text);
}
