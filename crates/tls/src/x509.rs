//! Certificates, private keys and chains, parsed and verified by aws-lc. Errors have the messages of
//! OpenSSL, which users of nginx know.
//!
//! rustls' own verifier (webpki) refuses certificates of version 1 and has other messages. [`Certificate`] is one
//! certificate and the values of `$ssl_client_*`, [`Roots`] verifies a chain, [`private_key`] reads a key, with its
//! password if it has one, [`read_status`] reads the status of a certificate from an OCSP response. This is the only file of the
//! crate with unsafe code.

use std::ffi::{CStr, c_char, c_int, c_long, c_uint, c_void};
use std::net::IpAddr;
use std::ptr::{self, NonNull};

use aws_lc_sys as ffi;

// SAFETY: called only by `Owned::drop`, once, with an object of its type that the library allocated.
type Free<T> = unsafe extern "C" fn(*mut T);

/// An object of aws-lc that is freed with its owner.
struct Owned<T> {
    object: NonNull<T>,
    free: Free<T>,
}

impl<T> Owned<T> {
    /// Returns `None` if the library returned a null pointer. `free` is the function that frees objects of this type.
    fn new(object: *mut T, free: Free<T>) -> Option<Owned<T>> {
        NonNull::new(object).map(|object| Owned { object, free })
    }

    fn as_ptr(&self) -> *mut T {
        self.object.as_ptr()
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        // SAFETY: the object came from the library, `free` is the function for its type, and it is freed once.
        unsafe { (self.free)(self.object.as_ptr()) }
    }
}

unsafe extern "C" fn free_bio(bio: *mut ffi::BIO) {
    // SAFETY: called by `Owned::drop` with a BIO that it owns.
    let _ = unsafe { ffi::BIO_free(bio) };
}

unsafe extern "C" fn free_stack(stack: *mut ffi::OPENSSL_STACK) {
    // SAFETY: called by `Owned::drop` with a stack that it owns. The stack does not own its elements.
    unsafe { ffi::OPENSSL_sk_free(stack) }
}

unsafe extern "C" fn free_texts(texts: *mut ffi::stack_st_OPENSSL_STRING) {
    // SAFETY: called by `Owned::drop` with a list that it owns, with its texts.
    unsafe { ffi::X509_email_free(texts) }
}

/// Returns a list of certificates. The caller owns the certificates, which must outlive the list.
fn stack_of<'c>(certificates: impl Iterator<Item = &'c Certificate>) -> Option<Owned<ffi::OPENSSL_STACK>> {
    // SAFETY: the function has no argument.
    let stack = Owned::new(unsafe { ffi::OPENSSL_sk_new_null() }, free_stack)?;
    for certificate in certificates {
        // SAFETY: a valid stack and an object that outlives it.
        if unsafe { ffi::OPENSSL_sk_push(stack.as_ptr(), certificate.0.as_ptr().cast()) } == 0 {
            return None;
        }
    }
    Some(stack)
}

/// Returns the text that the library writes to a BIO.
fn text(write: impl FnOnce(*mut ffi::BIO) -> c_int) -> Option<String> {
    // SAFETY: the function has no argument and returns a static table.
    let method = unsafe { ffi::BIO_s_mem() };
    // SAFETY: `method` is a valid table.
    let bio = Owned::new(unsafe { ffi::BIO_new(method) }, free_bio)?;
    if write(bio.as_ptr()) < 0 {
        return None;
    }
    let (mut bytes, mut len) = (ptr::null(), 0);
    // SAFETY: a BIO in memory, and two variables for the results.
    if unsafe { ffi::BIO_mem_contents(bio.as_ptr(), &raw mut bytes, &raw mut len) } != 1 || bytes.is_null() {
        return Some(String::new());
    }
    // SAFETY: the library guarantees this many bytes, and the BIO lives to the end of this function.
    let bytes = unsafe { std::slice::from_raw_parts(bytes, len) };
    Some(String::from_utf8_lossy(bytes).into_owned())
}

/// Returns the message of the last error in this thread's error queue, and empties the queue.
fn last_error() -> String {
    // SAFETY: reads the queue of errors of this thread.
    let code = unsafe { ffi::ERR_peek_last_error() };
    // SAFETY: any number is valid; the result is static text or null.
    let reason = unsafe { ffi::ERR_reason_error_string(code) };
    // SAFETY: empties the queue of errors of this thread.
    unsafe { ffi::ERR_clear_error() };
    if reason.is_null() {
        return "unknown error".to_owned();
    }
    // SAFETY: static text that ends with a zero byte.
    let reason = unsafe { CStr::from_ptr(reason) };
    reason.to_string_lossy().to_lowercase().replace('_', " ")
}

/// A certificate.
pub struct Certificate(Owned<ffi::X509>);

// SAFETY: the object has a lock for lazily computed values, and its reference count is atomic.
unsafe impl Send for Certificate {}
// SAFETY: as above; all functions here only read it.
unsafe impl Sync for Certificate {}

/// The text form of a distinguished name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameForm {
    /// `CN=name,O=organisation` (RFC 2253), as in `$ssl_client_s_dn`.
    Rfc2253,
    /// `/O=organisation/CN=name`, as in `$ssl_client_s_dn_legacy`.
    Legacy,
}

