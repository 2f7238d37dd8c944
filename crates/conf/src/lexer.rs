//! Lexer: converts bytes to the words of one statement at a time. Handles quotes, escapes and comments, but not blocks.
//!
//! The rules are those of nginx, including unusual ones:
//! * `#` starts a comment only where a word could start; `a#b` is one word.
//! * A backslash prevents the next character from ending the word. Only the escapes `\" \' \\ \t \r \n` are replaced, also in
//!   unquoted words; others keep their backslash.
//! * `${` does not open a block: the brace after a dollar sign belongs to the word.
//! * After a closing quote a space, `;`, `{` or `)` must follow. `)` begins the next word: `if ($a = "b")`.
//! * `}` ends a block only where a word could start; `a}` is one word.
//!
//! nginx accepts words of at most 4096 bytes. Here only the text limits the length of a word.

use std::ops::Range;

use crate::error::{Error, ErrorKind};
use crate::source::{FileId, Span};
use crate::tree::Word;

pub(crate) enum Token {
    /// Words up to `;`, or up to `{` if it opens a block. At least one word.
    Words {
        words: Vec<Word>,
        opens_block: bool,
    },
    /// `}` where a statement could start.
    Close,
    End,
}

/// The smallest meaningful unit of the text. White space and comments separate pieces.
pub(crate) enum Piece {
    Word(Word),
    Semicolon,
    Open,
    Close,
    End,
}

pub(crate) struct Lexer<'a> {
    text: &'a [u8],
    at: usize,
    /// Start of the last piece.
    start: usize,
    line: u32,
    file: FileId,
}

