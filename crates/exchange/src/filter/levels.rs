//! Passes a body through its filters, and inserts the responses of subrequests.
//!
//! Each request whose response is in flight is a level: the client's request at the bottom, its subrequest above it,
//! and so on. The top level runs. The levels are a list instead of a recursion, because fifty nested subrequests are
//! allowed and a thread's stack is small.
//!
//! The filters of a level run ahead of its output while it waits for a subrequest. The subrequests of one page run
//! concurrently, and their responses are sent in the order of the page.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut, Range};
use std::time::Duration;

use io::Buf;
use io::segments::Source;
use rt::{Either, select};

use crate::body_filter::Piece;
use crate::course;
use crate::filter::output::FilterOutput;
use crate::filter::{BodyFilter, Output, SLICE_MAX};
use crate::request::Request;
use crate::response::Body;
use crate::subrequest::{self, RunningSubrequest, Subrequest};
use telemetry::Level as LogLevel;
use transfer::body::read::{self, Chunks};
use transfer::body::source::{self, BodySource, Next};
use transfer::body::{self, BodyError, FileBody, buffer_turns};
use transfer::coding::CodingError;

/// Bytes added to the run for each subrequest: its phases take about as long as copying this many.
const SUBREQUEST_RUN: usize = 4 << 10;

/// Bytes added to the run for each call of a filter: it may work for long without output.
const PUSH_RUN: usize = 4 << 10;

/// Maximum number of concurrent subrequests of a level, because each may hold as much memory as a proxied response
/// (`proxy_buffers`). Further subrequests wait.
const CONCURRENT_MAX: usize = 16;

/// Time that a subrequest may take before the preceding output is sent; a faster response saves a send.
const SUBREQUEST_WAIT: Duration = Duration::from_millis(5);

/// One request whose body is in flight.
struct ResponseLevel<'r> {
    request: Owner<'r>,
    filters: Vec<Box<dyn BodyFilter>>,
    /// Maximum number of bytes per call of a filter.
    slice: usize,
    origin: BodyOrigin,
    /// Bytes that were read and not yet passed to the filters.
    input: Option<(HeldBytes, Range<usize>)>,
    /// Pieces between the filters, with the index of the next filter for each; the last element is the next piece.
    work: Vec<(usize, Piece)>,
    /// Output of the filters that waits for an earlier subrequest.
    out: VecDeque<Out>,
    /// Number of filters that have received the end of the body.
    ended: usize,
    purpose: Purpose,
}

/// The owner of the request.
enum Owner<'r> {
    Client(&'r mut Request),
    Subrequest(Box<Request>),
}

/// The source of a body.
enum BodyOrigin {
    /// The body was read completely.
    Done,
    Bytes(Source, Range<usize>),
    File {
        file: FileBody,
        pieces: smallvec::IntoIter<[body::Piece; 1]>,
        chunks: Option<Chunks>,
    },
    Source(Box<dyn BodySource>),
}

/// Memory that holds bytes of a body.
enum HeldBytes {
    Source(Source),
    Buf(Buf),
}

/// Output of the filters of a level.
enum Out {
    Bytes(Vec<u8>),
    Subrequest { under_way: RunningSubrequest, spec: Subrequest },
}

/// The destination of a response.
enum Purpose {
    /// The client.
    Send,
    /// The position of the subrequest in the body; `stub` replaces an empty response.
    Include { stub: Option<Vec<u8>>, before: u64 },
    /// A filter of the level below.
    Capture { filter: usize, body: Vec<u8> },
}

/// Passes the body of `request` through its filters into the output.
pub(super) async fn pass(request: &mut Request, output: &mut FilterOutput<'_>) -> Result<(), BodyError> {
    let mut levels = Levels { list: vec![ResponseLevel::new(Owner::Client(request), Purpose::Send)] };
    let done = levels.run(output).await;
    // After an error the remaining levels are only finished.
    while levels.list.len() > 1 {
        levels.leave();
    }
    done
}

