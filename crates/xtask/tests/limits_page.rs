//! Compares `docs/limits.md` with the sources: each limit of a resource that clients share has a row, and the tests that the rows
//! name exist. A new limit without a row fails.

use std::collections::BTreeSet;
use std::fs;

use sources::{root, sources};

mod sources;

/// The crates that serve requests.
const CRATES: [&str; 20] = [
    "io",
    "rt",
    "transfer",
    "site",
    "exchange",
    "peers",
    "upstream",
    "caching",
    "frontend",
    "cache",
    "tls",
    "telemetry",
    "gateways",
    "guards",
    "handlers",
    "filters",
    "modules",
    "core-modules",
    "server",
    "thread-alloc",
];

/// The structs whose fields are state of a thread.
const STRUCTS: [(&str, &str); 2] =
    [("exchange/src/capacity/mod.rs", "Capacity"), ("exchange/src/thread.rs", "Thread")];

/// Words in the documentation of a constant that limits a resource of threads or of the process.
const SHARED: [&str; 18] = [
    "per thread",
    "of a thread",
    "of the thread",
    "one thread",
    "each thread",
    "for a thread",
    "a thread's",
    "all threads",
    "threads together",
    "number of threads for",
    "of a process",
    "of one device",
    "per device",
    "per disk",
    "all of its caches",
    "per target",
    "in flight",
    "concurrent",
];

/// Returns the name of a constant that a line declares, unless it is a duration.
fn constant(line: &str) -> Option<&str> {
    let rest = match line.split_once("const ") {
        Some(("" | "pub " | "pub(crate) " | "pub(super) ", rest)) => rest,
        _ => return None,
    };
    let (name, kind) = rest.split_once(": ")?;
    let is_limit = ["MAX", "LIMIT", "QUEUE"].iter().any(|word| name.contains(word));
    (is_limit && !kind.starts_with("Duration")).then_some(name)
}

/// Returns the limits of shared resources: the file below `crates`, and the name.
fn limits() -> Vec<(String, String)> {
    let (crates, mut found) = (root().join("crates"), Vec::new());
    for name in CRATES {
        for path in sources(&crates.join(name).join("src")) {
            let file = path.strip_prefix(&crates).expect("it is below").display().to_string();
            let (text, mut documentation) = (fs::read_to_string(&path).expect("text"), String::new());
            for line in text.lines().map(str::trim) {
                if let Some(more) = line.strip_prefix("///") {
                    documentation += &more.to_lowercase();
                    continue;
                }
                let is_shared = SHARED.iter().any(|word| documentation.contains(word));
                if let Some(name) = constant(line).filter(|_| is_shared) {
                    found.push((file.replace("/src/", "/"), name.to_owned()));
                }
                if !line.starts_with("#[") {
                    documentation.clear();
                }
            }
        }
    }
    for (file, name) in STRUCTS {
        let text = fs::read_to_string(crates.join(file)).expect("text");
        let (_, body) = text.split_once(&format!("pub struct {name} {{\n")).expect("the struct");
        let (body, _) = body.split_once("\n}").expect("its end");
        let fields =
            body.lines().map(|line| line.trim().trim_start_matches("pub(crate) ").trim_start_matches("pub "));
        let fields =
            fields.filter(|line| !line.starts_with(['/', '#'])).filter_map(|line| line.split_once(": "));
        found.extend(fields.map(|(field, _)| (file.replace("/src/", "/"), format!("{name}::{field}"))));
    }
    found
}

/// Returns the text of all sources.
fn all_sources() -> String {
    let paths = sources(&root().join("crates"));
    paths.iter().map(|path| fs::read_to_string(path).expect("text")).collect()
}

/// Returns the names in backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

#[test]
fn every_shared_limit_has_a_row_in_the_page_of_limits() {
    let page = fs::read_to_string(root().join("docs/limits.md")).expect("the page");
    let named: BTreeSet<&str> = quoted(&page).collect();
    let has_row = |(file, name): &(String, String)| {
        named.contains(name.as_str()) || named.contains(format!("{file}: {name}").as_str())
    };
    let limits = limits();
    assert!(limits.len() > 50, "the limits were not found: {limits:?}");
    let missing: Vec<_> = limits.iter().filter(|limit| !has_row(limit)).collect();
    assert!(missing.is_empty(), "docs/limits.md has no row for {missing:?}");
    let text = all_sources();
    let is_gone = |name: &&&str| match name.split_once("::") {
        Some(_) => !limits.iter().any(|(_, field)| field == *name),
        None => {
            let name = name.rsplit(": ").next().unwrap_or(name);
            name.contains("_MAX") && !text.contains(&format!("const {name}: "))
        }
    };
    let gone: Vec<_> = named.iter().filter(is_gone).collect();
    assert!(gone.is_empty(), "docs/limits.md names {gone:?}");
}

#[test]
fn every_test_named_in_the_page_of_limits_exists() {
    let page = fs::read_to_string(root().join("docs/limits.md")).expect("the page");
    let rows = page.lines().map(|line| line.split('|').collect::<Vec<_>>()).filter(|cells| cells.len() == 10);
    let rows: Vec<_> = rows.filter(|cells| !["test", "---"].contains(&cells[7].trim())).collect();
    assert!(rows.len() > 15, "{} rows", rows.len());
    let text = all_sources();
    for row in rows {
        let tests: Vec<_> = quoted(row[7]).collect();
        let is_described = |cell: &str| !["", "–", "-"].contains(&cell.trim());
        assert!(!tests.is_empty(), "no test in {row:?}");
        assert!(
            is_described(row[5]) && is_described(row[6]),
            "who can take it, or what the others get: {row:?}"
        );
        let missing: Vec<_> = tests.iter().filter(|name| !text.contains(&format!("fn {name}("))).collect();
        assert!(missing.is_empty(), "no such tests: {missing:?}");
    }
}
