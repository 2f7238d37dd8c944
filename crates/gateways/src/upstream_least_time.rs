//! `least_time`: selects the server that is expected to complete the request first.

use conf::{Args, Contexts, Error, Spec};

use crate::upstream_block::set_method;
use crate::{Declaration, Directive, Module};
use peers::lines::{Draft, Method};
use site::config::{Cx, Scope};

/// The module.
pub(crate) static MODULE: Module =
    Module::of(Declaration { directives: &[DIRECTIVES], ..Declaration::named("http_upstream_least_time") });

/// The same directive in `stream`.
pub(crate) static STREAM: Module = Module::of(Declaration {
    directives: &[DIRECTIVES],
    twin: Some(&[]),
    ..Declaration::named("stream_upstream_least_time")
});

const DIRECTIVES: &[Directive] = &[Directive::scope(
    Spec::new(
        "http_upstream_least_time",
        "least_time",
        Contexts::UPSTREAM,
        Args::Between(1, 2),
        "Selects the server with the least mean time until the header section (`header`) or the end (`last_byte`) of its responses, \
         and the fewest requests; `inflight`: the waiting times of requests in flight count too.",
    ),
    least_time,
)];

fn least_time(scope: &mut Scope, cx: &mut Cx<'_>) -> Result<(), Error> {
    let draft = scope.make_mut::<Draft>();
    let inflight = match cx.statement.args.get(1).map(|word| word.text.as_str()) {
        None => false,
        Some("inflight") => true,
        Some(other) => return Err(cx.error(format_args!("invalid parameter \"{other}\""))),
    };
    let mut full_response = false;
    cx.choice(&mut full_response, &[("header", false), ("last_byte", true)])?;
    set_method(draft, cx, Method::LeastTime { full_response, inflight });
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::testing::{error, loaded};

    #[test]
    fn the_parameter_selects_the_measured_time() {
        loaded("upstream a { least_time header; server a; }");
        loaded("upstream a { least_time last_byte inflight; server a; server b backup; }");
        for (text, expected) in [
            ("least_time x;", "invalid value \"x\""),
            ("least_time header x;", "invalid parameter \"x\""),
            ("least_time;", "invalid number of arguments in \"least_time\" directive"),
            ("least_time header; least_time header;", "\"least_time\" directive is duplicate"),
        ] {
            let found = error(&format!("http {{\nupstream a {{ {text} server a; }} }}"));
            assert!(found.starts_with(expected) && found.contains("nginx.conf:2"), "{text}: {found}");
        }
    }
}
