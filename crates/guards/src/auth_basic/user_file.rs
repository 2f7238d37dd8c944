//! Finds the stored password of a user in a file with lines `name:password[:comment]`.
//!
//! The file is read for each request, through the engine. So a changed line takes effect immediately, as in nginx, and
//! no thread waits for the disk. Only a piece of the file is in memory at a time.

use std::fmt;

use io::facts::DeviceId;
use io::{Disk, Errno};

use exchange::files;
use exchange::request::Request;
use transfer::body::choose;

/// Number of bytes per read: the smallest buffer of the pool, which holds most user files.
const PIECE: usize = 4 << 10;

/// Maximum length in bytes of a stored password, as in nginx; all formats are much shorter.
const PASSWORD_LEN_MAX: usize = 2048;

/// The reason why a file could not be searched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileError {
    /// The file is missing, or this process may not open it.
    Open(Errno),
    /// The file is a directory, or the disk fails.
    Read(Errno),
    /// No buffer of this thread became free in time.
    NoMemory,
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FileError::Open(_) => "open()",
            FileError::Read(_) | FileError::NoMemory => "pread()",
        })
    }
}

/// Returns the stored password of `user`; `None` if the file has no line with this name.
pub(super) async fn find(
    request: &mut Request,
    path: &[u8],
    user: &[u8],
) -> Result<Option<Vec<u8>>, FileError> {
    // The configuration directory may be on another device than `root`, so the operation is counted for no device.
    let via = choose::path_engine(request.scope().core.sending.aio, &rt::caps());
    let disk = Disk { device: DeviceId::default(), via };
    let file = files::open_anywhere(path, disk).await.map_err(FileError::Open)?;
    let mut search = Search::new(user);
    let mut offset = 0;
    let mut buf = request.wait_for_buffer(PIECE).await.ok_or(FileError::NoMemory)?;
    loop {
        let (read, rest) = file.read_at(offset, PIECE as u32, buf, disk).await;
        let count = read.map_err(FileError::Read)? as usize;
        buf = rest.ok_or(FileError::Read(Errno::IO))?;
        if count == 0 {
            return Ok(search.end());
        }
        if let Some(found) = search.take(&buf[..count]) {
            return Ok(Some(found));
        }
        offset += count as u64;
    }
}

/// A file that is being searched, piece by piece.
struct Search<'u> {
    user: &'u [u8],
    state: State,
}

/// The state of the search within a line.
enum State {
    /// In the name; this many bytes match.
    Name(usize),
    /// After the name's colon: the password so far.
    Password(Vec<u8>),
    /// In the line of another user, or in a comment.
    Skip,
}

impl<'u> Search<'u> {
    fn new(user: &'u [u8]) -> Search<'u> {
        Search { user, state: State::Name(0) }
    }

    /// Searches the next piece; returns the password once it is complete.
    fn take(&mut self, piece: &[u8]) -> Option<Vec<u8>> {
        for &byte in piece {
            match &mut self.state {
                State::Skip if byte == b'\n' => self.state = State::Name(0),
                State::Skip => {}
                State::Name(0) if matches!(byte, b'#' | b'\r') => self.state = State::Skip,
                State::Name(0) if byte == b'\n' => {}
                State::Name(matched) if *matched == self.user.len() && byte == b':' => {
                    self.state = State::Password(Vec::new());
                }
                State::Name(matched) if self.user.get(*matched) == Some(&byte) => *matched += 1,
                // A line that ends within the name must not skip the next line.
                State::Name(_) => self.state = if byte == b'\n' { State::Name(0) } else { State::Skip },
                State::Password(password) if matches!(byte, b'\n' | b'\r' | b':') => {
                    return Some(std::mem::take(password));
                }
                State::Password(password) if password.len() == PASSWORD_LEN_MAX => self.state = State::Skip,
                State::Password(password) => password.push(byte),
            }
        }
        None
    }

    /// Returns the password of a last line without line end.
    fn end(self) -> Option<Vec<u8>> {
        match self.state {
            State::Password(password) => Some(password),
            State::Name(_) | State::Skip => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(file: &str, user: &str, piece: usize) -> Option<String> {
        let mut search = Search::new(user.as_bytes());
        let found =
            file.as_bytes().chunks(piece).find_map(|piece| search.take(piece)).or_else(|| search.end());
        found.map(|password| String::from_utf8(password).expect("it is text"))
    }

    #[test]
    fn lines_are_found_at_every_split_point() {
        let long = "x".repeat(PASSWORD_LEN_MAX);
        let file = format!(
            "# me:comment\n\nann:first\nan:short:with a comment\r\nann:second\n\r\nme\nyou:a\nlong:{long}\ntoo:{long}x\nempty:\nlast:one"
        );
        for piece in [1, 2, 3, 7, 10_000] {
            for (user, expected) in [
                ("ann", Some("first")),
                ("an", Some("short")),
                ("you", Some("a")),
                ("a", None),
                ("me", None),
                ("# me", None),
                ("long", Some(long.as_str())),
                ("too", None),
                ("empty", Some("")),
                ("last", Some("one")),
                ("las", None),
            ] {
                assert_eq!(find(&file, user, piece).as_deref(), expected, "{user} in pieces of {piece}");
            }
        }
    }
}
