//! The phases of a request with their handlers, and the filters of a response. Generic over the request.
//!
//! The order is nginx's. The handlers and filters of each location are listed when the configuration is read, so a
//! request calls only modules that its location uses.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use crate::ids::LocationId;

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
    /// As [`Step::StreamBody`], for a handler that writes the body to a file.
    StoreBody,
    /// Restart with another URI; the new one is in the request.
    Internal,
    /// Continue in a named location.
    Named(LocationId),
}

/// A handler of one phase in one location, bound to the settings of that location.
pub trait Handler<R>: Send + Sync {
    /// Runs without waiting. Returns `None`, without side effects, if it has to wait.
    fn now(&self, request: &mut R) -> Option<Step>;

    /// Runs if [`Handler::now`] returned `None`.
    fn later<'a>(&'a self, request: &'a mut R) -> Later<'a>;
}

/// A handler that never waits.
struct Now<C, R> {
    conf: Arc<C>,
    run: fn(&C, &mut R) -> Step,
}

impl<C: Send + Sync, R> Handler<R> for Now<C, R> {
    fn now(&self, request: &mut R) -> Option<Step> {
        Some((self.run)(&self.conf, request))
    }

    fn later<'a>(&'a self, request: &'a mut R) -> Later<'a> {
        Box::pin(async { (self.run)(&self.conf, request) })
    }
}

/// A handler that may wait, which costs an allocation.
struct NowOrLater<C, R> {
    conf: Arc<C>,
    now: fn(&C, &mut R) -> Option<Step>,
    later: for<'a> fn(&'a C, &'a mut R) -> Later<'a>,
}

impl<C: Send + Sync, R> Handler<R> for NowOrLater<C, R> {
    fn now(&self, request: &mut R) -> Option<Step> {
        (self.now)(&self.conf, request)
    }

    fn later<'a>(&'a self, request: &'a mut R) -> Later<'a> {
        (self.later)(&self.conf, request)
    }
}

/// A module's change to the header section of a response. To change the body too, it adds a
/// `exchange::filter::BodyFilter` to the response.
pub type Filter<R> = Box<dyn Fn(&mut R) + Send + Sync>;

/// A module's hook at the end of a request.
pub type Logger<R> = Box<dyn Fn(&R) + Send + Sync>;

/// The modules that take part in the requests of one location, each bound to its settings: handlers by phase, filters,
/// and loggers for the end of a request.
pub struct Plan<R> {
    phases: [Vec<Planned<R>>; PHASES],
    filters: Vec<Filter<R>>,
    loggers: Vec<Logger<R>>,
    /// The module that adds to the plan, while the plan is made.
    module: u16,
    /// The name of that module with the wrapper of its handlers, if its steps are traced.
    traced: Option<(&'static str, Wrap<R>)>,
}

/// Returns a handler of this phase that traces the steps of another one. The name is the module's.
pub type Wrap<R> = fn(Box<dyn Handler<R>>, Phase, &'static str) -> Box<dyn Handler<R>>;

impl<R> Default for Plan<R> {
    fn default() -> Self {
        Plan { phases: Default::default(), filters: Vec::new(), loggers: Vec::new(), module: 0, traced: None }
    }
}

/// A handler of a plan.
struct Planned<R> {
    handler: Box<dyn Handler<R>>,
    /// Index of its module in the table of modules, which is the same for the plans of all locations.
    module: u16,
}

/// The position of a request in a phase: the index of a handler, with the location whose plan the index is for.
///
/// Two plans have different handlers: that of an `if` block has no script, for example. So an index that is used with
/// another plan skips or repeats handlers. No code outside this type can get the index, and every change of the location
/// within a phase passes [`Place::in_location`].
#[derive(Clone, Copy, Debug)]
pub struct Place {
    location: LocationId,
    phase: Phase,
    index: u16,
}

impl Place {
    /// Returns the first handler of a phase in a location.
    pub fn start(location: LocationId, phase: Phase) -> Place {
        Place { location, phase, index: 0 }
    }

    /// Returns the phase.
    pub fn phase(self) -> Phase {
        self.phase
    }

    /// Returns the handler in the plan of its location; `None` at the end of the phase.
    pub fn handler<R: 'static>(self, plans: &[Plan<R>]) -> Option<&dyn Handler<R>> {
        let planned = plans[self.location.0 as usize].of_phase(self.phase).get(usize::from(self.index))?;
        Some(&*planned.handler)
    }

    /// Returns the next handler in the same location.
    pub fn next(self) -> Place {
        Place { index: self.index.saturating_add(1), ..self }
    }

    /// Returns the handler before this one in the same location.
    pub fn previous(self) -> Place {
        Place { index: self.index.saturating_sub(1), ..self }
    }

    /// Whether the end of the phase has been handled too.
    pub fn is_behind_end<R: 'static>(self, plans: &[Plan<R>]) -> bool {
        usize::from(self.index) > plans[self.location.0 as usize].of_phase(self.phase).len()
    }

