//! Rewriting of `Set-Cookie` attributes (RFC 6265 section 5.2) with the semantics of nginx's `proxy_cookie_domain`,
//! `proxy_cookie_path` and `proxy_cookie_flags`.
//!
//! [`SetCookie`] splits a value into pieces; the value is encoded again only if a piece was changed. The caller matches the
//! configured patterns and computes replacements with regular expressions and variables. [`replaced_domain`] and [`replaced_path`]
//! handle plain patterns.

use std::borrow::Cow;

/// An attribute whose value is rewritten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attribute {
    /// `Domain`
    Domain,
    /// `Path`
    Path,
}

impl Attribute {
    fn name(self) -> &'static [u8] {
        match self {
            Self::Domain => b"domain",
            Self::Path => b"path",
        }
    }
}

/// The value of one `Set-Cookie` line, split into pieces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetCookie<'a> {
    /// The name and value of the cookie, followed by its attributes.
    pieces: Vec<Piece<'a>>,
    changed: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Piece<'a> {
    name: &'a [u8],
    /// `None` if there is no equals sign.
    value: Option<Cow<'a, [u8]>>,
}

impl Piece<'_> {
    fn is(&self, name: &[u8]) -> bool {
        self.name.eq_ignore_ascii_case(name)
    }
}

impl<'a> SetCookie<'a> {
    /// Splits a value. Returns `None` for a cookie without an equals sign, which nginx leaves unchanged.
    ///
    /// As in nginx, spaces (not tabs) around names and values are removed, and quotes have no meaning.
    #[must_use]
    pub fn parse(value: &'a [u8]) -> Option<Self> {
        let pieces: Vec<Piece<'a>> = value.split(|&byte| byte == b';').map(piece).collect();
        let has_value = pieces.first().is_some_and(|cookie| cookie.value.is_some());
        has_value.then_some(Self { pieces, changed: false })
    }

    /// Returns the name of the cookie, compared by `proxy_cookie_flags`.
    #[must_use]
    pub fn name(&self) -> &'a [u8] {
        self.pieces.first().map_or(b"", |cookie| cookie.name)
    }

    /// Returns the values of all attributes of this name, in order.
    pub fn values(&self, attribute: Attribute) -> impl Iterator<Item = &[u8]> {
        let found = self.pieces.iter().skip(1).filter(move |piece| piece.is(attribute.name()));
        found.filter_map(|piece| piece.value.as_deref())
    }

    /// Replaces the value of each attribute of this name by the result of `replace`; `None` leaves it unchanged.
    pub fn rewrite(&mut self, attribute: Attribute, mut replace: impl FnMut(&[u8]) -> Option<Vec<u8>>) {
        for piece in self.pieces.iter_mut().skip(1).filter(|piece| piece.is(attribute.name())) {
            if let Some(new) = piece.value.as_deref().and_then(&mut replace) {
                piece.value = Some(Cow::Owned(new));
                self.changed = true;
            }
        }
    }

    /// Adds, changes and removes flags. If `flags` is not empty, the value counts as changed, since nginx rewrites it even if no
    /// flag differs.
    pub fn edit_flags(&mut self, flags: Flags) {
        if flags == Flags::default() {
            return;
        }
        self.changed = true;
        self.edit_switch(flags.secure, "Secure");
        self.edit_switch(flags.http_only, "HttpOnly");
        match flags.same_site {
            None => {}
            Some(SameSite::Off) => self.remove(b"samesite"),
            Some(wanted) => self.set_same_site(wanted.value().as_bytes()),
        }
    }

    fn edit_switch(&mut self, switch: Option<bool>, name: &'static str) {
        let is_present = self.pieces.iter().skip(1).any(|piece| piece.is(name.as_bytes()));
        match switch {
            Some(false) => self.remove(name.as_bytes()),
            Some(true) if !is_present => self.pieces.push(Piece { name: name.as_bytes(), value: None }),
            Some(true) | None => {}
        }
    }

    /// Sets `SameSite`. nginx changes only the first such attribute, and leaves an equal value unchanged.
    fn set_same_site(&mut self, wanted: &'static [u8]) {
        let new = Piece { name: b"SameSite", value: Some(Cow::Borrowed(wanted)) };
        match self.pieces.iter_mut().skip(1).find(|piece| piece.is(b"samesite")) {
            None => self.pieces.push(new),
            Some(piece) => {
                let same = piece.value.as_deref().is_some_and(|value| value.eq_ignore_ascii_case(wanted));
                if !same {
                    *piece = new;
                }
            }
        }
    }

    fn remove(&mut self, name: &[u8]) {
        let mut index = 0;
        self.pieces.retain(|piece| {
            index += 1;
            // The cookie itself may have any name.
            index == 1 || !piece.is(name)
        });
    }

    /// Whether a piece was changed; an unchanged value is passed on as received.
    #[must_use]
    pub fn is_changed(&self) -> bool {
        self.changed
    }

    /// Appends the value; pieces are separated by a semicolon and a space.
    pub fn push(&self, out: &mut Vec<u8>) {
        for (index, piece) in self.pieces.iter().enumerate() {
            if index > 0 {
                out.extend_from_slice(b"; ");
            }
            out.extend_from_slice(piece.name);
            if let Some(value) = &piece.value {
                out.push(b'=');
                out.extend_from_slice(value);
            }
        }
    }
}

