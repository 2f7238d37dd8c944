//! From the tree of statements to the typed configuration.
//!
//! Each block is read in two passes, its simple directives and then the blocks inside of it, because nginx lets a
//! directive apply to blocks above it in the text. nginx reads once, though, and stops at the first error in the order
//! of the files: where a simple directive is wrong, the blocks above it are checked before it is reported.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use conf::{Contexts, Error, Loader, Source, Statement, Tree};

use crate::config::settings::Inner;
use crate::config::{
    BlockEnd, BlockKind, Config, Cx, Http, Loaded, Location, LocationId, Needs, Scope, Server, ServerId,
    Start,
};
use crate::module::{ModuleTable, Set, Walk};
use crate::phases::Plan;
use crate::settings::core::LimitExcept;
use crate::settings::events::EventsConf;
use crate::settings::listen;
use crate::settings::listen::ServerDraft;
use crate::settings::locations::{Locations, Name};
use crate::settings::main::MainConf;
use crate::variables::Registry;
use telemetry::Targets;

/// Reads and resolves a configuration of these modules. `prefix` is the base of relative paths.
pub fn load(
    modules: &'static ModuleTable,
    source: &Source,
    prefix: &Path,
    loader: &dyn Loader,
) -> Result<Loaded, Error> {
    let tree = conf::parse(source, loader)?;
    let mut resolver = Resolver {
        modules,
        tree: &tree,
        prefix,
        conf_prefix: &source.prefix,
        loader,
        main: MainConf::under(prefix),
        events: EventsConf::default(),
        http: Http {
            hostname: hostname(),
            prefix: folder(prefix),
            conf_prefix: folder(&source.prefix),
            registry: Registry::over(Arc::clone(modules.variables())),
            subrequest_hooks: modules.subrequest_hooks(),
            values: modules.http_values(),
            ..Http::default()
        },
        warnings: Vec::new(),
        server: ServerId(0),
        blocks: 0,
    };
    resolver.main_block(&tree.statements)?;
    let Resolver { main, events, mut http, mut warnings, .. } = resolver;
    // Only now: a variable may be used above the directive that defines it, and a pool above its own.
    http.registry.finish()?;
    for module in modules.modules() {
        (module.check)(&http, &mut warnings)?;
    }
    http.zones.finish()?;
    main.check_pools(&http.pools)?;
    main.check_affinity(&mut warnings);
    // The handlers are listed once here, so that no request asks a module whether it has something to do.
    let mut locations = std::mem::take(&mut http.locations);
    let mut needs = Needs::default();
    for location in &mut locations {
        location.plan = Plan::of(modules, &http, &location.scope);
        http.servers[location.server.0 as usize].takes_connect |= location.scope.core.takes_connect;
        for module in modules.modules() {
            (module.blocks.needs)(&http, &location.scope, &mut needs);
        }
    }
    http.locations = locations;
    let config = Arc::new(Config { modules, main, events, http, needs });
    Ok(Loaded { config, sources: tree.files, warnings })
}

/// As the beginning of paths.
fn folder(prefix: &Path) -> Vec<u8> {
    let mut text = prefix.as_os_str().as_bytes().to_vec();
    text.extend_from_slice(if text.ends_with(b"/") { b"" } else { b"/" });
    text
}

/// In lower case, as hosts of requests are when they are compared with it.
fn hostname() -> String {
    rustix::system::uname().nodename().to_string_lossy().to_ascii_lowercase()
}

/// A configuration while it is being read.
struct Resolver<'a> {
    modules: &'static ModuleTable,
    tree: &'a Tree,
    prefix: &'a Path,
    conf_prefix: &'a Path,
    loader: &'a dyn Loader,
    main: MainConf,
    events: EventsConf,
    http: Http,
    warnings: Vec<Error>,
    /// The server that is read.
    server: ServerId,
    /// Blocks numbered so far.
    blocks: u32,
}

/// A block inside of the one that is read, to be walked into when that is complete.
type InnerBlock<'t> = (&'t Statement, Walk);

/// The block around a location that is being read.
struct Around<'a> {
    scope: &'a Scope,
    /// The location around it, if that is no server.
    name: Option<&'a Name>,
}