/// All levels; the last element is the top.
struct Levels<'r> {
    list: Vec<ResponseLevel<'r>>,
}

impl<'r> Levels<'r> {
    fn top(&mut self) -> &mut ResponseLevel<'r> {
        self.list.last_mut().expect("the client's request stays")
    }

    /// Runs until the client's request has nothing more to send.
    async fn run(&mut self, output: &mut FilterOutput<'_>) -> Result<(), BodyError> {
        loop {
            let top = self.top();
            if !top.out.is_empty() && !top.runs_ahead() {
                self.send_next(output).await?;
            } else if let Some((stage, piece)) = top.work.pop() {
                self.take(stage, piece, output).await?;
            } else if let Some((held, mut range)) = top.input.take() {
                range.start += self.feed(&held.bytes()[range.clone()], output).await?;
                self.top().input = (!range.is_empty()).then_some((held, range));
            } else if self.read(output).await? || self.top().end_filter()? {
                // More output may be available now.
            } else if self.list.len() > 1 {
                self.end(output).await?;
            } else {
                return Ok(());
            }
        }
    }

    /// Reads further bytes of the top level's body; returns `false` at its end.
    async fn read(&mut self, output: &mut FilterOutput<'_>) -> Result<bool, BodyError> {
        if matches!(self.top().origin, BodyOrigin::File { .. }) && buffer_turns::are_on() {
            output.wait_for_receiver(&self.list[0].request).await?;
        }
        let top = self.top();
        let BodyOrigin::Source(stream) = &mut top.origin else { return top.read().await };
        let mut next = source::next(&mut **stream, false).await?;
        if let Next::Nothing = next {
            // The task that reads the body runs first, so that an encoder is flushed only if the body really pauses.
            rt::yield_now().await;
            next = source::next(&mut **stream, false).await?;
        }
        let pauses = matches!(next, Next::Nothing) && !stream.is_reading();
        if pauses {
            output.flush_all(&self.list[0].request).await?;
        }
        let top = self.top();
        let BodyOrigin::Source(stream) = &mut top.origin else { return Ok(true) };
        if let Next::Nothing = next {
            next = output.during(source::next(&mut **stream, true)).await?;
        }
        match next {
            Next::Piece(source) => top.hold(source),
            Next::End | Next::Nothing => {
                // The trailers of a subrequest are discarded with it, as its header section is.
                top.request.response.sent_trailers = stream.trailers();
                top.origin = BodyOrigin::Done;
            }
        }
        Ok(true)
    }

    /// Passes the next bytes to the first filter; returns how many it consumed.
    async fn feed(&mut self, bytes: &[u8], output: &mut FilterOutput<'_>) -> Result<usize, BodyError> {
        let top = self.top();
        let slice = &bytes[..bytes.len().min(top.slice)];
        if top.filters.is_empty() {
            self.write(slice, output).await?;
            return Ok(slice.len());
        }
        let used = top.push(0, slice)?;
        output.take_turns(PUSH_RUN).await;
        Ok(used)
    }

    /// Passes a piece to its next filter.
    async fn take(
        &mut self,
        stage: usize,
        piece: Piece,
        output: &mut FilterOutput<'_>,
    ) -> Result<(), BodyError> {
        let top = self.top();
        let is_out = stage == top.filters.len();
        match piece {
            Piece::Bytes(bytes) if is_out && top.out.is_empty() => self.write(&bytes, output).await?,
            Piece::Bytes(bytes) if is_out => top.out.push_back(Out::Bytes(bytes)),
            Piece::Bytes(bytes) => self.push_on(stage, bytes, 0, output).await?,
            Piece::Rest { bytes, start } => self.push_on(stage, bytes, start, output).await?,
            Piece::Subrequest(spec) if spec.capture => self.capture(stage, spec, output).await,
            Piece::Subrequest(spec) if is_out => {
                output.take_turns(SUBREQUEST_RUN).await;
                let top = self.top();
                let under_way = subrequest::begin(&top.request, &spec);
                top.out.extend(under_way.map(|under_way| Out::Subrequest { under_way, spec }));
            }
            Piece::Subrequest(spec) => {
                top.work.push((stage + 1, Piece::Subrequest(spec)));
                let mut out = Output::default();
                top.filters[stage].interrupt(&mut top.request, &mut out);
                top.add(stage + 1, out);
            }
        }
        Ok(())
    }

    /// Passes bytes from `start` on to a filter.
    async fn push_on(
        &mut self,
        stage: usize,
        bytes: Vec<u8>,
        start: usize,
        output: &mut FilterOutput<'_>,
    ) -> Result<(), BodyError> {
        let top = self.top();
        // `work` is a stack: the remaining bytes are below the filter's output, which is sent first.
        let index = top.work.len();
        let start = start + top.push(stage, &bytes[start..])?;
        if start < bytes.len() {
            top.work.insert(index, (stage, Piece::Rest { bytes, start }));
        }
        output.take_turns(PUSH_RUN).await;
        Ok(())
    }

    /// Writes bytes that no filter of their level changes any more.
    async fn write(&mut self, bytes: &[u8], output: &mut FilterOutput<'_>) -> Result<(), BodyError> {
        // The responses of subrequests of a captured response are captured too.
        let capture = self.list.iter().rposition(|level| matches!(level.purpose, Purpose::Capture { .. }));
        let Some(capture) = capture else { return output.write(&mut self.list[0].request, bytes).await };
        let ResponseLevel { request, purpose, .. } = &mut self.list[capture];
        let most = request.scope().core.subrequests.output_buffer_size;
        if let Purpose::Capture { body, .. } = purpose {
            let len = body.len() + bytes.len();
            if len as u64 > most {
                request.log(LogLevel::Error, format_args!("too big subrequest response: {len}"));
                return Err(BodyError::Filter);
            }
            body.extend_from_slice(bytes);
        }
        output.take_turns(bytes.len()).await;
        Ok(())
    }

    /// Runs a subrequest up to its response, which becomes the top level and is captured for the filter before `stage`.
    async fn capture(&mut self, stage: usize, spec: Subrequest, output: &mut FilterOutput<'_>) {
        output.take_turns(SUBREQUEST_RUN).await;
        let top = self.top();
        top.release_buffers();
        let filter = stage - 1;
        let Some(child) = output.during(subrequest::fetch(&top.request, &spec)).await else {
            top.filters[filter].captured(&mut top.request, 500, Vec::new());
            return;
        };
        let purpose = Purpose::Capture { filter, body: Vec::new() };
        self.list.push(ResponseLevel::new(Owner::Subrequest(child), purpose));
    }

    /// Sends the next output of the top level. The response of a subrequest becomes the top level.
    async fn send_next(&mut self, output: &mut FilterOutput<'_>) -> Result<(), BodyError> {
        let (under_way, spec) = match self.top().out.pop_front() {
            Some(Out::Subrequest { under_way, spec }) => (under_way, spec),
            Some(Out::Bytes(bytes)) => return self.write(&bytes, output).await,
            None => return Ok(()),
        };
        if !under_way.is_done() {
            self.top().release_buffers();
            let patience = rt::sleep_until(rt::now() + SUBREQUEST_WAIT);
            if let Either::Right(()) = select(under_way.wait(), patience).await {
                output.pause(&self.list[0].request).await?;
                output.during(under_way.wait()).await;
            }
        }
        let Some(mut child) = under_way.take() else { return Ok(()) };
        let top = self.top();
        let mut stub = spec.stub;
        if child.response.status >= 300 && stub.is_some() {
            // As in nginx the text passes the filters of the subrequest, as its body would.
            let content_type = top.request.response.content_type.of(&top.request).map(str::to_owned);
            course::respond_with(&mut child, content_type, stub.take().unwrap_or_default());
        }
        let purpose = Purpose::Include { stub, before: output.passed() };
        self.list.push(ResponseLevel::new(Owner::Subrequest(child), purpose));
        Ok(())
    }

    /// Ends the top level.
    async fn end(&mut self, output: &mut FilterOutput<'_>) -> Result<(), BodyError> {
        let stub = match &mut self.top().purpose {
            Purpose::Include { stub, before } if output.passed() == *before => stub.take(),
            _ => None,
        };
        if let Some(stub) = stub {
            self.write(&stub, output).await?;
        }
        let (status, purpose) = self.leave();
        if let Purpose::Capture { filter, body } = purpose {
            let top = self.top();
            top.filters[filter].captured(&mut top.request, status, body);
        }
        Ok(())
    }

    /// Removes the top level, and returns its borrowed state to the level below.
    fn leave(&mut self) -> (u16, Purpose) {
        let Some(ResponseLevel { request: Owner::Subrequest(child), purpose, .. }) = self.list.pop() else {
            unreachable!("only subrequests are left")
        };
        assert!(!self.list.is_empty(), "the request of the client stays");
        let status = child.response.status;
        subrequest::finish(child);
        (status, purpose)
    }
}

