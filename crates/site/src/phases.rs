//! The handlers of the modules by phase, and the filters of a response. Generic over the [`Subject`], which has the phases.
//!
//! The handlers and filters of each location are listed when the configuration is read, so a request calls only modules
//! that its location uses.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use crate::ids::LocationId;

/// What the modules handle in phases: a request of HTTP, or a connection of another protocol.
pub trait Subject: 'static {
    /// A phase. As a number, its position in the order of the phases.
    type Phase: Copy + Into<usize>;
    /// The decision of a handler.
    type Step;
}

/// Maximum number of phases of a protocol.
const PHASES_MAX: usize = 7;

/// The future step of a handler that waits.
pub type Later<'a, S> = Pin<Box<dyn Future<Output = S> + 'a>>;

/// A handler of one phase in one location, bound to the settings of that location.
pub trait Handler<R: Subject>: Send + Sync {
    /// Runs without waiting. Returns `None`, without side effects, if it has to wait.
    fn now(&self, request: &mut R) -> Option<R::Step>;

    /// Runs if [`Handler::now`] returned `None`.
    fn later<'a>(&'a self, request: &'a mut R) -> Later<'a, R::Step>;
}

/// A handler that never waits.
struct Now<C, R: Subject> {
    conf: Arc<C>,
    run: fn(&C, &mut R) -> R::Step,
}

impl<C: Send + Sync, R: Subject> Handler<R> for Now<C, R> {
    fn now(&self, request: &mut R) -> Option<R::Step> {
        Some((self.run)(&self.conf, request))
    }

    fn later<'a>(&'a self, request: &'a mut R) -> Later<'a, R::Step> {
        Box::pin(async { (self.run)(&self.conf, request) })
    }
}

/// A handler that may wait, which costs an allocation.
struct NowOrLater<C, R: Subject> {
    conf: Arc<C>,
    now: fn(&C, &mut R) -> Option<R::Step>,
    later: for<'a> fn(&'a C, &'a mut R) -> Later<'a, R::Step>,
}

impl<C: Send + Sync, R: Subject> Handler<R> for NowOrLater<C, R> {
    fn now(&self, request: &mut R) -> Option<R::Step> {
        (self.now)(&self.conf, request)
    }

