//! Metrics of a crate's library code: lengths, comments, words, type names, unsafe blocks, unwraps.
//!
//! Based on text, without a parser: the metrics are indicators, not verdicts on a single line. Library code is in `src`
//! outside of test files, up to the `#[cfg(test)] mod` at a file's end. [`Patterns`] has the regular expressions,
//! [`Shape`] the sums over the files of one crate.

use std::collections::BTreeMap;

use regex_lite::Regex;

use crate::workspace::SourceFile;

/// Maximum length of a function that is readable without scrolling, in lines.
pub(crate) const FUNCTION_LINES_MAX: usize = 70;

/// Maximum number of lines between a justification and its use of `unsafe`.
const SAFETY_LINES_BEFORE: usize = 6;

/// Type names that several modules may have, because the path distinguishes them: `gzip::Conf`.
const NAMES_BY_PATH: [&str; 4] = ["Conf", "Decoder", "Encoder", "Settings"];

/// Types that several files use, or that implementations of a trait name, with a name that says nothing without its
/// module. A private type of this name is allowed: its file says whose state or kind it is.
const GENERIC_TYPES: &str = r"^\s*pub(?:\([^)]*\))?\s+(?:struct|enum|trait|type)\s+(?:State|Kind|Outcome|Found|Origin|Info)\b|^\s+type\s+(?:State|Kind|Outcome|Found|Origin|Info)\b";

/// Types with a metaphor as their name.
const VAGUE_TYPES: &str = r"\b(?:struct|enum|trait|type)\s+(?:Verdict|Meeting|Entrance|Unwanted|Place)\b";

/// Constants that do not name their quantity.
const VAGUE_CONSTANTS: &str = r"\bconst\s+(?:MOST|MANY|FEW|NAP|TRIES)\b";

/// Functions named by a preposition alone, or by a word with several meanings. A method `of` reads with its type:
/// `FileKind::of(stat)`.
const VAGUE_FUNCTIONS: &str =
    r"^(?:pub(?:\([^)]*\))?\s+)?(?:(?:async|const)\s+)*fn\s+of\b|\bfn\s+(?:places?|settle\w*)\b";

/// Variables and fields named `place`, which may be an index, an offset, a path or an address.
const VAGUE_VARIABLES: &str = r"\blet\s+(?:mut\s+)?places?\b|\bplaces?:\s";

/// The regular expressions of the metrics.
pub(crate) struct Patterns {
    skipped_folder: Regex,
    skipped_file: Regex,
    test_module: Regex,
    function: Regex,
    unsafe_use: Regex,
    unwrap: Regex,
    named_type: Regex,
    dialect: Regex,
    vague_name: Regex,
}

impl Patterns {
    /// Compiles the expressions, once for all files.
    pub(crate) fn new() -> Patterns {
        Patterns {
            skipped_folder: pattern(r"/(tests?|benches|fuzz|examples|testing|test_data|vendor)/"),
            skipped_file: pattern(r"(^|_|/)tests?\.rs$|test_[^/]*$"),
            test_module: pattern(
                r"(?m)^#\[cfg\((?:all\()?test[^\n]*\]\s*\n(?:pub(?:\([^)]*\))? )?mod \w+ \{",
            ),
            function: pattern(
                r#"^(\s*)(?:pub(?:\([^)]*\))?\s+)?(?:(?:default|const|async|unsafe|extern "[^"]*")\s+)*fn\s+(\w+)"#,
            ),
            unsafe_use: pattern(r"\bunsafe\s*(?:\{|impl\b|extern\b)"),
            unwrap: pattern(r"\.(?:unwrap|expect)\("),
            named_type: pattern(r"^\s*(?:pub(?:\([^)]*\))?\s+)?(?:struct|enum|trait)\s+(\w+)"),
            // Words that section "Words" of CONTRIBUTING.md excludes: persons as actors instead of components, and
            // clauses instead of nouns.
            dialect: pattern(
                r"(?i)\b(?:no|some|any)body\b|\bwho(?:ever|m)\b|(?://[/!]?|[.:;]) what (?:is|was|it|has|they|are|can|comes?|stands?|follows)\b",
            ),
            // Names that section "Words" of CONTRIBUTING.md excludes.
            vague_name: pattern(
                &[GENERIC_TYPES, VAGUE_TYPES, VAGUE_CONSTANTS, VAGUE_FUNCTIONS, VAGUE_VARIABLES].join("|"),
            ),
        }
    }

    /// Whether a `.rs` file below `crates/` is library code.
    pub(crate) fn is_library(&self, path: &str) -> bool {
        path.ends_with(".rs")
            && path.contains("/src/")
            && !self.skipped_folder.is_match(path)
            && !self.skipped_file.is_match(path)
    }

    /// Whether a line uses `unsafe`, outside of comments.
    pub(crate) fn uses_unsafe(&self, line: &str) -> bool {
        self.unsafe_use.is_match(without_comment(line))
    }

