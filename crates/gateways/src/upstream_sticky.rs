//! `sticky`: a client returns to the same server of a group. The server is identified by a cookie set here, by a route in the
//! request, or by a session that the server created.

use std::sync::Arc;

use conf::{Args, Contexts, Error, Spec, value};

use crate::{Declaration, Directive, Module};
use exchange::request::Request;
use peers::Upstreams;
use peers::lines::Draft;
use peers::sticky::{Cookie, Declared, Expires, Learn, SAME_SITE, Sticky, StickyKind};
use site::config::{Cx, Scope};
use site::shared_zone::BYTES_MIN;
use site::var_ref::VarRef;
use upstream::SetCookie;

/// The module.
pub(crate) static MODULE: Module = Module {
    add_to_plan: |http, _, plan| {
        // Known only when the configuration is complete.
        if http.of::<Upstreams>().groups().any(|group| group.sets_cookies()) {
            plan.filter(Arc::new(()), |(), request| add_cookie(request));
        }
    },
    ..Module::of(Declaration { directives: &[DIRECTIVES], ..Declaration::named("http_upstream_sticky") })
};

const DIRECTIVES: &[Directive] = &[Directive::scope(
    Spec::new(
        "http_upstream_sticky",
        "sticky",
        Contexts::UPSTREAM,
        Args::AtLeast(2),
        "Requests of a client are sent to the same server: `cookie NAME` with `expires=`, `domain=`, `path=`, `httponly`, `secure`, \
         `samesite=`; `route` with variables; `learn` with `create=`, `lookup=`, `zone=`, `timeout=`, `header`.",
    ),
    sticky,
)];

/// Adds the cookie of the last chosen server before the fields of the response, as a filter.
fn add_cookie(request: &mut Request) {
    if request.depth > 0 {
        return;
    }
    if let Some(SetCookie(text)) = request.extensions.remove() {
        request.response.fields.edit(|fields| fields.insert(0, (b"Set-Cookie".to_vec(), text)));
    }
}

fn sticky(scope: &mut Scope, cx: &mut Cx<'_>) -> Result<(), Error> {
    let draft = scope.make_mut::<Draft>();
    draft.sticky = Some(match cx.arg(0) {
        "cookie" => cookie(cx)?,
        "route" => {
            let words = &cx.statement.args[1..];
            let lookup: Result<_, Error> = words.iter().map(|word| variable(&word.text, cx)).collect();
            Sticky { lookup: lookup?, kind: StickyKind::Route }
        }
        "learn" => learn(draft, cx)?,
        other => return Err(unknown(cx, other)),
    });
    Ok(())
}

/// Creates an error in the form of most of nginx's errors here: `"sticky" directive …`.
fn fault(cx: &Cx<'_>, text: &str) -> Error {
    Error::directive(cx.statement, text)
}

fn unknown(cx: &Cx<'_>, parameter: &str) -> Error {
    cx.error(format_args!("unknown parameter \"{parameter}\""))
}

fn variable(text: &str, cx: &mut Cx<'_>) -> Result<VarRef, Error> {
    let name = text.strip_prefix('$').ok_or_else(|| {
        // nginx's message; unlike for other variables, nginx accepts an empty name here.
        cx.error(format_args!("invalid variable name \"{text}\""))
    })?;
    Ok(cx.http.registry.reference(name, cx.statement))
}

fn cookie(cx: &mut Cx<'_>) -> Result<Sticky, Error> {
    let name = cx.arg(1).to_owned();
    if name.is_empty() {
        return Err(fault(cx, "empty cookie name"));
    }
    let mut cookie = Cookie { name, ..Cookie::default() };
    for word in &cx.statement.args[2..] {
        let text = word.text.as_str();
        let (key, argument) = text.split_once('=').map_or((text, None), |(key, rest)| (key, Some(rest)));
        let is_set = match (key, argument) {
            ("domain", Some(_)) => cookie.domain.is_some(),
            ("path", Some(_)) => cookie.path.is_some(),
            ("expires", Some(_)) => cookie.expires.is_some(),
            ("httponly", None) => cookie.http_only,
            ("secure", None) => cookie.secure,
            ("samesite", Some(_)) => cookie.same_site.is_some(),
            _ => return Err(unknown(cx, text)),
        };
        if is_set {
            return Err(fault(cx, &format!("parameter \"{key}\" is duplicate")));
        }
        let argument = argument.unwrap_or_default();
        if argument.is_empty() && matches!(key, "domain" | "path") {
            return Err(fault(cx, &format!("no value for \"{key}\"")));
        }
        match key {
            "domain" => cookie.domain = Some(cx.template(argument)?),
            "path" => cookie.path = Some(argument.to_owned()),
            "expires" => cookie.expires = Some(expires(argument, cx)?),
            "httponly" => cookie.http_only = true,
            "secure" => cookie.secure = true,
            _ => {
                let value = cx.template(argument)?;
                let is_known = |text: &str| SAME_SITE.iter().any(|known| known.eq_ignore_ascii_case(text));
                if value.constant().is_some_and(|text| !is_known(text)) {
                    return Err(fault(cx, "invalid \"samesite\" parameter value"));
                }
                cookie.same_site = Some(value);
            }
        }
    }
    let lookup = cx.http.registry.reference(&format!("cookie_{}", cookie.name), cx.statement);
    Ok(Sticky { lookup: vec![lookup], kind: StickyKind::Cookie(Arc::new(cookie)) })
}

