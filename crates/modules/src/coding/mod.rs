//! What `gzip`, `brotli` and `zstd` share as modules: [`accept`] finds the codings that a client accepts, [`apply`]
//! adds the encoder to a response, [`precompressed`] finds files that are compressed already.

pub(crate) mod accept;
pub(crate) mod apply;
pub(crate) mod precompressed;
