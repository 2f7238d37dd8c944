//! The row of a directive of this module.

use conf::{Args, Spec};

use crate::http_core::LEVELS;

/// A setting of `http`, `server` and `location`.
pub(super) const fn spec(name: &'static str, args: Args, help: &'static str) -> Spec {
    Spec::new("http_proxy", name, LEVELS, args, help)
}
