//! Predicts whether a cheap first attempt is worth its system call.

use std::sync::atomic::{AtomicU8, Ordering};

/// Predicts whether a cheap attempt succeeds, from its last results. An attempt that keeps failing is skipped for a
/// while. All threads share the predictor; it writes no memory while the results do not change.
#[derive(Debug)]
pub struct TryPredictor(AtomicU8);

/// Confidence below which no attempt is made.
const CONFIDENT: u8 = 64;

impl Default for TryPredictor {
    fn default() -> TryPredictor {
        TryPredictor::new()
    }
}

impl TryPredictor {
    /// Returns a predictor without results, which predicts success.
    pub const fn new() -> TryPredictor {
        TryPredictor(AtomicU8::new(CONFIDENT))
    }

    /// Whether to make the attempt. Each call that returns `false` raises the confidence; if all attempts fail, about
    /// one in thirteen is made.
    pub fn should_try(&self) -> bool {
        let confidence = self.0.load(Ordering::Relaxed);
        if confidence < CONFIDENT {
            self.0.store(confidence + 4, Ordering::Relaxed);
        }
        confidence >= CONFIDENT
    }

    /// Whether the last attempts succeeded.
    pub fn is_confident(&self) -> bool {
        self.0.load(Ordering::Relaxed) >= CONFIDENT
    }

    /// Records the result of an attempt.
    pub fn note(&self, success: bool) {
        let before = self.0.load(Ordering::Relaxed);
        let after = if success { before.saturating_add(16) } else { before / 4 };
        if after != before {
            self.0.store(after, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_try_is_rarely_repeated_until_it_succeeds() {
        let predictor = TryPredictor::new();
        assert!(predictor.should_try());
        predictor.note(false);
        let tried = (0..130).filter(|_| {
            let tries = predictor.should_try();
            if tries {
                predictor.note(false);
            }
            tries
        });
        assert!((8..=12).contains(&tried.count()));
        (0..8).for_each(|_| predictor.note(true));
        assert!(predictor.is_confident() && (0..100).all(|_| predictor.should_try()));
    }
}
