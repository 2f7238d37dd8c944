//! Lower bound for the HTTP server: its engine and the response of `return 200`, with nothing between them. The
//! received header section is not parsed. `ringroad bench load` measures it like a server, which shows the cost of the
//! kernel's network path.
//!
//! ```sh
//! cargo run --release -p bare --example responder -- 127.0.0.1:8080 --engine epoll
//! ```
//! The default of `--engine` is `io_uring`.

#![allow(clippy::print_stderr, reason = "a command-line tool reports its errors")]

use std::net::TcpListener;
use std::process::ExitCode;

use io::engine::{EngineConfig, NetKind};
use io::op::{RecvInto, Source};
use io::{Completion, Engine, Fd, Op, OpId, Payload, Segments, Wait};

const RESPONSE: &[u8] =
    b"HTTP/1.1 200 OK\r\nServer: ringroad/0.1.0\r\nDate: Sat, 21 Nov 2026 12:00:00 GMT\r\n\
Content-Type: text/plain\r\nContent-Length: 0\r\nConnection: keep-alive\r\n\r\n";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (address, net) = match arguments[..] {
        [] => ("127.0.0.1:8080", NetKind::Uring),
        [address] | [address, "--engine", "io_uring"] => (address, NetKind::Uring),
        [address, "--engine", "epoll"] => (address, NetKind::Epoll),
        _ => {
            eprintln!("usage: responder [address [--engine epoll|io_uring]]");
            return ExitCode::FAILURE;
        }
    };
    match serve(address, net) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("responder on {address}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(address: &str, net: NetKind) -> Result<(), Box<dyn std::error::Error>> {
    let listener = Fd::from(std::os::fd::OwnedFd::from(TcpListener::bind(address)?));
    let mut engine = io::build(EngineConfig { net, ..EngineConfig::default() })?;
    let mut sockets = Sockets::default();
    let mut batch = Vec::new();
    accept(&mut *engine, &listener);
    loop {
        engine.turn(Wait::Forever, &mut batch)?;
        for completion in batch.drain(..) {
            handle(&mut *engine, &listener, &mut sockets, completion);
        }
    }
}

/// The socket of each receive in flight, by the engine's slot.
#[derive(Default)]
struct Sockets(Vec<Option<(OpId, Fd)>>);

impl Sockets {
    fn insert(&mut self, id: OpId, socket: Fd) {
        let place = id.slot as usize;
        if place >= self.0.len() {
            self.0.resize(place + 1, None);
        }
        self.0[place] = Some((id, socket));
    }

    fn get(&self, id: OpId) -> Option<&Fd> {
        let (known, socket) = self.0.get(id.slot as usize)?.as_ref()?;
        (*known == id).then_some(socket)
    }

    fn remove(&mut self, id: OpId) {
        if let Some(place) = self.0.get_mut(id.slot as usize) {
            place.take_if(|(known, _)| *known == id);
        }
    }
}

/// Handles a completion. Completions of sends and of failed operations need no action.
fn handle(engine: &mut dyn Engine, listener: &Fd, sockets: &mut Sockets, completion: Completion) {
    let Completion { id, result, more, payload } = completion;
    match payload {
        Payload::Accepted(socket) => {
            accept(engine, listener);
            let socket = Fd::from(socket);
            socket.set_tcp();
            receive(engine, sockets, socket);
        }
        Payload::Buf(_) if result.is_ok_and(|count| count > 0) => {
            let Some(socket) = sockets.get(id).cloned() else { return };
            let mut data = Segments::new();
            data.push(Source::Static(RESPONSE));
            let send = Op::Send { socket: socket.clone(), data, more: false, zero_copy: false };
            submit(engine, send);
            if !more {
                sockets.remove(id);
                receive(engine, sockets, socket);
            }
        }
        _ if !more => sockets.remove(id),
        _ => {}
    }
}

fn accept(engine: &mut dyn Engine, listener: &Fd) {
    submit(engine, Op::Accept { listener: listener.clone(), multishot: false });
}

fn receive(engine: &mut dyn Engine, sockets: &mut Sockets, socket: Fd) {
    let op = Op::Recv { socket: socket.clone(), into: RecvInto::Stream };
    if let Some(id) = submit(engine, op) {
        sockets.insert(id, socket);
    }
}

/// Submits an operation. The table of operations is larger than the number of connections of a benchmark.
fn submit(engine: &mut dyn Engine, op: Op) -> Option<OpId> {
    engine.submit(op).ok()
}
