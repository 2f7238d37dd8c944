//! The sandbox of a worker process: the paths and ports that its configuration needs, and the restrictions in their order.
//!
//! [`Plan::of`] collects what is permitted. The master does this when it starts a worker, and sends the worker the paths: if each process
//! followed symbolic links itself, a directory that is renamed meanwhile would give them different rules. If the running worker may use
//! everything that a new configuration needs, a reload is done in place ([`Plan::reasons`]); a process cannot get more rights.
//!
//! The kernel's rules belong to directories and files, not to their names. A directory that was replaced since the start of the
//! worker is therefore a reason for a new worker too, and so is a path or port that a new configuration no longer permits. The
//! master searches replaced directories while the worker serves ([`Plan::replaced_paths`]). The new worker never gets a directory
//! instead of a missing path in it, unless its predecessor has it ([`Plan::of_renewal`]): the path may be missing only between two renames.
//!
//! [`is_supported`] compares a configuration with the kernel, before a start and a reload.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::fs;
use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

use io::probe::Probe;
use rustix::event::{EventfdFlags, eventfd};
use sandbox::{Calls, FileRules, RefusedCalls, Report, RuleError};
use site::allowed_paths::{AllowedPath, AllowedPaths};
use site::config::Config;
use site::enforced::Enforced;
use site::needs::{Access, Needs, Ports, needs};
use site::path_snapshot::{Identity, PathSnapshot, Permission};
use site::settings::main::Sandbox;

use crate::listen::error_text;
use crate::log::{Level, Log, place_of};

/// Files that the C library reads, whatever the configuration is. Other programs replace them by renaming, so they are observed.
const REPLACED: &[&str] = &[
    // Names of hosts, getaddrinfo(3).
    "/etc/gai.conf",
    "/etc/host.conf",
    "/etc/hosts",
    "/etc/nsswitch.conf",
    "/etc/protocols",
    "/etc/resolv.conf",
    "/etc/services",
    "/run/systemd/resolve",
    // Local time, tzset(3).
    "/etc/localtime",
];

/// Further files that the C library and this program read.
const READ: &[&str] = &[
    // Plug-ins for name lookups, with those of [`LIBRARIES`]. Without this file the C library searches these directories.
    "/etc/ld.so.cache",
    // Local time, tzset(3).
    "/usr/share/zoneinfo",
    // Random numbers on kernels without getrandom(2).
    "/dev/random",
    "/dev/urandom",
    // Limits, pressure and capabilities of the machine.
    "/proc/meminfo",
    "/proc/stat",
    "/proc/sys/fs",
    "/proc/sys/kernel/io_uring_disabled",
    "/proc/sys/net/core",
    "/proc/sys/vm/overcommit_memory",
    "/sys/devices/system/cpu",
    "/sys/fs/cgroup",
];

/// Directories of libraries, which the C library loads for name lookups.
pub(crate) const LIBRARIES: &[&str] = &["/lib", "/lib64", "/usr/lib", "/usr/lib64"];

/// As [`READ`], for directories of /proc that differ between processes. The kernel forgets inodes of /proc, and with them the rules,
/// unless they stay open.
const PROCESS: &[&str] = &["/proc/self", "/proc/pressure"];

/// Files that the C library writes.
const WRITE: &[&str] = &["/dev/null"];

/// Port of name servers. Queries use UDP; a truncated response is requested again over TCP (RFC 7766).
pub(crate) const DNS: u16 = 53;

/// Maximum number of lines about paths that have no rule: a `map` may have a thousand values.
const OMITTED_LINES_MAX: usize = 20;

/// The reason for a new worker if the running one has other rules than its plan.
const OUTDATED: &str = "a path was replaced while the worker process was started";

/// The restrictions that a configuration needs and the kernel supports. A restriction that the kernel does not support is no reason for
/// a replacement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Paths, with the files that they lead to.
    paths: PathSnapshot,
    /// Ports of TCP connections; `None` for all.
    connect: Option<BTreeSet<u16>>,
    /// Fixed local ports of TCP connections; `None` for all.
    bind: Option<BTreeSet<u16>>,
    has_jit: bool,
    is_dumpable: bool,
    net_raw: bool,
    /// For `sandbox strict`: the end of a message, with the position of the directive.
    strict: Option<String>,
    /// Whether a path was replaced while the process opened its rules, so that the process has other rules than those of `paths`.
    is_outdated: bool,
}

/// The result of a comparison of the paths of a process with the disk.
#[derive(Debug, Default)]
pub(crate) struct Comparison {
    /// The reasons why the process is replaced.
    pub(crate) reasons: Vec<String>,
    /// Whether there are reasons, and a path is missing that existed before.
    pub(crate) has_gap: bool,
}

