//! Session tickets (RFC 5077, RFC 8446 section 4.6.1): sessions that the client keeps, sealed by keys of the server.
//!
//! A ticket is `name of the key, 16 bytes | nonce, 12 bytes | sealed session`. A ticket sealed for a server block opens
//! only for that block: its name is authenticated with the ticket. Else a client without a certificate could resume a
//! session of another server that needs none (CVE-2025-23419 in nginx).
//!
//! Random keys come from a [`Chain`]. The master keeps one and gives it to each worker. So workers have the same keys
//! without messages, and tickets outlive a worker.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::hmac::{self, HMAC_SHA256};
use aws_lc_rs::{digest, rand};
use rustls::server::ProducesTickets;

use crate::seen::{self, SESSION_ID_BYTES};

/// Bytes of a ticket that name its key.
const NAME_BYTES: usize = 16;

/// Sizes of nginx's key files: of AES-128 and of AES-256. Their parts are name, HMAC key and AES key; here all of the
/// secret is hashed to one key.
pub const FILE_BYTES: [usize; 2] = [48, 80];

/// Random keys that were replaced and still open tickets: so a ticket lives for two to three of their lifetimes.
const REPLACED_KEYS_MAX: u64 = 2;

/// How long a random key seals at most: tickets of TLS 1.3 are valid for a week (RFC 8446 section 4.6.1).
const LIFETIME_S_MAX: u64 = 7 * 24 * 60 * 60;

/// Seconds of a secret of a [`Chain`].
const STEP_S: u64 = 60;

/// Secrets that are computed to reach a time. A clock that jumps further, as at the start of a machine without one, gets a
/// secret by one computation: tickets from before are then not opened.
const STEPS_MAX: u64 = 100_000;

/// Bytes of a secret.
const SECRET_BYTES: usize = 32;

/// Secrets of which each follows from the one before it, and none from a later one: forgotten keys cannot be computed
/// again, so that old tickets stay secret when a process is broken into.
#[derive(Clone, PartialEq, Eq)]
pub struct Chain {
    /// Which secret it is, by the time.
    step: u64,
    secret: [u8; SECRET_BYTES],
    /// The longest lifetime of keys of it in this process.
    longest_s: u64,
}

impl Chain {
    /// A random one, made at this time in seconds since 1970. `None` where the machine has no random numbers.
    pub fn random(now_s: u64) -> Option<Chain> {
        let mut secret = [0; SECRET_BYTES];
        rand::fill(&mut secret).ok()?;
        Some(Chain { step: now_s / STEP_S, secret, longest_s: 0 })
    }

    /// For another process.
    pub fn to_bytes(&self) -> Vec<u8> {
        [&self.step.to_le_bytes()[..], &self.secret].concat()
    }

    /// What [`Chain::to_bytes`] wrote.
    pub fn from_bytes(bytes: &[u8]) -> Option<Chain> {
        let (step, secret) = bytes.split_first_chunk()?;
        let step = u64::from_le_bytes(*step);
        Some(Chain { step, secret: secret.try_into().ok()?, longest_s: 0 })
    }

    /// Forgets secrets that no key replaced each `lifetime`, or more often, needs.
    pub fn forget(&mut self, now_s: u64, lifetime: Duration) {
        let kept_s = lifetime_s(lifetime) * (1 + REPLACED_KEYS_MAX);
        *self = self.at(now_s.saturating_sub(kept_s) / STEP_S);
    }

    /// The secret of a step; the first known one if that is a later one.
    fn at(&self, step: u64) -> Chain {
        let mut chain = self.clone();
        if step.saturating_sub(self.step) > STEPS_MAX {
            chain.secret = self.derive(b"jump", &step.to_le_bytes());
            chain.step = step;
        }
        while chain.step < step {
            chain.secret = chain.derive(b"next", b"");
            chain.step += 1;
        }
        chain
    }

    fn derive(&self, what: &[u8], of: &[u8]) -> [u8; SECRET_BYTES] {
        let tag = hmac::sign(&hmac::Key::new(HMAC_SHA256, &self.secret), &[what, of].concat());
        let mut out = [0; SECRET_BYTES];
        out.copy_from_slice(tag.as_ref());
        out
    }

