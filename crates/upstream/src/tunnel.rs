//! A connection after a protocol switch (101): bytes are relayed in both directions until both have ended.
//!
//! The end of one direction is passed on. If the other side ignores it, the tunnel is closed soon: its peer may have left.
//!
//! Buffered bytes are limited: each direction buffers a few receives, and receives no more until they are sent.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::time::Duration;

use io::segments::Source;
use io::{Buf, Errno, Fd, Segments};
use rt::{Either, Timer, join, select};

use crate::body::Live;
use crate::choice::Chosen;
use crate::link::Link;
use crate::settings::Settings;
use crate::state::Try;
use exchange::cut_off;
use exchange::reclaim::Stall;
use exchange::takeover::{Ended, Takeover, TakeoverEnd};
use exchange::thread::Thread;
use transfer::duplex::Duplex;

/// A connection after a protocol switch.
pub struct Tunnel {
    thread: Rc<Thread>,
    link: Option<Box<Link>>,
    /// The bytes received after the header section of the 101.
    rest: Option<Buf>,
    record: Rc<Try>,
    /// Counts a request in flight at the upstream server until the end.
    _chosen: Chosen,
    /// Maximum time without data in either direction; then the tunnel is closed.
    idle_max: Duration,
    /// The same after one side has ended.
    half_closed_max: Duration,
}

impl fmt::Debug for Tunnel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tunnel")
    }
}

impl Tunnel {
    /// Takes the connection of a response 101 with the time limits of the location.
    pub(super) fn new(live: Live, settings: &Settings, thread: &Rc<Thread>) -> Tunnel {
        let (link, rest, record, chosen) = live.into_parts();
        let (idle_max, half_closed_max) = (settings.read_timeout, settings.half_close_timeout);
        Tunnel {
            thread: Rc::clone(thread),
            link,
            rest,
            record,
            _chosen: chosen,
            idle_max,
            half_closed_max: half_closed_max.min(idle_max),
        }
    }

    /// Relays all bytes in both directions.
    async fn pass_all(mut self, client: &mut dyn Duplex, timer: &Timer, early: &[u8]) -> TakeoverEnd {
        let Some(mut link) = self.link.take() else { return TakeoverEnd { reason: Ended::Closed, sent: 0 } };
        let idle = Idle {
            timer,
            most: Cell::new(self.idle_max),
            stall: RefCell::default(),
            is_half_closed: Cell::new(false),
        };
        idle.passed();
        let (half_closed_max, socket) = (self.half_closed_max, client.socket().cloned());
        let half_close = || idle.half_close(half_closed_max, &self.thread, socket.as_ref());
        let (up, down) = (Cell::new(0), Cell::new(0));
        let (client, upstream) = (TunnelEnd::new(client), TunnelEnd::new(&mut link.wire));
        let early = (!early.is_empty()).then(|| Source::Vec(early.to_vec()));
        let rest = self.rest.take().map(Source::Buf);
        let both = async {
            let to_upstream = pass(&client, &upstream, early, &idle, &up);
            let to_client = pass(&upstream, &client, rest, &idle, &down);
            // An error in one direction ends both; the end of one direction does not.
            let to_upstream = async {
                match to_upstream.await {
                    Ok(()) => {
                        half_close();
                        Ok(())
                    }
                    Err((Side::From, errno)) => Err(Ended::Client(errno)),
                    Err((Side::To, errno)) => Err(Ended::Upstream(errno)),
                }
            };
            let to_client = async {
                match to_client.await {
                    Ok(()) => {
                        half_close();
                        Ok(())
                    }
                    Err((Side::From, errno)) => Err(Ended::Upstream(errno)),
                    Err((Side::To, errno)) => Err(Ended::Client(errno)),
                }
            };
            both_or_error(to_upstream, to_client).await
        };
        let reason = match cut_off::unless(pin!(timer.limit(both))).await {
            None => Ended::CutOff,
            Some(Ok(Ok(()))) => Ended::Closed,
            Some(Ok(Err(ended))) => ended,
            Some(Err(rt::Elapsed)) if idle.is_half_closed.get() => Ended::HalfClosed,
            Some(Err(rt::Elapsed)) => Ended::Idle,
        };
        self.record.bytes_sent.set(self.record.bytes_sent.get() + up.get());
        self.record.count_received(down.get() as usize);
        self.record.end();
        TakeoverEnd { reason, sent: down.get() }
    }
}

