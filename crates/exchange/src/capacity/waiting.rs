//! Connections that wait for their client, in the order in which they are closed when a resource runs out.
//!
//! ```text
//!   Lingering  the last response was sent: nothing is lost               oldest first, several per call
//!   Quiet  idle, or silent since accept: no request is lost              least recent first, several per call
//!   Head   a part of a header section was received                      oldest first
//!   Body   a part of a body was received, nothing more for a second      longest stall first
//!   Reads  the client has read nothing of its response for a second     longest stall first
//! ```

use std::cell::{Cell, RefCell};
use std::time::Duration;

use io::Fd;
use rt::Timer;

use transfer::recency::{ListSlot, Recency};

/// The reason why a connection waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waits {
    /// For the first bytes since it was accepted.
    First,
    /// For another request.
    Idle,
    /// For another request, within `keepalive_min_timeout`: it is not closed to make room.
    Protected,
    /// For input that is discarded after its response (lingering close).
    Lingering,
    /// For the remaining header section.
    Head,
    /// For more of a body.
    Body,
    /// Until its client reads more of a response.
    Reads,
}

/// The rank of a connection: the less is lost by closing it, the earlier it is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rank {
    Lingering,
    Quiet,
    Head,
    Body,
    Reads,
    Protected,
}

impl Waits {
    fn rank(self) -> Rank {
        match self {
            Waits::Lingering => Rank::Lingering,
            Waits::First | Waits::Idle => Rank::Quiet,
            Waits::Head => Rank::Head,
            Waits::Body => Rank::Body,
            Waits::Reads => Rank::Reads,
            Waits::Protected => Rank::Protected,
        }
    }

    /// Returns how long a client may take before its connection can be closed.
    fn grace(self) -> Duration {
        match self {
            Waits::First | Waits::Idle => GRACE,
            Waits::Body | Waits::Reads => STALL,
            Waits::Protected | Waits::Lingering | Waits::Head => Duration::ZERO,
        }
    }
}

/// Time without input or progress after which a request stalls: a round trip around the world takes less.
pub(super) const STALL: Duration = Duration::from_secs(1);

/// The first bytes of most clients arrive with the end of the TCP handshake, and many clients send their next request at once after a
/// response. Only after this time is a connection considered silent or idle.
pub(crate) const GRACE: Duration = Duration::from_millis(20);

/// Maximum number of connections that are checked per search. Connections with unread bytes are skipped, and many of
/// them must not use up the thread's time.
const CHECKS_MAX: usize = 64;

/// All waiting connections of a thread.
#[derive(Default)]
pub(super) struct Lists {
    lingering: RefCell<Recency<Wait>>,
    quiet: RefCell<Recency<Wait>>,
    /// Number of connections in `quiet` that have sent nothing since they were accepted.
    firsts: Cell<usize>,
    heads: RefCell<Recency<Wait>>,
    bodies: RefCell<Recency<Wait>>,
    reads: RefCell<Recency<Wait>>,
    protected: RefCell<Recency<Wait>>,
}

struct Wait {
    kind: Waits,
    /// Start of the wait, in ms since the thread's start.
    since_ms: u32,
    /// `None` once the connection has been chosen.
    timer: Option<Timer>,
    /// `None` if the socket is shared with other connections, as in QUIC.
    socket: Option<Fd>,
    /// Progress of the socket at the start of the wait, if it decides whether the connection stalls.
    progress: Option<u64>,
}

impl Wait {
    /// Whether the client may send or read soon, so that another connection is chosen. Also begins the wait again after progress.
    fn is_active(&mut self, now_ms: u32) -> bool {
        let Some(socket) = &self.socket else { return false };
        if let Some(before) = self.progress {
            let progress = rt::net::progress(socket, u64::MAX);
            if progress != before {
                (self.progress, self.since_ms) = (Some(progress), now_ms);
            }
            return progress != before;
        }
        // A connection with received bytes is about to be served.
        self.kind != Waits::Reads && !rt::net::is_silent(socket)
    }
}

