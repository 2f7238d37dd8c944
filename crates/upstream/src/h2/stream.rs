//! One exchange on a connection: converts its request to frames, and its response to HTTP/1 text.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use http::fields::Method;
use http::framing::ResponseFraming;
use http::h2::hpack::{self, NeverIndexed};
use http::h2::{ErrorCode, ResponseFault, ResponseReader};
use http::response::parse::{FIELDS_MAX_DEFAULT, Limits};
use io::{Buf, Errno, Segments};

use exchange::capacity::Share;

use super::{Connection, Cut, Follows, OUT_BYTES_MAX, State};

/// The state of an exchange in the session.
pub(super) struct Stream {
    /// Number of the stream, once a frame was sent.
    id: Cell<Option<u32>>,
    /// Properties of the request that affect the parsing of its response.
    request_facts: Cell<RequestFacts>,
    inbox: RefCell<Inbox>,
    /// Waker of the task that waits for flow-control window, or for space in the queue of frames.
    writer_waker: Cell<Option<Waker>>,
    cut: Cell<Option<Cut>>,
    /// Names of the never-indexed fields of the last header section.
    never_indexed: Cell<Option<Box<NeverIndexed>>>,
    /// The share of the thread's memory for bodies, once the stream is open.
    share: RefCell<Option<Rc<Share>>>,
}

/// Properties of the request that affect the parsing of its response.
#[derive(Clone, Copy)]
struct RequestFacts {
    method: Method,
    limits: Limits,
}

/// A response that its reader has not taken yet.
#[derive(Default)]
struct Inbox {
    /// Text, and the number of body bytes in it.
    pieces: VecDeque<(Buf, u32)>,
    /// Number of body bytes in `pieces`.
    held: usize,
    stage: Stage,
    reader: Option<Waker>,
}

/// Progress of the response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    /// Before the head.
    #[default]
    Head,
    /// In the body.
    Body,
    /// After the head of a response without a body.
    NoBody,
    /// Received completely.
    Over,
}

/// Minimum capacity in bytes of a buffer from the pool, for the HTTP/1 text of a response.
const PIECE_MIN: usize = 4 << 10;

/// Capacity in bytes of a buffer for this text that does not belong to the pool, used while the pool is scarce.
const PIECE_OUTSIDE: u32 = 64 << 10;

/// The last chunk, without trailers.
const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

impl Stream {
    fn new() -> Rc<Stream> {
        let limits = Limits { head_max: 0, fields_max: FIELDS_MAX_DEFAULT };
        Rc::new(Stream {
            id: Cell::new(None),
            request_facts: Cell::new(RequestFacts { method: Method::Get, limits }),
            inbox: RefCell::default(),
            writer_waker: Cell::new(None),
            cut: Cell::new(None),
            never_indexed: Cell::new(None),
            share: RefCell::default(),
        })
    }

    /// Ends the stream with this reason; the first reason counts.
    pub(super) fn cut(&self, cut: Cut) {
        if self.cut.get().is_none() {
            self.cut.set(Some(cut));
        }
        self.inbox.borrow_mut().wake();
        self.wake_writer();
    }

    /// Handles a reset by either end. A complete response remains valid (RFC 9113 section 8.1).
    pub(super) fn was_reset(&self, by_peer: bool, code: u32) {
        let is_refused = by_peer && code == ErrorCode::RefusedStream as u32;
        self.cut(if is_refused { Cut::Unprocessed } else { Cut::Reset(code) });
    }

    /// Sets the names of the never-indexed fields of the header section that is parsed next.
    pub(super) fn set_never_indexed(&self, names: Option<Box<NeverIndexed>>) {
        self.never_indexed.set(names);
    }

    /// Sets the share of the memory for bodies over HTTP/2 that this stream may use.
    pub(super) fn set_share(&self, share: Rc<Share>) {
        self.share.replace(Some(share));
    }

    /// Returns the share of the thread's memory for bodies.
    pub(super) fn share(&self) -> Option<Rc<Share>> {
        self.share.borrow().clone()
    }

