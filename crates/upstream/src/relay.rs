//! Relays bytes between a client and an upstream in both directions, until both have ended or one of them breaks.
//!
//! ```text
//!   receive, send <--few bytes after a wait, or no free pipe-- splice(2) through a pipe      both ends without TLS, no rate
//!         `-------------- many bytes in large messages -----------^
//! ```
//! Buffered bytes are limited: each direction buffers a few receives, and receives no more until they are sent. An idle direction has no
//! buffer and no pipe.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::{Duration, Instant};

use io::segments::Source;
use io::{Buf, Errno, Fd, Segments};
use rt::net::{Filled, Pipe, SPLICE_BYTES};
use rt::{Timer, try_join};

use exchange::cut_off;
use exchange::reclaim::Stall;
use exchange::thread::Thread;
use transfer::duplex::Duplex;

/// The limits of a relay.
#[derive(Clone, Copy, Debug)]
pub(super) struct RelayLimits {
    /// Maximum time without data in either direction.
    pub(super) idle_max: Duration,
    /// The effect of the end of one direction.
    pub(super) half_close: HalfClose,
    /// Maximum rate from the client, in bytes per second.
    pub(super) upload_rate: Option<u64>,
    /// Maximum rate from the upstream, in bytes per second.
    pub(super) download_rate: Option<u64>,
}

/// The effect of the end of one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HalfClose {
    /// It ends the other direction too.
    EndsBoth,
    /// It is passed on; the other direction may be idle for this time from then on.
    IsPassedOn(Duration),
}

/// Bytes that were relayed so far.
pub(super) struct RelayCounts<'a> {
    /// Bytes received from the client, and sent to the upstream.
    pub(super) up: [&'a Cell<u64>; 2],
    /// Bytes received from the upstream, and sent to the client.
    pub(super) down: [&'a Cell<u64>; 2],
    /// Time of the first byte from the upstream.
    pub(super) first_byte: &'a Cell<Option<Instant>>,
}

/// One of the two ends of a relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// The client.
    Client,
    /// The upstream.
    Upstream,
}

/// What failed at an end of a relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    /// A receive.
    Receive,
    /// A send.
    Send,
}

/// The reason why a relay ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RelayEnd {
    /// All bytes were relayed. This side was the last to end, or the only one.
    Closed(Side),
    /// Timeout without bytes.
    Idle,
    /// One side has ended, and the other sent nothing for the time that is allowed then.
    HalfClosed,
    /// The server shuts down, and `worker_shutdown_timeout` has passed.
    CutOff,
    /// A connection failed.
    Broken(Side, Call, Errno),
}

/// The ends of a relay.
pub(super) struct Relay<'a> {
    pub(super) thread: &'a Rc<Thread>,
    pub(super) client: &'a mut dyn Duplex,
    pub(super) upstream: &'a mut dyn Duplex,
    pub(super) timer: &'a Timer,
    pub(super) limits: RelayLimits,
    pub(super) counts: RelayCounts<'a>,
}

impl Relay<'_> {
    /// Relays all bytes. `early` are bytes for the upstream, and `rest` bytes for the client, that were received before.
    pub(super) async fn run(self, early: Option<Source>, rest: Option<Source>) -> RelayEnd {
        let Relay { thread, client, upstream, timer, limits, counts } = self;
        let idle = RelayTimeout {
            timer,
            most: Cell::new(limits.idle_max),
            paused_until: Cell::new(rt::now()),
            stall: RefCell::default(),
            is_half_closed: Cell::new(false),
        };
        idle.passed();
        let socket = client.socket().cloned();
        let (client, upstream) = (RelayedEnd::new(client), RelayedEnd::new(upstream));
        let ended = |side| match limits.half_close {
            HalfClose::EndsBoth => Err(RelayEnd::Closed(side)),
            HalfClose::IsPassedOn(_) if idle.is_half_closed.get() => Err(RelayEnd::Closed(side)),
            HalfClose::IsPassedOn(most) => {
                idle.half_close(most, thread, socket.as_ref());
                Ok(())
            }
        };
        let started = rt::now();
        let splice_from = splice_from(thread, [&client, &upstream]);
        let up = Direction {
            from: &client,
            to: &upstream,
            sides: [Side::Client, Side::Upstream],
            received: counts.up[0],
            sent: counts.up[1],
            first_byte: None,
            idle: &idle,
            rate: limits.upload_rate.map(|rate| RateLimit { rate, started }),
            passes_end: limits.half_close != HalfClose::EndsBoth,
            splice_from: splice_from.filter(|_| limits.upload_rate.is_none()),
            thread,
        };
        let down = Direction {
            from: &upstream,
            to: &client,
            sides: [Side::Upstream, Side::Client],
            received: counts.down[0],
            sent: counts.down[1],
            first_byte: Some(counts.first_byte),
            rate: limits.download_rate.map(|rate| RateLimit { rate, started }),
            splice_from: splice_from.filter(|_| limits.download_rate.is_none()),
            ..up
        };
        let both = try_join(
            async {
                up.pass(early).await?;
                ended(Side::Client)
            },
            async {
                down.pass(rest).await?;
                ended(Side::Upstream)
            },
        );
        let end = match cut_off::unless(pin!(timer.limit(both))).await {
            None => RelayEnd::CutOff,
            // The second direction to end is an error, which ends the wait.
            Some(Ok(Ok(()))) => RelayEnd::Closed(Side::Client),
            Some(Ok(Err(end))) => end,
            Some(Err(rt::Elapsed)) if idle.is_half_closed.get() => RelayEnd::HalfClosed,
            Some(Err(rt::Elapsed)) => RelayEnd::Idle,
        };
        // After a failure, a proper end would tell the other side that it has received everything.
        if !matches!(end, RelayEnd::Broken(..)) {
            [&client, &upstream].into_iter().for_each(RelayedEnd::finish);
        }
        end
    }
}

