//! A module of nginx as data: directives, variables, handlers and a filter.
//!
//! [`Module`] is one module. [`ModuleTable`] contains all of them, prepared for reading a configuration. The modules
//! themselves are in crates above this one, and no code here refers to one by name.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use conf::{Contexts, Error, Spec, State, Statement, Table};

use crate::config::{
    BlockEnd, Cx, Http, HttpType, HttpValues, LocationId, Needs, Scope, SettingsTable, SettingsType,
};
use crate::extensions::Extensions;
use crate::phases::Plan;
use crate::request::{Generation, Request};
use crate::settings::events::EventsConf;
use crate::settings::listen::ServerDraft;
use crate::settings::main::MainConf;
use crate::thread::Thread;
use crate::variables::{ModuleVariables, Prefixed, Variable};

/// The module name of directives that nginx does not have.
pub const OWN: &str = "ringroad";

/// The reason why directives for hash table sizes have no effect.
pub const NO_HASH: &str = "tables grow by themselves";

/// `http` and `server`.
pub const SERVER_LEVELS: Contexts = Contexts::HTTP.or(Contexts::SERVER);
/// `http`, `server` and `location`.
pub const LEVELS: Contexts = SERVER_LEVELS.or(Contexts::LOCATION);
/// `http`, `server`, `location`, and `if` in a location.
pub const LEVELS_AND_IF: Contexts = LEVELS.or(Contexts::LOCATION_IF);

/// All modules of the server.
pub struct ModuleTable {
    modules: Vec<&'static Module>,
    /// The directives of all modules, with their complete names.
    directives: Vec<&'static Directive>,
    specs: Table,
    /// The directives, by the address of their `Spec`.
    by_spec: HashMap<usize, &'static Directive>,
    variables: Arc<ModuleVariables>,
    settings: SettingsTable,
}

impl ModuleTable {
    /// Prepares groups of modules. Their order is the order of the handlers in a phase, and of the filters.
    pub fn new(groups: &[&[&'static Module]]) -> ModuleTable {
        let modules = groups.concat();
        let directives: Vec<_> = modules.iter().flat_map(|module| module.directives()).collect();
        let by_spec = |directive: &&'static Directive| (address(&directive.spec), *directive);
        ModuleTable {
            specs: directives.iter().map(|directive| &directive.spec).collect(),
            by_spec: directives.iter().map(by_spec).collect(),
            directives,
            variables: Arc::new(ModuleVariables::new(
                modules.iter().flat_map(|module| module.variables),
                modules.iter().flat_map(|module| module.prefixed),
            )),
            settings: SettingsTable::new(modules.iter().flat_map(|module| module.settings).copied()),
            modules,
        }
    }

    /// Returns the modules, in order.
    pub fn modules(&self) -> &[&'static Module] {
        &self.modules
    }

    /// Returns the directives of all modules, in order.
    pub fn directives(&self) -> &[&'static Directive] {
        &self.directives
    }

    /// Returns the names and arguments of the directives of all modules.
    pub fn specs(&self) -> &Table {
        &self.specs
    }

    /// Returns the variables of all modules.
    pub fn variables(&self) -> &Arc<ModuleVariables> {
        &self.variables
    }

    /// Returns the types of settings of all modules.
    pub fn settings(&self) -> &SettingsTable {
        &self.settings
    }

    /// Returns the initial values that all modules have for all of `http`.
    pub fn http_values(&self) -> HttpValues {
        HttpValues::new(self.modules.iter().flat_map(|module| module.http).copied())
    }

    /// Returns the hooks that modules run at the start of subrequests, in order.
    pub fn subrequest_hooks(&self) -> Vec<SubrequestHooks> {
        let hooks = self.modules.iter().map(|module| module.subrequest);
        hooks.filter(|hooks| hooks.begin.is_some() || hooks.detach.is_some()).collect()
    }

    /// Returns the directive of an entry of [`ModuleTable::specs`]. Entries are identified by their address, because
    /// names may occur several times, and a large configuration looks up thousands of statements.
    pub fn directive(&self, spec: &'static Spec) -> &'static Directive {
        self.by_spec.get(&address(spec)).expect("the entries are made of the modules' directives")
    }
}

impl std::fmt::Debug for ModuleTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.modules.iter().map(|module| module.name)).finish()
    }
}

