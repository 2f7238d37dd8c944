//! What a caching proxy keeps: which objects, where, and for how long they are worth their place.
//!
//! [`index`] knows what is on the disk, [`memory`] holds what is hot, [`purge`] knows what must not be used any more.
//! They are data structures without I/O, shared by all threads of a process.

#![forbid(unsafe_code)]

mod fifo;
pub mod index;
pub mod memory;
pub mod purge;
