//! The times at which waits of a request ended, for operators that watch requests, and for traces.
//!
//! The cached clock of a thread advances only when it waits, so only the ends of waits have distinct times. They are
//! recorded while requests are watched, and for requests that are timed; a request that never waits has none.

use std::time::Instant;

use crate::phases::Phase;
use crate::request::Request;

/// The times at which the waits of a request ended.
#[derive(Clone, Copy, Debug, Default)]
pub struct Marks {
    /// Arrival of the last byte of the header section; `None` if it arrived in one piece.
    pub received: Option<Instant>,
    /// End of the wait of a handler before the content phase.
    pub found: Option<Instant>,
    /// End of the wait of the content handler for a file, a cache, an upstream.
    pub opened: Option<Instant>,
}

/// Records that a header section that arrived in pieces is complete.
pub fn note_received(request: &mut Request) {
    if request.conn.thread.shared.watch.is_watched() {
        request.extensions.get_or_default::<Marks>().received = Some(rt::now());
    }
}

/// Records that a handler has waited.
pub fn note_waited(request: &mut Request, phase: Phase) {
    if request.is_timed || request.conn.thread.shared.watch.is_watched() {
        let marks = request.extensions.get_or_default::<Marks>();
        match phase {
            Phase::Content => marks.opened = Some(rt::now()),
            _ => marks.found = Some(rt::now()),
        }
    }
}
