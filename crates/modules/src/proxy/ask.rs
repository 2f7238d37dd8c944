//! Asks the upstream: where a request goes, what it looks like, and the response to it.

use crate::proxy::conf::Conf;
use crate::proxy::{pass, request};
use exchange::request::Request;
use upstream::Failure;

/// Asks the upstream. `fill` is given where the answer is for a cache.
pub(super) async fn ask(
    request: &mut Request,
    conf: &Conf,
    fill: Option<&request::Fill>,
) -> Result<upstream::Reply, Failure> {
    let (target, destination) = pass::target(request, conf).map_err(Failure::Status)?;
    let outgoing = request::build(request, conf, &destination, fill).map_err(Failure::Status)?;
    upstream::fetch(request, &conf.upstream, &target, outgoing).await
}
