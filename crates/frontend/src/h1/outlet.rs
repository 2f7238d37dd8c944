//! Sends the body of an HTTP/1 response, with the timeout and the rate of the location. Header section and body are combined into
//! few sends, and framed by chunks if the header section requires it (RFC 9112 section 7.1).
//!
//! ```text
//!   begin, push_range          framed                  the rate permits all
//!   head + body   --poll_flush--> flushing ------------------------------------> in_flight --sent--> (ready)
//!                                    |  ^
//!                                    |  `---------------- sent ---------------------+
//!                                    `--- the rate permits some bytes: a copy --> in_flight
//! ```
//! Ranges of files are not part of these steps: pending bytes are flushed before a range, and ranges have no framing.

use std::rc::Rc;
use std::task::{Context, Poll, ready};

use http::connection::CONTINUE_RESPONSE;
use http::framing::{CHUNK_END, CHUNK_HEADER_LEN_MAX, LAST_CHUNK, chunk_header, push_last_chunk};
use io::segments::{SEGMENTS_MAX, Source};
use io::{Errno, Segments};
use rt::Timer;
use rt::net::{FilePart, Pipe};

use crate::h1::departure::Departure;
use crate::wire::{ProgressTimeout, Wire};
use exchange::thread::Thread;
use transfer::body::Rate;
use transfer::body::outlet::{Follows, Outlet, SendError, Trailers};
use transfer::body::pace::{self, Pace};
use transfer::body::rules::Sending;

/// Output of one response.
pub(super) struct Http1Outlet<'a> {
    wire: &'a mut Wire,
    timer: &'a Timer,
    progress_timeout: ProgressTimeout,
    pace: Pace,
    /// Notices a client that leaves while the rate permits no bytes.
    departure: Departure,
    /// Size of a read in bytes, if configured or limited by the rate.
    chunk_bytes: Option<u64>,
    /// The header section, until it is sent.
    head: Vec<u8>,
    /// Pieces of the body that wait for a flush.
    body: Segments,
    /// Number of these pieces.
    pieces: usize,
    /// How the client finds the end of the body, and whether that end was sent.
    framing: Framing,
    /// Bytes to send that were not passed to the wire yet.
    flushing: Option<Segments>,
    /// The bytes last passed to the wire.
    in_flight: Option<InFlight>,
    /// Number of bytes passed to the kernel.
    sent: u64,
    /// Memory of the header section, for reuse.
    spare: Vec<u8>,
    /// `tcp_nopush`
    nopush: bool,
    /// `tcp_nodelay`
    nodelay: bool,
    /// `sendfile_max_chunk`, as a limit.
    file_max: u64,
    /// Whether the socket accepted fewer bytes than offered by the last call.
    is_full: bool,
    /// Whether this thread may make non-blocking calls directly.
    calls_directly: bool,
    /// The thread on which the connection runs, to end a stalled response in favour of another connection.
    thread: Option<&'a Rc<Thread>>,
}

/// How the client finds the end of the body.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Framing {
    /// By the length, or by the end of the connection.
    Plain,
    /// By the last chunk, which was not written yet.
    Chunks,
    /// The last chunk was written.
    Ended,
}

/// Bytes in flight.
struct InFlight {
    /// Empty while the engine owns the bytes.
    data: Segments,
    /// Total number of bytes.
    len: u64,
    /// Whether more bytes follow immediately.
    more: bool,
    /// Whether they are the remainder of a flush, and not a part that the rate permits.
    is_remainder: bool,
}

