//! Passes a body through the filters of the response, level by level, then through the encoder.

mod collect;
pub mod encoder;
mod levels;
pub mod output;

pub use collect::collect;

pub use crate::body_filter::{BodyFilter, Output, SLICE_MAX};
