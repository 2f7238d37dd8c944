//! The conditions of `if`.

use std::sync::Arc;

use conf::Error;
use io::facts::Stat;
use rustix::fs::Mode;

use crate::rewrite::note;
use exchange::files;
use exchange::request::Request;
use site::config::Cx;
use site::pattern::Pattern;
use site::template::Template;
use site::var_ref::VarRef;
use telemetry::ForLog;

/// A condition.
#[derive(Clone, Debug)]
pub(super) enum Condition {
    /// The variable is neither empty nor `0`.
    Set(VarRef),
    /// The variable is (or is not) equal to this text.
    Equal { variable: VarRef, text: Template, wanted: bool },
    /// The variable matches (or does not match) this pattern.
    Match { variable: VarRef, pattern: Arc<Pattern>, text: Box<str>, wanted: bool },
    /// A file of this kind exists (or does not exist) at this path.
    File { path: Template, kind: FileKind, wanted: bool },
}

/// The kind of a file test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileKind {
    /// `-f`
    Plain,
    /// `-d`
    Directory,
    /// `-e`: a file or a directory.
    Any,
    /// `-x`: executable by its owner.
    Executable,
}

/// The result of a condition.
pub(super) enum ConditionResult {
    /// The result is known.
    Holds(bool),
    /// The file at this path has to be checked first.
    NeedsFileCheck(Vec<u8>),
    /// Undecided: PCRE aborted the search.
    Fails,
}

impl Condition {
    /// Parses the words in parentheses. Blanks are allowed between all words, so the parentheses are separate words or
    /// parts of the first and last word.
    pub(super) fn read(cx: &mut Cx<'_>) -> Result<Condition, Error> {
        let mut words: Vec<&str> = cx.statement.texts().collect();
        let invalid = |cx: &Cx<'_>, word: &str| cx.error(format_args!("invalid condition \"{word}\""));
        // Messages name the words without the parentheses, as nginx does.
        let first = words[0].strip_prefix('(').ok_or_else(|| invalid(cx, words[0]))?;
        if first.is_empty() && words.len() > 1 {
            words.remove(0);
        } else {
            words[0] = first;
        }
        let last = words.len() - 1;
        let without = words[last].strip_suffix(')').ok_or_else(|| invalid(cx, words[last]))?;
        match without {
            "" if last > 0 => drop(words.pop()),
            // The parentheses are empty; nginx's message names the closing one.
            "" => {}
            without => words[last] = without,
        }
        match words.as_slice() {
            [name] if name.len() > 1 && name.starts_with('$') => Ok(Condition::Set(variable(name, cx))),
            [name, operator, text] if name.len() > 1 && name.starts_with('$') => {
                Condition::of_variable(variable(name, cx), operator, text, cx)
            }
            [test, path] if is_file_test(test) => Condition::of_file(test, path, cx),
            [word, ..] => Err(invalid(cx, word)),
            [] => Err(invalid(cx, "")),
        }
    }

    /// Parses a comparison with a text or with a pattern.
    fn of_variable(
        variable: VarRef,
        operator: &str,
        text: &str,
        cx: &mut Cx<'_>,
    ) -> Result<Condition, Error> {
        let wanted = !operator.starts_with('!');
        match operator {
            "=" | "!=" => Ok(Condition::Equal { variable, text: cx.template(text)?, wanted }),
            "~" | "!~" | "~*" | "!~*" => {
                let pattern = Arc::new(cx.pattern(text, operator.ends_with('*'))?);
                Ok(Condition::Match { variable, pattern, text: text.into(), wanted })
            }
            _ => Err(cx.error(format_args!("unexpected \"{operator}\" in condition"))),
        }
    }

