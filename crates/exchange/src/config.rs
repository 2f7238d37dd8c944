//! The resolved configuration: typed, immutable, shared by all threads.
//!
//! [`load`] turns text into a [`Config`] through `conf`'s tree and the modules' directive tables. Servers and locations
//! live in flat vectors and name each other by number, so that a request holds one counted pointer of its thread and
//! touches no shared counter. Directive names do not appear here; they belong to the modules.

mod ids;
mod location_names;
mod resolve;
mod scope;
mod settings;
mod words;

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use crate::cx::Cx;
pub use crate::settings::listen::Listen;
pub use crate::settings::pools::Pools;
pub use conf::Layered;
pub use ids::{LocationId, ServerId};
pub use resolve::{Problems, examine, load};
pub use scope::Scope;
pub use settings::{HttpType, Inner, Settings, SettingsType, Start};
pub use settings::{HttpValues, SettingsTable};
pub use words::Words;

use crate::module::{ModuleTable, SubrequestHooks};
use crate::phases::Plan;
use crate::room::GivesRoom;
use crate::settings::events::EventsConf;
use crate::settings::listen::ListenSpec;
use crate::settings::locations::Locations;
use crate::settings::main::MainConf;
use crate::settings::names::ServerName;
use crate::shared_zone::Zones;
use crate::variables::Registry;
use telemetry::Targets;
use transfer::files::cache::Limits;

/// A valid configuration, and the other results of reading it.
#[derive(Debug)]
pub struct Loaded {
    /// The configuration.
    pub config: Arc<Config>,
    /// The files it came from.
    pub sources: conf::Sources,
    /// Warnings for the operator.
    pub warnings: Vec<conf::Error>,
}

/// Everything that was configured.
#[derive(Debug)]
pub struct Config {
    /// All modules of the server.
    pub modules: &'static ModuleTable,
    /// The `main` context.
    pub main: MainConf,
    /// The `events` context.
    pub events: EventsConf,
    /// Without an `http` block nothing is served.
    pub http: Http,
    /// Its needs from the process.
    pub needs: Needs,
}

/// The `http` block.
#[derive(Debug, Default)]
pub struct Http {
    /// Each address once; connections know theirs by its place here.
    pub listens: Vec<Listen>,
    /// The servers, by [`ServerId`].
    pub servers: Vec<Server>,
    /// The locations of all servers, by [`LocationId`].
    pub locations: Vec<Location>,
    /// Variables that the configuration itself defines.
    pub registry: Registry,
    /// Hooks of modules at the start of subrequests.
    pub subrequest_hooks: Vec<SubrequestHooks>,
    /// Where lines of logs go, each target once.
    pub targets: Targets,
    /// Thread pools that `aio threads=` names; the first is `default`.
    pub pools: Pools,
    /// State that all threads share, by name.
    pub zones: Zones,
    /// Components that can remove files to make room for others.
    pub room_givers: Vec<Arc<dyn GivesRoom>>,
    /// Directories of temporary files that are written, with their places.
    pub temp_folders: Vec<(PathBuf, conf::Span)>,
    /// Files that directives read beside the text, such as dictionaries.
    pub data: BTreeMap<PathBuf, Arc<Vec<u8>>>,
    /// `open_file_cache`, each directive a cache; scopes name theirs by its place here.
    pub open_file_caches: Vec<Limits>,
    /// The base of relative paths, with a slash at its end.
    pub prefix: Vec<u8>,
    /// The directory of the main configuration file, with a slash at its end, for the same.
    pub conf_prefix: Vec<u8>,
    /// The machine's name, for `$hostname`.
    pub hostname: String,
    /// Values of modules for the whole of `http`.
    pub values: HttpValues,
}

impl Http {
    /// The value of a module for the whole of `http`.
    pub fn of<T: Any>(&self) -> &T {
        self.values.of()
    }

    /// The same, to be changed while the configuration is read.
    pub fn own<T: Any>(&mut self) -> &mut T {
        self.values.own()
    }
}

