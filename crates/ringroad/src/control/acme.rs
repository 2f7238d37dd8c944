//! Messages between the master and the agent that obtains certificates, and the changes that are passed on to workers.
//!
//! ```text
//! agent                            master                           worker
//!   | <-- Start, issuers ---------- |                                 |
//!   | -- Change 7: install -------> | -- Acme 23: install ----------> |   installed in all threads
//!   | <-- Done 7 ------------------ | <------------------- AcmeDone 23 |
//!   |    (the CA is informed)       |                                 |
//!   | -- Change 8: certificate ---> | -- Acme 24: certificate ------> |
//!   | -- Log ---------------------> |   into the error log            |
//! ```
//! The master stores certificates and challenges for workers that start later. When the channel closes, the agent exits.

use acme::agent::{Challenge, Level};
use acme::settings::{AccountKey, ChallengeKind, ExternalAccount, Issuer, Order, Profile};
use tls::Identity;
use tls::apart::{SecretKey, collect, without_keys};
use tls::signing::KeyKind;

use super::Limits;
use super::message::{cut, put_credentials, take_credentials, take_text};
use super::wire::{Malformed, Reader, Writer};
use crate::privilege::Credentials;

/// Limits for packets from the agent: certificates, and no descriptors.
pub(crate) const FROM_AGENT: Limits = Limits { body: 1 << 20, fds: 0 };

/// A change in workers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AcmeChange {
    /// A challenge is to be installed.
    Install(Challenge),
    /// A challenge is to be removed.
    Remove(Challenge),
    /// A certificate is to be used: a chain with its private key, in PEM.
    Certificate {
        /// The identifier of the order.
        id: String,
        /// The PEM text.
        pem: Vec<u8>,
    },
}

impl AcmeChange {
    /// Returns the change with the name of the private key instead of the key, and the key: for a worker that gets its signatures
    /// from the signing process.
    pub(crate) fn without_key(&self) -> (AcmeChange, Vec<SecretKey>) {
        let (pem, mut change) = match self {
            AcmeChange::Certificate { pem, .. } => (pem, self.clone()),
            AcmeChange::Install(Challenge::Tls { pem, .. })
            | AcmeChange::Remove(Challenge::Tls { pem, .. }) => (pem, self.clone()),
            AcmeChange::Install(Challenge::Http { .. }) | AcmeChange::Remove(Challenge::Http { .. }) => {
                return (self.clone(), Vec::new());
            }
        };
        // The worker reports a certificate that cannot be used.
        let (_, keys) = collect(|| Identity::from_pem(pem, pem, &[]).is_ok());
        let text = without_keys(pem, &keys).unwrap_or_default();
        match &mut change {
            AcmeChange::Certificate { pem, .. }
            | AcmeChange::Install(Challenge::Tls { pem, .. })
            | AcmeChange::Remove(Challenge::Tls { pem, .. }) => *pem = text,
            AcmeChange::Install(_) | AcmeChange::Remove(_) => {}
        }
        (change, keys)
    }
}

/// A message from the master to the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ToAgent {
    /// The first message.
    Start {
        /// The ordered certificates.
        issuers: Vec<Issuer>,
        /// Certificates that are stored only in memory.
        known: Vec<(String, Vec<u8>)>,
        /// The user of the agent; `None` stands for the user of the master.
        credentials: Option<Credentials>,
        /// Whether the agent restricts itself: unless `sandbox off` is written.
        is_restricted: bool,
    },
    /// All workers have confirmed the change with this number.
    Done(u64),
}

/// A message from the agent to the master.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FromAgent {
    /// A change with its number.
    Change(u64, AcmeChange),
    /// A line for the log.
    Log(Level, String),
}

impl ToAgent {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Writer::default();
        match self {
            ToAgent::Start { issuers, known, credentials, is_restricted } => {
                out.u64(1).list(issuers, put_issuer);
                out.list(known, |out, (id, pem)| {
                    out.text(id).bytes(pem);
                });
                out.option(credentials.as_ref(), put_credentials);
                out.u64(u64::from(*is_restricted));
            }
            ToAgent::Done(number) => {
                out.u64(2).u64(*number);
            }
        }
        out.finish()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<ToAgent, Malformed> {
        let mut from = Reader::new(bytes);
        let message = match from.u64()? {
            1 => ToAgent::Start {
                issuers: from.list(take_issuer)?,
                known: from.list(|from| Ok((from.text()?, from.bytes()?.to_vec())))?,
                credentials: from.option(take_credentials)?,
                is_restricted: from.u64()? != 0,
            },
            2 => ToAgent::Done(from.u64()?),
            _ => return Err(Malformed),
        };
        from.end()?;
        Ok(message)
    }
}

