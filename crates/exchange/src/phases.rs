//! The phases of a request, and the decisions of their handlers.

use site::ids::LocationId;

/// The phase in which a handler runs, in nginx's order. The search for the location and the check for a changed URI
/// happen between phases and belong to no module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Right after the header section was read.
    PostRead,
    /// Rewriting at server level.
    ServerRewrite,
    /// Rewriting in the location.
    Rewrite,
    /// Limits.
    Preaccess,
    /// Access checks; `satisfy` defines how their results combine.
    Access,
    /// Last checks before the content.
    Precontent,
    /// The response is produced; the first handler that produces one ends the phase.
    Content,
}

impl From<Phase> for usize {
    fn from(phase: Phase) -> usize {
        phase as usize
    }
}

/// The future step of a handler that waits.
pub type Later<'a> = site::phases::Later<'a, Step>;

/// The decision of a handler.
#[derive(Debug)]
pub enum Step {
    /// No decision: the next handler continues.
    Next,
    /// In the access phase: this module allows the request.
    Allow,
    /// The response is complete, and stored in the request.
    Done,
    /// Respond with this status and its configured page.
    Status(u16),
    /// Close the connection without a response (nginx's 444).
    Drop,
    /// The client closed its connection during a wait: as [`Step::Drop`], with nginx's 499 in the log.
    ClientClosed,
    /// Read the request's body, then call this handler again. In a subrequest nothing is read, and the handler is
    /// called again immediately.
    ReadBody,
    /// As [`Step::ReadBody`], for a handler that also accepts pieces. If the body exceeds the memory and no temporary
    /// file can be used, the body arrives as with [`Step::StreamBody`].
    BufferBody,
    /// Call this handler again, and read the request's body while the handler consumes it piece by piece. Not in a
    /// subrequest, and not if the body was read already.
    StreamBody,
    /// As [`Step::StreamBody`], for a handler that writes the body to a file.
    StoreBody,
    /// Restart with another URI; the new one is in the request.
    Internal,
    /// Continue in a named location.
    Named(LocationId),
}
