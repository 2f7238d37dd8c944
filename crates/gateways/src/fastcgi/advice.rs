//! Advice of `ringroad check` for FastCGI locations: pitfalls of `SCRIPT_FILENAME`, for which a PHP server responds with an empty
//! page or 404 and logs the reason only in its own log.

use std::path::Path;

use crate::fastcgi::conf::FastCgi;
use crate::passing::Passing;
use site::config::{Config, Location};
use site::settings::locations::Locations;

/// Returns a line for each location with a pitfall: the location and the remedy. `checks_files` is whether a location itself
/// handles scripts that do not exist.
pub fn advice(config: &Config, checks_files: fn(&Location) -> bool) -> Vec<String> {
    let mut warnings = Vec::new();
    for server in &config.http.servers {
        let name = if server.name.is_empty() { "_" } else { &server.name };
        check(config, checks_files, name, &server.locations, &mut warnings);
    }
    warnings
}

/// Checks a location, then its nested locations; an `if` is listed separately.
fn check(
    config: &Config,
    checks_files: fn(&Location) -> bool,
    server: &str,
    locations: &Locations,
    warnings: &mut Vec<String>,
) {
    for location in locations.all().map(|id| config.location(id)) {
        warnings.extend(
            pitfall(location, checks_files)
                .map(|pitfall| format!("server {server}, {}: {pitfall}", location.name)),
        );
        check(config, checks_files, server, &location.nested, warnings);
    }
}

fn pitfall(location: &Location, checks_files: fn(&Location) -> bool) -> Option<String> {
    let passing = location.scope.of::<Passing<FastCgi>>();
    passing.conf.pass.as_ref()?;
    let file = passing.protocol.params.items().iter().rev().find(|param| &*param.name == "SCRIPT_FILENAME");
    let Some(file) = file else {
        return Some(
            "no \"fastcgi_param SCRIPT_FILENAME\": php-fpm responds with an empty page. Add \
             \"fastcgi_param SCRIPT_FILENAME $document_root$fastcgi_script_name;\""
                .to_owned(),
        );
    };
    if let Some(path) = file.value.constant() {
        // The FastCGI server may see other directories, such as those of a container.
        let is_missing = !Path::new(path).exists();
        return is_missing.then(|| {
            format!("SCRIPT_FILENAME is \"{path}\", which does not exist: php-fpm responds 404, unless it sees other directories")
        });
    }
    let is_any_script = location.name.starts_with('~');
    (is_any_script && !checks_files(location)).then(|| {
        "scripts that do not exist are passed on too: php-fpm responds 404 \"File not found.\" and logs \"Primary script \
         unknown\". \"try_files $fastcgi_script_name =404;\" in this location lets this server respond"
            .to_owned()
    })
}
