//! Cookies that identify clients: sent to clients without one, and available in logs.
//!
//! An identifier has sixteen bytes: the origin (an address or a number), the time, the process, and a counter. Its
//! format is that of nginx and of mod_uid, so that their cookies are interchangeable.

use std::cell::OnceCell;
use std::io::Write;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use conf::{Args, Error, Spec, value};
use http::fields::HeaderId;

use crate::{Declaration, Directive, Module};
use exchange::facts::Fact;
use exchange::module::{SubrequestHooks, Variable};
use exchange::request::{Address, Request};
use http::base64;
use http::cookie::cookie_in;
use site::config::{Cx, Scope, Settings, SettingsType};
use site::declaration::LEVELS;
use site::variables::Assign;
use telemetry::time_zone::since_1970;
use telemetry::{ForLog, Level};

/// The module.
pub(crate) static MODULE: Module = Module {
    variables: VARIABLES,
    add_to_plan: |_, scope, plan| {
        if scope.of::<Conf>().get().mode >= Mode::V1 {
            plan.filter(scope.shared::<Conf>(), send_cookie);
        }
    },
    subrequest: SubrequestHooks { detach: Some(hand_down), ..SubrequestHooks::NONE },
    ..Module::of(Declaration {
        directives: &[DIRECTIVES],
        settings: &[SettingsType::of::<Conf>()],
        ..Declaration::named("http_userid")
    })
};

const DIRECTIVES: &[Directive] = &[
    // Off, because such cookies are personal data under some laws.
    Directive::scope(
        spec(
            "userid",
            Args::Exactly(1),
            "Sends cookies to clients (`on`, `v1`), or only logs received cookies (`log`).",
        )
        .default("off"),
        |scope, cx| {
            const NAMES: &[(&str, Mode)] =
                &[("off", Mode::Off), ("log", Mode::Log), ("v1", Mode::V1), ("on", Mode::On)];
            cx.choice(&mut scope.make_mut::<Conf>().current().mode, NAMES)
        },
    ),
    // Also the prefix of identifiers in variables.
    Directive::scope(
        spec("userid_name", Args::Exactly(1), "The name of the cookie.").default("uid"),
        |scope, cx| {
            scope.make_mut::<Conf>().current().name = cx.arg(0).to_owned();
            Ok(())
        },
    ),
    // Without a domain a browser returns the cookie only to the host that set it.
    Directive::scope(
        spec("userid_domain", Args::Exactly(1), "The domain that the cookie is for.").default("none"),
        |scope, cx| {
            scope.make_mut::<Conf>().current().domain = unless(cx, "none");
            Ok(())
        },
    ),
    // The complete site, so that a client has one identifier everywhere.
    Directive::scope(
        spec("userid_path", Args::Exactly(1), "The path that the cookie is for.").default("/"),
        |scope, cx| {
            scope.make_mut::<Conf>().current().path = cx.arg(0).to_owned();
            Ok(())
        },
    ),
    // Without a time the cookie ends with the browser's session.
    Directive::scope(
        spec("userid_expires", Args::Exactly(1), "Lifetime of the cookie in browsers.").default("off"),
        |scope, cx| {
            scope.make_mut::<Conf>().current().expires = match cx.arg(0) {
                "off" => Expires::Never,
                "max" => Expires::Max,
                text => Expires::After(value::seconds(text).map_err(|_| cx.invalid(text))? as i64),
            };
            Ok(())
        },
    ),
    // RFC 6265 section 4.1.2, and its successor for `samesite`.
    Directive::scope(
        spec("userid_flags", Args::Between(1, 3), "Further attributes of the cookie.").many().default("off"),
        set_flags,
    ),
    // A character that replaces the padding: cookies without it are sent again, with the current settings.
    Directive::scope(
        spec("userid_mark", Args::Exactly(1), "A character that marks up-to-date cookies.").default("off"),
        |scope, cx| {
            const WRONG: &str = "value must be \"off\" or a single letter, digit or \"=\"";
            let mark = match cx.arg(0).as_bytes() {
                b"off" => None,
                &[mark] if mark.is_ascii_alphanumeric() || mark == b'=' => Some(mark),
                _ => return Err(cx.error(format_args!("\"userid_mark\" directive {WRONG}"))),
            };
            scope.make_mut::<Conf>().current().mark = mark;
            Ok(())
        },
    ),
    // A privacy statement, without which Internet Explorer rejected cookies.
    Directive::scope(
        spec("userid_p3p", Args::Exactly(1), "The value of a `P3P` field, sent with the cookie.")
            .default("none"),
        |scope, cx| {
            scope.make_mut::<Conf>().current().p3p = unless(cx, "none");
            Ok(())
        },
    ),
    // The default is the server's address, or 0 for cookies of version 1.
    Directive::scope(
        spec("userid_service", Args::Exactly(1), "A number that identifies this server in its identifiers."),
        |scope, cx| {
            let mut service = 0;
            cx.number(&mut service)?;
            scope.make_mut::<Conf>().current().service = Some(service as u32);
            Ok(())
        },
    ),
];

