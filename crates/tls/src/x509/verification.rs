//! Verification of chains and of OCSP responses by aws-lc.

use std::ffi::{CStr, c_int, c_long, c_ulong};
use std::marker::PhantomData;
use std::ptr;

use aws_lc_sys as ffi;

use super::object::{Borrowed, Certificate, Owned, encoded, last_error, seconds_of};

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

/// All errors of a verification, with the positions of the certificates that caused them: 0 is the peer's.
type Errors = Vec<(i32, c_int)>;

/// The library's result for a chain.
pub(super) struct ChainResult {
    /// Whether the library reached the end of the verification; it continues after errors.
    pub(super) is_complete: bool,
    /// Errors, first to last.
    pub(super) errors: Errors,
    /// The error number in the library's state, `X509_V_OK` if there is none.
    pub(super) code: i32,
    /// The chain from the peer's certificate to a root. With errors it may end before a root.
    pub(super) chain: Vec<Certificate>,
}

impl Roots {
    /// Creates an empty set. Returns `None` if memory allocation fails.
    pub fn new() -> Option<Roots> {
        // SAFETY: the function has no argument.
        let store = unsafe { ffi::X509_STORE_new() };
        // SAFETY: the store is new.
        let store = unsafe { Owned::new(store, ffi::X509_STORE_free) }?;
        Some(Roots { store, has_crls: false })
    }

    /// Adds a trusted certificate, which may be followed by trust settings: uses for which it is trusted or rejected.
    pub fn add(&mut self, der: &[u8]) -> Result<(), String> {
        let Some(certificate) = Certificate::with_trust_settings(der) else { return Err(last_error()) };
        // SAFETY: two valid objects; the store counts another reference.
        match unsafe { ffi::X509_STORE_add_cert(self.store.as_ptr(), certificate.as_ptr()) } {
            1 => Ok(()),
            _ => Err(last_error()),
        }
    }

    /// Adds a certificate revocation list (CRL). Once any CRL is loaded, verification requires a CRL from the issuer of
    /// every certificate in the chain.
    pub fn add_crl(&mut self, der: &[u8]) -> Result<(), String> {
        // SAFETY: both functions are for a CRL.
        let crl = unsafe { Owned::parse(der, ffi::d2i_X509_CRL, ffi::X509_CRL_free) };
        let Some((crl, _)) = crl else { return Err(last_error()) };
        // SAFETY: two valid objects; the store counts another reference.
        if unsafe { ffi::X509_STORE_add_crl(self.store.as_ptr(), crl.as_ptr()) } != 1 {
            return Err(last_error());
        }
        self.has_crls = true;
        let flags = (ffi::X509_V_FLAG_CRL_CHECK | ffi::X509_V_FLAG_CRL_CHECK_ALL) as c_ulong;
        // SAFETY: a valid store that is not shared yet, and flags that the library knows.
        let _ = unsafe { ffi::X509_STORE_set_flags(self.store.as_ptr(), flags) };
        Ok(())
    }

    /// Verifies a chain by the library. Returns `None` if memory is exhausted.
    pub(super) fn run(
        &self,
        peer: &Certificate,
        others: &[Certificate],
        purpose: Purpose,
        depth_max: u32,
    ) -> Option<ChainResult> {
        let others = Stack::of(others)?;
        let context = Context::new(&self.store, peer, &others)?;
        context.configure(purpose, depth_max);
        context.run()
    }
}

impl std::fmt::Debug for Roots {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Roots").field("has_crls", &self.has_crls).finish_non_exhaustive()
    }
}

/// A list of borrowed certificates.
struct Stack<'c> {
    stack: Owned<ffi::OPENSSL_STACK>,
    certificates: PhantomData<&'c Certificate>,
}

unsafe extern "C" fn free_stack(stack: *mut ffi::OPENSSL_STACK) {
    // SAFETY: called by `Owned::drop` with a stack that it owns. The stack does not own its elements.
    unsafe { ffi::OPENSSL_sk_free(stack) }
}