impl Certificate {
    /// Parses a certificate.
    pub fn from_der(der: &[u8]) -> Option<Certificate> {
        let mut input = der.as_ptr();
        let len = c_long::try_from(der.len()).ok()?;
        // SAFETY: `input` points to `len` bytes that outlive the call; no object is reused.
        let object = unsafe { ffi::d2i_X509(ptr::null_mut(), &raw mut input, len) };
        let certificate = Owned::new(object, ffi::X509_free).map(Certificate);
        // OpenSSL refuses a peer's certificate that is followed by further bytes.
        let certificate = certificate.filter(|_| ptr::eq(input, der.as_ptr_range().end));
        if certificate.is_none() {
            let _ = last_error();
        }
        certificate
    }

    /// Parses a certificate that may be followed by trust settings, as in a PEM section `TRUSTED CERTIFICATE`. A verification uses
    /// these settings.
    fn with_trust_settings(der: &[u8]) -> Option<Certificate> {
        let mut input = der.as_ptr();
        let len = c_long::try_from(der.len()).ok()?;
        // SAFETY: `input` points to `len` bytes that outlive the call; no object is reused.
        let object = unsafe { ffi::d2i_X509_AUX(ptr::null_mut(), &raw mut input, len) };
        let certificate = Owned::new(object, ffi::X509_free).map(Certificate);
        certificate.filter(|_| ptr::eq(input, der.as_ptr_range().end))
    }

    /// Returns the subject's name.
    pub fn subject(&self, form: NameForm) -> Option<String> {
        // SAFETY: a valid certificate; the name belongs to it.
        name(unsafe { ffi::X509_get_subject_name(self.0.as_ptr()) }, form)
    }

    /// Returns the issuer's name.
    pub fn issuer(&self, form: NameForm) -> Option<String> {
        // SAFETY: as in `subject`.
        name(unsafe { ffi::X509_get_issuer_name(self.0.as_ptr()) }, form)
    }

    /// Returns the serial number in upper-case hexadecimal digits.
    pub fn serial(&self) -> Option<String> {
        // SAFETY: a valid certificate; the number belongs to it.
        let serial = unsafe { ffi::X509_get_serialNumber(self.0.as_ptr()) };
        // SAFETY: a valid BIO and a valid number.
        text(|bio| unsafe { ffi::i2a_ASN1_INTEGER(bio, serial) })
    }

