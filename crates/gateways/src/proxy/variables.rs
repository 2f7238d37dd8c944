//! Variables of requests that are passed on: values sent to the upstream.
//!
//! They are set when the request is created, so an earlier `rewrite` finds them empty, and a later log line does not. In a location
//! that passes nothing on, only the variable with the client's addresses is set.

use http::fields::{BodyLength, HeaderId};

use crate::passing::Family;
use crate::passing::pass::{Destination, TargetParts};
use crate::passing::request::Context;
use crate::proxy::Http;
use exchange::module::Variable;
use exchange::request::Request;
use site::variables::Assign;

pub(super) const VARIABLES: &[Variable] = &[
    // As in nginx, `$proxy_host` and `$proxy_port` can be set; otherwise they have a value once the destination is determined.
    Variable {
        name: "proxy_host",
        get: |request, out| {
            target_parts(request, out, |target_parts, out| {
                out.extend_from_slice(&target_parts.host);
                true
            })
        },
        set: Some(Assign::Replace),
        help: "Name and port of the upstream, from `proxy_pass`.",
    },
    Variable {
        name: "proxy_port",
        get: |request, out| {
            target_parts(request, out, |target_parts, out| match target_parts.port {
                Some(port) => {
                    http::push_decimal(out, u64::from(port));
                    true
                }
                None => false,
            })
        },
        set: Some(Assign::Replace),
        help: "The port of the upstream.",
    },
    variable(
        "proxy_add_x_forwarded_for",
        add_x_forwarded_for,
        "The client's `X-Forwarded-For` with the client's address appended.",
    ),
    variable(
        "proxy_internal_host",
        |request, out| {
            target_parts(request, out, |target_parts, out| {
                out.extend_from_slice(&target_parts.host);
                true
            })
        },
        "The default of the field `Host` for upstreams.",
    ),
    variable(
        "proxy_internal_body_length",
        |request, out| {
            length(request, out, |length, out| match length {
                BodyLength::Exactly(length) => {
                    http::push_decimal(out, length);
                    true
                }
                BodyLength::None | BodyLength::Unknown => false,
            })
        },
        "Length of the request body for the upstream, in bytes.",
    ),
    variable(
        "proxy_internal_chunked",
        |request, out| {
            length(request, out, |length, out| {
                let is_chunked = length == BodyLength::Unknown;
                out.extend_from_slice(if is_chunked { b"chunked" } else { b"" });
                is_chunked
            })
        },
        "`chunked` if the upstream gets the body in chunks.",
    ),
];

const fn variable(
    name: &'static str,
    get: fn(&Request, &mut Vec<u8>) -> bool,
    help: &'static str,
) -> Variable {
    Variable { name, get, set: None, help }
}

/// Appends a value that depends on the destination, which is determined before the cache key is computed.
fn target_parts(request: &Request, out: &mut Vec<u8>, show: fn(&TargetParts, &mut Vec<u8>) -> bool) -> bool {
    let destination =
        request.extensions.get::<Destination>().filter(|target_parts| target_parts.prefix == Http::PREFIX);
    destination.is_some_and(|destination| show(&destination.target_parts, out))
}

/// Appends a value that is known once the request is created.
fn length(request: &Request, out: &mut Vec<u8>, show: fn(BodyLength, &mut Vec<u8>) -> bool) -> bool {
    request.extensions.get::<Context>().is_some_and(|context| show(context.length, out))
}

fn add_x_forwarded_for(request: &Request, out: &mut Vec<u8>) -> bool {
    // A proxy in front of this server may have sent several lines; together they form one list (RFC 9110 section 5.3).
    for value in request.head.all(request.bytes(), HeaderId::XForwardedFor) {
        out.extend_from_slice(value);
        out.extend_from_slice(b", ");
    }
    request.client().show_address(out)
}