/// One `server` block.
#[derive(Debug)]
pub struct Server {
    /// The first name, for `$server_name` and redirects; empty without one.
    pub name: String,
    /// Settings where no location matches; also the server's own settings.
    pub root: LocationId,
    /// The locations in it.
    pub locations: Locations,
    /// Whether one of them takes CONNECT.
    pub takes_connect: bool,
}

/// One `location` block, or a server's own scope.
#[derive(Debug)]
pub struct Location {
    /// As written, for messages: `~ \.php$`.
    pub name: String,
    /// The server that it is in.
    pub server: ServerId,
    /// The settings that hold in it.
    pub scope: Scope,
    /// Locations inside of this one.
    pub nested: Locations,
    /// The handlers of each phase here.
    pub plan: Plan,
}

/// The end of a block, for the modules that check or complete their settings in it.
pub struct BlockEnd<'a> {
    /// The kind of the block.
    pub kind: BlockKind,
    /// Where it ends.
    pub span: &'a conf::Span,
    /// The names of the server that ends.
    pub names: &'a [ServerName],
    /// Whether one of its addresses has `http2`.
    pub listens_for_http2: bool,
}

/// The kinds of blocks that have settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockKind {
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
}

/// Needs of the settings of all blocks from the process.
#[derive(Debug, Default)]
pub struct Needs {
    /// Log files, which are opened before the privileges go.
    pub log_files: BTreeSet<PathBuf>,
    /// Directories that workers write to.
    pub temp_folders: BTreeSet<PathBuf>,
    /// Whether connections may go out from addresses of others (`proxy_bind … transparent`), which the kernel lets
    /// processes with `CAP_NET_RAW` alone do (ip(7)).
    pub transparent_bind: bool,
}

impl Config {
    /// The `main` context.
    pub fn main(&self) -> &MainConf {
        &self.main
    }

    /// The `events` context.
    pub fn events(&self) -> &EventsConf {
        &self.events
    }

    /// Each address to listen on, once.
    pub fn listens(&self) -> impl Iterator<Item = &ListenSpec> {
        self.http.listens.iter().map(|listen| &listen.spec)
    }

    /// Those of them where at least one address speaks TLS.
    pub fn tls_listens(&self) -> impl Iterator<Item = &ListenSpec> {
        let all = self.http.listens.iter();
        all.filter(|listen| listen.tls_defaults().next().is_some()).map(|listen| &listen.spec)
    }

    /// The log files that are opened before the privileges go.
    pub fn log_files(&self) -> Vec<PathBuf> {
        let mut files = self.needs.log_files.clone();
        files.extend(self.main.error_log.files().map(Path::to_owned));
        files.into_iter().collect()
    }

    /// Directories that workers write to: for bodies that are too large for memory, and of caches.
    pub fn temp_folders(&self) -> Vec<PathBuf> {
        self.needs.temp_folders.iter().cloned().collect()
    }

    /// Directories of temporary files that directives name, each with the first place.
    pub fn written_temp_folders(&self) -> BTreeMap<&Path, &conf::Span> {
        self.http.temp_folders.iter().rev().map(|(path, span)| (path.as_path(), span)).collect()
    }

    /// Files beside the text that the configuration needs: with both it can be read again elsewhere.
    pub fn data_files(&self) -> impl Iterator<Item = (&Path, &[u8])> {
        self.http.data.iter().map(|(path, bytes)| (path.as_path(), bytes.as_slice()))
    }

    /// Whether connections may go out from addresses of others.
    pub fn binds_transparently(&self) -> bool {
        self.needs.transparent_bind
    }

    /// One of the servers.
    pub fn server(&self, id: ServerId) -> &Server {
        &self.http.servers[id.0 as usize]
    }

    /// One of the locations.
    pub fn location(&self, id: LocationId) -> &Location {
        &self.http.locations[id.0 as usize]
    }
}