    /// Returns the SHA-1 digest of the certificate in lower-case hexadecimal digits.
    pub fn fingerprint(&self) -> Option<String> {
        let mut digest = [0; ffi::EVP_MAX_MD_SIZE as usize];
        let mut len: c_uint = 0;
        // SAFETY: the function has no argument and returns a static table.
        let sha1 = unsafe { ffi::EVP_sha1() };
        // SAFETY: the array has room for any digest, and `len` is a variable for its length.
        let done = unsafe { ffi::X509_digest(self.0.as_ptr(), sha1, digest.as_mut_ptr(), &raw mut len) };
        let digest = digest.get(..len as usize).filter(|_| done == 1)?;
        Some(digest.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// Returns the start of validity, such as `May  4 10:00:00 2026 GMT`.
    pub fn not_before(&self) -> Option<String> {
        // SAFETY: a valid certificate; the time belongs to it.
        time(unsafe { ffi::X509_get0_notBefore(self.0.as_ptr()) })
    }

    /// Returns the end of validity, such as `May  4 10:00:00 2027 GMT`.
    pub fn not_after(&self) -> Option<String> {
        // SAFETY: as in `not_before`.
        time(unsafe { ffi::X509_get0_notAfter(self.0.as_ptr()) })
    }

    /// Returns the end of validity in seconds since 1970.
    pub fn expires(&self) -> Option<i64> {
        // SAFETY: as in `not_before`.
        seconds_of(unsafe { ffi::X509_get0_notAfter(self.0.as_ptr()) })
    }

    /// Returns the start of validity in seconds since 1970.
    pub fn begins(&self) -> Option<i64> {
        // SAFETY: as in `not_before`.
        seconds_of(unsafe { ffi::X509_get0_notBefore(self.0.as_ptr()) })
    }

    /// Returns the error if the certificate is not valid now.
    fn time_error(&self) -> Option<i32> {
        let now = std::time::SystemTime::UNIX_EPOCH.elapsed().ok()?.as_secs();
        let now = i64::try_from(now).ok()?;
        match (self.begins()?, self.expires()?) {
            (begins, _) if begins > now => Some(ffi::X509_V_ERR_CERT_NOT_YET_VALID),
            (_, expires) if expires < now => Some(ffi::X509_V_ERR_CERT_HAS_EXPIRED),
            _ => None,
        }
    }

    /// Returns the authority key identifier (RFC 5280 section 4.2.1.1), if the certificate has one.
    pub fn authority_key_id(&self) -> Option<Vec<u8>> {
        // SAFETY: a valid certificate; the string belongs to it, and the library locks its computed values.
        let id = NonNull::new(unsafe { ffi::X509_get0_authority_key_id(self.0.as_ptr()) }.cast_mut())?;
        // SAFETY: a valid string.
        let bytes = unsafe { ffi::ASN1_STRING_get0_data(id.as_ptr()) };
        // SAFETY: as above.
        let len = unsafe { ffi::ASN1_STRING_length(id.as_ptr()) };
        let len = usize::try_from(len).ok().filter(|_| !bytes.is_null())?;
        // SAFETY: the string has this many bytes and lives as long as the certificate.
        Some(unsafe { std::slice::from_raw_parts(bytes, len) }.to_vec())
    }

    /// Returns the public key (SubjectPublicKeyInfo, RFC 5280 section 4.1).
    pub fn public_key(&self) -> Option<Vec<u8>> {
        // SAFETY: a valid certificate; the key belongs to it.
        let key = unsafe { ffi::X509_get_X509_PUBKEY(self.0.as_ptr()) };
        let mut out = ptr::null_mut();
        // SAFETY: a valid key; where `out` is null the library allocates.
        let len = unsafe { ffi::i2d_X509_PUBKEY(key, &raw mut out) };
        library_bytes(out, usize::try_from(len).ok()?)
    }

    /// Returns the first URL of an OCSP responder in the certificate (RFC 5280 section 4.2.2.1).
    pub fn ocsp_url(&self) -> Option<String> {
        // SAFETY: a valid certificate; the list is new and belongs to this function.
        let urls = Owned::new(unsafe { ffi::X509_get1_ocsp(self.0.as_ptr()) }, free_texts)?;
        let list: *const ffi::OPENSSL_STACK = urls.as_ptr().cast();
        // SAFETY: a valid list; beyond its end the result is null.
        let first: *const c_char = unsafe { ffi::OPENSSL_sk_value(list, 0) }.cast();
        if first.is_null() {
            return None;
        }
        // SAFETY: text that ends with a zero byte and lives as long as the list.
        Some(unsafe { CStr::from_ptr(first) }.to_string_lossy().into_owned())
    }

    /// Whether this certificate is the issuer of another one, by the names and the authority key identifier of the other certificate.
    pub fn is_issuer_of(&self, other: &Certificate) -> bool {
        // SAFETY: two valid certificates; the library locks their computed values.
        unsafe { ffi::X509_check_issued(self.0.as_ptr(), other.0.as_ptr()) == ffi::X509_V_OK }
    }

    /// Returns another reference to the same certificate.
    fn share(certificate: *mut ffi::X509) -> Option<Certificate> {
        let certificate = NonNull::new(certificate)?;
        // SAFETY: a valid certificate; the new reference belongs to the result.
        let _ = unsafe { ffi::X509_up_ref(certificate.as_ptr()) };
        Owned::new(certificate.as_ptr(), ffi::X509_free).map(Certificate)
    }

    /// Whether the certificate is valid for a host name or an IP address. No certificate is valid for an empty name.
    pub fn is_for(&self, host: &str) -> bool {
        // For length 0 the library calls strlen(3), but a name in Rust does not end with a zero byte.
        if host.is_empty() {
            return false;
        }
        let bytes = match host.parse::<IpAddr>() {
            Ok(IpAddr::V4(address)) => address.octets().to_vec(),
            Ok(IpAddr::V6(address)) => address.octets().to_vec(),
            Err(_) => {
                let (name, len) = (host.as_ptr().cast(), host.len());
                // SAFETY: a valid certificate, and a name of `len` bytes, which is not 0. The matching name is not requested.
                let found = unsafe { ffi::X509_check_host(self.0.as_ptr(), name, len, 0, ptr::null_mut()) };
                return found == 1;
            }
        };
        // SAFETY: a valid certificate, and an address of this many bytes.
        unsafe { ffi::X509_check_ip(self.0.as_ptr(), bytes.as_ptr(), bytes.len(), 0) == 1 }
    }
}

impl Clone for Certificate {
    /// Returns another reference to the same certificate object.
    fn clone(&self) -> Certificate {
        Certificate::share(self.0.as_ptr()).expect("it is there")
    }
}

impl std::fmt::Debug for Certificate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Certificate").field(&self.subject(NameForm::Rfc2253)).finish()
    }
}

/// Returns the text of a distinguished name. The name must be valid during the call.
fn name(name: *mut ffi::X509_NAME, form: NameForm) -> Option<String> {
    match form {
        NameForm::Rfc2253 => {
            // Bytes outside ASCII are escaped, as in nginx.
            let flags = ffi::XN_FLAG_RFC2253 as std::ffi::c_ulong;
            // SAFETY: a valid BIO and a valid name.
            text(|bio| unsafe { ffi::X509_NAME_print_ex(bio, name, 0, flags) })
        }
        NameForm::Legacy => {
            // SAFETY: a valid name; without a buffer the library allocates one.
            let line = unsafe { ffi::X509_NAME_oneline(name, ptr::null_mut(), 0) };
            if line.is_null() {
                return None;
            }
            // SAFETY: text that ends with a zero byte.
            let text = unsafe { CStr::from_ptr(line) }.to_string_lossy().into_owned();
            // SAFETY: the library allocated it, and nothing refers to it any more.
            unsafe { ffi::OPENSSL_free(line.cast()) };
            Some(text)
        }
    }
}

