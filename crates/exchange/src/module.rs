//! A module of nginx as data: its declaration for the configuration, and its functions for requests.
//!
//! [`Module`] is one module. [`ModuleTable`] contains all of them. The modules themselves are in crates above this one,
//! and no code here refers to one by name.

use std::any::Any;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

use crate::phases::Step;
use crate::request::{Request, ThreadConfig};
use crate::session::Session;
use crate::thread::Thread;
use crate::trace;
use site::config::{Config, Http, HttpType, Location, Scope, Section};
use site::declaration::{Declaration, Declarations};
use site::extensions::Extensions;
use site::variables::Compute;
use site::{phases, variables};

/// The modules that take part in the requests of one location.
pub type Plan = phases::Plan<Request>;
/// A module's variable.
pub type Variable = variables::Variable<Request>;
/// A module's family of variables.
pub type Prefixed = variables::Prefixed<Request>;
/// How the values of the configuration's variables are computed.
pub type Computations = variables::Computations<Request>;
/// The modules that take part in the sessions of one server of `stream`.
pub type SessionPlan = phases::Plan<Session>;
/// A module's variable in `stream`.
pub type SessionVariable = variables::Variable<Session>;
/// A module's family of variables in `stream`.
pub type SessionPrefixed = variables::Prefixed<Session>;
/// How the values of the variables of `stream` are computed.
pub type SessionComputations = variables::Computations<Session>;

/// Sets the computation of a slot's value, in the block that is read: in `http` for requests, in `stream` for sessions.
pub fn compute<T>(http: &mut Http, slot: u32, compute: T)
where
    T: Compute<Request> + Compute<Session> + 'static,
{
    match http.section {
        Section::Http => variables::compute::<Request>(http, slot, Arc::new(compute)),
        Section::Stream => variables::compute::<Session>(http, slot, Arc::new(compute)),
    }
}

/// All modules of the server.
pub struct ModuleTable {
    modules: Vec<&'static Module>,
    declarations: Declarations,
    variables: variables::Functions<Request>,
    session_variables: variables::Functions<Session>,
    subrequest_hooks: Vec<SubrequestHooks>,
}

