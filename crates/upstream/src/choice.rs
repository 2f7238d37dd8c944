//! Choice of the next upstream: by the method of a group, or from a list of addresses.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use io::op::PeerAddr;

use crate::link::IdlePool;
use crate::outgoing::{Failure, Target};
use crate::sessions;
use crate::state::Try;
use exchange::request::{Address, Request};
use peers::queue::{Overflow, Queued};
use peers::resolve::{Conf, Unresolved};
use peers::{Group, NoPeer, Pick, Selection, TryOutcome};
use site::variables::HasVariables;
use telemetry::{ForLog, Level};

/// The upstreams available to one request.
pub(super) enum Choice {
    Group {
        selection: Selection,
        pool: Option<Rc<IdlePool>>,
    },
    /// Addresses without a group.
    List {
        left: VecDeque<(PeerAddr, Arc<str>)>,
        tries: u32,
        pool: Option<Rc<IdlePool>>,
    },
}

/// A chosen upstream, which counts as busy until its outcome is reported here. Boxed, because few responses hold one for long.
#[derive(Default)]
pub(super) struct Chosen(Option<Box<Busy>>);

/// An upstream with a request in flight.
struct Busy {
    choice: Choice,
    next: Option<Next>,
    record: Rc<Try>,
}

/// The next upstream to try.
pub(super) enum Next {
    /// A server of a group.
    Picked(Pick),
    /// An address without a group, and its name.
    Listed(PeerAddr, Arc<str>),
}

impl Next {
    /// Returns the address to connect to.
    pub(super) fn address(&self) -> &PeerAddr {
        match self {
            Next::Picked(pick) => &pick.address,
            Next::Listed(address, _) => address,
        }
    }

    /// Returns the name as shown in `$upstream_addr`.
    pub(super) fn name(&self) -> &Arc<str> {
        match self {
            Next::Picked(pick) => &pick.name,
            Next::Listed(_, name) => name,
        }
    }

    /// Returns the server as configured (`$upstream_last_server_name`).
    pub(super) fn server(&self) -> &Arc<str> {
        match self {
            Next::Picked(pick) => &pick.server,
            Next::Listed(_, name) => name,
        }
    }

    /// Ends the try for a reason that is not the upstream's fault.
    pub(super) fn abandon(self, record: &Try) {
        if let Next::Picked(pick) = self {
            pick.abandon(&record.facts());
        }
    }
}

impl Default for Choice {
    fn default() -> Choice {
        Choice::List { left: VecDeque::new(), tries: 0, pool: None }
    }
}

impl Choice {
    /// Returns the upstreams of a target; `None` if a name has to be resolved, see [`Choice::resolved`].
    pub(super) fn at_once(request: &Request, target: &Target) -> Option<Choice> {
        match target {
            Target::Group(group) if group.awaits_names() => None,
            Target::Group(group) => Some(Choice::group(request, group)),
            Target::Address(address) => Some(Choice::list([(address.clone(), name_of(address))])),
            Target::Checked(group, address) => {
                let left = [(address.clone(), name_of(address))].into();
                Some(Choice::List { left, tries: 1, pool: IdlePool::of(group, request) })
            }
            Target::Dynamic { .. } => None,
        }
    }

    /// Works like [`Choice::at_once`]; resolves a name.
    pub(super) async fn resolved(request: &Request, target: &Target) -> Result<Choice, Failure> {
        match target {
            Target::Group(group) => {
                wait_resolved(request, request.scope().of::<Conf>(), group).await;
                Ok(Choice::group(request, group))
            }
            Target::Dynamic { host, port } => {
                let (conf, client) = (request.scope().of::<Conf>(), request.client());
                let addresses = addresses(request, conf, client, host, *port).await;
                let addresses = addresses.ok_or(Failure::Status(502))?;
                let named = |address| {
                    let address = PeerAddr::Inet(address);
                    let name = name_of(&address);
                    (address, name)
                };
                Ok(Choice::list(addresses.map(named)))
            }
            Target::Address(_) | Target::Checked(..) => {
                unreachable!("these targets have no name to resolve")
            }
        }
    }

    fn group(request: &Request, group: &Arc<Group>) -> Choice {
        let selection = group.select(sessions::ask(group, request));
        Choice::Group { selection, pool: IdlePool::of(group, request) }
    }

    /// Creates a choice of addresses without a group: each is tried once, in this order.
    fn list(addresses: impl IntoIterator<Item = (PeerAddr, Arc<str>)>) -> Choice {
        let left: VecDeque<_> = addresses.into_iter().collect();
        Choice::List { tries: left.len() as u32, left, pool: None }
    }

    /// Limits the number of tries.
    pub(super) fn limit_tries(&mut self, most: u32) {
        match self {
            Choice::Group { selection, .. } => selection.limit_tries(most),
            Choice::List { tries, .. } => *tries = (*tries).min(most),
        }
    }

    /// Returns the number of remaining tries.
    pub(super) fn tries(&self) -> u32 {
        match self {
            Choice::Group { selection, .. } => selection.tries(),
            Choice::List { tries, .. } => *tries,
        }
    }

    /// Selects the next upstream, or returns the reason why none is available. Boxed, because it exists during the complete try. A
    /// request whose first try this is does not overtake requests in the queue of the group.
    pub(super) fn next(&mut self, request: &mut Request, is_first: bool) -> Result<Box<Next>, NoPeer> {
        match self {
            Choice::Group { selection, .. } => {
                let pick = if is_first { selection.first_peer()? } else { selection.next_peer()? };
                Ok(Choice::picked(selection, pick, request))
            }
            Choice::List { left, .. } => {
                let (address, name) = left.pop_front().ok_or(NoPeer::Busy)?;
                Ok(Box::new(Next::Listed(address, name)))
            }
        }
    }

