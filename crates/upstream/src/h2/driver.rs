//! The task of a connection: receives for all streams, and sends their queued frames.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use http::h2::{Block, ErrorCode, Event, Fault, Strain};
use io::{Errno, Segments};
use rt::Timer;
use rt::local::Counted;

use super::stream::{Heads, Stream};
use super::{CANCELLED_PER_SECOND, Connection, Cut, Idle, OUT_BYTES_MAX, PROBE_MAX, State};
use transfer::duplex::Duplex;

/// Maximum number of consecutive receives and sends; then other tasks get their turn.
const TURNS_IN_A_ROW: u32 = 16;

/// Serves a connection until its end.
pub(super) async fn drive(
    connection: Rc<Connection>,
    wire: Box<dyn Duplex>,
    _place: Option<Counted>,
    idle: Option<Idle>,
) {
    let credited_at = rt::now();
    let mut driver = Driver { wire, flying: None, input: Vec::new(), timer: Timer::new(), idle, credited_at };
    let cut = poll_fn(|context| driver.poll(context, &connection)).await;
    let last = {
        let mut state = connection.state.borrow_mut();
        let State { session, out, .. } = &mut *state;
        match cut {
            Cut::Fault(fault) => session.fail(fault, out),
            // No error occurred.
            Cut::Closed => session.send_goaway(0, ErrorCode::NoError, out),
            _ => out.clear(),
        }
        std::mem::take(out)
    };
    connection.with(|state| state.fail(cut));
    if !last.is_empty() {
        // Sends only as many bytes as the socket accepts immediately: nothing depends on these frames.
        let mut data = Segments::from(last);
        poll_fn(|context| Poll::Ready(_ = driver.wire.poll_send(context, &mut data))).await;
    }
}

/// The task of one connection: it receives, sends what the streams have queued, and ends idle connections.
struct Driver {
    wire: Box<dyn Duplex>,
    /// Frames in flight.
    flying: Option<Segments>,
    /// Received bytes of an incomplete frame.
    input: Vec<u8>,
    timer: Timer,
    idle: Option<Idle>,
    /// Time up to which the elapsed time was credited to the upstream.
    credited_at: Instant,
}

