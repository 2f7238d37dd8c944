//! Restricts files, TCP ports, abstract unix sockets and signals by Landlock, landlock(7).
//!
//! A rule belongs to the file or folder that its path names when [`restrict_files`] is called. If another file gets this
//! name later, the rule does not apply to it. Landlock does not restrict calls that need no open file, such as
//! stat(2), nor connections to unix sockets with a path, nor UDP.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};

use landlock::{
    AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, NetPort, PathBeneath, PathFd, Ruleset,
    RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetError, Scope, make_bitflags,
};

use crate::Error;

/// A path that the process may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule<'a> {
    /// A file, or a folder with everything below it. Symbolic links in the path are followed.
    pub path: &'a Path,
    /// Whether files may be written, created, removed and renamed; reading is always permitted.
    pub write: bool,
}

/// The result of [`restrict_files`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Restrictions that the kernel does not support, each with the version that introduced it.
    pub lacks: Vec<&'static str>,
    /// Paths of rules that do not exist or cannot be reached; the process cannot use them.
    pub absent: Vec<PathBuf>,
}

impl Report {
    /// Whether the kernel restricts files.
    pub fn restricts_files(&self) -> bool {
        !self.lacks.contains(&NO_LANDLOCK)
    }
}

impl fmt::Display for Report {
    /// Describes what the kernel lacks.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the kernel cannot restrict {}", self.lacks.join(", "))
    }
}

/// What a kernel without Landlock, or with its first version, lacks.
const NO_LANDLOCK: &str = "files, ports and signals (Landlock of Linux 5.19)";

/// Rights to files: everything up to Landlock's ABI 5, except connections to unix sockets (ABI 9).
const FILES: BitFlags<AccessFs> = make_bitflags!(AccessFs::{
    Execute | WriteFile | ReadFile | ReadDir | RemoveDir | RemoveFile | MakeChar | MakeDir | MakeReg | MakeSock
        | MakeFifo | MakeBlock | MakeSym | Refer | Truncate | IoctlDev
});

/// Rights of a rule without `write`. No rule permits execution.
const READ: BitFlags<AccessFs> = make_bitflags!(AccessFs::{ReadFile | ReadDir});

/// Rights of a rule with `write`: files, folders and symbolic links, but no devices and no sockets.
const WRITE: BitFlags<AccessFs> = make_bitflags!(AccessFs::{
    ReadFile | ReadDir | WriteFile | RemoveDir | RemoveFile | MakeDir | MakeReg | MakeSym | Refer | Truncate
});

/// Rights that apply to a file that is not a folder.
const OF_FILES: BitFlags<AccessFs> = make_bitflags!(AccessFs::{ReadFile | WriteFile | Truncate});

/// Permits only these files, and TCP connections only to these ports (`None`: all ports). Refuses execution, bind(2) of
/// TCP sockets to a fixed port, signals to other processes, and abstract unix sockets of other processes. A refused call
/// fails with `EACCES`; a signal or an abstract socket with `EPERM`.
///
/// What the kernel cannot restrict is reported. Without `Refer` (Landlock's ABI 1) nothing is restricted, because the
/// kernel would then refuse to move a file to another folder.
pub fn restrict_files(rules: &[Rule<'_>], connect: Option<&BTreeSet<u16>>) -> Result<Report, Error> {
    let mut report = Report::default();
    if !supports(|ruleset| ruleset.handle_access(AccessFs::Refer)) {
        report.lacks.push(NO_LANDLOCK);
        return Ok(report);
    }
    let parts: [(bool, &'static str); 4] = [
        (supports(|ruleset| ruleset.handle_access(AccessFs::Truncate)), "truncation of files (Linux 6.2)"),
        (supports(|ruleset| ruleset.handle_access(AccessNet::ConnectTcp)), "TCP ports (Linux 6.7)"),
        (supports(|ruleset| ruleset.handle_access(AccessFs::IoctlDev)), "ioctl of devices (Linux 6.10)"),
        (supports(|ruleset| ruleset.scope(Scope::Signal)), "signals and abstract unix sockets (Linux 6.12)"),
    ];
    report.lacks.extend(parts.iter().filter(|(supported, _)| !supported).map(|(_, name)| name));
    let create = || -> Result<RulesetCreated, RulesetError> {
        let mut ruleset = Ruleset::default().handle_access(FILES)?.handle_access(AccessNet::BindTcp)?;
        if connect.is_some() {
            ruleset = ruleset.handle_access(AccessNet::ConnectTcp)?;
        }
        ruleset.scope(Scope::Signal | Scope::AbstractUnixSocket)?.create()
    };
    let mut ruleset = create().map_err(Error::Landlock)?;
    // Port 0 lets the kernel choose the port, as for `proxy_bind`.
    let any_port = NetPort::new(0, AccessNet::BindTcp);
    ruleset = ruleset.add_rule(any_port).map_err(Error::Landlock)?;
    for &port in connect.into_iter().flatten() {
        ruleset = ruleset.add_rule(NetPort::new(port, AccessNet::ConnectTcp)).map_err(Error::Landlock)?;
    }
    for rule in rules {
        match path_rule(rule) {
            Some(rule) => ruleset = ruleset.add_rule(rule).map_err(Error::Landlock)?,
            None => report.absent.push(rule.path.to_owned()),
        }
    }
    ruleset.restrict_self().map_err(Error::Landlock)?;
    Ok(report)
}

/// Returns the rule for a path; `None` if the path cannot be opened.
fn path_rule(rule: &Rule<'_>) -> Option<PathBeneath<PathFd>> {
    let file = PathFd::new(rule.path).ok()?;
    let is_folder = rustix::fs::fstat(&file)
        .is_ok_and(|facts| rustix::fs::FileType::from_raw_mode(facts.st_mode).is_dir());
    let rights = if rule.write { WRITE } else { READ };
    Some(PathBeneath::new(file, if is_folder { rights } else { rights & OF_FILES }))
}

/// Whether the kernel supports a restriction.
fn supports(add: impl Fn(Ruleset) -> Result<Ruleset, RulesetError>) -> bool {
    add(Ruleset::default().set_compatibility(CompatLevel::HardRequirement)).is_ok()
}
