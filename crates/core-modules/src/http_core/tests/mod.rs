//! Tests of the settings of directives, and of the tables that requests are matched against.

mod listen;
mod locations;
mod names;
mod settings;

use std::sync::Arc;

use crate::testing::loaded;
use site::config::Config;

/// Returns a configuration with one server.
fn server(text: &str) -> Arc<Config> {
    loaded(&format!("server {{ {text} }}"))
}
