//! Restricts files, TCP ports, abstract unix sockets and signals by Landlock, landlock(7).
//!
//! A rule belongs to the file or folder that [`FileRules::permit`] has opened. If another file gets this name later, the rule
//! does not apply to it. Landlock does not restrict calls that need no open file, such as
//! stat(2), nor connections to unix sockets with a path, nor UDP.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Component, Path};

use landlock::{
    AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, NetPort, PathBeneath, Ruleset, RulesetAttr,
    RulesetCreated, RulesetCreatedAttr, RulesetError, Scope, make_bitflags,
};
use rustix::fs::{CWD, FileType, Mode, OFlags, openat};
use rustix::io::Errno;

use crate::Error;
use crate::calls::supports_calls;

/// What the kernel lacks for a sandbox.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Restrictions that the kernel does not support, each with the version that introduced it.
    pub lacks: Vec<&'static str>,
}

impl Report {
    /// Returns what the kernel lacks, without any effect on this process.
    pub fn of_kernel() -> Report {
        let mut report = Report::of_files();
        if !supports_calls() {
            report.lacks.push(NO_SECCOMP);
        }
        report
    }

    /// Whether the kernel restricts files.
    pub fn restricts_files(&self) -> bool {
        !self.lacks.contains(&NO_LANDLOCK)
    }

    /// Whether the kernel restricts TCP ports.
    pub fn restricts_ports(&self) -> bool {
        self.restricts_files() && !self.lacks.contains(&NO_PORTS)
    }

    /// Whether the kernel restricts system calls.
    pub fn restricts_calls(&self) -> bool {
        !self.lacks.contains(&NO_SECCOMP)
    }

