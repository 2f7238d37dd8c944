//! nginx's fastcgi module: requests are passed to application servers such as PHP's.
//!
//! | part | holds |
//! |---|---|
//! | [`conf`], `directives` | what only FastCGI has |
//! | `advice` | what `ringroad check` tells of it |
//! | `request` | the parameters that an upstream gets |
//! | `script` | `$fastcgi_script_name` and `$fastcgi_path_info` |
//!
//! The part shared with HTTP is in [`crate::passing`], records and their bytes are in `http::gateway::fastcgi`.

mod advice;
mod conf;
mod directives;
mod request;
mod script;

use crate::Module;
use crate::passing::{self, Rows};
pub use advice::advice;
use conf::FastCgi;

/// The module.
pub(crate) static MODULE: Module = Module {
    directives: &[
        directives::DIRECTIVES,
        Rows::<FastCgi>::CONNECTION,
        Rows::<FastCgi>::FIELDS,
        Rows::<FastCgi>::SOCKETS,
        Rows::<FastCgi>::BODIES,
        Rows::<FastCgi>::SEND_LOWAT,
        Rows::<FastCgi>::STORE,
        Rows::<FastCgi>::CACHE,
    ],
    variables: script::VARIABLES,
    ..passing::module::<FastCgi>("http_fastcgi")
};

#[cfg(test)]
mod tests;
