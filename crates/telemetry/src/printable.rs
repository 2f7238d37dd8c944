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

/// Appends a text with escaped control characters.
pub fn append_printable(out: &mut Vec<u8>, text: fmt::Arguments<'_>) {
    let _ = fmt::write(&mut Printable(out), text);
}
