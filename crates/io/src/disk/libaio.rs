//! Linux native AIO for direct reads, by raw system calls.
//!
//! [`Context`] wraps the kernel's context, [`Libaio`] is the backend. Only reads of files open with `O_DIRECT` are
//! passed to it: other operations would block in `io_submit`. Requests are queued, submitted in one call per turn, and
//! never exceed the depth of the context. Completions signal the engine's doorbell (`IOCB_FLAG_RESFD`). They are read
//! from the ring that the kernel shares with the process, without a system call (layout: `struct aio_ring` in Linux
//! `fs/aio.c`, unchanged since 2.6, and used by fio and Seastar in the same way).

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::io::Errno;

use crate::buf::Buf;
use crate::doorbell::Doorbell;
use crate::fd::Fd;
use crate::op::{Completion, OpId};
use crate::slot::Slots;
use crate::sys::last_error;

/// `IOCB_CMD_PREAD` of linux/aio_abi.h.
const COMMAND_PREAD: u16 = 0;
/// `IOCB_FLAG_RESFD`: the completion is signalled on the eventfd in `resfd`.
const FLAG_RESFD: u32 = 1;
/// `AIO_RING_MAGIC`: marks the layout of the shared ring that this code supports.
const RING_MAGIC: u32 = 0xa10a_10a1;

/// `struct iocb` of linux/aio_abi.h.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Request {
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

/// `struct aio_ring` of Linux `fs/aio.c`, without the events behind it.
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

/// A context in the kernel. Its user must keep the memory of requests until they have completed.
struct Context {
    /// Address of the ring, which is also the kernel's identifier of the context.
    ring: NonNull<Header>,
    /// Number of system calls.
    kernel_entries: u64,
}

/// The native AIO context of one thread, and its reads.
pub(crate) struct Libaio {
    context: Context,
    doorbell: Arc<Doorbell>,
    depth: usize,
    in_flight: usize,
    /// Requests that were not submitted yet.
    queue: VecDeque<Request>,
    /// The addresses of the requests of one submission; a field so that its memory is reused.
    pointers: Vec<*mut Request>,
}

impl Context {
    /// Creates a context for `depth` requests in flight, which the kernel counts against `fs.aio-max-nr`.
    fn new(depth: u32) -> Result<Context, Errno> {
        let mut context: libc::c_ulong = 0;
        // SAFETY: io_setup(2) writes the identifier of the context to the given address, which is one `c_ulong`.
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

    /// Submits requests to the kernel; returns how many it accepted.
    ///
    /// # Safety
    /// The pointers refer to live requests. The caller keeps the buffer of each accepted request at its address until
    /// [`Context::next_event`] has returned the completion, or leaks it.
    unsafe fn submit(&mut self, pointers: &mut [*mut Request]) -> Result<usize, Errno> {
        self.kernel_entries += 1;
        let (context, count, pointers) = (self.name(), pointers.len(), pointers.as_mut_ptr());
        // SAFETY: the caller guarantees that the requests are live, and the kernel copies them before the call returns.
        // The caller keeps the buffers too.
        let result = unsafe { libc::syscall(libc::SYS_io_submit, context, count, pointers) };
        let taken = check(result)? as usize;
        assert!(taken <= count, "the kernel accepts at most the submitted requests");
        Ok(taken)
    }

    fn name(&self) -> libc::c_ulong {
        self.ring.as_ptr() as libc::c_ulong
    }

    fn header(&self) -> &Header {
        // SAFETY: io_setup mapped the ring at this address, and it stays mapped until io_destroy, in `drop`; the two
        // words that the kernel changes are atomics.
        unsafe { self.ring.as_ref() }
    }

    /// Returns the next completion without a system call.
    fn next_event(&mut self) -> Option<Event> {
        let header = self.header();
        // Only this thread changes the head, because no code calls io_getevents(2).
        let head = header.head.load(Ordering::Relaxed);
        if head == header.tail.load(Ordering::Acquire) {
            return None;
        }
        assert!(head < header.events, "the head lies in the ring");
        let next = (head + 1) % header.events;
        // SAFETY: the events follow the header in the same mapping.
        let events = unsafe { self.ring.as_ptr().add(1) }.cast::<Event>();
        // SAFETY: the kernel keeps head below the number of events, and the mapping has room for all of them.
        let event = unsafe { events.add(head as usize) };
        // SAFETY: the event is inside of the mapping, and the acquire load above shows that it is filled.
        let event = unsafe { event.read() };
        self.header().head.store(next, Ordering::Release);
        Some(event)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        let context = self.name();
        // SAFETY: the context belongs to this value and is not used again. The call waits for requests in flight; an
        // owner that could not drain them leaks this value instead.
        unsafe { libc::syscall(libc::SYS_io_destroy, context) };
    }
}

impl Libaio {
    /// Creates a context for `depth` requests in flight, whose completions signal `doorbell`.
    pub(crate) fn new(depth: u32, doorbell: &Arc<Doorbell>) -> Result<Libaio, Errno> {
        Ok(Libaio {
            context: Context::new(depth)?,
            doorbell: Arc::clone(doorbell),
            depth: depth as usize,
            in_flight: 0,
            queue: VecDeque::new(),
            pointers: Vec::new(),
        })
    }