fn address(spec: &'static Spec) -> usize {
    std::ptr::from_ref(spec).addr()
}

/// One module.
pub struct Module {
    /// nginx's name of the module, without `ngx_` and `_module`.
    pub name: &'static str,
    /// The prefix of directives in shared tables, which list names from the underscore on: `proxy` for
    /// `_connect_timeout`.
    pub prefix: &'static str,
    /// Its directives, in tables.
    pub directives: &'static [&'static [Directive]],
    /// Its variables.
    pub variables: &'static [Variable],
    /// Its families of variables, such as `http_`.
    pub prefixed: &'static [Prefixed],
    /// The types of its settings.
    pub settings: &'static [SettingsType],
    /// The types of its values for all of `http`.
    pub http: &'static [HttpType],
    /// Adds its handlers and filters to the plan of a location with these settings. Called after the complete
    /// configuration was read.
    pub add_to_plan: fn(&Http, &Scope, &mut Plan),
    /// Its hooks for blocks while the configuration is read.
    pub blocks: BlockHooks,
    /// Completes settings of servers that depend on the other servers of their addresses, after all blocks were read.
    pub addresses: fn(&mut Http) -> Result<(), Error>,
    /// Checks the complete configuration after it was read.
    pub check: fn(&Http, &mut Vec<Error>) -> Result<(), Error>,
    /// Its hooks at the start of a subrequest.
    pub subrequest: SubrequestHooks,
    /// Its state and hooks on each thread.
    pub thread: ThreadHooks,
    /// Returns the URL of the upstream that a request is passed to, for the error log.
    pub upstream_url: fn(&Request) -> Option<Vec<u8>>,
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
    pub configured: fn(&Rc<Thread>, Option<&Generation>),
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

