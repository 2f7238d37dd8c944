//! An io_uring with minimal code around it: no table of operations, no receives, no fallbacks, and any set-up flags.
//!
//! The counterpart of the server's io_uring engine (crate `io`) in the comparisons `bench nop` and `bench disk`. A wait
//! for a ring with a kernel thread (`SQPOLL`) polls the queue, as usual for such rings, and makes a system call only
//! after [`LOOKING_MAX`].

use std::time::{Duration, Instant};

use io_uring::squeue::Entry;
use io_uring::types::{Fd as Raw, Fixed};
use io_uring::{cqueue, opcode};
use rustix::io::Errno;

use super::flags::SQPOLL;
use super::kernel::Ring;
use super::places::Places;
use super::{Done, Load, Queue, QueueError, RingSetup, Transfer};

/// Time for which a wait for an SQPOLL ring polls the queue before it makes a system call to wait.
const LOOKING_MAX: Duration = Duration::from_millis(2);
/// Time for which the drop of a queue waits for operations in flight. If some remain, the buffers are leaked.
const DROP_WAIT: Duration = Duration::from_secs(5);

/// An io_uring, its files and its buffers.
pub struct RingQueue {
    ring: Ring,
    /// `None` after the buffers were leaked.
    places: Option<Places>,
    setup: RingSetup,
    /// Completions of one poll; a field so that its memory is reused.
    batch: Vec<cqueue::Entry>,
}

impl RingQueue {
    /// Creates a ring for the calling thread with exactly the flags of `setup`.
    ///
    /// # Errors
    /// When the kernel refuses the ring or a registration, or has no memory.
    pub fn new(setup: RingSetup, load: Load) -> Result<RingQueue, QueueError> {
        let mut places = Places::new(load)?;
        let ring = Ring::new(&setup).map_err(QueueError::Ring)?;
        if setup.registered_buffers {
            ring.register_buffers(places.bufs()).map_err(QueueError::Register)?;
        }
        if setup.registered_files {
            ring.register_files(&places.fds()).map_err(QueueError::Register)?;
        }
        Ok(RingQueue { ring, places: Some(places), setup, batch: Vec::new() })
    }

    /// Submits this many no-ops, at most as many as the queue has entries, and waits for all of them. Makes one system
    /// call, or none with an SQPOLL kernel thread.
    ///
    /// # Errors
    /// The kernel's error.
    ///
    /// # Panics
    /// When transfers are in flight, or `count` exceeds the number of entries.
    pub fn nops(&mut self, count: u32) -> Result<(), Errno> {
        assert!(self.places().busy() == 0 && count <= self.setup.entries, "an idle queue, enough entries");
        let mut pushed = 0;
        while pushed < count {
            let nops = (pushed..count).map(|number| opcode::Nop::new().build().user_data(number.into()));
            pushed += self.ring.push_each(nops);
            if self.is_polled() {
                self.submit()?;
            }
        }
        let (mut seen, mut failed) = (0, None);
        loop {
            let left = count - seen;
            self.enter(left)?;
            for entry in self.ring.completions() {
                let result = entry.result();
                failed = failed.or((result < 0).then(|| Errno::from_raw_os_error(-result)));
                seen += 1;
            }
            match failed {
                Some(errno) => return Err(errno),
                None if seen == count => return Ok(()),
                None => {}
            }
        }
    }

