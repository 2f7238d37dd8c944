//! Obtains and renews certificates, until its host exits.
//!
//! ```text
//! for each order:  no certificate -----------------------------> obtain --> store on disk --> deliver --> query window --> wait
//!                  certificate: query window --> wait until then --^
//!                  failure: wait, twice as long each time ---------^
//! ```
//! [`Host`] is the agent's interface to the server. All of its calls may block, and each can return that the server has exited.
//! The agent processes one CA and one order at a time: CAs limit the request rate, and certificates are renewed weeks before they
//! expire.
//!
//! A certificate is stored on disk before the host receives it. A crash thus loses at most a certificate that is not in use yet.

use std::time::{Duration, SystemTime};

use tls::certificate::Identity;
use tls::signing::{SigningKey, generate, random_fraction};
use tls::x509::Certificate;

use crate::client::{AcmeError, Client, Problem, check};
use crate::schedule::{self, QUERY_TIME};
use crate::settings::{AccountKey, Issuer, Order};
use crate::state::{self, State};

/// Maximum time of a sleep, because the clock may be set during the sleep.
const SLEEP_MAX: Duration = Duration::from_secs(60 * 60);

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

/// The resource that a CA will request.
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

/// The server for which certificates are obtained.
pub trait Host {
    /// Installs a challenge in all threads before it returns.
    fn install(&mut self, challenge: &Challenge) -> Result<(), HostExited>;
    /// Removes a challenge that has ended.
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
    state: Option<State>,
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
    /// The present certificate, if any.
    current: Option<Certificate>,
    /// Time when the certificate is obtained or renewed.
    due: i64,
    /// Time of the next query for renewal information.
    query_at: Option<i64>,
    failures: u32,
}

/// Obtains and renews the certificates of these CAs until the host exits. `known` contains certificates that are stored only in
/// memory.
pub fn run(issuers: &[Issuer], known: &[(String, Vec<u8>)], host: &mut dyn Host) -> HostExited {
    let account = |issuer| Account { issuer, state: None, client: None, key: None };
    let mut accounts: Vec<Account<'_>> = issuers.iter().map(account).collect();
    let mut tasks = Vec::new();
    for (place, issuer) in issuers.iter().enumerate() {
        for order in &issuer.orders {
            tasks.push(Task::new(place, issuer, order, known));
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
        let next = tasks.iter().flat_map(|task| [Some(task.due), task.query_at]).flatten().min();
        let left =
            next.map_or(SLEEP_MAX, |next| Duration::from_secs(u64::try_from(next - now()).unwrap_or(0)));
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

/// Returns the time after a pause, in seconds since 1970.
fn after(pause: Duration) -> i64 {
    now().saturating_add(i64::try_from(pause.as_secs()).unwrap_or(i64::MAX))
}

/// Returns the first certificate of a chain in PEM.
fn first_of(pem: &[u8]) -> Option<Certificate> {
    let identity = Identity::from_pem(pem, pem, &[]).ok()?;
    Certificate::from_der(identity.chain().first()?)
}

impl<'a> Task<'a> {
    fn new(account: usize, issuer: &Issuer, order: &'a Order, known: &[(String, Vec<u8>)]) -> Task<'a> {
        let id = issuer.id_of(order);
        let kept = issuer.state_path.as_ref().and_then(|path| state::certificate(path, &order.digest()));
        let kept = kept.or_else(|| known.iter().find(|(known, _)| *known == id).map(|(_, pem)| pem.clone()));
        // The file may belong to another order or may have been edited; it must match these names.
        let kept = kept.filter(|pem| check(pem, order).is_ok());
        let mut task = Task { account, order, id, current: None, due: now(), query_at: None, failures: 0 };
        task.set(kept.as_deref().and_then(first_of));
        task
    }

    /// Stores a certificate, and schedules its renewal.
    fn set(&mut self, certificate: Option<Certificate>) {
        let times = certificate.as_ref().and_then(|it| it.begins().zip(it.expires()));
        if let Some((begins, expires)) = times {
            self.due = schedule::renewal(begins, expires, None, random_fraction());
            // Only the CA can announce that the certificate will be revoked, so the query is due immediately.
            self.query_at = Some(now());
        }
        self.current = certificate;
    }

    /// Performs the steps that are due. `unavailable` is the time for which the other certificates of the same CA must wait.
    fn step(
        &mut self,
        account: &mut Account<'a>,
        unavailable: &mut Option<Duration>,
        host: &mut dyn Host,
    ) -> Result<(), HostExited> {
        if self.query_at.is_some_and(|at| at <= now()) {
            self.query_renewal(account, unavailable, host);
        }
        if self.due > now() {
            return Ok(());
        }
        if let Some(pause) = unavailable {
            self.due = after(*pause);
            return Ok(());
        }
        let done = match account.open(host) {
            Ok(()) => self.obtain(account, host),
            Err(error) => {
                // The CA cannot be used now.
                self.failures += 1;
                let pause = self.pause(&error);
                *unavailable = Some(pause);
                self.complain(account.issuer, &error, pause, host);
                return if matches!(error, AcmeError::HostExited) { Err(HostExited) } else { Ok(()) };
            }
        };
        match done {
            Ok(()) => {
                self.failures = 0;
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
                    self.due = now();
                }
                Ok(())
            }
        }
    }

    fn pause(&mut self, error: &AcmeError) -> Duration {
        let pause = schedule::pause(self.failures, random_fraction());
        let pause = pause.max(error.retry_after().unwrap_or_default()).min(schedule::PAUSE_MAX);
        self.due = after(pause);
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
        let Account { issuer, state, client, .. } = account;
        let Some(client) = client else { return Err(AcmeError::Malformed("directory")) };
        let (name, shown) = (&issuer.name, self.order.shown());
        host.log(Level::Info, &format!("acme: ordering a certificate for {shown} from issuer \"{name}\""));
        let issued = client.obtain(self.order, self.current.as_ref(), host)?;
        if let Some(state) = state
            && let Err(error) = state.set_certificate(&self.order.digest(), &issued.pem)
        {
            // The server can use the certificate although it could not be stored.
            host.log(Level::Error, &format!("acme: the certificate for {shown} cannot be kept: {error}"));
        }
        host.deliver(&self.id, &issued.pem)?;
        self.set(first_of(&issued.pem));
        host.log(Level::Notice, &format!("acme: issuer \"{name}\" issued a certificate for {shown}"));
        Ok(())
    }

    /// Queries when to renew. A failure has no effect, because a time of renewal is already scheduled.
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
                let days = (self.due - now()) / 86_400;
                let why = renewal.explanation.map(|url| format!(", see {url}")).unwrap_or_default();
                host.log(
                    Level::Info,
                    &format!("acme: the certificate for {shown} is renewed in {days} days{why}"),
                );
            }
            Ok(None) => self.query_at = None,
            Err(error) => {
                if account.client.is_none() {
                    *unavailable = Some(schedule::pause(1, random_fraction()));
                }
                host.log(Level::Info, &format!("acme: no renewal information for {shown}: {error}"));
            }
        }
    }
}

