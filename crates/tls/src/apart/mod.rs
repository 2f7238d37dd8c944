//! Private keys that only a signing process holds (`sandbox strict`).
//!
//! ```text
//!   master: reads PEM files --collect--> SecretKey --channel--> signing process: Signer
//!      |                                                           ^        |
//!      | without_keys: PEM with the names of keys     SigningRequest        | signature
//!      v                                                           |        v
//!   worker: Identity::from_pem --> RemoteKey -------------------> Connection
//! ```
//! [`collect`] returns the private keys that were read while a function ran, and [`without_keys`] replaces them in a PEM text by
//! placeholders. In a process that has called [`connect`], such a placeholder becomes a [`RemoteKey`], whose signatures are made by a
//! [`Signer`] in another process. [`Signer`] answers the requests of workers, which an attacker may control: it signs only
//! what a handshake signs ([`handshake_part`]). This crate makes no I/O for these messages.

mod handshake_part;
mod key;
mod remote;
mod signer;

pub use handshake_part::{HandshakePart, handshake_part};
pub use key::{KeyName, SecretKey, collect, without_keys};
pub use remote::{Connection, connect, is_connected};
pub use signer::{Answer, MESSAGE_BYTES_MAX, Signer};

pub(crate) use key::note;
pub(crate) use remote::{RemoteKey, SIGNING_PROCESS};
