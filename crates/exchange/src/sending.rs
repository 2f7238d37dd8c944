//! Sends a response that is not completely in memory: its body is read, filtered or received while it is sent.
//!
//! The [`Outlet`] hides the protocol of the client.

use http::fields::Method;
use io::Errno;

use crate::files;
use crate::filter::output;
use crate::request::Request;
use crate::response::Body;
use crate::streaming;
use telemetry::{Level, Reason};
use transfer::body::{self, BodyError, Outlet, SendError};

/// Sends `head` and the body of the response, with the cheapest method available.
pub async fn send(outlet: &mut dyn Outlet, head: Vec<u8>, request: &mut Request) -> Result<(), BodyError> {
    if request.method == Method::Head || request.response.has_no_content() {
        outlet.begin(head);
        return Ok(outlet.end(&[]).await?);
    }
    let is_stream = matches!(request.response.body, Body::Source(_));
    if request.response.is_changed() || request.response.is_filtered() && !is_stream {
        return output::send(outlet, head, request).await;
    }
    match std::mem::take(&mut request.response.body) {
        Body::None => outlet.begin(head),
        Body::Bytes(source) => {
            outlet.begin(head);
            outlet.push(source);
        }
        Body::Slice(source, range) => {
            outlet.begin(head);
            outlet.push_range(source, range.start, range.end);
        }
        Body::File(mut file) => {
            if !outlet.accepts_files() || !request.conn.thread.capacity.may_send_pages() {
                file.mover = file.mover.reading();
                request.mover = Some(file.mover);
            }
            body::send(outlet, head, &mut file).await?;
        }
        Body::Ranged(body) => return streaming::send(outlet, head, &mut *body.into_source(), request).await,
        Body::Source(mut stream) => return streaming::send(outlet, head, &mut *stream, request).await,
        Body::Tunnel(_) => unreachable!("the pump passes the connection to another protocol"),
    }
    Ok(outlet.end(&[]).await?)
}

/// Logs why a response was not sent completely.
pub fn log_failure(request: &Request, error: &BodyError) {
    let mut path = Vec::new();
    files::path_of(request, &request.uri, &mut path);
    let path = files::display(&path);
    let doing = "while sending response to client";
    match error {
        BodyError::Send(SendError::TimedOut) => {
            let why = Reason(Errno::TIMEDOUT);
            request.log(Level::Info, format_args!("client timed out ({why}) {doing}"));
        }
        BodyError::Send(SendError::Closed(errno)) => {
            request.log(Level::Info, format_args!("send() failed ({}) {doing}", Reason(*errno)));
        }
        BodyError::Send(SendError::Reclaimed) => {
            request.log(Level::Info, format_args!("connection was closed to make room for another {doing}"));
        }
        BodyError::Send(SendError::CutOff) => {
            request.log(Level::Info, format_args!("worker_shutdown_timeout has passed {doing}"));
        }
        BodyError::Read(errno) => {
            let why = Reason(*errno);
            request.log(Level::Crit, format_args!("read of \"{path}\" failed ({why}) {doing}"));
        }
        BodyError::Shrunk { at } => {
            let what =
                format_args!("\"{path}\" ends at byte {at}, it was longer when it was opened, {doing}");
            request.log(Level::Alert, what);
        }
        // Already logged with the reason by the code that failed, or by the proxying module.
        BodyError::Filter | BodyError::Broken | BodyError::Reset(_) => {}
        BodyError::NoMemory => {
            let what = format_args!("no buffer for \"{path}\": the pool of this thread is at its limit");
            request.log(Level::Alert, what);
        }
    }
}
