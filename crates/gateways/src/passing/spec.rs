//! The row of a directive of the family: without module and prefix, which are its protocol's
//! ([`exchange::module::Module::prefix`]).

use conf::{Args, Spec};

use exchange::module::LEVELS;

/// A setting of `http`, `server` and `location`. The name begins with the underscore behind the prefix.
pub(crate) const fn row(name: &'static str, args: Args, help: &'static str) -> Spec {
    Spec::new("", name, LEVELS, args, help)
}
