//! The settings of `main`, with nginx's defaults. They apply to the process.

use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::Duration;

use conf::{Error, Object, Span};
use rustix::thread::{CpuSet, sched_getaffinity};

use crate::settings::pools::Pools;
use telemetry::ErrorLog;

/// Settings of the `main` context.
#[derive(Clone, Debug)]
pub struct MainConf {
    /// `user`: the user of workers, when started as root.
    pub user: Option<UserSpec>,
    /// `worker_processes`: number of worker threads.
    pub workers: Workers,
    /// `worker_cpu_affinity`
    pub affinity: Affinity,
    /// `daemon`
    pub daemon: bool,
    /// `master_process`
    pub master_process: bool,
    /// `pid`
    pub pid: PathBuf,
    /// `worker_rlimit_nofile`: number of descriptors per thread.
    pub worker_rlimit_nofile: Option<u64>,
    /// `worker_rlimit_core`, in bytes.
    pub worker_rlimit_core: Option<u64>,
    /// `admin_socket`: the socket for operators' commands.
    pub admin_socket: Option<PathBuf>,
    /// `shutdown_delay`: time before a graceful shutdown in which connections are closed after their response.
    pub shutdown_delay: Duration,
    /// `worker_shutdown_timeout`
    pub worker_shutdown_timeout: Option<Duration>,
    /// `worker_priority`, a nice value.
    pub worker_priority: i32,
    /// `working_directory`
    pub working_directory: Option<PathBuf>,
    /// `env`: variables that workers inherit, and variables with new values.
    pub env: Vec<(String, Option<String>)>,
    /// `error_log` of the process.
    pub error_log: ErrorLog,
    /// `thread_pool`; the pool `default` always exists.
    pub thread_pools: Vec<ThreadPoolSpec>,
    /// `pcre_jit`
    pub pcre_jit: bool,
    /// `sandbox`
    pub sandbox: Sandbox,
    /// The position of `sandbox`, if it is written.
    pub sandbox_position: Option<Span>,
    /// Whether `sandbox off` is written. Then the master and the process of ACME are not restricted either.
    pub is_unrestricted: bool,
}

/// `sandbox`: what the kernel lets the worker do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sandbox {
    /// Everything that its user may do.
    Off,
    /// What the configuration needs.
    On,
    /// As `On`, and the strictest form of each restriction.
    Strict,
}

/// `user name [group]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserSpec {
    /// The user's name.
    pub user: String,
    /// The group's name, if given.
    pub group: Option<String>,
    /// The position of the directive.
    pub position: Option<Span>,
}

/// The number of worker threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workers {
    /// One for each CPU that the process may run on.
    Auto,
    /// This many.
    Count(u32),
}

/// The CPUs that worker threads are bound to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Affinity {
    /// Not bound.
    #[default]
    Free,
    /// One CPU per thread, in order, from the mask if it is given.
    Auto(Option<Vec<usize>>),
    /// The CPUs of each thread; further threads use the last set.
    Sets(Vec<Vec<usize>>),
}

/// `thread_pool name threads=N [max_queue=N]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadPoolSpec {
    /// The name of the pool.
    pub name: String,
    /// Number of threads.
    pub threads: u32,
    /// Maximum number of queued operations.
    pub max_queue: u32,
}

impl Default for MainConf {
    fn default() -> MainConf {
        MainConf {
            user: None,
            workers: Workers::Count(1),
            affinity: Affinity::Free,
            daemon: true,
            master_process: true,
            pid: PathBuf::from("logs/nginx.pid"),
            worker_rlimit_nofile: None,
            worker_rlimit_core: None,
            admin_socket: None,
            shutdown_delay: Duration::ZERO,
            worker_shutdown_timeout: None,
            worker_priority: 0,
            working_directory: None,
            env: Vec::new(),
            error_log: ErrorLog::default(),
            thread_pools: Vec::new(),
            pcre_jit: false,
            sandbox: Sandbox::On,
            sandbox_position: None,
            is_unrestricted: false,
        }
    }
}

