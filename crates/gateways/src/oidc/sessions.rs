//! Sessions of clients that have logged in.
//!
//! A session is a pair of a zone: its key is the hash of the session's identifier, its value is encrypted with the identifier. So the
//! pages of `api` and the state file show neither identifiers nor tokens, and no change by `api` can
//! create a session. Identifiers are random and new for each login.
//!
//! Further pairs are lists of sessions. One list has the sessions of a user: at most [`SESSIONS_OF_USER_MAX`], so that a user cannot fill
//! the zone. Another has those of a session of the provider (`sid`), for front-channel logout.

use std::rc::Rc;
use std::time::Duration;

use super::conf::OidcProvider;
use super::cookies;
use super::secret::{RandomSecret, hashed};
use exchange::request::Request;
use exchange::saved_pairs::SavePairs;
use exchange::thread::Thread;
use site::shared_zone::pairs::{PairRefusal, now_ms};

/// Maximum number of sessions of a user; a further login ends the oldest one.
const SESSIONS_OF_USER_MAX: usize = 20;

/// Maximum number of sessions that one session of the provider has here.
const SESSIONS_OF_SID_MAX: usize = 20;

/// Maximum size of a session in bytes. Tokens with many claims have a few kilobytes.
pub(super) const SESSION_BYTES_MAX: usize = 128 << 10;

/// Number of texts of a session.
const FIELDS: usize = 5;

/// A session.
#[derive(Clone, Default, PartialEq, Eq)]
pub(super) struct StoredSession {
    /// The ID token, which was verified.
    pub(super) id_token: String,
    /// The access token.
    pub(super) access_token: String,
    /// The refresh token; empty without one.
    pub(super) refresh_token: String,
    /// The response of the UserInfo endpoint.
    pub(super) userinfo: String,
    /// Time in ms since 1970 at which the session ends.
    pub(super) ends_ms: u64,
    /// Time in ms since 1970 from which the tokens are refreshed.
    pub(super) refresh_ms: u64,
}

impl StoredSession {
    /// Encodes the session: each text with its length.
    fn encode(&self) -> Vec<u8> {
        let times = format!("{} {}", self.ends_ms, self.refresh_ms);
        let texts: [&str; FIELDS] =
            [&times, &self.id_token, &self.access_token, &self.refresh_token, &self.userinfo];
        let mut out = Vec::with_capacity(texts.iter().map(|text| text.len() + 4).sum());
        for text in texts {
            debug_assert!(text.len() <= u32::MAX as usize, "responses of providers are limited");
            out.extend_from_slice(&(text.len() as u32).to_be_bytes());
            out.extend_from_slice(text.as_bytes());
        }
        out
    }

    fn decode(mut bytes: &[u8]) -> Option<StoredSession> {
        let mut next = || {
            let (length, rest) = bytes.split_first_chunk::<4>()?;
            let (text, rest) = rest.split_at_checked(u32::from_be_bytes(*length) as usize)?;
            bytes = rest;
            String::from_utf8(text.to_vec()).ok()
        };
        let times = next()?;
        let (ends, refresh) = times.split_once(' ')?;
        Some(StoredSession {
            ends_ms: ends.parse().ok()?,
            refresh_ms: refresh.parse().ok()?,
            id_token: next()?,
            access_token: next()?,
            refresh_token: next()?,
            userinfo: next()?,
        })
    }

    /// Returns the size in bytes.
    pub(super) fn len(&self) -> usize {
        self.encode().len()
    }
}

/// Returns the time in ms since 1970.
pub(super) fn now() -> u64 {
    now_ms(rt::wall())
}

/// Returns the end of a session that begins now.
pub(super) fn end_of(provider: &OidcProvider) -> u64 {
    now() + milliseconds(provider.session_timeout)
}

/// Returns a time in ms.
pub(super) fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Returns the identifier in the session cookie.
pub(super) fn id_of(provider: &OidcProvider, request: &Request) -> Option<RandomSecret> {
    RandomSecret::parse(cookies::value(request, &provider.cookie_name)?)
}

/// Returns the key of a session in the zone.
pub(super) fn key_of(id: &RandomSecret) -> String {
    format!("s:{}", hashed(format!("session {}", id.text()).as_bytes()))
}

/// Returns the session of an identifier.
pub(super) fn load(provider: &OidcProvider, id: &RandomSecret) -> Option<StoredSession> {
    let sealed = provider.sessions().get(&key_of(id), now())?;
    let session = StoredSession::decode(&id.open(&provider.context(), &sealed)?)?;
    // The zone removes it later.
    (session.ends_ms > now()).then_some(session)
}

/// The lists that a session belongs to.
pub(super) struct ListedAs<'a> {
    /// The user at the provider (`sub`).
    pub(super) subject: &'a str,
    /// The session at the provider (`sid`).
    pub(super) sid: Option<&'a str>,
}

/// Stores a new session.
pub(super) fn add(
    provider: &OidcProvider,
    thread: &Rc<Thread>,
    id: &RandomSecret,
    session: &StoredSession,
    listed: &ListedAs<'_>,
) -> Result<(), PairRefusal> {
    put(provider, id, session, false)?;
    enlist(provider, thread, id, session, listed)
}

