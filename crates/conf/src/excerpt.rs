//! The source line of an error, with a mark below the word that the error is about.
//!
//! An [`Error`] has the location of a statement and not of its words. So the text is parsed again here. Of the statement, the
//! word that the message quotes is marked; this decides only where the mark is.

use std::borrow::Cow;
use std::fmt::Write;
use std::ops::Range;

use crate::error::{Error, ErrorKind};
use crate::lexer::{Lexer, Piece};
use crate::nginx::nginx_directives;
use crate::source::{Sources, Span};
use crate::tree::Word;

/// Maximum number of characters shown of a line. Of a longer line, only the text around the mark is shown.
const SHOWN_MAX: usize = 100;

/// Typographic quotes that word processors substitute for `"` and `'`.
const QUOTES: &[char] = &['“', '”', '„', '‟', '‘', '’', '‚', '‛', '«', '»', '‹', '›'];

/// Typographic dashes that word processors substitute for `-`.
const DASHES: &[char] = &['–', '—', '−', '‐', '‑'];

/// A range of the text, with a remark.
struct Mark {
    range: Range<usize>,
    label: Option<Cow<'static, str>>,
}

/// Formats the line of an error with its number and a mark below, for a terminal. `None` if the text is not available.
///
/// ```text
///    12 |     root /var/www
///       |                  ^ a ";" is missing here
/// ```
pub fn excerpt(error: &Error, sources: &Sources) -> Option<String> {
    let text = sources.get(error.span()?.file.path()?)?;
    excerpt_of(error, text)
}

/// Works like [`excerpt`], for an error in this text.
pub fn excerpt_of(error: &Error, text: &[u8]) -> Option<String> {
    let mark = find(error, error.span()?, text)?;
    Some(render(text, &mark))
}

/// Returns what to write instead, if it is known: the hint of an error, and the remark behind the mark in words that need no mark.
pub fn remedy_of(error: &Error, sources: &Sources) -> Option<String> {
    let text = || sources.get(error.span()?.file.path()?);
    let mark = text().and_then(|text| find(error, error.span()?, text));
    let remark = mark.and_then(|mark| mark.label).map(|label| match label.strip_suffix(" here") {
        Some(start) => format!("{start} before it"),
        None => label.into_owned(),
    });
    let hint = Some(error.hint()).filter(|hint| !hint.is_empty());
    let parts: Vec<String> = hint.into_iter().chain(remark).collect();
    Some(parts.join("; ")).filter(|text| !text.is_empty())
}

/// Returns a remark if an unquoted word begins or ends with a typographic quote, or begins with a typographic dash.
pub fn typography(word: &Word) -> Option<&'static str> {
    if word.quoted {
        return None;
    }
    if word.text.starts_with(QUOTES) || word.text.ends_with(QUOTES) {
        return Some("a typographic quote: write \" or '");
    }
    word.text.starts_with(DASHES).then_some("a typographic dash: write -")
}

/// The words of one statement with their byte ranges.
type Words = Vec<(Word, Range<usize>)>;

fn find(error: &Error, span: &Span, text: &[u8]) -> Option<Mark> {
    let mut lexer = Lexer::new(text, span.file.clone());
    let mut words = Words::new();
    let mut seen = Seen::default();
    loop {
        match lexer.next_piece(words.is_empty()) {
            Ok(Piece::Word(word)) if word.span == *span => {
                return Some(Mark { range: lexer.range(), label: None });
            }
            Ok(Piece::Word(word)) => words.push((word, lexer.range())),
            Ok(piece) => {
                let ended = std::mem::take(&mut words);
                if lexer.span() == *span {
                    let first = ended.first().map_or_else(|| lexer.range(), |(_, range)| range.clone());
                    let mark = mark_of(error, &ended).unwrap_or(Mark { range: first, label: None });
                    let label = mark.label.or_else(|| seen.first_duplicate(error, &ended));
                    return Some(Mark { label, ..mark });
                }
                seen.add(&piece, &ended);
                if matches!(piece, Piece::End) {
                    return None;
                }
            }
            Err(fault) if fault.kind() == error.kind() => return Some(mark_of_fault(&fault, &words, &lexer)),
            Err(_) => return None,
        }
    }
}

