//! `health`: checks of load balancers and supervisors.
//!
//! `live` shows that a thread serves requests. `ready` also shows whether clients should come: not while the server is
//! about to end or drained by an operator. Caches that are read from the disk meanwhile, and upstreams that fail, are no reason against it: other
//! servers would have them too.
//!
//! Load balancers that ask each second notice after a few checks, so that `shutdown_delay` is some of their intervals.

use http::request::Method;
use io::op::Source;

use super::{Conf, Page};
use exchange::phases::Step;
use exchange::request::Request;
use exchange::response::ContentType;

/// Responds to a check, with a word for people beside the status. It is made on the thread that accepted the connection:
/// one that hangs lets the check time out.
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
    response.fields.push((b"Cache-Control".to_vec(), b"no-store".to_vec()));
    response.set_bytes(Source::Vec(text.as_bytes().to_vec()));
    Step::Done
}
