//! `grpc_error_status` and `grpc_deadline`: convert errors of this server to a gRPC status, for gRPC clients.
//!
//! With `grpc_deadline` this server ends a call when its `grpc-timeout` has passed: it cancels the upstream's stream and tries no other
//! upstream. The gRPC status is then 4, also without `grpc_error_status`. If the response has begun, `upstream` sends the status as a
//! trailer field.
//!
//! nginx sends such clients an HTTP status and a page, which they convert to a gRPC status with their own table. Here they get 200 with
//! the fields `grpc-status` and `grpc-message` and no body, as from a gRPC server: in locations with `grpc_pass`, and with
//! `grpc_error_status on` in others. The codes:
//!
//! | cause | `grpc-status` |
//! |---|---|
//! | 502, 503, 429 | 14 UNAVAILABLE |
//! | 504 | 4 DEADLINE_EXCEEDED |
//! | 400; 401; 403; 404 | 13 INTERNAL; 16 UNAUTHENTICATED; 7 PERMISSION_DENIED; 12 UNIMPLEMENTED |
//! | others | 2 UNKNOWN |
//! | the upstream has reset the stream | by the error code of RST_STREAM: CANCEL 1 CANCELLED, ENHANCE_YOUR_CALM 8 RESOURCE_EXHAUSTED,
//! INADEQUATE_SECURITY 7, REFUSED_STREAM 14, others 13 |
//!
//! The tables are those of gRPC (PROTOCOL-HTTP2.md, http-grpc-status-mapping.md), except for 504.

use std::sync::Arc;
use std::time::Instant;

use conf::{Args, Spec};
use http::StatusCode;
use http::fields::{HeaderId, Version};
use http::h2::ErrorCode;

use crate::{Declaration, Directive, Module};
use exchange::request::Request;
use exchange::response::{Body, ContentType};
use site::config::{Settings, SettingsType};
use site::declaration::{LEVELS, OWN};
use upstream::state;

/// The module.
pub(crate) static MODULE: Module = Module {
    add_to_plan: |_, scope, plan| {
        let conf = scope.of::<Conf>();
        let is_on = conf.is_on.unwrap_or(scope.core.pass == "grpc");
        if is_on || conf.has_deadline {
            plan.filter(Arc::new(is_on), |&shows_errors, request| filter(request, shows_errors));
        }
    },
    ..Module::of(Declaration {
        directives: &[DIRECTIVES],
        settings: &[SettingsType::of::<Conf>()],
        ..Declaration::named(OWN)
    })
};

const DIRECTIVES: &[Directive] = &[
    Directive::scope(
        Spec::new(
            OWN,
            "grpc_error_status",
            LEVELS,
            Args::Flag,
            "Clients of gRPC get errors of this server as `grpc-status`, with HTTP status 200; by default in locations with `grpc_pass`.",
        ),
        |scope, cx| {
            let mut is_on = false;
            cx.flag(&mut is_on)?;
            scope.make_mut::<Conf>().is_on = Some(is_on);
            Ok(())
        },
    ),
    Directive::scope(
        Spec::new(
            OWN,
            "grpc_deadline",
            LEVELS,
            Args::Flag,
            "Ends a call of `grpc_pass` with `grpc-status` 4 when the client's `grpc-timeout` has passed.",
        )
        .default("off"),
        |scope, cx| cx.flag(&mut scope.make_mut::<Conf>().has_deadline),
    ),
];

#[derive(Clone, Debug, Default)]
struct Conf {
    /// `grpc_error_status`; unset: only where `grpc_pass` passes requests on.
    is_on: Option<bool>,
    /// `grpc_deadline`
    has_deadline: bool,
}

impl Settings for Conf {}

/// Returns the deadline of a call if `grpc_deadline` is on: the start of the request plus `grpc-timeout`.
pub(crate) fn deadline(request: &Request) -> Option<Instant> {
    if !request.scope().of::<Conf>().has_deadline || request.depth > 0 || !is_call(request) {
        return None;
    }
    let timeout = request.head.named(request.bytes(), b"grpc-timeout").next()?;
    // A time that the clock cannot represent means no deadline.
    request.started.checked_add(http::grpc::timeout(timeout)?)
}

/// Converts error responses of this server. Responses of upstreams already have a gRPC status.
fn filter(request: &mut Request, shows_errors: bool) {
    let status = request.response.status;
    let is_past_deadline = state::is_past_deadline(request);
    if request.depth > 0 || status < 400 || !is_call(request) || !(shows_errors || is_past_deadline) {
        return;
    }
    if state::last_heading(request).is_some() {
        return;
    }
    let code = state::last_reset(request).map_or_else(|| of_status(status), of_reset);
    debug_assert!((1..=16).contains(&code), "gRPC has no error {code}");
    let words = match is_past_deadline {
        true => "Deadline Exceeded",
        false => StatusCode::new(status).map_or("", StatusCode::reason),
    };
    request.error_status = None;
    let response = &mut request.response;
    response.becomes_another(false);
    response.status = 200;
    response.content_type = ContentType::Text("application/grpc".into());
    response.body = Body::None;
    // Over HTTP/1 the length marks the end of the response.
    response.content_length =
        matches!(request.head.version(), Version::Http10 | Version::Http11).then_some(0);
    let fields = [("grpc-status", code.to_string()), ("grpc-message", words.to_owned())];
    fields.iter().for_each(|(name, value)| response.fields.push(name.as_bytes(), value.as_bytes()));
}

/// Whether the client uses gRPC: `application/grpc`, also with a `+` suffix or a parameter.
fn is_call(request: &Request) -> bool {
    const TYPE: &[u8] = b"application/grpc";
    let Some(text) = request.header(HeaderId::ContentType) else { return false };
    let is_type = text.get(..TYPE.len()).is_some_and(|start| start.eq_ignore_ascii_case(TYPE));
    is_type && matches!(text.get(TYPE.len()), None | Some(b'+' | b';' | b' '))
}

fn of_status(status: u16) -> u8 {
    match status {
        400 => 13,
        401 => 16,
        403 => 7,
        404 => 12,
        429 | 502 | 503 => 14,
        504 => 4,
        _ => 2,
    }
}

fn of_reset(code: u32) -> u8 {
    const CODES: [(ErrorCode, u8); 4] = [
        (ErrorCode::Cancel, 1),
        (ErrorCode::EnhanceYourCalm, 8),
        (ErrorCode::InadequateSecurity, 7),
        (ErrorCode::RefusedStream, 14),
    ];
    CODES.into_iter().find(|(known, _)| *known as u32 == code).map_or(13, |(_, status)| status)
}
