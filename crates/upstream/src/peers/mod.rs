//! The servers of an upstream block, and the selection of the next one.
//!
//! [`Group`] has their configuration and their state, which all threads share ([`table`]). A request makes a
//! [`Selection`] and takes one [`Pick`] after the other from it, by nginx's methods ([`balance`], [`ring`]), and
//! reports the outcome of each. [`Upstreams`] is all groups of a configuration.
//!
//! Connections are handled elsewhere. [`super::resolve`] resolves names, by way of [`Group::names`] and [`Group::put`];
//! until the first result a group with only names has no server ([`NoPeer::Unresolved`]).

pub mod address;
mod balance;
pub mod change;
pub mod counts;
mod groups;
mod known;
pub mod lines;
pub mod metrics;
mod ring;
pub mod sticky;
mod table;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use conf::Span;
use io::op::PeerAddr;

use self::balance::{Choices, Walk};
use self::counts::{Counts, Tried};
pub use self::groups::Upstreams;
pub use self::lines::Keepalive;
use self::lines::{Draft, Found, Line, Method, Named, Takes};
use self::sticky::{Learn, Learned, SetCookie, Sid, Sticky, StickyKind};
use self::table::{PeerId, Shape, State, Times};
use crate::resolve::resolver::Resolver;
use exchange::request::{Address, Request};
use exchange::shared_zone::{self, Zone};
use telemetry::Level;
use telemetry::time_zone::since_1970;

/// The kind of zone that `zone` of an upstream block declares. Groups keep their own state; the zone only reserves the
/// name.
#[derive(Debug)]
pub struct ServersZone;

impl shared_zone::Kind for ServersZone {
    type State = ();

    fn empty(&self, _: u64) {}

    fn continues(&self, _: &ServersZone) -> bool {
        true
    }
}

/// The servers of an upstream block, or of the implicit one of an address that was written. Threads share it.
#[derive(Debug)]
pub struct Group {
    /// The name of the block, or the host that was written.
    pub name: String,
    /// The port of an implicit group; a block has none.
    pub port: Option<u16>,
    /// `keepalive` and its like; `None` keeps no connection.
    pub keepalive: Option<Keepalive>,
    /// `resolver` of the block; `None` is that of `http`.
    pub resolver: Option<Arc<Resolver>>,
    /// `resolver_timeout` of the block.
    pub resolver_timeout: Option<std::time::Duration>,
    lines: Arc<[Line]>,
    /// Whether any of the lines is a name.
    has_names: bool,
    method: Method,
    /// `sticky`
    pub sticky: Option<Sticky>,
    /// `state`: the file that changes are kept in.
    pub state_file: Option<PathBuf>,
    /// Counts the writes to it, whose temporary files have its number in their names.
    saves: AtomicU64,
    zone: Option<Arc<Zone<ServersZone>>>,
    state: OnceLock<Arc<Shared>>,
}

/// State that threads share, and that one configuration passes to the next.
struct Shared {
    state: Mutex<State>,
    /// Advances when something was found out about a name.
    news: rt::watch::Publisher,
}

impl Shared {
    fn new(state: State) -> Arc<Shared> {
        let (news, _) = rt::watch::channel(0);
        Arc::new(Shared { state: Mutex::new(state), news })
    }

    /// Nothing that can panic runs while a state is half changed.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state and wakes the requests that wait for that.
    fn tell(&self, change: impl FnOnce(&mut State)) {
        // The lock also makes sure that one thread publishes at a time.
        let mut state = self.lock();
        change(&mut state);
        self.news.publish(self.news.value() + 1);
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.state.fmt(f)
    }
}

impl Group {
    /// The group of an upstream block.
    pub fn of_block(draft: Draft) -> Group {
        let keepalive = Some(draft.keepalive).filter(|keepalive| keepalive.idle_max > 0);
        Group {
            name: draft.name,
            port: None,
            keepalive,
            resolver: draft.resolver,
            resolver_timeout: draft.resolver_timeout,
            has_names: draft.lines.iter().any(|line| line.named().is_some()),
            lines: draft.lines.into(),
            method: draft.method.unwrap_or_default(),
            sticky: draft.sticky,
            state_file: draft.state,
            saves: AtomicU64::new(0),
            zone: draft.zone,
            state: OnceLock::new(),
        }
    }