/// The rules of a plan, which are not in force yet.
#[derive(Debug)]
pub(crate) struct OpenRules {
    rules: FileRules,
    /// Files and directories of /proc: their rules last as long as they are open.
    pinned: Vec<OwnedFd>,
    /// Lines about paths that could not be opened.
    unopened: Vec<String>,
    /// Whether a path leads to another file than in the plan.
    is_outdated: bool,
}

/// The restrictions of this process.
#[derive(Debug, Default)]
pub(crate) struct Restrictions {
    refused: Option<RefusedCalls>,
    /// An eventfd that is readable when a replaced path has caused a refusal.
    replaced: Option<Arc<OwnedFd>>,
    /// Directories whose rules last as long as they are open; never read.
    _pinned: Vec<OwnedFd>,
    is_outdated: bool,
}

/// Whether the kernel has what the `sandbox` directive of a configuration needs. Logs the parts that it lacks: a warning, or a notice for the
/// default. With `strict`, a kernel without Landlock or seccomp is an error.
pub(crate) fn is_supported(config: &Config, log: &Log) -> bool {
    let main = config.main();
    if main.sandbox == Sandbox::Off || !main.master_process {
        return true;
    }
    let report = Report::of_kernel();
    let position = place_of(main.sandbox_position.as_ref());
    if main.sandbox == Sandbox::Strict && !(report.restricts_files() && report.restricts_calls()) {
        log.emerg(not_strict(&report, &position));
        return false;
    }
    if !report.lacks.is_empty() {
        // Many kernels lack a part. The warning is for an operator who has asked for the sandbox.
        let level = if main.sandbox_position.is_some() { Level::Warn } else { Level::Notice };
        log.write(level, format_args!("sandbox: {report}{position}"));
    }
    true
}

/// Returns the existing directories, without symbolic links, that the sandbox of a configuration lets workers write to.
pub(crate) fn writable_directories(config: &Config) -> Vec<PathBuf> {
    let main = config.main();
    if main.sandbox == Sandbox::Off || !main.master_process {
        return Vec::new();
    }
    writable(&AllowedPaths::of(&needs(config).paths))
}

fn writable(allowed: &AllowedPaths) -> Vec<PathBuf> {
    let writable = allowed.iter().filter(|allowed| allowed.access == Access::Write);
    writable.map(|allowed| allowed.path.clone()).collect()
}

/// Returns the message about a kernel that is not sufficient for `sandbox strict`.
fn not_strict(report: &Report, position: &str) -> String {
    format!(
        "\"sandbox strict\" needs Landlock and seccomp, but {report}: enable Landlock in the kernel (boot parameter \"lsm=\") and both \
         in the container runtime, or use \"sandbox on\"{position}"
    )
}

impl Plan {
    /// Returns the restrictions; `None` if the configuration has `sandbox off`.
    pub(crate) fn of(config: &Config) -> Option<Plan> {
        Plan::with_paths(config, |report, needs| {
            let allowed = if report.restricts_files() { allowed(needs) } else { AllowedPaths::default() };
            snapshot(allowed)
        })
    }

    /// Returns the restrictions of a worker that replaces one with the restrictions `old` because of replaced paths.
    pub(crate) fn of_renewal(config: &Config, old: &Plan) -> Option<Plan> {
        Plan::with_paths(config, |report, needs| {
            if !report.restricts_files() {
                return PathSnapshot::default();
            }
            let mut allowed = allowed(needs);
            allowed.retain_stand_ins(|stand_in| old.permits(stand_in));
            snapshot(allowed)
        })
    }

    /// Returns the restrictions with the paths that the master has sent.
    pub(crate) fn received(config: &Config, paths: PathSnapshot) -> Option<Plan> {
        Plan::with_paths(config, |_, _| paths)
    }

    fn with_paths(config: &Config, paths: impl FnOnce(&Report, &Needs) -> PathSnapshot) -> Option<Plan> {
        let main = config.main();
        if main.sandbox == Sandbox::Off {
            return None;
        }
        let report = Report::of_kernel();
        let needs = needs(config);
        let known = || needs.known_ports.iter().copied().chain([DNS]).collect();
        let connect = match needs.connect {
            _ if !report.restricts_ports() => None,
            Ports::Any if main.sandbox == Sandbox::On => None,
            Ports::Any | Ports::Only(_) => Some(known()),
        };
        Some(Plan {
            paths: paths(&report, &needs),
            connect,
            bind: match &needs.bind {
                Ports::Only(ports) if report.restricts_ports() => Some(ports.clone()),
                Ports::Only(_) | Ports::Any => None,
            },
            has_jit: main.pcre_jit,
            is_dumpable: main.worker_rlimit_core.is_some(),
            net_raw: config.binds_transparently(),
            strict: (main.sandbox == Sandbox::Strict).then(|| place_of(main.sandbox_position.as_ref())),
            is_outdated: false,
        })
    }

