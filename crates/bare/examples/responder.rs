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
use io::op::RecvInto;
use io::segments::Source;
use io::slab::{Key, Slab};
use io::{Completion, Engine, Fd, NetOp, Op, Payload, Segments, Wait};

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

/// The socket of each receive in flight. The keys are the tokens of the receives.
type Sockets = Slab<Option<Fd>>;

/// Token of operations whose completions need no action, or none that depends on the token.
const NO_TOKEN: u64 = u64::MAX;

/// Handles a completion. Completions of sends and of failed operations need no action.
fn handle(engine: &mut dyn Engine, listener: &Fd, sockets: &mut Sockets, completion: Completion) {
    let Completion { token, result, more, payload, .. } = completion;
    let key = Key::unpack(token);
    match payload {
        Payload::Accepted(socket) => {
            accept(engine, listener);
            let socket = Fd::from(socket);
            socket.set_tcp();
            receive(engine, sockets, socket);
        }
        Payload::Buf(_) if result.is_ok_and(|count| count > 0) => {
            let Some(socket) = sockets.get(key).and_then(|socket| socket.clone()) else { return };
            let mut data = Segments::new();
            data.push(Source::Static(RESPONSE));
            let send = Op::Net(NetOp::Send { socket: socket.clone(), data, more: false, zero_copy: false });
            submit(engine, send, NO_TOKEN);
            if !more {
                sockets.remove(key);
                receive(engine, sockets, socket);
            }
        }
        _ if !more && sockets.get(key).is_some() => sockets.remove(key),
        _ => {}
    }
}

fn accept(engine: &mut dyn Engine, listener: &Fd) {
    submit(engine, Op::Net(NetOp::Accept { listener: listener.clone(), multishot: false }), NO_TOKEN);
}

fn receive(engine: &mut dyn Engine, sockets: &mut Sockets, socket: Fd) {
    let (key, place) = sockets.insert();
    *place = Some(socket.clone());
    submit(engine, Op::Net(NetOp::Recv { socket, into: RecvInto::Stream }), key.pack());
}

/// Submits an operation. The table of operations is larger than the number of connections of a benchmark.
fn submit(engine: &mut dyn Engine, op: Op, token: u64) {
    let _submitted = engine.submit(op, token);
}
