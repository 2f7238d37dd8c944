//! Issues certificates: a local CA, the server certificates that it signs, and the messages and certificates of ACME
//! ([`request`], [`challenge`]).
//!
//! [`LocalAuthority`] uses neither a directory nor a clock: its caller stores the PEM texts and passes the time. It
//! refuses a root certificate that [`LocalAuthority::create`] did not create: it signs with the name that it computes
//! for such a root.

use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, CustomExtension, DistinguishedName, DnType, ExtendedKeyUsagePurpose,
    IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

use crate::certificate::{FileError, Identity, certificates};
use crate::signing::KeyKind;
use crate::verify::Trust;
use crate::x509::{self, Certificate, KeyError, Purpose, Roots};

/// Length of a day in seconds.
const DAY: u64 = 24 * 60 * 60;

/// Validity of a root certificate. It is long because users must install each new root by hand.
const ROOT_TIME: Duration = Duration::from_secs(10 * 365 * DAY);

/// Remaining validity below which a root certificate is renewed. Clients need time to install the new root, and no
/// certificate may outlive its root.
const ROOT_TIME_MIN: Duration = Duration::from_secs(2 * 397 * DAY);

/// Validity of a server certificate. Some clients refuse certificates with more than 398 days.
pub const LEAF_TIME: Duration = Duration::from_secs(397 * DAY);

/// Time before the present at which the validity of new certificates begins, for clients whose clocks are slow.
const CLOCK_DIFFERENCE: Duration = Duration::from_secs(DAY);

/// Reason why a CA cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuthorityError {
    /// The root certificate cannot be read.
    Certificate(FileError),
    /// The private key cannot be read.
    Key(FileError),
    /// The key does not belong to the root certificate, with the library's message.
    Mismatch(String),
    /// The root certificate was created by another program.
    OtherProgram,
    /// Certificates of this CA fail verification, with OpenSSL's message.
    Distrusted(String),
    /// The library failed to create a certificate, with its message.
    Failed(String),
}

impl std::fmt::Display for AuthorityError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            AuthorityError::Certificate(error) | AuthorityError::Key(error) => error.fmt(f),
            AuthorityError::Mismatch(reason) => write!(f, "certificate and key do not match: {reason}"),
            AuthorityError::OtherProgram => f.write_str("another program created the root certificate"),
            AuthorityError::Distrusted(reason) => f.write_str(reason),
            AuthorityError::Failed(reason) => write!(f, "a certificate cannot be created: {reason}"),
        }
    }
}

impl std::error::Error for AuthorityError {}

impl From<rcgen::Error> for AuthorityError {
    fn from(error: rcgen::Error) -> AuthorityError {
        AuthorityError::Failed(error.to_string())
    }
}

/// A root certificate with its private key, which signs certificates of servers on this machine.
pub struct LocalAuthority {
    issuer: Issuer<'static, KeyPair>,
    root: CertificateDer<'static>,
}

impl std::fmt::Debug for LocalAuthority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LocalAuthority").finish_non_exhaustive()
    }
}

impl LocalAuthority {
    /// Creates a root certificate. Returns the certificate and its private key in PEM.
    pub fn create(now: SystemTime) -> Result<(String, String), AuthorityError> {
        let key = KeyPair::generate()?;
        let mut params = root_params(&key);
        set_validity(&mut params, now, ROOT_TIME);
        Ok((params.self_signed(&key)?.pem(), key.serialize_pem()))
    }