impl MainConf {
    /// Returns the defaults, with paths below this prefix.
    pub fn under(prefix: &Path) -> MainConf {
        let conf = MainConf::default();
        MainConf { pid: prefix.join(&conf.pid), ..conf }
    }

    /// Fails if `aio threads=` names a pool that no `thread_pool` defines.
    pub fn check_pools(&self, pools: &Pools) -> Result<(), Error> {
        let made =
            |name: &str| name == Pools::DEFAULT || self.thread_pools.iter().any(|pool| pool.name == name);
        match pools.uses().find(|(name, _)| !made(name)) {
            Some((name, span)) => Err(Error::undefined(span, Object::ThreadPool, name)),
            None => Ok(()),
        }
    }
}

impl MainConf {
    /// Warns of threads that share the last set of CPUs.
    pub fn check_affinity(&self, warnings: &mut Vec<Error>) {
        if let (Affinity::Sets(sets), Workers::Count(count)) = (&self.affinity, self.workers)
            && sets.len() != count as usize
        {
            let message = "the number of \"worker_processes\" is not equal to the number of \
                           \"worker_cpu_affinity\" masks, using last mask for remaining worker processes";
            warnings.push(Error::without_location(message).with_level(conf::Level::Warn));
        }
    }
}

impl Default for ThreadPoolSpec {
    /// Returns nginx's pool `default`.
    fn default() -> ThreadPoolSpec {
        ThreadPoolSpec { name: Pools::DEFAULT.to_owned(), threads: 32, max_queue: 65536 }
    }
}

impl Workers {
    /// Returns the number of worker threads.
    pub fn count(self) -> usize {
        match self {
            Workers::Auto => std::thread::available_parallelism().map_or(1, usize::from),
            Workers::Count(count) => count as usize,
        }
    }
}

impl Affinity {
    /// Returns the CPUs of a thread; an empty list means all CPUs.
    pub fn of_thread(&self, number: usize) -> Vec<usize> {
        match self {
            Affinity::Free => Vec::new(),
            Affinity::Auto(None) => {
                // In a container the numbers of the permitted CPUs need not begin with 0.
                let Ok(permitted) = sched_getaffinity(None) else { return Vec::new() };
                // A CPU quota of a cgroup is time on any CPU. The threads of all containers of a machine would share its first CPUs.
                let has_quota = |count: NonZero<usize>| count.get() < permitted.count() as usize;
                if std::thread::available_parallelism().is_ok_and(has_quota) {
                    return Vec::new();
                }
                let mut cpus = (0..CpuSet::MAX_CPU).filter(|&cpu| permitted.is_set(cpu));
                cpus.nth(number % (permitted.count() as usize).max(1)).into_iter().collect()
            }
            Affinity::Auto(Some(cpus)) => cpus.get(number % cpus.len().max(1)).copied().into_iter().collect(),
            Affinity::Sets(sets) => sets.get(number).or(sets.last()).cloned().unwrap_or_default(),
        }
    }
}

/// Whether this process started as root. A worker drops its privileges but must read the configuration the same way, so
/// the first result is cached.
pub fn started_as_root() -> bool {
    static AS_ROOT: LazyLock<bool> = LazyLock::new(|| rustix::process::geteuid().is_root());
    *AS_ROOT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn automatic_affinity_uses_only_cpus_that_the_process_may_use() {
        // In a separate thread, because the affinity belongs to the thread.
        let test = std::thread::spawn(|| {
            let permitted = sched_getaffinity(None).expect("always permitted");
            let last = (0..CpuSet::MAX_CPU).rfind(|&cpu| permitted.is_set(cpu));
            let last = last.expect("this thread runs on one");
            let mut only = CpuSet::new();
            only.set(last);
            rustix::thread::sched_setaffinity(None, &only).expect("a permitted CPU");
            for number in 0..3 {
                assert_eq!(Affinity::Auto(None).of_thread(number), [last]);
            }
        });
        test.join().expect("it passes");
    }
}
