//! `cargo xtask tidy`: checks the rules of style and layering in the complete tree, and prints the table of metrics.
//!
//! The rules are in `rules`, `shape`, `ratchet`, `layers`, `roots`, `circles`, `plain` and `commits`; this module collects
//! the problems that they find.

use std::collections::BTreeSet;

use crate::ratchet::{METRICS, Metric, Ratchet, UNSAFE_FILES_MAX};
use crate::rules::Rules;
use crate::shape::{Patterns, Shape};
use crate::workspace::SourceFile;
use crate::{Failure, circles, commits, imports, layers, metadata, plain, ratchet, roots, rules, workspace};

/// Checks everything and prints the table of metrics; fails with the list of problems.
pub(crate) fn check() -> Result<(), Failure> {
    let tree = Tree::load()?;
    tree.print_table();
    commits::print_figure();
    let mut problems = tree.problems();
    let metadata = metadata::load()?;
    problems.extend(layers::check(&metadata));
    problems.extend(plain::check(&metadata)?);
    problems.extend(tree.circle_problems());
    problems.extend(roots::check(&tree.files, &Patterns::new(), &tree.imports));
    problems.extend(commits::check());
    Failure::unless_empty("tidy", problems)
}

/// Updates the exceptions to the reached values.
pub(crate) fn tighten() -> Result<(), Failure> {
    let tree = Tree::load()?;
    let tightened = tree.ratchet.tightened(&tree.shapes, &tree.unsafe_files);
    write_tightened(ratchet::FILE, tightened != tree.ratchet, &tightened.render())
}

fn write_tightened(file: &str, changed: bool, text: &str) -> Result<(), Failure> {
    if changed {
        workspace::write(file, text)?;
    }
    let outcome = if changed { "tightened, please commit it" } else { "nothing to tighten" };
    println!("{file}: {outcome}");
    Ok(())
}

/// The sources with their metrics.
struct Tree {
    /// All text files of the repository.
    files: Vec<SourceFile>,
    /// The metrics of each crate, ordered by name.
    shapes: Vec<(String, Shape)>,
    /// The files that contain `unsafe`, including tests.
    unsafe_files: Vec<String>,
    /// The tolerated exceptions.
    ratchet: Ratchet,
    /// The imports between the files of each crate.
    imports: Vec<(String, imports::Imports)>,
}

impl Tree {
    fn load() -> Result<Tree, Failure> {
        let files = workspace::files()?;
        let patterns = Patterns::new();
        let crate_of =
            |file: &SourceFile| Some(file.path.strip_prefix("crates/")?.split('/').next()?.to_owned());
        let names: BTreeSet<String> =
            files.iter().filter(|file| file.path.ends_with(".rs")).filter_map(crate_of).collect();
        let mut shapes: Vec<(String, Shape)> =
            names.into_iter().map(|name| (name, Shape::default())).collect();
        let mut unsafe_files = Vec::new();
        for file in files.iter().filter(|file| file.path.ends_with(".rs")) {
            let owner = crate_of(file);
            let shape = shapes.iter_mut().find(|(name, _)| Some(name) == owner.as_ref());
            if let Some((_, shape)) = shape.filter(|_| patterns.is_library(&file.path)) {
                shape.add(&patterns, file);
            }
            // The patterns and samples of this check look like unsafe code, but are not.
            let samples = file.path == "crates/xtask/src/shape.rs";
            if !samples && file.text.lines().any(|line| patterns.uses_unsafe(line)) {
                unsafe_files.push(file.path.clone());
            }
        }
        let ratchet = Ratchet::parse(&workspace::read(ratchet::FILE)?)
            .map_err(|detail| Failure::Format { what: ratchet::FILE, detail })?;
        let mut imports = Vec::new();
        for (name, shape) in &mut shapes {
            let found = imports::of_crate(name, &files, &patterns);
            shape.cycle_files = imports::circles(&found).iter().map(Vec::len).max().unwrap_or(0);
            imports.push((name.clone(), found));
        }
        Ok(Tree { files, shapes, unsafe_files, ratchet, imports })
    }

