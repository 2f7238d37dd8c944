//! Disk backends, which carry out operations on files and paths. [`job`] carries out an operation on a thread that may
//! block; [`directory`], [`owner`], [`put`] and [`walk`] contain operations that need several system calls.

mod directory;
pub(crate) mod job;
pub(crate) mod libaio;
mod owner;
mod put;
pub mod threads;
mod walk;
