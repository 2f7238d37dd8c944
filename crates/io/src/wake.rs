//! How another thread ends the wait of an engine.

use std::sync::Arc;

/// Ends the wait of an engine from another thread. Cheap to clone.
#[derive(Clone)]
pub struct Waker(Arc<dyn Wake>);

/// The target of a [`Waker`].
pub trait Wake: Send + Sync {
    /// Makes the current or the next wait end at once; whether the engine was waiting. Data that the caller wrote
    /// before the call is visible to the engine's thread when the wait has ended.
    fn wake(&self) -> bool;
}

impl Waker {
    /// A waker over `wake`.
    pub fn new(wake: Arc<dyn Wake>) -> Waker {
        Waker(wake)
    }

    /// Makes the current or the next wait of the engine end at once; see [`Wake::wake`].
    pub fn wake(&self) -> bool {
        self.0.wake()
    }
}
