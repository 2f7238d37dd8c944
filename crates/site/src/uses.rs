//! How directives use paths and ports, recorded while a configuration is read. [`crate::needs`] combines the records.
//!
//! A directive cannot convert its argument to a path without stating the use: the functions of
//! [`Cx`](crate::config::Cx) require it. Modules record the remaining uses, such as defaults and ports, at the end of
//! the configuration ([`BlockHooks::requires`](crate::declaration::BlockHooks)).

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use conf::Span;

use crate::template::Template;

/// How a path in the configuration is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileUse {
    /// Read while the configuration is read. Workers get the bytes from the master.
    Start,
    /// Opened by the master process or the ACME agent, never by a worker.
    Master,
    /// Read by workers: a directory with all files below it, or one file.
    Read,
    /// A directory below which workers create, write, rename and remove files.
    Write,
    /// A file that workers create, write or replace.
    WriteFile,
    /// A UNIX-domain socket that workers connect to.
    Connect,
}

/// A path, and how it is used.
#[derive(Clone, Debug)]
pub struct UsedPath {
    /// The path, which may have variables.
    pub path: Template,
    /// The directory from which a relative path starts.
    pub base: PathBuf,
    /// The use.
    pub file_use: FileUse,
}

impl UsedPath {
    /// Returns the use of an absolute path without variables.
    pub fn fixed(path: &Path, file_use: FileUse) -> UsedPath {
        UsedPath { path: Template::text(&path.to_string_lossy()), base: PathBuf::new(), file_use }
    }
}

/// A value with the directive that has it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OfDirective<T> {
    /// The value.
    pub value: T,
    /// The name of the directive.
    pub directive: String,
    /// The position of the directive; `None` for a default.
    pub position: Option<Span>,
}

/// The uses of paths and ports.
#[derive(Debug, Default)]
pub struct Uses {
    pub(crate) paths: Vec<OfDirective<UsedPath>>,
    pub(crate) ports: BTreeSet<u16>,
    pub(crate) any_ports: BTreeSet<OfDirective<String>>,
    pub(crate) bound_ports: BTreeSet<u16>,
    pub(crate) binds_any_port: bool,
}

impl Uses {
    /// Adds a path of a directive.
    pub fn add(&mut self, directive: &str, position: Option<&Span>, path: UsedPath) {
        let position = position.cloned();
        self.paths.push(OfDirective { value: path, directive: directive.to_owned(), position });
    }

    /// Adds a TCP port that workers connect to.
    pub fn connects(&mut self, port: u16) {
        self.ports.insert(port);
    }

    /// Adds all TCP ports, because only a request determines the port in this value of a directive.
    pub fn connects_to_any_port(&mut self, directive: &str, position: Option<&Span>, value: &str) {
        let (value, directive, position) = (value.to_owned(), directive.to_owned(), position.cloned());
        self.any_ports.insert(OfDirective { value, directive, position });
    }

    /// Adds a fixed local TCP port of connections. With port 0 the kernel chooses one, which is always permitted.
    pub fn binds(&mut self, port: u16) {
        if port != 0 {
            self.bound_ports.insert(port);
        }
    }

    /// Adds all local TCP ports of connections, because only a request determines them.
    pub fn binds_any_port(&mut self) {
        self.binds_any_port = true;
    }

    /// Adds the paths and ports of another record.
    pub(crate) fn append(&mut self, other: Uses) {
        self.paths.extend(other.paths);
        self.ports.extend(other.ports);
        self.any_ports.extend(other.any_ports);
        self.bound_ports.extend(other.bound_ports);
        self.binds_any_port |= other.binds_any_port;
    }
}