    /// The key of this number among those with this lifetime.
    fn key(&self, lifetime_s: u64, number: u64) -> Option<Key> {
        let chain = self.at(number.saturating_mul(lifetime_s) / STEP_S);
        let label = [lifetime_s.to_le_bytes(), number.to_le_bytes()].concat();
        let name = *chain.derive(b"name", &label).first_chunk()?;
        Key::new(name, &chain.derive(b"key", &label))
    }
}

impl std::fmt::Debug for Chain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Chain").field("step", &self.step).finish_non_exhaustive()
    }
}

fn lifetime_s(lifetime: Duration) -> u64 {
    lifetime.as_secs().clamp(1, LIFETIME_S_MAX)
}

/// Seconds since 1970.
pub fn now_s() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// A key that seals tickets.
struct Key {
    name: [u8; NAME_BYTES],
    key: LessSafeKey,
}

impl Key {
    /// The key of a file of nginx's.
    fn from_file(bytes: &[u8]) -> Option<Key> {
        if !FILE_BYTES.contains(&bytes.len()) {
            return None;
        }
        let (name, secret) = bytes.split_at(NAME_BYTES);
        Key::new(name.try_into().ok()?, digest::digest(&digest::SHA256, secret).as_ref())
    }

    fn new(name: [u8; NAME_BYTES], secret: &[u8]) -> Option<Key> {
        let key = UnboundKey::new(&AES_256_GCM, secret).ok()?;
        Some(Key { name, key: LessSafeKey::new(key) })
    }
}

/// The keys of a worker: those of files, or random ones that are replaced in turn.
pub struct TicketKeys {
    keys: Mutex<Keys>,
    random: Option<Random>,
}

/// Where random keys come from.
struct Random {
    chain: Arc<Mutex<Chain>>,
    /// How long each seals.
    lifetime_s: u64,
}

#[derive(Default)]
struct Keys {
    /// The first seals, all open.
    keys: Vec<Arc<Key>>,
    /// The number of the first, where they are random.
    number: Option<u64>,
}

impl TicketKeys {
    /// The keys of files, the one that seals first. `None` where a file has another size.
    pub fn from_files(files: &[Vec<u8>]) -> Option<Arc<TicketKeys>> {
        let keys: Option<Vec<Arc<Key>>> =
            files.iter().map(|file| Key::from_file(file).map(Arc::new)).collect();
        let keys = keys.filter(|keys| !keys.is_empty())?;
        Some(Arc::new(TicketKeys { keys: Mutex::new(Keys { keys, number: None }), random: None }))
    }

    /// Keys out of a chain, each of which seals for so long.
    pub fn of_chain(chain: Arc<Mutex<Chain>>, lifetime: Duration) -> Arc<TicketKeys> {
        let lifetime_s = lifetime_s(lifetime);
        let mut known = chain.lock().unwrap_or_else(PoisonError::into_inner);
        known.longest_s = lifetime_s.max(known.longest_s);
        drop(known);
        Arc::new(TicketKeys { keys: Mutex::default(), random: Some(Random { chain, lifetime_s }) })
    }

    /// Random keys, each of which seals for so long. `None` where the machine has no random numbers.
    pub fn random(lifetime: Duration) -> Option<Arc<TicketKeys>> {
        let chain = Chain::random(now_s())?;
        Some(TicketKeys::of_chain(Arc::new(Mutex::new(chain)), lifetime))
    }

    /// The keys of this time.
    fn at(&self, now_s: u64) -> MutexGuard<'_, Keys> {
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(random) = &self.random else { return keys };
        let number = now_s / random.lifetime_s;
        // A clock that was set back has to reach the key that seals.
        if keys.number.is_none_or(|known| known < number) {
            let mut chain = random.chain.lock().unwrap_or_else(PoisonError::into_inner);
            let longest = Duration::from_secs(chain.longest_s);
            chain.forget(now_s, longest);
            let numbers = (number.saturating_sub(REPLACED_KEYS_MAX)..=number).rev();
            let made = numbers.filter_map(|number| chain.key(random.lifetime_s, number).map(Arc::new));
            *keys = Keys { keys: made.collect(), number: Some(number) };
        }
        keys
    }
}

impl std::fmt::Debug for TicketKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let lifetime_s = self.random.as_ref().map(|random| random.lifetime_s);
        f.debug_struct("TicketKeys").field("lifetime_s", &lifetime_s).finish_non_exhaustive()
    }
}

