//! Linux native AIO for direct reads, by its raw system calls.
//!
//! [`Context`] is the kernel's side, [`Libaio`] an engine's. Only reads of files open with `O_DIRECT` come
//! to the engine's: anything else would block in `io_submit`. Requests gather in a queue, go to the kernel in one call per turn and never exceed the depth of the context.
//! Completions ring the engine's doorbell (`IOCB_FLAG_RESFD`) and are taken from the ring that the kernel
//! shares with the process, without a call (layout: `struct aio_ring` in Linux `fs/aio.c`, unchanged since
//! 2.6 and used by fio and Seastar in the same way).

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::io::Errno;

use crate::disk::job::Outcome;
use crate::doorbell::Doorbell;
use crate::op::{Completion, Op, OpId};
use crate::slot::Slots;

/// `IOCB_CMD_PREAD` of linux/aio_abi.h.
const COMMAND_PREAD: u16 = 0;
/// `IOCB_FLAG_RESFD`: the completion is signalled on the eventfd in `resfd`.
const FLAG_RESFD: u32 = 1;
/// `AIO_RING_MAGIC`: the shared ring has the layout that is known here.
const RING_MAGIC: u32 = 0xa10a_10a1;

/// `struct iocb` of linux/aio_abi.h.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Request {
    data: u64,
    #[cfg(target_endian = "little")]
    key: u32,
    rw_flags: u32,
    #[cfg(target_endian = "big")]
    key: u32,
    opcode: u16,
    priority: i16,
    file: u32,
    buffer: u64,
    bytes: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    resfd: u32,
}

/// `struct io_event` of linux/aio_abi.h.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Event {
    data: u64,
    request: u64,
    result: i64,
    result2: i64,
}

/// `struct aio_ring` of Linux `fs/aio.c`, without the events that follow it.
#[repr(C)]
struct Header {
    id: u32,
    events: u32,
    head: AtomicU32,
    tail: AtomicU32,
    magic: u32,
    compat_features: u32,
    incompat_features: u32,
    header_bytes: u32,
}

/// A context as the kernel sees it. What requests point to is its user's to keep until they have completed.
struct Context {
    /// The context's name in the kernel is the address of its ring.
    ring: NonNull<Header>,
    /// Calls into the kernel.
    kernel_entries: u64,
}

/// One thread's context, and the reads that it carries out.
pub(crate) struct Libaio {
    context: Context,
    doorbell: Arc<Doorbell>,
    depth: usize,
    in_flight: usize,
    queue: VecDeque<OpId>,
    /// Requests of one submission; kept for their memory.
    requests: Vec<Request>,
    pointers: Vec<*mut Request>,
}

impl Context {
    /// A context for `depth` requests in flight, counted against `fs.aio-max-nr` by the kernel.
    fn new(depth: u32) -> Result<Context, Errno> {
        let mut context: libc::c_ulong = 0;
        // SAFETY: io_setup(2) writes the context's name to the place given, which is one `c_ulong`.
        let result = unsafe { libc::syscall(libc::SYS_io_setup, depth, &raw mut context) };
        check(result)?;
        let ring = NonNull::new(context as *mut Header).ok_or(Errno::INVAL)?;
        let context = Context { ring, kernel_entries: 0 };
        let header = context.header();
        let known = header.magic == RING_MAGIC && header.incompat_features == 0;
        if known && header.header_bytes as usize == size_of::<Header>() {
            Ok(context)
        } else {
            Err(Errno::NOTSUP)
        }
    }

    /// Gives requests to the kernel; returns how many it took. The memory behind them stays with the caller, at its
    /// address, until [`Context::next_event`] has returned each one's completion.
    fn submit(&mut self, pointers: &mut [*mut Request]) -> Result<usize, Errno> {
        self.kernel_entries += 1;
        let (context, count, pointers) = (self.name(), pointers.len(), pointers.as_mut_ptr());
        // SAFETY: the pointers name live requests, which the kernel copies before the call returns. The memory that
        // those point to is kept by the caller until they have completed, or leaked.
        let result = unsafe { libc::syscall(libc::SYS_io_submit, context, count, pointers) };
        let taken = check(result)? as usize;
        assert!(taken <= count, "the kernel takes what it was given");
        Ok(taken)
    }

    fn name(&self) -> libc::c_ulong {
        self.ring.as_ptr() as libc::c_ulong
    }

    fn header(&self) -> &Header {
        // SAFETY: io_setup mapped the ring at this address and it stays until io_destroy, in `drop`; the
        // two words that the kernel changes are atomics.
        unsafe { self.ring.as_ref() }
    }

