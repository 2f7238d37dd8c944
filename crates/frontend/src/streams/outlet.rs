//! Sends the body of a stream's response: into the outbox of its stream, from which frames are created as windows and priorities
//! permit.
//!
//! ```text
//!   begin, push_range        the rate permits all
//!   head + body --poll_flush--> flushing -------------------> outbox --frames--> (ready)
//!                                 `--- the rate permits a part -^
//! ```

use std::task::{Context, Poll, ready};

use io::Segments;
use io::segments::{SEGMENTS_MAX, Source};
use rt::Timer;

use crate::streams::{Link, head};
use crate::wire::ProgressTimeout;
use transfer::body::Rate;
use transfer::body::outlet::{Follows, Outlet, SendError, Trailers};
use transfer::body::pace::{self, Pace};
use transfer::body::rules::Sending;

/// Output of one response.
pub(crate) struct StreamOutlet<'a, L: Link> {
    /// The stream of the response.
    link: &'a L,
    /// Timer for `send_timeout`, of this stream only.
    timer: &'a Timer,
    /// Timeout without progress of this stream.
    progress_timeout: ProgressTimeout,
    /// `limit_rate`
    pace: Pace,
    /// Size of a read in bytes: as configured, limited by the rate and by the number of other streams.
    chunk_bytes: u64,
    /// The header section, until it is sent.
    head: Option<Vec<u8>>,
    /// Pieces that wait for a flush.
    body: Segments,
    /// Number of these pieces.
    pieces: usize,
    /// Pieces being sent that are not in the outbox yet.
    flushing: Option<Segments>,
    /// Whether added bytes are in the outbox, which must become empty before more are added.
    is_queued: bool,
    /// The header block of the trailers, possibly empty, once the body has ended.
    end: Option<Vec<u8>>,
    /// Whether the stream has ended.
    has_ended: bool,
    /// Number of bytes passed on, including the header section.
    sent: u64,
    /// Memory of the header section, for reuse.
    spare: Vec<u8>,
}

impl<'a, L: Link> StreamOutlet<'a, L> {
    /// Creates the output for this stream with these settings.
    pub(super) fn new(
        link: &'a L,
        timer: &'a Timer,
        rules: &Sending,
        rate: Option<Rate>,
    ) -> StreamOutlet<'a, L> {
        StreamOutlet {
            link,
            timer,
            progress_timeout: ProgressTimeout::new(rules.send_timeout),
            chunk_bytes: pace::chunk_bytes(rules, rate.as_ref()).unwrap_or(u64::MAX).min(link.read_ahead()),
            pace: Pace::new(rate),
            head: None,
            body: Segments::new(),
            pieces: 0,
            flushing: None,
            is_queued: false,
            end: None,
            has_ended: false,
            sent: 0,
            spare: Vec::new(),
        }
    }

    /// Takes the added pieces, and sends the header section. `ends` means that no body follows.
    fn begin_flush(&mut self, ends: bool) -> Result<(), SendError> {
        let body = std::mem::take(&mut self.body);
        self.pieces = 0;
        if let Some(mut head) = self.head.take() {
            let ends = ends && body.is_empty();
            self.link.send(&head, ends).map_err(SendError::Closed)?;
            self.has_ended = ends;
            self.sent += head.len() as u64;
            head.clear();
            self.spare = head;
        }
        self.flushing = Some(body);
        Ok(())
    }

    /// Is ready when the rate permits more bytes, or the client has ended the stream.
    fn poll_due(&mut self, context: &mut Context<'_>) -> Poll<Result<(), SendError>> {
        if self.pace.poll_due(context, self.sent).is_ready() {
            return Poll::Ready(Ok(()));
        }
        self.link.poll_closed(context).map(|errno| Err(SendError::Closed(errno)))
    }

    /// Continues a flush.
    fn poll_flushed(&mut self, context: &mut Context<'_>) -> Poll<Result<(), SendError>> {
        loop {
            if self.is_queued {
                let polled = self.link.poll_framed(context);
                let first = || self.link.first_progress();
                let progress = || self.link.progress();
                ready!(self.progress_timeout.follow_from(context, self.timer, polled, first, progress))?;
                self.is_queued = false;
            }
            if self.flushing.is_none() {
                return Poll::Ready(Ok(()));
            }
            ready!(self.poll_due(context))?;
            let Some(data) = &mut self.flushing else { return Poll::Ready(Ok(())) };
            let (data, end) = match self.pace.take_allowed(self.sent, data) {
                Some(first) => (Segments::from(first), None),
                None => (self.flushing.take().unwrap_or_default(), self.end.take()),
            };
            // A separate end is sent unless the header section ended the stream.
            if data.is_empty() && (end.is_none() || self.has_ended) {
                continue;
            }
            self.sent += data.len() as u64;
            self.has_ended |= end.is_some();
            self.link.add(data, end).map_err(SendError::Closed)?;
            self.is_queued = true;
        }
    }
}

/// Minimum size in bytes of a read while the window is open.
const READ_MIN: u64 = 4 << 10;

impl<L: Link> Outlet for StreamOutlet<'_, L> {
    fn copies(&self) -> bool {
        true
    }

    fn chunk_bytes(&self) -> Option<u64> {
        Some(self.chunk_bytes)
    }

    fn file_bytes(&self, most: u64) -> u64 {
        self.chunk_bytes.min(most)
    }

    fn begin(&mut self, head: Vec<u8>) {
        self.head = Some(head);
    }

    fn push_range(&mut self, source: Source, start: usize, end: usize) {
        debug_assert!(self.has_space(), "callers flush");
        self.pieces += 1;
        self.body.push_range(source, start, end);
    }

    fn has_space(&self) -> bool {
        self.pieces < SEGMENTS_MAX
    }

    fn holds_buffers(&self) -> bool {
        self.body.parts().any(|part| part.buf().is_some())
    }

    fn poll_flush(&mut self, context: &mut Context<'_>, _: Follows) -> Poll<Result<(), SendError>> {
        if self.flushing.is_none() && !self.is_queued {
            if self.head.is_none() && self.body.is_empty() {
                return Poll::Ready(Ok(()));
            }
            self.begin_flush(false)?;
        }
        self.poll_flushed(context)
    }

    fn poll_space(&mut self, context: &mut Context<'_>, wanted: u64) -> Poll<Result<u64, SendError>> {
        if !self.progress_timeout.is_running() {
            ready!(self.poll_due(context))?;
        }
        let polled = self.link.poll_space(context);
        let first = || self.link.first_progress();
        let progress = || self.link.progress();
        let room = ready!(self.progress_timeout.follow_from(context, self.timer, polled, first, progress))?;
        Poll::Ready(Ok(room.max(READ_MIN.min(wanted))))
    }

    fn poll_end(&mut self, context: &mut Context<'_>, trailers: &Trailers) -> Poll<Result<(), SendError>> {
        if self.end.is_none() && !self.has_ended {
            let block = head::trailers::<L::Blocks>(trailers);
            self.begin_flush(block.is_empty())?;
            self.end = Some(block);
        }
        self.poll_flushed(context)
    }

    fn sent(&self) -> u64 {
        self.sent
    }

    fn take_spare(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.spare)
    }
}

impl<L: Link> Drop for StreamOutlet<'_, L> {
    /// Discards unsent bytes: an abandoned body must leave no bytes that could still be sent.
    fn drop(&mut self) {
        if self.is_queued || self.flushing.is_some() {
            self.link.discard();
        }
    }
}
