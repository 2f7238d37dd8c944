//! Verification of the peer's certificate during the handshake: checks only that the peer has the private key.
//!
//! Whether the certificate is trusted is verified after the handshake ([`crate::Trust`]), as in nginx. A request is
//! then rejected with status 400, and variables have the reason. A failed handshake could not report the reason to the
//! client.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, PeerMisbehaved, SignatureScheme,
};

use crate::seen;
use crate::x509::{Certificate, Distrust, Purpose, Roots};

/// Returns the supported signature algorithms.
fn algorithms() -> WebPkiSupportedAlgorithms {
    rustls::crypto::aws_lc_rs::default_provider().signature_verification_algorithms
}

/// Accepts any certificate of a client.
#[derive(Debug)]
pub(crate) struct AnyClient {
    /// Names of CAs that are sent to the client.
    pub(crate) authorities: Vec<DistinguishedName>,
    pub(crate) algorithms: WebPkiSupportedAlgorithms,
}

impl AnyClient {
    /// Creates a verifier that sends clients these names.
    pub(crate) fn new(authorities: Vec<DistinguishedName>) -> Arc<AnyClient> {
        Arc::new(AnyClient { authorities, algorithms: algorithms() })
    }
}

impl ClientCertVerifier for AnyClient {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.authorities
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        seen::note(|seen| seen.client_signature = Some(signed.scheme));
        verify_signature(&self.algorithms, message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        seen::note(|seen| seen.client_signature = Some(signed.scheme));
        verify_signature_of_13(&self.algorithms, message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// Accepts any certificate of an upstream.
#[derive(Debug)]
pub(crate) struct AnyServer {
    algorithms: WebPkiSupportedAlgorithms,
}

impl AnyServer {
    pub(crate) fn new() -> Arc<AnyServer> {
        Arc::new(AnyServer { algorithms: algorithms() })
    }
}

impl ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_signature(&self.algorithms, message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_signature_of_13(&self.algorithms, message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// Verifies a signature of TLS 1.3, where the scheme also determines the curve, and PKCS #1 v1.5 and SHA-1 are not allowed
/// (RFC 8446 section 4.2.3).
fn verify_signature_of_13(
    algorithms: &WebPkiSupportedAlgorithms,
    message: &[u8],
    certificate: &CertificateDer<'_>,
    signed: &DigitallySignedStruct,
) -> Result<HandshakeSignatureValid, Error> {
    let key = public_key(certificate)?;
    verify_tls13_signature_with_raw_key(message, &key.into(), signed, algorithms)
}

/// Returns the public key of a certificate. The certificate is parsed by aws-lc, which also supports certificates of version 1.
fn public_key(certificate: &CertificateDer<'_>) -> Result<Vec<u8>, Error> {
    let key = Certificate::from_der(certificate).and_then(|it| it.public_key());
    key.ok_or(Error::InvalidCertificate(CertificateError::BadEncoding))
}

/// Verifies a signature of TLS 1.2 with the public key of a certificate.
fn verify_signature(
    algorithms: &WebPkiSupportedAlgorithms,
    message: &[u8],
    certificate: &CertificateDer<'_>,
    signed: &DigitallySignedStruct,
) -> Result<HandshakeSignatureValid, Error> {
    let key = public_key(certificate)?;
    let (algorithm, key) = key_parts(&key).ok_or(Error::InvalidCertificate(CertificateError::BadEncoding))?;
    let candidates = algorithms.mapping.iter().find(|(scheme, _)| *scheme == signed.scheme);
    let (_, candidates) = candidates.ok_or(PeerMisbehaved::SignedHandshakeWithUnadvertisedSigScheme)?;
    let fitting = candidates.iter().filter(|candidate| candidate.public_key_alg_id().as_ref() == algorithm);
    for candidate in fitting {
        if candidate.verify_signature(key, message, signed.signature()).is_ok() {
            return Ok(HandshakeSignatureValid::assertion());
        }
    }
    Err(Error::InvalidCertificate(CertificateError::BadSignature))
}

/// Splits a public key (SubjectPublicKeyInfo, RFC 5280 section 4.1). Returns the content of the algorithm identifier,
/// and the bits of the key.
fn key_parts(der: &[u8]) -> Option<(&[u8], &[u8])> {
    let (inner, rest) = der_value(der, 0x30)?;
    if !rest.is_empty() {
        return None;
    }
    let (algorithm, rest) = der_value(inner, 0x30)?;
    let (bits, rest) = der_value(rest, 0x03)?;
    match bits.split_first()? {
        (0, key) if rest.is_empty() => Some((algorithm, key)),
        _ => None,
    }
}

/// Returns the content of the first value, which must have this tag, and the bytes after it.
fn der_value(der: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (&found, rest) = der.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (len, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        0x81..=0x84 => {
            let (digits, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            (digits.iter().fold(0, |len, digit| len << 8 | usize::from(*digit)), rest)
        }
        _ => return None,
    };
    rest.split_at_checked(len).filter(|_| found == tag)
}

/// The CAs that are trusted for a peer's certificate, and the limits of a chain.
#[derive(Debug)]
pub struct Trust {
    roots: Roots,
    depth_max: u32,
    purpose: Purpose,
}

impl Trust {
    /// Trusts these CAs. A chain has at most `depth_max` certificates between the peer's certificate and a root.
    pub fn new(roots: Roots, depth_max: u32, purpose: Purpose) -> Trust {
        Trust { roots, depth_max, purpose }
    }

    /// Returns the roots.
    pub fn roots(&self) -> &Roots {
        &self.roots
    }

    /// Returns the chain from a peer's certificate to a root, if [`Trust::judge`] accepts the chain.
    pub fn chain(&self, chain: &[CertificateDer<'_>]) -> Option<Vec<Certificate>> {
        self.roots.chain(chain, self.purpose, self.depth_max)
    }

    /// Verifies the chain that a peer has sent. The peer's own certificate is the first.
    pub fn judge(&self, chain: &[CertificateDer<'_>]) -> Result<(), Distrust> {
        let verdict = self.roots.verify(chain, self.purpose, self.depth_max);
        verdict.map_err(|distrust| match self.purpose {
            Purpose::Client => distrust.of_client(),
            Purpose::Server => distrust,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Identity;
    use crate::signing::KeyKind;
    use rustls::internal::msgs::codec::Codec;

    #[test]
    fn schemes_of_tls_1_2_are_refused_in_tls_1_3() {
        let pem = crate::issue::self_signed_pem(&[], KeyKind::Rsa2048, std::time::SystemTime::now()).unwrap();
        let identity = Identity::from_pem(pem.as_bytes(), pem.as_bytes(), &[]).unwrap();
        let signed = |scheme: SignatureScheme| {
            let signer = identity.key().key.choose_scheme(&[scheme]).unwrap();
            let signature = signer.sign(b"message").unwrap();
            let length = u16::try_from(signature.len()).unwrap().to_be_bytes();
            let bytes = [&u16::from(scheme).to_be_bytes()[..], &length, &signature].concat();
            DigitallySignedStruct::read_bytes(&bytes).unwrap()
        };
        let (pkcs1, pss) =
            (signed(SignatureScheme::RSA_PKCS1_SHA256), signed(SignatureScheme::RSA_PSS_SHA256));
        let certificate = &identity.chain()[0];
        let refused = PeerMisbehaved::SignedHandshakeWithUnadvertisedSigScheme.into();
        let (client, server) = (AnyClient::new(Vec::new()), AnyServer::new());
        assert!(client.verify_tls12_signature(b"message", certificate, &pkcs1).is_ok());
        assert_eq!(client.verify_tls13_signature(b"message", certificate, &pkcs1).err(), Some(refused));
        let refused = PeerMisbehaved::SignedHandshakeWithUnadvertisedSigScheme.into();
        assert_eq!(server.verify_tls13_signature(b"message", certificate, &pkcs1).err(), Some(refused));
        assert!(server.verify_tls13_signature(b"message", certificate, &pss).is_ok());
        assert!(client.verify_tls13_signature(b"other", certificate, &pss).is_err());
    }

    #[test]
    fn components_of_keys_are_found() {
        let der = [0x30, 9, 0x30, 2, 5, 0, 0x03, 3, 0, 7, 8];
        assert_eq!(key_parts(&der), Some((&[5, 0][..], &[7, 8][..])));
    }

    #[test]
    fn damaged_keys_are_refused() {
        let der = [0x30, 9, 0x30, 2, 5, 0, 0x03, 3, 0, 7, 8];
        for len in 0..der.len() {
            assert_eq!(key_parts(&der[..len]), None, "{len}");
        }
        assert_eq!(key_parts(&[0x30, 0x85, 1, 1, 1, 1, 1, 1]), None);
        assert_eq!(key_parts(&[0x30, 9, 0x30, 2, 5, 0, 0x03, 3, 1, 7, 8]), None);
    }
}
