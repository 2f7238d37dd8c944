//! `$modern_browser` and `$ancient_browser`: the `User-Agent` field, classified by the configuration.
//!
//! The known browsers are those of nginx, from 2004. Rules for other browsers are texts to search for.

use std::sync::Arc;

use conf::{Args, Error, Spec};
use http::connection::Browser;
use http::fields::HeaderId;

use crate::{Declaration, Directive, Module};
use exchange::module::Variable;
use exchange::request::Request;
use site::config::{Cx, Scope, Settings, SettingsType};
use site::declaration::LEVELS;
use site::variables::Assign;

/// The module.
pub(crate) static MODULE: Module = Module {
    variables: VARIABLES,
    ..Module::of(Declaration {
        directives: &[DIRECTIVES],
        settings: &[SettingsType::of::<Conf>()],
        ..Declaration::named("http_browser")
    })
};

const DIRECTIVES: &[Directive] = &[
    // Without any rule all browsers are ancient.
    Directive::scope(
        Spec::new(
            "http_browser",
            "modern_browser",
            LEVELS,
            Args::Between(1, 2),
            "A browser that is modern from this version on; `unlisted` makes browsers without a rule modern.",
        )
        .many(),
        add_modern,
    ),
    // Checked if no rule for modern browsers matches.
    Directive::scope(
        Spec::new(
            "http_browser",
            "ancient_browser",
            LEVELS,
            Args::AtLeast(1),
            "Texts in `User-Agent` that mark a browser as ancient; `netscape4` stands for Netscape 1 to 4.",
        )
        .many(),
        |scope, cx| {
            let mut ancient = scope.make_mut::<Conf>().ancient.own(cx.block);
            for text in cx.statement.texts() {
                match text {
                    "netscape4" => ancient.netscape4 = true,
                    text => ancient.names.push(text.as_bytes().into()),
                }
            }
            scope.make_mut::<Conf>().ancient.rules = Arc::new(ancient);
            Ok(())
        },
    ),
    // Values are texts without variables, as in nginx.
    Directive::scope(
        Spec::new(
            "http_browser",
            "modern_browser_value",
            LEVELS,
            Args::Exactly(1),
            "The value of `$modern_browser` for modern browsers.",
        )
        .default("1")
        .many(),
        |scope, cx| {
            scope.make_mut::<Conf>().modern_value = Some(cx.arg(0).into());
            Ok(())
        },
    ),
    Directive::scope(
        Spec::new(
            "http_browser",
            "ancient_browser_value",
            LEVELS,
            Args::Exactly(1),
            "The value of `$ancient_browser` for ancient browsers.",
        )
        .default("1")
        .many(),
        |scope, cx| {
            scope.make_mut::<Conf>().ancient_value = Some(cx.arg(0).into());
            Ok(())
        },
    ),
];

const VARIABLES: &[Variable] = &[
    // Each browser is either modern or ancient, so one of these two variables is empty.
    Variable {
        name: "modern_browser",
        get: |request, out| show(request, true, out),
        set: Some(Assign::Replace),
        help: "A value for modern browsers, else empty.",
    },
    Variable {
        name: "ancient_browser",
        get: |request, out| show(request, false, out),
        set: Some(Assign::Replace),
        help: "A value for browsers that are not modern, else empty.",
    },
    // With the same detection as `msie_padding` and `msie_refresh`.
    Variable {
        name: "msie",
        get: |request, out| {
            let is_msie = |agent| Browser::detect(agent).msie;
            if request.header(HeaderId::UserAgent).is_some_and(is_msie) {
                out.push(b'1');
            }
            true
        },
        set: Some(Assign::Replace),
        help: "`1` for Internet Explorer, else empty.",
    },
];

/// The rules of a block.
#[derive(Clone, Debug, Default)]
pub(crate) struct Conf {
    modern: Owned<Modern>,
    ancient: Owned<Ancient>,
    /// `modern_browser_value`
    modern_value: Option<Arc<str>>,
    /// `ancient_browser_value`
    ancient_value: Option<Arc<str>>,
}

impl Settings for Conf {}

/// Rules of a block, inherited completely or replaced by its first rule.
#[derive(Debug, Default)]
struct Owned<T> {
    rules: Arc<T>,
    /// The block that contains the rules.
    block: u32,
}

// Not derived: the rules are shared and need not be cloned.
impl<T> Clone for Owned<T> {
    fn clone(&self) -> Self {
        Owned { rules: Arc::clone(&self.rules), block: self.block }
    }
}

impl<T: Clone + Default> Owned<T> {
    /// Returns the rules of this block so far, to be changed and stored again.
    fn own(&mut self, block: u32) -> T {
        match std::mem::replace(&mut self.block, block) == block {
            true => (*self.rules).clone(),
            false => T::default(),
        }
    }
}

