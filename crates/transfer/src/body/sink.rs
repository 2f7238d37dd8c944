//! The way of an answer to its socket: gathers head and body into few sends, keeps the send timeout and the
//! rate limit, counts bytes.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use io::op::{DeviceId, SEGMENTS_MAX, Source};
use io::{DiskVia, Errno, Segments};
use rt::{File, Socket, Timer};

use crate::body::rules::Sending;

/// Where an answer goes.
pub struct Sink<'a> {
    socket: &'a mut Socket,
    timer: &'a Timer,
    timeout: Duration,
    rate: Option<Rate>,
    /// Bytes that a read is asked for, where they are configured or limited by the rate.
    chunk: Option<u64>,
    pending: Segments,
    pieces: usize,
    /// Bytes handed to the kernel.
    sent: u64,
    /// Memory of the head, to be used again.
    spare: Vec<u8>,
    /// `tcp_nopush`
    nopush: bool,
    /// `tcp_nodelay`
    nodelay: bool,
    /// `sendfile_max_chunk`, as a limit.
    sendfile_max: u64,
    /// Whether the socket took less than it was offered last.
    is_full: bool,
    /// Whether this thread may make calls that wait for nothing.
    calls_directly: bool,
}

/// A limit on the rate of one answer: nginx lets `after` bytes pass, then so many a second.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    /// Bytes in a second.
    pub bytes_per_second: u64,
    /// Bytes that go before the limit holds.
    pub after: u64,
    /// When the response began.
    pub since: Instant,
}

/// Why the rest of an answer was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendError {
    /// The client took nothing for `send_timeout`.
    TimedOut,
    /// The connection is gone.
    Gone(Errno),
}

