//! `zone` in an upstream block: the name under which the state of its servers passes to the next configuration.
//!
//! nginx needs a zone to share state between processes. Here, threads share it anyway. The remaining effect of the directive is on
//! reloads: failures, times and requests in flight are preserved for groups in a zone of the same name and size.

use conf::{Args, Contexts, Error, Spec, value};

use crate::{Declaration, Directive, Module};
use peers::ServersZone;
use peers::lines::Draft;
use site::config::{Cx, Scope};
use site::shared_zone::BYTES_MIN;

/// The module.
pub(crate) static MODULE: Module =
    Module::of(Declaration { directives: &[DIRECTIVES], ..Declaration::named("http_upstream_zone") });

/// The same directive in `stream`.
pub(crate) static STREAM: Module = Module::of(Declaration {
    directives: &[DIRECTIVES],
    twin: Some(&[]),
    ..Declaration::named("stream_upstream_zone")
});

const DIRECTIVES: &[Directive] = &[Directive::scope(
    Spec::new(
        "http_upstream_zone",
        "zone",
        Contexts::UPSTREAM,
        Args::Between(1, 2),
        "Name and size of the zone that preserves the state of the servers across reloads; threads share the state even without a zone.",
    )
    .many(),
    zone,
)];

fn zone(scope: &mut Scope, cx: &mut Cx<'_>) -> Result<(), Error> {
    let draft = scope.make_mut::<Draft>();
    let name = cx.arg(0);
    if name.is_empty() {
        return Err(cx.error("invalid zone name \"\""));
    }
    let bytes = match cx.statement.args.get(1) {
        None => None,
        Some(word) => {
            let text = &word.text;
            let invalid = |_| cx.error(format_args!("invalid zone size \"{text}\""));
            let bytes = value::size(text).map_err(invalid)?;
            if bytes < BYTES_MIN {
                return Err(cx.error(format_args!("zone \"{name}\" is too small")));
            }
            Some(bytes)
        }
    };
    draft.zone = Some(cx.http.zones.share(name, bytes, ServersZone, cx.statement)?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::testing::{error, loaded};

    #[test]
    fn groups_may_share_a_zone_that_one_of_them_declares() {
        loaded("upstream a { zone one; server a; } upstream b { zone one 64k; server a; }");
        for (text, expected) in [
            ("zone \"\" 64k;", "invalid zone name \"\""),
            ("zone one 64x;", "invalid zone size \"64x\""),
            ("zone one 31k;", "zone \"one\" is too small"),
            ("zone one;", "zero size shared memory zone \"one\""),
            (
                "zone one 64k; } upstream b { server a; zone one 32k;",
                "the size 32768 of shared memory zone \"one\" conflicts with already declared size 65536",
            ),
            (
                "zone one 64k; } limit_req_zone $uri zone=one:64k rate=1r/s; upstream b { server a;",
                "the shared memory zone \"one\" is already declared for a different use",
            ),
        ] {
            let found = error(&format!("http {{\nupstream a {{ server a; {text} }} }}"));
            assert!(found.starts_with(expected) && found.contains("nginx.conf:2"), "{text}: {found}");
        }
    }
}
