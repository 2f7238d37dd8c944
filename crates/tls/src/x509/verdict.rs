//! Verdicts about chains: the numbers and messages of OpenSSL 3, and the rules that aws-lc does not check.

use std::ffi::{c_int, c_long};

use aws_lc_sys as ffi;

use super::object::{Certificate, error_text};
use super::verification::{ChainResult, Purpose, Roots};

/// Reason why a chain is not trusted, with OpenSSL's number and message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Distrust {
    /// `X509_V_ERR_*`
    pub code: i32,
    /// The message for the number.
    pub reason: String,
    /// The last error of the chain; `code` is the first error.
    last: i32,
}

impl std::fmt::Display for Distrust {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.reason)
    }
}

/// The errors for a missing or untrusted root. If the last error is one of these, `optional_no_ca` accepts a client, as in nginx.
const NOT_FROM_A_ROOT: [i32; 5] = [
    ffi::X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT,
    ffi::X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN,
    ffi::X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY,
    ffi::X509_V_ERR_CERT_UNTRUSTED,
    ffi::X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE,
];

impl Distrust {
    /// Whether the error is that the root is missing or not trusted (`ssl_verify_client optional_no_ca`).
    pub fn is_only_unknown_root(&self) -> bool {
        NOT_FROM_A_ROOT.contains(&self.code)
    }

    /// Returns the verdict of an OCSP check, which has no error number.
    pub fn by_authority(reason: &str) -> Distrust {
        Distrust { code: ffi::X509_V_OK, reason: reason.to_owned(), last: ffi::X509_V_OK }
    }

    /// Returns the verdict as nginx logs it: number and reason, or only the reason if there is no number.
    pub fn logged(&self) -> String {
        match self.code {
            ffi::X509_V_OK => self.reason.clone(),
            code => format!("({code}:{})", self.reason),
        }
    }

    /// Converts the verdict to nginx's verdict about a client: the last error, because nginx lets OpenSSL continue after an error.
    pub(crate) fn of_client(self) -> Distrust {
        distrust(self.last)
    }
}

/// Maximum number of certificates between the peer's certificate and a root, in aws-lc and in OpenSSL.
const DEPTH_MAX: u32 = 100;

/// OpenSSL 3's number for a certificate that may not sign others. aws-lc has the number of OpenSSL 1, 24.
const INVALID_CA_OF_OPENSSL_3: i32 = 79;

/// The depth of an error that is not about a single certificate.
const NOT_OF_ONE: c_int = -1;

/// The result for a chain: the first error with the position of the certificate that caused it, and the last error.
struct CheckedChain {
    code: i32,
    depth: c_int,
    last: i32,
}

impl Roots {
    /// Verifies a chain. Its first certificate must be the peer's; the others may be in any order. `depth_max` is the
    /// maximum number of certificates between the peer's certificate and a root.
    pub fn verify(
        &self,
        chain: &[impl AsRef<[u8]>],
        purpose: Purpose,
        depth_max: u32,
    ) -> Result<(), Distrust> {
        let depth_max = depth_max.min(DEPTH_MAX);
        let Some((verdict, _)) = self.judge(chain, purpose, depth_max) else {
            return Err(distrust(ffi::X509_V_ERR_UNSPECIFIED));
        };
        if verdict.code == ffi::X509_V_OK {
            return Ok(());
        }
        // If a chain reaches the limit without a root, aws-lc reports a missing issuer of the last certificate, which
        // `optional_no_ca` would treat as an unknown root. OpenSSL reports that the chain is too long.
        let is_incomplete = NOT_FROM_A_ROOT.contains(&verdict.code)
            || verdict.code == ffi::X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT;
        if is_incomplete && u32::try_from(verdict.depth).is_ok_and(|depth| depth > depth_max) {
            return Err(distrust(ffi::X509_V_ERR_CERT_CHAIN_TOO_LONG));
        }
        Err(Distrust { last: verdict.last, ..distrust(verdict.code) })
    }

