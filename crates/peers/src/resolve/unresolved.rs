//! [`Unresolved`]: reason why a name has no addresses, with nginx's messages.

use std::fmt;

/// Reason why a name has no addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unresolved {
    /// The name servers returned this code (RFC 1035 section 4.1.1).
    Code(u8),
    /// No name server responded in time.
    TimedOut,
    /// Too many lookups are in flight.
    Busy,
}

impl fmt::Display for Unresolved {
    /// Formats the code and its text. The texts are those of nginx, except for [`Unresolved::Busy`].
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let code = match self {
            Unresolved::Code(code) => *code,
            Unresolved::TimedOut => return f.write_str("110: Operation timed out"),
            Unresolved::Busy => return f.write_str("too many lookups are in flight"),
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
