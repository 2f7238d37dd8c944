//! Facts that rustls reports to keys, tickets and verifiers of a handshake, but not to its session: the signatures, and the
//! session's identifier.
//!
//! rustls calls them on the thread that drives the session, while it does so. [`within`] makes the record of a session the one of
//! its thread for that time, and [`note`] writes to it.

use std::cell::Cell;

use rustls::SignatureScheme;

/// Bytes of a session's identifier, as in TLS 1.2 (RFC 5246 section 7.4.1.2).
pub const SESSION_ID_BYTES: usize = 32;

/// The record of one session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// The session's identifier: the same for all tickets of it, and for the connections that resume it.
    pub session_id: Option<[u8; SESSION_ID_BYTES]>,
    /// The scheme of the server's signature; nothing where a session was resumed.
    pub signature: Option<SignatureScheme>,
    /// The scheme of the client's signature, if it has sent a certificate.
    pub client_signature: Option<SignatureScheme>,
}

thread_local! {
    static CURRENT: Cell<Option<Seen>> = const { Cell::new(None) };
}

/// Drives the session with this record.
pub(crate) fn within<T>(seen: &mut Seen, drive: impl FnOnce() -> T) -> T {
    let outer = CURRENT.replace(Some(*seen));
    let driven = drive();
    *seen = CURRENT.replace(outer).unwrap_or_default();
    driven
}

/// Changes the record of the session that is driven, and returns it. Without one nothing is kept.
pub(crate) fn note(change: impl FnOnce(&mut Seen)) -> Seen {
    let mut seen = CURRENT.get().unwrap_or_default();
    change(&mut seen);
    if CURRENT.get().is_some() {
        CURRENT.set(Some(seen));
    }
    seen
}

/// The identifier of the session that is driven; a random one if it has none yet. `None` where the machine has no random
/// numbers.
pub(crate) fn session_id() -> Option<[u8; SESSION_ID_BYTES]> {
    let mut random = [0; SESSION_ID_BYTES];
    aws_lc_rs::rand::fill(&mut random).ok()?;
    note(|seen| {
        seen.session_id.get_or_insert(random);
    })
    .session_id
}

/// The name of a scheme (RFC 8446 section 4.2.3), as OpenSSL has it too.
pub fn scheme_name(scheme: SignatureScheme) -> &'static str {
    match scheme {
        SignatureScheme::RSA_PKCS1_SHA1 => "rsa_pkcs1_sha1",
        SignatureScheme::ECDSA_SHA1_Legacy => "ecdsa_sha1",
        SignatureScheme::RSA_PKCS1_SHA256 => "rsa_pkcs1_sha256",
        SignatureScheme::RSA_PKCS1_SHA384 => "rsa_pkcs1_sha384",
        SignatureScheme::RSA_PKCS1_SHA512 => "rsa_pkcs1_sha512",
        SignatureScheme::ECDSA_NISTP256_SHA256 => "ecdsa_secp256r1_sha256",
        SignatureScheme::ECDSA_NISTP384_SHA384 => "ecdsa_secp384r1_sha384",
        SignatureScheme::ECDSA_NISTP521_SHA512 => "ecdsa_secp521r1_sha512",
        SignatureScheme::RSA_PSS_SHA256 => "rsa_pss_rsae_sha256",
        SignatureScheme::RSA_PSS_SHA384 => "rsa_pss_rsae_sha384",
        SignatureScheme::RSA_PSS_SHA512 => "rsa_pss_rsae_sha512",
        SignatureScheme::ED25519 => "ed25519",
        SignatureScheme::ED448 => "ed448",
        SignatureScheme::ML_DSA_44 => "mldsa44",
        SignatureScheme::ML_DSA_65 => "mldsa65",
        SignatureScheme::ML_DSA_87 => "mldsa87",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_keeps_its_identifier_and_shares_it_with_no_other() {
        let (mut first, mut second) = (Seen::default(), Seen::default());
        let of_first = within(&mut first, session_id).unwrap();
        let of_second = within(&mut second, session_id).unwrap();
        assert_ne!(of_first, of_second);
        assert_eq!(within(&mut first, session_id), Some(of_first));
        assert_eq!(first.session_id, Some(of_first));
        assert_ne!(session_id(), session_id(), "without a session nothing is kept");
    }
}