    /// The group of an address that stands where a group could: one server, and no connection is kept.
    pub fn of_address(url: &address::Url, place: &Span) -> Group {
        let text = if url.has_port { format!("{}:{}", url.host, url.port) } else { url.host.clone() };
        let line = Line { place: Some(place.clone()), ..Line::new(&text, url) };
        Group {
            name: url.host.clone(),
            port: Some(url.port),
            keepalive: None,
            resolver: None,
            resolver_timeout: None,
            has_names: line.named().is_some(),
            lines: Arc::new([line]),
            method: Method::RoundRobin,
            sticky: None,
            state_file: None,
            saves: AtomicU64::new(0),
            zone: None,
            state: OnceLock::new(),
        }
    }

    /// Begins to choose for one request.
    pub fn select(self: &Arc<Group>, request: &Request) -> Selection {
        let sticky = self.sticky.as_ref();
        let session = sticky.and_then(|sticky| sticky::first_value(&sticky.lookup, request));
        let hint = match (sticky.map(|sticky| &sticky.kind), &session) {
            (Some(StickyKind::Learn(learn)), Some(session)) => learn.find(session, wall_ms()),
            _ => session.clone(),
        };
        let walk = self.walk(|| client_of(request), |template| template.rendered(request));
        self.selection(Choices::new(walk, hint), session)
    }

    fn selection(self: &Arc<Group>, choices: Choices, session: Option<Vec<u8>>) -> Selection {
        let tries = self.state().lock().tries();
        Selection { group: Arc::clone(self), choices, tries, session }
    }

    fn walk(
        &self,
        client: impl FnOnce() -> Option<std::net::IpAddr>,
        render: impl FnOnce(&exchange::template::Template) -> Vec<u8>,
    ) -> Walk {
        match &self.method {
            Method::RoundRobin => Walk::Rounds,
            Method::LeastConn => Walk::LeastConn,
            &Method::LeastTime { whole, inflight } => Walk::LeastTime { whole, inflight },
            Method::IpHash => Walk::address(client()),
            Method::Hash(key) => Walk::key(render(key)),
            Method::Ring(key) => Walk::Ring { key: render(key), at: None },
            &Method::Random { two } => Walk::Random { two },
        }
    }

    /// The names to resolve.
    pub fn names(&self) -> impl Iterator<Item = &Named> {
        self.names_with_places().map(|(named, _)| named)
    }

    /// The same with where they stand.
    pub fn names_with_places(&self) -> impl Iterator<Item = (&Named, Option<&Span>)> {
        self.lines.iter().filter_map(|line| Some((line.named()?, line.place.as_ref())))
    }

    /// The addresses of a name, from now on; none, when it is known to have none. Requests in flight continue.
    pub fn put(&self, named: &Named, found: Vec<Found>) {
        self.state().tell(|state| state.put(named, found));
    }

    /// The addresses of a name cannot be found at the moment: it keeps those that it had. One that never had any is
    /// waited for no longer.
    pub fn put_nothing(&self, named: &Named) {
        self.state().tell(|state| state.put_nothing(named));
    }

    /// Whether there is no server only because the first lookups of names are still in flight.
    pub fn awaits_names(&self) -> bool {
        self.has_names && self.state().lock().awaits_names()
    }

    /// Waits until there is a server, or the lookups have failed.
    pub async fn first_answer(&self) {
        let shared = self.state();
        let news = shared.news.watch();
        let mut seen = news.value();
        // A group lives as long as its requests, so that news have no end while one waits.
        while shared.lock().awaits_names() {
            match news.above(seen).await {
                Ok(value) => seen = value,
                Err(rt::watch::Closed) => return,
            }
        }
    }

    /// Advances when something was found out about a name.
    pub fn news(&self) -> rt::watch::Watcher {
        self.state().news.watch()
    }

    /// The addresses of all servers.
    pub fn addresses(&self) -> Vec<String> {
        let state = self.state().lock();
        state.sets.iter().flat_map(|set| &set.peers).map(|peer| peer.name.to_string()).collect()
    }

    /// The name for numbers, with the port of an implicit group.
    pub fn label(&self) -> String {
        match self.port {
            Some(port) => format!("{}:{port}", self.name),
            None => self.name.clone(),
        }
    }

