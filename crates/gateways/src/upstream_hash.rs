//! `hash`: requests with the same text are sent to the same server of a group.

use conf::{Args, Contexts, Error, Spec};

use crate::upstream_block::set_method;
use crate::{Declaration, Directive, Module};
use peers::lines::{Draft, Method};
use site::config::{Cx, Scope};

/// The module.
pub(crate) static MODULE: Module =
    Module::of(Declaration { directives: &[DIRECTIVES], ..Declaration::named("http_upstream_hash") });

/// The same directive in `stream`.
pub(crate) static STREAM: Module = Module::of(Declaration {
    directives: &[DIRECTIVES],
    twin: Some(&[]),
    ..Declaration::named("stream_upstream_hash")
});

const DIRECTIVES: &[Directive] = &[Directive::scope(
    Spec::new(
        "http_upstream_hash",
        "hash",
        Contexts::UPSTREAM,
        Args::Between(1, 2),
        "Requests with the same text, which has variables, are sent to the same server; `consistent`: most of them also \
         after servers were added or removed.",
    )
    .many(),
    hash,
)];

fn hash(scope: &mut Scope, cx: &mut Cx<'_>) -> Result<(), Error> {
    let draft = scope.make_mut::<Draft>();
    let key = cx.template(cx.arg(0))?;
    let method = match cx.statement.args.get(1).map(|word| word.text.as_str()) {
        None => Method::Hash(key),
        Some("consistent") => Method::Ring(key),
        Some(other) => return Err(cx.error(format_args!("invalid parameter \"{other}\""))),
    };
    set_method(draft, cx, method);
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::testing::{error, loaded};

    #[test]
    fn a_key_may_use_variables_defined_below() {
        loaded("upstream a { hash $later consistent; server a; } map $uri $later { default x; }");
        for (text, expected) in [
            ("hash $uri x;", "invalid parameter \"x\""),
            ("hash $never;", "unknown \"never\" variable"),
            ("hash;", "invalid number of arguments in \"hash\" directive"),
        ] {
            let found = error(&format!("http {{\nupstream a {{ {text} server a; }} }}"));
            assert!(found.starts_with(expected) && found.contains("nginx.conf:2"), "{text}: {found}");
        }
    }
}
