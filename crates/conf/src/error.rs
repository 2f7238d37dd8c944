//! Diagnostics: error, location, severity, and a hint if available.
//!
//! [`Error`] is formatted like nginx's messages without the prefix `nginx: [emerg] `: `MESSAGE in FILE:LINE`. A hint follows after
//! a semicolon, so that a comparison with nginx can remove it. Checks of a directive ("duplicate location") are in its module and
//! report through [`Error::at`].

use std::fmt;
use std::path::PathBuf;

use crate::source::Span;
use crate::spec::{Args, Contexts};
use crate::value::ValueError;

/// Severity, with nginx's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Informational; the configuration works as written.
    Notice,
    /// Probably a mistake; the configuration is used.
    Warn,
    /// The configuration cannot be used.
    Emerg,
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Level::Notice => "notice",
            Level::Warn => "warn",
            Level::Emerg => "emerg",
        })
    }
}

/// One diagnostic. `Display` formats nginx's line without program name and level.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    level: Level,
    kind: Box<ErrorKind>,
    span: Option<Span>,
    /// Hint about what to write instead, if the kind does not imply it.
    advice: Option<Box<str>>,
}

impl Error {
    /// Creates an error for a check of a directive's module: `Error::at(statement, "duplicate location \"/\"")`.
    pub fn at(span: impl Into<Span>, message: impl fmt::Display) -> Error {
        Error::new(ErrorKind::Message(message.to_string()), span)
    }

    /// Creates an error without a location, such as `no "events" section in configuration`.
    pub fn without_location(message: impl fmt::Display) -> Error {
        Error::unplaced(ErrorKind::Message(message.to_string()))
    }

    /// Creates an error at a position, or without a location if none is known.
    pub fn at_known(position: Option<&Span>, message: impl fmt::Display) -> Error {
        match position {
            Some(position) => Error::at(position, message),
            None => Error::without_location(message),
        }
    }

    /// Creates an error whose text follows the directive's name, as most setters of nginx do: `"root" directive is duplicate`.
    pub fn directive(statement: &crate::Statement, message: impl fmt::Display) -> Error {
        Error::at(statement, format_args!("\"{}\" directive {message}", statement.name.text))
    }

    /// Creates an error for a value that could not be parsed.
    pub fn value(statement: &crate::Statement, value: &str, error: ValueError) -> Error {
        let directive = statement.name.text.clone();
        Error::new(ErrorKind::Value { directive, value: value.to_owned(), error }, statement)
    }

    /// Creates an error for an argument that nginx has and this server does not support yet.
    pub fn argument_not_supported(statement: &crate::Statement, argument: &str) -> Error {
        let (directive, argument) = (statement.name.text.clone(), argument.to_owned());
        Error::new(ErrorKind::ArgumentNotSupported { directive, argument }, statement)
    }

    /// Creates an error for a module that is not available, although a directive needs it; `needed` is the error of that directive.
    pub fn missing_module(span: impl Into<Span>, message: impl fmt::Display, needed: &ErrorKind) -> Error {
        let needed = Box::new(needed.clone());
        Error::new(ErrorKind::MissingModule { message: message.to_string(), needed }, span)
    }

    /// Creates an error for a name that no statement defines.
    pub fn undefined(span: impl Into<Span>, object: Object, name: &str) -> Error {
        Error::new(ErrorKind::Undefined { object, name: name.to_owned() }, span)
    }

    /// Creates an error for an `upstream` without a usable server; see [`ErrorKind::NoServers`].
    pub fn no_servers(span: impl Into<Span>, group: Option<&str>) -> Error {
        Error::new(ErrorKind::NoServers(group.map(str::to_owned)), span)
    }

    /// Returns the diagnostic with another level; new errors have [`Level::Emerg`].
    #[must_use]
    pub fn with_level(self, level: Level) -> Error {
        Error { level, ..self }
    }

    /// Returns the diagnostic with a hint, which is printed after a semicolon.
    #[must_use]
    pub fn advise(self, advice: impl fmt::Display) -> Error {
        Error { advice: Some(advice.to_string().into()), ..self }
    }

    /// Returns the severity.
    pub fn level(&self) -> Level {
        self.level
    }