    /// Reads a root certificate that [`LocalAuthority::create`] created, and its key.
    pub fn open(certificate: &[u8], key: &[u8]) -> Result<LocalAuthority, AuthorityError> {
        let found = certificates(certificate).map_err(AuthorityError::Certificate)?;
        let [root] = found.as_slice() else { return Err(AuthorityError::OtherProgram) };
        let der = x509::private_key(key, &[]).map_err(|error| match error {
            KeyError::Unreadable(reason) => AuthorityError::Key(FileError::BadKey(reason)),
            KeyError::Password => AuthorityError::Key(FileError::Password),
        })?;
        x509::key_belongs_to(&der, root).map_err(AuthorityError::Mismatch)?;
        let der = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(der));
        let key = KeyPair::try_from(&der).map_err(|_| AuthorityError::OtherProgram)?;
        let params = root_params(&key);
        // The name contains a digest of the key, so no other root has the same name.
        let expected = params.self_signed(&key)?;
        if x509::subject_der(root) != x509::subject_der(expected.der()) {
            return Err(AuthorityError::OtherProgram);
        }
        Ok(LocalAuthority { issuer: Issuer::new(params, key), root: root.clone() })
    }

    /// Renews the root certificate with the same key and name if it expires soon. Clients that trust the old or the new
    /// certificate trust all certificates signed by the key. Returns the new certificate in PEM, and the remaining
    /// validity of the old one.
    pub fn renew(&mut self, now: SystemTime) -> Result<Option<(String, Duration)>, AuthorityError> {
        let remaining = remaining(Certificate::from_der(&self.root).and_then(|root| root.expires()), now);
        if remaining >= ROOT_TIME_MIN {
            return Ok(None);
        }
        let mut params = root_params(self.issuer.key());
        set_validity(&mut params, now, ROOT_TIME);
        // Clients refuse two certificates with the same issuer and serial number.
        let seconds = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        params.serial_number = Some(seconds.into());
        let root = params.self_signed(self.issuer.key())?;
        self.root = root.der().clone();
        Ok(Some((root.pem(), remaining)))
    }

    /// Issues a certificate with these names and addresses and this validity. Returns the certificate and its private
    /// key as one PEM text.
    pub fn issue(&self, names: &[String], now: SystemTime, time: Duration) -> Result<String, AuthorityError> {
        let mut params = CertificateParams::new(names)?;
        if let Some(name) = names.first() {
            params.distinguished_name.push(DnType::CommonName, name.as_str());
        }
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        set_validity(&mut params, now, time);
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?;
        let text = certificate.pem() + &key.serialize_pem();
        self.judge(&[certificate.der().clone()])?;
        Ok(text)
    }

    /// Returns the time until a certificate of [`LocalAuthority::issue`] must be replaced, which is half of `time`
    /// before it expires. Returns `None` if the certificate cannot be used for these names.
    pub fn usable_time(
        &self,
        text: &[u8],
        names: &[String],
        now: SystemTime,
        time: Duration,
    ) -> Option<Duration> {
        let identity = Identity::from_pem(text, text, &[]).ok()?;
        let chain = identity.chain();
        let certificate = chain.first().and_then(|first| Certificate::from_der(first));
        let is_for_all = certificate.is_some_and(|found| names.iter().all(|name| found.is_for(name)));
        let lasts = remaining(identity.expires(), now).saturating_sub(time / 2);
        (is_for_all && !lasts.is_zero() && self.judge(chain).is_ok()).then_some(lasts)
    }

    /// Verifies a chain like a client that trusts only this root.
    fn judge(&self, chain: &[CertificateDer<'_>]) -> Result<(), AuthorityError> {
        let mut roots = Roots::new().ok_or(AuthorityError::Failed("no memory".to_owned()))?;
        roots.add(&self.root).map_err(AuthorityError::Failed)?;
        let trust = Trust::new(roots, 1, Purpose::Server);
        trust.judge(chain).map_err(|distrust| AuthorityError::Distrusted(distrust.reason))
    }
}

/// Creates a self-signed placeholder for a server that has no certificate yet. Clients do not trust it.
pub fn placeholder(names: &[String], now: SystemTime) -> Result<Identity, AuthorityError> {
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, "no certificate has been issued yet");
    set_validity(&mut params, now, LEAF_TIME);
    self_signed(&params)
}

/// Creates a self-signed certificate with a new key of this type, for measurements. Returns certificate and key as one
/// PEM text.
pub fn self_signed_pem(names: &[String], kind: KeyKind, now: SystemTime) -> Result<String, AuthorityError> {
    let no_random = || AuthorityError::Failed("no random numbers".to_owned());
    let pem = crate::signing::generate(kind).ok_or_else(no_random)?;
    let mut params = CertificateParams::new(names)?;
    set_validity(&mut params, now, LEAF_TIME);
    Ok(params.self_signed(&KeyPair::from_pem(&pem)?)?.pem() + &pem)
}

/// Creates the certificate that proves to a CA that this server controls a name (`tls-alpn-01`, RFC 8737 section 3).
/// `proof` is the SHA-256 digest of the key authorization. Returns certificate and key as one PEM text.
pub fn challenge(name: &str, proof: &[u8; 32]) -> Result<String, AuthorityError> {
    let mut params = CertificateParams::new(vec![name.to_owned()])?;
    params.distinguished_name = DistinguishedName::new();
    params.custom_extensions = vec![CustomExtension::new_acme_identifier(proof)];
    let key = KeyPair::generate()?;
    Ok(params.self_signed(&key)?.pem() + &key.serialize_pem())
}

/// Creates a certificate signing request (CSR, RFC 2986) in DER, signed by the private key of the requested
/// certificate.
pub fn request(names: &[String], common_name: Option<&str>, key: &[u8]) -> Result<Vec<u8>, AuthorityError> {
    let der = x509::private_key(key, &[]).map_err(|error| match error {
        KeyError::Unreadable(reason) => AuthorityError::Key(FileError::BadKey(reason)),
        KeyError::Password => AuthorityError::Key(FileError::Password),
    })?;
    let key = KeyPair::try_from(&PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(der)))?;
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name = DistinguishedName::new();
    if let Some(name) = common_name {
        params.distinguished_name.push(DnType::CommonName, name);
    }
    Ok(params.serialize_request(&key)?.der().to_vec())
}

fn self_signed(params: &CertificateParams) -> Result<Identity, AuthorityError> {
    let key = KeyPair::generate()?;
    let text = params.self_signed(&key)?.pem() + &key.serialize_pem();
    Identity::from_pem(text.as_bytes(), text.as_bytes(), &[]).map_err(AuthorityError::Certificate)
}

