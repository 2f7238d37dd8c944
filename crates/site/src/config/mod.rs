//! The resolved configuration: typed, immutable, shared by all threads.
//!
//! [`load`] turns text into a [`Config`] through `conf`'s tree and the modules' directive tables. Servers and locations
//! are stored in vectors and refer to each other by index. A request therefore holds one thread-local reference count
//! and touches no shared counter. Directive names do not appear here; they belong to the modules.

pub mod cx;
pub mod declaration;
mod keywords;
mod location_names;
mod reclaimer;
mod resolve;
mod scope;
mod settings;

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use crate::config::cx::Cx;
pub use crate::ids::{LocationId, Section, ServerId};
pub use crate::settings::listen::Listen;
pub use crate::settings::pools::Pools;
pub use conf::Layered;
pub use keywords::Keywords;
pub use reclaimer::ReclaimsSpace;
pub use resolve::{Problems, examine, load};
pub use scope::Scope;
pub use settings::{HttpType, Inner, Settings, SettingsType, Start};
pub use settings::{HttpValues, SettingsTable};

use crate::address::Address;
use crate::registry::Registry;
use crate::settings::events::EventsConf;
use crate::settings::listen::ListenSpec;
use crate::settings::locations::Locations;
use crate::settings::main::MainConf;
use crate::settings::names::ServerName;
use crate::shared_zone::Zones;
use crate::uses::Uses;
use telemetry::Targets;
use transfer::files::cache::Limits;

/// A valid configuration, with the files and warnings of its parse.
#[derive(Debug)]
pub struct Loaded {
    /// The configuration.
    pub config: Arc<Config>,
    /// The files that it was read from.
    pub sources: conf::Sources,
    /// Warnings for the operator.
    pub warnings: Vec<conf::Error>,
}

/// Everything that was configured.
#[derive(Debug)]
pub struct Config {
    /// The `main` context.
    pub main: MainConf,
    /// The `events` context.
    pub events: EventsConf,
    /// The `http` block; empty if the configuration has none.
    pub http: Http,
    /// The `stream` block; empty if the configuration has none. Parts that belong to the process, such as zones and log
    /// targets, are in `http`.
    pub stream: Http,
    /// Requirements of the configuration on the process.
    pub requirements: Requirements,
}

/// The `http` block, or the `stream` block, which has the same parts: each of its servers has one location, its own scope.
#[derive(Debug, Default)]
pub struct Http {
    /// Which of the blocks this is.
    pub section: Section,
    /// Listening addresses without duplicates; a connection refers to its address by index.
    pub listens: Vec<Listen>,
    /// The servers, by [`ServerId`].
    pub servers: Vec<Server>,
    /// The locations of all servers, by [`LocationId`].
    pub locations: Vec<Location>,
    /// Variables that the configuration itself defines.
    pub registry: Registry,
    /// Log targets without duplicates.
    pub targets: Targets,
    /// Whether an `error_log` has the level `debug`, or `debug_connection` is used: only then is a request traced.
    pub traces: bool,
    /// `debug_connection`: clients whose connections are traced in every error log.
    pub traced_clients: Vec<ClientTest>,
    /// Thread pools that `aio threads=` names; the first is `default`.
    pub pools: Pools,
    /// Shared zones, by name.
    pub zones: Zones,
    /// Components that can remove files to free space for others.
    pub space_reclaimers: Vec<Arc<dyn ReclaimsSpace>>,
    /// Directories of temporary files that directives name, with the position of the directive.
    pub temp_directories: Vec<(PathBuf, conf::Span)>,
    /// Additional files that directives read, such as dictionaries.
    pub data: BTreeMap<PathBuf, Arc<Vec<u8>>>,
    /// Bytes instead of those of additional files with secrets, for workers that must not have them.
    pub stand_ins: BTreeMap<PathBuf, &'static [u8]>,
    /// Settings of each `open_file_cache` directive; a scope refers to its cache by index.
    pub open_file_caches: Vec<Limits>,
    /// The base of relative paths, with a trailing slash.
    pub prefix: Vec<u8>,
    /// The directory of the main configuration file, the base of other relative paths, with a trailing slash.
    pub conf_prefix: Vec<u8>,
    /// The host name of the machine, for `$hostname`.
    pub hostname: String,
    /// Paths and ports that directives use while requests are served.
    pub uses: Uses,
    /// Values of modules, one for all of `http`.
    pub values: HttpValues,
}

/// A test of a client's address.
pub struct ClientTest(pub Box<dyn Fn(&Address) -> bool + Send + Sync>);

impl fmt::Debug for ClientTest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClientTest")
    }
}

impl Http {
    /// Returns the base of relative paths.
    pub fn prefix_path(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.prefix))
    }

    /// Moves the parts that belong to the process to the other block, which is read next: log targets, zones, files.
    pub(crate) fn hand_over(&mut self, next: &mut Http) {
        next.targets = std::mem::take(&mut self.targets);
        next.traces = self.traces;
        next.traced_clients = std::mem::take(&mut self.traced_clients);
        next.pools = std::mem::take(&mut self.pools);
        next.zones = std::mem::take(&mut self.zones);
        next.zones.enter(next.section);
        next.space_reclaimers = std::mem::take(&mut self.space_reclaimers);
        next.temp_directories = std::mem::take(&mut self.temp_directories);
        next.data = std::mem::take(&mut self.data);
        next.stand_ins = std::mem::take(&mut self.stand_ins);
        next.open_file_caches = std::mem::take(&mut self.open_file_caches);
    }

    /// Returns the scope of a server.
    pub fn server_scope(&self, server: ServerId) -> &Scope {
        let root = self.servers[server.0 as usize].root;
        &self.locations[root.0 as usize].scope
    }

    /// Returns the value that a module has for all of `http`.
    pub fn of<T: Any>(&self) -> &T {
        self.values.of()
    }

    /// Returns the value that a module has for all of `http`, to be changed while the configuration is read.
    pub fn make_mut<T: Any>(&mut self) -> &mut T {
        self.values.make_mut()
    }
}

