//! Worker threads: one named thread, one engine, one runtime.
//!
//! The engine is created on the thread that uses it, after the CPU affinity was set; errors are reported to the
//! starting thread.

use std::fmt;
use std::future::Future;
use std::io::Error;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use io::{Drained, Engine, Errno};
use rustix::thread::CpuSet;

use crate::reactor::Runtime;
use crate::remote::RemoteHandle;

/// Upper limit of CPU numbers (cpu_set_t).
pub const CPU_MAX: usize = CpuSet::MAX_CPU;

/// The settings of a worker thread.
#[derive(Clone, Debug, Default)]
pub struct Setup {
    /// Name of the thread, as shown by `top -H`; the kernel truncates it at 15 bytes.
    pub name: String,
    /// Numbers of the CPUs that the thread may run on; an empty list allows all.
    pub cpus: Vec<usize>,
    /// The function that reports a task that panicked.
    pub panic_hook: Option<fn(&str)>,
}

/// The reason why a worker thread could not be started.
#[derive(Debug)]
pub enum StartError<E> {
    /// The system could not create the thread.
    Spawn(Error),
    /// The signals could not be blocked.
    Signals(Errno),
    /// The engine could not be created.
    Engine(E),
    /// The thread panicked during its set-up.
    Panicked,
}

impl<E: fmt::Display> fmt::Display for StartError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::Spawn(error) => write!(f, "the thread could not be started: {error}"),
            StartError::Signals(errno) => write!(f, "the thread's signals could not be blocked: {errno}"),
            StartError::Engine(error) => error.fmt(f),
            StartError::Panicked => f.write_str("the thread panicked while it was set up"),
        }
    }
}

impl<E: fmt::Debug + fmt::Display> std::error::Error for StartError<E> {}

/// A running worker thread.
pub struct Worker<T> {
    thread: JoinHandle<Option<(T, Drained)>>,
    handle: RemoteHandle,
}

impl<T> Worker<T> {
    /// Returns a handle that wakes the thread's runtime.
    pub fn handle(&self) -> &RemoteHandle {
        &self.handle
    }

    /// Whether the thread has ended.
    pub fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }

    /// Waits for the thread to exit; returns the result of its future and of its engine's drain, or its panic.
    pub fn join(self) -> std::thread::Result<(T, Drained)> {
        let ended = self.thread.join()?;
        Ok(ended.expect("a worker is handed out only when its set-up succeeded"))
    }
}

/// Starts a thread with all signals blocked, creates its engine on it and runs the future of `main`. Returns when the
/// engine was created. When the future is complete, the engine gets the time `drain` to end the remaining operations.
///
/// If the CPU affinity cannot be set, the thread may run on all CPUs, and `main` receives the error.
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
    M: FnOnce(Option<Errno>) -> F + Send + 'static,
    F: Future<Output = T> + 'static,
{
    let (report, reported) = mpsc::sync_channel(1);
    let builder = std::thread::Builder::new().name(setup.name.clone());
    let body = move || {
        // An engine is not `Send`, so the starting thread gets only the handle.
        let (mut runtime, refusal) = match prepare(&setup, build) {
            Ok(prepared) => prepared,
            Err(error) => {
                let _ = report.send(Err(error));
                return None;
            }
        };
        let _ = report.send(Ok(runtime.handle()));
        let answer = runtime.block_on(async { main(refusal).await });
        Some((answer, runtime.shutdown(Instant::now() + drain)))
    };
    let thread = builder.spawn(body).map_err(StartError::Spawn)?;
    match reported.recv() {
        Ok(Ok(handle)) => Ok(Worker { thread, handle }),
        Ok(Err(error)) => Err(error),
        Err(mpsc::RecvError) => Err(StartError::Panicked),
    }
}

/// Sets up the thread before any task runs on it. Returns the runtime, and the error if the CPU affinity could not be
/// set.
fn prepare<E>(
    setup: &Setup,
    build: impl FnOnce() -> Result<Box<dyn Engine>, E>,
) -> Result<(Runtime, Option<Errno>), StartError<E>> {
    io::sys::block_signals().map_err(StartError::Signals)?;
    let mut refusal = None;
    if !setup.cpus.is_empty() {
        let mut cpus = CpuSet::new();
        for &cpu in setup.cpus.iter().filter(|&&cpu| cpu < CPU_MAX) {
            cpus.set(cpu);
        }
        refusal = rustix::thread::sched_setaffinity(None, &cpus).err();
    }
    let mut runtime = Runtime::new(build().map_err(StartError::Engine)?);
    if let Some(hook) = setup.panic_hook {
        runtime.set_panic_hook(hook);
    }
    Ok((runtime, refusal))
}
