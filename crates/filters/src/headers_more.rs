//! `more_set_headers` and related directives (module headers-more): set, replace or remove fields of responses and of
//! requests.
//!
//! Responses are changed before `add_header` adds to them. Requests are changed after all rewriting, so that content
//! handlers and upstreams get the changed fields. Directives of outer blocks precede those of inner blocks.

use std::sync::Arc;

use conf::{Args, Error, Spec};
use http::conditional::Etag;
use http::fields::HeaderId;
use http::request::Head;

use crate::headers::on_one_line;
use crate::{Declaration, Directive, Module};
use exchange::phases::{Phase, Step};
use exchange::request::Request;
use exchange::response::{ContentType, Response};
use site::config::{Cx, Scope, Settings, SettingsType};
use site::declaration::LEVELS_AND_IF;
use site::template::Template;

/// The module.
pub(crate) static MODULE: Module = Module {
    add_to_plan: |_, scope, plan| {
        let conf = scope.of::<Conf>();
        if !conf.of_requests.is_empty() {
            plan.now(Phase::Rewrite, scope.shared::<Conf>(), change_request);
        }
        if !conf.of_responses.is_empty() {
            plan.filter(scope.shared::<Conf>(), change_response);
        }
    },
    ..Module::of(Declaration {
        directives: &[DIRECTIVES],
        settings: &[SettingsType::of::<Conf>()],
        ..Declaration::named("http_headers_more_filter")
    })
};

const fn spec(name: &'static str, help: &'static str) -> Spec {
    Spec::new("http_headers_more_filter", name, LEVELS_AND_IF, Args::AtLeast(1), help).many()
}

const DIRECTIVES: &[Directive] = &[
    Directive::scope(
        spec(
            "more_set_headers",
            "Sets fields of all responses, errors included; `-a` adds, `-s` and `-t` select responses.",
        ),
        |scope, cx| add(scope, cx, Direction::Response, Action::Set),
    ),
    Directive::scope(
        spec("more_clear_headers", "Removes fields of responses; `-s` and `-t` select responses."),
        |scope, cx| add(scope, cx, Direction::Response, Action::Clear),
    ),
    Directive::scope(
        spec("more_set_input_headers", "Sets fields of requests; `-r` only replaces, `-t` selects requests."),
        |scope, cx| add(scope, cx, Direction::Request, Action::Set),
    ),
    Directive::scope(
        spec("more_clear_input_headers", "Removes fields of requests; `-t` selects requests."),
        |scope, cx| add(scope, cx, Direction::Request, Action::Clear),
    ),
];

/// The changes of a block and of the enclosing blocks, in order.
#[derive(Clone, Debug, Default)]
struct Conf {
    /// `more_set_headers`, `more_clear_headers`
    of_responses: Arc<Vec<Command>>,
    /// `more_set_input_headers`, `more_clear_input_headers`
    of_requests: Arc<Vec<Command>>,
}

// Inherited completely: a directive of an inner block is appended to the inherited list.
impl Settings for Conf {}

/// A directive with its options.
#[derive(Clone, Debug)]
struct Command {
    /// The fields in order; a later change uses the result of an earlier one.
    fields: Vec<Field>,
    /// `-s`: the statuses that it applies to; all if empty.
    statuses: Vec<u16>,
    /// `-t`: the media types that it applies to; all if empty.
    types: Vec<Box<str>>,
    /// `-a`: adds to fields of the same name instead of replacing them.
    adds: bool,
    /// `-r`: only replaces a field that the request has.
    only_replaces: bool,
}

/// A field and its new value.
#[derive(Clone, Debug)]
struct Field {
    /// The name; a prefix can only be removed, not set.
    name: Name,
    /// `None` removes the field, and so does an empty value.
    value: Option<Template>,
}

