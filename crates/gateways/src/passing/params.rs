//! Parameters of requests to FastCGI, SCGI and uwsgi servers: the configured parameters, then the client's fields.
//!
//! | client's field | parameter |
//! |---|---|
//! | `Host` | `HTTP_HOST`, the host that selected the server: a host in the request line has precedence over `Host` |
//! | any other | `HTTP_` and its name, in upper case, with underscores for hyphens |
//! | several lines with one name | one parameter, joined by commas (`Cookie` by semicolons, RFC 6265 section 5.4) |
//! | a field that `fastcgi_param`, `scgi_param` or `uwsgi_param` names | only the configured value; none if it is empty |
//! | conditions and ranges, if the response is for a cache | those of the cache, unless a parameter is configured |

use conf::Error;
use http::fields::{Field, HeaderId};

use crate::passing::conf::Conf;
use crate::passing::request::{Fill, is_conditional};
use exchange::request::Request;
use site::config::Cx;
use site::template::Template;

/// One `fastcgi_param`, `scgi_param` or `uwsgi_param`.
#[derive(Clone, Debug)]
pub(crate) struct Param {
    pub(crate) name: Box<str>,
    pub(crate) value: Template,
    /// Whether it is omitted if its value is empty (`if_not_empty`).
    pub(crate) is_optional: bool,
}

impl Param {
    /// Parses the directive.
    pub(crate) fn read(cx: &mut Cx<'_>) -> Result<Param, Error> {
        let is_optional = match cx.statement.args.get(2).map(|word| word.text.as_str()) {
            None => false,
            Some("if_not_empty") => true,
            Some(text) => return Err(cx.error(format_args!("invalid parameter \"{text}\""))),
        };
        let (name, value) = (cx.arg(0).into(), cx.template(cx.arg(1))?);
        Ok(Param { name, value, is_optional })
    }
}

/// Passes all parameters of a request to `push`.
pub(crate) fn each(
    params: &[Param],
    conf: &Conf,
    request: &Request,
    fill: Option<&Fill>,
    push: &mut dyn FnMut(&[u8], &[u8]),
) {
    for param in params {
        // As in nginx, an empty literal value removes a client's field: `HTTP_PROXY ""`. Variables with an empty value are passed
        // on.
        if param.name.starts_with("HTTP_") && param.value.constant() == Some("") {
            continue;
        }
        let value = param.value.rendered(request);
        if !(param.is_optional && value.is_empty()) {
            push(param.name.as_bytes(), &value);
        }
    }
    // Applications must see the host that selected the server: with an absolute URI this is not the value of `Host`.
    if !is_set(params, HOST) {
        let host = named_host(request);
        if !host.is_empty() {
            push(HOST, &host);
        }
    }
    for (id, value) in fill.map_or(&[][..], |fill| &fill.fields) {
        let name = param_name(id.name().as_bytes());
        if !is_set(params, &name) {
            push(&name, value);
        }
    }
    if conf.pass_fields {
        of_client(params, request, fill.is_some(), push);
    }
}

/// Whether a parameter sets the `Range` of requests, as with `slice`.
pub(crate) fn sets_range(params: &[Param]) -> bool {
    is_set(params, b"HTTP_RANGE")
}

/// The parameter with the host of the request.
const HOST: &[u8] = b"HTTP_HOST";

/// Returns nginx's default, `$host$is_request_port$request_port`.
fn named_host(request: &Request) -> Vec<u8> {
    let mut host = request.host_or_name().to_vec();
    if let Some(port) = request.named_port() {
        host.push(b':');
        http::push_decimal(&mut host, port.into());
    }
    host
}

/// Whether the parameter is configured.
fn is_set(params: &[Param], name: &[u8]) -> bool {
    params.iter().any(|param| param.name.as_bytes() == name)
}

/// Passes the client's fields on, except `Host`.
fn of_client(params: &[Param], request: &Request, is_fill: bool, push: &mut dyn FnMut(&[u8], &[u8])) {
    let (head, bytes) = (&request.head, request.bytes());
    for (index, field) in head.fields().iter().enumerate() {
        let name = field.name.of(bytes);
        let is_same = |other: &Field| other.id == field.id && other.name.of(bytes).eq_ignore_ascii_case(name);
        let param = param_name(name);
        // The value of a repeated line was appended to the first line of its name.
        let is_repeated = head.fields()[..index].iter().any(is_same);
        let is_own = field.id == HeaderId::Host || (is_fill && is_conditional(field.id));
        if is_repeated || is_own || is_set(params, &param) {
            continue;
        }
        let separator: &[u8] = if field.id == HeaderId::Cookie { b"; " } else { b", " };
        let mut value = field.value.of(bytes).to_vec();
        for other in head.fields()[index + 1..].iter().filter(|other| is_same(other)) {
            value.extend_from_slice(separator);
            value.extend_from_slice(other.value.of(bytes));
        }
        push(&param, &value);
    }
}

fn param_name(field: &[u8]) -> Vec<u8> {
    let mapped = field.iter().map(|byte| if *byte == b'-' { b'_' } else { byte.to_ascii_uppercase() });
    b"HTTP_".iter().copied().chain(mapped).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_become_parameters_with_cgi_names() {
        assert_eq!(param_name(b"Accept-Language"), b"HTTP_ACCEPT_LANGUAGE");
        assert_eq!(param_name(b"x_1"), b"HTTP_X_1");
    }
}
