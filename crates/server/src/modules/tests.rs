//! What holds for the directives of all modules, so that no module can forget it. What is special about one is tested
//! where the module is.

use conf::{Args, Block, Contexts, State};

use crate::config::testing::{error, load};
use crate::modules::{Directive, MODULES, Set};

/// Where a directive may stand, as text in front of it with its line end, and behind it.
const PLACES: &[(Contexts, &str, &str)] = &[
    (Contexts::MAIN, "\n", ""),
    (Contexts::EVENTS, "events {\n", "}"),
    (Contexts::HTTP, "http {\n", "}"),
    (Contexts::SERVER, "http { server {\n", "} }"),
    (Contexts::LOCATION, "http { server { location / {\n", "} } }"),
    (Contexts::LIMIT_EXCEPT, "http { server { location / { limit_except GET {\n", "} } } }"),
    (Contexts::UPSTREAM, "http { upstream a {\n", "} }"),
    (Contexts::SERVER_IF, "http { server { if ($uri) {\n", "} } }"),
    (Contexts::LOCATION_IF, "http { server { location / { if ($uri) {\n", "} } } }"),
];

fn directives() -> impl Iterator<Item = &'static Directive> {
    MODULES.iter().flat_map(|module| module.directives())
}

/// The error of a configuration with this statement of a directive, in each place where it may stand.
fn errors(directive: &Directive, args: &str) -> Vec<String> {
    let spec = &directive.spec;
    let end = if spec.block == Block::No { ";" } else { " { }" };
    let places = PLACES.iter().filter(|(place, ..)| spec.contexts.intersects(*place));
    let errors =
        places.map(|(_, before, behind)| error(&format!("{before}{}{args}{end} {behind}", spec.name)));
    let errors: Vec<_> = errors.collect();
    assert!(!errors.is_empty(), "{} stands nowhere", spec.name);
    errors
}

#[test]
fn a_wrong_number_of_arguments_is_an_error_at_its_line() {
    for directive in directives() {
        let name = directive.spec.name;
        let args = match directive.spec.args {
            Args::Any => continue,
            Args::None => " x",
            Args::Exactly(_) | Args::Between(1.., _) | Args::AtLeast(_) | Args::Flag => "",
            Args::Between(0, most) => &" x".repeat(usize::from(most) + 1),
        };
        for found in errors(directive, args) {
            let expected =
                format!("invalid number of arguments in \"{name}\" directive in /conf/nginx.conf:2");
            assert!(found.starts_with(&expected), "{name}: {found}");
        }
    }
}

#[test]
fn a_flag_is_on_or_off() {
    // Those of `events` are looked at when all of it is read, and the harness has a second one. Nobody looks at the
    // values of `ssl_*` as long as they have no effect: there is a warning for each.
    let is_meant = |directive: &&Directive| {
        let spec = &directive.spec;
        spec.args == Args::Flag && !spec.contexts.intersects(Contexts::EVENTS) && spec.module != "http_ssl"
    };
    for directive in directives().filter(is_meant) {
        let name = directive.spec.name;
        for found in errors(directive, " maybe") {
            let expected = format!(
                "invalid value \"maybe\" in \"{name}\" directive, it must be \"on\" or \"off\" in /conf/nginx.conf:2"
            );
            assert_eq!(found, expected);
        }
    }
}

#[test]
fn a_directive_in_the_wrong_place_is_an_error_at_its_line() {
    let is_main = |name: &str| {
        let mut same = directives().filter(|directive| directive.spec.name == name);
        same.any(|directive| directive.spec.contexts.intersects(Contexts::MAIN))
    };
    for name in directives().map(|directive| directive.spec.name).filter(|name| !is_main(name)) {
        let found = error(&format!("\n{name} x;"));
        let expected = format!("\"{name}\" directive is not allowed here in /conf/nginx.conf:2");
        assert!(found.starts_with(&expected), "{found}");
    }
}

/// What the settings of the last location are, as text, for a flag in `http`, `server` and the location.
fn settings(name: &str, http: &str, server: &str, location: &str) -> String {
    let statement = |value: &str| match value {
        "" => String::new(),
        value => format!("{name} {value};"),
    };
    let [http, server, location] = [http, server, location].map(statement);
    let text = format!("http {{ {http} server {{ {server} location / {{ {location} }} }} }}");
    let config = load(&text).unwrap_or_else(|error| panic!("{text}: {error}")).config;
    let location = config.http.locations.last().expect("there is one");
    format!("{:?}", location.scope)
}

#[test]
fn flags_are_inherited_and_replaced() {
    let levels = [Contexts::HTTP, Contexts::SERVER, Contexts::LOCATION];
    let flags = directives().filter(|directive| {
        let spec = &directive.spec;
        let is_setting = matches!(directive.set, Set::Scope(_)) && !matches!(spec.state, State::Accepted(_));
        is_setting && spec.args == Args::Flag && levels.iter().all(|level| spec.contexts.intersects(*level))
    });
    let mut count = 0;
    for name in flags.map(|directive| directive.spec.name) {
        let own = |value: &str| settings(name, "", "", value);
        let (on, off) = (own("on"), own("off"));
        assert_ne!(on, off, "{name}");
        for (http, server, location, expected) in [
            ("on", "", "", &on),
            ("off", "", "", &off),
            ("", "on", "", &on),
            ("off", "on", "", &on),
            ("on", "off", "", &off),
            ("on", "", "off", &off),
            ("off", "", "on", &on),
        ] {
            let found = settings(name, http, server, location);
            assert!(found == *expected, "{name}: {http:?} {server:?} {location:?}");
        }
        count += 1;
    }
    assert!(count > 20, "{count}");
}
