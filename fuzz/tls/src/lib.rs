//! Fuzz targets of crate `tls`: records and hellos through our buffers, tickets, certificates, and OpenSSL's language.
//!
//! They are a package of their own because the library behind them takes minutes to build; `cargo xtask fuzz --tls` runs them.
#![forbid(unsafe_code)]

pub mod tls_certificates;
pub mod tls_records;
pub mod tls_texts;

pub use ringroad_fuzz::Target;

/// All targets.
pub static TARGETS: [Target; 3] = [tls_texts::TARGET, tls_records::TARGET, tls_certificates::TARGET];

/// Takes the first byte off; zero where there is none.
fn take_byte(data: &mut &[u8]) -> u8 {
    match data.split_first() {
        Some((first, rest)) => {
            *data = rest;
            *first
        }
        None => 0,
    }
}