/// Marks a syntax error, at the end of the text or at an invalid character. Usually a semicolon is missing before this
/// position.
fn mark_of_fault(fault: &Error, words: &Words, lexer: &Lexer<'_>) -> Mark {
    let is_quote = matches!(fault.kind(), ErrorKind::UnexpectedEnd { quote: Some(_) });
    if let Some(mark) = remedied(crate::remedy::foreign, fault, words) {
        return mark;
    }
    if let Some(mark) = missing_semicolon(words).filter(|_| !is_quote) {
        return mark;
    }
    let may_be_end =
        matches!(fault.kind(), ErrorKind::Unexpected('}') | ErrorKind::UnexpectedEnd { quote: None });
    match words.last() {
        Some((_, range)) if may_be_end => after(range),
        _ if is_quote => {
            Mark { range: lexer.range().start..lexer.range().start + 1, label: Some("opened here".into()) }
        }
        _ => Mark { range: lexer.range().end..lexer.range().end + 1, label: None },
    }
}

/// Returns the mark of a remedy.
fn remedied(
    remedy: fn(&Error, &[&Word]) -> Option<crate::remedy::Remedy>,
    error: &Error,
    words: &Words,
) -> Option<Mark> {
    let texts: Vec<&Word> = words.iter().map(|(word, _)| word).collect();
    let (index, label) = remedy(error, &texts)?;
    let (_, range) = words.get(index)?;
    Some(Mark { range: range.clone(), label: Some(label) })
}

/// The statements before the one of an error.
#[derive(Default)]
struct Seen {
    /// Name, arguments and line, with the number of the block.
    statements: Vec<(Vec<String>, u32, usize)>,
    /// Numbers of the open blocks.
    open: Vec<usize>,
    blocks: usize,
}

impl Seen {
    /// Adds an ended statement.
    fn add(&mut self, end: &Piece, words: &Words) {
        if let Some((first, _)) = words.first() {
            let texts = words.iter().map(|(word, _)| word.text.clone()).collect();
            self.statements.push((texts, first.span.line, self.open.last().copied().unwrap_or(0)));
        }
        match end {
            Piece::Open => {
                self.blocks += 1;
                self.open.push(self.blocks);
            }
            Piece::Close => drop(self.open.pop()),
            _ => {}
        }
    }

    /// Returns where the first of two duplicates is, if it is in the same file. Most directives must be unique in their block, names of
    /// groups, formats and zones in the complete configuration, and default servers among the servers of an address.
    fn first_duplicate(&self, error: &Error, words: &Words) -> Option<Cow<'static, str>> {
        let texts: Vec<&str> = words.iter().map(|(word, _)| word.text.as_str()).collect();
        let (name, args) = texts.split_first()?;
        let message = error.kind().to_string();
        let is_once = matches!(error.kind(), ErrorKind::Duplicate(_)) || message.contains("is duplicate");
        if !is_once && !message.contains("duplicate") && !message.contains("already bound") {
            return None;
        }
        let block = self.open.last().copied().unwrap_or(0);
        let is_global = matches!(
            *name,
            "upstream" | "limit_req_zone" | "limit_conn_zone" | "proxy_cache_path" | "log_format"
        );
        let is_default = message.contains("default server");
        let zone = |words: &[&str]| {
            words
                .iter()
                .find_map(|word| word.split_once("zone="))
                .map(|(_, zone)| zone.split(':').next().unwrap_or(zone).to_owned())
        };
        let is_first = |known: &(Vec<String>, u32, usize)| {
            let known_texts: Vec<&str> = known.0.iter().map(String::as_str).collect();
            let known_args = known_texts.get(1..).unwrap_or_default();
            known_texts.first() == Some(name)
                && match () {
                    () if is_default => {
                        known_args.contains(&"default_server") && known_args.first() == args.first()
                    }
                    () if zone(args).is_some() => zone(args) == zone(known_args),
                    () if is_global => known_args.first() == args.first(),
                    () if is_once => known.2 == block,
                    () => {
                        known.2 == block && known_args == args
                            || known.2 == block && *name == "listen" && known_args.first() == args.first()
                    }
                }
        };
        let (_, line, _) = self.statements.iter().find(|known| is_first(known))?;
        Some(format!("the first one is on line {line}").into())
    }
}

fn after(range: &Range<usize>) -> Mark {
    debug_assert!(range.start < range.end, "a word has at least one byte");
    Mark { range: range.end..range.end + 1, label: Some("a \";\" is missing here".into()) }
}

/// Finds a directive name at the start of a later line of a statement, which indicates a missing semicolon.
fn missing_semicolon(words: &Words) -> Option<Mark> {
    let is_directive = |word: &Word| !word.quoted && nginx_directives().named(&word.text).next().is_some();
    let pair = words
        .windows(2)
        .find(|pair| pair[1].0.span.line > pair[0].0.span.line && is_directive(&pair[1].0))?;
    Some(after(&pair[0].1))
}