impl<'a> Sink<'a> {
    /// A way to this socket.
    pub fn new(socket: &'a mut Socket, timer: &'a Timer, rules: &Sending, rate: Option<Rate>) -> Sink<'a> {
        let configured = rules.output_buffers.map(|(_, bytes)| bytes.clamp(1, CHUNK_MAX));
        let limited = rate.map(|rate| rate.bytes_per_second.clamp(1, CHUNK_MAX));
        let chunk = configured.into_iter().chain(limited).min();
        let (timeout, pending, spare) = (rules.send_timeout, Segments::new(), Vec::new());
        Sink {
            socket,
            timer,
            timeout,
            rate,
            chunk,
            pending,
            pieces: 0,
            sent: 0,
            spare,
            nopush: rules.tcp_nopush,
            nodelay: rules.tcp_nodelay,
            sendfile_max: if rules.sendfile_max_chunk == 0 { u64::MAX } else { rules.sendfile_max_chunk },
            is_full: false,
            calls_directly: false,
        }
    }

    /// Lets this thread make calls that wait for nothing, beside the engine.
    pub fn call_directly(&mut self, calls_directly: bool) {
        self.calls_directly = calls_directly;
    }

    /// Bytes that one read should bring, where something says so.
    pub fn chunk_bytes(&self) -> Option<u64> {
        self.chunk
    }

    /// Bytes that one sendfile moves, where the engine would take `most`.
    pub(super) fn sendfile_bytes(&self, most: u64) -> u64 {
        self.chunk.unwrap_or(most).min(most).min(self.sendfile_max)
    }

    /// Holds back segments that are not full (`tcp_nopush`), or lets the last one go. A unix socket knows no
    /// segments and refuses, which is as good.
    pub fn set_cork(&self, on: bool) {
        if self.nopush {
            let _ = self.socket.set_cork(on);
        }
    }

    /// Bytes sent so far.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// The head's memory.
    pub fn into_spare(self) -> Vec<u8> {
        self.spare
    }

    /// Starts with the head; it leaves with the first bytes of the body.
    pub fn begin(&mut self, head: Vec<u8>) {
        self.push(Source::Vec(head));
    }

    /// Adds bytes to the next send.
    pub fn push(&mut self, source: Source) {
        debug_assert!(self.pieces < SEGMENTS_MAX, "callers flush");
        self.pieces += 1;
        self.pending.push(source);
    }

    /// Adds a part of a buffer to the next send.
    pub fn push_range(&mut self, source: Source, start: usize, end: usize) {
        self.pieces += 1;
        self.pending.push_range(source, start, end);
    }

    /// Whether another piece fits before a flush.
    pub fn has_room(&self) -> bool {
        self.pieces < SEGMENTS_MAX
    }

    /// Sends what was added if buffers of the pool are among it. A head alone goes on waiting for its body.
    pub(super) async fn let_go(&mut self) -> Result<(), SendError> {
        let holds_buffers = self.pending.parts().any(|part| part.buf().is_some());
        if holds_buffers { self.flush(false).await } else { Ok(()) }
    }

    /// Sends what was added, while nothing that could follow is at hand: no byte of it waits in the kernel. Without
    /// `TCP_NODELAY` a short segment waits until the one before it is acknowledged, which a client may delay by 40 ms.
    pub async fn pause(&mut self) -> Result<(), SendError> {
        if self.nodelay && !self.pending.is_empty() {
            // A unix socket has no such option.
            let _ = self.socket.set_nodelay(true);
        }
        self.flush(false).await
    }

    /// Sends what was added. `more` says that further bytes are at hand: the kernel holds the last segment back for them,
    /// for 200 ms at most.
    pub async fn flush(&mut self, more: bool) -> Result<(), SendError> {
        if self.pending.is_empty() {
            return Ok(());
        }
        // With a rate, the next bytes wait for their time.
        let more = more && self.rate.is_none();
        let mut data = std::mem::take(&mut self.pending);
        self.pieces = 0;
        while let Some(first) = self.within_rate(&mut data).await {
            let len = first.len() as u64;
            send(self.socket, self.timer, self.timeout, Segments::from(first), false).await?;
            self.sent += len;
        }
        let len = data.len() as u64;
        if self.calls_directly && len >= SENT_DIRECTLY_MIN && self.socket.copies(data.len()) {
            self.socket.send_now(&mut data, more).map_err(SendError::Gone)?;
        }
        if !data.is_empty() {
            data = send(self.socket, self.timer, self.timeout, data, more).await?;
        }
        if let Some(mut head) = data.take_vec() {
            head.clear();
            self.spare = head;
        }
        self.sent += len;
        Ok(())
    }

    /// Moves bytes of a file without passing through user space; how many went.
    pub async fn sendfile(
        &mut self,
        file: &File,
        offset: u64,
        len: u32,
        device: DeviceId,
        via: DiskVia,
    ) -> Result<Result<u32, Errno>, SendError> {
        self.wait_for_rate().await;
        let fd = self.socket.fd().clone();
        let mut patience = Patience::start(self.timer, self.timeout);
        let mut sending = pin!(self.socket.sendfile(file, offset, len, device, via));
        let result = poll_fn(|context| match sending.as_mut().poll(context) {
            Poll::Ready(result) => Poll::Ready(Ok(result)),
            Poll::Pending => patience.poll(context, || rt::net::progress(&fd, u64::MAX)).map(Err),
        })
        .await?;
        self.sent += u64::from(*result.as_ref().unwrap_or(&0));
        Ok(result)
    }

    /// Sends what was added, and then bytes of a file that are in memory, by two calls of this thread: neither waits for
    /// the other to come back from the engine. With `more` both leave together, otherwise what was added need not wait for
    /// the file. How many bytes of the file went; where the socket takes none at once, it is waited for.
    pub(super) async fn sendfile_now(
        &mut self,
        file: &File,
        offset: u64,
        len: u32,
        more: bool,
    ) -> Result<Result<u32, Errno>, SendError> {
        self.wait_for_rate().await;
        if !self.pending.is_empty() {
            let before = self.pending.len();
            let flushed = self.socket.send_now(&mut self.pending, more);
            self.sent += (before - self.pending.len()) as u64;
            flushed.map_err(SendError::Gone)?;
            if self.pending.is_empty() {
                self.pieces = 0;
                if let Some(mut head) = std::mem::take(&mut self.pending).take_vec() {
                    head.clear();
                    self.spare = head;
                }
            } else {
                self.flush(more).await?;
            }
        }
        loop {
            // A socket that took less than it was offered is full.
            if std::mem::take(&mut self.is_full) {
                self.writable().await?;
            }
            match self.socket.sendfile_now(file, offset, len) {
                Err(Errno::AGAIN) => self.is_full = true,
                result => {
                    let count = result.unwrap_or(0);
                    self.is_full = count > 0 && count < len;
                    self.sent += u64::from(count);
                    return Ok(result);
                }
            }
        }
    }

    /// Waits until the socket takes bytes, but not longer than the client may take none.
    async fn writable(&mut self) -> Result<(), SendError> {
        let fd = self.socket.fd().clone();
        let mut patience = Patience::start(self.timer, self.timeout);
        let mut writable = pin!(self.socket.writable());
        let writable = poll_fn(|context| match writable.as_mut().poll(context) {
            Poll::Ready(result) => Poll::Ready(result.map_err(SendError::Gone)),
            Poll::Pending => patience.poll(context, || rt::net::progress(&fd, u64::MAX)).map(Err),
        });
        writable.await
    }

    /// Waits until the socket takes bytes, `wanted` of them or a good part of what it ever takes; answers how many, not 0.
    pub(super) async fn room(&mut self, wanted: u64) -> Result<u64, SendError> {
        self.wait_for_rate().await;
        let fd = self.socket.fd().clone();
        let room = rt::net::room(&fd);
        if room >= wanted.min(ROOM_MIN) {
            return Ok(room);
        }
        self.writable().await?;
        Ok(rt::net::room(&fd).max(ROOM_LEAST))
    }

    /// Waits until the client has acknowledged everything, but not longer than it may take nothing: what is on its way would
    /// be lost in a reset. The kernel does not tell when that is, so it is asked again and again.
    pub async fn acknowledged(&mut self) {
        let fd = self.socket.fd().clone();
        let mut left = rt::net::unacknowledged(&fd);
        let mut until = rt::now() + self.timeout;
        while left > 0 && rt::now() < until {
            rt::sleep_until(rt::now() + ACKNOWLEDGED_EVERY).await;
            let now = rt::net::unacknowledged(&fd);
            if now < left {
                until = rt::now() + self.timeout;
            }
            left = now;
        }
    }

    /// Waits until the rate allows some of `data`. Where it does not allow all of it, the part that may go is taken off: a
    /// copy, since the rest stays behind, and who limits a rate does not look for speed.
    async fn within_rate(&mut self, data: &mut Segments) -> Option<Vec<u8>> {
        self.wait_for_rate().await;
        let rate = self.rate?;
        let passed = rt::now().saturating_duration_since(rate.since) + AT_ONCE;
        let allowed = rate.after as f64 + passed.as_secs_f64() * rate.bytes_per_second as f64;
        let allowed = (allowed as u64).saturating_sub(self.sent).max(1);
        if data.len() as u64 <= allowed {
            return None;
        }
        let mut first = Vec::new();
        for part in data.parts() {
            let left = allowed as usize - first.len();
            first.extend_from_slice(&part.bytes()[..left.min(part.bytes().len())]);
        }
        data.advance(first.len());
        Some(first)
    }

    async fn wait_for_rate(&mut self) {
        let Some(rate) = self.rate else { return };
        let over = self.sent.saturating_sub(rate.after);
        let due = rate.since + Duration::from_secs_f64(over as f64 / rate.bytes_per_second as f64);
        if due > rt::now() {
            rt::sleep_until(due).await;
        }
    }
}

