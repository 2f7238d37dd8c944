//! Fuzz targets of crate `tls`: records and hellos through its buffers, tickets, certificates, and OpenSSL's syntax.
//!
//! They are a separate package because their library takes minutes to build; `cargo xtask fuzz --tls` runs them.
#![forbid(unsafe_code)]

pub mod tls_certificates;
pub mod tls_records;
pub mod tls_texts;

pub use ringroad_fuzz::Target;

/// All targets.
pub static TARGETS: [Target; 3] = [tls_texts::TARGET, tls_records::TARGET, tls_certificates::TARGET];

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
