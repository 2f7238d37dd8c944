//! `queue`: requests that wait for a server of a group instead of getting 502. `peers::queue` has the waiting requests.

use std::time::Duration;

use conf::{Args, Contexts, Error, Spec, value};

use crate::{Declaration, Directive, Module};
use peers::lines::Draft;
use peers::queue::QueueLimits;
use site::config::{Cx, Scope};
use site::declaration::OWN;

/// The module.
pub(crate) static MODULE: Module = Module::of(Declaration {
    directives: &[&[Directive::scope(
        Spec::new(
            OWN,
            "queue",
            Contexts::UPSTREAM,
            Args::Between(1, 2),
            "Maximum number of requests that wait for a server of the group, and how long (`timeout=`), instead of the status 502.",
        ),
        queue,
    )]],
    ..Declaration::named("http_upstream_queue")
});

/// Time that a request waits without `timeout=`, as in nginx's commercial edition.
const TIMEOUT_DEFAULT: Duration = Duration::from_secs(60);

fn queue(scope: &mut Scope, cx: &mut Cx<'_>) -> Result<(), Error> {
    let text = cx.arg(0);
    let invalid = || {
        let error = cx.error(format_args!("invalid value \"{text}\" in \"queue\" directive"));
        error.advise("it must be a number of requests of at least 1")
    };
    let most = value::number(text).ok().and_then(|most| usize::try_from(most).ok());
    let most = most.filter(|&most| most > 0).ok_or_else(invalid)?;
    let timeout = match cx.statement.args.get(1).map(|word| word.text.as_str()) {
        None => TIMEOUT_DEFAULT,
        Some(text) => {
            let time = text.strip_prefix("timeout=").and_then(|time| value::milliseconds(time).ok());
            let invalid = || {
                let error = cx.error(format_args!("invalid parameter \"{text}\""));
                error.advise("the only parameter is a time, such as \"timeout=10s\"")
            };
            Duration::from_millis(time.filter(|&time| time > 0).ok_or_else(invalid)?)
        }
    };
    scope.make_mut::<Draft>().queue = Some(QueueLimits { most, timeout });
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::testing::{error, loaded};
    use peers::Upstreams;
    use peers::queue::QueueLimits;

    #[test]
    fn a_group_has_the_queue_of_its_block() {
        let config = loaded(
            "upstream a { server a max_conns=1; queue 5; }
             upstream b { queue 1 timeout=70ms; server a; } upstream c { server a; }",
        );
        let queue = |name: &str| {
            let group = config.http.of::<Upstreams>().find(name.as_bytes(), 80, false);
            group.expect("it is there").queue
        };
        assert_eq!(queue("a"), Some(QueueLimits { most: 5, timeout: Duration::from_secs(60) }));
        assert_eq!(queue("b"), Some(QueueLimits { most: 1, timeout: Duration::from_millis(70) }));
        assert_eq!(queue("c"), None);
        for (text, expected) in [
            ("queue 0;", "invalid value \"0\" in \"queue\" directive"),
            ("queue x;", "invalid value \"x\" in \"queue\" directive"),
            ("queue 1 timeout=0;", "invalid parameter \"timeout=0\""),
            ("queue 1 x;", "invalid parameter \"x\""),
            ("queue 1; queue 1;", "\"queue\" directive is duplicate"),
        ] {
            let found = error(&format!("http {{\nupstream a {{ server a; {text} }} }}"));
            assert!(found.starts_with(expected) && found.contains("nginx.conf:2"), "{text}: {found}");
        }
    }
}