    /// As [`RingQueue::wait`] after [`RingQueue::submit`], in one system call.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn submit_and_wait(&mut self, min: u32, done: &mut Vec<Done>) -> Result<(), Errno> {
        if self.is_polled() {
            self.submit()?;
        }
        let wanted = done.len() + min as usize;
        loop {
            self.enter(wanted.saturating_sub(done.len()) as u32)?;
            self.collect(done);
            if done.len() >= wanted {
                return Ok(());
            }
        }
    }

    fn is_polled(&self) -> bool {
        self.setup.flags & SQPOLL != 0
    }

    fn places(&mut self) -> &mut Places {
        self.places.as_mut().expect("only drop takes the buffers")
    }

    /// Submits the staged entries and waits for `min` completions, in the way that the ring's flags require.
    fn enter(&mut self, min: u32) -> Result<(), Errno> {
        let entered = if self.is_polled() {
            let start = Instant::now();
            loop {
                if min == 0 || self.ring.has_completions() {
                    break Ok(0);
                }
                if start.elapsed() > LOOKING_MAX {
                    break self.ring.enter(0, 1, true, None);
                }
                std::hint::spin_loop();
            }
        } else {
            let staged = self.ring.staged();
            self.ring.enter(staged, min, true, None)
        };
        match entered {
            Ok(_) | Err(Errno::INTR | Errno::BUSY | Errno::AGAIN) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    fn collect(&mut self, done: &mut Vec<Done>) {
        let mut batch = std::mem::take(&mut self.batch);
        batch.extend(self.ring.completions());
        for entry in batch.drain(..) {
            let place = entry.user_data() as u32;
            self.places().give_back(place);
            let result = u32::try_from(entry.result()).map_err(|_| Errno::from_raw_os_error(-entry.result()));
            done.push(Done { place, result });
        }
        self.batch = batch;
    }

    fn entry(&mut self, place: u32, transfer: Transfer) -> Entry {
        let Transfer { write, file, offset, len } = transfer;
        let (fixed_file, fixed_buf) = (self.setup.registered_files, self.setup.registered_buffers);
        let places = self.places();
        let (fd, memory, index) =
            (Raw(places.fd(file)), places.buf(place).space().as_mut_ptr(), place as u16);
        let known = Fixed(file);
        let entry = match (write, fixed_buf, fixed_file) {
            (false, false, false) => opcode::Read::new(fd, memory, len).offset(offset).build(),
            (false, false, true) => opcode::Read::new(known, memory, len).offset(offset).build(),
            (false, true, false) => opcode::ReadFixed::new(fd, memory, len, index).offset(offset).build(),
            (false, true, true) => opcode::ReadFixed::new(known, memory, len, index).offset(offset).build(),
            (true, false, false) => opcode::Write::new(fd, memory, len).offset(offset).build(),
            (true, false, true) => opcode::Write::new(known, memory, len).offset(offset).build(),
            (true, true, false) => opcode::WriteFixed::new(fd, memory, len, index).offset(offset).build(),
            (true, true, true) => opcode::WriteFixed::new(known, memory, len, index).offset(offset).build(),
        };
        entry.user_data(place.into())
    }
}

impl Queue for RingQueue {
    fn push(&mut self, transfer: Transfer) -> Option<u32> {
        let place = self.places().take(transfer)?;
        let entry = self.entry(place, transfer);
        if self.ring.push_each(std::iter::once(entry)) == 0 {
            self.places().give_back(place);
            return None;
        }
        Some(place)
    }

    fn submit(&mut self) -> Result<(), Errno> {
        if self.is_polled() {
            return self.ring.wake_poller();
        }
        loop {
            let staged = self.ring.staged();
            if staged == 0 {
                return Ok(());
            }
            match self.ring.enter(staged, 0, false, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
    }

    fn wait(&mut self, min: u32, done: &mut Vec<Done>) -> Result<(), Errno> {
        let wanted = done.len() + min as usize;
        self.collect(done);
        if done.len() >= wanted { Ok(()) } else { self.submit_and_wait((wanted - done.len()) as u32, done) }
    }

    fn content(&self, place: u32) -> &[u8] {
        let places = self.places.as_ref().expect("only drop takes the buffers");
        places.content(place)
    }

    fn kernel_entries(&self) -> u64 {
        self.ring.entries
    }
}

impl Drop for RingQueue {
    fn drop(&mut self) {
        // Closing a ring does not wait for its operations, and the kernel may write to their buffers until they end.
        let end = Instant::now() + DROP_WAIT;
        let mut done = Vec::new();
        let _ = self.submit();
        while self.places().busy() > 0 && Instant::now() < end {
            let left = end.saturating_duration_since(Instant::now());
            let staged = if self.is_polled() { 0 } else { self.ring.staged() };
            match self.ring.enter(staged, 1, true, Some(left)) {
                Ok(_) | Err(Errno::TIME | Errno::INTR | Errno::BUSY | Errno::AGAIN) => {
                    self.collect(&mut done)
                }
                Err(_) => break,
            }
        }
        if self.places().busy() > 0 {
            std::mem::forget(self.places.take());
        }
    }
}
