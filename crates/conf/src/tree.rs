//! Statements and blocks, with every `include` replaced by its files. No other directive is known here.
//!
//! An unreadable spot (a syntax error, a missing file) ends the reading but keeps the statements before it: it becomes
//! the last statement of the tree, a *fault*. A walk over the tree in order meets it exactly where nginx would: after
//! the errors of the statements before it, and before the end of the blocks around it.
//! [`Scope::admit`](crate::Scope::admit) and [`Statement::rows`] return its error.

use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use crate::error::{Error, ErrorKind};
use crate::glob;
use crate::lexer::{Lexer, Token};
use crate::source::{FileId, Loader, Source, Sources, Span};

/// Blocks within blocks. Real configurations stay below ten; every walk over the tree is recursive.
const BLOCK_DEPTH_MAX: usize = 64;

/// Files within files. Catches loops that go through links, which [`ErrorKind::IncludeLoop`] cannot see.
const INCLUDE_DEPTH_MAX: usize = 32;

/// Files read, repeated ones included. The largest known installations have some ten thousand sites.
const FILES_MAX: usize = 100_000;

/// Bytes read. Room for large `geo` and `map` files, and an end for files that include each other many times: a
/// tree takes up to a hundred times the room of its text.
const BYTES_MAX: usize = 128 << 20;

const _: () = assert!(INCLUDE_DEPTH_MAX < FILES_MAX);

/// A directive's name or argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Word {
    /// Without quotes, escapes replaced. Words are UTF-8; nginx would take any byte.
    pub text: String,
    /// Written in quotes.
    pub quoted: bool,
    /// The line where the word starts. Errors name the line where the statement ends, see [`Statement::span`].
    pub span: Span,
}

/// `name args;` or `name args { block }`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statement {
    /// The first word.
    pub name: Word,
    /// The words behind it.
    pub args: Vec<Word>,
    /// The content of the braces, if there are any.
    pub block: Option<Vec<Statement>>,
    /// The line of the `;` or `{`: what nginx reports for this statement.
    pub span: Span,
    /// The line of the `}`, where nginx reports that a block lacks something. Without a block as `span`.
    pub end: Span,
    pub(crate) fault: Option<Box<Error>>,
}

impl Statement {
    /// The line that errors name.
    pub fn span(&self) -> &Span {
        &self.span
    }

    /// The text of an argument that the directive's table promises, counted from 0. Optional ones: `args.get(i)`.
    ///
    /// # Panics
    /// If there are fewer: the statement was not admitted, or its table entry is wrong.
    pub fn arg(&self, index: usize) -> &str {
        match self.args.get(index) {
            Some(word) => &word.text,
            None => {
                panic!("\"{}\" has no argument {index}: its table entry promises too much", self.name.text)
            }
        }
    }

    /// The texts of all arguments.
    pub fn texts(&self) -> impl ExactSizeIterator<Item = &str> {
        self.args.iter().map(|word| word.text.as_str())
    }

    /// The statements in the block; none if there is no block.
    pub fn children(&self) -> &[Statement] {
        self.block.as_deref().unwrap_or_default()
    }

    /// The rows of a block that holds no directives, such as `types` or `map`. A row has no block.
    pub fn rows(&self) -> impl Iterator<Item = Result<&Statement, Error>> {
        self.children().iter().map(Statement::as_row)
    }

    /// The error that this statement stands for, if it marks the spot where the reading ended.
    pub fn fault(&self) -> Option<&Error> {
        self.fault.as_deref()
    }

    pub(crate) fn as_row(&self) -> Result<&Statement, Error> {
        match (&self.fault, &self.block) {
            (Some(fault), _) => Err(Error::clone(fault)),
            (None, Some(_)) => Err(Error::new(ErrorKind::Unexpected('{'), self)),
            (None, None) => Ok(self),
        }
    }

    fn of_fault(error: Error, span: Span) -> Statement {
        let name = Word { text: String::new(), quoted: true, span: span.clone() };
        let (args, fault) = (Vec::new(), Some(Box::new(error)));
        Statement { name, args, block: None, end: span.clone(), span, fault }
    }
}

impl From<&Statement> for Span {
    fn from(statement: &Statement) -> Span {
        statement.span.clone()
    }
}

impl From<&Word> for Span {
    fn from(word: &Word) -> Span {
        word.span.clone()
    }
}

