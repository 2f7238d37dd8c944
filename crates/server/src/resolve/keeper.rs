//! The names in a configuration, kept up to date while it is in force: a task for each, on the first thread.
//!
//! ```text
//!            +--- failed: a growing pause ---+
//!            v                               |
//!   start -> look up -- found: put into the groups -- until it may have changed -+
//!            ^                                                                    |
//!            +--------------------------------------------------------------------+
//! ```
//! A name that cannot be found keeps the addresses that it had; one that had none leaves its group without anybody to
//! ask, and requests are answered with 502 until it is found. The log has a line when that begins and when it ends.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use conf::Span;
use io::op::PeerAddr;
use rt::local::Event;

use super::system::{System, SystemAddresses};
use crate::config::Config;
use crate::log::{Level, error};
use crate::thread::Thread;
use crate::upstream::peers::Group;
use crate::upstream::peers::lines::{Address, Found, Named};

/// Keeps the names of one configuration, until it is dropped.
pub(crate) struct Keeper {
    end: Rc<Event>,
}

/// The pauses after a name could not be found: a server that has just been started comes up soon, and one that stays
/// away is not asked for all the time.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// How often it is looked whether the hosts file is another one. It changes by hand, or when a container starts.
const HOSTS_EVERY: Duration = Duration::from_secs(5);

/// When a name is looked up again that is in the hosts file, or whose time to live cannot be found out.
const REFRESH: Duration = Duration::from_secs(60);

impl Keeper {
    /// Starts on this thread. The first answers come later.
    pub(crate) fn start(thread: &Rc<Thread>, config: &Config) -> Keeper {
        let end = Rc::new(Event::new());
        for (host, users) in literal_names(config) {
            let name = SystemName { host, users, system: System::default(), told: Told(Rc::clone(thread)) };
            let end = Rc::clone(&end);
            rt::spawn(async move {
                let _ = rt::select(end.wait(), name.keep()).await;
            });
        }
        Keeper { end }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.end.set();
    }
}

/// Who has use for a name.
struct User {
    group: Arc<Group>,
    named: Named,
    place: Option<Span>,
}

/// The names that the system resolves, with the groups that they are servers of.
fn literal_names(config: &Config) -> BTreeMap<String, Vec<User>> {
    let mut names: BTreeMap<String, Vec<User>> = BTreeMap::new();
    for group in config.http.upstreams.groups() {
        for (named, place) in group.names_with_places().filter(|(named, _)| !named.at_run_time) {
            let user = User { group: Arc::clone(group), named: named.clone(), place: place.cloned() };
            names.entry(named.host.to_ascii_lowercase()).or_default().push(user);
        }
    }
    names
}

/// Where what is to be said goes.
struct Told(Rc<Thread>);

impl Told {
    fn say(&self, level: Level, message: fmt::Arguments<'_>) {
        error::write(&self.0, level, message);
    }
}

/// A name that the system resolves.
struct SystemName {
    host: String,
    users: Vec<User>,
    system: System,
    told: Told,
}

impl SystemName {
    /// Looks it up again and again.
    async fn keep(self) {
        let mut failures = 0;
        loop {
            match self.system.look_up(&self.host).await {
                Ok(found) => {
                    if failures > 0 {
                        self.told.say(Level::Notice, format_args!("host \"{}\" is found again", self.host));
                    }
                    failures = 0;
                    self.put(&found.usable);
                    self.until_changed(&found).await;
                }
                Err(reason) => {
                    if failures == 0 {
                        self.tell(&reason);
                    }
                    self.users.iter().for_each(|user| user.group.put_nothing(&user.named));
                    rt::sleep_until(rt::now() + pause(failures)).await;
                    failures += 1;
                }
            }
        }
    }

    fn put(&self, addresses: &[IpAddr]) {
        for user in &self.users {
            let found = addresses.iter().map(|&address| found_at(SocketAddr::new(address, user.named.port)));
            user.group.put(&user.named, found.collect());
        }
    }

    /// Waits until the answer may be another one.
    async fn until_changed(&self, found: &SystemAddresses) {
        let refresh = rt::now() + REFRESH;
        let Some(stamp) = found.hosts else {
            return rt::sleep_until(refresh).await;
        };
        while rt::now() < refresh && self.system.stamp().await == stamp {
            rt::sleep_until(rt::now() + HOSTS_EVERY).await;
        }
    }

    /// The first time in a row that it cannot be found.
    fn tell(&self, reason: &str) {
        let name = &self.host;
        let Some(place) = self.users.iter().find_map(|user| user.place.as_ref()) else { return };
        let what = format_args!("host not found in upstream \"{name}\" ({reason}) in {place}");
        self.told.say(Level::Error, what);
    }
}

/// How long it is waited after so many failures and one more.
fn pause(failures: u32) -> Duration {
    PAUSE_MIN.saturating_mul(1 << failures.min(16)).min(PAUSE_MAX)
}

/// An address without an SRV record.
fn found_at(address: SocketAddr) -> Found {
    Found { address: Address::from(PeerAddr::Inet(address)), server: None, weight: 1, priority: 0 }
}

/// Looks up all literal names of a configuration by calls that block, for `-t`: those that cannot be found, each with
/// what is to be said of it. Names that take longer than `patience`, all together, are among them.
pub fn missing(config: &Config, patience: Duration) -> Vec<String> {
    let names = literal_names(config);
    let (sender, answers) = std::sync::mpsc::channel();
    let mut open: BTreeMap<&str, &[User]> = names.iter().map(|(name, users)| (&**name, &**users)).collect();
    for name in names.keys().cloned() {
        let sender = sender.clone();
        // It is not waited for: the program ends soon. One that cannot be started is told as one that takes long.
        let _ = std::thread::Builder::new().name("names".to_owned()).spawn(move || {
            let found = System::default().look_up_now(&name).map(drop);
            let _ = sender.send((name, found));
        });
    }
    drop(sender);
    let deadline = std::time::Instant::now() + patience;
    let mut missing = Vec::new();
    while let Ok((name, found)) =
        answers.recv_timeout(deadline.saturating_duration_since(std::time::Instant::now()))
    {
        let users = open.remove(&*name).unwrap_or_default();
        if let Err(reason) = found {
            missing.push(not_found(&name, &reason, users));
        }
    }
    missing.extend(open.iter().map(|(name, users)| not_found(name, "it takes too long", users)));
    missing
}

fn not_found(name: &str, reason: &str, users: &[User]) -> String {
    let place = users.iter().find_map(|user| user.place.as_ref());
    let place = place.map(|place| format!(" in {place}")).unwrap_or_default();
    format!(
        "host not found in upstream \"{name}\" ({reason}){place}; it is looked for again while the server runs"
    )
}