/// Hooks of a module for blocks when the configuration is read.
#[derive(Clone, Copy)]
pub struct BlockHooks {
    /// Called at the end of a block, after its simple directives and before its inner blocks are read.
    pub end: fn(&mut Http, &mut Scope, &BlockEnd<'_>) -> Result<(), Error>,
    /// Called after the `if` blocks inside the block were read.
    pub complete: fn(&mut Scope, &BlockEnd<'_>),
    /// The hooks of the module that implements `if` blocks.
    pub conditions: Option<ConditionHooks>,
    /// The hooks of the module that implements `upstream` blocks.
    pub upstream: Option<UpstreamHooks>,
    /// Adds the requirements of a block on the process.
    pub needs: fn(&Http, &Scope, &mut Needs),
}

/// Hooks of the module of the directive `if`.
#[derive(Clone, Copy)]
pub struct ConditionHooks {
    /// Parses the condition at its position among the directives of the enclosing block.
    pub read: fn(&mut Scope, &mut Cx<'_>) -> Result<(), Error>,
    /// Joins the first `if` at or after an index with its block, which may be a separate location. Returns the index
    /// after that `if`.
    pub join: fn(&mut Scope, usize, &mut Scope, Option<LocationId>) -> usize,
}

/// Hooks of the module of the directive `upstream`. The block has settings like other blocks, but inherits none.
#[derive(Clone, Copy)]
pub struct UpstreamHooks {
    /// Begins a block.
    pub begin: fn(&mut Scope, &Cx<'_>) -> Result<(), Error>,
    /// Ends a block.
    pub end: fn(&mut Scope, &Statement, &mut Http) -> Result<(), Error>,
}

impl BlockHooks {
    /// The hooks of a module that does nothing with blocks.
    pub const NONE: BlockHooks = BlockHooks {
        end: |_, _, _| Ok(()),
        complete: |_, _| {},
        conditions: None,
        upstream: None,
        needs: |_, _, _| {},
    };
}

impl Module {
    /// Returns a module with this name and nothing else, to be completed by struct update.
    pub const fn named(name: &'static str) -> Module {
        Module {
            name,
            prefix: "",
            directives: &[],
            variables: &[],
            prefixed: &[],
            settings: &[],
            http: &[],
            add_to_plan: |_, _, _| {},
            blocks: BlockHooks::NONE,
            addresses: |_| Ok(()),
            check: |_, _| Ok(()),
            subrequest: SubrequestHooks { begin: None, detach: None },
            thread: ThreadHooks::NONE,
            upstream_url: |_| None,
        }
    }

    /// Returns its directives with their complete names. Rows of a module with a prefix are created and leaked, once
    /// per process.
    fn directives(&self) -> impl Iterator<Item = &'static Directive> {
        self.directives.iter().copied().flatten().map(|directive| match self.prefix {
            "" => directive,
            _ => &*Box::leak(Box::new(Directive { spec: self.completed(&directive.spec), ..*directive })),
        })
    }

    /// Returns the row of a shared directive with this module's prefix.
    fn completed(&self, spec: &Spec) -> Spec {
        let whole = |text: &'static str| match text.starts_with('_') {
            true => &*format!("{}{text}", self.prefix).leak(),
            false => text,
        };
        Spec {
            name: whole(spec.name),
            module: if spec.module.is_empty() { self.name } else { spec.module },
            default: spec.default.map(whole),
            ..spec.clone()
        }
    }
}

/// A directive: its description and its setter.
pub struct Directive {
    /// Its name, contexts, arguments, default, help.
    pub spec: Spec,
    /// Its setter.
    pub set: Set,
}

impl Directive {
    /// Returns a directive that changes process-wide settings.
    pub const fn main(spec: Spec, set: fn(&mut MainConf, &mut Cx<'_>) -> Result<(), Error>) -> Directive {
        Directive { spec, set: Set::Main(set) }
    }

    /// Returns a directive that changes settings of the event loop.
    pub const fn events(spec: Spec, set: fn(&mut EventsConf, &mut Cx<'_>) -> Result<(), Error>) -> Directive {
        Directive { spec, set: Set::Events(set) }
    }

    /// Returns a directive that changes settings that blocks inherit.
    pub const fn scope(spec: Spec, set: fn(&mut Scope, &mut Cx<'_>) -> Result<(), Error>) -> Directive {
        Directive { spec, set: Set::Scope(set) }
    }

    /// Returns a directive that changes settings of a server.
    pub const fn server(
        spec: Spec,
        set: fn(&mut ServerDraft, &mut Cx<'_>) -> Result<(), Error>,
    ) -> Directive {
        Directive { spec, set: Set::Server(set) }
    }

    /// Returns a directive that changes settings of all of `http`.
    pub const fn http(spec: Spec, set: fn(&mut Cx<'_>) -> Result<(), Error>) -> Directive {
        Directive { spec, set: Set::Http(set) }
    }

    /// Returns a directive that is accepted without effect, for this reason.
    pub const fn nothing(spec: Spec, why: &'static str) -> Directive {
        Directive { spec: spec.state(State::Accepted(why)), set: Set::Nothing }
    }

    /// Returns a directive that is a block of directives.
    pub const fn walk(spec: Spec, walk: Walk) -> Directive {
        Directive { spec, set: Set::Walk(walk) }
    }
}

/// The settings that a directive changes, and its setter.
#[derive(Clone, Copy)]
pub enum Set {
    /// Process-wide settings.
    Main(fn(&mut MainConf, &mut Cx<'_>) -> Result<(), Error>),
    /// Settings of the event loop.
    Events(fn(&mut EventsConf, &mut Cx<'_>) -> Result<(), Error>),
    /// Settings that blocks inherit.
    Scope(fn(&mut Scope, &mut Cx<'_>) -> Result<(), Error>),
    /// Settings of a server alone.
    Server(fn(&mut ServerDraft, &mut Cx<'_>) -> Result<(), Error>),
    /// Settings of all of `http`, reached through the context.
    Http(fn(&mut Cx<'_>) -> Result<(), Error>),
    /// No settings: the directive tunes a feature that this server lacks, as its help states.
    Nothing,
    /// A block with directives, which the resolver reads.
    Walk(Walk),
}

/// The blocks with directives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Walk {
    /// `events`
    Events,
    /// `http`
    Http,
    /// `server`
    Server,
    /// `location`
    Location,
    /// `limit_except`
    LimitExcept,
    /// `if`
    If,
    /// `upstream`
    Upstream,
}
