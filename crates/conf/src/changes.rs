//! Differences between two configurations, directive by directive.
//!
//! Directives are compared within the same block. A directive with another value is one change. An added or removed block is one
//! change too, reported with the number of its directives. Order matters only among directives of the same name.
//!
//! The changes are logged, and the log may have more readers than the configuration. So values that look like secrets are
//! hidden.

use std::collections::{HashMap, VecDeque};
use std::fmt;

use crate::source::Span;
use crate::tree::Statement;

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The kind of change.
    pub kind: ChangeKind,
    /// The enclosing blocks, from the outermost to the innermost; empty in the main context.
    pub path: String,
    /// Location in the new configuration, or in the old one if the directive was removed.
    pub place: Span,
}

/// Kind of a change, with the texts of the directives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// Only the new configuration has this directive.
    Added(String),
    /// Only the old configuration has this directive.
    Removed(String),
    /// Name, old value and new value.
    Changed(String, String, String),
    /// Directives of this name are in another order.
    Reordered(String),
}

/// `gzip on -> off (http, server) in /etc/nginx/nginx.conf:7`
impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            ChangeKind::Added(text) => write!(f, "+ {text}")?,
            ChangeKind::Removed(text) => write!(f, "- {text}")?,
            ChangeKind::Changed(name, old, new) => write!(f, "{name} {old} -> {new}")?,
            ChangeKind::Reordered(name) => write!(f, "{name} in another order")?,
        }
        if !self.path.is_empty() {
            write!(f, " ({})", self.path)?;
        }
        write!(f, " in {}", self.place)
    }
}

/// Returns the first `max` changes between two configurations, and the total number of changes.
pub fn changes(old: &[Statement], new: &[Statement], max: usize) -> (Vec<Change>, usize) {
    let mut found = Found { changes: Vec::new(), count: 0, max, is_hidden: false };
    compare(old, new, "", &mut found);
    (found.changes, found.count)
}

/// The changes found so far.
struct Found {
    changes: Vec<Change>,
    count: usize,
    max: usize,
    /// Whether the rows of a table with secrets are compared.
    is_hidden: bool,
}

impl Found {
    fn add(&mut self, path: &str, place: &Span, kind: impl FnOnce() -> ChangeKind) {
        self.count += 1;
        if self.changes.len() < self.max {
            let kind = if self.is_hidden { kind().hidden() } else { kind() };
            self.changes.push(Change { kind, path: path.to_owned(), place: place.clone() });
        }
    }
}

impl ChangeKind {
    /// Returns the change without its texts.
    fn hidden(self) -> ChangeKind {
        let text = || NOT_SHOWN.to_owned();
        match self {
            ChangeKind::Added(_) => ChangeKind::Added(text()),
            ChangeKind::Removed(_) => ChangeKind::Removed(text()),
            ChangeKind::Changed(..) => ChangeKind::Changed(text(), text(), text()),
            ChangeKind::Reordered(_) => ChangeKind::Reordered(text()),
        }
    }
}

/// Statements of one name in both configurations, in order.
#[derive(Default)]
struct Side<'a> {
    old: Vec<&'a Statement>,
    new: Vec<&'a Statement>,
}

/// Compares the contents of two blocks. The cost is linear in the number of statements, because tables of `geo` and `map` have many
/// rows.
fn compare<'a>(old: &'a [Statement], new: &'a [Statement], path: &str, found: &mut Found) {
    let mut names: HashMap<(&str, bool), usize> = HashMap::new();
    let mut sides: Vec<Side<'a>> = Vec::new();
    // In the order of the new configuration, because the changes are reported in this order.
    let both =
        new.iter().map(|statement| (statement, true)).chain(old.iter().map(|statement| (statement, false)));
    for (statement, is_new) in both {
        let key = (statement.name.text.as_str(), statement.block.is_some());
        let index = *names.entry(key).or_insert(sides.len());
        if index == sides.len() {
            sides.push(Side::default());
        }
        let side = &mut sides[index];
        if is_new { side.new.push(statement) } else { side.old.push(statement) }
    }
    for Side { old, new } in sides {
        match old.first().or(new.first()) {
            Some(first) if first.block.is_some() => compare_blocks(old, new, path, found),
            _ => compare_values(&old, &new, path, found),
        }
    }
}