    /// Returns the paths, for the process that gets these restrictions.
    pub(crate) fn paths(&self) -> &PathSnapshot {
        &self.paths
    }

    /// Returns the directories that the process may write to.
    pub(crate) fn writable(&self) -> Vec<PathBuf> {
        writable(self.paths.allowed())
    }

    /// Notes that the process has other rules than those of this plan.
    pub(crate) fn note_outdated(&mut self) {
        self.is_outdated = true;
    }

    fn permits(&self, allowed: &AllowedPath) -> bool {
        self.paths.permission(&allowed.path, allowed.access) == Permission::Permitted
    }

    /// Logs the paths of directives that have no rule, with the remedies.
    pub(crate) fn log_omitted(&self, log: &Log) {
        log_some(self.paths.allowed().omitted().map(ToString::to_string), log);
    }

    /// Returns the reasons why a process with these restrictions is replaced for a configuration with the restrictions `new`: it
    /// may not use something that the configuration needs, or it may use something that the configuration no longer permits.
    pub(crate) fn reasons(&self, new: &Plan) -> Vec<String> {
        let mut reasons: Vec<String> = self.is_outdated.then(|| OUTDATED.to_owned()).into_iter().collect();
        reasons.extend(self.lacking_paths(new, |_| true));
        reasons.extend(self.lacking_ports(new));
        let (old, new_paths) = (self.paths.allowed(), new.paths.allowed());
        let is_dropped =
            |old: &&AllowedPath| !old.directive.is_empty() && !new_paths.contains(&old.path, old.access);
        let dropped = old.iter().filter(is_dropped);
        reasons.extend(dropped.map(|old| format!("{}: the sandbox no longer permits it", named(old))));
        let no_longer = |what: &str, ports: Vec<String>| {
            let permits = format!("the sandbox no longer permits connections {what}");
            ports.into_iter().map(move |ports| format!("{permits} {ports}")).collect::<Vec<String>>()
        };
        reasons.extend(no_longer("to", added(&new.connect, &self.connect)));
        reasons.extend(no_longer("from local", added(&new.bind, &self.bind)));
        reasons
    }

    /// Compares the paths of a process with these restrictions with the disk. Returns the reasons why the process is replaced: it may
    /// not use files that the paths of `config` lead to now, or it may use a directory instead of a path in it that exists now. Blocks on
    /// the disk. The paths of `config` are observed from the first call on; later calls return quickly if none of them was replaced.
    pub(crate) fn replaced_paths(&mut self, config: &Config, is_first: bool) -> Comparison {
        let none = Comparison::default();
        if self.is_outdated {
            return Comparison { reasons: vec![OUTDATED.to_owned()], has_gap: false };
        }
        if !is_first && !self.paths.has_changed() {
            return none;
        }
        let Some(new) = Plan::of(config) else { return none };
        let system: Vec<PathBuf> = REPLACED.iter().filter_map(|path| fs::canonicalize(path).ok()).collect();
        // A missing path is no reason: the worker can be replaced when the path exists again.
        let concerns = |needed: &AllowedPath| {
            !needed.is_stand_in && (!needed.directive.is_empty() || system.contains(&needed.path))
        };
        let mut reasons = self.lacking_paths(&new, concerns);
        let allowed = new.paths.allowed();
        let stand_ins = self.paths.allowed().iter().filter(|old| old.is_stand_in);
        let too_wide = stand_ins.filter(|old| !allowed.contains(&old.path, old.access));
        let exists = "the path in it for which the sandbox permits it exists now";
        reasons.extend(too_wide.map(|old| format!("{}: {exists}", named(old))));
        let has_gap = !reasons.is_empty() && self.paths.has_gap();
        if reasons.is_empty() {
            self.paths.observe(new.paths);
        }
        Comparison { reasons, has_gap }
    }

    /// Returns the paths that a process with these restrictions lacks for a configuration with the restrictions `new`.
    fn lacking_paths(&self, new: &Plan, concerns: impl Fn(&AllowedPath) -> bool) -> Vec<String> {
        let needed = new.paths.allowed().iter().filter(|needed| concerns(needed));
        let lacking = needed.filter_map(|needed| {
            let reason = match self.paths.permission(&needed.path, needed.access) {
                Permission::NotPermitted => "the sandbox does not permit it",
                Permission::Replaced => "it was replaced since the worker was started",
                Permission::Permitted => return None,
            };
            Some(format!("{}: {reason}", named(needed)))
        });
        lacking.collect()
    }

