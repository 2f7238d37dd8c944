//! Changes of the text of a configuration that leave everything else as it is: comments, blanks, the order of lines.
//!
//! A statement is identified by its position in the tree that was read from the same text. Statements of included files are changed in
//! the text of their file. The changes of one text are applied together, because each of them moves the following positions.

use std::ops::Range;
use std::path::Path;

use crate::lexer::{Lexer, Piece};
use crate::source::{FileId, Span};
use crate::tree::Word;

/// A change of one statement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edit {
    /// The position of the statement, as in the tree.
    pub at: Span,
    /// The change.
    pub kind: EditKind,
}

/// The kinds of changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EditKind {
    /// Removes a statement without a block, with its line if nothing else is on it.
    Remove,
    /// Replaces an argument, 0-based.
    SetArgument(usize, String),
    /// Adds an argument at the end.
    AddArgument(String),
    /// Adds a statement on the next line, with the same indentation.
    AddAfter(String),
}

/// The words of a statement with their ranges, and the range of its end.
struct StatementText {
    words: Vec<(Word, Range<usize>)>,
    end: Range<usize>,
    file: FileId,
    at: Span,
}

/// Reads the statements of a text, without includes, up to the first syntax error.
fn statements(text: &[u8], file: &FileId) -> Vec<StatementText> {
    let mut lexer = Lexer::new(text, file.clone());
    let (mut found, mut words) = (Vec::new(), Vec::new());
    while let Ok(piece) = lexer.next_piece(words.is_empty()) {
        match piece {
            Piece::Word(word) => words.push((word, lexer.range())),
            Piece::End => break,
            _ if words.is_empty() => {}
            _ => {
                let (end, at) = (lexer.range(), lexer.span());
                found.push(StatementText { words: std::mem::take(&mut words), end, file: file.clone(), at });
            }
        }
    }
    found
}

/// Returns the arguments of the `include` directives of a text, with their positions.
pub fn includes(text: &[u8], path: &Path) -> Vec<(String, Span)> {
    let found = statements(text, &FileId::file(path));
    let included = found.into_iter().filter(|found| found.words[0].0.text == "include");
    included.filter_map(|found| Some((found.words.get(1)?.0.text.clone(), found.at))).collect()
}

/// Returns the text with these changes. A change of a statement that the text does not have, or that overlaps with an earlier one, is
/// omitted.
pub fn edit(text: &[u8], edits: &[Edit]) -> Vec<u8> {
    let Some(file) = edits.first().map(|edit| edit.at.file.clone()) else { return text.to_vec() };
    let found = statements(text, &file);
    let mut changes: Vec<(Range<usize>, Vec<u8>)> = Vec::new();
    for edit in edits {
        let statement = found.iter().find(|found| found.at == edit.at && found.file == edit.at.file);
        if let Some(change) = statement.and_then(|found| change(text, found, &edit.kind)) {
            changes.push(change);
        }
    }
    changes.sort_by_key(|(range, _)| (range.start, range.end));
    let mut new = Vec::with_capacity(text.len() + 64 * changes.len());
    let mut at = 0;
    for (range, replacement) in changes {
        if range.start >= at {
            new.extend_from_slice(&text[at..range.start]);
            new.extend_from_slice(&replacement);
            at = range.end;
        }
    }
    new.extend_from_slice(&text[at..]);
    new
}