/// Compares directives of one name without blocks.
fn compare_values(old: &[&Statement], new: &[&Statement], path: &str, found: &mut Found) {
    let (pairs, old_left, new_left) = pair_equal(old, new, arguments);
    // The same values in another order are a change, because only the first of several directives may have an effect.
    if pairs.windows(2).any(|pair| pair[0].1 > pair[1].1) {
        let moved = new[pairs.iter().map(|pair| pair.1).min().unwrap_or_default()];
        found.add(path, &moved.span, || ChangeKind::Reordered(moved.name.text.clone()));
    }
    // If the directive occurs once in both configurations, its value has changed. Of several directives, those with the same
    // first argument are paired.
    let first_word = |statement: &Statement| statement.args.first().map(|word| word.text.clone());
    let pairs = match (old_left.as_slice(), new_left.as_slice()) {
        (&[old], &[new]) => (vec![(0, 0)], vec![old], vec![new]),
        _ => {
            let pairs =
                pair_equal(&old_left, &new_left, |statement| first_word(statement).unwrap_or_default());
            (pairs.0, old_left, new_left)
        }
    };
    let (pairs, old_left, new_left) = pairs;
    let (mut is_old_paired, mut is_new_paired) = (vec![false; old_left.len()], vec![false; new_left.len()]);
    for (old, new) in pairs {
        (is_old_paired[old], is_new_paired[new]) = (true, true);
        let (old, new) = (old_left[old], new_left[new]);
        found.add(path, &new.span, || changed(old, new));
    }
    for (new, _) in new_left.iter().zip(is_new_paired).filter(|(_, is_paired)| !is_paired) {
        found.add(path, &new.span, || ChangeKind::Added(shown(new)));
    }
    for (old, _) in old_left.iter().zip(is_old_paired).filter(|(_, is_paired)| !is_paired) {
        found.add(path, &old.span, || ChangeKind::Removed(shown(old)));
    }
}

/// Compares blocks of one name. Blocks with the same arguments are compared; among several such blocks, the most
/// similar ones.
fn compare_blocks<'a>(old: Vec<&'a Statement>, new: Vec<&'a Statement>, path: &str, found: &mut Found) {
    let mut groups: Vec<(Vec<&'a Statement>, Vec<&'a Statement>)> = Vec::new();
    let mut by_words: HashMap<String, usize> = HashMap::new();
    for (statement, is_new) in new.iter().map(|it| (*it, true)).chain(old.iter().map(|it| (*it, false))) {
        let group = *by_words.entry(arguments(statement)).or_insert_with(|| {
            groups.push((Vec::new(), Vec::new()));
            groups.len() - 1
        });
        let (old, new) = &mut groups[group];
        if is_new { new.push(statement) } else { old.push(statement) }
    }
    for (old, new) in groups {
        compare_group(old, new, path, found);
    }
}

/// Maximum number of blocks compared by similarity; larger groups are paired in order.
const SIMILAR_MAX: usize = 200;

/// Compares blocks with the same arguments.
fn compare_group(old: Vec<&Statement>, new: Vec<&Statement>, path: &str, found: &mut Found) {
    let is_large = old.len().max(new.len()) > SIMILAR_MAX;
    let whole = |statement: &Statement| crate::print(std::slice::from_ref(statement));
    let (_, mut old, new) = match (old.len(), new.len()) {
        (1, 1) => (Vec::new(), old, new),
        _ => pair_equal(&old, &new, whole),
    };
    for new in new {
        let best = match (old.len(), is_large) {
            (0, _) => None,
            // One candidate remains.
            (1, _) if similarity(old[0], new) > 0 || new.children().is_empty() => Some(0),
            (_, true) => Some(0),
            _ => {
                let scores = old.iter().map(|old| similarity(old, new)).enumerate();
                scores
                    .filter(|(_, score)| *score > 0)
                    .max_by_key(|(at, score)| (*score, usize::MAX - at))
                    .map(|(at, _)| at)
            }
        };
        match best {
            Some(at) => {
                let old = old.remove(at);
                let words = shown_head(new);
                let path = if path.is_empty() { words } else { format!("{path}, {words}") };
                let was_hidden = found.is_hidden;
                // The names in a `map` are values of its variable.
                found.is_hidden |= new.name.text == "map" && (is_secret(old) || is_secret(new));
                compare(old.children(), new.children(), &path, found);
                found.is_hidden = was_hidden;
            }
            None => found.add(path, &new.span, || ChangeKind::Added(shown(new))),
        }
    }
    for old in old {
        found.add(path, &old.span, || ChangeKind::Removed(shown(old)));
    }
}