/// The names of the fields, case-insensitive.
#[derive(Clone, Debug)]
enum Name {
    /// Fields with this name.
    Exact(Box<str>),
    /// Fields that begin with this text: `X-Hidden-*`.
    Prefix(Box<str>),
}

/// The messages that a directive changes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    /// The fields of the response.
    Response,
    /// The fields of the request (`input` in the name of the directive).
    Request,
}

/// The change that a directive makes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Action {
    /// Sets fields; a field without a value is removed.
    Set,
    /// Removes fields; a value is ignored.
    Clear,
}

/// Fields that frame a message. Changing them would make the peer parse a different message.
const FRAMING: [HeaderId; 2] = [HeaderId::ContentLength, HeaderId::TransferEncoding];

/// Parses a directive: options and fields in any order, as headers-more does.
fn add(scope: &mut Scope, cx: &mut Cx<'_>, direction: Direction, action: Action) -> Result<(), Error> {
    let mut command = Command {
        fields: Vec::new(),
        statuses: Vec::new(),
        types: Vec::new(),
        adds: false,
        only_replaces: false,
    };
    let directive = cx.statement.name.text.clone();
    let words: Vec<String> = cx.statement.texts().map(str::to_owned).collect();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let is_for = |wanted: Direction, of: Action| direction == wanted && action == of;
        match word.as_str() {
            "-a" if is_for(Direction::Response, Action::Set) => command.adds = true,
            "-r" if is_for(Direction::Request, Action::Set) => command.only_replaces = true,
            "-t" | "-s" => {
                let Some(list) = words.next() else {
                    return Err(cx.error(format_args!("{directive}: option {word} takes an argument.")));
                };
                let list = list.split_ascii_whitespace();
                match word.as_str() {
                    "-t" => command.types.extend(list.map(Box::from)),
                    _ if direction == Direction::Request => return Err(invalid_option(cx, word)),
                    _ => {
                        for status in list {
                            let status = status.parse().ok().filter(|status| (100..1000).contains(status));
                            let invalid = || cx.error(format_args!("invalid status list in \"{directive}\""));
                            command.statuses.push(status.ok_or_else(invalid)?);
                        }
                    }
                }
            }
            option if option.starts_with('-') => return Err(invalid_option(cx, option)),
            text => command.fields.extend(field(cx, text, action)?),
        }
    }
    if command.fields.is_empty() {
        return Ok(());
    }
    let conf = scope.make_mut::<Conf>();
    let list = match direction {
        Direction::Response => &mut conf.of_responses,
        Direction::Request => &mut conf.of_requests,
    };
    Arc::make_mut(list).push(command);
    Ok(())
}

/// Returns the error with the text of headers-more.
fn invalid_option(cx: &Cx<'_>, option: &str) -> Error {
    cx.error(format_args!("{}: invalid option name: \"{option}\"", cx.statement.name.text))
}

/// Parses `Name: value`, `Name:` or `Name`; returns `None` if the field must not be changed.
fn field(cx: &mut Cx<'_>, text: &str, action: Action) -> Result<Option<Field>, Error> {
    let (name, value) = text.split_once(':').unwrap_or((text, ""));
    let (name, value) = (name.trim_end(), value.trim());
    let prefix = name.strip_suffix('*').filter(|_| action == Action::Clear);
    let checked = prefix.unwrap_or(name);
    let is_name = checked.is_empty() && prefix.is_some()
        || http::response::encode::check_field(checked.as_bytes(), b"").is_ok();
    if !is_name {
        return Err(cx.error(format_args!("invalid header name \"{name}\"")));
    }
    if prefix.is_none() && FRAMING.contains(&HeaderId::of(name.as_bytes())) {
        cx.warn(format_args!("\"{name}\" determines the end of a message and is not changed"));
        return Ok(None);
    }
    let value = match (action, value) {
        (Action::Clear, _) | (_, "") => None,
        (Action::Set, text) => Some(cx.template(text)?),
    };
    let name = match prefix {
        Some(prefix) => Name::Prefix(prefix.into()),
        None => Name::Exact(name.into()),
    };
    Ok(Some(Field { name, value }))
}

