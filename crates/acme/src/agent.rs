//! Obtains and renews certificates until the host, the server, has exited.
//!
//! ```text
//! for each order:  no certificate -----------------------------> obtain --> store on disk --> deliver --> query window --> wait
//!                  certificate: query window --> wait until then --^
//!                  failure: wait, twice as long each time ---------^
//! ```
//! [`Host`] is the agent's interface to the server. Its calls may block, and each returns an error if the server has exited.
//! The agent processes one CA and one order at a time: CAs limit the request rate, and certificates are renewed weeks before they
//! expire.
//!
//! A certificate is stored on disk before the host receives it. A crash thus loses at most a certificate that is not in use yet.

use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use tls::certificate::Identity;
use tls::signing::{SigningKey, generate, random_fraction};
use tls::x509::Certificate;

use crate::client::{AcmeError, Client, Problem, challenge_name, check, is_token};
use crate::jws;
use crate::schedule::{self, QUERY_TIME};
use crate::settings::{AccountKey, Issuer, Order};
use crate::state::{self, StateDirectory};

/// Maximum time of a sleep, because the clock may be set during the sleep.
const SLEEP_MAX: Duration = Duration::from_secs(60 * 60);

/// Minimum time from a new certificate to its renewal, if the certificate is valid for at least twice this time. It limits the
/// number of orders if the clock is wrong, or if the CA's window for the renewal has passed.
const USE_MIN: Duration = Duration::from_secs(60 * 60);

/// Maximum length of a pause that a CA requests, so that the end of the pause does not exceed the range of `Instant`.
const PAUSE_LIMIT: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Severity of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// A step of the protocol.
    Info,
    /// A message that operators may need.
    Notice,
    /// A failure that is retried.
    Warn,
    /// A failure that requires an action of the operator.
    Error,
}

/// The host has exited, so the agent must end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostExited;

/// The resource that a CA requests to verify a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Challenge {
    /// A file with this name in `/.well-known/acme-challenge/`.
    Http {
        /// The file name.
        token: String,
        /// The content of the file.
        text: String,
    },
    /// A TLS handshake with this server name.
    Tls {
        /// The server name, in lower case.
        name: String,
        /// The certificate to present, with its private key, in PEM.
        pem: Vec<u8>,
    },
}

/// Whether a challenge can prove the ownership of this name of an order. The server checks the challenges of this process, which reads
/// bytes from the network.
pub fn is_challenge_of(challenge: &Challenge, name: &str) -> bool {
    match challenge {
        Challenge::Http { token, text } => {
            let thumbprint = text.strip_prefix(token.as_str()).and_then(|rest| rest.strip_prefix('.'));
            is_token(token) && thumbprint.is_some_and(is_token)
        }
        Challenge::Tls { name: found, .. } => *found == challenge_name(name),
    }
}

/// The server for which certificates are obtained.
pub trait Host {
    /// Installs a challenge in all threads before it returns.
    fn install(&mut self, challenge: &Challenge) -> Result<(), HostExited>;
    /// Removes a challenge that is no longer needed.
    fn remove(&mut self, challenge: &Challenge) -> Result<(), HostExited>;
    /// Delivers a new certificate: the chain with its private key, in PEM.
    fn deliver(&mut self, id: &str, pem: &[u8]) -> Result<(), HostExited>;
    /// Logs a line.
    fn log(&mut self, level: Level, text: &str);
    /// Sleeps for at most this time.
    fn wait(&mut self, time: Duration) -> Result<(), HostExited>;
}

/// A CA with its account.
struct Account<'a> {
    issuer: &'a Issuer,
    state: Option<StateDirectory>,
    client: Option<Client<'a>>,
    /// The account key that this process generated; needed if no state directory stores it.
    key: Option<String>,
}

/// A certificate that the agent obtains and renews.
struct Task<'a> {
    /// The index of the CA's account.
    account: usize,
    order: &'a Order,
    id: String,
    /// The present certificate, if the CA issued one.
    current: Option<Certificate>,
    /// Time of the renewal, in seconds since 1970; 0 without a certificate.
    due: i64,
    /// End of a pause, or of the minimum use of a new certificate. It is an `Instant`, because the clock may be set back
    /// meanwhile.
    not_before: Instant,
    /// Time of the next query for renewal information.
    query_at: Option<Instant>,
    failures: u32,
    /// A certificate in PEM that could not be stored, for example because the disk is full.
    unsaved: Option<Vec<u8>>,
}