const fn spec(name: &'static str, args: Args, help: &'static str) -> Spec {
    Spec::new("http_userid", name, LEVELS, args, help)
}

const VARIABLES: &[Variable] = &[
    // No value if the client sent no cookie, or no valid identifier.
    Variable {
        name: "uid_got",
        get: |request, out| {
            let conf = request.scope().of::<Conf>().get();
            conf.mode > Mode::Off && shown(conf, found(request).got, out)
        },
        set: None,
        help: "The cookie's name and the identifier that the client sent.",
    },
    // If used before the response it generates the identifier, which the cookie then has.
    Variable {
        name: "uid_set",
        get: |request, out| {
            let conf = request.scope().of::<Conf>().get();
            conf.mode >= Mode::V1 && shown(conf, id_to_send(request).map(|(id, _)| id), out)
        },
        set: None,
        help: "The cookie's name and the identifier that is sent to the client.",
    },
    // For `set` and `map`: a value other than empty and 0 assigns the client a new identifier.
    Variable {
        name: "uid_reset",
        get: show_reset,
        set: Some(Assign::With(|request, value| {
            request.shared.extensions.borrow_mut().insert(Reset(value.to_vec()));
        })),
        help: "Set by `set` or `map`: unless it is empty or `0`, the client gets a new identifier; `log` logs this too.",
    },
];

/// The settings of a block; most blocks inherit them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Conf(Option<Arc<CookieSettings>>);

impl Settings for Conf {}

/// The settings of identifiers and their cookies.
#[derive(Clone, Debug)]
struct CookieSettings {
    mode: Mode,
    /// The name of the cookie.
    name: String,
    domain: Option<String>,
    path: String,
    expires: Expires,
    flags: Flags,
    /// The block of `userid_flags`; 0 if there is none.
    flags_block: u32,
    /// The character that replaces the padding in up-to-date cookies.
    mark: Option<u8>,
    /// The value of the `P3P` field.
    p3p: Option<String>,
    /// The origin in identifiers; the default is the server's address.
    service: Option<u32>,
}

/// The settings if nothing is configured, and the initial settings except for their texts.
static DEFAULT: CookieSettings = CookieSettings {
    mode: Mode::Off,
    name: String::new(),
    domain: None,
    path: String::new(),
    expires: Expires::Never,
    flags: Flags { secure: false, httponly: false, samesite: None },
    flags_block: 0,
    mark: None,
    p3p: None,
    service: None,
};

impl Conf {
    /// Returns the current settings.
    fn get(&self) -> &CookieSettings {
        self.0.as_deref().unwrap_or(&DEFAULT)
    }

    /// Returns the current settings, to be changed by a directive.
    fn current(&mut self) -> &mut CookieSettings {
        // A static cannot contain the default texts.
        let initial =
            || Arc::new(CookieSettings { name: "uid".to_owned(), path: "/".to_owned(), ..DEFAULT.clone() });
        Arc::make_mut(self.0.get_or_insert_with(initial))
    }
}