    /// Parses a test of a file.
    fn of_file(test: &str, path: &str, cx: &mut Cx<'_>) -> Result<Condition, Error> {
        // The path is checked before the operator, as in nginx.
        let path = cx.template(path)?;
        let kind = match test.trim_start_matches('!') {
            "-f" => FileKind::Plain,
            "-d" => FileKind::Directory,
            "-e" => FileKind::Any,
            "-x" => FileKind::Executable,
            _ => return Err(cx.error(format_args!("invalid condition \"{test}\""))),
        };
        Ok(Condition::File { path, kind, wanted: !test.starts_with('!') })
    }

    /// Whether the condition has to wait for the disk.
    pub(super) fn waits(&self) -> bool {
        matches!(self, Condition::File { .. })
    }

    /// Evaluates the condition. `escaped` is whether groups in texts are escaped; with `log`, a match is logged.
    pub(super) fn evaluate(&self, request: &Request, escaped: bool, log: bool) -> ConditionResult {
        ConditionResult::Holds(match self {
            Condition::Set(variable) => {
                // `00` is true: nginx compares with the text `0` and not with a number.
                let value = value_of(variable, request);
                !value.is_empty() && value != b"0"
            }
            Condition::Equal { variable, text, wanted } => {
                let value = value_of(variable, request);
                let mut expected = Vec::new();
                text.render_groups(request, escaped, &mut expected);
                (value == expected) == *wanted
            }
            Condition::Match { variable, pattern, text, wanted } => {
                let value = value_of(variable, request);
                match find(pattern, text, &value, request, log) {
                    Some(found) => found == *wanted,
                    None => return ConditionResult::Fails,
                }
            }
            Condition::File { path, .. } => {
                let mut at = Vec::new();
                path.render_groups(request, escaped, &mut at);
                return ConditionResult::NeedsFileCheck(at);
            }
        })
    }

    /// Whether the condition is true after the check of the file; without `stat` the file does not exist.
    pub(super) fn holds_for(&self, stat: Option<&Stat>) -> bool {
        let Condition::File { kind, wanted, .. } = self else { return false };
        stat.is_some_and(|stat| kind.fits(stat)) == *wanted
    }
}

impl FileKind {
    /// Whether the target of a path, with links followed, is of this kind.
    fn fits(self, stat: &Stat) -> bool {
        match self {
            FileKind::Plain => files::is_file(stat),
            FileKind::Directory => files::is_dir(stat),
            FileKind::Any => files::is_file(stat) || files::is_dir(stat),
            FileKind::Executable => Mode::from_raw_mode(stat.mode).contains(Mode::XUSR),
        }
    }
}

/// Searches for a pattern. The groups of a match are stored in the request; without a match they are cleared. Returns
/// `None` if PCRE aborted the search, which is logged.
pub(super) fn find(
    pattern: &Pattern,
    text: &str,
    subject: &[u8],
    request: &Request,
    log: bool,
) -> Option<bool> {
    let found = pattern.find(subject).inspect_err(|gave_up| gave_up.log(subject, request)).ok()?;
    let verb = if found.is_some() { "matches" } else { "does not match" };
    note(request, log, format_args!("\"{text}\" {verb} \"{}\"", subject.for_log()));
    match &found {
        Some(found) => found.store(subject, request),
        None => request.captures.clear(),
    }
    Some(found.is_some())
}

/// Returns the variable after a dollar sign; groups of the last match are not supported here, as in nginx.
fn variable(text: &str, cx: &mut Cx<'_>) -> VarRef {
    cx.http.registry.reference_named(&text[1..], cx.statement)
}

/// Returns the value of a variable; a missing value is empty, so that it can be compared.
fn value_of(variable: &VarRef, request: &Request) -> Vec<u8> {
    let mut value = Vec::new();
    variable.value(request, &mut value);
    value
}

/// Whether a word is `-x` or `!-x`, with any character for `x`.
fn is_file_test(word: &str) -> bool {
    let test = word.strip_prefix('!').unwrap_or(word);
    test.len() == 2 && test.starts_with('-')
}
