//! The targets for the shape of a crate, and the remaining exceptions.
//!
//! [`Metric::target`] applies to every crate. `crates/xtask/ratchet.txt` lists the targets that crates miss, with the
//! tolerated values; the list may only get shorter and its values only better. `cargo xtask tidy --tighten` writes the
//! values that the crates have reached. The same file lists the modules that may contain unsafe code.
//!
//! ```text
//! unsafe crates/io/src/uring/ring.rs
//! allow server functions-over-70 3
//! ```

use std::fmt::Write as _;

use crate::circles;
use crate::shape::Shape;

/// Path of the exceptions.
pub(crate) const FILE: &str = "crates/xtask/ratchet.txt";

/// Maximum number of modules with unsafe code.
pub(crate) const UNSAFE_FILES_MAX: usize = 10;

/// The keyword of a line about a module with unsafe code.
const UNSAFE_WORD: &str = "unsafe";

/// The comment at the start of the file; `--tighten` rewrites it.
const HEADER: &str = "\
# Exceptions of `cargo xtask tidy`. `unsafe FILE`: a module that may contain unsafe code, ten at most, all in crates
# bare, io, thread-alloc and tls. `allow CRATE METRIC VALUE`: a crate that misses a target of crates/xtask/src/ratchet.rs,
# with the tolerated value. Values may only get better: `cargo xtask tidy --tighten` writes the reached ones. The commit
# message must have the reason for a line that is added manually.
";

/// A metric of a crate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Metric {
    /// Number of functions longer than 70 lines.
    FunctionsOver70,
    /// Function length that one function in twenty exceeds.
    FunctionP95,
    /// File length that one file in ten exceeds.
    FileP90,
    /// Number of lines with `unwrap` or `expect`.
    Unwraps,
    /// Percentage of comment lines; more is better.
    CommentPercent,
    /// Number of names that several types have.
    NamesTwice,
    /// Number of comment lines with words that CONTRIBUTING.md excludes.
    Dialect,
    /// Number of lines with names that CONTRIBUTING.md excludes.
    VagueNames,
    /// Number of files in the largest import cycle.
    CycleFiles,
}

/// All metrics, in the order of the report.
pub(crate) const METRICS: [Metric; 9] = [
    Metric::FunctionsOver70,
    Metric::FunctionP95,
    Metric::FileP90,
    Metric::Unwraps,
    Metric::CommentPercent,
    Metric::NamesTwice,
    Metric::Dialect,
    Metric::VagueNames,
    Metric::CycleFiles,
];

impl Metric {
    /// Returns the name in the file.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Metric::FunctionsOver70 => "functions-over-70",
            Metric::FunctionP95 => "function-p95",
            Metric::FileP90 => "file-p90",
            Metric::Unwraps => "unwraps",
            Metric::CommentPercent => "comment-percent",
            Metric::NamesTwice => "names-twice",
            Metric::Dialect => "dialect",
            Metric::VagueNames => "vague-names",
            Metric::CycleFiles => "cycle-files",
        }
    }

    /// Returns the value of a crate.
    pub(crate) fn measure(self, shape: &Shape) -> usize {
        match self {
            Metric::FunctionsOver70 => shape.long_functions().len(),
            Metric::FunctionP95 => shape.function_p95(),
            Metric::FileP90 => shape.file_p90(),
            Metric::Unwraps => shape.unwraps,
            Metric::CommentPercent => shape.comment_percent(),
            Metric::NamesTwice => shape.names_twice().len(),
            Metric::Dialect => shape.dialect.len(),
            Metric::VagueNames => shape.vague_names.len(),
            Metric::CycleFiles => shape.cycle_files,
        }
    }

    /// Returns the value that every crate should reach.
    pub(crate) fn target(self, shape: &Shape) -> usize {
        match self {
            Metric::FunctionsOver70 | Metric::NamesTwice | Metric::Dialect | Metric::VagueNames => 0,
            Metric::FunctionP95 => 40,
            Metric::FileP90 => 600,
            // 1.5 per 1000 lines, rounded up so that a small crate may have one.
            Metric::Unwraps => (shape.lines * 3).div_ceil(2000),
            Metric::CommentPercent => 15,
            Metric::CycleFiles => circles::FILES_MAX,
        }
    }

    /// Whether `value` is worse than `limit`.
    pub(crate) fn is_worse(self, value: usize, limit: usize) -> bool {
        match self {
            Metric::CommentPercent => value < limit,
            _ => value > limit,
        }
    }
}

/// A tolerated miss.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Exception {
    /// The crate.
    pub(crate) krate: String,
    /// The metric that it misses.
    pub(crate) metric: Metric,
    /// The tolerated value.
    pub(crate) value: usize,
}

/// Content of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ratchet {
    /// Paths of modules that may contain unsafe code, relative to the root.
    pub(crate) unsafe_files: Vec<String>,
    /// The tolerated misses.
    pub(crate) exceptions: Vec<Exception>,
}