impl<'c> Stack<'c> {
    fn of(certificates: impl IntoIterator<Item = &'c Certificate>) -> Option<Stack<'c>> {
        // SAFETY: the function has no argument.
        let stack = unsafe { ffi::OPENSSL_sk_new_null() };
        // SAFETY: the stack is new.
        let stack = unsafe { Owned::new(stack, free_stack) }?;
        for certificate in certificates {
            // SAFETY: a valid stack and a certificate that outlives it.
            if unsafe { ffi::OPENSSL_sk_push(stack.as_ptr(), certificate.as_ptr().cast()) } == 0 {
                return None;
            }
        }
        Some(Stack { stack, certificates: PhantomData })
    }

    /// Returns the stack with the type of a stack of certificates.
    fn as_ptr(&self) -> *mut ffi::stack_st_X509 {
        self.stack.as_ptr().cast()
    }
}

/// An initialised verification. It refers to the store and the certificates.
struct Context<'v> {
    context: Owned<ffi::X509_STORE_CTX>,
    arguments: PhantomData<&'v Certificate>,
}

impl<'v> Context<'v> {
    fn new(
        store: &'v Owned<ffi::X509_STORE>,
        peer: &'v Certificate,
        others: &'v Stack<'_>,
    ) -> Option<Context<'v>> {
        // SAFETY: the function has no argument.
        let context = unsafe { ffi::X509_STORE_CTX_new() };
        // SAFETY: the context is new.
        let context = unsafe { Owned::new(context, ffi::X509_STORE_CTX_free) }?;
        let (store, peer, others) = (store.as_ptr(), peer.as_ptr(), others.as_ptr());
        // SAFETY: four valid objects that outlive the context.
        let is_ready = unsafe { ffi::X509_STORE_CTX_init(context.as_ptr(), store, peer, others) } == 1;
        is_ready.then_some(Context { context, arguments: PhantomData })
    }

    /// Sets the purpose and the maximum depth.
    fn configure(&self, purpose: Purpose, depth_max: u32) {
        let (purpose, trust) = match purpose {
            Purpose::Client => (ffi::X509_PURPOSE_SSL_CLIENT, ffi::X509_TRUST_SSL_CLIENT),
            Purpose::Server => (ffi::X509_PURPOSE_SSL_SERVER, ffi::X509_TRUST_SSL_SERVER),
        };
        // SAFETY: an initialised context; the parameters belong to it.
        let parameters = unsafe { ffi::X509_STORE_CTX_get0_param(self.context.as_ptr()) };
        // SAFETY: valid parameters and a number that the library knows.
        let _ = unsafe { ffi::X509_VERIFY_PARAM_set_purpose(parameters, purpose) };
        // SAFETY: as above.
        let _ = unsafe { ffi::X509_VERIFY_PARAM_set_trust(parameters, trust) };
        let depth = c_int::try_from(depth_max).unwrap_or(c_int::MAX);
        // SAFETY: valid parameters.
        unsafe { ffi::X509_VERIFY_PARAM_set_depth(parameters, depth) };
    }

    /// Runs the verification. A context can be used once.
    fn run(self) -> Option<ChainResult> {
        let context = self.context.as_ptr();
        let mut errors = Errors::new();
        let list = ptr::from_mut(&mut errors).cast();
        // SAFETY: an initialised context, and a value that the callback expects, which outlives the verification.
        if unsafe { ffi::X509_STORE_CTX_set_ex_data(context, 0, list) } != 1 {
            return None;
        }
        // SAFETY: an initialised context.
        unsafe { ffi::X509_STORE_CTX_set_verify_cb(context, Some(note_error)) };
        // SAFETY: as above.
        let is_complete = unsafe { ffi::X509_verify_cert(context) } == 1;
        let _ = last_error();
        // SAFETY: as above.
        let code = unsafe { ffi::X509_STORE_CTX_get_error(context) };
        Some(ChainResult { is_complete, errors, code, chain: self.chain() })
    }

    /// Returns the certificates of the chain.
    fn chain(&self) -> Vec<Certificate> {
        // SAFETY: an initialised context; the chain belongs to it. It may be null before a verification.
        let chain: *const _ = unsafe { ffi::X509_STORE_CTX_get0_chain(self.context.as_ptr()) }.cast();
        // SAFETY: a valid stack, or null, which has length 0.
        let len = unsafe { ffi::OPENSSL_sk_num(chain) };
        let at = |index| {
            // SAFETY: the index is below the length.
            let certificate: *const ffi::X509 = unsafe { ffi::OPENSSL_sk_value(chain, index) }.cast();
            // SAFETY: the certificate belongs to the chain, which belongs to the context.
            unsafe { Borrowed::new(certificate) }
        };
        (0..len).filter_map(at).map(Certificate::share).collect()
    }
}