/// Formats an ASN.1 time as text. `time` must point to a live `ASN1_TIME` during the call.
fn time(time: *const ffi::ASN1_TIME) -> Option<String> {
    // SAFETY: a valid BIO and a valid time.
    text(|bio| unsafe { ffi::ASN1_TIME_print(bio, time) })
}

/// Returns the subject's name of a certificate in DER.
pub(crate) fn subject_der(der: &[u8]) -> Option<Vec<u8>> {
    let certificate = Certificate::from_der(der)?;
    // SAFETY: a valid certificate; the name belongs to it.
    let name = unsafe { ffi::X509_get_subject_name(certificate.0.as_ptr()) };
    let mut out = ptr::null_mut();
    // SAFETY: a valid name; where `out` is null the library allocates.
    let len = unsafe { ffi::i2d_X509_NAME(name, &raw mut out) };
    library_bytes(out, usize::try_from(len).ok()?)
}

/// Copies bytes that the library allocated, and frees them.
fn library_bytes(bytes: *mut u8, len: usize) -> Option<Vec<u8>> {
    if bytes.is_null() {
        return None;
    }
    // SAFETY: the library guarantees this many bytes.
    let copy = unsafe { std::slice::from_raw_parts(bytes, len) }.to_vec();
    // SAFETY: the library allocated them, and nothing refers to them any more.
    unsafe { ffi::OPENSSL_free(bytes.cast()) };
    Some(copy)
}

/// Trusted CA certificates, and CRLs.
pub struct Roots {
    store: Owned<ffi::X509_STORE>,
    has_crls: bool,
}

// SAFETY: a store has its own lock, and its reference count is atomic.
unsafe impl Send for Roots {}
// SAFETY: as above; it is not changed once it is shared (`add_*` take `&mut self`).
unsafe impl Sync for Roots {}

/// The side of a connection that presents a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A client presents the certificate.
    Client,
    /// An upstream presents the certificate.
    Server,
}

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

/// The library's result for a chain: the first error with the position of the certificate that caused it, and the last error.
struct Verdict {
    code: i32,
    depth: c_int,
    last: i32,
}

/// All errors of a verification, with the positions of the certificates that caused them: 0 is the peer's.
type Errors = Vec<(i32, c_int)>;

impl Roots {
    /// Creates an empty set. Returns `None` if memory allocation fails.
    pub fn new() -> Option<Roots> {
        // SAFETY: the function has no argument.
        let store = Owned::new(unsafe { ffi::X509_STORE_new() }, ffi::X509_STORE_free)?;
        Some(Roots { store, has_crls: false })
    }

    /// Adds a trusted certificate, which may be followed by trust settings: uses for which it is trusted or rejected.
    pub fn add(&mut self, der: &[u8]) -> Result<(), String> {
        let Some(certificate) = Certificate::with_trust_settings(der) else { return Err(last_error()) };
        // SAFETY: two valid objects; the store counts another reference.
        match unsafe { ffi::X509_STORE_add_cert(self.store.as_ptr(), certificate.0.as_ptr()) } {
            1 => Ok(()),
            _ => Err(last_error()),
        }
    }

    /// Adds a certificate revocation list (CRL). Once any CRL is loaded, verification requires a CRL from the issuer of
    /// every certificate in the chain.
    pub fn add_crl(&mut self, der: &[u8]) -> Result<(), String> {
        let mut input = der.as_ptr();
        let len = c_long::try_from(der.len()).map_err(|_| "it is too long".to_owned())?;
        // SAFETY: `input` points to `len` bytes that outlive the call; no object is reused.
        let crl = unsafe { ffi::d2i_X509_CRL(ptr::null_mut(), &raw mut input, len) };
        let Some(crl) = Owned::new(crl, ffi::X509_CRL_free) else { return Err(last_error()) };
        // SAFETY: two valid objects; the store counts another reference.
        if unsafe { ffi::X509_STORE_add_crl(self.store.as_ptr(), crl.as_ptr()) } != 1 {
            return Err(last_error());
        }
        self.has_crls = true;
        let flags = (ffi::X509_V_FLAG_CRL_CHECK | ffi::X509_V_FLAG_CRL_CHECK_ALL) as std::ffi::c_ulong;
        // SAFETY: a valid store that is not shared yet, and flags that the library knows.
        let _ = unsafe { ffi::X509_STORE_set_flags(self.store.as_ptr(), flags) };
        Ok(())
    }

