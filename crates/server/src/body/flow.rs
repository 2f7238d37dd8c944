//! Bodies that are changed on their way, or whose length is not known before they end.
//!
//! ```text
//! source --> filter --> ... --> filter --+--> encoder --> chunks --> socket
//!                                        |
//!     answer of a subrequest, filtered --+
//! ```
//!
//! Bytes are read by the disk engine that the location chose, pass the filters in slices, and leave in chunks
//! (RFC 9112 section 7.1) or, for HTTP/1.0, until the connection closes.

use http::framing::{CHUNK_END, CHUNK_HEADER_LEN_MAX, chunk_header, push_last_chunk};
use io::DiskVia;
use io::op::Source;

use crate::body::choose::Mover;
use crate::body::filter::{BodyFilter, FilterError, Output, Piece, SLICE_MAX};
use crate::body::read::{self, Chunks};
use crate::body::{self, BodyError, FileBody, Sink};
use crate::coding::Encoder;
use crate::connection::decide;
use crate::log::Level;
use crate::request::Request;
use crate::response::Body;
use crate::subrequest::{self, Subrequest};

/// The end of the way, shared by a request and the subrequests that are put into its body.
pub(crate) struct Flow<'s, 'a> {
    target: Target<'s, 'a>,
    encoder: Option<Box<Encoder>>,
    /// Bytes that wait until there are enough for a send.
    gathered: Vec<u8>,
    /// Bytes passed.
    passed: u64,
    /// Bytes passed, and what else was done counted as bytes, since other tasks had their turn.
    run: usize,
}

enum Target<'s, 'a> {
    Client {
        sink: &'s mut Sink<'a>,
        chunked: bool,
    },
    /// The body of a subrequest that a filter wants to look at, up to so many bytes.
    Memory {
        most: u64,
    },
}

/// Bytes that are sent at once, but for the last ones.
const SEND_MIN: usize = 16 << 10;

/// What a subrequest counts beside its bytes: its phases take about as long as copying so many.
const SUBREQUEST_RUN: usize = 4 << 10;

/// What a request's body passes.
type Filters = [Box<dyn BodyFilter>];

/// Sends `head` and the body of `request` through its filters.
pub(crate) async fn send(sink: &mut Sink<'_>, head: Vec<u8>, request: &mut Request) -> Result<(), BodyError> {
    let chunked = request.response.chunked;
    sink.begin(head);
    let encoder = request.response.encoder.take();
    let mut flow = Flow::new(Target::Client { sink, chunked }, encoder);
    pass(request, &mut flow).await?;
    flow.finish(request).await
}

/// Passes the body of `request` through its filters into the flow.
async fn pass(request: &mut Request, flow: &mut Flow<'_, '_>) -> Result<(), BodyError> {
    let mut filters = std::mem::take(&mut request.response.filters);
    let slice = filters.iter().map(|filter| filter.slice_max()).fold(SLICE_MAX, usize::min);
    match std::mem::take(&mut request.response.body) {
        Body::None => {}
        Body::Bytes(source) => {
            for bytes in source.bytes().chunks(slice) {
                feed(request, &mut filters, bytes, flow).await?;
            }
        }
        Body::File(file) => pass_file(request, &mut filters, file, slice, flow).await?,
    }
    for stage in 0..filters.len() {
        let mut out = Output::default();
        filters[stage].finish(request, &mut out).map_err(|error| broken(request, &error))?;
        advance(request, &mut filters, stage + 1, out, flow).await?;
    }
    Ok(())
}

/// Reads a file, or pieces of one, by the engine that would read it for a body that is not changed.
async fn pass_file(
    request: &mut Request,
    filters: &mut Filters,
    mut file: FileBody,
    slice: usize,
    flow: &mut Flow<'_, '_>,
) -> Result<(), BodyError> {
    file.open_direct();
    let via = reader(file.mover);
    for piece in std::mem::take(&mut file.pieces) {
        let range = match piece {
            body::Piece::Text(text) => {
                feed(request, filters, &text, flow).await?;
                continue;
            }
            body::Piece::Range { start, end } => start..end,
        };
        for chunk in Chunks::new(range, SLICE_MAX as u64, file.direct) {
            let buf = read::read_chunk(&file, via, &chunk).await?;
            let wanted = &buf[chunk.skip as usize..][..chunk.wanted() as usize];
            for bytes in wanted.chunks(slice) {
                feed(request, filters, bytes, flow).await?;
            }
        }
    }
    Ok(())
}

