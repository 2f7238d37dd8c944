//! Rules for single files: module documentation, banned words, machine-specific paths, reasons of dependencies.
//!
//! Each function checks one file and returns its problems as `path:line: what`. `shape` has the numeric metrics,
//! `layers` the relations between crates.

use std::path::Path;

use regex_lite::Regex;

use crate::shape::pattern;
use crate::workspace::{self, SourceFile};

/// Maximum number of lines of a file, including its tests. A longer file usually has more than one subject.
const FILE_LINES_MAX: usize = 1000;

/// Crates that may contain unsafe code, in the modules that `ratchet.txt` lists: `io` (kernel interface),
/// `thread-alloc` (allocator), `tls` (functions of aws-lc), `bare` (the kernel's queues alone, for measurements).
pub(crate) const UNSAFE_CRATES: [&str; 4] = ["bare", "io", "thread-alloc", "tls"];

/// The required source of every dependency, in the notation of Cargo.lock.
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// The rules with their patterns compiled.
pub(crate) struct Rules {
    unfinished: Regex,
    machine_path: Regex,
    registry_host: Regex,
    dependency_table: Regex,
    dependency_subtable: Regex,
    link: Regex,
}

impl Rules {
    /// Compiles the patterns, once for all files.
    pub(crate) fn new() -> Rules {
        Rules {
            unfinished: pattern(r"\b(TO[D]O|FIX[M]E|X[X]X|HA[C]K)\b"),
            machine_path: pattern(r"(^|[^\w.])/[w]ork/|\.cargo/[r]egistry/src"),
            registry_host: pattern(r"(index|static)\.crates\.io|[\w.-]+/artifactory|\.crates-io\."),
            link: pattern(r"\]\(([^)#\s]+)[^)]*\)"),
            dependency_table: pattern(r"^\[(target\..+\.)?(workspace\.)?(dev-|build-)?dependencies\]$"),
            dependency_subtable: pattern(
                r"^\[(target\..+\.)?(workspace\.)?(dev-|build-)?dependencies\.[^\]]+\]$",
            ),
        }
    }

    /// Applies all rules for this kind of file.
    pub(crate) fn check(&self, file: &SourceFile) -> Vec<String> {
        let mut problems = self.words(file);
        if file.path.ends_with(".rs") {
            problems.extend(module_documentation(file));
            problems.extend(length(file));
            problems.extend(forbids_unsafe(file));
        }
        if file.path.ends_with("Cargo.toml") {
            problems.extend(self.dependency_reasons(file));
        }
        if file.path.ends_with(".md") {
            problems.extend(self.links(file));
        }
        if file.path == "Cargo.lock" {
            problems.extend(lock_sources(file));
        }
        problems
    }

    /// Finds unfinished work, paths of one machine, and hosts of a registry mirror.
    fn words(&self, file: &SourceFile) -> Vec<String> {
        let mut problems = Vec::new();
        let is_code =
            [".rs", ".sh", ".toml", ".ci/run", ".ci/tools"].iter().any(|end| file.path.ends_with(end));
        for (index, line) in file.text.lines().enumerate() {
            let mut report = |what: &str| problems.push(format!("{}:{}: {what}", file.path, index + 1));
            if is_code && self.unfinished.is_match(line) {
                report("unfinished work belongs in the issue tracker, not in the code");
            }
            if self.machine_path.is_match(line) {
                report("a path that exists only on one machine");
            }
            if self.registry_host.is_match(line) {
                report("the host of a registry: builds must use cargo's default registry");
            }
        }
        problems
    }

    /// Checks that the targets of a document's links to files of the repository exist.
    fn links(&self, file: &SourceFile) -> Vec<String> {
        let folder = workspace::root().join(&file.path).parent().map(Path::to_owned).unwrap_or_default();
        let mut problems = Vec::new();
        for (index, line) in file.text.lines().enumerate() {
            for captures in self.link.captures_iter(line) {
                let target = &captures[1];
                let inside = !target.contains(':');
                if inside && !folder.join(target).exists() {
                    problems.push(format!(
                        "{}:{}: link to {target}, which does not exist",
                        file.path,
                        index + 1
                    ));
                }
            }
        }
        problems
    }

    /// Checks that each `name = …` below a dependency table ends with a comment that has the reason. A path to a crate
    /// of the workspace in the root manifest needs none.
    fn dependency_reasons(&self, file: &SourceFile) -> Vec<String> {
        let mut problems = Vec::new();
        let mut in_table = false;
        for (index, line) in file.text.lines().enumerate() {
            let line = line.trim();
            let place = format!("{}:{}", file.path, index + 1);
            if line.starts_with('[') {
                in_table = self.dependency_table.is_match(line);
                if self.dependency_subtable.is_match(line) {
                    problems.push(format!("{place}: write the dependency as one line with its reason"));
                }
            }
            let own = file.path == "Cargo.toml" && line.contains("path = ");
            let names_one = line.starts_with(|c: char| c.is_ascii_alphanumeric()) && line.contains('=');
            let reason = line.split_once(" # ").map_or("", |(_, reason)| reason.trim());
            if in_table && names_one && !own && reason.is_empty() {
                problems.push(format!("{place}: the dependency needs its reason: `# why`"));
            }
        }
        problems
    }
}

