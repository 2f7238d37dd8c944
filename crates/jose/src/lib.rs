//! JSON Web Tokens (RFC 7519): verifies signed tokens (JWS, RFC 7515) and decrypts encrypted tokens (JWE, RFC 7516) with the keys of a
//! key set (JWK, RFC 7517). Algorithms are those of RFC 7518 and RFC 8037.
//!
//! The crate performs no I/O and has no clock. Tokens come from clients, key sets perhaps from another server: no input causes a
//! panic, and every list and text has a limit.
//!
//! The header of a token selects the algorithm, but only among those of the key: the type of a key, and its `alg`, `use`, `key_ops`
//! and `crv`, must match. So no token can use a public key as the secret of a MAC, and there is no algorithm `none`.
//!
//! Crates of the workspace that it may use: none.
//!
//! Each module imports only modules of the rows below it.
//!
//! | module | content |
//! |---|---|
//! | [`claims`] | times of validity, and values as text |
//! | [`encrypted`] | decryption |
//! | [`signed`] | verification of signatures |
//! | [`wrap`] | AES Key Wrap |
//! | [`key`] | keys and key sets |
//! | [`algorithm`] | the names of algorithms |
//! | [`token`] | the sections of a token |
//! | [`object`] | objects of JSON without repeated names |
//! | [`base64url`] | the text of bytes |
#![forbid(unsafe_code)]

pub mod algorithm;
pub mod base64url;
pub mod claims;
pub mod encrypted;
pub mod key;
pub mod object;
pub mod signed;
pub mod token;
mod wrap;

pub use key::{Key, KeySet};
pub use object::Object;
pub use token::{Encrypted, Fault, Signed};
