//! The measured echo server: threads with an engine and a listener each. Its work per connection is only that of the engine's
//! operations. It is a separate process, so that its CPU time and system calls can be measured separately.
//!
//! ```text
//!   accept --> receive --bytes--> send them back --> receive ...        (messages)
//!   accept --> close                                                    (connections)
//! ```
//!
//! It uses the engine's interface without an executor: the subject is the gain of io_uring, not the cost of a runtime.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::OwnedFd;

use clap::{Args, FromArgMatches, ValueEnum};
use io::engine::EngineConfig;
use io::op::RecvInto;
use io::segments::Source;
use io::{Buf, Completion, Engine, Fd, NetOp, Op, OpId, Payload, Segments, Wait};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use crate::failure::Failure;
use crate::load::command::EngineName;

pub(crate) const COMMAND: &str = "echo-server";

/// Maximum number of operations in flight: a receive and a send for each connection, and a reserve.
const OPS_MAX: u32 = 1 << 16;
/// Listen backlog, limited by `SOMAXCONN`: a burst of clients at the start must not be refused.
const BACKLOG: i32 = 4096;

/// Submission mode of receives and accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum SubmissionMode {
    /// Single-shot: one submission per result; a receive has a dedicated buffer.
    Single,
    /// Multishot: one submission; the kernel repeats the operation and picks buffers from a registered set.
    Multi,
}

/// What the server does with connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Purpose {
    /// Echoes received bytes.
    Messages,
    /// Closes the connection immediately: only the accept is measured.
    Connections,
}

#[derive(Args, Clone, Debug)]
pub(super) struct EchoServerOptions {
    #[arg(long)]
    engine: EngineName,
    /// Submission mode of receives and accepts
    #[arg(long)]
    mode: SubmissionMode,
    #[arg(long)]
    purpose: Purpose,
    /// Size of each receive buffer in bytes: that of the longest message, so that no message is split
    #[arg(long)]
    buffer: u32,
    /// Number of threads
    #[arg(long)]
    workers: u32,
    #[arg(long)]
    port: u16,
}

/// Serves until a signal ends the process.
pub(crate) fn main(args: &[OsString]) -> Result<(), Failure> {
    let command = EchoServerOptions::augment_args(clap::Command::new(COMMAND).no_binary_name(true));
    let options = EchoServerOptions::from_arg_matches(&command.try_get_matches_from(args)?)?;
    // All listeners exist before a client can connect, so that the kernel distributes the connections among all of them.
    let sockets = (0..options.workers).map(|_| bind(options.port)).collect::<Result<Vec<_>, _>>()?;
    let serve = |socket: OwnedFd| {
        rustix::net::listen(&socket, BACKLOG).map_err(Failure::kernel("listen"))?;
        Echo::new(options.clone(), socket)?.serve()
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = sockets.into_iter().map(|socket| scope.spawn(|| serve(socket))).collect();
        let panicked = |_| Err(Failure::other("a thread of the echo server panicked"));
        threads.into_iter().try_for_each(|thread| thread.join().unwrap_or_else(panicked))
    })
}

/// Creates a socket for a port that other threads share.
fn bind(port: u16) -> Result<OwnedFd, Failure> {
    let create = || {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
        sockopt::set_socket_reuseport(&socket, true)?;
        sockopt::set_socket_reuseaddr(&socket, true)?;
        // Accepted sockets inherit it from the listener, which saves a system call per connection.
        sockopt::set_tcp_nodelay(&socket, true)?;
        rustix::net::bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, port))?;
        Ok(socket)
    };
    create().map_err(Failure::kernel::<rustix::io::Errno>(format_args!("listening on 127.0.0.1:{port}")))
}

/// Token of accepts, and of closes that need no action; the token of other operations is the index of their connection.
const ACCEPT: u64 = u64::MAX;
const CLOSE: u64 = u64::MAX - 1;

/// One connection. Its slot is reused after it has ended.
#[derive(Default)]
struct Connection {
    socket: Option<Fd>,
    receive: Option<OpId>,
    send: Option<OpId>,
    /// Bytes received while a send is in flight, in order.
    waiting: VecDeque<Buf>,
}

/// A thread of the server: its listener and connections on an engine.
struct Echo {
    engine: Box<dyn Engine>,
    listener: Fd,
    options: EchoServerOptions,
    connections: Vec<Connection>,
    /// Unused slots of connections.
    free: Vec<u32>,
}

impl Echo {
    /// Creates the server with the engine that the options name.
    fn new(options: EchoServerOptions, listener: OwnedFd) -> Result<Echo, Failure> {
        let config = EngineConfig {
            net: options.engine.into(),
            disk_ring: false,
            ops_max: OPS_MAX,
            recv_buffer_bytes: options.buffer,
            ..EngineConfig::default()
        };
        let engine = io::build(config).map_err(Failure::other)?;
        Ok(Echo { engine, listener: Fd::from(listener), options, connections: Vec::new(), free: Vec::new() })
    }