/// Returns the number of directives that two blocks share; equal names with different values count less.
fn similarity(old: &Statement, new: &Statement) -> usize {
    let mut lines: HashMap<(&str, String), usize> = HashMap::new();
    let mut names: HashMap<&str, usize> = HashMap::new();
    for statement in old.children() {
        *lines.entry((&statement.name.text, arguments(statement))).or_default() += 1;
        *names.entry(&statement.name.text).or_default() += 1;
    }
    let mut score = 0;
    for statement in new.children() {
        if let Some(count @ 1..) = lines.get_mut(&(statement.name.text.as_str(), arguments(statement))) {
            *count -= 1;
            score += 4;
        } else if names.contains_key(statement.name.text.as_str()) {
            score += 1;
        }
    }
    score
}

/// Pairs statements with the same key, in order. Returns the pairs and the remaining statements of both sides.
fn pair_equal<'a>(
    old: &[&'a Statement],
    new: &[&'a Statement],
    key: impl Fn(&Statement) -> String,
) -> (Vec<(usize, usize)>, Vec<&'a Statement>, Vec<&'a Statement>) {
    let mut waiting: HashMap<String, VecDeque<usize>> = HashMap::new();
    for (index, statement) in new.iter().enumerate() {
        waiting.entry(key(statement)).or_default().push_back(index);
    }
    let (mut pairs, mut old_left, mut is_paired) = (Vec::new(), Vec::new(), vec![false; new.len()]);
    for (index, statement) in old.iter().enumerate() {
        match waiting.get_mut(&key(statement)).and_then(VecDeque::pop_front) {
            Some(other) => {
                is_paired[other] = true;
                pairs.push((index, other));
            }
            None => old_left.push(*statement),
        }
    }
    let new_left = new.iter().zip(is_paired).filter(|(_, is_paired)| !is_paired).map(|(it, _)| *it).collect();
    (pairs, old_left, new_left)
}

/// Returns the arguments as text of a configuration.
fn arguments(statement: &Statement) -> String {
    let words: Vec<String> = statement.args.iter().map(ToString::to_string).collect();
    words.join(" ")
}

/// Maximum number of characters shown of a value.
const SHOWN_MAX: usize = 120;

/// The text that replaces a secret.
const NOT_SHOWN: &str = "(not shown)";

/// Substrings of names of directives whose values may be secrets. Names are compared after underscores were replaced by
/// hyphens.
const SECRET_NAMES: [&str; 4] = ["password", "passwd", "secret", "secure-link-md5"];

/// Substrings of arguments that indicate a secret. Arguments are compared after underscores were replaced by hyphens.
const SECRET_WORDS: [&str; 7] =
    ["authorization", "password", "secret", "token", "api-key", "apikey", "private key"];

fn is_secret(statement: &Statement) -> bool {
    let has = |text: &str, parts: &[&str]| {
        let text = text.to_ascii_lowercase().replace('_', "-");
        parts.iter().any(|part| text.contains(part))
    };
    has(&statement.name.text, &SECRET_NAMES) || statement.texts().any(|text| has(text, &SECRET_WORDS))
}

fn cut(text: String) -> String {
    match text.char_indices().nth(SHOWN_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// Returns the name and arguments of a statement, without its block.
fn shown_head(statement: &Statement) -> String {
    let arguments = match is_secret(statement) {
        true => NOT_SHOWN.to_owned(),
        false => arguments(statement),
    };
    let space = if arguments.is_empty() { "" } else { " " };
    cut(format!("{}{space}{arguments}", statement.name))
}

fn shown(statement: &Statement) -> String {
    let head = shown_head(statement);
    match &statement.block {
        None => head,
        Some(block) => {
            let count = directives(block);
            format!("{head} {{ {count} directive{} }}", if count == 1 { "" } else { "s" })
        }
    }
}

/// Returns the number of directives in a block, including nested blocks.
fn directives(block: &[Statement]) -> usize {
    block.iter().map(|statement| 1 + directives(statement.children())).sum()
}

fn changed(old: &Statement, new: &Statement) -> ChangeKind {
    let value = |statement: &Statement| match is_secret(old) || is_secret(new) {
        true => NOT_SHOWN.to_owned(),
        false if statement.args.is_empty() => "(nothing)".to_owned(),
        false => cut(arguments(statement)),
    };
    ChangeKind::Changed(new.name.text.clone(), value(old), value(new))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MapLoader, Source, parse};

    fn statements(text: &str) -> Vec<Statement> {
        let loader: MapLoader = [("/c", text)].into_iter().collect();
        parse(&Source::new("/c"), &loader).expect("it is there").statements
    }

    fn lines(old: &str, new: &str) -> Vec<String> {
        let (found, count) = changes(&statements(old), &statements(new), 100);
        assert_eq!(found.len(), count);
        found.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_changed_directive_is_reported_in_one_line() {
        for (old, new, expected) in [
            ("a 1;", "a 1;", &[][..]),
            ("a 1;\nb 2;", "b 2;\na 1;", &[]),
            ("a 1;", "a 2;", &["a 1 -> 2 in /c:1"]),
            ("a 1;", "a 1;\nb \"x y\";", &["+ b \"x y\" in /c:2"]),
            ("a 1;\n\nb;", "a 1;", &["- b in /c:3"]),
            ("a;", "a 1 2;", &["a (nothing) -> 1 2 in /c:1"]),
            ("h { s { a 1; } }", "h { s {\na 2; } }", &["a 1 -> 2 (h, s) in /c:2"]),
            ("l 1; l 2; l 3;", "l 1; l 4; l 3;", &["l 2 -> 4 in /c:1"]),
            ("l 1; l 2;", "l 2; l 1;", &["l in another order in /c:1"]),
            (
                "p A x; p B x; p C x;",
                "p C y; p A x; p B z; p D x;",
                &["p B x -> B z in /c:1", "p C x -> C y in /c:1", "+ p D x in /c:1"],
            ),
        ] {
            assert_eq!(lines(old, new), expected, "{old} | {new}");
        }
    }

    #[test]
    fn blocks_are_matched_with_their_old_version() {
        let old = "http { server { listen 1; name a; root /a; } server { listen 2; name b; root /b; } up x { s 1; } }";
        let new = "http { server { listen 2; name b; root /c; }\nserver { listen 1; name a; root /a;\nx on; }\nup y { s 1; s 2; } }";
        assert_eq!(
            lines(old, new),
            [
                "root /b -> /c (http, server) in /c:1",
                "+ x on (http, server) in /c:3",
                "+ up y { 2 directives } (http) in /c:4",
                "- up x { 1 directive } (http) in /c:1",
            ]
        );
        let removed = lines(old, "http { server { listen 2; name b; root /b; } up x { s 1; } }");
        assert_eq!(removed, ["- server { 3 directives } (http) in /c:1"]);
        assert_eq!(
            lines("m $a { x 1; y 2; }", "m $a { x 1; y 3; z 4; }"),
            ["y 2 -> 3 (m $a) in /c:1", "+ z 4 (m $a) in /c:1"]
        );
    }

    #[test]
    fn secrets_are_not_printed() {
        for (old, new) in [
            ("set_header Authorization \"Basic aaa\";", "set_header Authorization \"Basic bbb\";"),
            ("secure_link_md5 \"$uri aaa\";", "secure_link_md5 \"$uri bbb\";"),
            ("x 1;", "x 1; api_password bbb;"),
            (
                "map $http_authorization $user { x y; aaa z; }",
                "map $http_authorization $user { x y; bbb z; }",
            ),
            ("map $http_x_api_key $user { aaa 1; }", "map $http_x_api_key $user { aaa 2; }"),
            ("if ($http_x_api_key != aaa) { x 1; }", "if ($http_x_api_key != aaa) { x 2; }"),
            ("key 'data:--BEGIN EC PRIVATE KEY--aaa';", "key 'data:--BEGIN EC PRIVATE KEY--bbb';"),
        ] {
            let lines = lines(old, new);
            assert!(!lines.is_empty() && lines.iter().all(|line| line.contains("(not shown)")), "{lines:?}");
            assert!(!lines.iter().any(|line| line.contains("aaa") || line.contains("bbb")), "{lines:?}");
        }
        let long = format!("x {};", "y".repeat(500));
        assert!(lines("", &long)[0].len() < 160);
    }

    #[test]
    fn excess_changes_are_only_counted() {
        let many = |value: &str| (0..300).map(|n| format!("n{n} {value};\n")).collect::<String>();
        let (found, count) = changes(&statements(&many("1")), &statements(&many("2")), 100);
        assert_eq!((found.len(), count), (100, 300));
        // The cost for tables with many rows is not quadratic.
        let rows = |from: u32| (from..from + 50_000).map(|n| format!("n{n} 1;")).collect::<String>();
        let (old, new) = (format!("geo {{ {} }}", rows(0)), format!("geo {{ {} }}", rows(10)));
        assert_eq!(changes(&statements(&old), &statements(&new), 5).1, 20);
    }
}
