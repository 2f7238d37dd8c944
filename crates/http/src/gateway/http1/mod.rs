//! Servers that speak HTTP/1 (RFC 9112).

mod decoder;
mod encoder;

pub use decoder::Decoder;
pub use encoder::Encoder;
