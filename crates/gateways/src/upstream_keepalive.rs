//! `keepalive` and related directives: settings for idle connections to the servers of a group. `upstream` has the connections.

use conf::{Args, Contexts, Error, Spec, value};

use crate::{Declaration, Directive, Module};
use peers::lines::Draft;
use site::config::{Cx, Scope};

/// The module.
pub(crate) static MODULE: Module =
    Module::of(Declaration { directives: &[DIRECTIVES], ..Declaration::named("http_upstream_keepalive") });

const fn spec(name: &'static str, args: Args, help: &'static str) -> Spec {
    Spec::new("http_upstream_keepalive", name, Contexts::UPSTREAM, args, help)
}

const DIRECTIVES: &[Directive] = &[
    Directive::scope(
        spec(
            "keepalive",
            Args::Between(1, 2),
            "Maximum number of idle connections to the group per thread; 0 disables keep-alive; `local`: locations do not \
             share connections.",
        )
        .default("32 local"),
        keepalive,
    ),
    // A limit has the effect that a server eventually frees memory that it holds for a connection.
    Directive::scope(
        spec("keepalive_requests", Args::Exactly(1), "Maximum number of requests per connection.").default("1000"),
        |scope, cx| cx.number(&mut scope.make_mut::<Draft>().keepalive.requests),
    ),
    Directive::scope(
        spec("keepalive_time", Args::Exactly(1), "Time after which a connection is not used again.").default("1h"),
        |scope, cx| cx.milliseconds(&mut scope.make_mut::<Draft>().keepalive.time),
    ),
    Directive::scope(
        spec("keepalive_timeout", Args::Exactly(1), "Maximum time that a connection may be idle.").default("60s"),
        |scope, cx| cx.milliseconds(&mut scope.make_mut::<Draft>().keepalive.timeout),
    ),
];

fn keepalive(scope: &mut Scope, cx: &mut Cx<'_>) -> Result<(), Error> {
    let draft = scope.make_mut::<Draft>();
    let text = cx.arg(0);
    let most = value::number(text).ok().and_then(|most| usize::try_from(most).ok());
    let invalid = || cx.error(format_args!("invalid value \"{text}\" in \"keepalive\" directive"));
    draft.keepalive.idle_max = most.ok_or_else(invalid)?;
    draft.keepalive.local = match cx.statement.args.get(1).map(|word| word.text.as_str()) {
        None => false,
        Some("local") => true,
        Some(other) => return Err(cx.error(format_args!("invalid parameter \"{other}\""))),
    };
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::testing::{error, loaded};
    use peers::Keepalive;
    use peers::Upstreams;

    #[test]
    fn keep_alive_is_on_by_default_and_configurable() {
        let config = loaded(
            "upstream a { server a; } upstream b { server a; keepalive 0; }
             upstream c { server a; keepalive 5; keepalive_requests 6; keepalive_time 7s; keepalive_timeout 8ms; }
             upstream d { keepalive 5 local; server a; }",
        );
        let keepalive = |name: &str| {
            let group = config.http.of::<Upstreams>().find(name.as_bytes(), 80, false);
            group.expect("it is there").keepalive
        };
        let default = Keepalive::default();
        assert_eq!((default.idle_max, default.local), (32, true));
        assert_eq!((keepalive("a"), keepalive("b")), (Some(default), None));
        let said = Keepalive {
            idle_max: 5,
            local: false,
            requests: 6,
            time: Duration::from_secs(7),
            timeout: Duration::from_millis(8),
        };
        assert_eq!(keepalive("c"), Some(said));
        assert_eq!(keepalive("d"), Some(Keepalive { idle_max: 5, ..default }));
    }

    #[test]
    fn wrong_values_cause_the_messages_of_nginx() {
        for (text, expected) in [
            ("keepalive x;", "invalid value \"x\" in \"keepalive\" directive"),
            ("keepalive 1 x;", "invalid parameter \"x\""),
            ("keepalive 1; keepalive 1;", "\"keepalive\" directive is duplicate"),
            ("keepalive_requests x;", "\"keepalive_requests\" directive invalid number"),
            ("keepalive_time x;", "\"keepalive_time\" directive invalid value"),
            ("keepalive_timeout -1;", "\"keepalive_timeout\" directive invalid value"),
        ] {
            let found = error(&format!("http {{\nupstream a {{ server a; {text} }} }}"));
            assert!(found.starts_with(expected) && found.contains("nginx.conf:2"), "{text}: {found}");
        }
    }
}