/// The engine that reads where the mover would have read, or would have used sendfile.
fn reader(mover: Mover) -> DiskVia {
    match mover {
        Mover::Read { via, .. } | Mover::Sendfile(via) | Mover::Shared { via, .. } => via,
        Mover::Resident { otherwise } => otherwise,
    }
}

/// Gives bytes to the first filter, and what becomes of them to the others.
async fn feed(
    request: &mut Request,
    filters: &mut Filters,
    input: &[u8],
    flow: &mut Flow<'_, '_>,
) -> Result<(), BodyError> {
    if filters.is_empty() {
        return flow.write(request, input).await;
    }
    let mut rest = input;
    while !rest.is_empty() {
        let mut out = Output::default();
        let used = filters[0].push(request, rest, &mut out).map_err(|error| broken(request, &error))?;
        rest = &rest[used..];
        advance(request, filters, 1, out, flow).await?;
    }
    Ok(())
}

/// Takes the pieces that a filter gave, in order, through the filters from `stage` on. The stack holds what is
/// still to be done, next one on top.
async fn advance(
    request: &mut Request,
    filters: &mut Filters,
    stage: usize,
    out: Output,
    flow: &mut Flow<'_, '_>,
) -> Result<(), BodyError> {
    let mut stack: Vec<(usize, Piece)> = out.into_reversed().map(|piece| (stage, piece)).collect();
    while let Some((stage, piece)) = stack.pop() {
        let mut out = Output::default();
        match piece {
            Piece::Bytes(bytes) if stage == filters.len() => flow.write(request, &bytes).await?,
            Piece::Bytes(mut bytes) => {
                let used = filters[stage]
                    .push(request, &bytes, &mut out)
                    .map_err(|error| broken(request, &error))?;
                if used < bytes.len() {
                    bytes.drain(..used);
                    stack.push((stage, Piece::Bytes(bytes)));
                }
            }
            Piece::Subrequest(wanted) if wanted.capture => {
                let (status, body) = capture(request, &wanted).await?;
                filters[stage - 1].captured(request, status, body);
            }
            Piece::Subrequest(wanted) if stage == filters.len() => include(request, wanted, flow).await?,
            Piece::Subrequest(wanted) => {
                filters[stage].interrupt(request, &mut out);
                stack.push((stage + 1, Piece::Subrequest(wanted)));
            }
        }
        stack.extend(out.into_reversed().map(|piece| (stage + 1, piece)));
    }
    Ok(())
}

/// Puts the answer of a subrequest, through its own filters, into the flow.
async fn include(
    request: &mut Request,
    wanted: Subrequest,
    flow: &mut Flow<'_, '_>,
) -> Result<(), BodyError> {
    flow.take_turns(SUBREQUEST_RUN).await;
    let Some(mut child) = subrequest::answer(request, &wanted).await else { return Ok(()) };
    let mut stub = wanted.stub;
    if child.response.status >= 300 && stub.is_some() {
        // As in nginx the text passes the filters of the subrequest, as its body would.
        let content_type = request.response.content_type.of(request).map(str::to_owned);
        decide::answer_with(&mut child, content_type, stub.take().unwrap_or_default());
    }
    let before = flow.passed;
    // Boxed, because an answer may include others.
    let mut done = Box::pin(pass(&mut child, flow)).await;
    if let (Ok(()), Some(stub), true) = (&done, stub, flow.passed == before) {
        done = flow.write(&mut child, &stub).await;
    }
    subrequest::finish(request, child);
    done
}

