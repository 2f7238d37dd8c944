//! `charset`: declares the charset of a text, and converts it to another charset.
//!
//! Without `source_charset` the charset of the text is unknown, and the name is only appended to the content type. With
//! `source_charset`, or if an upstream specifies the charset of its response, the text is converted ([`recode`]) with a
//! `charset_map` ([`map`]). The charset is never guessed from the text.

mod map;
mod recode;

use std::borrow::Cow;
use std::rc::Rc;

use conf::{Args, Contexts, Error, Object, Spec};

use map::Maps;
use recode::Recode;

use crate::{Declaration, Directive, Module};
use exchange::charset::{named, target_charset};
use exchange::module::SubrequestHooks;
use exchange::request::Request;
use exchange::response::ContentType;
use site::config::{Cx, Http, HttpType, Scope, SettingsType};
use site::declaration::{LEVELS, LEVELS_AND_IF};
use site::settings::charset::{Charset, Charsets, Conf};
use site::settings::media_types::split_charset;
use telemetry::{ForLog, Level};

/// The module.
pub(crate) static MODULE: Module = Module {
    add_to_plan: |http, scope, plan| {
        // In all locations, if any charset is configured: an upstream may set it (`X-Accel-Charset`) for the file of an
        // internal redirect.
        if http.of::<Charsets>().is_any() {
            plan.filter(scope.shared::<Conf>(), filter);
        }
    },
    subrequest: SubrequestHooks { begin: Some(hand_down), ..SubrequestHooks::NONE },
    ..Module::of(Declaration {
        directives: &[DIRECTIVES],
        settings: &[SettingsType::of::<Conf>()],
        http: &[HttpType::of::<Charsets>(), HttpType::of::<Maps>()],
        check: |http, _| check(http),
        ..Declaration::named("http_charset")
    })
};

const fn spec(name: &'static str, contexts: Contexts, args: Args, help: &'static str) -> Spec {
    Spec::new("http_charset", name, contexts, args, help)
}

const DIRECTIVES: &[Directive] = &[
    // `off` is a keyword here, but a charset name in `source_charset`, as in nginx.
    Directive::scope(
        spec(
            "charset",
            LEVELS_AND_IF,
            Args::Exactly(1),
            "The charset that is added to the `Content-Type` of texts; `off` adds none.",
        )
        .default("off"),
        set_charset,
    ),
    Directive::scope(
        spec(
            "source_charset",
            LEVELS_AND_IF,
            Args::Exactly(1),
            "The original charset of texts; they are converted if `charset` differs.",
        ),
        set_source,
    ),
    Directive::scope(
        spec(
            "override_charset",
            LEVELS_AND_IF,
            Args::Flag,
            "Whether responses of upstreams with a charset in `Content-Type` are converted too.",
        )
        .default("off"),
        |scope, cx| cx.flag(&mut scope.make_mut::<Conf>().overrides),
    ),
    Directive::scope(
        spec(
            "charset_types",
            LEVELS,
            Args::AtLeast(1),
            "Media types that `charset` applies to, in addition to HTML.",
        )
        .many()
        .default("text/html text/xml text/plain text/vnd.wap.wml application/javascript application/rss+xml"),
        |scope, cx| scope.make_mut::<Conf>().types.parse(cx),
    ),
    Directive::http(
        spec("charset_map", Contexts::HTTP, Args::Exactly(2), "Conversion table between two charsets.")
            .raw()
            .many(),
        map::read,
    ),
];

