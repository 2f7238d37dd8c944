//! Bytes that were received and not yet used: of a connection that is opened, then of HTTP/1.

use std::future::poll_fn;
use std::task::Poll;

use io::segments::Source;
use io::{Buf, Errno};
use rt::Timer;

use crate::wire::Wire;

/// Bytes that were received and not yet used.
#[derive(Default)]
pub struct Input {
    held: Option<Source>,
    /// Offset of the first unused byte.
    start: usize,
}

impl Input {
    /// Returns the unused bytes.
    pub fn bytes(&self) -> &[u8] {
        self.held.as_ref().map(|held| &held.bytes()[self.start..]).unwrap_or_default()
    }

    /// Copies the unused bytes to memory of their exact size, to release the buffer.
    pub(crate) fn release_buffer(&mut self) {
        if let Some(Source::Buf(_)) = &self.held {
            *self = Input { held: Some(Source::Vec(self.bytes().to_vec())), start: 0 };
        }
    }

    /// Removes `count` bytes from the front.
    pub(crate) fn consume(&mut self, count: usize) {
        self.start += count;
        if self.bytes().is_empty() {
            *self = Input::default();
        }
    }

    /// Takes the buffer and the offset of its first unused byte.
    pub(crate) fn take(&mut self) -> Option<(Source, usize)> {
        let Input { held, start } = std::mem::take(self);
        held.map(|held| (held, start))
    }

    /// Takes the complete buffer if it has at most `most` unused bytes.
    pub(crate) fn take_buf(&mut self, most: u64) -> Option<Buf> {
        let count = self.bytes().len();
        if count == 0 || count as u64 > most {
            return None;
        }
        let Input { held: Some(Source::Buf(buf)), start } = self else { return None };
        debug_assert!(*start <= buf.len(), "the unused bytes begin within the buffer");
        buf.advance(*start);
        match std::mem::take(self).held {
            Some(Source::Buf(buf)) => Some(buf),
            _ => None,
        }
    }

    /// Appends received bytes to the unused bytes; `false` if there is no memory for both. `most` is the maximum size of a buffer
    /// for both.
    pub(crate) fn add(&mut self, received: Buf, most: usize) -> bool {
        if self.bytes().is_empty() {
            *self = Input::from(received);
            return true;
        }
        let new = received.len();
        if let Some(Source::Buf(held)) = &mut self.held
            && self.start == 0
            && held.capacity() - held.len() >= new
        {
            held.append(&received);
            return true;
        }
        let unused = self.bytes();
        let needed = (unused.len() + new).max((unused.len() * 2).min(most));
        let Some(mut larger) = rt::pool().get(needed) else { return false };
        let fits = larger.append(unused) == unused.len() && larger.append(&received) == new;
        *self = Input::from(larger);
        fits
    }

    /// Receives more bytes until the deadline of the timer; `false` at the end of the stream. `most` as for [`Input::add`].
    ///
    /// # Errors
    /// `ETIMEDOUT` at the deadline, `ENOBUFS` without memory.
    pub(crate) async fn receive(
        &mut self,
        wire: &mut Wire,
        timer: &Timer,
        most: usize,
    ) -> Result<bool, Errno> {
        match receive_in_time(wire, timer).await {
            Err(rt::Elapsed) => Err(Errno::TIMEDOUT),
            Ok(Err(errno)) => Err(errno),
            Ok(Ok(None)) => Ok(false),
            Ok(Ok(Some(buf))) => match self.add(buf, most) {
                true => Ok(true),
                false => Err(Errno::NOBUFS),
            },
        }
    }
}

impl From<Buf> for Input {
    fn from(received: Buf) -> Input {
        Input { held: Some(Source::Buf(received)), start: 0 }
    }
}

impl From<Vec<u8>> for Input {
    fn from(received: Vec<u8>) -> Input {
        Input { held: Some(Source::Vec(received)), start: 0 }
    }
}

/// Receives bytes until the deadline of the timer. Like [`Timer::limit`], but without a nested state machine: with many
/// connections, access to the state of a waiting connection is a cache miss at each request.
pub(crate) fn receive_in_time(
    wire: &mut Wire,
    timer: &Timer,
) -> impl Future<Output = Result<Result<Option<Buf>, Errno>, rt::Elapsed>> {
    poll_fn(|context| match wire.poll_recv(context) {
        Poll::Ready(received) => Poll::Ready(Ok(received)),
        Poll::Pending => timer.poll_elapsed(context).map(Err),
    })
}
