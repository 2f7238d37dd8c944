//! A module of nginx as data: directives, variables, handlers and a filter.
//!
//! [`Module`] is one of them. [`ModuleTable`] is all of them, prepared for the reading of a configuration. The modules
//! themselves are in the crates above, and nothing here knows one by name.

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

/// Own directives carry this instead of a module of nginx.
pub const OWN: &str = "ringroad";

/// The reason why sizes of hash tables have no effect.
pub const NO_HASH: &str = "tables grow by themselves";

/// `http` and `server`.
pub const SERVER_LEVELS: Contexts = Contexts::HTTP.or(Contexts::SERVER);
/// These and `location`.
pub const LEVELS: Contexts = SERVER_LEVELS.or(Contexts::LOCATION);
/// These and `if` in a location.
pub const LEVELS_AND_IF: Contexts = LEVELS.or(Contexts::LOCATION_IF);

/// All modules of the server.
pub struct ModuleTable {
    modules: Vec<&'static Module>,
    /// Those of all modules, with their whole names.
    directives: Vec<&'static Directive>,
    specs: Table,
    /// The directives by the address of their `Spec`.
    by_spec: HashMap<usize, &'static Directive>,
    variables: Arc<ModuleVariables>,
    settings: SettingsTable,
}

impl ModuleTable {
    /// Prepares groups of modules, in the order of the handlers inside a phase and then of the filters.
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

    /// The modules, in order.
    pub fn modules(&self) -> &[&'static Module] {
        &self.modules
    }

    /// The directives of all modules, in order.
    pub fn directives(&self) -> &[&'static Directive] {
        &self.directives
    }

    /// Names and arguments of the directives of all modules.
    pub fn specs(&self) -> &Table {
        &self.specs
    }

    /// The variables of all modules.
    pub fn variables(&self) -> &Arc<ModuleVariables> {
        &self.variables
    }

    /// The settings of all modules.
    pub fn settings(&self) -> &SettingsTable {
        &self.settings
    }

    /// The values of all modules for the whole of `http`, as they start.
    pub fn http_values(&self) -> HttpValues {
        HttpValues::new(self.modules.iter().flat_map(|module| module.http).copied())
    }

    /// Hooks of modules at the start of subrequests, in order.
    pub fn subrequest_hooks(&self) -> Vec<SubrequestHooks> {
        let hooks = self.modules.iter().map(|module| module.subrequest);
        hooks.filter(|hooks| hooks.begin.is_some() || hooks.detach.is_some()).collect()
    }

    /// The directive that an entry of [`ModuleTable::specs`] belongs to. Entries are identified by their address,
    /// because names may occur several times, and a large configuration looks up thousands of statements.
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
    /// nginx's name of it, without `ngx_` and `_module`.
    pub name: &'static str,
    /// The prefix of directives whose table lists them from the underscore on, as several modules have them: `proxy`
    /// for `_connect_timeout`.
    pub prefix: &'static str,
    /// Its directives, in tables.
    pub directives: &'static [&'static [Directive]],
    /// Its variables.
    pub variables: &'static [Variable],
    /// Its families of variables, such as `http_`.
    pub prefixed: &'static [Prefixed],
    /// The types of its settings.
    pub settings: &'static [SettingsType],
    /// The types of its values for the whole of `http`.
    pub http: &'static [HttpType],
    /// Puts its handlers and its filter on the plan of a location with these settings. Called when the whole
    /// configuration has been read.
    pub take_part: fn(&Http, &Scope, &mut Plan),
    /// Its hooks for blocks when the configuration is read.
    pub blocks: BlockHooks,
    /// Checks the whole configuration when it has been read.
    pub check: fn(&Http, &mut Vec<Error>) -> Result<(), Error>,
    /// Its hooks at the start of a subrequest.
    pub subrequest: SubrequestHooks,
    /// Its state and hooks on each thread.
    pub thread: ThreadHooks,
    /// The URL of the server that a request is passed on to, for the error log.
    pub upstream_url: fn(&Request) -> Option<Vec<u8>>,
}

/// Hooks of a module at the start of a subrequest: they copy values from the parent's extensions.
#[derive(Clone, Copy, Debug, Default)]
pub struct SubrequestHooks {
    /// Called with the parent and the new subrequest before its phases.
    pub begin: Option<fn(&Request, &mut Request)>,
    /// The same for a request that shares nothing with its parent.
    pub detach: Option<fn(&Request, &mut Request)>,
}

/// State and hooks of a module on each thread.
#[derive(Clone, Copy)]
pub struct ThreadHooks {
    /// Makes the module's state there.
    pub make: fn(&mut Extensions),
    /// A configuration is in force, in the place of this one where the thread does not just begin.
    pub configured: fn(&Rc<Thread>, Option<&Generation>),
    /// The thread accepts no more.
    pub drain: fn(&Thread),
    /// Closes an idle connection; returns whether there was one.
    pub give_up_idle: fn(&Thread) -> bool,
}

impl ThreadHooks {
    /// Those of a module that keeps nothing.
    pub const NONE: ThreadHooks =
        ThreadHooks { make: |_| {}, configured: |_, _| {}, drain: |_| {}, give_up_idle: |_| false };
}

