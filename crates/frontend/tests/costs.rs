//! Costs of a connection: its size, and the number of allocations per request in the steady state.

use std::net::{TcpListener, TcpStream};
use std::rc::Rc;
use std::sync::Arc;

use io::Segments;
use io::engine::{EngineConfig, NetKind};
use io::segments::Source;
use rt::{Runtime, Socket};
use testkit::TempDir;

use exchange::files::root_facts;
use exchange::request::Address;
use exchange::thread::{ConfigVersion, Thread};
use frontend::listen_socket::ListenSocket;
use frontend::serve::serve;
use modules::testing;
use site::config::Config;
use site::settings::listen::ListenAddr;
use telemetry::files::{LogFiles, Opened};
use telemetry::shared::Shared;

const ROUNDS: u32 = 500;

/// Number of rounds until every buffer has its final size and cached files are open.
const WARM_UP: u32 = 100;

/// A client with a separate connection that the same thread serves.
struct Client {
    socket: Socket,
    request: &'static [u8],
    answer_len: usize,
}

impl Client {
    /// Connects, sends one request, and measures the length of the response.
    #[expect(clippy::disallowed_methods, reason = "to a listening socket of this test")]
    async fn connect(config: &Arc<Config>, request: &'static [u8], body_len: usize) -> Client {
        let version = ConfigVersion::new(modules::all(), config, root_facts(config), 1, Arc::new(()));
        let logs = LogFiles::new(1, true);
        let thread = Rc::new(Thread::new(Arc::new(Shared::default()), version, logs, Opened::default()));
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("a bound socket");
        let peer = TcpStream::connect(address).expect("a listening socket");
        let (served, _) = listener.accept().expect("a connection that was made");
        for socket in [&peer, &served] {
            socket.set_nonblocking(true).expect("a socket");
        }
        let configured = ListenAddr::Tcp(([127, 0, 0, 1], 80).into());
        let listen_socket = Rc::new(ListenSocket::new(configured, Address::Inet(address)));
        let counted = thread.enter();
        rt::spawn(serve(Rc::clone(&thread), listen_socket, served.into(), counted));
        let mut client = Client { socket: Socket::new(peer.into()), request, answer_len: 0 };
        client.send_request().await;
        let first = client.socket.reader.recv().await.expect("a response").expect("a response");
        assert!(first.starts_with(b"HTTP/1.1 200 OK\r\n"), "{}", first.escape_ascii());
        let head_len = first.windows(4).position(|end| end == b"\r\n\r\n").expect("a header section") + 4;
        client.answer_len = head_len + body_len;
        client.receive(client.answer_len - first.len()).await;
        client
    }

    async fn send_request(&mut self) {
        let mut data = Segments::new();
        data.push(Source::Static(self.request));
        let (sent, _) = self.socket.writer.send(data, false).await;
        sent.expect("a keep-alive connection");
    }

    async fn receive(&mut self, len: usize) {
        let mut left = len;
        while left > 0 {
            let bytes = self.socket.reader.recv().await.expect("a response").expect("a complete response");
            left = left.checked_sub(bytes.len()).expect("no more than the response");
        }
    }

    async fn rounds(&mut self, count: u32) {
        for _ in 0..count {
            self.send_request().await;
            self.receive(self.answer_len).await;
        }
    }
}

/// Returns the number of allocations of [`ROUNDS`] requests with this network engine; `None` if it is unavailable.
fn allocations(net: NetKind, config: &Arc<Config>, request: &'static [u8], body_len: usize) -> Option<u64> {
    let mut runtime = Runtime::new(io::build(EngineConfig { net, ..EngineConfig::default() }).ok()?);
    let mut client = runtime.block_on(async {
        let mut client = Client::connect(config, request, body_len).await;
        client.rounds(WARM_UP).await;
        client
    });
    let counted = allocation_counter::measure(|| runtime.block_on(client.rounds(ROUNDS)));
    runtime.block_on(async { drop(client) });
    Some(counted.count_total)
}

#[test]
fn a_request_for_available_content_allocates_little() {
    let folder = TempDir::new("request-allocations");
    std::fs::write(folder.path().join("small"), [b'x'; 1024]).expect("a temporary directory");
    std::fs::write(folder.path().join("large"), vec![b'x'; 300_000]).expect("a temporary directory");
    let config = testing::loaded(&format!(
        "access_log off; keepalive_requests 1000000; server {{
            listen 127.0.0.1:80; root {0};
            location = /return {{ return 200 'a text'; }}
            location = /moved {{ sendfile on; alias {0}/large; }}
        }}",
        folder.path().display()
    ));
    for net in [NetKind::Uring, NetKind::Epoll] {
        // The sends of client and server allocate a list of segments each, whose blocks `thread-alloc` retains in a server. A
        // response sent in pieces has a boxed state, and so have its reads. The header section of its request moves from the receive
        // buffer to memory of its exact size.
        for (request, body_len, each) in [
            (&b"GET /return HTTP/1.1\r\nHost: here\r\nUser-Agent: test\r\n\r\n"[..], 6, 2),
            (b"GET /small HTTP/1.1\r\nHost: here\r\n\r\n", 1024, 2),
            (b"HEAD /small HTTP/1.1\r\nHost: here\r\n\r\n", 0, 2),
            (b"GET /moved HTTP/1.1\r\nHost: here\r\n\r\n", 300_000, 4),
            (b"GET /large HTTP/1.1\r\nHost: here\r\n\r\n", 300_000, 4),
        ] {
            let what = request.split(|&byte| byte == b'\r').next().unwrap_or_default().escape_ascii();
            match allocations(net, &config, request, body_len) {
                // The wall clock, the timer wheel and the waker of `block_on` may cause a few allocations.
                Some(count) => assert!(
                    count <= 8 + each * u64::from(ROUNDS),
                    "{count} allocations in {ROUNDS} times {what} on {net:?}"
                ),
                None => println!("skipped: {net:?} is not available"),
            }
        }
    }
}

/// Many thousands of connections wait at the same time, and the active ones share the CPU cache.
#[test]
fn a_connection_needs_little_memory() {
    fn bytes<A, B, C, D, F: Future>(_: fn(A, B, C, D) -> F) -> usize {
        size_of::<F>()
    }
    assert!(bytes(serve) <= 672, "{} bytes", bytes(serve));
}
