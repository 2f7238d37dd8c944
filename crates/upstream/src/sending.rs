//! The request on its way out: its head with what fits behind it, then the rest of its body piece by piece.
//!
//! Main type: [`Sending`], which owns its bytes, so that it continues when the response has begun.

use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::gateway::BodyFraming;
use io::op::{DeviceId, SEGMENTS_MAX, Source};
use io::{Errno, Segments, SharedBytes};
use rt::Timer;
use smallvec::smallvec;

use crate::h2::Follows;
use crate::link::Link;
use crate::state::Try;
use crate::wire::WireWriter;
use crate::{Outgoing, OutgoingBody, Settings};
use exchange::client::Client;
use exchange::request::Request;
use transfer::incoming::{BodyAborted, IncomingBody, Piece};
use transfer::received::ReceivedBody;

/// Why the request did not go out as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SendTrouble {
    /// The connection takes no more.
    Send(Errno),
    /// The client has not sent the rest of the body.
    Client(BodyAborted),
    /// The body is ours, and cannot be read.
    Local(Errno),
}

/// A request on its way to an upstream. Dropped before its end it leaves a connection that is of no further use.
pub(super) struct Sending {
    future: Pin<Box<dyn Future<Output = Result<(), SendTrouble>>>>,
    record: Rc<Try>,
    left: Left,
}

/// How much of a request is still to be sent.
enum Left {
    /// The missing part of this many bytes.
    Of(u64),
    /// Pieces of a body, which the client may not have sent yet.
    Coming(Rc<IncomingBody>),
}

/// Bytes of a file that are sent at once.
const PIECE: usize = 64 << 10;

/// Bytes from which on a send may be slow without being stuck: the socket is checked for room then.
const LONG_SEND: usize = 64 << 10;

impl Sending {
    /// Begins to send all of the request. Each send has `proxy_send_timeout`, by the timer of the link, which the caller
    /// watches.
    pub(super) fn begin(
        link: &Link,
        settings: &Settings,
        outgoing: &Outgoing,
        request: &Request,
        record: &Rc<Try>,
    ) -> Sending {
        let out = Out {
            writer: link.wire.writer(),
            timer: link.timer.clone(),
            timeout: settings.send_timeout,
            record: Rc::clone(record),
            framing: outgoing.encoded.framing(),
            client: request.client_if(has_trailers(outgoing)),
        };
        let head = outgoing.encoded.head().to_vec();
        let head_len = head.len() as u64;
        let (future, left): (Pin<Box<dyn Future<Output = _>>>, _) = match (&outgoing.body, &request.incoming)
        {
            (OutgoingBody::Streamed, Some(incoming)) => {
                let left = Left::Coming(Rc::clone(incoming));
                (Box::pin(stream(out, head, Rc::clone(incoming))), left)
            }
            (OutgoingBody::None | OutgoingBody::Streamed, _) => {
                (Box::pin(whole(out, head, Vec::new())), Left::Of(head_len))
            }
            (OutgoingBody::Bytes(bytes), _) => {
                let left = Left::Of(head_len + bytes.len() as u64);
                (Box::pin(whole(out, head, vec![bytes.clone()])), left)
            }
            (OutgoingBody::Received(body), _) => {
                let left = Left::Of(head_len + body.byte_count());
                match body.pieces() {
                    Some(pieces) => (Box::pin(whole(out, head, pieces.to_vec())), left),
                    None => (Box::pin(from_file(out, head, Rc::clone(body))), left),
                }
            }
        };
        Sending { future, record: Rc::clone(record), left }
    }

    /// Continues. It is not polled again after its result.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<(), SendTrouble>> {
        self.future.as_mut().poll(context)
    }

    /// Whether no more than this many bytes are left, and all of them are here.
    pub(super) fn is_nearly_over(&self, most: u64) -> bool {
        match &self.left {
            Left::Of(total) => total.saturating_sub(self.record.bytes_sent.get()) <= most,
            // One piece waits and one is being sent.
            Left::Coming(incoming) => incoming.is_whole(),
        }
    }
}

/// Whether fields behind the client's body are passed on: by HTTP/2, and behind that very body.
fn has_trailers(outgoing: &Outgoing) -> bool {
    let is_clients = matches!(outgoing.body, OutgoingBody::Streamed | OutgoingBody::Received(_));
    is_clients && outgoing.encoded.framing() == BodyFraming::Frames
}

/// Sends bytes from memory without a copy.
async fn whole(mut out: Out, head: Vec<u8>, body: Vec<SharedBytes>) -> Result<(), SendTrouble> {
    let mut data = Segments::from(head);
    let mut pieces = 1;
    let most = out.framing.piece_max();
    for piece in body.iter().flat_map(|piece| parts(piece, most)) {
        if pieces + out.segments_each() > SEGMENTS_MAX {
            out.send(std::mem::take(&mut data), Follows::More).await?;
            pieces = 0;
        }
        out.push(&mut data, smallvec![Source::SharedBytes(piece)]);
        pieces += out.segments_each();
    }
    out.end(data).await
}

