//! The request for a FastCGI server: parameters, and the body in records.

use http::gateway::fastcgi::Encoder;

use crate::fastcgi::conf::FastCgi;
use crate::passing::conf::Conf;
use crate::passing::request::{Context, Fill, body_of, is_idempotent, length_of};
use crate::passing::{Via, params};
use exchange::request::Request;
use upstream::Outgoing;

/// Creates the request.
///
/// # Errors
/// The status for the client; the reason is logged.
pub(super) fn build(
    fastcgi: &FastCgi,
    conf: &Conf,
    request: &mut Request,
    fill: Option<&Fill>,
) -> Result<Outgoing, u16> {
    let body = body_of(request, Via { conf, protocol: fastcgi })?;
    let length = length_of(request, conf, &body);
    request.extensions.insert(Context { length, passes_conditions: fill.is_none() });
    let mut encoder = Encoder::new(fastcgi.keep_conn);
    params::each(fastcgi.params.items(), conf, request, fill, &mut |name, value| encoder.param(name, value));
    let method = request.method;
    Ok(Outgoing {
        is_idempotent: is_idempotent(method),
        keepalive: fastcgi.keep_conn,
        caught: fastcgi.caught.items().to_vec(),
        ..Outgoing::new(encoder.end(), "fastcgi://", body, method)
    })
}