    /// Wakes the task that sends the request: the windows or the buffer have space again.
    pub(super) fn wake_writer(&self) {
        self.writer_waker.take().into_iter().for_each(Waker::wake);
    }

    /// Whether bytes of a body are passed to the reader.
    pub(super) fn passes_body(&self) -> bool {
        self.inbox.borrow().stage != Stage::NoBody
    }

    /// Adds bytes of the body.
    pub(super) fn add_body(&self, bytes: &[u8], ends: bool) -> Result<(), Cut> {
        let mut inbox = self.inbox.borrow_mut();
        match inbox.stage {
            Stage::Head | Stage::Over => return Err(Cut::Reply(ResponseFault::NoStatus)),
            Stage::NoBody => {}
            Stage::Body => inbox.add_body(bytes)?,
        }
        if ends {
            inbox.end(LAST_CHUNK)?;
        }
        Ok(())
    }

    /// Adds a head or trailers; returns the length of the body if the header section announces it.
    pub(super) fn add_fields(&self, heads: Heads, ends: bool) -> Result<Option<u64>, Cut> {
        let mut inbox = self.inbox.borrow_mut();
        let reader = match heads {
            Heads::Head(reader) => reader,
            Heads::Trailers { is_good: true, text, .. } if ends => {
                return inbox.end(&[b"0\r\n", &text[..], b"\r\n"].concat()).map(|()| None);
            }
            Heads::Trailers { .. } => return Err(Cut::Reply(ResponseFault::Field)),
        };
        let (text, head) = reader.finish().map_err(Cut::Reply)?;
        if head.is_interim() {
            // RFC 9113 section 8.1: an interim response must not end a stream.
            return if ends {
                Err(Cut::Reply(ResponseFault::UnexpectedStatus))
            } else {
                inbox.add(&text).map(|()| None)
            };
        }
        let has_body = ResponseFraming::of(self.request_facts.get().method, &head) != ResponseFraming::None;
        // RFC 9113 section 8.1.1: a body must have the announced length.
        if has_body && ends && head.content_length().is_some_and(|length| length > 0) {
            return Err(Cut::Reply(ResponseFault::NoBody));
        }
        inbox.stage = if has_body { Stage::Body } else { Stage::NoBody };
        inbox.add(&text)?;
        if ends {
            inbox.end(LAST_CHUNK)?;
        }
        Ok(head.content_length().filter(|_| has_body && !ends))
    }
}

/// Collects the fields of a header section as they are decoded.
pub(super) enum Heads {
    /// Fields of a head.
    Head(Box<ResponseReader>),
    /// Trailers, as lines of text.
    Trailers { text: Vec<u8>, most: usize, is_good: bool },
}

impl Heads {
    /// Creates the collector for the next header section of a stream.
    pub(super) fn of(stream: &Stream) -> Heads {
        let limits = stream.request_facts.get().limits;
        match stream.inbox.borrow().stage {
            Stage::Head => Heads::Head(Box::new(ResponseReader::new(limits))),
            _ => Heads::Trailers { text: Vec::new(), most: limits.head_max as usize, is_good: true },
        }
    }

    pub(super) fn field(&mut self, name: &[u8], value: &[u8]) {
        match self {
            Heads::Head(reader) => reader.field(name, value),
            Heads::Trailers { text, most, is_good } => {
                let is_field = http::multiplexed::head::is_trailer(name, value);
                *is_good &= is_field && text.len() + name.len() + value.len() <= *most;
                if *is_good {
                    [name, b": ", value, b"\r\n"].into_iter().for_each(|part| text.extend_from_slice(part));
                }
            }
        }
    }
}

impl Inbox {
    fn wake(&mut self) {
        self.reader.take().into_iter().for_each(Waker::wake);
    }

    /// Adds text.
    fn add(&mut self, mut text: &[u8]) -> Result<(), Cut> {
        if let Some((last, _)) = self.pieces.back_mut() {
            text = &text[last.append(text)..];
        }
        while !text.is_empty() {
            // Bytes that wait for their reader must not take the buffers that others need; their window limits them.
            let waits = self.held > super::WINDOW_BYTES as usize && rt::buffers_are_scarce();
            let buf = if waits { None } else { rt::pool().get(text.len().max(PIECE_MIN)) };
            let buf = buf.or_else(|| Buf::outside_pools(PIECE_OUTSIDE));
            let mut buf = buf.ok_or(Cut::Errno(Errno::NOMEM))?;
            text = &text[buf.append(text)..];
            self.pieces.push_back((buf, 0));
        }
        self.wake();
        Ok(())
    }