    /// Returns the kind of error.
    pub fn kind(&self) -> &ErrorKind {
        &self.kind
    }

    /// Returns the location, if any.
    pub fn span(&self) -> Option<&Span> {
        self.span.as_ref()
    }

    /// Returns the message without the location and the hint.
    pub fn cause(&self) -> String {
        self.kind.to_string()
    }

    /// Returns the hint; empty if there is none.
    pub(crate) fn hint(&self) -> String {
        Hint(self).to_string().trim_start_matches("; ").to_owned()
    }

    pub(crate) fn new(kind: ErrorKind, span: impl Into<Span>) -> Error {
        Error { span: Some(span.into()), ..Error::unplaced(kind) }
    }

    pub(crate) fn unplaced(kind: ErrorKind) -> Error {
        Error { level: Level::Emerg, kind: Box::new(kind), span: None, advice: None }
    }
}

impl std::error::Error for Error {}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.kind)?;
        if let Some(span) = &self.span {
            write!(f, " in {span}")?;
        }
        Hint(self).fmt(f)
    }
}

/// The hints of an error, each after a semicolon.
struct Hint<'e>(&'e Error);

impl fmt::Display for Hint<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.kind.write_hint(f)?;
        match &self.0.advice {
            Some(advice) => write!(f, "; {advice}"),
            None => Ok(()),
        }
    }
}

/// The kinds of errors: those that this crate detects, and those of modules that a program distinguishes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// A character that is not allowed here.
    Unexpected(char),
    /// The text ended inside a statement; `quote` is the unclosed quote and the line on which it was opened.
    UnexpectedEnd {
        /// The unclosed quote, if any.
        quote: Option<(char, u32)>,
    },
    /// The text ended inside a block.
    UnexpectedEndOfBlock {
        /// Name and line of the innermost open block.
        open: Option<(String, u32)>,
    },
    /// The text of `-g` ended inside a statement.
    UnexpectedEndOfParameter,
    /// `-g` accepts simple directives only.
    BlockInParameter,
    /// A word contains NUL or invalid UTF-8. Comments may contain any bytes.
    UnreadableByte(u8),
    /// Blocks are nested too deeply.
    TooDeep {
        /// The limit.
        depth_max: usize,
    },
    /// The file includes itself, directly or indirectly.
    IncludeLoop(PathBuf),
    /// Includes are nested too deeply.
    IncludesTooDeep {
        /// The limit.
        depth_max: usize,
    },
    /// Too many files.
    TooManyFiles {
        /// The limit.
        files_max: usize,
    },
    /// Too much text.
    TooMuchText {
        /// The limit.
        bytes_max: usize,
    },
    /// A file, or a directory in a pattern, could not be read.
    Unreadable {
        /// The system call that nginx names.
        call: &'static str,
        /// The path or the pattern.
        path: PathBuf,
        /// `2: No such file or directory`
        reason: String,
    },
    /// An unknown directive.
    Unknown {
        /// The name as written.
        name: String,
        /// A similar known name.
        similar: Option<&'static str>,
        /// Where the similar directive is allowed, if not here.
        allowed: Contexts,
    },
    /// nginx has this directive, but this server does not support it.
    NotSupported {
        /// The directive.
        name: &'static str,
        /// nginx's module.
        module: &'static str,
    },
    /// The directive is not allowed in this context.
    NotAllowedHere {
        /// The directive.
        name: String,
        /// The contexts in which it is allowed.
        allowed: Contexts,
    },
    /// A block after a simple directive.
    NotTerminated(String),
    /// A block is missing.
    NoOpening(String),
    /// Too few or too many arguments.
    ArgumentCount {
        /// The directive.
        name: String,
        /// Number of arguments allowed.
        allowed: Args,
        /// Number of arguments found.
        found: usize,
    },
    /// The directive occurs twice in one block.
    Duplicate(String),
    /// nginx has this argument, but this server does not support it.
    ArgumentNotSupported {
        /// The directive.
        directive: String,
        /// The argument.
        argument: String,
    },
    /// An argument could not be parsed.
    Value {
        /// The directive.
        directive: String,
        /// The argument.
        value: String,
        /// The fault.
        error: ValueError,
    },
    /// The directive is accepted but has no effect.
    NoEffect {
        /// The directive.
        name: &'static str,
        /// The reason.
        why: &'static str,
    },
    /// The directive behaves differently than in nginx.
    Differs {
        /// The directive.
        name: &'static str,
        /// The difference.
        how: &'static str,
    },
    /// A name is used that no statement defines.
    Undefined {
        /// What the name should be.
        object: Object,
        /// The name.
        name: String,
    },
    /// An `upstream` has no server, or only servers with `backup`; then it has the name of the group.
    NoServers(Option<String>),
    /// `load_module` of a module that is not available.
    MissingModule {
        /// The message.
        message: String,
        /// The error of a directive of the module.
        needed: Box<ErrorKind>,
    },
    /// Message of a check in the directive's module.
    Message(String),
}

