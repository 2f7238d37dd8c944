//! Opens, reads and closes the files of a set, several concurrently: the upper limit for a server that sends files from
//! a disk on this machine, which `bench cold` uses as its 100 %.

use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::time::Instant;

use bare::Noise;
use io::disk::threads::ThreadPool;
use io::engine::{EngineConfig, NetKind};
use io::facts::DeviceId;
use io::op::OpenHow;
use io::slab::{Key, Slab};
use io::{Completion, Disk, DiskOp, DiskVia, Engine, Fd, NetOp, Op, Payload, Wait};
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use super::job::JobOutcome;
use crate::load::percentile_us;
use crate::report::model::Run;

/// The files to read and the method: shared by the scenario and its worker process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct FilesPlan {
    /// Directory of the set, whose files are named 0, 1 and so on. They are picked at random.
    pub(crate) directory: PathBuf,
    /// Number of files of the set.
    pub(crate) count: u64,
    /// Whether openat, read and close are operations of one ring; otherwise a thread pool with one thread per file in
    /// flight executes them.
    pub(crate) by_ring: bool,
    /// Number of concurrently open files per thread.
    pub(crate) depth: u32,
    /// Number of threads, each with a separate engine.
    pub(crate) threads: u32,
    /// Size of each file in bytes, which one read with O_DIRECT returns: a shorter file is an error.
    pub(crate) file_bytes: u32,
    pub(crate) seconds: f64,
}

/// Returns the paths of the set.
pub(super) fn paths(job: &FilesPlan) -> Result<Vec<CString>, String> {
    let path = |number: u64| CString::new(job.directory.join(number.to_string()).into_os_string().into_vec());
    let paths: Result<Vec<CString>, _> = (0..job.count).map(path).collect();
    paths.map_err(|_| "a path contains a null byte".to_owned())
}

/// Returns the outcome under the names of a load's figures, since tables show it above the servers.
pub(super) fn run(outcome: &JobOutcome) -> Run {
    let files = &outcome.read;
    Run::of([
        ("requests", files.operations as f64),
        ("seconds", outcome.seconds),
        ("requests_per_second", files.operations as f64 / outcome.seconds),
        ("body_bytes", files.bytes as f64),
        ("p50_us", percentile_us(&files.total, 50.0)),
        ("p99_us", percentile_us(&files.total, 99.0)),
        ("p99_9_us", percentile_us(&files.total, 99.9)),
        ("server_cpu_seconds", outcome.user_seconds + outcome.system_seconds),
        ("errors", 0.0),
    ])
}

/// Runs one of its threads; calls `prepared` when its engine has been created.
pub(super) fn read(
    job: &FilesPlan,
    paths: &[CString],
    worker: u32,
    prepared: &dyn Fn(),
) -> Result<JobOutcome, String> {
    let engine = engine(job.by_ring, job.depth, job.file_bytes);
    prepared();
    FileReader::new(engine?, job, paths, worker).run()
}

/// Creates an engine for one thread, with this number of operations in flight and buffers of this size. Kernel workers
/// execute the opens; all of them may serve the one device.
pub(super) fn engine(by_ring: bool, depth: u32, chunk_bytes: u32) -> Result<Box<dyn Engine>, String> {
    let pool = (!by_ring).then(|| ThreadPool::new("bench", depth as usize, depth as usize)).transpose();
    let config = EngineConfig {
        // Without io_uring, the network engine only waits for the pool's doorbell.
        net: if by_ring { NetKind::Uring } else { NetKind::Epoll },
        disk_ring: by_ring,
        // Each file has one operation in flight; one device may use a quarter of the table.
        ops_max: depth * 4,
        pools: pool.map_err(|error| error.to_string())?.into_iter().collect(),
        pool_bytes_max: (depth as usize + 4) * chunk_bytes.next_power_of_two().max(1 << 16) as usize
            + (8 << 20),
        // A server reserves kernel workers for other devices; here only one device exists.
        device_share: 1,
        // Nothing is received here.
        recv_buffers: 8,
        ..EngineConfig::default()
    };
    io::build(config).map_err(|error| error.to_string())
}

/// Progress of a file.
enum Stage {
    /// openat is in flight.
    Opening,
    /// A read is in flight on this descriptor.
    Reading(Fd),
    /// close is in flight.
    Closing,
}

