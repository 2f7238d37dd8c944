//! Sources of configuration text: the files to read, the loader, the files read, and locations in them.
//!
//! This module makes no I/O: the caller passes a [`Loader`]. [`MapLoader`] reads from memory, for tests and for a process that
//! received the files from another process.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::glob;

/// ENOENT of errno(3): the error of [`MapLoader`], so that its messages equal those of a loader that reads from disk.
const ENOENT: i32 = 2;

/// ID of a source: a file name, or the command line. Clones are cheap.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId {
    path: Option<Arc<Path>>,
    /// The text that messages show instead of a position, for a text that a program has made.
    shown: Option<&'static str>,
}

impl FileId {
    const COMMAND_LINE_NAME: &'static str = "command line";

    /// The text of `-g`.
    pub const COMMAND_LINE: FileId = FileId { path: None, shown: Some(FileId::COMMAND_LINE_NAME) };

    /// Creates the ID of a file.
    pub fn file(path: &Path) -> FileId {
        FileId { path: Some(path.into()), shown: None }
    }

    /// Returns the path; `None` for the command line.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Returns the text that messages show instead of the path and the line.
    pub(crate) fn shown(&self) -> Option<&'static str> {
        self.shown
    }
}

/// A location in the configuration. As in nginx, messages show 1-based lines and no columns.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Span {
    /// The file.
    pub file: FileId,
    /// The line in it.
    pub line: u32,
    /// Number of bytes of the file before the location: statements of one line have different locations.
    pub offset: u32,
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Span({self})")
    }
}

impl From<&Span> for Span {
    fn from(span: &Span) -> Span {
        span.clone()
    }
}

/// What to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// The main file.
    pub main: PathBuf,
    /// The directory for relative includes. In nginx it is the directory of the main file.
    pub prefix: PathBuf,
    /// The text of `-g`, parsed before the main file; may be empty.
    pub globals: String,
    /// Directives of the main context, each of which applies only if neither the files nor `-g` have it there; may be empty.
    pub defaults: String,
    /// The origin of a main file that a program has made, which messages show instead of positions in it.
    pub origin: Option<&'static str>,
}

impl Source {
    /// Creates a source whose prefix is the directory of the main file, without `-g`.
    pub fn new(main: impl Into<PathBuf>) -> Source {
        let main = main.into();
        let prefix = main.parent().map(Path::to_owned).unwrap_or_default();
        Source { main, prefix, globals: String::new(), defaults: String::new(), origin: None }
    }

    /// Sets the text of `-g`.
    #[must_use]
    pub fn with_globals(self, globals: impl Into<String>) -> Source {
        Source { globals: globals.into(), ..self }
    }

    /// Sets the origin of a main file that a program has made.
    #[must_use]
    pub fn with_origin(self, origin: Option<&'static str>) -> Source {
        Source { origin, ..self }
    }

    /// Returns the ID of a file of this source.
    pub(crate) fn file_id(&self, path: &Path) -> FileId {
        let shown = self.origin.filter(|_| *path == *self.main);
        FileId { shown, ..FileId::file(path) }
    }

    /// Sets the directives that apply unless the configuration has them.
    #[must_use]
    pub fn with_defaults(self, defaults: impl Into<String>) -> Source {
        Source { defaults: defaults.into(), ..self }
    }
}

/// Reads files. Paths are passed as written; relative paths are appended to the prefix.
pub trait Loader {
    /// Reads a complete file.
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;

    /// Reads a complete file that workers write. The reader may have more rights than a worker, so it must follow no symbolic links
    /// of the user of workers, and must not wait for a FIFO.
    fn read_written(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.read(path)
    }

    /// Returns the files that match a pattern, sorted as by glob(3); an empty list if none match.
    /// [`expand_glob`](crate::expand_glob) searches directories, [`glob_matches`](crate::glob_matches) checks one path.
    fn glob(&self, pattern: &Path) -> io::Result<Vec<PathBuf>>;
}

/// Files in memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MapLoader(BTreeMap<PathBuf, Arc<[u8]>>);

impl<P: Into<PathBuf>, T: Into<Vec<u8>>> FromIterator<(P, T)> for MapLoader {
    fn from_iter<I: IntoIterator<Item = (P, T)>>(files: I) -> MapLoader {
        MapLoader(files.into_iter().map(|(path, text)| (path.into(), text.into().into())).collect())
    }
}

/// The files of a tree are sufficient to read the tree again, even if it has `include` with patterns.
impl From<&Sources> for MapLoader {
    fn from(sources: &Sources) -> MapLoader {
        MapLoader(sources.iter().map(|file| (file.path.clone(), file.text.clone())).collect())
    }
}

impl Loader for MapLoader {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        match self.0.get(path) {
            Some(text) => Ok(text.to_vec()),
            None => Err(io::Error::from_raw_os_error(ENOENT)),
        }
    }

    fn glob(&self, pattern: &Path) -> io::Result<Vec<PathBuf>> {
        let mut found: Vec<PathBuf> =
            self.0.keys().filter(|path| glob::matches(pattern, path)).cloned().collect();
        glob::sort(&mut found);
        Ok(found)
    }
}

/// One file that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceFile {
    /// The path with which the file was opened.
    pub path: PathBuf,
    /// Its bytes; comments need not be valid UTF-8.
    pub text: Arc<[u8]>,
}

/// The files of a configuration, in the order in which they were first read, without duplicates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sources {
    files: Vec<SourceFile>,
    by_path: BTreeMap<PathBuf, usize>,
}

impl Sources {
    /// Returns the files in order.
    pub fn iter(&self) -> impl Iterator<Item = &SourceFile> {
        self.files.iter()
    }

    /// Returns the text of one file.
    pub fn get(&self, path: &Path) -> Option<&Arc<[u8]>> {
        self.by_path.get(path).map(|&index| &self.files[index].text)
    }

    pub(crate) fn add(&mut self, path: &Path, text: Vec<u8>) -> Arc<[u8]> {
        debug_assert!(!self.by_path.contains_key(path), "a file is read once");
        debug_assert!(self.files.len() == self.by_path.len(), "each file has one path");
        let text: Arc<[u8]> = text.into();
        self.by_path.insert(path.to_owned(), self.files.len());
        self.files.push(SourceFile { path: path.to_owned(), text: text.clone() });
        text
    }
}
