//! The filter stage that compresses a body. It limits the time of each call.
//!
//! ```text
//!   slice ---> state ---> out          the slice bounds the work of a call
//!   bytes ---> state of another thread ---> out          for work that no slice bounds
//!   bytes ---> stored ---> out          without compression, if the thread's memory for encoders is in use
//! ```
//!
//! An encoder is created when the first bytes arrive and its client accepts bytes, and it is given back at the end of the
//! body. While it waits for its client or its source, another body may need its memory ([`transfer::coding::budget`]).

use std::pin::pin;
use std::rc::Rc;
use std::time::{Duration, Instant};

use site::extensions::Extensions;
use telemetry::tally::EncoderLimit;
use transfer::coding::budget::{Recalled, Share};
use transfer::coding::pool::Pool;
use transfer::coding::stored::Stored;
use transfer::coding::{AnyEncoder, CodingError, Settings};

/// Compresses the body of one response.
pub struct Encoder {
    settings: Settings,
    /// Length of the body in bytes, if known.
    size: Option<u64>,
    /// Whether another thread does the work.
    offloads: bool,
    /// AnyEncoder of an earlier body, whose memory is reused.
    reused: Option<AnyEncoder>,
    /// The state of the encoder: created with the first bytes, absent while another thread uses it.
    state: Option<AnyEncoder>,
    /// The encoder's part of the thread's memory for encoders.
    share: Option<Share>,
    /// The body, or its rest, without compression.
    stored: Option<Stored>,
    /// The effect of the limit for encoders.
    limit: Option<EncoderLimit>,
    /// An error while the encoder was given back.
    failed: Option<CodingError>,
    /// Maximum number of bytes per call. It shrinks if calls take too long, for very repetitive bytes or on a slow
    /// machine.
    slice: usize,
    /// Duration of the calls since other tasks ran.
    run: Duration,
    /// Bytes that are queued: for the other thread, or until the length of a short body is known.
    waiting: Vec<u8>,
    /// Whether bytes were consumed since the last flush.
    is_dirty: bool,
    /// Number of bytes consumed and produced.
    consumed: u64,
    produced: u64,
    /// The pool that gets the encoder's memory at its end.
    pool: Rc<Pool>,
}

/// Time after which other tasks run. A call that took longer halves the slice.
const RUN_MAX: Duration = Duration::from_micros(500);
/// Duration of a call below which the slice grows again.
const CALL_MIN: Duration = Duration::from_micros(100);
/// The smallest slice: below it the calls themselves would dominate.
const SLICE_MIN: usize = 1 << 10;

/// Minimum number of bytes for the other thread, because the handover and return take some tens of microseconds.
const BATCH_MIN: usize = 64 << 10;

/// The sizes of a body before and after compression, stored with the request for variables.
struct Ratio {
    coding: &'static str,
    consumed: u64,
    produced: u64,
}

/// Maximum length of a body of unknown length that is received completely before its encoder is created: an encoder for a
/// short body needs less memory.
const SHORT_MAX: usize = 16 << 10;

impl Encoder {
    /// Creates an encoder for a body of this length, if known.
    pub fn new(settings: Settings, pool: Rc<Pool>, size: Option<u64>) -> Encoder {
        Encoder {
            offloads: false,
            reused: None,
            size,
            state: None,
            share: None,
            stored: None,
            limit: None,
            failed: None,
            slice: settings.slice_max(),
            settings,
            run: Duration::ZERO,
            waiting: Vec::new(),
            is_dirty: false,
            consumed: 0,
            produced: 0,
            pool,
        }
    }

    /// Whether memory was assigned to the body, or it is sent without compression.
    pub fn has_started(&self) -> bool {
        self.share.is_some() || self.stored.is_some()
    }

    /// Whether the body is so short that its encoder is given back in the same call, or this is possible after `more` bytes.
    pub fn is_short(&self, more: usize) -> bool {
        self.size.unwrap_or((self.waiting.len() + more) as u64) <= SHORT_MAX as u64
    }

