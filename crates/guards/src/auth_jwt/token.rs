//! The token of a request, and the variables with its values.
//!
//! ```text
//! first use of a variable --> Unverified --access phase--> Verified
//!                                  |            \---------> Refused
//!                                  \--precontent phase----> no values
//! ```
//!
//! Variables can be used before the access phase, such as for the key of a limit. After that phase only a verified token has values,
//! so that an upstream receives no claim without a valid signature.

use std::cell::RefMut;

use http::fields::HeaderId;
use jose::claims;
use jose::object::Value;
use jose::{Encrypted, Object, Signed};

use super::{Conf, TokenType};
use exchange::credentials;
use exchange::phases::Step;
use exchange::request::Request;
use site::slots::nested;
use site::variables::Compute;

/// The section of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Section {
    /// The claims.
    Claims,
    /// The header.
    Header,
}

/// What the checks of a token have shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum CheckState {
    /// Not checked yet.
    #[default]
    Unverified,
    /// Valid.
    Verified,
    /// Invalid.
    Refused,
}

/// The token of a request and its subrequests.
#[derive(Debug, Default)]
pub(super) struct Presented {
    /// The text of the token.
    text: Vec<u8>,
    token_type: TokenType,
    state: CheckState,
    pub(super) header: Object,
    /// The claims; `None` if they are not decrypted, or invalid.
    pub(super) claims: Option<Object>,
    /// The decrypted content of an encrypted token.
    pub(super) payload: Option<Vec<u8>>,
}

/// The token, and whether its time to be checked is over.
#[derive(Debug, Default)]
struct TokenState {
    presented: Option<Presented>,
    is_checked: bool,
}

/// Returns the token that a request has for its location.
pub(super) fn text_of(conf: &Conf, request: &Request) -> Option<Vec<u8>> {
    let text = match &conf.token {
        Some(template) => template.rendered(request),
        None => {
            let id = match credentials::are_for_proxy(request) {
                true => HeaderId::ProxyAuthorization,
                false => HeaderId::Authorization,
            };
            let (scheme, token) = request.header(id)?.split_at_checked(7)?;
            if !scheme.eq_ignore_ascii_case(b"bearer ") {
                return None;
            }
            token.to_vec()
        }
    };
    let text = text.trim_ascii();
    (!text.is_empty()).then(|| text.to_vec())
}

/// Whether the request has a token.
pub(super) fn is_present(request: &Request) -> bool {
    text_of(request.scope().of::<Conf>(), request).is_some()
}

/// Whether the token was checked.
pub(super) fn is_checked(request: &Request) -> bool {
    request.shared.extensions.borrow().get::<TokenState>().is_some_and(|state| state.is_checked)
}

/// Marks the token as checked and valid, in a rehearsal that cannot check it.
pub(super) fn mark_checked(request: &Request) {
    with(request, |presented| presented.state = CheckState::Verified);
    request.shared.extensions.borrow_mut().get_or_default::<TokenState>().is_checked = true;
}

/// Stores the token after its check.
pub(super) fn record(request: &Request, presented: Presented) {
    let mut extensions = request.shared.extensions.borrow_mut();
    *extensions.get_or_default::<TokenState>() = TokenState { presented: Some(presented), is_checked: true };
}

/// Ends the use of values that were not verified: the request continues without a check of its token.
pub(super) fn forget_unverified(_: &Conf, request: &mut Request) -> Step {
    request.shared.extensions.borrow_mut().get_or_default::<TokenState>().is_checked = true;
    Step::Next
}

impl Presented {
    /// Returns the result of a check.
    pub(super) fn new(text: Vec<u8>, token_type: TokenType, state: CheckState) -> Presented {
        Presented { text, token_type, state, ..Presented::default() }
    }

    /// Parses a token that is not verified yet. An encrypted token has only a header.
    fn parse(text: Vec<u8>, token_type: TokenType) -> Presented {
        let mut presented = Presented::new(text, token_type, CheckState::Unverified);
        match token_type {
            TokenType::Signed => {
                if let Ok(token) = Signed::parse(&presented.text) {
                    (presented.header, presented.claims) = (token.header, claims::parse(&token.payload).ok());
                }
            }
            TokenType::Encrypted | TokenType::Nested => {
                if let Ok(token) = Encrypted::parse(&presented.text) {
                    presented.header = token.header;
                }
            }
        }
        presented
    }
}

/// Calls `look` with the token, if it may have values.
fn with<T>(request: &Request, look: impl FnOnce(&mut Presented) -> T) -> Option<T> {
    let conf = request.scope().of::<Conf>();
    if !conf.reads_token() {
        return None;
    }
    let (text, token_type) = (text_of(conf, request)?, conf.token_type);
    let extensions = request.shared.extensions.borrow_mut();
    let mut state = RefMut::map(extensions, |extensions| extensions.get_or_default::<TokenState>());
    let TokenState { presented, is_checked } = &mut *state;
    let is_same = |known: &Presented| known.text == text && known.token_type == token_type;
    if !presented.as_ref().is_some_and(is_same) {
        *presented = Some(Presented::parse(text, token_type));
    }
    let presented = presented.as_mut()?;
    // With `auth_jwt off token=…` the operator uses the values of a token that is checked elsewhere.
    let has_values = match presented.state {
        CheckState::Verified => true,
        CheckState::Unverified => !(*is_checked && conf.is_active()),
        CheckState::Refused => false,
    };
    has_values.then(|| look(presented))
}

/// Appends a member of a section by its name, which has no case in a variable.
pub(super) fn member(request: &Request, section: Section, name: &str, out: &mut Vec<u8>) -> bool {
    value(request, section, |object| claims::named(object, name), out)
}

/// Appends `$jwt_payload`.
pub(super) fn payload(request: &Request, out: &mut Vec<u8>) -> bool {
    nested(request, "jwt_payload", || {
        let payload = with(request, |presented| presented.payload.clone()).flatten();
        payload.map(|payload| out.extend_from_slice(&payload)).is_some()
    })
}

/// Appends a value as text. The token may be in a variable that refers to it by mistake; then there is no value.
fn value(
    request: &Request,
    section: Section,
    find: impl FnOnce(&Object) -> Option<Value>,
    out: &mut Vec<u8>,
) -> bool {
    nested(request, "jwt", || {
        let text = with(request, |presented| {
            let object = match section {
                Section::Claims => presented.claims.as_ref()?,
                Section::Header => &presented.header,
            };
            claims::text(&find(object)?)
        });
        text.flatten().map(|text| out.extend_from_slice(text.as_bytes())).is_some()
    })
}

/// The path of a value, for `auth_jwt_claim_set` and `auth_jwt_header_set`.
#[derive(Debug)]
pub(super) struct ClaimPath {
    pub(super) section: Section,
    pub(super) path: Vec<String>,
}

impl Compute<Request> for ClaimPath {
    fn value(&self, request: &Request, out: &mut Vec<u8>) -> bool {
        value(request, self.section, |object| claims::at(object, &self.path), out)
    }

    /// A value that was not verified must not remain after the check.
    fn is_volatile(&self) -> bool {
        true
    }
}
