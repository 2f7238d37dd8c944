//! Requests to authorities whether a certificate was revoked, and their responses (OCSP, RFC 6960).
//!
//! [`Subject`] is a certificate with its issuer: it makes the request and judges the response. Pure: bytes and the time come in, a
//! [`Known`] or nginx's message goes out. aws-lc decodes and verifies; the rules of time are here. A nonce is neither sent nor
//! required, as in nginx: responders sign ahead of requests.

use aws_lc_sys as ffi;

use crate::x509::{Certificate, Roots, read_status, status_request};

/// Bytes of a response at most. One with a chain of RSA certificates has 5 KiB; nginx's limit is 16 KiB.
pub const RESPONSE_BYTES_MAX: usize = 64 << 10;

/// Seconds by which the authority's clock may differ from this one, as in nginx.
const CLOCK_SKEW_S: i64 = 300;

/// Whether a certificate was revoked (CertStatus, RFC 6960 section 4.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It was not.
    Good,
    /// It was.
    Revoked,
    /// The responder does not know the certificate.
    Unknown,
}

impl Status {
    /// OpenSSL's word for it.
    pub fn word(self) -> &'static str {
        match self {
            Status::Good => "good",
            Status::Revoked => "revoked",
            Status::Unknown => "unknown",
        }
    }
}

/// The content of a valid response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    /// The status.
    pub status: Status,
    /// Until when it holds (nextUpdate), in seconds since 1970; nothing where the responder always has newer facts.
    pub until: Option<i64>,
}

/// How the signature of a response is verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verification {
    /// The issuer made it, or the holder of a certificate of the issuer for this purpose, below a root.
    Full,
    /// The same, and the certificates of the [`Subject`] need no root (`ssl_stapling_verify on`).
    KnownIssuer,
    /// It fits to a certificate in the response (`ssl_stapling_verify off`): clients verify the rest.
    SignatureAlone,
}

impl Verification {
    /// Roots are trusted for this purpose only as issuers: no file of nginx's directives can say more.
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
    /// `others` are certificates that may have signed a response, beside the issuer.
    pub fn new(certificate: Certificate, issuer: Certificate, others: Vec<Certificate>) -> Subject {
        Subject { certificate, issuer, others }
    }

    /// The URL of the responder in the certificate.
    pub fn url(&self) -> Option<String> {
        self.certificate.ocsp_url()
    }

    /// The request, in DER. It is always the same for a certificate.
    pub fn request(&self) -> Option<Vec<u8>> {
        status_request(&self.certificate, &self.issuer)
    }

    /// Judges a response at this time, in seconds since 1970.
    ///
    /// # Errors
    /// nginx's message.
    pub fn judge(
        &self,
        response: &[u8],
        roots: &Roots,
        verification: Verification,
        now: i64,
    ) -> Result<Known, String> {
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
        Ok(Known { status, until: raw.next_update })
    }
}

/// The rules of RFC 6960 section 4.2.2.1, in the words of OpenSSL.
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
    fn a_response_holds_from_its_time_to_the_next_one() {
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
