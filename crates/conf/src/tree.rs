//! Statements and blocks, with every `include` replaced by its files. Other directives have no meaning here.
//!
//! Unreadable text (a syntax error, a missing file) ends the reading, but the statements before it are retained. The error becomes
//! the last statement of the tree, a *fault*. So a walk over the tree reports the error exactly where nginx would: after the
//! errors of earlier statements, and before the ends of the enclosing blocks. [`Scope::admit`](crate::Scope::admit) and
//! [`Statement::rows`] return the error of a fault.

use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use crate::error::{Error, ErrorKind};
use crate::glob;
use crate::lexer::{Lexer, Token};
use crate::source::{FileId, Loader, Source, Sources, Span};

/// Maximum nesting depth of blocks, because walks over the tree are recursive. Real configurations have a depth below
/// ten.
const BLOCK_DEPTH_MAX: usize = 64;

/// Maximum nesting depth of includes. It also ends loops through symbolic links, which [`ErrorKind::IncludeLoop`] does not detect.
const INCLUDE_DEPTH_MAX: usize = 32;

/// Maximum number of files read, including repetitions. The largest known installations have some ten thousand sites.
const FILES_MAX: usize = 100_000;

/// Maximum number of bytes read. It is sufficient for large `geo` and `map` files, and limits files that include each other many
/// times. A tree needs up to a hundred times the memory of its text.
const BYTES_MAX: usize = 128 << 20;

const _: () = assert!(INCLUDE_DEPTH_MAX < FILES_MAX);

/// A directive's name or argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Word {
    /// The text without quotes and with escapes replaced. Words are UTF-8; nginx accepts any bytes.
    pub text: String,
    /// Whether it was quoted.
    pub quoted: bool,
    /// The line on which the word starts. Errors report the line on which the statement ends, see [`Statement::span`].
    pub span: Span,
}

/// `name args;` or `name args { block }`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statement {
    /// The first word.
    pub name: Word,
    /// The words after the name.
    pub args: Vec<Word>,
    /// The content of the block, if any.
    pub block: Option<Vec<Statement>>,
    /// The line of the `;` or `{`, which nginx reports for this statement.
    pub span: Span,
    /// The line of the `}`, which nginx reports for incomplete blocks. Without a block it is the same as `span`.
    pub end: Span,
    pub(crate) fault: Option<Box<Error>>,
}

impl Statement {
    /// Returns the line to report in errors.
    pub fn span(&self) -> &Span {
        &self.span
    }

    /// Returns the text of an argument, 0-based. Even a valid statement may have fewer arguments.
    pub fn arg(&self, index: usize) -> Option<&str> {
        self.args.get(index).map(|word| word.text.as_str())
    }

    /// Returns the texts of all arguments.
    pub fn texts(&self) -> impl ExactSizeIterator<Item = &str> {
        self.args.iter().map(|word| word.text.as_str())
    }

    /// Returns the statements in the block; empty without a block.
    pub fn children(&self) -> &[Statement] {
        self.block.as_deref().unwrap_or_default()
    }

    /// Returns the rows of a block without directives, such as `types` or `map`. A row has no block.
    pub fn rows(&self) -> impl Iterator<Item = Result<&Statement, Error>> {
        self.children().iter().map(Statement::as_row)
    }

    /// Returns the error, if this statement stands for unreadable text.
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

/// A complete configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tree {
    /// The files read.
    pub files: Sources,
    /// The main context; the text of `-g` is first.
    pub statements: Vec<Statement>,
}

