//! The cache store: what was fetched from upstreams, kept on disk and in memory.
//!
//! A [`Store`] is shared by the threads of a process. [`Store::find`] answers a [`Hit`], [`Store::begin`] a [`Fill`]
//! that becomes an entry at its commit, [`Store::extend`] adds parts to one, [`Store::refresh`] gives it a new head.
//! Whether a response may be stored or used is the caller's: here are no HTTP and no freshness. All disk
//! work goes through the engine of the calling thread; no call blocks it.
//!
//! [`index`] knows what is on the disk, [`memory`] holds what is hot, [`purge`] knows what must not be used any more:
//! data structures without I/O.
//!
//! What is on disk is trusted only as far as its checksums reach: an entry that is torn, cut off, full of zeroes or
//! somebody else's is a miss. The format is drawn in `format`.

#![forbid(unsafe_code)]

mod backlog;
mod bell;
mod change;
mod chunks;
mod config;
mod crc32c;
mod elsewhere;
mod error;
mod fifo;
mod fill;
mod find;
mod format;
mod found;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod health;
mod held;
mod hit;
pub mod index;
mod key;
mod leases;
mod load;
mod measure;
pub mod memory;
mod meta;
mod note;
mod opening;
mod order;
mod place;
pub mod purge;
mod purging;
mod reading;
mod remove;
mod run;
mod scrub;
mod settling;
mod snapshot;
mod space;
mod stats;
mod store;
mod writing;

pub use config::{Access, Config, EngineKind, Notify, Pace, VERIFY};
pub use error::{FillError, OpenError, Refused, StoreError};
pub use fill::{Fill, FillReader};
pub use format::{CHUNK_BYTES, Damage};
pub use hit::{Body, Hit, Located};
pub use key::{HEX_LEN, Key, KeyHash, KeyHasher, KeyMap, Levels};
pub use meta::{HEAD_BYTES_MAX, Meta, New, TAGS_BYTES_MAX, TEXT_BYTES_MAX};
pub use note::Note;
pub use opening::WHOLE_BYTES_MAX;
pub use order::Ticket;
pub use purge::{Fate, Scope};
pub use reading::{Piece, Reader};
pub use settling::Asked;
pub use stats::Stats;
pub use store::{Selector, Store};