/// Returns the available certificate for an order in PEM: the stored one, or the one in memory if that is newer. A newer
/// certificate exists only in memory if it could not be stored.
pub fn available(issuer: &Issuer, order: &Order, in_memory: Option<&[u8]>) -> Option<Vec<u8>> {
    let stored = issuer.state_path.as_ref().and_then(|path| state::certificate(path, &order.digest()));
    let begins = |pem: &Vec<u8>| first_of(pem).and_then(|it| it.begins());
    [stored, in_memory.map(<[u8]>::to_vec)].into_iter().flatten().max_by_key(begins)
}

/// Obtains and renews the certificates of these CAs until the host exits. `known` contains certificates that are stored only in
/// memory.
pub fn run(issuers: &[Issuer], known: &[(String, Vec<u8>)], host: &mut dyn Host) -> HostExited {
    let account = |issuer| Account { issuer, state: None, client: None, key: None };
    let mut accounts: Vec<Account<'_>> = issuers.iter().map(account).collect();
    let mut tasks = Vec::new();
    for (index, issuer) in issuers.iter().enumerate() {
        for order in &issuer.orders {
            tasks.push(Task::new(index, issuer, order, known));
        }
    }
    loop {
        let mut is_unavailable = vec![None; accounts.len()];
        for task in &mut tasks {
            if let Err(HostExited) =
                task.step(&mut accounts[task.account], &mut is_unavailable[task.account], host)
            {
                return HostExited;
            }
        }
        let queries = tasks.iter().filter_map(|task| task.query_at).map(time_until);
        let left = tasks.iter().map(Task::time_left).chain(queries).min().unwrap_or(SLEEP_MAX);
        if let Err(HostExited) = host.wait(left.clamp(Duration::from_secs(1), SLEEP_MAX)) {
            return HostExited;
        }
    }
}

/// Returns the time in seconds since 1970.
fn now() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

/// Returns the end of a pause.
fn after(pause: Duration) -> Instant {
    Instant::now() + pause.min(PAUSE_LIMIT)
}

/// Returns the time until this instant, or zero.
fn time_until(instant: Instant) -> Duration {
    instant.saturating_duration_since(Instant::now())
}

/// Returns the first certificate of a chain in PEM.
fn first_of(pem: &[u8]) -> Option<Certificate> {
    let identity = Identity::from_pem(pem, pem, &[]).ok()?;
    Certificate::from_der(identity.chain().first()?)
}

