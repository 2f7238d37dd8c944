//! `random`: selects a random server of a group, or of two random servers the one with fewer requests.

use conf::{Args, Contexts, Error, Spec};

use crate::upstream_block::set_method;
use crate::{Declaration, Directive, Module};
use peers::lines::{Draft, Method};
use site::config::{Cx, Scope};

/// The module.
pub(crate) static MODULE: Module =
    Module::of(Declaration { directives: &[DIRECTIVES], ..Declaration::named("http_upstream_random") });

/// The same directive in `stream`.
pub(crate) static STREAM: Module = Module::of(Declaration {
    directives: &[DIRECTIVES],
    twin: Some(&[]),
    ..Declaration::named("stream_upstream_random")
});

const DIRECTIVES: &[Directive] = &[Directive::scope(
    Spec::new(
        "http_upstream_random",
        "random",
        Contexts::UPSTREAM,
        Args::Between(0, 2),
        "Selects a server at random, by weight; `two`: of two random servers the one with fewer requests (`least_conn`).",
    )
    .many(),
    random,
)];

fn random(scope: &mut Scope, cx: &mut Cx<'_>) -> Result<(), Error> {
    let draft = scope.make_mut::<Draft>();
    let words: Vec<&str> = cx.statement.texts().collect();
    let two = match words.as_slice() {
        [] => false,
        ["two"] | ["two", "least_conn"] => true,
        ["two", other] | [other, ..] => {
            return Err(cx.error(format_args!("invalid parameter \"{other}\"")));
        }
    };
    set_method(draft, cx, Method::Random { two });
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::testing::{error, loaded};

    #[test]
    fn random_selects_one_or_the_better_of_two() {
        loaded("upstream a { random; server a; } upstream b { random two; server a; }");
        loaded("upstream a { random two least_conn; server a; }");
        for (text, expected) in [
            ("random one;", "invalid parameter \"one\""),
            ("random two least_time;", "invalid parameter \"least_time\""),
            ("random two least_conn x;", "invalid number of arguments in \"random\" directive"),
        ] {
            let found = error(&format!("http {{\nupstream a {{ {text} server a; }} }}"));
            assert!(found.starts_with(expected) && found.contains("nginx.conf:2"), "{text}: {found}");
        }
    }
}
