//! Maps a URI to a file: the path under the root, open, stat.
//!
//! Every call that may block on a slow disk uses the engine that the location chose. All modules open files with
//! [`open()`], which applies `disable_symlinks`, `root_beneath` and `open_file_cache`. [`stat_path`] only checks for
//! existence, [`open_directory`] lists directories, [`links`] implements `disable_symlinks`. Modules that create, rename
//! or remove files do so by a [`ChangePath`], which applies the same rules.

mod changes;
pub mod links;
mod open;
mod paths;

use std::path::Path;

pub use changes::{ChangePath, CopyError, copy_bytes, dress, open_below, temp_name};
pub use open::{
    OpenDirectory, disk, open, open_anywhere, open_by_engine, open_directory, stat_anywhere, stat_path,
    try_open,
};
pub use paths::{is_alias_undefined, path_of, prepend_directory, root_len, root_of, set_found_below_alias};
pub use site::settings::files::{Links, Opening};
pub use transfer::files::{
    Failure, FileKind, Opened, OpenedPath, RootFacts, display, is_dir, is_file, is_on_local_disk, status_of,
};

use crate::request::Request;
use site::config::Config;
use site::settings::core::Core;
use transfer::body::OpenContext;
use transfer::body::rules::FileRules;

/// Returns the facts of each location's root, in order of the locations. Blocks on the disk: for start and reload only.
pub fn root_facts(config: &Config) -> Vec<RootFacts> {
    let direct_calls = config.events().calls_directly();
    let facts = |core: &Core| match core.files.root.template().constant() {
        Some(path) => RootFacts::of(Path::new(path), core.files.opening.beneath, direct_calls),
        None => RootFacts::default(),
    };
    config.http.locations.iter().map(|location| facts(&location.scope.core)).collect()
}

/// Returns the rules and roots with which a request opens files.
pub fn open_context(request: &Request) -> OpenContext {
    OpenContext {
        rules: FileRules::from(&request.scope().core.sending),
        roots: std::rc::Rc::clone(&request.thread_config.roots),
        root: request.location.0 as usize,
    }
}
