//! Setting up an io_uring: flags, fallbacks for older kernels, and the reasons of a refusal.
//!
//! Types: [`SetupError`] with its likely cause and the remedy, [`Mode`] for the flags in use.

use std::fmt;
use std::time::{Duration, Instant};

use io_uring::{Builder, IoUring};
use rustix::io::Errno;

use self::flags::{COOP_TASKRUN, DEFER_TASKRUN, NO_SQARRAY, SINGLE_ISSUER, TASKRUN_FLAG};
use super::ring::errno;

/// `IORING_SETUP_*` bits that are omitted one after another; io_uring_setup(2).
pub mod flags {
    /// Deferred work waits for the next system call instead of interrupting the thread.
    pub const COOP_TASKRUN: u32 = 1 << 8;
    /// A flag in the queue shows that the kernel has deferred work.
    pub const TASKRUN_FLAG: u32 = 1 << 9;
    /// Only one thread submits.
    pub const SINGLE_ISSUER: u32 = 1 << 12;
    /// Deferred work runs in io_uring_enter(2) calls that wait or collect; since 6.1.
    pub const DEFER_TASKRUN: u32 = 1 << 13;
    /// The submission queue has no index array; since 6.6.
    pub const NO_SQARRAY: u32 = 1 << 16;
    /// The flags of an engine's ring on a kernel that supports all of them.
    pub const ENGINE: u32 = SINGLE_ISSUER | DEFER_TASKRUN | TASKRUN_FLAG | NO_SQARRAY;
}

/// Sets of flags, best first: the next is tried when the kernel returns `EINVAL`. For a ring whose owner waits in
/// io_uring_enter(2).
pub(crate) const LADDER: [u32; 4] = [
    flags::ENGINE,
    SINGLE_ISSUER | DEFER_TASKRUN | TASKRUN_FLAG,
    SINGLE_ISSUER | DEFER_TASKRUN,
    COOP_TASKRUN,
];

/// As [`LADDER`], for a ring whose owner waits in epoll_wait(2). Deferred work does not make the ring's descriptor
/// readable, so with `DEFER_TASKRUN` such a wait would not end (tested on 6.18). Cooperative task work
/// (`COOP_TASKRUN`) interrupts the wait and then posts the completion, so that the next wait returns immediately.
pub(crate) const POLLED_LADDER: [u32; 4] = [
    SINGLE_ISSUER | COOP_TASKRUN | TASKRUN_FLAG | NO_SQARRAY,
    SINGLE_ISSUER | COOP_TASKRUN | TASKRUN_FLAG,
    COOP_TASKRUN | TASKRUN_FLAG,
    COOP_TASKRUN,
];

/// The flags of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mode {
    /// The `IORING_SETUP_*` bits that are set: an element of [`LADDER`] or [`POLLED_LADDER`].
    pub(crate) flags: u32,
    /// Whether the queue shows that the kernel has deferred work; without it, every turn makes a kernel entry.
    pub(crate) taskrun_flag: bool,
}

/// The step of the set-up that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// io_uring_setup(2) and mapping the queues.
    Setup,
    /// Limiting the kernel workers.
    Workers,
    /// Registering the ring of receive buffers.
    BufferRing,
    /// Allocating the receive buffers.
    Buffers,
    /// Registering the allowed operations with the kernel, and starting the ring.
    Restrictions,
}

/// The reason why io_uring is not available, as far as user space can determine it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// `kernel.io_uring_disabled` has this value, 1 or 2.
    Sysctl(u8),
    /// A seccomp filter, such as the default profile of a container runtime.
    Seccomp,
    /// Forbidden, but neither by the sysctl nor by a visible seccomp filter: most likely by a security module such as
    /// SELinux or AppArmor.
    SecurityModule,
    /// The kernel was built without io_uring, or is older than 5.1.
    Absent,
    /// The kernel supports io_uring but lacks operations that this server needs.
    Outdated,
    /// A lack of memory, most often caused by the limit on locked memory.
    Memory,
    /// No descriptor is available.
    Descriptors,
    /// None of these reasons.
    Unknown,
}

/// An error of the io_uring set-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetupError {
    /// The step that failed.
    pub stage: Stage,
    /// The kernel's error.
    pub errno: Errno,
    /// The likely cause.
    pub refusal: Refusal,
}

