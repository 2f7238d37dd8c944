//! What the directives of `main` and `events` set, with nginx's defaults. Holds for the whole process.

use std::path::{Path, PathBuf};
use std::time::Duration;

use conf::Error;

use crate::config::Pools;
use crate::process::EngineKey;
use crate::telemetry::ErrorLog;

/// Settings of the `main` context.
#[derive(Clone, Debug)]
pub struct MainConf {
    /// `user`: who serves, when started as root.
    pub user: Option<UserSpec>,
    /// `worker_processes`: threads that serve.
    pub workers: Workers,
    /// `worker_cpu_affinity`
    pub affinity: Affinity,
    /// `daemon`
    pub daemon: bool,
    /// `master_process`
    pub master_process: bool,
    /// `pid`
    pub pid: PathBuf,
    /// `worker_rlimit_nofile`: descriptors for each thread.
    pub worker_rlimit_nofile: Option<u64>,
    /// `worker_rlimit_core`, bytes.
    pub worker_rlimit_core: Option<u64>,
    /// `worker_shutdown_timeout`
    pub worker_shutdown_timeout: Option<Duration>,
    /// `worker_priority`, a nice value.
    pub worker_priority: i32,
    /// `working_directory`
    pub working_directory: Option<PathBuf>,
    /// `env`: names to keep, and names with values to set.
    pub env: Vec<(String, Option<String>)>,
    /// `error_log` of the process.
    pub error_log: ErrorLog,
    /// `thread_pool`; the pool `default` is always there.
    pub thread_pools: Vec<ThreadPoolSpec>,
    /// `pcre_jit`
    pub pcre_jit: bool,
}

/// `user name [group]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserSpec {
    /// The user's name.
    pub user: String,
    /// The group's name, when one was given.
    pub group: Option<String>,
}

/// How many threads serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workers {
    /// As many as there are CPUs that the process may run on.
    Auto,
    /// So many.
    Count(u32),
}

/// Which CPUs the threads are bound to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Affinity {
    /// None.
    #[default]
    Free,
    /// One each, in turn; of these when a mask was given.
    Auto(Option<Vec<usize>>),
    /// The CPUs of each thread; the last set serves further threads.
    Sets(Vec<Vec<usize>>),
}

/// `thread_pool name threads=N [max_queue=N]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadPoolSpec {
    /// Its name.
    pub name: String,
    /// Threads.
    pub threads: u32,
    /// Operations that may wait.
    pub max_queue: u32,
}

/// Settings of the `events` context, ours for the ring among them.
#[derive(Clone, Debug, PartialEq)]
pub struct EventsConf {
    /// `worker_connections`, for each thread.
    pub worker_connections: u32,
    /// `use`; without it the best there is.
    pub method: Option<Method>,
    /// `worker_aio_requests`: depth of libaio.
    pub aio_requests: u32,
    /// `ring_entries`
    pub ring_entries: u32,
    /// `ring_recv_buffers`: count and bytes.
    pub recv_buffers: (u32, u32),
    /// `ring_io_workers`: kernel workers for files, for each thread.
    pub io_workers: u32,
    /// `device_share`: one device may hold one in so many workers.
    pub device_share: u32,
    /// `buffer_pool`: most bytes of buffers for each thread; `None` goes by the memory that the process may have.
    pub buffer_pool: Option<usize>,
    /// `zero_copy`: sends of at least so many bytes go without a copy; `None` is off.
    pub zero_copy: Option<u64>,
    /// `try_cached`: open and read at once what is in memory, beside the engines.
    pub try_cached: bool,
    /// `engine_fault`: faults to inject, for tests; the lines of the plan.
    pub faults: Vec<String>,
}

impl EventsConf {
    /// Whether calls may be made beside the engines: not where faults are injected, which such calls would not meet.
    pub(crate) fn calls_directly(&self) -> bool {
        self.try_cached && self.faults.is_empty()
    }
}

/// The network engine that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// `io_uring`
    Uring,
    /// `epoll`
    Epoll,
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
            worker_shutdown_timeout: None,
            worker_priority: 0,
            working_directory: None,
            env: Vec::new(),
            error_log: ErrorLog::default(),
            thread_pools: Vec::new(),
            pcre_jit: false,
        }
    }
}

impl MainConf {
    /// The defaults, with paths under this prefix.
    pub fn under(prefix: &Path) -> MainConf {
        let conf = MainConf::default();
        MainConf { pid: prefix.join(&conf.pid), ..conf }
    }

    /// Fails when `aio threads=` names a pool that no `thread_pool` makes.
    pub(crate) fn check_pools(&self, pools: &Pools) -> Result<(), Error> {
        let made =
            |name: &str| name == Pools::DEFAULT || self.thread_pools.iter().any(|pool| pool.name == name);
        match pools.uses().find(|(name, _)| !made(name)) {
            Some((name, span)) => Err(Error::at(span, format_args!("unknown thread pool \"{name}\""))),
            None => Ok(()),
        }
    }
}

impl MainConf {
    /// Warns of threads that share the last set of CPUs.
    pub(crate) fn check_affinity(&self, warnings: &mut Vec<Error>) {
        if let (Affinity::Sets(sets), Workers::Count(count)) = (&self.affinity, self.workers)
            && sets.len() != count as usize
        {
            let message = "the number of \"worker_processes\" is not equal to the number of \
                           \"worker_cpu_affinity\" masks, using last mask for remaining worker processes";
            warnings.push(Error::nowhere(message).with_level(conf::Level::Warn));
        }
    }
}

impl Default for ThreadPoolSpec {
    /// nginx's pool `default`.
    fn default() -> ThreadPoolSpec {
        ThreadPoolSpec { name: Pools::DEFAULT.to_owned(), threads: 32, max_queue: 65536 }
    }
}

impl Default for EventsConf {
    fn default() -> EventsConf {
        EventsConf {
            worker_connections: 512,
            method: None,
            aio_requests: 32,
            ring_entries: 1024,
            recv_buffers: (1024, 4096),
            io_workers: 128,
            device_share: 4,
            buffer_pool: None,
            zero_copy: Some(16 << 10),
            try_cached: true,
            faults: Vec::new(),
        }
    }
}

/// What only a new worker process can change.
#[derive(Clone, Debug, PartialEq)]
pub struct ProcessKey {
    user: Option<UserSpec>,
    workers: Workers,
    affinity: Affinity,
    limits: (Option<u64>, Option<u64>, i32),
    working_directory: Option<PathBuf>,
    env: Vec<(String, Option<String>)>,
    thread_pools: Vec<ThreadPoolSpec>,
    events: EventsConf,
    engine: EngineKey,
    /// Which decides on the capabilities that a worker keeps.
    binds_transparently: bool,
}

impl ProcessKey {
    pub(crate) fn of(
        main: &MainConf,
        events: &EventsConf,
        engine: EngineKey,
        binds_transparently: bool,
    ) -> ProcessKey {
        ProcessKey {
            user: main.user.clone(),
            workers: main.workers,
            affinity: main.affinity.clone(),
            limits: (main.worker_rlimit_nofile, main.worker_rlimit_core, main.worker_priority),
            working_directory: main.working_directory.clone(),
            env: main.env.clone(),
            thread_pools: main.thread_pools.clone(),
            events: events.clone(),
            engine,
            binds_transparently,
        }
    }
}
