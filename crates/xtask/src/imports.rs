//! The imports between the files of a crate: extracted from the text, without a complete parser of Rust.
//!
//! [`of_crate`] lists the imports between the library files of one crate. It follows paths that start with `crate`,
//! `super`, `self` or a child module, in `use` declarations with braces and in code. Comments, strings and test modules
//! are ignored. A re-export (`pub use`) is an import of the file that has it, and an import of the re-exported name is an
//! import of the file of its item. A file that is used only through a field or a method is not detected. [`circles`] finds the files
//! that import each other; the module `circles` limits their number.

use std::collections::{BTreeMap, BTreeSet};

use crate::shape::{Patterns, pattern};
use crate::workspace::SourceFile;

/// Maximum number of declarations that are followed for one path. It ends the search for declarations that refer to themselves.
const DECLARATIONS_MAX: usize = 16;

/// The imports between files: from each file, identified by its path below `src`, to the files that it imports.
pub(crate) type Imports = BTreeMap<String, BTreeSet<String>>;

/// Returns the imports of the crate in `crates/NAME/src`.
pub(crate) fn of_crate(name: &str, files: &[SourceFile], patterns: &Patterns) -> Imports {
    let root = format!("crates/{name}/src/");
    let declaration = pattern(r"\buse\s+([^;]+);");
    let library = files.iter().filter(|file| patterns.is_library(&file.path));
    let codes: Vec<(&str, String)> = library
        .filter_map(|file| Some((file.path.strip_prefix(&root)?, code_of(patterns.library_part(&file.text)))))
        .collect();
    let mut known = Modules {
        files: codes.iter().map(|(path, _)| (module_of(path), *path)).collect(),
        declared: BTreeMap::new(),
    };
    for (path, code) in &codes {
        let module = module_of(path);
        for captures in declaration.captures_iter(code) {
            for (name, target) in known.named_in(&captures[1], &module) {
                let declared = module.iter().map(|part| (*part).to_owned()).chain([name]).collect();
                known.declared.insert(declared, target);
            }
        }
    }
    let mut imports = Imports::new();
    for (path, code) in &codes {
        let module = module_of(path);
        let mut paths = known.paths_in(&declaration.replace_all(code, ""), &module);
        for captures in declaration.captures_iter(code) {
            paths.extend(known.named_in(&captures[1], &module).into_iter().filter_map(|(_, target)| target));
        }
        let files = paths.iter().filter_map(|path| known.file_of(path));
        let others = files.filter(|target| target != path).map(str::to_owned).collect();
        imports.insert((*path).to_owned(), others);
    }
    imports
}

/// The modules of a crate.
struct Modules<'a> {
    /// The file of each module.
    files: BTreeMap<Vec<&'a str>, &'a str>,
    /// Names by `use` declarations: the new path, and the path that it refers to; `None` if it is outside the crate.
    declared: BTreeMap<Vec<String>, Option<Vec<String>>>,
}

/// A path as the code has it, and the local name of its item.
struct Named {
    path: Vec<String>,
    name: String,
}

/// Returns the import cycles: sets of files that import each other, directly or indirectly.
pub(crate) fn circles(imports: &Imports) -> BTreeSet<Vec<&str>> {
    let reached: BTreeMap<&str, BTreeSet<&str>> =
        imports.keys().map(|from| (from.as_str(), reachable(imports, from))).collect();
    let circle_of = |file: &str| -> Vec<&str> {
        let back = |other: &&str| reached.get(*other).is_some_and(|there| there.contains(file));
        reached[file].iter().copied().filter(back).collect()
    };
    reached.keys().map(|file| circle_of(file)).filter(|circle| circle.len() > 1).collect()
}

/// Returns every file that is imported from `from`, directly or indirectly.
fn reachable<'a>(imports: &'a Imports, from: &'a str) -> BTreeSet<&'a str> {
    let mut found = BTreeSet::new();
    let mut open: Vec<&str> = vec![from];
    while let Some(file) = open.pop() {
        let next = imports.get(file).into_iter().flatten();
        open.extend(next.map(String::as_str).filter(|target| found.insert(*target)));
    }
    found
}

/// Returns the module of a file: `a/b.rs` and `a/b/mod.rs` are both `a::b`.
fn module_of(path: &str) -> Vec<&str> {
    let stem = path.strip_suffix(".rs").unwrap_or(path);
    let stem = stem.strip_suffix("/mod").unwrap_or(stem);
    if matches!(stem, "lib" | "main" | "mod") { Vec::new() } else { stem.split('/').collect() }
}