/// The rules for modern browsers.
#[derive(Clone, Debug, Default)]
struct Modern {
    /// Browsers with their minimum versions; Opera first, because it also identified itself as other browsers.
    browsers: Vec<(&'static Kind, u64)>,
    /// Whether browsers without a rule are modern.
    unlisted: bool,
}

/// The rules for ancient browsers.
#[derive(Clone, Debug, Default)]
struct Ancient {
    /// Texts to search for.
    names: Vec<Box<[u8]>>,
    /// Whether Netscape up to version 4 is ancient; it identified itself as Mozilla, as later browsers do.
    netscape4: bool,
}

/// A browser whose version the rules may name.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Kind {
    /// Its position in the order in which browsers are searched.
    index: u8,
    /// The name in the configuration.
    name: &'static str,
    /// Length in bytes of the prefix of `User-Agent` that all browsers of this kind send.
    skip: usize,
    /// The text before the version.
    mark: &'static str,
    /// Length of `mark` in bytes, including the separator after it.
    mark_len: usize,
}

const fn kind(index: u8, name: &'static str, start: &str, mark: &'static str, mark_len: usize) -> Kind {
    Kind { index, name, skip: start.len(), mark, mark_len }
}

/// The known browsers, in the order of the search.
static KINDS: [Kind; 5] = [
    // A slash or a blank follows the name.
    kind(0, "opera", "", "Opera", "Opera ".len()),
    kind(1, "msie", "Mozilla/4.0 (compatible; ", "MSIE ", "MSIE ".len()),
    kind(2, "gecko", "Mozilla/5.0 (", "rv:", "rv:".len()),
    kind(3, "safari", "Mozilla/5.0 (", "Safari/", "Safari/".len()),
    kind(4, "konqueror", "Mozilla/5.0 (compatible; ", "Konqueror/", "Konqueror/".len()),
];

/// Factor of the first part of a version; each further part has two digits.
const SCALE: u64 = 1_000_000;

/// A version above all others.
const NEVER: u64 = 4001 * SCALE;

/// Parses `modern_browser name version` or `modern_browser unlisted`.
fn add_modern(scope: &mut Scope, cx: &mut Cx<'_>) -> Result<(), Error> {
    let name = cx.arg(0);
    let mut modern = scope.make_mut::<Conf>().modern.own(cx.block);
    match cx.statement.args.get(1) {
        None if name == "unlisted" => modern.unlisted = true,
        // nginx rejects this too, but logs no reason.
        None => return Err(cx.error(format_args!("no version for browser \"{name}\""))),
        Some(version) => {
            let kind = KINDS.iter().find(|kind| kind.name.eq_ignore_ascii_case(name));
            let kind = kind.ok_or_else(|| cx.error(format_args!("unknown browser name \"{name}\"")))?;
            let text = &version.text;
            if text.bytes().any(|byte| !byte.is_ascii_digit() && byte != b'.') {
                return Err(cx.error(format_args!("invalid browser version \"{text}\"")));
            }
            // Opera is searched even if no version of it is modern.
            if modern.browsers.is_empty() {
                modern.browsers.push((&KINDS[0], NEVER));
            }
            if kind.index == 0 {
                modern.browsers.retain(|rule| *rule != (&KINDS[0], NEVER));
            }
            modern.browsers.push((kind, version_of(text.as_bytes())));
            modern.browsers.sort_by_key(|(kind, _)| kind.index);
        }
    }
    scope.make_mut::<Conf>().modern.rules = Arc::new(modern);
    Ok(())
}

/// Parses `1.2.3.4` to one number. A character other than a digit or a dot ends the version, and parts beyond the
/// fourth are ignored.
fn version_of(text: &[u8]) -> u64 {
    let end = text.iter().position(|byte| !byte.is_ascii_digit() && *byte != b'.').unwrap_or(text.len());
    let scales = [SCALE, SCALE / 100, SCALE / 10_000, SCALE / 1_000_000];
    let parts = text[..end].split(|&byte| byte == b'.').zip(scales);
    parts.fold(0, |version: u64, (part, scale)| {
        let number =
            part.iter().fold(0_u64, |n, digit| n.saturating_mul(10).saturating_add(u64::from(digit - b'0')));
        version.saturating_add(number.saturating_mul(scale))
    })
}

/// Whether the rules classify this browser as modern.
fn is_modern(conf: &Conf, agent: Option<&[u8]>) -> bool {
    let (modern, ancient) = (&conf.modern.rules, &conf.ancient.rules);
    let Some(agent) = agent else { return modern.unlisted };
    let version_behind = |kind: &Kind| {
        let rest = agent.get(kind.skip..)?;
        let at = memchr::memmem::find(rest, kind.mark.as_bytes())?;
        rest.get(at + kind.mark_len..).filter(|version| !version.is_empty()).map(version_of)
    };
    // The first matching rule decides.
    let mut found = modern.browsers.iter().filter_map(|(kind, least)| Some(version_behind(kind)? >= *least));
    if let Some(is_modern) = found.next() {
        return is_modern;
    }
    if !modern.browsers.is_empty() && !modern.unlisted {
        return false;
    }
    // For example `Mozilla/4.72 [en]`. As in nginx, the field must be longer than the beginning of this example.
    let is_netscape4 = agent.len() > "Mozilla/4.72 ".len()
        && agent.strip_prefix(b"Mozilla/").is_some_and(|version| matches!(version, [b'1'..=b'4', ..]));
    let is_named = ancient.names.iter().any(|name| memchr::memmem::find(agent, name).is_some());
    modern.unlisted && !(ancient.netscape4 && is_netscape4) && !is_named
}

