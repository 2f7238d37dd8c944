//! Sending a request: its head with the body bytes that fit, then the remaining body piece by piece.
//!
//! Main type: [`Sending`], which owns its bytes, so that it can continue after the response has begun.

use std::future::poll_fn;
use std::io::IoSlice;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::gateway::BodyFraming;
use io::segments::{SEGMENTS_MAX, Source};
use io::{Errno, Segments, SharedBytes};
use rt::Timer;
use smallvec::smallvec;

use crate::h2::Follows;
use crate::link::Link;
use crate::outgoing::{Outgoing, OutgoingBody};
use crate::settings::Settings;
use crate::state::Try;
use crate::wire::WireWriter;
use exchange::client::Client;
use exchange::request::Request;
use transfer::incoming::{BodyAborted, IncomingBody, PIECE_BUFFERS_MAX, Piece};
use transfer::received::ReceivedBody;

/// Reason why a request was not sent completely.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SendFailure {
    /// Sending on the connection failed.
    Send(Errno),
    /// The client did not send the complete body.
    Client(BodyAborted),
    /// The body is in a local file that cannot be read.
    Local(Errno),
}

/// A request that is being sent. If it is dropped before its end, the connection cannot be reused.
pub(super) struct Sending {
    future: Pin<Box<dyn Future<Output = Result<(), SendFailure>>>>,
    record: Rc<Try>,
    unsent: Unsent,
}

/// Unsent part of a request.
enum Unsent {
    /// A request of this many bytes in total, part of which is unsent.
    Of(u64),
    /// Pieces of a body that the client may not have sent yet.
    BulkBody(Rc<IncomingBody>),
}

/// Size in bytes from which a send may be slow without being stuck: then the progress of the socket is checked.
const LONG_SEND: usize = 64 << 10;

/// Maximum size in bytes of a direct send, if the engine would make the same call. Enough for a request whose body fits into
/// `client_body_buffer_size`.
const SENT_DIRECTLY_MAX: usize = 32 << 10;

impl Sending {
    /// Begins to send the complete request; `None` if it was sent. Each send is limited by `proxy_send_timeout`, with the timer of the
    /// link, which the caller polls.
    ///
    /// # Errors
    /// The connection has failed.
    pub(super) fn begin(
        link: &mut Link,
        settings: &Settings,
        outgoing: &Outgoing,
        request: &Request,
        record: &Rc<Try>,
    ) -> Result<Option<Sending>, SendFailure> {
        let (head, framing) = (outgoing.encoded.head(), outgoing.encoded.framing());
        // As for responses to HTTP/1 clients: io_uring submits many sends with one system call.
        let thread = &request.conn.thread;
        // The bytes of the body, if all of them are in memory.
        let pieces = match (&outgoing.body, &request.incoming) {
            (OutgoingBody::Streamed, Some(_)) => None,
            (OutgoingBody::None | OutgoingBody::Streamed, _) => Some(&[][..]),
            (OutgoingBody::Bytes(bytes), _) => Some(std::slice::from_ref(bytes)),
            (OutgoingBody::Received(body), _) => body.pieces(),
        };
        let already = match pieces {
            Some(pieces) if thread.calls_directly && !thread.has_ring => {
                let (sent, is_all) = send_now(link, head, pieces, framing).map_err(SendFailure::Send)?;
                record.bytes_sent.set(sent as u64);
                if is_all {
                    return Ok(None);
                }
                sent
            }
            _ => 0,
        };
        let out = Out {
            writer: link.wire.writer(),
            already,
            timer: link.timer.clone(),
            timeout: settings.send_timeout,
            record: Rc::clone(record),
            framing,
            client: request.client_if(has_trailers(outgoing)),
        };
        let (head, head_len) = (head.to_vec(), head.len() as u64);
        let (future, unsent): (Pin<Box<dyn Future<Output = _>>>, _) =
            match (pieces, &outgoing.body, &request.incoming) {
                (Some(pieces), ..) => {
                    let total = head_len + pieces.iter().map(|piece| piece.len() as u64).sum::<u64>();
                    (Box::pin(send_all(out, head, pieces.to_vec())), Unsent::Of(total))
                }
                (None, OutgoingBody::Received(body), _) => {
                    let unsent = Unsent::Of(head_len + body.byte_count());
                    (Box::pin(from_file(out, head, Rc::clone(body))), unsent)
                }
                (None, _, incoming) => {
                    let incoming = incoming.as_ref().expect("any other body is in memory or in a file");
                    let unsent = Unsent::BulkBody(Rc::clone(incoming));
                    (Box::pin(stream(out, head, Rc::clone(incoming))), unsent)
                }
            };
        Ok(Some(Sending { future, record: Rc::clone(record), unsent }))
    }