fn piece(text: &[u8]) -> Piece<'_> {
    let equals = memchr::memchr(b'=', text);
    let name = trim_blanks(&text[..equals.unwrap_or(text.len())]);
    Piece { name, value: equals.map(|at| Cow::Borrowed(trim_blanks(&text[at + 1..]))) }
}

fn trim_blanks(text: &[u8]) -> &[u8] {
    let start = text.iter().position(|&byte| byte != b' ').unwrap_or(text.len());
    let end = text.iter().rposition(|&byte| byte != b' ').map_or(start, |last| last + 1);
    &text[start..end]
}

/// Applies `proxy_cookie_domain PATTERN REPLACEMENT` with a plain pattern: the new value if the domain equals the pattern, ignoring
/// case. A leading dot of the value is ignored in the comparison and preserved. As in nginx, leading dots of pattern and
/// replacement were removed when the configuration was loaded.
#[must_use]
pub fn replaced_domain(value: &[u8], pattern: &[u8], replacement: &[u8]) -> Option<Vec<u8>> {
    let (dot, domain) = value.strip_prefix(b".").map_or((&b""[..], value), |rest| (&b"."[..], rest));
    domain.eq_ignore_ascii_case(pattern).then(|| [dot, replacement].concat())
}

/// Applies `proxy_cookie_path PATTERN REPLACEMENT` with a plain pattern: the new value if the path starts with the pattern
/// (case-sensitive). The text after the pattern is preserved.
#[must_use]
pub fn replaced_path(value: &[u8], pattern: &[u8], replacement: &[u8]) -> Option<Vec<u8>> {
    value.strip_prefix(pattern).map(|rest| [replacement, rest].concat())
}

/// The new value of `SameSite`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SameSite {
    /// `samesite=strict`
    Strict,
    /// `samesite=lax`
    Lax,
    /// `samesite=none`
    None,
    /// `nosamesite`: the attribute is removed.
    Off,
}

impl SameSite {
    fn value(self) -> &'static str {
        match self {
            Self::Strict => "Strict",
            Self::Lax => "Lax",
            Self::None | Self::Off => "None",
        }
    }
}

/// The changes of `proxy_cookie_flags`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// `secure` or `nosecure`.
    pub secure: Option<bool>,
    /// `httponly` or `nohttponly`.
    pub http_only: Option<bool>,
    /// `samesite=…` or `nosamesite`.
    pub same_site: Option<SameSite>,
}

