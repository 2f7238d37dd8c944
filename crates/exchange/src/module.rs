//! A module of nginx as data: its declaration for the configuration, and its functions for requests.
//!
//! [`Module`] is one module. [`ModuleTable`] contains all of them. The modules themselves are in crates above this one,
//! and no code here refers to one by name.

use std::rc::Rc;
use std::sync::Arc;

use crate::request::{Request, ThreadConfig};
use crate::thread::Thread;
use crate::trace;
use site::config::{Config, Http, HttpType, Location, Scope};
use site::declaration::{Declaration, Declarations};
use site::extensions::Extensions;
use site::{phases, variables};

/// The modules that take part in the requests of one location.
pub type Plan = phases::Plan<Request>;
/// A module's variable.
pub type Variable = variables::Variable<Request>;
/// A module's family of variables.
pub type Prefixed = variables::Prefixed<Request>;
/// How the values of the configuration's variables are computed.
pub type Computations = variables::Computations<Request>;

/// All modules of the server.
pub struct ModuleTable {
    modules: Vec<&'static Module>,
    declarations: Declarations,
    variables: variables::Functions<Request>,
    subrequest_hooks: Vec<SubrequestHooks>,
}

impl ModuleTable {
    /// Prepares groups of modules. Their order is the order of the handlers in a phase, and of the filters.
    pub fn new(groups: &[&[&'static Module]]) -> ModuleTable {
        let modules = groups.concat();
        let single = modules.iter().flat_map(|module| module.variables).collect();
        let families = modules.iter().flat_map(|module| module.prefixed).collect();
        let variables = variables::Functions { single, families };
        let declared = modules.iter().map(|module| &module.declares).collect();
        let computed = HttpType::of::<Computations>();
        let hooks = modules.iter().map(|module| module.subrequest);
        ModuleTable {
            declarations: Declarations::new(declared, variables.names(), computed),
            variables,
            subrequest_hooks: hooks.filter(|hooks| hooks.begin.is_some() || hooks.detach.is_some()).collect(),
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

    /// Returns the hooks that modules run at the start of subrequests, in order.
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
    /// Its hooks at the start of a subrequest.
    pub subrequest: SubrequestHooks,
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
            subrequest: SubrequestHooks { begin: None, detach: None },
            thread: ThreadHooks::NONE,
            upstream_url: |_| None,
        }
    }
}

/// Hooks of a module at the start of a subrequest: they copy values from the parent's extensions.
#[derive(Clone, Copy, Debug, Default)]
pub struct SubrequestHooks {
    /// Called with the parent and the new subrequest before its phases.
    pub begin: Option<fn(&Request, &mut Request)>,
    /// Called with the parent and a new request that shares no state with it; for a background subrequest after `begin`.
    pub detach: Option<fn(&Request, &mut Request)>,
}

/// State and hooks of a module on each thread.
#[derive(Clone, Copy)]
pub struct ThreadHooks {
    /// Creates the module's state on a thread.
    pub make: fn(&mut Extensions),
    /// Called when a configuration takes effect, with the previous configuration unless the thread just starts.
    pub configured: fn(&Rc<Thread>, Option<&ThreadConfig>),
    /// Called when the thread stops accepting connections.
    pub drain: fn(&Thread),
    /// Closes an idle connection; returns whether there was one.
    pub close_idle: fn(&Thread) -> bool,
}

impl ThreadHooks {
    /// The hooks of a module without state on threads.
    pub const NONE: ThreadHooks =
        ThreadHooks { make: |_| {}, configured: |_, _| {}, drain: |_| {}, close_idle: |_| false };
}
