//! A rehearsal: a request that passes its real course, so that `ringroad explain` can show what happened.
//!
//! Handlers run as for a request of a client, with the exception of those with effects outside of the request. These belong to
//! modules with [`Module::rehearse`](crate::module::Module::rehearse), which notes the action instead. No log line is written and
//! nothing waits: delays end immediately. The plans of a rehearsal contain the wrappers of `trace`. `rehearse` runs the request.

use std::cell::RefCell;

use conf::Span;

use crate::phases::Phase;
use site::ids::LocationId;
use telemetry::Level;

/// Maximum number of notes; a longer course is cut. A request has at most ten internal redirects, and few steps between them.
const NOTES_MAX: usize = 2000;

/// One event of the course.
#[derive(Clone, Debug)]
pub struct Note {
    /// Nesting depth of the subrequest; 0 for the request itself.
    pub depth: u8,
    /// The location of the request at this time.
    pub location: LocationId,
    /// The event.
    pub event: Event,
}

/// The kinds of events.
#[derive(Clone, Debug)]
pub enum Event {
    /// The search has found the location of this URI, or the request continues in a named location.
    Entered {
        /// The decoded path.
        uri: Vec<u8>,
    },
    /// The module of this name has ended the request or its phase.
    Decided {
        /// The phase.
        phase: Phase,
        /// The name of the module.
        module: &'static str,
        /// The status, if the step has one.
        status: Option<u16>,
        /// Whether the access phase allows the request.
        allows: bool,
    },
    /// An instruction of the rewrite module at this position, with its effect.
    Instruction {
        /// The position of the directive.
        at: Span,
        /// The effect in words.
        effect: String,
    },
    /// A module has noted something, under this label.
    Said {
        /// A word for the beginning of the line.
        label: &'static str,
        /// The text.
        text: String,
    },
    /// The request would be passed to an upstream.
    Passed(Passed),
    /// A line of the error log.
    Logged(Level, String),
}

/// A request to an upstream, which is not made.
#[derive(Clone, Debug, Default)]
pub struct Passed {
    /// The prefix of the directives, such as `proxy`.
    pub prefix: &'static str,
    /// The URL, or the reason why there is none.
    pub url: String,
    /// The zone and the key of the cache, if one is used.
    pub cache: Option<(String, Vec<u8>)>,
    /// Whether the cache stores responses to this method.
    pub is_cached_method: bool,
}

/// The notes of a rehearsal, which a request and its subrequests share.
#[derive(Debug, Default)]
pub struct Rehearsal(RefCell<Vec<Note>>);

impl Rehearsal {
    /// Returns the text of the last line of the error log.
    pub fn last_logged(&self) -> Option<String> {
        let notes = self.0.borrow();
        notes.iter().rev().find_map(|note| match &note.event {
            Event::Logged(_, text) => Some(text.clone()),
            _ => None,
        })
    }

    /// Returns the notes so far.
    pub fn take(&self) -> Vec<Note> {
        self.0.take()
    }

    /// Adds a note.
    pub(crate) fn push(&self, note: Note) {
        let mut notes = self.0.borrow_mut();
        if notes.len() < NOTES_MAX {
            notes.push(note);
        }
    }
}