impl<'a> Http1Outlet<'a> {
    /// Creates the output for a response on this wire, `chunked` or not.
    pub(super) fn new(
        wire: &'a mut Wire,
        timer: &'a Timer,
        rules: &Sending,
        rate: Option<Rate>,
        chunked: bool,
    ) -> Http1Outlet<'a> {
        let chunk_bytes = pace::chunk_bytes(rules, rate.as_ref());
        Http1Outlet {
            wire,
            timer,
            progress_timeout: ProgressTimeout::new(rules.send_timeout),
            pace: Pace::new(rate),
            departure: Departure::default(),
            chunk_bytes,
            head: Vec::new(),
            body: Segments::new(),
            pieces: 0,
            framing: if chunked { Framing::Chunks } else { Framing::Plain },
            flushing: None,
            in_flight: None,
            sent: 0,
            spare: Vec::new(),
            nopush: rules.tcp_nopush,
            nodelay: rules.tcp_nodelay,
            file_max: if rules.sendfile_max_chunk == 0 { u64::MAX } else { rules.sendfile_max_chunk },
            is_full: false,
            calls_directly: false,
            thread: None,
        }
    }

    /// Allows this thread to make non-blocking calls directly, bypassing the engine.
    pub(super) fn call_directly(&mut self, calls_directly: bool) {
        self.calls_directly = calls_directly;
    }

    /// Registers the connection of this thread while the client does not read, so that it can be closed in favour of another.
    pub(super) fn observe(&mut self, thread: &'a Rc<Thread>) {
        self.thread = Some(thread);
    }

    /// Sends a 100 response before the header section of the response.
    pub(super) fn send_continue(&mut self) {
        self.head.extend_from_slice(CONTINUE_RESPONSE);
    }

    /// Whether no bytes were added since the last flush.
    fn is_empty(&self) -> bool {
        self.head.is_empty() && self.body.is_empty()
    }

    /// Takes the added bytes, with their framing.
    fn framed(&mut self, trailers: Option<&Trailers>) -> Segments {
        let (mut start, body) = (std::mem::take(&mut self.head), std::mem::take(&mut self.body));
        self.pieces = 0;
        if self.framing != Framing::Chunks {
            // No framing: the header section announces their length, or the connection ends after them.
            let mut data = Segments::from(start);
            data.append(body);
            return data;
        }
        let len = body.len() as u64;
        let mut end = Vec::new();
        // An empty chunk would be the last one.
        if len > 0 {
            start.extend_from_slice(chunk_header(len, &mut [0; CHUNK_HEADER_LEN_MAX]));
            end.extend_from_slice(CHUNK_END);
        }
        if let Some(trailers) = trailers {
            push_last(trailers, &mut end);
            self.framing = Framing::Ended;
        }
        let mut data = Segments::from(start);
        data.append(body);
        data.push(if end == CHUNK_END { Source::Static(CHUNK_END) } else { Source::Vec(end) });
        data
    }

    /// Continues a flush.
    fn poll_flushed(&mut self, context: &mut Context<'_>, more: bool) -> Poll<Result<(), SendError>> {
        // With a rate limit, the next bytes wait for their time.
        let more = more && !self.pace.is_limited();
        loop {
            if self.in_flight.is_some() {
                let is_remainder = ready!(self.poll_flown(context))?;
                if is_remainder {
                    return Poll::Ready(Ok(()));
                }
            }
            ready!(self.poll_due(context))?;
            let Some(data) = &mut self.flushing else { return Poll::Ready(Ok(())) };
            let in_flight = match self.pace.take_allowed(self.sent, data) {
                Some(first) => {
                    let len = first.len() as u64;
                    InFlight { data: Segments::from(first), len, more: false, is_remainder: false }
                }
                None => {
                    let len = data.len() as u64;
                    if self.calls_directly && len >= SENT_DIRECTLY_MIN && self.wire.copies(data.len()) {
                        self.wire.send_now(data, more).map_err(SendError::Closed)?;
                    }
                    let data = self.flushing.take().unwrap_or_default();
                    InFlight { data, len, more, is_remainder: true }
                }
            };
            self.in_flight = Some(in_flight);
        }
    }

    /// Becomes ready when the bytes passed to the wire were sent; returns whether they were the remainder of a flush.
    fn poll_flown(&mut self, context: &mut Context<'_>) -> Poll<Result<bool, SendError>> {
        let Some(in_flight) = &mut self.in_flight else { return Poll::Ready(Ok(true)) };
        // Fully sent segments return memory that can be reused.
        let polled = self.wire.poll_send(context, &mut in_flight.data, in_flight.more);
        let room = self.thread.map(|thread| self.wire.room(thread));
        let progress = || self.wire.sent_progress();
        ready!(self.progress_timeout.follow(context, self.timer, polled, room, progress))?;
        self.sent += in_flight.len;
        let (mut data, is_remainder) = (std::mem::take(&mut in_flight.data), in_flight.is_remainder);
        self.in_flight = None;
        if is_remainder {
            self.store_spare(&mut data);
        }
        Poll::Ready(Ok(is_remainder))
    }

    /// Stores the memory of the header section, which is returned with the sent segments, for reuse.
    fn store_spare(&mut self, data: &mut Segments) {
        if let Some(mut head) = data.take_vec() {
            head.clear();
            self.spare = head;
        }
    }

    /// Is ready when the rate permits more bytes, or the client has left.
    fn poll_due(&mut self, context: &mut Context<'_>) -> Poll<Result<(), SendError>> {
        if self.pace.poll_due(context, self.sent).is_ready() {
            return Poll::Ready(Ok(()));
        }
        self.departure.poll(context, self.wire, self.sent)
    }

    /// Waits until the socket is writable, limited by the send timeout.
    fn poll_writable(&mut self, context: &mut Context<'_>) -> Poll<Result<(), SendError>> {
        let polled = self.wire.poll_writable(context);
        let room = self.thread.map(|thread| self.wire.room(thread));
        self.progress_timeout.follow(context, self.timer, polled, room, || self.wire.progress())
    }
}

