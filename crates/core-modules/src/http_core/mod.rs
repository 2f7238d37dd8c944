//! nginx's HTTP core: servers, locations, files, connections, and the rules for all responses.
//!
//! `reading`, `serving` and `blocks` have the directives; `listen` parses addresses, `variables` has the variables. The
//! settings and the tables that requests are matched against are in `site::settings`.

mod blocks;
pub(crate) mod gzip;
mod listen;
mod open_files;
mod reading;
mod serving;
#[cfg(test)]
mod tests;
pub(crate) mod variables;

pub(crate) use self::blocks::add_names;
pub(crate) use self::listen::read_stream as read_stream_listen;

use std::path::Path;

use ::conf::{Args, Contexts, Spec};

use crate::{Declaration, Module};
use site::declaration::BlockHooks;
use site::uses::{FileUse, UsedPath};

/// The module.
pub(crate) static MODULE: Module = Module {
    variables: variables::VARIABLES,
    prefixed: variables::PREFIXED,
    ..Module::of(Declaration {
        directives: &[
            blocks::DIRECTIVES,
            reading::DIRECTIVES,
            serving::DIRECTIVES,
            open_files::DIRECTIVES,
            gzip::DIRECTIVES,
        ],
        blocks: BlockHooks {
            requires: |http, scope, requirements| {
                let (files, body_files) = (&scope.core.files, &scope.core.body_files);
                if files.root_position.is_none() {
                    files.add_root_use(http.prefix_path(), FileUse::Read, &mut requirements.uses);
                }
                let temp_path = UsedPath::fixed(body_files.temp_path.path(), FileUse::Write);
                requirements.uses.add("client_body_temp_path", None, temp_path);
                requirements.log_files.extend(scope.core.error_log.files().map(Path::to_owned));
                requirements.temp_directories.insert(body_files.temp_path.path().to_owned());
            },
            ..BlockHooks::NONE
        },
        ..Declaration::named("http_core")
    })
};

const fn core(name: &'static str, contexts: Contexts, args: Args, help: &'static str) -> Spec {
    Spec::new("http_core", name, contexts, args, help)
}
