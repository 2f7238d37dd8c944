//! Messages between the master and the signing process.
//!
//! ```text
//! master                          signing process                     worker
//!   | -- Start -------------------> |                                    |
//!   | -- Keys (repeated) ---------> |   adds keys, forgets unused ones   |
//!   | -- Serve, fds --------------> | <-- requests for signatures ------ |
//!   | <-------------------- Refused |   if it has too many sockets       |
//!   | <----------------------- Line |   into the error log               |
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
        /// Whether the next message has further keys, with which these take effect.
        has_more: bool,
    },
    /// Answer requests that arrive on the sockets in the packet, which are those of one worker.
    Serve {
        /// The number of this message, for [`FromSigner::Refused`].
        line: u64,
        /// The number of the sockets. Fewer arrive if the process has too many open files.
        sockets: u64,
    },
}

impl ToSigner {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Writer::default();
        match self {
            ToSigner::Start { credentials } => {
                out.u64(1).option(credentials.as_ref(), put_credentials);
            }
            ToSigner::Keys { keys, is_complete, has_more } => {
                out.u64(2).u64(u64::from(*is_complete)).u64(u64::from(*has_more)).list(keys, |out, key| {
                    out.bytes(&key.to_bytes());
                });
            }
            ToSigner::Serve { line, sockets } => {
                out.u64(3).u64(*line).u64(*sockets);
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
                has_more: from.u64()? != 0,
                keys: from.list(|from| SecretKey::from_bytes(from.bytes()?).ok_or(Malformed))?,
            },
            3 => ToSigner::Serve { line: from.u64()?, sockets: from.u64()? },
            _ => return Err(Malformed),
        };
        from.end()?;
        Ok(message)
    }
}

/// A message from the signing process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FromSigner {
    /// A line for the log, at the level `alert`.
    Line(String),
    /// Sockets of a worker are closed.
    Refused {
        /// The number of the message that brought them.
        line: u64,
        /// The reason, a line for the log.
        reason: String,
    },
}

impl FromSigner {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Writer::default();
        match self {
            FromSigner::Line(text) => out.u64(1).text(text),
            FromSigner::Refused { line, reason } => out.u64(2).u64(*line).text(reason),
        };
        out.finish()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<FromSigner, Malformed> {
        let mut from = Reader::new(bytes);
        let message = match from.u64()? {
            1 => FromSigner::Line(from.text()?),
            2 => FromSigner::Refused { line: from.u64()?, reason: from.text()? },
            _ => return Err(Malformed),
        };
        from.end()?;
        Ok(message)
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
            ToSigner::Keys { keys: vec![key], is_complete: true, has_more: false },
            ToSigner::Keys { keys: Vec::new(), is_complete: false, has_more: true },
            ToSigner::Serve { line: 7, sockets: 8 },
        ];
        for message in messages {
            let bytes = message.encode();
            assert_eq!(ToSigner::decode(&bytes), Ok(message));
            assert_eq!(ToSigner::decode(&bytes[..bytes.len() - 1]), Err(Malformed));
        }
        let reason = "why".to_owned();
        for message in [FromSigner::Line(reason.clone()), FromSigner::Refused { line: 3, reason }] {
            assert_eq!(FromSigner::decode(&message.encode()), Ok(message));
        }
    }
}