/// The status and the body of a subrequest.
async fn capture(request: &mut Request, wanted: &Subrequest) -> Result<(u16, Vec<u8>), BodyError> {
    let Some(mut child) = subrequest::answer(request, wanted).await else { return Ok((500, Vec::new())) };
    let most = child.scope().core.subrequests.output_buffer_size;
    let mut flow = Flow::new(Target::Memory { most }, None);
    let done = Box::pin(pass(&mut child, &mut flow)).await;
    let status = child.response.status;
    subrequest::finish(request, child);
    done.map(|()| (status, flow.gathered))
}

fn broken(request: &Request, error: &FilterError) -> BodyError {
    request.log(Level::Error, format_args!("{error} while sending to client"));
    BodyError::Filter
}

impl<'s, 'a> Flow<'s, 'a> {
    fn new(target: Target<'s, 'a>, encoder: Option<Box<Encoder>>) -> Flow<'s, 'a> {
        Flow { target, encoder, gathered: Vec::new(), passed: 0, run: 0 }
    }

    /// Lets other tasks go on when enough has been done.
    async fn take_turns(&mut self, done: usize) {
        self.run += done;
        if self.run >= SLICE_MAX {
            self.run = 0;
            rt::yield_now().await;
        }
    }

    /// Takes bytes that no filter changes any more.
    async fn write(&mut self, request: &mut Request, bytes: &[u8]) -> Result<(), BodyError> {
        for bytes in bytes.chunks(SLICE_MAX) {
            match &mut self.encoder {
                // Lets other tasks have their turn by itself.
                Some(encoder) => {
                    let done = encoder.push(bytes, &mut self.gathered).await;
                    done.map_err(|error| broken(request, &error.into()))?;
                }
                None => self.gathered.extend_from_slice(bytes),
            }
            self.passed += bytes.len() as u64;
            if let (Target::Memory { most }, len) = (&self.target, self.gathered.len() as u64)
                && len > *most
            {
                request.log(Level::Error, format_args!("too big subrequest response: {len}"));
                return Err(BodyError::Filter);
            }
            self.flush(SEND_MIN).await?;
            self.take_turns(bytes.len()).await;
        }
        Ok(())
    }

    /// Sends what was gathered when it is as much as this.
    async fn flush(&mut self, least: usize) -> Result<(), BodyError> {
        if self.gathered.len() < least || self.gathered.is_empty() {
            return Ok(());
        }
        match &mut self.target {
            Target::Memory { .. } => Ok(()),
            Target::Client { sink, chunked } => {
                push_chunk(sink, std::mem::take(&mut self.gathered), *chunked);
                Ok(sink.flush(true).await?)
            }
        }
    }

    /// Ends the body of the request that the client asked for.
    async fn finish(mut self, request: &mut Request) -> Result<(), BodyError> {
        if let Some(encoder) = &mut self.encoder {
            let done = encoder.finish(request, &mut self.gathered).await;
            done.map_err(|error| broken(request, &error.into()))?;
        }
        let Target::Client { sink, chunked } = self.target else { return Ok(()) };
        if !self.gathered.is_empty() {
            push_chunk(sink, self.gathered, chunked);
        }
        let mut fields = Vec::new();
        for trailers in std::mem::take(&mut request.response.trailers) {
            trailers(request, &mut fields);
        }
        if chunked {
            let mut end = Vec::new();
            let fields: Vec<_> =
                fields.iter().map(|(name, value)| (name.as_slice(), value.as_slice())).collect();
            if push_last_chunk(&fields, &mut end).is_err() {
                request.log(Level::Error, format_args!("a trailer field has a control character"));
                push_last_chunk(&[], &mut end).expect("there are no fields to be wrong");
            }
            sink.push(Source::Vec(end));
        }
        request.response.sent_trailers = fields;
        Ok(sink.flush(false).await?)
    }
}

/// Adds bytes to the next send, framed where the length of the whole was not told.
fn push_chunk(sink: &mut Sink<'_>, bytes: Vec<u8>, chunked: bool) {
    if !chunked {
        sink.push(Source::Vec(bytes));
        return;
    }
    let mut buf = [0; CHUNK_HEADER_LEN_MAX];
    sink.push(Source::Vec(chunk_header(bytes.len() as u64, &mut buf).to_vec()));
    sink.push(Source::Vec(bytes));
    sink.push(Source::Static(CHUNK_END));
}
