//! Certificates and private keys of aws-lc, and the types that own and borrow its objects.

use std::ffi::{CStr, c_char, c_int, c_long, c_uint, c_void};
use std::marker::PhantomData;
use std::net::IpAddr;
use std::ptr::{self, NonNull};

use aws_lc_sys as ffi;

// SAFETY: called only by `Owned::drop`, once, with an object of its type that the library allocated.
type Free<T> = unsafe extern "C" fn(*mut T);

// SAFETY: called only by `Owned::parse`, with a null pointer, the start of a slice, and its length.
type Parse<T> = unsafe extern "C" fn(*mut *mut T, *mut *const u8, c_long) -> *mut T;

/// An object of aws-lc that is freed with its owner.
pub(super) struct Owned<T> {
    object: NonNull<T>,
    free: Free<T>,
}

impl<T> Owned<T> {
    /// Returns `None` if the library returned a null pointer.
    ///
    /// # Safety
    /// The object is valid or null, belongs to the caller, and `free` frees objects of this type.
    pub(super) unsafe fn new(object: *mut T, free: Free<T>) -> Option<Owned<T>> {
        NonNull::new(object).map(|object| Owned { object, free })
    }

    /// Decodes an object from DER. Returns the object and the bytes after it.
    ///
    /// # Safety
    /// `parse` is a function `d2i_*` of the library for this type, and `free` frees its result.
    pub(super) unsafe fn parse(der: &[u8], parse: Parse<T>, free: Free<T>) -> Option<(Owned<T>, &[u8])> {
        let mut rest = der.as_ptr();
        let len = c_long::try_from(der.len()).ok()?;
        // SAFETY: `rest` points to `len` bytes that outlive the call; no object is reused.
        let object = unsafe { parse(ptr::null_mut(), &raw mut rest, len) };
        // SAFETY: the object is new.
        let object = unsafe { Owned::new(object, free) }?;
        let used = rest.addr() - der.as_ptr().addr();
        Some((object, &der[used..]))
    }

    pub(super) fn as_ptr(&self) -> *mut T {
        self.object.as_ptr()
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        // SAFETY: the object came from the library, `free` is the function for its type, and it is freed once.
        unsafe { (self.free)(self.object.as_ptr()) }
    }
}

/// An object of aws-lc that belongs to another object.
pub(super) struct Borrowed<'o, T> {
    object: NonNull<T>,
    owner: PhantomData<&'o T>,
}

impl<T> Borrowed<'_, T> {
    /// Returns `None` for a null pointer.
    ///
    /// # Safety
    /// The object is null, or valid for the lifetime of the result.
    pub(super) unsafe fn new(object: *const T) -> Option<Self> {
        NonNull::new(object.cast_mut()).map(|object| Borrowed { object, owner: PhantomData })
    }

    fn as_ptr(&self) -> *mut T {
        self.object.as_ptr()
    }
}

unsafe extern "C" fn free_bio(bio: *mut ffi::BIO) {
    // SAFETY: called by `Owned::drop` with a BIO that it owns.
    let _ = unsafe { ffi::BIO_free(bio) };
}

unsafe extern "C" fn free_texts(texts: *mut ffi::stack_st_OPENSSL_STRING) {
    // SAFETY: called by `Owned::drop` with a list that it owns, with its texts.
    unsafe { ffi::X509_email_free(texts) }
}

/// Encodes an object in DER.
///
/// # Safety
/// The object is a valid pointer, and `encode` a function `i2d_*` of the library for its type.
pub(super) unsafe fn encoded<P>(
    object: P,
    encode: unsafe extern "C" fn(P, *mut *mut u8) -> c_int,
) -> Option<Vec<u8>> {
    let mut bytes = ptr::null_mut();
    // SAFETY: a valid object and its function; because `bytes` is null the library allocates.
    let len = unsafe { encode(object, &raw mut bytes) };
    let len = usize::try_from(len).ok().filter(|_| !bytes.is_null())?;
    // SAFETY: the library guarantees this many bytes.
    let copy = unsafe { std::slice::from_raw_parts(bytes, len) }.to_vec();
    // SAFETY: the library allocated them, and nothing refers to them any more.
    unsafe { ffi::OPENSSL_free(bytes.cast()) };
    Some(copy)
}

