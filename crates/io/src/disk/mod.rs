//! Disk backends: small siblings that carry out operations on files and paths. [`job`] is one operation for a
//! thread that may block; [`folder`] and [`owner`] are those of them that take more than one call.

mod folder;
pub(crate) mod job;
pub(crate) mod libaio;
mod owner;
pub(crate) mod sync;
pub mod threads;