/// Returns the text without comments, and with empty strings.
fn code_of(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    for line in text.lines() {
        let mut in_string = false;
        let mut chars = line.chars().peekable();
        while let Some(c) = chars.next() {
            match c {
                // A character escaped by a backslash does not end a string; `'"'` does not start one.
                '\\' => drop(chars.next()),
                '\'' if chars.peek() == Some(&'"') => drop(chars.next()),
                '"' => in_string = !in_string,
                '/' if !in_string && chars.peek() == Some(&'/') => break,
                _ if !in_string => code.push(c),
                _ => {}
            }
        }
        code.push('\n');
    }
    code
}

impl<'a> Modules<'a> {
    /// Returns the file of the item that a path refers to. Declarations are followed, so that a name in the root of the crate is in
    /// `lib.rs` only if no `use` has it from elsewhere.
    fn file_of(&self, path: &[String]) -> Option<&'a str> {
        let mut path = path.to_vec();
        for _ in 0..DECLARATIONS_MAX {
            let mut len = path.len();
            let declared = loop {
                // A module takes precedence over an item that is declared under the same name.
                let names: Vec<&str> = path[..len].iter().map(String::as_str).collect();
                if let Some(file) = self.files.get(&names) {
                    return Some(file);
                }
                if let Some(target) = self.declared.get(&path[..len]) {
                    break target.as_ref()?;
                }
                len = len.checked_sub(1)?;
            };
            path = declared.iter().chain(&path[len..]).cloned().collect();
        }
        None
    }

    /// Returns the names that a `use` declaration declares, each with its path from the crate's root; `None` if it is outside the crate.
    fn named_in(&self, text: &str, module: &[&str]) -> Vec<(String, Option<Vec<String>>)> {
        let mut found = Vec::new();
        tree(&[], text, &mut found);
        found.into_iter().map(|Named { path, name }| (name, self.rooted(&path, module))).collect()
    }

    /// Returns the paths in code without `use` declarations, from the crate's root.
    fn paths_in(&self, code: &str, module: &[&str]) -> Vec<Vec<String>> {
        let mut found = Vec::new();
        for (at, _) in code.match_indices("::") {
            let start =
                code[..at].rfind(|c: char| !c.is_alphanumeric() && c != '_').map_or(0, |before| before + 1);
            // The middle of a longer path, or `$crate::` of a macro.
            if code[..start].ends_with([':', '$']) {
                continue;
            }
            tree(&[], &code[start..], &mut found);
        }
        found.into_iter().filter_map(|named| self.rooted(&named.path, module)).collect()
    }

    /// Returns a path from the crate's root, if it starts with `crate`, `super`, `self` or a child module.
    fn rooted(&self, path: &[String], module: &[&str]) -> Option<Vec<String>> {
        let mut base = module.to_vec();
        let ups = path.iter().take_while(|part| *part == "super").count();
        let rest = match path.first()?.as_str() {
            "crate" => {
                base.clear();
                &path[1..]
            }
            "self" => &path[1..],
            "super" => {
                base.truncate(base.len().saturating_sub(ups));
                &path[ups..]
            }
            child => {
                base.push(child);
                if !self.files.contains_key(&base) {
                    return None;
                }
                &path[1..]
            }
        };
        Some(base.into_iter().map(str::to_owned).chain(rest.iter().cloned()).collect())
    }
}

