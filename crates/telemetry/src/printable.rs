//! Text that may not leave its line.

use std::fmt;
use std::io::Write;

/// Text on its way into a line. Control characters stand as `\xHH`, as in the access log: a file's name or the client may
/// have chosen them, and they must not make a second line or a terminal's escape sequence.
struct Printable<'a>(&'a mut Vec<u8>);

impl fmt::Write for Printable<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for piece in text.split_inclusive(char::is_control) {
            let rest = piece.strip_suffix(char::is_control).unwrap_or(piece);
            self.0.extend_from_slice(rest.as_bytes());
            for byte in &piece.as_bytes()[rest.len()..] {
                // A vector takes every write.
                let _ = write!(self.0, "\\x{byte:02X}");
            }
        }
        Ok(())
    }
}

/// Appends a text so that it stays within its line.
pub fn append_printable(out: &mut Vec<u8>, text: fmt::Arguments<'_>) {
    let _ = fmt::write(&mut Printable(out), text);
}