    /// Returns the text of a file before its test module.
    pub(crate) fn library_part<'a>(&self, text: &'a str) -> &'a str {
        self.test_module.find(text).map_or(text, |found| &text[..found.start()])
    }
}

/// Compiles a pattern. All patterns are constants that the tests below use.
pub(crate) fn pattern(text: &str) -> Regex {
    Regex::new(text).expect("the patterns of this program are constants that its tests use")
}

/// The metrics of one crate.
#[derive(Debug, Default)]
pub(crate) struct Shape {
    /// Number of lines of each file.
    pub(crate) file_lines: Vec<usize>,
    /// Number of lines of each function, with its position.
    pub(crate) functions: Vec<(usize, String)>,
    /// Total number of lines.
    pub(crate) lines: usize,
    /// Number of comment lines.
    pub(crate) comment_lines: usize,
    /// Number of lines with `.unwrap(` or `.expect(`.
    pub(crate) unwraps: usize,
    /// Comment lines with words that CONTRIBUTING.md excludes.
    pub(crate) dialect: Vec<String>,
    /// Lines with names that CONTRIBUTING.md excludes.
    pub(crate) vague_names: Vec<String>,
    /// Type names, each with the positions of its declarations.
    pub(crate) types: BTreeMap<String, Vec<String>>,
    /// Number of files in the largest import cycle.
    pub(crate) cycle_files: usize,
    /// Number of uses of `unsafe`.
    pub(crate) unsafe_uses: usize,
    /// Positions of uses of `unsafe` without a justification.
    pub(crate) unjustified: Vec<String>,
}

impl Shape {
    /// Adds the library part of one file.
    pub(crate) fn add(&mut self, patterns: &Patterns, file: &SourceFile) {
        let text = patterns.library_part(&file.text);
        let lines: Vec<&str> = text.split('\n').collect();
        self.file_lines.push(lines.len());
        self.lines += lines.len();
        self.comment_lines += lines.iter().filter(|line| is_comment(line)).count();
        self.unwraps +=
            lines.iter().filter(|line| !is_comment(line) && patterns.unwrap.is_match(line)).count();
        let functions = functions(patterns, &lines);
        let place =
            |(size, name, line): (usize, String, usize)| (size, format!("{}:{line} {name}", file.path));
        self.functions.extend(functions.into_iter().map(place));
        for (index, line) in lines.iter().enumerate() {
            let place = || format!("{}:{}", file.path, index + 1);
            if is_comment(line) && patterns.dialect.is_match(line) {
                self.dialect.push(place());
            }
            if patterns.vague_name.is_match(without_comment(line)) {
                self.vague_names.push(place());
            }
            if let Some(captures) = patterns.named_type.captures(line) {
                self.types.entry(captures[1].to_owned()).or_default().push(place());
            }
            if patterns.uses_unsafe(line) {
                self.unsafe_uses += 1;
                let from = index.saturating_sub(SAFETY_LINES_BEFORE);
                let near = &lines[from..lines.len().min(index + 2)];
                if !near.iter().any(|line| line.to_ascii_lowercase().contains("safety")) {
                    self.unjustified.push(place());
                }
            }
        }
    }

    /// Returns the file length that at most one file in ten exceeds.
    pub(crate) fn file_p90(&self) -> usize {
        share_from_top(&self.file_lines, 10)
    }

    /// Returns the function length that at most one function in twenty exceeds.
    pub(crate) fn function_p95(&self) -> usize {
        let lengths: Vec<usize> = self.functions.iter().map(|(size, _)| *size).collect();
        share_from_top(&lengths, 20)
    }

    /// Returns the functions longer than [`FUNCTION_LINES_MAX`], the longest first.
    pub(crate) fn long_functions(&self) -> Vec<&(usize, String)> {
        let mut long: Vec<_> = self.functions.iter().filter(|(size, _)| *size > FUNCTION_LINES_MAX).collect();
        long.sort_by(|a, b| b.cmp(a));
        long
    }

    /// Returns the names that several types have, with their positions.
    pub(crate) fn names_twice(&self) -> Vec<String> {
        let twice = self.types.iter().filter(|(_, places)| places.len() > 1);
        let twice = twice.filter(|(name, _)| !NAMES_BY_PATH.contains(&name.as_str()));
        twice.map(|(name, places)| format!("{name} is declared at {}", places.join(", "))).collect()
    }

    /// Returns the percentage of comment lines.
    pub(crate) fn comment_percent(&self) -> usize {
        // Rounded to the nearest, as a reader of the figure would do.
        (100 * self.comment_lines + self.lines / 2) / self.lines.max(1)
    }
}

/// Returns the value that at most one in `parts` of the values exceeds.
fn share_from_top(values: &[usize], parts: usize) -> usize {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(|a, b| b.cmp(a));
    sorted.get(values.len() / parts).copied().unwrap_or(0)
}