    /// Returns the position for the location that the request is in now.
    pub fn in_location<R: 'static>(self, plans: &[Plan<R>], location: LocationId) -> Place {
        match self.location == location {
            true => self,
            false => self.carried(plans, location),
        }
    }

    /// Returns the position in another location: after the module whose handler ran last.
    #[cold]
    fn carried<R: 'static>(self, plans: &[Plan<R>], location: LocationId) -> Place {
        let start = Place::start(location, self.phase);
        // A request begins without a valid location.
        let Some(last) = self.index.checked_sub(1) else { return start };
        let others = plans[location.0 as usize].of_phase(self.phase);
        let from = plans[self.location.0 as usize].of_phase(self.phase);
        let index = match from.get(usize::from(last)) {
            Some(last) => others.partition_point(|other| other.module <= last.module),
            None => others.len() + 1,
        };
        Place { index: index as u16, ..start }
    }
}

impl<R: 'static> Plan<R> {
    /// Begins the part of a module, whose handlers are wrapped if its steps are traced.
    pub fn begin(&mut self, module: u16, traced: Option<(&'static str, Wrap<R>)>) {
        (self.module, self.traced) = (module, traced);
    }

    /// Adds a filter after, and a logger before, those of all modules.
    pub fn enclose(&mut self, filter: fn(&mut R), logger: fn(&R)) {
        self.filters.push(Box::new(filter));
        self.loggers.insert(0, Box::new(logger));
    }

    /// Adds a handler.
    fn add(&mut self, phase: Phase, handler: Box<dyn Handler<R>>) {
        let (handlers, module) = (&mut self.phases[phase as usize], self.module);
        // A position in another plan would be ambiguous.
        debug_assert!(
            handlers.last().is_none_or(|last| last.module < module),
            "a module has one handler in a phase"
        );
        let handler = match self.traced {
            Some((name, wrap)) => wrap(handler, phase, name),
            None => handler,
        };
        handlers.push(Planned { handler, module });
    }

    /// Adds a handler that never waits.
    pub fn now<C>(&mut self, phase: Phase, conf: Arc<C>, run: fn(&C, &mut R) -> Step)
    where
        C: Send + Sync + 'static,
    {
        self.add(phase, Box::new(Now { conf, run }));
    }

    /// Adds a handler that waits if `now` returns `None` without side effects.
    pub fn now_or_later<C>(
        &mut self,
        phase: Phase,
        conf: Arc<C>,
        now: fn(&C, &mut R) -> Option<Step>,
        later: for<'a> fn(&'a C, &'a mut R) -> Later<'a>,
    ) where
        C: Send + Sync + 'static,
    {
        self.add(phase, Box::new(NowOrLater { conf, now, later }));
    }

    /// Adds a handler that always waits.
    pub fn later<C>(&mut self, phase: Phase, conf: Arc<C>, later: for<'a> fn(&'a C, &'a mut R) -> Later<'a>)
    where
        C: Send + Sync + 'static,
    {
        self.now_or_later(phase, conf, |_, _| None, later);
    }

    /// Adds a header filter for responses.
    pub fn filter<C>(&mut self, conf: Arc<C>, run: fn(&C, &mut R))
    where
        C: Send + Sync + 'static,
    {
        self.filters.push(Box::new(move |request| run(&conf, request)));
    }

    /// Adds a logger, which runs at the end of a request.
    pub fn log<C>(&mut self, conf: Arc<C>, run: fn(&C, &R))
    where
        C: Send + Sync + 'static,
    {
        self.loggers.push(Box::new(move |request| run(&conf, request)));
    }

    /// Returns the number of handlers of one phase.
    pub fn count(&self, phase: Phase) -> usize {
        self.of_phase(phase).len()
    }

    fn of_phase(&self, phase: Phase) -> &[Planned<R>] {
        &self.phases[phase as usize]
    }

    /// Returns the header filters of a response, in order.
    pub fn filters(&self) -> &[Filter<R>] {
        &self.filters
    }

    /// Notifies the modules of the end of a request.
    pub fn end(&self, request: &R) {
        for logger in &self.loggers {
            logger(request);
        }
    }
}

impl<R> std::fmt::Debug for Plan<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.phases.iter().map(Vec::len)).finish()
    }
}
