//! TLS for connections of clients and to upstreams. This crate contains no HTTP. No other crate uses rustls. Private keys stay
//! in this crate, except as text in PEM: `acme` and the local CA of `ringroad serve` store those that [`issue`] and [`signing`]
//! create, and `ringroad` passes those of the configuration to the signing process, if there is one ([`apart`]).
//!
//! Crates of the workspace that it may use: `io`, `rt`.
//!
//! Each module imports only modules of the rows below it.
//!
//! | module | content |
//! |---|---|
//! | [`handshake`] | handshakes over a socket of `rt` |
//! | [`turns`] | limits the handshakes of one event-loop turn |
//! | [`stream`] | a stream over a socket of `rt` |
//! | [`commands`] | `ssl_conf_command` |
//! | [`quic`] | handshakes of connections over QUIC, for `quinn-proto` |
//! | [`client`], [`server`] | settings for handshakes |
//! | [`issue`], [`ocsp`] | creation of certificates; OCSP requests and responses |
//! | [`signing`] | keys that sign messages |
//! | [`certificate`], [`certificate_compression`] | PEM files; compressed certificates |
//! | [`verify`] | verification of the peer |
//! | [`session`] | a connection without its socket |
//! | [`tickets`], [`sessions`] | resumption |
//! | [`apart`] | private keys that a signing process holds: `key` (names, texts without keys), `remote` (the worker), `signer` (the process) over `handshake_part` |
//! | [`in_use`] | values that a reload reuses while the old configuration holds them |
//! | [`ciphers`], [`groups`] | cipher strings and groups with the names of OpenSSL |
//! | [`x509`] | certificates and chains: `object` and `verification` call aws-lc, `verdict` and `key` decide what its results mean |
//! | [`seen`] | facts that rustls reports only during a handshake |

pub mod apart;
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
pub mod quic;
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

pub use certificate::{Identity, certificates};
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
