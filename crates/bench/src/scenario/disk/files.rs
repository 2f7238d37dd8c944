//! Opens, reads and closes the files of a set, several concurrently: the upper limit for a server that sends files from
//! a disk on this machine. `bench cold` uses the result as its 100 %.

use std::collections::HashMap;
use std::ffi::CString;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use bare::Noise;
use clap::ValueEnum;
use io::disk::threads::ThreadPool;
use io::engine::{EngineConfig, NetKind};
use io::op::{DeviceId, OpenHow};
use io::{Completion, DiskVia, Engine, Fd, Op, OpId, Payload, Wait};
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use super::job::JobOutcome;
use super::worker::{self, Task};
use crate::context::Bench;
use crate::failure::Failure;

/// The disk engines of this server that open and read the files, in the order of tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
pub(crate) enum FilesVia {
    /// openat, read and close on one ring.
    Uring,
    /// Opened by threads, read by libaio; direct reads only.
    Libaio,
    /// A thread pool with one thread per file in flight.
    Threads,
    /// Blocking calls, one at a time, independent of the depth.
    Sync,
}

/// The files to read and the method: shared by the scenario and its worker process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct FilesPlan {
    /// The set, from which files are picked at random. The worker process reads the set from `list`.
    #[serde(skip)]
    pub(crate) files: Vec<PathBuf>,
    /// A file with one path per line.
    pub(crate) list: PathBuf,
    pub(crate) via: FilesVia,
    /// Number of concurrently open files per thread.
    pub(crate) depth: u32,
    /// Number of threads, each with a separate engine.
    pub(crate) threads: u32,
    /// Size of each file in bytes, read with O_DIRECT: a shorter file is an error.
    pub(crate) file_bytes: u64,
    /// Bytes per read, at most 1 MiB.
    pub(crate) chunk_bytes: u32,
    pub(crate) seconds: f64,
}

/// Executes a plan in a separate process, in these cgroups. An operation of the outcome is a file that was opened, read
/// completely and closed.
pub(crate) fn read_files(bench: &Bench, plan: &FilesPlan, groups: &[PathBuf]) -> Result<JobOutcome, Failure> {
    let list = bench.workspace.directory("disk-files")?.join("list");
    let mut text = Vec::new();
    for path in &plan.files {
        text.extend_from_slice(path.as_os_str().as_bytes());
        text.push(b'\n');
    }
    fs::write(&list, text).map_err(Failure::file("write", &list))?;
    let task = Task::Files(FilesPlan { list, files: Vec::new(), ..plan.clone() });
    worker::run(bench, &task, 1, groups)
}

