//! Disk backends: small siblings that carry out operations on files and paths.

pub(crate) mod job;
pub(crate) mod libaio;
pub(crate) mod sync;
pub mod threads;