    /// The next completion, without a call into the kernel.
    fn next_event(&mut self) -> Option<Event> {
        let header = self.header();
        // The head is ours: what io_getevents takes is taken in this thread too.
        let head = header.head.load(Ordering::Relaxed);
        if head == header.tail.load(Ordering::Acquire) {
            return None;
        }
        assert!(head < header.events, "the head lies in the ring");
        let next = (head + 1) % header.events;
        // SAFETY: the events follow the header in the same mapping.
        let events = unsafe { self.ring.as_ptr().add(1) }.cast::<Event>();
        // SAFETY: the kernel keeps head below the number of events, for all of which the mapping has room.
        let place = unsafe { events.add(head as usize) };
        // SAFETY: the place lies in the mapping, and the acquire load above saw it filled.
        let event = unsafe { place.read() };
        self.header().head.store(next, Ordering::Release);
        Some(event)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        let context = self.name();
        // SAFETY: the context is ours and is not used again. The call waits for requests in flight; an
        // owner that could not drain them leaks this value instead.
        unsafe { libc::syscall(libc::SYS_io_destroy, context) };
    }
}

impl Libaio {
    /// A context for `depth` requests in flight, whose completions ring `doorbell`.
    pub(crate) fn new(depth: u32, doorbell: &Arc<Doorbell>) -> Result<Libaio, Errno> {
        Ok(Libaio {
            context: Context::new(depth)?,
            doorbell: Arc::clone(doorbell),
            depth: depth as usize,
            in_flight: 0,
            queue: VecDeque::new(),
            requests: Vec::new(),
            pointers: Vec::new(),
        })
    }

    /// Calls into the kernel.
    pub(crate) fn kernel_entries(&self) -> u64 {
        self.context.kernel_entries
    }

    /// Takes a direct read, to be submitted by [`Libaio::submit`].
    pub(crate) fn push(&mut self, id: OpId) {
        self.queue.push_back(id);
    }

    /// Takes a read back that the kernel does not have yet; whether that was so.
    pub(crate) fn withdraw(&mut self, id: OpId) -> bool {
        let place = self.queue.iter().position(|&waiting| waiting == id);
        place.is_some_and(|place| self.queue.remove(place).is_some())
    }

    /// Gives the kernel as many of the queued reads as the depth allows. One that it refuses completes with
    /// the reason; when it is short of resources (`EAGAIN`) they wait for those in flight.
    pub(crate) fn submit(&mut self, slots: &mut Slots, done: &mut Vec<Completion>) {
        while !self.queue.is_empty() && self.in_flight < self.depth {
            let room = (self.depth - self.in_flight).min(self.queue.len());
            match self.submit_batch(room, slots) {
                Ok(taken) => {
                    self.queue.drain(..taken);
                    self.in_flight += taken;
                    assert!(self.in_flight <= self.depth, "the context has room for what it took");
                }
                Err(Errno::AGAIN) if self.in_flight > 0 => return,
                // An error is about the first request.
                Err(error) => {
                    let id = self.queue.pop_front().expect("the batch had a first request");
                    Outcome::count(Err(error)).deliver(id, slots, done);
                }
            }
        }
    }

    /// Delivers the completions; no call into the kernel.
    pub(crate) fn reap(&mut self, slots: &mut Slots, done: &mut Vec<Completion>) {
        while let Some(event) = self.context.next_event() {
            assert!(self.in_flight > 0, "what completes was submitted");
            self.in_flight -= 1;
            let id = OpId { slot: event.data as u32, generation: (event.data >> 32) as u32 };
            let result = match usize::try_from(event.result) {
                Ok(count) => Ok(count),
                Err(_) => Err(Errno::from_raw_os_error(-event.result as i32)),
            };
            Outcome::count(result).deliver(id, slots, done);
        }
    }

    /// Submits the first `room` of the queue; returns how many the kernel took.
    fn submit_batch(&mut self, room: usize, slots: &mut Slots) -> Result<usize, Errno> {
        let resfd = self.doorbell.as_fd().as_raw_fd() as u32;
        self.requests.clear();
        self.requests.extend(self.queue.iter().take(room).map(|&id| request(id, resfd, slots)));
        self.pointers.clear();
        self.pointers.extend(self.requests.iter_mut().map(|request| request as *mut Request));
        self.context.submit(&mut self.pointers)
    }
}

/// The kernel's form of a read that stays in its slot.
fn request(id: OpId, resfd: u32, slots: &mut Slots) -> Request {
    let op = slots.get(id).and_then(|slot| slot.op.as_mut());
    let Some(Op::Read { file, offset, len, buf, .. }) = op else {
        unreachable!("only reads are given to libaio");
    };
    let name = u64::from(id.generation) << 32 | u64::from(id.slot);
    Request {
        data: name,
        opcode: COMMAND_PREAD,
        file: file.as_raw_fd() as u32,
        bytes: u64::from(*len).min(buf.capacity() as u64),
        buffer: buf.as_mut_ptr() as u64,
        // An offset beyond the signed range is the kernel's to refuse.
        offset: *offset as i64,
        flags: FLAG_RESFD,
        resfd,
        ..Request::default()
    }
}

/// The result of a raw system call by libc's convention.
fn check(result: libc::c_long) -> Result<libc::c_long, Errno> {
    if result >= 0 {
        return Ok(result);
    }
    let error = std::io::Error::last_os_error();
    Err(Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

const _: () = assert!(size_of::<Request>() == 64 && size_of::<Event>() == 32 && size_of::<Header>() == 32);