fn expires(text: &str, cx: &Cx<'_>) -> Result<Expires, Error> {
    if text == "max" {
        return Ok(Expires::Max);
    }
    let seconds = value::seconds(text).map_err(|_| fault(cx, "invalid \"expires\" parameter value"))?;
    Ok(Expires::After(seconds as i64))
}

/// Default lifetime of an unused session in ms: ten minutes.
const TIMEOUT_MS: i64 = 600_000;

/// Parameters of `sticky learn` during parsing.
#[derive(Default)]
struct LearnDraft {
    lookup: Vec<VarRef>,
    create: Vec<VarRef>,
    zone: Option<(String, u64)>,
    timeout_ms: Option<i64>,
    at_header: bool,
}

fn learn(draft: &Draft, cx: &mut Cx<'_>) -> Result<Sticky, Error> {
    let mut found = LearnDraft::default();
    for word in &cx.statement.args[1..] {
        let text = word.text.as_str();
        match text.split_once('=') {
            Some(("zone", _)) if found.zone.is_some() => return Err(fault(cx, "duplicate zone")),
            Some(("zone", argument)) => found.zone = Some(zone(argument, cx)?),
            Some(("timeout", _)) if found.timeout_ms.is_some() => return Err(fault(cx, "duplicate timeout")),
            Some(("timeout", time)) => {
                let time = value::milliseconds(time).ok().filter(|&time| time > 0);
                let time = time.ok_or_else(|| fault(cx, "invalid timeout"))?;
                found.timeout_ms = Some(time as i64);
            }
            Some((key @ ("create" | "lookup"), argument)) => {
                if !argument.starts_with('$') {
                    return Err(fault(cx, &format!("missing variable in the \"{key}\" parameter")));
                }
                let variable = variable(argument, cx)?;
                if key == "create" { &mut found.create } else { &mut found.lookup }.push(variable);
            }
            None if text == "header" => found.at_header = true,
            _ => return Err(unknown(cx, text)),
        }
    }
    let missing = |name: &str| fault(cx, &format!("\"{name}\" parameter is not specified"));
    if found.lookup.is_empty() {
        return Err(missing("lookup"));
    }
    if found.create.is_empty() {
        return Err(missing("create"));
    }
    let (name, bytes) = found.zone.ok_or_else(|| missing("zone"))?;
    let zone = cx.http.zones.named::<Declared>(&name, cx.statement)?;
    if let Some(known) = zone.declared() {
        let group = &known.group;
        let what = format_args!("sticky zone \"{name}\" is already used in upstream \"{group}\"");
        return Err(cx.error(what));
    }
    let declared = Declared { group: draft.name.clone() };
    cx.http.zones.declare((&name, bytes), declared, |known| &known.group, cx.statement)?;
    let timeout_ms = found.timeout_ms.unwrap_or(TIMEOUT_MS);
    let learn = Learn { create: found.create, zone, timeout_ms, at_header: found.at_header };
    Ok(Sticky { lookup: found.lookup, kind: StickyKind::Learn(Arc::new(learn)) })
}

fn zone(text: &str, cx: &Cx<'_>) -> Result<(String, u64), Error> {
    let (name, size) = text.split_once(':').ok_or_else(|| fault(cx, "zone size is not specified"))?;
    if name.is_empty() {
        return Err(fault(cx, "zone name is not specified"));
    }
    let bytes = value::size(size).map_err(|_| fault(cx, "invalid zone size"))?;
    if bytes < BYTES_MIN {
        return Err(fault(cx, "zone is too small"));
    }
    Ok((name.to_owned(), bytes))
}

#[cfg(test)]
mod tests {
    use crate::testing::{error, loaded};
    use peers::Upstreams;
    use peers::sticky::{Sid, Sticky, StickyKind};
    use site::config::Config;
    use site::shared_zone::Zones;