    /// Verifies a chain. Its first certificate must be the peer's; the others may be in any order. `depth_max` is the
    /// maximum number of certificates between the peer's certificate and a root.
    pub fn verify(
        &self,
        chain: &[impl AsRef<[u8]>],
        purpose: Purpose,
        depth_max: u32,
    ) -> Result<(), Distrust> {
        let invalid = || distrust(ffi::X509_V_ERR_UNSPECIFIED);
        let certificates: Option<Vec<Certificate>> =
            chain.iter().map(|der| Certificate::from_der(der.as_ref())).collect();
        let certificates = certificates.filter(|all| !all.is_empty()).ok_or_else(invalid)?;
        let depth_max = depth_max.min(DEPTH_MAX);
        let verdict = self.judge(&certificates, purpose, depth_max, None).ok_or_else(invalid)?;
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
        let certificates: Option<Vec<Certificate>> =
            chain.iter().map(|der| Certificate::from_der(der.as_ref())).collect();
        let certificates = certificates.filter(|all| !all.is_empty())?;
        let mut verified = Vec::new();
        let verdict = self.judge(&certificates, purpose, depth_max.min(DEPTH_MAX), Some(&mut verified))?;
        (verdict.code == ffi::X509_V_OK).then_some(verified)
    }

    /// Verifies a non-empty chain by the library, and stores an accepted chain in `verified`. Returns `None` if memory is exhausted.
    fn judge(
        &self,
        certificates: &[Certificate],
        purpose: Purpose,
        depth_max: u32,
        verified: Option<&mut Vec<Certificate>>,
    ) -> Option<Verdict> {
        let others = stack_of(certificates[1..].iter())?;
        // SAFETY: the function has no argument.
        let context = Owned::new(unsafe { ffi::X509_STORE_CTX_new() }, ffi::X509_STORE_CTX_free)?;
        let (store, first) = (self.store.as_ptr(), certificates[0].0.as_ptr());
        // SAFETY: four valid objects that outlive the context. A stack of certificates is a stack.
        if unsafe { ffi::X509_STORE_CTX_init(context.as_ptr(), store, first, others.as_ptr().cast()) } != 1 {
            return None;
        }
        self.configure(context.as_ptr(), purpose, depth_max);
        let mut errors = Errors::new();
        // SAFETY: an initialised context, and a value that the callback expects, which outlives the verification.
        let is_set = unsafe {
            ffi::X509_STORE_CTX_set_ex_data(context.as_ptr(), 0, ptr::from_mut(&mut errors).cast())
        };
        if is_set != 1 {
            return None;
        }
        // SAFETY: an initialised context.
        unsafe { ffi::X509_STORE_CTX_set_verify_cb(context.as_ptr(), Some(note_error)) };
        // SAFETY: as above.
        let is_complete = unsafe { ffi::X509_verify_cert(context.as_ptr()) } == 1;
        let _ = last_error();
        let is_trusted = is_complete && errors.is_empty();
        if let Some(verified) = verified.filter(|_| is_trusted) {
            *verified = chain_of(context.as_ptr())?;
        }
        Some(match (errors.first(), errors.last()) {
            _ if is_trusted => {
                let is_allowed = root_allows_length(context.as_ptr());
                let code = if is_allowed { ffi::X509_V_OK } else { ffi::X509_V_ERR_PATH_LENGTH_EXCEEDED };
                Verdict { code, depth: NOT_OF_ONE, last: code }
            }
            (Some(&(code, depth)), Some(&(last, _))) => {
                let last = match last {
                    // The library could not continue.
                    _ if !is_complete => ffi::X509_V_ERR_UNSPECIFIED,
                    // Unlike OpenSSL, aws-lc does not check the time of a certificate whose issuer is unknown.
                    ffi::X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE => {
                        certificates[0].time_error().unwrap_or(last)
                    }
                    _ => last,
                };
                Verdict { code, depth, last }
            }
            _ => {
                // SAFETY: as above.
                let code = unsafe { ffi::X509_STORE_CTX_get_error(context.as_ptr()) };
                let code = if code == ffi::X509_V_OK { ffi::X509_V_ERR_UNSPECIFIED } else { code };
                Verdict { code, depth: NOT_OF_ONE, last: code }
            }
        })
    }

    /// Sets the purpose of a verification in an initialised context.
    fn configure(&self, context: *mut ffi::X509_STORE_CTX, purpose: Purpose, depth_max: u32) {
        let (purpose, trust) = match purpose {
            Purpose::Client => (ffi::X509_PURPOSE_SSL_CLIENT, ffi::X509_TRUST_SSL_CLIENT),
            Purpose::Server => (ffi::X509_PURPOSE_SSL_SERVER, ffi::X509_TRUST_SSL_SERVER),
        };
        // SAFETY: an initialised context; the parameters belong to it.
        let parameters = unsafe { ffi::X509_STORE_CTX_get0_param(context) };
        // SAFETY: valid parameters and a number that the library knows.
        let _ = unsafe { ffi::X509_VERIFY_PARAM_set_purpose(parameters, purpose) };
        // SAFETY: as above.
        let _ = unsafe { ffi::X509_VERIFY_PARAM_set_trust(parameters, trust) };
        let depth = c_int::try_from(depth_max).unwrap_or(c_int::MAX);
        // SAFETY: valid parameters.
        unsafe { ffi::X509_VERIFY_PARAM_set_depth(parameters, depth) };
    }
}