/// Returns the minimum number of bytes that are spliced between these ends; `None` if none are.
fn splice_from(thread: &Thread, ends: [&RelayedEnd<'_>; 2]) -> Option<u64> {
    let is_plain = ends.iter().all(|end| end.is_plain());
    thread.thread_config().config.events().splice_from().filter(|_| is_plain)
}

/// Maximum number of receives whose bytes are sent together: with the engine's buffers of 4 KiB, a message of 64 KiB.
const PIECES_MAX: usize = 16;

/// One end, shared by both directions. A direction does not borrow the end while it waits.
struct RelayedEnd<'a> {
    duplex: RefCell<&'a mut dyn Duplex>,
    /// Whether its sending direction was closed.
    is_ended: Cell<bool>,
}

impl<'a> RelayedEnd<'a> {
    fn new(duplex: &'a mut dyn Duplex) -> RelayedEnd<'a> {
        RelayedEnd { duplex: RefCell::new(duplex), is_ended: Cell::new(false) }
    }

    async fn recv(&self) -> Result<Option<Buf>, Errno> {
        poll_fn(|context| self.duplex.borrow_mut().poll_recv(context)).await
    }

    fn try_recv(&self) -> Option<Result<Option<Buf>, Errno>> {
        self.duplex.borrow_mut().try_recv()
    }

    async fn send(&self, mut data: Segments) -> Result<(), Errno> {
        poll_fn(|context| self.duplex.borrow_mut().poll_send(context, &mut data)).await
    }

    /// Returns the results of a receive in flight, which is cancelled; `None` when it has ended.
    async fn recv_rest(&self) -> Option<Result<Option<Buf>, Errno>> {
        poll_fn(|context| match self.duplex.borrow_mut().plain() {
            Some(socket) => socket.reader.poll_disarmed(context),
            None => Poll::Ready(None),
        })
        .await
    }

    /// Moves received bytes to a pipe; returns `None` instead of waiting, unless `waits`.
    async fn fill(&self, waits: bool) -> Option<Result<Filled, Errno>> {
        poll_fn(|context| {
            let mut duplex = self.duplex.borrow_mut();
            let Some(socket) = duplex.plain() else { return Poll::Ready(Some(Ok(Filled::NoPipe))) };
            match socket.reader.poll_splice(context, SPLICE_BYTES) {
                Poll::Ready(filled) => Poll::Ready(Some(filled)),
                Poll::Pending if waits => Poll::Pending,
                Poll::Pending => Poll::Ready(None),
            }
        })
        .await
    }

    async fn drain(&self, pipe: &mut Pipe) -> Result<(), Errno> {
        poll_fn(|context| match self.duplex.borrow_mut().plain() {
            Some(socket) => socket.writer.poll_splice(context, pipe),
            None => Poll::Ready(Err(Errno::OPNOTSUPP)),
        })
        .await
    }

    fn is_plain(&self) -> bool {
        self.duplex.borrow_mut().plain().is_some()
    }

    fn end_sending(&self) {
        self.is_ended.set(true);
        self.duplex.borrow_mut().end_sending();
    }

    /// Sends the closing message of TLS, before the connection is closed. Closing a plain socket suffices.
    fn finish(&self) {
        if !self.is_ended.get() && !self.is_plain() {
            self.end_sending();
        }
    }
}

/// The timeout of a relay.
struct RelayTimeout<'a> {
    timer: &'a Timer,
    most: Cell<Duration>,
    /// The end of the last pause of this server, in either direction.
    paused_until: Cell<Instant>,
    /// The registration as a connection that may be closed for another, after one side has ended.
    stall: RefCell<Option<Stall>>,
    is_half_closed: Cell<bool>,
}

