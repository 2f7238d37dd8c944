//! The phases of a request and who takes part in them, and the filters that an answer passes.
//!
//! The order is nginx's. Each location has its handlers and filters listed when the configuration is read, so
//! a request never asks a module that has nothing to do there.

use std::future::Future;
use std::pin::Pin;

use crate::config::{LocationId, Scope};
use crate::module::ModuleTable;
use crate::request::Request;

/// Where in the life of a request a handler runs. Finding the location, and looking whether the URI was
/// changed, happen between these and belong to no module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Right after the head was read.
    PostRead,
    /// Rewriting at server level.
    ServerRewrite,
    /// Rewriting in the location.
    Rewrite,
    /// Limits.
    Preaccess,
    /// May the client have it? `satisfy` says how the answers combine.
    Access,
    /// Last checks before the content.
    Precontent,
    /// The response is made; the first handler that makes one is the last to run.
    Content,
}

const PHASES: usize = Phase::Content as usize + 1;

/// What a handler decided.
#[derive(Debug)]
pub enum Step {
    /// Nothing: the next one goes on.
    Next,
    /// In the access phase: allowed, as far as this module is asked.
    Allow,
    /// The response is in the request.
    Done,
    /// Answer with this status and the page that is configured for it.
    Status(u16),
    /// Close the connection without an answer (nginx's 444).
    Drop,
    /// The client went away while it was waited for: as [`Step::Drop`], with nginx's 499 in the log.
    Gone,
    /// Read the request's body, then call this handler again. In a subrequest there is nothing to read, and the
    /// handler is called again at once.
    ReadBody,
    /// As [`Step::ReadBody`], for a handler that can do with pieces: where no temporary file takes what memory does not, the
    /// body comes as with [`Step::StreamBody`].
    BufferBody,
    /// Have the request's body read while this handler, which is called again, takes it piece by piece. Not in a
    /// subrequest, and not when the body was read already.
    StreamBody,
    /// Start over with another URI; the new one is in the request.
    Internal,
    /// Go on in a named location.
    Named(LocationId),
}

/// One module's part in one phase.
pub struct Handler {
    /// When.
    pub phase: Phase,
    /// Whether it has anything to do in a location with these settings.
    pub active: fn(&Scope) -> bool,
    /// What it does.
    pub run: Run,
}

/// How a handler runs.
#[derive(Clone, Copy)]
pub enum Run {
    /// At once.
    Now(fn(&mut Request) -> Step),
    /// With waiting; costs an allocation.
    Later(Later),
    /// With waiting, where the first function says so; saves the allocation elsewhere.
    LaterIf(fn(&Request) -> bool, Later),
    /// At once where the first function can; where it cannot, and says nothing, with waiting.
    NowOrLater(fn(&mut Request) -> Option<Step>, Later),
}

/// A handler that may wait.
pub type Later = for<'a> fn(&'a mut Request) -> Pin<Box<dyn Future<Output = Step> + 'a>>;

/// One module's change to the head of an answer. Where the body is to change too, it puts a
/// [`crate::body::filter::BodyFilter`] into the response.
pub struct Filter {
    /// Whether it has anything to do in a location with these settings.
    pub active: fn(&Scope) -> bool,
    /// What it does.
    pub run: fn(&mut Request),
}

/// The handlers of one location by phase, and its filters.
#[derive(Clone, Default)]
pub struct Handlers {
    phases: [Vec<Run>; PHASES],
    filters: Vec<fn(&mut Request)>,
}

impl Handlers {
    /// Those of the modules that have something to do under these settings.
    pub(crate) fn of(modules: &ModuleTable, scope: &Scope) -> Handlers {
        let mut handlers = Handlers::default();
        for handler in modules.modules().iter().flat_map(|module| module.handlers) {
            if (handler.active)(scope) {
                handlers.phases[handler.phase as usize].push(handler.run);
            }
        }
        let filters = modules.modules().iter().filter_map(|module| module.filter.as_ref());
        handlers.filters = filters.filter(|filter| (filter.active)(scope)).map(|filter| filter.run).collect();
        handlers
    }

    /// Those of one phase, in order.
    pub(crate) fn of_phase(&self, phase: Phase) -> &[Run] {
        &self.phases[phase as usize]
    }

    /// What changes an answer, in order.
    pub(crate) fn filters(&self) -> &[fn(&mut Request)] {
        &self.filters
    }
}

impl std::fmt::Debug for Handlers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.phases.iter().map(Vec::len)).finish()
    }
}