/// `userid`, in nginx's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Mode {
    /// Cookies are neither sent nor read.
    Off,
    /// Cookies are read and logged, but not sent.
    Log,
    /// Cookies of version 1: numbers in host byte order.
    V1,
    /// Cookies of version 2: numbers in network byte order.
    On,
}

/// The lifetime of a cookie in the browser.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expires {
    /// Until the end of the session.
    Never,
    /// Until 31 December 2037, as in nginx.
    Max,
    /// This many seconds from now.
    After(i64),
}

/// The attributes of `userid_flags`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Flags {
    secure: bool,
    httponly: bool,
    samesite: Option<&'static str>,
}

/// Returns the argument, unless it is this keyword.
fn unless(cx: &Cx<'_>, word: &str) -> Option<String> {
    Some(cx.arg(0)).filter(|text| *text != word).map(str::to_owned)
}

/// Sets the flags. As in nginx, a duplicate is a warning, and `off` does not cancel other flags of the directive.
fn set_flags(scope: &mut Scope, cx: &mut Cx<'_>) -> Result<(), Error> {
    const SITES: [&str; 3] = ["strict", "lax", "none"];
    let conf = scope.make_mut::<Conf>().current();
    if std::mem::replace(&mut conf.flags_block, cx.block) != cx.block {
        conf.flags = DEFAULT.flags;
    }
    let mut flags = conf.flags;
    let mut is_off = false;
    for text in cx.statement.texts() {
        let lower = text.to_ascii_lowercase();
        let site = lower.strip_prefix("samesite=");
        let site = site.and_then(|site| SITES.into_iter().find(|known| *known == site));
        let is_duplicate = match (lower.as_str(), site) {
            ("off", _) => std::mem::replace(&mut is_off, true),
            ("secure", _) => std::mem::replace(&mut flags.secure, true),
            ("httponly", _) => std::mem::replace(&mut flags.httponly, true),
            // The first `samesite` counts.
            (_, Some(_)) if flags.samesite.is_some() => true,
            (_, Some(site)) => flags.samesite.replace(site).is_some(),
            _ => return Err(cx.error(format_args!("invalid value \"{text}\""))),
        };
        if is_duplicate {
            cx.warn(format_args!("duplicate value \"{text}\""));
        }
    }
    conf.flags = flags;
    Ok(())
}

/// The sixteen bytes of an identifier, as in the cookie.
type Id = [u8; 16];

/// The value that `set` assigned to `$uid_reset`.
struct Reset(Vec<u8>);

/// Passes the assigned value to a copy of the request, which may generate the identifier.
fn hand_down(parent: &Request, child: &mut Request) {
    if let Some(Reset(value)) = parent.shared.extensions.borrow().get() {
        child.shared.extensions.borrow_mut().insert(Reset(value.clone()));
    }
}

/// Returns the value of `$uid_reset`, which `set`, `map` or a similar directive defines.
fn reset(request: &Request) -> Vec<u8> {
    let mut value = Vec::new();
    match request.config().http.registry.find("uid_reset") {
        _ if request.shared.extensions.borrow().get::<Reset>().is_some() => show_reset(request, &mut value),
        Some(variable) => variable.value(request, &mut value),
        None => false,
    };
    value
}

/// Appends the value that `set` assigned.
fn show_reset(request: &Request, out: &mut Vec<u8>) -> bool {
    let shared = request.shared.extensions.borrow();
    out.extend_from_slice(shared.get::<Reset>().map(|Reset(value)| &**value).unwrap_or_default());
    true
}

/// The identifiers of a request, determined at first use.
#[derive(Clone, Debug, Default)]
struct Found {
    /// The cookie's value.
    cookie: Vec<u8>,
    /// The identifier in it.
    got: Option<Id>,
    /// The identifier to send, and whether it is new.
    id_to_send: OnceCell<(Id, bool)>,
}

// Not valid in another location, which may use another cookie. A subrequest has the same client.
impl Fact for Found {
    fn for_subrequest(&self) -> Option<Rc<dyn Fact>> {
        Some(Rc::new(self.clone()))
    }
}