/// Parses one path or use tree after `base`, adds its names to `found`, and returns the text after it.
fn tree<'a>(base: &[String], text: &'a str, found: &mut Vec<Named>) -> &'a str {
    let mut path = base.to_vec();
    let mut rest = text.trim_start();
    loop {
        if let Some(mut inside) = rest.strip_prefix('{') {
            loop {
                inside = inside.trim_start().trim_start_matches(',').trim_start();
                if let Some(after) = inside.strip_prefix('}') {
                    return after;
                }
                let after = tree(&path, inside, found);
                // Text that is not a use tree ends the parsing; the compiler reports it.
                if after.len() == inside.len() {
                    return after;
                }
                inside = after;
            }
        }
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        let (name, after) = rest.split_at(end);
        if !name.is_empty() && (name != "self" || path.is_empty()) {
            path.push(name.to_owned());
        }
        match after.strip_prefix("::") {
            Some(more) if !name.is_empty() => rest = more.trim_start(),
            _ => {
                let after = after.trim_start().trim_start_matches('*').trim_start();
                let renamed = after.strip_prefix("as ");
                let end = renamed.and_then(|text| text.find(|c: char| !c.is_alphanumeric() && c != '_'));
                let (name, after) = match renamed {
                    Some(text) => text.split_at(end.unwrap_or(text.len())),
                    None => (path.last().map_or("", String::as_str), after),
                };
                found.push(Named { name: name.to_owned(), path });
                return after;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn imports(files: &[(&str, &str)]) -> Imports {
        let file = |(path, text): &(&str, &str)| SourceFile {
            path: format!("crates/a/src/{path}"),
            text: (*text).to_owned(),
        };
        let files: Vec<SourceFile> = files.iter().map(file).collect();
        of_crate("a", &files, &Patterns::new())
    }

    fn targets<'a>(imports: &'a Imports, from: &str) -> Vec<&'a str> {
        imports[from].iter().map(String::as_str).collect()
    }

    #[test]
    fn use_trees_and_paths_in_code_are_found() {
        let found = imports(&[
            ("lib.rs", "mod b;\nmod c;\npub use c::{d::E, D as X};\nlet n = b::N + std::b::N + E::c::N;\n"),
            ("b.rs", "use crate::{c::{self as other, d::{E, F as G}}, x};\nfn f() { crate::h::i() }\n"),
            ("c/mod.rs", "use super::b::B;\n"),
            ("c/d.rs", "use super::super::h::*;\npub(super) fn f() { super::g() }\n"),
            ("h.rs", "use std::io;\n"),
            ("x.rs", ""),
            ("y.rs", "use crate::{E, X};\n"),
        ]);
        assert_eq!(targets(&found, "lib.rs"), ["b.rs", "c/d.rs", "c/mod.rs"]);
        assert_eq!(targets(&found, "b.rs"), ["c/d.rs", "c/mod.rs", "h.rs", "x.rs"]);
        assert_eq!(targets(&found, "c/mod.rs"), ["b.rs"]);
        assert_eq!(targets(&found, "c/d.rs"), ["c/mod.rs", "h.rs"]);
        assert_eq!(targets(&found, "h.rs"), [""; 0]);
        assert_eq!(targets(&found, "y.rs"), ["c/d.rs", "c/mod.rs"]);
    }

    #[test]
    fn names_of_the_root_are_in_its_file() {
        let found = imports(&[
            ("lib.rs", "mod b;\npub use b::B;\nuse other::{Outside, b::Too};\npub struct Here;\n"),
            ("b.rs", "use crate::Here;\n"),
            ("c.rs", "use crate::{B, Outside, Too};\nuse super::Too;\n"),
            ("d.rs", "use self::x;\nuse self::y as x;\nuse self::x as y;\n"),
        ]);
        assert_eq!(targets(&found, "b.rs"), ["lib.rs"]);
        assert_eq!(targets(&found, "c.rs"), ["b.rs"]);
        assert_eq!(targets(&found, "d.rs"), [""; 0]);
        assert_eq!(circles(&found), BTreeSet::from([vec!["b.rs", "lib.rs"]]));
    }

    #[test]
    fn comments_strings_and_tests_import_nothing() {
        let found = imports(&[
            (
                "b.rs",
                "// crate::c\nlet s = \"crate::c \\\" crate::c\"; // x\n#[cfg(test)]\nmod tests {\nuse crate::c;\n}\n",
            ),
            ("c.rs", "let q = '\"'; crate::b::f();\n"),
        ]);
        assert_eq!(targets(&found, "b.rs"), [""; 0]);
        assert_eq!(targets(&found, "c.rs"), ["b.rs"]);
    }

    #[test]
    fn cycles_are_found() {
        let found = imports(&[
            ("b.rs", "use crate::c::C;\n"),
            ("c.rs", "use crate::d::D;\n"),
            ("d.rs", "use crate::{b::B, e};\n"),
            ("e.rs", "use crate::f;\n"),
            ("f.rs", "use crate::e;\n"),
            ("g.rs", "use crate::b::B;\n"),
        ]);
        let expected = BTreeSet::from([vec!["b.rs", "c.rs", "d.rs"], vec!["e.rs", "f.rs"]]);
        assert_eq!(circles(&found), expected);
        assert_eq!(circles(&imports(&[("b.rs", "use crate::c;\n"), ("c.rs", "")])), BTreeSet::new());
    }
}
