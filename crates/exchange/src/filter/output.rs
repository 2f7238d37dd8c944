//! Bodies that filters change, or whose length is unknown before their end.
//!
//! ```text
//! source --> filter --> ... --> filter --+--> encoder --> outlet
//!                                        |
//!     body of a subrequest, filtered ----+
//! ```
//!
//! The disk engine of the location reads the bytes. They pass the filters in slices and are sent through the outlet,
//! which marks the end of the body for the client.

use io::segments::Source;

use crate::filter::SLICE_MAX;
use crate::filter::encoder::Encoder;
use crate::filter::levels::{self, broken};
use crate::request::Request;
use crate::streaming;
use transfer::body::{BodyError, Outlet};

/// The end of the filter chain, shared by a request and the subrequests inserted into its body.
pub struct FilterOutput<'o> {
    outlet: &'o mut dyn Outlet,
    encoder: Option<Box<Encoder>>,
    /// Bytes gathered until they suffice for a send.
    gathered: Vec<u8>,
    /// `postpone_output`
    postponed_max: usize,
    /// Number of bytes passed.
    passed: u64,
    /// Bytes passed, and other work counted as bytes, since other tasks last ran.
    run: usize,
}

/// Minimum number of bytes per send, except for the last one.
const SEND_MIN: usize = 16 << 10;

/// Sends `head`, and the body of `request` through its filters.
pub async fn send(outlet: &mut dyn Outlet, head: Vec<u8>, request: &mut Request) -> Result<(), BodyError> {
    outlet.begin(head);
    let encoder = request.response.encoder.take();
    let postponed_max = request.scope().core.sending.postpone_output;
    let mut output = FilterOutput { outlet, encoder, gathered: Vec::new(), postponed_max, passed: 0, run: 0 };
    match levels::pass(request, &mut output).await {
        Ok(()) => output.finish(request).await,
        Err(error @ BodyError::Send(_)) => Err(error),
        Err(error) => {
            // Bytes that precede the error are valid, so they are sent.
            output.flush_all(request).await?;
            Err(error)
        }
    }
}

impl FilterOutput<'_> {
    /// Returns the number of bytes passed so far.
    pub(super) fn passed(&self) -> u64 {
        self.passed
    }

    /// Lets other tasks run after enough work.
    pub(super) async fn take_turns(&mut self, done: usize) {
        self.run += done;
        if self.run >= SLICE_MAX {
            self.run = 0;
            rt::yield_now().await;
        }
    }

    /// Writes bytes that no filter changes any more; `request` is the client's.
    pub(super) async fn write(&mut self, request: &mut Request, bytes: &[u8]) -> Result<(), BodyError> {
        for bytes in bytes.chunks(SLICE_MAX) {
            // Earlier bytes are flushed here, because now more bytes are known to follow them immediately.
            self.flush(SEND_MIN).await?;
            let starts = |encoder: &Encoder| !encoder.has_started() && !encoder.is_short(bytes.len());
            if self.encoder.as_deref().is_some_and(starts) {
                self.wait_for_receiver(request).await?;
            }
            match &mut self.encoder {
                // The encoder itself lets other tasks run.
                Some(encoder) => {
                    let done = encoder.push(bytes, &mut self.gathered).await;
                    done.map_err(|error| broken(request, &error))?;
                }
                None => self.gathered.extend_from_slice(bytes),
            }
            self.passed += bytes.len() as u64;
            self.take_turns(bytes.len()).await;
        }
        Ok(())
    }

    /// Waits until the client accepts bytes: before an encoder is created for it, and before a buffer is filled for it while
    /// buffers are scarce. A client that opens no window gets the header section only.
    pub(super) async fn wait_for_receiver(&mut self, request: &Request) -> Result<(), BodyError> {
        self.flush(SEND_MIN).await?;
        let client = request.conn.client.borrow().clone();
        if client.is_some_and(|client| client.send_space() == 0) {
            self.outlet.pause().await?;
            let space = self.outlet.wait_for_space(1);
            match &mut self.encoder {
                Some(encoder) => encoder.during(space, &mut self.gathered).await?,
                None => space.await?,
            };
        }
        Ok(())
    }

    /// Waits for the source of the body. Meanwhile the encoder may be given back.
    pub(super) async fn during<F: Future>(&mut self, wait: F) -> F::Output {
        match &mut self.encoder {
            Some(encoder) => encoder.during(wait, &mut self.gathered).await,
            None => wait.await,
        }
    }

    /// Sends the gathered bytes if they are at least `least`.
    async fn flush(&mut self, least: usize) -> Result<(), BodyError> {
        if self.gathered.len() < least || self.gathered.is_empty() {
            return Ok(());
        }
        self.outlet.push(Source::Vec(std::mem::take(&mut self.gathered)));
        let flush = self.outlet.flush(true);
        match &mut self.encoder {
            Some(encoder) => encoder.during(flush, &mut self.gathered).await?,
            None => flush.await?,
        }
        Ok(())
    }

    /// Does the same as [`FilterOutput::flush_all`] while a page waits for a subrequest, unless fewer than
    /// `postpone_output` bytes are gathered.
    pub(super) async fn pause(&mut self, request: &Request) -> Result<(), BodyError> {
        match self.gathered.len() < self.postponed_max {
            true => Ok(()),
            false => self.flush_all(request).await,
        }
    }

    /// Sends all bytes so far, including those in the encoder, because the input pauses. `request` is the client's.
    pub(super) async fn flush_all(&mut self, request: &Request) -> Result<(), BodyError> {
        let flushed = match &mut self.encoder {
            Some(encoder) => encoder.flush(&mut self.gathered).await,
            None => Ok(()),
        };
        self.push_gathered();
        let pause = self.outlet.pause();
        match &mut self.encoder {
            Some(encoder) => encoder.during(pause, &mut self.gathered).await?,
            None => pause.await?,
        }
        flushed.map_err(|error| broken(request, &error))
    }

    /// Ends the body of the client's request.
    async fn finish(mut self, request: &mut Request) -> Result<(), BodyError> {
        if let Some(encoder) = &mut self.encoder {
            let done = encoder.finish(&mut request.extensions, &mut self.gathered).await;
            done.map_err(|error| broken(request, &error))?;
            if let Some(limit) = encoder.limit() {
                request.conn.thread.tally.count_encoder_limit(limit);
            }
        }
        // Another body can use the encoder while the client receives the last bytes.
        self.encoder = None;
        self.push_gathered();
        // The modules append their trailers to those that arrived with the body.
        for trailers in std::mem::take(&mut request.response.trailers) {
            trailers(request);
        }
        Ok(self.outlet.end(streaming::trailers(request)).await?)
    }

    /// Adds the gathered bytes to the outlet's next send.
    fn push_gathered(&mut self) {
        if !self.gathered.is_empty() {
            self.outlet.push(Source::Vec(std::mem::take(&mut self.gathered)));
        }
    }
}