/// Minimum size in bytes for a direct call when a send copies its data. The copy takes much longer than the engine would save, and
/// the buffer is free for the next read when the call returns; through io_uring it would be free only after the sends of all other
/// connections. With a lower minimum, the header section of a file of 100 KiB was a separate packet, which cost an eighth more
/// CPU time.
const SENT_DIRECTLY_MIN: u64 = 128 << 10;

/// Minimum free space in bytes of a socket buffer that justifies a disk read; below it the code waits until the kernel reports that
/// a third of the buffer is free.
const SPACE_MIN: u64 = 64 << 10;

/// Minimum size in bytes of a read for a client whose socket is writable, however small its buffer.
const READ_MIN: u64 = 4 << 10;

/// Number of pieces per send in addition to those of the body: the header section with the start of a chunk, and the end of the
/// chunk.
const FRAMING_PIECES: usize = 2;

/// Writes the last chunk. The caller has checked that the trailers are valid.
fn push_last(trailers: &Trailers, out: &mut Vec<u8>) {
    let fields: Vec<_> = trailers.iter().map(|(name, value)| (name.as_slice(), value.as_slice())).collect();
    if push_last_chunk(&fields, out).is_err() {
        out.extend_from_slice(LAST_CHUNK);
    }
}

impl Outlet for Http1Outlet<'_> {
    fn accepts_files(&self) -> bool {
        self.framing == Framing::Plain && self.wire.accepts_files()
    }

    fn chunk_bytes(&self) -> Option<u64> {
        self.chunk_bytes
    }

    fn file_bytes(&self, most: u64) -> u64 {
        self.chunk_bytes.unwrap_or(most).min(most).min(self.file_max)
    }

    fn begin(&mut self, mut head: Vec<u8>) {
        match self.head.is_empty() {
            true => self.head = head,
            false => self.head.append(&mut head),
        }
    }

    fn push_range(&mut self, source: Source, start: usize, end: usize) {
        debug_assert!(self.has_space(), "callers flush");
        self.pieces += 1;
        self.body.push_range(source, start, end);
    }

    fn has_space(&self) -> bool {
        self.pieces < SEGMENTS_MAX - FRAMING_PIECES
    }

    fn holds_buffers(&self) -> bool {
        self.body.parts().any(|part| part.buf().is_some())
    }

    fn poll_flush(&mut self, context: &mut Context<'_>, follows: Follows) -> Poll<Result<(), SendError>> {
        if self.flushing.is_none() && self.in_flight.is_none() {
            if self.is_empty() {
                return Poll::Ready(Ok(()));
            }
            // Without `TCP_NODELAY` a partial segment waits until the previous segment is acknowledged, which a client may delay by
            // 40 ms.
            if follows == Follows::Later && self.nodelay {
                self.wire.set_nodelay();
            }
            self.flushing = Some(self.framed(None));
        }
        // The kernel holds the last segment back for bytes that are already in memory, for at most 200 ms.
        self.poll_flushed(context, follows == Follows::Available)
    }

    fn poll_space(&mut self, context: &mut Context<'_>, wanted: u64) -> Poll<Result<u64, SendError>> {
        if !self.progress_timeout.is_running() {
            ready!(self.poll_due(context))?;
            let room = self.wire.send_space();
            if room >= wanted.min(SPACE_MIN) {
                return Poll::Ready(Ok(room));
            }
        }
        ready!(self.poll_writable(context))?;
        Poll::Ready(Ok(self.wire.send_space().max(READ_MIN)))
    }

    fn poll_file(
        &mut self,
        context: &mut Context<'_>,
        part: &FilePart<'_>,
    ) -> Poll<Result<Result<u32, Errno>, SendError>> {
        if !self.progress_timeout.is_running() {
            ready!(self.poll_due(context))?;
        }
        // An error of sendfile(2) is a result for the caller, which distinguishes errors of the file and of the connection.
        let polled = self.wire.poll_sendfile(context, part).map(Ok);
        let room = self.thread.map(|thread| self.wire.room(thread));
        let progress = || self.wire.progress();
        let result = ready!(self.progress_timeout.follow(context, self.timer, polled, room, progress))?;
        self.sent += u64::from(result.unwrap_or(0));
        Poll::Ready(Ok(result))
    }

    fn poll_file_now(
        &mut self,
        context: &mut Context<'_>,
        part: &FilePart<'_>,
        together: bool,
    ) -> Poll<Result<Result<u32, Errno>, SendError>> {
        if self.flushing.is_none() && self.in_flight.is_none() && !self.is_empty() {
            ready!(self.poll_due(context))?;
            // These bytes are sent by a direct call too, so that the file need not wait for the engine.
            let mut data = self.framed(None);
            let before = data.len();
            self.wire.send_now(&mut data, together).map_err(SendError::Closed)?;
            debug_assert!(data.len() <= before, "a send removes the sent bytes");
            self.sent += (before - data.len()) as u64;
            match data.is_empty() {
                true => self.store_spare(&mut data),
                false => self.flushing = Some(data),
            }
        }
        if self.flushing.is_some() || self.in_flight.is_some() {
            ready!(self.poll_flushed(context, together))?;
        }
        ready!(self.poll_due(context))?;
        loop {
            // The socket accepted fewer bytes than offered, so it is full.
            if self.is_full {
                ready!(self.poll_writable(context))?;
                self.is_full = false;
            }
            match self.wire.sendfile_now(part) {
                Err(Errno::AGAIN) => self.is_full = true,
                result => {
                    let count = result.unwrap_or(0);
                    self.is_full = count > 0 && count < part.len;
                    self.sent += u64::from(count);
                    return Poll::Ready(Ok(result));
                }
            }
        }
    }

    fn accepts_pipes(&self) -> bool {
        // The rate and the size of reads are those of pieces in memory.
        self.calls_directly && self.chunk_bytes.is_none() && self.accepts_files()
    }

    fn poll_splice(&mut self, context: &mut Context<'_>, pipe: &mut Pipe) -> Poll<Result<(), SendError>> {
        debug_assert!(self.flushing.is_none() && self.in_flight.is_none(), "callers flush");
        if self.nodelay {
            self.wire.set_nodelay();
        }
        let held = pipe.held();
        let polled = self.wire.poll_splice(context, pipe);
        self.sent += (held - pipe.held()) as u64;
        let room = self.thread.map(|thread| self.wire.room(thread));
        self.progress_timeout.follow(context, self.timer, polled, room, || self.wire.progress())
    }

    fn set_cork(&self, on: bool) {
        if self.nopush {
            self.wire.set_cork(on);
        }
    }

    fn poll_end(&mut self, context: &mut Context<'_>, trailers: &Trailers) -> Poll<Result<(), SendError>> {
        if self.framing == Framing::Chunks {
            self.flushing = Some(self.framed(Some(trailers)));
        }
        if self.flushing.is_some() || self.in_flight.is_some() {
            return self.poll_flushed(context, false);
        }
        self.poll_flush(context, Follows::Nothing)
    }

    fn sent(&self) -> u64 {
        self.sent
    }

    fn take_spare(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.spare)
    }
}

