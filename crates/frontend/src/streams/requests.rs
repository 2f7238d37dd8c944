//! Requests between their decoded header section and their task.

use http::multiplexed::{HeadFault, Priority};

use exchange::course;
use exchange::request::Request;
use exchange::transport::Received;
use telemetry::{ForLog, Level};

/// Status in the log of a request whose client has left.
pub(crate) const CLIENT_CLOSED: u16 = 499;

/// Initial capacity in bytes of the memory of a header section, enough for most.
pub(crate) const RAW_BYTES: usize = 512;

/// Returns whether the header section is valid, and whether it violates the protocol, so that the stream has to be reset after the response. Logs
/// the reason of a refusal, and ignored lines.
pub(crate) fn verdict(request: &mut Request, finished: Result<(), HeadFault>) -> (Received, bool) {
    if let Some(line) = request.head.first_ignored() {
        let line = line.of(request.bytes()).for_log();
        request.log(Level::Info, format_args!("client sent invalid header line: \"{line}\""));
    }
    let Err(fault) = finished else { return (Received::Head, false) };
    if request.head.is_started() {
        // For the log. The request is already refused; an invalid URI makes no difference.
        let _ = course::read_uri(request);
    }
    let message = fault.message();
    request.log(Level::Info, format_args!("{message} while reading client request headers"));
    (Received::Refused(fault.status().code()), matches!(fault, HeadFault::Malformed(_)))
}

/// Returns the priority of the request's field (RFC 9218 section 5).
pub(crate) fn priority(request: &Request) -> Option<Priority> {
    // The values of several field lines are one dictionary (RFC 9651 section 4.2).
    let values: Vec<&[u8]> = request.head.named(request.bytes(), b"priority").collect();
    let field = (!values.is_empty()).then(|| values.join(&b", "[..]));
    field.as_deref().map(Priority::read)
}