impl RelayTimeout<'_> {
    fn passed(&self) {
        self.timer.set(rt::now().max(self.paused_until.get()) + self.most.get());
    }

    /// Extends the timeout by a pause of this server. Bytes of the other direction do not shorten it.
    fn pause_until(&self, end: Instant) {
        self.paused_until.set(self.paused_until.get().max(end));
        self.passed();
    }

    /// Notes that one side has ended: the other has only this time between two bytes.
    fn half_close(&self, most: Duration, thread: &Rc<Thread>, client: Option<&Fd>) {
        self.is_half_closed.set(true);
        self.most.set(most);
        self.passed();
        let begin = |socket| Stall::begin(thread, self.timer, socket, rt::net::progress(socket, u64::MAX));
        self.stall.replace(client.map(begin));
    }
}

/// A limit on the rate of one direction: as in nginx the bytes of the seconds that have begun.
#[derive(Clone, Copy)]
struct RateLimit {
    /// Bytes per second.
    rate: u64,
    started: Instant,
}

impl RateLimit {
    /// Returns the number of bytes that may be passed now, after `passed` bytes; or the time at which more of them may.
    fn allowed(self, passed: u64, now: Instant) -> Result<u64, Instant> {
        let seconds = now.saturating_duration_since(self.started).as_secs();
        let limit = self.rate.saturating_mul(seconds.saturating_add(1));
        match limit.checked_sub(passed) {
            Some(allowed @ 1..) => Ok(allowed),
            // The start of the first second whose bytes are more than the passed ones.
            _ => Err(self.started + Duration::from_secs(passed / self.rate)),
        }
    }
}

/// One direction of a relay.
#[derive(Clone, Copy)]
struct Direction<'a> {
    from: &'a RelayedEnd<'a>,
    to: &'a RelayedEnd<'a>,
    sides: [Side; 2],
    received: &'a Cell<u64>,
    sent: &'a Cell<u64>,
    first_byte: Option<&'a Cell<Option<Instant>>>,
    idle: &'a RelayTimeout<'a>,
    rate: Option<RateLimit>,
    passes_end: bool,
    /// Minimum number of bytes in consecutive large messages from which on they are spliced; `None` if they never are.
    splice_from: Option<u64>,
    thread: &'a Rc<Thread>,
}

/// Minimum size in bytes of a large message: as many as the receives in flight return in one turn, with the default buffers.
const LARGE_MESSAGE: usize = 16 << 10;

/// Maximum number of bytes that arrive after a wait for which they are received again: shorter messages need fewer system calls so.
const SHORT_MESSAGE: usize = 4 << 10;

/// Number of spliced bytes after which other tasks have a turn.
const TURN_BYTES: usize = 1 << 20;