    /// Returns the ports that a process with these restrictions lacks for a configuration with the restrictions `new`.
    fn lacking_ports(&self, new: &Plan) -> Vec<String> {
        let connect = added(&self.connect, &new.connect).into_iter();
        let connect = connect.map(|ports| format!("the sandbox needs connections to {ports}"));
        let bind = added(&self.bind, &new.bind).into_iter();
        connect.chain(bind.map(|ports| format!("the sandbox needs connections from local {ports}"))).collect()
    }

    /// Performs the steps before the change of the user. The files are opened here, because the user may have no permission to
    /// reach them yet: with an open file the rule applies after a chmod too.
    pub(crate) fn before_user(&self) -> Result<OpenRules, String> {
        sandbox::empty_bounding_set().map_err(failed)?;
        let mut rules = FileRules::new(self.connect.as_ref(), self.bind.as_ref()).map_err(failed)?;
        let (mut opened, mut refused, mut pinned) = (AllowedPaths::default(), Vec::new(), Vec::new());
        let mut is_outdated = false;
        for (allowed, identity) in self.paths.rules() {
            match rules.permit(&allowed.path, allowed.access == Access::Write) {
                Ok(file) => {
                    let is_other = |file| Identity::of_file(file, &allowed.path) != identity;
                    is_outdated |= file.as_ref().is_some_and(is_other);
                    opened.add(allowed.path.clone(), allowed.access);
                    pinned.extend(file.filter(|_| allowed.path.starts_with("/proc")));
                }
                // Files that only some systems have.
                Err(RuleError::Path(_)) if allowed.directive.is_empty() => {}
                // It was renamed, or replaced by a symbolic link.
                Err(RuleError::Path(error)) if identity.is_some() && is_replaced(&error) => {
                    is_outdated = true
                }
                Err(RuleError::Path(error)) => refused.push((allowed, error)),
                Err(RuleError::Limit(error)) => {
                    let number = self.paths.allowed().iter().count();
                    return Err(failed(format_args!("{error} at {}, one of {number} paths", named(allowed))));
                }
            }
        }
        // A path that another rule permits needs none.
        let is_refused = |(allowed, _): &(&AllowedPath, _)| {
            let real = fs::canonicalize(&allowed.path);
            !opened.contains(real.as_ref().unwrap_or(&allowed.path), allowed.access)
        };
        let unopened =
            refused.into_iter().filter(is_refused).map(|(allowed, error)| unopened(allowed, &error));
        // Each process has its own directory in /proc, so these are not in the plan.
        for path in PROCESS.iter().filter_map(|path| fs::canonicalize(path).ok()) {
            match rules.permit(&path, false) {
                Ok(file) => pinned.extend(file),
                Err(RuleError::Path(_)) => {}
                Err(RuleError::Limit(error)) => return Err(failed(error)),
            }
        }
        Ok(OpenRules { unopened: unopened.collect(), rules, pinned, is_outdated })
    }

    /// Performs the steps after the change of the user, before the first thread is started.
    pub(crate) fn before_threads(&self, open: OpenRules, log: &Log) -> Result<Restrictions, String> {
        // The probes connect to a port of their own.
        Probe::of_process();
        sandbox::drop_privileges(self.net_raw, self.is_dumpable).map_err(failed)?;
        let OpenRules { rules, pinned, unopened, is_outdated } = open;
        let report = rules.enforce().map_err(failed)?;
        // The master has logged what the kernel lacks.
        if let (Some(position), false) = (&self.strict, report.restricts_files()) {
            return Err(not_strict(&report, position));
        }
        let mut restrictions = Restrictions { refused: None, replaced: None, _pinned: pinned, is_outdated };
        if report.restricts_files() {
            log_some(unopened.into_iter(), log);
            let replaced = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
            let replaced = replaced.ok().map(Arc::new);
            restrictions.replaced = replaced.clone();
            let mut paths = self.paths.clone();
            paths.add(PathBuf::from("/proc"), Access::Read);
            Enforced { paths, ports: self.connect.clone(), replaced }.begin();
        }
        Ok(restrictions)
    }

