//! Facts that rustls reports to the keys, tickets and verifiers of a handshake, but not to its session: the signature
//! schemes and the session ID.
//!
//! rustls calls these objects on the thread that processes data of the session. During that time, [`within`] makes the
//! record of the session available in a thread-local variable, and [`note`] writes to the record.

use std::cell::Cell;

use rustls::SignatureScheme;

/// Length of a session ID in bytes, as in TLS 1.2 (RFC 5246 section 7.4.1.2).
pub const SESSION_ID_BYTES: usize = 32;

/// The recorded facts of one session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// The session ID. All tickets of the session, and all connections that resume it, have the same ID.
    pub session_id: Option<[u8; SESSION_ID_BYTES]>,
    /// The scheme of the server's signature; `None` if a session was resumed.
    pub signature: Option<SignatureScheme>,
    /// The scheme of the client's signature, if the client sent a certificate.
    pub client_signature: Option<SignatureScheme>,
}

thread_local! {
    static CURRENT: Cell<Option<Seen>> = const { Cell::new(None) };
}

/// Runs `drive`, which processes data of the session of this record.
pub(crate) fn within<T>(seen: &mut Seen, drive: impl FnOnce() -> T) -> T {
    let outer = CURRENT.replace(Some(*seen));
    let driven = drive();
    *seen = CURRENT.replace(outer).unwrap_or_default();
    driven
}

/// Changes the record of the session that processes data now, and returns the record. Outside of [`within`] the change
/// is not stored.
pub(crate) fn note(change: impl FnOnce(&mut Seen)) -> Seen {
    let mut seen = CURRENT.get().unwrap_or_default();
    change(&mut seen);
    if CURRENT.get().is_some() {
        CURRENT.set(Some(seen));
    }
    seen
}

/// Returns the ID of the session that processes data now, and generates a random ID if it has none. Returns `None` if
/// the machine has no random numbers.
pub(crate) fn session_id() -> Option<[u8; SESSION_ID_BYTES]> {
    let mut random = [0; SESSION_ID_BYTES];
    aws_lc_rs::rand::fill(&mut random).ok()?;
    note(|seen| {
        seen.session_id.get_or_insert(random);
    })
    .session_id
}

/// Returns the name of a signature scheme (RFC 8446 section 4.2.3); OpenSSL uses the same names.
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
    fn a_session_retains_its_unique_identifier() {
        let (mut first, mut second) = (Seen::default(), Seen::default());
        let of_first = within(&mut first, session_id).unwrap();
        let of_second = within(&mut second, session_id).unwrap();
        assert_ne!(of_first, of_second);
        assert_eq!(within(&mut first, session_id), Some(of_first));
        assert_eq!(first.session_id, Some(of_first));
        assert_ne!(session_id(), session_id(), "without a session nothing is kept");
    }
}