/// Checks that a file begins with its documentation.
fn module_documentation(file: &SourceFile) -> Option<String> {
    let opens = file.text.starts_with("//! ");
    (!opens)
        .then(|| format!("{}:1: the file must begin with `//! ` and a description of its content", file.path))
}

fn length(file: &SourceFile) -> Option<String> {
    let lines = file.text.lines().count();
    let path = &file.path;
    (lines > FILE_LINES_MAX).then(|| format!("{path}: {lines} lines, at most {FILE_LINES_MAX} are allowed"))
}

/// Checks that the root of each crate that is not in [`UNSAFE_CRATES`] forbids unsafe code.
fn forbids_unsafe(file: &SourceFile) -> Option<String> {
    let mut parts = file.path.strip_prefix("crates/")?.split('/');
    let (krate, src, name) = (parts.next()?, parts.next()?, parts.next()?);
    let is_root = src == "src" && matches!(name, "lib.rs" | "main.rs");
    let forbids = file.text.lines().any(|line| line == "#![forbid(unsafe_code)]");
    let missing = is_root && !UNSAFE_CRATES.contains(&krate) && !forbids;
    missing.then(|| format!("{}: #![forbid(unsafe_code)] is missing", file.path))
}

/// Checks that dependencies come from the public registry: no git, no mirror.
fn lock_sources(file: &SourceFile) -> Vec<String> {
    let sources = file.text.lines().filter_map(|line| line.strip_prefix("source = "));
    let foreign = sources.filter(|source| source.trim_matches('"') != REGISTRY);
    foreign.map(|source| format!("Cargo.lock: {source} is not the public registry")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(path: &str, text: &str) -> Vec<String> {
        Rules::new().check(&SourceFile { path: path.to_owned(), text: text.to_owned() })
    }

    #[test]
    fn a_clean_file_has_no_problems() {
        let text = "//! A crate.\n#![forbid(unsafe_code)]\n";
        assert_eq!(problems("crates/a/src/lib.rs", text), Vec::<String>::new());
    }

    #[test]
    fn each_rule_reports_file_and_line() {
        let cases = [
            ("crates/a/src/b.rs", "use x;\n".to_owned(), "b.rs:1: the file must begin"),
            ("crates/a/src/main.rs", "//! A.\n".to_owned(), "main.rs: #![forbid"),
            ("crates/a/src/b.rs", format!("//! A.\n{}", "\n".repeat(1000)), "b.rs: 1001 lines"),
            (
                "crates/a/src/b.rs",
                format!("//! A.\n// {}: later\n", ["TO", "DO"].concat()),
                "b.rs:2: unfinished",
            ),
            ("README.md", format!("see {}x/y\n", "/wo".to_owned() + "rk/"), "README.md:1: a path"),
            ("docs/a.md", "see [x](nowhere.md#part)\n".to_owned(), "a.md:1: link to nowhere.md,"),
            (
                ".cargo/config.toml",
                format!("\"https://x/{}\"\n", "arti".to_owned() + "factory/"),
                "toml:1: the host",
            ),
            (
                "Cargo.lock",
                "source = \"git+https://example.org/x\"\n".to_owned(),
                "is not the public registry",
            ),
        ];
        for (path, text, expected) in cases {
            let found = problems(path, &text);
            assert_eq!(found.len(), 1, "{expected}: {found:?}");
            assert!(found[0].contains(expected), "{expected}: {found:?}");
        }
    }

    #[test]
    fn similar_paths_are_allowed() {
        assert_eq!(
            problems("docs/a.md", "net/work/x, ./work/y, [z](../README.md#a)\n"),
            Vec::<String>::new()
        );
    }

    #[test]
    fn dependencies_need_a_reason() {
        let text = concat!(
            "[package]\nname = \"a\"\n[dependencies]\nb = \"1\" # because\nc = \"1\"\nd.workspace = true #\n",
            "[dev-dependencies]\ne = { version = \"1\" }\n[dependencies.f]\nversion = \"1\"\n",
        );
        let found = problems("crates/a/Cargo.toml", text);
        let places: Vec<&str> = found.iter().map(|line| &line[..line.len().min(22)]).collect();
        assert_eq!(
            places,
            [
                "crates/a/Cargo.toml:5:",
                "crates/a/Cargo.toml:6:",
                "crates/a/Cargo.toml:8:",
                "crates/a/Cargo.toml:9:"
            ]
        );
        assert_eq!(problems("Cargo.toml", "[workspace.dependencies]\na = { path = \"x\" }\n").len(), 0);
    }
}
