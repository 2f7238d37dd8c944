//! What `gzip`, `brotli` and `zstd` share as modules: [`accept`] says which codings a client takes, [`apply`] puts the
//! encoder on a response's way, [`precompressed`] finds files that are compressed already.

pub(crate) mod accept;
pub(crate) mod apply;
pub(crate) mod precompressed;
