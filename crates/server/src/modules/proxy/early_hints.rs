//! `early_hints`: whether a 103 of an upstream is passed on, before its answer (RFC 8297).
//!
//! The directive is the core's in nginx, and only modules that pass requests on have something for it. The connection
//! writes what is made here while it waits for the answer itself.

use conf::{Args, Error, Spec};
use http::reply::ReplyHead;
use http::request::Version;

use crate::config::{Cx, Scope};
use crate::modules::Directive;
use crate::modules::http_core::LEVELS;
use crate::modules::proxy::reply;
use crate::request::Request;
use crate::upstream::Interim;

pub(super) const DIRECTIVES: &[Directive] = &[
    // Off by default, because some clients take any first answer for the last.
    Directive::scope(
        Spec::new(
            "http_core",
            "early_hints",
            LEVELS,
            Args::AtLeast(1),
            "Passes early hints of upstreams on where one of these is not empty and not `0`.",
        )
        .many(),
        add,
    ),
];

fn add(scope: &mut Scope, cx: &mut Cx<'_>) -> Result<(), Error> {
    for text in cx.statement.texts() {
        let template = cx.template(text)?;
        scope.proxy.early_hints.own(cx.block).push(template);
    }
    Ok(())
}

/// What makes the head of an interim answer for this request; nothing where its client is to have none.
pub(super) fn interim_of(request: &Request) -> Option<Interim> {
    let conditions = request.scope().proxy.early_hints.items();
    let holds = || conditions.iter().any(|text| !matches!(text.rendered(request).as_slice(), b"" | b"0"));
    // Clients of HTTP/1.0 know no interim answers, and the answer to a subrequest has no head.
    let may_have = request.depth == 0 && request.head.version() == Version::Http11;
    (may_have && holds()).then_some(write as Interim)
}

/// Writes the head of a 103. Others say nothing to the client of a proxy that has sent its request as a whole.
fn write(request: &Request, head: &ReplyHead, raw: &[u8]) -> Option<Vec<u8>> {
    if head.status().code() != 103 {
        return None;
    }
    let mut out = b"HTTP/1.1 103 Early Hints\r\n".to_vec();
    for line in reply::interim_lines(&request.scope().proxy, head, raw) {
        // What must not be sent is left out: the answer itself will show what is wrong.
        let _ = http::response::push_field(&mut out, line.name, line.value);
    }
    out.extend_from_slice(b"\r\n");
    Some(out)
}