    #[test]
    fn all_forms_are_accepted() {
        let config = loaded(
            "upstream a { server a; sticky cookie srv expires=1h domain=.$host path=/ httponly secure samesite=Lax; }
             upstream b { server a route=x; sticky route $cookie_r $arg_r; }
             upstream c { server a; sticky learn create=$upstream_cookie_s lookup=$cookie_s zone=s:1m timeout=5m header; }
             upstream d { server a; sticky cookie srv expires=max samesite=$arg_s; }
             server { }",
        );
        let filters = |config: &Config| {
            let location = config.http.locations.last().expect("it is there");
            crate::all().plan(&config.http, &location.scope).filters().len()
        };
        let with_cookies = filters(&config);
        let config = loaded("upstream a { server a; sticky route $arg_r; } server { }");
        assert_eq!(filters(&config) + 1, with_cookies);
    }

    #[test]
    fn wrong_values_cause_the_messages_of_nginx() {
        const LEARN: &str = "learn create=$upstream_cookie_s lookup=$cookie_s";
        for (text, expected) in [
            ("x y", "unknown parameter \"x\""),
            ("cookie", "invalid number of arguments in \"sticky\" directive"),
            ("cookie \"\"", "\"sticky\" directive empty cookie name"),
            ("cookie a x", "unknown parameter \"x\""),
            ("cookie a domain=", "\"sticky\" directive no value for \"domain\""),
            ("cookie a path=", "\"sticky\" directive no value for \"path\""),
            ("cookie a path=/ path=/", "\"sticky\" directive parameter \"path\" is duplicate"),
            ("cookie a secure secure", "\"sticky\" directive parameter \"secure\" is duplicate"),
            ("cookie a expires=x", "\"sticky\" directive invalid \"expires\" parameter value"),
            ("cookie a samesite=x", "\"sticky\" directive invalid \"samesite\" parameter value"),
            ("cookie a domain=$never", "unknown \"never\" variable"),
            ("route a", "invalid variable name \"a\""),
            ("route $never", "unknown \"never\" variable"),
            ("learn header", "\"sticky\" directive \"lookup\" parameter is not specified"),
            ("learn lookup=$arg_a", "\"sticky\" directive \"create\" parameter is not specified"),
            ("learn lookup=x", "\"sticky\" directive missing variable in the \"lookup\" parameter"),
            (LEARN, "\"sticky\" directive \"zone\" parameter is not specified"),
            ("learn zone=a", "\"sticky\" directive zone size is not specified"),
            ("learn zone=:1m", "\"sticky\" directive zone name is not specified"),
            ("learn zone=a:x", "\"sticky\" directive invalid zone size"),
            ("learn zone=a:31k", "\"sticky\" directive zone is too small"),
            ("learn zone=a:1m zone=a:1m", "\"sticky\" directive duplicate zone"),
            ("learn timeout=0", "\"sticky\" directive invalid timeout"),
            ("learn timeout=1 timeout=1", "\"sticky\" directive duplicate timeout"),
            ("learn x", "unknown parameter \"x\""),
        ] {
            let found = error(&format!("http {{\nupstream a {{ server a; sticky {text}; }} }}"));
            assert!(found.starts_with(expected) && found.contains("nginx.conf:2"), "{text}: {found}");
        }
        let found = error(&format!(
            "http {{ upstream a {{ server a; sticky {LEARN} zone=s:1m; }}\nupstream b {{ server a; sticky {LEARN} zone=s:1m; }} }}"
        ));
        assert_eq!(found, "sticky zone \"s\" is already used in upstream \"a\" in /conf/nginx.conf:2");
        let found = error("http {\nupstream a { server a; sticky route $arg_a; sticky route $arg_a; } }");
        assert_eq!(found, "\"sticky\" directive is duplicate in /conf/nginx.conf:2");
    }

    #[test]
    fn a_response_does_not_extend_an_expired_session() {
        let config = loaded(
            "upstream u { server 10.0.0.1; sticky learn create=$arg_a lookup=$arg_a zone=s:64k timeout=10s; }",
        );
        config.http.zones.begin(&Zones::default());
        let group = config.http.of::<Upstreams>().groups().next().expect("there is one");
        let Some(Sticky { kind: StickyKind::Learn(learn), .. }) = &group.sticky else { panic!("it learns") };
        let sid = |text: &str| Sid::of(Some(text), "");
        learn.learn(b"one", true, &sid("a"), 0);
        assert_eq!(learn.find(b"one", 9_999), Some(b"a".to_vec()));
        // The request arrived in time, but its response ended after the session had expired.
        learn.learn(b"one", false, &sid("a"), 10_000);
        assert_eq!(learn.find(b"one", 10_000), None);
        // A request in time prolongs the session, and a response that creates it again restarts it.
        learn.learn(b"one", true, &sid("b"), 20_000);
        learn.learn(b"one", false, &sid("b"), 29_999);
        assert_eq!(learn.find(b"one", 35_000), Some(b"b".to_vec()));
    }
}
