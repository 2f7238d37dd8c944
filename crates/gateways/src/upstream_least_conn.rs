//! `least_conn`: selects the server with the fewest requests relative to its weight.

use conf::{Args, Contexts, Spec};

use crate::upstream_block::set_method;
use crate::{Declaration, Directive, Module};
use peers::lines::{Draft, Method};

/// The module.
pub(crate) static MODULE: Module =
    Module::of(Declaration { directives: &[DIRECTIVES], ..Declaration::named("http_upstream_least_conn") });

/// The same directive in `stream`.
pub(crate) static STREAM: Module = Module::of(Declaration {
    directives: &[DIRECTIVES],
    twin: Some(&[]),
    ..Declaration::named("stream_upstream_least_conn")
});

const DIRECTIVES: &[Directive] = &[Directive::scope(
    Spec::new(
        "http_upstream_least_conn",
        "least_conn",
        Contexts::UPSTREAM,
        Args::None,
        "Selects the server with the fewest requests in flight, relative to its weight.",
    )
    .many(),
    |scope, cx| {
        let draft = scope.make_mut::<Draft>();
        set_method(draft, cx, Method::LeastConn);
        Ok(())
    },
)];
