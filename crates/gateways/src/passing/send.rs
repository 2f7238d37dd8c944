//! Sends a request to the upstream: destination, encoding, and response.

use crate::passing::pass;
use crate::passing::protocol::Via;
use crate::passing::request::Fill;
use exchange::request::Request;
use upstream::Failure;

/// Sends the request to the upstream. `fill` is given if the response is for a cache.
pub(super) async fn send(
    request: &mut Request,
    via: Via<'_>,
    fill: Option<&Fill>,
) -> Result<upstream::Reply, Failure> {
    let (target, destination) = pass::target(request, via.conf).map_err(Failure::Status)?;
    let outgoing = via.protocol.build(via.conf, request, &destination, fill).map_err(Failure::Status)?;
    upstream::fetch(request, &via.conf.upstream, &target, outgoing).await
}
