//! Shows for `ringroad check` which engine sends the bodies of each location, and likely mistakes.

use std::fmt::Write;

use io::engine::Caps;

use site::config::{Config, LocationId, Server};
use site::settings::locations::Locations;
use transfer::body::choose;
use transfer::body::rules::Sending;

/// Returns a line for each location, with its server, its name, and the engine for small files and for files of at
/// least the size of `directio`. Lines about likely mistakes follow.
pub fn explain(config: &Config, caps: &Caps) -> String {
    let mut text = String::new();
    // Without a listening address, the only server is the one that the loader has added.
    let has_servers = !config.http.listens.is_empty();
    for server in config.http.servers.iter().filter(|_| has_servers) {
        let name = if server.name.is_empty() { "_" } else { &server.name };
        line(&mut text, config, caps, name, server.root);
        walk(&mut text, config, caps, server, &server.locations);
    }
    let advice = modules::advice(config);
    if !advice.is_empty() {
        text.push_str("\nLikely mistakes:\n");
        advice.iter().for_each(|line| text.extend([line, "\n"]));
    }
    text
}

/// Writes the lines of locations; nested locations follow the enclosing location.
fn walk(text: &mut String, config: &Config, caps: &Caps, server: &Server, locations: &Locations) {
    let name = if server.name.is_empty() { "_" } else { &server.name };
    for id in locations.all() {
        line(text, config, caps, name, id);
        walk(text, config, caps, server, &config.location(id).nested);
    }
}

/// Returns the engine for small files and for files of at least the size of `directio`, with these settings. Size zero stands for
/// small files. By default a different engine sends long files, and files of at least the size of `directio`.
pub fn movers(sending: &Sending, caps: &Caps) -> String {
    let mover = |size| choose::mover(sending, caps, size);
    let from = sending.directio.unwrap_or(choose::LONG_FROM);
    let mut text = mover(0).to_string();
    if mover(from) != mover(0) {
        // Writing to a `String` cannot fail.
        let _ = write!(text, "; files of {from} bytes and more: {}", mover(from));
    }
    text
}

/// Writes the line of a location.
fn line(text: &mut String, config: &Config, caps: &Caps, server: &str, id: LocationId) {
    let location = config.location(id);
    let movers = movers(&location.scope.core.sending, caps);
    // Writing to a `String` cannot fail.
    let _ = writeln!(text, "server {server}, {}: {movers}", location.name);
}
