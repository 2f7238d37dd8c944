//! The request as a FastCGI server gets it: the parameters of the configuration, then the client's fields as `HTTP_*`.
//!
//! | field of the client | parameter |
//! |---|---|
//! | any | `HTTP_` and its name, in capitals and with underscores for hyphens |
//! | several lines of one name | one, joined by commas (`Cookie` by semicolons, RFC 6265 section 5.4) |
//! | one that a `fastcgi_param` names | that of the configuration alone |
//! | conditions and ranges, where the response is for a cache | those of the cache |

use http::gateway::fastcgi::Encoder;
use http::request::HeaderId;

use crate::fastcgi::conf::FastCgi;
use crate::passing::Via;
use crate::passing::conf::Conf;
use crate::passing::request::{Context, Fill, body_of, is_conditional, is_idempotent, length_of};
use exchange::request::Request;
use upstream::Outgoing;

/// What the names of the client's fields begin with.
const FIELD_PREFIX: &[u8] = b"HTTP_";

/// Makes the request.
///
/// # Errors
/// The status that answers; the log has the reason.
pub(super) fn build(
    fastcgi: &FastCgi,
    conf: &Conf,
    request: &mut Request,
    fill: Option<&Fill>,
) -> Result<Outgoing, u16> {
    let body = body_of(request, Via { conf, protocol: fastcgi })?;
    let length = length_of(request, conf, &body);
    request.extensions.insert(Context { length, passes_conditions: fill.is_none() });
    let mut encoder = Encoder::new(fastcgi.keeps);
    for param in fastcgi.params.items() {
        let value = param.value.rendered(request);
        if !(param.is_optional && value.is_empty()) {
            encoder.param(param.name.as_bytes(), &value);
        }
    }
    for (id, value) in fill.map_or(&[][..], |fill| &fill.fields) {
        encoder.param(&param_name(id.name().as_bytes()), value);
    }
    if conf.pass_fields {
        push_fields(fastcgi, request, fill.is_some(), &mut encoder);
    }
    let method = request.method;
    Ok(Outgoing {
        encoded: encoder.end(),
        scheme: "fastcgi://",
        secure: None,
        body,
        method,
        is_idempotent: is_idempotent(method),
        keepalive: fastcgi.keeps,
        upgrade: false,
        caught: fastcgi.caught.items().to_vec(),
        interim: None,
    })
}

/// Adds the client's fields.
fn push_fields(fastcgi: &FastCgi, request: &Request, is_fill: bool, encoder: &mut Encoder) {
    let (head, bytes) = (&request.head, request.bytes());
    for (index, field) in head.fields().iter().enumerate() {
        let name = field.name.of(bytes);
        let is_same = |other: &http::request::Field| {
            other.id == field.id && other.name.of(bytes).eq_ignore_ascii_case(name)
        };
        let param = param_name(name);
        let is_set = |param: &[u8]| fastcgi.params.items().iter().any(|set| set.name.as_bytes() == param);
        // It went with the first line of its name.
        let is_repeated = head.fields()[..index].iter().any(is_same);
        if is_repeated || (is_fill && is_conditional(field.id)) || is_set(&param) {
            continue;
        }
        let separator: &[u8] = if field.id == HeaderId::Cookie { b"; " } else { b", " };
        let mut value = field.value.of(bytes).to_vec();
        for other in head.fields()[index + 1..].iter().filter(|other| is_same(other)) {
            value.extend_from_slice(separator);
            value.extend_from_slice(other.value.of(bytes));
        }
        encoder.param(&param, &value);
    }
}

fn param_name(field: &[u8]) -> Vec<u8> {
    let mapped = field.iter().map(|byte| if *byte == b'-' { b'_' } else { byte.to_ascii_uppercase() });
    FIELD_PREFIX.iter().copied().chain(mapped).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_become_parameters_as_cgi_names_them() {
        assert_eq!(param_name(b"Accept-Language"), b"HTTP_ACCEPT_LANGUAGE");
        assert_eq!(param_name(b"x_1"), b"HTTP_X_1");
    }
}