/// Works like [`missing_semicolon`], for a word at the start of a line that is not a known directive. A semicolon is probably
/// missing if the statement has too many arguments and the lines before the word have an allowed number, or if the word is the
/// invalid value.
fn probably_missing(error: &Error, words: &Words) -> Option<Mark> {
    let may_be_name = |word: &Word| {
        let is_letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
        !word.quoted
            && word.text.starts_with(|first: char| first.is_ascii_lowercase())
            && word.text.bytes().all(is_letter)
    };
    let starts = |at: usize| words[at].0.span.line > words[at - 1].0.span.line && may_be_name(&words[at].0);
    let at = match error.kind() {
        ErrorKind::ArgumentCount { allowed, found, .. } if !allowed.allows(*found) => {
            (1..words.len()).find(|at| starts(*at) && allowed.allows(at - 1))?
        }
        ErrorKind::Value { value, .. } => {
            (2..words.len()).find(|at| starts(*at) && words[*at].0.text == *value)?
        }
        _ => return None,
    };
    Some(after(&words[at - 1].1))
}

/// Returns the word of a statement that a message refers to; `None` if it refers to another statement.
fn mark_of(error: &Error, words: &Words) -> Option<Mark> {
    if let Some(mark) = remedied(crate::remedy::foreign, error, words) {
        return Some(mark);
    }
    let (name, args) = words.split_first()?;
    let message = error.kind().to_string();
    let quotes = |text: &str| !text.is_empty() && message.contains(&format!("\"{text}\""));
    let ends_quoted = |text: &str| !text.is_empty() && message.contains(&format!("{text}\""));
    let names = |text: &str| {
        let names = message.split('"').skip(1).step_by(2).filter(|name| !name.is_empty());
        names
            .into_iter()
            .any(|name| text.contains(&format!("${name}")) || text.contains(&format!("${{{name}")))
    };
    let is_about_name = matches!(
        error.kind(),
        ErrorKind::Unknown { .. }
            | ErrorKind::NotSupported { .. }
            | ErrorKind::NotAllowedHere { .. }
            | ErrorKind::NotTerminated(_)
            | ErrorKind::NoOpening(_)
            | ErrorKind::ArgumentCount { .. }
            | ErrorKind::Duplicate(_)
    );
    let arg = |is_it: &dyn Fn(&str) -> bool| args.iter().find(|(word, _)| is_it(&word.text));
    let found = match is_about_name {
        true => quotes(&name.0.text).then_some(name),
        false => arg(&quotes).or_else(|| arg(&ends_quoted)).or_else(|| arg(&names)).or_else(|| {
            let value = match error.kind() {
                ErrorKind::Value { value, .. } => arg(&|text| text == value).or(args.first()),
                _ => None,
            };
            quotes(&name.0.text).then(|| value.unwrap_or(name))
        }),
    };
    if found.is_some()
        && let Some(mark) = missing_semicolon(words).or_else(|| probably_missing(error, words))
    {
        return Some(mark);
    }
    if let Some(mark) = remedied(crate::remedy::remedy, error, words) {
        return Some(mark);
    }
    let (_, range) = found?;
    let odd = words.iter().find_map(|(word, range)| Some((typography(word)?, range.clone())));
    Some(match odd {
        Some((label, range)) => Mark { range, label: Some(label.into()) },
        None => Mark { range: range.clone(), label: None },
    })
}

