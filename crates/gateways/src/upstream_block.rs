//! `upstream` and its servers: data for [`peers`].
//!
//! The method of choosing a server is set by separate modules, one per method as in nginx; [`set_method`] is their common part.

use conf::{Args, Contexts, Error, Spec, Statement, value};

use crate::resolver;
use crate::{Declaration, Directive, Module, Walk};
use exchange::module::ThreadHooks;
use peers::address::Url;
use peers::lines::{Accepts, Draft, Line, Method, Source};
use peers::resolve::HttpConf;
use peers::sticky::SID_MAX;
use peers::{Destination, Upstreams};
use site::config::{Cx, Http, HttpType, Scope, Section, SettingsType};
use site::declaration::{BlockHooks, UpstreamHooks};
use upstream::Pools;

/// The module.
pub(crate) static MODULE: Module = Module {
    upstream_url: upstream::state::url,
    thread: ThreadHooks {
        make: |locals| locals.insert(Pools::default()),
        // Connections belong to the configuration version that opened them.
        configured: |thread, _| thread.local::<Pools>().clear(),
        drain: |thread| thread.local::<Pools>().clear(),
        close_idle: |thread| thread.local::<Pools>().close_oldest(),
        ..ThreadHooks::NONE
    },
    ..Module::of(Declaration {
        directives: &[DIRECTIVES],
        settings: &[SettingsType::of::<Draft>()],
        http: &[HttpType::of::<Upstreams>()],
        blocks: BlockHooks { upstream: Some(UpstreamHooks { begin, end }), ..BlockHooks::NONE },
        ..Declaration::named("http_upstream")
    })
};

/// The same directives in `stream`.
pub(crate) static STREAM: Module = Module::of(Declaration {
    directives: &[DIRECTIVES],
    twin: Some(&[]),
    section: Section::Stream,
    blocks: BlockHooks { upstream: Some(UpstreamHooks { begin, end }), ..BlockHooks::NONE },
    ..Declaration::named("stream_upstream")
});

const DIRECTIVES: &[Directive] = &[
    Directive::walk(
        Spec::new(
            "http_upstream",
            "upstream",
            Contexts::HTTP,
            Args::Exactly(1),
            "A named group of servers to which requests are passed on.",
        )
        .block(Contexts::UPSTREAM)
        .many(),
        Walk::Upstream,
    ),
    Directive::scope(
        Spec::new(
            "http_upstream",
            "server",
            Contexts::UPSTREAM,
            Args::AtLeast(1),
            "A server of the group: its address, and `weight=`, `max_conns=`, `max_fails=`, `fail_timeout=`, \
             `slow_start=`, `route=`, `backup`, `down`, `drain`, and for names `resolve` and `service=`.",
        )
        .many(),
        set_server,
    ),
    Directive::scope(
        Spec::new(
            "http_upstream",
            "resolver",
            Contexts::UPSTREAM,
            Args::AtLeast(1),
            "Name servers for servers with `resolve`, instead of the name servers of `http`.",
        ),
        |scope, cx| {
            let draft = scope.make_mut::<Draft>();
            draft.resolver = Some(resolver::resolver(cx)?);
            Ok(())
        },
    ),
    Directive::scope(
        Spec::new(
            "http_upstream",
            "resolver_timeout",
            Contexts::UPSTREAM,
            Args::Exactly(1),
            "How long a lookup of a server with `resolve` may take, instead of the value of `http`.",
        )
        .default("30s"),
        |scope, cx| {
            let draft = scope.make_mut::<Draft>();
            draft.resolver_timeout = Some(resolver::timeout(cx)?);
            Ok(())
        },
    ),
];

/// Begins an upstream block.
fn begin(scope: &mut Scope, cx: &Cx<'_>) -> Result<(), Error> {
    let name = cx.arg(0);
    cx.http.of::<Upstreams>().check_block(name).map_err(|fault| cx.error(fault))?;
    *scope.make_mut::<Draft>() = Draft::new(name);
    Ok(())
}

/// Ends an upstream block: a group needs a primary server.
fn end(scope: &mut Scope, statement: &Statement, http: &mut Http) -> Result<(), Error> {
    let draft = std::mem::take(scope.make_mut::<Draft>());
    // A group whose servers are managed through `api` may be empty.
    let may_be_empty = draft.state.is_some();
    if draft.lines.is_empty() && !may_be_empty {
        return Err(Error::no_servers(&statement.end, None));
    }
    if !may_be_empty && draft.lines.iter().all(|line| line.backup) {
        return Err(Error::no_servers(statement, Some(&draft.name)));
    }
    let mut names = draft.lines.iter().filter_map(Line::named);
    if names.any(|named| named.at_run_time)
        && draft.resolver.is_none()
        && http.of::<HttpConf>().0.resolver.is_none()
    {
        let what = "no resolver defined to resolve names at run time in upstream";
        return Err(Error::at(statement, format_args!("{what} \"{}\"", draft.name)));
    }
    let group = http.make_mut::<Upstreams>().add_block(draft);
    // Also if no directive names the group: a request may choose it, or its servers by their addresses.
    for (destination, _) in group.destinations() {
        if let Destination::Port(port) = destination {
            http.uses.connects(port);
        }
    }
    Ok(())
}

