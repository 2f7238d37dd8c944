//! `resolver` and `resolver_timeout`; `peers::resolve` implements them.

use std::sync::Arc;
use std::time::Duration;

use ::conf::{Args, Error, Spec, value};

use crate::{Declaration, Directive, Module};
use peers::resolve::resolver::Resolver;
use peers::resolve::settings::Settings;
use peers::resolve::{Conf, HttpConf};
use site::config::{BlockEnd, BlockKind, Cx, Http, HttpType, Scope, Section, SettingsType};
use site::declaration::{BlockHooks, LEVELS};

/// The module. In nginx these directives belong to the HTTP core; only modules that pass requests on use them.
pub(crate) static MODULE: Module = Module::of(Declaration {
    directives: &[DIRECTIVES],
    settings: &[SettingsType::of::<Conf>()],
    http: &[HttpType::of::<HttpConf>()],
    blocks: BlockHooks { end, ..BlockHooks::NONE },
    ..Declaration::named("http_core")
});

/// The same directives in `stream`.
pub(crate) static STREAM: Module = Module::of(Declaration {
    directives: &[DIRECTIVES],
    twin: Some(&[]),
    section: Section::Stream,
    blocks: BlockHooks { end, ..BlockHooks::NONE },
    ..Declaration::named("stream_core")
});

/// Stores the resolver of `http` or `stream` for upstream groups, which have no other enclosing block.
fn end(http: &mut Http, scope: &mut Scope, end: &BlockEnd<'_>) -> Result<(), Error> {
    if end.kind == BlockKind::Http {
        http.make_mut::<HttpConf>().0 = scope.of::<Conf>().clone();
    }
    Ok(())
}

const DIRECTIVES: &[Directive] = &[
    Directive::scope(
        Spec::new(
            "http_core",
            "resolver",
            LEVELS,
            Args::AtLeast(1),
            "Name servers for names from variables and for servers with `resolve`, with `valid=`, `ipv4=` and `ipv6=`.",
        ),
        set_resolver,
    ),
    Directive::scope(
        Spec::new(
            "http_core",
            "resolver_timeout",
            LEVELS,
            Args::Exactly(1),
            "How long a request waits for the address of a name.",
        )
        .default("30s"),
        set_timeout,
    ),
];

fn set_resolver(scope: &mut Scope, cx: &mut Cx<'_>) -> Result<(), Error> {
    scope.make_mut::<Conf>().resolver = Some(resolver(cx)?);
    Ok(())
}

fn set_timeout(scope: &mut Scope, cx: &mut Cx<'_>) -> Result<(), Error> {
    scope.make_mut::<Conf>().timeout = timeout(cx)?;
    Ok(())
}

/// Creates the resolver that a statement's arguments describe.
pub(crate) fn resolver(cx: &Cx<'_>) -> Result<Arc<Resolver>, Error> {
    let words = cx.statement.args.iter().map(|word| word.text.as_str());
    let settings = Settings::parse(words).map_err(|fault| match fault.advice() {
        Some(advice) => cx.error(&fault).advise(advice),
        None => cx.error(&fault),
    })?;
    Ok(Resolver::new(settings.at(cx.statement.span())))
}

/// Parses the time in the first argument.
pub(crate) fn timeout(cx: &Cx<'_>) -> Result<Duration, Error> {
    let mut ms = 0;
    cx.set(&mut ms, value::milliseconds)?;
    Ok(Duration::from_millis(ms))
}

#[cfg(test)]
mod tests {
    use super::{Conf, Duration};
    use crate::testing::{error, loaded};

    #[test]
    fn wrong_resolvers_cause_the_messages_of_nginx() {
        for (text, expected) in [
            ("resolver 127.0.0.1 valid=x;", "invalid parameter: valid=x"),
            ("resolver 127.0.0.1 status_zone=a;", "host not found in resolver \"status_zone=a\""),
            ("resolver 127.0.0.1:0;", "invalid port in resolver \"127.0.0.1:0\""),
            ("resolver;", "invalid number of arguments in \"resolver\" directive"),
            ("resolver 127.0.0.1; resolver 127.0.0.1;", "\"resolver\" directive is duplicate"),
            ("resolver_timeout x;", "\"resolver_timeout\" directive invalid value"),
        ] {
            let found = error(&format!("http {{ server {{\n{text} }} }}"));
            assert!(found.starts_with(expected) && found.contains("nginx.conf:2"), "{text}: {found}");
        }
    }

    /// Names of name servers are resolved when needed, so that they need not be known at the start.
    #[test]
    fn a_name_server_without_an_address_is_reported_by_a_test_of_the_configuration() {
        let config = loaded("\nresolver a.invalid:54 127.0.0.1; server { }");
        let found = upstream::names::missing(&config, Duration::ZERO);
        let [message] = &found[..] else { panic!("{found:?}") };
        let expected = ") in /conf/nginx.conf:2; the running server retries the lookup";
        assert!(message.starts_with("host not found in resolver \"a.invalid\" ("), "{message}");
        assert!(message.ends_with(expected), "{message}");
    }

    #[test]
    fn blocks_inherit_the_resolver() {
        let config = loaded(
            "resolver 127.0.0.1; resolver_timeout 5s;
             server { location /a { } location /b { resolver 127.0.0.2; } }",
        );
        let of = |path: &str| {
            let mut scopes = config.http.locations.iter().map(|location| &location.scope);
            let found = scopes.find(|scope| format!("{:?}", scope.core.found_by).contains(path));
            found.map(|scope| {
                (format!("{:?}", scope.of::<Conf>().resolver), scope.of::<Conf>().timeout.as_secs())
            })
        };
        let (inherited, own) = (of("/a").expect("it is there"), of("/b").expect("it is there"));
        assert!(
            inherited.0.contains("127.0.0.1:53") && own.0.contains("127.0.0.2:53"),
            "{inherited:?} {own:?}"
        );
        assert_eq!((inherited.1, own.1), (5, 5));
    }
}