/// An object that one statement defines by a name and other statements use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Object {
    /// A variable.
    Variable,
    /// `log_format`
    LogFormat,
    /// `thread_pool`
    ThreadPool,
    /// A shared memory zone.
    Zone,
    /// The zone of a cache.
    Cache {
        /// The directive that uses it.
        directive: String,
    },
    /// `charset_map`; the name is the charset of the text.
    CharsetMap {
        /// The charset of the response.
        to: String,
    },
    /// `acme_issuer`
    Issuer,
    /// `upstream`: the address has no port, so it must be the name of a group.
    Upstream,
}

impl Object {
    fn write_undefined(&self, f: &mut fmt::Formatter<'_>, name: &str) -> fmt::Result {
        match self {
            Object::Variable => write!(f, "unknown \"{name}\" variable"),
            Object::LogFormat => write!(f, "unknown log format \"{name}\""),
            Object::ThreadPool => write!(f, "unknown thread pool \"{name}\""),
            Object::Zone => write!(f, "zero size shared memory zone \"{name}\""),
            Object::Cache { directive } => write!(f, "\"{directive}\" zone \"{name}\" is unknown"),
            Object::CharsetMap { to } => {
                write!(f, "no \"charset_map\" between the charsets \"{name}\" and \"{to}\"")
            }
            Object::Issuer => write!(f, "issuer \"{name}\" is missing"),
            Object::Upstream => write!(f, "no port in upstream \"{name}\""),
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ErrorKind::Unexpected(found) => write!(f, "unexpected \"{found}\""),
            ErrorKind::UnexpectedEnd { .. } => {
                f.write_str("unexpected end of file, expecting \";\" or \"}\"")
            }
            ErrorKind::UnexpectedEndOfBlock { .. } => f.write_str("unexpected end of file, expecting \"}\""),
            ErrorKind::UnexpectedEndOfParameter => {
                f.write_str("unexpected end of parameter, expecting \";\"")
            }
            ErrorKind::BlockInParameter => f.write_str("block directives are not supported in -g option"),
            ErrorKind::UnreadableByte(byte) => write!(f, "unexpected byte 0x{byte:02x}"),
            ErrorKind::TooDeep { depth_max } => write!(f, "blocks are nested deeper than {depth_max}"),
            ErrorKind::IncludeLoop(path) => write!(f, "\"{}\" includes itself", path.display()),
            ErrorKind::IncludesTooDeep { depth_max } => {
                write!(f, "includes are nested deeper than {depth_max}")
            }
            ErrorKind::TooManyFiles { files_max } => write!(f, "more than {files_max} files are included"),
            ErrorKind::TooMuchText { bytes_max } => write!(f, "more than {bytes_max} bytes are included"),
            ErrorKind::Unreadable { call, path, reason } => {
                write!(f, "{call} \"{}\" failed ({reason})", path.display())
            }
            ErrorKind::Unknown { name, .. } => write!(f, "unknown directive \"{name}\""),
            ErrorKind::NotSupported { name, module } => {
                let yet = if crate::nginx::instead_of(module).is_some() { "" } else { " yet" };
                write!(f, "\"{name}\" directive is not supported{yet}")
            }
            ErrorKind::NotAllowedHere { name, .. } => write!(f, "\"{name}\" directive is not allowed here"),
            ErrorKind::NotTerminated(name) => write!(f, "directive \"{name}\" is not terminated by \";\""),
            ErrorKind::NoOpening(name) => write!(f, "directive \"{name}\" has no opening \"{{\""),
            ErrorKind::ArgumentCount { name, .. } => {
                write!(f, "invalid number of arguments in \"{name}\" directive")
            }
            ErrorKind::Duplicate(name) => write!(f, "\"{name}\" directive is duplicate"),
            ErrorKind::ArgumentNotSupported { directive, argument } => {
                write!(f, "\"{argument}\" in \"{directive}\" directive is not supported yet")
            }
            ErrorKind::Value { directive, value, error } => error.write(f, directive, value),
            ErrorKind::NoEffect { name, .. } => write!(f, "\"{name}\" directive has no effect"),
            ErrorKind::Differs { name, .. } => write!(f, "\"{name}\" directive differs from nginx"),
            ErrorKind::Undefined { object, name } => object.write_undefined(f, name),
            ErrorKind::NoServers(None) => f.write_str("no servers are inside upstream"),
            ErrorKind::NoServers(Some(group)) => write!(f, "no servers in upstream \"{group}\""),
            ErrorKind::Message(text) | ErrorKind::MissingModule { message: text, .. } => f.write_str(text),
        }
    }
}

