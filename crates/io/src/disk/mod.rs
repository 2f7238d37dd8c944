//! Disk backends: small siblings that carry out operations on files and paths.

pub mod threads;
