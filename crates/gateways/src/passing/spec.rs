//! Creates the table row of a directive of the family. The module and the prefix of its name are added for each protocol.

use conf::{Args, Spec};

use site::declaration::LEVELS;

/// Creates a directive for `http`, `server` and `location`. The name begins with the underscore after the prefix.
pub(crate) const fn row(name: &'static str, args: Args, help: &'static str) -> Spec {
    Spec::new("", name, LEVELS, args, help)
}