    /// Returns what the kernel lacks for [`FileRules`].
    fn of_files() -> Report {
        if !supports(|ruleset| ruleset.handle_access(AccessFs::Refer)) {
            return Report { lacks: vec![NO_LANDLOCK] };
        }
        let parts: [(bool, &'static str); 4] = [
            (
                supports(|ruleset| ruleset.handle_access(AccessFs::Truncate)),
                "truncation of files (Linux 6.2)",
            ),
            (supports(|ruleset| ruleset.handle_access(AccessNet::ConnectTcp)), NO_PORTS),
            (supports(|ruleset| ruleset.handle_access(AccessFs::IoctlDev)), "ioctl of devices (Linux 6.10)"),
            (
                supports(|ruleset| ruleset.scope(Scope::Signal)),
                "signals and abstract unix sockets (Linux 6.12)",
            ),
        ];
        Report { lacks: parts.iter().filter(|(supported, _)| !supported).map(|(_, name)| *name).collect() }
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

/// What a kernel lacks before Landlock's ABI 4.
const NO_PORTS: &str = "TCP ports (Linux 6.7)";

/// What a kernel without seccomp filters lacks.
const NO_SECCOMP: &str = "system calls (seccomp, CONFIG_SECCOMP_FILTER)";

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

/// The rules of a process, which [`FileRules::enforce`] puts into force. Each rule is given to the kernel when its path is opened, so
/// the number of rules is not limited by that of open files (RLIMIT_NOFILE).
#[derive(Debug)]
pub struct FileRules {
    /// `None` if the kernel restricts nothing.
    ruleset: Option<RulesetCreated>,
    report: Report,
}

/// A rule that was not added.
#[derive(Debug)]
pub enum RuleError {
    /// The path cannot be opened; other paths are not affected.
    Path(io::Error),
    /// The process or the kernel has reached a limit, so other rules may fail too.
    Limit(Error),
}

impl FileRules {
    /// Begins a list of permitted files. TCP connections will be permitted only to the ports `connect` (`None`: all ports), and
    /// bind(2) of TCP sockets only to the ports `bind` and to one that the kernel chooses. Execution, signals to other processes, and
    /// abstract unix sockets of other processes will be refused. A refused call fails with `EACCES`; a signal or an abstract socket
    /// with `EPERM`.
    ///
    /// What the kernel cannot restrict is reported. Without `Refer` (Landlock's ABI 1) nothing is restricted, because the
    /// kernel would then refuse to move a file to another folder.
    pub fn new(connect: Option<&BTreeSet<u16>>, bind: Option<&BTreeSet<u16>>) -> Result<FileRules, Error> {
        let report = Report::of_files();
        if !report.restricts_files() {
            return Ok(FileRules { ruleset: None, report });
        }
        let create = || -> Result<RulesetCreated, RulesetError> {
            let mut ruleset = Ruleset::default().handle_access(FILES)?;
            if bind.is_some() {
                ruleset = ruleset.handle_access(AccessNet::BindTcp)?;
            }
            if connect.is_some() {
                ruleset = ruleset.handle_access(AccessNet::ConnectTcp)?;
            }
            ruleset.scope(Scope::Signal | Scope::AbstractUnixSocket)?.create()
        };
        let mut ruleset = create().map_err(Error::Landlock)?;
        // Port 0 lets the kernel choose the port.
        for port in bind.into_iter().flat_map(|ports| ports.iter().copied().chain([0])) {
            ruleset = ruleset.add_rule(NetPort::new(port, AccessNet::BindTcp)).map_err(Error::Landlock)?;
        }
        for &port in connect.into_iter().flatten() {
            ruleset = ruleset.add_rule(NetPort::new(port, AccessNet::ConnectTcp)).map_err(Error::Landlock)?;
        }
        Ok(FileRules { ruleset: Some(ruleset), report })
    }

    /// Permits a file, or a folder with everything below it. The path must have no symbolic links: a link, by which another process
    /// may have replaced a part of the path in the meantime, is the error `ELOOP`. With `write` files may be written, created, removed
    /// and renamed; reading is always permitted. Returns the open file, for a rule that lasts only as long as the file is open.
    ///
    /// The user of the calling process must be permitted to search the folders above, but needs no right to the file
    /// (`O_PATH`, open(2)).
    pub fn permit(&mut self, path: &Path, write: bool) -> Result<Option<OwnedFd>, RuleError> {
        let Some(ruleset) = &mut self.ruleset else { return Ok(None) };
        let file = open_without_links(path).map_err(|errno| match is_of_path(errno) {
            true => RuleError::Path(errno.into()),
            false => RuleError::Limit(Error::Call("openat", errno.into())),
        })?;
        ruleset
            .add_rule(path_rule(&file, write))
            .map_err(|error| RuleError::Limit(Error::Landlock(error)))?;
        Ok(Some(file))
    }

    /// As [`FileRules::permit`], for an open file or folder.
    pub fn permit_open(&mut self, file: &OwnedFd, write: bool) -> Result<(), Error> {
        let Some(ruleset) = &mut self.ruleset else { return Ok(()) };
        ruleset.add_rule(path_rule(file, write)).map(drop).map_err(Error::Landlock)
    }

    /// Permits only what was listed, from now on.
    pub fn enforce(self) -> Result<Report, Error> {
        if let Some(ruleset) = self.ruleset {
            ruleset.restrict_self().map_err(Error::Landlock)?;
        }
        Ok(self.report)
    }
}

/// Opens a path one component after another, with `O_PATH`; a symbolic link is the error `ELOOP`. openat2(2) would do this in one call, but
/// `RestrictSUIDSGID=` of systemd makes it fail with `ENOSYS`, because a filter of system calls cannot see its flags (systemd.exec(5)).
fn open_without_links(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut file = openat(CWD, if path.has_root() { "/" } else { "." }, flags, Mode::empty())?;
    for part in path.components() {
        match part {
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
            Component::ParentDir => file = openat(&file, "..", flags, Mode::empty())?,
            Component::Normal(name) => file = openat(&file, name, flags, Mode::empty())?,
        }
        if FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode).is_symlink() {
            return Err(Errno::LOOP);
        }
    }
    Ok(file)
}

/// Whether an error of open(2) is a property of the path, such as a missing file, and not of the process or the machine, such as too
/// many open files.
fn is_of_path(errno: Errno) -> bool {
    let of_paths = [
        Errno::NOENT,
        Errno::LOOP,
        Errno::NOTDIR,
        Errno::ACCESS,
        Errno::NAMETOOLONG,
        // A network file system, or a disk.
        Errno::STALE,
        Errno::IO,
    ];
    of_paths.contains(&errno)
}

/// Returns the rule in the form of Landlock.
fn path_rule(file: &OwnedFd, write: bool) -> PathBeneath<&OwnedFd> {
    let is_folder =
        rustix::fs::fstat(file).is_ok_and(|facts| FileType::from_raw_mode(facts.st_mode).is_dir());
    let rights = if write { WRITE } else { READ };
    PathBeneath::new(file, if is_folder { rights } else { rights & OF_FILES })
}

/// Whether the kernel supports a restriction.
fn supports(add: impl Fn(Ruleset) -> Result<Ruleset, RulesetError>) -> bool {
    add(Ruleset::default().set_compatibility(CompatLevel::HardRequirement)).is_ok()
}