/// Returns the range to replace and the new bytes.
fn change(text: &[u8], found: &StatementText, kind: &EditKind) -> Option<(Range<usize>, Vec<u8>)> {
    let start = found.words[0].1.start;
    let line_start = text[..start].iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    let line_end = text[found.end.end..]
        .iter()
        .position(|byte| *byte == b'\n')
        .map_or(text.len(), |at| found.end.end + at);
    let is_blank = |range: Range<usize>| text[range].iter().all(u8::is_ascii_whitespace);
    let ends_line = is_blank(found.end.end..line_end);
    match kind {
        EditKind::Remove => match is_blank(line_start..start) && ends_line {
            true => Some((line_start..(line_end + 1).min(text.len()), Vec::new())),
            false => Some((start..found.end.end, Vec::new())),
        },
        EditKind::SetArgument(index, new) => {
            let (_, range) = found.words.get(index + 1)?;
            Some((range.clone(), written(new, text.get(range.start).copied())))
        }
        EditKind::AddArgument(new) => {
            let end = found.words.last()?.1.end;
            Some((end..end, [b" ", written(new, None).as_slice()].concat()))
        }
        EditKind::AddAfter(new) => {
            let rest = text[found.end.end..line_end].trim_ascii_start();
            let at = if rest.is_empty() || rest.starts_with(b"#") { line_end } else { found.end.end };
            if at == found.end.end && !ends_line {
                return Some((at..at, [b" ", new.as_bytes()].concat()));
            }
            let indent =
                text[line_start..start].iter().take_while(|byte| byte.is_ascii_whitespace()).copied();
            let mut added = vec![b'\n'];
            added.extend(indent);
            added.extend_from_slice(new.as_bytes());
            Some((at..at, added))
        }
    }
}

/// Returns an argument in the notation of the language: in the quotes of the argument that it replaces, or if it needs quotes.
fn written(text: &str, first: Option<u8>) -> Vec<u8> {
    let quote = first.filter(|first| matches!(first, b'"' | b'\''));
    let is_special = |letter: char| letter.is_whitespace() || matches!(letter, ';' | '{' | '}' | '"' | '\'');
    let needs = text.is_empty() || text.contains(is_special);
    match quote.or(needs.then_some(b'"')) {
        None => text.as_bytes().to_vec(),
        Some(quote) => {
            let mut out = vec![quote];
            for byte in text.bytes() {
                if byte == quote || byte == b'\\' {
                    out.push(b'\\');
                }
                out.push(byte);
            }
            out.push(quote);
            out
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::{MapLoader, Source};

    /// Changes the statement with this name.
    fn edited(text: &str, name: &str, kind: EditKind) -> String {
        let loader: MapLoader = [("/n", text)].into_iter().collect();
        let tree = crate::parse(&Source::new("/n"), &loader).expect("it is in the map");
        fn search<'t>(statements: &'t [crate::Statement], name: &str) -> Option<&'t crate::Statement> {
            statements
                .iter()
                .find_map(|one| if one.name.text == name { Some(one) } else { search(one.children(), name) })
        }
        let at = search(&tree.statements, name).expect("the text has it").span().clone();
        String::from_utf8(edit(text.as_bytes(), &[Edit { at, kind }])).expect("it was text")
    }

    #[test]
    fn changes_leave_the_rest_as_it_is() {
        let text = "a {\n    b  1 'x y'; # c\n  d; e 2;\n}\n";
        for (name, kind, expected) in [
            ("b", EditKind::SetArgument(0, "2".to_owned()), "a {\n    b  2 'x y'; # c\n  d; e 2;\n}\n"),
            ("b", EditKind::SetArgument(1, "z".to_owned()), "a {\n    b  1 'z'; # c\n  d; e 2;\n}\n"),
            (
                "e",
                EditKind::SetArgument(0, "a b".to_owned()),
                "a {\n    b  1 'x y'; # c\n  d; e \"a b\";\n}\n",
            ),
            ("e", EditKind::AddArgument("f".to_owned()), "a {\n    b  1 'x y'; # c\n  d; e 2 f;\n}\n"),
            ("b", EditKind::AddAfter("n;".to_owned()), "a {\n    b  1 'x y'; # c\n    n;\n  d; e 2;\n}\n"),
            ("d", EditKind::AddAfter("n;".to_owned()), "a {\n    b  1 'x y'; # c\n  d; n; e 2;\n}\n"),
            ("d", EditKind::Remove, "a {\n    b  1 'x y'; # c\n   e 2;\n}\n"),
        ] {
            assert_eq!(edited(text, name, kind.clone()), expected, "{name} {kind:?}");
        }
        assert_eq!(edited("a;\n  b;\nc;\n", "b", EditKind::Remove), "a;\nc;\n");
    }

    #[test]
    fn includes_are_found() {
        let found = includes(b"a { include x/*.conf; }\n# include b;\ninclude c;", Path::new("/n"));
        let words: Vec<&str> = found.iter().map(|(word, _)| word.as_str()).collect();
        assert_eq!(words, ["x/*.conf", "c"]);
    }
}
