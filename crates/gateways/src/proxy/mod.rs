//! nginx's proxy module: HTTP to upstreams, as one protocol of the family in [`crate::passing`].
//!
//! | file | content |
//! |---|---|
//! | [`conf`], `directives` | settings that only HTTP has |
//! | `request` | the request for the upstream |
//! | `rewrites` | redirects and cookies of responses |
//! | `variables` | `$proxy_host` and related variables |

mod conf;
mod directives;
mod request;
mod rewrites;
mod variables;

use crate::Module;
use crate::passing::{self, Rows};
pub(crate) use conf::Http;
pub(crate) use directives::add_field;
pub(crate) use request::build;

/// The module.
pub(crate) static MODULE: Module = Module {
    variables: variables::VARIABLES,
    ..passing::module::<Http>(
        "http_proxy",
        &[
            directives::DIRECTIVES,
            rewrites::DIRECTIVES,
            Rows::<Http>::CONNECTION,
            Rows::<Http>::TUNNELS,
            Rows::<Http>::FIELDS,
            Rows::<Http>::SOCKETS,
            Rows::<Http>::BODIES,
            Rows::<Http>::SEND_LOWAT,
            Rows::<Http>::STORE,
            Rows::<Http>::CACHE,
            Rows::<Http>::TLS,
        ],
    )
};

#[cfg(test)]
mod tests;
