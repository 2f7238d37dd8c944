//! The queue of each engine: kernel queues for libaio and rings, and two queues of blocking calls.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use bare::{AioQueue, Done, Load, Noise, Queue, RingQueue, RingSetup, Transfer, flags};
use io::facts::DeviceId;
use io::{Buf, Completion, Disk, DiskOp, DiskVia, Engine, Errno, Fd, Op, Payload, Pool, Wait};

use super::files;
use super::job::{EngineKind, Job};

/// Creates the queue of an engine, in the thread that will use it.
///
/// # Errors
/// Returns the reason if the machine does not support it.
pub(super) fn queue(job: &Job, file: OwnedFd) -> Result<Box<dyn Queue>, String> {
    let (depth, block_bytes) = (job.queue_depth(), job.block_bytes);
    // Each thread has a separate descriptor, so that kernel locks of the open file are not shared.
    let load = |file| Load { files: vec![file], depth, block_bytes };
    let fixed = RingSetup { registered_buffers: true, registered_files: true, ..RingSetup::as_engine(depth) };
    // Neither mode supports the flags by which a ring completes operations in its owner's context.
    let polled = RingSetup { flags: flags::SINGLE_ISSUER, ..fixed };
    let ring = |setup, file| match RingQueue::new(setup, load(file)) {
        Ok(queue) => Ok(Box::new(queue) as Box<dyn Queue>),
        Err(error) => Err(error.to_string()),
    };
    match job.engine {
        EngineKind::Sync => Ok(Box::new(SyncQueue::new(file, block_bytes)?)),
        EngineKind::Threads => Ok(Box::new(PoolQueue::new(file, depth, block_bytes)?)),
        EngineKind::Libaio => {
            AioQueue::new(load(file)).map(|queue| Box::new(queue) as _).map_err(|error| error.to_string())
        }
        EngineKind::Uring => ring(RingSetup::as_engine(depth), file),
        EngineKind::UringFixed => ring(fixed, file),
        EngineKind::UringSqpoll => ring(RingSetup { flags: polled.flags | flags::SQPOLL, ..polled }, file),
        EngineKind::UringIopoll => ring(RingSetup { flags: polled.flags | flags::IOPOLL, ..polled }, file),
    }
}

/// A queue that makes one blocking call at a time.
struct SyncQueue {
    /// The file, opened with the access modes that the job needs.
    file: File,
    /// The only buffer: at most one operation is in flight.
    buf: Buf,
    /// The operation that was pushed and not yet executed.
    staged: Option<Transfer>,
    /// The completion that was not yet reported.
    done: Option<Done>,
    /// Number of calls so far, one per operation.
    entries: u64,
}

impl SyncQueue {
    /// Creates a queue for an open file, with a buffer of one block.
    fn new(file: OwnedFd, block_bytes: u32) -> Result<SyncQueue, String> {
        // Page-aligned, as O_DIRECT requires.
        let mut buf = Pool::new(block_bytes as usize).get(block_bytes as usize).ok_or("no memory")?;
        Noise::new(0).fill(buf.space());
        Ok(SyncQueue { file: file.into(), buf, staged: None, done: None, entries: 0 })
    }
}

/// Converts a result of the standard library.
fn result(result: std::io::Result<usize>) -> Result<u32, Errno> {
    result.map(|count| count as u32).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

impl Queue for SyncQueue {
    fn push(&mut self, transfer: Transfer) -> Option<u32> {
        if self.staged.is_some() || self.done.is_some() {
            return None;
        }
        self.staged = Some(transfer);
        Some(0)
    }

    // Blocks here, as a program with blocking calls does.
    fn submit(&mut self) -> Result<(), Errno> {
        let Some(Transfer { write, offset, len, .. }) = self.staged.take() else { return Ok(()) };
        let space = &mut self.buf.space()[..len as usize];
        let moved = if write { self.file.write_at(space, offset) } else { self.file.read_at(space, offset) };
        self.entries += 1;
        self.done = Some(Done { place: 0, result: result(moved) });
        Ok(())
    }

    // The call has completed already, independent of the wanted number.
    fn wait(&mut self, _min: u32, done: &mut Vec<Done>) -> Result<(), Errno> {
        done.extend(self.done.take());
        Ok(())
    }

    fn content(&self, _place: u32) -> &[u8] {
        &self.buf
    }

    fn kernel_entries(&self) -> u64 {
        self.entries
    }
}

/// The server's thread pool, through its engine.
struct PoolQueue {
    /// The epoll engine, for the pool's doorbell; all operations are executed by the pool.
    engine: Box<dyn Engine>,
    /// The file, shared by all operations in flight.
    file: Fd,
    /// The buffers of unused slots, and the list of those slots.
    bufs: Vec<Option<Buf>>,
    free: Vec<u32>,
    /// Completions of a turn; retained for its memory.
    batch: Vec<Completion>,
    /// Whether the engine's table was full, which cannot happen with a queue of the same depth.
    refused: bool,
}

impl PoolQueue {
    /// Creates a pool with one thread per operation in flight, for an open file.
    fn new(file: OwnedFd, depth: u32, block_bytes: u32) -> Result<PoolQueue, String> {
        let engine = files::engine(false, depth, block_bytes)?;
        // Filled before the measurement, because the first access to a page causes a page fault.
        let buf = |place: u32| {
            let mut buf = engine.pool().get(block_bytes as usize)?;
            Noise::new(place.into()).fill(buf.space());
            Some(Some(buf))
        };
        let bufs: Option<Vec<Option<Buf>>> = (0..depth).map(buf).collect();
        let bufs = bufs.ok_or("no memory for the buffers")?;
        let free = (0..depth).rev().collect();
        Ok(PoolQueue { engine, file: file.into(), bufs, free, batch: Vec::new(), refused: false })
    }
}

impl Queue for PoolQueue {
    fn push(&mut self, transfer: Transfer) -> Option<u32> {
        let place = self.free.pop()?;
        let mut buf = self.bufs[place as usize].take()?;
        let Transfer { write, offset, len, .. } = transfer;
        let (file, device, via) = (self.file.clone(), DeviceId(0), DiskVia::Pool(0));
        let op = if write {
            buf.set_len(len as usize);
            Op::Disk { at: Disk { device, via }, op: DiskOp::Write { file, offset, buf } }
        } else {
            Op::Disk { at: Disk { device, via }, op: DiskOp::Read { file, offset, len, buf } }
        };
        match self.engine.submit(op, place.into()) {
            Ok(_) => Some(place),
            Err(_) => {
                self.refused = true;
                None
            }
        }
    }

    fn submit(&mut self) -> Result<(), Errno> {
        // The engine has already passed the operation to the pool.
        if self.refused { Err(Errno::AGAIN) } else { Ok(()) }
    }

    fn wait(&mut self, min: u32, done: &mut Vec<Done>) -> Result<(), Errno> {
        let wanted = done.len() + min as usize;
        loop {
            let wait = if done.len() < wanted { Wait::Forever } else { Wait::No };
            self.engine.turn(wait, &mut self.batch)?;
            for completion in self.batch.drain(..) {
                let place = completion.token as u32;
                if let Payload::Buf(buf) = completion.payload {
                    self.bufs[place as usize] = Some(buf);
                }
                self.free.push(place);
                done.push(Done { place, result: completion.result });
            }
            if done.len() >= wanted {
                return Ok(());
            }
        }
    }

    fn content(&self, place: u32) -> &[u8] {
        self.bufs[place as usize].as_deref().unwrap_or_default()
    }

    fn kernel_entries(&self) -> u64 {
        self.engine.counters().kernel_entries
    }
}