impl<'a> Task<'a> {
    fn new(account: usize, issuer: &Issuer, order: &'a Order, known: &[(String, Vec<u8>)]) -> Task<'a> {
        let id = issuer.id_of(order);
        let in_memory = known.iter().find(|(known, _)| *known == id).map(|(_, pem)| pem.as_slice());
        // The file may belong to another order, or may have been edited. So the certificate must match the names of the
        // order.
        let kept = available(issuer, order, in_memory).filter(|pem| check(pem, order).is_ok());
        // The certificate of another CA remains in use until it is replaced, which is due immediately.
        let is_ours = |pem: &&[u8]| state::is_issued_by(pem, &issuer.uri);
        let current = kept.as_deref().filter(is_ours).and_then(first_of);
        let is_unsaved = |(path, pem): &(&PathBuf, Vec<u8>)| {
            state::certificate(path, &order.digest()).as_ref() != Some(pem)
        };
        let unsaved = issuer.state_path.as_ref().zip(kept).filter(is_unsaved).map(|(_, pem)| pem);
        let mut task = Task {
            account,
            order,
            id,
            current: None,
            due: 0,
            not_before: Instant::now(),
            query_at: None,
            failures: 0,
            unsaved,
        };
        task.set(current);
        task
    }

    /// Stores a certificate, and schedules its renewal.
    fn set(&mut self, certificate: Option<Certificate>) {
        let times = certificate.as_ref().and_then(|it| it.begins().zip(it.expires()));
        if let Some((begins, expires)) = times {
            self.due = schedule::renewal(begins, expires, None, random_fraction());
            // The first query is due immediately: the CA may request an earlier renewal, for example because it will
            // revoke the certificate.
            self.query_at = Some(Instant::now());
        }
        self.current = certificate;
    }

    /// Returns the time until the certificate is obtained or renewed. Pauses postpone this.
    fn time_left(&self) -> Duration {
        let seconds = u64::try_from(self.due.saturating_sub(now())).unwrap_or(0);
        Duration::from_secs(seconds).max(time_until(self.not_before))
    }

    /// Postpones the next try.
    fn postpone(&mut self, pause: Duration) {
        self.not_before = after(pause);
    }

    /// Resets the pauses after failures, and sets the minimum time until the new certificate is renewed.
    fn succeed(&mut self, pem: &[u8]) {
        self.failures = 0;
        let certificate = first_of(pem);
        let times = certificate.as_ref().and_then(|it| it.begins().zip(it.expires()));
        let half = times.map_or(0, |(begins, expires)| u64::try_from((expires - begins) / 2).unwrap_or(0));
        self.postpone(USE_MIN.min(Duration::from_secs(half)));
        self.set(certificate);
    }

    /// Performs the steps that are due. `unavailable` is the time for which the other certificates of the same CA must wait.
    fn step(
        &mut self,
        account: &mut Account<'a>,
        unavailable: &mut Option<Duration>,
        host: &mut dyn Host,
    ) -> Result<(), HostExited> {
        if self.unsaved.is_some()
            && account.open_state().is_ok()
            && self.store(account.state.as_ref()).is_ok()
        {
            host.log(
                Level::Notice,
                &format!("acme: the certificate for {} has been stored", self.order.shown()),
            );
        }
        if self.query_at.is_some_and(|at| at <= Instant::now()) {
            self.query_renewal(account, unavailable, host);
        }
        if !self.time_left().is_zero() {
            return Ok(());
        }
        if let Some(pause) = unavailable {
            self.postpone(*pause);
            return Ok(());
        }
        let done = match account.open(host) {
            Ok(()) => self.obtain(account, host),
            Err(error) => {
                // The CA is not available.
                self.failures += 1;
                let pause = self.pause(&error);
                *unavailable = Some(pause);
                self.complain(account.issuer, &error, pause, host);
                return if matches!(error, AcmeError::HostExited) { Err(HostExited) } else { Ok(()) };
            }
        };
        match done {
            Ok(()) => {
                self.query_renewal(account, unavailable, host);
                Ok(())
            }
            Err(AcmeError::HostExited) => Err(HostExited),
            Err(error) => {
                self.failures += 1;
                let pause = self.pause(&error);
                self.complain(account.issuer, &error, pause, host);
                // The next try fetches the directory again, and creates another account if the CA does not know this one.
                account.client = None;
                let is_unknown = |problem: &Problem| problem.kind == "accountDoesNotExist";
                if matches!(&error, AcmeError::Problem(problem) if is_unknown(problem)) {
                    account.forget();
                    // The first of such failures is not a reason to wait.
                    if self.failures == 1 {
                        self.postpone(Duration::ZERO);
                    }
                }
                Ok(())
            }
        }
    }

    fn pause(&mut self, error: &AcmeError) -> Duration {
        let pause = schedule::pause(self.failures, random_fraction()).min(schedule::PAUSE_MAX);
        let pause = pause.max(error.retry_after().unwrap_or_default());
        self.postpone(pause);
        pause
    }

    fn complain(&self, issuer: &Issuer, error: &AcmeError, pause: Duration, host: &mut dyn Host) {
        let level = match error {
            AcmeError::Terms(_) | AcmeError::NoExternalAccount | AcmeError::Profile(_) => Level::Error,
            _ => Level::Warn,
        };
        let (name, seconds) = (&issuer.name, pause.as_secs());
        let text = format!(
            "acme: no certificate for {} from issuer \"{name}\": {error}; next try in {seconds} s",
            self.order.shown()
        );
        host.log(level, &text);
    }

    fn obtain(&mut self, account: &mut Account<'a>, host: &mut dyn Host) -> Result<(), AcmeError> {
        let issuer = account.issuer;
        let Some(client) = &mut account.client else { return Err(AcmeError::Malformed("directory")) };
        let (name, shown) = (&issuer.name, self.order.shown());
        host.log(Level::Info, &format!("acme: ordering a certificate for {shown} from issuer \"{name}\""));
        let issued = client.obtain(self.order, self.current.as_ref(), host)?;
        self.unsaved = issuer.state_path.is_some().then(|| issued.pem.clone());
        if let Err(error) = self.store(account.state.as_ref()) {
            // The server can use the certificate although it could not be stored.
            host.log(
                Level::Error,
                &format!("acme: the certificate for {shown} cannot be stored yet: {error}"),
            );
        }
        host.deliver(&self.id, &issued.pem)?;
        self.succeed(&issued.pem);
        host.log(Level::Notice, &format!("acme: issuer \"{name}\" issued a certificate for {shown}"));
        Ok(())
    }

    /// Stores a certificate that is not stored yet. If this fails, the next step retries it.
    fn store(&mut self, state: Option<&StateDirectory>) -> io::Result<()> {
        if let (Some(pem), Some(state)) = (&self.unsaved, state) {
            state.set_certificate(&self.order.digest(), pem)?;
        }
        self.unsaved = None;
        Ok(())
    }

    /// Queries the CA for the time of the renewal. A failure only postpones the next query, because a time of the
    /// renewal is already scheduled.
    fn query_renewal(
        &mut self,
        account: &mut Account<'a>,
        unavailable: &mut Option<Duration>,
        host: &mut dyn Host,
    ) {
        self.query_at = Some(after(QUERY_TIME));
        let Some(current) = &self.current else {
            self.query_at = None;
            return;
        };
        if unavailable.is_some() {
            return;
        }
        let asked = account.open(host).and_then(|()| match &account.client {
            Some(client) => client.renewal(current),
            None => Ok(None),
        });
        let shown = self.order.shown();
        match asked {
            Ok(Some(renewal)) => {
                self.query_at = Some(after(renewal.query_after));
                let times = current.begins().zip(current.expires()).unwrap_or_default();
                self.due = schedule::renewal(times.0, times.1, Some(renewal.window), random_fraction());
                let days = self.time_left().as_secs() / 86_400;
                let why = renewal.explanation.map(|url| format!(", see {url}")).unwrap_or_default();
                host.log(
                    Level::Info,
                    &format!("acme: the certificate for {shown} is renewed in {days} days{why}"),
                );
            }
            Ok(None) => self.query_at = None,
            Err(error) => {
                self.postpone_query(&error, account, unavailable);
                host.log(Level::Info, &format!("acme: no renewal information for {shown}: {error}"));
            }
        }
    }

    /// Postpones the next query after a failure. If the CA cannot be used at all, its other certificates wait too.
    fn postpone_query(
        &mut self,
        error: &AcmeError,
        account: &Account<'a>,
        unavailable: &mut Option<Duration>,
    ) {
        let retry_after = error.retry_after().unwrap_or_default();
        self.query_at = Some(after(QUERY_TIME.max(retry_after)));
        if account.client.is_none() {
            *unavailable = Some(schedule::pause(1, random_fraction()).max(retry_after));
        }
    }
}

impl<'a> Account<'a> {
    /// Fetches the directory of the CA, and finds or creates the account.
    fn open(&mut self, host: &mut dyn Host) -> Result<(), AcmeError> {
        if self.client.is_some() {
            return Ok(());
        }
        self.open_state()?;
        let issuer = self.issuer;
        let pem = self.account_key()?;
        let key = SigningKey::from_pem(&pem).map_err(|error| AcmeError::Key(error.to_string()))?;
        let thumbprint = jws::thumbprint(&key);
        let account = self.state.as_ref().and_then(|state| state.account_url(&issuer.uri, &thumbprint));
        let mut client = Client::new(issuer, key, account)?;
        if client.ensure_account()?
            && let Some(account) = client.account()
        {
            let name = &issuer.name;
            host.log(Level::Info, &format!("acme: the account at issuer \"{name}\" is {account}"));
            if let Some(state) = &self.state {
                let kept = state.set_account_url(&issuer.uri, account, &thumbprint);
                kept.map_err(|error| AcmeError::Key(error.to_string()))?;
            }
        }
        self.client = Some(client);
        Ok(())
    }

