//! `early_hints`: whether interim responses of an upstream are passed on, before its response: 103 (RFC 8297), 102 and any
//! other but 100, which answers this server alone (RFC 9110 section 15.2).
//!
//! The directive is the core's in nginx, and only modules that pass requests on have something for it. The connection
//! writes what is made here while it waits for the answer itself.

use conf::{Args, Error, Spec};
use http::reply::ReplyHead;
use http::request::Version;

use crate::config::{Cx, Scope};
use crate::modules::Directive;
use crate::modules::http_core::LEVELS;
use crate::modules::proxy::Conf;
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
            "Passes 103 (Early Hints) and other interim responses of upstreams on where one of these is not empty and not `0`.",
        )
        .many(),
        add,
    ),
];

fn add(scope: &mut Scope, cx: &mut Cx<'_>) -> Result<(), Error> {
    for text in cx.statement.texts() {
        let template = cx.template(text)?;
        scope.own::<Conf>().early_hints.own(cx.block).push(template);
    }
    Ok(())
}

/// What makes the head of an interim answer for this request; nothing where its client is to have none.
pub(super) fn interim_of(request: &Request) -> Option<Interim> {
    let conditions = request.scope().of::<Conf>().early_hints.items();
    let holds = || conditions.iter().any(|text| !matches!(text.rendered(request).as_slice(), b"" | b"0"));
    // Clients of HTTP/1.0 know no interim responses, and the response to a subrequest has no head. A fetch beside a response
    // that is being sent would put them into its body.
    let has_reader = !request.is_detached || request.is_awaited;
    let may_have = has_reader && request.depth == 0 && request.head.version() == Version::Http11;
    (may_have && holds()).then_some(write as Interim)
}

/// Writes the head. A 100 says nothing to the client of a proxy that has sent its request as a whole.
fn write(request: &Request, head: &ReplyHead, raw: &[u8]) -> Option<Vec<u8>> {
    let status = head.status();
    if status.code() == 100 {
        return None;
    }
    let mut out = format!("HTTP/1.1 {} {}\r\n", status.code(), status.reason()).into_bytes();
    for line in reply::interim_lines(request.scope().of::<Conf>(), head, raw) {
        // What must not be sent is left out: the answer itself will show what is wrong.
        let _ = http::response::push_field(&mut out, line.name, line.value);
    }
    out.extend_from_slice(b"\r\n");
    Some(out)
}