impl<'r> ResponseLevel<'r> {
    fn new(mut request: Owner<'r>, purpose: Purpose) -> ResponseLevel<'r> {
        let filters = std::mem::take(&mut request.response.filters);
        let slice = filters.iter().map(|filter| filter.slice_max()).fold(SLICE_MAX, usize::min);
        let origin = match std::mem::take(&mut request.response.body) {
            Body::None => BodyOrigin::Done,
            Body::Bytes(source) => {
                let range = 0..source.bytes().len();
                BodyOrigin::Bytes(source, range)
            }
            Body::Slice(source, range) => BodyOrigin::Bytes(source, range),
            Body::Ranged(body) => BodyOrigin::Source(body.into_source()),
            Body::File(mut file) => {
                file.prepare();
                let pieces = file.take_pieces().into_iter();
                BodyOrigin::File { file, pieces, chunks: None }
            }
            Body::Source(stream) => BodyOrigin::Source(stream),
            // A subrequest cannot switch protocols; its response is empty then.
            Body::Tunnel(_) => BodyOrigin::Done,
        };
        let (work, out) = (Vec::new(), VecDeque::new());
        ResponseLevel { request, filters, slice, origin, input: None, work, out, ended: 0, purpose }
    }

    /// Whether the filters process further input while the subrequest at the head of the output is in flight.
    fn runs_ahead(&self) -> bool {
        let next_is_under_way =
            matches!(self.out.front(), Some(Out::Subrequest { under_way, .. }) if !under_way.is_done());
        let is_captured =
            |(_, piece): &(usize, Piece)| matches!(piece, Piece::Subrequest(spec) if spec.capture);
        let has_work = match self.work.last() {
            // A captured subrequest starts only when its filter and the client have received all earlier bytes.
            Some(next) => !is_captured(next),
            None => self.input.is_some(),
        };
        if !next_is_under_way || !has_work || buffer_turns::are_on() {
            return false;
        }
        let (mut under_way, mut bytes) = (0, 0);
        for out in &self.out {
            match out {
                Out::Subrequest { spec, .. } if spec.waits => return false,
                Out::Subrequest { .. } => under_way += 1,
                Out::Bytes(text) => bytes += text.len(),
            }
        }
        under_way < CONCURRENT_MAX && bytes < SLICE_MAX
    }

    /// Copies the bytes read if buffers are scarce: a level that waits for a subrequest must not hold a buffer then.
    fn release_buffers(&mut self) {
        if let Some((held, range)) = self.input.take_if(|(held, _)| held.is_buf() && buffer_turns::are_on()) {
            self.hold(Source::Vec(held.bytes()[range].to_vec()));
        }
    }

    /// Passes bytes to a filter and queues its output; returns how many it consumed.
    fn push(&mut self, stage: usize, bytes: &[u8]) -> Result<usize, BodyError> {
        let mut out = Output::default();
        let pushed = self.filters[stage].push(&mut self.request, bytes, &mut out);
        let used = pushed.map_err(|error| broken(&self.request, &error))?;
        debug_assert!(used > 0 || bytes.is_empty(), "a filter without progress would be called forever");
        self.add(stage + 1, out);
        Ok(used)
    }

    fn add(&mut self, stage: usize, out: Output) {
        self.work.extend(out.into_reversed().map(|piece| (stage, piece)));
    }

    /// Signals the end of the body to the next filter; returns `false` if all filters have received it.
    fn end_filter(&mut self) -> Result<bool, BodyError> {
        let Some(filter) = self.filters.get_mut(self.ended) else { return Ok(false) };
        self.ended += 1;
        let mut out = Output::default();
        filter.finish(&mut self.request, &mut out).map_err(|error| broken(&self.request, &error))?;
        self.add(self.ended, out);
        Ok(true)
    }

    /// Reads further bytes, with the engine that reads unfiltered bodies; returns `false` at the end.
    async fn read(&mut self) -> Result<bool, BodyError> {
        match &mut self.origin {
            // The caller waits for streams, because it has to send earlier output first.
            BodyOrigin::Done | BodyOrigin::Source(_) => return Ok(false),
            BodyOrigin::Bytes(..) => {
                if let BodyOrigin::Bytes(source, range) =
                    std::mem::replace(&mut self.origin, BodyOrigin::Done)
                {
                    self.input = (!range.is_empty()).then_some((HeldBytes::Source(source), range));
                }
            }
            BodyOrigin::File { file, pieces, chunks } => {
                if let Some(chunk) = chunks.as_mut().and_then(Iterator::next) {
                    let buf = read::read_chunk(file, file.mover.reader(), &chunk).await?;
                    let start = chunk.skip as usize;
                    self.input = Some((HeldBytes::Buf(buf), start..start + chunk.requested() as usize));
                    return Ok(true);
                }
                match pieces.next() {
                    Some(body::Piece::Text(text)) => self.hold(Source::Vec(text)),
                    Some(body::Piece::Range { start, end }) => {
                        *chunks = Some(Chunks::new(start..end, SLICE_MAX as u64, file.direct));
                    }
                    None => self.origin = BodyOrigin::Done,
                }
            }
        }
        Ok(true)
    }

    /// Stores bytes that were read.
    fn hold(&mut self, source: Source) {
        let range = 0..source.bytes().len();
        self.input = (!range.is_empty()).then_some((HeldBytes::Source(source), range));
    }
}

/// Logs the reason why a body cannot continue, and returns the error.
pub(super) fn broken(request: &Request, error: &CodingError) -> BodyError {
    request.log(LogLevel::Error, format_args!("{error} while sending response to client"));
    BodyError::Filter
}

impl HeldBytes {
    /// Whether this is a buffer of the pool.
    fn is_buf(&self) -> bool {
        matches!(self, HeldBytes::Buf(_) | HeldBytes::Source(Source::Buf(_)))
    }

    fn bytes(&self) -> &[u8] {
        match self {
            HeldBytes::Source(source) => source.bytes(),
            HeldBytes::Buf(buf) => buf,
        }
    }
}

impl Deref for Owner<'_> {
    type Target = Request;

    fn deref(&self) -> &Request {
        match self {
            Owner::Client(request) => request,
            Owner::Subrequest(request) => request,
        }
    }
}

impl DerefMut for Owner<'_> {
    fn deref_mut(&mut self) -> &mut Request {
        match self {
            Owner::Client(request) => request,
            Owner::Subrequest(request) => request,
        }
    }
}