/// Sets the method of a block.
pub(crate) fn set_method(draft: &mut Draft, cx: &mut Cx<'_>, method: Method) {
    // As in nginx `sticky` counts as a method, and the last method applies: `sticky` must follow the balancing method.
    if draft.method.is_some() || draft.sticky.is_some() {
        cx.warn("load balancing method redefined");
    }
    draft.method = Some(method);
    draft.sticky = None;
}

/// nginx's default port of servers, for any protocol.
const PORT: u16 = 80;

/// Sets `server`.
fn set_server(scope: &mut Scope, cx: &mut Cx<'_>) -> Result<(), Error> {
    if scope.of::<Draft>().state.is_some() {
        return Err(cx.error("\"state\" directive is incompatible with \"server\""));
    }
    add_server(scope, cx)
}

/// Adds the server of a statement.
pub(crate) fn add_server(scope: &mut Scope, cx: &mut Cx<'_>) -> Result<(), Error> {
    let draft = scope.make_mut::<Draft>();
    let text = cx.arg(0);
    // Parameters are checked first, as in nginx.
    let mut parameters = Parameters::default();
    for parameter in &cx.statement.args[1..] {
        parameters.read(&parameter.text, draft, cx)?;
    }
    let url = Url::parse(text, PORT);
    let url = url.map_err(|fault| cx.error(format_args!("{fault} in upstream \"{text}\"")))?;
    let mut line = Line { position: Some(cx.statement.span().clone()), ..Line::new(text, &url) };
    if parameters.service.is_some() {
        let fault = match () {
            () if !parameters.resolve => "requires \"resolve\" parameter",
            () if url.has_port => "may not have port",
            () if url.address().is_some() => "requires domain name",
            () => "",
        };
        if !fault.is_empty() {
            return Err(cx.error(format_args!("service upstream \"{text}\" {fault}")));
        }
    }
    if let Source::Named(named) = &mut line.source {
        named.at_run_time = parameters.resolve;
        named.service = parameters.service.clone();
    }
    draft.lines.push(parameters.apply(line));
    Ok(())
}

/// Parameters of a server during parsing.
#[derive(Default)]
struct Parameters {
    weight: Option<i64>,
    max_conns: Option<u64>,
    max_fails: Option<u64>,
    fail_timeout: Option<i64>,
    slow_start_ms: Option<i64>,
    backup: bool,
    accepts: Accepts,
    route: Option<String>,
    resolve: bool,
    service: Option<String>,
}

impl Parameters {
    fn read(&mut self, text: &str, draft: &Draft, cx: &Cx<'_>) -> Result<(), Error> {
        let invalid = || cx.error(format_args!("invalid parameter \"{text}\""));
        let number = |digits: &str| value::number(digits).map_err(|_| invalid());
        let (name, argument) = text.split_once('=').map_or((text, None), |(name, rest)| (name, Some(rest)));
        match (name, argument) {
            ("weight", Some(digits)) => {
                let weight = number(digits)?;
                self.weight =
                    Some(i64::try_from(weight).ok().filter(|&weight| weight > 0).ok_or_else(invalid)?);
            }
            ("max_conns", Some(digits)) => self.max_conns = Some(number(digits)?),
            ("max_fails", Some(digits)) => self.max_fails = Some(number(digits)?),
            ("fail_timeout", Some(time)) => {
                self.fail_timeout = Some(value::seconds(time).map_err(|_| invalid())? as i64);
            }
            ("slow_start", Some(time)) => {
                supported(draft, text, cx)?;
                self.slow_start_ms = Some(value::milliseconds(time).map_err(|_| invalid())? as i64);
            }
            ("backup", None) => {
                supported(draft, text, cx)?;
                self.backup = true;
            }
            ("down", None) => self.accepts = Accepts::Nothing,
            ("drain", None) => self.accepts = Accepts::Sessions,
            ("route", Some("")) => return Err(cx.error("route is empty")),
            ("route", Some(route)) if route.len() > SID_MAX => {
                return Err(cx.error(format_args!("route is longer than {SID_MAX}")));
            }
            ("route", Some(route)) => self.route = Some(route.to_owned()),
            ("service", Some("")) => return Err(cx.error("service is empty")),
            ("resolve", None) => self.resolve = true,
            ("service", Some(service)) => self.service = Some(service.to_owned()),
            _ => return Err(invalid()),
        }
        Ok(())
    }

    fn apply(self, line: Line) -> Line {
        Line {
            weight: self.weight.unwrap_or(line.weight),
            max_conns: self.max_conns.unwrap_or(line.max_conns),
            max_fails: self.max_fails.unwrap_or(line.max_fails),
            fail_timeout: self.fail_timeout.unwrap_or(line.fail_timeout),
            slow_start_ms: self.slow_start_ms.unwrap_or(line.slow_start_ms),
            backup: self.backup,
            accepts: self.accepts,
            route: self.route.map(Into::into),
            ..line
        }
    }
}

