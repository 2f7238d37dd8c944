//! `stub_status`: a page with the numbers of connections and requests, and variables with the same numbers.

use conf::{Args, Contexts, Spec};
use http::fields::Method;
use io::segments::Source;

use crate::{Declaration, Directive, Module};
use exchange::module::Variable;
use exchange::phases::{Phase, Step};
use exchange::request::Request;
use exchange::response::ContentType;
use site::config::{Inner, Settings, SettingsType};
use telemetry::tally::Totals;

/// The module.
pub(crate) static MODULE: Module = Module {
    variables: VARIABLES,
    add_to_plan: |_, scope, plan| {
        if scope.of::<Conf>().on {
            plan.now(Phase::Content, scope.shared::<Conf>(), run);
        }
    },
    ..Module::of(Declaration {
        directives: &[DIRECTIVES],
        settings: &[SettingsType::of::<Conf>()],
        ..Declaration::named("http_stub_status")
    })
};

const DIRECTIVES: &[Directive] = &[Directive::scope(
    Spec::new(
        "http_stub_status",
        "stub_status",
        Contexts::SERVER.or(Contexts::LOCATION),
        Args::Between(0, 1),
        "Returns the numbers of connections and requests.",
    )
    .many(),
    // Old versions of nginx required an argument, which has no meaning.
    |scope, _| {
        scope.make_mut::<Conf>().on = true;
        Ok(())
    },
)];

/// Whether a block responds with the page. As for other content handlers, of inner blocks only an `if` inherits it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Conf {
    /// Whether the page is on. It can only be turned on, for the rest of the block.
    on: bool,
}

impl Settings for Conf {
    fn inherit(&self, inner: Inner) -> Option<Conf> {
        (inner != Inner::If).then(Conf::default)
    }
}

/// The variables. Each sum is computed when the variable is used, so two values in a log line may be of different times.
const VARIABLES: &[Variable] = &[
    variable("connections_active", |r, out| number(r, |totals| totals.active, out), "Open connections."),
    variable(
        "connections_reading",
        |r, out| number(r, |totals| totals.reading, out),
        "Connections on which the header section of a request is received.",
    ),
    variable(
        "connections_writing",
        |r, out| number(r, |totals| totals.writing, out),
        "Connections on which a response is sent.",
    ),
    variable(
        "connections_waiting",
        |r, out| number(r, |totals| totals.waiting, out),
        "Connections that wait for a request.",
    ),
];

/// Returns a variable that cannot be set.
const fn variable(
    name: &'static str,
    get: fn(&Request, &mut Vec<u8>) -> bool,
    help: &'static str,
) -> Variable {
    Variable { name, get, set: None, help }
}

/// Computes the totals, only on request.
fn totals(request: &Request) -> Totals {
    request.conn.thread.shared.totals()
}

/// Appends the value of a variable.
fn number(request: &Request, of: fn(&Totals) -> u64, out: &mut Vec<u8>) -> bool {
    out.extend_from_slice(of(&totals(request)).to_string().as_bytes());
    true
}

/// Responds with the page. Scripts extract the numbers by position, so even the trailing spaces matter.
fn run(_: &Conf, request: &mut Request) -> Step {
    // As in nginx other methods are errors.
    if !matches!(request.method, Method::Get | Method::Head) {
        return Step::Status(405);
    }
    let Totals { active, accepted, requests, reading, writing, waiting } = totals(request);
    let text = format!(
        "Active connections: {active} \nserver accepts handled requests\n {accepted} {accepted} {requests} \n\
         Reading: {reading} Writing: {writing} Waiting: {waiting} \n"
    );
    let response = &mut request.response;
    response.status = 200;
    // The page is no file, so the types of the location do not apply.
    response.content_type = ContentType::Text("text/plain".into());
    response.set_bytes(Source::Vec(text.into_bytes()));
    Step::Done
}

#[cfg(test)]
mod tests {
    use crate::testing::{error, loaded};

    #[test]
    fn it_applies_only_to_the_block_that_sets_it() {
        let config = loaded(
            "server { location /a { stub_status on; if ($arg_x) { break; } location /a/b { } } location /c { } }
             server { stub_status; location /d { } }",
        );
        let is_on = |name: &str| {
            let mut found = config.http.locations.iter().filter(|location| location.name == name);
            found.next_back().expect("it is there").scope.of::<super::Conf>().on
        };
        assert_eq!(["/a", "/a/b", "/c", "server", "/d"].map(is_on), [true, false, false, true, false]);
    }

    #[test]
    fn wrong_contexts_are_refused() {
        let found = error("http {\nstub_status; }");
        assert!(found.starts_with("\"stub_status\" directive is not allowed here"), "{found}");
        let found = error("http { server {\nstub_status on off; } }");
        assert!(found.starts_with("invalid number of arguments in \"stub_status\" directive"), "{found}");
    }
}