/// Stores an error of a verification, and lets the library continue (X509_STORE_CTX_verify_cb).
unsafe extern "C" fn note_error(is_valid: c_int, context: *mut ffi::X509_STORE_CTX) -> c_int {
    if is_valid == 1 {
        return 1;
    }
    // SAFETY: the library passes the context of the verification.
    let errors = unsafe { ffi::X509_STORE_CTX_get_ex_data(context, 0) };
    // SAFETY: `judge` passes a list that outlives the verification and is not accessed during the verification.
    let errors = unsafe { &mut *errors.cast::<Errors>() };
    // SAFETY: as above.
    let code = unsafe { ffi::X509_STORE_CTX_get_error(context) };
    // SAFETY: as above.
    let depth = unsafe { ffi::X509_STORE_CTX_get_error_depth(context) };
    errors.push((code, depth));
    1
}

/// Returns the certificates of a verified chain.
fn chain_of(context: *mut ffi::X509_STORE_CTX) -> Option<Vec<Certificate>> {
    // SAFETY: a context with a verified chain; the chain belongs to it.
    let chain: *const ffi::OPENSSL_STACK = unsafe { ffi::X509_STORE_CTX_get0_chain(context) }.cast();
    // SAFETY: a valid stack.
    let len = unsafe { ffi::OPENSSL_sk_num(chain) };
    let at = |index: usize| {
        // SAFETY: the index is below the length.
        unsafe { ffi::OPENSSL_sk_value(chain, index) }
    };
    (0..len).map(|index| Certificate::share(at(index).cast())).collect()
}

/// Whether the path length constraint of the root allows the length of a verified chain. aws-lc does not check the constraint of a
/// self-issued certificate; OpenSSL 3 does (RFC 5280 section 4.2.1.9).
fn root_allows_length(context: *mut ffi::X509_STORE_CTX) -> bool {
    // SAFETY: a context with a verified chain; the chain belongs to it.
    let chain: *const ffi::OPENSSL_STACK = unsafe { ffi::X509_STORE_CTX_get0_chain(context) }.cast();
    // SAFETY: a valid stack.
    let len = unsafe { ffi::OPENSSL_sk_num(chain) };
    let at = |index: usize| -> *mut ffi::X509 {
        // SAFETY: the index is below the length.
        unsafe { ffi::OPENSSL_sk_value(chain, index) }.cast()
    };
    if len < 2 {
        return true;
    }
    // SAFETY: a valid certificate.
    let limit = unsafe { ffi::X509_get_pathlen(at(len - 1)) };
    let is_self_issued = |index: usize| {
        // SAFETY: a valid certificate.
        unsafe { ffi::X509_get_extension_flags(at(index)) & ffi::EXFLAG_SI as u32 != 0 }
    };
    // Counts the certificates between the peer's and the root, except self-issued certificates.
    let below = (1..len - 1).filter(|index| !is_self_issued(*index)).count();
    limit < 0 || c_long::try_from(below).is_ok_and(|below| below <= limit)
}

impl std::fmt::Debug for Roots {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Roots").field("has_crls", &self.has_crls).finish_non_exhaustive()
    }
}

/// OpenSSL 3's number for a certificate that may not sign others. aws-lc has the number of OpenSSL 1, 24.
const INVALID_CA_OF_OPENSSL_3: i32 = 79;

/// The depth of an error that is not about a single certificate.
const NOT_OF_ONE: i32 = -1;

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

/// Returns the library's message for an error number.
fn error_text(code: i32) -> String {
    // SAFETY: any number is valid.
    let reason = unsafe { ffi::X509_verify_cert_error_string(c_long::from(code)) };
    // SAFETY: static text that ends with a zero byte.
    let reason = unsafe { CStr::from_ptr(reason) };
    reason.to_string_lossy().into_owned()
}

/// Returns the identifier of a certificate in OCSP requests and responses (CertID, RFC 6960 section 4.1.1), with SHA-1.
fn certificate_id(certificate: &Certificate, issuer: &Certificate) -> Option<Owned<ffi::OCSP_CERTID>> {
    // SAFETY: two valid certificates; without a digest the library takes SHA-1.
    let id = unsafe { ffi::OCSP_cert_to_id(ptr::null(), certificate.0.as_ptr(), issuer.0.as_ptr()) };
    Owned::new(id, ffi::OCSP_CERTID_free)
}

/// Encodes an OCSP request for a certificate (OCSPRequest, RFC 6960 section 4.1.1), without a nonce.
pub(crate) fn status_request(certificate: &Certificate, issuer: &Certificate) -> Option<Vec<u8>> {
    let id = certificate_id(certificate, issuer)?;
    // SAFETY: the function has no argument.
    let request = Owned::new(unsafe { ffi::OCSP_REQUEST_new() }, ffi::OCSP_REQUEST_free)?;
    // SAFETY: two valid objects; where it succeeds, the name belongs to the request.
    if unsafe { ffi::OCSP_request_add0_id(request.as_ptr(), id.as_ptr()) }.is_null() {
        return None;
    }
    std::mem::forget(id);
    let mut out = ptr::null_mut();
    // SAFETY: a valid request; where `out` is null the library allocates.
    let len = unsafe { ffi::i2d_OCSP_REQUEST(request.as_ptr(), &raw mut out) };
    library_bytes(out, usize::try_from(len).ok()?)
}

