//! What a configuration needs while it serves: paths below which workers open files, and TCP ports that they connect to.
//!
//! Directives record their paths and ports ([`crate::uses`]). [`needs`] reduces the paths to directories, which the kernel
//! can check. A path with variables is reduced to its known values ([`crate::known_values`]), or to the directory before
//! the first unknown variable.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use conf::Span;

use crate::config::Config;
use crate::known_values::{KnownText, known_texts, written};
use crate::registry::Registry;
pub use crate::uses::OfDirective;
use crate::uses::{FileUse, UsedPath};

/// The kind of access to a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Access {
    /// Reads files and directories.
    Read,
    /// Reads, creates, writes, renames and removes files and directories.
    Write,
}

/// A path below which files are opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Need {
    /// A directory with all files below it, or a file. It may not exist yet.
    pub path: PathBuf,
    /// The kind of access.
    pub access: Access,
    /// The name of the directive.
    pub directive: String,
    /// The position of the directive; `None` if the path is its default.
    pub position: Option<Span>,
}

/// A directive whose path only a request determines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenNeed {
    /// The value as written, with variables.
    pub value: String,
    /// The kind of access.
    pub access: Access,
    /// The name of the directive.
    pub directive: String,
    /// The position of the directive.
    pub position: Option<Span>,
}

/// TCP ports that workers connect to, or that their connections have on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ports {
    /// Any port: a request determines it.
    Any,
    /// These ports.
    Only(BTreeSet<u16>),
}

/// What a configuration needs.
#[derive(Clone, Debug)]
pub struct Needs {
    /// Paths of workers.
    pub paths: Vec<Need>,
    /// Paths of workers that only a request determines.
    pub open: Vec<OpenNeed>,
    /// Paths that the master opens, such as log files, which it reopens on a signal. A process that is both master and worker
    /// (`master_process off`) needs them as well.
    pub master: Vec<Need>,
    /// UNIX-domain sockets that workers connect to.
    pub sockets: Vec<Need>,
    /// TCP ports that workers connect to.
    pub connect: Ports,
    /// The TCP ports that are known, also if `connect` is [`Ports::Any`].
    pub known_ports: BTreeSet<u16>,
    /// Values of directives whose port only a request determines; not empty if `connect` is [`Ports::Any`].
    pub any_ports: Vec<OfDirective<String>>,
    /// Local TCP ports of connections, besides those that the kernel chooses.
    pub bind: Ports,
}

/// Returns what a configuration needs. Paths are as written: symbolic links are not followed.
pub fn needs(config: &Config) -> Needs {
    let (mut paths, mut master, mut sockets, mut open) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for block in config.sections() {
        for used in &block.uses.paths {
            let list = match used.value.file_use {
                FileUse::Start => continue,
                FileUse::Master => &mut master,
                FileUse::Connect => &mut sockets,
                FileUse::Read | FileUse::Write | FileUse::WriteFile => &mut paths,
            };
            add_path(used, &block.registry, list, &mut open);
        }
    }
    let all = || config.sections().into_iter().map(|block| &block.uses);
    let known_ports: BTreeSet<u16> = all().flat_map(|uses| uses.ports.iter().copied()).collect();
    let any_ports: Vec<_> = all().flat_map(|uses| uses.any_ports.iter().cloned()).collect();
    let bound_ports = || all().flat_map(|uses| uses.bound_ports.iter().copied()).collect();
    Needs {
        paths,
        open,
        master,
        sockets,
        connect: if any_ports.is_empty() { Ports::Only(known_ports.clone()) } else { Ports::Any },
        known_ports,
        any_ports,
        bind: if all().any(|uses| uses.binds_any_port) { Ports::Any } else { Ports::Only(bound_ports()) },
    }
}

/// Variables with the root of the request, or a path below it. The root has a need of its own.
const ROOT_VARIABLES: [&str; 3] = ["document_root", "realpath_root", "request_filename"];

/// Variables with names of hosts. Their values have no slash, so a path that begins with one of them is relative: nginx's documentation has
/// `ssl_certificate $ssl_server_name.crt`.
const NAME_VARIABLES: [&str; 3] = ["hostname", "server_name", "ssl_server_name"];

/// Adds the directories of a path to `found`, and to `open` if no directory is known.
fn add_path(
    used: &OfDirective<UsedPath>,
    registry: &Registry,
    found: &mut Vec<Need>,
    open: &mut Vec<OpenNeed>,
) {
    let UsedPath { path, base, file_use } = &used.value;
    let access = match file_use {
        FileUse::Write | FileUse::WriteFile | FileUse::Master => Access::Write,
        FileUse::Start | FileUse::Read | FileUse::Connect => Access::Read,
    };
    for known in known_texts(path, registry) {
        match directory(&known, base, *file_use) {
            Directory::Known(path) => {
                let (directive, position) = (used.directive.clone(), used.position.clone());
                add(found, Need { path, access, directive, position });
            }
            Directory::OfRoot => {}
            Directory::Unknown => {
                let (directive, position) = (used.directive.clone(), used.position.clone());
                let need = OpenNeed { value: written(path, registry), access, directive, position };
                if !open.contains(&need) {
                    open.push(need);
                }
            }
        }
    }
}

/// Adds a need. Of several needs for one path, the first one with a position is retained.
fn add(found: &mut Vec<Need>, need: Need) {
    let known = found.iter_mut().find(|known| known.path == need.path && known.access == need.access);
    match known {
        None => found.push(need),
        Some(known) if known.position.is_none() && need.position.is_some() => *known = need,
        Some(_) => {}
    }
}

/// The directory of a value.
enum Directory {
    Known(PathBuf),
    /// Below the root of the request.
    OfRoot,
    Unknown,
}

/// Returns the directory, or the path itself if it is complete.
fn directory(known: &KnownText, base: &Path, file_use: FileUse) -> Directory {
    let Some(unknown) = &known.unknown else {
        // Without a final slash, which would hide a symbolic link.
        let path: PathBuf = base.join(&known.text).components().collect();
        return match file_use {
            // An unassigned variable: there is no path.
            _ if known.text.is_empty() => Directory::OfRoot,
            // Its directory, because the file is written under another name first.
            FileUse::WriteFile => Directory::Known(path.parent().map(Path::to_owned).unwrap_or(path)),
            _ => Directory::Known(path),
        };
    };
    let name = unknown.variable.module_name().unwrap_or_default();
    if known.text.is_empty() && ROOT_VARIABLES.contains(&name) {
        return Directory::OfRoot;
    }
    if known.text.is_empty() && !NAME_VARIABLES.contains(&name) {
        return Directory::Unknown;
    }
    // "/files/a$name" can be any file of "/files". Without a text, `join` adds a slash.
    let path = base.join(&known.text);
    let text = path.to_string_lossy();
    let above = Path::new(&text[..=text.rfind('/').unwrap_or(0)]);
    match above.components().count() > 1 {
        true => Directory::Known(above.components().collect()),
        false => Directory::Unknown,
    }
}