    /// The name of its shared zone.
    pub fn zone(&self) -> Option<&str> {
        self.zone.as_ref().map(|zone| zone.name())
    }

    /// Its servers and their numbers.
    pub fn peers(&self, now: Instant) -> Vec<PeerState> {
        let mut state = self.state().lock();
        let moment = state.moment(now);
        let sets = [(&state.sets[0], false), (&state.sets[1], true)];
        let all = sets.into_iter().flat_map(|(set, backup)| set.peers.iter().map(move |peer| (peer, backup)));
        all.map(|(peer, backup)| PeerState::of(peer, backup, moment)).collect()
    }

    /// Whether sessions set a cookie, which a filter adds to responses.
    pub fn sets_cookies(&self) -> bool {
        matches!(self.sticky, Some(Sticky { kind: StickyKind::Cookie(_), .. }))
    }

    /// Begins with the state of the same group in the earlier configuration: all of it where both are in the same zone,
    /// else the addresses of names.
    fn begin(&self, before: Option<&Group>) {
        let before = before.and_then(|before| Some((before, before.state.get()?)));
        self.state.get_or_init(|| match before {
            Some((group, state)) if self.has_zone_of(group) => {
                state.lock().reshape(self.shape());
                Arc::clone(state)
            }
            Some((_, state)) => {
                let before = state.lock();
                let shared = self.fresh(before.found());
                shared.lock().take_counts(&before);
                shared
            }
            None => self.fresh(&BTreeMap::new()),
        });
    }

    /// Whether both are in the same zone.
    fn has_zone_of(&self, before: &Group) -> bool {
        self.zone.as_ref().zip(before.zone.as_ref()).is_some_and(|(zone, before)| zone.is_same(before))
    }

    fn state(&self) -> &Arc<Shared> {
        self.state.get_or_init(|| self.fresh(&BTreeMap::new()))
    }

    fn fresh(&self, found: &BTreeMap<Named, Vec<Found>>) -> Arc<Shared> {
        Shared::new(State::new(self.shape(), found))
    }

    fn shape(&self) -> Shape {
        Shape {
            lines: Arc::clone(&self.lines),
            with_sids: self.sticky.is_some(),
            with_ring: matches!(self.method, Method::Ring(_)),
        }
    }
}

/// Whether a server gets requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// All.
    Up,
    /// Those of sessions that it has (`drain`).
    Draining,
    /// None, by the configuration.
    Down,
    /// None until `fail_timeout` is over.
    Unavailable,
}

impl Condition {
    /// Whether requests may be sent to it.
    pub fn is_up(self) -> bool {
        matches!(self, Condition::Up | Condition::Draining)
    }

    /// nginx's word for it.
    pub fn name(self) -> &'static str {
        match self {
            Condition::Up => "up",
            Condition::Draining => "draining",
            Condition::Down => "down",
            Condition::Unavailable => "unavail",
        }
    }
}

/// A server at a moment.
#[derive(Clone, Debug)]
pub struct PeerState {
    /// Its number.
    pub id: u32,
    /// As `$upstream_addr` has it.
    pub name: Arc<str>,
    /// As it was written.
    pub server: Arc<str>,
    /// `backup`
    pub backup: bool,
    /// `weight`
    pub weight: i64,
    /// `max_conns`; 0 is no limit.
    pub max_conns: u64,
    /// `max_fails`
    pub max_fails: u64,
    /// `fail_timeout`, in seconds.
    pub fail_timeout: i64,
    /// `slow_start`, in milliseconds.
    pub slow_start_ms: i64,
    /// Whether it gets requests.
    pub condition: Condition,
    /// Requests that it has now.
    pub active: u64,
    /// The counters.
    pub counts: Box<Counts>,
}

impl PeerState {
    fn of(peer: &table::Peer, backup: bool, now: table::Moment) -> PeerState {
        let condition = match peer.takes {
            Takes::Nobody => Condition::Down,
            _ if peer.has_failed(now) => Condition::Unavailable,
            Takes::Sessions => Condition::Draining,
            Takes::All => Condition::Up,
        };
        PeerState {
            id: peer.id,
            name: Arc::clone(&peer.name),
            server: Arc::clone(&peer.server),
            backup,
            weight: peer.weight,
            max_conns: peer.max_conns,
            max_fails: peer.max_fails,
            fail_timeout: peer.fail_timeout,
            slow_start_ms: peer.slow_start_ms,
            condition,
            active: peer.conns,
            counts: peer.counts.clone(),
        }
    }
}