/// Status of a certificate in a response whose signature is verified. The times are not checked yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RawStatus {
    /// `V_OCSP_CERTSTATUS_*`
    pub(crate) status: i32,
    /// Time at which the status was known to be correct (thisUpdate), in seconds since 1970.
    pub(crate) this_update: i64,
    /// Time by which a newer status is available (nextUpdate), in seconds since 1970.
    pub(crate) next_update: Option<i64>,
}

/// Reads and verifies a response (OCSPResponse, RFC 6960 section 4.2.1) for a certificate with its issuer. `known` are possible signers
/// in addition to the certificates in the response. `flags` are passed to `OCSP_basic_verify`. The error is nginx's message.
pub(crate) fn read_status(
    der: &[u8],
    (certificate, issuer): (&Certificate, &Certificate),
    known: &[&Certificate],
    roots: &Roots,
    flags: i32,
) -> Result<RawStatus, String> {
    let failed = |call: &str| format!("{call}() failed (SSL: {})", last_error());
    let mut input = der.as_ptr();
    let len = c_long::try_from(der.len()).map_err(|_| failed("d2i_OCSP_RESPONSE"))?;
    // SAFETY: `input` points to `len` bytes that outlive the call; no object is reused.
    let response = unsafe { ffi::d2i_OCSP_RESPONSE(ptr::null_mut(), &raw mut input, len) };
    let response =
        Owned::new(response, ffi::OCSP_RESPONSE_free).ok_or_else(|| failed("d2i_OCSP_RESPONSE"))?;
    // SAFETY: a valid response.
    let outcome = unsafe { ffi::OCSP_response_status(response.as_ptr()) };
    if outcome != ffi::OCSP_RESPONSE_STATUS_SUCCESSFUL {
        // SAFETY: any number is valid.
        let words = unsafe { ffi::OCSP_response_status_str(c_long::from(outcome)) };
        // SAFETY: static text that ends with a zero byte.
        let words = unsafe { CStr::from_ptr(words) }.to_string_lossy();
        return Err(format!("OCSP response not successful ({outcome}: {words})"));
    }
    // SAFETY: a valid response; the result is a separate object.
    let basic = unsafe { ffi::OCSP_response_get1_basic(response.as_ptr()) };
    let basic =
        Owned::new(basic, ffi::OCSP_BASICRESP_free).ok_or_else(|| failed("OCSP_response_get1_basic"))?;
    let known = stack_of(known.iter().copied()).ok_or_else(|| failed("OCSP_basic_verify"))?;
    let (certificates, store) = (known.as_ptr().cast(), roots.store.as_ptr());
    let flags = std::ffi::c_ulong::try_from(flags).unwrap_or(0);
    // SAFETY: valid objects that outlive the call. A stack of certificates is a stack.
    if unsafe { ffi::OCSP_basic_verify(basic.as_ptr(), certificates, store, flags) } != 1 {
        return Err(failed("OCSP_basic_verify"));
    }
    let id = certificate_id(certificate, issuer).ok_or_else(|| failed("OCSP_cert_to_id"))?;
    find_status(&basic, &id)
}

/// Returns the status of the certificate with this identifier in a response.
fn find_status(
    basic: &Owned<ffi::OCSP_BASICRESP>,
    id: &Owned<ffi::OCSP_CERTID>,
) -> Result<RawStatus, String> {
    let (basic, id, mut status) = (basic.as_ptr(), id.as_ptr(), 0);
    let (mut this, mut next) = (ptr::null_mut(), ptr::null_mut());
    let (reason, time) = (ptr::null_mut(), ptr::null_mut());
    // SAFETY: two valid objects, and places for the results; the times belong to the response.
    let is_found = unsafe {
        ffi::OCSP_resp_find_status(basic, id, &raw mut status, reason, time, &raw mut this, &raw mut next)
    };
    if is_found != 1 {
        let _ = last_error();
        return Err("certificate status not found in the OCSP response".to_owned());
    }
    let invalid = |what: &str| format!("invalid {what} time in certificate status");
    let this_update = seconds_of(this).ok_or_else(|| invalid("thisUpdate"))?;
    let next_update = match next.is_null() {
        true => None,
        false => Some(seconds_of(next).ok_or_else(|| invalid("nextUpdate"))?),
    };
    Ok(RawStatus { status, this_update, next_update })
}

/// Converts a time to seconds since 1970. The time must outlive the call.
fn seconds_of(time: *const ffi::ASN1_TIME) -> Option<i64> {
    let time = NonNull::new(time.cast_mut())?;
    let mut seconds = 0;
    // SAFETY: a valid time, and a place for the result.
    (unsafe { ffi::ASN1_TIME_to_posix(time.as_ptr(), &raw mut seconds) } == 1).then_some(seconds)
}

/// Reason why a private key cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyError {
    /// The file has no key, or the key is damaged, with the library's message.
    Unreadable(String),
    /// None of the passwords decrypts the key.
    Password,
}