/// How much of a limited rate may always go at once: a second's worth, as in nginx.
const AT_ONCE: Duration = Duration::from_secs(1);

/// The longest read that is asked for at once: the largest class of buffers. A sendfile of as many bytes on the worker
/// thread holds up other connections for some ten microseconds; nginx passes twice as many on at once.
pub(super) const CHUNK_MAX: u64 = 1 << 20;

/// Bytes from which on a send that copies is a call of this thread. The copy takes much longer than what the engine saves, and
/// the buffer is free for the next read when the call ends: by a ring it would be after the sends of all others. Of a file of
/// 100 KiB the head would be a packet of its own, for an eighth more of the processor's time.
const SENT_DIRECTLY_MIN: u64 = 128 << 10;

/// Free bytes of a socket's buffer that are worth a read of the disk; with fewer, the kernel is asked to tell when a
/// third of the buffer is free.
const ROOM_MIN: u64 = 64 << 10;

/// What is read for a client whose socket says that it takes something, however small its buffer.
const ROOM_LEAST: u64 = 4 << 10;

/// Time between two looks at what a client has acknowledged: about a round trip.
const ACKNOWLEDGED_EVERY: Duration = Duration::from_millis(10);

/// Sends bytes that are at hand, and gives back the memory of those that the kernel is done with.
pub async fn send(
    socket: &mut Socket,
    timer: &Timer,
    timeout: Duration,
    data: Segments,
    more: bool,
) -> Result<Segments, SendError> {
    let mut patience = Patience::start(timer, timeout);
    let mut sending = socket.send(data, more);
    let sent = poll_fn(|context| match Pin::new(&mut sending).poll(context) {
        Poll::Ready((result, data)) => Poll::Ready(result.map(|()| data).map_err(SendError::Gone)),
        Poll::Pending => patience.poll(context, || sending.progress()).map(Err),
    });
    sent.await
}

/// Waits for something to be sent, but not longer than the timeout without progress.
struct Patience<'a> {
    timer: &'a Timer,
    timeout: Duration,
    progress: Option<u64>,
}

impl Patience<'_> {
    fn start(timer: &Timer, timeout: Duration) -> Patience<'_> {
        timer.set(rt::now() + timeout);
        Patience { timer, timeout, progress: None }
    }

    /// Ready when it is over. A long send completes late; what counts is whether the client takes anything, told
    /// by a number that grows with it. The first time there is nothing to compare with: one more timeout is the
    /// price of not asking for each send.
    fn poll(&mut self, context: &Context<'_>, progress: impl Fn() -> u64) -> Poll<SendError> {
        loop {
            ready!(self.timer.poll_elapsed(context));
            let now = Some(progress());
            if now == self.progress {
                return Poll::Ready(SendError::TimedOut);
            }
            self.progress = now;
            self.timer.set(rt::now() + self.timeout);
        }
    }
}