    /// Returns the upstream of a pick, and sets the cookie of `sticky`.
    fn picked(selection: &Selection, pick: Pick, request: &mut Request) -> Box<Next> {
        sessions::set_cookie(selection.group(), &pick, request);
        Box::new(Next::Picked(pick))
    }

    /// Adds the request to the queue of its group; `None` if there is none.
    pub(super) fn wait(&self, request: &Request) -> Option<Result<Queued, Overflow>> {
        match self {
            Choice::Group { selection, .. } => selection.wait(request.client().client_network()),
            Choice::List { .. } => None,
        }
    }

    /// Selects the upstream of a request in the queue of its group, if it is the first one and an upstream is free.
    pub(super) fn in_turn(&mut self, request: &mut Request, queued: &Queued) -> Option<Box<Next>> {
        let Choice::Group { selection, .. } = self else { return None };
        let pick = selection.peer_in_turn(queued).ok()?;
        Some(Choice::picked(selection, pick, request))
    }

    /// Returns the name of the group, for the log if no server is available.
    pub(super) fn name(&self) -> Arc<str> {
        match self {
            Choice::Group { selection, .. } => selection.group().name.as_str().into(),
            Choice::List { .. } => "".into(),
        }
    }

    /// Returns the pool of idle connections.
    pub(super) fn pool(&self) -> Option<&Rc<IdlePool>> {
        match self {
            Choice::Group { pool, .. } | Choice::List { pool, .. } => pool.as_ref(),
        }
    }

    /// Records that the header section of a response was received.
    pub(super) fn header_received(&mut self, request: &Request, next: &mut Next) {
        if let (Choice::Group { selection, .. }, Next::Picked(pick)) = (self, next) {
            sessions::header_received(selection, request, pick);
        }
    }

    /// Reports the outcome of a try.
    pub(super) fn report(&mut self, request: &Request, next: Next, outcome: TryOutcome, record: &Try) {
        match (self, next) {
            (Choice::Group { selection, .. }, Next::Picked(pick)) => {
                if selection.report(pick, outcome, &record.facts()) {
                    request.log(Level::Warn, format_args!("upstream server temporarily disabled"));
                }
            }
            (Choice::List { tries, .. }, _) => *tries = tries.saturating_sub(1),
            (Choice::Group { .. }, Next::Listed(..)) => {}
        }
    }

    /// Reports the end of a response to the group.
    pub(super) fn response_ended(&mut self, next: Next, record: &Try) {
        if let (Choice::Group { selection, .. }, Next::Picked(pick)) = (self, next) {
            let _ = selection.report(pick, TryOutcome::Responded, &record.facts());
        }
    }
}

impl Chosen {
    /// Takes the choice with the upstream whose response is now passed on.
    pub(super) fn new(choice: Choice, next: Next, record: Rc<Try>) -> Chosen {
        Chosen(Some(Box::new(Busy { choice, next: Some(next), record })))
    }

    /// Reports the end of the response to the group.
    pub(super) fn response_ended(&mut self) {
        if let Some(Busy { choice, next, record }) = self.0.as_deref_mut()
            && let Some(next) = next.take()
        {
            choice.response_ended(next, record);
        }
    }
}

impl Drop for Chosen {
    /// Reports a response that is no longer needed, or that broke off after its header section. As in nginx it does not count as a
    /// failure.
    fn drop(&mut self) {
        self.response_ended();
    }
}

/// Waits until the names of a group have addresses or are known to have none, up to `resolver_timeout`.
pub(super) async fn wait_resolved<R: HasVariables>(request: &R, conf: &Conf, group: &Arc<Group>) {
    let timer = rt::Timer::new();
    let timeout = group.resolver_timeout.unwrap_or(conf.timeout);
    timer.set(rt::now() + timeout);
    if let Err(rt::Elapsed) = timer.limit(group.wait_resolved()).await {
        let (name, why) = (&group.name, Unresolved::TimedOut);
        request.log(Level::Error, format_args!("{name} could not be resolved ({why})"));
    }
}

/// Returns the addresses of a name from variables, in an order that changes from request to request. `None` if it has none; the log
/// has the reason.
pub(super) async fn addresses<R: HasVariables>(
    request: &R,
    Conf { resolver, timeout }: &Conf,
    client: &Address,
    host: &[u8],
    port: u16,
) -> Option<impl Iterator<Item = SocketAddr> + use<R>> {
    let name = host.for_log();
    let Some(resolver) = resolver else {
        request.log(Level::Error, format_args!("no resolver defined to resolve {name}"));
        return None;
    };
    match resolver.find(host, *timeout, client.client_network()).await {
        Ok((addresses, _)) => {
            let count = addresses.len();
            let first = TURN.fetch_add(1, Ordering::Relaxed) % count.max(1);
            let indices = (first..count).chain(0..first);
            Some(indices.map(move |index| SocketAddr::new(addresses[index], port)))
        }
        Err(unresolved) => {
            request.log(Level::Error, format_args!("{name} could not be resolved ({unresolved})"));
            None
        }
    }
}

/// Counter that selects the first address for the next request.
static TURN: AtomicUsize = AtomicUsize::new(0);

/// Returns the address in the form of `$upstream_addr`.
pub(super) fn name_of(address: &PeerAddr) -> Arc<str> {
    match address {
        PeerAddr::Inet(address) => address.to_string().into(),
        PeerAddr::Unix(path) => format!("unix:{}", path.display()).into(),
    }
}
