//! TLS for connections of clients and to upstreams. This crate contains no HTTP. No other crate uses rustls or holds
//! private keys.
//!
//! [`server`] and [`client`] prepare handshakes from settings. [`session`] is the state of one connection without its socket,
//! [`handshake`] and [`stream`] connect it to a socket. [`turns`] limits the work of handshakes in an event-loop turn.
//! [`certificate`] reads PEM files, [`verify`] and [`x509`] verify chains of peers, [`ocsp`] verifies OCSP responses. [`issue`]
//! creates certificates, [`signing`] signs messages, [`tickets`] and [`sessions`] store the state for resumption. [`ciphers`],
//! [`groups`] and [`commands`] map OpenSSL's names, `certificate_compression` compresses chains, [`seen`] collects facts that
//! rustls reports only to callbacks.

pub mod certificate;
mod certificate_compression;
pub mod ciphers;
pub mod client;
pub mod commands;
pub mod groups;
pub mod handshake;
pub mod in_use;
pub mod issue;
pub mod ocsp;
pub mod seen;
pub mod server;
pub mod session;
pub mod sessions;
pub mod signing;
pub mod stream;
pub mod tickets;
pub mod turns;
pub mod verify;
pub mod x509;

pub use rustls::pki_types::CertificateDer;
pub use rustls::{SignatureScheme, SupportedCipherSuite as Suite};

pub use certificate::Identity;
pub use client::Client;
pub use server::{Hello, Server};
pub use session::{Session, TlsError};
pub use stream::Stream;
pub use verify::Trust;

/// Returns the name and version of the cryptographic library, as OpenSSL returns them (OpenSSL_version(3)).
pub fn library() -> &'static str {
    let text = std::ffi::CStr::from_bytes_with_nul(aws_lc_sys::OPENSSL_VERSION_TEXT).ok();
    text.and_then(|text| text.to_str().ok()).unwrap_or_default()
}

/// Returns the SHA-256 digest of `bytes`.
pub fn digest(bytes: &[u8]) -> Vec<u8> {
    aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, bytes).as_ref().to_vec()
}
