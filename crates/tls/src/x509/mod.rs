//! Certificates, private keys and chains, parsed and verified by aws-lc. Errors have the messages of
//! OpenSSL, which users of nginx know.
//!
//! rustls' own verifier (webpki) refuses certificates of version 1 and has other messages. [`Certificate`] is one
//! certificate and the values of `$ssl_client_*`, [`Roots`] verifies a chain, [`private_key`] reads a key, with its
//! password if it has one.
//!
//! `object` (certificates and keys) and `verification` (chains and OCSP responses) call the library, and are the only files
//! of the crate with unsafe code. `verdict` and `key` decide what its results mean.

mod key;
mod object;
mod verdict;
mod verification;

pub use key::{KeyError, key_belongs_to, private_key};
pub use object::{Certificate, NameForm, without_trust_settings};
pub use verdict::Distrust;
pub use verification::{Purpose, Roots};

pub(crate) use key::decrypted_key;
pub(crate) use object::subject_der;
pub(crate) use verification::{read_status, status_request};