/// Returns the remaining validity of a certificate that expires at `end`.
fn remaining(end: Option<i64>, now: SystemTime) -> Duration {
    let since_1970 = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let end = end.and_then(|end| u64::try_from(end).ok()).unwrap_or_default();
    Duration::from_secs(end).saturating_sub(since_1970)
}

/// Returns the parameters of a root certificate, without its validity.
fn root_params(key: &KeyPair) -> CertificateParams {
    let mut params = CertificateParams::default();
    let digest = crate::digest(key.public_key_raw());
    let short: String = digest.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, "Ringroad");
    params.distinguished_name.push(DnType::CommonName, format!("Ringroad local authority {short}"));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

fn set_validity(params: &mut CertificateParams, now: SystemTime, time: Duration) {
    let since_1970 = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    params.not_before = epoch + since_1970.saturating_sub(CLOCK_DIFFERENCE);
    params.not_after = epoch + since_1970 + time;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> Vec<String> {
        ["localhost", "127.0.0.1", "::1"].map(str::to_owned).to_vec()
    }

    #[test]
    fn a_certificate_is_trusted_for_its_names_by_its_root() {
        let now = SystemTime::now();
        let (root, key) = LocalAuthority::create(now).expect("a root");
        let authority = LocalAuthority::open(root.as_bytes(), key.as_bytes()).expect("it is its own");
        let text = authority.issue(&names(), now, LEAF_TIME).expect("a certificate");
        let lasts =
            |text: &[u8], names: &[String], now| authority.usable_time(text, names, now, LEAF_TIME).is_some();
        assert!(lasts(text.as_bytes(), &names(), now));
        let more = [names(), vec!["example.org".to_owned()]].concat();
        assert!(!lasts(text.as_bytes(), &more, now), "it is not for the last name");
        assert!(lasts(text.as_bytes(), &names(), now + LEAF_TIME / 2 - Duration::from_secs(DAY)));
        let late = now + LEAF_TIME / 2 + Duration::from_secs(DAY);
        assert!(!lasts(text.as_bytes(), &names(), late), "it is near its end");
        assert!(!lasts(b"", &names(), now));
    }

    /// Clients that trust the old or the new root accept certificates that either root has signed.
    #[test]
    fn a_root_near_expiration_is_renewed_with_its_key() {
        let now = SystemTime::now();
        let long_ago = now - (ROOT_TIME - ROOT_TIME_MIN) - CLOCK_DIFFERENCE;
        let (old, key) = LocalAuthority::create(long_ago).expect("a root");
        let open = |root: &str| LocalAuthority::open(root.as_bytes(), key.as_bytes()).expect("it is its own");
        assert_eq!(open(&old).renew(long_ago).expect("no error"), None, "it is new");
        let mut authority = open(&old);
        let (new, left) = authority.renew(now).expect("no error").expect("it ends soon");
        assert!(left < ROOT_TIME_MIN && left + 2 * CLOCK_DIFFERENCE > ROOT_TIME_MIN, "{left:?}");
        assert_eq!(authority.renew(now).expect("no error"), None, "once");
        let text = authority.issue(&names(), now, LEAF_TIME).expect("a certificate");
        for root in [&old, &new] {
            let current = open(root).usable_time(text.as_bytes(), &names(), now, LEAF_TIME);
            assert!(current.is_some(), "it is trusted");
        }
        let serial = |pem: &str| {
            let chain = certificates(pem.as_bytes()).expect("PEM");
            Certificate::from_der(&chain[0]).expect("a certificate").serial()
        };
        assert_ne!(serial(&old), serial(&new));
    }

    #[test]
    fn another_root_is_refused() {
        let now = SystemTime::now();
        let (root, key) = LocalAuthority::create(now).expect("a root");
        let (_, other_key) = LocalAuthority::create(now).expect("a root");
        let opened = LocalAuthority::open(root.as_bytes(), other_key.as_bytes());
        assert!(matches!(opened, Err(AuthorityError::Mismatch(_))), "{opened:?}");
        let foreign_key = KeyPair::generate().expect("a key");
        let foreign = CertificateParams::default().self_signed(&foreign_key).expect("a certificate");
        let opened = LocalAuthority::open(foreign.pem().as_bytes(), foreign_key.serialize_pem().as_bytes());
        assert_eq!(opened.err(), Some(AuthorityError::OtherProgram));
        let opened = LocalAuthority::open(b"damaged", key.as_bytes());
        assert_eq!(opened.err(), Some(AuthorityError::Certificate(FileError::NoCertificate)));
        let opened = LocalAuthority::open(root.as_bytes(), b"damaged");
        assert!(matches!(opened, Err(AuthorityError::Key(FileError::BadKey(_)))), "{opened:?}");
    }

    #[test]
    fn an_expired_root_signs_nothing() {
        let now = SystemTime::now();
        let (root, key) = LocalAuthority::create(now - ROOT_TIME - CLOCK_DIFFERENCE).expect("a root");
        let authority = LocalAuthority::open(root.as_bytes(), key.as_bytes()).expect("it is its own");
        let issued = authority.issue(&names(), now, LEAF_TIME);
        let expected = AuthorityError::Distrusted("certificate has expired".to_owned());
        assert_eq!(issued.err(), Some(expected));
    }
}
