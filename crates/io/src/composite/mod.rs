//! Combines a network backend and the disk backends into one engine.
//!
//! [`build`] creates it on the thread that will use it. Each operation is passed to the network backend or, by its
//! [`crate::DiskVia`], to a disk backend. All backends can be used at the same time, and all end the same wait.
//! [`backends`] has the backends and their shared state. This file implements the [`Engine`] contract, and leaks
//! operations that cannot be ended.

mod backends;
mod error;

use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::buf::Pool;
use crate::doorbell::Doorbell;
use crate::engine::{Caps, Counters, Drained, Engine, EngineConfig, Note, Wait, Wake, Waker};
use crate::fault::FaultEngine;
use crate::op::{Completion, Op, OpId};
use backends::Backends;
pub use error::BuildError;

/// Time limit for the drain of an engine that is dropped without one.
const DROP_DRAIN: Duration = Duration::from_secs(1);

/// Creates an engine for the calling thread.
///
/// # Errors
/// When a backend that the settings require is not available, with the likely cause and the remedy.
pub fn build(config: EngineConfig) -> Result<Box<dyn Engine>, BuildError> {
    let faults = config.faults.clone();
    let engine: Box<dyn Engine> = Box::new(Composite::new(config)?);
    match faults {
        Some(plan) => Ok(Box::new(FaultEngine::new(engine, &plan))),
        None => Ok(engine),
    }
}

/// One thread's engine.
struct Composite {
    caps: Caps,
    pool: Pool,
    doorbell: Arc<Doorbell>,
    /// `None` after the backends had to be leaked.
    backends: Option<Backends>,
    /// The counters at the time of the leak.
    last: Counters,
}

impl Composite {
    fn new(config: EngineConfig) -> Result<Composite, BuildError> {
        let pool = Pool::new(config.pool_bytes_max);
        let doorbell = Arc::new(Doorbell::new().map_err(BuildError::Doorbell)?);
        let backends = Backends::new(config, &pool, &doorbell)?;
        let caps = backends.caps();
        Ok(Composite { caps, pool, doorbell, backends: Some(backends), last: Counters::default() })
    }
}

impl Engine for Composite {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn pool(&self) -> &Pool {
        &self.pool
    }

    fn submit(&mut self, op: Op) -> Result<OpId, Op> {
        match &mut self.backends {
            Some(backends) => backends.submit(op),
            None => Err(op),
        }
    }

    fn cancel(&mut self, id: OpId) {
        if let Some(backends) = &mut self.backends {
            backends.cancel(id);
        }
    }

    fn abandon(&mut self, id: OpId) {
        if let Some(backends) = &mut self.backends {
            backends.abandon(id);
        }
    }

    fn turn(&mut self, wait: Wait, batch: &mut Vec<Completion>) -> Result<(), Errno> {
        match &mut self.backends {
            Some(backends) => backends.turn(wait, batch),
            // No operation can complete any more, so a wait would never end.
            None => Err(Errno::CANCELED),
        }
    }

    fn waker(&self) -> Waker {
        Waker::new(Arc::clone(&self.doorbell) as Arc<dyn Wake>)
    }

    fn drain(&mut self, deadline: Instant) -> Drained {
        let Some(backends) = &mut self.backends else { return Drained::Clean };
        let left = backends.drain(deadline);
        if left == 0 {
            return Drained::Clean;
        }
        self.last = backends.counters();
        // The kernel or a pool thread may still write to memory of the table. The pool memory of a leaked buffer stays
        // mapped, because the buffer keeps its pool alive.
        std::mem::forget(self.backends.take());
        Drained::Leaked(left)
    }

    fn counters(&self) -> Counters {
        self.backends.as_ref().map_or(self.last, Backends::counters)
    }

    fn trim(&mut self) -> usize {
        self.backends.as_mut().map_or(0, Backends::trim)
    }

    fn take_note(&mut self) -> Option<Note> {
        self.backends.as_mut()?.take_note()
    }
}

impl Drop for Composite {
    fn drop(&mut self) {
        if self.backends.as_ref().is_some_and(|backends| backends.live() > 0) {
            self.drain(Instant::now() + DROP_DRAIN);
        }
    }
}