    /// Checks whether a context can be created.
    pub(crate) fn check() -> Result<(), Errno> {
        Context::new(1).map(drop)
    }

    /// Returns the number of system calls.
    pub(crate) fn kernel_entries(&self) -> u64 {
        self.context.kernel_entries
    }

    /// Returns the request for a direct read.
    pub(crate) fn request(&self, file: &Fd, offset: u64, len: u32, buf: &mut Buf) -> Request {
        Request {
            opcode: COMMAND_PREAD,
            file: file.as_raw_fd() as u32,
            bytes: u64::from(len).min(buf.capacity() as u64),
            buffer: buf.as_mut_ptr() as u64,
            // The kernel refuses an offset beyond the signed range.
            offset: offset as i64,
            flags: FLAG_RESFD,
            resfd: self.doorbell.as_fd().as_raw_fd() as u32,
            ..Request::default()
        }
    }

    /// Queues the request of the read in the slot `id` for [`Libaio::submit`].
    pub(crate) fn push(&mut self, id: OpId, request: Request) {
        self.queue.push_back(Request { data: id.pack(), ..request });
    }

    /// Removes a read that was not submitted yet; returns whether it was found.
    pub(crate) fn withdraw(&mut self, id: OpId) -> bool {
        let index = self.queue.iter().position(|waiting| waiting.data == id.pack());
        index.is_some_and(|index| self.queue.remove(index).is_some())
    }

    /// Submits as many of the queued reads as the depth allows. A read that the kernel rejects completes with the
    /// error. If the kernel lacks resources (`EAGAIN`), the reads wait for those in flight.
    pub(crate) fn submit(&mut self, slots: &mut Slots, done: &mut Vec<Completion>) {
        while !self.queue.is_empty() && self.in_flight < self.depth {
            let room = (self.depth - self.in_flight).min(self.queue.len());
            match self.submit_batch(room) {
                Ok(taken) => {
                    self.queue.drain(..taken);
                    self.in_flight += taken;
                    assert!(self.in_flight <= self.depth, "the context has room for the accepted requests");
                }
                Err(Errno::AGAIN) if self.in_flight > 0 => return,
                // The error concerns the first request.
                Err(error) => {
                    if let Some(first) = self.queue.pop_front() {
                        slots.end_with(OpId::unpack(first.data), Err(error), done);
                    }
                }
            }
        }
    }

    /// Delivers the completions without a system call.
    pub(crate) fn reap(&mut self, slots: &mut Slots, done: &mut Vec<Completion>) {
        while let Some(event) = self.context.next_event() {
            assert!(self.in_flight > 0, "a completed request was submitted");
            self.in_flight -= 1;
            let result = match event.result {
                // The count is at most the length of a buffer and so below 4 GiB.
                count @ 0.. => Ok(count as u32),
                error => Err(Errno::from_raw_os_error(-error as i32)),
            };
            slots.end_with(OpId::unpack(event.data), result, done);
        }
    }

    /// Submits the first `room` reads of the queue; returns how many the kernel accepted.
    fn submit_batch(&mut self, room: usize) -> Result<usize, Errno> {
        self.pointers.clear();
        self.pointers.extend(self.queue.iter_mut().take(room).map(|request| request as *mut Request));
        // SAFETY: the pointers are those of `queue`. A slot owns the buffer of its request until the operation ends,
        // which is at the completion; an engine that could not wait for it leaks its slots.
        unsafe { self.context.submit(&mut self.pointers) }
    }
}

/// Converts the result of a raw system call (libc's convention).
fn check(result: libc::c_long) -> Result<libc::c_long, Errno> {
    if result >= 0 { Ok(result) } else { Err(last_error()) }
}

const _: () = assert!(size_of::<Request>() == 64 && size_of::<Event>() == 32 && size_of::<Header>() == 32);
