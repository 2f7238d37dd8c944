//! The engine that a configuration gets on this machine.

use std::fmt;
use std::sync::Arc;

use io::disk::threads::ThreadPool;
use io::engine::{EngineConfig, NetKind, PUTS_MAX};
use io::probe::{Fallback, Probe};

use crate::process::StartError;
use exchange::config::Config;
use exchange::settings::events::{BUFFER_POOL_MIN, Method};
use telemetry::Reason;
use transfer::body::rules::Aio;
use upstream::caching::settings::Caches;

/// The engine of each thread, decided once for the process.
pub struct Choice {
    config: EngineConfig,
    /// Why the ring cannot be had.
    refusal: Option<Fallback>,
}

impl Choice {
    /// Probes the machine and makes the thread pools.
    pub(super) fn make(config: &Config) -> Result<Choice, StartError> {
        Choice::with(config, Probe::run().uring_refusal().cloned())
    }

    /// The choice for a thread whose ring was refused although the probe's small ring was not, as when the limit on
    /// locked memory suffices for the latter only. `None` where the configuration demands the ring, or another error
    /// occurred.
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
            // Without a request: the best engine here, and a log line if that is not the ring.
            None if refusal.is_none() => NetKind::Uring,
            None => NetKind::Epoll,
        };
        // Read before anything is made of it: a wrong rule must stop the start, not be missing in a test.
        let faults = io::fault::FaultPlan::parse(&events.faults.join("\n")).map_err(StartError::Faults)?;
        let engine = EngineConfig {
            net,
            // The disk may use a ring beside epoll: `use epoll` is about the network alone.
            disk_ring: refusal.is_none(),
            disk_libaio: uses_libaio(config, refusal.is_none()),
            ring_entries: events.ring_entries,
            // A connection has a receive and a send, a file operation and its cancellation at most.
            ops_max: events.worker_connections.saturating_mul(4).max(1024),
            recv_buffers: events.recv_buffers.0 as u16,
            recv_buffer_bytes: events.recv_buffers.1,
            pool_bytes_max: events.buffer_pool.unwrap_or_else(|| {
                buffer_pool(crate::memory_limit::memory_limit(), config.main().workers.count())
            }),
            iowq_workers: events.io_workers,
            device_share: events.device_share,
            libaio_depth: events.aio_requests,
            pools: if uses_pool(config, refusal.is_none()) { pools(config)? } else { Vec::new() },
            put_pool: match config.http.of::<Caches>().zones.is_empty() {
                true => None,
                false => Some(ThreadPool::new("makers", PUTS_MAX, MAKERS_QUEUE).map_err(StartError::Pool)?),
            },
            pool_tries_resident: events.try_cached,
            faults: (!events.faults.is_empty()).then(|| Arc::new(faults)),
        };
        Ok(Choice { config: engine, refusal })
    }

    /// A copy for one thread; pools and faults in it are shared.
    pub(super) fn engine_config(&self) -> EngineConfig {
        self.config.clone()
    }

    /// nginx's word for the method: `io_uring` or `epoll`.
    pub fn method(&self) -> &'static str {
        match self.config.net {
            NetKind::Uring => "io_uring",
            NetKind::Epoll => "epoll",
        }
    }

    /// Why the ring is not available, and the remedy.
    pub fn refusal(&self) -> Option<&Fallback> {
        self.refusal.as_ref()
    }
}

impl fmt::Debug for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Choice").field("method", &self.method()).field("refusal", &self.refusal).finish()
    }
}

/// Most bytes of buffers for each thread, by default: as much as is useful, and at most a quarter of the memory limit
/// for all threads, because a process above that limit is killed. The rest is for the page cache, connections and
/// sockets.
fn buffer_pool(limit: Option<u64>, threads: usize) -> usize {
    const USEFUL: u64 = 256 << 20;
    let share = limit.map_or(USEFUL, |bytes| bytes / 4 / threads.max(1) as u64);
    share.clamp(BUFFER_POOL_MIN, USEFUL) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_follow_from_the_memory_that_there_may_be() {
        assert_eq!(buffer_pool(None, 8), 256 << 20);
        assert_eq!(buffer_pool(Some(16 << 30), 8), 256 << 20);
        assert_eq!(buffer_pool(Some(512 << 20), 4), 32 << 20);
        assert_eq!(buffer_pool(Some(64 << 20), 1), 16 << 20);
        assert_eq!(buffer_pool(Some(8 << 20), 2), 4 << 20, "below it nothing works");
    }
}

/// Settings that decide on the engine: a reload that changes them needs a new process.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct EngineKey {
    libaio: bool,
    pools: Option<Vec<String>>,
    makers: bool,
}

impl EngineKey {
    pub(super) fn of(config: &Config) -> EngineKey {
        // As if there were no ring: a superset of the relevant settings.
        let pools = || config.http.pools.names().map(str::to_owned).collect();
        EngineKey {
            libaio: uses_libaio(config, false),
            pools: uses_pool(config, true).then(pools),
            makers: !config.http.of::<Caches>().zones.is_empty(),
        }
    }

    /// What differs from another key.
    pub(super) fn differences(&self, new: &EngineKey) -> impl Iterator<Item = &'static str> {
        let changed = [
            (self.libaio != new.libaio, "the first or last use of libaio"),
            (self.pools != new.pools, "the thread pools that aio names"),
            (self.makers != new.makers, "the first or last cache"),
        ];
        changed.into_iter().filter(|(is, _)| *is).map(|(_, name)| name)
    }
}

/// libaio's contexts count against a limit of the whole machine: only where something reads through it.
fn uses_libaio(config: &Config, ring: bool) -> bool {
    config.http.locations.iter().map(|location| &location.scope.core).any(|core| match core.sending.aio {
        Aio::Libaio => true,
        Aio::Unset | Aio::On | Aio::Uring => !ring && core.sending.directio.is_some(),
        Aio::Off | Aio::Threads(_) => false,
    })
}

/// Entries that wait for them: far more than caches let wait.
const MAKERS_QUEUE: usize = 65536;

/// Threads are made only where something would use them.
fn uses_pool(config: &Config, ring: bool) -> bool {
    let mut settings = config.http.locations.iter().map(|location| &location.scope.core);
    // Without a ring buffered reads use the pool.
    !ring || settings.any(|core| matches!(core.sending.aio, Aio::Threads(_) | Aio::Libaio))
}

/// The pools that locations name, in the order of their numbers; `default` exists without being written.
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