    /// Continues sending. Must not be polled again after it is ready.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<(), SendFailure>> {
        self.future.as_mut().poll(context)
    }

    /// Whether at most `bytes_max` bytes are unsent, and all of them were received from the client.
    pub(super) fn is_nearly_over(&self, bytes_max: u64) -> bool {
        match &self.unsent {
            Unsent::Of(total) => total.saturating_sub(self.record.bytes_sent.get()) <= bytes_max,
            // At most one piece waits and one is being sent, so few bytes are unsent.
            Unsent::BulkBody(incoming) => incoming.is_complete(),
        }
    }
}

/// Whether trailers are passed on: only in HTTP/2, and only with the client's body.
fn has_trailers(outgoing: &Outgoing) -> bool {
    let is_clients = matches!(outgoing.body, OutgoingBody::Streamed | OutgoingBody::Received(_));
    is_clients && outgoing.encoded.framing() == BodyFraming::Frames
}

/// Sends a small request by a direct call, if one call is sufficient: with framing, only a request without a body. Returns the number
/// of bytes that the socket has accepted, and whether these are all.
fn send_now(
    link: &mut Link,
    head: &[u8],
    pieces: &[SharedBytes],
    framing: BodyFraming,
) -> Result<(usize, bool), Errno> {
    let is_framed = framing == BodyFraming::Frames || (framing != BodyFraming::Plain && !pieces.is_empty());
    if is_framed || pieces.len() + FRAMING_SEGMENTS > SEGMENTS_MAX {
        return Ok((0, false));
    }
    let parts = std::iter::once(head).chain(pieces.iter().map(|piece| &**piece)).chain([framing.end()]);
    let mut slices = [IoSlice::new(&[]); SEGMENTS_MAX];
    let (mut count, mut len) = (0, 0);
    for part in parts.filter(|part| !part.is_empty()) {
        slices[count] = IoSlice::new(part);
        (count, len) = (count + 1, len + part.len());
    }
    if len > SENT_DIRECTLY_MAX {
        return Ok((0, false));
    }
    let sent = link.wire.send_now(&slices[..count])?;
    Ok((sent, sent == len))
}

/// Sends bytes from memory without copying.
async fn send_all(mut out: Out, head: Vec<u8>, body: Vec<SharedBytes>) -> Result<(), SendFailure> {
    let mut data = Segments::from(head);
    for piece in body {
        out.push(&mut data, smallvec![Source::SharedBytes(piece)]).await?;
    }
    out.end(data).await
}

