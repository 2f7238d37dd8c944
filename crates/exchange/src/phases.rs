//! The phases of a request with their handlers, and the filters of a response.
//!
//! The order is nginx's. The handlers and filters of each location are listed when the configuration is read, so a
//! request calls only modules that its location uses.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use crate::config::{Http, LocationId, Scope};
use crate::module::ModuleTable;
use crate::request::Request;

/// The phase in which a handler runs. The search for the location and the check for a changed URI happen between phases
/// and belong to no module.
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

const PHASES: usize = Phase::Content as usize + 1;

/// The future step of a handler that waits.
pub type Later<'a> = Pin<Box<dyn Future<Output = Step> + 'a>>;

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
    /// Restart with another URI; the new one is in the request.
    Internal,
    /// Continue in a named location.
    Named(LocationId),
}

/// A handler of one phase in one location, bound to the settings of that location.
pub trait Handler: Send + Sync {
    /// Runs without waiting. Returns `None`, without side effects, if it has to wait.
    fn now(&self, request: &mut Request) -> Option<Step>;

    /// Runs if [`Handler::now`] returned `None`.
    fn later<'a>(&'a self, request: &'a mut Request) -> Later<'a>;
}

/// A handler that never waits.
struct Now<C> {
    conf: Arc<C>,
    run: fn(&C, &mut Request) -> Step,
}

impl<C: Send + Sync> Handler for Now<C> {
    fn now(&self, request: &mut Request) -> Option<Step> {
        Some((self.run)(&self.conf, request))
    }

    fn later<'a>(&'a self, request: &'a mut Request) -> Later<'a> {
        Box::pin(async { (self.run)(&self.conf, request) })
    }
}

/// A handler that may wait, which costs an allocation.
struct NowOrLater<C> {
    conf: Arc<C>,
    now: fn(&C, &mut Request) -> Option<Step>,
    later: for<'a> fn(&'a C, &'a mut Request) -> Later<'a>,
}

impl<C: Send + Sync> Handler for NowOrLater<C> {
    fn now(&self, request: &mut Request) -> Option<Step> {
        (self.now)(&self.conf, request)
    }

    fn later<'a>(&'a self, request: &'a mut Request) -> Later<'a> {
        (self.later)(&self.conf, request)
    }
}

/// A module's change to the header section of a response. To change the body too, it adds a
/// [`crate::filter::BodyFilter`] to the response.
pub type Filter = Box<dyn Fn(&mut Request) + Send + Sync>;

/// A module's hook at the end of a request.
pub type Logger = Box<dyn Fn(&Request) + Send + Sync>;

/// The modules that take part in the requests of one location, each bound to its settings: handlers by phase, filters,
/// and loggers for the end of a request.
#[derive(Default)]
pub struct Plan {
    phases: [Vec<Box<dyn Handler>>; PHASES],
    filters: Vec<Filter>,
    loggers: Vec<Logger>,
}

impl Plan {
    /// Returns the plan of a location with these settings.
    pub fn of(modules: &ModuleTable, http: &Http, scope: &Scope) -> Plan {
        let mut plan = Plan::default();
        for module in modules.modules() {
            (module.add_to_plan)(http, scope, &mut plan);
        }
        plan
    }

    /// Adds a handler that never waits.
    pub fn now<C>(&mut self, phase: Phase, conf: Arc<C>, run: fn(&C, &mut Request) -> Step)
    where
        C: Send + Sync + 'static,
    {
        self.phases[phase as usize].push(Box::new(Now { conf, run }));
    }

    /// Adds a handler that waits if `now` returns `None` without side effects.
    pub fn now_or_later<C>(
        &mut self,
        phase: Phase,
        conf: Arc<C>,
        now: fn(&C, &mut Request) -> Option<Step>,
        later: for<'a> fn(&'a C, &'a mut Request) -> Later<'a>,
    ) where
        C: Send + Sync + 'static,
    {
        self.phases[phase as usize].push(Box::new(NowOrLater { conf, now, later }));
    }

    /// Adds a handler that always waits.
    pub fn later<C>(
        &mut self,
        phase: Phase,
        conf: Arc<C>,
        later: for<'a> fn(&'a C, &'a mut Request) -> Later<'a>,
    ) where
        C: Send + Sync + 'static,
    {
        self.now_or_later(phase, conf, |_, _| None, later);
    }

    /// Adds a header filter for responses.
    pub fn filter<C>(&mut self, conf: Arc<C>, run: fn(&C, &mut Request))
    where
        C: Send + Sync + 'static,
    {
        self.filters.push(Box::new(move |request| run(&conf, request)));
    }

    /// Adds a logger, which runs at the end of a request.
    pub fn log<C>(&mut self, conf: Arc<C>, run: fn(&C, &Request))
    where
        C: Send + Sync + 'static,
    {
        self.loggers.push(Box::new(move |request| run(&conf, request)));
    }

    /// Returns the handlers of one phase, in order.
    pub fn of_phase(&self, phase: Phase) -> &[Box<dyn Handler>] {
        &self.phases[phase as usize]
    }

    /// Returns the header filters of a response, in order.
    pub fn filters(&self) -> &[Filter] {
        &self.filters
    }

    /// Notifies the modules of the end of a request.
    pub fn end(&self, request: &Request) {
        for logger in &self.loggers {
            logger(request);
        }
    }
}

impl std::fmt::Debug for Plan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.phases.iter().map(Vec::len)).finish()
    }
}