/// The address that `ip_hash` goes by: the one that `realip` found, when it did.
fn client_of(request: &Request) -> Option<std::net::IpAddr> {
    match request.real_client.as_ref().unwrap_or(&request.conn.peer) {
        Address::Inet(address) => Some(address.ip()),
        Address::Unix(_) => None,
    }
}

fn wall_ms() -> i64 {
    let (seconds, ms) = since_1970(rt::wall());
    seconds.saturating_mul(1000).saturating_add(ms.into())
}

/// The choices that are made for one request.
#[derive(Debug)]
pub struct Selection {
    group: Arc<Group>,
    choices: Choices,
    tries: u32,
    /// The client's session, where the group has sessions.
    session: Option<Vec<u8>>,
}

/// No server can be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoPeer {
    /// All are down, have failed, have as much as they may have, or were asked (`no live upstreams`).
    Busy,
    /// There is none, because a name was not resolved yet.
    Unresolved,
}

/// The outcome of a try, as nginx counts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It has responded.
    Answered,
    /// It has responded with a status that is tried at another one: no fault of it (403 and 404).
    Passed,
    /// It failed.
    Failed,
}

impl Selection {
    /// The next server. A request that has a cookie to be set for it has that in its extensions then.
    pub fn next(&mut self, request: &mut Request) -> Result<Pick, NoPeer> {
        let pick = self.choose(rt::now())?;
        if let Some(Sticky { kind: StickyKind::Cookie(cookie), .. }) = &self.group.sticky {
            let text = cookie.text(&pick.sid, request);
            request.extensions.insert(SetCookie(text));
        }
        Ok(pick)
    }

    fn choose(&mut self, now: Instant) -> Result<Pick, NoPeer> {
        let shared = Arc::clone(self.group.state());
        let mut state = shared.lock();
        let moment = state.moment(now);
        let Some(place) = state.choose(&mut self.choices, moment) else {
            return Err(if state.awaits_names() { NoPeer::Unresolved } else { NoPeer::Busy });
        };
        let peer = &mut state.sets[self.choices.set].peers[place];
        peer.counts.choose(now);
        Ok(Pick {
            address: peer.address.clone(),
            name: Arc::clone(&peer.name),
            server: Arc::clone(&peer.server),
            sid: peer.sid.clone(),
            id: peer.id,
            since: now,
            header_ms: None,
            created: None,
            counts_waiting: matches!(self.group.method, Method::LeastTime { inflight: true, .. }),
            group: Arc::clone(&self.group),
            shared: Some(Arc::clone(&shared)),
        })
    }

    /// To be called when the header section of the response is here: methods that go by time, and sessions that are
    /// learned, look at it.
    pub fn answered(&mut self, request: &Request, pick: &mut Pick) {
        if let Some(Sticky { kind: StickyKind::Learn(learn), .. }) = &self.group.sticky {
            let created = sticky::first_value(&learn.create, request);
            pick.created = created.map(|session| (session, true));
            if let (None, Some(session)) = (&pick.created, &self.session) {
                pick.created = Some((session.clone(), false));
            }
            if learn.at_header
                && let Some(session) = pick.created.take()
            {
                note(learn, session, &pick.sid, Some(request));
            }
        }
        pick.note_header(rt::now());
    }

    /// Reports the outcome of a try. Returns whether the server is left alone for a while from now on, which is nginx's
    /// `upstream server temporarily disabled`.
    pub fn report(&mut self, pick: Pick, outcome: Outcome, tried: &Tried) -> bool {
        if let (Outcome::Answered, Some(Sticky { kind: StickyKind::Learn(learn), .. })) =
            (outcome, &self.group.sticky)
            && let Some(session) = pick.created.clone()
        {
            note(learn, session, &pick.sid, None);
        }
        self.settle(pick, outcome, tried, rt::now())
    }

    fn settle(&mut self, mut pick: Pick, outcome: Outcome, tried: &Tried, now: Instant) -> bool {
        let Some(shared) = pick.shared.take() else { return false };
        let mut state = shared.lock();
        self.tries = if state.sets[0].is_single { 0 } else { self.tries.saturating_sub(1) };
        pick.release(&mut state, Some(outcome), Some(tried), now)
    }

