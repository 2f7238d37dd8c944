//! The context of a directive's setter, without the settings that the setter changes, and the parsers that most setters use.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use conf::value::{self, ValueError};
use conf::{Contexts, Error, Level, Loader, Object, Statement, Tree};
use io::Errno;

use crate::config::Http;
use crate::config::declaration::Declarations;
use crate::network::Network;
use crate::pattern::Pattern;
use crate::template::Template;
use crate::uses::{FileUse, UsedPath};
use telemetry::Reason;
use transfer::temp_directory::TempDirectory;

/// The context of a directive's setter, without the settings that the setter changes.
pub struct Cx<'a> {
    /// The statement.
    pub statement: &'a Statement,
    /// The declarations of all modules of the server.
    pub modules: &'static Declarations,
    /// The complete configuration, for setters that need later statements.
    pub tree: &'a Tree,
    /// The context of the statement.
    pub context: Contexts,
    /// The number of the enclosing block, for [`crate::config::Layered::make_mut`].
    pub block: u32,
    /// The base of relative paths in the configuration (`-p`).
    pub prefix: &'a Path,
    /// The directory of the main configuration file.
    pub conf_prefix: &'a Path,
    /// Whether `pcre_jit` is on.
    pub jit: bool,
    /// Loads files.
    pub loader: &'a dyn Loader,
    /// The `http` block, with its variables and formats.
    pub http: &'a mut Http,
    /// The list that warnings are added to.
    pub warnings: &'a mut Vec<Error>,
}

/// Maximum number of digits in the name of a directory: with more digits its parent would become too large to list.
const LEVEL_DIGITS_MAX: u8 = 4;

impl<'a> Cx<'a> {
    /// Returns the context for a row of the statement's block, so that an error in it has the row's line.
    pub fn at<'b>(&'b mut self, row: &'b Statement) -> Cx<'b> {
        Cx { statement: row, http: self.http, warnings: self.warnings, ..*self }
    }

    /// Adds a warning at the statement.
    pub fn warn(&mut self, message: impl Display) {
        self.warnings.push(Error::at(self.statement, message).with_level(Level::Warn));
    }

    /// Returns a path of the configuration, below the prefix if it is relative, and records how it is used.
    pub fn path(&mut self, text: &str, file_use: FileUse) -> PathBuf {
        let path = self.prefix.join(text);
        self.uses_path(Template::text(&path.to_string_lossy()), self.prefix, file_use);
        path
    }

    /// Records how a path with variables is used. `base` is the directory of relative paths.
    pub fn uses_path(&mut self, path: Template, base: &Path, file_use: FileUse) {
        let path = UsedPath { path, base: base.to_owned(), file_use };
        self.http.uses.add(self.statement.name.text.as_str(), Some(self.statement.span()), path);
    }

    /// Returns the bytes of an additional file of the configuration, which is read once.
    pub fn read_data(&mut self, path: &Path) -> Result<Arc<Vec<u8>>, Error> {
        if let Some(bytes) = self.http.data.get(path) {
            return Ok(Arc::clone(bytes));
        }
        let bytes = self.loader.read(path).map_err(|error| {
            let reason = Reason(Errno::from_io_error(&error).unwrap_or(Errno::IO));
            self.error(format_args!("open() \"{}\" failed ({reason})", path.display()))
        });
        let bytes = Arc::new(bytes?);
        self.http.data.insert(path.to_owned(), Arc::clone(&bytes));
        Ok(bytes)
    }

    /// Returns the bytes of a file that workers write, which are none if it does not exist.
    pub fn read_written(&mut self, path: &Path) -> Result<Arc<Vec<u8>>, Error> {
        let bytes = match self.loader.read_written(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            read => read.map_err(|error| {
                let reason = match Errno::from_io_error(&error) {
                    Some(errno) => Reason(errno).to_string(),
                    // The loader does not open the file; the text has the reason.
                    None => error.to_string(),
                };
                self.error(format_args!("open() \"{}\" failed ({reason})", path.display()))
            })?,
        };
        let bytes = Arc::new(bytes);
        // A worker process reads the same bytes.
        self.http.data.insert(path.to_owned(), Arc::clone(&bytes));
        Ok(bytes)
    }