    /// Adds bytes of a body as a chunk.
    fn add_body(&mut self, bytes: &[u8]) -> Result<(), Cut> {
        if bytes.is_empty() {
            return Ok(());
        }
        let mut size = [0; http::framing::CHUNK_HEADER_LEN_MAX];
        self.add(http::framing::chunk_header(bytes.len() as u64, &mut size))?;
        self.add(bytes)?;
        self.add(b"\r\n")?;
        if let Some((_, body)) = self.pieces.back_mut() {
            *body += bytes.len() as u32;
            self.held += bytes.len();
        }
        Ok(())
    }

    /// Ends the response; `text` ends a body.
    fn end(&mut self, text: &[u8]) -> Result<(), Cut> {
        if std::mem::replace(&mut self.stage, Stage::Over) == Stage::Body {
            self.add(text)?;
        }
        self.wake();
        Ok(())
    }
}

/// Handle of an exchange on its connection. Dropping it ends the stream, early if necessary.
pub(crate) struct StreamEnd {
    connection: Rc<Connection>,
    stream: Rc<Stream>,
}

impl StreamEnd {
    pub(super) fn new(connection: Rc<Connection>) -> StreamEnd {
        StreamEnd { connection, stream: Stream::new() }
    }

    /// Sets the properties of the request, before any of it is sent.
    pub(crate) fn set_request(&self, method: Method, limits: Limits) {
        self.stream.request_facts.set(RequestFacts { method, limits });
    }