impl FromAgent {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Writer::default();
        match self {
            FromAgent::Change(number, change) => put_change(out.u64(1).u64(*number), change),
            FromAgent::Log(level, text) => {
                out.u64(2).u64(*level as u64).text(cut(text));
            }
        }
        out.finish()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<FromAgent, Malformed> {
        let mut from = Reader::new(bytes);
        let message = match from.u64()? {
            1 => FromAgent::Change(from.u64()?, take_change(&mut from)?),
            2 => {
                let level = match from.u64()? {
                    0 => Level::Info,
                    1 => Level::Notice,
                    2 => Level::Warn,
                    3 => Level::Error,
                    _ => return Err(Malformed),
                };
                FromAgent::Log(level, take_text(&mut from)?)
            }
            _ => return Err(Malformed),
        };
        from.end()?;
        Ok(message)
    }
}

pub(super) fn put_change(out: &mut Writer, change: &AcmeChange) {
    match change {
        AcmeChange::Install(challenge) => put_challenge(out.u64(1), challenge),
        AcmeChange::Remove(challenge) => put_challenge(out.u64(2), challenge),
        AcmeChange::Certificate { id, pem } => {
            out.u64(3).text(id).bytes(pem);
        }
    }
}

pub(super) fn take_change(from: &mut Reader<'_>) -> Result<AcmeChange, Malformed> {
    Ok(match from.u64()? {
        1 => AcmeChange::Install(take_challenge(from)?),
        2 => AcmeChange::Remove(take_challenge(from)?),
        3 => AcmeChange::Certificate { id: from.text()?, pem: from.bytes()?.to_vec() },
        _ => return Err(Malformed),
    })
}

fn put_challenge(out: &mut Writer, challenge: &Challenge) {
    match challenge {
        Challenge::Http { token, text } => out.u64(1).text(token).text(text),
        Challenge::Tls { name, pem } => out.u64(2).text(name).bytes(pem),
    };
}

fn take_challenge(from: &mut Reader<'_>) -> Result<Challenge, Malformed> {
    Ok(match from.u64()? {
        1 => Challenge::Http { token: from.text()?, text: from.text()? },
        2 => Challenge::Tls { name: from.text()?, pem: from.bytes()?.to_vec() },
        _ => return Err(Malformed),
    })
}

/// Encodes an issuer. The order of fields must be the same as in [`take_issuer`].
fn put_issuer(out: &mut Writer, issuer: &Issuer) {
    out.text(&issuer.name).text(&issuer.uri);
    match &issuer.account_key {
        AccountKey::Generated(kind) => out.u64(1).text(kind.name()),
        AccountKey::Pem(pem) => out.u64(2).bytes(pem),
    };
    out.text(issuer.challenge.name());
    out.list(&issuer.contacts, |out, contact| {
        out.text(contact);
    });
    out.option(issuer.external_account.as_ref(), |out, account| out.text(&account.id).bytes(&account.secret));
    out.option(issuer.preferred_chain.as_deref(), Writer::text);
    out.option(issuer.profile.as_ref(), |out, profile| {
        out.text(&profile.name).u64(u64::from(profile.is_required))
    });
    out.option(issuer.roots.as_deref(), Writer::bytes).u64(u64::from(issuer.verifies));
    out.option(issuer.state_path.as_deref(), Writer::path);
    out.u64(u64::from(issuer.accepts_terms)).u64(u64::from(issuer.has_common_name));
    out.list(&issuer.orders, |out, order| {
        out.text(order.key.name()).list(&order.names, |out, name| {
            out.text(name);
        });
    });
}

