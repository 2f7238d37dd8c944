//! Wakes an engine's wait from another thread.

use std::sync::Arc;

/// Wakes an engine's wait from another thread. Cheap to clone.
#[derive(Clone)]
pub struct Waker(Arc<dyn Wake>);

/// The target of a [`Waker`].
pub trait Wake: Send + Sync {
    /// Makes the current or the next wait end immediately; returns whether the engine was waiting. Data that the caller
    /// wrote before the call is visible to the engine's thread after the wait.
    fn wake(&self) -> bool;
}

impl Waker {
    /// Returns a waker that calls `wake`.
    pub fn new(wake: Arc<dyn Wake>) -> Waker {
        Waker(wake)
    }

    /// Makes the current or the next wait of the engine end immediately; see [`Wake::wake`].
    pub fn wake(&self) -> bool {
        self.0.wake()
    }
}