impl Driver {
    /// Works until it has to wait; ready when the connection has ended.
    fn poll(&mut self, context: &mut Context<'_>, connection: &Connection) -> Poll<Cut> {
        for _ in 0..TURNS_IN_A_ROW {
            if let Poll::Ready(Err(errno)) = self.poll_send(context, connection) {
                return Poll::Ready(Cut::Errno(errno));
            }
            if connection.is_over() && self.flying.is_none() {
                return Poll::Ready(Cut::Closed);
            }
            let waiting = connection.state.borrow().out.len() + self.flying.as_ref().map_or(0, Segments::len);
            if waiting >= OUT_BYTES_MAX {
                return self.wait(context, connection);
            }
            match self.wire.poll_recv(context) {
                Poll::Pending => return self.wait(context, connection),
                Poll::Ready(Ok(Some(buf))) => {
                    let mut state = connection.state.borrow_mut();
                    (state.received_at, state.probed_at) = (rt::now(), None);
                    if let Err(fault) = self.receive(&buf, &mut state) {
                        return Poll::Ready(Cut::Fault(fault));
                    }
                }
                Poll::Ready(Ok(None)) => return Poll::Ready(Cut::Closed),
                Poll::Ready(Err(errno)) => return Poll::Ready(Cut::Errno(errno)),
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }

    /// Sends all queued frames, in as few sends as possible.
    fn poll_send(&mut self, context: &mut Context<'_>, connection: &Connection) -> Poll<Result<(), Errno>> {
        loop {
            let data = match &mut self.flying {
                Some(data) => data,
                None => {
                    let mut state = connection.state.borrow_mut();
                    if state.out.is_empty() {
                        return Poll::Ready(Ok(()));
                    }
                    let out = std::mem::take(&mut state.out);
                    state.session.each().for_each(|(_, stream)| stream.wake_writer());
                    self.flying.insert(Segments::from(out))
                }
            };
            std::task::ready!(self.wire.poll_send(context, data))?;
            self.flying = None;
        }
    }

    /// Waits for the next event, which wakes the task.
    fn wait(&mut self, context: &mut Context<'_>, connection: &Connection) -> Poll<Cut> {
        let (idle_since, probed_at) = {
            let state = connection.state.borrow();
            ((state.users == 0).then_some(state.idle_since), state.probed_at)
        };
        connection.driver.set(Some(context.waker().clone()));
        if let (Some(idle), Some(_)) = (&self.idle, idle_since) {
            (idle.begins)();
        }
        let time = self.idle.as_ref().map_or(Duration::ZERO, |idle| idle.time);
        let probe = probed_at.map(|at| at + PROBE_MAX);
        let until = idle_since.map(|since| since + time).into_iter().chain(probe).min();
        match until {
            Some(until) => self.timer.set(until),
            None => self.timer.clear(),
        }
        if self.timer.poll_elapsed(context).is_pending() {
            return Poll::Pending;
        }
        let is_dead = probe.is_some_and(|until| rt::now() >= until);
        Poll::Ready(if is_dead { Cut::Errno(Errno::TIMEDOUT) } else { Cut::Closed })
    }

    /// Credits the elapsed time to the upstream, in complete seconds: its keepalive PINGs on idle streams are no flood.
    fn pass_time(&mut self, state: &mut State) {
        let seconds = rt::now().duration_since(self.credited_at).as_secs();
        if seconds > 0 {
            self.credited_at += Duration::from_secs(seconds);
            state.session.pass_time(seconds);
            let elapsed = u32::try_from(seconds).unwrap_or(u32::MAX);
            state.cancelled = state.cancelled.saturating_sub(elapsed.saturating_mul(CANCELLED_PER_SECOND));
        }
    }

    /// Processes the received frames.
    fn receive(&mut self, bytes: &[u8], state: &mut State) -> Result<(), Fault> {
        self.pass_time(state);
        if self.input.is_empty() {
            let used = handle(bytes, state)?;
            debug_assert!(used <= bytes.len(), "only received bytes are processed");
            self.input.extend_from_slice(&bytes[used..]);
        } else {
            self.input.extend_from_slice(bytes);
            let used = handle(&self.input, state)?;
            self.input.drain(..used);
        }
        // An upstream that sends many frames without effect gets no further exchanges; those that have begun continue.
        state.is_closing |= state.session.strain() != Strain::None;
        Ok(())
    }
}

impl Connection {
    /// Whether the connection must end and all of its exchanges have ended.
    fn is_over(&self) -> bool {
        let state = self.state.borrow();
        state.is_closing && state.users == 0 && state.out.is_empty()
    }
}

/// Processes frames one by one; returns the number of bytes processed.
fn handle(input: &[u8], state: &mut State) -> Result<usize, Fault> {
    let mut at = 0;
    while at < input.len() {
        let rest = &input[at..];
        let step = state.session.receive(rest, &mut state.out)?;
        match step.event {
            Event::More => break,
            Event::Nothing | Event::Priority { .. } | Event::Pong => {}
            Event::Round => state.grow(),
            Event::Head { stream, ends, block } => {
                state.probes = 0;
                fields(state, (stream, ends), block, rest)?;
            }
            Event::Data { stream: id, start, end, ends } => {
                state.probes = 0;
                if let Some(stream) = state.session.get(id).map(Rc::clone) {
                    debug_assert!(start <= end && end <= step.used, "the payload is in the frame");
                    if let Err(cut) = stream.add_body(&rest[start..end], ends) {
                        state.refuse(id, &stream, cut);
                    }
                    if !stream.passes_body() {
                        state.session.take(id, (end - start) as u32, &mut state.out);
                    }
                }
            }
            Event::Reset { stream, by_peer, code } => {
                if let Some(stream) = state.session.get(stream) {
                    stream.was_reset(by_peer, code);
                }
            }
            Event::Window { stream: 0 } => state.session.each().for_each(|(_, stream)| stream.wake_writer()),
            Event::Window { stream } => state.session.get(stream).into_iter().for_each(|it| it.wake_writer()),
            Event::GoAway { last, .. } => {
                (state.is_closing, state.has_goaway) = (true, true);
                let unprocessed = state.session.each().filter(|(id, _)| *id > last);
                unprocessed.for_each(|(_, stream)| stream.cut(Cut::Unprocessed));
            }
        }
        debug_assert!(step.used <= rest.len(), "a frame ends within the input");
        at += step.used;
    }
    Ok(at)
}

/// Handles a header section: a head or trailers.
fn fields(state: &mut State, (id, ends): (u32, bool), block: Block, input: &[u8]) -> Result<(), Fault> {
    let stream: Option<Rc<Stream>> = state.session.get(id).map(Rc::clone);
    let Some(stream) = stream else {
        return state.session.decode(block, input, |_, _| ());
    };
    let mut heads = Heads::of(&stream);
    state.session.decode(block, input, |name, value| heads.field(name, value))?;
    if matches!(heads, Heads::Head(_)) {
        stream.set_never_indexed(state.session.take_never_indexed());
    }
    match stream.add_fields(heads, ends) {
        Ok(Some(length)) => {
            state.session.expect(id, length);
            stream.share().iter().for_each(|share| share.limit_to(length));
        }
        Ok(None) => {}
        Err(cut) => state.refuse(id, &stream, cut),
    }
    Ok(())
}
