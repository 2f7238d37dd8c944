//! `add_header`, `add_trailer`, `expires` and `http3_alt_svc`: fields that the configuration adds to responses.
//!
//! As in nginx, values are computed before other modules change the body. So `$status` in a value is 200 for a file even
//! if only a range of the file will be sent.

mod alt_svc;
mod expires;

use std::rc::Rc;
use std::sync::Arc;

use conf::{Args, Error, Spec};
use http::conditional::Etag;

use crate::{Declaration, Directive, Module};
use exchange::http3::Http3;
use exchange::request::Request;
use site::config::{Cx, Inner, Scope, Settings, SettingsType};
use site::declaration::LEVELS_AND_IF;
use site::template::Template;

/// The module.
pub(crate) static MODULE: Module = Module {
    add_to_plan: |_, scope, plan| {
        if scope.of::<Conf>().is_active() {
            plan.filter(scope.shared::<Conf>(), filter);
        }
        if let Some(seconds) = scope.of::<Http3>().alt_svc {
            plan.filter(Arc::new(seconds), alt_svc::add);
        }
    },
    ..Module::of(Declaration {
        directives: &[DIRECTIVES],
        settings: &[SettingsType::of::<Conf>()],
        ..Declaration::named("http_headers")
    })
};

const fn spec(name: &'static str, args: Args, help: &'static str) -> Spec {
    Spec::new("http_headers", name, LEVELS_AND_IF, args, help)
}

const DIRECTIVES: &[Directive] = &[
    Directive::scope(
        spec(
            "expires",
            Args::Between(1, 2),
            "How long clients may cache responses: sets `Expires` and `Cache-Control`.",
        )
        .default("off"),
        expires::set,
    ),
    Directive::scope(
        spec("add_header", Args::Between(2, 3), "Adds a field to responses; `always`: to errors too.").many(),
        |scope, cx| add(|conf| &mut conf.headers, scope, cx),
    ),
    Directive::scope(
        spec("add_header_inherit", Args::Exactly(1), "Inheritance of `add_header`: on, off or merge.")
            .default("on"),
        |scope, cx| cx.choice(&mut scope.make_mut::<Conf>().headers.inherit, INHERIT),
    ),
    Directive::scope(
        spec("add_trailer", Args::Between(2, 3), "Adds a trailer field to responses.").many(),
        |scope, cx| add(|conf| &mut conf.trailers, scope, cx),
    ),
    Directive::scope(
        spec("add_trailer_inherit", Args::Exactly(1), "Inheritance of `add_trailer`: on, off or merge.")
            .default("on"),
        |scope, cx| cx.choice(&mut scope.make_mut::<Conf>().trailers.inherit, INHERIT),
    ),
];

const INHERIT: &[(&str, Inherit)] = &[("off", Inherit::Off), ("on", Inherit::On), ("merge", Inherit::Merge)];

/// The fields that a block adds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Conf {
    /// `expires`; `None` means `off`, which is inherited like any other value.
    expires: Option<Arc<expires::Setting>>,
    /// `add_header`
    headers: List,
    /// `add_trailer`
    trailers: List,
}

/// The fields of a block and of the enclosing blocks.
#[derive(Clone, Debug, Default)]
struct List {
    /// The fields of the block itself.
    own: Arc<Vec<Field>>,
    /// The effective fields of the enclosing block.
    outer: Arc<Vec<Field>>,
    inherit: Inherit,
}

/// `add_header_inherit`, `add_trailer_inherit`. Inner blocks inherit this setting too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Inherit {
    /// Only the fields of the block.
    Off,
    /// The inherited fields, unless the block has its own.
    #[default]
    On,
    /// Both, the block's own fields first.
    Merge,
}

/// One `add_header` or `add_trailer`.
#[derive(Clone, Debug)]
struct Field {
    /// The name as written.
    name: Box<str>,
    /// The value, rendered for each response; for a trailer, after the body was sent.
    value: Template,
    /// Whether errors get the field too.
    always: bool,
}

impl Settings for Conf {
    fn inherit(&self, _: Inner) -> Option<Conf> {
        Some(Conf { headers: self.headers.inherit(), trailers: self.trailers.inherit(), ..self.clone() })
    }
}