impl ModuleTable {
    /// Prepares groups of modules. Their order is the order of the handlers in a phase, and of the filters.
    pub fn new(groups: &[&[&'static Module]]) -> ModuleTable {
        let modules = groups.concat();
        let single = modules.iter().flat_map(|module| module.variables).collect();
        let families = modules.iter().flat_map(|module| module.prefixed).collect();
        let variables = variables::Functions { single, families };
        let single = modules.iter().flat_map(|module| module.session.variables).collect();
        let families = modules.iter().flat_map(|module| module.session.prefixed).collect();
        let session_variables = variables::Functions { single, families };
        let declared = modules.iter().map(|module| &module.declares).collect();
        let computed = [HttpType::of::<Computations>(), HttpType::of::<SessionComputations>()];
        let names = [variables.names(), session_variables.names()];
        let hooks = modules.iter().map(|module| module.subrequest);
        let is_any =
            |hooks: &SubrequestHooks| hooks.begin.is_some() || hooks.detach.is_some() || hooks.end.is_some();
        ModuleTable {
            declarations: Declarations::new(declared, names, computed),
            variables,
            session_variables,
            subrequest_hooks: hooks.filter(is_any).collect(),
            modules,
        }
    }

    /// Returns the modules, in order.
    pub fn modules(&self) -> &[&'static Module] {
        &self.modules
    }

    /// Returns the declarations of the modules for the configuration.
    pub fn declarations(&self) -> &Declarations {
        &self.declarations
    }

    /// Returns the functions of the modules' variables.
    pub fn variables(&self) -> &variables::Functions<Request> {
        &self.variables
    }

    /// Returns the functions of the modules' variables in `stream`.
    pub fn session_variables(&self) -> &variables::Functions<Session> {
        &self.session_variables
    }

    /// Returns the plans of the servers of `stream`, by their [`site::config::LocationId`].
    pub fn session_plans(&self, config: &Config) -> Arc<[SessionPlan]> {
        let plan = |location: &Location| {
            let mut plan = SessionPlan::default();
            for (index, module) in (0..).zip(&self.modules) {
                plan.begin(index, None);
                (module.session.add_to_plan)(config, &location.scope, &mut plan);
            }
            plan
        };
        config.stream.locations.iter().map(plan).collect()
    }

    /// Returns the hooks that modules run at the start and at the end of subrequests, in order.
    pub fn subrequest_hooks(&self) -> &[SubrequestHooks] {
        &self.subrequest_hooks
    }

    /// Returns the plans of all locations, by [`site::config::LocationId`]. They are made once for a configuration, so
    /// that requests need not query the modules.
    pub fn plans(&self, config: &Config) -> Arc<[Plan]> {
        let plan = |location: &Location| match config.server(location.server).position {
            Some(_) => self.plan(&config.http, &location.scope),
            // No address leads to the server.
            None => Plan::default(),
        };
        config.http.locations.iter().map(plan).collect()
    }

    /// Returns the plan of a location with these settings.
    pub fn plan(&self, http: &Http, scope: &Scope) -> Plan {
        let mut plan = Plan::default();
        for (index, module) in (0..).zip(&self.modules) {
            plan.begin(index, http.traces.then_some((module.declares.name, trace::traced)));
            (module.add_to_plan)(http, scope, &mut plan);
        }
        if http.traces {
            plan.enclose(trace::response, trace::end);
        }
        plan
    }
}

/// One module.
pub struct Module {
    /// Its declaration for the configuration.
    pub declares: Declaration,
    /// Its variables.
    pub variables: &'static [Variable],
    /// Its families of variables, such as `http_`.
    pub prefixed: &'static [Prefixed],
    /// Adds its handlers and filters to the plan of a location with these settings. Called after the complete
    /// configuration was read.
    pub add_to_plan: fn(&Http, &Scope, &mut Plan),
    /// Its part in sessions of `stream`.
    pub session: SessionHooks,
    /// Its hooks at the start and at the end of a subrequest.
    pub subrequest: SubrequestHooks,
    /// Called in a rehearsal before each of its handlers. Returns the step instead of the handler's, if the handler would have an
    /// effect outside of the request, and notes this effect; `None` if the handler can run.
    pub rehearse: fn(&mut Request) -> Option<Step>,
    /// Its state and hooks on each thread.
    pub thread: ThreadHooks,
    /// Returns the URL of the upstream that a request is passed to, for the error log.
    pub upstream_url: fn(&Request) -> Option<Vec<u8>>,
}

impl Module {
    /// Returns a module that declares this and does nothing, to be completed by struct update.
    pub const fn of(declares: Declaration) -> Module {
        Module {
            declares,
            variables: &[],
            prefixed: &[],
            add_to_plan: |_, _, _| {},
            session: SessionHooks::NONE,
            subrequest: SubrequestHooks::NONE,
            rehearse: |_| None,
            thread: ThreadHooks::NONE,
            upstream_url: |_| None,
        }
    }
}

/// The part of a module in sessions of `stream`.
#[derive(Clone, Copy)]
pub struct SessionHooks {
    /// Its variables.
    pub variables: &'static [SessionVariable],
    /// Its families of variables.
    pub prefixed: &'static [SessionPrefixed],
    /// Adds its handlers to the plan of a server with these settings. Called after the complete configuration was read.
    pub add_to_plan: fn(&Config, &Scope, &mut SessionPlan),
}

impl SessionHooks {
    /// The hooks of a module that takes no part in sessions.
    pub const NONE: SessionHooks = SessionHooks { variables: &[], prefixed: &[], add_to_plan: |_, _, _| {} };
}

/// Hooks of a module at the start of a subrequest, which copy values from the parent's extensions, and at its end.
#[derive(Clone, Copy, Debug, Default)]
pub struct SubrequestHooks {
    /// Called with the parent and the new subrequest before its phases.
    pub begin: Option<fn(&Request, &mut Request)>,
    /// Called with the parent and a new request that shares no state with it; for a background subrequest after `begin`.
    pub detach: Option<fn(&Request, &mut Request)>,
    /// Called at the end of a subrequest whose response was used, or that ran in the background.
    pub end: Option<fn(&Request)>,
}

impl SubrequestHooks {
    /// The hooks of a module that does nothing with subrequests.
    pub const NONE: SubrequestHooks = SubrequestHooks { begin: None, detach: None, end: None };
}

/// The function of [`ThreadHooks::process`].
pub type ProcessHook = fn(&Rc<Thread>, &Rc<dyn Fn()>) -> Option<Box<dyn Any>>;

/// The last work of a module on a thread.
pub type LastWork = Pin<Box<dyn Future<Output = ()>>>;

/// State and hooks of a module on each thread.
#[derive(Clone, Copy)]
pub struct ThreadHooks {
    /// Creates the module's state on a thread.
    pub make: fn(&mut Extensions),
    /// Called when a configuration takes effect, with the previous configuration unless the thread just starts.
    pub configured: fn(&Rc<Thread>, Option<&ThreadConfig>),
    /// Called when the thread stops accepting connections.
    pub drain: fn(&Thread),
    /// Returns the work after the last request of the thread, such as sending data that waits. The module limits its time.
    pub flush: fn(&Rc<Thread>) -> Option<LastWork>,
    /// Closes an idle connection; returns whether there was one.
    pub close_idle: fn(&Thread) -> bool,
    /// Begins the work of the process under a new configuration, such as health checks. Called on the first thread only. The work
    /// ends when the result is dropped. It calls the function when state has changed that the next process should have.
    pub process: ProcessHook,
}

impl ThreadHooks {
    /// The hooks of a module without state on threads.
    pub const NONE: ThreadHooks = ThreadHooks {
        make: |_| {},
        configured: |_, _| {},
        drain: |_| {},
        flush: |_| None,
        close_idle: |_| false,
        process: |_, _| None,
    };
}