/// The chain of this process.
static CHAIN: Mutex<Option<Arc<Mutex<Chain>>>> = Mutex::new(None);

/// Takes the chain of the master: before it reads a configuration, a worker calls this once.
pub fn go_on_with(chain: Chain) {
    let mut own = CHAIN.lock().unwrap_or_else(PoisonError::into_inner);
    *own = Some(Arc::new(Mutex::new(chain)));
}

/// The chain of this process for another one. The master has it since it has read a configuration; nothing before that.
pub fn chain_for_worker() -> Option<Chain> {
    let own = CHAIN.lock().unwrap_or_else(PoisonError::into_inner);
    let mut chain = own.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner);
    let longest = Duration::from_secs(chain.longest_s);
    chain.forget(now_s(), longest);
    Some(chain.clone())
}

/// The random keys of this process with this lifetime: a reload in place keeps them, so that tickets hold. `None` where the
/// machine has no random numbers.
pub fn random_of_process(lifetime: Duration) -> Option<Arc<TicketKeys>> {
    let mut own = CHAIN.lock().unwrap_or_else(PoisonError::into_inner);
    if own.is_none() {
        *own = Some(Arc::new(Mutex::new(Chain::random(now_s())?)));
    }
    own.as_ref().map(|chain| TicketKeys::of_chain(Arc::clone(chain), lifetime))
}

/// Tickets of one server block.
#[derive(Debug)]
pub struct Tickets {
    /// Its keys.
    pub keys: Arc<TicketKeys>,
    /// Which server block: tickets of another one do not open.
    pub scope: Vec<u8>,
    /// `ssl_session_timeout`
    pub lifetime: Duration,
}

impl Tickets {
    /// Makes a ticket, which holds the identifier of its session before rustls's data. `None` where the machine has no
    /// random numbers.
    pub fn seal(&self, session: &[u8], now_s: u64) -> Option<Vec<u8>> {
        let key = self.keys.at(now_s).keys.first().cloned()?;
        let mut nonce = [0; NONCE_LEN];
        rand::fill(&mut nonce).ok()?;
        let mut sealed = [&seen::session_id()?[..], session].concat();
        let (nonce_used, aad) = (Nonce::assume_unique_for_key(nonce), Aad::from(&self.scope));
        key.key.seal_in_place_append_tag(nonce_used, aad, &mut sealed).ok()?;
        Some([&key.name[..], &nonce, &sealed].concat())
    }

    /// What [`Tickets::seal`] was given, where this server block made the ticket lately.
    pub fn open(&self, ticket: &[u8], now_s: u64) -> Option<Vec<u8>> {
        let (name, rest) = ticket.split_at_checked(NAME_BYTES)?;
        let (nonce, sealed) = rest.split_at_checked(NONCE_LEN)?;
        let key = self.keys.at(now_s).keys.iter().find(|key| key.name == name).cloned()?;
        let mut sealed = sealed.to_vec();
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let opened = key.key.open_in_place(nonce, Aad::from(&self.scope), &mut sealed).ok()?;
        let (session_id, session) = opened.split_first_chunk::<SESSION_ID_BYTES>()?;
        seen::note(|seen| seen.session_id = Some(*session_id));
        Some(session.to_vec())
    }
}

impl ProducesTickets for Tickets {
    fn enabled(&self) -> bool {
        true
    }

    fn lifetime(&self) -> u32 {
        u32::try_from(self.lifetime.as_secs()).unwrap_or(u32::MAX)
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        self.seal(plain, now_s())
    }