/// The charset that a subrequest's response is converted to, because it becomes part of another response.
struct TargetCharset(Cow<'static, [u8]>);

/// Sets `charset`. Also stores the position, because a missing map is detected only after all maps were read.
fn set_charset(scope: &mut Scope, cx: &mut Cx<'_>) -> Result<(), Error> {
    scope.make_mut::<Conf>().charset = if cx.arg(0) == "off" { None } else { Some(Charset::parse(cx)?) };
    scope.make_mut::<Conf>().span = Some(cx.statement.span().clone());
    Ok(())
}

/// Reads `source_charset`, and records its place for messages about a missing map.
fn set_source(scope: &mut Scope, cx: &mut Cx<'_>) -> Result<(), Error> {
    scope.make_mut::<Conf>().source = Some(Charset::parse(cx)?);
    scope.make_mut::<Conf>().span = Some(cx.statement.span().clone());
    Ok(())
}

/// Fails if a location requires a map that does not exist.
fn check(http: &Http) -> Result<(), Error> {
    for conf in http.locations.iter().map(|location| location.scope.of::<Conf>()) {
        // The value of a variable is checked at each request.
        let constant =
            |charset: &Option<Charset>| charset.as_ref().and_then(Charset::constant).map(str::to_owned);
        let (Some(from), Some(to), Some(span)) =
            (constant(&conf.source), constant(&conf.charset), &conf.span)
        else {
            continue;
        };
        if !from.eq_ignore_ascii_case(&to)
            && http.of::<Maps>().conversion(from.as_bytes(), to.as_bytes()).is_none()
        {
            return Err(Error::undefined(span.clone(), Object::CharsetMap { to }, &from));
        }
    }
    Ok(())
}

/// Sets the charset, and adds the conversion if the text has another one.
fn filter(conf: &Conf, request: &mut Request) {
    // A subrequest has the charset of the main response as its target, whatever its location specifies.
    if request.depth == 0 && request.response.charset_override.is_none() && !conf.is_active() {
        return;
    }
    let named = named(request);
    let target_charset = match request.depth {
        0 => target_charset(request, conf, named.is_some()),
        _ => request.extensions.get::<TargetCharset>().map(|TargetCharset(name)| name.clone()),
    };
    let Some(target_charset) = target_charset else { return };
    let source = named.or_else(|| conf.source.as_ref()?.name(request));
    // A text of unknown charset is assumed to have the target charset already.
    let Some(source) = source else { return name(request, target_charset) };
    if source.eq_ignore_ascii_case(&target_charset) {
        return name(request, target_charset);
    }
    if request.forbids_transform() {
        return;
    }
    // An encoded body is no text.
    if request.response.field(b"Content-Encoding").is_some_and(|encoding| !encoding.is_empty()) {
        return;
    }
    let thread_config = Rc::clone(&request.thread_config);
    let Some(conversion) = thread_config.config.http.of::<Maps>().conversion(&source, &target_charset) else {
        let (source, target_charset) = (source.for_log(), target_charset.for_log());
        let what =
            format_args!("no \"charset_map\" between the charsets \"{source}\" and \"{target_charset}\"");
        return request.log(Level::Error, what);
    };
    let recode = Recode::new(conversion);
    // A response without a length has no ranges either.
    if request.depth == 0 && !recode.preserves_length() {
        request.response.content_length = None;
    }
    request.response.drop_body_fields();
    request.response.filters.push(Box::new(recode));
    name(request, target_charset);
}

/// Appends the charset to the content type, replacing an existing one.
fn name(request: &mut Request, charset: Cow<'static, [u8]>) {
    // The response to a subrequest has no header section.
    if request.depth > 0 {
        return;
    }
    let response = &mut request.response;
    if let ContentType::Text(text) = &mut response.content_type {
        let len = split_charset(text).0.len();
        if len < text.len() {
            text.to_mut().truncate(len);
        }
    }
    // As in nginx, redirects have no charset: some browsers used it for the page that the redirect leads to.
    response.charset = Some(charset).filter(|_| !matches!(response.status, 301 | 302));
}

/// Passes the charset of the main response to a subrequest.
fn hand_down(parent: &Request, child: &mut Request) {
    let target_charset = match parent.extensions.get::<TargetCharset>() {
        Some(TargetCharset(name)) => Some(name.clone()),
        None if parent.depth > 0 => None,
        None => named(parent),
    };
    if let Some(name) = target_charset {
        child.extensions.insert(TargetCharset(name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{error, loaded, warnings};

    #[test]
    fn blocks_inherit_and_override_outer_settings() {
        let config = loaded(
            "charset koi8-r; charset_types text/css; server { location /a { } location /b { charset off; }
             location /c { charset KOI8-R; charset_types *; override_charset on; } }",
        );
        let conf = |name: &str| {
            let location = config.http.locations.iter().find(|location| location.name == name);
            location.expect("it is there").scope.of::<Conf>().clone()
        };
        let charset =
            |name: &str| conf(name).charset.and_then(|charset| charset.constant().map(str::to_owned));
        assert_eq!(charset("/a").as_deref(), Some("koi8-r"));
        assert_eq!(charset("/b"), None);
        assert!(!conf("/b").is_active());
        // The first spelling is sent.
        assert_eq!(charset("/c").as_deref(), Some("koi8-r"));
        assert!(conf("/c").overrides && !conf("/a").overrides);
        let config = loaded(
            "charset_map a b { } source_charset a; override_charset on; server { location /in { }
             location /own { source_charset b; override_charset off; } }",
        );
        let found = |name: &str| {
            let location = config.http.locations.iter().find(|location| location.name == name);
            let conf = location.expect("it is there").scope.of::<Conf>();
            (conf.source.as_ref().and_then(Charset::constant).map(str::to_owned), conf.overrides)
        };
        assert_eq!(found("/in"), (Some("a".to_owned()), true));
        assert_eq!(found("/own"), (Some("b".to_owned()), false));
    }

    #[test]
    fn wrong_statements_are_refused() {
        for (text, expected) in [
            ("charset $; server { }", "invalid variable name \"$\""),
            ("charset $nobody; server { }", "unknown \"nobody\" variable"),
            ("charset a; charset b;", "\"charset\" directive is duplicate"),
            (
                "override_charset yes;",
                "invalid value \"yes\" in \"override_charset\" directive, it must be \"on\" or \"off\"",
            ),
            (
                "source_charset a; charset b; server { }",
                "no \"charset_map\" between the charsets \"a\" and \"b\"",
            ),
            ("source_charset a; source_charset b; server { }", "\"source_charset\" directive is duplicate"),
        ] {
            let found = error(&format!("http {{\n{text} }}"));
            assert_eq!(found, format!("{expected} in /conf/nginx.conf:2"), "{text}");
        }
        loaded("charset_map b a { } source_charset a; charset b; server { }");
        loaded("source_charset a; charset A; server { } ");
        let found = warnings("http {\ncharset_types text/css TEXT/CSS text/html; }");
        let duplicate = |name: &str| format!("duplicate MIME type \"{name}\" in /conf/nginx.conf:2");
        assert_eq!(found, [duplicate("text/css"), duplicate("text/html")]);
    }
}
