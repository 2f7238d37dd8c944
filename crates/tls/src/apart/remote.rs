//! The side of a worker: keys of which it knows only the names.
//!
//! [`connect`] is called before the configuration is read. A signature blocks the calling thread until the signing process has
//! answered; the [`Connection`] limits this time.

use std::sync::{Arc, OnceLock};

use rustls::sign::{Signer, SigningKey};
use rustls::{SignatureAlgorithm, SignatureScheme};

use super::key::{KeyName, placeholder};
use super::signer::{Answer, encode_request};

/// The connection to the signing process.
pub trait Connection: Send + Sync + std::fmt::Debug {
    /// Sends a request and returns the response. An error is the reason for the log.
    fn exchange(&self, request: &[u8]) -> Result<Vec<u8>, String>;
}

/// The beginning of errors of signatures.
pub(crate) const SIGNING_PROCESS: &str = "signing process: ";

static CONNECTION: OnceLock<Arc<dyn Connection>> = OnceLock::new();

/// Makes this process use the keys of a signing process. Private keys in PEM texts are then replaced by placeholders. A second call
/// has no effect.
pub fn connect(connection: Arc<dyn Connection>) {
    let _ = CONNECTION.set(connection);
}

/// Whether this process uses the keys of a signing process, and gets no private keys from the process that read the files.
pub fn is_connected() -> bool {
    CONNECTION.get().is_some()
}

/// A key of the signing process.
#[derive(Clone, Debug)]
pub(crate) struct RemoteKey {
    name: KeyName,
    algorithm: SignatureAlgorithm,
    schemes: Arc<[SignatureScheme]>,
}

impl RemoteKey {
    /// Returns the key that the placeholder of a PEM text names; `None` if it has none, or this process holds its keys itself.
    pub(crate) fn of(pem: &[u8]) -> Option<RemoteKey> {
        let (name, algorithm, schemes) = placeholder(pem).filter(|_| is_connected())?;
        Some(RemoteKey { name, algorithm, schemes: schemes.into() })
    }
}

impl SigningKey for RemoteKey {
    fn choose_scheme(&self, offered: &[SignatureScheme]) -> Option<Box<dyn Signer>> {
        let scheme = *self.schemes.iter().find(|scheme| offered.contains(scheme))?;
        Some(Box::new(RemoteSigner { name: self.name, scheme }))
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        self.algorithm
    }
}

#[derive(Debug)]
struct RemoteSigner {
    name: KeyName,
    scheme: SignatureScheme,
}

impl Signer for RemoteSigner {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, rustls::Error> {
        let failed = |reason: &str| rustls::Error::General(format!("{SIGNING_PROCESS}{reason}"));
        let connection = CONNECTION.get().ok_or_else(|| failed("no connection"))?;
        let request = encode_request(self.name, self.scheme, message);
        let response = connection.exchange(&request).map_err(|reason| failed(&reason))?;
        match Answer::decode(response) {
            Answer::Signature(signature) => Ok(signature),
            Answer::UnknownKey => Err(failed("it does not have the key")),
            Answer::Refused => Err(failed("it refused the request")),
        }
    }

    fn scheme(&self) -> SignatureScheme {
        self.scheme
    }
}
