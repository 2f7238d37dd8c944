//! When a request had waited, for operators that watch requests.
//!
//! The clock of a thread stands still between two waits, so that only the ends of waits are different times. They are noted
//! while requests are watched, and a request that waits for nothing notes none.

use std::time::Instant;

use crate::phases::Phase;
use crate::request::Request;

/// The ends of the waits of a request.
#[derive(Clone, Copy, Debug, Default)]
pub struct Marks {
    /// Its header section was here; nothing where that came at once.
    pub received: Option<Instant>,
    /// The handlers before that of the content had waited.
    pub found: Option<Instant>,
    /// The handler of the content had waited: for a file, a cache, an upstream.
    pub opened: Option<Instant>,
}

/// Notes that a header section that came in pieces is complete.
pub fn note_received(request: &mut Request) {
    if request.conn.thread.shared.watch.is_watched() {
        request.extensions.get_or_default::<Marks>().received = Some(rt::now());
    }
}

/// Notes that a handler has waited.
pub fn note_waited(request: &mut Request, phase: Phase) {
    if request.conn.thread.shared.watch.is_watched() {
        let marks = request.extensions.get_or_default::<Marks>();
        match phase {
            Phase::Content => marks.opened = Some(rt::now()),
            _ => marks.found = Some(rt::now()),
        }
    }
}
