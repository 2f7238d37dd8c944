//! Sticky sessions: their settings, the IDs of servers, and the table of `sticky learn`.

use std::fmt;
use std::sync::Arc;

use md5::{Digest, Md5};
use smallvec::SmallVec;

use site::shared_zone::table::Table;
use site::shared_zone::{self, ZoneKind};
use site::template::Template;
use site::var_ref::VarRef;

/// Maximum length in bytes of a server ID in a session: that of an MD5 hash in hexadecimal.
pub const SID_MAX: usize = 32;

/// ID of a server in cookies and routes.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Sid(SmallVec<[u8; SID_MAX]>);

impl fmt::Debug for Sid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.escape_ascii())
    }
}

impl Sid {
    /// Creates the ID from the configured route, or from the MD5 hash of the address in hexadecimal.
    pub fn of(route: Option<&str>, name: &str) -> Sid {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        Sid(match route {
            Some(route) => SmallVec::from_slice(route.as_bytes()),
            None => Md5::digest(name)
                .iter()
                .flat_map(|byte| [DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]])
                .collect(),
        })
    }

    /// Returns the bytes.
    pub fn as_slice(&self) -> &[u8] {
        &self.0
    }
}

/// `sticky`
#[derive(Clone, Debug)]
pub struct Sticky {
    /// Variables with the client's session; the first that is not empty counts.
    pub lookup: Vec<VarRef>,
    /// Kind of sessions.
    pub kind: StickyKind,
}

/// Kind of sessions.
#[derive(Clone, Debug)]
pub enum StickyKind {
    /// The request contains the route.
    Route,
    /// A cookie set by this server names the upstream.
    Cookie(Arc<Cookie>),
    /// A table contains the server that created the session.
    Learn(Arc<Learn>),
}

/// The cookie of `sticky cookie`.
#[derive(Clone, Debug, Default)]
pub struct Cookie {
    /// Name of the cookie.
    pub name: String,
    /// `expires`
    pub expires: Option<Expires>,
    /// `domain`
    pub domain: Option<Template>,
    /// `httponly`
    pub http_only: bool,
    /// `secure`
    pub secure: bool,
    /// `samesite`
    pub same_site: Option<Template>,
    /// `path`
    pub path: Option<String>,
}

/// Lifetime of the cookie in browsers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expires {
    /// `max`: 31 December 2037, as in nginx.
    Max,
    /// After N seconds.
    After(i64),
}

/// Values of `samesite`.
pub const SAME_SITE: [&str; 3] = ["strict", "lax", "none"];

/// `sticky learn`
#[derive(Debug)]
pub struct Learn {
    /// Variables with a new session in the response; the first that is not empty counts.
    pub create: Vec<VarRef>,
    /// The table.
    pub zone: Arc<shared_zone::Zone<Declared>>,
    /// Time in ms after which an unused session is removed.
    pub timeout_ms: i64,
    /// `header`: learns the session when the header section of the response arrives, instead of at its end.
    pub at_header: bool,
}

/// The zone of `zone=`.
#[derive(Debug)]
pub struct Declared {
    /// The group whose servers the sessions refer to.
    pub group: String,
}

/// One session.
#[derive(Clone, Debug)]
pub struct Session {
    sid: [u8; SID_MAX],
    sid_len: u8,
    /// Time of last use, in ms since 1970.
    last_ms: i64,
}

/// Memory in bytes per session in addition to its key: as in nginx, one megabyte holds about eight thousand sessions.
const SESSION_OVERHEAD: u64 = 112;

impl ZoneKind for Declared {
    type Content = Table<Session>;

    fn empty(&self, bytes: u64) -> Table<Session> {
        Table::new(bytes, SESSION_OVERHEAD)
    }

    fn continues(&self, before: &Declared) -> bool {
        self.group == before.group
    }
}

impl Learn {
    /// Returns the server of a session.
    pub fn find(&self, session: &[u8], now_ms: i64) -> Option<Vec<u8>> {
        let timeout = self.timeout_ms;
        self.zone.state().with(&Md5::digest(session), |entry| {
            let found = entry.get()?;
            // A clock that was set back does not expire sessions.
            if now_ms - found.last_ms >= timeout {
                entry.remove();
                return None;
            }
            Some(found.sid[..usize::from(found.sid_len)].to_vec())
        })
    }

    /// Stores the server of a session. A session that is not in the table is stored only if the response has created it (`is_new`).
    pub fn learn(&self, session: &[u8], is_new: bool, sid: &Sid, now_ms: i64) -> Learned {
        let bytes = sid.as_slice();
        let mut value = Session { sid: [0; SID_MAX], sid_len: bytes.len() as u8, last_ms: now_ms };
        assert!(bytes.len() <= SID_MAX, "the id of a server fits");
        value.sid[..bytes.len()].copy_from_slice(bytes);
        let is_over = |session: &Session| now_ms - session.last_ms >= self.timeout_ms;
        self.zone.state().with(&Md5::digest(session), |entry| {
            // A session that expired while its response was in flight no longer has a server.
            if entry.get().is_some_and(|session| is_over(session)) {
                entry.remove();
            }
            if let Some(known) = entry.touch() {
                *known = value;
                return Learned::Noted;
            }
            while entry.oldest().is_some_and(is_over) {
                entry.remove_oldest();
            }
            if !is_new || entry.insert(value.clone()) {
                return Learned::Noted;
            }
            let is_kept = entry.remove_oldest() && entry.insert(value);
            if is_kept { Learned::PushedOut } else { Learned::NoSpace }
        })
    }
}

/// Result of storing a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Learned {
    /// Stored; or neither known nor new, so that it need not be stored.
    Noted,
    /// Stored; the least recently used session was removed.
    PushedOut,
    /// No space for it.
    NoSpace,
}
