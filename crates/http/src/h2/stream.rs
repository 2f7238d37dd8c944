//! Streams of a connection (RFC 9113 section 5): their states and windows, and recently ended streams.
//!
//! Main types: [`Stream`] with its [`StreamState`], [`Streams`].

use std::collections::VecDeque;

use super::settings::WINDOW_MAX;

/// State of a stream (RFC 9113 section 5.1). An idle stream has no record: its number is above [`Streams::last`].
///
/// ```text
///   idle --insert--> Open ------- peer ends -----> HalfClosedRemote
///                     |                                   |
///               this end ends                       this end ends
///                     v                                   v
///              HalfClosedLocal -- peer ends -----> Closed(Done)
///
///   each state -- RST_STREAM of this end --> Closed(Reset)
///              -- RST_STREAM of the peer --> Closed(ResetByPeer)
/// ```
/// A closed stream remains in [`Streams`] until its work is done; then only its [`End`] is recorded. If the response of a request has
/// ended and its client may still send, [`late`](super::late) also keeps the values that the checks of the client's frames need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamState {
    /// Both ends may send.
    Open,
    /// Only the peer may send.
    HalfClosedLocal,
    /// Only this end may send.
    HalfClosedRemote,
    /// No end may send.
    Closed(End),
}

impl StreamState {
    /// Whether the peer may send more: its end was not received.
    pub(super) fn receives(self) -> bool {
        matches!(self, StreamState::Open | StreamState::HalfClosedLocal)
    }

    /// Whether this end may send more.
    pub(super) fn sends(self) -> bool {
        matches!(self, StreamState::Open | StreamState::HalfClosedRemote)
    }

    /// Whether either end has reset the stream.
    pub(super) fn is_reset(self) -> bool {
        matches!(self, StreamState::Closed(End::Reset | End::ResetByPeer))
    }

    /// Notes that the peer has ended its side.
    pub(super) fn end_receiving(&mut self) {
        match self {
            StreamState::Open => *self = StreamState::HalfClosedRemote,
            StreamState::HalfClosedLocal => *self = StreamState::Closed(End::Done),
            StreamState::HalfClosedRemote | StreamState::Closed(_) => {}
        }
    }

    /// Notes that this end has ended its side.
    pub(super) fn end_sending(&mut self) {
        match self {
            StreamState::Open => *self = StreamState::HalfClosedLocal,
            StreamState::HalfClosedRemote => *self = StreamState::Closed(End::Done),
            StreamState::HalfClosedLocal | StreamState::Closed(_) => {}
        }
    }
}

/// One stream of a request, until its work is done. `T` is the caller's data.
#[derive(Debug)]
pub(super) struct Stream<T> {
    pub(super) id: u32,
    pub(super) state: StreamState,
    /// Whether the caller holds back the work for the stream.
    pub(super) is_held: bool,
    /// Whether the header section of a response was sent.
    pub(super) has_head: bool,
    /// Whether the stream is a tunnel of another protocol.
    pub(super) is_tunnel: bool,
    /// Whether the request was malformed: RST_STREAM ends the response, not END_STREAM.
    pub(super) is_malformed: bool,
    /// Number of bytes that the peer may still send.
    pub(super) receive_window: i64,
    /// Number of bytes taken since the last WINDOW_UPDATE.
    pub(super) taken: u32,
    /// Size of the receive window when no bytes are in flight or buffered.
    pub(super) receive_limit: u32,
    /// Whether bytes of the peer's body have arrived.
    pub(super) has_begun: bool,
    /// Whether half of its window was consumed before, so that its windows limit it.
    pub(super) is_long: bool,
    /// Number of the last measured round trip in which bytes arrived, the number of these bytes, and whether all received bytes were
    /// consumed at a time during it.
    pub(super) round: (u32, u32, bool),
    /// Number of bytes that may be sent; negative if a setting has reduced the window (RFC 9113 section 6.9.2).
    pub(super) send_window: i64,
    /// Remaining bytes of the body, if its length was announced.
    pub(super) left: Option<u64>,
    pub(super) user: T,
}

impl<T> Stream<T> {
    /// Enlarges the send window; `false` if it exceeds the maximum.
    pub(super) fn widen(&mut self, bytes: i64) -> bool {
        self.send_window += bytes;
        self.send_window <= i64::from(WINDOW_MAX)
    }
}

/// Open streams, in the order of their numbers.
#[derive(Debug)]
pub(super) struct Streams<T> {
    open: Vec<Stream<T>>,
    /// The streams that ended last.
    ended: VecDeque<(u32, End)>,
    /// The highest stream number used.
    pub(super) last: u32,
}

/// How a stream ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// Both ends had finished.
    Done,
    /// This end has reset, refused or ignored it. Frames of the peer may still be in flight.
    Reset,
    /// The peer has reset it.
    ResetByPeer,
}

/// Maximum number of ended streams that are recorded: as many as may have frames in flight. Late frames of other ended streams
/// cannot be distinguished from errors.
const ENDED_MAX: usize = 512;

impl<T> Default for Streams<T> {
    fn default() -> Streams<T> {
        Streams { open: Vec::new(), ended: VecDeque::new(), last: 0 }
    }
}

impl<T> Streams<T> {
    fn index(&self, id: u32) -> Result<usize, usize> {
        match self.open.last() {
            Some(last) if last.id == id => Ok(self.open.len() - 1),
            _ => self.open.binary_search_by_key(&id, |stream| stream.id),
        }
    }

    pub(super) fn get(&self, id: u32) -> Option<&Stream<T>> {
        self.index(id).ok().map(|index| &self.open[index])
    }

    pub(super) fn get_mut(&mut self, id: u32) -> Option<&mut Stream<T>> {
        self.index(id).ok().map(|index| &mut self.open[index])
    }

    /// Adds a stream, whose number must be new: otherwise it would hide the stream with the same number.
    pub(super) fn insert(&mut self, stream: Stream<T>) {
        let index = self.index(stream.id).expect_err("a stream is opened once");
        self.open.insert(index, stream);
    }

    pub(super) fn remove(&mut self, id: u32) -> Option<Stream<T>> {
        self.index(id).ok().map(|index| self.open.remove(index))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Stream<T>> {
        self.open.iter()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Stream<T>> {
        self.open.iter_mut()
    }

    pub(super) fn len(&self) -> usize {
        self.open.len()
    }

    /// Whether as many streams are open as permitted. Streams that were reset do not count.
    pub(super) fn are_full(&self, most: u32) -> bool {
        let most = most as usize;
        self.open.len() >= most && self.open.iter().filter(|stream| !stream.state.is_reset()).count() >= most
    }

    /// Records that a stream has ended.
    pub(super) fn note_end(&mut self, id: u32, end: End) {
        if self.ended.len() == ENDED_MAX {
            self.ended.pop_front();
        }
        self.ended.push_back((id, end));
    }

    /// Returns how a stream ended, if recorded.
    pub(super) fn end_of(&self, id: u32) -> Option<End> {
        self.ended.iter().rev().find(|(ended, _)| *ended == id).map(|(_, end)| *end)
    }
}
