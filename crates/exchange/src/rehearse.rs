//! Runs a rehearsal: composes its header section, and passes it through the phases up to the response. The notes are in
//! [`rehearsal`](crate::rehearsal).

use std::fmt;

use http::fields::Version;
use http::request::Composer;
use io::segments::Source;

use crate::course::{self, AfterPhases, PhaseCursor, Progress};
use crate::phases::Step;
use crate::request::Request;
use crate::{effect, prepare};
use site::settings::listen::Listen;

/// Gives a rehearsed request this header section, which is parsed as one that was received.
pub fn compose(
    request: &mut Request,
    method: &str,
    target: &str,
    fields: &[(String, String)],
) -> Result<(), String> {
    let policy = effect::policy(&request.scope().core);
    let line = (method.as_bytes(), target.as_bytes());
    let version = if request.conn.is_quic { Version::Http3 } else { Version::Http11 };
    let mut raw = Vec::new();
    let refused = |error: &dyn fmt::Debug| format!("the request is refused with 400: {error:?}");
    let mut composer = Composer::begin(&mut request.head, &mut raw, &policy, version, line)
        .map_err(|error| refused(&error))?;
    for (name, value) in fields {
        composer.field(name.as_bytes(), value.as_bytes()).map_err(|error| refused(&error))?;
    }
    composer.finish(false).map_err(|error| refused(&error))?;
    request.take_head(Source::Vec(raw), 0);
    Ok(())
}

/// Runs the course of a rehearsed request up to its response, and its header filters. Returns whether there is a response. The body
/// of the request is empty.
pub async fn run(request: &mut Request, listen: &Listen) -> AfterPhases {
    let (mut cursor, outcome) = PhaseCursor::begin(request, Some(listen));
    let mut outcome = match outcome {
        Some(outcome) => Some(outcome),
        None => course::too_large(request).and_then(|status| cursor.take(request, Step::Status(status))),
    };
    while outcome.is_none() {
        outcome = match cursor.advance(request) {
            Progress::Decided(outcome) => Some(outcome),
            Progress::NeedsBody => {
                cursor.take_body_need();
                request.body.get_or_insert_default();
                None
            }
            Progress::Waits(waiting) => {
                let step = waiting.step(request).await;
                cursor.take(request, step)
            }
        };
    }
    let outcome = outcome.unwrap_or(AfterPhases::Drop);
    if outcome == AfterPhases::Respond
        && let Some(status) = prepare::filter(request)
    {
        return course::replace(request, status).await;
    }
    outcome
}