impl SetupError {
    /// Creates an error with the likely cause, which is determined from `/proc`.
    pub fn new(stage: Stage, errno: Errno) -> SetupError {
        SetupError { stage, errno, refusal: Refusal::guess(errno) }
    }

    /// Returns the call that failed.
    pub fn call(&self) -> &'static str {
        match self.stage {
            Stage::Setup => "io_uring_setup",
            Stage::Workers => "io_uring_register(IOWQ_MAX_WORKERS)",
            Stage::BufferRing => "io_uring_register(PBUF_RING)",
            Stage::Buffers => "mmap of receive buffers",
            Stage::Restrictions => "io_uring_register(RESTRICTIONS)",
        }
    }

    /// Returns a description of the likely cause.
    pub fn cause(&self) -> String {
        match self.refusal {
            Refusal::Sysctl(value) => format!("kernel.io_uring_disabled is {value}"),
            Refusal::Seccomp => {
                "a seccomp filter of this process, such as a container runtime's default profile".into()
            }
            Refusal::SecurityModule => "a security module such as SELinux or AppArmor".into(),
            Refusal::Absent => "the kernel has no io_uring (CONFIG_IO_URING)".into(),
            Refusal::Outdated => "the kernel is too old: io_uring is used on 6.1 or newer".into(),
            Refusal::Memory => "not enough memory, or the limit on locked memory (RLIMIT_MEMLOCK)".into(),
            Refusal::Descriptors => "no descriptor is available (RLIMIT_NOFILE)".into(),
            Refusal::Unknown => "unknown".into(),
        }
    }

    /// Returns the remedy.
    pub fn remedy(&self) -> &'static str {
        match self.refusal {
            Refusal::Sysctl(1) => {
                "set kernel.io_uring_disabled=0, or add the user's group to kernel.io_uring_group"
            }
            Refusal::Sysctl(_) => "set kernel.io_uring_disabled=0",
            Refusal::Seccomp => {
                "allow io_uring_setup, io_uring_enter and io_uring_register in the seccomp profile"
            }
            Refusal::SecurityModule => {
                "allow io_uring in the policy of the security module (see the audit log)"
            }
            Refusal::Absent | Refusal::Outdated => "use Linux 6.1 or newer built with CONFIG_IO_URING=y",
            Refusal::Memory => "raise the limit on locked memory (LimitMEMLOCK=, ulimit -l), or free memory",
            Refusal::Descriptors => "raise worker_rlimit_nofile or the hard limit on open files",
            Refusal::Unknown => "run on epoll (use epoll) and report the error number",
        }
    }
}

impl fmt::Display for SetupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let errno = std::io::Error::from(self.errno);
        write!(f, "{}: {errno}; likely cause: {}; remedy: {}", self.call(), self.cause(), self.remedy())
    }
}

impl std::error::Error for SetupError {}

impl Refusal {
    fn guess(errno: Errno) -> Refusal {
        let disabled = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled");
        let disabled = disabled.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0);
        Refusal::judge(errno, disabled, filtered())
    }

    /// Returns the likely cause of `errno`, given the value of `kernel.io_uring_disabled` and whether a seccomp filter
    /// is active.
    pub(crate) fn judge(errno: Errno, disabled: u8, filtered: bool) -> Refusal {
        match errno {
            Errno::PERM if disabled > 0 => Refusal::Sysctl(disabled),
            Errno::PERM | Errno::ACCESS | Errno::NOSYS if filtered => Refusal::Seccomp,
            Errno::PERM | Errno::ACCESS => Refusal::SecurityModule,
            Errno::NOSYS => Refusal::Absent,
            Errno::INVAL => Refusal::Outdated,
            Errno::NOMEM => Refusal::Memory,
            Errno::MFILE | Errno::NFILE => Refusal::Descriptors,
            _ => Refusal::Unknown,
        }
    }
}

/// Whether a seccomp filter is active for this thread (`Seccomp: 2` of proc(5)).
pub(crate) fn filtered() -> bool {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    status.lines().any(|line| line.strip_prefix("Seccomp:").is_some_and(|value| value.trim() == "2"))
}

/// Time limit for retries after a lack of memory, and the pause between them.
const RETRY_TIME: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(20);

