//! Files of a request: the path of a URI, by which rules it is opened, and opening it.

pub(crate) mod links;
mod open;
mod paths;

use std::path::Path;
use std::sync::Arc;

pub(crate) use crate::files::{
    Failure, Found, Kind, Opened, RootFacts, display, is_dir, is_file, is_on_local_disk, status_of,
};
pub(crate) use open::{
    Folder, close_unused, look, open, open_at_once, open_by_engine, open_folder, stat_anywhere,
};
pub(crate) use paths::{alias_is_lost, path_of, put_behind, root_len, root_of, set_found_below_alias};

use crate::body::Place;
use crate::body::rules::FileRules;
use crate::config::Config;
use crate::files::cache::{CacheId, Terms};
use crate::request::Request;
use crate::settings::core::Core;
use links::Links;

/// How files are opened, as blocks inherit it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Opening {
    /// `root_beneath`: never follow anything out of the root.
    pub(crate) beneath: bool,
    /// `disable_symlinks`, where it is not off.
    pub(crate) links: Option<Arc<Links>>,
    /// `open_file_cache`
    pub(crate) cache: Option<CacheId>,
    /// `open_file_cache off` written out: no file stays open, not even for a moment.
    pub(crate) lets_go: bool,
    /// What is asked of the cache.
    pub(crate) terms: Terms,
}

/// The facts of the root of each location, in their order. Blocks on the disk: for start and reload.
pub(crate) fn root_facts(config: &Config) -> Vec<RootFacts> {
    let direct_calls = config.events().calls_directly();
    let facts = |core: &Core| match core.files.root.template().constant() {
        Some(path) => RootFacts::of(Path::new(path), core.files.opening.beneath, direct_calls),
        None => RootFacts::default(),
    };
    config.http.locations.iter().map(|location| facts(&location.scope.core)).collect()
}

/// Where a request opens files.
pub(crate) fn place_of(request: &Request) -> Place {
    Place {
        rules: FileRules::from(&request.scope().core.sending),
        roots: std::rc::Rc::clone(&request.generation.roots),
        root: request.location.0 as usize,
    }
}