/// One `server` block.
#[derive(Debug)]
pub struct Server {
    /// The first name, for `$server_name` and redirects; empty if it has none.
    pub name: String,
    /// The location of the server's own settings, used if no other location matches.
    pub root: LocationId,
    /// The locations in it.
    pub locations: Locations,
    /// Whether one of the locations accepts CONNECT.
    pub accepts_connect: bool,
    /// Position of the block, for messages; `None` for a server that is not configured.
    pub position: Option<conf::Span>,
}

/// One `location` block, or a server's own scope.
#[derive(Debug)]
pub struct Location {
    /// The name as written, for messages: `~ \.php$`.
    pub name: String,
    /// The server that it is in.
    pub server: ServerId,
    /// The settings of this location.
    pub scope: Scope,
    /// Locations inside this location.
    pub nested: Locations,
}

/// The end of a block, passed to modules that check or complete their settings of it.
pub struct BlockEnd<'a> {
    /// The kind of the block.
    pub kind: BlockKind,
    /// The position of the block's end.
    pub span: &'a conf::Span,
    /// The names of the server, if the block is one.
    pub names: &'a [ServerName],
    /// Whether one of the server's addresses has `http2`.
    pub listens_for_http2: bool,
    /// Whether the server has an address with `quic`.
    pub listens_for_quic: bool,
    /// The directives of the block.
    pub statements: &'a [conf::Statement],
}

/// The kinds of blocks that have settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockKind {
    /// `http` or `stream`
    Http,
    /// `server` in one of them
    Server,
    /// `location`
    Location,
    /// `limit_except`
    LimitExcept,
    /// `if`
    If,
}

/// Requirements of the settings of all blocks on the process.
#[derive(Debug, Default)]
pub struct Requirements {
    /// Log files, which are opened before privileges are dropped.
    pub log_files: BTreeSet<PathBuf>,
    /// Directories that workers write to.
    pub temp_directories: BTreeSet<PathBuf>,
    /// Whether connections to upstreams may use non-local source addresses (`proxy_bind … transparent`). The kernel
    /// allows this only to processes with `CAP_NET_RAW` (ip(7)).
    pub transparent_bind: bool,
    /// Defaults of paths, and ports, which become a part of [`Http::uses`].
    pub uses: Uses,
}

impl Config {
    /// Returns the `main` context.
    pub fn main(&self) -> &MainConf {
        &self.main
    }

    /// Returns the `events` context.
    pub fn events(&self) -> &EventsConf {
        &self.events
    }

    /// Returns the addresses to listen on, without duplicates.
    pub fn listens(&self) -> impl Iterator<Item = &ListenSpec> {
        self.http.listens.iter().chain(&self.stream.listens).map(|listen| &listen.spec)
    }

    /// Returns the blocks that have servers.
    pub fn sections(&self) -> [&Http; 2] {
        [&self.http, &self.stream]
    }

    /// Returns a block.
    pub fn section(&self, section: Section) -> &Http {
        match section {
            Section::Http => &self.http,
            Section::Stream => &self.stream,
        }
    }

    /// Returns the listening sockets with at least one TLS address, without those of QUIC.
    pub fn tls_listens(&self) -> impl Iterator<Item = &ListenSpec> {
        let all = self.http.listens.iter().chain(&self.stream.listens);
        let all = all.filter(|listen| !listen.spec.addr.is_quic());
        all.filter(|listen| listen.tls_defaults().next().is_some()).map(|listen| &listen.spec)
    }

    /// Returns the log files, which are opened before privileges are dropped.
    pub fn log_files(&self) -> Vec<PathBuf> {
        let mut files = self.requirements.log_files.clone();
        files.extend(self.main.error_log.files().map(Path::to_owned));
        files.into_iter().collect()
    }

    /// Returns the directories that workers write to: for large bodies, and for caches.
    pub fn temp_directories(&self) -> Vec<PathBuf> {
        self.requirements.temp_directories.iter().cloned().collect()
    }

    /// Returns the directories of temporary files that directives name, each with the position of the first directive.
    pub fn written_temp_directories(&self) -> BTreeMap<&Path, &conf::Span> {
        self.http.temp_directories.iter().rev().map(|(path, span)| (path.as_path(), span)).collect()
    }

    /// Returns the additional files of the configuration. With them and the text it can be loaded on another machine.
    pub fn data_files(&self) -> impl Iterator<Item = (&Path, &[u8])> {
        self.http.data.iter().map(|(path, bytes)| (path.as_path(), bytes.as_slice()))
    }

    /// Returns the bytes that a worker of `sandbox strict` gets instead of a file with secrets that it does not need; `None` for
    /// other files.
    pub fn stand_in(&self, path: &Path) -> Option<&'static [u8]> {
        self.http.stand_ins.get(path).copied()
    }

    /// Whether connections to upstreams may use non-local source addresses.
    pub fn binds_transparently(&self) -> bool {
        self.requirements.transparent_bind
    }

    /// Returns a server.
    pub fn server(&self, id: ServerId) -> &Server {
        &self.http.servers[id.0 as usize]
    }

    /// Returns a location.
    pub fn location(&self, id: LocationId) -> &Location {
        &self.http.locations[id.0 as usize]
    }
}
