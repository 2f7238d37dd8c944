//! Converts the tree of statements to the typed configuration.
//!
//! Each block is read in two passes, first its simple directives and then its inner blocks, because in nginx a
//! directive also applies to blocks above it in the text. nginx itself reads once and stops at the first error in file
//! order. So if a simple directive is invalid, the blocks above it are checked before the error is reported.

use std::collections::HashSet;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use conf::{CheckResult, Contexts, Error, ErrorKind, Loader, Source, Statement, Tree};

use crate::config::declaration::{Declaration, Declarations, Set, Walk};
use crate::config::settings::Inner;
use crate::config::{
    BlockEnd, BlockKind, Config, Cx, Http, Loaded, Location, LocationId, Requirements, Scope, Section,
    Server, ServerId, Start,
};
use crate::registry::Registry;
use crate::settings::core::LimitExcept;
use crate::settings::events::EventsConf;
use crate::settings::listen;
use crate::settings::listen::{ListenAddr, ServerDraft};
use crate::settings::locations::{Locations, Name};
use crate::settings::main::MainConf;
use telemetry::Targets;

/// Reads and resolves a configuration with the directives of these modules. `prefix` is the base of relative paths.
pub fn load(
    modules: &'static Declarations,
    source: &Source,
    prefix: &Path,
    loader: &dyn Loader,
) -> Result<Loaded, Error> {
    let tree = conf::parse(source, loader)?;
    let mut resolver = Resolver::new(modules, &tree, Bases { prefix, conf: &source.prefix }, loader);
    resolver.main_block(&tree.statements).map_err(|error| first_in_file(error, &tree, modules))?;
    resolver.finish()?;
    let mut requirements = Requirements::default();
    resolver.gather_requirements(&mut requirements);
    resolver.in_stream(|resolver| resolver.gather_requirements(&mut requirements));
    let Resolver { main, events, mut http, other: stream, warnings, .. } = resolver;
    if http.servers.is_empty() {
        add_unreachable_server(modules, prefix, &main, &mut http);
    }
    let config = Arc::new(Config { main, events, http, stream, requirements });
    Ok(Loaded { config, sources: tree.files, warnings })
}

/// Returns the error that is first in its file: a check at the end of a block is made before the blocks inside are read.
fn first_in_file(found: Error, tree: &Tree, modules: &'static Declarations) -> Error {
    let is_above = |error: &Error| match (error.span(), found.span()) {
        (Some(one), Some(other)) => one.file == other.file && one.line < other.line,
        _ => false,
    };
    conf::check(tree, modules.specs()).error.filter(is_above).unwrap_or(found)
}

/// Adds a server with default settings, to which no address leads. Connections whose address a reload has removed refer
/// to the first server until they end.
fn add_unreachable_server(modules: &'static Declarations, prefix: &Path, main: &MainConf, http: &mut Http) {
    let mut scope = Scope::start(modules.settings(), &mut Start { prefix, targets: &mut http.targets });
    scope.core.error_log = main.error_log.clone();
    let nested = Locations::default();
    http.locations.push(Location { name: "server".to_owned(), server: ServerId(0), scope, nested });
    let (name, root, locations) = (String::new(), LocationId(0), Locations::default());
    http.servers.push(Server { name, root, locations, accepts_connect: false, position: None });
}

/// The errors of a configuration, without errors that are only consequences of other errors.
#[derive(Debug, Default)]
pub struct Problems {
    /// Errors in file order.
    pub errors: Vec<Error>,
    /// The files that were read.
    pub sources: conf::Sources,
}