    /// Tries that are left, the one in flight counted.
    pub fn tries(&self) -> u32 {
        self.tries
    }

    /// No more than this many tries from here on (`proxy_next_upstream_tries`).
    pub fn limit_tries(&mut self, most: u32) {
        self.tries = self.tries.min(most);
    }

    /// The group of the servers.
    pub fn group(&self) -> &Arc<Group> {
        &self.group
    }
}

/// Keeps the server of a session. A lack of room is reported with a request, if there is one.
fn note(learn: &Learn, (session, is_new): (Vec<u8>, bool), sid: &Sid, request: Option<&Request>) {
    let learned = learn.learn(&session, is_new, sid, wall_ms());
    let Some(request) = request else { return };
    let zone = learn.zone.name();
    match learned {
        Learned::Noted => {}
        Learned::PushedOut => {
            let what = "could not allocate node in sticky session zone";
            let then = "expiring least recently used session";
            request.log(Level::Warn, format_args!("{what} \"{zone}\", {then}"));
        }
        Learned::NoRoom => {
            let what = "could not allocate node in sticky session zone";
            request.log(Level::Alert, format_args!("{what} \"{zone}\""));
        }
    }
}

/// A server that was chosen; counts as a connection of it until it is dropped.
#[derive(Debug)]
pub struct Pick {
    /// Where it is.
    pub address: PeerAddr,
    /// As `$upstream_addr` has it.
    pub name: Arc<str>,
    /// The name of the server as it was written (`$upstream_last_server_name`).
    pub server: Arc<str>,
    sid: Sid,
    id: PeerId,
    /// When it was chosen.
    since: Instant,
    /// Milliseconds from there to the header section of the response.
    header_ms: Option<u64>,
    /// The session that the response belongs to, and whether it is new.
    created: Option<(Vec<u8>, bool)>,
    /// Whether it is one of [`Times::inflight`].
    counts_waiting: bool,
    group: Arc<Group>,
    /// Where it counts; taken when it does no more.
    shared: Option<Arc<Shared>>,
}

impl Pick {
    /// Its try has ended for a reason that the server has no part in.
    pub fn give_up(mut self, tried: &Tried) {
        if let Some(shared) = self.shared.take() {
            self.release(&mut shared.lock(), None, Some(tried), rt::now());
        }
    }

    /// The header section of the response is here.
    fn note_header(&mut self, now: Instant) {
        let waited = self.waited_ms(now);
        self.header_ms = Some(waited);
        let Method::LeastTime { whole: false, inflight: true } = self.group.method else { return };
        let Some(shared) = &self.shared else { return };
        let mut state = shared.lock();
        let moment = state.moment(now);
        if let Some(peer) = state.peer(self.id) {
            Times::follow(&mut peer.times.header, waited);
            peer.times.end(waited, moment);
            self.counts_waiting = false;
        }
    }

    fn waited_ms(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.since).as_millis() as u64
    }

    /// Counts no more.
    fn release(
        &mut self,
        state: &mut State,
        outcome: Option<Outcome>,
        tried: Option<&Tried>,
        now: Instant,
    ) -> bool {
        let moment = state.moment(now);
        let (waited, method) = (self.waited_ms(now), &self.group.method);
        if let Method::LeastTime { whole, inflight } = *method
            && let Some(peer) = state.peer(self.id)
        {
            if self.counts_waiting {
                peer.times.end(waited, moment);
            }
            // Only what went well counts, so that one that fails fast is not taken for a fast one.
            if let (Some(Outcome::Answered), Some(header_ms)) = (outcome, self.header_ms) {
                Times::follow(&mut peer.times.response, waited);
                if whole || !inflight {
                    Times::follow(&mut peer.times.header, header_ms);
                }
            }
        }
        let failed = outcome.map(|outcome| outcome == Outcome::Failed);
        state.release(self.id, failed, tried, moment)
    }
}

impl Drop for Pick {
    /// For tries that were given up: nothing is known of the server.
    fn drop(&mut self) {
        if let Some(shared) = self.shared.take() {
            // Not the turn's time, because a pick may be dropped where there is no runtime any more.
            self.release(&mut shared.lock(), None, None, Instant::now());
        }
    }
}
