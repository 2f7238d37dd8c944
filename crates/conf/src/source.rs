//! Where configuration text comes from: the request, the loader, the files read, places in them.
//!
//! No file is opened here. The caller passes a [`Loader`] for that; [`MapLoader`] serves from memory, for tests and for
//! a process that received the files from another.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::glob;

/// ENOENT of errno(3): the reason that [`MapLoader`] gives, so that its errors read like a disk's.
const ENOENT: i32 = 2;

/// The name of a file, or the fact that the text came from the command line. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId(Option<Arc<Path>>);

impl FileId {
    pub(crate) const COMMAND_LINE_NAME: &'static str = "command line";

    /// The text of `-g`.
    pub const COMMAND_LINE: FileId = FileId(None);

    /// A file of this name.
    pub fn file(path: &Path) -> FileId {
        FileId(Some(path.into()))
    }

    /// The path, unless it is the command line.
    pub fn path(&self) -> Option<&Path> {
        self.0.as_deref()
    }
}

/// A place in the configuration. nginx counts lines from 1 and knows no columns.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Span {
    /// The file.
    pub file: FileId,
    /// The line in it.
    pub line: u32,
}

impl From<&Span> for Span {
    fn from(span: &Span) -> Span {
        span.clone()
    }
}

/// The file to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// The main file.
    pub main: PathBuf,
    /// The directory of relative includes. In nginx: the directory of the main file.
    pub prefix: PathBuf,
    /// The text of `-g`, read before the main file; may be empty.
    pub globals: String,
}

impl Source {
    /// A main file with its own directory as prefix and no `-g`.
    pub fn new(main: impl Into<PathBuf>) -> Source {
        let main = main.into();
        let prefix = main.parent().map(Path::to_owned).unwrap_or_default();
        Source { main, prefix, globals: String::new() }
    }

    /// With the text of `-g`.
    #[must_use]
    pub fn with_globals(self, globals: impl Into<String>) -> Source {
        Source { globals: globals.into(), ..self }
    }
}

/// How files are read. Paths arrive as written, put behind the prefix where they are relative.
pub trait Loader {
    /// The whole file.
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;

    /// The files that match, as glob(3) finds and sorts them; no match is an empty list.
    /// [`expand_glob`](crate::expand_glob) does it over directories, [`glob_matches`](crate::glob_matches) for one
    /// path.
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

/// The files that a tree was read from are enough to read it again, patterns included.
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
    /// As it was opened.
    pub path: PathBuf,
    /// Its bytes; comments need not be UTF-8.
    pub text: Arc<[u8]>,
}

/// The files of a configuration in the order in which they were first read, each once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sources {
    files: Vec<SourceFile>,
    by_path: BTreeMap<PathBuf, usize>,
}

impl Sources {
    /// In order.
    pub fn iter(&self) -> impl Iterator<Item = &SourceFile> {
        self.files.iter()
    }

    /// The text of one file.
    pub fn get(&self, path: &Path) -> Option<&Arc<[u8]>> {
        self.by_path.get(path).map(|&index| &self.files[index].text)
    }

    pub(crate) fn add(&mut self, path: &Path, text: Vec<u8>) -> Arc<[u8]> {
        let text: Arc<[u8]> = text.into();
        self.by_path.insert(path.to_owned(), self.files.len());
        self.files.push(SourceFile { path: path.to_owned(), text: text.clone() });
        text
    }
}
