//! Receive windows (RFC 9113 section 5.2): of streams, which grow with the bytes that are consumed in a round trip, and of the
//! connection.
//!
//! A window of W bytes permits at most W bytes per round trip. A PING measures a round trip: if half of a stream's window arrived
//! until its acknowledgement, and all of it was consumed, the window was the limit, and is doubled. A slow consumer does not get a
//! larger window. No clock is needed.

use super::frame;
use super::round::Round;
use super::session::Session;
use super::settings::WINDOW_MAX;
use super::stream::Stream;

/// Maximum window in bytes of a stream that grows: enough for 160 MB/s at a round trip of 100 ms.
pub const STREAM_WINDOW_MAX: u32 = 16 << 20;

/// Minimum window in bytes that grows. Smaller windows are intended, and a PING for each would be many.
const GROWN_MIN: u32 = 16 << 10;

/// Counts received bytes of a stream, and begins a measurement if its window may limit it: the remaining bytes of the window arrive
/// before the acknowledgement of the PING.
pub(super) fn measure<T>(round: &mut Round, stream: &mut Stream<T>, len: u32, out: &mut Vec<u8>) {
    if !stream.is_long {
        return;
    }
    round.begin(out);
    let (number, received, caught_up) = &mut stream.round;
    if *number != round.number() {
        (*number, *received, *caught_up) = (round.number(), 0, false);
    }
    *received = received.saturating_add(len);
}

impl<T> Stream<T> {
    /// Returns the number of bytes that were received and not consumed.
    fn unconsumed(&self) -> i64 {
        i64::from(self.receive_limit) - self.receive_window - i64::from(self.taken)
    }

    /// Whether the peer needs another window for the rest of the body, and the window may grow.
    fn may_grow(&self) -> bool {
        let needs_more = self.left.is_none_or(|left| left as i64 > self.receive_window);
        self.state.receives() && needs_more && (GROWN_MIN..STREAM_WINDOW_MAX).contains(&self.receive_limit)
    }
}

impl<T> Session<T> {
    /// Notes that the caller has consumed bytes of a body. Sends WINDOW_UPDATE when half of the window is consumed.
    pub fn take(&mut self, id: u32, bytes: u32, out: &mut Vec<u8>) {
        let Some(stream) = self.streams.get_mut(id).filter(|stream| stream.state.receives()) else { return };
        stream.taken += bytes;
        stream.round.2 |= stream.unconsumed() <= 0;
        if stream.taken > 0 && stream.taken >= stream.receive_limit.div_ceil(2) {
            let taken = std::mem::take(&mut stream.taken);
            stream.receive_window += i64::from(taken);
            frame::push_window_update(out, id, taken);
            stream.is_long = stream.may_grow();
        }
    }

    /// Returns the streams whose windows limited the measured round trip, with their windows in bytes.
    pub fn limited(&mut self) -> Vec<(u32, u32)> {
        let now = self.round.number();
        let limited = self.streams.iter().filter(|stream| {
            let (number, received, caught_up) = stream.round;
            let is_limit = number == now && caught_up && received >= stream.receive_limit.div_ceil(2);
            is_limit && stream.may_grow()
        });
        let limited: Vec<(u32, u32)> = limited.map(|stream| (stream.id, stream.receive_limit)).collect();
        self.round.pause(limited.is_empty());
        limited
    }

    /// Enlarges the window of a body that is consumed as fast as it arrives.
    pub fn widen(&mut self, id: u32, limit: u32, out: &mut Vec<u8>) {
        let Some(stream) = self.streams.get_mut(id).filter(|stream| stream.state.receives()) else { return };
        let limit = limit.min(WINDOW_MAX);
        if let Some(more @ 1..) = limit.checked_sub(stream.receive_limit) {
            stream.receive_limit = limit;
            stream.receive_window += i64::from(more);
            frame::push_window_update(out, id, more);
        }
    }

