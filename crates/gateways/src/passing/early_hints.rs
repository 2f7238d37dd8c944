//! `early_hints`: whether interim responses of an upstream are passed on before its response. These are 103 (RFC 8297), 102 and
//! others except 100, which only this server itself sends (RFC 9110 section 15.2).
//!
//! In nginx the directive belongs to the core, and only modules that pass requests on use it. The connection sends the interim
//! responses created here while it waits for the final response.

use conf::{Args, Error, Spec};
use http::fields::Version;
use http::response::parse::ParsedResponse;

use crate::Directive;
use crate::passing::protocol::{Family, Passing};
use crate::passing::reply;
use exchange::client::Interim;
use exchange::request::Request;
use site::config::{Cx, Layered, Scope, Settings};
use site::declaration::LEVELS;
use site::template::Template;
use upstream::MakeInterim;

/// The conditions of a block.
#[derive(Clone, Debug, Default)]
pub(super) struct EarlyHints(Layered<Template>);

impl Settings for EarlyHints {}

pub(super) const DIRECTIVES: &[Directive] = &[
    // Off by default, because some clients treat an interim response as the final one.
    Directive::scope(
        Spec::new(
            "http_core",
            "early_hints",
            LEVELS,
            Args::AtLeast(1),
            "Passes on 103 (Early Hints) and other interim responses of upstreams if one of these values is neither empty nor `0`.",
        )
        .many(),
        add,
    ),
];

fn add(scope: &mut Scope, cx: &mut Cx<'_>) -> Result<(), Error> {
    for text in cx.statement.texts() {
        let template = cx.template(text)?;
        scope.make_mut::<EarlyHints>().0.make_mut(cx.block).push(template);
    }
    Ok(())
}

/// Returns the function that creates the interim responses for this request; `None` if its client must not receive any.
pub(crate) fn interim_of<F: Family>(request: &Request) -> Option<MakeInterim> {
    let conditions = request.scope().of::<EarlyHints>().0.items();
    let holds = || conditions.iter().any(|text| !matches!(text.rendered(request).as_slice(), b"" | b"0"));
    // HTTP/1.0 clients do not support interim responses, and the response to a subrequest has no head. A background fetch would
    // insert them into the body of the response that is being sent.
    let has_reader = !request.is_detached || request.is_awaited;
    let may_have = has_reader && request.depth == 0 && request.head.version() != Version::Http10;
    (may_have && holds()).then_some(pass_on::<F> as MakeInterim)
}

/// Converts the fields of an interim response for the client. A 100 is not passed on: it only permits this server to send the
/// request body. Nor is, as in nginx, a 103 without fields: it has no hint.
fn pass_on<F: Family>(request: &Request, head: &ParsedResponse, raw: &[u8]) -> Option<Interim> {
    let status = head.status();
    if status.code() == 100 {
        return None;
    }
    let lines = reply::interim_lines(&request.scope().of::<Passing<F>>().conf, head, raw);
    let fields: Vec<_> = lines.map(|line| (line.name.to_vec(), line.value.to_vec())).collect();
    (status.code() != 103 || !fields.is_empty()).then_some(Interim { status, fields })
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