impl Command {
    /// Whether the change applies to this media type; parameters are ignored.
    fn is_for_type(&self, media_type: Option<&str>) -> bool {
        let media_type = media_type.unwrap_or_default().split(';').next().unwrap_or_default().trim();
        self.types.is_empty() || self.types.iter().any(|wanted| wanted.eq_ignore_ascii_case(media_type))
    }
}

impl Name {
    /// Whether this name matches.
    fn is_of(&self, name: &[u8]) -> bool {
        match self {
            Name::Exact(exact) => name.eq_ignore_ascii_case(exact.as_bytes()),
            Name::Prefix(prefix) => {
                let start = name.get(..prefix.len());
                start.is_some_and(|start| start.eq_ignore_ascii_case(prefix.as_bytes()))
            }
        }
    }
}

impl Field {
    /// Returns the new value, unless that is empty.
    fn rendered(&self, request: &Request) -> Option<Vec<u8>> {
        let value = self.value.as_ref().map(|value| on_one_line(value, request));
        value.filter(|value| !value.is_empty())
    }
}

/// Changes the client's response, not those of subrequests.
fn change_response(conf: &Conf, request: &mut Request) {
    if request.depth > 0 {
        return;
    }
    for command in conf.of_responses.iter() {
        let response = &request.response;
        let is_status = command.statuses.is_empty() || command.statuses.contains(&response.status);
        if !is_status || !command.is_for_type(response.content_type.of(request)) {
            continue;
        }
        for field in &command.fields {
            // A value may use fields of the response, so it is rendered before the change.
            match (&field.name, field.rendered(request)) {
                (Name::Exact(name), Some(value)) => set(&mut request.response, name, value, command.adds),
                (name, _) => clear(&mut request.response, name),
            }
        }
    }
}

/// Sets a field. Fields that the server itself writes are fields of the response struct.
fn set(response: &mut Response, name: &str, value: Vec<u8>, adds: bool) {
    match HeaderId::of(name.as_bytes()) {
        HeaderId::Server => response.server = Some(value),
        HeaderId::Date => response.date = http::date::normalise(&value).or(response.date),
        HeaderId::ContentType => {
            response.charset = None;
            response.content_type = ContentType::Text(String::from_utf8_lossy(&value).into_owned().into());
        }
        HeaderId::LastModified => {
            response.remove_field(name.as_bytes());
            response.last_modified = http::date::parse_http(&value);
            // An invalid date is sent, but preconditions ignore it.
            if response.last_modified.is_none() {
                response.fields.push(name.as_bytes(), &value);
            }
        }
        HeaderId::Etag => response.etag = Some(Etag::from_text(&value)),
        HeaderId::Location => response.location = Some(value),
        HeaderId::ContentRange => response.content_range = Some(value),
        HeaderId::WwwAuthenticate if !response.challenges.is_for_proxy => match adds {
            true => response.challenges.values.push(value),
            false => response.challenges.values = vec![value],
        },
        // `bytes` is not added, because this server sends it itself if it supports ranges.
        HeaderId::AcceptRanges if value.eq_ignore_ascii_case(b"bytes") && response.allow_ranges => {}
        id => {
            response.allow_ranges &= id != HeaderId::AcceptRanges;
            let is_same = |known: &[u8]| known.eq_ignore_ascii_case(name.as_bytes());
            if adds || !response.fields.iter().any(|(known, _)| is_same(known)) {
                return response.fields.push(name.as_bytes(), &value);
            }
            // One field remains, in the position of the first.
            let mut value = Some(value);
            response.fields.edit(|fields| {
                fields.retain_mut(|field| {
                    if !is_same(&field.0) {
                        return true;
                    }
                    let Some(value) = value.take() else { return false };
                    *field = (name.into(), value);
                    true
                });
            });
        }
    }
}

