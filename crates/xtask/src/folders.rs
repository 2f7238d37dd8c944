//! The order of the folders inside crate `server`: an import may point to the same layer or to a lower one.
//!
//! [`LAYERS`] is the order, [`PLACES`] says to which layer a file or folder belongs. `crates/xtask/upward-imports.txt`
//! lists the imports that point upwards all the same. The list may only shrink: an upward import that is not in it
//! fails, and so does a line without its import. When it is empty each layer can become a crate.

use std::collections::BTreeSet;

use crate::imports::Imports;

/// The crate whose folders have an order.
pub(crate) const CRATE: &str = "server";

/// Where the exceptions stand.
pub(crate) const FILE: &str = "crates/xtask/upward-imports.txt";

/// The comment at the start of that file.
const HEADER: &str = "\
# Imports of crate server that point from a lower layer to a higher one (the layers are in
# crates/xtask/src/folders.rs). The list may only shrink; `cargo xtask tidy --tighten` removes what is gone.
";

/// A layer, and the layers that it may import from besides its own.
///
/// `upstream` and `frontend` stand side by side: what speaks to other servers never speaks to a client.
const LAYERS: &[(&str, &[&str])] = &[
    // Log lines and numbers on their way out. Never holds up what writes them, and knows no request.
    ("telemetry", &[]),
    // Bytes from where they lie to where they go: files, bodies, codecs. Knows no request and no directive.
    ("transfer", &["telemetry"]),
    // One request and its response: variables, phases, settings, error pages, subrequests. Has no socket.
    ("exchange", &["telemetry", "transfer"]),
    // Other servers: peers, names, connections to them, the cache of their responses.
    ("upstream", &["telemetry", "transfer", "exchange"]),
    // Clients: accepted connections and HTTP/1. Knows no module and no upstream.
    ("frontend", &["telemetry", "transfer", "exchange"]),
    // nginx's modules: directives, handlers, filters, variables.
    ("modules", &["telemetry", "transfer", "exchange", "upstream"]),
    // Puts everything together: threads, the table of modules, reloads.
    ("server", &["telemetry", "transfer", "exchange", "upstream", "frontend", "modules"]),
];

/// The layer of each file. The longest entry that a path starts with decides.
const PLACES: &[(&str, &str)] = &[
    ("base64.rs", "exchange"),
    ("body/", "transfer"),
    ("body/filter.rs", "exchange"),
    ("body/flow.rs", "exchange"),
    ("body/levels.rs", "exchange"),
    ("caching/", "upstream"),
    ("coding/", "transfer"),
    ("coding/accept.rs", "modules"),
    ("coding/apply.rs", "modules"),
    ("coding/encoder.rs", "exchange"),
    ("coding/precompressed.rs", "modules"),
    ("config/", "exchange"),
    ("config/testing.rs", "server"),
    ("connection/", "frontend"),
    ("exchange/", "exchange"),
    ("error_log.rs", "exchange"),
    ("extensions.rs", "exchange"),
    ("files/", "transfer"),
    ("incoming.rs", "transfer"),
    ("module.rs", "exchange"),
    ("modules/", "modules"),
    ("network.rs", "exchange"),
    ("pattern.rs", "exchange"),
    ("phases.rs", "exchange"),
    ("process/accept.rs", "frontend"),
    ("received.rs", "transfer"),
    ("recency.rs", "transfer"),
    ("request.rs", "exchange"),
    ("resolve/", "upstream"),
    ("response.rs", "exchange"),
    ("room/", "exchange"),
    ("settings/", "exchange"),
    ("shared.rs", "exchange"),
    ("shared_zone/", "exchange"),
    ("slots.rs", "exchange"),
    ("subrequest.rs", "exchange"),
    ("telemetry/", "telemetry"),
    ("template.rs", "exchange"),
    ("thread.rs", "exchange"),
    ("upstream/", "upstream"),
    ("variables.rs", "exchange"),
    ("wildcard.rs", "exchange"),
];