/// Decodes the output of [`put_issuer`].
fn take_issuer(from: &mut Reader<'_>) -> Result<Issuer, Malformed> {
    Ok(Issuer {
        name: from.text()?,
        uri: from.text()?,
        account_key: match from.u64()? {
            1 => AccountKey::Generated(take_kind(from)?),
            2 => AccountKey::Pem(from.bytes()?.to_vec()),
            _ => return Err(Malformed),
        },
        challenge: match from.text()?.as_str() {
            "http-01" => ChallengeKind::Http01,
            "tls-alpn-01" => ChallengeKind::TlsAlpn01,
            _ => return Err(Malformed),
        },
        contacts: from.list(Reader::text)?,
        external_account: from
            .option(|from| Ok(ExternalAccount { id: from.text()?, secret: from.bytes()?.to_vec() }))?,
        preferred_chain: from.option(Reader::text)?,
        profile: from.option(|from| Ok(Profile { name: from.text()?, is_required: from.u64()? != 0 }))?,
        roots: from.option(|from| Ok(from.bytes()?.to_vec()))?,
        verifies: from.u64()? != 0,
        state_path: from.option(Reader::path)?,
        accepts_terms: from.u64()? != 0,
        has_common_name: from.u64()? != 0,
        orders: from.list(|from| Ok(Order { key: take_kind(from)?, names: from.list(Reader::text)? }))?,
    })
}

fn take_kind(from: &mut Reader<'_>) -> Result<KeyKind, Malformed> {
    let name = from.text()?;
    KeyKind::ALL.iter().find(|(known, _)| *known == name).map(|(_, kind)| *kind).ok_or(Malformed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn issuers() -> Vec<Issuer> {
        let order = Order { names: vec!["a.example".to_owned(), "::1".to_owned()], key: KeyKind::Rsa4096 };
        let full = Issuer {
            uri: "https://a.example/dir".to_owned(),
            account_key: AccountKey::Pem(b"key".to_vec()),
            challenge: ChallengeKind::TlsAlpn01,
            contacts: vec!["mailto:a@b.example".to_owned()],
            external_account: Some(ExternalAccount { id: "kid".to_owned(), secret: vec![1, 2] }),
            preferred_chain: Some("Root".to_owned()),
            profile: Some(Profile { name: "short".to_owned(), is_required: true }),
            roots: Some(b"pem".to_vec()),
            verifies: false,
            state_path: Some("/srv/acme".into()),
            accepts_terms: true,
            has_common_name: true,
            orders: vec![order],
            ..Issuer::new("full")
        };
        vec![full, Issuer::new("empty")]
    }

    #[test]
    fn messages_are_received_as_sent() {
        let credentials = Some(Credentials { user: "www-data".to_owned(), uid: 33, gid: 34 });
        let known = vec![("a/b".to_owned(), b"pem".to_vec())];
        for message in [
            ToAgent::Start { issuers: issuers(), known, credentials, is_restricted: true },
            ToAgent::Start {
                issuers: Vec::new(),
                known: Vec::new(),
                credentials: None,
                is_restricted: false,
            },
            ToAgent::Done(7),
        ] {
            assert_eq!(ToAgent::decode(&message.encode()), Ok(message));
        }
        let http = Challenge::Http { token: "t".to_owned(), text: "t.x".to_owned() };
        let tls = Challenge::Tls { name: "a.example".to_owned(), pem: b"pem".to_vec() };
        for message in [
            FromAgent::Change(1, AcmeChange::Install(http)),
            FromAgent::Change(2, AcmeChange::Remove(tls)),
            FromAgent::Change(3, AcmeChange::Certificate { id: "a/b".to_owned(), pem: b"pem".to_vec() }),
            FromAgent::Log(Level::Info, "a".to_owned()),
            FromAgent::Log(Level::Error, "b".to_owned()),
        ] {
            assert_eq!(FromAgent::decode(&message.encode()), Ok(message));
        }
    }

    #[test]
    fn no_prefix_of_a_message_is_a_valid_message() {
        let whole =
            ToAgent::Start { issuers: issuers(), known: Vec::new(), credentials: None, is_restricted: true };
        let whole = whole.encode();
        for end in 0..whole.len() {
            assert_eq!(ToAgent::decode(&whole[..end]), Err(Malformed), "{end} bytes");
        }
        assert_eq!(FromAgent::decode(&[9, 0, 0, 0, 0, 0, 0, 0]), Err(Malformed));
    }
}