/// A whole configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tree {
    /// The files that were read.
    pub files: Sources,
    /// The main context, the text of `-g` first.
    pub statements: Vec<Statement>,
}

impl Tree {
    /// The fault that ended the reading early, if any: it is the last statement, in the innermost open block.
    pub fn fault(&self) -> Option<&Error> {
        let mut last = self.statements.last()?;
        while let Some(inner) = last.children().last() {
            last = inner;
        }
        last.fault()
    }
}

/// Reads the text of `-g`, the main file and everything that they include.
///
/// `Err` means that the main file could not be read. Whatever is wrong further in is part of the tree as a
/// fault, see the module's description: the caller walks the tree and meets the first error of the
/// configuration, be it one of syntax or one of meaning.
pub fn parse(source: &Source, loader: &dyn Loader) -> Result<Tree, Error> {
    read(source, loader, false)
}

/// The same for reports: a file that cannot be read, and a fault in an included file, do not end the reading. So a tree
/// may have several faults, anywhere.
pub fn parse_past_faults(source: &Source, loader: &dyn Loader) -> Result<Tree, Error> {
    read(source, loader, true)
}

fn read(source: &Source, loader: &dyn Loader, goes_on: bool) -> Result<Tree, Error> {
    let mut reader = Reader {
        goes_on,
        loader,
        prefix: &source.prefix,
        files: Sources::default(),
        open: Vec::new(),
        block_depth: 0,
        files_read: 0,
        bytes_read: 0,
    };
    let mut statements = Vec::new();
    let mut globals = Lexer::new(source.globals.as_bytes(), FileId::COMMAND_LINE);
    if reader.statements(&mut globals, &Ends::WithText, &mut statements).is_continue() {
        match reader.file(&source.main, &mut statements) {
            Ok(ControlFlow::Continue(()) | ControlFlow::Break(Stopped)) => {}
            Err(kind) => return Err(Error::unplaced(kind)),
        }
    }
    Ok(Tree { files: reader.files, statements })
}

/// The reading has ended early; the fault is in the tree already.
struct Stopped;

type Progress = ControlFlow<Stopped>;

enum Ends {
    WithText,
    /// The name of the block, and its line.
    WithBrace(String, u32),
}

struct Reader<'a> {
    /// Whether a fault ends the file that it is in, and no more.
    goes_on: bool,
    loader: &'a dyn Loader,
    prefix: &'a Path,
    files: Sources,
    /// The files that are being read, outermost first.
    open: Vec<PathBuf>,
    block_depth: usize,
    files_read: usize,
    bytes_read: usize,
}