    fn later<'a>(&'a self, request: &'a mut R) -> Later<'a, R::Step> {
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
pub struct Plan<R: Subject> {
    phases: [Vec<Planned<R>>; PHASES_MAX],
    filters: Vec<Filter<R>>,
    loggers: Vec<Logger<R>>,
    /// The module that adds to the plan, while the plan is made.
    module: u16,
    /// The name of that module with the wrapper of its handlers, if its steps are traced.
    traced: Option<(&'static str, Wrap<R>)>,
}

/// Returns a handler of this phase that traces the steps of another one. The name is the module's.
pub type Wrap<R> = fn(Box<dyn Handler<R>>, <R as Subject>::Phase, &'static str) -> Box<dyn Handler<R>>;

impl<R: Subject> Default for Plan<R> {
    fn default() -> Self {
        Plan { phases: Default::default(), filters: Vec::new(), loggers: Vec::new(), module: 0, traced: None }
    }
}

/// A handler of a plan.
struct Planned<R: Subject> {
    handler: Box<dyn Handler<R>>,
    /// Index of its module in the table of modules, which is the same for the plans of all locations.
    module: u16,
}

/// The position of a request in a phase: the index of a handler, with the location whose plan the index is for.
///
/// Two plans have different handlers: that of an `if` block has no script, for example. So an index that is used with
/// another plan skips or repeats handlers. No code outside this type can get the index, and every change of the location
/// within a phase passes [`PhasePosition::in_location`].
#[derive(Clone, Copy, Debug)]
pub struct PhasePosition<P> {
    location: LocationId,
    phase: P,
    index: u16,
}

impl<P: Copy> PhasePosition<P> {
    /// Returns the first handler of a phase in a location.
    pub fn start(location: LocationId, phase: P) -> PhasePosition<P> {
        PhasePosition { location, phase, index: 0 }
    }

    /// Returns the phase.
    pub fn phase(self) -> P {
        self.phase
    }

    /// Returns the handler in the plan of its location; `None` at the end of the phase.
    pub fn handler<R: Subject<Phase = P>>(self, plans: &[Plan<R>]) -> Option<&dyn Handler<R>> {
        debug_assert!((self.location.0 as usize) < plans.len(), "each location has a plan");
        let planned = plans[self.location.0 as usize].of_phase(self.phase).get(usize::from(self.index))?;
        Some(&*planned.handler)
    }

    /// Returns the next handler in the same location.
    pub fn next(self) -> PhasePosition<P> {
        PhasePosition { index: self.index.saturating_add(1), ..self }
    }

    /// Returns the handler before this one in the same location.
    pub fn previous(self) -> PhasePosition<P> {
        PhasePosition { index: self.index.saturating_sub(1), ..self }
    }

    /// Whether the end of the phase has been handled too.
    pub fn is_behind_end<R: Subject<Phase = P>>(self, plans: &[Plan<R>]) -> bool {
        usize::from(self.index) > plans[self.location.0 as usize].of_phase(self.phase).len()
    }

    /// Returns the position for the location that the request is in now.
    pub fn in_location<R: Subject<Phase = P>>(
        self,
        plans: &[Plan<R>],
        location: LocationId,
    ) -> PhasePosition<P> {
        match self.location == location {
            true => self,
            false => self.carried(plans, location),
        }
    }

    /// Returns the position in another location: after the module whose handler ran last.
    #[cold]
    fn carried<R: Subject<Phase = P>>(self, plans: &[Plan<R>], location: LocationId) -> PhasePosition<P> {
        let start = PhasePosition::start(location, self.phase);
        // A request begins without a valid location.
        debug_assert!((location.0 as usize) < plans.len(), "each location has a plan");
        let Some(last) = self.index.checked_sub(1) else { return start };
        let others = plans[location.0 as usize].of_phase(self.phase);
        let from = plans[self.location.0 as usize].of_phase(self.phase);
        let index = match from.get(usize::from(last)) {
            Some(last) => others.partition_point(|other| other.module <= last.module),
            None => others.len() + 1,
        };
        PhasePosition { index: index as u16, ..start }
    }
}

impl<R: Subject> Plan<R> {
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
    fn add(&mut self, phase: R::Phase, handler: Box<dyn Handler<R>>) {
        let (handlers, module) = (&mut self.phases[phase.into()], self.module);
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
    pub fn now<C>(&mut self, phase: R::Phase, conf: Arc<C>, run: fn(&C, &mut R) -> R::Step)
    where
        C: Send + Sync + 'static,
    {
        self.add(phase, Box::new(Now { conf, run }));
    }

    /// Adds a handler that waits if `now` returns `None` without side effects.
    pub fn now_or_later<C>(
        &mut self,
        phase: R::Phase,
        conf: Arc<C>,
        now: fn(&C, &mut R) -> Option<R::Step>,
        later: for<'a> fn(&'a C, &'a mut R) -> Later<'a, R::Step>,
    ) where
        C: Send + Sync + 'static,
    {
        self.add(phase, Box::new(NowOrLater { conf, now, later }));
    }

    /// Adds a handler that always waits.
    pub fn later<C>(
        &mut self,
        phase: R::Phase,
        conf: Arc<C>,
        later: for<'a> fn(&'a C, &'a mut R) -> Later<'a, R::Step>,
    ) where
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
    pub fn count(&self, phase: R::Phase) -> usize {
        self.of_phase(phase).len()
    }

    fn of_phase(&self, phase: R::Phase) -> &[Planned<R>] {
        &self.phases[phase.into()]
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

impl<R: Subject> std::fmt::Debug for Plan<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.phases.iter().map(Vec::len)).finish()
    }
}
