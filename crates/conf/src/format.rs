//! Formatting of configuration text: one statement per line, indented blocks; comments and order are preserved.
//!
//! Words keep their spelling and quotes. A statement on several lines keeps its line breaks; its continuation lines are indented.
//! Consecutive empty lines become one. Rows in blocks such as `map` keep their column alignment. The result consists of the same
//! words and braces, so it parses to the same tree, and formatting it again changes nothing.

use crate::error::{Error, ErrorKind};
use crate::lexer::{Lexer, Piece};
use crate::nginx::nginx_directives;
use crate::source::FileId;
use crate::spec::Block;

const INDENT: &str = "    ";

/// Formats a text; included files are not read. Returns an error for invalid syntax.
pub fn format(text: &[u8], file: FileId) -> Result<Vec<u8>, Error> {
    let mut lexer = Lexer::new(text, file);
    let mut writer = Writer { out: Vec::with_capacity(text.len() + text.len() / 8), ..Writer::default() };
    let mut end = 0;
    // Whether the current block has rows, and whether each of the enclosing blocks has rows.
    let (mut holds_rows, mut open) = (false, Vec::new());
    loop {
        let piece = lexer.next_piece(!writer.in_statement)?;
        let range = lexer.range();
        let gap = &text[end..range.start];
        let newlines = writer.gap(gap);
        end = range.end;
        match piece {
            Piece::Word(word) if !writer.in_statement => {
                if crate::lua::is_block(&word.text) {
                    return Err(Error::at(
                        lexer.span(),
                        format_args!(
                            "the block of \"{}\" contains Lua code, which cannot be formatted",
                            word.text
                        ),
                    ));
                }
                writer.line(newlines, 0);
                writer.in_statement = true;
                holds_rows = is_block_of_rows(&word.text);
                writer.out.extend_from_slice(&text[range]);
            }
            Piece::Word(_) => {
                match writer.has_line && newlines == 0 {
                    true if gap.is_empty() => {}
                    // Column alignment of rows is preserved.
                    true if open.last() == Some(&true) && gap.iter().all(|byte| *byte == b' ') => {
                        writer.out.extend_from_slice(gap);
                    }
                    true => writer.out.push(b' '),
                    false => writer.line(1, 1),
                }
                writer.out.extend_from_slice(&text[range]);
            }
            Piece::Semicolon => writer.close_statement(b";"),
            Piece::Open => {
                writer.close_statement(b" {");
                writer.depth += 1;
                writer.is_fresh = true;
                open.push(holds_rows);
            }
            Piece::Close if writer.depth == 0 => return Err(lexer.error(ErrorKind::Unexpected('}'))),
            Piece::End if writer.depth > 0 => {
                return Err(lexer.error(ErrorKind::UnexpectedEndOfBlock { open: None }));
            }
            Piece::Close => {
                writer.depth -= 1;
                open.pop();
                // The closing brace of an empty block stays on its line.
                if !(writer.is_fresh && writer.has_line) {
                    writer.line(0, 0);
                }
                writer.out.push(b'}');
                writer.is_fresh = false;
            }
            Piece::End => {
                if writer.has_line {
                    writer.out.push(b'\n');
                }
                return Ok(writer.out);
            }
        }
    }
}

/// Whether the block of a directive has rows, like that of `map`.
fn is_block_of_rows(name: &str) -> bool {
    nginx_directives().named(name).any(|row| row.block(row.contexts) == Block::Raw)
}

/// The output so far.
#[derive(Debug, Default)]
struct Writer {
    out: Vec<u8>,
    depth: usize,
    in_statement: bool,
    /// Whether the current line has any text.
    has_line: bool,
    /// Whether a block was just opened and is still empty.
    is_fresh: bool,
}

impl Writer {
    /// Begins a line. An empty line before it is preserved, except at the start of the text or of a block.
    fn line(&mut self, newlines: usize, further: usize) {
        if self.has_line {
            self.out.push(b'\n');
        }
        if newlines > 1 && !self.is_fresh && !self.out.is_empty() {
            self.out.push(b'\n');
        }
        for _ in 0..self.depth + further {
            self.out.extend_from_slice(INDENT.as_bytes());
        }
        (self.has_line, self.is_fresh) = (true, false);
    }