/// Finds all errors of a configuration, not only the first one, which [`load`] returns.
pub fn examine(
    modules: &'static Declarations,
    source: &Source,
    prefix: &Path,
    loader: &dyn Loader,
) -> Problems {
    let tree = match conf::parse_past_faults(source, loader) {
        Ok(tree) => tree,
        Err(error) => return Problems { errors: vec![error], sources: conf::Sources::default() },
    };
    let mut resolver = Resolver::new(modules, &tree, Bases { prefix, conf: &source.prefix }, loader);
    resolver.faults = Some(Faults::default());
    let read = resolver.main_block(&tree.statements);
    let mut faults = resolver.faults.take().unwrap_or_default();
    faults.errors.extend(read.err());
    // Undefined names are reported in addition to other errors, unless one of these explains them.
    match faults.errors.is_empty() {
        true => faults.errors.extend(resolver.finish().err()),
        false => {
            let names = [
                resolver.http.registry.finish().err(),
                resolver.other.registry.finish().err(),
                resolver.http.zones.finish().err(),
            ];
            names.into_iter().flatten().for_each(|error| faults.add(error, None));
        }
    }
    let mut errors = faults.errors;
    let mut known: HashSet<String> = errors.iter().map(ToString::to_string).collect();
    // Blocks of unknown directives were not entered.
    conf::visit(&tree, modules.specs(), &mut |visit| {
        if let CheckResult::Fault(error) = visit.verdict
            && known.insert(error.to_string())
        {
            errors.push(error);
        }
    });
    let place = |error: &Error| {
        let span = error.span()?;
        let path = span.file.path()?;
        Some((tree.files.iter().position(|file| file.path == path), span.line))
    };
    // An error without a position concerns the complete configuration; it is listed last.
    errors.sort_by_key(|error| place(error).map_or((true, None), |place| (false, Some(place))));
    Problems { errors, sources: tree.files }
}

/// The base directories of relative paths.
struct Bases<'a> {
    prefix: &'a Path,
    conf: &'a Path,
}

/// Errors that did not stop the parse.
#[derive(Debug, Default)]
struct Faults {
    errors: Vec<Error>,
    /// The names in rejected statements. Objects that these statements define will be missing in later statements.
    words: HashSet<String>,
    /// Whether a file is missing; then any name may be undefined.
    misses_file: bool,
}

impl Faults {
    /// Adds an error, unless an earlier one explains it.
    fn add(&mut self, error: Error, statement: Option<&Statement>) {
        let is_explained = match error.kind() {
            ErrorKind::Undefined { name, .. } => self.misses_file || self.words.contains(name),
            // The block may be missing a server because of an invalid statement in it.
            ErrorKind::NoServers(_) => statement.is_some_and(|block| self.have_error_in(block)),
            _ => false,
        };
        self.misses_file |= matches!(error.kind(), ErrorKind::Unreadable { .. });
        if let Some(statement) = statement {
            let rows = statement.children().iter().flat_map(Statement::texts);
            let is_end = |c: char| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.'));
            let parts = statement.texts().chain(rows).flat_map(|word| word.split(is_end));
            self.words.extend(parts.filter(|word| !word.is_empty()).map(str::to_owned));
        }
        if !is_explained {
            self.errors.push(error);
        }
    }

    /// Whether there is an error in this block.
    fn have_error_in(&self, block: &Statement) -> bool {
        let range = block.span.offset..=block.end.offset;
        let is_inside = |span: &conf::Span| span.file == block.span.file && range.contains(&span.offset);
        self.errors.iter().any(|error| error.span().is_some_and(is_inside))
    }
}

/// Returns a directory as the base of relative paths, with a trailing slash.
fn directory_base(prefix: &Path) -> Vec<u8> {
    let mut text = prefix.as_os_str().as_bytes().to_vec();
    text.extend_from_slice(if text.ends_with(b"/") { b"" } else { b"/" });
    text
}

/// Returns the host name in lower case, because the hosts of requests are in lower case when they are compared with it.
fn hostname() -> String {
    rustix::system::uname().nodename().to_string_lossy().to_ascii_lowercase()
}

/// A configuration while it is being read.
struct Resolver<'a> {
    modules: &'static Declarations,
    tree: &'a Tree,
    prefix: &'a Path,
    conf_prefix: &'a Path,
    loader: &'a dyn Loader,
    main: MainConf,
    events: EventsConf,
    /// The block that is read: `http`, or `stream` while that is read.
    http: Http,
    /// The other one of the two blocks.
    other: Http,
    warnings: Vec<Error>,
    /// The server being parsed.
    server: ServerId,
    /// Number of blocks so far.
    blocks: u32,
    /// For [`examine`]: errors are collected here, and the parse continues.
    faults: Option<Faults>,
}

/// A block inside the current block, to be parsed after the simple directives of the current block.
type InnerBlock<'t> = (&'t Statement, Walk);

