//! OCSP requests and responses (RFC 6960): the revocation status of a certificate.
//!
//! [`Subject`] is a certificate with its issuer. It creates the request and judges the response, without I/O: the arguments are the
//! response and the time, the result is a [`ValidResponse`] or nginx's error message. aws-lc decodes and verifies the response; this file
//! checks its times. As in nginx, a nonce is neither sent nor required, because responders may sign responses in advance.

use aws_lc_sys as ffi;

use crate::x509::{Certificate, Roots, read_status, status_request};

/// Maximum size of a response in bytes. A response with a chain of RSA certificates has 5 KiB; nginx's limit is 16 KiB.
pub const RESPONSE_BYTES_MAX: usize = 64 << 10;

/// Maximum difference in seconds between the responder's clock and the local clock, as in nginx.
const CLOCK_SKEW_S: i64 = 300;

/// Revocation status of a certificate (CertStatus, RFC 6960 section 4.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// The certificate is not revoked.
    Good,
    /// The certificate is revoked.
    Revoked,
    /// The responder does not know the certificate.
    Unknown,
}

impl Status {
    /// Returns OpenSSL's name of the status.
    pub fn name(self) -> &'static str {
        match self {
            Status::Good => "good",
            Status::Revoked => "revoked",
            Status::Unknown => "unknown",
        }
    }
}

/// Content of a valid response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValidResponse {
    /// Status of the certificate.
    pub status: Status,
    /// Expiry time of the status (nextUpdate) in seconds since 1970. `None` if the responder may have a newer status at any time.
    pub until: Option<i64>,
}

/// Degree to which the signature of a response is verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verification {
    /// The signer is the issuer, or has a certificate for OCSP signing from the issuer, and its chain ends at a root.
    Full,
    /// As `Full`, but the certificates of the [`Subject`] are trusted without a root (`ssl_stapling_verify on`).
    KnownIssuer,
    /// The signature matches a certificate in the response (`ssl_stapling_verify off`). Only clients verify the chain of that certificate.
    SignatureAlone,
}

impl Verification {
    /// Returns the flags of `OCSP_basic_verify`. `OCSP_NOEXPLICIT`: a root is trusted only as an issuer, never explicitly for OCSP
    /// signing, since the files of nginx's directives do not grant such trust.
    fn flags(self) -> i32 {
        ffi::OCSP_NOEXPLICIT
            | match self {
                Verification::Full => 0,
                Verification::KnownIssuer => ffi::OCSP_TRUSTOTHER,
                Verification::SignatureAlone => ffi::OCSP_NOVERIFY,
            }
    }
}

/// A certificate with its issuer.
#[derive(Debug)]
pub struct Subject {
    certificate: Certificate,
    issuer: Certificate,
    others: Vec<Certificate>,
}

impl Subject {
    /// Creates a subject. `others` are further certificates that may have signed a response, in addition to the issuer.
    pub fn new(certificate: Certificate, issuer: Certificate, others: Vec<Certificate>) -> Subject {
        Subject { certificate, issuer, others }
    }

    /// Returns the URL of the responder that the certificate names.
    pub fn url(&self) -> Option<String> {
        self.certificate.ocsp_url()
    }

    /// Returns the request in DER. All requests for one certificate are identical.
    pub fn request(&self) -> Option<Vec<u8>> {
        status_request(&self.certificate, &self.issuer)
    }

    /// Verifies a response at the time `now`, in seconds since 1970.
    ///
    /// # Errors
    /// Returns nginx's message.
    pub fn judge(
        &self,
        response: &[u8],
        roots: &Roots,
        verification: Verification,
        now: i64,
    ) -> Result<ValidResponse, String> {
        if response.len() > RESPONSE_BYTES_MAX {
            return Err(format!("the OCSP response has more than {RESPONSE_BYTES_MAX} bytes"));
        }
        let known: Vec<&Certificate> = std::iter::once(&self.issuer).chain(&self.others).collect();
        let names = (&self.certificate, &self.issuer);
        let raw = read_status(response, names, &known, roots, verification.flags())?;
        check_times(raw.this_update, raw.next_update, now)
            .map_err(|reason| format!("OCSP_check_validity() failed (SSL: {reason})"))?;
        let status = match raw.status {
            ffi::V_OCSP_CERTSTATUS_GOOD => Status::Good,
            ffi::V_OCSP_CERTSTATUS_REVOKED => Status::Revoked,
            _ => Status::Unknown,
        };
        Ok(ValidResponse { status, until: raw.next_update })
    }
}

/// Checks the times of a response by RFC 6960 section 4.2.2.1. The errors are OpenSSL's texts.
fn check_times(this_update: i64, next_update: Option<i64>, now: i64) -> Result<(), &'static str> {
    match next_update {
        _ if this_update > now.saturating_add(CLOCK_SKEW_S) => Err("status not yet valid"),
        Some(next) if next < now.saturating_sub(CLOCK_SKEW_S) => Err("status expired"),
        Some(next) if next < this_update => Err("nextupdate before thisupdate"),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::check_times;

    #[test]
    fn a_response_is_valid_from_this_update_to_next_update() {
        const NOW: i64 = 1_800_000_000;
        for (this, next, expected) in [
            (NOW, None, Ok(())),
            (NOW - 9_000_000, None, Ok(())),
            (NOW - 10, Some(NOW + 10), Ok(())),
            (NOW + 300, Some(NOW + 400), Ok(())),
            (NOW + 301, Some(NOW + 400), Err("status not yet valid")),
            (NOW - 1000, Some(NOW - 300), Ok(())),
            (NOW - 1000, Some(NOW - 301), Err("status expired")),
            (NOW, Some(NOW - 1), Err("nextupdate before thisupdate")),
            (i64::MAX, None, Err("status not yet valid")),
            (i64::MIN, Some(i64::MIN), Err("status expired")),
        ] {
            assert_eq!(check_times(this, next, NOW), expected, "{this} {next:?}");
        }
    }
}