    /// Performs the last step, when all threads and rings exist.
    pub(crate) fn after_start(&self, restrictions: &mut Restrictions, log: &Log) -> Result<(), String> {
        let calls = if self.has_jit { Calls::WorkerWithJit } else { Calls::Worker };
        match sandbox::restrict_calls(calls) {
            Ok(refused) => restrictions.refused = Some(refused),
            Err(error) if error.is_unsupported() && self.strict.is_none() => {
                log.write(Level::Warn, "sandbox: the kernel cannot restrict system calls (seccomp)");
            }
            Err(error) => return Err(failed(error) + self.strict.as_deref().unwrap_or_default()),
        }
        Ok(())
    }
}

impl Restrictions {
    /// Returns a descriptor that is readable when a call was refused, and with `also_replaced` one that is readable when a replaced
    /// path has caused a refusal.
    pub(crate) fn refusals(&self, also_replaced: bool) -> impl Iterator<Item = BorrowedFd<'_>> {
        let replaced = self.replaced.as_ref().filter(|_| also_replaced).map(|event| event.as_fd());
        self.refused.as_ref().map(AsFd::as_fd).into_iter().chain(replaced)
    }

    /// Whether the rules are not those that the master has sent, because a path was replaced.
    pub(crate) fn is_outdated(&self) -> bool {
        self.is_outdated
    }

    /// Whether a replaced path has caused a refusal since the last call.
    pub(crate) fn take_replaced(&self) -> bool {
        let mut count = [0_u8; 8];
        self.replaced.as_ref().is_some_and(|event| rustix::io::read(event, &mut count).is_ok())
    }

    /// Logs the calls that were refused since the last call.
    pub(crate) fn log_refusals(&self, log: &Log) {
        let Some(refused) = &self.refused else { return };
        for name in refused.take() {
            log.alert(format_args!(
                "sandbox: the system call {name} was refused: a defect of the server, or an attack; \"sandbox off\" permits it"
            ));
        }
    }
}

/// Returns the allowed paths: those of directives, and those that every configuration needs.
fn allowed(needs: &Needs) -> AllowedPaths {
    let mut allowed = AllowedPaths::of(&needs.paths);
    let lists = [(REPLACED, Access::Read), (READ, Access::Read), (LIBRARIES, Access::Read)];
    for (paths, access) in lists.into_iter().chain([(WRITE, Access::Write)]) {
        for path in paths.iter().filter_map(|path| fs::canonicalize(path).ok()) {
            allowed.add(path, access);
        }
    }
    // The table of symbols of this program, for the place of a panic.
    if let Ok(program) = std::env::current_exe() {
        allowed.add(program, Access::Read);
    }
    allowed
}

/// Returns allowed paths with the files that they and the files of the system lead to now.
fn snapshot(allowed: AllowedPaths) -> PathSnapshot {
    PathSnapshot::of(allowed, REPLACED.iter().map(PathBuf::from))
}

/// Whether an error of open(2) without symbolic links means that the path was renamed or replaced.
fn is_replaced(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
        || error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error())
}

/// Logs lines about paths that have no rule, up to a maximum number. They have the level of errors: requests will fail.
fn log_some(mut lines: impl Iterator<Item = String>, log: &Log) {
    lines.by_ref().take(OMITTED_LINES_MAX).for_each(|line| log.write(Level::Error, line));
    if let more @ 1.. = lines.count() {
        log.write(Level::Error, format_args!("the sandbox permits nothing for {more} further paths"));
    }
}

/// Returns the line about a path that could not be opened.
fn unopened(allowed: &AllowedPath, error: &std::io::Error) -> String {
    format!(
        "the sandbox permits nothing for {}, which cannot be opened ({}); reload when it can{}",
        named(allowed),
        error_text(error),
        place_of(allowed.position.as_ref())
    )
}

/// Returns a path with its directive.
fn named(AllowedPath { path, directive, .. }: &AllowedPath) -> String {
    let of = if directive.is_empty() { String::new() } else { format!(" of \"{directive}\"") };
    format!("\"{}\"{of}", path.display())
}

/// Returns the ports that `new` has and `old` lacks, each as a text; `None` stands for all.
fn added(old: &Option<BTreeSet<u16>>, new: &Option<BTreeSet<u16>>) -> Vec<String> {
    match (old, new) {
        (None, _) => Vec::new(),
        (Some(_), None) => vec!["all ports".to_owned()],
        (Some(old), Some(new)) => new.difference(old).map(|port| format!("port {port}")).collect(),
    }
}

/// Whether the kernel restricts the paths of workers.
pub(crate) fn restricts_paths() -> bool {
    Report::of_kernel().restricts_files()
}

fn failed(error: impl Display) -> String {
    format!("the sandbox cannot be set up: {error}; \"sandbox off\" serves without it")
}
