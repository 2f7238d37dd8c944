//! The request on its way out: its head with what fits behind it, then the rest of its body piece by piece.

use std::cell::Cell;

use http::framing::{BodyFraming, CHUNK_END, CHUNK_HEADER_LEN_MAX, LAST_CHUNK, chunk_header};
use io::op::{DeviceId, Source};
use io::{Errno, Segments};
use rt::Timer;
use rt::net::Writer;

use crate::incoming::{Cut, IncomingBody};
use crate::request::Request;
use crate::upstream::state::Try;
use crate::upstream::{Outgoing, OutgoingBody, Settings};

/// Why the request did not go out as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SendTrouble {
    /// The connection takes no more.
    Send(Errno),
    /// The client has not sent the rest of the body.
    Client(Cut),
    /// The body is ours, and cannot be read.
    Local(Errno),
}

/// Bytes of a body that are copied behind the head: a second piece to send costs more.
const COPIED_MAX: usize = 16 << 10;

/// Bytes of a body that are sent at once.
const PIECE: usize = 64 << 10;

/// Sends all of the request. Each piece has `proxy_send_timeout`, by the timer that the caller watches.
pub(super) async fn send(
    writer: &mut Writer,
    timer: &Timer,
    settings: &Settings,
    outgoing: &Outgoing,
    request: &Request,
    record: &Try,
    sent: &Cell<bool>,
) -> Result<(), SendTrouble> {
    let mut out = Out { writer, timer, settings, record };
    sent.set(true);
    let memory: &[u8] = match &outgoing.body {
        OutgoingBody::Bytes(bytes) => bytes,
        OutgoingBody::Received(body) => body.memory().unwrap_or_default(),
        OutgoingBody::None | OutgoingBody::Streamed => b"",
    };
    let in_file = match &outgoing.body {
        OutgoingBody::Received(body) => body.file(),
        _ => None,
    };
    let mut head = outgoing.head.clone();
    if let (OutgoingBody::Streamed, Some(incoming)) = (&outgoing.body, &request.incoming) {
        return stream(&mut out, head, incoming, BodyFraming::of(&request.head)).await;
    }
    if memory.len() <= COPIED_MAX {
        head.extend_from_slice(memory);
        out.send(Source::Vec(head), in_file.is_some()).await?;
    } else {
        out.send(Source::Vec(head), true).await?;
        let mut left = memory.len();
        for piece in memory.chunks(PIECE) {
            left -= piece.len();
            out.copy(piece, left > 0).await?;
        }
    }
    if let Some((file, len, via)) = in_file {
        let mut offset = 0;
        while offset < len {
            let most = (len - offset).min(PIECE as u64);
            let buf = rt::pool().get(most as usize).ok_or(SendTrouble::Local(Errno::NOMEM))?;
            let (read, buf) = file.read_at(offset, most as u32, buf, DeviceId::default(), via).await;
            let (Ok(count @ 1..), Some(buf)) = (read, buf) else {
                return Err(SendTrouble::Local(read.err().unwrap_or(Errno::IO)));
            };
            offset += u64::from(count);
            out.send(Source::Buf(buf), offset < len).await?;
        }
    }
    Ok(())
}

/// Sends a body while it comes: as it is where its length was told, else in chunks.
async fn stream(
    out: &mut Out<'_>,
    head: Vec<u8>,
    incoming: &IncomingBody,
    framing: BodyFraming,
) -> Result<(), SendTrouble> {
    let chunked = framing == BodyFraming::Chunked;
    let mut pending = head;
    let mut piece = incoming.try_next();
    loop {
        if let Some(bytes) = piece {
            push(&mut pending, &bytes, chunked);
            incoming.give_back(bytes);
        }
        if !pending.is_empty() {
            out.send(Source::Vec(std::mem::take(&mut pending)), false).await?;
        }
        // For as long as the client has the word, its own timeout is the one that counts.
        out.timer.clear();
        piece = incoming.next().await.map_err(SendTrouble::Client)?;
        if piece.is_none() {
            break;
        }
    }
    match chunked {
        true => out.send(Source::Static(LAST_CHUNK), false).await,
        false => Ok(()),
    }
}

/// Appends a piece of a body.
fn push(out: &mut Vec<u8>, bytes: &[u8], chunked: bool) {
    if !chunked {
        out.extend_from_slice(bytes);
        return;
    }
    let mut buf = [0; CHUNK_HEADER_LEN_MAX];
    out.extend_from_slice(chunk_header(bytes.len() as u64, &mut buf));
    out.extend_from_slice(bytes);
    out.extend_from_slice(CHUNK_END);
}

/// The upstream's side of it.
struct Out<'a> {
    writer: &'a mut Writer,
    timer: &'a Timer,
    settings: &'a Settings,
    record: &'a Try,
}

impl Out<'_> {
    async fn send(&mut self, source: Source, more: bool) -> Result<(), SendTrouble> {
        let len = source.bytes().len() as u64;
        let mut data = Segments::new();
        data.push(source);
        self.timer.set(rt::now() + self.settings.send_timeout);
        let (result, _) = self.writer.send(data, more).await;
        result.map_err(SendTrouble::Send)?;
        self.record.bytes_sent.set(self.record.bytes_sent.get() + len);
        Ok(())
    }

    /// Sends bytes that others hold.
    async fn copy(&mut self, bytes: &[u8], more: bool) -> Result<(), SendTrouble> {
        let mut buf = rt::pool().get(bytes.len()).ok_or(SendTrouble::Local(Errno::NOMEM))?;
        if buf.append(bytes) < bytes.len() {
            return Err(SendTrouble::Local(Errno::NOMEM));
        }
        self.send(Source::Buf(buf), more).await
    }
}