    /// Returns the text of an argument that the row of the directive requires. For optional arguments use `statement.arg`.
    ///
    /// # Panics
    /// If the row allows fewer arguments. A test sets every directive with the fewest arguments that its row allows.
    pub fn arg(&self, index: usize) -> &'a str {
        self.statement.arg(index).expect("the row of the directive requires the argument")
    }

    /// Returns an error at the statement.
    pub fn error(&self, message: impl Display) -> Error {
        Error::at(self.statement, message)
    }

    /// Returns an error for a name that no statement before this one defines.
    pub fn undefined(&self, object: Object, name: &str) -> Error {
        Error::undefined(self.statement, object, name)
    }

    /// Returns nginx's error `"x" directive invalid value`.
    pub fn invalid(&self, value: &str) -> Error {
        Error::value(self.statement, value, ValueError::Invalid)
    }

    /// Returns an error for an argument that nginx has and this server does not support yet.
    pub fn not_supported(&self, argument: &str) -> Error {
        Error::argument_not_supported(self.statement, argument)
    }

    /// Parses the first argument into `field`.
    pub fn set<T>(&self, field: &mut T, read: impl Fn(&str) -> Result<T, ValueError>) -> Result<(), Error> {
        *field = self.statement.value(0, read)?;
        Ok(())
    }

    /// Parses `on` or `off`.
    pub fn flag(&self, field: &mut bool) -> Result<(), Error> {
        self.set(field, value::flag)
    }

    /// Parses a size in memory, in bytes.
    pub fn size(&self, field: &mut u64) -> Result<(), Error> {
        self.set(field, value::size)
    }

    /// Parses a size in a file, in bytes.
    pub fn offset(&self, field: &mut u64) -> Result<(), Error> {
        self.set(field, value::offset)
    }

    /// Parses a number.
    pub fn number(&self, field: &mut u64) -> Result<(), Error> {
        self.set(field, value::number)
    }

    /// Parses a number between bounds, both included.
    pub fn number_in(&self, field: &mut u32, min: u32, max: u32) -> Result<(), Error> {
        let read = value::number_in(min.into(), max.into());
        *field = self.statement.value(0, read)? as u32;
        Ok(())
    }

    /// Parses a time in ms.
    pub fn milliseconds(&self, field: &mut Duration) -> Result<(), Error> {
        self.set(field, |text| value::milliseconds(text).map(Duration::from_millis))
    }

    /// Parses a time in seconds.
    pub fn seconds(&self, field: &mut Duration) -> Result<(), Error> {
        self.set(field, |text| value::seconds(text).map(Duration::from_secs))
    }

    /// Parses one of several keywords.
    pub fn choice<T: Copy>(&self, field: &mut T, names: &'static [(&'static str, T)]) -> Result<(), Error> {
        self.set(field, value::choice(names))
    }

    /// Compiles text with variables.
    pub fn template(&mut self, text: &str) -> Result<Template, Error> {
        let (registry, statement) = (&mut self.http.registry, self.statement);
        Template::compile(text, statement, |name| registry.reference(name, statement))
    }

    /// Returns the name of the variable that a directive defines, without its dollar sign. As in nginx, an argument
    /// without a dollar sign is an error.
    pub fn variable_name(&self, text: &'a str) -> Result<&'a str, Error> {
        let name = text.strip_prefix('$').filter(|name| !name.is_empty());
        name.ok_or_else(|| self.error(format_args!("invalid variable name \"{text}\"")))
    }

    /// Compiles text with variables that must expand to a size.
    pub fn size_template(&mut self, text: &str) -> Result<Template, Error> {
        let template = self.template(text)?;
        match template.constant().map(value::size) {
            Some(Err(error)) => Err(Error::value(self.statement, text, error)),
            _ => Ok(template),
        }
    }

    /// Compiles a path with variables, and records how it is used. A relative path starts from the prefix.
    pub fn path_template(&mut self, text: &str, file_use: FileUse) -> Result<Template, Error> {
        self.path_template_from(self.prefix, text, file_use)
    }

    /// As [`Cx::path_template`]; a relative path starts from `directory`. A path with a leading variable is returned unchanged.
    pub fn path_template_from(
        &mut self,
        directory: &Path,
        text: &str,
        file_use: FileUse,
    ) -> Result<Template, Error> {
        if !text.starts_with('$') {
            return self.template_below(directory, text, file_use);
        }
        let template = self.template(text)?;
        self.uses_path(template.clone(), directory, file_use);
        Ok(template)
    }

    /// Compiles a path with variables below a directory, unless it is absolute, and records how it is used. A dollar sign in the
    /// name of the directory is no variable.
    pub fn template_below(
        &mut self,
        directory: &Path,
        text: &str,
        file_use: FileUse,
    ) -> Result<Template, Error> {
        let template = self.template(text)?;
        // The text is lossless: the directory is text of the command line.
        let before = directory.join("");
        let template =
            if text.starts_with('/') { template } else { template.after(&before.to_string_lossy()) };
        self.uses_path(template.clone(), directory, file_use);
        Ok(template)
    }

    /// Parses the arguments of a directory for temporary files and the digits of its levels. The directory is created
    /// with its first file.
    pub fn temp_directory(&mut self) -> Result<TempDirectory, Error> {
        let mut levels = Vec::new();
        for text in self.statement.texts().skip(1) {
            let level = text.parse::<u8>().ok().filter(|level| (1..=LEVEL_DIGITS_MAX).contains(level));
            levels.push(level.ok_or_else(|| self.invalid(text))?);
        }
        let directory = self.path(self.arg(0), FileUse::Write);
        self.http.temp_directories.push((directory.clone(), self.statement.span().clone()));
        Ok(TempDirectory::new(directory, &levels))
    }

    /// Compiles a regular expression whose named groups become variables.
    pub fn pattern(&mut self, text: &str, caseless: bool) -> Result<Pattern, Error> {
        let (registry, statement) = (&mut self.http.registry, self.statement);
        Pattern::compile(text, caseless, self.jit, statement, |name| registry.define_group(name, statement))
    }
}

impl Network {
    /// Parses an argument of a directive; `None` for other texts.
    pub fn read(text: &str, cx: &mut Cx<'_>) -> Option<Network> {
        if text == "unix:" {
            return Some(Network::Unix);
        }
        let (network, low_bits) = Network::parse(text)?;
        if low_bits {
            // Allowed as in nginx, but with a warning: such bits are often a typo in the network or its prefix length.
            cx.warn(format_args!("low address bits of {text} are meaningless"));
        }
        Some(network)
    }
}
