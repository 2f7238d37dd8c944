//! Tests of features that cannot be derived from the kernel version: a temporary io_uring receives, accepts and sends
//! on test sockets. Each test is bounded in time, and ends within a millisecond if the features work.

use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::buf::{Buf, Pool};
use crate::engine::{EngineConfig, Wait};
use crate::fd::Fd;
use crate::op::{Completion, NetOp, Op, OpId, Payload, RecvInto};
use crate::segments::{Segments, Source};
use crate::slot::{Route, Slots};
use crate::uring::{Role, SetupError, Uring};

/// Maximum time for which one test waits for its completions.
const TEST_TIME: Duration = Duration::from_millis(250);

/// An unexpected result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// An error number, from io_uring or from creating the sockets.
    Errno(Errno),
    /// No completion in time.
    Silence,
    /// A completion with an unexpected content.
    Wrong,
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Failure {
        Failure::Errno(Errno::from_io_error(&error).unwrap_or(Errno::IO))
    }
}

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Failure {
        Failure::Errno(errno)
    }
}

/// A temporary ring for tests.
pub(super) struct Trial {
    uring: Uring,
    slots: Slots,
    pool: Pool,
    done: Vec<Completion>,
}

impl Trial {
    /// Creates a small ring with one receive buffer as large as a chunk, so that the pool can be exhausted on demand.
    pub(super) fn new() -> Result<Trial, SetupError> {
        let config = EngineConfig {
            ring_entries: 16,
            ops_max: 64,
            recv_buffers: 1,
            recv_buffer_bytes: 1 << 20,
            pool_bytes_max: 0,
            ..EngineConfig::default()
        };
        let pool = Pool::new(config.pool_bytes_max);
        let uring = Uring::new(&config, &pool, Role::NetAndDisk)?;
        Ok(Trial { uring, slots: Slots::new(config.ops_max), pool, done: Vec::new() })
    }

    /// Returns the set-up flags that the kernel accepted.
    pub(super) fn setup_flags(&self) -> u32 {
        self.uring.mode().flags
    }

    /// Whether the kernel supports all opcodes that the io_uring backend submits.
    pub(super) fn supports_opcodes(&self) -> bool {
        self.uring.supports_opcodes()
    }

    fn start(&mut self, op: NetOp) -> OpId {
        let id = self.slots.insert(Op::Net(op), 0, Route::Net);
        self.uring.start(id, &mut self.slots, &mut self.done);
        id
    }

    fn next(&mut self) -> Result<Completion, Failure> {
        let until = Instant::now() + TEST_TIME;
        while self.done.is_empty() {
            if Instant::now() >= until {
                return Err(Failure::Silence);
            }
            self.uring.turn(Wait::Until(until), &mut self.slots, &mut self.done)?;
        }
        Ok(self.done.remove(0))
    }

    /// Cancels an operation and drops its further completions.
    fn stop(&mut self, id: OpId) -> Result<(), Failure> {
        self.uring.cancel(id, &mut self.slots, &mut self.done);
        while self.slots.get(id).is_some() || !self.done.is_empty() {
            self.next()?;
        }
        Ok(())
    }

    /// Tests that a multishot receive without buffers waits for data, and then for a buffer.
    pub(super) fn multishot_receive(&mut self) -> Result<(), Failure> {
        let (ours, theirs) = UnixStream::pair()?;
        let socket = Fd::from(OwnedFd::from(ours));
        // Uses up all memory of the pool, so that no new receive buffer can be provided.
        let hoard: Vec<Buf> = std::iter::from_fn(|| self.pool.get(1)).collect();
        let first = self.start(NetOp::Recv { socket: socket.clone(), into: RecvInto::Stream });
        rustix::io::write(&theirs, b"a")?;
        let held = self.next()?;
        if held.result != Ok(1) {
            return Err(held.result.err().map_or(Failure::Wrong, Failure::Errno));
        }
        self.stop(first)?;
        let second = self.start(NetOp::Recv { socket, into: RecvInto::Stream });
        self.uring.turn(Wait::No, &mut self.slots, &mut self.done)?;
        if self.uring.counters().recv_starved > 0 || !self.done.is_empty() {
            return Err(Failure::Errno(Errno::NOBUFS));
        }
        drop((held, hoard));
        rustix::io::write(&theirs, b"b")?;
        let got = self.next()?;
        let right = matches!(&got.payload, Payload::Buf(buf) if **buf == *b"b") && got.more;
        drop(got);
        self.stop(second)?;
        if right { Ok(()) } else { Err(Failure::Wrong) }
    }

    /// Tests that a multishot accept returns a descriptor of the connection.
    pub(super) fn multishot_accept(&mut self) -> Result<(), Failure> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let listener = Fd::from(OwnedFd::from(listener));
        let id = self.start(NetOp::Accept { listener, multishot: true });
        let peer = TcpStream::connect(address)?;
        let accepted = self.next()?;
        let name = match accepted.payload {
            Payload::Accepted(fd) => TcpStream::from(fd).peer_addr()?,
            _ => return Err(accepted.result.err().map_or(Failure::Wrong, Failure::Errno)),
        };
        self.stop(id)?;
        if name == peer.local_addr()? { Ok(()) } else { Err(Failure::Wrong) }
    }

    /// Tests that a zero-copy send reports its count and then releases its memory.
    pub(super) fn zero_copy(&mut self) -> Result<(), Failure> {
        if !self.uring.send_zero_copy() {
            return Err(Failure::Errno(Errno::NOSYS));
        }
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let peer = TcpStream::connect(listener.local_addr()?)?;
        let socket = Fd::from(OwnedFd::from(listener.accept()?.0));
        let data = Segments::from(Source::Static(&[b'z'; 64]));
        self.start(NetOp::Send { socket, data, more: false, zero_copy: true });
        let first = self.next()?;
        if first.result != Ok(64) || !first.more {
            return Err(first.result.err().map_or(Failure::Wrong, Failure::Errno));
        }
        // The memory is released when the peer has read, or immediately if the kernel copies.
        drop(peer);
        let last = self.next()?;
        if last.more { Err(Failure::Wrong) } else { Ok(()) }
    }

    /// Tests that memory can be registered as a fixed buffer.
    pub(super) fn registered_buffers(&mut self) -> Result<(), Failure> {
        let buf = self.pool.get(1 << 20).ok_or(Failure::Errno(Errno::NOMEM))?;
        self.uring.try_register(&buf).map_err(Failure::Errno)
    }
}

impl Drop for Trial {
    fn drop(&mut self) {
        self.uring.cancel_all(&mut self.slots, &mut self.done);
        let until = Instant::now() + TEST_TIME;
        while self.slots.live() > 0 && Instant::now() < until {
            self.done.clear();
            if self.uring.turn(Wait::Until(until), &mut self.slots, &mut self.done).is_err() {
                break;
            }
        }
        if self.slots.live() > 0 {
            // The kernel may still use memory of the table.
            std::mem::forget(std::mem::replace(&mut self.slots, Slots::new(0)));
        }
    }
}
