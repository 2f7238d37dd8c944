//! The directories of files, and how files are opened: settings of `http_core`, with nginx's defaults.

use std::path::Path;
use std::sync::Arc;

use conf::Span;

use crate::settings::types::Types;
use crate::template::Template;
use crate::uses::{FileUse, UsedPath, Uses};
use telemetry::links::Refused;
use transfer::files::cache::{CacheId, CacheSettings};

/// `root` or `alias`.
#[derive(Clone, Debug)]
pub enum Root {
    /// The URI is appended.
    Root(Template),
    /// The part of the URI after the location's prefix is appended.
    Alias(Template),
}

impl Root {
    /// Returns the path.
    pub fn template(&self) -> &Template {
        match self {
            Root::Root(path) | Root::Alias(path) => path,
        }
    }
}

/// Settings of how files are opened.
#[derive(Clone, Debug, Default)]
pub struct Opening {
    /// `root_beneath`: no path may leave the root.
    pub beneath: bool,
    /// `disable_symlinks`, unless it is off.
    pub links: Option<Arc<Links>>,
    /// `open_file_cache`
    pub cache: Option<CacheId>,
    /// Whether `open_file_cache off` is set explicitly: no file stays open after a request, not even briefly.
    pub closes_immediately: bool,
    /// The settings of the open-file cache.
    pub settings: CacheSettings,
}

/// `disable_symlinks`
#[derive(Clone, Debug, PartialEq)]
pub struct Links {
    /// Which links are refused.
    pub refused: Refused,
    /// `from=`: the leading path in which links are followed.
    pub from: Option<Template>,
}

/// The root of files, the settings for opening them, and their media types.
#[derive(Clone, Debug)]
pub struct Files {
    /// `root` or `alias`.
    pub root: Root,
    /// Settings for opening and caching files.
    pub opening: Opening,
    /// `types`
    pub types: Arc<Types>,
    /// `default_type`
    pub default_type: Arc<str>,
    /// The text that an `alias` replaces: the prefix of its location, which nested locations inherit.
    pub location_prefix: Arc<str>,
    /// Whether the location with the `alias` is found by a regular expression.
    pub by_pattern: bool,
    /// The block of the `root` or `alias`; 0 if there is none.
    pub root_block: u32,
    /// The position of the `root` or `alias`; `None` if there is none.
    pub root_position: Option<Span>,
}

impl Files {
    /// Records how the root is used, if it is not only read.
    pub fn add_root_use(&self, base: &Path, file_use: FileUse, uses: &mut Uses) {
        let (directive, path) = match &self.root {
            Root::Root(path) => ("root", path.clone()),
            Root::Alias(path) => ("alias", path.clone()),
        };
        uses.add(directive, self.root_position.as_ref(), UsedPath { path, base: base.to_owned(), file_use });
    }
}

impl Default for Files {
    fn default() -> Files {
        Files {
            root: Root::Root(Template::text("html")),
            opening: Opening::default(),
            types: Arc::default(),
            default_type: "text/plain".into(),
            location_prefix: "".into(),
            by_pattern: false,
            root_block: 0,
            root_position: None,
        }
    }
}