    fn decrypt(&self, ticket: &[u8]) -> Option<Vec<u8>> {
        self.open(ticket, now_s())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tickets(keys: &Arc<TicketKeys>, scope: &str) -> Tickets {
        Tickets { keys: Arc::clone(keys), scope: scope.into(), lifetime: Duration::from_secs(300) }
    }

    fn keys() -> Arc<TicketKeys> {
        TicketKeys::random(Duration::from_secs(300)).unwrap()
    }

    #[test]
    fn a_ticket_opens_for_the_server_that_made_it_alone() {
        let keys = keys();
        let ticket = tickets(&keys, "a").encrypt(b"session").unwrap();
        assert_eq!(tickets(&keys, "a").decrypt(&ticket).unwrap(), b"session");
        assert_eq!(tickets(&keys, "b").decrypt(&ticket), None);
    }

    #[test]
    fn a_changed_ticket_does_not_open() {
        let keys = keys();
        let ticket = tickets(&keys, "a").encrypt(b"session").unwrap();
        for index in 0..ticket.len() {
            let mut changed = ticket.clone();
            changed[index] ^= 1;
            assert_eq!(tickets(&keys, "a").decrypt(&changed), None, "byte {index}");
            assert_eq!(tickets(&keys, "a").decrypt(&ticket[..index]), None, "{index} bytes");
        }
    }

    #[test]
    fn keys_of_files_open_what_each_of_them_sealed() {
        let (old, new) = (vec![1; 48], vec![2; 80]);
        let before = TicketKeys::from_files(std::slice::from_ref(&old)).unwrap();
        let after = TicketKeys::from_files(&[new.clone(), old]).unwrap();
        let ticket = tickets(&before, "a").encrypt(b"session").unwrap();
        assert_eq!(tickets(&after, "a").decrypt(&ticket).unwrap(), b"session");
        assert_eq!(&tickets(&after, "a").encrypt(b"x").unwrap()[..NAME_BYTES], &new[..NAME_BYTES]);
        assert!(TicketKeys::from_files(&[vec![0; 47]]).is_none());
    }

    #[test]
    fn random_keys_are_replaced_and_open_for_a_while() {
        for lifetime_s in [1, 7, 60, 300, 86_400] {
            let chain = Chain::random(1_000_000_000).unwrap();
            let keys = TicketKeys::of_chain(Arc::new(Mutex::new(chain)), Duration::from_secs(lifetime_s));
            let sealed = tickets(&keys, "a");
            let begin = 1_000_000_000 / lifetime_s * lifetime_s;
            let ticket = sealed.seal(b"session", begin).unwrap();
            let name = |at| sealed.seal(b"x", at).unwrap()[..NAME_BYTES].to_vec();
            assert_eq!(name(begin + lifetime_s - 1), ticket[..NAME_BYTES]);
            assert_ne!(name(begin + lifetime_s), ticket[..NAME_BYTES]);
            assert_eq!(name(begin), name(begin + lifetime_s), "the clock was set back");
            assert!(sealed.open(&ticket, begin + 3 * lifetime_s - 1).is_some(), "two keys ago");
            assert!(sealed.open(&ticket, begin + 3 * lifetime_s).is_none(), "three keys ago");
        }
    }

    #[test]
    fn processes_with_the_same_chain_have_the_same_keys_and_forget_the_old_ones() {
        let start = 1_000_000_000;
        for lifetime_s in [1, 59, 60, 61, 300, 3600, 86_400, 30 * 86_400] {
            let lifetime = Duration::from_secs(lifetime_s);
            let mut master = Chain::random(start).unwrap();
            let keys_of = |chain: &Chain| TicketKeys::of_chain(Arc::new(Mutex::new(chain.clone())), lifetime);
            let first = keys_of(&Chain::from_bytes(&master.to_bytes()).unwrap());
            for elapsed in [0, 1, lifetime_s, 2 * lifetime_s + 1, 9 * lifetime_s + 5] {
                let now = start + elapsed;
                let ticket = tickets(&first, "a").seal(b"session", now).unwrap();
                master.forget(now, lifetime);
                let second = keys_of(&Chain::from_bytes(&master.to_bytes()).unwrap());
                let opened = tickets(&second, "a").open(&ticket, now);
                assert_eq!(opened.as_deref(), Some(&b"session"[..]), "{lifetime_s} s, {elapsed} later");
            }
            let forgotten = Chain::from_bytes(&master.to_bytes()).unwrap();
            assert!(forgotten.step > start / STEP_S || lifetime_s < STEP_S);
        }
    }

    #[test]
    fn a_clock_that_jumps_costs_little() {
        let mut chain = Chain::random(0).unwrap();
        chain.forget(u64::MAX, Duration::from_secs(1));
        assert!(chain.key(1, u64::MAX).is_some() && chain.key(1, 0).is_some());
        assert!(Chain::from_bytes(b"short").is_none());
    }
}