impl Tree {
    /// Returns the error that ended the reading early, if any. It is the last statement in the innermost open block.
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
/// `Err` means that the main file could not be read. Any other error becomes a fault in the tree, see the module's description. The
/// caller walks the tree and finds the first error of the configuration, whether in syntax or meaning.
pub fn parse(source: &Source, loader: &dyn Loader) -> Result<Tree, Error> {
    read(source, loader, false)
}

/// Works like [`parse`], for reports: an unreadable file or a fault in an included file does not end the reading. So a tree may
/// have several faults at any position.
pub fn parse_past_faults(source: &Source, loader: &dyn Loader) -> Result<Tree, Error> {
    read(source, loader, true)
}

fn read(source: &Source, loader: &dyn Loader, recovers: bool) -> Result<Tree, Error> {
    let mut reader = Reader {
        recovers,
        loader,
        source,
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
    let mut defaults = Vec::new();
    let mut text = Lexer::new(source.defaults.as_bytes(), FileId::COMMAND_LINE);
    // A fault of this text is in the tree like every other one.
    let _ = reader.statements(&mut text, &Ends::WithText, &mut defaults);
    defaults.retain(|default| !statements.iter().any(|known| known.name.text == default.name.text));
    // Before the blocks, which inherit from them.
    statements.splice(0..0, defaults);
    Ok(Tree { files: reader.files, statements })
}

/// Marker for the early end of the reading. The fault is already in the tree.
struct Stopped;

type Progress = ControlFlow<Stopped>;

enum Ends {
    WithText,
    /// The name of the block, and its line.
    WithBrace(String, u32),
}

struct Reader<'a> {
    /// Whether a fault ends only the file that contains it.
    recovers: bool,
    loader: &'a dyn Loader,
    source: &'a Source,
    files: Sources,
    /// The files being read, outermost first.
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
            let name = &words[0].text;
            let ends = Ends::WithBrace(name.clone(), span.line);
            progress = match crate::lua::is_block(name) && lexer.skip_lua() {
                true => Progress::Continue(()),
                false => self.statements(lexer, &ends, &mut block),
            };
            self.block_depth -= 1;
            block
        });
        let mut words = words.into_iter();
        let name = words.next().expect("the lexer returns at least one word");
        out.push(Statement { name, args: words.collect(), block, span, end: lexer.span(), fault: None });
        progress
    }

    fn include(&mut self, lexer: &Lexer<'_>, name: &str, out: &mut Vec<Statement>) -> Progress {
        let path = self.source.prefix.join(name);
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
                Ok(progress) if !self.recovers => progress?,
                Ok(_) => {}
                Err(kind) => self.miss_named(lexer, out, kind, name)?,
            }
        }
        Progress::Continue(())
    }

    /// Adds a fault for a file that cannot be read.
    fn miss(&self, lexer: &Lexer<'_>, out: &mut Vec<Statement>, kind: ErrorKind) -> Progress {
        self.miss_named(lexer, out, kind, "/")
    }

    /// Works like [`Reader::miss`], with the name as written. For a relative name, a hint states the directory to which it is
    /// relative.
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
            let prefix = self.source.prefix.display();
            error = error.advise(format_args!(
                "relative names start from \"{prefix}\", the directory of the main file"
            ));
        }
        let stopped = stop(lexer, out, error);
        if self.recovers && !is_limit { Progress::Continue(()) } else { stopped }
    }

    /// Returns `Err` if the file cannot be opened, which is a fault of the including statement.
    fn file(&mut self, path: &Path, out: &mut Vec<Statement>) -> Result<Progress, ErrorKind> {
        if self.open.iter().any(|open| open == path) {
            return Err(ErrorKind::IncludeLoop(path.to_owned()));
        }
        if self.open.len() == INCLUDE_DEPTH_MAX {
            return Err(ErrorKind::IncludesTooDeep { depth_max: INCLUDE_DEPTH_MAX });
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
        let progress =
            self.statements(&mut Lexer::new(&text, self.source.file_id(path)), &Ends::WithText, out);
        self.open.pop();
        Ok(progress)
    }
}

/// Whether a statement is an include, which every block allows, including blocks of rows. With another number of arguments it
/// remains in the tree, where the table refuses it or it is used as a row.
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
        // The standard library appends the number to the text; nginx prepends it.
        Some(code) => format!("{code}: {}", text.trim_end_matches(&format!(" (os error {code})"))),
        None => text,
    };
    ErrorKind::Unreadable { call, path: path.to_owned(), reason }
}
