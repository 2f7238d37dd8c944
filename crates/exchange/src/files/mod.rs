//! From a URI to a file: the path under the root, opening, looking at it.
//!
//! Everything that may touch a slow disk goes through the engine that the location chose. [`open()`] is the way to a
//! file for all modules: it keeps to `disable_symlinks` and `root_beneath` and answers from `open_file_cache`; [`look`]
//! only checks for existence, [`open_folder`] is for lists. [`links`] is `disable_symlinks`.

pub mod links;
mod open;
mod paths;

use std::path::Path;

pub use crate::settings::files::{Links, Opening};
pub use open::{Folder, look, open, open_at_once, open_by_engine, open_folder, stat_anywhere};
pub use paths::{alias_is_lost, path_of, put_behind, root_len, root_of, set_found_below_alias};
pub use transfer::files::{
    Failure, Found, Kind, Opened, RootFacts, display, is_dir, is_file, is_on_local_disk, status_of,
};

use crate::config::Config;
use crate::request::Request;
use crate::settings::core::Core;
use transfer::body::Place;
use transfer::body::rules::FileRules;

/// The facts of the root of each location, in their order. Blocks on the disk: for start and reload.
pub fn root_facts(config: &Config) -> Vec<RootFacts> {
    let direct_calls = config.events().calls_directly();
    let facts = |core: &Core| match core.files.root.template().constant() {
        Some(path) => RootFacts::of(Path::new(path), core.files.opening.beneath, direct_calls),
        None => RootFacts::default(),
    };
    config.http.locations.iter().map(|location| facts(&location.scope.core)).collect()
}

/// Where a request opens files.
pub fn place_of(request: &Request) -> Place {
    Place {
        rules: FileRules::from(&request.scope().core.sending),
        roots: std::rc::Rc::clone(&request.generation.roots),
        root: request.location.0 as usize,
    }
}
