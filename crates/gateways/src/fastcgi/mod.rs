//! nginx's fastcgi module: passes requests to application servers such as PHP's.
//!
//! | file | content |
//! |---|---|
//! | [`conf`], `directives` | settings that only FastCGI has |
//! | `advice` | advice of `ringroad check` |
//! | `request` | the parameters for the application server |
//! | `script` | `$fastcgi_script_name` and `$fastcgi_path_info` |
//!
//! [`crate::passing`] has the part shared with HTTP, `http::gateway::fastcgi` the encoding of records.

mod advice;
mod conf;
mod directives;
mod request;
mod script;

use crate::Module;
use crate::passing::{self, Rows};
pub use advice::advice;
pub(crate) use conf::FastCgi;

/// The module.
pub(crate) static MODULE: Module = Module {
    variables: script::VARIABLES,
    ..passing::module::<FastCgi>(
        "http_fastcgi",
        &[
            directives::DIRECTIVES,
            Rows::<FastCgi>::CONNECTION,
            Rows::<FastCgi>::FIELDS,
            Rows::<FastCgi>::SOCKETS,
            Rows::<FastCgi>::BODIES,
            Rows::<FastCgi>::SEND_LOWAT,
            Rows::<FastCgi>::STORE,
            Rows::<FastCgi>::CACHE,
        ],
    )
};

#[cfg(test)]
mod tests;
