//! [`Unresolved`]: why a name has no addresses, in nginx's words.

use std::fmt;

/// Why a name has no addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unresolved {
    /// Name servers report it: a code of RFC 1035 section 4.1.1.
    Code(u8),
    /// They did not answer in time.
    TimedOut,
    /// Too many names are looked up already.
    Busy,
}

impl fmt::Display for Unresolved {
    /// A number and words, those of nginx if it has them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let code = match self {
            Unresolved::Code(code) => *code,
            Unresolved::TimedOut => return f.write_str("110: Operation timed out"),
            Unresolved::Busy => return f.write_str("too many lookups are under way"),
        };
        let words = match code {
            1 => "Format error",
            2 => "Server failure",
            3 => "Host not found",
            4 => "Unimplemented",
            5 => "Operation refused",
            _ => "Unknown error",
        };
        write!(f, "{code}: {words}")
    }
}