    /// Waits for the memory of the encoder; if there is none in time, the body is not compressed.
    async fn start(&mut self) {
        if self.has_started() {
            return;
        }
        match self.pool.budget.admit(self.settings.memory_estimate(self.size)).await {
            Some(share) => {
                self.share = Some(share);
                self.reused = self.pool.take(&self.settings);
                self.offloads = self.settings.is_long_work(self.size)
                    || (self.reused.is_none() && self.settings.is_slow_to_start());
            }
            None => {
                self.stored = Some(Stored::new(&self.settings));
                self.limit = Some(EncoderLimit::Refused);
            }
        }
    }

    /// Returns the effect of the limit for encoders on this body.
    pub fn limit(&self) -> Option<EncoderLimit> {
        self.limit
    }

    /// Consumes bytes of the body and appends the output.
    pub async fn push(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<(), CodingError> {
        self.consumed += input.len() as u64;
        self.is_dirty = true;
        if self.size.is_none() && !self.has_started() {
            if self.is_short(input.len()) {
                self.waiting.extend_from_slice(input);
                return Ok(());
            }
            self.push_waiting(out).await?;
        }
        self.push_now(input, out).await
    }

    /// Starts the encoder with the bytes that were queued before its start.
    async fn push_waiting(&mut self, out: &mut Vec<u8>) -> Result<(), CodingError> {
        if self.has_started() || self.waiting.is_empty() {
            return Ok(());
        }
        let waiting = std::mem::take(&mut self.waiting);
        self.push_now(&waiting, out).await
    }

    async fn push_now(&mut self, mut input: &[u8], out: &mut Vec<u8>) -> Result<(), CodingError> {
        self.start().await;
        let start = out.len();
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        if let Some(stored) = &mut self.stored {
            stored.push(input, out);
        } else if self.offloads {
            self.waiting.extend_from_slice(input);
            if self.waiting.len() >= BATCH_MIN {
                self.encode_offloaded(out, |_, _| Ok(())).await?;
            }
        } else {
            while !input.is_empty() {
                let (slice, rest) = input.split_at(self.slice.min(input.len()));
                input = rest;
                self.encode_inline(slice.len(), |state| state.push(slice, out)).await?;
            }
        }
        self.produced += (out.len() - start) as u64;
        Ok(())
    }

    /// Flushes: appends output for all bytes consumed so far, because the body pauses. Each flush costs a few bytes.
    pub async fn flush(&mut self, out: &mut Vec<u8>) -> Result<(), CodingError> {
        if !std::mem::take(&mut self.is_dirty) {
            return Ok(());
        }
        self.push_waiting(out).await?;
        let start = out.len();
        match (&self.stored, self.offloads) {
            (Some(_), _) => {}
            (None, true) => self.encode_offloaded(out, AnyEncoder::flush).await?,
            (None, false) => self.encode_inline(0, |state| state.flush(out)).await?,
        }
        self.produced += (out.len() - start) as u64;
        Ok(())
    }

    /// Ends the body: appends the final output, and stores the sizes for the variables.
    pub async fn finish(
        &mut self,
        extensions: &mut Extensions,
        out: &mut Vec<u8>,
    ) -> Result<(), CodingError> {
        if !self.has_started() {
            // The complete body is known.
            self.size = Some(self.consumed);
            self.push_waiting(out).await?;
            self.start().await;
        }
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        let start = out.len();
        if let Some(stored) = &mut self.stored {
            stored.finish(out);
        } else if self.offloads {
            self.encode_offloaded(out, AnyEncoder::finish).await?;
        } else {
            self.encode_inline(0, |state| state.finish(out)).await?;
        }
        self.produced += (out.len() - start) as u64;
        let (consumed, produced) = (self.consumed, self.produced);
        extensions.insert(Ratio { coding: self.settings.name(), consumed, produced });
        Ok(())
    }

    /// Waits for a future: for the client, or for the source of the body. If another body needs the encoder's memory
    /// meanwhile, the encoder is given back, with its last output in `out`.
    pub async fn during<F: Future>(&mut self, wait: F, out: &mut Vec<u8>) -> F::Output {
        let mut wait = pin!(wait);
        if let Some(share) = &self.share {
            match share.during(wait.as_mut()).await {
                Ok(output) => return output,
                Err(Recalled) => self.give_back(out).await,
            }
        }
        wait.await
    }

    /// Gives the encoder back; the rest of the body is sent without compression.
    async fn give_back(&mut self, out: &mut Vec<u8>) {
        self.limit = Some(EncoderLimit::Recalled);
        self.failed = self.flush(out).await.err();
        if let Some(mut state) = self.state.take() {
            self.stored = Some(state.continue_stored());
            self.pool.put(self.settings.clone(), state);
        } else if self.failed.is_none() {
            // Nothing was encoded yet.
            self.stored = Some(Stored::new(&self.settings));
        }
        self.share = None;
    }

    /// Works on this thread, and lets other tasks run if it took long.
    async fn encode_inline(
        &mut self,
        len: usize,
        work: impl FnOnce(&mut AnyEncoder) -> Result<(), CodingError>,
    ) -> Result<(), CodingError> {
        let began = Instant::now();
        let mut state = match self.state.take() {
            Some(state) => state,
            None => AnyEncoder::begin(self.reused.take(), &self.settings, self.size)?,
        };
        let done = work(&mut state);
        self.retain(state);
        let took = began.elapsed();
        if took > RUN_MAX {
            self.slice = (len.max(SLICE_MIN * 2) / 2).min(self.slice);
        } else if took < CALL_MIN {
            self.slice = (self.slice * 2).min(self.settings.slice_max());
        }
        self.run += took;
        if self.run > RUN_MAX {
            self.run = Duration::ZERO;
            rt::yield_now().await;
        }
        done
    }

    /// Compresses the queued bytes and does further work on another thread, which owns the state during that time.
    async fn encode_offloaded(
        &mut self,
        out: &mut Vec<u8>,
        work: impl FnOnce(&mut AnyEncoder, &mut Vec<u8>) -> Result<(), CodingError> + Send + 'static,
    ) -> Result<(), CodingError> {
        let (begun, reused) = (self.state.take(), self.reused.take());
        let (settings, size, input) = (self.settings.clone(), self.size, std::mem::take(&mut self.waiting));
        let output = rt::offload(move || {
            // At high levels a new state has megabytes of memory to clear, so it is also created on the other thread.
            let mut state = match begun {
                Some(state) => state,
                None => AnyEncoder::begin(reused, &settings, size)?,
            };
            let mut bytes = Vec::new();
            state.push(&input, &mut bytes)?;
            work(&mut state, &mut bytes)?;
            Ok((state, bytes, input))
        });
        let lost = || Err(CodingError::Panicked);
        let (state, bytes, input) = output.await.unwrap_or_else(lost)?;
        self.retain(state);
        self.waiting = input;
        self.waiting.clear();
        out.extend_from_slice(&bytes);
        Ok(())
    }
}

impl Encoder {
    /// Stores the state until the next call.
    fn retain(&mut self, state: AnyEncoder) {
        if let Some(share) = &self.share {
            share.resize(state.memory() as u64);
        }
        self.state = Some(state);
    }
}

impl Drop for Encoder {
    /// Returns the memory to the thread's pool, also if the body was aborted.
    fn drop(&mut self) {
        if let Some(state) = self.state.take().or(self.reused.take()) {
            self.pool.put(self.settings.clone(), state);
        }
    }
}

/// Appends the compression ratio of a body that was compressed with this coding: two decimals, rounded.
pub fn ratio(extensions: &Extensions, coding: &str, out: &mut Vec<u8>) -> bool {
    let Some(hundredths) = scaled(extensions, coding, 1000).map(|thousandths| (thousandths + 5) / 10) else {
        return false;
    };
    out.extend_from_slice(format!("{}.{:02}", hundredths / 100, hundredths % 100).as_bytes());
    true
}

/// As [`ratio`], with three decimals, truncated.
pub fn ratio_in_thousandths(extensions: &Extensions, coding: &str, out: &mut Vec<u8>) -> bool {
    let Some(thousandths) = scaled(extensions, coding, 1000) else { return false };
    out.extend_from_slice(format!("{}.{:03}", thousandths / 1000, thousandths % 1000).as_bytes());
    true
}

fn scaled(extensions: &Extensions, coding: &str, scale: u64) -> Option<u64> {
    let ratio = extensions.get::<Ratio>().filter(|ratio| ratio.coding == coding)?;
    ratio.consumed.saturating_mul(scale).checked_div(ratio.produced)
}
