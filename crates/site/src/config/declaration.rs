//! The declaration of a module for the configuration, as data: directives, settings, and hooks at the end of a block.
//!
//! [`Declarations`] contains the declarations of all modules, prepared for reading a configuration. The functions of
//! modules for requests are in `exchange::module`.

use std::collections::HashMap;
use std::sync::Arc;

use conf::{Args, Block, Contexts, Error, Spec, Statement, Support, Table};

use crate::config::{
    BlockEnd, Cx, Http, HttpType, HttpValues, LocationId, Requirements, Scope, Section, SettingsTable,
    SettingsType,
};
use crate::registry::VariableNames;
use crate::settings::events::EventsConf;
use crate::settings::listen::ServerDraft;
use crate::settings::main::MainConf;

/// The module name of directives that nginx does not have.
pub const OWN: &str = "ringroad";

/// The reason why directives for hash table sizes have no effect.
pub const NO_HASH: &str = "tables grow by themselves";

/// `stream` and its `server`.
pub const STREAM_LEVELS: Contexts = Contexts::STREAM.or(Contexts::STREAM_SERVER);
/// `http` and `server`.
pub const SERVER_LEVELS: Contexts = Contexts::HTTP.or(Contexts::SERVER);
/// `http`, `server` and `location`.
pub const LEVELS: Contexts = SERVER_LEVELS.or(Contexts::LOCATION);
/// `http`, `server`, `location`, and `if` in a location.
pub const LEVELS_AND_IF: Contexts = LEVELS.or(Contexts::LOCATION_IF);

/// The declarations of all modules of the server.
pub struct Declarations {
    modules: Vec<&'static Declaration>,
    /// The directives of all modules, with their complete names.
    directives: Vec<&'static Directive>,
    specs: Table,
    /// The directives, by the address of their `Spec`.
    by_spec: HashMap<usize, &'static Directive>,
    variables: Arc<VariableNames>,
    /// Those of sessions.
    session_variables: Arc<VariableNames>,
    settings: SettingsTable,
    http: Vec<HttpType>,
}

impl Declarations {
    /// Prepares the declarations of modules, whose variables have these names, in `http` and in `stream`. `computed` are the
    /// types that collect how the configuration's variables are computed.
    pub fn new(
        modules: Vec<&'static Declaration>,
        [variables, session_variables]: [VariableNames; 2],
        computed: [HttpType; 2],
    ) -> Declarations {
        let directives: Vec<_> = modules.iter().flat_map(|module| module.directives()).collect();
        let by_spec = |directive: &&'static Directive| (address(&directive.spec), *directive);
        let http = modules.iter().flat_map(|module| module.http).copied();
        Declarations {
            specs: directives.iter().map(|directive| &directive.spec).collect(),
            by_spec: directives.iter().map(by_spec).collect(),
            directives,
            variables: Arc::new(variables),
            session_variables: Arc::new(session_variables),
            settings: SettingsTable::new(modules.iter().flat_map(|module| module.settings).copied()),
            http: http.chain(computed).collect(),
            modules,
        }
    }

    /// Returns the declarations of the modules, in order.
    pub fn modules(&self) -> &[&'static Declaration] {
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

    /// Returns the names of the variables of all modules in a block.
    pub fn variables(&self, section: Section) -> &Arc<VariableNames> {
        match section {
            Section::Http => &self.variables,
            Section::Stream => &self.session_variables,
        }
    }

    /// Returns the types of settings of all modules.
    pub fn settings(&self) -> &SettingsTable {
        &self.settings
    }

    /// Returns the initial values that all modules have for all of `http`.
    pub fn http_values(&self) -> HttpValues {
        HttpValues::new(self.http.iter().copied())
    }

    /// Returns the directive of an entry of [`Declarations::specs`]. Entries are identified by their address, because
    /// names may occur several times, and a large configuration looks up thousands of statements.
    pub fn directive(&self, spec: &'static Spec) -> &'static Directive {
        self.by_spec.get(&address(spec)).expect("the entries are made of the modules' directives")
    }
}

impl std::fmt::Debug for Declarations {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.modules.iter().map(|module| module.name)).finish()
    }
}

fn address(spec: &'static Spec) -> usize {
    std::ptr::from_ref(spec).addr()
}