/// Appends a piece of the body with its framing, as far as there is space for its segments and for the end of the body. Removes the
/// appended bytes from `piece`; returns whether `piece` is empty now.
fn frame(framing: BodyFraming, data: &mut Segments, piece: &mut Piece) -> bool {
    let has_space = data.parts().count() + piece.len() + FRAMING_SEGMENTS <= SEGMENTS_MAX;
    // Bytes without framing need not be divided into chunks or records.
    if has_space && matches!(framing, BodyFraming::Plain | BodyFraming::Frames) {
        piece.drain(..).for_each(|source| data.push(source));
        return true;
    }
    while !piece.is_empty() {
        let part = take_front(piece, framing.piece_max());
        let len = part.iter().map(|source| source.bytes().len() as u64).sum();
        if data.parts().count() + part.len() + FRAMING_SEGMENTS > SEGMENTS_MAX {
            piece.insert_many(0, part);
            return false;
        }
        // An empty chunk or record would end the body.
        if len == 0 {
            continue;
        }
        debug_assert!(len <= framing.piece_max(), "a part fits into one chunk or record");
        let (before, after) = framing.around(len);
        data.push(Source::Vec(before));
        part.into_iter().for_each(|source| data.push(source));
        data.push(Source::Static(after));
    }
    true
}

/// Number of segments of framing: before and after a piece, and after the body.
const FRAMING_SEGMENTS: usize = 3;

/// Removes the first `bytes_max` bytes of a piece and returns them, in at most [`PIECE_BUFFERS_MAX`] buffers.
fn take_front(piece: &mut Piece, bytes_max: u64) -> Piece {
    debug_assert!(bytes_max > 0, "a part of a body has bytes");
    let (mut front, mut space) = (Piece::new(), usize::try_from(bytes_max).unwrap_or(usize::MAX));
    while space > 0 && front.len() < PIECE_BUFFERS_MAX && !piece.is_empty() {
        let source = piece.remove(0);
        let len = source.bytes().len();
        if len <= space {
            space -= len;
            front.push(source);
        } else {
            let bytes = shared(source);
            front.push(Source::SharedBytes(bytes.part(0..space)));
            piece.insert(0, Source::SharedBytes(bytes.part(space..len)));
            space = 0;
        }
    }
    front
}

/// Converts to memory of which several parts can be sent.
pub(super) fn shared(source: Source) -> SharedBytes {
    match source {
        Source::Buf(buf) => buf.freeze(),
        Source::SharedBytes(bytes) => bytes,
        Source::Vec(bytes) => SharedBytes::from_vec(bytes),
        source => SharedBytes::copy(source.bytes()),
    }
}

/// Sends a body that was received into a file.
async fn from_file(mut out: Out, head: Vec<u8>, body: Rc<ReceivedBody>) -> Result<(), SendFailure> {
    let (mut data, len) = (Segments::from(head), body.in_file());
    let mut offset = 0;
    while offset < len {
        let buf = body.read_file(offset, out.framing.piece_max()).await.map_err(SendFailure::Local)?;
        offset += buf.len() as u64;
        out.push(&mut data, smallvec![Source::Buf(buf)]).await?;
        if offset < len {
            out.send(std::mem::take(&mut data), Follows::More).await?;
        }
    }
    out.end(data).await
}

/// Sends a body while it arrives.
async fn stream(mut out: Out, head: Vec<u8>, incoming: Rc<IncomingBody>) -> Result<(), SendFailure> {
    let mut data = Segments::from(head);
    let mut piece = incoming.try_next();
    loop {
        if let Some(bytes) = piece {
            out.push(&mut data, bytes).await?;
        }
        if !data.is_empty() {
            out.send(std::mem::take(&mut data), Follows::Later).await?;
        }
        // While the client's data is awaited, only the client's timeout applies.
        out.timer.clear();
        piece = incoming.next().await.map_err(SendFailure::Client)?;
        if piece.is_none() {
            break;
        }
    }
    out.end(data).await
}

/// The sending side of the connection to the upstream.
struct Out {
    writer: WireWriter,
    /// Number of bytes at the front of the request that a direct call has sent. Such a request is sent at once.
    already: usize,
    timer: Timer,
    timeout: Duration,
    record: Rc<Try>,
    framing: BodyFraming,
    /// The client whose trailers are passed on.
    client: Option<Rc<dyn Client>>,
}