impl ErrorKind {
    fn write_hint(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ErrorKind::UnexpectedEnd { quote: Some((quote, line)) } => {
                write!(f, "; the {quote} opened on line {line} is not closed")
            }
            ErrorKind::UnexpectedEndOfBlock { open: Some((name, line)) } => {
                write!(f, "; the block \"{name}\" of line {line} is not closed")
            }
            ErrorKind::UnreadableByte(0) => f.write_str("; a word cannot contain NUL"),
            ErrorKind::UnreadableByte(_) => {
                f.write_str("; words must be UTF-8, only comments may contain other bytes")
            }
            ErrorKind::Unknown { name, .. } if name.starts_with('\u{feff}') => {
                f.write_str("; the file starts with a byte order mark: save it without this mark")
            }
            ErrorKind::Unknown { name, .. } if crate::commercial::instead_of_commercial(name).is_some() => {
                let instead = crate::commercial::instead_of_commercial(name).unwrap_or_default();
                write!(f, "; only the commercial edition of nginx has it: {instead}")
            }
            ErrorKind::Unknown { name, similar, allowed } => {
                if let Some((version, instead)) = crate::removed::find(name) {
                    return write!(f, "; nginx {version} removed it: {instead}");
                }
                // Before a similar name: the name of another module is not misspelt.
                if let Some(module) = crate::third_party::third_party_module(name, *similar) {
                    return write!(
                        f,
                        "; the third-party module {module} has it (docs/third-party-modules.md)"
                    );
                }
                match similar {
                    Some(similar) if *allowed == Contexts::NONE => write!(f, "; did you mean \"{similar}\"?"),
                    Some(similar) => {
                        write!(f, "; did you mean \"{similar}\", which is allowed in {allowed}?")
                    }
                    None => Ok(()),
                }
            }
            ErrorKind::NotSupported { module, .. } => match crate::nginx::instead_of(module) {
                Some(instead) => write!(f, "; {instead}"),
                None => write!(f, "; nginx {} has it in module {module}", crate::nginx::VERSION),
            },
            ErrorKind::NotAllowedHere { allowed, .. } => write!(f, "; it is allowed in {allowed}"),
            ErrorKind::ArgumentCount { allowed, found, .. } => write!(f, "; it takes {allowed}, not {found}"),
            ErrorKind::Value { value, error, .. } => error.write_hint(f, value),
            ErrorKind::NoEffect { why: text, .. } | ErrorKind::Differs { how: text, .. } => {
                write!(f, "; {text}")
            }
            _ => Ok(()),
        }
    }
}

/// `file:line`, `command line` for the text of `-g`, or the origin of a text that a program has made.
impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.file.shown(), self.file.path()) {
            (None, Some(path)) => write!(f, "{}:{}", path.display(), self.line),
            (shown, _) => f.write_str(shown.unwrap_or_default()),
        }
    }
}
