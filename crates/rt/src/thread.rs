//! Worker threads: one named thread, one engine, one runtime.
//!
//! The engine is made in the thread that uses it, after the thread has its processors; errors are reported to the
//! starting thread.

use std::fmt;
use std::future::Future;
use std::io::Error;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use io::{Drained, Engine, Errno};
use rustix::thread::CpuSet;

use crate::remote::RemoteHandle;
use crate::runtime::Runtime;

/// Processors beyond this number cannot be named (cpu_set_t).
pub const CPU_MAX: usize = CpuSet::MAX_CPU;

/// How a worker thread is set up.
#[derive(Clone, Debug, Default)]
pub struct Setup {
    /// Its name, as `top -H` shows it; the kernel cuts it at 15 bytes.
    pub name: String,
    /// The processors that it may run on; all when empty.
    pub cpus: Vec<usize>,
    /// The report about a task that panicked.
    pub panic_hook: Option<fn(&str)>,
}

/// Why a worker thread could not be started.
#[derive(Debug)]
pub enum StartError<E> {
    /// The system refused the thread.
    Spawn(Error),
    /// The signals could not be blocked.
    Signals(Errno),
    /// The processors could not be set.
    Affinity(Errno),
    /// The engine could not be made.
    Engine(E),
    /// The thread panicked while it was set up.
    Panicked,
}

impl<E: fmt::Display> fmt::Display for StartError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::Spawn(error) => write!(f, "the thread could not be started: {error}"),
            StartError::Signals(errno) => write!(f, "its signals could not be blocked: {errno}"),
            StartError::Affinity(errno) => write!(f, "its processors could not be set: {errno}"),
            StartError::Engine(error) => error.fmt(f),
            StartError::Panicked => f.write_str("the thread panicked while it was set up"),
        }
    }
}

impl<E: fmt::Debug + fmt::Display> std::error::Error for StartError<E> {}

/// A worker thread that runs.
pub struct Worker<T> {
    thread: JoinHandle<Option<(T, Drained)>>,
    handle: RemoteHandle,
}

impl<T> Worker<T> {
    /// Wakes the thread's runtime.
    pub fn handle(&self) -> &RemoteHandle {
        &self.handle
    }

    /// Whether the thread has ended.
    pub fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }

    /// Waits for the thread: the result of its future and of its engine's drain, or the panic that ended it.
    pub fn join(self) -> std::thread::Result<(T, Drained)> {
        let ended = self.thread.join()?;
        Ok(ended.expect("a worker is handed out only when its set-up succeeded"))
    }
}

/// Starts a thread with all signals blocked, makes its engine in it and runs the future of `main` there. Returns when
/// the engine is made. When the future is done, the engine has `drain` to end the rest.
pub fn start<T, E, B, M, F>(
    setup: Setup,
    drain: Duration,
    build: B,
    main: M,
) -> Result<Worker<T>, StartError<E>>
where
    T: Send + 'static,
    E: Send + 'static,
    B: FnOnce() -> Result<Box<dyn Engine>, E> + Send + 'static,
    M: FnOnce() -> F + Send + 'static,
    F: Future<Output = T> + 'static,
{
    let (report, reported) = mpsc::sync_channel(1);
    let builder = std::thread::Builder::new().name(setup.name.clone());
    let body = move || {
        // An engine is not `Send`: the starter gets the handle alone.
        let mut runtime = match prepare(&setup, build) {
            Ok(runtime) => runtime,
            Err(error) => {
                let _ = report.send(Err(error));
                return None;
            }
        };
        let _ = report.send(Ok(runtime.handle()));
        let answer = runtime.block_on(async { main().await });
        Some((answer, runtime.shutdown(Instant::now() + drain)))
    };
    let thread = builder.spawn(body).map_err(StartError::Spawn)?;
    match reported.recv() {
        Ok(Ok(handle)) => Ok(Worker { thread, handle }),
        Ok(Err(error)) => Err(error),
        Err(mpsc::RecvError) => Err(StartError::Panicked),
    }
}

/// Set-up in the thread before any task runs on it.
fn prepare<E>(
    setup: &Setup,
    build: impl FnOnce() -> Result<Box<dyn Engine>, E>,
) -> Result<Runtime, StartError<E>> {
    io::sys::block_signals().map_err(StartError::Signals)?;
    if !setup.cpus.is_empty() {
        let mut cpus = CpuSet::new();
        for &cpu in setup.cpus.iter().filter(|&&cpu| cpu < CPU_MAX) {
            cpus.set(cpu);
        }
        rustix::thread::sched_setaffinity(None, &cpus).map_err(StartError::Affinity)?;
    }
    let mut runtime = Runtime::new(build().map_err(StartError::Engine)?);
    if let Some(hook) = setup.panic_hook {
        runtime.set_panic_hook(hook);
    }
    Ok(runtime)
}