impl Out {
    /// Appends a piece of the body with its framing, and sends the bytes before it if they have too many segments.
    async fn push(&mut self, data: &mut Segments, mut piece: Piece) -> Result<(), SendFailure> {
        while !frame(self.framing, data, &mut piece) {
            self.send(std::mem::take(data), Follows::More).await?;
        }
        Ok(())
    }

    /// Sends the last bytes and the end of the body.
    async fn end(&mut self, mut data: Segments) -> Result<(), SendFailure> {
        if let Some(client) = &self.client {
            self.writer.set_trailers(&client.trailers());
        }
        let end = self.framing.end();
        if !end.is_empty() {
            data.push(Source::Static(end));
        }
        data.advance(self.already);
        match data.is_empty() && self.framing != BodyFraming::Frames {
            true => Ok(()),
            false => self.send(data, Follows::End).await,
        }
    }

    async fn send(&mut self, mut data: Segments, follows: Follows) -> Result<(), SendFailure> {
        let len = data.len();
        let Out { writer, timer, timeout, record, .. } = self;
        timer.set(rt::now() + *timeout);
        // A long send completes late; the timeout applies only if the upstream accepts no bytes during it.
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
        record.bytes_sent.set(self.already as u64 + writer.sent());
        result.map_err(SendFailure::Send)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &[u8] = b"head";

    /// Returns the sends of a body piece, with the number of their segments.
    fn sends(framing: BodyFraming, lens: &[usize]) -> Vec<(usize, Vec<u8>)> {
        let mut piece: Piece = lens.iter().map(|&len| Source::Vec(vec![b'x'; len])).collect();
        let (mut data, mut sends) = (Segments::from(HEAD.to_vec()), Vec::new());
        loop {
            let is_done = frame(framing, &mut data, &mut piece);
            let bytes = data.parts().flat_map(|part| part.bytes().to_vec()).collect();
            sends.push((data.parts().count(), bytes));
            if is_done {
                return sends;
            }
            data = Segments::new();
        }
    }

    /// Returns the lengths of the records that follow the head.
    fn record_lens(bytes: &[u8]) -> Vec<usize> {
        let (mut lens, mut rest) = (Vec::new(), &bytes[HEAD.len()..]);
        while let [1, 5, 0, 1, high, low, padding, 0, behind @ ..] = rest {
            let len = usize::from(u16::from_be_bytes([*high, *low]));
            lens.push(len);
            rest = &behind[len + usize::from(*padding)..];
        }
        assert!(rest.is_empty(), "records without a gap");
        lens
    }

    #[test]
    fn eight_buffers_above_one_record_are_one_send() {
        for len in [8192, 9000, 9362] {
            let sends = sends(BodyFraming::Records, &[len; PIECE_BUFFERS_MAX]);
            let [(segments, bytes)] = &sends[..] else { panic!("{} sends", sends.len()) };
            assert!(*segments < SEGMENTS_MAX, "there is space for the end");
            assert_eq!(record_lens(bytes), [65_528, PIECE_BUFFERS_MAX * len - 65_528]);
        }
    }

    #[test]
    fn a_piece_with_too_many_segments_is_several_sends() {
        let sends = sends(BodyFraming::Records, &[1 << 20, 1]);
        assert!(sends.len() > 1 && sends.iter().all(|(segments, _)| *segments < SEGMENTS_MAX));
        let bytes = sends.into_iter().flat_map(|(_, bytes)| bytes).collect::<Vec<u8>>();
        let lens = record_lens(&bytes);
        assert_eq!((lens.iter().sum::<usize>(), lens[0], lens.len()), ((1 << 20) + 1, 65_528, 17));
    }

    #[test]
    fn a_piece_is_one_chunk_and_bare_bytes_have_no_framing() {
        assert_eq!(sends(BodyFraming::Chunks, &[1, 2]), [(5, b"head3\r\nxxx\r\n".to_vec())]);
        assert_eq!(sends(BodyFraming::Plain, &[1, 2]), [(3, b"headxxx".to_vec())]);
    }
}
