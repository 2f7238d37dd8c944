//! `mirror`: copies of a request whose responses are ignored.

use std::sync::Arc;

use conf::{Args, Error, Spec};

use crate::{Declaration, Directive, Module};
use exchange::phases::{Phase, Step};
use exchange::rehearsal::Event;
use exchange::request::Request;
use exchange::subrequest::{self, Subrequest};
use site::config::{Cx, Layered, Scope, Settings, SettingsType};
use site::declaration::LEVELS;

/// The module.
pub(crate) static MODULE: Module = Module {
    add_to_plan: |_, scope, plan| {
        if !scope.of::<Conf>().uris.items().is_empty() {
            plan.now(Phase::Precontent, scope.shared::<Conf>(), run);
        }
    },
    rehearse: |request| {
        request.note(|| Event::Said {
            label: "mirror",
            text: "a copy of the request is sent in the background; its response is ignored".to_owned(),
        });
        Some(Step::Next)
    },
    ..Module::of(Declaration {
        directives: &[DIRECTIVES],
        settings: &[SettingsType::of::<Conf>()],
        ..Declaration::named("http_mirror")
    })
};

const DIRECTIVES: &[Directive] = &[
    Directive::scope(
        Spec::new(
            "http_mirror",
            "mirror",
            LEVELS,
            Args::Exactly(1),
            "A URI that each request is copied to, or `off`.",
        )
        .default("off")
        .many(),
        add_uri,
    ),
    Directive::scope(
        Spec::new(
            "http_mirror",
            "mirror_request_body",
            LEVELS,
            Args::Flag,
            "Whether copies include the request's body, which is then read first.",
        )
        .default("on"),
        |scope, cx| cx.flag(&mut scope.make_mut::<Conf>().request_body),
    ),
];

/// The targets of copies.
#[derive(Clone, Debug)]
pub(crate) struct Conf {
    uris: Layered<Arc<str>>,
    /// The block that contains `off`.
    off: u32,
    request_body: bool,
}

impl Settings for Conf {}

impl Default for Conf {
    fn default() -> Conf {
        Conf { uris: Layered::default(), off: 0, request_body: true }
    }
}

/// Adds a URI; `off` must be the only one in its block.
fn add_uri(scope: &mut Scope, cx: &mut Cx<'_>) -> Result<(), Error> {
    let conf = scope.make_mut::<Conf>();
    let is_off = cx.arg(0) == "off";
    let has_own = !conf.uris.items().is_empty() && conf.uris.is_of(cx.block);
    if conf.off == cx.block || (is_off && has_own) {
        return Err(cx.error("\"mirror\" directive is duplicate"));
    }
    let uris = conf.uris.make_mut(cx.block);
    if is_off {
        conf.off = cx.block;
    } else {
        uris.push(cx.arg(0).into());
    }
    Ok(())
}

/// Starts the copies; a copy is not mirrored again.
fn run(conf: &Conf, request: &mut Request) -> Step {
    // Otherwise two locations that mirror each other would cause an endless loop.
    if request.depth > 0 {
        return Step::Next;
    }
    if conf.request_body && request.body.is_none() {
        return Step::ReadBody;
    }
    for uri in conf.uris.items() {
        // A copy has the client's query. The configured URI is used unchanged, even if it contains a question mark.
        let (uri, args) = (uri.as_bytes().to_vec(), request.args.clone());
        let wanted = Subrequest { uri, args, uses_parent_method: true, ..Subrequest::default() };
        if !subrequest::in_background(request, &wanted) {
            return Step::Status(500);
        }
    }
    Step::Next
}

#[cfg(test)]
mod tests {
    use super::Conf;
    use crate::testing::{error, loaded};

    #[test]
    fn a_block_has_its_own_uris_or_inherits_them() {
        let config = loaded(
            "mirror /a; mirror /b; mirror_request_body off; server { location /1 { } location /2 { mirror off; }
             location /3 { mirror /c; mirror_request_body on; } }",
        );
        let conf = |name: &str| {
            let location = config.http.locations.iter().find(|location| location.name == name);
            let conf = location.expect("it is there").scope.of::<Conf>();
            (conf.uris.items().iter().map(|uri| &**uri).collect::<Vec<_>>().join(" "), conf.request_body)
        };
        assert_eq!(conf("/1"), ("/a /b".to_owned(), false));
        assert_eq!(conf("/2"), (String::new(), false));
        assert_eq!(conf("/3"), ("/c".to_owned(), true));
    }

    #[test]
    fn wrong_statements_are_refused() {
        for (text, expected) in [
            ("mirror /a; mirror off;", "\"mirror\" directive is duplicate"),
            ("mirror off; mirror /a;", "\"mirror\" directive is duplicate"),
            ("mirror off; mirror off;", "\"mirror\" directive is duplicate"),
            ("mirror a b;", "invalid number of arguments in \"mirror\" directive"),
            (
                "mirror_request_body 1;",
                "invalid value \"1\" in \"mirror_request_body\" directive, it must be \"on\" or \"off\"",
            ),
        ] {
            let found = error(&format!("http {{ server {{\n{text} }} }}"));
            assert!(
                found.starts_with(expected) && found.contains("in /conf/nginx.conf:2"),
                "{text}: {found}"
            );
        }
    }
}