/// A parameter that `proxy_cookie_flags` does not support.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownFlag;

impl Flags {
    /// Adds the flag of one parameter of the directive, ignoring case. An empty parameter, which may result from a variable, has no
    /// effect. For contradicting parameters nginx prefers `secure` to `nosecure`, `httponly` to `nohttponly`, and the strictest
    /// `samesite`.
    ///
    /// # Errors
    /// [`UnknownFlag`]; nginx refuses it in the configuration and ignores it if it results from a variable.
    pub fn add(&mut self, word: &[u8]) -> Result<(), UnknownFlag> {
        let switch = |place: &mut Option<bool>, on| *place = Some(on || *place == Some(true));
        match word.to_ascii_lowercase().as_slice() {
            b"" => {}
            b"secure" => switch(&mut self.secure, true),
            b"nosecure" => switch(&mut self.secure, false),
            b"httponly" => switch(&mut self.http_only, true),
            b"nohttponly" => switch(&mut self.http_only, false),
            b"samesite=strict" => self.add_same_site(SameSite::Strict),
            b"samesite=lax" => self.add_same_site(SameSite::Lax),
            b"samesite=none" => self.add_same_site(SameSite::None),
            b"nosamesite" => self.add_same_site(SameSite::Off),
            _ => return Err(UnknownFlag),
        }
        Ok(())
    }