/// Number of Base64 characters of an identifier without padding; old cookies have a mark or other bytes instead of the
/// padding.
const ENCODED_LEN: usize = 22;

/// Returns the identifier of the request, parsed once.
fn found(request: &Request) -> Rc<Found> {
    request.facts.get().unwrap_or_else(|| request.facts.insert(find_cookie(request)))
}

/// Searches for the cookie and parses it.
fn find_cookie(request: &Request) -> Found {
    let name = request.scope().of::<Conf>().get().name.as_bytes();
    let mut lines = request.head.all(request.bytes(), HeaderId::Cookie);
    let Some(cookie) = lines.find_map(|line| cookie_in(line, name)) else {
        return Found::default();
    };
    // nginx logs all cookies of the field, which may include secrets.
    let complain = |what: &str| {
        let (name, value) = (name.for_log(), cookie.for_log());
        request.log(Level::Error, format_args!("client sent {what} userid cookie \"{name}={value}\""));
    };
    // The cookie is stored with all bytes after the identifier: a mark, or garbage.
    let Some(encoded) = cookie.get(..ENCODED_LEN) else {
        complain("too short");
        return Found { cookie: cookie.to_vec(), ..Found::default() };
    };
    let decoded = base64::decode(encoded, base64::Alphabet::Standard);
    let id = decoded.and_then(|decoded| Id::try_from(decoded).ok());
    if id.is_none() {
        complain("invalid");
    }
    // An identifier without a counter is invalid.
    Found { got: id.filter(|id| id[12..] != [0; 4]), cookie: cookie.to_vec(), id_to_send: OnceCell::new() }
}

/// Returns the identifier to send to the client, and whether it is new; `None` if the client keeps its identifier.
fn id_to_send(request: &Request) -> Option<(Id, bool)> {
    let found = found(request);
    if let Some(id_to_send) = found.id_to_send.get() {
        return Some(*id_to_send);
    }
    let conf = request.scope().of::<Conf>().get();
    let id_to_send = match found.got {
        None => (new_id(request, conf), true),
        Some(got) => match reset(request).as_slice() {
            b"" | b"0" => {
                let is_marked = |mark| found.cookie.get(ENCODED_LEN..ENCODED_LEN + 2) == Some(&[mark, b'=']);
                if conf.mark.is_none_or(is_marked) {
                    return None;
                }
                (got, false)
            }
            reset => {
                if reset == b"log" {
                    let (name, got) = (&conf.name, Shown(got));
                    request.log(Level::Notice, format_args!("userid cookie \"{name}={got}\" was reset"));
                }
                (new_id(request, conf), true)
            }
        },
    };
    Some(*found.id_to_send.get_or_init(|| id_to_send))
}

/// Number of identifiers that this process has generated. The last four bytes of an identifier consist of this count and,
/// in the lowest byte, the version of the cookie.
static COUNT: AtomicU32 = AtomicU32::new(0);

/// Returns an identifier that no other process and no other call generates.
fn new_id(request: &Request, conf: &CookieSettings) -> Id {
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let now = since_1970(rt::wall()).0 as u32;
    let (service, sequence) = match conf.mode {
        Mode::V1 => (conf.service.unwrap_or(0), 1 + (count << 8)),
        _ => {
            let of_address = || u32::from_be_bytes(local_bytes(&request.conn.local));
            // As in nginx, the count starts with 03 03 03, and wraps around to this number.
            const FIRST: u32 = 0x03_0303;
            const COUNTS: u32 = 0x0100_0000 - FIRST;
            (conf.service.unwrap_or_else(of_address), (FIRST + count % COUNTS) << 8 | 2)
        }
    };
    let mut id = [0; 16];
    for (bytes, number) in id.chunks_exact_mut(4).zip([service, now, process(), sequence]) {
        bytes.copy_from_slice(&match conf.mode {
            Mode::V1 => number.to_le_bytes(),
            _ => number.to_be_bytes(),
        });
    }
    id
}

