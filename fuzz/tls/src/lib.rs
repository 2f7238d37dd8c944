//! Fuzz targets of crate `tls`: records and hellos in the crate's buffers, tickets, certificates, OCSP responses, requests
//! for signatures, and texts in OpenSSL's syntax. Of crate `jose`: key sets and tokens.
//!
//! They are a separate package because the cryptographic library takes minutes to build; `cargo xtask fuzz --tls` runs
//! them.
#![forbid(unsafe_code)]

pub mod jwt_keys;
pub mod tls_certificates;
pub mod tls_ocsp;
pub mod tls_records;
pub mod tls_signer;
pub mod tls_texts;

pub use ringroad_fuzz::Target;

/// All targets.
pub static TARGETS: [Target; 6] = [
    tls_texts::TARGET,
    tls_records::TARGET,
    tls_certificates::TARGET,
    tls_ocsp::TARGET,
    tls_signer::TARGET,
    jwt_keys::TARGET,
];

/// Removes and returns the first byte; zero if there is none.
fn take_byte(data: &mut &[u8]) -> u8 {
    match data.split_first() {
        Some((first, rest)) => {
            *data = rest;
            *first
        }
        None => 0,
    }
}
