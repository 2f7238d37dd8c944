//! `health`: health checks for load balancers and supervisors.
//!
//! `live` shows that a thread serves requests. `ready` also shows whether clients should connect. It fails while the server
//! is about to shut down or was drained by an operator. Caches that are being loaded from disk and failing upstreams do
//! not make a server unready, because other servers would have the same problem.
//!
//! Load balancers with an interval of a second notice after a few checks, so `shutdown_delay` should be several
//! intervals.

use http::fields::Method;
use io::segments::Source;

use super::conf::{Conf, Page};
use exchange::phases::Step;
use exchange::request::Request;
use exchange::response::ContentType;

/// Responds to a check with a status, and a text for people. The thread that accepted the connection responds, so the check
/// times out if this thread hangs.
pub(super) fn run(conf: &Conf, request: &mut Request) -> Step {
    if !matches!(request.method, Method::Get | Method::Head) {
        return Step::Status(405);
    }
    let thread = &request.conn.thread;
    let (status, text) = match conf.page == Some(Page::Ready) && thread.is_leaving() {
        true if thread.shared.is_drained() => (503, "drained\n"),
        true => (503, "shutting down\n"),
        false => (200, "ok\n"),
    };
    let response = &mut request.response;
    response.status = status;
    response.content_type = ContentType::Text("text/plain".into());
    response.fields.push(b"Cache-Control", b"no-store");
    response.set_bytes(Source::Vec(text.as_bytes().to_vec()));
    Step::Done
}