/// Returns the text that the library writes to a BIO.
fn text(write: impl FnOnce(*mut ffi::BIO) -> c_int) -> Option<String> {
    // SAFETY: the function has no argument and returns a static table.
    let method = unsafe { ffi::BIO_s_mem() };
    // SAFETY: `method` is a valid table.
    let bio = unsafe { ffi::BIO_new(method) };
    // SAFETY: the BIO is new.
    let bio = unsafe { Owned::new(bio, free_bio) }?;
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
pub(super) fn last_error() -> String {
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

/// Returns the library's message for an error number.
pub(super) fn error_text(code: i32) -> String {
    // SAFETY: any number is valid.
    let reason = unsafe { ffi::X509_verify_cert_error_string(c_long::from(code)) };
    // SAFETY: static text that ends with a zero byte.
    let reason = unsafe { CStr::from_ptr(reason) };
    reason.to_string_lossy().into_owned()
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
        // SAFETY: both functions are for a certificate.
        let parsed = unsafe { Owned::parse(der, ffi::d2i_X509, ffi::X509_free) };
        // OpenSSL refuses a peer's certificate that is followed by further bytes.
        let parsed = parsed.filter(|(_, rest)| rest.is_empty());
        if parsed.is_none() {
            let _ = last_error();
        }
        parsed.map(|(certificate, _)| Certificate(certificate))
    }

    /// Parses a certificate that may be followed by trust settings, as in a PEM section `TRUSTED CERTIFICATE`. A verification uses
    /// these settings.
    pub(super) fn with_trust_settings(der: &[u8]) -> Option<Certificate> {
        // SAFETY: both functions are for a certificate.
        let parsed = unsafe { Owned::parse(der, ffi::d2i_X509_AUX, ffi::X509_free) };
        parsed.filter(|(_, rest)| rest.is_empty()).map(|(certificate, _)| Certificate(certificate))
    }

    pub(super) fn as_ptr(&self) -> *mut ffi::X509 {
        self.0.as_ptr()
    }

    /// Returns the subject's name.
    pub fn subject(&self, form: NameForm) -> Option<String> {
        // SAFETY: the function returns a name of the certificate.
        unsafe { self.name(ffi::X509_get_subject_name) }.and_then(|name| name_text(name, form))
    }

    /// Returns the issuer's name.
    pub fn issuer(&self, form: NameForm) -> Option<String> {
        // SAFETY: the function returns a name of the certificate.
        unsafe { self.name(ffi::X509_get_issuer_name) }.and_then(|name| name_text(name, form))
    }

    /// Returns a name of the certificate.
    ///
    /// # Safety
    /// `get` returns an object that belongs to the certificate.
    unsafe fn name(
        &self,
        get: unsafe extern "C" fn(*const ffi::X509) -> *mut ffi::X509_NAME,
    ) -> Option<Borrowed<'_, ffi::X509_NAME>> {
        // SAFETY: the pointer refers to a valid certificate.
        let name = unsafe { get(self.as_ptr()) };
        // SAFETY: the name belongs to the certificate.
        unsafe { Borrowed::new(name) }
    }

    /// Returns the serial number in upper-case hexadecimal digits.
    pub fn serial(&self) -> Option<String> {
        // SAFETY: a valid certificate; the number belongs to it.
        let serial = unsafe { ffi::X509_get_serialNumber(self.as_ptr()) };
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
        let done = unsafe { ffi::X509_digest(self.as_ptr(), sha1, digest.as_mut_ptr(), &raw mut len) };
        let digest = digest.get(..len as usize).filter(|_| done == 1)?;
        Some(digest.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// Returns the start of validity, such as `May  4 10:00:00 2026 GMT`.
    pub fn not_before(&self) -> Option<String> {
        // SAFETY: the function returns a time of the certificate.
        unsafe { self.time(ffi::X509_get0_notBefore) }.and_then(time_text)
    }

    /// Returns the end of validity, such as `May  4 10:00:00 2027 GMT`.
    pub fn not_after(&self) -> Option<String> {
        // SAFETY: the function returns a time of the certificate.
        unsafe { self.time(ffi::X509_get0_notAfter) }.and_then(time_text)
    }

    /// Returns the end of validity in seconds since 1970.
    pub fn expires(&self) -> Option<i64> {
        // SAFETY: as in `not_after`.
        unsafe { self.time(ffi::X509_get0_notAfter) }.and_then(seconds_of)
    }

    /// Returns the start of validity in seconds since 1970.
    pub fn begins(&self) -> Option<i64> {
        // SAFETY: as in `not_before`.
        unsafe { self.time(ffi::X509_get0_notBefore) }.and_then(seconds_of)
    }

    /// Returns a time of the certificate.
    ///
    /// # Safety
    /// `get` returns an object that belongs to the certificate.
    unsafe fn time(
        &self,
        get: unsafe extern "C" fn(*const ffi::X509) -> *const ffi::ASN1_TIME,
    ) -> Option<Borrowed<'_, ffi::ASN1_TIME>> {
        // SAFETY: a valid certificate.
        let time = unsafe { get(self.as_ptr()) };
        // SAFETY: the time belongs to the certificate.
        unsafe { Borrowed::new(time) }
    }

    /// Returns the authority key identifier (RFC 5280 section 4.2.1.1), if the certificate has one.
    pub fn authority_key_id(&self) -> Option<Vec<u8>> {
        // SAFETY: a valid certificate; the string belongs to it, and the library locks its computed values.
        let id = unsafe { ffi::X509_get0_authority_key_id(self.as_ptr()) };
        if id.is_null() {
            return None;
        }
        // SAFETY: a valid string.
        let bytes = unsafe { ffi::ASN1_STRING_get0_data(id) };
        // SAFETY: as above.
        let len = unsafe { ffi::ASN1_STRING_length(id) };
        let len = usize::try_from(len).ok().filter(|_| !bytes.is_null())?;
        // SAFETY: the string has this many bytes and lives as long as the certificate.
        Some(unsafe { std::slice::from_raw_parts(bytes, len) }.to_vec())
    }

    /// Returns the public key (SubjectPublicKeyInfo, RFC 5280 section 4.1).
    pub fn public_key(&self) -> Option<Vec<u8>> {
        // SAFETY: a valid certificate; the key belongs to it.
        let key = unsafe { ffi::X509_get_X509_PUBKEY(self.as_ptr()) };
        // SAFETY: the key and the function that encodes it.
        unsafe { encoded(key.cast_const(), ffi::i2d_X509_PUBKEY) }
    }

    /// Returns the first URL of an OCSP responder in the certificate (RFC 5280 section 4.2.2.1).
    pub fn ocsp_url(&self) -> Option<String> {
        // SAFETY: a valid certificate.
        let urls = unsafe { ffi::X509_get1_ocsp(self.as_ptr()) };
        // SAFETY: the list is new.
        let urls = unsafe { Owned::new(urls, free_texts) }?;
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
        unsafe { ffi::X509_check_issued(self.as_ptr(), other.as_ptr()) == ffi::X509_V_OK }
    }

    /// Returns the maximum number of certificates below this one, without self-issued certificates (RFC 5280 section 4.2.1.9).
    /// `None` if there is no limit.
    pub(super) fn path_length(&self) -> Option<c_long> {
        // SAFETY: a valid certificate; the library locks its computed values.
        Some(unsafe { ffi::X509_get_pathlen(self.as_ptr()) }).filter(|length| *length >= 0)
    }

    /// Whether subject and issuer are the same name.
    pub(super) fn is_self_issued(&self) -> bool {
        // SAFETY: a valid certificate; the library locks its computed values.
        unsafe { ffi::X509_get_extension_flags(self.as_ptr()) & ffi::EXFLAG_SI as u32 != 0 }
    }

    /// Returns another reference to a certificate.
    pub(super) fn share(certificate: Borrowed<'_, ffi::X509>) -> Certificate {
        // SAFETY: a valid certificate; the new reference belongs to the result.
        let _ = unsafe { ffi::X509_up_ref(certificate.as_ptr()) };
        Certificate(Owned { object: certificate.object, free: ffi::X509_free })
    }

    /// Returns the certificate in DER, without the trust settings that may follow it.
    fn to_der(&self) -> Option<Vec<u8>> {
        // SAFETY: a valid certificate and the function that encodes it.
        unsafe { encoded(self.as_ptr(), ffi::i2d_X509) }
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
                let found = unsafe { ffi::X509_check_host(self.as_ptr(), name, len, 0, ptr::null_mut()) };
                return found == 1;
            }
        };
        // SAFETY: a valid certificate, and an address of this many bytes.
        unsafe { ffi::X509_check_ip(self.as_ptr(), bytes.as_ptr(), bytes.len(), 0) == 1 }
    }
}

