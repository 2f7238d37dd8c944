//! Combines a network backend and the disk backends into one engine.
//!
//! [`build`] creates it on the thread that will use it. Each operation is passed to the network backend or, by its
//! [`crate::DiskVia`], to a disk backend. All backends can be used at the same time, and all end the same wait.
//! [`backends`] is this engine.

mod backends;
mod error;

use crate::engine::{Engine, EngineConfig};
use crate::fault::FaultEngine;
use backends::Backends;
pub use error::BuildError;

/// Creates an engine for the calling thread.
///
/// # Errors
/// When a backend that the settings require is not available, with the likely cause and the remedy.
pub fn build(config: EngineConfig) -> Result<Box<dyn Engine>, BuildError> {
    let faults = config.faults.clone();
    let engine: Box<dyn Engine> = Box::new(Backends::new(config)?);
    match faults {
        Some(plan) => Ok(Box::new(FaultEngine::new(engine, &plan))),
        None => Ok(engine),
    }
}
