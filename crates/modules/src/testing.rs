//! Helpers for the tests of modules: load configurations from text, with the prefix `/prefix` and the file
//! `/conf/nginx.conf`.

use std::path::Path;
use std::sync::Arc;

use conf::{Error, MapLoader, Source};

use site::config::{Config, Loaded};

/// Loads a complete configuration; appends `events {}` unless the text begins with `events`.
pub fn load(text: &str) -> Result<Loaded, Error> {
    load_with(text, &[])
}

/// As [`load`], with additional files.
pub fn load_with(text: &str, files: &[(&str, &str)]) -> Result<Loaded, Error> {
    let events = if text.starts_with("events") { "" } else { "\nevents {}" };
    let main = [("/conf/nginx.conf", format!("{text}{events}"))];
    let others = files.iter().map(|(path, text)| (*path, (*text).to_owned()));
    let loader: MapLoader = main.into_iter().chain(others).collect();
    site::config::load(
        crate::all().declarations(),
        &Source::new("/conf/nginx.conf"),
        Path::new("/prefix"),
        &loader,
    )
}

/// Returns the configuration with this `http` block.
pub fn loaded(http: &str) -> Arc<Config> {
    let loaded = load(&format!("http {{ {http} }}"));
    loaded.unwrap_or_else(|error| panic!("{http}: {error}")).config
}

/// Returns the error of a complete configuration.
pub fn error(text: &str) -> String {
    match load(text) {
        Err(error) => error.to_string(),
        Ok(_) => panic!("{text} was accepted"),
    }
}

/// Returns the part of an error that nginx has too, without the remedy.
pub fn without_remedy(error: &str) -> &str {
    error.split_once("; ").map_or(error, |(before, _)| before)
}

/// Returns the warnings of a complete configuration.
pub fn warnings(text: &str) -> Vec<String> {
    let loaded = load(text).unwrap_or_else(|error| panic!("{text}: {error}"));
    loaded.warnings.iter().map(Error::to_string).collect()
}
