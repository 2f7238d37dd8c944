//! Links that only the server can create: with a hash of the URI or other text, and an expiry time.

use std::sync::Arc;

use conf::{Args, Error, Spec};
use md5::{Digest, Md5};
use subtle::ConstantTimeEq;

use crate::{Declaration, Directive, Module};
use exchange::module::Variable;
use exchange::request::Request;
use http::base64;
use site::config::{Cx, Scope, Settings, SettingsType};
use site::declaration::LEVELS;
use site::slots::nested;
use site::template::Template;
use telemetry::time_zone::since_1970;

/// The module.
pub(crate) static MODULE: Module = Module {
    variables: VARIABLES,
    ..Module::of(Declaration {
        directives: &[DIRECTIVES],
        settings: &[SettingsType::of::<Conf>()],
        ..Declaration::named("http_secure_link")
    })
};

const DIRECTIVES: &[Directive] = &[
    // The request contains hash and expiry time; the configuration specifies where.
    Directive::scope(
        Spec::new(
            "http_secure_link",
            "secure_link",
            LEVELS,
            Args::Exactly(1),
            "Text with the hash of a link and, after a comma, its expiry time.",
        ),
        |scope, cx| {
            let link = Arc::new(cx.template(cx.arg(0))?);
            let signed = signed(scope, cx)?;
            (signed.link, signed.block) = (Some(link), cx.block);
            Ok(())
        },
    ),
    // Anyone who knows this text can create links, so it should contain a secret.
    Directive::scope(
        Spec::new(
            "http_secure_link",
            "secure_link_md5",
            LEVELS,
            Args::Exactly(1),
            "The text whose MD5 hash a link must contain.",
        ),
        |scope, cx| {
            let hashed = Arc::new(cx.template(cx.arg(0))?);
            let signed = signed(scope, cx)?;
            (signed.hashed, signed.block) = (Some(hashed), cx.block);
            Ok(())
        },
    ),
    // The older form: `/prefix/hash/link`, without an expiry time.
    Directive::scope(
        Spec::new(
            "http_secure_link",
            "secure_link_secret",
            LEVELS,
            Args::Exactly(1),
            "The secret that is hashed with the link of a URI `/prefix/hash/link`.",
        ),
        |scope, cx| {
            if matches!(scope.of::<Conf>(), Conf::Signed(signed) if signed.block == cx.block) {
                return Err(mixed(cx));
            }
            *scope.make_mut() = Conf::Secret { secret: cx.arg(0).into(), block: cx.block };
            Ok(())
        },
    ),
];

const VARIABLES: &[Variable] = &[
    // For `if`, in which an empty value or 0 is false.
    Variable {
        name: "secure_link",
        get: link,
        set: None,
        help: "Empty for an invalid link, `0` for an expired link, else `1`; with `secure_link_secret` the link itself.",
    },
    // For use in the hashed text; otherwise any client could change the time.
    Variable {
        name: "secure_link_expires",
        get: |request, out| nested(request, "secure_link_expires", || expires(request, out)),
        set: None,
        help: "Expiry time of the request's link, in seconds since 1970.",
    },
];

/// The form of links. Either form replaces the other if that was inherited; in one block they cannot be mixed.
#[derive(Clone, Debug, Default)]
pub(crate) enum Conf {
    /// No links.
    #[default]
    Unset,
    /// `secure_link_secret`
    Secret {
        /// The secret that is hashed after the link.
        secret: Arc<str>,
        /// The block of the setting.
        block: u32,
    },
    /// `secure_link` and `secure_link_md5`
    Signed(Signed),
}

impl Settings for Conf {}

/// A hash with an expiry time; each text may be inherited separately.
#[derive(Clone, Debug, Default)]
pub(crate) struct Signed {
    /// The text of a request with hash and expiry time.
    link: Option<Arc<Template>>,
    /// The text to hash.
    hashed: Option<Arc<Template>>,
    /// The block of the last directive.
    block: u32,
}

/// Returns the settings of the newer form, to be changed.
fn signed<'s>(scope: &'s mut Scope, cx: &Cx<'_>) -> Result<&'s mut Signed, Error> {
    match scope.of::<Conf>() {
        Conf::Secret { block, .. } if *block == cx.block => return Err(mixed(cx)),
        Conf::Secret { .. } | Conf::Unset => *scope.make_mut() = Conf::Signed(Signed::default()),
        Conf::Signed(_) => {}
    }
    match scope.make_mut::<Conf>() {
        Conf::Signed(signed) => Ok(signed),
        Conf::Unset | Conf::Secret { .. } => Err(mixed(cx)),
    }
}

/// Returns the error for both forms in one block.
fn mixed(cx: &Cx<'_>) -> Error {
    cx.error("\"secure_link_secret\" cannot be mixed with \"secure_link\" and \"secure_link_md5\"")
}

/// Appends `$secure_link`.
fn link(request: &Request, out: &mut Vec<u8>) -> bool {
    match request.scope().of::<Conf>() {
        Conf::Unset => false,
        // If the secret is empty no link is valid.
        Conf::Secret { secret, .. } if secret.is_empty() => false,
        Conf::Secret { secret, .. } => {
            let found = with_secret(request.head.request_uri(request.bytes()), secret.as_bytes());
            found.is_some_and(|link| {
                out.extend_from_slice(link);
                true
            })
        }
        // The texts may refer to this variable by mistake; then it has no value, instead of an endless recursion.
        Conf::Signed(signed) => nested(request, "secure_link", || {
            let found = is_current(signed, request);
            if let Some(is_current) = found {
                out.push(if is_current { b'1' } else { b'0' });
            }
            found.is_some()
        }),
    }
}

