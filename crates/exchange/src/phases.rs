//! The phases of a request with their handlers, and the filters of a response.
//!
//! The order is nginx's. Each location has its handlers and filters listed when the configuration is read, so a request
//! never calls a module that has no part in it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use crate::config::{Http, LocationId, Scope};
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
    /// May the client have it? `satisfy` defines how the responses combine.
    Access,
    /// Last checks before the content.
    Precontent,
    /// The response is made; the first handler that makes one is the last to run.
    Content,
}

const PHASES: usize = Phase::Content as usize + 1;

/// The step of a handler that waits.
pub type Later<'a> = Pin<Box<dyn Future<Output = Step> + 'a>>;

/// The decision of a handler.
#[derive(Debug)]
pub enum Step {
    /// Nothing: the next one continues.
    Next,
    /// In the access phase: allowed, as far as this module is concerned.
    Allow,
    /// The response is in the request.
    Done,
    /// Answer with this status and the page that is configured for it.
    Status(u16),
    /// Close the connection without a response (nginx's 444).
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

/// A handler of one phase in one location, bound to the settings that hold there.
pub trait Handler: Send + Sync {
    /// Runs at once. `None` if it has to wait and has done nothing.
    fn now(&self, request: &mut Request) -> Option<Step>;

    /// Runs where [`Handler::now`] could not.
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

/// One module's change to the header section of a response. Where the body is to change too, it puts a
/// [`crate::filter::BodyFilter`] into the response.
pub type Filter = Box<dyn Fn(&mut Request) + Send + Sync>;

/// A module's hook at the end of a request.
pub type Logger = Box<dyn Fn(&Request) + Send + Sync>;

/// Which modules take part in the requests of one location, each bound to its settings: handlers by phase, filters, and
/// what runs when a request is over.
#[derive(Default)]
pub struct Plan {
    phases: [Vec<Box<dyn Handler>>; PHASES],
    filters: Vec<Filter>,
    loggers: Vec<Logger>,
}

impl Plan {
    /// The plan of a location with these settings.
    pub fn of(modules: &ModuleTable, http: &Http, scope: &Scope) -> Plan {
        let mut plan = Plan::default();
        for module in modules.modules() {
            (module.take_part)(http, scope, &mut plan);
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

    /// Adds a handler that waits if `now` returns nothing, having done nothing.
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

    /// Adds a change to the head of responses.
    pub fn filter<C>(&mut self, conf: Arc<C>, run: fn(&C, &mut Request))
    where
        C: Send + Sync + 'static,
    {
        self.filters.push(Box::new(move |request| run(&conf, request)));
    }

    /// Adds what runs when a request is over.
    pub fn log<C>(&mut self, conf: Arc<C>, run: fn(&C, &Request))
    where
        C: Send + Sync + 'static,
    {
        self.loggers.push(Box::new(move |request| run(&conf, request)));
    }

    /// The handlers of one phase, in order.
    pub fn of_phase(&self, phase: Phase) -> &[Box<dyn Handler>] {
        &self.phases[phase as usize]
    }

    /// The header filters of a response, in order.
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