impl Clone for Certificate {
    /// Returns another reference to the same certificate object.
    fn clone(&self) -> Certificate {
        Certificate::share(Borrowed { object: self.0.object, owner: PhantomData })
    }
}

impl std::fmt::Debug for Certificate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Certificate").field(&self.subject(NameForm::Rfc2253)).finish()
    }
}

/// Returns the text of a distinguished name.
fn name_text(name: Borrowed<'_, ffi::X509_NAME>, form: NameForm) -> Option<String> {
    match form {
        NameForm::Rfc2253 => {
            // Bytes outside ASCII are escaped, as in nginx.
            let flags = ffi::XN_FLAG_RFC2253 as std::ffi::c_ulong;
            // SAFETY: a valid BIO and a valid name.
            text(|bio| unsafe { ffi::X509_NAME_print_ex(bio, name.as_ptr(), 0, flags) })
        }
        NameForm::Legacy => {
            // SAFETY: a valid name; without a buffer the library allocates one.
            let line = unsafe { ffi::X509_NAME_oneline(name.as_ptr(), ptr::null_mut(), 0) };
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

/// Formats an ASN.1 time as text.
fn time_text(time: Borrowed<'_, ffi::ASN1_TIME>) -> Option<String> {
    // SAFETY: a valid BIO and a valid time.
    text(|bio| unsafe { ffi::ASN1_TIME_print(bio, time.as_ptr()) })
}

/// Returns the subject's name of a certificate in DER.
pub(crate) fn subject_der(der: &[u8]) -> Option<Vec<u8>> {
    let certificate = Certificate::from_der(der)?;
    // SAFETY: the function returns a name of the certificate.
    let name = unsafe { certificate.name(ffi::X509_get_subject_name) }?;
    // SAFETY: a valid name and the function that encodes it.
    unsafe { encoded(name.as_ptr(), ffi::i2d_X509_NAME) }
}

/// Returns a certificate without the trust settings that may follow it.
pub fn without_trust_settings(der: &[u8]) -> Option<Vec<u8>> {
    Certificate::with_trust_settings(der)?.to_der()
}

/// Converts a time to seconds since 1970.
pub(super) fn seconds_of(time: Borrowed<'_, ffi::ASN1_TIME>) -> Option<i64> {
    let mut seconds = 0;
    // SAFETY: a valid time, and a place for the result.
    (unsafe { ffi::ASN1_TIME_to_posix(time.as_ptr(), &raw mut seconds) } == 1).then_some(seconds)
}

/// A private key.
pub(super) struct PrivateKey(Owned<ffi::EVP_PKEY>);

impl PrivateKey {
    /// Reads the first key of a PEM file. Returns the key or the library's message, and whether the key is encrypted.
    pub(super) fn from_pem(pem: &[u8], password: Option<&[u8]>) -> (Result<PrivateKey, String>, bool) {
        let mut asked = PasswordRequest { password, was_requested: false };
        (read_key(pem, &mut asked).map(PrivateKey), asked.was_requested)
    }

    /// Decodes a key from DER.
    pub(super) fn from_der(der: &[u8]) -> Option<PrivateKey> {
        // SAFETY: both functions are for a private key.
        unsafe { Owned::parse(der, ffi::d2i_AutoPrivateKey, ffi::EVP_PKEY_free) }
            .map(|(key, _)| PrivateKey(key))
    }

    /// Encodes the key as PKCS#8 (RFC 5208) in DER.
    pub(super) fn to_pkcs8(&self) -> Option<Vec<u8>> {
        // SAFETY: a valid key.
        let info = unsafe { ffi::EVP_PKEY2PKCS8(self.0.as_ptr()) };
        // SAFETY: the object is new.
        let info = unsafe { Owned::new(info, ffi::PKCS8_PRIV_KEY_INFO_free) }?;
        // SAFETY: a valid object and the function that encodes it.
        unsafe { encoded(info.as_ptr().cast_const(), ffi::i2d_PKCS8_PRIV_KEY_INFO) }
    }

    /// Whether the key belongs to a certificate.
    pub(super) fn is_of(&self, certificate: &Certificate) -> bool {
        // SAFETY: two valid objects.
        unsafe { ffi::X509_check_private_key(certificate.as_ptr(), self.0.as_ptr()) == 1 }
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
    // SAFETY: the BIO is new.
    let bio = unsafe { Owned::new(bio, free_bio) }.ok_or_else(last_error)?;
    let user = ptr::from_mut(asked).cast();
    // SAFETY: a valid BIO, and the value that the callback expects, which outlives the call.
    let key = unsafe { ffi::PEM_read_bio_PrivateKey(bio.as_ptr(), ptr::null_mut(), Some(password), user) };
    // SAFETY: the key is new.
    unsafe { Owned::new(key, ffi::EVP_PKEY_free) }.ok_or_else(last_error)
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