impl Conf {
    /// Whether any field is to be added; `add_header_inherit off` may have removed all.
    fn is_active(&self) -> bool {
        let has_some = |list: &List| list.fields().next().is_some();
        self.expires.is_some() || has_some(&self.headers) || has_some(&self.trailers)
    }
}

impl List {
    /// Returns the effective fields.
    fn fields(&self) -> impl Iterator<Item = &Field> {
        let takes_outer = match self.inherit {
            Inherit::Off => false,
            Inherit::On => self.own.is_empty(),
            Inherit::Merge => true,
        };
        let outer = if takes_outer { self.outer.as_slice() } else { &[] };
        self.own.iter().chain(outer)
    }

    /// Returns the initial list of an inner block.
    fn inherit(&self) -> List {
        let outer = match (self.own.is_empty(), self.inherit) {
            // A single list is shared without a copy.
            (true, Inherit::On | Inherit::Merge) => Arc::clone(&self.outer),
            (_, Inherit::On | Inherit::Off) => Arc::clone(&self.own),
            (false, Inherit::Merge) => Arc::new(self.fields().cloned().collect()),
        };
        List { own: Arc::default(), outer, inherit: self.inherit }
    }
}

/// Adds a field. The value is stored as a template, because it may use the response.
fn add(list: fn(&mut Conf) -> &mut List, scope: &mut Scope, cx: &mut Cx<'_>) -> Result<(), Error> {
    let name = cx.arg(0);
    let value = cx.template(cx.arg(1))?;
    let always = match cx.statement.args.get(2).map(|word| word.text.as_str()) {
        None => false,
        Some("always") => true,
        Some(text) => return Err(cx.error(format_args!("invalid parameter \"{text}\""))),
    };
    // nginx sends such a field unchanged, often with a second colon, and clients interpret it differently.
    if http::response::encode::push_field(&mut Vec::new(), name.as_bytes(), b"").is_err() {
        cx.warn(format_args!("invalid field name \"{name}\", the field is not sent"));
        return Ok(());
    }
    let field = Field { name: name.into(), value, always };
    Arc::make_mut(&mut list(scope.make_mut()).own).push(field);
    Ok(())
}

/// Whether fields without `always` are added: to successful responses and redirects.
fn is_success(status: u16) -> bool {
    matches!(status, 200 | 201 | 204 | 206 | 301 | 302 | 303 | 304 | 307 | 308)
}

/// Adds the fields to the client's response, not to those of subrequests.
fn filter(conf: &Conf, request: &mut Request) {
    if request.depth > 0 {
        return;
    }
    let is_success = is_success(request.response.status);
    if let Some(setting) = conf.expires.as_ref().filter(|_| is_success) {
        expires::apply(setting, request);
    }
    for field in conf.headers.fields().filter(|field| is_success || field.always) {
        // The memory of header sections is not in use before this response has one.
        let mut value = std::mem::take(&mut request.spare);
        value.clear();
        field.value.render(request, &mut value);
        http::response::encode::blank_controls(&mut value);
        put(field, &value, request);
        request.store_spare(value);
    }
    // Only if a trailer field may be sent, because trailer fields require chunked coding.
    if conf.trailers.fields().any(|field| is_success || field.always) {
        request.response.trailers.push(trailers);
    }
}

/// Adds a field; an empty value adds nothing. The validators `ETag` and `Last-Modified` are fields of the response struct:
/// a value replaces them, an empty value removes them.
fn put(field: &Field, value: &[u8], request: &mut Request) {
    let response = &mut request.response;
    if field.name.eq_ignore_ascii_case("ETag") {
        response.etag = (!value.is_empty()).then(|| Etag::from_text(value));
    } else if field.name.eq_ignore_ascii_case("Last-Modified") {
        response.last_modified = http::date::parse_http(value);
        // An invalid date is sent, but preconditions ignore it.
        if response.last_modified.is_none() && !value.is_empty() {
            response.fields.push(field.name.as_bytes(), value);
        }
    } else if !value.is_empty() {
        response.fields.push(field.name.as_bytes(), value);
    }
}

/// Returns the value with control characters replaced by spaces, so that a variable cannot inject a field.
pub(crate) fn on_one_line(value: &Template, request: &Request) -> Vec<u8> {
    let mut value = value.rendered(request);
    http::response::encode::blank_controls(&mut value);
    value
}