    /// Opens the state directory, if there is one.
    fn open_state(&mut self) -> Result<(), AcmeError> {
        if let (None, Some(path)) = (&self.state, &self.issuer.state_path) {
            let opened = StateDirectory::open(path);
            self.state = Some(opened.map_err(|error| {
                let reason = match error.kind() {
                    io::ErrorKind::WouldBlock => "another process uses it".to_owned(),
                    _ => error.to_string(),
                };
                AcmeError::Key(format!("the state directory \"{}\": {reason}", path.display()))
            })?);
        }
        Ok(())
    }

    /// Returns the private key of the account: the configured key, the stored key, or a new key.
    fn account_key(&mut self) -> Result<Vec<u8>, AcmeError> {
        let kind = match &self.issuer.account_key {
            AccountKey::Pem(pem) => return Ok(pem.clone()),
            AccountKey::Generated(kind) => *kind,
        };
        if let Some(kept) = self.state.as_ref().and_then(StateDirectory::account_key) {
            return Ok(kept);
        }
        if let Some(key) = &self.key {
            return Ok(key.clone().into_bytes());
        }
        let pem = generate(kind).ok_or_else(|| AcmeError::Key("it could not be generated".to_owned()))?;
        if let Some(state) = &self.state {
            state.set_account_key(&pem).map_err(|error| AcmeError::Key(error.to_string()))?;
        }
        self.key = Some(pem.clone());
        Ok(pem.into_bytes())
    }