impl Drop for Http1Outlet<'_> {
    /// Discards unsent bytes: an abandoned body must leave no bytes that could still be sent.
    fn drop(&mut self) {
        self.wire.abandon_send();
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::os::unix::net::UnixStream;

    use io::engine::{EngineConfig, NetKind};
    use rt::{Runtime, Socket};

    use super::*;

    /// Returns the bytes that a client receives of the response that `write` sends, `chunked` or not.
    fn got(chunked: bool, rate: Option<u64>, write: impl AsyncFnOnce(&mut dyn Outlet)) -> String {
        let engine = io::build(EngineConfig { net: NetKind::Epoll, ..EngineConfig::default() });
        let mut runtime = Runtime::new(engine.expect("epoll is everywhere"));
        let (near, far) = UnixStream::pair().expect("sockets");
        for socket in [&near, &far] {
            socket.set_nonblocking(true).expect("a socket");
        }
        runtime.block_on(async {
            let (mut wire, timer) = (Wire::plain(near.into()), Timer::new());
            let rate = rate.map(|bytes_per_second| Rate { bytes_per_second, after: 0, since: rt::now() });
            let mut outlet = Http1Outlet::new(&mut wire, &timer, &Sending::default(), rate, chunked);
            write(&mut outlet).await;
            let sent = outlet.sent();
            drop(outlet);
            drop(wire);
            let (mut far, mut all) = (Socket::new(far.into()), Vec::new());
            while let Some(buf) = far.reader.recv().await.expect("a response") {
                all.extend_from_slice(&buf);
            }
            assert_eq!(sent, all.len() as u64, "all sent bytes are counted");
            String::from_utf8(all).expect("text")
        })
    }

    fn text(bytes: &str) -> Source {
        Source::Vec(bytes.into())
    }

    fn trailers() -> Vec<(Vec<u8>, Vec<u8>)> {
        vec![(b"A".to_vec(), b"1".to_vec())]
    }

    #[test]
    fn the_pieces_of_a_send_are_one_chunk_and_trailers_follow() {
        let write = async |outlet: &mut dyn Outlet| {
            outlet.begin(b"HEAD\r\n".to_vec());
            outlet.push(text("abc"));
            outlet.push_range(text("xdefx"), 1, 4);
            outlet.flush(true).await.expect("a client");
            outlet.pause().await.expect("a client");
            outlet.push(text("ghi"));
            outlet.end(&trailers()).await.expect("a client");
        };
        assert_eq!(got(true, None, write), "HEAD\r\n6\r\nabcdef\r\n3\r\nghi\r\n0\r\nA: 1\r\n\r\n");
        assert_eq!(got(false, None, write), "HEAD\r\nabcdefghi", "a client of HTTP/1.0 gets no trailers");
    }

    #[test]
    fn an_empty_body_is_only_the_last_chunk() {
        let write = async |outlet: &mut dyn Outlet| {
            outlet.begin(b"HEAD\r\n".to_vec());
            outlet.end(&[]).await.expect("a client");
        };
        assert_eq!(got(true, None, write), "HEAD\r\n0\r\n\r\n");
        assert_eq!(got(false, None, write), "HEAD\r\n");
    }

    /// At a rate of ten bytes per second, the bytes of the first second are sent immediately. The others are sent one by one when
    /// due.
    #[test]
    fn a_rate_limit_splits_sends_but_not_chunks() {
        let write = async |outlet: &mut dyn Outlet| {
            outlet.begin(b"HEAD\r\n".to_vec());
            outlet.push(text(&"x".repeat(64)));
            outlet.end(&[]).await.expect("a client");
        };
        let whole = format!("HEAD\r\n40\r\n{}\r\n0\r\n\r\n", "x".repeat(64));
        assert_eq!(got(true, Some(70), write), whole);
    }

    /// With both calls, a file is sent after the bytes that were added before.
    #[test]
    fn a_file_is_sent_after_previously_added_bytes() {
        let dir = testkit::TempDir::new("outlet");
        std::fs::write(dir.path().join("file"), b"0123456789").expect("a file in a temporary directory");
        let write = async |outlet: &mut dyn Outlet| {
            #[expect(clippy::disallowed_methods, reason = "a test may wait")]
            let file = std::fs::File::open(dir.path().join("file")).expect("the file");
            let file = rt::File::new(std::os::fd::OwnedFd::from(file));
            assert!(outlet.accepts_files());
            outlet.begin(b"HEAD\r\n".to_vec());
            let disk = io::Disk { device: Default::default(), via: io::DiskVia::Sync };
            let part = FilePart { file: &file, offset: 2, len: 3, disk };
            let now = poll_fn(|context| outlet.poll_file_now(context, &part, true)).await;
            assert_eq!(now, Ok(Ok(3)));
            let part = FilePart { offset: 8, len: 9, ..part };
            let moved = poll_fn(|context| outlet.poll_file(context, &part)).await;
            assert_eq!(moved, Ok(Ok(2)), "up to the end of the file");
            outlet.push(text("end"));
            outlet.end(&[]).await.expect("a client");
        };
        assert_eq!(got(false, None, write), "HEAD\r\n23489end");
    }

    /// Bytes in flight when a response is abandoned are lost: nothing may follow on this wire.
    #[test]
    fn an_incomplete_body_closes_the_connection() {
        let engine = io::build(EngineConfig { net: NetKind::Epoll, ..EngineConfig::default() });
        let mut runtime = Runtime::new(engine.expect("epoll is everywhere"));
        let (near, _far) = UnixStream::pair().expect("sockets");
        near.set_nonblocking(true).expect("a socket");
        runtime.block_on(async {
            let (mut wire, timer) = (Wire::plain(near.into()), Timer::new());
            let mut outlet = Http1Outlet::new(&mut wire, &timer, &Sending::default(), None, false);
            outlet.begin(vec![0; 8 << 20]);
            let first = poll_fn(|context| Poll::Ready(outlet.poll_end(context, &[]).is_pending())).await;
            rt::yield_now().await;
            let second = poll_fn(|context| Poll::Ready(outlet.poll_end(context, &[]).is_pending())).await;
            assert!(first && second, "the socket accepts less, and the client does not read");
            drop(outlet);
            let mut data = Segments::from(b"more".to_vec());
            let after = poll_fn(|context| wire.poll_send(context, &mut data, false)).await;
            assert_eq!(after, Err(Errno::CONNABORTED));
        });
    }
}
