//! Simulates a machine that forbids some system calls, like a container with a strict profile.
//!
//! [`forbid`] installs a seccomp filter on a new thread and runs a function there; every process that the function
//! starts inherits the filter, and keeps it after the function has returned.

use std::collections::BTreeMap;

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch};

/// A system call that a test can forbid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// io_uring_setup(2), which creates an io_uring.
    IoUringSetup,
    /// io_setup(2), which creates a context of native AIO.
    IoSetup,
    /// epoll_pwait(2), by which worker threads on epoll wait for events.
    EpollPwait,
    /// landlock_create_ruleset(2), by which a sandbox restricts files.
    LandlockCreateRuleset,
    /// linkat(2), which a security module may forbid.
    Linkat,
    /// openat2(2), which `RestrictSUIDSGID=` of systemd forbids with `ENOSYS`.
    Openat2,
    /// seccomp(2), by which a sandbox restricts system calls.
    Seccomp,
}

impl Call {
    /// Returns the system call number: from arch/x86/entry/syscalls/syscall_64.tbl, or from the table that all newer
    /// architectures share.
    fn number(self) -> i64 {
        match (self, cfg!(target_arch = "x86_64")) {
            (Call::IoUringSetup, _) => 425,
            (Call::IoSetup, true) => 206,
            (Call::IoSetup, false) => 0,
            (Call::EpollPwait, true) => 281,
            (Call::EpollPwait, false) => 22,
            (Call::LandlockCreateRuleset, _) => 444,
            (Call::Linkat, true) => 265,
            (Call::Linkat, false) => 37,
            (Call::Openat2, _) => 437,
            (Call::Seccomp, true) => 317,
            (Call::Seccomp, false) => 277,
        }
    }
}

/// The error that container runtimes return.
const EPERM: i32 = 1;

/// Runs `work` on a thread on which `call` fails with EPERM. If no filter can be installed, reports the reason and
/// returns `None`; the test is then skipped.
#[must_use]
pub fn forbid<T: Send>(call: Call, work: impl FnOnce() -> T + Send) -> Option<T> {
    forbid_with(call, EPERM, work)
}

/// As [`forbid`], with another error number.
#[must_use]
pub fn forbid_with<T: Send>(call: Call, errno: i32, work: impl FnOnce() -> T + Send) -> Option<T> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| match apply(call, errno) {
            Ok(()) => Some(work()),
            Err(error) => {
                crate::engines::skip(format_args!("no seccomp filter: {error}"));
                None
            }
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn apply(call: Call, errno: i32) -> Result<(), Box<dyn std::error::Error>> {
    let arch = TargetArch::try_from(std::env::consts::ARCH)?;
    let rules = BTreeMap::from([(call.number(), Vec::new())]);
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, SeccompAction::Errno(errno as u32), arch)?;
    let program = BpfProgram::try_from(filter)?;
    Ok(seccompiler::apply_filter(&program)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_inherit_the_filter_and_other_threads_do_not() {
        let status = || crate::program::run("cat", &["/proc/self/status"]).stdout;
        let Some(inside) = forbid(Call::IoUringSetup, status) else { return };
        let filters = |status: &str| {
            let line = status.lines().find(|line| line.starts_with("Seccomp_filters:")).map(str::to_owned);
            line.and_then(|line| line.rsplit('\t').next()?.trim().parse::<u32>().ok()).unwrap_or(0)
        };
        assert_eq!(filters(&inside), filters(&status()) + 1, "{inside}");
    }
}
