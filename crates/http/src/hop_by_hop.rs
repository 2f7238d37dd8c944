//! Hop-by-hop fields: they apply to one connection, and a proxy does not pass them on (RFC 9110 section 7.6.1).
//!
//! [`is_hop_by_hop`] has the fixed names; [`ConnectionOptions`] has the names listed in the message's `Connection` field. The
//! comment of the first function lists the fields that nginx passes on.

use crate::bytes::trim_ows;
use crate::fields::HeaderId;

/// Whether a field of this name is never passed on, in either direction. `Upgrade` is included: a proxy that forwards an upgrade
/// adds the field again. `Trailer` is not included: it describes the message, and only the obsolete RFC 2616 lists it as
/// hop-by-hop. `Proxy-Authenticate` and `Proxy-Authorization` are passed on as in nginx: for all methods but CONNECT the server is a
/// gateway, to which these fields are not addressed. A CONNECT request passes no fields to its target; only the subrequest of
/// `auth_request` does, whose upstream checks them (RFC 9110 section 11.7.2 permits to relay them).
#[must_use]
pub fn is_hop_by_hop(id: HeaderId) -> bool {
    matches!(
        id,
        HeaderId::Connection
            | HeaderId::KeepAlive
            | HeaderId::ProxyConnection
            | HeaderId::Te
            | HeaderId::TransferEncoding
            | HeaderId::Upgrade
    )
}

/// The options in the `Connection` fields of a message. The type borrows the values and parses them at each call: it is used once
/// per field of the message.
#[derive(Clone, Debug)]
pub struct ConnectionOptions<I> {
    values: I,
}

impl<'a, I: Iterator<Item = &'a [u8]> + Clone> ConnectionOptions<I> {
    /// Creates the options from the values of all `Connection` fields.
    pub fn new(values: I) -> Self {
        Self { values }
    }

    /// Iterates over the options as written, including `close` and `keep-alive`.
    pub fn iter(&self) -> impl Iterator<Item = &'a [u8]> {
        let options = |value: &'a [u8]| value.split(|&byte| byte == b',').map(trim_ows);
        self.values.clone().flat_map(options).filter(|option| !option.is_empty())
    }

    /// Whether the field `name` must be removed because an option names it. End-to-end fields remain even if `Connection` lists
    /// them: otherwise a client could remove fields that a proxy or an upstream relies on (RFC 9110 section 7.6.1 forbids to name
    /// such fields).
    #[must_use]
    pub fn names(&self, id: HeaderId, name: &[u8]) -> bool {
        !is_end_to_end(id) && self.iter().any(|option| option.eq_ignore_ascii_case(name))
    }

    /// Whether the field must be removed: its name is hop-by-hop, or an option names it.
    #[must_use]
    pub fn removes(&self, id: HeaderId, name: &[u8]) -> bool {
        is_hop_by_hop(id) || self.names(id, name)
    }
}

/// Whether a field is end-to-end, so that `Connection` cannot remove it.
fn is_end_to_end(id: HeaderId) -> bool {
    use HeaderId as Id;
    matches!(
        id,
        Id::Host
            | Id::ContentLength
            | Id::ContentType
            | Id::ContentEncoding
            | Id::ContentRange
            | Id::CacheControl
            | Id::CdnCacheControl
            | Id::Pragma
            | Id::Vary
            | Id::Date
            | Id::Age
            | Id::Expires
            | Id::Etag
            | Id::LastModified
            | Id::SetCookie
            | Id::Cookie
            | Id::Authorization
            | Id::WwwAuthenticate
            | Id::Location
            | Id::Range
            | Id::IfRange
            | Id::Expect
            | Id::Via
            | Id::XForwardedFor
            | Id::XForwardedProto
            | Id::XRealIp
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn removed(values: &[&str], name: &str) -> bool {
        let options = ConnectionOptions::new(values.iter().map(|value| value.as_bytes()));
        options.removes(HeaderId::of(name.as_bytes()), name.as_bytes())
    }

    #[test]
    fn hop_by_hop_fields_are_never_passed_on() {
        for name in
            ["Connection", "keep-alive", "Proxy-Connection", "TE", "Transfer-Encoding", "Upgrade", "UPGRADE"]
        {
            assert!(removed(&[], name), "{name}");
        }
        for name in ["Host", "Trailer", "Content-Length", "X-Te", "Cookie", "Proxy-Authorization"] {
            assert!(!removed(&[], name), "{name}");
        }
    }

    #[test]
    fn the_connection_field_names_further_fields() {
        for (values, name, wanted) in [
            (&["x-hop"][..], "X-Hop", true),
            (&["close, X-HOP ,keep-alive"], "x-hop", true),
            (&["close", "a,\tx-hop"], "x-hop", true),
            (&["x-hop"], "x-hop2", false),
            (&["x-hop2"], "x-hop", false),
            (&[", ,"], "x-hop", false),
            (&[""], "", false),
            (&["x hop"], "x", false),
        ] {
            assert_eq!(removed(values, name), wanted, "{values:?} {name}");
        }
    }

    #[test]
    fn the_connection_field_cannot_remove_essential_fields() {
        for name in
            ["Host", "Content-Length", "Cache-Control", "X-Forwarded-For", "Authorization", "Set-Cookie"]
        {
            assert!(!removed(&[name], name), "{name}");
        }
    }

    #[test]
    fn options_are_listed_in_order() {
        let options = ConnectionOptions::new([&b"a, b"[..], b"", b"c"].into_iter());
        assert_eq!(options.iter().collect::<Vec<_>>(), [b"a", b"b", b"c"]);
    }

    proptest! {
        #[test]
        fn no_input_panics(value in proptest::collection::vec(any::<u8>(), 0..60), name in "[a-z-]{0,8}") {
            let options = ConnectionOptions::new([value.as_slice()].into_iter());
            prop_assert!(options.iter().all(|option| !option.is_empty()));
            let _ = options.removes(HeaderId::of(name.as_bytes()), name.as_bytes());
        }
    }
}