/// Returns a number that distinguishes processes of one machine, even with the same process ID.
fn process() -> u32 {
    static START: OnceLock<u32> = OnceLock::new();
    *START.get_or_init(|| {
        let (_, milliseconds) = since_1970(rt::wall());
        (milliseconds * 50) << 16 | std::process::id() & 0xffff
    })
}

/// Returns the server's address in four bytes.
fn local_bytes(local: &Address) -> [u8; 4] {
    match local {
        Address::Inet(address) => match address.ip() {
            IpAddr::V4(ip) => ip.octets(),
            IpAddr::V6(ip) => ip.octets().last_chunk().copied().unwrap_or_default(),
        },
        Address::Unix(_) => [0; 4],
    }
}

/// Formats an identifier as four little-endian numbers, as nginx logs it.
struct Shown(Id);

impl std::fmt::Display for Shown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for number in self.0.as_chunks::<4>().0 {
            write!(f, "{:08X}", u32::from_le_bytes(*number))?;
        }
        Ok(())
    }
}

/// Appends `name=identifier`.
fn shown(conf: &CookieSettings, id: Option<Id>, out: &mut Vec<u8>) -> bool {
    let Some(id) = id else { return false };
    // Writing to a `Vec` cannot fail.
    let _ = write!(out, "{}={}", conf.name, Shown(id));
    true
}

/// Adds the cookie to the response, but not to that of a subrequest.
fn send_cookie(conf: &Conf, request: &mut Request) {
    if request.depth > 0 {
        return;
    }
    let Some((id, is_new)) = id_to_send(request) else { return };
    let conf = conf.get();
    let cookie = cookie(conf, id, (!is_new).then_some(&found(request).cookie), since_1970(rt::wall()).0);
    let fields = &mut request.response.fields;
    fields.push(b"Set-Cookie", &cookie);
    if let Some(p3p) = &conf.p3p {
        fields.push(b"P3P", p3p.as_bytes());
    }
}