/// An index in one of the lists.
#[derive(Clone, Copy)]
pub(crate) struct Entry(Rank, ListSlot);

impl Lists {
    fn list(&self, rank: Rank) -> &RefCell<Recency<Wait>> {
        match rank {
            Rank::Lingering => &self.lingering,
            Rank::Quiet => &self.quiet,
            Rank::Head => &self.heads,
            Rank::Body => &self.bodies,
            Rank::Reads => &self.reads,
            Rank::Protected => &self.protected,
        }
    }

    /// Adds a connection. With `progress`, the socket's progress since then decides whether it stalls.
    pub(super) fn insert(
        &self,
        kind: Waits,
        timer: &Timer,
        socket: Option<&Fd>,
        since_ms: u32,
        progress: Option<u64>,
    ) -> Entry {
        let rank = kind.rank();
        self.firsts.set(self.firsts.get() + usize::from(kind == Waits::First));
        let wait = Wait { kind, since_ms, timer: Some(timer.clone()), socket: socket.cloned(), progress };
        Entry(rank, self.list(rank).borrow_mut().insert(wait))
    }

    pub(super) fn remove(&self, Entry(rank, slot): Entry) {
        let wait = self.list(rank).borrow_mut().remove(slot);
        assert!(wait.kind != Waits::First || self.firsts.get() > 0, "each first wait is counted");
        self.firsts.set(self.firsts.get() - usize::from(wait.kind == Waits::First));
    }

    pub(super) fn is_chosen(&self, Entry(rank, slot): Entry) -> bool {
        self.list(rank).borrow()[slot].timer.is_none()
    }

    /// Chooses connections of a rank that have waited long enough, the oldest first, and returns their number. The
    /// connections' tasks end them.
    pub(super) fn choose(&self, rank: Rank, most: usize, least: Duration, now_ms: u32) -> usize {
        let mut list = self.list(rank).borrow_mut();
        let (mut chosen, mut next) = (0, list.oldest());
        for _ in 0..CHECKS_MAX {
            let Some(slot) = next.filter(|_| chosen < most) else { break };
            next = list.newer(slot);
            let wait = &list[slot];
            let waited = Duration::from_millis(now_ms.wrapping_sub(wait.since_ms).into());
            if waited < wait.kind.grace().max(least) {
                continue;
            }
            if list[slot].is_active(now_ms) {
                list.touch(slot);
                continue;
            }
            if let Some(timer) = list[slot].timer.take() {
                timer.expire_now();
                chosen += 1;
            }
        }
        debug_assert!(chosen <= most, "no more connections are chosen than wanted");
        chosen
    }

    /// Releases the memory of unused slots at the end of the lists.
    pub(super) fn trim(&self) {
        for list in [&self.lingering, &self.quiet, &self.heads, &self.bodies, &self.reads, &self.protected] {
            list.borrow_mut().trim();
        }
    }

    /// Returns the number of connections of the rank `Quiet`.
    pub(super) fn quiet(&self) -> usize {
        self.quiet.borrow().count()
    }

    /// Whether there are connections that have sent nothing since they were accepted.
    pub(super) fn has_firsts(&self) -> bool {
        self.firsts.get() > 0
    }

    /// Whether there are connections that can be closed if they stall for [`STALL`].
    pub(super) fn has_stalls(&self) -> bool {
        self.bodies.borrow().count() + self.reads.borrow().count() > 0
    }

    /// Wakes connections of the ranks `Quiet` and `Protected` that wait for a matching reason.
    pub(super) fn wake(&self, wanted: impl Fn(Waits) -> bool) {
        for list in [&self.quiet, &self.protected] {
            let list = list.borrow();
            let waits = list.slots().map(|slot| &list[slot]).filter(|wait| wanted(wait.kind));
            waits.filter_map(|wait| wait.timer.as_ref()).for_each(Timer::expire_now);
        }
    }
}