    /// Returns the chain from the peer's certificate to a root, if [`Roots::verify`] accepts the chain.
    pub(crate) fn chain(
        &self,
        chain: &[impl AsRef<[u8]>],
        purpose: Purpose,
        depth_max: u32,
    ) -> Option<Vec<Certificate>> {
        let (verdict, verified) = self.judge(chain, purpose, depth_max.min(DEPTH_MAX))?;
        (verdict.code == ffi::X509_V_OK).then_some(verified)
    }

    /// Returns the verdict about a chain, and the chain from the peer's certificate to a root. Returns `None` if the chain is
    /// empty, a certificate is invalid, or memory is exhausted.
    fn judge(
        &self,
        chain: &[impl AsRef<[u8]>],
        purpose: Purpose,
        depth_max: u32,
    ) -> Option<(CheckedChain, Vec<Certificate>)> {
        let certificates: Option<Vec<Certificate>> =
            chain.iter().map(|der| Certificate::from_der(der.as_ref())).collect();
        let certificates = certificates?;
        let (peer, others) = certificates.split_first()?;
        let outcome = self.run(peer, others, purpose, depth_max)?;
        Some((verdict(&outcome, peer), outcome.chain))
    }
}

/// Returns the verdict for the library's outcome.
fn verdict(outcome: &ChainResult, peer: &Certificate) -> CheckedChain {
    match (outcome.errors.first(), outcome.errors.last()) {
        (Some(&(code, depth)), Some(&(last, _))) => {
            let last = match last {
                // The library could not continue.
                _ if !outcome.is_complete => ffi::X509_V_ERR_UNSPECIFIED,
                // Unlike OpenSSL, aws-lc does not check the time of a certificate whose issuer is unknown.
                ffi::X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE => time_error(peer).unwrap_or(last),
                _ => last,
            };
            CheckedChain { code, depth, last }
        }
        _ => {
            let code = match outcome.code {
                _ if outcome.is_complete && root_allows_length(&outcome.chain) => ffi::X509_V_OK,
                _ if outcome.is_complete => ffi::X509_V_ERR_PATH_LENGTH_EXCEEDED,
                ffi::X509_V_OK => ffi::X509_V_ERR_UNSPECIFIED,
                code => code,
            };
            CheckedChain { code, depth: NOT_OF_ONE, last: code }
        }
    }
}

/// Returns the error if a certificate is not valid now.
fn time_error(certificate: &Certificate) -> Option<i32> {
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed().ok()?.as_secs();
    let now = i64::try_from(now).ok()?;
    match (certificate.begins()?, certificate.expires()?) {
        (begins, _) if begins > now => Some(ffi::X509_V_ERR_CERT_NOT_YET_VALID),
        (_, expires) if expires < now => Some(ffi::X509_V_ERR_CERT_HAS_EXPIRED),
        _ => None,
    }
}

/// Whether the path length constraint of the root allows the length of a verified chain. aws-lc does not check the constraint of a
/// self-issued certificate; OpenSSL 3 does (RFC 5280 section 4.2.1.9).
fn root_allows_length(chain: &[Certificate]) -> bool {
    let [_, between @ .., root] = chain else { return true };
    let below = between.iter().filter(|certificate| !certificate.is_self_issued()).count();
    root.path_length().is_none_or(|limit| c_long::try_from(below).is_ok_and(|below| below <= limit))
}

/// Returns an error with the number and message of OpenSSL 3. aws-lc has some numbers and messages of OpenSSL 1.
fn distrust(code: i32) -> Distrust {
    let reason = match code {
        ffi::X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT => "self-signed certificate".to_owned(),
        ffi::X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN => {
            "self-signed certificate in certificate chain".to_owned()
        }
        ffi::X509_V_ERR_INVALID_PURPOSE => "unsuitable certificate purpose".to_owned(),
        _ => error_text(code),
    };
    let code = if code == ffi::X509_V_ERR_INVALID_CA { INVALID_CA_OF_OPENSSL_3 } else { code };
    Distrust { code, reason, last: code }
}
