//! The filter stage that compresses a body. It limits the time of each call.
//!
//! ```text
//!   slice ---> state ---> out          the slice bounds the work of a call
//!   bytes ---> state of another thread ---> out          for work that no slice bounds
//! ```

use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::extensions::Extensions;
use transfer::coding::pool::Pool;
use transfer::coding::{CodingError, Settings, State};

/// Compresses the body of one response.
pub struct Encoder {
    settings: Settings,
    /// Length of the body in bytes, if known.
    size: Option<u64>,
    /// Whether another thread does the work.
    offloads: bool,
    /// State of an earlier body, whose memory is reused.
    reused: Option<State>,
    /// The state of the encoder: created with the first bytes, absent while another thread uses it.
    state: Option<State>,
    /// Maximum number of bytes per call. It shrinks if calls take too long, for very repetitive bytes or on a slow
    /// machine.
    slice: usize,
    /// Duration of the calls since other tasks ran.
    run: Duration,
    /// Bytes that are queued for the other thread.
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

impl Encoder {
    /// Creates an encoder for a body of this length, if known.
    pub fn new(settings: Settings, pool: Rc<Pool>, size: Option<u64>) -> Encoder {
        let reused = pool.take(&settings);
        let offloads = settings.is_long_work(size) || (reused.is_none() && settings.is_slow_to_start());
        Encoder {
            offloads,
            reused,
            size,
            state: None,
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

    /// Consumes bytes of the body and appends the output.
    pub async fn push(&mut self, mut input: &[u8], out: &mut Vec<u8>) -> Result<(), CodingError> {
        let start = out.len();
        self.consumed += input.len() as u64;
        self.is_dirty = true;
        if self.offloads {
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
        let start = out.len();
        if self.offloads {
            self.encode_offloaded(out, State::flush).await?;
        } else {
            self.encode_inline(0, |state| state.flush(out)).await?;
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
        let start = out.len();
        if self.offloads {
            self.encode_offloaded(out, State::finish).await?;
        } else {
            self.encode_inline(0, |state| state.finish(out)).await?;
        }
        self.produced += (out.len() - start) as u64;
        let (consumed, produced) = (self.consumed, self.produced);
        extensions.insert(Ratio { coding: self.settings.name(), consumed, produced });
        Ok(())
    }

    /// Works on this thread, and lets other tasks run if it took long.
    async fn encode_inline(
        &mut self,
        len: usize,
        work: impl FnOnce(&mut State) -> Result<(), CodingError>,
    ) -> Result<(), CodingError> {
        let began = Instant::now();
        let mut state = match self.state.take() {
            Some(state) => state,
            None => State::begin(self.reused.take(), &self.settings, self.size)?,
        };
        let done = work(&mut state);
        self.state = Some(state);
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
        work: impl FnOnce(&mut State, &mut Vec<u8>) -> Result<(), CodingError> + Send + 'static,
    ) -> Result<(), CodingError> {
        let (begun, reused) = (self.state.take(), self.reused.take());
        let (settings, size, input) = (self.settings.clone(), self.size, std::mem::take(&mut self.waiting));
        let output = rt::offload(move || {
            // At high levels a new state has megabytes of memory to clear, so it is also created on the other thread.
            let mut state = match begun {
                Some(state) => state,
                None => State::begin(reused, &settings, size)?,
            };
            let mut bytes = Vec::new();
            state.push(&input, &mut bytes)?;
            work(&mut state, &mut bytes)?;
            Ok((state, bytes, input))
        });
        let lost = || Err(CodingError("the encoder panicked".into()));
        let (state, bytes, input) = output.await.unwrap_or_else(lost)?;
        self.state = Some(state);
        self.waiting = input;
        self.waiting.clear();
        out.extend_from_slice(&bytes);
        Ok(())
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
