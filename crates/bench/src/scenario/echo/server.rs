//! The echo server that is measured: one thread, one engine, and what it does for a connection is nothing but what the
//! engine has to do. It is a process of its own, so that its processor time and system calls are its alone.
//!
//! ```text
//!   accept --> receive --bytes--> send them back --> receive ...        (messages)
//!   accept --> close                                                    (connections)
//! ```
//!
//! It uses the engine's contract and no executor: what a ring saves is looked for, and not what a runtime costs.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::OwnedFd;

use clap::{Args, FromArgMatches, ValueEnum};
use io::engine::EngineConfig;
use io::op::{RecvInto, Source};
use io::{Buf, Completion, Engine, Fd, Op, OpId, Payload, Segments, Wait};

use crate::failure::Failure;
use crate::load::command::EngineName;
use crate::load::owners::Owners;

/// The hidden command that it is.
pub(crate) const COMMAND: &str = "echo-server";

/// Operations in flight: a receive and a send for each connection, and some to spare.
const OPS_MAX: u32 = 1 << 16;
/// As long as `SOMAXCONN` lets it be: clients that begin all at once must not be refused.
const BACKLOG: i32 = 4096;

/// How an operation that can be asked for once and again is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Shots {
    /// Anew for each result; a receive has its own buffer.
    Single,
    /// Once: the kernel goes on by itself and takes buffers from those that it was given.
    Multi,
}

/// Its use of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Purpose {
    /// Sends back what comes.
    Messages,
    /// Closes it at once: nothing is left but the accept.
    Connections,
}

/// What the command is told.
#[derive(Args, Clone, Debug)]
pub(super) struct EchoServerOptions {
    #[arg(long)]
    engine: EngineName,
    #[arg(long)]
    receive: Shots,
    #[arg(long)]
    accept: Shots,
    #[arg(long)]
    purpose: Purpose,
    /// Bytes of each receive buffer: the longest message, so that none comes in pieces for want of room
    #[arg(long)]
    buffer: u32,
    #[arg(long)]
    port: u16,
}

/// Serves until it is ended by a signal.
pub(crate) fn main(args: &[OsString]) -> Result<(), Failure> {
    let command = EchoServerOptions::augment_args(clap::Command::new(COMMAND).no_binary_name(true));
    let matches = command.try_get_matches_from(args).map_err(|error| crate::failure::usage(&error))?;
    let options =
        EchoServerOptions::from_arg_matches(&matches).map_err(|error| crate::failure::usage(&error))?;
    Echo::new(&options, listen(options.port)?)?.serve()
}

/// A listener on loopback.
fn listen(port: u16) -> Result<OwnedFd, Failure> {
    let failure = |error| Failure::Kernel { doing: format!("listening on 127.0.0.1:{port}"), error };
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).map_err(failure)?;
    // Connections inherit both from their listener, which saves two system calls for each.
    rustix::net::sockopt::set_tcp_nodelay(&listener, true).map_err(|error| failure(error.into()))?;
    rustix::net::listen(&listener, BACKLOG).map_err(|error| failure(error.into()))?;
    listener.set_nonblocking(true).map_err(failure)?;
    Ok(listener.into())
}

/// What an operation is for.
#[derive(Clone, Copy)]
enum EchoRole {
    Accept,
    Receive(u32),
    Send(u32),
    Close,
}

/// One connection. Its place is used again when it has ended.
#[derive(Default)]
struct Connection {
    socket: Option<Fd>,
    receive: Option<OpId>,
    send: Option<OpId>,
    /// What came while a send was under way: bytes go back in their order.
    waiting: VecDeque<Buf>,
}

/// The server's one thread: its listener and connections on an engine.
struct Echo {
    engine: Box<dyn Engine>,
    listener: Fd,
    receive: Shots,
    accept: Shots,
    purpose: Purpose,
    buffer_bytes: usize,
    owners: Owners<EchoRole>,
    connections: Vec<Connection>,
    /// Places of connections that have ended.
    free: Vec<u32>,
}

impl Echo {
    /// Makes the engine that the options name, here and nowhere else.
    fn new(options: &EchoServerOptions, listener: OwnedFd) -> Result<Echo, Failure> {
        let config = EngineConfig {
            net: options.engine.into(),
            disk_ring: false,
            ops_max: OPS_MAX,
            recv_buffer_bytes: options.buffer,
            ..EngineConfig::default()
        };
        let engine = io::build(config).map_err(|error| Failure::Other(error.to_string()))?;
        Ok(Echo {
            engine,
            listener: Fd::from(listener),
            receive: options.receive,
            accept: options.accept,
            purpose: options.purpose,
            buffer_bytes: options.buffer as usize,
            owners: Owners::new(),
            connections: Vec::new(),
            free: Vec::new(),
        })
    }