impl Resolver<'_> {
    /// `main` itself, then `events` and `http`, whichever comes first in the text.
    fn main_block(&mut self, statements: &[Statement]) -> Result<(), Error> {
        let (settings, prefix) = (self.modules.settings(), self.prefix);
        // No directive of `main` or `events` changes it.
        let mut scope = Scope::start(settings, &mut Start { prefix, targets: &mut Targets::default() });
        let inner = self.simple(statements, Contexts::MAIN, &mut scope, None)?;
        for statement in of_kind(&inner, Walk::Events) {
            self.simple(statement.children(), Contexts::EVENTS, &mut scope, None)?;
        }
        // Behind `main`, because `http` starts from the paths and the error log of the process.
        let mut scope = Scope::start(settings, &mut Start { prefix, targets: &mut self.http.targets });
        scope.core.error_log = self.main.error_log.clone();
        for statement in of_kind(&inner, Walk::Http) {
            self.http_block(statement, &scope)?;
        }
        // nginx comes to this last, when the rest has been read.
        match of_kind(&inner, Walk::Events).next() {
            Some(_) => Ok(()),
            None => Err(Error::nowhere("no \"events\" section in configuration")),
        }
    }

    /// `http` with all servers; their addresses are put together when the last one is known.
    fn http_block(&mut self, statement: &Statement, outer: &Scope) -> Result<(), Error> {
        let mut scope = outer.inherit();
        let inner = self.simple(statement.children(), Contexts::HTTP, &mut scope, None)?;
        scope.core.check(&statement.end)?;
        self.end_block(BlockKind::Http, statement, &mut scope, None)?;
        // Before the servers, whose locations name them, wherever both stand.
        for statement in of_kind(&inner, Walk::Upstream) {
            self.upstream_block(statement)?;
        }
        let mut drafts = Vec::new();
        for statement in of_kind(&inner, Walk::Server) {
            drafts.push(self.server_block(statement, &scope)?);
        }
        self.http.listens = listen::gather(drafts, &mut self.warnings)?;
        Ok(())
    }

    /// An `upstream` block, which inherits nothing and holds no other block.
    fn upstream_block(&mut self, statement: &Statement) -> Result<(), Error> {
        let mut hooks = self.modules.modules().iter().filter_map(|module| module.blocks.upstream);
        let Some(hooks) = hooks.next() else { return Ok(()) };
        let (settings, prefix) = (self.modules.settings(), self.prefix);
        let mut scope = Scope::start(settings, &mut Start { prefix, targets: &mut self.http.targets });
        (hooks.begin)(&mut scope, &self.cx(statement, Contexts::HTTP))?;
        self.simple(statement.children(), Contexts::UPSTREAM, &mut scope, None)?;
        (hooks.end)(&mut scope, statement, &mut self.http)
    }

    /// A server. Its own scope is a location too: what holds where no other one matches.
    fn server_block(&mut self, statement: &Statement, outer: &Scope) -> Result<ServerDraft, Error> {
        let mut scope = outer.inherit();
        let id = ServerId(self.http.servers.len() as u32);
        self.server = id;
        let mut draft = ServerDraft::new(id, statement);
        let inner = self.simple(statement.children(), Contexts::SERVER, &mut scope, Some(&mut draft))?;
        scope.core.check(&statement.end)?;
        draft.complete();
        self.end_block(BlockKind::Server, statement, &mut scope, Some(&draft))?;
        self.conditions(&inner, Contexts::SERVER, &mut scope, "server")?;
        self.complete_block(BlockKind::Server, statement, &mut scope);
        let root = self.add_location("server", scope.clone());
        let (name, locations) = (draft.first_name(), Locations::default());
        // In its place before the locations are read, so that their number names the server that is being made.
        self.http.servers.push(Server { name, root, locations, takes_connect: false });
        let locations = self.locations(&inner, &Around { scope: &scope, name: None })?;
        self.http.servers[id.0 as usize].locations = locations;
        Ok(draft)
    }

    /// The `location` blocks of one block.
    fn locations(&mut self, inner: &[InnerBlock<'_>], around: &Around<'_>) -> Result<Locations, Error> {
        let mut found = Vec::new();
        for statement in of_kind(inner, Walk::Location) {
            // Named and nested locations have rules that depend on where they stand.
            let context = if around.name.is_some() { Contexts::LOCATION } else { Contexts::SERVER };
            let name = Name::parse(&mut self.cx(statement, context), around.name)?;
            let mut scope = around.scope.inherit();
            name.mark(&mut scope.core);
            let nested = self.simple(statement.children(), Contexts::LOCATION, &mut scope, None)?;
            self.end_block(BlockKind::Location, statement, &mut scope, None)?;
            self.conditions(&nested, Contexts::LOCATION, &mut scope, &name.as_written())?;
            self.complete_block(BlockKind::Location, statement, &mut scope);
            let id = self.add_location(name.as_written(), scope.clone());
            self.limit_except(&nested, id, &scope)?;
            let inside = Around { scope: &scope, name: Some(&name) };
            self.http.locations[id.0 as usize].nested = self.locations(&nested, &inside)?;
            found.push((name, id, statement));
        }
        Locations::build(found, &self.http.locations)
    }

    /// The `limit_except` block of a location, which is a separate location for some methods.
    fn limit_except(&mut self, inner: &[InnerBlock<'_>], id: LocationId, scope: &Scope) -> Result<(), Error> {
        let Some(statement) = of_kind(inner, Walk::LimitExcept).next() else {
            return Ok(());
        };
        let methods = LimitExcept::methods(statement)?;
        // It inherits from the location as that is at its end, wherever in it the block stands.
        let mut limited = scope.inherit_into(Inner::LimitExcept);
        self.simple(statement.children(), Contexts::LIMIT_EXCEPT, &mut limited, None)?;
        self.end_block(BlockKind::LimitExcept, statement, &mut limited, None)?;
        let location = self.add_location("limit_except", limited);
        self.http.locations[id.0 as usize].scope.core.limit_except = Some(LimitExcept { methods, location });
        Ok(())
    }

    /// The `if` blocks of a server or location. In a location each is a separate location of the same name. They
    /// inherit from the block around them with its settings at its end.
    fn conditions(
        &mut self,
        inner: &[InnerBlock<'_>],
        context: Contexts,
        scope: &mut Scope,
        name: &str,
    ) -> Result<(), Error> {
        let mut hooks = self.modules.modules().iter().filter_map(|module| module.blocks.conditions);
        let Some(hooks) = hooks.next() else { return Ok(()) };
        let mut place = 0;
        for statement in of_kind(inner, Walk::If) {
            let mut inside = scope.inherit_into(Inner::If);
            self.simple(statement.children(), inside_if(context), &mut inside, None)?;
            self.end_block(BlockKind::If, statement, &mut inside, None)?;
            // Its rewrite directives run in the script around it, not when its location is entered.
            let is_location = context == Contexts::LOCATION;
            let location = is_location.then_some(LocationId(self.http.locations.len() as u32));
            place = (hooks.join)(scope, place, &mut inside, location);
            if is_location {
                self.add_location(name, inside);
            }
        }
        Ok(())
    }

    /// Lets the modules check what they read in a block.
    fn end_block(
        &mut self,
        kind: BlockKind,
        statement: &Statement,
        scope: &mut Scope,
        draft: Option<&ServerDraft>,
    ) -> Result<(), Error> {
        let end = BlockEnd {
            kind,
            span: &statement.end,
            names: draft.map_or(&[], |draft| &draft.names),
            listens_for_http2: draft
                .is_some_and(|draft| draft.listens.iter().any(|listen| listen.protocols.http2)),
        };
        self.modules.modules().iter().try_for_each(|module| (module.blocks.end)(&mut self.http, scope, &end))
    }

    /// Lets the modules complete what they read in a block and in its `if` blocks.
    fn complete_block(&self, kind: BlockKind, statement: &Statement, scope: &mut Scope) {
        let end = BlockEnd { kind, span: &statement.end, names: &[], listens_for_http2: false };
        for module in self.modules.modules() {
            (module.blocks.complete)(scope, &end);
        }
    }

    /// Locations of all servers share one vector, so that a request names its own by a number.
    fn add_location(&mut self, name: impl Into<String>, scope: Scope) -> LocationId {
        let id = LocationId(self.http.locations.len() as u32);
        let (nested, plan) = (Locations::default(), Plan::default());
        self.http.locations.push(Location { name: name.into(), server: self.server, scope, nested, plan });
        id
    }

    /// Carries out the simple directives of a block, in order, and returns the blocks inside of it.
    fn simple<'t>(
        &mut self,
        statements: &'t [Statement],
        context: Contexts,
        scope: &mut Scope,
        mut draft: Option<&mut ServerDraft>,
    ) -> Result<Vec<InnerBlock<'t>>, Error> {
        self.blocks += 1;
        let mut inner = Vec::new();
        let mut admitted = self.modules.specs().scope(context);
        for statement in statements {
            let done = admitted.admit(statement).and_then(|spec| match self.modules.directive(spec).set {
                Set::Walk(walk) => {
                    inner.push((statement, walk));
                    match walk {
                        // Its place among the rewrites counts, so the condition is read here and the block later.
                        Walk::If => self.condition(statement, context, scope),
                        _ => Ok(()),
                    }
                }
                ref set => self.carry_out(set, statement, context, scope, draft.as_deref_mut()),
            });
            // An error in a block above this line would have stopped nginx earlier.
            if let Err(error) = done {
                self.look_at(&inner, context, scope)?;
                return Err(error);
            }
        }
        Ok(inner)
    }

    /// Reads the condition of an `if`.
    fn condition(
        &mut self,
        statement: &Statement,
        context: Contexts,
        scope: &mut Scope,
    ) -> Result<(), Error> {
        let mut hooks = self.modules.modules().iter().filter_map(|module| module.blocks.conditions);
        match hooks.next() {
            Some(hooks) => (hooks.read)(scope, &mut self.cx(statement, context)),
            None => Ok(()),
        }
    }

    /// Calls the setter of one statement. The settings of `main` and `events` are taken out meanwhile,
    /// because the context borrows the resolver.
    fn carry_out(
        &mut self,
        set: &Set,
        statement: &Statement,
        context: Contexts,
        scope: &mut Scope,
        draft: Option<&mut ServerDraft>,
    ) -> Result<(), Error> {
        match (set, draft) {
            (Set::Main(set), _) => {
                let mut main = std::mem::take(&mut self.main);
                let done = set(&mut main, &mut self.cx(statement, context));
                self.main = main;
                done
            }
            (Set::Events(set), _) => {
                let mut events = std::mem::take(&mut self.events);
                let done = set(&mut events, &mut self.cx(statement, context));
                self.events = events;
                done
            }
            (Set::Scope(set), _) => set(scope, &mut self.cx(statement, context)),
            (Set::Http(set), _) => set(&mut self.cx(statement, context)),
            (Set::Server(set), Some(draft)) => set(draft, &mut self.cx(statement, context)),
            (Set::Server(_), None) => panic!("the table puts {} outside of server", statement.name.text),
            (Set::Nothing | Set::Walk(_), _) => Ok(()),
        }
    }

    /// Finds the first error in blocks above a wrong directive. Their settings are discarded with the whole
    /// configuration.
    fn look_at(&mut self, inner: &[InnerBlock<'_>], context: Contexts, scope: &Scope) -> Result<(), Error> {
        for (statement, walk) in inner {
            let (block, mut inherited) = (statement.children(), scope.inherit());
            match walk {
                Walk::Events => drop(self.simple(block, Contexts::EVENTS, &mut inherited, None)?),
                Walk::Http => self.http_block(statement, scope)?,
                Walk::Upstream => self.upstream_block(statement)?,
                Walk::Server => drop(self.server_block(statement, scope)?),
                Walk::Location => {
                    let around = Around { scope, name: None };
                    drop(self.locations(&[(*statement, *walk)], &around)?);
                }
                Walk::LimitExcept => {
                    drop(self.simple(block, Contexts::LIMIT_EXCEPT, &mut inherited, None)?)
                }
                Walk::If => drop(self.simple(block, inside_if(context), &mut inherited, None)?),
            }
        }
        Ok(())
    }

    /// The argument of a setter.
    fn cx<'s>(&'s mut self, statement: &'s Statement, context: Contexts) -> Cx<'s> {
        Cx {
            statement,
            modules: self.modules,
            tree: self.tree,
            context,
            block: self.blocks,
            prefix: self.prefix,
            conf_prefix: self.conf_prefix,
            jit: self.main.pcre_jit,
            loader: self.loader,
            http: &mut self.http,
            warnings: &mut self.warnings,
        }
    }
}

/// The context inside of an `if` that stands in this one.
fn inside_if(context: Contexts) -> Contexts {
    if context == Contexts::SERVER { Contexts::SERVER_IF } else { Contexts::LOCATION_IF }
}

/// The blocks of one kind among those inside of a block.
fn of_kind<'t>(inner: &[InnerBlock<'t>], kind: Walk) -> impl Iterator<Item = &'t Statement> {
    inner.iter().filter(move |(_, walk)| *walk == kind).map(|(statement, _)| *statement)
}