/// Returns the link in `/prefix/hash/link`, if its hash is valid.
fn with_secret<'u>(uri: &'u [u8], secret: &[u8]) -> Option<&'u [u8]> {
    // The first byte is the slash before the prefix.
    let mut parts = uri.get(1..)?.splitn(3, |&byte| byte == b'/').skip(1);
    // The link is hashed as the client sent it, with its query.
    let (hash, link) = (parts.next()?, parts.next().filter(|link| !link.is_empty())?);
    if hash.len() != 32 {
        return None;
    }
    let made = Md5::new().chain_update(link).chain_update(secret).finalize();
    let digit = |nibble: u8| b"0123456789abcdef"[usize::from(nibble)];
    let text: Vec<u8> = made.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect();
    bool::from(text.ct_eq(&hash.to_ascii_lowercase())).then_some(link)
}

/// Whether a valid link has not expired; `None` for an invalid link.
fn is_current(signed: &Signed, request: &Request) -> Option<bool> {
    let (link, hashed) = (signed.link.as_ref()?, signed.hashed.as_ref()?);
    let text = link.rendered(request);
    let (hash, end) = split(&text)?;
    // In Base64 a hash of sixteen bytes has at most 24 characters.
    if hash.len() > 24 {
        return None;
    }
    let hash = base64::decode(hash, base64::Alphabet::Url).filter(|hash| hash.len() == 16)?;
    let made = Md5::digest(hashed.rendered(request));
    // A link is still valid in the second of its expiry time.
    let now = since_1970(rt::wall()).0;
    bool::from(made.ct_eq(&hash)).then(|| end.is_none_or(|(end, _)| end >= now))
}

/// Appends `$secure_link_expires`.
fn expires(request: &Request, out: &mut Vec<u8>) -> bool {
    let Conf::Signed(Signed { link: Some(link), .. }) = request.scope().of::<Conf>() else { return false };
    let text = link.rendered(request);
    match split(&text) {
        Some((_, Some((_, digits)))) => {
            out.extend_from_slice(digits);
            true
        }
        _ => false,
    }
}

/// The hash, and the expiry time as a number and as text.
type Parts<'t> = (&'t [u8], Option<(i64, &'t [u8])>);

/// Splits the text; returns `None` if no time follows a comma.
fn split(text: &[u8]) -> Option<Parts<'_>> {
    let Some(comma) = memchr::memchr(b',', text) else { return Some((text, None)) };
    let digits = &text[comma + 1..];
    let end = http::parse_decimal(digits).and_then(|end| i64::try_from(end).ok()).filter(|&end| end > 0)?;
    Some((&text[..comma], Some((end, digits))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{error, loaded};

    #[test]
    fn hashes_of_links_are_verified() {
        let right = "29245bdc2d04a9e0e729927ed0f84e26";
        let upper = right.to_ascii_uppercase();
        for (uri, expected) in [
            (format!("/p/{right}/link"), Some("link")),
            (format!("/p/{upper}/link"), Some("link")),
            (format!("//{right}/link"), Some("link")),
            (format!("/p/{right}/link?x"), None),
            (format!("/p/q/{right}/link"), None),
            (format!("/p/{right}/"), None),
            (format!("/p/{right}"), None),
            (format!("/p/{}/link", &right[1..]), None),
            (format!("/p/{}0/link", &right[1..]), None),
            ("/".to_owned(), None),
            (String::new(), None),
        ] {
            assert_eq!(with_secret(uri.as_bytes(), b"word"), expected.map(str::as_bytes), "{uri}");
        }
    }

    #[test]
    fn expiration_times_of_links_are_checked() {
        assert_eq!(split(b"hash"), Some((&b"hash"[..], None)));
        assert_eq!(split(b"hash,12"), Some((&b"hash"[..], Some((12, &b"12"[..])))));
        for text in ["hash,", "hash,0", "hash,-1", "hash,x", "hash,1,2", "hash,99999999999999999999"] {
            assert_eq!(split(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn each_form_replaces_the_inherited_other_form() {
        let config = loaded(
            "secure_link_secret a; server { location /a { } location /b { secure_link b; } location /c { secure_link c; secure_link_md5 c;
             location /c/d { secure_link_md5 d; } location /c/e { secure_link_secret e; } } }",
        );
        let shown = |name: &str| {
            let location = config.http.locations.iter().find(|location| location.name == name);
            let text = |template: &Option<Arc<Template>>| {
                template.as_ref().and_then(|template| template.constant()).unwrap_or("-").to_owned()
            };
            match location.expect("it is there").scope.of::<Conf>() {
                Conf::Unset => "unset".to_owned(),
                Conf::Secret { secret, .. } => format!("secret {secret}"),
                Conf::Signed(Signed { link, hashed, .. }) => format!("{} {}", text(link), text(hashed)),
            }
        };
        let found = ["/a", "/b", "/c", "/c/d", "/c/e"].map(shown);
        assert_eq!(found, ["secret a", "b -", "c c", "c d", "secret e"]);
    }

    #[test]
    fn wrong_values_are_refused() {
        let mixed = "\"secure_link_secret\" cannot be mixed with \"secure_link\" and \"secure_link_md5\"";
        for (text, expected) in [
            ("secure_link_secret a; secure_link b;", mixed),
            ("secure_link_md5 a; secure_link_secret b;", mixed),
            ("secure_link a; secure_link b;", "\"secure_link\" directive is duplicate"),
            ("secure_link_secret a b;", "invalid number of arguments in \"secure_link_secret\" directive"),
            ("secure_link_md5 $none;", "unknown \"none\" variable"),
        ] {
            let found = error(&format!("http {{ server {{\n{text} }} }}"));
            assert!(found.starts_with(expected) && found.contains("/conf/nginx.conf:2"), "{found}");
        }
    }
}
