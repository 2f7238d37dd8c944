//! Obtains certificates and renews them, until its host is gone.
//!
//! ```text
//! for each order:  none yet --------------> obtain --> keep on the disk --> deliver --> ask for the window --> wait
//!                  there: ask for the window --> wait until then --^
//!                  failed: wait, twice as long each time ----------^
//! ```
//! [`Host`] is the server as the agent needs it; all of its calls may block, and each can find that the server is gone. The
//! agent has one authority at a time and one order at a time: authorities limit how many they take, and certificates are
//! renewed weeks before they end.
//!
//! A certificate is on the disk before the host gets it, so that an end at any point loses at most one that is not in use.

use std::time::{Duration, SystemTime};

use tls::certificate::Identity;
use tls::signing::{SigningKey, generate, random_fraction};
use tls::x509::Certificate;

use crate::client::{AcmeError, Client, Problem, check};
use crate::schedule::{self, ASK_TIME};
use crate::settings::{AccountKey, Issuer, Order};
use crate::state::{self, State};

/// The longest sleep: the clock may be set meanwhile.
const SLEEP_MAX: Duration = Duration::from_secs(60 * 60);

/// How loud a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// A step.
    Info,
    /// A message that operators may need.
    Notice,
    /// A failure that is tried again.
    Warn,
    /// A failure that needs the operator.
    Error,
}

/// The host is gone: nothing can be done any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gone;

/// The resource that an authority will request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Challenge {
    /// A file of this name below `/.well-known/acme-challenge/`.
    Http {
        /// The name.
        token: String,
        /// Its content.
        text: String,
    },
    /// A handshake with this name.
    Tls {
        /// The name, in lower case.
        name: String,
        /// The certificate to show, with its key, in PEM.
        pem: Vec<u8>,
    },
}

/// The server for which certificates are obtained.
pub trait Host {
    /// Has the challenge in place in every thread when this returns.
    fn install(&mut self, challenge: &Challenge) -> Result<(), Gone>;
    /// The challenge is over.
    fn remove(&mut self, challenge: &Challenge) -> Result<(), Gone>;
    /// There is a certificate: the chain with its key, in PEM.
    fn deliver(&mut self, id: &str, pem: &[u8]) -> Result<(), Gone>;
    /// A line for the log.
    fn log(&mut self, level: Level, text: &str);
    /// Sleeps for at most this long.
    fn wait(&mut self, time: Duration) -> Result<(), Gone>;
}

/// An authority with its account.
struct Account<'a> {
    issuer: &'a Issuer,
    state: Option<State>,
    client: Option<Client<'a>>,
    /// Made for this run where nothing is kept.
    key: Option<String>,
}

/// A certificate that is looked after.
struct Task<'a> {
    /// The authority, by its place.
    account: usize,
    order: &'a Order,
    id: String,
    /// The certificate, where there is one.
    current: Option<Certificate>,
    /// When it is obtained or renewed.
    due: i64,
    /// The time of the next query about renewal.
    ask_at: Option<i64>,
    failures: u32,
}

/// Looks after the certificates of these authorities until the host is gone. `known` are certificates that are kept nowhere else.
pub fn run(issuers: &[Issuer], known: &[(String, Vec<u8>)], host: &mut dyn Host) -> Gone {
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
            if let Err(Gone) = task.step(&mut accounts[task.account], &mut is_unavailable[task.account], host)
            {
                return Gone;
            }
        }
        let next = tasks.iter().flat_map(|task| [Some(task.due), task.ask_at]).flatten().min();
        let left =
            next.map_or(SLEEP_MAX, |next| Duration::from_secs(u64::try_from(next - now()).unwrap_or(0)));
        if let Err(Gone) = host.wait(left.clamp(Duration::from_secs(1), SLEEP_MAX)) {
            return Gone;
        }
    }
}

/// Seconds since 1970.
fn now() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

/// The time after a pause.
fn after(pause: Duration) -> i64 {
    now().saturating_add(i64::try_from(pause.as_secs()).unwrap_or(i64::MAX))
}

/// The first certificate of a chain in PEM.
fn first_of(pem: &[u8]) -> Option<Certificate> {
    let identity = Identity::from_pem(pem, pem, &[]).ok()?;
    Certificate::from_der(identity.chain().first()?)
}