/// Creates a ring; retries for a while if the limit on locked memory is reached. The limit counts for all processes of
/// a user, and the kernel releases the memory of a ring some time after its process has ended. Without retries, a
/// restarted server would get no ring.
#[expect(
    clippy::disallowed_methods,
    reason = "no event shows when the kernel has released memory, and no event loop runs yet"
)]
pub(crate) fn patiently<T>(mut make: impl FnMut() -> Result<T, SetupError>) -> Result<T, SetupError> {
    let until = Instant::now() + RETRY_TIME;
    loop {
        match make() {
            Err(error) if error.refusal == Refusal::Memory && Instant::now() < until => {
                std::thread::sleep(PAUSE);
            }
            made => return made,
        }
    }
}

/// Creates a ring that is not enabled yet (`IORING_SETUP_R_DISABLED`), with the first set of flags of `ladder` that the
/// kernel accepts. Bits in `denied` are treated as unknown to the kernel, so that tests can reach each step.
pub(crate) fn create(
    ladder: &[u32],
    entries: u32,
    completions: u32,
    denied: u32,
) -> Result<(IoUring, Mode), SetupError> {
    let mut last = Errno::INVAL;
    for flags in ladder.iter().copied().filter(|flags| flags & denied == 0) {
        match builder(flags, completions).setup_r_disabled().build(entries) {
            Ok(ring) => return Ok((ring, Mode { flags, taskrun_flag: flags & TASKRUN_FLAG != 0 })),
            Err(error) => last = errno(&error),
        }
        // Only EINVAL means that a flag is unknown; other errors would recur.
        if last != Errno::INVAL {
            break;
        }
    }
    Err(SetupError::new(Stage::Setup, last))
}

/// Returns a builder for a ring with these flags.
pub(crate) fn builder(flags: u32, completions: u32) -> Builder {
    let mut builder = IoUring::builder();
    builder.dontfork().setup_submit_all().setup_cqsize(completions).setup_clamp();
    if flags & SINGLE_ISSUER != 0 {
        builder.setup_single_issuer();
    }
    if flags & DEFER_TASKRUN != 0 {
        builder.setup_defer_taskrun();
    }
    if flags & TASKRUN_FLAG != 0 {
        builder.setup_taskrun_flag();
    }
    if flags & COOP_TASKRUN != 0 {
        builder.setup_coop_taskrun();
    }
    if flags & NO_SQARRAY != 0 {
        builder.setup_no_sqarray();
    }
    builder
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_likely_cause_follows_from_error_sysctl_and_filter() {
        let table = [
            (Errno::PERM, 2, false, Refusal::Sysctl(2)),
            (Errno::PERM, 1, true, Refusal::Sysctl(1)),
            (Errno::PERM, 0, true, Refusal::Seccomp),
            (Errno::NOSYS, 0, true, Refusal::Seccomp),
            (Errno::NOSYS, 0, false, Refusal::Absent),
            (Errno::PERM, 0, false, Refusal::SecurityModule),
            (Errno::ACCESS, 0, false, Refusal::SecurityModule),
            (Errno::IO, 0, false, Refusal::Unknown),
            (Errno::INVAL, 0, false, Refusal::Outdated),
            (Errno::NOMEM, 0, true, Refusal::Memory),
            (Errno::MFILE, 0, false, Refusal::Descriptors),
        ];
        for (errno, disabled, filtered, expected) in table {
            assert_eq!(Refusal::judge(errno, disabled, filtered), expected, "{errno:?}");
        }
    }

    #[test]
    fn only_memory_errors_are_retried() {
        let mut answers = [Errno::NOMEM, Errno::NOMEM, Errno::PERM, Errno::IO].into_iter();
        let mut make =
            || Err::<(), _>(SetupError::new(Stage::Setup, answers.next().expect("there is one more")));
        assert_eq!(patiently(&mut make).map_err(|error| error.errno), Err(Errno::PERM));
        let mut tries = 0;
        let short = patiently(|| {
            tries += 1;
            if tries < 3 { Err(SetupError::new(Stage::BufferRing, Errno::NOMEM)) } else { Ok(tries) }
        });
        assert_eq!(short, Ok(3));
    }

    #[test]
    fn a_refusal_reports_call_cause_and_remedy() {
        let error = SetupError { stage: Stage::Setup, errno: Errno::PERM, refusal: Refusal::Sysctl(2) };
        let text = error.to_string();
        for part in ["io_uring_setup", "kernel.io_uring_disabled is 2", "set kernel.io_uring_disabled=0"] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }
}