/// Hooks of a module for blocks when the configuration is read.
#[derive(Clone, Copy)]
pub struct BlockHooks {
    /// Called at the end of a block, when its own directives have been read and the blocks in it have not.
    pub end: fn(&mut Http, &mut Scope, &BlockEnd<'_>) -> Result<(), Error>,
    /// Called when the `if` blocks in it have been read too.
    pub complete: fn(&mut Scope, &BlockEnd<'_>),
    /// The module's part in `if` blocks.
    pub conditions: Option<ConditionHooks>,
    /// The module's part in `upstream` blocks.
    pub upstream: Option<UpstreamHooks>,
    /// Reports the needs of a block to the process.
    pub needs: fn(&Http, &Scope, &mut Needs),
}

/// The module of the directive `if`.
#[derive(Clone, Copy)]
pub struct ConditionHooks {
    /// Reads the condition in its place among the directives of the block around it.
    pub read: fn(&mut Scope, &mut Cx<'_>) -> Result<(), Error>,
    /// Joins the first `if` at or behind an index with its block, which may be a separate location, and returns the
    /// index behind it.
    pub join: fn(&mut Scope, usize, &mut Scope, Option<LocationId>) -> usize,
}

/// The module of the directive `upstream`. The block has settings like others and inherits none.
#[derive(Clone, Copy)]
pub struct UpstreamHooks {
    /// Begins a block.
    pub begin: fn(&mut Scope, &Cx<'_>) -> Result<(), Error>,
    /// Ends it.
    pub end: fn(&mut Scope, &Statement, &mut Http) -> Result<(), Error>,
}

impl BlockHooks {
    /// Those of a module that does nothing with blocks.
    pub const NONE: BlockHooks = BlockHooks {
        end: |_, _, _| Ok(()),
        complete: |_, _| {},
        conditions: None,
        upstream: None,
        needs: |_, _, _| {},
    };
}

impl Module {
    /// A module with this name and nothing else, to be completed by struct update.
    pub const fn named(name: &'static str) -> Module {
        Module {
            name,
            prefix: "",
            directives: &[],
            variables: &[],
            prefixed: &[],
            settings: &[],
            http: &[],
            take_part: |_, _, _| {},
            blocks: BlockHooks::NONE,
            check: |_, _| Ok(()),
            subrequest: SubrequestHooks { begin: None, detach: None },
            thread: ThreadHooks::NONE,
            upstream_url: |_| None,
        }
    }

    /// Its directives with their whole names. Where it has a prefix they are made, for as long as the process lives.
    fn directives(&self) -> impl Iterator<Item = &'static Directive> {
        self.directives.iter().copied().flatten().map(|directive| match self.prefix {
            "" => directive,
            _ => &*Box::leak(Box::new(Directive { spec: self.completed(&directive.spec), ..*directive })),
        })
    }

    /// The row of a directive that several modules have, as it is for this one.
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
    /// Name, contexts, arguments, default, help.
    pub spec: Spec,
    /// Its setter.
    pub set: Set,
}

impl Directive {
    /// Changes process-wide settings.
    pub const fn main(spec: Spec, set: fn(&mut MainConf, &mut Cx<'_>) -> Result<(), Error>) -> Directive {
        Directive { spec, set: Set::Main(set) }
    }

    /// Changes the event loop.
    pub const fn events(spec: Spec, set: fn(&mut EventsConf, &mut Cx<'_>) -> Result<(), Error>) -> Directive {
        Directive { spec, set: Set::Events(set) }
    }

    /// Changes settings that blocks inherit.
    pub const fn scope(spec: Spec, set: fn(&mut Scope, &mut Cx<'_>) -> Result<(), Error>) -> Directive {
        Directive { spec, set: Set::Scope(set) }
    }

    /// Changes a server.
    pub const fn server(
        spec: Spec,
        set: fn(&mut ServerDraft, &mut Cx<'_>) -> Result<(), Error>,
    ) -> Directive {
        Directive { spec, set: Set::Server(set) }
    }

    /// Changes the whole of `http`.
    pub const fn http(spec: Spec, set: fn(&mut Cx<'_>) -> Result<(), Error>) -> Directive {
        Directive { spec, set: Set::Http(set) }
    }

    /// Is accepted and does nothing, for this reason.
    pub const fn nothing(spec: Spec, why: &'static str) -> Directive {
        Directive { spec: spec.state(State::Accepted(why)), set: Set::Nothing }
    }

    /// Holds directives.
    pub const fn walk(spec: Spec, walk: Walk) -> Directive {
        Directive { spec, set: Set::Walk(walk) }
    }
}

/// The setting that a directive changes.
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
    /// Settings of the whole of `http`, reached through the context.
    Http(fn(&mut Cx<'_>) -> Result<(), Error>),
    /// Nothing: the directive tunes a feature that this server lacks. Its help mentions it.
    Nothing,
    /// A block with directives, which the resolver walks into.
    Walk(Walk),
}

/// The blocks that hold directives.
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
