//! `add_before_body` and `add_after_body`: add the responses of subrequests before and after a body.
//!
//! The subrequests are made while the body is sent, so a client receives the first response while the last one is still
//! processed. As in nginx, the error page of a failed subrequest is inserted.

use std::sync::Arc;

use conf::{Args, Error, Spec};

use crate::{Declaration, Directive, Module};
use exchange::filter::{BodyFilter, Output};
use exchange::request::Request;
use exchange::subrequest::Subrequest;
use site::config::{Cx, Settings, SettingsType};
use site::declaration::LEVELS;
use site::settings::media_types::MediaTypes;
use transfer::coding::CodingError;

/// The module.
pub(crate) static MODULE: Module = Module {
    add_to_plan: |_, scope, plan| {
        if scope.of::<Conf>().is_active() {
            plan.filter(scope.shared::<Conf>(), filter);
        }
    },
    ..Module::of(Declaration {
        directives: &[DIRECTIVES],
        settings: &[SettingsType::of::<Conf>()],
        ..Declaration::named("http_addition")
    })
};

const fn spec(name: &'static str, args: Args, help: &'static str) -> Spec {
    Spec::new("http_addition", name, LEVELS, args, help)
}

const DIRECTIVES: &[Directive] = &[
    // As in nginx, an empty text cancels the inherited setting.
    Directive::scope(
        spec("add_before_body", Args::Exactly(1), "URI of a response to add before bodies; empty for none."),
        |scope, cx| set(&mut scope.make_mut::<Conf>().before, cx),
    ),
    Directive::scope(
        spec("add_after_body", Args::Exactly(1), "URI of a response to add after bodies; empty for none."),
        |scope, cx| set(&mut scope.make_mut::<Conf>().after, cx),
    ),
    Directive::scope(
        spec("addition_types", Args::AtLeast(1), "Media types of changed bodies, in addition to HTML.")
            .many()
            .default("text/html"),
        |scope, cx: &mut Cx<'_>| scope.make_mut::<Conf>().types.parse(cx),
    ),
];

/// The URIs of the added responses.
#[derive(Clone, Debug)]
pub(crate) struct Conf {
    /// `add_before_body`
    before: Option<Arc<str>>,
    /// `add_after_body`
    after: Option<Arc<str>>,
    /// `addition_types`
    types: MediaTypes,
}

impl Settings for Conf {}

impl Default for Conf {
    fn default() -> Conf {
        Conf { before: None, after: None, types: MediaTypes::HTML }
    }
}

impl Conf {
    /// Returns the media types of the bodies that are changed.
    #[cfg(test)]
    pub(crate) fn types(&self) -> &MediaTypes {
        &self.types
    }

    /// Whether a response is added; types alone add none.
    fn is_active(&self) -> bool {
        self.before.is_some() || self.after.is_some()
    }
}

/// Sets a URI. As in nginx it has neither variables nor a query.
fn set(field: &mut Option<Arc<str>>, cx: &mut Cx<'_>) -> Result<(), Error> {
    *field = Some(cx.arg(0)).filter(|uri| !uri.is_empty()).map(Arc::from);
    Ok(())
}

/// Adds the filter to main responses with status 200 and a matching type.
fn filter(conf: &Conf, request: &mut Request) {
    if request.depth > 0 || request.response.described_status() != 200 || !request.has_type(&conf.types) {
        return;
    }
    if request.forbids_transform() {
        return;
    }
    let wanted = |uri: &Option<Arc<str>>| {
        let uri = uri.as_ref()?.as_bytes().to_vec();
        Some(Subrequest { uri, ..Subrequest::default() })
    };
    let addition = Addition { before: wanted(&conf.before), after: wanted(&conf.after) };
    let response = &mut request.response;
    // The date is retained: the page is as new as its body.
    response.becomes_another(true);
    response.filters.push(Box::new(addition));
}

/// The responses that remain to be added.
struct Addition {
    before: Option<Subrequest>,
    after: Option<Subrequest>,
}