    /// Returns the number of bytes that the peer may still send on all streams.
    #[must_use]
    pub fn connection_window(&self) -> u64 {
        u64::try_from(self.receive_window).unwrap_or(0)
    }

    /// Returns the number of bytes that the peer needs in a round trip: the windows of the bodies that have begun to arrive, or the
    /// remaining bytes of these bodies.
    #[must_use]
    pub fn wanted_window(&self) -> u64 {
        let wanted = self.streams.iter().filter(|stream| stream.state.receives() && stream.has_begun);
        wanted.map(|stream| u64::from(stream.receive_limit).min(stream.left.unwrap_or(u64::MAX))).sum()
    }

    /// Reopens the window of the connection to this many bytes, when half of them are used.
    pub fn open_connection(&mut self, limit: u32, out: &mut Vec<u8>) {
        let limit = i64::from(limit.min(WINDOW_MAX));
        let more = limit - self.receive_window;
        if more > 0 && more >= limit / 2 {
            frame::push_window_update(out, 0, more as u32);
            self.receive_window = limit;
        }
    }

    /// Lets the caller open the window of the connection, by [`Session::open_connection`]. Otherwise it is reopened as bytes arrive.
    pub fn open_by_caller(&mut self) {
        self.opens_itself = false;
    }
}

#[cfg(test)]
mod tests {
    use super::super::session::{Event, Limits};
    use super::super::tests::{DATA, END, PING, Peer, frame, post};

    const FIRST: u32 = 64 << 10;

    /// Sends half a window, of which `taken` bytes are consumed before the acknowledgement of the PING. Returns the window after it.
    fn round_trip(peer: &mut Peer, window: u32, taken: u32) -> u32 {
        for _ in 0..window / 2 / 16_384 {
            peer.feed(&frame(DATA, 0, 1, &[0; 16_384])).expect("a body");
        }
        peer.session.take(1, taken, &mut peer.out);
        let events = peer.feed(&frame(PING, END, 0, b"roundtrp")).expect("an acknowledgement");
        if events == [Event::Round] {
            for (id, window) in peer.session.limited() {
                peer.session.widen(id, 2 * window, &mut peer.out);
            }
        }
        peer.session.streams.get(1).map_or(0, |stream| stream.receive_limit)
    }

    fn upload() -> Peer {
        let mut peer = Peer::with(Limits { initial_window: FIRST, ..Limits::default() });
        peer.feed(&post(1)).expect("a request");
        // Nothing is measured before the first half of the window was consumed.
        assert_eq!(round_trip(&mut peer, FIRST, FIRST / 2), FIRST);
        peer
    }

    #[test]
    fn a_window_that_limits_round_trips_is_doubled() {
        let (mut peer, mut window) = (upload(), FIRST);
        for doubled in [2, 4, 8, 16].map(|times| times * FIRST) {
            window = round_trip(&mut peer, window, window / 2);
            assert_eq!(window, doubled);
        }
    }

    #[test]
    fn a_window_whose_bytes_are_consumed_slowly_stays() {
        let mut peer = upload();
        for _ in 0..4 {
            assert_eq!(round_trip(&mut peer, FIRST, FIRST / 2 - 1), FIRST);
            peer.session.take(1, 1, &mut peer.out);
        }
    }

    /// The bytes of the bodies that have begun to arrive are needed, at most their remaining lengths.
    #[test]
    fn silent_bodies_need_no_window_of_the_connection() {
        let mut peer = Peer::with(Limits { initial_window: FIRST, ..Limits::default() });
        for stream in [1, 3, 5] {
            peer.feed(&post(stream)).expect("a request");
        }
        assert_eq!(peer.session.wanted_window(), 0);
        peer.feed(&frame(DATA, 0, 3, &[0; 100])).expect("a body");
        assert_eq!(peer.session.wanted_window(), u64::from(FIRST));
        peer.feed(&frame(DATA, END, 3, &[0; 100])).expect("a body");
        assert_eq!(peer.session.wanted_window(), 0);
    }
}