/// One thread's engine and its files in progress.
struct FileReader<'a> {
    /// Created in this thread, as rings require.
    engine: Box<dyn Engine>,
    job: &'a FilesPlan,
    /// The paths of the set.
    paths: &'a [CString],
    via: DiskVia,
    /// Random generator that picks the files.
    noise: Noise,
    /// Files in progress: when they were begun, and their stage. The keys are the tokens of the operations.
    files: Slab<Option<(Instant, Stage)>>,
    outcome: JobOutcome,
}

// All files count as one device, with the complete share.
const DEVICE: DeviceId = DeviceId(0);

impl<'a> FileReader<'a> {
    fn new(engine: Box<dyn Engine>, job: &'a FilesPlan, paths: &'a [CString], worker: u32) -> FileReader<'a> {
        let via = if job.by_ring { DiskVia::Ring } else { DiskVia::Pool(0) };
        let noise = Noise::new(u64::from(worker) << 32);
        let outcome = JobOutcome::nothing();
        FileReader { engine, job, paths, via, noise, files: Slab::default(), outcome }
    }

    /// Reads until the time is over, and then completes the open files.
    fn run(mut self) -> Result<JobOutcome, String> {
        let start = Instant::now();
        let mut batch = Vec::new();
        for _ in 0..self.job.depth {
            self.open()?;
        }
        while !self.files.is_empty() {
            self.engine.turn(Wait::Forever, &mut batch).map_err(|errno| format!("the engine: {errno}"))?;
            let over = start.elapsed().as_secs_f64() >= self.job.seconds;
            for completion in batch.drain(..) {
                self.advance(completion, over)?;
            }
        }
        self.outcome.seconds = start.elapsed().as_secs_f64();
        Ok(self.outcome)
    }

    /// Submits an operation of a file that was begun at this time. Every file has one operation in flight, and the
    /// table has a slot for each of them.
    fn submit(&mut self, op: Op, begun: Instant, stage: Stage) -> Result<(), String> {
        let (key, file) = self.files.insert();
        *file = Some((begun, stage));
        let submitted = self.engine.submit(op, key.pack());
        submitted.map(drop).map_err(|_| "the engine's table is full".to_owned())
    }

    /// Opens another file, picked at random.
    fn open(&mut self) -> Result<(), String> {
        let path = self.paths[(self.noise.number() >> 11) as usize % self.paths.len()].clone();
        let flags = (OFlags::RDONLY | OFlags::DIRECT).bits() as i32;
        let how = OpenHow { flags, is_cold: true, ..OpenHow::default() };
        let op = Op::Disk {
            at: Disk { device: DEVICE, via: self.via },
            op: DiskOp::Open { dir: None, path, how },
        };
        self.submit(op, Instant::now(), Stage::Opening)
    }

    fn advance(&mut self, completion: Completion, over: bool) -> Result<(), String> {
        let key = Key::unpack(completion.token);
        let Some((begun, stage)) = self.files.get(key).and_then(Option::take) else { return Ok(()) };
        self.files.remove(key);
        let result = completion.result.map_err(std::io::Error::from);
        match stage {
            Stage::Opening => {
                result.map_err(|error| format!("a file could not be opened: {error}"))?;
                let Payload::Opened(file) = completion.payload else {
                    return Err("a completion of an open has no file".to_owned());
                };
                self.read(Fd::from(file).opened_with(OFlags::DIRECT), begun)
            }
            Stage::Reading(file) => {
                let count = result.map_err(|error| format!("a file could not be read: {error}"))?;
                if count != self.job.file_bytes {
                    return Err(format!("a read returned {count} bytes of {}", self.job.file_bytes));
                }
                // The read has completed, so this is the only reference.
                let fd: OwnedFd = file.into_owned().map_err(|_| "a file is still in use".to_owned())?;
                self.submit(Op::Net(NetOp::Close { fd }), begun, Stage::Closing)
            }
            Stage::Closing => {
                let side = &mut self.outcome.read;
                side.operations += 1;
                side.bytes += u64::from(self.job.file_bytes);
                side.total.saturating_record(begun.elapsed().as_nanos() as u64);
                if over { Ok(()) } else { self.open() }
            }
        }
    }

    /// Reads a complete file in one call.
    fn read(&mut self, file: Fd, begun: Instant) -> Result<(), String> {
        // Direct reads are of complete blocks.
        let len = self.job.file_bytes.next_multiple_of(4096);
        let buf = self.engine.pool().get(len as usize).ok_or("no memory for the buffers")?;
        let stage = Stage::Reading(file.clone());
        let op = Op::Disk {
            at: Disk { device: DEVICE, via: self.via },
            op: DiskOp::Read { file, offset: 0, len, buf },
        };
        self.submit(op, begun, stage)
    }
}