impl<'a> Lexer<'a> {
    pub(crate) fn new(text: &'a [u8], file: FileId) -> Lexer<'a> {
        Lexer { text, at: 0, start: 0, line: 1, file }
    }

    /// Returns the current location. nginx reports it for all errors of a statement: the line that ends the statement.
    pub(crate) fn span(&self) -> Span {
        let offset = u32::try_from(self.at).unwrap_or(u32::MAX);
        Span { file: self.file.clone(), line: self.line, offset }
    }

    /// Returns the byte range of the last piece; after an error, from its first byte to the current position.
    pub(crate) fn range(&self) -> Range<usize> {
        debug_assert!(self.start <= self.at && self.start <= self.text.len(), "the lexer never goes back");
        self.start..self.at.min(self.text.len())
    }

    pub(crate) fn is_command_line(&self) -> bool {
        self.file == FileId::COMMAND_LINE
    }

    pub(crate) fn next_token(&mut self) -> Result<Token, Error> {
        let mut words = Vec::new();
        loop {
            match self.next_piece(words.is_empty())? {
                Piece::Word(word) => words.push(word),
                Piece::Semicolon => return Ok(Token::Words { words, opens_block: false }),
                Piece::Open => return Ok(Token::Words { words, opens_block: true }),
                Piece::Close => return Ok(Token::Close),
                Piece::End => return Ok(Token::End),
            }
        }
    }

    /// Returns the next piece. If a statement may start, `;` and `{` are errors; inside a statement, `}` and the end are errors.
    pub(crate) fn next_piece(&mut self, may_start: bool) -> Result<Piece, Error> {
        self.skip_blank();
        self.start = self.at;
        let Some(byte) = self.peek() else {
            return if may_start { Ok(Piece::End) } else { Err(self.unexpected_end(None)) };
        };
        let piece = match byte {
            b';' | b'{' | b'}' if may_start != (byte == b'}') => {
                return Err(self.error(ErrorKind::Unexpected(char::from(byte))));
            }
            b';' => Piece::Semicolon,
            b'{' => Piece::Open,
            b'}' => Piece::Close,
            b'"' | b'\'' => return self.quoted(byte).map(Piece::Word),
            _ => return self.bare().map(Piece::Word),
        };
        self.bump();
        Ok(piece)
    }

    /// Skips the Lua code of a block and its closing brace. Returns whether this brace exists.
    pub(crate) fn skip_lua(&mut self) -> bool {
        let rest = &self.text[self.at..];
        let len = crate::lua::block_len(rest);
        debug_assert!(len.is_none_or(|len| len <= rest.len()), "the block ends within the text");
        for _ in 0..len.unwrap_or(rest.len()) {
            self.bump();
        }
        len.is_some()
    }

    fn skip_blank(&mut self) {
        let mut in_comment = false;
        while let Some(byte) = self.peek() {
            match byte {
                b'\n' => in_comment = false,
                _ if in_comment || is_space(byte) => {}
                b'#' => in_comment = true,
                _ => return,
            }
            self.bump();
        }
    }

    fn quoted(&mut self, quote: u8) -> Result<Word, Error> {
        debug_assert!(self.peek() == Some(quote), "the word begins with its quote");
        let span = self.span();
        self.bump();
        let start = self.at;
        loop {
            match self.peek() {
                None => return Err(self.unexpected_end(Some((char::from(quote), span.line)))),
                Some(byte) if byte == quote => break,
                Some(_) => self.bump_escaped(),
            }
        }
        let raw = &self.text[start..self.at];
        self.bump();
        match self.peek() {
            None => Err(self.unexpected_end(None)),
            Some(byte) if is_space(byte) || b";{)".contains(&byte) => self.word(raw, true, span),
            Some(_) => {
                let rest = &self.text[self.at..self.text.len().min(self.at + 4)];
                let found =
                    String::from_utf8_lossy(rest).chars().next().unwrap_or(char::REPLACEMENT_CHARACTER);
                Err(self.error(ErrorKind::Unexpected(found)))
            }
        }
    }

    fn bare(&mut self) -> Result<Word, Error> {
        let span = self.span();
        let start = self.at;
        let mut after_dollar = false;
        loop {
            match self.peek() {
                None => return Err(self.unexpected_end(None)),
                Some(b'{') if after_dollar => self.bump(),
                Some(byte) if is_space(byte) || b";{".contains(&byte) => break,
                Some(byte) => {
                    after_dollar = byte == b'$';
                    self.bump_escaped();
                }
            }
        }
        self.word(&self.text[start..self.at], false, span)
    }

    fn word(&self, raw: &[u8], quoted: bool, span: Span) -> Result<Word, Error> {
        let bytes = unescape(raw);
        if bytes.contains(&0) {
            return Err(self.error(ErrorKind::UnreadableByte(0)));
        }
        match String::from_utf8(bytes) {
            Ok(text) => Ok(Word { text, quoted, span }),
            Err(error) => {
                let byte = error.as_bytes()[error.utf8_error().valid_up_to()];
                Err(self.error(ErrorKind::UnreadableByte(byte)))
            }
        }
    }

    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn bump(&mut self) {
        if self.peek() == Some(b'\n') {
            self.line += 1;
        }
        self.at += 1;
    }

    /// Skips one character, or a backslash and the escaped character.
    fn bump_escaped(&mut self) {
        let is_escape = self.peek() == Some(b'\\');
        self.bump();
        if is_escape && self.at < self.text.len() {
            self.bump();
        }
    }

    fn unexpected_end(&self, quote: Option<(char, u32)>) -> Error {
        self.error(match self.is_command_line() {
            true => ErrorKind::UnexpectedEndOfParameter,
            false => ErrorKind::UnexpectedEnd { quote },
        })
    }

    pub(crate) fn error(&self, kind: ErrorKind) -> Error {
        Error::new(kind, self.span())
    }
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r' | b'\n')
}

fn unescape(raw: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(raw.len());
    let mut rest = raw;
    while let [byte, tail @ ..] = rest {
        let (value, taken) = match (byte, tail.first()) {
            (b'\\', Some(&escaped @ (b'"' | b'\'' | b'\\'))) => (escaped, 2),
            (b'\\', Some(b't')) => (b'\t', 2),
            (b'\\', Some(b'r')) => (b'\r', 2),
            (b'\\', Some(b'n')) => (b'\n', 2),
            _ => (*byte, 1),
        };
        bytes.push(value);
        rest = &rest[taken..];
    }
    debug_assert!(bytes.len() <= raw.len(), "an escape is longer than its character");
    bytes
}