impl Takeover for Tunnel {
    fn run<'a>(
        self: Box<Self>,
        client: &'a mut dyn Duplex,
        timer: &'a Timer,
        early: &'a [u8],
    ) -> Pin<Box<dyn Future<Output = TakeoverEnd> + 'a>> {
        Box::pin(self.pass_all(client, timer, early))
    }
}

/// Maximum number of receives whose bytes are sent together: with the engine's buffers of 4 KiB, a message of 64 KiB.
const PIECES_MAX: usize = 16;

/// The side of a direction that failed.
enum Side {
    From,
    To,
}

/// One end, shared by both directions. A direction does not borrow the end while it waits.
struct TunnelEnd<'a>(RefCell<&'a mut dyn Duplex>);

impl<'a> TunnelEnd<'a> {
    fn new(duplex: &'a mut dyn Duplex) -> TunnelEnd<'a> {
        TunnelEnd(RefCell::new(duplex))
    }

    async fn recv(&self) -> Result<Option<Buf>, Errno> {
        poll_fn(|context| self.0.borrow_mut().poll_recv(context)).await
    }

    fn try_recv(&self) -> Option<Result<Option<Buf>, Errno>> {
        self.0.borrow_mut().try_recv()
    }

    async fn send(&self, mut data: Segments) -> Result<(), Errno> {
        poll_fn(|context| self.0.borrow_mut().poll_send(context, &mut data)).await
    }

    fn end_sending(&self) {
        self.0.borrow_mut().end_sending();
    }
}

/// The timeout of the tunnel.
struct Idle<'a> {
    timer: &'a Timer,
    most: Cell<Duration>,
    /// The registration as a connection that may be closed for another, after one side has ended.
    stall: RefCell<Option<Stall>>,
    is_half_closed: Cell<bool>,
}

impl Idle<'_> {
    fn passed(&self) {
        self.timer.set(rt::now() + self.most.get());
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

/// Relays one direction until its end, and passes the end on.
async fn pass(
    from: &TunnelEnd<'_>,
    to: &TunnelEnd<'_>,
    first: Option<Source>,
    idle: &Idle<'_>,
    count: &Cell<u64>,
) -> Result<(), (Side, Errno)> {
    let mut next = first.map(|source| Ok(Some(source)));
    loop {
        let received = match next.take() {
            Some(received) => received,
            None => from.recv().await.map(|buf| buf.map(Source::Buf)),
        };
        let mut data = Segments::new();
        match received {
            Ok(Some(source)) => data.push(source),
            Ok(None) => {
                to.end_sending();
                return Ok(());
            }
            Err(errno) => return Err((Side::From, errno)),
        }
        idle.passed();
        // Further bytes of a message that have already arrived are sent together.
        for _ in 1..PIECES_MAX {
            match from.try_recv() {
                Some(Ok(Some(buf))) => data.push(Source::Buf(buf)),
                Some(ended) => {
                    next = Some(ended.map(|buf| buf.map(Source::Buf)));
                    break;
                }
                None => break,
            }
        }
        let len = data.len() as u64;
        to.send(data).await.map_err(|errno| (Side::To, errno))?;
        idle.passed();
        count.set(count.get() + len);
    }
}

/// Waits for both, or for the first error.
async fn both_or_error<E>(
    one: impl Future<Output = Result<(), E>>,
    other: impl Future<Output = Result<(), E>>,
) -> Result<(), E> {
    let failed: Cell<Option<E>> = Cell::new(None);
    let event = rt::local::Event::new();
    let note = |result: Result<(), E>| {
        if let Err(error) = result {
            failed.set(Some(error));
            event.set();
        }
    };
    let all = join(async { note(one.await) }, async { note(other.await) });
    match select(all, event.wait()).await {
        Either::Left(_) | Either::Right(()) => {}
    }
    failed.into_inner().map_or(Ok(()), Err)
}
