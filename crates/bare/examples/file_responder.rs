//! Lower bound for reads of uncached files: the server's engine, and for each request only the necessary operations. A
//! kernel worker opens the path in the request line. The file is read bypassing the page cache and sent together with
//! its header section in one send. Header fields are not parsed. `ringroad bench load` measures it like a server, which
//! shows the cost of the kernel's part.
//!
//! ```sh
//! cargo run --release -p bare --example file_responder -- 127.0.0.1:8080 /var/www
//! ```

#![allow(clippy::print_stderr, reason = "a command-line tool reports its errors")]

use std::ffi::CString;
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;

use io::engine::EngineConfig;
use io::facts::DeviceId;
use io::op::{OpenHow, RecvInto};
use io::segments::Source;
use io::slab::{Key, Slab};
use io::{Completion, Disk, DiskOp, DiskVia, Engine, Fd, NetOp, Op, Payload, Segments, Wait};
use rustix::fs::OFlags;

const DEVICE: DeviceId = DeviceId(0);
const BLOCK: u64 = 4096;

/// The purpose of an operation, with the index of its connection.
#[derive(Clone, Copy, Default)]
enum Step {
    #[default]
    Nothing,
    Accept,
    Receive(usize),
    Open(usize),
    Read(usize),
    Send(usize),
}

/// A connection, and the file of its response.
struct Connection {
    socket: Fd,
    file: Option<Fd>,
    size: u64,
}

struct Server {
    engine: Box<dyn Engine>,
    listener: Fd,
    root: String,
    steps: Slab<Step>,
    connections: Vec<Connection>,
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().unwrap_or_else(|| "127.0.0.1:8080".to_owned());
    let root = arguments.next().unwrap_or_else(|| ".".to_owned());
    match serve(&address, root) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("responder on {address}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(address: &str, root: String) -> Result<(), Box<dyn std::error::Error>> {
    let listener = Fd::from(OwnedFd::from(TcpListener::bind(address)?));
    // One device may use a quarter of the table of operations.
    let config = EngineConfig {
        recv_buffers: 256,
        recv_buffer_bytes: 4096,
        ops_max: 1 << 14,
        ..EngineConfig::default()
    };
    let mut server = Server {
        engine: io::build(config)?,
        listener,
        root,
        steps: Slab::default(),
        connections: Vec::new(),
    };
    server.accept();
    let mut batch = Vec::new();
    loop {
        server.engine.turn(Wait::Forever, &mut batch)?;
        for completion in batch.drain(..) {
            server.handle(completion);
        }
    }
}

impl Server {
    fn handle(&mut self, completion: Completion) {
        let Completion { token, result, more, payload, .. } = completion;
        let key = Key::unpack(token);
        let step = self.steps.get(key).map_or(Step::Nothing, |step| *step);
        if !more {
            self.steps.remove(key);
        }
        match (step, payload) {
            (Step::Accept, Payload::Accepted(socket)) => {
                self.accept();
                let socket = Fd::from(socket);
                socket.set_tcp();
                self.connections.push(Connection { socket, file: None, size: 0 });
                self.receive(self.connections.len() - 1);
            }
            (Step::Receive(place), Payload::Buf(head)) if result.is_ok_and(|count| count > 0) => {
                self.open(place, &head);
                if !more {
                    self.receive(place);
                }
            }
            (Step::Open(place), Payload::Opened(file)) => self.read(place, file),
            (Step::Open(place), _) => self.refuse(place),
            (Step::Read(place), Payload::Buf(body)) => {
                let size = self.connections[place].size;
                let head = format!(
                    "HTTP/1.1 200 OK\r\nServer: ringroad/0.1.0\r\nDate: Sat, 21 Nov 2026 12:00:00 GMT\r\n\
                     Content-Type: application/octet-stream\r\nContent-Length: {size}\r\nConnection: keep-alive\r\n\r\n"
                );
                let mut data = Segments::new();
                data.push(Source::Vec(head.into_bytes()));
                data.push(Source::Buf(body));
                self.send(place, data);
            }
            (Step::Send(place), _) => {
                if let Some(Ok(fd)) = self.connections[place].file.take().map(Fd::into_owned) {
                    self.submit(Op::Net(NetOp::Close { fd }), Step::Nothing);
                }
            }
            _ => {}
        }
    }

    fn accept(&mut self) {
        self.submit(
            Op::Net(NetOp::Accept { listener: self.listener.clone(), multishot: false }),
            Step::Accept,
        );
    }

    fn receive(&mut self, place: usize) {
        let socket = self.connections[place].socket.clone();
        self.submit(Op::Net(NetOp::Recv { socket, into: RecvInto::Stream }), Step::Receive(place));
    }

    fn open(&mut self, place: usize, head: &[u8]) {
        let path = head.split(|&byte| byte == b' ').nth(1).unwrap_or(b"/");
        let path = CString::new([self.root.as_bytes(), path].concat()).unwrap_or_default();
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::DIRECT;
        let how = OpenHow { flags: flags.bits() as i32, is_cold: true, ..OpenHow::default() };
        self.submit(
            Op::Disk {
                at: Disk { device: DEVICE, via: DiskVia::Ring },
                op: DiskOp::Open { dir: None, path, how },
            },
            Step::Open(place),
        );
    }

    fn read(&mut self, place: usize, file: OwnedFd) {
        let Ok(stat) = rustix::fs::fstat(file.as_fd()) else { return self.refuse(place) };
        let size = stat.st_size as u64;
        let len = size.next_multiple_of(BLOCK);
        let Some(buf) = self.engine.pool().get(len as usize) else { return self.refuse(place) };
        let file = Fd::from(file).opened_with(OFlags::DIRECT);
        let connection = &mut self.connections[place];
        (connection.file, connection.size) = (Some(file.clone()), size);
        let read = Op::Disk {
            at: Disk { device: DEVICE, via: DiskVia::Ring },
            op: DiskOp::Read { file, offset: 0, len: len as u32, buf },
        };
        self.submit(read, Step::Read(place));
    }

    fn refuse(&mut self, place: usize) {
        let mut data = Segments::new();
        data.push(Source::Static(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"));
        self.send(place, data);
    }

    fn send(&mut self, place: usize, data: Segments) {
        let socket = self.connections[place].socket.clone();
        self.submit(Op::Net(NetOp::Send { socket, data, more: false, zero_copy: false }), Step::Send(place));
    }

    /// Submits an operation. The table of operations is larger than the number of connections of a benchmark.
    fn submit(&mut self, op: Op, step: Step) {
        let (key, place) = self.steps.insert();
        *place = step;
        if self.engine.submit(op, key.pack()).is_err() {
            self.steps.remove(key);
        }
    }
}