/// Formats the line with the mark; the mark is cut at the end of the line.
fn render(text: &[u8], mark: &Mark) -> String {
    let start = text[..mark.range.start.min(text.len())]
        .iter()
        .rposition(|byte| *byte == b'\n')
        .map_or(0, |at| at + 1);
    let end =
        text[start..].iter().position(|byte| *byte == b'\n').map_or(text.len(), |length| start + length);
    let number = 1 + text[..start].iter().filter(|byte| **byte == b'\n').count();
    let shown = |bytes: &[u8]| -> Vec<char> {
        let text = String::from_utf8_lossy(bytes).trim_end_matches('\r').replace('\t', "    ");
        text.chars().map(|character| if character.is_control() { '?' } else { character }).collect()
    };
    let before = shown(&text[start..mark.range.start.clamp(start, end)]).len();
    debug_assert!(start <= end && end <= text.len(), "the line is part of the text");
    let width =
        shown(&text[mark.range.start.clamp(start, end)..mark.range.end.clamp(start, end)]).len().max(1);
    let line = shown(&text[start..end]);
    let from = if line.len() <= SHOWN_MAX { 0 } else { before.saturating_sub(SHOWN_MAX / 2) };
    let line: String = line.iter().skip(from).take(SHOWN_MAX).collect();
    let (indent, width) = (before - from, width.min(SHOWN_MAX.saturating_sub(before - from).max(1)));
    let label = mark.label.as_ref().map(|label| format!(" {label}")).unwrap_or_default();
    let mut out = String::new();
    let _infallible = writeln!(out, "{number:>5} | {}", line.trim_end());
    let _infallible = writeln!(out, "{:>5} | {:indent$}{}{label}", "", "", "^".repeat(width));
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Args, CheckResult, Contexts, MapLoader, Source, Spec, Table, parse, visit};

    const LEVELS: Contexts = Contexts::HTTP.or(Contexts::SERVER).or(Contexts::LOCATION);

    static SPECS: [Spec; 4] = [
        Spec::new("http", "http", Contexts::MAIN, Args::None, "HTTP.").block(Contexts::HTTP),
        Spec::new("http_core", "server", Contexts::HTTP, Args::None, "A site.")
            .block(Contexts::SERVER)
            .many(),
        Spec::new("http_core", "root", LEVELS, Args::Exactly(1), "A directory."),
        Spec::new("http_core", "index", LEVELS, Args::AtLeast(1), "Files.").many(),
    ];

    /// Returns the excerpt of the first error.
    fn shown(text: &str) -> String {
        let loader: MapLoader = [("/n.conf", text)].into_iter().collect();
        let tree = parse(&Source::new("/n.conf"), &loader).expect("the file is in the map");
        let mut first = None;
        visit(&tree, &Table::new(&[&SPECS]), &mut |visit| {
            if let CheckResult::Fault(error) = visit.verdict {
                first.get_or_insert(error);
            }
        });
        let error = first.expect("there is an error");
        excerpt(&error, &tree.files).unwrap_or_default()
    }

    #[test]
    fn the_argument_named_in_the_message_is_marked() {
        let cases = [
            ("http { rot /a; }", "    1 | http { rot /a; }\n      |        ^^^\n"),
            ("http {\n\troot a b; }", "    2 |     root a b; }\n      |     ^^^^\n"),
            (
                "http { root a; server { } root b; }",
                "    1 | http { root a; server { } root b; }\n      |                           ^^^^ the first one is on line 1\n",
            ),
            ("http {\n root a\n index b;\n}", "    2 |  root a\n      |        ^ a \";\" is missing here\n"),
            ("http {\n root a\n}", "    2 |  root a\n      |        ^ a \";\" is missing here\n"),
            (
                "http {\n root a\n my_own on;\n}",
                "    2 |  root a\n      |        ^ a \";\" is missing here\n",
            ),
            ("http {\n root a\n \"my_own\" on;\n}", "    2 |  root a\n      |  ^^^^\n"),
            ("http {\n root a b\n my_own on;\n}", "    2 |  root a b\n      |  ^^^^\n"),
            ("http {\n root \"a;\n}", "    2 |  root \"a;\n      |       ^ opened here\n"),
            (
                "http {\n root “a b”;\n}",
                "    2 |  root “a b”;\n      |       ^^ a typographic quote: write \" or '\n",
            ),
            ("http {\n root –a b;\n}", "    2 |  root –a b;\n      |       ^^ a typographic dash: write -\n"),
            ("http { root \"a\"b; }", "    1 | http { root \"a\"b; }\n      |                ^\n"),
            ("http { ; }", "    1 | http { ; }\n      |        ^\n"),
            // The first "root" has the words of the second one.
            (
                "http { root root; server { } root root; }",
                "    1 | http { root root; server { } root root; }\n      |                              ^^^^ the first one is on line 1\n",
            ),
        ];
        for (text, expected) in cases {
            assert_eq!(shown(text), expected, "{text}");
        }
    }

    #[test]
    fn a_long_line_is_shortened() {
        let text = format!("http {{ {} rot a; {}}}", "index a; ".repeat(50), "index a; ".repeat(50));
        let lines: Vec<String> = shown(&text).lines().map(str::to_owned).collect();
        assert!(lines.iter().all(|line| line.chars().count() <= SHOWN_MAX + 8), "{lines:?}");
        let place = lines[1].find('^').expect("a mark");
        assert_eq!(lines[0].get(place..place + 3), Some("rot"));
    }

    #[test]
    fn hostile_texts_are_shown_safely() {
        for text in [
            "\u{1b}[31m { \u{1b};",
            "rot \"a\u{fffd};\n\n",
            "r\u{0}t;",
            "}",
            "root a",
            "http { root\r\n a b;\r\n }",
        ] {
            let shown = shown(text);
            assert!(!shown.contains('\u{1b}') && !shown.contains('\r'), "{shown:?}");
        }
    }
}
