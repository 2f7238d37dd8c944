//! The cache store: stores upstream responses on disk and in memory.
//!
//! A [`Store`] is shared by the threads of a process. [`Store::find`] returns a [`Hit`]. [`Store::begin`] returns a [`Fill`],
//! which becomes an entry at its commit. [`Store::extend`] adds parts to an entry, [`Store::refresh`] gives it a new header
//! section. The caller decides whether a response may be stored or used: this crate has no rules of HTTP or of freshness. It
//! parses a stored header section once for all hits from memory, and does not interpret the fields. All disk work goes through
//! the engine of the calling thread; no call blocks it.
//!
//! Bytes on disk are used only if their checksums are correct: an entry that is torn, truncated, zeroed or written by other
//! software is a miss.
//!
//! Crates of the workspace that it may use: `io`, `rt`, `http`.
//!
//! Each module imports only modules of the rows below it.
//!
//! | module | content |
//! |---|---|
//! | [`store`] | `Store`: the public calls |
//! | [`manager`] | background work: `load`, `sizes`, `snapshot` (at a start and a stop), `purger`, `scrub`, evictions in advance, removal of inactive entries; `pace` limits its rate |
//! | `fuzzing` | decoders of entry headers and of the purge log, for the targets in fuzz/ |
//! | [`fill`] | new entries: `gather` (pieces to chunks), `chunk_writer` (with the reader of a fill), `start` (the input of a fill, and the bytes before the body), `publish` (renames a complete file), `refresh` (a new header section), `backlog` (fills that wait for the disk), `order` (the newest response for a key) |
//! | [`lookup`] | hits: `mod` (the steps and the checks), `file` (plans, opens, reads) with `open_files`, and `reader` for large bodies |
//! | [`entries`] | the entries of a cache and their removal: `removal`, `eviction` (space for new entries), `chunks` (the chunks that are stored and verified) |
//! | [`purge`] | purges: the set, its `log`, and `retention` (which purges may be dropped from the log) |
//! | [`disk`] | `directory` (the only access to the disk, which a simulated disk can replace), `staging` (files that are not yet entries), `health`, `key_locks`, `finishing` (changes that complete even if their caller is dropped), `wakeup` (of the manager) |
//! | [`stats`] | statistics |
//! | [`error`] | errors |
//! | [`config`] | settings |
//! | [`note`] | messages for the operator |
//! | [`format`] | the format of a file, described in docs/cache-format.md |
//! | [`index`] | objects and their order: `s3fifo`; the `memory` tier; `space` on the disk (`max_size`, `min_free`) |
//! | [`key`], [`meta`] | keys of entries; metadata of a stored response |
//! | [`bits`], [`mutex`] | sets of bits; locking of mutexes |

#![forbid(unsafe_code)]

mod bits;
mod config;
mod disk;
mod entries;
mod error;
mod fill;
mod format;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
pub mod index;
mod key;
mod lookup;
mod manager;
mod meta;
mod mutex;
mod note;
pub mod purge;
mod stats;
mod store;

pub use config::{Access, Config, Notify, Pace, VERIFY};
pub use error::{FillError, OpenError, Refused, StoreError};
pub use fill::Fill;
pub use fill::chunk_writer::FillReader;
pub use fill::order::Ticket;
pub use fill::start::New;
pub use format::{CHUNK_BYTES, Damage, LENGTH_MAX};
pub use key::{HEX_LEN, Key, KeyHash, KeyHasher, KeyMap, Levels};
pub use lookup::file::FULL_READ_BYTES_MAX;
pub use lookup::reader::{Piece, Reader};
pub use lookup::{Body, Hit, Located, Selector};
pub use meta::{HEAD_BYTES_MAX, Meta, TAGS_BYTES_MAX, TEXT_BYTES_MAX};
pub use note::Note;
pub use purge::retention::PendingRequest;
pub use purge::{PurgeEffect, Scope};
pub use stats::Stats;
pub use store::Store;