/// Returns length, name and first line of each function. A function ends at the next closing brace in its column, since
/// rustfmt formats the tree.
fn functions(patterns: &Patterns, lines: &[&str]) -> Vec<(usize, String, usize)> {
    let mut found = Vec::new();
    for (start, line) in lines.iter().enumerate() {
        let Some(captures) = patterns.function.captures(line) else { continue };
        let (indent, name) = (&captures[1], &captures[2]);
        if line.trim_end().ends_with(['}', ';']) {
            found.push((1, name.to_owned(), start + 1));
            continue;
        }
        for (end, line) in lines.iter().enumerate().skip(start + 1) {
            let Some(rest) = line.strip_prefix(indent) else { continue };
            if rest.starts_with('}') {
                found.push((end - start + 1, name.to_owned(), start + 1));
                break;
            }
            // A declaration without a body that spans several lines.
            if rest.trim_end().ends_with(';') && !rest.starts_with(char::is_whitespace) {
                break;
            }
        }
    }
    found
}

fn is_comment(line: &str) -> bool {
    line.trim_start().starts_with("//")
}

fn without_comment(line: &str) -> &str {
    line.split("//").next().unwrap_or(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(text: &str) -> Shape {
        let mut shape = Shape::default();
        let file = SourceFile { path: "crates/a/src/lib.rs".to_owned(), text: text.to_owned() };
        shape.add(&Patterns::new(), &file);
        shape
    }

    #[test]
    fn functions_are_measured_from_signature_to_brace() {
        let shape = shape(concat!(
            "pub(crate) async fn long(\n    a: u8,\n) {\n    if a {\n    }\n}\n",
            "trait T {\n    fn declared(\n        &self,\n    );\n    fn one(&self) {}\n}\n",
            "const fn three() {\n    x\n}\n",
        ));
        let expected = [(6, "long", 1), (1, "one", 11), (3, "three", 13)];
        let expected: Vec<_> = expected
            .iter()
            .map(|(size, name, line)| (*size, format!("crates/a/src/lib.rs:{line} {name}")))
            .collect();
        assert_eq!(shape.functions, expected);
    }

    #[test]
    fn tests_are_not_counted() {
        let shape =
            shape("//! A.\nfn a() {\n    b.expect(\"\");\n}\n#[cfg(test)]\nmod tests {\n    fn x() {}\n}\n");
        assert_eq!((shape.lines, shape.functions.len(), shape.unwraps), (5, 1, 1));
        assert_eq!((shape.comment_lines, shape.comment_percent()), (1, 20));
        let patterns = Patterns::new();
        assert!(patterns.is_library("crates/a/src/b/c.rs"));
        for path in ["crates/a/tests/b.rs", "crates/a/src/b/tests.rs", "crates/a/src/tests/b.rs", "build.rs"]
        {
            assert!(!patterns.is_library(path), "{path}");
        }
    }

    #[test]
    fn unsafe_needs_its_reason_nearby() {
        let shape = shape(concat!(
            "// SAFETY: it is alive.\nunsafe { a() }\n",
            "\n\n\n\n\n\n\n",
            "unsafe impl Send for A {}\n// unsafe { no code }\nunsafe_code\n",
        ));
        assert_eq!(shape.unsafe_uses, 2);
        assert_eq!(shape.unjustified, ["crates/a/src/lib.rs:10"]);
    }

    #[test]
    fn names_of_types_are_unique_and_comments_name_the_actor() {
        let shape = shape(concat!(
            "/// What is kept.\nstruct State;\nmod a {\n    pub(super) enum State {}\n}\n",
            "struct Conf;\nmod b {\n    struct Conf;\n}\n",
            "// Nobody reads it: what follows is lost.\n// The kernel knows what it does.\nlet nobody = 1;\n",
        ));
        assert_eq!(shape.names_twice().len(), 1);
        assert!(shape.names_twice()[0].starts_with("State is declared at crates/a/src/lib.rs:2, "));
        assert_eq!(shape.dialect, ["crates/a/src/lib.rs:1", "crates/a/src/lib.rs:10"]);
    }

    #[test]
    fn names_say_what_they_name() {
        let vague = |text: &str| !shape(text).vague_names.is_empty();
        for text in [
            "pub(super) enum State {",
            "    type Kind;",
            "enum Verdict {",
            "const TRIES: u32 = 3;",
            "pub(crate) fn of(request: &Request) {}",
            "    fn settle(&self) {}",
            "    let place = 3;",
            "    place: usize,",
        ] {
            assert!(vague(text), "{text}");
        }
        for text in [
            "struct State {",
            "pub enum GroupState {",
            "const TRIES_MAX: u32 = 3;",
            "    pub fn of(stat: &Stat) -> FileKind {}",
            "    let index = 3; // In place.",
            "    in_place: bool,",
        ] {
            assert!(!vague(text), "{text}");
        }
    }

    #[test]
    fn percentiles_count_from_the_top() {
        let shape = Shape { file_lines: (1..=20).collect(), ..Shape::default() };
        assert_eq!(shape.file_p90(), 18);
        assert_eq!(Shape::default().function_p95(), 0);
    }
}
