//! For the tests of modules: configurations from text, with `/prefix` and `/conf/nginx.conf` as places.

use std::path::Path;
use std::sync::Arc;

use conf::{Error, MapLoader, Source};

use exchange::config::{Config, Loaded};

/// Loads a whole configuration; `events {}` is put behind it.
pub fn load(text: &str) -> Result<Loaded, Error> {
    load_with(text, &[])
}

/// As [`load`], with further files.
pub fn load_with(text: &str, files: &[(&str, &str)]) -> Result<Loaded, Error> {
    let main = [("/conf/nginx.conf", format!("{text}\nevents {{}}"))];
    let others = files.iter().map(|(path, text)| (*path, (*text).to_owned()));
    let loader: MapLoader = main.into_iter().chain(others).collect();
    exchange::config::load(crate::all(), &Source::new("/conf/nginx.conf"), Path::new("/prefix"), &loader)
}

/// The configuration with this `http` block.
pub fn loaded(http: &str) -> Arc<Config> {
    let loaded = load(&format!("http {{ {http} }}"));
    loaded.unwrap_or_else(|error| panic!("{http}: {error}")).config
}

/// The error of a whole configuration.
pub fn error(text: &str) -> String {
    match load(text) {
        Err(error) => error.to_string(),
        Ok(_) => panic!("{text} was accepted"),
    }
}

/// The part of an error that nginx has too, without a remedy behind it.
pub fn without_remedy(error: &str) -> &str {
    error.split_once("; ").map_or(error, |(before, _)| before)
}

/// The warnings of a whole configuration.
pub fn warnings(text: &str) -> Vec<String> {
    let loaded = load(text).unwrap_or_else(|error| panic!("{text}: {error}"));
    loaded.warnings.iter().map(Error::to_string).collect()
}