/// The block that encloses the location being parsed.
struct Around<'a> {
    scope: &'a Scope,
    /// The enclosing location; `None` if the location is directly in a server.
    name: Option<&'a Name>,
}

impl<'a> Resolver<'a> {
    fn new(
        modules: &'static Declarations,
        tree: &'a Tree,
        bases: Bases<'a>,
        loader: &'a dyn Loader,
    ) -> Resolver<'a> {
        let block = |section| Http {
            section,
            hostname: hostname(),
            prefix: directory_base(bases.prefix),
            conf_prefix: directory_base(bases.conf),
            registry: Registry::with_modules(Arc::clone(modules.variables(section))),
            values: modules.http_values(),
            ..Http::default()
        };
        Resolver {
            modules,
            tree,
            prefix: bases.prefix,
            conf_prefix: bases.conf,
            loader,
            main: MainConf::under(bases.prefix),
            events: EventsConf::default(),
            http: block(Section::Http),
            other: block(Section::Stream),
            warnings: Vec::new(),
            server: ServerId(0),
            blocks: 0,
            faults: None,
        }
    }

    /// Checks the complete configuration. This is last, because variables and pools may be used above their
    /// definitions.
    fn finish(&mut self) -> Result<(), Error> {
        self.finish_block()?;
        self.in_stream(Resolver::finish_block)?;
        self.http.zones.finish()?;
        self.main.check_pools(&self.http.pools)?;
        self.main.check_affinity(&mut self.warnings);
        Ok(())
    }

    /// Checks the complete `http` or `stream` block.
    fn finish_block(&mut self) -> Result<(), Error> {
        self.http.registry.finish()?;
        for module in self.block_modules() {
            (module.addresses)(&mut self.http)?;
        }
        for module in self.block_modules() {
            (module.check)(&self.http, &mut self.warnings)?;
        }
        Ok(())
    }

    /// Returns the modules with hooks for the block that is read.
    fn block_modules(&self) -> impl Iterator<Item = &'static Declaration> + use<> {
        let (modules, section) = (self.modules, self.http.section);
        modules.modules().iter().copied().filter(move |module| module.section == section)
    }

    /// Calls a function with `stream` as the block that is read.
    fn in_stream<T>(&mut self, read: impl FnOnce(&mut Self) -> T) -> T {
        self.switch();
        let done = read(self);
        self.switch();
        done
    }

    /// Makes the other block the one that is read.
    fn switch(&mut self) {
        self.http.hand_over(&mut self.other);
        std::mem::swap(&mut self.http, &mut self.other);
    }

    /// Adds the requirements of all servers of the block that is read.
    fn gather_requirements(&mut self, requirements: &mut Requirements) {
        let http = &mut self.http;
        for location in &http.locations {
            http.servers[location.server.0 as usize].accepts_connect |= location.scope.core.accepts_connect;
        }
        for location in &self.http.locations {
            for module in self.block_modules() {
                (module.blocks.requires)(&self.http, &location.scope, requirements);
            }
        }
        self.http.uses.append(std::mem::take(&mut requirements.uses));
    }

    /// For [`examine`], adds an error to the report and returns success; otherwise returns the error.
    fn pass(&mut self, done: Result<(), Error>, statement: &Statement) -> Result<(), Error> {
        match (done, &mut self.faults) {
            (Err(error), Some(faults)) => {
                faults.add(error, Some(statement));
                Ok(())
            }
            (done, _) => done,
        }
    }

    /// Reads `main`, then `events`, `http` and `stream`, in any order of the text.
    fn main_block(&mut self, statements: &[Statement]) -> Result<(), Error> {
        let (settings, prefix) = (self.modules.settings(), self.prefix);
        // No directive of `main` or `events` changes this scope.
        let mut scope = Scope::start(settings, &mut Start { prefix, targets: &mut Targets::default() });
        let inner = self.simple(statements, Contexts::MAIN, &mut scope, None)?;
        for statement in of_kind(&inner, Walk::Events) {
            self.simple(statement.children(), Contexts::EVENTS, &mut scope, None)?;
        }
        // After `main`, because `http` inherits the paths and the error log of the process.
        let mut scope = Scope::start(settings, &mut Start { prefix, targets: &mut self.http.targets });
        scope.core.error_log = self.main.error_log.clone();
        for statement in of_kind(&inner, Walk::Http) {
            self.http_block(statement, &scope)?;
        }
        for statement in of_kind(&inner, Walk::Stream) {
            self.in_stream(|resolver| resolver.stream_block(statement, &scope))?;
        }
        // nginx checks this last, after everything else was read.
        match of_kind(&inner, Walk::Events).next() {
            Some(_) => Ok(()),
            None if self.faults.as_ref().is_some_and(|faults| !faults.errors.is_empty()) => Ok(()),
            None => {
                let error = Error::without_location("no \"events\" section in configuration");
                Err(error.advise("add \"events {}\" at the top of the file"))
            }
        }
    }

    /// Reads `stream`. No address may be one of `http`.
    fn stream_block(&mut self, statement: &Statement, outer: &Scope) -> Result<(), Error> {
        self.http_block(statement, outer)?;
        let of_http: Vec<&ListenAddr> = self.other.listens.iter().map(|listen| &listen.spec.addr).collect();
        let both = self.http.listens.iter().find(|listen| of_http.contains(&&listen.spec.addr));
        let Some(listen) = both else { return Ok(()) };
        let what = format_args!("a duplicate listen {}: a server of http has this address", listen.spec.addr);
        let error = Error::at_known(listen.spec.position.as_ref(), what);
        self.pass(Err(error), statement)
    }

    /// Reads `http`, or `stream`, with all servers. Their addresses are merged when the last server is known.
    fn http_block(&mut self, statement: &Statement, outer: &Scope) -> Result<(), Error> {
        let mut scope = outer.inherit();
        let inner = self.simple(statement.children(), self.contexts().block, &mut scope, None)?;
        let checked = scope.core.check(&statement.end);
        self.pass(checked, statement)?;
        self.end_block(BlockKind::Http, statement, &mut scope, None)?;
        // Before the servers, whose locations refer to upstreams in any order of the text.
        for statement in of_kind(&inner, Walk::Upstream) {
            let read = self.upstream_block(statement);
            self.pass(read, statement)?;
        }
        let mut drafts = Vec::new();
        for statement in of_kind(&inner, Walk::Server) {
            drafts.push(self.server_block(statement, &scope)?);
        }
        let gathered = listen::gather(drafts, &mut self.warnings).map(|listens| self.http.listens = listens);
        self.pass(gathered, statement)
    }

    /// Reads an `upstream` block, which inherits nothing and has no inner blocks.
    fn upstream_block(&mut self, statement: &Statement) -> Result<(), Error> {
        let mut hooks = self.block_modules().filter_map(|module| module.blocks.upstream);
        let Some(hooks) = hooks.next() else { return Ok(()) };
        let (settings, prefix) = (self.modules.settings(), self.prefix);
        let mut scope = Scope::start(settings, &mut Start { prefix, targets: &mut self.http.targets });
        let contexts = self.contexts();
        (hooks.begin)(&mut scope, &self.cx(statement, contexts.block))?;
        self.simple(statement.children(), contexts.upstream, &mut scope, None)?;
        (hooks.end)(&mut scope, statement, &mut self.http)
    }

    /// Reads a server. Its own scope is a location too, which is used if no other location matches.
    fn server_block(&mut self, statement: &Statement, outer: &Scope) -> Result<ServerDraft, Error> {
        let mut scope = outer.inherit();
        let id = ServerId(self.http.servers.len() as u32);
        self.server = id;
        let mut draft = ServerDraft::new(id, statement);
        let context = self.contexts().server;
        let inner = self.simple(statement.children(), context, &mut scope, Some(&mut draft))?;
        let checked = scope.core.check(&statement.end);
        self.pass(checked, statement)?;
        if self.http.section == Section::Stream && draft.listens.is_empty() {
            let error = Error::at(statement, "no \"listen\" is defined for server");
            self.pass(Err(error), statement)?;
        }
        draft.complete();
        self.end_block(BlockKind::Server, statement, &mut scope, Some(&draft))?;
        self.conditions(&inner, Contexts::SERVER, &mut scope, "server")?;
        self.complete_block(BlockKind::Server, statement, &mut scope);
        let root = self.add_location("server", scope.clone());
        let (name, locations) = (draft.first_name(), Locations::default());
        // The server is added before its locations are parsed, because they refer to it by index.
        let position = Some(statement.span().clone());
        self.http.servers.push(Server { name, root, locations, accepts_connect: false, position });
        let locations = self.locations(&inner, &Around { scope: &scope, name: None })?;
        assert_eq!(id.0 as usize + 1, self.http.servers.len(), "the block is the last server");
        self.http.servers[id.0 as usize].locations = locations;
        Ok(draft)
    }

    /// Reads the `location` blocks inside a block.
    fn locations(&mut self, inner: &[InnerBlock<'_>], around: &Around<'_>) -> Result<Locations, Error> {
        let mut found = Vec::new();
        for statement in of_kind(inner, Walk::Location) {
            // Named and nested locations have rules that depend on the enclosing block.
            let context = if around.name.is_some() { Contexts::LOCATION } else { Contexts::SERVER };
            let name = match Name::parse(&mut self.cx(statement, context), around.name) {
                Ok(name) => name,
                Err(error) => {
                    self.pass(Err(error), statement)?;
                    continue;
                }
            };
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
        let around = found.last().map(|(_, _, statement)| *statement);
        match (Locations::build(found, &self.http.locations), around) {
            (Err(error), Some(statement)) => {
                self.pass(Err(error), statement)?;
                Ok(Locations::default())
            }
            (built, _) => built,
        }
    }

    /// Reads the `limit_except` block of a location, which is a separate location for some methods.
    fn limit_except(&mut self, inner: &[InnerBlock<'_>], id: LocationId, scope: &Scope) -> Result<(), Error> {
        let Some(statement) = of_kind(inner, Walk::LimitExcept).next() else {
            return Ok(());
        };
        let methods = match LimitExcept::methods(statement) {
            Ok(methods) => methods,
            Err(error) => return self.pass(Err(error), statement),
        };
        // `limit_except` inherits the final settings of the location, wherever in the location it is written.
        let mut limited = scope.inherit_into(Inner::LimitExcept);
        self.simple(statement.children(), Contexts::LIMIT_EXCEPT, &mut limited, None)?;
        self.end_block(BlockKind::LimitExcept, statement, &mut limited, None)?;
        let location = self.add_location("limit_except", limited);
        self.http.locations[id.0 as usize].scope.core.limit_except = Some(LimitExcept { methods, location });
        Ok(())
    }

    /// Reads the `if` blocks of a server or location. In a location each `if` is a separate location of the same name.
    /// An `if` inherits the final settings of the enclosing block.
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
            // The rewrite directives of an `if` run in the script of the enclosing block, not when its location is entered.
            let is_location = context == Contexts::LOCATION;
            let location = is_location.then_some(LocationId(self.http.locations.len() as u32));
            place = (hooks.join)(scope, place, &mut inside, location);
            if is_location {
                self.add_location(name, inside);
            }
        }
        Ok(())
    }

    /// Lets the modules check their settings of a block.
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
            listens_for_quic: draft
                .is_some_and(|draft| draft.listens.iter().any(|listen| listen.spec.addr.is_quic())),
            statements: statement.children(),
        };
        for module in self.block_modules() {
            let ended = (module.blocks.end)(&mut self.http, scope, &end);
            self.pass(ended, statement)?;
        }
        Ok(())
    }

    /// Lets the modules complete their settings of a block and of its `if` blocks.
    fn complete_block(&self, kind: BlockKind, statement: &Statement, scope: &mut Scope) {
        let (span, statements) = (&statement.end, statement.children());
        let end = BlockEnd {
            kind,
            span,
            names: &[],
            listens_for_http2: false,
            listens_for_quic: false,
            statements,
        };
        for module in self.block_modules() {
            (module.blocks.complete)(scope, &end);
        }
    }

    /// Adds a location. The locations of all servers are in one vector, so that a request refers to its location by index.
    fn add_location(&mut self, name: impl Into<String>, scope: Scope) -> LocationId {
        let id = LocationId(self.http.locations.len() as u32);
        let nested = Locations::default();
        self.http.locations.push(Location { name: name.into(), server: self.server, scope, nested });
        id
    }

    /// Applies the simple directives of a block, in order, and returns the blocks inside it.
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
            self.warn_of_words(statement, &admitted);
            let done = admitted.admit(statement).and_then(|spec| match self.modules.directive(spec).set {
                Set::Walk(walk) => {
                    inner.push((statement, walk));
                    match walk {
                        // The condition's position among the rewrites matters, so it is parsed here and the block
                        // later.
                        Walk::If => self.condition(statement, context, scope),
                        _ => Ok(()),
                    }
                }
                ref set => self.carry_out(set, statement, context, scope, draft.as_deref_mut()),
            });
            let Err(error) = done else { continue };
            if self.faults.is_some() {
                // Without a valid condition the block is skipped.
                inner.pop_if(|(last, _)| std::ptr::eq(*last, statement));
                self.pass(Err(error), statement)?;
                continue;
            }
            // nginx would have reported an error in a block above this line first.
            self.check_blocks(&inner, context, scope)?;
            return Err(error);
        }
        Ok(inner)
    }

    /// Adds warnings about arguments that are probably mistakes, although they are valid.
    fn warn_of_words(&mut self, statement: &Statement, admitted: &conf::Scope<'_>) {
        for word in statement.args.iter().filter(|word| conf::typography(word).is_some()) {
            let what =
                format!("\"{}\" begins or ends with a typographic character, which is part of it", word.text);
            self.warnings.push(Error::at(statement, what).with_level(conf::Level::Warn));
        }
        if let Some(word) = admitted.swallowed(statement) {
            let (name, directive) = (&word.text, &statement.name.text);
            let error =
                Error::at(word, format_args!("\"{name}\" is an argument of \"{directive}\" directive"));
            let error = error.advise("a \";\" is probably missing before it");
            self.warnings.push(error.with_level(conf::Level::Warn));
        }
    }

    /// Parses the condition of an `if`.
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

    /// Calls the setter of a statement. It moves the settings of `main` and `events` out during the call, because the
    /// context borrows the resolver.
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
            (Set::Nothing { is_flag: true }, _) => self.cx(statement, context).flag(&mut false),
            (Set::Nothing { is_flag: false } | Set::Walk(_), _) => Ok(()),
        }
    }

    /// Finds the first error in blocks above an invalid directive. Their settings are discarded with the configuration.
    fn check_blocks(
        &mut self,
        inner: &[InnerBlock<'_>],
        context: Contexts,
        scope: &Scope,
    ) -> Result<(), Error> {
        for (statement, walk) in inner {
            let (block, mut inherited) = (statement.children(), scope.inherit());
            match walk {
                Walk::Events => drop(self.simple(block, Contexts::EVENTS, &mut inherited, None)?),
                Walk::Http => self.http_block(statement, scope)?,
                Walk::Stream => self.in_stream(|resolver| resolver.stream_block(statement, scope))?,
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

    /// Returns the context argument of a setter.
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

/// The contexts of `http` or `stream`, of its servers, and of its groups of servers.
#[derive(Clone, Copy)]
struct SectionContexts {
    block: Contexts,
    server: Contexts,
    upstream: Contexts,
}

impl Resolver<'_> {
    /// Returns the contexts of the block that is read.
    fn contexts(&self) -> SectionContexts {
        match self.http.section {
            Section::Http => SectionContexts {
                block: Contexts::HTTP,
                server: Contexts::SERVER,
                upstream: Contexts::UPSTREAM,
            },
            Section::Stream => SectionContexts {
                block: Contexts::STREAM,
                server: Contexts::STREAM_SERVER,
                upstream: Contexts::STREAM_UPSTREAM,
            },
        }
    }
}

/// Returns the context inside an `if` in this context.
fn inside_if(context: Contexts) -> Contexts {
    if context == Contexts::SERVER { Contexts::SERVER_IF } else { Contexts::LOCATION_IF }
}

/// Returns the inner blocks of one kind.
fn of_kind<'t>(inner: &[InnerBlock<'t>], kind: Walk) -> impl Iterator<Item = &'t Statement> {
    inner.iter().filter(move |(_, walk)| *walk == kind).map(|(statement, _)| *statement)
}
