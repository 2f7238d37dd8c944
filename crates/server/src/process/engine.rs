//! Chooses the engine for a configuration on this machine.

use std::fmt;
use std::sync::Arc;

use io::disk::threads::ThreadPool;
use io::engine::{EngineConfig, NetKind, PUTS_MAX};
use io::probe::{Fallback, Probe};

use crate::process::StartError;
use caching::settings::Caches;
use site::config::Config;
use site::settings::events::{BUFFER_POOL_MIN, Method};
use telemetry::Reason;
use transfer::body::rules::Aio;

/// The engine of each thread, decided once for the process.
pub struct Choice {
    config: EngineConfig,
    /// The reason why io_uring is not available.
    refusal: Option<Fallback>,
}

impl Choice {
    /// Probes the machine and creates the thread pools.
    pub(super) fn make(config: &Config) -> Result<Choice, StartError> {
        Choice::with(config, Probe::of_process().uring_refusal().cloned())
    }

    /// Returns the choice without io_uring if a thread could not create its io_uring. This happens although the probe
    /// succeeded, for example because the limit on locked memory is sufficient only for the probe's small io_uring.
    /// Returns `None` if the configuration requires io_uring, or another error occurred.
    pub(super) fn without_ring(
        &self,
        config: &Config,
        error: &StartError,
    ) -> Option<Result<Choice, StartError>> {
        let StartError::Thread(rt::thread::StartError::Engine(io::BuildError::Ring(error))) = error else {
            return None;
        };
        let may_fall_back = config.events().method != Some(Method::Uring) && self.refusal.is_none();
        may_fall_back.then(|| {
            let errno = Reason(error.errno);
            let cause = format!("{} for a worker thread: {errno}: {}", error.call(), error.cause());
            Choice::with(config, Some(Fallback { cause, remedy: error.remedy().to_owned() }))
        })
    }

    fn with(config: &Config, refusal: Option<Fallback>) -> Result<Choice, StartError> {
        let events = config.events();
        let net = match events.method {
            Some(Method::Uring) => match &refusal {
                None => NetKind::Uring,
                Some(refusal) => return Err(StartError::NoRing(refusal.clone())),
            },
            Some(Method::Epoll) => NetKind::Epoll,
            // Without `use`: the best available engine. If it is not io_uring, this is logged.
            None if refusal.is_none() => NetKind::Uring,
            None => NetKind::Epoll,
        };
        // Parsed first: an invalid rule must prevent the start, because a test with an ignored rule would pass.
        let faults = io::fault::FaultPlan::parse(&events.faults.join("\n")).map_err(StartError::Faults)?;
        let (memory, threads) = (crate::memory_limit::memory_limit(), config.main().workers.count());
        let engine = EngineConfig {
            net,
            // Disk operations may use io_uring with epoll: `use epoll` applies to the network only.
            disk_ring: refusal.is_none(),
            disk_libaio: uses_libaio(config, refusal.is_none()),
            ring_entries: events.ring_entries,
            // A connection has at most a receive, a send, a file operation and its cancellation. Further file operations
            // of a connection, as with HTTP/2, wait for a slot.
            ops_max: events.worker_connections.saturating_mul(4).clamp(1024, io::engine::OPS_MAX),
            recv_buffers: events.recv_buffers.0 as u16,
            recv_buffer_bytes: events.recv_buffers.1,
            pool_bytes_max: events.buffer_pool.unwrap_or_else(|| buffer_pool(memory, threads)),
            memory_max: memory.map(|limit| limit / threads.max(1) as u64),
            iowq_workers: events.io_workers,
            device_share: events.device_share,
            libaio_depth: events.aio_requests,
            pools: if uses_pool(config, refusal.is_none()) { pools(config)? } else { Vec::new() },
            put_pool: match config.http.of::<Caches>().zones.len() {
                0 => None,
                caches => {
                    let threads = PUTS_MAX * caches.min(MAKERS_DISKS_MAX);
                    Some(ThreadPool::new("makers", threads, MAKERS_QUEUE).map_err(StartError::Pool)?)
                }
            },
            pool_tries_resident: events.try_cached,
            faults: (!events.faults.is_empty()).then(|| Arc::new(faults)),
        };
        Ok(Choice { config: engine, refusal })
    }

    /// Returns a copy for one thread, which shares pools and faults.
    pub(super) fn engine_config(&self) -> EngineConfig {
        self.config.clone()
    }

    /// Returns nginx's name of the method: `io_uring` or `epoll`.
    pub fn method(&self) -> &'static str {
        match self.config.net {
            NetKind::Uring => "io_uring",
            NetKind::Epoll => "epoll",
        }
    }

    /// Returns the reason why io_uring is not available, and the remedy.
    pub fn refusal(&self) -> Option<&Fallback> {
        self.refusal.as_ref()
    }
}

