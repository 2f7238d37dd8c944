//! Requests that the server makes of itself while it answers one: for `auth_request`, `mirror`, `ssi`,
//! `addition`.
//!
//! As in nginx a subrequest has the client's head, a URI of its own, and shares the variables of the
//! configuration with the request that made it. It passes the phases from the server's rewrites on, but is not
//! asked for access, and ends with an answer that whoever made it may use or throw away.

use std::pin::Pin;

use crate::connection::decide;
use crate::log::Level;
use crate::request::Request;

/// What is asked of the server itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Subrequest {
    /// The path, decoded.
    pub(crate) uri: Vec<u8>,
    /// The query without question mark.
    pub(crate) args: Vec<u8>,
    /// Whether the filter that asks wants to see the answer instead of having it in the body.
    pub(crate) capture: bool,
    /// What takes the place of an answer that is empty or an error.
    pub(crate) stub: Option<Vec<u8>>,
}

/// Subrequests inside of each other; more are a loop (nginx's limit).
const DEPTH_MAX: u8 = 50;

/// Carries out a subrequest up to its answer, which is in the result and not sent. `None` when it would be one
/// too deep. [`finish`] is to be called with the result, which has the variables meanwhile.
pub(crate) async fn answer(parent: &mut Request, wanted: &Subrequest) -> Option<Box<Request>> {
    let mut child = start(parent, wanted)?;
    carry_out(&mut child).await;
    Some(child)
}

/// A subrequest that has everything it needs to go on alone, such as a mirror's, with a copy of the variables.
pub(crate) fn detached(parent: &mut Request, wanted: &Subrequest) -> Option<Box<Request>> {
    let child = start(parent, wanted)?;
    parent.copy_variables(&child);
    Some(child)
}

/// Runs a subrequest to its answer. Boxed, because the phases of a request may run those of another.
pub(crate) fn carry_out(child: &mut Request) -> Pin<Box<dyn Future<Output = ()> + '_>> {
    Box::pin(async {
        decide::run_subrequest(child).await;
    })
}

/// Gives the variables back to the request that made this one, and writes the log.
pub(crate) fn finish(parent: &mut Request, mut child: Box<Request>) {
    if child.scope().core.log_subrequest {
        crate::log::access::write(&child);
    }
    parent.swap_variables(&mut child);
}

fn start(parent: &mut Request, wanted: &Subrequest) -> Option<Box<Request>> {
    if parent.depth >= DEPTH_MAX {
        let uri = wanted.uri.escape_ascii();
        parent.log(Level::Error, format_args!("subrequests cycle while processing \"{uri}\""));
        return None;
    }
    let mut child = Box::new(parent.child()?);
    child.uri.clone_from(&wanted.uri);
    child.args.clone_from(&wanted.args);
    parent.swap_variables(&mut child);
    Some(child)
}