    /// Returns the next text of the response; `None` at its end.
    pub(crate) fn poll_recv(&mut self, context: &Context<'_>) -> Poll<Result<Option<Buf>, Errno>> {
        let mut inbox = self.stream.inbox.borrow_mut();
        if let Some((buf, body)) = inbox.pieces.pop_front() {
            debug_assert!(inbox.held >= body as usize, "each byte of a body is counted");
            inbox.held -= body as usize;
            drop(inbox);
            if let (Some(id), 1..) = (self.stream.id.get(), body) {
                self.connection.with(|State { session, out, .. }| session.take(id, body, out));
            }
            return Poll::Ready(Ok(Some(buf)));
        }
        match self.stream.cut.get() {
            _ if inbox.stage == Stage::Over => Poll::Ready(Ok(None)),
            Some(cut) => Poll::Ready(Err(cut.errno())),
            None => {
                inbox.reader = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }

    /// Takes the names of the never-indexed fields of the last header section.
    pub(crate) fn take_never_indexed(&self) -> Option<Box<NeverIndexed>> {
        self.stream.never_indexed.take()
    }

    /// Returns the reason why the stream has ended early.
    pub(crate) fn cut(&self) -> Option<Cut> {
        self.stream.cut.get()
    }

    /// Whether the reader has taken all text, and the stream has not ended early.
    pub(crate) fn is_quiet(&self) -> bool {
        self.stream.inbox.borrow().pieces.is_empty() && self.stream.cut.get().is_none()
    }

    /// Returns a writer that sends the request.
    pub(crate) fn writer(&self) -> StreamWriter {
        StreamWriter {
            connection: Rc::clone(&self.connection),
            stream: Rc::clone(&self.stream),
            sent: 0,
            trailers: Vec::new(),
            has_ended: false,
        }
    }
}

impl Drop for StreamEnd {
    fn drop(&mut self) {
        let is_over = self.stream.inbox.borrow().stage == Stage::Over;
        self.connection.with(|state| {
            assert!(state.users > 0, "an exchange that ends was counted");
            state.users -= 1;
            state.idle_since = rt::now();
            let Some(id) = self.stream.id.get() else { return };
            state.session.release(id, &mut state.out);
            state.note_end(!is_over);
            // The upstream may be unreachable when an exchange is abandoned.
            if !is_over && self.stream.cut.get().is_none() {
                state.probe();
            }
        });
        self.stream.cut(Cut::Closed);
    }
}

/// Sends a request as frames.
pub(crate) struct StreamWriter {
    connection: Rc<Connection>,
    stream: Rc<Stream>,
    /// Number of request bytes that were put into frames.
    sent: u64,
    /// Header block to send after the body; empty if there are no trailers.
    trailers: Vec<u8>,
    has_ended: bool,
}

impl StreamWriter {
    /// Sets the trailers; must be called before the send that ends the body.
    pub(crate) fn set_trailers(&mut self, fields: &[(Vec<u8>, Vec<u8>)]) {
        self.trailers.clear();
        for (name, value) in fields {
            hpack::push_field(&mut self.trailers, name, value);
        }
    }

    /// Puts all of `data` into frames. In the first call the first segment is the header block of the request. Must be polled
    /// again, with the same segments, until it is ready.
    pub(crate) fn poll_send(
        &mut self,
        context: &Context<'_>,
        data: &mut Segments,
        follows: Follows,
    ) -> Poll<Result<(), Errno>> {
        if let Some(cut) = self.stream.cut.get() {
            return Poll::Ready(Err(cut.errno()));
        }
        let (connection, stream) = (Rc::clone(&self.connection), Rc::clone(&self.stream));
        let polled = connection.with(|state| {
            // The connection ended, or reached its stream limit, before a frame was sent.
            let is_late = state.cut.is_some() || state.has_goaway || !state.session.may_open();
            if stream.id.get().is_none() && is_late {
                stream.cut(Cut::Unprocessed);
                return Poll::Ready(Err(Cut::Unprocessed.errno()));
            }
            let ends = follows == Follows::End;
            let id = match stream.id.get() {
                Some(id) => id,
                None => {
                    let id = state.session.open_next(Rc::clone(&stream));
                    stream.id.set(Some(id));
                    let head_len = data.parts().next().map_or(0, |segment| segment.bytes().len());
                    let is_all = ends && head_len == data.len() && self.trailers.is_empty();
                    let head = data.parts().next().map_or(&[][..], |segment| segment.bytes());
                    state.session.push_head(id, head, is_all, &mut state.out);
                    state.widen_first(id, &stream);
                    debug_assert!(head_len <= data.len(), "the header section is part of the data");
                    data.advance(head_len);
                    self.sent += head_len as u64;
                    self.has_ended |= is_all;
                    id
                }
            };
            while !data.is_empty() || ends && !self.has_ended {
                if data.is_empty() && !self.trailers.is_empty() {
                    state.session.push_head(id, &self.trailers, true, &mut state.out);
                    self.sent += self.trailers.len() as u64;
                    self.has_ended = true;
                    break;
                }
                let room = OUT_BYTES_MAX.saturating_sub(state.out.len());
                let most = state.session.sendable(id).min(state.session.payload_max()).min(room);
                if most == 0 && !data.is_empty() {
                    return Poll::Pending;
                }
                let count = most.min(data.len());
                let is_last = ends && count == data.len() && self.trailers.is_empty();
                debug_assert!(!self.has_ended, "nothing is sent after the end of a stream");
                state.session.push_data(id, count, is_last, &mut state.out);
                copy(data, count, &mut state.out);
                data.advance(count);
                self.sent += count as u64;
                self.has_ended |= is_last;
            }
            Poll::Ready(Ok(()))
        });
        if polled.is_pending() {
            stream.writer_waker.set(Some(context.waker().clone()));
        }
        polled
    }

    /// Returns the number of bytes put into frames.
    pub(crate) fn sent(&self) -> u64 {
        self.sent
    }
}

/// Appends the first `count` bytes of the segments.
fn copy(data: &Segments, mut count: usize, out: &mut Vec<u8>) {
    for part in data.parts() {
        let bytes = &part.bytes()[..part.bytes().len().min(count)];
        out.extend_from_slice(bytes);
        count -= bytes.len();
        if count == 0 {
            return;
        }
    }
}
