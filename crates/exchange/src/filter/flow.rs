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

use http::framing::{CHUNK_END, CHUNK_HEADER_LEN_MAX, LAST_CHUNK, chunk_header, push_last_chunk};
use io::op::Source;

use crate::filter::SLICE_MAX;
use crate::filter::encoder::Encoder;
use crate::filter::levels::{self, broken};
use crate::request::Request;
use telemetry::Level;
use transfer::body::{BodyError, Sink};

/// The end of the way, shared by a request and the subrequests that are put into its body.
pub struct Flow<'s, 'a> {
    sink: &'s mut Sink<'a>,
    chunked: bool,
    encoder: Option<Box<Encoder>>,
    /// Bytes that wait until there are enough for a send.
    gathered: Vec<u8>,
    /// Bytes passed.
    passed: u64,
    /// Bytes passed, and what else was done counted as bytes, since other tasks had their turn.
    run: usize,
}

/// Bytes that are sent at once, but for the last ones.
const SEND_MIN: usize = 16 << 10;

/// Sends `head` and the body of `request` through its filters.
pub async fn send(sink: &mut Sink<'_>, head: Vec<u8>, request: &mut Request) -> Result<(), BodyError> {
    let chunked = request.response.chunked;
    sink.begin(head);
    let encoder = request.response.encoder.take();
    let mut flow = Flow { sink, chunked, encoder, gathered: Vec::new(), passed: 0, run: 0 };
    match levels::pass(request, &mut flow).await {
        Ok(()) => flow.finish(request).await,
        Err(error @ BodyError::Send(_)) => Err(error),
        Err(error) => {
            // What came before is as good as it would have been without the error.
            flow.pause(request).await?;
            Err(error)
        }
    }
}

impl Flow<'_, '_> {
    /// Bytes passed so far.
    pub(super) fn passed(&self) -> u64 {
        self.passed
    }

    /// Lets other tasks go on when enough has been done.
    pub(super) async fn take_turns(&mut self, done: usize) {
        self.run += done;
        if self.run >= SLICE_MAX {
            self.run = 0;
            rt::yield_now().await;
        }
    }

    /// Takes bytes that no filter changes any more; `request` is the client's.
    pub(super) async fn write(&mut self, request: &mut Request, bytes: &[u8]) -> Result<(), BodyError> {
        for bytes in bytes.chunks(SLICE_MAX) {
            // Not before it is certain that more is at hand.
            self.flush(SEND_MIN).await?;
            match &mut self.encoder {
                // Lets other tasks have their turn by itself.
                Some(encoder) => {
                    let done = encoder.push(bytes, &mut self.gathered).await;
                    done.map_err(|error| broken(request, &error.into()))?;
                }
                None => self.gathered.extend_from_slice(bytes),
            }
            self.passed += bytes.len() as u64;
            self.take_turns(bytes.len()).await;
        }
        Ok(())
    }

    /// Sends what was gathered when it is as much as this.
    async fn flush(&mut self, least: usize) -> Result<(), BodyError> {
        if self.gathered.len() < least || self.gathered.is_empty() {
            return Ok(());
        }
        push_chunk(self.sink, std::mem::take(&mut self.gathered), self.chunked);
        Ok(self.sink.flush(true).await?)
    }

    /// Sends all that has come so far, what the encoder holds included: what follows is not at hand. `request` is the
    /// client's.
    pub(super) async fn pause(&mut self, request: &Request) -> Result<(), BodyError> {
        let flushed = match &mut self.encoder {
            Some(encoder) => encoder.flush(&mut self.gathered).await,
            None => Ok(()),
        };
        if !self.gathered.is_empty() {
            push_chunk(self.sink, std::mem::take(&mut self.gathered), self.chunked);
        }
        self.sink.pause().await?;
        flushed.map_err(|error| broken(request, &error.into()))
    }

    /// Ends the body of the request that the client asked for.
    async fn finish(mut self, request: &mut Request) -> Result<(), BodyError> {
        if let Some(encoder) = &mut self.encoder {
            let done = encoder.finish(request, &mut self.gathered).await;
            done.map_err(|error| broken(request, &error.into()))?;
        }
        let Flow { sink, chunked, .. } = self;
        if !self.gathered.is_empty() {
            push_chunk(sink, self.gathered, chunked);
        }
        // Behind those that came with the body that was passed on.
        for trailers in std::mem::take(&mut request.response.trailers) {
            trailers(request);
        }
        if chunked {
            sink.push(Source::Vec(last_chunk(request, &request.response.sent_trailers)));
        }
        Ok(sink.flush(false).await?)
    }
}

/// The last chunk with these fields, or without where one of them must not be sent.
pub fn last_chunk(request: &Request, fields: &[(Vec<u8>, Vec<u8>)]) -> Vec<u8> {
    let mut end = Vec::new();
    let fields: Vec<_> = fields.iter().map(|(name, value)| (name.as_slice(), value.as_slice())).collect();
    if push_last_chunk(&fields, &mut end).is_err() {
        request.log(Level::Error, format_args!("a trailer field has a control character"));
        end.clear();
        end.extend_from_slice(LAST_CHUNK);
    }
    end
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
