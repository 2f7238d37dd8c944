//! The documentation at the root of each crate (`lib.rs` or `main.rs`): the crates that it may use, and a table of all its modules.
//!
//! The rows of a table have an order if the sentence [`ORDER`] precedes it: then no module imports a module of a row above it.
//! Modules of one row may import each other. Test modules have no row.

use std::collections::BTreeMap;

use regex_lite::Regex;

use crate::imports::Imports;
use crate::layers;
use crate::shape::{Patterns, pattern};
use crate::workspace::SourceFile;

/// The beginning of the sentence that lists the crates of `layers`.
const USES: &str = "Crates of the workspace that it may use: ";

/// The sentence before a table whose rows have an order.
const ORDER: &str = "Each module imports only modules of the rows below it.";

/// Returns one line for each fault in the documentation of the crates' roots.
pub(crate) fn check(files: &[SourceFile], patterns: &Patterns, imports: &[(String, Imports)]) -> Vec<String> {
    let root = pattern(r"^crates/([^/]+)/src/(?:lib|main)\.rs$");
    let declaration = pattern(r"^(?:pub(?:\([^)]*\))? )?mod (\w+);$");
    let mut problems = Vec::new();
    for file in files {
        let Some(captures) = root.captures(&file.path) else { continue };
        let name = &captures[1];
        let documentation = Documentation::of(&file.text);
        let declared = declared(patterns.library_part(&file.text), &declaration);
        let mut found = documentation.problems_of_rows(&declared);
        found.extend(documentation.problem_of_uses(layers::allowed(name)));
        let imports = imports.iter().find(|(krate, _)| krate == name);
        found.extend(imports.iter().flat_map(|(_, imports)| documentation.problems_of_order(imports)));
        problems.extend(found.into_iter().map(|problem| format!("{}: {problem}", file.path)));
    }
    problems
}

/// The documentation of a root.
struct Documentation {
    /// Its text in one line.
    text: String,
    /// The modules of the table, with the number of their row.
    rows: BTreeMap<String, usize>,
    /// Modules with several rows.
    repeated: Vec<String>,
}

impl Documentation {
    fn of(text: &str) -> Documentation {
        let lines: Vec<&str> =
            text.lines().map_while(|line| line.strip_prefix("//!")).map(str::trim).collect();
        let mut found = Documentation { text: lines.join(" "), rows: BTreeMap::new(), repeated: Vec::new() };
        for (index, line) in lines.iter().enumerate() {
            let cell = line.strip_prefix("| ").and_then(|row| row.split(" | ").next()).unwrap_or_default();
            for name in cell.split('`').skip(1).step_by(2) {
                let name = name.trim_start_matches("mod@").to_owned();
                if found.rows.insert(name.clone(), index).is_some() {
                    found.repeated.push(name);
                }
            }
        }
        found
    }

    /// Compares the rows with the declared modules.
    fn problems_of_rows(&self, declared: &[String]) -> Vec<String> {
        let missing = declared.iter().filter(|name| !self.rows.contains_key(*name));
        let missing = missing.map(|name| format!("the table of modules has no row for {name}"));
        let unknown = self.rows.keys().filter(|name| !declared.contains(name));
        let unknown = unknown.map(|name| format!("the table of modules names {name}, which is not a module"));
        let repeated =
            self.repeated.iter().map(|name| format!("the table of modules has several rows for {name}"));
        missing.chain(unknown).chain(repeated).collect()
    }

    /// Compares the sentence about other crates with the layers.
    fn problem_of_uses(&self, allowed: Option<&[&str]>) -> Option<String> {
        let names: Vec<String> = allowed?.iter().map(|name| format!("`{name}`")).collect();
        let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        let sentence = format!("{USES}{names}.");
        (!self.text.contains(&sentence)).then(|| format!("the documentation needs the sentence: {sentence}"))
    }

    /// Checks the imports between the rows, if they have an order.
    fn problems_of_order(&self, imports: &Imports) -> Vec<String> {
        if !self.text.contains(ORDER) {
            return Vec::new();
        }
        let row_of = |file: &str| self.rows.get(file.split('/').next()?.trim_end_matches(".rs")).copied();
        let pairs = imports.iter().flat_map(|(from, targets)| targets.iter().map(move |to| (from, to)));
        let is_upward = |(from, to): &(&String, &String)| {
            row_of(from).zip(row_of(to)).is_some_and(|(from, to)| to < from)
        };
        let line = |(from, to)| format!("{from} imports {to}, whose row is above it");
        pairs.filter(is_upward).map(line).collect()
    }
}

/// Returns the modules that a root declares, except those for tests.
fn declared(text: &str, declaration: &Regex) -> Vec<String> {
    let (mut found, mut for_tests) = (Vec::new(), false);
    for line in text.lines() {
        if line.starts_with("#[") {
            for_tests |= line == "#[cfg(test)]";
            continue;
        }
        if let Some(captures) = declaration.captures(line).filter(|_| !for_tests) {
            found.push(captures[1].to_owned());
        }
        for_tests = false;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: &str = "\
//! A crate.
//!
//! Crates of the workspace that it may use: `io`,
//! `thread-alloc`.
//!
//! Each module imports only modules of the rows below it.
//!
//! | module | content |
//! |---|---|
//! | [`a`] | calls `b` |
//! | [`mod@b`], `c` | two modules |

pub mod a;
mod b;
#[cfg(feature = \"x\")]
mod c;
#[cfg(test)]
#[path = \"x.rs\"]
mod tests;
";

    fn problems(text: &str, imports: &[(&str, &str)]) -> Vec<String> {
        let file = SourceFile { path: "crates/rt/src/lib.rs".to_owned(), text: text.to_owned() };
        let mut found = Imports::new();
        for (from, to) in imports {
            found.entry((*from).to_owned()).or_default().insert((*to).to_owned());
        }
        check(&[file], &Patterns::new(), &[("rt".to_owned(), found)])
    }

    #[test]
    fn a_complete_table_with_its_order_is_correct() {
        let imports = [("a.rs", "b/mod.rs"), ("b/x.rs", "c.rs"), ("c.rs", "b/x.rs"), ("lib.rs", "a.rs")];
        assert_eq!(problems(ROOT, &imports), Vec::<String>::new());
    }

    #[test]
    fn each_fault_is_reported() {
        let one = |text: &str, imports: &[(&str, &str)], expected: &str| {
            let found = problems(text, imports);
            assert!(found.len() == 1 && found[0].contains(expected), "{expected}: {found:?}");
        };
        one(&ROOT.replace("mod b;", "mod b;\nmod d;"), &[], "has no row for d");
        one(&ROOT.replace("`c`", "`c`, [`d`]"), &[], "names d, which is not a module");
        one(&ROOT.replace("`c`", "`c`, [`a`]"), &[], "several rows for a");
        one(&ROOT.replace("`thread-alloc`", "`http`"), &[], "needs the sentence");
        one(ROOT, &[("b/x.rs", "a.rs")], "b/x.rs imports a.rs");
        let unordered = ROOT.replace(ORDER, "");
        assert_eq!(problems(&unordered, &[("b.rs", "a.rs")]), Vec::<String>::new());
    }
}