/// A piece in parts of at most this many bytes.
fn parts(piece: &SharedBytes, most: u64) -> impl Iterator<Item = SharedBytes> {
    let (len, most) = (piece.len(), usize::try_from(most).unwrap_or(usize::MAX));
    (0..len).step_by(most).map(move |start| piece.part(start..len.min(start.saturating_add(most))))
}

/// Memory of which several parts can be sent.
pub(super) fn shared(source: Source) -> SharedBytes {
    match source {
        Source::Buf(buf) => buf.freeze(),
        Source::SharedBytes(bytes) => bytes,
        Source::Vec(bytes) => SharedBytes::from_vec(bytes),
        source => SharedBytes::copy(source.bytes()),
    }
}

/// Sends a body that was received into a file.
async fn from_file(mut out: Out, head: Vec<u8>, body: Rc<ReceivedBody>) -> Result<(), SendTrouble> {
    let mut data = Segments::from(head);
    let Some((file, len, via)) = body.file() else { return out.end(data).await };
    let mut offset = 0;
    while offset < len {
        let most = (len - offset).min(PIECE as u64).min(out.framing.piece_max());
        let buf = rt::pool().get(most as usize).ok_or(SendTrouble::Local(Errno::NOMEM))?;
        let (read, buf) = file.read_at(offset, most as u32, buf, DeviceId::default(), via).await;
        let (Ok(count @ 1..), Some(buf)) = (read, buf) else {
            return Err(SendTrouble::Local(read.err().unwrap_or(Errno::IO)));
        };
        offset += u64::from(count);
        out.push(&mut data, smallvec![Source::Buf(buf)]);
        if offset < len {
            out.send(std::mem::take(&mut data), Follows::More).await?;
        }
    }
    out.end(data).await
}

/// Sends a body while it comes.
async fn stream(mut out: Out, head: Vec<u8>, incoming: Rc<IncomingBody>) -> Result<(), SendTrouble> {
    let mut data = Segments::from(head);
    let mut piece = incoming.try_next();
    loop {
        if let Some(bytes) = piece {
            out.push(&mut data, bytes);
        }
        if !data.is_empty() {
            out.send(std::mem::take(&mut data), Follows::Later).await?;
        }
        // For as long as the client has the word, its own timeout is the one that counts.
        out.timer.clear();
        piece = incoming.next().await.map_err(SendTrouble::Client)?;
        if piece.is_none() {
            break;
        }
    }
    out.end(data).await
}

/// The upstream's side of it.
struct Out {
    writer: WireWriter,
    timer: Timer,
    timeout: Duration,
    record: Rc<Try>,
    framing: BodyFraming,
    /// The source of trailers.
    client: Option<Rc<dyn Client>>,
}

impl Out {
    /// Segments of one piece of a body in its frame.
    fn segments_each(&self) -> usize {
        if self.is_bare() { 1 } else { 3 }
    }

    /// Whether the bytes of a piece stand alone: they need no frame, or get it later.
    fn is_bare(&self) -> bool {
        matches!(self.framing, BodyFraming::Plain | BodyFraming::Frames)
    }

    /// Appends a piece of the body in its frame.
    fn push(&self, data: &mut Segments, piece: Piece) {
        if self.is_bare() {
            piece.into_iter().for_each(|source| data.push(source));
            return;
        }
        let len = piece.iter().map(|source| source.bytes().len() as u64).sum();
        let most = self.framing.piece_max();
        if len > most {
            for source in piece {
                for part in parts(&shared(source), most) {
                    self.push(data, smallvec![Source::SharedBytes(part)]);
                }
            }
            return;
        }
        let (before, after) = self.framing.around(len);
        data.push(Source::Vec(before));
        piece.into_iter().for_each(|source| data.push(source));
        data.push(Source::Static(after));
    }

    /// Sends the last bytes, and the end of the body.
    async fn end(&mut self, mut data: Segments) -> Result<(), SendTrouble> {
        if let Some(client) = &self.client {
            self.writer.set_trailers(&client.trailers());
        }
        let end = self.framing.end();
        if !end.is_empty() {
            data.push(Source::Static(end));
        }
        match data.is_empty() && self.framing != BodyFraming::Frames {
            true => Ok(()),
            false => self.send(data, Follows::End).await,
        }
    }

    async fn send(&mut self, mut data: Segments, follows: Follows) -> Result<(), SendTrouble> {
        let len = data.len();
        let Out { writer, timer, timeout, record, .. } = self;
        timer.set(rt::now() + *timeout);
        // A long send completes late. What counts is whether the upstream takes anything meanwhile.
        let mut progress = if len > LONG_SEND { writer.progress() } else { 0 };
        let result = poll_fn(|context| {
            let sent = writer.poll_send(context, &mut data, follows);
            if sent.is_pending() && len > LONG_SEND && timer.deadline().is_some_and(|at| at <= rt::now()) {
                let now = writer.progress();
                if std::mem::replace(&mut progress, now) != now {
                    timer.set(rt::now() + *timeout);
                }
            }
            sent
        })
        .await;
        record.bytes_sent.set(writer.sent());
        result.map_err(SendTrouble::Send)
    }
}
