//! `Set-Cookie` as modified by `proxy_cookie_*`: [`http::set_cookie`] (RFC 6265 section 5.2).

use http::set_cookie::{Attribute, Flags, SetCookie, replaced_domain, replaced_path};

use super::take_byte;
use crate::Target;

/// See the module.
pub const TARGET: Target = Target {
    name: "set_cookie",
    run,
    tokens: &[
        "a=b",
        "; Path=/",
        "; Domain=a.example",
        "; Secure",
        "; HttpOnly",
        "; SameSite=Lax",
        "; samesite=none",
        ";",
        "=",
        " ",
        "\t",
        "; domain",
        "; path=",
        "; Max-Age=1",
        ",",
    ],
};

/// Words of `proxy_cookie_flags`.
const WORDS: [&[u8]; 9] = [
    b"secure",
    b"nosecure",
    b"httponly",
    b"nohttponly",
    b"samesite=strict",
    b"samesite=lax",
    b"samesite=none",
    b"nosamesite",
    b"other",
];

/// Writes the parsed cookie and parses it again; edits flags twice, where the second edit must change nothing.
pub fn run(mut data: &[u8]) {
    let words = take_byte(&mut data);
    let Some(cookie) = SetCookie::parse(data) else {
        assert!(!data.split(|&byte| byte == b';').next().is_some_and(|first| first.contains(&b'=')));
        return;
    };
    assert!(!cookie.is_changed());
    let written = text(&cookie);
    let again = SetCookie::parse(&written).expect("a cookie that was written is one");
    assert_eq!(text(&again), written);
    assert_eq!(again.name(), cookie.name());
    for attribute in [Attribute::Domain, Attribute::Path] {
        assert!(again.values(attribute).eq(cookie.values(attribute)));
    }
    check_rewriting(&written);
    check_flags(&written, words);
}

fn check_rewriting(written: &[u8]) {
    let mut cookie = SetCookie::parse(written).expect("checked before");
    cookie.rewrite(Attribute::Path, |value| replaced_path(value, b"/", b"/x/"));
    cookie.rewrite(Attribute::Domain, |value| replaced_domain(value, b"a.example", b"b.example"));
    let text = text(&cookie);
    let again = SetCookie::parse(&text).expect("still a cookie");
    assert_eq!(again.name(), SetCookie::parse(written).expect("checked before").name());
    if !cookie.is_changed() {
        assert_eq!(text, written);
    }
}

fn check_flags(written: &[u8], words: u8) {
    let mut flags = Flags::default();
    for (index, word) in WORDS.iter().enumerate() {
        if words >> (index % 8) & 1 == 1 {
            // Of contradictory words the last one counts; an unknown word is rejected.
            let _ = flags.add(word);
        }
    }
    let mut once = SetCookie::parse(written).expect("checked before");
    once.edit_flags(flags);
    let first = text(&once);
    let mut twice = SetCookie::parse(&first).expect("still a cookie");
    twice.edit_flags(flags);
    assert_eq!(text(&twice), first, "editing the flags twice differs from once");
}

fn text(cookie: &SetCookie<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    cookie.push(&mut out);
    out
}