impl Ratchet {
    /// Parses the file; the error names the line.
    pub(crate) fn parse(text: &str) -> Result<Ratchet, String> {
        let mut ratchet = Ratchet::default();
        for (index, line) in text.lines().enumerate() {
            let words: Vec<&str> = line.split_whitespace().collect();
            let exception = |krate: &str, metric: &str, value: &str| {
                let metric = METRICS.into_iter().find(|known| known.name() == metric)?;
                Some(Exception { krate: krate.to_owned(), metric, value: value.parse().ok()? })
            };
            match words.as_slice() {
                [] => {}
                [first, ..] if first.starts_with('#') => {}
                [UNSAFE_WORD, file] => ratchet.unsafe_files.push((*file).to_owned()),
                ["allow", krate, metric, value] => match exception(krate, metric, value) {
                    Some(exception) => ratchet.exceptions.push(exception),
                    None => return Err(format!("line {}: no such metric or value: {line}", index + 1)),
                },
                _ => return Err(format!("line {}: neither `unsafe` nor `allow`: {line}", index + 1)),
            }
        }
        Ok(ratchet)
    }

    /// Formats the file.
    pub(crate) fn render(&self) -> String {
        let mut text = HEADER.to_owned();
        // Writing to a `String` cannot fail.
        for file in &self.unsafe_files {
            let _ = writeln!(text, "{UNSAFE_WORD} {file}");
        }
        for Exception { krate, metric, value } in &self.exceptions {
            let _ = writeln!(text, "allow {krate} {} {value}", metric.name());
        }
        text
    }

    /// Returns the misses of this crate beyond the tolerated ones.
    pub(crate) fn judge(&self, krate: &str, shape: &Shape) -> Vec<String> {
        let mut problems = Vec::new();
        for metric in METRICS {
            let (value, target) = (metric.measure(shape), metric.target(shape));
            let limit = self.tolerated(krate, metric).unwrap_or(target);
            if metric.is_worse(value, target) && metric.is_worse(value, limit) {
                let name = metric.name();
                problems
                    .push(format!("crate {krate}: {name} is {value}, tolerated {limit}, wanted {target}"));
            }
        }
        problems
    }

    /// Lowers the exceptions to the current values of the crates; removes those that are met or whose crate no longer
    /// exists.
    pub(crate) fn tightened(&self, shapes: &[(String, Shape)], unsafe_files: &[String]) -> Ratchet {
        let tighter = |old: &Exception| {
            let (_, shape) = shapes.iter().find(|(krate, _)| *krate == old.krate)?;
            let value = old.metric.measure(shape);
            let value = if old.metric.is_worse(value, old.value) { old.value } else { value };
            let still_missed = old.metric.is_worse(value, old.metric.target(shape));
            still_missed.then(|| Exception { value, ..old.clone() })
        };
        Ratchet {
            unsafe_files: self
                .unsafe_files
                .iter()
                .filter(|file| unsafe_files.contains(*file))
                .cloned()
                .collect(),
            exceptions: self.exceptions.iter().filter_map(tighter).collect(),
        }
    }

    /// Returns the tolerated value of a metric that a crate misses.
    pub(crate) fn tolerated(&self, krate: &str, metric: Metric) -> Option<usize> {
        let found = self.exceptions.iter().find(|known| known.krate == krate && known.metric == metric);
        found.map(|exception| exception.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str =
        "unsafe crates/io/src/a.rs\nallow io functions-over-70 3\nallow io comment-percent 9\n";

    fn shape(long: usize, comments: usize) -> Shape {
        Shape {
            functions: (0..100).map(|index| (if index < long { 71 } else { 5 }, String::new())).collect(),
            lines: 1000,
            comment_lines: comments * 10,
            ..Shape::default()
        }
    }

    #[test]
    fn the_file_survives_a_round_trip() {
        let ratchet = Ratchet::parse(TEXT).expect("it is well-formed");
        assert_eq!(ratchet.render(), format!("{HEADER}{TEXT}"));
        assert_eq!(Ratchet::parse(&ratchet.render()), Ok(ratchet));
        assert!(Ratchet::parse("allow io nothing 1").is_err());
        assert!(Ratchet::parse("allow io").is_err());
    }

    #[test]
    fn only_values_above_the_exception_are_problems() {
        let ratchet = Ratchet::parse(TEXT).expect("it is well-formed");
        assert_eq!(ratchet.judge("io", &shape(3, 9)), Vec::<String>::new());
        assert_eq!(ratchet.judge("io", &shape(4, 8)).len(), 2);
        assert_eq!(ratchet.judge("rt", &shape(1, 15)).len(), 1);
        assert_eq!(ratchet.judge("rt", &shape(0, 15)), Vec::<String>::new());
    }

    #[test]
    fn tightening_never_loosens() {
        let ratchet = Ratchet::parse(TEXT).expect("it is well-formed");
        let tighten = |shape: Shape, files: &[String]| {
            let tightened = ratchet.tightened(&[("io".to_owned(), shape)], files);
            tightened.render().strip_prefix(HEADER).expect("the header comes first").to_owned()
        };
        let file = ["crates/io/src/a.rs".to_owned(), "crates/io/src/new.rs".to_owned()];
        assert_eq!(tighten(shape(4, 8), &file), TEXT);
        assert_eq!(tighten(shape(2, 12), &[]), "allow io functions-over-70 2\nallow io comment-percent 12\n");
        assert_eq!(tighten(shape(0, 16), &file), "unsafe crates/io/src/a.rs\n");
    }
}