/// Returns the value of `Set-Cookie`; `old` is an existing cookie that gets a mark.
fn cookie(conf: &CookieSettings, id: Id, old: Option<&Vec<u8>>, now: i64) -> Vec<u8> {
    let mut out = format!("{}=", conf.name).into_bytes();
    match old {
        // As received, including its unused last bits.
        Some(old) => out.extend_from_slice(&old[..ENCODED_LEN]),
        None => {
            base64::encode(&id, &mut out);
            debug_assert!(out.ends_with(b"=="), "sixteen bytes have two padding characters");
            out.truncate(out.len() - 2);
        }
    }
    out.extend([conf.mark.unwrap_or(b'='), b'=']);
    match conf.expires {
        Expires::Never => {}
        Expires::Max => out.extend_from_slice(b"; expires=Thu, 31-Dec-37 23:55:55 GMT"),
        Expires::After(seconds) => {
            out.extend_from_slice(b"; expires=");
            out.extend_from_slice(&http::date::cookie(now.saturating_add(seconds)));
        }
    }
    let mut attribute = |text: &str, value: &str| {
        out.extend_from_slice(b"; ");
        out.extend_from_slice(text.as_bytes());
        out.extend_from_slice(value.as_bytes());
    };
    if let Some(domain) = &conf.domain {
        attribute("domain=", domain);
    }
    attribute("path=", &conf.path);
    for (flag, text) in [(conf.flags.secure, "secure"), (conf.flags.httponly, "httponly")] {
        if flag {
            attribute(text, "");
        }
    }
    if let Some(site) = conf.flags.samesite {
        attribute("samesite=", site);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{error, loaded, warnings};

    fn conf(text: &str) -> CookieSettings {
        let config = loaded(&format!("{text} server {{ }}"));
        config.http.locations[0].scope.of::<Conf>().get().clone()
    }

    #[test]
    fn cookies_have_the_configured_attributes() {
        let id: Id = *b"\x7f\0\0\x01\x6b\x01\x91\xb0\x96\x8b\x1c\xd5\x03\x03\x03\x02";
        let now = 1_795_264_944;
        let text = |settings: &str, old: Option<&str>| {
            let old = old.map(|old| old.as_bytes().to_vec());
            String::from_utf8(cookie(&conf(settings), id, old.as_ref(), now)).expect("it is text")
        };
        assert_eq!(text("userid on;", None), "uid=fwAAAWsBkbCWixzVAwMDAg==; path=/");
        assert_eq!(
            text(
                "userid on; userid_name abc; userid_domain example.com; userid_path /p; userid_expires max;
                 userid_flags secure httponly samesite=lax;",
                None
            ),
            "abc=fwAAAWsBkbCWixzVAwMDAg==; expires=Thu, 31-Dec-37 23:55:55 GMT; domain=example.com; path=/p; secure; httponly; samesite=lax"
        );
        let marked = "userid on; userid_mark z; userid_expires 1d;";
        assert_eq!(
            text(marked, None),
            "uid=fwAAAWsBkbCWixzVAwMDAgz=; expires=Sun, 22-Nov-26 12:42:24 GMT; path=/"
        );
        assert!(text(marked, Some("AAAAAAECAwQFBgcICQoLDz==")).starts_with("uid=AAAAAAECAwQFBgcICQoLDzz=; "));
        assert!(text("userid_expires 20y;", None).contains("; expires=Fri, 16-Nov-2046 12:42:24 GMT;"));
        assert_eq!(Shown(id).to_string(), "0100007FB091016BD51C8B9602030303");
    }

    #[test]
    fn settings_are_inherited_separately() {
        let config = loaded(
            "userid log; userid_name n; userid_service 7; server { location /a { userid v1; userid_name b; userid_flags off; } }",
        );
        let of = |index: usize| config.http.locations[index].scope.of::<Conf>().get();
        assert_eq!((of(0).mode, of(0).name.as_str(), of(0).service), (Mode::Log, "n", Some(7)));
        assert_eq!((of(1).mode, of(1).name.as_str(), of(1).service), (Mode::V1, "b", Some(7)));
        let none = conf(
            "userid_domain none; userid_p3p none; userid_expires off; userid_mark off; userid_flags off;",
        );
        assert_eq!((none.domain, none.p3p, none.expires, none.mark), (None, None, Expires::Never, None));
        assert_eq!(conf("userid_flags samesite=strict secure;").flags.samesite, Some("strict"));
        let flags = conf("userid_flags Secure HttpOnly SameSite=Lax;").flags;
        assert_eq!((flags.secure, flags.httponly, flags.samesite), (true, true, Some("lax")));
    }

    #[test]
    fn wrong_values_are_refused() {
        const MARK: &str =
            "\"userid_mark\" directive value must be \"off\" or a single letter, digit or \"=\"";
        for (text, expected) in [
            ("userid x;", "invalid value \"x\""),
            ("userid_mark ab;", MARK),
            ("userid_mark -;", MARK),
            ("userid_expires 1x;", "\"userid_expires\" directive invalid value"),
            ("userid_service -1;", "\"userid_service\" directive invalid number"),
            ("userid_flags x;", "invalid value \"x\""),
            ("userid_flags samesite;", "invalid value \"samesite\""),
            (
                "userid_flags secure httponly samesite=lax x;",
                "invalid number of arguments in \"userid_flags\" directive",
            ),
            ("userid_name a; userid_name b;", "\"userid_name\" directive is duplicate"),
            ("userid_path;", "invalid number of arguments in \"userid_path\" directive"),
            ("userid_domain a b;", "invalid number of arguments in \"userid_domain\" directive"),
            ("userid_p3p;", "invalid number of arguments in \"userid_p3p\" directive"),
        ] {
            let found = error(&format!("http {{\n{text} }}"));
            assert!(found.starts_with(expected) && found.contains("/conf/nginx.conf:2"), "{found}");
        }
        let found = warnings("http {\nuserid_flags secure secure samesite=lax; }");
        assert_eq!(found, ["duplicate value \"secure\" in /conf/nginx.conf:2"]);
    }
}
