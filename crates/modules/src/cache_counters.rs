//! `cache_counters`: a page with the numbers of every cache, in the text format of Prometheus (version 0.0.4).
//!
//! The numbers and their rows are in `caching`; this file has only the directive.

use conf::{Args, Contexts, Spec};
use http::fields::Method;
use io::segments::Source;

use crate::status::rebinding;
use crate::{Declaration, Directive, Module};
use caching::metrics;
use caching::settings::Caches;
use exchange::phases::{Phase, Step};
use exchange::request::Request;
use exchange::response::ContentType;
use site::config::{Inner, Settings, SettingsType};
use site::declaration::OWN;
use telemetry::metric::{Form, Page};

/// The module.
pub(crate) static MODULE: Module = Module {
    add_to_plan: |_, scope, plan| {
        if scope.of::<Conf>().on {
            plan.now(Phase::Content, scope.shared::<Conf>(), run);
        }
    },
    ..Module::of(Declaration {
        directives: &[DIRECTIVES],
        settings: &[SettingsType::of::<Conf>()],
        ..Declaration::named(OWN)
    })
};

const DIRECTIVES: &[Directive] = &[Directive::scope(
    Spec::new(
        OWN,
        "cache_counters",
        Contexts::SERVER.or(Contexts::LOCATION),
        Args::None,
        "Serves the metrics of all caches, and of HTTP/2 limits that were reached, in the text format of Prometheus.",
    ),
    |scope, _| {
        scope.make_mut::<Conf>().on = true;
        Ok(())
    },
)];

/// Whether a block responds with the page. As for other content handlers, of inner blocks only an `if` inherits it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Conf {
    on: bool,
}

impl Settings for Conf {
    fn inherit(&self, inner: Inner) -> Option<Conf> {
        (inner != Inner::If).then(Conf::default)
    }
}

/// Responds with the numbers of all caches, and of the HTTP/2 limits that were reached.
fn run(_: &Conf, request: &mut Request) -> Step {
    if !matches!(request.method, Method::Get | Method::Head) {
        return Step::Status(405);
    }
    if let Some(refusal) = rebinding::refuse(request) {
        return refusal;
    }
    let caches = &request.config().http.of::<Caches>().zones;
    let mut page = Page::new(Form::Plain);
    metrics::write(caches.iter().map(|zone| (zone.name(), &**zone.state())), &mut page);
    request.conn.thread.shared.write_http2_limits(&mut page);
    let response = &mut request.response;
    response.status = 200;
    response.content_type = ContentType::Text(Form::Plain.content_type().into());
    response.set_bytes(Source::Vec(page.finish().into_bytes()));
    Step::Done
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{error, loaded};

    #[test]
    fn it_applies_only_to_the_block_that_sets_it() {
        let config = loaded(
            "server { location /a { cache_counters; location /a/b { } } location /c { } }
             server { cache_counters; location /d { } }",
        );
        let is_on = |name: &str| {
            let mut found = config.http.locations.iter().filter(|location| location.name == name);
            found.next_back().expect("it is there").scope.of::<Conf>().on
        };
        assert_eq!(["/a", "/a/b", "/c", "server", "/d"].map(is_on), [true, false, false, true, false]);
    }

    #[test]
    fn wrong_contexts_and_arguments_are_refused() {
        let found = error("http {\ncache_counters; }");
        assert!(found.starts_with("\"cache_counters\" directive is not allowed here"), "{found}");
        let found = error("http { server {\ncache_counters on; } }");
        assert!(found.starts_with("invalid number of arguments in \"cache_counters\" directive"), "{found}");
        let found = error("http { server {\ncache_counters; cache_counters; } }");
        assert!(found.starts_with("\"cache_counters\" directive is duplicate"), "{found}");
    }
}