impl<'a> Account<'a> {
    /// Fetches the directory of the CA, and finds or creates the account.
    fn open(&mut self, host: &mut dyn Host) -> Result<(), AcmeError> {
        if self.client.is_some() {
            return Ok(());
        }
        let issuer = self.issuer;
        if let (None, Some(path)) = (&self.state, &issuer.state_path) {
            let opened = State::open(path);
            self.state = Some(opened.map_err(|error| {
                let reason = match error.kind() {
                    std::io::ErrorKind::WouldBlock => "another process uses it".to_owned(),
                    _ => error.to_string(),
                };
                AcmeError::Key(format!("the state directory \"{}\": {reason}", path.display()))
            })?);
        }
        let pem = self.account_key()?;
        let key = SigningKey::from_pem(&pem).map_err(|error| AcmeError::Key(error.to_string()))?;
        let account = self.state.as_ref().and_then(|state| state.account_url(&issuer.uri));
        let mut client = Client::new(issuer, key, account)?;
        if client.ensure_account()?
            && let Some(account) = client.account()
        {
            let name = &issuer.name;
            host.log(Level::Info, &format!("acme: the account at issuer \"{name}\" is {account}"));
            if let Some(state) = &self.state {
                let kept = state.set_account_url(&issuer.uri, account);
                kept.map_err(|error| AcmeError::Key(error.to_string()))?;
            }
        }
        self.client = Some(client);
        Ok(())
    }

    /// Returns the private key of the account: the configured key, the stored key, or a new key.
    fn account_key(&mut self) -> Result<Vec<u8>, AcmeError> {
        let kind = match &self.issuer.account_key {
            AccountKey::Pem(pem) => return Ok(pem.clone()),
            AccountKey::Generated(kind) => *kind,
        };
        if let Some(kept) = self.state.as_ref().and_then(State::account_key) {
            return Ok(kept);
        }
        if let Some(key) = &self.key {
            return Ok(key.clone().into_bytes());
        }
        let pem = generate(kind).ok_or_else(|| AcmeError::Key("it cannot be made".to_owned()))?;
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
            let _ = state.set_account_url("", "");
        }
    }
}
