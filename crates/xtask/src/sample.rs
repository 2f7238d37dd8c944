//! `cargo xtask sample [SEED]`: draws random texts of the repository, for readers who know nginx and not this project.
//!
//! It prints twenty comments, ten paragraphs of the documents, ten log messages, ten rows of counter tables and twenty
//! commit subjects. A text that a reader must read twice should be rewritten. For the same files, the same seed yields
//! the same sample.

use crate::Failure;
use crate::shape::{Patterns, pattern};
use crate::workspace::{self, SourceFile};

/// Maximum number of lines of a comment in the sample.
const COMMENT_LINES_MAX: usize = 6;

/// Minimum length of a meaningful text, in words.
const WORDS_MIN: usize = 5;

/// A text and its position.
type Piece = (String, String);

/// Draws and prints the sample; without a seed, one from the clock is used.
pub(crate) fn print(seed: Option<&str>) -> Result<(), Failure> {
    let seed = match seed {
        Some(text) => text.parse().map_err(|_| Failure::Usage)?,
        None => seed_of_now(),
    };
    let files = workspace::files()?;
    println!("cargo xtask sample {seed}");
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    for (title, pieces, count) in [
        ("comments", comments(&files), 20),
        ("paragraphs of documents", paragraphs(&files), 10),
        ("log messages", log_messages(&files), 10),
        ("metric lines", metric_lines(&files), 10),
        ("commit subjects", subjects()?, 20),
    ] {
        println!("\n== {title} ({count} of {})", pieces.len());
        for (place, text) in draw(pieces, count, &mut random) {
            println!("\n{place}\n    {}", text.replace('\n', "\n    "));
        }
    }
    Ok(())
}

fn seed_of_now() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(1, |since| since.as_secs())
}

/// An xorshift generator.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % end.max(1)
    }
}

/// Draws pieces without repetition.
fn draw(mut pieces: Vec<Piece>, count: usize, random: &mut Random) -> Vec<Piece> {
    let take = |_| {
        let index = random.below(pieces.len());
        (!pieces.is_empty()).then(|| pieces.swap_remove(index))
    };
    (0..count).map_while(take).collect()
}

/// Returns all comments in the library sources, each with the line of code below it.
fn comments(files: &[SourceFile]) -> Vec<Piece> {
    let patterns = Patterns::new();
    let mut found = Vec::new();
    for file in files.iter().filter(|file| patterns.is_library(&file.path)) {
        let mut run: Vec<&str> = Vec::new();
        for (index, line) in file.text.lines().chain([""]).enumerate() {
            let line = line.trim_start();
            if line.starts_with("//") && run.len() < COMMENT_LINES_MAX {
                run.push(line);
            } else {
                let (words, is_comment) = (run.join("\n"), !run.is_empty());
                run.push(line);
                if is_comment && words.split_whitespace().count() >= WORDS_MIN {
                    found.push((format!("{}:{index}", file.path), run.join("\n")));
                }
                run.clear();
            }
        }
    }
    found
}

/// Returns paragraphs of text in the documents: no tables, headings, code, or raw output of measurements.
fn paragraphs(files: &[SourceFile]) -> Vec<Piece> {
    let is_page = |path: &str| {
        let is_output = path.starts_with("docs/experiments/raw/");
        path.ends_with(".md") && (path.starts_with("docs/") || !path.contains('/')) && !is_output
    };
    let mut found = Vec::new();
    for file in files.iter().filter(|file| is_page(&file.path)) {
        for paragraph in file.text.split("\n\n") {
            let text = paragraph.trim();
            if !text.starts_with(['|', '#', '`', '<']) {
                push(&mut found, file.path.clone(), text);
            }
        }
    }
    found
}

/// Returns texts that are written to the error log.
fn log_messages(files: &[SourceFile]) -> Vec<Piece> {
    let call =
        pattern(r#"(?s)\.(log|error|warn|info|notice|alert|crit|emerg|report)\([^";]*"((?:[^"\\]|\\.)+)""#);
    let joint = pattern(r"\\\n\s*");
    let text = |literal: &str| joint.replace_all(literal, "").replace("\\\"", "\"");
    matches(files, &call, |captures| text(&captures[2]), "crates/")
}

/// Returns rows of the counter tables, in the sources and on their page.
fn metric_lines(files: &[SourceFile]) -> Vec<Piece> {
    let row = pattern(r"(?m)^\| `(ringroad_[a-z_]+|\$?[a-z_]+)`.*$");
    matches(files, &row, |captures| captures[0].to_owned(), "docs/counters.md")
}

fn matches(
    files: &[SourceFile],
    wanted: &regex_lite::Regex,
    text: impl Fn(&regex_lite::Captures<'_>) -> String,
    below: &str,
) -> Vec<Piece> {
    let mut found = Vec::new();
    for file in files.iter().filter(|file| file.path.starts_with(below)) {
        for captures in wanted.captures_iter(&file.text) {
            push(&mut found, file.path.clone(), &text(&captures));
        }
    }
    found
}

/// Returns the subjects of the newest commits.
fn subjects() -> Result<Vec<Piece>, Failure> {
    let mut git = std::process::Command::new("git");
    git.args(["log", "--no-merges", "--max-count=200", "--format=%h%x1f%s"]).current_dir(workspace::root());
    let log = workspace::output(&mut git)?;
    let piece = |line: &str| line.split_once('\x1f').map(|(name, text)| (name.to_owned(), text.to_owned()));
    Ok(log.lines().filter_map(piece).collect())
}

fn push(found: &mut Vec<Piece>, place: String, text: &str) {
    if text.split_whitespace().count() >= WORDS_MIN {
        found.push((place, text.to_owned()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_selects_the_same_texts_once_each() {
        let pieces = || (0..30).map(|number| (number.to_string(), String::new())).collect::<Vec<Piece>>();
        let drawn = |seed| draw(pieces(), 20, &mut Random(seed));
        assert_eq!(drawn(5), drawn(5));
        let mut places: Vec<String> = drawn(5).into_iter().map(|(place, _)| place).collect();
        places.sort();
        places.dedup();
        assert_eq!(places.len(), 20);
        assert_eq!(draw(pieces(), 50, &mut Random(7)).len(), 30);
    }

    #[test]
    fn every_kind_of_text_is_found() {
        let files = workspace::files().expect("the repository is readable");
        assert!(comments(&files).len() > 1000);
        assert!(paragraphs(&files).len() > 100);
        assert!(log_messages(&files).len() > 20);
        assert!(metric_lines(&files).len() > 10);
    }
}
