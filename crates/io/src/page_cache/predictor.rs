//! Whether a cheap first try is worth its call.

use std::sync::atomic::{AtomicU8, Ordering};

/// Predicts whether a cheap try succeeds, by its last results. A try that keeps failing is left out for a while. All
/// threads share the predictor; a steady state writes nothing.
#[derive(Debug)]
pub struct TryPredictor(AtomicU8);

/// Below this nothing is tried.
const CONFIDENT: u8 = 64;

impl Default for TryPredictor {
    fn default() -> TryPredictor {
        TryPredictor::new()
    }
}

impl TryPredictor {
    /// A predictor without results, which predicts success.
    pub const fn new() -> TryPredictor {
        TryPredictor(AtomicU8::new(CONFIDENT))
    }

    /// Whether to try. Each no brings the next try nearer: about one in thirteen is made.
    pub fn is_worth_trying(&self) -> bool {
        let confidence = self.0.load(Ordering::Relaxed);
        if confidence < CONFIDENT {
            self.0.store(confidence + 4, Ordering::Relaxed);
        }
        confidence >= CONFIDENT
    }

    /// Whether the last tries succeeded.
    pub fn is_confident(&self) -> bool {
        self.0.load(Ordering::Relaxed) >= CONFIDENT
    }

    /// Adds the result of a try.
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
    fn a_try_that_fails_is_seldom_repeated_until_it_succeeds() {
        let predictor = TryPredictor::new();
        assert!(predictor.is_worth_trying());
        predictor.note(false);
        let tried = (0..130).filter(|_| {
            let tries = predictor.is_worth_trying();
            if tries {
                predictor.note(false);
            }
            tries
        });
        assert!((8..=12).contains(&tried.count()));
        (0..8).for_each(|_| predictor.note(true));
        assert!(predictor.is_confident() && (0..100).all(|_| predictor.is_worth_trying()));
    }
}
