//! The cache store: stores upstream responses on disk and in memory.
//!
//! A [`Store`] is shared by the threads of a process. [`Store::find`] returns a [`Hit`]. [`Store::begin`] returns a
//! [`Fill`], which becomes an entry at its commit. [`Store::extend`] adds parts to an entry, [`Store::refresh`] gives
//! it a new header section. The caller decides whether a response may be stored or used: this crate contains no HTTP
//! and no freshness rules. All disk work goes through the engine of the calling thread; no call blocks it.
//!
//! The modules, each of which depends only on those after it: `store` (the interface), `manager` (background work),
//! `fill` (new entries), `lookup` (hits), `entries` (the entries and their removal), [`purge`], [`index`] (with the
//! memory tier and the disk space), `disk` (the directory), `format` (bytes of a file).
//!
//! Bytes on disk are used only if their checksums are correct: an entry that is torn, truncated, zeroed or written by
//! other software is a miss. The module `format` describes the format.

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
pub use purge::settling::PendingRequest;
pub use purge::{PurgeEffect, Scope};
pub use stats::Stats;
pub use store::Store;