/// Appends the value if the classification matches.
fn show(request: &Request, modern: bool, out: &mut Vec<u8>) -> bool {
    let conf = request.scope().of::<Conf>();
    if is_modern(conf, request.header(HeaderId::UserAgent)) == modern {
        let value = if modern { &conf.modern_value } else { &conf.ancient_value };
        out.extend_from_slice(value.as_deref().unwrap_or("1").as_bytes());
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{error, loaded};

    #[test]
    fn versions_are_compared_component_by_component() {
        for (text, expected) in [
            ("1", 1_000_000),
            ("1.5", 1_050_000),
            ("1.5.0.12", 1_050_012),
            ("1.5.0.12.9", 1_050_012),
            ("6.0; Windows", 6_000_000),
            ("", 0),
            (".1", 10_000),
            ("1.", 1_000_000),
            ("x", 0),
        ] {
            assert_eq!(version_of(text.as_bytes()), expected, "{text}");
        }
        version_of("9".repeat(100).as_bytes());
    }

    #[test]
    fn browsers_are_classified_as_in_nginx() {
        let config = loaded(
            "server { location /none {} location /opera { modern_browser opera 9.0; }
             location /all { modern_browser unlisted; modern_browser Gecko 1.5; modern_browser MSIE 6.0;
               ancient_browser Lynx netscape4; ancient_browser Old; } }",
        );
        for (agent, [none, opera, all]) in [
            ("Mozilla/5.0 (X11; U; Linux; rv:1.5) Gecko", [false, false, true]),
            ("Mozilla/5.0 (X11; U; Linux; rv:1.4.9) Gecko", [false, false, false]),
            ("Mozilla/4.0 (compatible; MSIE 6.0; X)", [false, false, true]),
            ("Mozilla/4.0 (compatible; MSIE 5.5; X) Opera 9.1", [false, true, false]),
            ("Lynx", [false, false, false]),
            ("An Old one", [false, false, false]),
            ("Opera/9.01 (X)", [false, true, false]),
            ("Opera/8.99 (X)", [false, false, false]),
            ("Opera", [false, false, true]),
            ("curl", [false, false, true]),
            ("Mozilla/4.7 [en] (X11)", [false, false, false]),
            ("Mozilla/", [false, false, true]),
        ] {
            for (name, expected) in [("/none", none), ("/opera", opera), ("/all", all)] {
                let location = config.http.locations.iter().find(|location| location.name == name);
                let conf = location.expect("it is there").scope.of::<Conf>();
                assert_eq!(is_modern(conf, Some(agent.as_bytes())), expected, "{agent} in {name}");
            }
        }
    }

    #[test]
    fn browser_rules_are_inherited_together() {
        let config = loaded(
            "modern_browser unlisted; ancient_browser a b; modern_browser_value m; ancient_browser_value o;
             server { location /a { } location /b { modern_browser msie 5.0; ancient_browser c; } }",
        );
        let conf = |name: &str| {
            let location = config.http.locations.iter().find(|location| location.name == name);
            location.expect("it is there").scope.of::<Conf>().clone()
        };
        let (a, b) = (conf("/a"), conf("/b"));
        assert!(a.modern.rules.unlisted && !b.modern.rules.unlisted);
        assert_eq!((a.ancient.rules.names.len(), b.ancient.rules.names.len()), (2, 1));
        assert_eq!((b.modern_value.as_deref(), b.ancient_value.as_deref()), (Some("m"), Some("o")));
        assert_eq!(b.modern.rules.browsers, [(&KINDS[0], NEVER), (&KINDS[1], 5 * SCALE)]);
    }

    #[test]
    fn wrong_values_are_refused() {
        for (text, expected) in [
            ("modern_browser x 1.0;", "unknown browser name \"x\""),
            ("modern_browser msie 1.x;", "invalid browser version \"1.x\""),
            ("modern_browser msie;", "no version for browser \"msie\""),
            ("ancient_browser;", "invalid number of arguments in \"ancient_browser\" directive"),
            (
                "modern_browser_value a b;",
                "invalid number of arguments in \"modern_browser_value\" directive",
            ),
            ("ancient_browser_value;", "invalid number of arguments in \"ancient_browser_value\" directive"),
        ] {
            let found = error(&format!("http {{\n{text} }}"));
            assert!(found.starts_with(expected) && found.contains("/conf/nginx.conf:2"), "{found}");
        }
    }
}