/// The declaration of one module.
#[derive(Clone, Copy)]
pub struct Declaration {
    /// nginx's name of the module, without `ngx_` and `_module`.
    pub name: &'static str,
    /// The prefix of directives in shared tables, which list names from the underscore on: `proxy` for
    /// `_connect_timeout`.
    pub prefix: &'static str,
    /// Its directives, in tables.
    pub directives: &'static [&'static [Directive]],
    /// For a module of `stream` that has the directives of a module of `http`: the tables are those of `http`, except these
    /// directives. Rows of the module itself are unchanged.
    pub twin: Option<&'static [&'static str]>,
    /// The types of its settings.
    pub settings: &'static [SettingsType],
    /// The types of its values for all of `http`.
    pub http: &'static [HttpType],
    /// The block whose hooks these are. The hooks of a module run only for this block.
    pub section: Section,
    /// Its hooks for blocks while the configuration is read.
    pub blocks: BlockHooks,
    /// Completes settings of servers that depend on the other servers of their addresses, after all blocks were read.
    pub addresses: fn(&mut Http) -> Result<(), Error>,
    /// Checks the complete configuration after it was read.
    pub check: fn(&Http, &mut Vec<Error>) -> Result<(), Error>,
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
    pub requires: fn(&Http, &Scope, &mut Requirements),
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
        requires: |_, _, _| {},
    };
}

impl Declaration {
    /// Returns the declaration of a module with this name and nothing else, to be completed by struct update.
    pub const fn named(name: &'static str) -> Declaration {
        Declaration {
            name,
            prefix: "",
            directives: &[],
            twin: None,
            settings: &[],
            http: &[],
            section: Section::Http,
            blocks: BlockHooks::NONE,
            addresses: |_| Ok(()),
            check: |_, _| Ok(()),
        }
    }

    /// Returns its directives with their complete names. Rows of a module with a prefix, and of a twin, are created and
    /// leaked, once per process.
    fn directives(&self) -> impl Iterator<Item = &'static Directive> {
        self.directives.iter().copied().flatten().filter_map(|directive| match (self.prefix, self.twin) {
            ("", None) => Some(directive),
            _ => {
                let spec = self.completed(&directive.spec);
                let is_own = directive.spec.module == self.name;
                let is_left_out = !is_own && self.twin.is_some_and(|without| without.contains(&spec.name));
                (!is_left_out).then(|| &*Box::leak(Box::new(Directive { spec, ..*directive })))
            }
        })
    }

    /// Returns the row of a shared directive with this module's prefix, and in the contexts of this module's block.
    fn completed(&self, spec: &Spec) -> Spec {
        let whole = |text: &'static str| match text.starts_with('_') {
            true => &*format!("{}{text}", self.prefix).leak(),
            false => text,
        };
        let spec = Spec {
            name: whole(spec.name),
            module: if spec.module.is_empty() { self.name } else { spec.module },
            default: spec.default.map(whole),
            ..spec.clone()
        };
        match self.twin {
            Some(_) => {
                let block = match spec.block {
                    Block::Statements(inside) => Block::Statements(of_stream(inside)),
                    block => block,
                };
                Spec { module: self.name, contexts: of_stream(spec.contexts), block, ..spec }
            }
            None => spec,
        }
    }
}

/// Returns the contexts of `stream` that correspond to contexts of `http`.
fn of_stream(contexts: Contexts) -> Contexts {
    const PAIRS: [(Contexts, Contexts); 3] = [
        (Contexts::HTTP, Contexts::STREAM),
        (Contexts::SERVER, Contexts::STREAM_SERVER),
        (Contexts::UPSTREAM, Contexts::STREAM_UPSTREAM),
    ];
    // A row of `stream` itself is unchanged.
    let own = contexts & (STREAM_LEVELS | Contexts::STREAM_UPSTREAM);
    let found = PAIRS.iter().filter(|(http, _)| contexts.intersects(*http));
    found.fold(own, |all, (_, stream)| all | *stream)
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
        let is_flag = matches!(spec.args, Args::Flag);
        Directive { spec: spec.state(Support::Accepted(why)), set: Set::Nothing { is_flag } }
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
    Nothing {
        /// Whether the argument must be `on` or `off`.
        is_flag: bool,
    },
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
    /// `stream`
    Stream,
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