/// Removes fields.
fn clear(response: &mut Response, name: &Name) {
    let is = |field: &str| name.is_of(field.as_bytes());
    if is("Server") {
        // No `Server` field is sent, not even this server's own.
        response.server = Some(Vec::new());
    }
    if is("Content-Type") {
        (response.content_type, response.charset) = (ContentType::None, None);
    }
    if is("Last-Modified") {
        response.last_modified = None;
    }
    if is("ETag") {
        response.etag = None;
    }
    if is("Location") {
        response.location = None;
    }
    if is("Content-Range") {
        response.content_range = None;
    }
    if name.is_of(response.challenges.field()) {
        response.challenges.clear();
    }
    if is("Accept-Ranges") {
        response.allow_ranges = false;
    }
    response.fields.retain(|known| !name.is_of(known));
}

/// Changes the fields of a request, for all later readers.
fn change_request(conf: &Conf, request: &mut Request) -> Step {
    for command in conf.of_requests.iter() {
        let media_type = request.header(HeaderId::ContentType).map(String::from_utf8_lossy);
        if !command.is_for_type(media_type.as_deref()) {
            continue;
        }
        for field in &command.fields {
            // Rendered before the change, as for responses.
            let value = field.rendered(request);
            let has_it =
                request.head.fields().iter().any(|line| field.name.is_of(line.name.of(request.bytes())));
            match (&field.name, value) {
                (Name::Exact(name), Some(value)) if has_it || !command.only_replaces => {
                    // `$host` changes too; the server that the old name selected is retained.
                    if HeaderId::of(name.as_bytes()) == HeaderId::Host
                        && let Ok(host) = http::host::validate(&value)
                    {
                        http::host::lowercase_into(host.name.of(&value), &mut request.host);
                    }
                    request.change_fields(|head, bytes| head.set_field(bytes, name.as_bytes(), &value));
                }
                (name, None) if has_it => request.change_fields(|head, bytes| remove(head, bytes, name)),
                _ => {}
            }
        }
    }
    Step::Next
}

/// Removes fields of a request.
fn remove(head: &mut Head, bytes: &[u8], name: &Name) {
    // A prefix may match framing fields too.
    head.remove_fields(bytes, |known| name.is_of(known) && !FRAMING.contains(&HeaderId::of(known)));
}

#[cfg(test)]
mod tests {
    use crate::testing::{error, warnings};

    #[test]
    fn wrong_statements_are_refused() {
        for (text, expected) in [
            ("more_set_headers -x 'A: b';", "more_set_headers: invalid option name: \"-x\""),
            ("more_set_headers 'A: b' -s;", "more_set_headers: option -s takes an argument."),
            ("more_set_headers -s '4o4' 'A: b';", "invalid status list in \"more_set_headers\""),
            ("more_clear_headers -a A;", "more_clear_headers: invalid option name: \"-a\""),
            ("more_set_headers -r 'A: b';", "more_set_headers: invalid option name: \"-r\""),
            ("more_set_input_headers -s 404 'A: b';", "more_set_input_headers: invalid option name: \"-s\""),
            ("more_clear_input_headers -t;", "more_clear_input_headers: option -t takes an argument."),
            ("more_set_headers ': b';", "invalid header name \"\""),
            ("more_set_headers 'A B: b';", "invalid header name \"A B\""),
            ("more_set_headers 'A: $nobody';", "unknown \"nobody\" variable"),
        ] {
            let found = error(&format!("http {{\n{text} }}"));
            assert_eq!(found, format!("{expected} in /conf/nginx.conf:2"), "{text}");
        }
        let found = warnings("http {\nmore_clear_headers Content-Length X; }");
        let expected =
            "\"Content-Length\" determines the end of a message and is not changed in /conf/nginx.conf:2";
        assert_eq!(found, [expected]);
    }
}