impl BodyFilter for Addition {
    fn push(&mut self, _: &mut Request, input: &[u8], out: &mut Output) -> Result<usize, CodingError> {
        // `take` ensures that the response is added only before the first piece.
        if let Some(before) = self.before.take() {
            out.subrequest(before);
        }
        out.extend(input);
        Ok(input.len())
    }

    /// Adds the remaining responses; an empty body gets both.
    fn finish(&mut self, _: &mut Request, out: &mut Output) -> Result<(), CodingError> {
        for subrequest in [self.before.take(), self.after.take()].into_iter().flatten() {
            out.subrequest(subrequest);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Conf;
    use crate::testing::{error, loaded, warnings};
    use site::settings::media_types::Chosen;

    #[test]
    fn blocks_inherit_each_side_separately() {
        let config = loaded(
            "add_before_body /a; server { add_after_body /b; location /x { add_before_body ''; }
             location /y { add_after_body ''; add_before_body \"\"; } }",
        );
        let sides = |name: &str| {
            let location = config.http.locations.iter().find(|location| location.name == name);
            let conf = location.expect("it is there").scope.of::<Conf>();
            (conf.before.as_deref(), conf.after.as_deref(), conf.is_active())
        };
        assert_eq!(sides("server"), (Some("/a"), Some("/b"), true));
        assert_eq!(sides("/x"), (None, Some("/b"), true));
        assert_eq!(sides("/y"), (None, None, false));
    }

    #[test]
    fn wrong_statements_are_refused() {
        for (text, expected) in [
            ("add_before_body /a; add_before_body /b;", "\"add_before_body\" directive is duplicate"),
            ("add_after_body /a; add_after_body /b;", "\"add_after_body\" directive is duplicate"),
        ] {
            let found = error(&format!("http {{\n{text} }}"));
            assert_eq!(found, format!("{expected} in /conf/nginx.conf:2"), "{text}");
        }
        for name in ["add_before_body", "add_after_body", "addition_types"] {
            let found = error(&format!("http {{\n{name}; }}"));
            let expected =
                format!("invalid number of arguments in \"{name}\" directive in /conf/nginx.conf:2");
            assert!(found.starts_with(&expected), "{found}");
        }
        let found = warnings("http {\naddition_types text/html; }");
        assert_eq!(found, ["duplicate MIME type \"text/html\" in /conf/nginx.conf:2"]);
    }

    /// Returns the list of `addition_types` in a location, as an example for all such directives.
    fn listed(http: &str, name: &str) -> Vec<String> {
        let config = loaded(http);
        let location = config.http.locations.iter().find(|location| location.name == name);
        match &location.expect("it is there").scope.of::<Conf>().types().chosen {
            Chosen::Default => vec!["default".to_owned()],
            Chosen::Any => vec!["*".to_owned()],
            Chosen::List(list) => list.iter().map(|name| name.to_string()).collect(),
        }
    }

    #[test]
    fn lists_are_combined_in_a_block_and_replace_inherited_ones() {
        let http = "addition_types text/A; addition_types text/b; server { location /in { }
            location /own { addition_types text/c; } location /any { addition_types text/c *; addition_types text/d; } }";
        assert_eq!(listed(http, "/in"), ["text/html", "text/a", "text/b"]);
        assert_eq!(listed(http, "/own"), ["text/html", "text/c"]);
        assert_eq!(listed(http, "/any"), ["*"]);
        assert_eq!(
            listed("addition_types *; server { addition_types text/x; }", "server"),
            ["text/html", "text/x"]
        );
        assert_eq!(listed("server { }", "server"), ["default"]);
    }

    #[test]
    fn wrong_lists_are_refused() {
        let found = warnings("http {\naddition_types text/a TEXT/A text/html; }");
        let duplicate = |name: &str| format!("duplicate MIME type \"{name}\" in /conf/nginx.conf:2");
        assert_eq!(found, [duplicate("text/a"), duplicate("text/html")]);
        for name in ["addition_types", "charset_types", "sub_filter_types"] {
            let found = error(&format!("http {{\n{name}; }}"));
            let expected =
                format!("invalid number of arguments in \"{name}\" directive in /conf/nginx.conf:2");
            assert!(found.starts_with(&expected), "{found}");
        }
    }
}