/// Reads the first private key of a PEM file and returns it as PKCS#8 (RFC 5208) in DER. Tries the passwords in order
/// if the key is encrypted.
pub fn private_key(pem: &[u8], passwords: &[Vec<u8>]) -> Result<Vec<u8>, KeyError> {
    decrypted_key(pem, passwords).map(|(key, _)| key)
}

/// Reads a key like [`private_key`]; returns also whether it is encrypted.
pub(crate) fn decrypted_key(pem: &[u8], passwords: &[Vec<u8>]) -> Result<(Vec<u8>, bool), KeyError> {
    let mut tries = passwords.iter().map(Vec::as_slice);
    let mut tried = false;
    loop {
        let mut asked = PasswordRequest { password: tries.next(), was_requested: false };
        match read_key(pem, &mut asked) {
            Ok(key) => return key_to_der(&key).map(|der| (der, asked.was_requested)),
            // The next password can help only if the key needs a password.
            Err(_) if asked.was_requested && asked.password.is_some() => tried = true,
            Err(_) if asked.was_requested || tried => return Err(KeyError::Password),
            Err(reason) => return Err(KeyError::Unreadable(reason)),
        }
    }
}

/// The argument of the callback [`password`].
struct PasswordRequest<'p> {
    password: Option<&'p [u8]>,
    was_requested: bool,
}

fn read_key(pem: &[u8], asked: &mut PasswordRequest<'_>) -> Result<Owned<ffi::EVP_PKEY>, String> {
    let len = ffi::ossl_ssize_t::try_from(pem.len()).map_err(|_| "the file is too long".to_owned())?;
    // SAFETY: the memory has this many bytes and outlives the BIO, which only reads it.
    let bio = unsafe { ffi::BIO_new_mem_buf(pem.as_ptr().cast(), len) };
    let bio = Owned::new(bio, free_bio).ok_or_else(last_error)?;
    let user = ptr::from_mut(asked).cast();
    // SAFETY: a valid BIO, and the value that the callback expects, which outlives the call.
    let key = unsafe { ffi::PEM_read_bio_PrivateKey(bio.as_ptr(), ptr::null_mut(), Some(password), user) };
    Owned::new(key, ffi::EVP_PKEY_free).ok_or_else(last_error)
}

/// Passes a password to the library (pem_password_cb).
unsafe extern "C" fn password(buffer: *mut c_char, size: c_int, _writes: c_int, user: *mut c_void) -> c_int {
    // SAFETY: `read_key` passes an `PasswordRequest` that outlives the call and is not accessed during the call.
    let asked = unsafe { &mut *user.cast::<PasswordRequest<'_>>() };
    asked.was_requested = true;
    let Some(password) = asked.password else { return -1 };
    let len = password.len().min(usize::try_from(size).unwrap_or(0));
    // SAFETY: the library gives room for `size` bytes, and `len` is at most that.
    unsafe { ptr::copy_nonoverlapping(password.as_ptr(), buffer.cast(), len) };
    c_int::try_from(len).unwrap_or(-1)
}

fn key_to_der(key: &Owned<ffi::EVP_PKEY>) -> Result<Vec<u8>, KeyError> {
    let failed = || KeyError::Unreadable(last_error());
    // SAFETY: a valid key.
    let info = unsafe { ffi::EVP_PKEY2PKCS8(key.as_ptr()) };
    let info = Owned::new(info, ffi::PKCS8_PRIV_KEY_INFO_free).ok_or_else(failed)?;
    let mut out = ptr::null_mut();
    // SAFETY: a valid object; where `out` is null the library allocates.
    let len = unsafe { ffi::i2d_PKCS8_PRIV_KEY_INFO(info.as_ptr(), &raw mut out) };
    usize::try_from(len).ok().and_then(|len| library_bytes(out, len)).ok_or_else(failed)
}

/// Returns a certificate without the trust settings that may follow it.
pub fn without_trust_settings(der: &[u8]) -> Option<Vec<u8>> {
    let certificate = Certificate::with_trust_settings(der)?;
    let mut out = ptr::null_mut();
    // SAFETY: a valid certificate; where `out` is null the library allocates.
    let len = unsafe { ffi::i2d_X509(certificate.0.as_ptr(), &raw mut out) };
    usize::try_from(len).ok().and_then(|len| library_bytes(out, len))
}

/// Checks that a private key belongs to a certificate, both in DER. The error is the library's message.
pub fn key_belongs_to(key: &[u8], certificate: &[u8]) -> Result<(), String> {
    let Some(certificate) = Certificate::from_der(certificate) else { return Err(last_error()) };
    let mut input = key.as_ptr();
    let len = c_long::try_from(key.len()).map_err(|_| "the key is too long".to_owned())?;
    // SAFETY: `input` points to `len` bytes that outlive the call; no object is reused.
    let key = unsafe { ffi::d2i_AutoPrivateKey(ptr::null_mut(), &raw mut input, len) };
    let key = Owned::new(key, ffi::EVP_PKEY_free).ok_or_else(last_error)?;
    // SAFETY: two valid objects.
    match unsafe { ffi::X509_check_private_key(certificate.0.as_ptr(), key.as_ptr()) } {
        1 => Ok(()),
        _ => Err(last_error()),
    }
}