    /// Serves until the process is ended by a signal.
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

    /// Starts an operation and remembers what it is for.
    fn submit(&mut self, op: Op, role: EchoRole) -> Result<OpId, Failure> {
        let full = |_| Failure::Other("the engine has no room for an operation".to_owned());
        let id = self.engine.submit(op).map_err(full)?;
        self.owners.set(id, role);
        Ok(id)
    }

    /// Asks for a connection, or for all that come.
    fn accept(&mut self) -> Result<(), Failure> {
        let op = Op::Accept { listener: self.listener.clone(), multishot: self.accept == Shots::Multi };
        self.submit(op, EchoRole::Accept).map(drop)
    }

    /// Hands a completion to what it is for.
    fn complete(&mut self, completion: Completion) -> Result<(), Failure> {
        match self.owners.of(completion.id) {
            Some(EchoRole::Accept) => self.accepted(completion),
            Some(EchoRole::Receive(index)) => self.received(index, completion),
            Some(EchoRole::Send(index)) => self.sent(index, completion),
            Some(EchoRole::Close) | None => Ok(()),
        }
    }

    /// A connection has come: its receive is armed, and the next accept where there is one each.
    fn accepted(&mut self, completion: Completion) -> Result<(), Failure> {
        if !completion.more {
            self.accept()?;
        }
        // One that was gone before it was accepted is no loss: the client counts it.
        let Payload::Accepted(fd) = completion.payload else { return Ok(()) };
        if self.purpose == Purpose::Connections {
            return self.submit(Op::Close { fd }, EchoRole::Close).map(drop);
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

    /// Arms the receive of a connection.
    fn receive(&mut self, index: u32) -> Result<(), Failure> {
        let Some(socket) = self.connections[index as usize].socket.clone() else { return Ok(()) };
        let into = match self.receive {
            Shots::Multi => RecvInto::Stream,
            Shots::Single => {
                self.engine.pool().get(self.buffer_bytes).map_or(RecvInto::Pool, RecvInto::Owned)
            }
        };
        let id = self.submit(Op::Recv { socket, into }, EchoRole::Receive(index))?;
        self.connections[index as usize].receive = Some(id);
        Ok(())
    }

    /// Bytes have come: they go back in the buffer that they came in.
    fn received(&mut self, index: u32, completion: Completion) -> Result<(), Failure> {
        let connection = &mut self.connections[index as usize];
        if connection.receive != Some(completion.id) {
            return Ok(());
        }
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

    /// Sends what waits, unless a send is under way.
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

    /// Sends what was received.
    fn send(&mut self, index: u32, data: Segments) -> Result<(), Failure> {
        let Some(socket) = self.connections[index as usize].socket.clone() else { return Ok(()) };
        let op = Op::Send { socket, data, more: false, zero_copy: false };
        let id = self.submit(op, EchoRole::Send(index))?;
        self.connections[index as usize].send = Some(id);
        Ok(())
    }

    /// The end of a send; the rest of a short one goes next.
    fn sent(&mut self, index: u32, completion: Completion) -> Result<(), Failure> {
        let connection = &mut self.connections[index as usize];
        if connection.send != Some(completion.id) {
            return Ok(());
        }
        connection.send = None;
        let (Ok(count), Payload::Segments(mut data)) = (completion.result, completion.payload) else {
            return self.close(index);
        };
        data.advance(count as usize);
        if data.is_empty() { self.flush(index) } else { self.send(index, data) }
    }

    /// Ends a connection, whatever is under way on it.
    fn close(&mut self, index: u32) -> Result<(), Failure> {
        let connection = std::mem::take(&mut self.connections[index as usize]);
        for id in [connection.receive, connection.send].into_iter().flatten() {
            self.engine.abandon(id);
        }
        self.free.push(index);
        match connection.socket.map(Fd::into_owned) {
            Some(Ok(fd)) => self.submit(Op::Close { fd }, EchoRole::Close).map(drop),
            // Closed with the operation that still holds it.
            _ => Ok(()),
        }
    }
}