/// Checks whether the method set before this line supports the parameter; as in nginx, a method set after it is not checked.
fn supported(draft: &Draft, parameter: &str, cx: &Cx<'_>) -> Result<(), Error> {
    if draft.method.as_ref().is_none_or(Method::takes_backup) {
        return Ok(());
    }
    Err(cx.error(format_args!("balancing method does not support parameter \"{parameter}\"")))
}

#[cfg(test)]
mod tests {
    use crate::testing::{error, loaded, warnings};
    use peers::Upstreams;

    #[test]
    fn wrong_servers_cause_the_messages_of_nginx() {
        for (text, expected) in [
            ("server 127.0.0.1:0;", "invalid port in upstream \"127.0.0.1:0\""),
            ("server a/b;", "invalid host in upstream \"a/b\""),
            ("server unix:;", "no path in the unix domain socket in upstream \"unix:\""),
            ("server [::x];", "invalid IPv6 address in upstream \"[::x]\""),
            ("server a weight=0;", "invalid parameter \"weight=0\""),
            ("server a weight=-1;", "invalid parameter \"weight=-1\""),
            ("server a weight;", "invalid parameter \"weight\""),
            ("server a max_conns=x;", "invalid parameter \"max_conns=x\""),
            ("server a max_fails=;", "invalid parameter \"max_fails=\""),
            ("server a fail_timeout=1x;", "invalid parameter \"fail_timeout=1x\""),
            ("server a slow_start=x;", "invalid parameter \"slow_start=x\""),
            ("server a backup=1;", "invalid parameter \"backup=1\""),
            ("server a route=;", "route is empty"),
            ("server a route=123456789012345678901234567890123;", "route is longer than 32"),
            ("server a x;", "invalid parameter \"x\""),
            ("server a resolve;", "no resolver defined to resolve names at run time in upstream \"b\""),
            ("server a service=x;", "service upstream \"a\" requires \"resolve\" parameter"),
            ("server a:80 service=x resolve;", "service upstream \"a:80\" may not have port"),
            ("server 10.0.0.1 service=x resolve;", "service upstream \"10.0.0.1\" requires domain name"),
            ("server a service=;", "service is empty"),
            ("resolver 127.0.0.1 ipv4=x;", "invalid parameter: ipv4=x"),
            ("server;", "invalid number of arguments in \"server\" directive"),
            ("ip_hash; server a backup;", "balancing method does not support parameter \"backup\""),
            (
                "random; server a slow_start=1s;",
                "balancing method does not support parameter \"slow_start=1s\"",
            ),
            ("hash $uri; server a backup;", "balancing method does not support parameter \"backup\""),
            ("server a backup;", "no servers in upstream \"b\""),
            ("listen 80;", "\"listen\" directive is not allowed here"),
            ("location / { }", "\"location\" directive is not allowed here"),
        ] {
            let found = error(&format!("http {{ server {{ }}\nupstream b {{ {text} }} }}"));
            assert!(found.starts_with(expected) && found.contains("nginx.conf:2"), "{text}: {found}");
        }
        let found = error("http {\nupstream b {\n}\n}");
        assert_eq!(found, "no servers are inside upstream in /conf/nginx.conf:3");
        let found = error("http { upstream b { server a; }\nupstream B { server a; } }");
        assert_eq!(found, "duplicate upstream \"B\" in /conf/nginx.conf:2");
        let found = error("http { upstream b { server a;\nleast_conn x; } }");
        assert!(found.starts_with("invalid number of arguments"), "{found}");
    }

    #[test]
    fn a_balancing_method_restricts_the_server_parameters() {
        // As in nginx, a method after the servers is not checked.
        loaded("upstream a { server a; server b backup; ip_hash; }");
        loaded("upstream a { least_conn; server a; server b backup slow_start=5s; }");
        for (text, count) in [
            ("ip_hash;", 0),
            ("ip_hash; least_conn;", 1),
            ("hash $uri; hash $uri consistent; random two;", 2),
            ("sticky route $arg_a; least_conn;", 1),
            ("least_conn; sticky route $arg_a;", 0),
        ] {
            let found = warnings(&format!("http {{\nupstream a {{ server a; {text} }} }}"));
            assert_eq!(found.len(), count, "{text}: {found:?}");
            let same = "load balancing method redefined in /conf/nginx.conf:2";
            assert!(found.iter().all(|warning| warning == same), "{text}: {found:?}");
        }
    }

    #[test]
    fn groups_are_found_by_name() {
        let config = loaded("upstream Back { server a; } upstream other { server 127.0.0.1 weight=5; }");
        let find = |host: &str, port, has_port| {
            let group = config.http.of::<Upstreams>().find(host.as_bytes(), port, has_port);
            group.map(|group| group.name.clone())
        };
        assert_eq!(find("back", 80, false).as_deref(), Some("Back"));
        assert_eq!(find("back", 80, true), None);
        assert_eq!(find("backs", 80, false), None);
    }
}