impl Reader<'_> {
    fn statements(&mut self, lexer: &mut Lexer<'_>, ends: &Ends, out: &mut Vec<Statement>) -> Progress {
        loop {
            let token = match lexer.next_token() {
                Ok(token) => token,
                Err(error) => return stop(lexer, out, error),
            };
            match (token, ends) {
                (Token::End, Ends::WithText) | (Token::Close, Ends::WithBrace(..)) => {
                    return Progress::Continue(());
                }
                (Token::End, Ends::WithBrace(name, line)) => {
                    let open = Some((name.clone(), *line));
                    return stop(lexer, out, lexer.error(ErrorKind::UnexpectedEndOfBlock { open }));
                }
                (Token::Close, Ends::WithText) => {
                    return stop(lexer, out, lexer.error(ErrorKind::Unexpected('}')));
                }
                (Token::Words { words, opens_block: false }, _) if is_include(&words) => {
                    self.include(lexer, &words[1].text, out)?;
                }
                (Token::Words { words, opens_block }, _) => self.statement(lexer, words, opens_block, out)?,
            }
        }
    }

    fn statement(
        &mut self,
        lexer: &mut Lexer<'_>,
        words: Vec<Word>,
        opens_block: bool,
        out: &mut Vec<Statement>,
    ) -> Progress {
        let span = lexer.span();
        if opens_block && lexer.is_command_line() {
            return stop(lexer, out, lexer.error(ErrorKind::BlockInParameter));
        }
        if opens_block && self.block_depth == BLOCK_DEPTH_MAX {
            return stop(lexer, out, lexer.error(ErrorKind::TooDeep { depth_max: BLOCK_DEPTH_MAX }));
        }
        let mut progress = Progress::Continue(());
        let block = opens_block.then(|| {
            let mut block = Vec::new();
            self.block_depth += 1;
            let ends = Ends::WithBrace(words[0].text.clone(), span.line);
            progress = self.statements(lexer, &ends, &mut block);
            self.block_depth -= 1;
            block
        });
        let mut words = words.into_iter();
        let name = words.next().expect("the lexer returns at least one word");
        out.push(Statement { name, args: words.collect(), block, span, end: lexer.span(), fault: None });
        progress
    }

    fn include(&mut self, lexer: &Lexer<'_>, name: &str, out: &mut Vec<Statement>) -> Progress {
        let path = self.prefix.join(name);
        let found = if glob::is_pattern(name) {
            match self.loader.glob(&path) {
                Ok(found) => found,
                Err(error) => return self.miss(lexer, out, unreadable("glob()", &path, &error)),
            }
        } else {
            vec![path]
        };
        for path in found {
            match self.file(&path, out) {
                Ok(progress) if !self.goes_on => progress?,
                Ok(_) => {}
                Err(kind) => self.miss_named(lexer, out, kind, name)?,
            }
        }
        Progress::Continue(())
    }

    /// A file that is not to be had.
    fn miss(&self, lexer: &Lexer<'_>, out: &mut Vec<Statement>, kind: ErrorKind) -> Progress {
        self.miss_named(lexer, out, kind, "/")
    }

    /// The same with its name as written: a relative one may have been meant from elsewhere.
    fn miss_named(
        &self,
        lexer: &Lexer<'_>,
        out: &mut Vec<Statement>,
        kind: ErrorKind,
        name: &str,
    ) -> Progress {
        let is_limit = matches!(kind, ErrorKind::TooManyFiles { .. } | ErrorKind::TooMuchText { .. });
        let is_missing = matches!(kind, ErrorKind::Unreadable { .. });
        let mut error = lexer.error(kind);
        if is_missing && Path::new(name).is_relative() {
            let prefix = self.prefix.display();
            error = error.advise(format_args!(
                "relative names start from \"{prefix}\", the directory of the main file"
            ));
        }
        let stopped = stop(lexer, out, error);
        if self.goes_on && !is_limit { Progress::Continue(()) } else { stopped }
    }

    /// `Err` if the file cannot be opened, which is a fault of the statement that names it.
    fn file(&mut self, path: &Path, out: &mut Vec<Statement>) -> Result<Progress, ErrorKind> {
        if self.open.iter().any(|open| open == path) || self.open.len() == INCLUDE_DEPTH_MAX {
            return Err(ErrorKind::IncludeLoop(path.to_owned()));
        }
        let text = match self.files.get(path) {
            Some(text) => text.clone(),
            None => match self.loader.read(path) {
                Ok(text) => self.files.add(path, text),
                Err(error) => return Err(unreadable("open()", path, &error)),
            },
        };
        self.files_read += 1;
        self.bytes_read = self.bytes_read.saturating_add(text.len());
        if self.files_read > FILES_MAX {
            return Err(ErrorKind::TooManyFiles { files_max: FILES_MAX });
        }
        if self.bytes_read > BYTES_MAX {
            return Err(ErrorKind::TooMuchText { bytes_max: BYTES_MAX });
        }
        self.open.push(path.to_owned());
        let progress = self.statements(&mut Lexer::new(&text, FileId::file(path)), &Ends::WithText, out);
        self.open.pop();
        Ok(progress)
    }
}

/// Every block takes includes, those of rows too. With another number of arguments it is left in the tree, where the
/// table refuses it or the owner of the rows reads it as a row.
fn is_include(words: &[Word]) -> bool {
    words.len() == 2 && words[0].text == "include"
}

fn stop(lexer: &Lexer<'_>, out: &mut Vec<Statement>, error: Error) -> Progress {
    out.push(Statement::of_fault(error, lexer.span()));
    Progress::Break(Stopped)
}

fn unreadable(call: &'static str, path: &Path, error: &io::Error) -> ErrorKind {
    let text = error.to_string();
    let reason = match error.raw_os_error() {
        // The standard library puts the number behind the text, nginx before it.
        Some(code) => format!("{code}: {}", text.trim_end_matches(&format!(" (os error {code})"))),
        None => text,
    };
    ErrorKind::Unreadable { call, path: path.to_owned(), reason }
}
