//! The allowed dependencies between crates: the layers of the architecture, checked with `cargo metadata`.
//!
//! The main chain is `io` <- `rt` <- `transfer` <- `site` <- `exchange` <- `modules` <- `server` <- `ringroad`: a crate may
//! depend on the crates to its left. `http` and `conf` depend on no other crate; `peers` is beside `exchange`; `upstream` <-
//! `caching` are beside `frontend`, between `exchange` and `modules`; `bench` measures and is not used for serving;
//! `instructions`, `testkit` and `xtask` are for development. Module `roots` compares the root of each crate with this table.

use crate::metadata::{Metadata, Package};

/// The crates of the workspace, each with the crates of the workspace that it may use.
///
/// A crate that is not in this table fails the check: adding a crate is a decision about layers.
const LAYERS: &[(&str, &[&str])] = &[
    ("http", &[]),
    ("conf", &[]),
    ("lint", &["conf"]),
    ("jose", &[]),
    ("io", &[]),
    ("thread-alloc", &[]),
    ("sandbox", &["io"]),
    ("rt", &["io", "thread-alloc"]),
    ("cache", &["io", "rt", "http"]),
    ("tls", &["io", "rt"]),
    ("acme", &["http", "tls"]),
    ("telemetry", &["io", "rt", "http", "conf"]),
    ("transfer", &["io", "rt", "http", "telemetry"]),
    ("site", &["io", "http", "conf", "telemetry", "transfer"]),
    ("exchange", &["io", "rt", "http", "conf", "tls", "telemetry", "transfer", "site"]),
    ("peers", &["io", "rt", "http", "conf", "telemetry", "site"]),
    ("upstream", &["io", "rt", "http", "conf", "tls", "telemetry", "transfer", "site", "exchange", "peers"]),
    (
        "caching",
        &[
            "io",
            "rt",
            "http",
            "conf",
            "cache",
            "telemetry",
            "transfer",
            "site",
            "exchange",
            "peers",
            "upstream",
        ],
    ),
    ("frontend", &["io", "rt", "http", "tls", "telemetry", "transfer", "site", "exchange"]),
    // The crates of modules, which do not depend on each other. Only those that pass requests on may use upstreams and
    // caches.
    (
        "core-modules",
        &["io", "rt", "http", "conf", "tls", "acme", "telemetry", "transfer", "site", "exchange"],
    ),
    ("guards", &["io", "rt", "http", "conf", "jose", "telemetry", "transfer", "site", "exchange"]),
    (
        "gateways",
        &[
            "io",
            "rt",
            "http",
            "conf",
            "jose",
            "cache",
            "tls",
            "telemetry",
            "transfer",
            "site",
            "exchange",
            "peers",
            "upstream",
            "caching",
        ],
    ),
    ("handlers", &["io", "rt", "http", "conf", "telemetry", "transfer", "site", "exchange"]),
    ("filters", &["rt", "http", "conf", "telemetry", "transfer", "site", "exchange"]),
    (
        "modules",
        &[
            "io",
            "rt",
            "http",
            "conf",
            "telemetry",
            "transfer",
            "site",
            "exchange",
            "peers",
            "upstream",
            "caching",
            "core-modules",
            "guards",
            "gateways",
            "handlers",
            "filters",
        ],
    ),
    (
        "server",
        &[
            "io",
            "rt",
            "conf",
            "tls",
            "acme",
            "telemetry",
            "transfer",
            "site",
            "exchange",
            "peers",
            "upstream",
            "caching",
            "frontend",
            "modules",
            "thread-alloc",
        ],
    ),
    ("bare", &["io"]),
    ("bench", &["io", "rt", "http", "bare", "tls"]),
    (
        "ringroad",
        &[
            "io",
            "rt",
            "http",
            "conf",
            "cache",
            "tls",
            "acme",
            "lint",
            "sandbox",
            "site",
            "server",
            "bench",
            "thread-alloc",
        ],
    ),
    (
        "instructions",
        &[
            "io",
            "rt",
            "http",
            "conf",
            "cache",
            "telemetry",
            "site",
            "exchange",
            "peers",
            "caching",
            "frontend",
            "modules",
            "thread-alloc",
        ],
    ),
    ("testkit", &["http"]),
    ("xtask", &[]),
];

/// Additional crates that may be used in tests only: the modules that parse the configurations that the tests need.
const IN_TESTS: &[(&str, &[&str])] = &[
    ("frontend", &["modules"]),
    ("guards", &["core-modules"]),
    ("gateways", &["core-modules", "guards"]),
    ("handlers", &["core-modules"]),
    ("filters", &["core-modules"]),
    ("server", &["http"]),
];

/// The crate that all crates may use in their tests.
const TEST_SUPPORT: &str = "testkit";

/// Returns the crates of the workspace that a crate may use.
pub(crate) fn allowed(name: &str) -> Option<&'static [&'static str]> {
    LAYERS.iter().find(|(krate, _)| *krate == name).map(|(_, below)| *below)
}

/// Returns one line for each dependency that is not allowed.
pub(crate) fn check(metadata: &Metadata) -> Vec<String> {
    let members: Vec<&Package> = metadata.packages.iter().filter(|package| package.member).collect();
    let mut problems = Vec::new();
    for package in &members {
        let Some(below) = allowed(&package.name) else {
            let name = &package.name;
            problems.push(format!("crate {name} is not in LAYERS of crates/xtask/src/layers.rs"));
            continue;
        };
        for dependency in &package.dependencies {
            let known = below.contains(&dependency.name.as_str());
            let own = IN_TESTS.iter().find(|(name, _)| *name == package.name).map_or(&[][..], |(_, own)| own);
            let name = dependency.name.as_str();
            let in_tests = dependency.dev && (name == TEST_SUPPORT || own.contains(&name));
            let internal = members.iter().any(|member| member.name == dependency.name);
            if internal && !known && !in_tests {
                let (from, to) = (&package.name, &dependency.name);
                problems.push(format!("crate {from} must not depend on {to}: it may use {below:?}"));
            }
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::Dependency;

    fn workspace(arrows: &[(&str, &str, bool)]) -> Metadata {
        let mut metadata = Metadata::default();
        for name in ["io", "rt", "http", "server", "testkit", "xtask"] {
            let used = arrows.iter().filter(|(from, ..)| *from == name);
            let dependencies =
                used.map(|(_, to, dev)| Dependency { name: (*to).to_owned(), dev: *dev }).collect();
            metadata.packages.push(Package {
                name: name.to_owned(),
                member: true,
                dependencies,
                ..Package::default()
            });
        }
        metadata
    }

    #[test]
    fn dependencies_pointing_down_are_allowed() {
        let arrows = [
            ("rt", "io", false),
            ("server", "rt", false),
            ("io", "testkit", true),
            ("http", "memchr", false),
        ];
        assert_eq!(check(&workspace(&arrows)), Vec::<String>::new());
    }

    #[test]
    fn dependencies_pointing_up_or_sideways_are_refused() {
        for arrow in [
            ("io", "rt", false),
            ("io", "rt", true),
            ("http", "io", false),
            ("server", "testkit", false),
            ("server", "xtask", true),
        ] {
            let problems = check(&workspace(&[arrow]));
            assert_eq!(problems.len(), 1, "{arrow:?}: {problems:?}");
        }
    }

    #[test]
    fn an_unknown_crate_needs_a_layer() {
        let mut metadata = workspace(&[]);
        metadata.packages[0].name = "extra".to_owned();
        assert!(check(&metadata)[0].contains("extra is not in LAYERS"));
    }
}