    /// Removes the stored URL of an account that the CA does not know. The next try creates a new account.
    fn forget(&mut self) {
        if let Some(state) = &self.state {
            // Empty URLs match no CA.
            let _ = state.set_account_url("", "", "");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, KeyPair};

    /// A host that stores log lines.
    #[derive(Default)]
    struct Lines(Vec<String>);

    impl Host for Lines {
        fn install(&mut self, _: &Challenge) -> Result<(), HostExited> {
            Ok(())
        }

        fn remove(&mut self, _: &Challenge) -> Result<(), HostExited> {
            Ok(())
        }

        fn deliver(&mut self, _: &str, _: &[u8]) -> Result<(), HostExited> {
            Ok(())
        }

        fn log(&mut self, _: Level, text: &str) {
            self.0.push(text.to_owned());
        }

        fn wait(&mut self, _: Duration) -> Result<(), HostExited> {
            Err(HostExited)
        }
    }

    /// Returns a CA with an order, and with a state directory for this test.
    fn issuer(label: &str) -> Issuer {
        let path = std::env::temp_dir().join(format!("acme-agent-{label}-{}", std::process::id()));
        let order = Order { names: vec!["a.example".to_owned()], ..Order::default() };
        Issuer { orders: vec![order], state_path: Some(path), ..Issuer::new("one") }
    }

    /// Returns a certificate for the order with its key, valid between these years.
    fn certificate(begins: i32, expires: i32) -> Vec<u8> {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(vec!["a.example".to_owned()]).expect("a name");
        params.not_before = rcgen::date_time_ymd(begins, 1, 1);
        params.not_after = rcgen::date_time_ymd(expires, 1, 1);
        let certificate = params.self_signed(&key).expect("a certificate").pem();
        (certificate + &key.serialize_pem()).into_bytes()
    }

    /// Returns a task without a certificate.
    fn task<'a>(issuer: &'a Issuer) -> Task<'a> {
        Task::new(0, issuer, &issuer.orders[0], &[])
    }

    /// Returns a CA's error with `Retry-After`.
    fn rate_limited(retry_after: Duration) -> AcmeError {
        let (kind, detail) = ("rateLimited".to_owned(), String::new());
        AcmeError::Problem(Problem { kind, detail, status: 429, retry_after: Some(retry_after) })
    }

    #[test]
    fn a_query_for_the_renewal_obeys_retry_after() {
        let issuer = issuer("query");
        let mut task = task(&issuer);
        let account = Account { issuer: &issuer, state: None, client: None, key: None };
        let (start, mut unavailable) = (Instant::now(), None);
        task.postpone_query(&AcmeError::HostExited, &account, &mut unavailable);
        assert!(task.query_at.is_some_and(|at| at >= start + QUERY_TIME), "{:?} {start:?}", task.query_at);
        assert!(unavailable.is_some_and(|pause| pause < QUERY_TIME), "{unavailable:?}");
        let retry_after = Duration::from_secs(3 * 86_400);
        task.postpone_query(&rate_limited(retry_after), &account, &mut unavailable);
        assert!(task.query_at.is_some_and(|at| at >= start + retry_after), "{:?} {start:?}", task.query_at);
        assert_eq!(unavailable, Some(retry_after));
    }