    /// Serves until a signal ends the process.
    fn serve(&mut self) -> Result<(), Failure> {
        self.accept()?;
        let mut batch = Vec::new();
        loop {
            let turned = self.engine.turn(Wait::Forever, &mut batch);
            turned.map_err(Failure::kernel("the engine"))?;
            for completion in batch.drain(..) {
                self.complete(completion)?;
            }
        }
    }

    fn submit(&mut self, op: Op, token: u64) -> Result<OpId, Failure> {
        let full = |_| Failure::Other("the engine has no free slot for an operation".to_owned());
        self.engine.submit(op, token).map_err(full)
    }

    /// Submits an accept for one connection, or a multishot accept.
    fn accept(&mut self) -> Result<(), Failure> {
        let op = Op::Net(NetOp::Accept {
            listener: self.listener.clone(),
            multishot: self.options.mode == SubmissionMode::Multi,
        });
        self.submit(op, ACCEPT).map(drop)
    }

    fn complete(&mut self, completion: Completion) -> Result<(), Failure> {
        if completion.token == ACCEPT {
            return self.accepted(completion);
        }
        let index = completion.token as u32;
        match self.connections.get(index as usize) {
            Some(connection) if connection.receive == Some(completion.id) => self.received(index, completion),
            Some(connection) if connection.send == Some(completion.id) => self.sent(index, completion),
            // A close, or an operation that was abandoned.
            _ => Ok(()),
        }
    }

    /// Handles an accepted connection: arms its receive, and the next accept if accepts are single-shot.
    fn accepted(&mut self, completion: Completion) -> Result<(), Failure> {
        if !completion.more {
            self.accept()?;
        }
        // A connection that was closed before its accept is ignored: the client counts it.
        let Payload::Accepted(fd) = completion.payload else { return Ok(()) };
        if self.options.purpose == Purpose::Connections {
            return self.submit(Op::Net(NetOp::Close { fd }), CLOSE).map(drop);
        }
        let index = self.free.pop().unwrap_or(self.connections.len() as u32);
        if index as usize == self.connections.len() {
            self.connections.push(Connection::default());
        }
        let socket = Fd::from(fd);
        socket.set_tcp();
        self.connections[index as usize].socket = Some(socket);
        self.receive(index)
    }

    fn receive(&mut self, index: u32) -> Result<(), Failure> {
        let Some(socket) = self.connections[index as usize].socket.clone() else { return Ok(()) };
        let into = match self.options.mode {
            SubmissionMode::Multi => RecvInto::Stream,
            SubmissionMode::Single => {
                self.engine.pool().get(self.options.buffer as usize).map_or(RecvInto::Pool, RecvInto::Owned)
            }
        };
        let id = self.submit(Op::Net(NetOp::Recv { socket, into }), index.into())?;
        self.connections[index as usize].receive = Some(id);
        Ok(())
    }

    /// Handles received bytes: they are sent back in the same buffer.
    fn received(&mut self, index: u32, completion: Completion) -> Result<(), Failure> {
        let connection = &mut self.connections[index as usize];
        if !completion.more {
            connection.receive = None;
        }
        let (Ok(1..), Payload::Buf(bytes)) = (completion.result, completion.payload) else {
            return self.close(index);
        };
        connection.waiting.push_back(bytes);
        let is_armed = connection.receive.is_some();
        self.flush(index)?;
        if is_armed { Ok(()) } else { self.receive(index) }
    }

    /// Sends queued bytes, unless a send is in flight.
    fn flush(&mut self, index: u32) -> Result<(), Failure> {
        let connection = &mut self.connections[index as usize];
        if connection.send.is_some() {
            return Ok(());
        }
        let Some(bytes) = connection.waiting.pop_front() else { return Ok(()) };
        let mut data = Segments::new();
        data.push(Source::Buf(bytes));
        self.send(index, data)
    }

    fn send(&mut self, index: u32, data: Segments) -> Result<(), Failure> {
        let Some(socket) = self.connections[index as usize].socket.clone() else { return Ok(()) };
        let op = Op::Net(NetOp::Send { socket, data, more: false, zero_copy: false });
        let id = self.submit(op, index.into())?;
        self.connections[index as usize].send = Some(id);
        Ok(())
    }

    /// Handles the completion of a send; after a partial send the remaining bytes are sent next.
    fn sent(&mut self, index: u32, completion: Completion) -> Result<(), Failure> {
        let connection = &mut self.connections[index as usize];
        connection.send = None;
        let (Ok(count), Payload::Segments(mut data)) = (completion.result, completion.payload) else {
            return self.close(index);
        };
        data.advance(count as usize);
        if data.is_empty() { self.flush(index) } else { self.send(index, data) }
    }

    /// Closes a connection, including its operations in flight.
    fn close(&mut self, index: u32) -> Result<(), Failure> {
        let connection = std::mem::take(&mut self.connections[index as usize]);
        for id in [connection.receive, connection.send].into_iter().flatten() {
            self.engine.abandon(id);
        }
        self.free.push(index);
        match connection.socket.map(Fd::into_owned) {
            Some(Ok(fd)) => self.submit(Op::Net(NetOp::Close { fd }), CLOSE).map(drop),
            // Closed when the operation that still references it completes.
            _ => Ok(()),
        }
    }
}
