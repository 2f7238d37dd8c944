//! The sending side of a connection.

use std::cell::Cell;
use std::os::fd::AsFd;
use std::rc::Rc;

use io::op::{DeviceId, Interest};
use io::{DiskVia, Errno, Fd, Op, Payload, Segments};
use rustix::net::Shutdown;

use crate::file::File;
use crate::ops::Running;
use crate::runtime::Inner;

/// The sending side of a [`crate::Socket`].
pub struct Writer {
    runtime: Rc<Inner>,
    fd: Fd,
    /// Sends of at least so many bytes are made without a copy.
    zero_copy_from: Option<usize>,
    /// Set while a send is under way, and for ever when it was dropped or failed: what has reached the peer
    /// is unknown then, and nothing may follow it.
    torn: bool,
    sent: Cell<u64>,
}

impl Writer {
    pub(super) fn new(runtime: &Rc<Inner>, fd: Fd) -> Writer {
        Writer { runtime: Rc::clone(runtime), fd, zero_copy_from: None, torn: false, sent: Cell::new(0) }
    }

    /// Sends all of `data`; `more` says that further bytes follow at once. The segments come back to have
    /// their vectors used again, unless the kernel still sends from them. After an error, and after a send
    /// that was dropped half-way, further sends fail with `ECONNABORTED`.
    pub async fn send(&mut self, mut data: Segments, more: bool) -> (Result<(), Errno>, Segments) {
        if std::mem::replace(&mut self.torn, true) {
            return (Err(Errno::CONNABORTED), data);
        }
        let result = self.send_all(&mut data, more).await;
        self.torn = result.is_err();
        (result, data)
    }

    async fn send_all(&mut self, data: &mut Segments, more: bool) -> Result<(), Errno> {
        while !data.is_empty() {
            let len = data.len();
            let zero_copy = self.runtime.caps.send_zero_copy
                && self.zero_copy_from.is_some_and(|threshold| len >= threshold);
            let op = Op::Send { socket: self.fd().clone(), data: std::mem::take(data), more, zero_copy };
            let mut running = Running::new(&self.runtime, op);
            let first = running.next().await;
            if first.more {
                if first.result.is_ok_and(|count| count as usize == len) {
                    // The buffers go when the peer has acknowledged them; nobody need wait for that.
                    running.detach();
                    self.sent.set(self.sent.get() + len as u64);
                    return Ok(());
                }
                *data = segments(running.last().await.payload)?;
            } else if first.result.is_ok() || matches!(first.payload, Payload::Segments(_)) {
                *data = segments(first.payload)?;
            }
            // A short count is legal anywhere: an engine may stop at a full socket or between segments.
            match first.result {
                Ok(0) => return Err(Errno::IO),
                Ok(count) => {
                    data.advance(count as usize);
                    self.sent.set(self.sent.get() + u64::from(count));
                }
                Err(Errno::INTR) if !data.is_empty() => {}
                Err(Errno::AGAIN) if !data.is_empty() => self.writable().await?,
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// Moves at most `len` bytes from a file, of the device `device`, to the socket without passing through
    /// user space; waits while the socket is full. 0 is the end of the file.
    pub async fn sendfile(
        &mut self,
        file: &File,
        offset: u64,
        len: u32,
        device: DeviceId,
        via: DiskVia,
    ) -> Result<u32, Errno> {
        if std::mem::replace(&mut self.torn, true) {
            return Err(Errno::CONNABORTED);
        }
        let result = loop {
            let (socket, file) = (self.fd().clone(), file.fd().clone());
            let op = Op::Sendfile { socket, file, offset, len, device, via };
            match Running::new(&self.runtime, op).last().await.result {
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    if let Err(errno) = self.writable().await {
                        break Err(errno);
                    }
                }
                result => break result,
            }
        };
        self.torn = result.is_err();
        self.sent.set(self.sent.get() + u64::from(result.unwrap_or(0)));
        result
    }

    /// Waits until the socket takes bytes.
    pub async fn writable(&self) -> Result<(), Errno> {
        loop {
            let op = Op::Poll { fd: self.fd().clone(), interest: Interest::Writable };
            match Running::new(&self.runtime, op).last().await.result {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
    }

    /// Sends of at least `threshold` bytes are made without a copy where the engine can; `None`, the
    /// default, copies always. It pays on a real network card only.
    pub fn set_zero_copy(&mut self, threshold: Option<usize>) {
        self.zero_copy_from = threshold;
    }

    /// Bytes that were passed to the kernel.
    pub fn sent(&self) -> u64 {
        self.sent.get()
    }

    /// A number that grows as the peer takes bytes: what TCP says was acknowledged, else what was sent
    /// less what still queues in the kernel. One system call; meant for when a timer has fired. 0 where
    /// the kernel tells neither.
    pub fn progress(&self) -> u64 {
        let fd = self.fd().as_fd();
        if let Ok(acknowledged) = io::sys::tcp_bytes_acked(fd) {
            return acknowledged;
        }
        let queued = io::sys::send_queue_bytes(fd);
        queued.map_or(0, |queued| self.sent.get().saturating_sub(u64::from(queued)))
    }

    /// Ends the stream towards the peer. A plain system call: through the ring it would take a kernel
    /// thread. An error means that the connection is gone, which the reader will say.
    pub fn shutdown(&self) {
        let _ = rustix::net::shutdown(self.fd(), Shutdown::Write);
    }

    pub(super) fn fd(&self) -> &Fd {
        &self.fd
    }
}

fn segments(payload: Payload) -> Result<Segments, Errno> {
    match payload {
        Payload::Segments(segments) => Ok(segments),
        _ => Err(Errno::IO),
    }
}