impl Direction<'_> {
    /// Relays the direction until its end, and passes the end on.
    async fn pass(&self, first: Option<Source>) -> Result<(), RelayEnd> {
        let mut next = match first {
            Some(source) => {
                self.note_received(source.bytes().len());
                self.send(Segments::from(source)).await?;
                None
            }
            None => None,
        };
        let mut in_large = 0;
        loop {
            if next.is_none() && self.splice_from.is_some_and(|splice_from| in_large >= splice_from) {
                in_large = 0;
                // Boxed, as the slow sends are: most relays do not need these futures.
                next = Box::pin(self.splice()).await?;
            }
            let received = match next.take() {
                Some(received) => received,
                None => self.from.recv().await,
            };
            let mut data = match received {
                Ok(Some(buf)) => Segments::from(Source::Buf(buf)),
                Ok(None) => {
                    if self.passes_end {
                        self.to.end_sending();
                    }
                    return Ok(());
                }
                Err(errno) => return Err(RelayEnd::Broken(self.sides[0], Call::Receive, errno)),
            };
            self.idle.passed();
            // Further bytes of a message that have already arrived are sent together.
            for _ in 1..PIECES_MAX {
                match self.from.try_recv() {
                    Some(Ok(Some(buf))) => data.push(Source::Buf(buf)),
                    Some(ended) => {
                        next = Some(ended);
                        break;
                    }
                    None => break,
                }
            }
            self.note_received(data.len());
            in_large = if data.len() >= LARGE_MESSAGE { in_large + data.len() as u64 } else { 0 };
            match self.rate {
                None => self.send(data).await?,
                Some(rate) => Box::pin(self.send_slowly(rate, data)).await?,
            }
        }
    }

    /// Passes bytes by splice(2), until only few arrive after a wait. Returns a result that [`RelayedEnd::recv`] would return.
    async fn splice(&self) -> Result<Option<Result<Option<Buf>, Errno>>, RelayEnd> {
        while let Some(received) = self.from.recv_rest().await {
            match received {
                Ok(Some(buf)) => {
                    self.note_received(buf.len());
                    self.send(Segments::from(Source::Buf(buf))).await?;
                }
                ended => return Ok(Some(ended)),
            }
        }
        let mut in_turn = 0;
        loop {
            let (filled, waited) = match self.from.fill(false).await {
                Some(filled) => (filled, false),
                None => (self.from.fill(true).await.unwrap_or(Ok(Filled::NoPipe)), true),
            };
            let mut pipe = match filled {
                Ok(Filled::Pipe(pipe)) => pipe,
                Ok(Filled::End) => return Ok(Some(Ok(None))),
                Ok(Filled::NoPipe) => return Ok(None),
                Err(errno) => return Ok(Some(Err(errno))),
            };
            self.idle.passed();
            let len = pipe.held();
            self.note_received(len);
            let sent = self.to.drain(&mut pipe).await;
            sent.map_err(|errno| RelayEnd::Broken(self.sides[1], Call::Send, errno))?;
            drop(pipe);
            self.note_sent(len as u64);
            self.thread.tally.count_spliced(len as u64);
            if waited && len <= SHORT_MESSAGE {
                return Ok(None);
            }
            in_turn += len;
            if in_turn >= TURN_BYTES {
                in_turn = 0;
                // Calls that never wait would keep other tasks from running.
                rt::yield_now().await;
            }
        }
    }

    fn note_sent(&self, len: u64) {
        self.idle.passed();
        self.sent.set(self.sent.get() + len);
    }

    fn note_received(&self, count: usize) {
        if let Some(first_byte) = self.first_byte.filter(|first_byte| first_byte.get().is_none()) {
            first_byte.set(Some(rt::now()));
        }
        self.received.set(self.received.get() + count as u64);
    }

    async fn send(&self, data: Segments) -> Result<(), RelayEnd> {
        let len = data.len() as u64;
        let sent = self.to.send(data).await;
        sent.map_err(|errno| RelayEnd::Broken(self.sides[1], Call::Send, errno))?;
        self.note_sent(len);
        Ok(())
    }

    /// Sends received bytes as the rate allows.
    async fn send_slowly(&self, rate: RateLimit, data: Segments) -> Result<(), RelayEnd> {
        let bytes: Vec<u8> = data.parts().flat_map(|part| part.bytes().iter().copied()).collect();
        // A slow session does not keep the buffers of the engine.
        drop(data);
        let mut left = bytes.as_slice();
        while !left.is_empty() {
            match rate.allowed(self.sent.get(), rt::now()) {
                Ok(allowed) => {
                    let count = left.len().min(usize::try_from(allowed).unwrap_or(usize::MAX));
                    let (now, later) = left.split_at(count);
                    self.send(Segments::from(now.to_vec())).await?;
                    left = later;
                }
                Err(next) => {
                    self.idle.pause_until(next);
                    rt::sleep_until(next).await;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_lasts_until_the_next_second_that_has_bytes() {
        let started = Instant::now();
        let limit = RateLimit { rate: 1000, started };
        let at = |milliseconds| started + Duration::from_millis(milliseconds);
        assert_eq!(limit.allowed(0, at(0)), Ok(1000));
        assert_eq!(limit.allowed(400, at(999)), Ok(600));
        assert_eq!(limit.allowed(1000, at(1)), Err(at(1000)));
        assert_eq!(limit.allowed(1000, at(1000)), Ok(1000));
        // The bytes that were received before the relay may exceed those of the first seconds.
        assert_eq!(limit.allowed(4500, at(0)), Err(at(4000)));
        assert_eq!(limit.allowed(4500, at(4000)), Ok(500));
    }
}
