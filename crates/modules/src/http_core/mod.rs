//! nginx's HTTP core: servers, locations, files, connections, and the rules for all responses.
//!
//! `conf` holds the settings; `reading`, `serving` and `blocks` the directives; `listen`, `names` and
//! `locations` the tables that requests are matched against.

mod blocks;
pub(crate) mod gzip;
mod listen;
mod open_files;
mod reading;
pub(crate) mod resolver;
mod serving;
#[cfg(test)]
mod tests;
pub(crate) mod variables;

pub(crate) use blocks::NO_HASH;

use std::path::Path;

use ::conf::{Args, Contexts, Spec};

use crate::Module;
use exchange::config::{BlockKind, HttpType, SettingsType};
use exchange::module::BlockHooks;
use upstream::resolve;
use upstream::resolve::HttpConf;

/// The module.
pub(crate) static MODULE: Module = Module {
    directives: &[
        blocks::DIRECTIVES,
        reading::DIRECTIVES,
        serving::DIRECTIVES,
        open_files::DIRECTIVES,
        gzip::DIRECTIVES,
        resolver::DIRECTIVES,
    ],
    variables: variables::VARIABLES,
    prefixed: variables::PREFIXED,
    settings: &[SettingsType::of::<resolve::Conf>()],
    http: &[HttpType::of::<HttpConf>()],
    blocks: BlockHooks {
        end: |http, scope, end| {
            // For the groups of servers, which have no other block.
            if end.kind == BlockKind::Http {
                http.own::<HttpConf>().0 = scope.of::<resolve::Conf>().clone();
            }
            Ok(())
        },
        needs: |_, scope, needs| {
            needs.log_files.extend(scope.core.error_log.files().map(Path::to_owned));
            needs.temp_folders.insert(scope.core.body_files.temp_path.0.clone());
        },
        ..BlockHooks::NONE
    },
    ..Module::named("http_core")
};

/// Own directives carry this instead of a module of nginx.
pub(crate) const OWN: &str = "ringroad";

pub(crate) const SERVER_LEVELS: Contexts = Contexts::HTTP.or(Contexts::SERVER);
pub(crate) const LEVELS: Contexts = SERVER_LEVELS.or(Contexts::LOCATION);
pub(crate) const LEVELS_AND_IF: Contexts = LEVELS.or(Contexts::LOCATION_IF);

const fn core(name: &'static str, contexts: Contexts, args: Args, help: &'static str) -> Spec {
    Spec::new("http_core", name, contexts, args, help)
}