    /// Writes the comments between two pieces. Returns the number of line ends between the last comment and the next piece.
    fn gap(&mut self, gap: &[u8]) -> usize {
        let (mut newlines, mut rest) = (0, gap);
        while let Some((&byte, tail)) = rest.split_first() {
            if byte != b'#' {
                newlines += usize::from(byte == b'\n');
                rest = tail;
                continue;
            }
            let length = rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len());
            let (comment, tail) = rest.split_at(length);
            if self.has_line && newlines == 0 {
                self.out.push(b' ');
            } else {
                self.line(newlines, usize::from(self.in_statement));
            }
            self.out.extend_from_slice(comment.trim_ascii_end());
            self.out.push(b'\n');
            (self.has_line, self.is_fresh) = (false, false);
            // The line end of the comment is counted with those after it.
            (newlines, rest) = (0, tail);
        }
        newlines
    }

    fn close_statement(&mut self, end: &[u8]) {
        // After a comment inside the statement.
        if !self.has_line {
            self.line(0, 1);
        }
        self.out.extend_from_slice(if self.out.ends_with(b" ") { end.trim_ascii_start() } else { end });
        self.in_statement = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MapLoader, Source, Statement, parse};

    fn formatted(text: &str) -> String {
        let file = FileId::file("/n.conf".as_ref());
        let once = format(text.as_bytes(), file.clone()).expect("it is a configuration");
        assert_eq!(format(&once, file), Ok(once.clone()), "{text}");
        assert_eq!(tree(&once), tree(text.as_bytes()), "{text}");
        String::from_utf8(once).expect("as the text was")
    }

    /// Parses the text to statements without line numbers.
    fn tree(text: &[u8]) -> String {
        let loader: MapLoader = [("/n.conf", text)].into_iter().collect();
        let tree = parse(&Source::new("/n.conf"), &loader).expect("the file is in the map");
        assert_eq!(tree.fault(), None);
        fn shown(statements: &[Statement], out: &mut String) {
            for statement in statements {
                for word in [&statement.name].into_iter().chain(&statement.args) {
                    *out += &format!("{:?}{} ", word.text, word.quoted);
                }
                *out += if statement.block.is_some() { "{" } else { ";" };
                shown(statement.children(), out);
                *out += if statement.block.is_some() { "}" } else { "" };
            }
        }
        let mut out = String::new();
        shown(&tree.statements, &mut out);
        out
    }

    #[test]
    fn each_statement_is_on_a_separate_line() {
        let cases = [
            ("", ""),
            ("  a   b\t'c  d' ;b;", "a b 'c  d';\nb;\n"),
            ("events{}", "events {}\n"),
            ("http {\n\n\n a;\n\n\n\n b; }", "http {\n    a;\n\n    b;\n}\n"),
            ("http{server{listen 80;}}", "http {\n    server {\n        listen 80;\n    }\n}\n"),
            ("log_format a 'b'\n  'c';", "log_format a 'b'\n    'c';\n"),
            ("if ($a = \"b\") { c; }", "if ($a = \"b\") {\n    c;\n}\n"),
            ("a b\n;\nc\n{\n}", "a b;\nc {}\n"),
            ("a;\r\nb; \r\n", "a;\nb;\n"),
            ("map $a $b {\na    b;\nab   c; }\na    b;", "map $a $b {\n    a    b;\n    ab   c;\n}\na b;\n"),
        ];
        for (text, expected) in cases {
            assert_eq!(formatted(text), expected, "{text}");
        }
    }

    #[test]
    fn comments_remain_at_their_position() {
        let cases = [
            ("# a\n\n# b\na; # c\n  # d\n", "# a\n\n# b\na; # c\n# d\n"),
            ("a { # b\n c; }", "a { # b\n    c;\n}\n"),
            ("a {\n # b\n}", "a {\n    # b\n}\n"),
            ("a b # c\n d; e;", "a b # c\n    d;\ne;\n"),
            ("a b # c\n ; e;", "a b # c\n    ;\ne;\n"),
            ("a # c\n {}", "a # c\n    {}\n"),
            ("a#b c;", "a#b c;\n"),
            ("a; #", "a; #\n"),
        ];
        for (text, expected) in cases {
            assert_eq!(formatted(text), expected, "{text}");
        }
    }

    #[test]
    fn invalid_configurations_are_refused() {
        for text in ["a", "a {", "}", ";", "a \"b", "content_by_lua_block { x; }"] {
            assert!(format(text.as_bytes(), FileId::file("/n".as_ref())).is_err(), "{text}");
        }
    }
}
