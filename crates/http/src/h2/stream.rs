//! The streams of a connection (RFC 9113 section 5): their states and windows, and which have ended.

use std::collections::VecDeque;

use super::settings::WINDOW_MAX;

/// One open stream of a request. `T` is what its user keeps with it.
#[derive(Debug)]
pub(super) struct Stream<T> {
    pub(super) id: u32,
    /// Whether the request may have more: the end of it did not come.
    pub(super) receives: bool,
    /// Whether the response may have more.
    pub(super) sends: bool,
    /// Whether one of both ends has reset it.
    pub(super) is_reset: bool,
    /// Bytes that the client may still send.
    pub(super) receive_window: i64,
    /// Bytes that were taken since the window was opened last.
    pub(super) taken: u32,
    /// The size of that window when nothing is on its way.
    pub(super) receive_limit: u32,
    /// Bytes that may be sent; below 0 where a setting has made the window smaller (RFC 9113 section 6.9.2).
    pub(super) send_window: i64,
    /// Bytes of the body that are to come, where the head said how many.
    pub(super) left: Option<u64>,
    pub(super) user: T,
}

impl<T> Stream<T> {
    /// Opens the send window; `false` where it becomes too large.
    pub(super) fn widen(&mut self, bytes: i64) -> bool {
        self.send_window += bytes;
        self.send_window <= i64::from(WINDOW_MAX)
    }
}

/// The open streams, in the order of their numbers.
#[derive(Debug)]
pub(super) struct Streams<T> {
    open: Vec<Stream<T>>,
    /// Those that ended last.
    ended: VecDeque<(u32, End)>,
    /// The highest number that a request had.
    pub(super) last: u32,
}

/// How a stream ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// Both ends were done, or the client has reset it.
    Done,
    /// This end has reset it, so that the client may have sent more before it got to know that.
    Reset,
}

/// Streams that are remembered after their end: as many as a client may have on their way to it. Frames of others could
/// not be distinguished from errors any more.
const ENDED_MAX: usize = 512;

impl<T> Default for Streams<T> {
    fn default() -> Streams<T> {
        Streams { open: Vec::new(), ended: VecDeque::new(), last: 0 }
    }
}

impl<T> Streams<T> {
    fn place(&self, id: u32) -> Result<usize, usize> {
        match self.open.last() {
            Some(last) if last.id == id => Ok(self.open.len() - 1),
            _ => self.open.binary_search_by_key(&id, |stream| stream.id),
        }
    }

    pub(super) fn get(&self, id: u32) -> Option<&Stream<T>> {
        self.place(id).ok().map(|place| &self.open[place])
    }

    pub(super) fn get_mut(&mut self, id: u32) -> Option<&mut Stream<T>> {
        self.place(id).ok().map(|place| &mut self.open[place])
    }

    pub(super) fn insert(&mut self, stream: Stream<T>) {
        let place = self.place(stream.id).unwrap_or_else(|place| place);
        self.open.insert(place, stream);
    }

    pub(super) fn remove(&mut self, id: u32) -> Option<Stream<T>> {
        self.place(id).ok().map(|place| self.open.remove(place))
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

    /// Remembers that a stream has ended.
    pub(super) fn note_end(&mut self, id: u32, end: End) {
        if self.ended.len() == ENDED_MAX {
            self.ended.pop_front();
        }
        self.ended.push_back((id, end));
    }

    /// How a stream ended, if remembered.
    pub(super) fn end_of(&self, id: u32) -> Option<End> {
        self.ended.iter().rev().find(|(ended, _)| *ended == id).map(|(_, end)| *end)
    }
}