/// Adds a session to its lists.
fn enlist(
    provider: &OidcProvider,
    thread: &Rc<Thread>,
    id: &RandomSecret,
    session: &StoredSession,
    listed: &ListedAs<'_>,
) -> Result<(), PairRefusal> {
    let key = key_of(id);
    let user = list_key(provider, "u", listed.subject);
    let mut result = list(provider, &user, &key, session.ends_ms, SESSIONS_OF_USER_MAX);
    if let (Ok(()), Some(sid)) = (result, listed.sid.filter(|_| provider.front_channel_uri.is_some())) {
        let sid = list_key(provider, "p", sid);
        result = list(provider, &sid, &key, session.ends_ms, SESSIONS_OF_SID_MAX);
    }
    if result.is_err() {
        // A session that cannot be ended must not exist.
        remove_key(provider, &key);
    }
    save(provider, thread);
    result
}

/// Stores the new tokens of a session, unless it has ended meanwhile.
pub(super) fn replace(
    provider: &OidcProvider,
    thread: &Rc<Thread>,
    id: &RandomSecret,
    session: &StoredSession,
    listed: &ListedAs<'_>,
) -> Result<(), PairRefusal> {
    if put(provider, id, session, true)? { enlist(provider, thread, id, session, listed) } else { Ok(()) }
}

/// Stores a session; returns whether it is stored. With `must_exist` it is stored only if the zone has the session.
fn put(
    provider: &OidcProvider,
    id: &RandomSecret,
    session: &StoredSession,
    must_exist: bool,
) -> Result<bool, PairRefusal> {
    let sealed = id.seal(&provider.context(), session.encode()).ok_or(PairRefusal::NoValue)?;
    let mut is_stored = false;
    provider.sessions().edit(&key_of(id), now(), |before| {
        is_stored = before.is_some() || !must_exist;
        is_stored.then_some((sealed, session.ends_ms))
    })?;
    Ok(is_stored)
}

/// Adds a session to a list, at the end. If the list is full, its first session ends.
fn list(
    provider: &OidcProvider,
    list_key: &str,
    key: &str,
    ends_ms: u64,
    count_max: usize,
) -> Result<(), PairRefusal> {
    // Sessions that have ended do not count.
    let listed = provider.sessions().get(list_key, now()).unwrap_or_default();
    let is_over = |key: &&str| provider.sessions().get(key, now()).is_none();
    let over: Vec<&str> = listed.split_terminator('\n').filter(is_over).collect();
    let mut ended = Vec::new();
    let result = provider.sessions().edit(list_key, now(), |before| {
        let mut keys: Vec<&str> = before.unwrap_or_default().split_terminator('\n').collect();
        keys.retain(|known| *known != key && !over.contains(known));
        keys.push(key);
        let surplus = keys.len().saturating_sub(count_max);
        ended = keys.drain(..surplus).map(str::to_owned).collect();
        Some((keys.join("\n"), ends_ms))
    });
    if result.is_ok() {
        ended.iter().for_each(|key| remove_key(provider, key));
    }
    result
}

/// Returns the key of a list. It shows neither the user nor the session of the provider.
fn list_key(provider: &OidcProvider, kind: &str, name: &str) -> String {
    let about = [provider.context().as_slice(), kind.as_bytes(), name.as_bytes()].join(&0);
    format!("{kind}:{}", hashed(&about))
}

/// Removes a pair, if it exists.
fn remove_key(provider: &OidcProvider, key: &str) {
    // Only a zone of networks refuses the key of a session, and `session_store` names none.
    let _ = provider.sessions().edit(key, now(), |_| None);
}

/// Ends a session.
pub(super) fn remove(provider: &OidcProvider, thread: &Rc<Thread>, id: &RandomSecret) {
    remove_key(provider, &key_of(id));
    save(provider, thread);
}

/// Ends all sessions that belong to a session of the provider.
pub(super) fn remove_sid(provider: &OidcProvider, thread: &Rc<Thread>, sid: &str) {
    let sid = list_key(provider, "p", sid);
    let Some(keys) = provider.sessions().get(&sid, now()) else { return };
    keys.split_terminator('\n').for_each(|key| remove_key(provider, key));
    remove_key(provider, &sid);
    save(provider, thread);
}

/// Begins to write the state file of the zone, if it has one.
fn save(provider: &OidcProvider, thread: &Rc<Thread>) {
    let SavePairs(save) = thread.local::<SavePairs>();
    save(provider.zone(), thread);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_are_encoded() {
        let session = StoredSession {
            id_token: "a.b.c".to_owned(),
            access_token: String::new(),
            refresh_token: "r\n".to_owned(),
            userinfo: "{\"x\":\"é\"}".to_owned(),
            ends_ms: u64::MAX,
            refresh_ms: 1,
        };
        let encoded = session.encode();
        assert!(StoredSession::decode(&encoded).is_some_and(|decoded| decoded == session));
        for cut in 0..encoded.len() {
            assert!(StoredSession::decode(&encoded[..cut]).is_none(), "{cut}");
        }
        assert!(StoredSession::decode(&[0xff; 64]).is_none());
    }
}