    fn problems(&self) -> Vec<String> {
        let rules = Rules::new();
        let mut problems: Vec<String> = self.files.iter().flat_map(|file| rules.check(file)).collect();
        for (name, shape) in &self.shapes {
            let missed = self.ratchet.judge(name, shape);
            // The line of the metric does not contain the positions.
            let misses = |metric: Metric| missed.iter().any(|line| line.contains(metric.name()));
            if misses(Metric::FunctionsOver70) {
                let long = shape.long_functions();
                problems.extend(long.iter().map(|(size, place)| format!("{place}: {size} lines")));
            }
            if misses(Metric::NamesTwice) {
                problems.extend(shape.names_twice());
            }
            if misses(Metric::Dialect) {
                let places = shape.dialect.iter();
                problems.extend(places.map(|place| {
                    format!("{place}: a word that CONTRIBUTING.md, section \"Words\", excludes")
                }));
            }
            if misses(Metric::VagueNames) {
                let lines = shape.vague_names.iter();
                problems.extend(
                    lines.map(|line| {
                        format!("{line}: a name that CONTRIBUTING.md, section \"Words\", excludes")
                    }),
                );
            }
            problems.extend(missed);
            let bare = shape.unjustified.iter();
            problems.extend(bare.map(|place| format!("{place}: unsafe without a SAFETY comment")));
        }
        problems.extend(self.unsafe_problems());
        problems
    }

    /// Checks that unsafe code is in listed modules only, and that the list is limited in length and to the crates that
    /// need it.
    fn unsafe_problems(&self) -> Vec<String> {
        let listed = &self.ratchet.unsafe_files;
        let mut problems = Vec::new();
        for file in self.unsafe_files.iter().filter(|file| !listed.contains(file)) {
            problems.push(format!("{file}: unsafe code in a module that {} does not list", ratchet::FILE));
        }
        // An obsolete line would allow new unsafe code in this module.
        for file in listed.iter().filter(|file| !self.unsafe_files.contains(file)) {
            problems.push(format!(
                "{}: {file} contains no unsafe code (cargo xtask tidy --tighten removes the line)",
                ratchet::FILE
            ));
        }
        let may = |file: &&String| {
            rules::UNSAFE_CRATES.iter().any(|krate| file.starts_with(&format!("crates/{krate}/")))
        };
        for file in listed.iter().filter(|file| !may(file)) {
            problems.push(format!("{}: {file} is in none of {:?}", ratchet::FILE, rules::UNSAFE_CRATES));
        }
        if listed.len() > UNSAFE_FILES_MAX {
            let count = listed.len();
            problems.push(format!("{}: {count} unsafe modules, at most {UNSAFE_FILES_MAX}", ratchet::FILE));
        }
        problems
    }

    /// Checks that import cycles are small and within one directory.
    fn circle_problems(&self) -> Vec<String> {
        let tolerated = |name| self.ratchet.tolerated(name, Metric::CycleFiles);
        self.imports
            .iter()
            .flat_map(|(name, imports)| circles::check(name, imports, tolerated(name)))
            .collect()
    }

    fn print_table(&self) {
        println!(
            "{:10} {:>5} {:>6} {:>8} {:>8} {:>6} {:>6} {:>7} {:>8} {:>6} {:>6}",
            "crate",
            "files",
            "lines",
            "file p90",
            "file max",
            "fn p95",
            "fn max",
            "fn >70",
            "comments",
            "unwrap",
            "unsafe"
        );
        for (name, shape) in &self.shapes {
            let value = |metric: Metric| metric.measure(shape);
            println!(
                "{name:10} {:5} {:6} {:8} {:8} {:6} {:6} {:7} {:7}% {:6} {:6}",
                shape.file_lines.len(),
                shape.lines,
                value(Metric::FileP90),
                shape.file_lines.iter().max().unwrap_or(&0),
                value(Metric::FunctionP95),
                shape.functions.iter().map(|(size, _)| size).max().unwrap_or(&0),
                value(Metric::FunctionsOver70),
                value(Metric::CommentPercent),
                value(Metric::Unwraps),
                shape.unsafe_uses,
            );
        }
        let missed = self.ratchet.exceptions.len();
        println!(
            "exceptions in {}: {missed} of {} figures",
            ratchet::FILE,
            METRICS.len() * self.shapes.len()
        );
    }
}
