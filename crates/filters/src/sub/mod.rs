//! `sub_filter`: replaces texts in bodies.
//!
//! This file has the directives; [`replace`] searches a body that arrives in pieces. HTML is not parsed: a text is also
//! found in a comment or a script, and not found in an encoded body.

mod replace;

use std::sync::Arc;

use conf::{Args, Error, Spec};

use crate::{Declaration, Directive, Module};
use exchange::request::Request;
use replace::{Patterns, Replace};
use site::config::{Cx, Layered, Scope, Settings, SettingsType};
use site::declaration::LEVELS;
use site::settings::media_types::MediaTypes;
use site::template::Template;
use telemetry::Level;

/// The module.
pub(crate) static MODULE: Module = Module {
    add_to_plan: |_, scope, plan| {
        if !scope.of::<Conf>().pairs.items().is_empty() {
            plan.filter(scope.shared::<Conf>(), filter);
        }
    },
    ..Module::of(Declaration {
        directives: &[DIRECTIVES],
        settings: &[SettingsType::of::<Conf>()],
        ..Declaration::named("http_sub")
    })
};

const fn spec(name: &'static str, args: Args, help: &'static str) -> Spec {
    Spec::new("http_sub", name, LEVELS, args, help)
}

const DIRECTIVES: &[Directive] = &[
    // Both arguments may have variables; variables in the first one require a new automaton per request.
    Directive::scope(
        spec("sub_filter", Args::Exactly(2), "Replaces a text in bodies by another, ignoring case.").many(),
        add,
    ),
    Directive::scope(
        spec("sub_filter_types", Args::AtLeast(1), "Media types of changed bodies, in addition to HTML.")
            .many()
            .default("text/html"),
        |scope, cx| scope.make_mut::<Conf>().types.parse(cx),
    ),
    Directive::scope(
        spec("sub_filter_once", Args::Flag, "Replaces each text only once in a body.").default("on"),
        |scope, cx| cx.flag(&mut scope.make_mut::<Conf>().once),
    ),
    Directive::scope(
        spec("sub_filter_last_modified", Args::Flag, "Retains `Last-Modified` of changed responses.")
            .default("off"),
        |scope, cx| cx.flag(&mut scope.make_mut::<Conf>().keeps_date),
    ),
];

/// nginx's limit, because it stores indices of patterns in bytes.
const PATTERNS_MAX: usize = 255;

/// The replacements of a block.
#[derive(Clone, Debug)]
pub(crate) struct Conf {
    /// The replacements in file order, which decides if two match at the same position.
    pairs: Layered<Pair>,
    /// The patterns, if none of them depends on the request.
    patterns: Option<Arc<Patterns>>,
    /// `sub_filter_types`
    types: MediaTypes,
    /// `sub_filter_once`
    once: bool,
    /// `sub_filter_last_modified`
    keeps_date: bool,
}

impl Settings for Conf {}

/// One `sub_filter`.
#[derive(Clone, Debug)]
struct Pair {
    /// The text to replace.
    pattern: Template,
    /// The replacement.
    text: Template,
}

impl Default for Conf {
    fn default() -> Conf {
        let (pairs, patterns, types) = (Layered::default(), None, MediaTypes::HTML);
        Conf { pairs, patterns, types, once: true, keeps_date: false }
    }
}

/// Adds a replacement; it is checked here, so that an error prevents the start.
fn add(scope: &mut Scope, cx: &mut Cx<'_>) -> Result<(), Error> {
    if cx.arg(0).is_empty() {
        return Err(cx.error("empty search pattern"));
    }
    let pair = Pair { pattern: cx.template(cx.arg(0))?, text: cx.template(cx.arg(1))? };
    let pairs = scope.make_mut::<Conf>().pairs.make_mut(cx.block);
    if pairs.len() == PATTERNS_MAX {
        return Err(cx.error(format_args!("number of search patterns exceeds {PATTERNS_MAX}")));
    }
    pairs.push(pair);
    // Rebuilt after each `sub_filter` of the block, because the last one is not known here. There are only few.
    let constants: Option<Vec<&str>> = pairs.iter().map(|pair| pair.pattern.constant()).collect();
    scope.make_mut::<Conf>().patterns = match constants.map(Patterns::new) {
        None => None,
        Some(Ok(patterns)) => Some(Arc::new(patterns)),
        Some(Err(error)) => return Err(Error::directive(cx.statement, error)),
    };
    Ok(())
}

/// Adds the filter to responses with a matching type.
fn filter(conf: &Conf, request: &mut Request) {
    // An empty body has nothing to replace, and retains its length and date.
    let response = &request.response;
    if response.content_length == Some(0) || !request.has_type(&conf.types) || request.forbids_transform() {
        return;
    }
    let patterns = match &conf.patterns {
        Some(patterns) => Arc::clone(patterns),
        None => {
            let texts = conf.pairs.items().iter().map(|pair| pair.pattern.rendered(request));
            match Patterns::of_request(texts) {
                Ok(patterns) => Arc::new(patterns),
                Err(error) => return request.log(Level::Error, format_args!("sub_filter: {error}")),
            }
        }
    };
    // All patterns are empty.
    if patterns.is_empty() {
        return;
    }
    // Even if no text will be found, because the header section is sent before the search.
    request.response.becomes_another(conf.keeps_date);
    request.response.filters.push(Box::new(Replace::new(patterns, conf.pairs.clone(), conf.once)));
}

#[cfg(test)]
mod tests {
    use super::Conf;
    use crate::testing::{error, loaded, warnings};

    #[test]
    fn blocks_replace_the_pairs_that_they_inherit() {
        let config = loaded(
            "sub_filter a b; sub_filter c d; server { location /a { } location /b { sub_filter e f; }
             location /c { sub_filter_once off; sub_filter_last_modified on; } location /d { sub_filter $uri f; } }",
        );
        let conf = |name: &str| {
            let location = config.http.locations.iter().find(|location| location.name == name);
            location.expect("it is there").scope.of::<Conf>().clone()
        };
        let count = |name: &str| conf(name).pairs.items().len();
        assert_eq!([count("/a"), count("/b"), count("/c"), count("/d")], [2, 1, 2, 1]);
        assert!(conf("/b").patterns.is_some() && conf("/d").patterns.is_none());
        assert!(conf("/a").once && !conf("/a").keeps_date);
        assert!(!conf("/c").once && conf("/c").keeps_date);
    }

    #[test]
    fn wrong_statements_are_refused() {
        let many = "sub_filter a b; ".repeat(256);
        for (text, expected) in [
            ("sub_filter '' b;", "empty search pattern"),
            ("sub_filter a $nobody;", "unknown \"nobody\" variable"),
            ("sub_filter '${a' b;", "the closing bracket in \"a\" variable is missing"),
            (many.as_str(), "number of search patterns exceeds 255"),
            (
                "sub_filter_once x;",
                "invalid value \"x\" in \"sub_filter_once\" directive, it must be \"on\" or \"off\"",
            ),
            (
                "sub_filter_last_modified x;",
                "invalid value \"x\" in \"sub_filter_last_modified\" directive, it must be \"on\" or \"off\"",
            ),
        ] {
            let found = error(&format!("http {{\n{text} }}"));
            assert_eq!(found, format!("{expected} in /conf/nginx.conf:2"), "{text}");
        }
        let found = warnings("http {\nsub_filter_types text/css text/css; }");
        assert_eq!(found, ["duplicate MIME type \"text/css\" in /conf/nginx.conf:2"]);
    }
}