impl<'a> Task<'a> {
    fn new(account: usize, issuer: &Issuer, order: &'a Order, known: &[(String, Vec<u8>)]) -> Task<'a> {
        let id = issuer.id_of(order);
        let kept = issuer.state_path.as_ref().and_then(|path| state::certificate(path, &order.digest()));
        let kept = kept.or_else(|| known.iter().find(|(known, _)| *known == id).map(|(_, pem)| pem.clone()));
        // A file of another order, or an edited one, is no certificate for these names.
        let kept = kept.filter(|pem| check(pem, order).is_ok());
        let mut task = Task { account, order, id, current: None, due: now(), ask_at: None, failures: 0 };
        task.set(kept.as_deref().and_then(first_of));
        task
    }

    /// Takes a certificate, and plans its renewal.
    fn set(&mut self, certificate: Option<Certificate>) {
        let times = certificate.as_ref().and_then(|it| it.begins().zip(it.expires()));
        if let Some((begins, expires)) = times {
            self.due = schedule::renewal(begins, expires, None, random_fraction());
            // Nothing but the authority knows of a revocation that is about to come.
            self.ask_at = Some(now());
        }
        self.current = certificate;
    }

    /// Performs the due steps. `unavailable` is the pause that another certificate of the same authority has to make.
    fn step(
        &mut self,
        account: &mut Account<'a>,
        unavailable: &mut Option<Duration>,
        host: &mut dyn Host,
    ) -> Result<(), Gone> {
        if self.ask_at.is_some_and(|at| at <= now()) {
            self.ask(account, unavailable, host);
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
                // Nothing of this authority can be had now.
                self.failures += 1;
                let pause = self.pause(&error);
                *unavailable = Some(pause);
                self.complain(account.issuer, &error, pause, host);
                return if matches!(error, AcmeError::Gone) { Err(Gone) } else { Ok(()) };
            }
        };
        match done {
            Ok(()) => {
                self.failures = 0;
                self.ask(account, unavailable, host);
                Ok(())
            }
            Err(AcmeError::Gone) => Err(Gone),
            Err(error) => {
                self.failures += 1;
                let pause = self.pause(&error);
                self.complain(account.issuer, &error, pause, host);
                // The next try begins with the directory, and with another account where this one is unknown.
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
            // The server can have it all the same.
            host.log(Level::Error, &format!("acme: the certificate for {shown} cannot be kept: {error}"));
        }
        host.deliver(&self.id, &issued.pem)?;
        self.set(first_of(&issued.pem));
        host.log(Level::Notice, &format!("acme: issuer \"{name}\" issued a certificate for {shown}"));
        Ok(())
    }

    /// Asks the authority when to renew. Its failure changes nothing: there is a time for renewal already.
    fn ask(&mut self, account: &mut Account<'a>, unavailable: &mut Option<Duration>, host: &mut dyn Host) {
        self.ask_at = Some(after(ASK_TIME));
        let Some(current) = &self.current else {
            self.ask_at = None;
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
                self.ask_at = Some(after(renewal.ask_after));
                let times = current.begins().zip(current.expires()).unwrap_or_default();
                self.due = schedule::renewal(times.0, times.1, Some(renewal.window), random_fraction());
                let days = (self.due - now()) / 86_400;
                let why = renewal.explanation.map(|url| format!(", see {url}")).unwrap_or_default();
                host.log(
                    Level::Info,
                    &format!("acme: the certificate for {shown} is renewed in {days} days{why}"),
                );
            }
            Ok(None) => self.ask_at = None,
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
    /// Has the directory of the authority, and an account there.
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

    /// The key of the account: the one that is configured or kept, else a new one.
    fn account_key(&mut self) -> Result<Vec<u8>, AcmeError> {
        let kind = match &self.issuer.account_key {
            AccountKey::Pem(pem) => return Ok(pem.clone()),
            AccountKey::Made(kind) => *kind,
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

    /// Starts again at the next try, without the account that the authority does not know.
    fn forget(&mut self) {
        if let Some(state) = &self.state {
            // An account of no authority.
            let _ = state.set_account_url("", "");
        }
    }
}