    fn add_same_site(&mut self, wanted: SameSite) {
        let stricter = self.same_site.is_none_or(|present| (wanted as u8) < present as u8);
        if stricter {
            self.same_site = Some(wanted);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn flags(words: &str) -> Flags {
        let mut flags = Flags::default();
        words.split(' ').for_each(|word| flags.add(word.as_bytes()).expect(word));
        flags
    }

    fn written(cookie: &SetCookie<'_>) -> String {
        let mut out = Vec::new();
        cookie.push(&mut out);
        String::from_utf8(out).expect("text")
    }

    /// Applies both plain rewrites to a value.
    fn rewritten(value: &str) -> Option<String> {
        let mut cookie = SetCookie::parse(value.as_bytes())?;
        cookie
            .rewrite(Attribute::Domain, |domain| replaced_domain(domain, b"origin.example", b"site.example"));
        cookie.rewrite(Attribute::Path, |path| replaced_path(path, b"/app/", b"/"));
        cookie.is_changed().then(|| written(&cookie))
    }

    #[test]
    fn domains_and_paths_are_rewritten() {
        for (value, wanted) in [
            ("a=b; Domain=origin.example", Some("a=b; Domain=site.example")),
            ("a=b; domain=ORIGIN.example; x", Some("a=b; domain=site.example; x")),
            ("a=b; Domain=.origin.example", Some("a=b; Domain=.site.example")),
            ("a=b;Path=/app/x;HttpOnly", Some("a=b; Path=/x; HttpOnly")),
            ("a = b ;  PATH = /app/ ", Some("a=b; PATH=/")),
            ("a=b; Path=/app/; Domain=origin.example", Some("a=b; Path=/; Domain=site.example")),
            ("a=b; Path=/app/1; Path=/app/2", Some("a=b; Path=/1; Path=/2")),
            ("domain=origin.example; Path=/app/", Some("domain=origin.example; Path=/")),
            ("a=\"x;Path=/app/", Some("a=\"x; Path=/")),
            ("a=b; Path=/app/=c", Some("a=b; Path=/=c")),
            ("a=; Path=/app/", Some("a=; Path=/")),
            ("a=b", None),
            ("a=b; Domain=www.origin.example", None),
            ("a=b; Domain=..origin.example", None),
            ("a=b; Domain=origin.example.", None),
            ("a=b; Domain", None),
            ("a=b; Path=/App/", None),
            ("a=b; Path=/app", None),
            ("a=b; XPath=/app/", None),
            ("a=b; \tPath=/app/", None),
            ("a; Path=/app/", None),
            ("; Path=/app/", None),
            ("", None),
        ] {
            assert_eq!(rewritten(value).as_deref(), wanted, "{value:?}");
        }
    }

    #[test]
    fn flags_are_added_changed_and_removed() {
        for (value, words, wanted) in [
            ("a=b", "secure", "a=b; Secure"),
            ("a=b", "secure httponly samesite=lax", "a=b; Secure; HttpOnly; SameSite=Lax"),
            ("a=b;SECURE;x", "secure", "a=b; SECURE; x"),
            ("a=b; Secure; x; secure=1", "nosecure", "a=b; x"),
            ("a=b; HttpOnly", "nohttponly secure", "a=b; Secure"),
            ("a=b; HttpOnly", "httponly", "a=b; HttpOnly"),
            ("a=b; SameSite=none; x", "samesite=strict", "a=b; SameSite=Strict; x"),
            ("a=b; samesite=STRICT", "samesite=strict", "a=b; samesite=STRICT"),
            ("a=b; samesite", "samesite=none", "a=b; SameSite=None"),
            ("a=b; SameSite=Lax; samesite=x", "nosamesite", "a=b"),
            ("secure=1; x", "nosecure", "secure=1; x"),
            ("secure=1", "secure", "secure=1; Secure"),
            ("a=b;x", "nosecure", "a=b; x"),
        ] {
            let mut cookie = SetCookie::parse(value.as_bytes()).expect("a cookie");
            cookie.edit_flags(flags(words));
            assert!(cookie.is_changed(), "{value} {words}");
            assert_eq!(written(&cookie), wanted, "{value} {words}");
        }
        let mut cookie = SetCookie::parse(b"a=b;x").expect("a cookie");
        cookie.edit_flags(flags(""));
        assert!(!cookie.is_changed());
    }

    #[test]
    fn keywords_of_the_directive_are_parsed() {
        assert_eq!(flags("nosecure SECURE nosecure").secure, Some(true));
        assert_eq!(flags("nohttponly").http_only, Some(false));
        assert_eq!(
            flags("nosamesite samesite=none samesite=lax samesite=none").same_site,
            Some(SameSite::Lax)
        );
        for word in ["samesite", "samesite=", "samesite=x", "secure=1", "no", " secure"] {
            assert_eq!(Flags::default().add(word.as_bytes()), Err(UnknownFlag), "{word}");
        }
    }

    #[test]
    fn attributes_of_a_cookie_are_found() {
        let cookie = SetCookie::parse(b"sid=1; path=/a; Path=/b; Domain").expect("a cookie");
        assert_eq!(cookie.name(), b"sid");
        assert_eq!(cookie.values(Attribute::Path).collect::<Vec<_>>(), [b"/a", b"/b"]);
        assert_eq!(cookie.values(Attribute::Domain).count(), 0);
    }

    proptest! {
        /// The output parses to the same pieces: no rewrite adds a piece.
        #[test]
        fn written_cookies_are_parsed_to_the_same_attributes(value in "[a-z=; \"\\t]{0,40}", secure: bool) {
            if let Some(mut cookie) = SetCookie::parse(value.as_bytes()) {
                cookie.edit_flags(Flags { secure: Some(secure), ..Flags::default() });
                let mut out = Vec::new();
                cookie.push(&mut out);
                let again = SetCookie::parse(&out).expect("still a cookie");
                prop_assert_eq!(&again.pieces, &cookie.pieces);
            }
        }

        #[test]
        fn no_input_panics(value in proptest::collection::vec(any::<u8>(), 0..60)) {
            if let Some(mut cookie) = SetCookie::parse(&value) {
                cookie.edit_flags(flags("secure httponly samesite=lax"));
                cookie.rewrite(Attribute::Path, |path| replaced_path(path, b"", b"x"));
                let mut out = Vec::new();
                cookie.push(&mut out);
                prop_assert!(out.starts_with(cookie.name()));
            }
        }
    }
}
