//! `early_hints`: whether interim responses of an upstream are passed on, before its response: 103 (RFC 8297), 102 and any
//! other but 100, which answers this server alone (RFC 9110 section 15.2).
//!
//! The directive is the core's in nginx, and only modules that pass requests on have something for it. The connection
//! sends the interim responses made here while it waits for the final one.

use conf::{Args, Error, Spec};
use http::reply::ReplyHead;
use http::request::Version;

use crate::Directive;
use crate::passing::{Family, Passing, reply};
use exchange::client::Interim;
use exchange::config::{Cx, Layered, Scope, Settings};
use exchange::module::LEVELS;
use exchange::request::Request;
use exchange::template::Template;
use upstream::MakeInterim;

/// The conditions of a block.
#[derive(Clone, Debug, Default)]
pub(super) struct EarlyHints(Layered<Template>);

impl Settings for EarlyHints {}

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
        scope.own::<EarlyHints>().0.own(cx.block).push(template);
    }
    Ok(())
}

/// The function that makes the interim responses to this request; nothing where its client is to have none.
pub(crate) fn interim_of<F: Family>(request: &Request) -> Option<MakeInterim> {
    let conditions = request.scope().of::<EarlyHints>().0.items();
    let holds = || conditions.iter().any(|text| !matches!(text.rendered(request).as_slice(), b"" | b"0"));
    // Clients of HTTP/1.0 know no interim responses, and the response to a subrequest has no head. A fetch beside a response
    // that is being sent would put them into its body.
    let has_reader = !request.is_detached || request.is_awaited;
    let may_have = has_reader && request.depth == 0 && request.head.version() != Version::Http10;
    (may_have && holds()).then_some(pass_on::<F> as MakeInterim)
}

/// Receives the fields of an interim response for the client. A 100 has no meaning for the client of a proxy that has sent
/// its request as a whole.
fn pass_on<F: Family>(request: &Request, head: &ReplyHead, raw: &[u8]) -> Option<Interim> {
    let status = head.status();
    if status.code() == 100 {
        return None;
    }
    let lines = reply::interim_lines(&request.scope().of::<Passing<F>>().conf, head, raw);
    let fields = lines.map(|line| (line.name.to_vec(), line.value.to_vec())).collect();
    Some(Interim { status, fields })
}

#[cfg(test)]
mod tests {
    use super::EarlyHints;
    use crate::testing::loaded;

    #[test]
    fn conditions_are_inherited_until_a_block_has_its_own() {
        let count = |http: &str| {
            let config = loaded(http);
            config.http.locations.last().expect("there is a server").scope.of::<EarlyHints>().0.items().len()
        };
        assert_eq!(count("early_hints $arg_a; server { location / { } }"), 1);
        assert_eq!(count("early_hints $arg_a; server { location / { early_hints 1 2; } }"), 2);
    }
}
