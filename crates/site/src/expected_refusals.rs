//! What the sandbox will refuse: paths that only a request determines, and symbolic links that lead out of the allowed
//! directories. For `ringroad check`, so that an operator reads it before a client gets a response with status 403.
//!
//! The search for links blocks on the disk and is bounded ([`SearchLimits`]).

use std::path::Path;
use std::time::Duration;

use crate::allowed_paths::{AllowedPaths, LinksOut, SearchLimits};
use crate::config::Config;
use crate::needs::{Access, OfDirective, OpenNeed, needs};
use crate::omitted_paths::OmittedPath;
use crate::settings::main::Sandbox;

/// Bounds of the search for links: directories with a hundred thousand files are usual on mirrors.
const LIMITS: SearchLimits = SearchLimits { entries: 100_000, time: Duration::from_secs(2) };

/// What the sandbox will refuse.
#[derive(Clone, Debug, Default)]
pub struct ExpectedRefusals {
    /// Paths that only a request determines.
    pub open: Vec<OpenNeed>,
    /// Paths of directives that are not allowed.
    pub omitted: Vec<OmittedPath>,
    /// Symbolic links in the first two levels of the directories that are read.
    pub links: LinksOut,
    /// Values of directives whose port only a request determines. Connections to all ports are allowed, except with
    /// `sandbox strict`.
    pub any_ports: Vec<OfDirective<String>>,
    /// Whether the ports of `any_ports` are refused, unless another directive names them.
    pub is_strict: bool,
}

/// Finds what the sandbox will refuse: nothing if it is off.
pub fn expected_refusals(config: &Config) -> ExpectedRefusals {
    if config.main.sandbox == Sandbox::Off {
        return ExpectedRefusals::default();
    }
    let needs = needs(config);
    let allowed = AllowedPaths::of(&needs.paths);
    let is_read = needs.paths.iter().filter(|need| need.access == Access::Read);
    let mut directories: Vec<&Path> = is_read.map(|need| need.path.as_path()).collect();
    directories.sort_unstable();
    directories.dedup();
    let links = allowed.links_out(directories, LIMITS);
    let omitted = allowed.omitted().cloned().collect();
    let is_strict = config.main.sandbox == Sandbox::Strict;
    ExpectedRefusals { open: needs.open, omitted, links, any_ports: needs.any_ports, is_strict }
}
