//! Wakes the manager from any thread: [`Bell`].

use std::future::poll_fn;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

/// Rung by anybody, heard by one.
#[derive(Debug, Default)]
pub(crate) struct Bell(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    rung: bool,
    listener: Option<Waker>,
}

impl Bell {
    /// Rings: who listens goes on, or does not wait next time.
    pub(crate) fn ring(&self) {
        let mut state = self.state();
        state.rung = true;
        let listener = state.listener.take();
        drop(state);
        if let Some(listener) = listener {
            listener.wake();
        }
    }

    /// Waits until it has been rung since the last time.
    pub(crate) async fn rung(&self) {
        poll_fn(|context| {
            let mut state = self.state();
            if std::mem::take(&mut state.rung) {
                return Poll::Ready(());
            }
            state.listener = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
