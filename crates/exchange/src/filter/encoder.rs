//! The stage of a body's way that compresses it: bytes in, fewer bytes out, never for long at once.
//!
//! ```text
//!   slice ---> state ---> out          what one call does is bounded by its slice
//!   bytes ---> state of another thread ---> out          what no slice bounds
//! ```

use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::extensions::Extensions;
use transfer::coding::pool::Pool;
use transfer::coding::{CodingError, Settings, State};

/// Compresses the body of one answer.
pub struct Encoder {
    settings: Settings,
    /// Bytes of the body, if known.
    size: Option<u64>,
    /// Whether another thread does the work.
    aside: bool,
    /// The memory of an earlier body.
    kept: Option<State>,
    /// Made when the first bytes come; away while another thread works with it.
    state: Option<State>,
    /// Bytes that one call gets. It shrinks where they turn out to take too long, as very repetitive ones do, or
    /// all of them on a slow machine.
    slice: usize,
    /// Work since other tasks had their turn.
    run: Duration,
    /// Bytes that another thread is to be given.
    waiting: Vec<u8>,
    /// Whether bytes were taken since the last flush.
    is_dirty: bool,
    /// Bytes of the body that came, and that went.
    taken: u64,
    given: u64,
    /// Where its memory goes at its end.
    pool: Rc<Pool>,
}

/// Time after which other tasks run, and the limit of one call.
const RUN_MAX: Duration = Duration::from_micros(500);
/// A call that took less lets the slice grow again.
const CALL_MIN: Duration = Duration::from_micros(100);
/// The smallest slice: below it the calls themselves would dominate.
const SLICE_MIN: usize = 1 << 10;

/// Bytes that are worth the way to another thread and back, which takes some tens of microseconds.
const BATCH_MIN: usize = 64 << 10;

/// The sizes of a body, kept with the request for the variables.
struct Ratio {
    coding: &'static str,
    taken: u64,
    given: u64,
}

impl Encoder {
    /// For a body of this size, if that is known.
    pub fn new(settings: Settings, pool: Rc<Pool>, size: Option<u64>) -> Encoder {
        let kept = pool.take(&settings);
        let aside = settings.is_long_work(size) || (kept.is_none() && settings.is_slow_to_start());
        Encoder {
            aside,
            kept,
            size,
            state: None,
            slice: settings.slice_max(),
            settings,
            run: Duration::ZERO,
            waiting: Vec::new(),
            is_dirty: false,
            taken: 0,
            given: 0,
            pool,
        }
    }

    /// Takes bytes of the body and appends the output.
    pub async fn push(&mut self, mut input: &[u8], out: &mut Vec<u8>) -> Result<(), CodingError> {
        let start = out.len();
        self.taken += input.len() as u64;
        self.is_dirty = true;
        if self.aside {
            self.waiting.extend_from_slice(input);
            if self.waiting.len() >= BATCH_MIN {
                self.elsewhere(out, |_, _| Ok(())).await?;
            }
        } else {
            while !input.is_empty() {
                let (slice, rest) = input.split_at(self.slice.min(input.len()));
                input = rest;
                self.here(slice.len(), |state| state.push(slice, out)).await?;
            }
        }
        self.given += (out.len() - start) as u64;
        Ok(())
    }

    /// The body pauses: appends all that was taken, up to where a decoder can read it. It costs a few bytes each time.
    pub async fn flush(&mut self, out: &mut Vec<u8>) -> Result<(), CodingError> {
        if !std::mem::take(&mut self.is_dirty) {
            return Ok(());
        }
        let start = out.len();
        if self.aside {
            self.elsewhere(out, State::flush).await?;
        } else {
            self.here(0, |state| state.flush(out)).await?;
        }
        self.given += (out.len() - start) as u64;
        Ok(())
    }

    /// The body is over: appends the end, and keeps the numbers for the variables.
    pub async fn finish(
        &mut self,
        extensions: &mut Extensions,
        out: &mut Vec<u8>,
    ) -> Result<(), CodingError> {
        let start = out.len();
        if self.aside {
            self.elsewhere(out, State::finish).await?;
        } else {
            self.here(0, |state| state.finish(out)).await?;
        }
        self.given += (out.len() - start) as u64;
        let (taken, given) = (self.taken, self.given);
        extensions.insert(Ratio { coding: self.settings.name(), taken, given });
        Ok(())
    }

    /// Works on this thread, and lets others have their turn when it was long.
    async fn here(
        &mut self,
        len: usize,
        work: impl FnOnce(&mut State) -> Result<(), CodingError>,
    ) -> Result<(), CodingError> {
        let began = Instant::now();
        let mut state = match self.state.take() {
            Some(state) => state,
            None => State::begin(self.kept.take(), &self.settings, self.size)?,
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

    /// Compresses the queued bytes and does further work on another thread, which has the state meanwhile.
    async fn elsewhere(
        &mut self,
        out: &mut Vec<u8>,
        work: impl FnOnce(&mut State, &mut Vec<u8>) -> Result<(), CodingError> + Send + 'static,
    ) -> Result<(), CodingError> {
        let (begun, kept) = (self.state.take(), self.kept.take());
        let (settings, size, input) = (self.settings.clone(), self.size, std::mem::take(&mut self.waiting));
        let answer = rt::offload(move || {
            // New tables of high levels are megabytes that have to be cleared: they are made there as well.
            let mut state = match begun {
                Some(state) => state,
                None => State::begin(kept, &settings, size)?,
            };
            let mut bytes = Vec::new();
            state.push(&input, &mut bytes)?;
            work(&mut state, &mut bytes)?;
            Ok((state, bytes, input))
        });
        let lost = || Err(CodingError("the encoder panicked".into()));
        let (state, bytes, input) = answer.await.unwrap_or_else(lost)?;
        self.state = Some(state);
        self.waiting = input;
        self.waiting.clear();
        out.extend_from_slice(&bytes);
        Ok(())
    }
}

impl Drop for Encoder {
    /// The memory stays with the thread, also of a body that was given up.
    fn drop(&mut self) {
        if let Some(state) = self.state.take().or(self.kept.take()) {
            self.pool.put(self.settings.clone(), state);
        }
    }
}

/// Appends how many times smaller a body became, if it was compressed with this coding: two
/// digits behind the point, rounded.
pub fn ratio(extensions: &Extensions, coding: &str, out: &mut Vec<u8>) -> bool {
    let Some(hundredths) = scaled(extensions, coding, 1000).map(|thousandths| (thousandths + 5) / 10) else {
        return false;
    };
    out.extend_from_slice(format!("{}.{:02}", hundredths / 100, hundredths % 100).as_bytes());
    true
}

/// As [`ratio`], with three digits that are cut off.
pub fn ratio_in_thousandths(extensions: &Extensions, coding: &str, out: &mut Vec<u8>) -> bool {
    let Some(thousandths) = scaled(extensions, coding, 1000) else { return false };
    out.extend_from_slice(format!("{}.{:03}", thousandths / 1000, thousandths % 1000).as_bytes());
    true
}

fn scaled(extensions: &Extensions, coding: &str, scale: u64) -> Option<u64> {
    let ratio = extensions.get::<Ratio>().filter(|ratio| ratio.coding == coding)?;
    ratio.taken.saturating_mul(scale).checked_div(ratio.given)
}