    #[test]
    fn a_pause_depends_neither_on_the_window_for_the_renewal_nor_on_the_clock() {
        let issuer = issuer("pause");
        let mut task = task(&issuer);
        let retry_after = Duration::from_secs(3 * 86_400);
        let error = rate_limited(retry_after);
        let start = Instant::now();
        assert_eq!(task.pause(&error), retry_after, "it is not limited to a day");
        assert_eq!(task.due, 0, "no time of the clock, which may be set back");
        // The CA's window has begun.
        task.due = now();
        assert!(task.not_before >= start + retry_after, "{:?} {start:?}", task.not_before);
        assert!(!task.time_left().is_zero());
        task.failures = 30;
        assert!(task.pause(&AcmeError::HostExited) <= schedule::PAUSE_MAX);
        assert_eq!(task.pause(&rate_limited(Duration::MAX)), Duration::MAX);
        assert!(task.time_left() <= PAUSE_LIMIT);
    }

    #[test]
    fn a_new_certificate_is_not_renewed_within_an_hour_even_if_the_clock_is_wrong() {
        let issuer = issuer("clock");
        let mut task = task(&issuer);
        let start = Instant::now();
        task.succeed(&certificate(2001, 2002));
        assert!(task.due < now() && !task.time_left().is_zero());
        assert!(task.not_before >= start + USE_MIN, "{:?} {start:?}", task.not_before);
        task.succeed(&certificate(2001, 2099));
        assert!(task.due > now() + 86_400, "the pause does not shorten the use");
    }

    #[test]
    fn a_certificate_of_another_authority_is_replaced_immediately() {
        let issuer = Issuer { uri: "https://a.example/dir".to_owned(), state_path: None, ..issuer("other") };
        let task_with = |pem: Vec<u8>| {
            Task::new(0, &issuer, &issuer.orders[0], &[(issuer.id_of(&issuer.orders[0]), pem)])
        };
        let pem = certificate(2020, 2099);
        for (pem, is_ours) in [
            (state::with_issuer(&pem, "https://a.example/dir"), true),
            (state::with_issuer(&pem, "https://staging.example/dir"), false),
            // A certificate that 0.1 stored.
            (pem, true),
        ] {
            let task = task_with(pem);
            assert_eq!((task.current.is_some(), !task.time_left().is_zero()), (is_ours, is_ours));
        }
    }

    #[test]
    fn a_certificate_that_could_not_be_stored_is_not_replaced_by_the_stored_one() {
        let issuer = issuer("unsaved");
        let (order, path) = (&issuer.orders[0], issuer.state_path.as_ref().expect("a path"));
        let (old, new) = (certificate(2020, 2099), certificate(2021, 2099));
        let state = StateDirectory::open(path).expect("it is created");
        state.set_certificate(&order.digest(), &old).expect("it is written");
        drop(state);
        assert_eq!(available(&issuer, order, None), Some(old.clone()));
        assert_eq!(available(&issuer, order, Some(&new)), Some(new.clone()));
        assert_eq!(available(&issuer, order, Some(&certificate(2019, 2099))), Some(old.clone()));
        // The certificate cannot be written while a directory has the temporary name.
        let obstacle = path.join("certificates").join(format!("{}.new", order.digest()));
        std::fs::create_dir(&obstacle).expect("it is created");
        let known = [(issuer.id_of(order), new.clone())];
        let mut task = Task::new(0, &issuer, order, &known);
        let mut account = Account { issuer: &issuer, state: None, client: None, key: None };
        // The renewal is not due, and the CA is not queried.
        task.query_at = None;
        let mut host = Lines::default();
        task.step(&mut account, &mut None, &mut host).expect("the host runs");
        assert_eq!(state::certificate(path, &order.digest()), Some(old));
        std::fs::remove_dir(&obstacle).expect("it is removed");
        task.step(&mut account, &mut None, &mut host).expect("the host runs");
        assert_eq!(state::certificate(path, &order.digest()), Some(new));
        assert_eq!(host.0, ["acme: the certificate for \"a.example\" has been stored"]);
        assert_eq!(task.unsaved, None);
        std::fs::remove_dir_all(path).expect("it is removed");
    }
}