/// Adds the trailers after the body, so that they can use its result.
fn trailers(request: &mut Request) {
    let thread_config = Rc::clone(&request.thread_config);
    let conf = thread_config.config.location(request.location).scope.of::<Conf>();
    let is_success = is_success(request.response.status);
    for field in conf.trailers.fields().filter(|field| is_success || field.always) {
        let value = on_one_line(&field.value, request);
        if !value.is_empty() {
            // One by one, because a later trailer may use an earlier one.
            request.response.sent_trailers.push((field.name.as_bytes().into(), value));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{error, loaded, warnings};

    fn names_in(http: &str, location: &str, list: fn(&Conf) -> &List) -> String {
        let config = loaded(http);
        let found = config.http.locations.iter().find(|found| found.name == location);
        let conf = found.expect("the location is there").scope.of::<Conf>();
        let names: Vec<&str> = list(conf).fields().map(|field| &*field.name).collect();
        names.join(" ")
    }

    #[test]
    fn a_block_with_its_own_fields_inherits_none() {
        let names = |http: &str| names_in(http, "/", |conf| &conf.headers);
        assert_eq!(names("add_header A 1; add_header B 2; server { location / { } }"), "A B");
        assert_eq!(names("add_header A 1; server { add_header B 2; location / { } }"), "B");
        assert_eq!(names("add_header A 1; server { location / { add_header B 2; } }"), "B");
        let names = |http: &str| names_in(http, "/", |conf| &conf.trailers);
        assert_eq!(names("add_trailer A 1; server { add_header X 1; location / { } }"), "A");
        assert_eq!(names("add_trailer A 1; server { add_trailer B 1; location / { } }"), "B");
    }

    #[test]
    fn the_inherit_directive_controls_inherited_fields() {
        let names = |http: &str| names_in(http, "/", |conf| &conf.headers);
        let outer = "add_header A 1; server { add_header B 2; ";
        assert_eq!(
            names(&format!("{outer} location / {{ add_header C 3; add_header_inherit merge; }} }}")),
            "C B"
        );
        assert_eq!(
            names(&format!("add_header_inherit merge; {outer} location / {{ add_header C 3; }} }}")),
            "C B A"
        );
        assert_eq!(names(&format!("{outer} add_header_inherit merge; location / {{ }} }}")), "B A");
        assert_eq!(names(&format!("{outer} location / {{ add_header_inherit off; }} }}")), "");
        assert_eq!(names(&format!("{outer} add_header_inherit off; location / {{ }} }}")), "");
        assert_eq!(
            names(&format!("{outer} add_header_inherit off; location / {{ add_header_inherit on; }} }}")),
            "B"
        );
        let names = |http: &str| names_in(http, "/", |conf| &conf.trailers);
        assert_eq!(
            names("add_trailer A 1; server { location / { add_trailer B 1; add_trailer_inherit merge; } }"),
            "B A"
        );
    }

    #[test]
    fn wrong_statements_are_refused() {
        for (text, expected) in [
            ("add_header A b never;", "invalid parameter \"never\""),
            ("add_trailer A b Always;", "invalid parameter \"Always\""),
            ("add_header A $nobody;", "unknown \"nobody\" variable"),
            ("add_trailer A '${a';", "the closing bracket in \"a\" variable is missing"),
        ] {
            let found = error(&format!("http {{\n{text} }}"));
            assert_eq!(found, format!("{expected} in /conf/nginx.conf:2"), "{text}");
        }
        for name in ["add_header_inherit", "add_trailer_inherit"] {
            let found = error(&format!("http {{\n{name} both; }}"));
            assert!(found.starts_with("invalid value \"both\"") && found.contains("nginx.conf:2"), "{found}");
        }
        let found = warnings("http {\nadd_header A: b; }");
        assert_eq!(found, ["invalid field name \"A:\", the field is not sent in /conf/nginx.conf:2"]);
    }

    #[test]
    fn configurations_without_fields_have_no_filter() {
        let config = loaded("server { location / { } location /a { add_header A b; } }");
        let active = |name: &str| {
            let location = config.http.locations.iter().find(|location| location.name == name);
            location.is_some_and(|location| location.scope.of::<Conf>().is_active())
        };
        assert_eq!((active("/"), active("/a")), (false, true));
    }
}
