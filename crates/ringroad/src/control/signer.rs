//! Messages between the master and the signing process.
//!
//! ```text
//! master                          signing process                     worker
//!   | -- Start -------------------> |                                    |
//!   | -- Keys --------------------> |   adds keys, forgets unused ones   |
//!   | -- Serve, fds --------------> | <-- requests for signatures ------ |
//!   | <------------------------ Log |   into the error log               |
//! ```
//! The master creates a socket pair for each descriptor of `Serve`, and sends the other end to a worker. When the channel closes,
//! the signing process exits.

use tls::apart::SecretKey;

use super::Limits;
use super::message::{put_credentials, take_credentials};
use super::wire::{Malformed, Reader, Writer};
use crate::privilege::Credentials;

/// Limits for packets from the signing process: lines for the log, and no descriptors.
pub(crate) const FROM_SIGNER: Limits = Limits { body: 64 * 1024, fds: 0 };

/// A message from the master to the signing process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ToSigner {
    /// The first message.
    Start {
        /// The user of the process; `None` stands for the user of the master.
        credentials: Option<Credentials>,
    },
    /// Hold these keys.
    Keys {
        /// The keys.
        keys: Vec<SecretKey>,
        /// Whether all other keys are to be forgotten.
        is_complete: bool,
    },
    /// Answer requests that arrive on the sockets in the packet.
    Serve,
}

impl ToSigner {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Writer::default();
        match self {
            ToSigner::Start { credentials } => {
                out.u64(1).option(credentials.as_ref(), put_credentials);
            }
            ToSigner::Keys { keys, is_complete } => {
                out.u64(2).u64(u64::from(*is_complete)).list(keys, |out, key| {
                    out.bytes(&key.to_bytes());
                });
            }
            ToSigner::Serve => {
                out.u64(3);
            }
        }
        out.finish()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<ToSigner, Malformed> {
        let mut from = Reader::new(bytes);
        let message = match from.u64()? {
            1 => ToSigner::Start { credentials: from.option(take_credentials)? },
            2 => ToSigner::Keys {
                is_complete: from.u64()? != 0,
                keys: from.list(|from| SecretKey::from_bytes(from.bytes()?).ok_or(Malformed))?,
            },
            3 => ToSigner::Serve,
            _ => return Err(Malformed),
        };
        from.end()?;
        Ok(message)
    }
}

/// A message from the signing process: a line for the log, at the level `alert`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FromSigner(pub(crate) String);

impl FromSigner {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Writer::default();
        out.text(&self.0);
        out.finish()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<FromSigner, Malformed> {
        let mut from = Reader::new(bytes);
        let text = from.text()?;
        from.end()?;
        Ok(FromSigner(text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_received_as_sent() {
        let credentials = Some(Credentials { user: "www-data".to_owned(), uid: 33, gid: 34 });
        let key = SecretKey::from_bytes(&[7; 40]).expect("a name and eight bytes");
        let messages = [
            ToSigner::Start { credentials },
            ToSigner::Start { credentials: None },
            ToSigner::Keys { keys: vec![key], is_complete: true },
            ToSigner::Keys { keys: Vec::new(), is_complete: false },
            ToSigner::Serve,
        ];
        for message in messages {
            let bytes = message.encode();
            assert_eq!(ToSigner::decode(&bytes), Ok(message));
            assert_eq!(ToSigner::decode(&bytes[..bytes.len() - 1]), Err(Malformed));
        }
        let line = FromSigner("why".to_owned());
        assert_eq!(FromSigner::decode(&line.encode()), Ok(line));
    }
}