/// Returns all regular files below a directory, at most `most`.
pub(crate) fn below(directory: &Path, most: usize) -> Result<Vec<PathBuf>, Failure> {
    // A directory that vanishes during the search is an error: the set would not be well-defined.
    let (mut found, mut directories) = (Vec::new(), vec![directory.to_owned()]);
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(&directory).map_err(Failure::file("read the directory", &directory))? {
            let entry = entry.map_err(Failure::file("read the directory", &directory))?;
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => directories.push(entry.path()),
                Ok(kind) if kind.is_file() && found.len() < most => found.push(entry.path()),
                _ => {}
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Reads the list of files of a plan, in the worker process.
pub(super) fn paths(job: &FilesPlan) -> Result<Vec<CString>, String> {
    let list = fs::read(&job.list).map_err(|error| format!("the list of files: {error}"))?;
    let paths: Result<Vec<CString>, _> =
        list.split(|&byte| byte == b'\n').filter(|path| !path.is_empty()).map(CString::new).collect();
    match paths {
        Ok(paths) if paths.is_empty() => Err("the set contains no file".to_owned()),
        paths => paths.map_err(|_| "a path contains a null byte".to_owned()),
    }
}

/// Runs one of its threads; calls `prepared` when its engine has been created.
pub(super) fn read(
    job: &FilesPlan,
    paths: &[CString],
    worker: u32,
    prepared: &dyn Fn(),
) -> Result<JobOutcome, String> {
    let engine = engine(job.via, job.depth, job.chunk_bytes);
    prepared();
    FileReader::new(engine?, job, paths, worker).run()
}

/// Creates an engine for one thread, with this number of operations in flight and buffers of this size. Kernel workers
/// execute the opens; all of them may serve the one device.
pub(super) fn engine(via: FilesVia, depth: u32, chunk_bytes: u32) -> Result<Box<dyn Engine>, String> {
    let is_pooled = matches!(via, FilesVia::Threads | FilesVia::Libaio);
    let pool = is_pooled.then(|| ThreadPool::new("bench", depth as usize, depth as usize)).transpose();
    let config = EngineConfig {
        // Without io_uring, the network engine only waits for the pool's doorbell.
        net: if via == FilesVia::Uring { NetKind::Uring } else { NetKind::Epoll },
        disk_ring: via == FilesVia::Uring,
        disk_libaio: via == FilesVia::Libaio,
        // Each file has at most one read in flight, so the depth suffices.
        libaio_depth: depth,
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

struct Reading {
    /// Time when its open was submitted.
    begun: Instant,
    stage: Stage,
    /// Bytes read so far.
    bytes: u64,
}

/// Progress of a file: opening, reading piece by piece, closing.
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
    /// Files in progress, by the engine slot of their operation.
    readings: HashMap<u32, Reading>,
    outcome: JobOutcome,
}

// All files count as one device, with the complete share.
const DEVICE: DeviceId = DeviceId(0);

impl<'a> FileReader<'a> {
    fn new(engine: Box<dyn Engine>, job: &'a FilesPlan, paths: &'a [CString], worker: u32) -> FileReader<'a> {
        let via = match job.via {
            FilesVia::Uring => DiskVia::Ring,
            FilesVia::Libaio => DiskVia::Libaio,
            FilesVia::Threads => DiskVia::Pool(0),
            FilesVia::Sync => DiskVia::Sync,
        };
        let noise = Noise::new(u64::from(worker) << 32);
        let outcome = JobOutcome::nothing();
        FileReader { engine, job, paths, via, noise, readings: HashMap::new(), outcome }
    }

    /// Reads until the time is over, and then completes the open files.
    fn run(mut self) -> Result<JobOutcome, String> {
        let start = Instant::now();
        let mut batch = Vec::new();
        for _ in 0..self.job.depth {
            self.open()?;
        }
        while !self.readings.is_empty() {
            self.engine.turn(Wait::Forever, &mut batch).map_err(|errno| format!("the engine: {errno}"))?;
            let over = start.elapsed().as_secs_f64() >= self.job.seconds;
            for completion in batch.drain(..) {
                self.advance(completion, over)?;
            }
        }
        self.outcome.seconds = start.elapsed().as_secs_f64();
        self.outcome.system_calls = Some(self.engine.counters().kernel_entries);
        Ok(self.outcome)
    }

    /// Submits an operation. Every file has one operation in flight, and the table has a slot for each of them.
    fn submit(&mut self, op: Op) -> Result<OpId, String> {
        self.engine.submit(op).map_err(|_| "the engine's table is full".to_owned())
    }

    /// Opens another file, picked at random.
    fn open(&mut self) -> Result<(), String> {
        let path = self.paths[(self.noise.number() >> 11) as usize % self.paths.len()].clone();
        let flags = (OFlags::RDONLY | OFlags::DIRECT).bits() as i32;
        let how = OpenHow { flags, is_cold: true, ..OpenHow::default() };
        let begun = Instant::now();
        let op = Op::Open { dir: None, path, how, device: DEVICE, via: self.via };
        let id = self.submit(op)?;
        self.readings.insert(id.slot, Reading { begun, stage: Stage::Opening, bytes: 0 });
        Ok(())
    }

    fn advance(&mut self, completion: Completion, over: bool) -> Result<(), String> {
        // A slot has at most one operation at a time, so the slot number alone identifies the file.
        let Some(mut reading) = self.readings.remove(&completion.id.slot) else { return Ok(()) };
        let result = completion.result.map_err(std::io::Error::from);
        match reading.stage {
            Stage::Opening => {
                result.map_err(|error| format!("a file could not be opened: {error}"))?;
                let Payload::Opened(file) = completion.payload else {
                    return Err("a completion of an open has no file".to_owned());
                };
                self.read(Fd::from(file).opened_with(OFlags::DIRECT), reading)
            }
            Stage::Reading(ref file) => {
                let count = result.map_err(|error| format!("a file could not be read: {error}"))?;
                reading.bytes += u64::from(count);
                let file = file.clone();
                match (reading.bytes < self.job.file_bytes, count) {
                    (true, 0) => {
                        Err(format!("a file has {} bytes of {}", reading.bytes, self.job.file_bytes))
                    }
                    (true, _) => self.read(file, reading),
                    (false, _) => self.close(file, reading),
                }
            }
            Stage::Closing => {
                let side = &mut self.outcome.read;
                side.operations += 1;
                side.bytes += reading.bytes;
                // A file has no separate submission time, like a blocking call.
                let nanos = reading.begun.elapsed().as_nanos() as u64;
                side.completion.saturating_record(nanos);
                side.total.saturating_record(nanos);
                if over { Ok(()) } else { self.open() }
            }
        }
    }

    fn read(&mut self, file: Fd, mut reading: Reading) -> Result<(), String> {
        let len = u64::from(self.job.chunk_bytes).min(self.job.file_bytes - reading.bytes);
        // Direct reads are of complete blocks; the last read of a file ends at the end of the file.
        let len = (len as u32).next_multiple_of(4096);
        let buf = self.engine.pool().get(len as usize).ok_or("no memory for the buffers")?;
        reading.stage = Stage::Reading(file.clone());
        let op = Op::Read { file, offset: reading.bytes, len, buf, device: DEVICE, via: self.via };
        let id = self.submit(op)?;
        self.readings.insert(id.slot, reading);
        Ok(())
    }

    /// Closes the descriptor; the close is submitted with the operations of the next turn.
    fn close(&mut self, file: Fd, mut reading: Reading) -> Result<(), String> {
        // The stage contained the only other reference.
        reading.stage = Stage::Closing;
        let fd: OwnedFd = file.into_owned().map_err(|_| "a file is still in use".to_owned())?;
        let id = self.submit(Op::Close { fd })?;
        self.readings.insert(id.slot, reading);
        Ok(())
    }
}