/// Stores an error of a verification, and lets the library continue (X509_STORE_CTX_verify_cb).
// SAFETY: called only by the library, during `Context::run`.
unsafe extern "C" fn note_error(is_valid: c_int, context: *mut ffi::X509_STORE_CTX) -> c_int {
    if is_valid == 1 {
        return 1;
    }
    // SAFETY: the library passes the context of the verification.
    let errors = unsafe { ffi::X509_STORE_CTX_get_ex_data(context, 0) };
    // SAFETY: `Context::run` passes a list that outlives the verification and is not accessed during the verification.
    let errors = unsafe { &mut *errors.cast::<Errors>() };
    // SAFETY: as above.
    let code = unsafe { ffi::X509_STORE_CTX_get_error(context) };
    // SAFETY: as above.
    let depth = unsafe { ffi::X509_STORE_CTX_get_error_depth(context) };
    errors.push((code, depth));
    1
}

/// Returns the identifier of a certificate in OCSP requests and responses (CertID, RFC 6960 section 4.1.1), with SHA-1.
fn certificate_id(certificate: &Certificate, issuer: &Certificate) -> Option<Owned<ffi::OCSP_CERTID>> {
    // SAFETY: two valid certificates; without a digest the library takes SHA-1.
    let id = unsafe { ffi::OCSP_cert_to_id(ptr::null(), certificate.as_ptr(), issuer.as_ptr()) };
    // SAFETY: the identifier is new.
    unsafe { Owned::new(id, ffi::OCSP_CERTID_free) }
}

/// Encodes an OCSP request for a certificate (OCSPRequest, RFC 6960 section 4.1.1), without a nonce.
pub(crate) fn status_request(certificate: &Certificate, issuer: &Certificate) -> Option<Vec<u8>> {
    let id = certificate_id(certificate, issuer)?;
    // SAFETY: the function has no argument.
    let request = unsafe { ffi::OCSP_REQUEST_new() };
    // SAFETY: the request is new.
    let request = unsafe { Owned::new(request, ffi::OCSP_REQUEST_free) }?;
    // SAFETY: two valid objects; where it succeeds, the identifier belongs to the request.
    if unsafe { ffi::OCSP_request_add0_id(request.as_ptr(), id.as_ptr()) }.is_null() {
        return None;
    }
    std::mem::forget(id);
    // SAFETY: a valid request and the function that encodes it.
    unsafe { encoded(request.as_ptr(), ffi::i2d_OCSP_REQUEST) }
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
    // SAFETY: both functions are for a response.
    let response = unsafe { Owned::parse(der, ffi::d2i_OCSP_RESPONSE, ffi::OCSP_RESPONSE_free) };
    let (response, _) = response.ok_or_else(|| failed("d2i_OCSP_RESPONSE"))?;
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
    // SAFETY: as above.
    let basic = unsafe { Owned::new(basic, ffi::OCSP_BASICRESP_free) };
    let basic = basic.ok_or_else(|| failed("OCSP_response_get1_basic"))?;
    let known = Stack::of(known.iter().copied()).ok_or_else(|| failed("OCSP_basic_verify"))?;
    let (certificates, store) = (known.as_ptr(), roots.store.as_ptr());
    let flags = c_ulong::try_from(flags).unwrap_or(0);
    // SAFETY: valid objects that outlive the call.
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
    let mut status = 0;
    let (mut this, mut next) = (ptr::null_mut(), ptr::null_mut());
    let (reason, time) = (ptr::null_mut(), ptr::null_mut());
    let (response, id) = (basic.as_ptr(), id.as_ptr());
    // SAFETY: two valid objects, and places for the results; the times belong to the response.
    let is_found = unsafe {
        ffi::OCSP_resp_find_status(response, id, &raw mut status, reason, time, &raw mut this, &raw mut next)
    };
    if is_found != 1 {
        let _ = last_error();
        return Err("certificate status not found in the OCSP response".to_owned());
    }
    // SAFETY: the time belongs to the response, which outlives this function.
    let this = unsafe { Borrowed::new(this) };
    // SAFETY: as above.
    let next = unsafe { Borrowed::new(next) };
    let invalid = |what: &str| format!("invalid {what} time in certificate status");
    let this_update = this.and_then(seconds_of).ok_or_else(|| invalid("thisUpdate"))?;
    let next_update = match next {
        None => None,
        Some(next) => Some(seconds_of(next).ok_or_else(|| invalid("nextUpdate"))?),
    };
    Ok(RawStatus { status, this_update, next_update })
}