/// Returns one line for each upward import that is not listed, and for each listed one that is gone.
pub(crate) fn check(imports: &Imports, listed: &str) -> Vec<String> {
    let listed: BTreeSet<String> = lines_of(listed).collect();
    let found = upward(imports);
    let new = found.difference(&listed).map(|import| {
        format!("crate {CRATE}: {import} points upwards (layers: crates/xtask/src/folders.rs)")
    });
    let gone = listed.difference(&found).map(|import| {
        format!("{FILE}: {import} points upwards no more: cargo xtask tidy --tighten removes the line")
    });
    new.chain(gone).collect()
}

/// The list without the imports that are gone. Nothing is added to it.
pub(crate) fn tightened(imports: &Imports, listed: &str) -> String {
    let found = upward(imports);
    let kept = lines_of(listed).filter(|line| found.contains(line));
    kept.fold(HEADER.to_owned(), |text, line| text + &line + "\n")
}

/// The number of listed imports.
pub(crate) fn listed_count(listed: &str) -> usize {
    lines_of(listed).count()
}

fn lines_of(listed: &str) -> impl Iterator<Item = String> + '_ {
    listed.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).map(str::to_owned)
}

/// Every import that its layer does not allow, as `FROM -> TO`.
fn upward(imports: &Imports) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (from, targets) in imports {
        let (own, below) = layer_of(from);
        for to in targets {
            let (layer, _) = layer_of(to);
            if layer != own && !below.contains(&layer) {
                found.insert(format!("{from} -> {to}"));
            }
        }
    }
    found
}

/// The layer of a file, and the layers below it. A file without a place, or with one that has no layer, is in the
/// highest layer: whatever imports it then points upwards and is reported.
fn layer_of(path: &str) -> (&'static str, &'static [&'static str]) {
    let entries = PLACES.iter().filter(|(start, _)| path.starts_with(start));
    let name = entries.max_by_key(|(start, _)| start.len()).map_or("", |(_, layer)| layer);
    let layer = LAYERS.iter().find(|(layer, _)| *layer == name);
    *layer.unwrap_or(&LAYERS[LAYERS.len() - 1])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn imports(arrows: &[(&str, &str)]) -> Imports {
        let mut imports = Imports::new();
        for (from, to) in arrows {
            imports.entry((*from).to_owned()).or_default().insert((*to).to_owned());
        }
        imports
    }

    #[test]
    fn imports_to_lower_layers_are_fine() {
        let down = [
            ("lib.rs", "modules/index.rs"),
            ("modules/index.rs", "request.rs"),
            ("modules/proxy/pass.rs", "upstream/fetch.rs"),
            ("upstream/fetch.rs", "telemetry/error.rs"),
            ("telemetry/error.rs", "telemetry/mod.rs"),
        ];
        assert_eq!(check(&imports(&down), ""), Vec::<String>::new());
    }

    #[test]
    fn upward_imports_are_listed_or_fail() {
        let up = imports(&[("telemetry/sink.rs", "thread.rs"), ("upstream/fetch.rs", "connection/mod.rs")]);
        assert_eq!(check(&up, "").len(), 2);
        let listed = "# why\ntelemetry/sink.rs -> thread.rs\nupstream/fetch.rs -> connection/mod.rs\n";
        assert_eq!(check(&up, listed), Vec::<String>::new());
        assert_eq!(listed_count(listed), 2);
    }

    #[test]
    fn every_place_names_a_layer() {
        for (path, layer) in PLACES {
            assert_eq!(layer_of(path).0, *layer, "{path}");
        }
        assert_eq!(layer_of("memory.rs").0, "server");
    }

    #[test]
    fn the_list_only_shrinks() {
        let up = imports(&[("telemetry/sink.rs", "thread.rs"), ("telemetry/sink.rs", "request.rs")]);
        let listed = "telemetry/sink.rs -> config/mod.rs\ntelemetry/sink.rs -> thread.rs\n";
        let problems = check(&up, listed);
        assert_eq!(problems.len(), 2, "{problems:?}");
        assert!(problems[0].contains("sink.rs -> request.rs points upwards ("), "{problems:?}");
        assert!(problems[1].contains("sink.rs -> config/mod.rs points upwards no more"), "{problems:?}");
        assert_eq!(tightened(&up, listed), format!("{HEADER}telemetry/sink.rs -> thread.rs\n"));
    }
}
