//! The access log: a line for each request, in the formats that its location names.

use crate::modules::log::LogTo;
use crate::request::Request;
use crate::template::Template;

/// Writes the request to the access logs of its location.
pub(crate) fn write(request: &Request) {
    let generation = &request.generation;
    for log in request.scope().log.logs() {
        if log.condition.as_ref().is_some_and(|condition| !holds(request, condition)) {
            continue;
        }
        let line = |out: &mut Vec<u8>| log.format.render(request, out);
        match &log.to {
            LogTo::Target(id) => generation.sinks[id.place()].append(&request.conn.thread, None, line),
            LogTo::Named(path) => generation.named.append(request, path, line),
        }
    }
}

/// nginx: an empty value and `0` mean no.
fn holds(request: &Request, condition: &Template) -> bool {
    request.conn.thread.logs.with_scratch(|value| {
        condition.render(request, value);
        !matches!(value.as_slice(), b"" | b"0")
    })
}
