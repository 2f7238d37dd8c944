//! Servers that speak HTTP/1 (RFC 9112).

mod decoder;
mod encoder;

pub(super) use decoder::Decoder;
pub(super) use encoder::Encoder;