impl fmt::Debug for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Choice").field("method", &self.method()).field("refusal", &self.refusal).finish()
    }
}

/// Returns the default of `buffer_pool` in bytes per thread: the largest useful size, but for all threads at most a
/// quarter of the memory limit, above which the OOM killer kills the process. The remaining memory is for the page
/// cache, connections and sockets.
fn buffer_pool(limit: Option<u64>, threads: usize) -> usize {
    const USEFUL: u64 = 256 << 20;
    let share = limit.map_or(USEFUL, |bytes| bytes / 4 / threads.max(1) as u64);
    share.clamp(BUFFER_POOL_MIN, USEFUL) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffer_sizes_depend_on_the_available_memory() {
        assert_eq!(buffer_pool(None, 8), 256 << 20);
        assert_eq!(buffer_pool(Some(16 << 30), 8), 256 << 20);
        assert_eq!(buffer_pool(Some(512 << 20), 4), 32 << 20);
        assert_eq!(buffer_pool(Some(64 << 20), 1), 16 << 20);
        assert_eq!(buffer_pool(Some(8 << 20), 2), 4 << 20, "below it nothing works");
    }
}

/// Settings that determine the engine: a reload that changes them needs a new process.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct EngineKey {
    libaio: bool,
    pools: Option<Vec<String>>,
    makers: bool,
}

impl EngineKey {
    pub(super) fn of(config: &Config) -> EngineKey {
        // Computed as if io_uring were not available: the key then includes all settings that matter with io_uring, and
        // some more.
        let pools = || config.http.pools.names().map(str::to_owned).collect();
        EngineKey {
            libaio: uses_libaio(config, false),
            pools: uses_pool(config, true).then(pools),
            makers: !config.http.of::<Caches>().zones.is_empty(),
        }
    }

    /// Returns the differences from another key.
    pub(super) fn differences(&self, new: &EngineKey) -> impl Iterator<Item = &'static str> {
        let changed = [
            (self.libaio != new.libaio, "the first or last use of libaio"),
            (self.pools != new.pools, "the thread pools that aio names"),
            (self.makers != new.makers, "the first or last cache"),
        ];
        changed.into_iter().filter(|(is, _)| *is).map(|(_, name)| name)
    }
}

/// Whether libaio is used. Its contexts count against a system-wide limit, so they are created only if a location reads
/// files by libaio.
fn uses_libaio(config: &Config, ring: bool) -> bool {
    config.http.locations.iter().map(|location| &location.scope.core).any(|core| match core.sending.aio {
        Aio::Libaio => true,
        Aio::Unset | Aio::On | Aio::Uring => !ring && core.sending.directio.is_some(),
        Aio::Off | Aio::Threads(_) => false,
    })
}

/// Maximum number of queued entries for the threads that create cache entries: many more than caches enqueue.
const MAKERS_QUEUE: usize = 65536;

/// Maximum number of caches with [`PUTS_MAX`] threads each, so that a hanging disk occupies only the threads of its
/// cache. Further caches get no further threads, because they usually share these disks.
const MAKERS_DISKS_MAX: usize = 4;

/// Whether the thread pool is used; otherwise no threads are created.
fn uses_pool(config: &Config, ring: bool) -> bool {
    let mut settings = config.http.locations.iter().map(|location| &location.scope.core);
    // Without io_uring buffered reads use the pool.
    !ring || settings.any(|core| matches!(core.sending.aio, Aio::Threads(_) | Aio::Libaio))
}

/// Creates the pools of a rehearsal, with the numbers that locations use and one thread each: a rehearsal is one request.
pub(crate) fn pools_for_rehearsal(config: &Config) -> Result<Vec<Arc<ThreadPool>>, StartError> {
    let pool = |name: &str| ThreadPool::new(name, 1, 64).map_err(StartError::Pool);
    config.http.pools.names().map(pool).collect()
}

/// Creates the pools that locations name, in order of their numbers; `default` exists implicitly.
fn pools(config: &Config) -> Result<Vec<Arc<ThreadPool>>, StartError> {
    let specs = &config.main().thread_pools;
    let pool = |name: &str| {
        let spec = specs.iter().find(|spec| spec.name == name);
        let (threads, queue) =
            spec.map_or((32, 65536), |spec| (spec.threads as usize, spec.max_queue as usize));
        ThreadPool::new(name, threads, queue).map_err(StartError::Pool)
    };
    config.http.pools.names().map(pool).collect()
}
