//! Clients that send numbered requests over TLS without a pause, while a test reloads, drains, kills or replaces the
//! server.
//!
//! Each client has one connection at a time. Its requests alternate between a small response, a file of many records,
//! an HTTP/1 upstream, and gRPC (over HTTP/2). A response counts only if it is complete and has the number of its
//! request.
//!
//! **Could be served** means the following. [`Load::run`] panics at the first request that fails although it could be
//! served:
//!
//! * The first request of a new connection, its handshake included, could always be served.
//! * A request whose response has begun could always be completed.
//! * HTTP/1: the server may close a connection between two responses. A request that crosses this close was not begun
//!   (RFC 9112 section 9.5): the client repeats it on a new connection, where it could be served.
//! * HTTP/2: requests up to the last stream of the final GOAWAY could be served, and a connection does not end without
//!   GOAWAY. Requests above it were not begun (RFC 9113 section 6.8): the client repeats them.
//! * For each killed worker ([`Load::kill`]) a client may lose one connection with its requests in flight, at any
//!   point. The client repeats them on a new connection, where they could be served.
//!
//! [`Load::run`] returns the numbers of the served requests. [`served_once`] compares them with the access log: a
//! request that a client repeated because it was not begun appears only once.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};
use testkit::{Deadline, Origin, Reply, wait};

use super::http2::{DATA, END, Fields, HEADERS, Http2, WHOLE, block, frame};
use super::http2_origin::Http2Origin;
use super::tls::{Authority, BOTH};

/// Protocol of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    /// HTTP/1 with keep-alive.
    Http1,
    /// HTTP/1 with one request on each connection.
    Close,
    /// HTTP/2 with [`STREAMS`] concurrent requests, some of them gRPC.
    Http2,
}

const CLIENTS: [Protocol; 5] =
    [Protocol::Http1, Protocol::Http1, Protocol::Close, Protocol::Http2, Protocol::Http2];

/// Number of concurrent requests of an HTTP/2 client.
const STREAMS: usize = 4;

/// Number of responses after which a client counts as served.
const ENOUGH: usize = 12;

/// Bytes of the file that clients request.
pub(crate) const FILE_LEN: usize = 100_000;

/// Body of a gRPC message without content: no compression, length 0.
const MESSAGE: [u8; 5] = [0; 5];

/// Returns the directives of a TLS server for these clients; `conf/a.pem`, `conf/a.key` and `html/file` must exist.
pub(crate) fn server(upstreams: &Upstreams) -> String {
    let (http1, grpc) = (upstreams.http1.addr(), upstreams.grpc.address());
    format!(
        "http2 on; ssl_certificate a.pem; ssl_certificate_key a.key; access_log logs/access.log;\n\
         add_header X-Number $arg_n always;\n\
         location = /file {{ root html; }}\n\
         location = /small {{ return 200 $arg_n; }}\n\
         location = /passed {{ proxy_pass http://{http1}; proxy_http_version 1.1; proxy_set_header Connection ''; }}\n\
         location /calls.Calls/ {{ grpc_pass grpc://{grpc}; }}\n"
    )
}

/// The upstreams of [`server`].
pub(crate) struct Upstreams {
    http1: Origin,
    grpc: Http2Origin,
}

impl Upstreams {
    pub(crate) fn start() -> Upstreams {
        let grpc = Http2Origin::answering(|conn, asked| {
            conn.head(asked.stream, 200, &[("content-type", "application/grpc")], false);
            conn.data(asked.stream, &MESSAGE, false);
            conn.trailers(asked.stream, &[("grpc-status", "0")]);
        });
        Upstreams { http1: Origin::start(|_| Reply::text("passed")), grpc }
    }
}

/// The state that the clients share.
pub(crate) struct Load {
    /// Address of new connections.
    address: Mutex<SocketAddr>,
    http1: Arc<ClientConfig>,
    http2: Arc<ClientConfig>,
    is_over: AtomicBool,
    /// Number of workers that were killed.
    kills: AtomicUsize,
    /// Number of kills after which each client has been served again.
    survived: AtomicUsize,
    /// Numbers of responses of each client.
    counts: [AtomicUsize; CLIENTS.len()],
}

impl Load {
    /// Prepares clients of the server `a.test` at this address.
    pub(crate) fn new(authority: &Authority, address: SocketAddr) -> Load {
        let http1 = authority.clients(BOTH, None);
        let mut http2 = ClientConfig::clone(&http1);
        http2.alpn_protocols = vec![b"h2".to_vec()];
        Load {
            address: Mutex::new(address),
            http1,
            http2: Arc::new(http2),
            is_over: AtomicBool::new(false),
            kills: AtomicUsize::new(0),
            survived: AtomicUsize::new(0),
            counts: Default::default(),
        }
    }

    /// Runs the clients during `action`, and until each of them has been served before and after it. Returns the
    /// numbers of all served requests.
    #[track_caller]
    pub(crate) fn run(&self, action: impl FnOnce()) -> BTreeSet<u64> {
        std::thread::scope(|scope| {
            let clients: Vec<_> =
                (0..CLIENTS.len()).map(|index| scope.spawn(move || Client::new(self, index).run())).collect();
            // Ends the clients also if the action panics.
            let end = End(&self.is_over);
            let is_failed = || self.is_over.load(Ordering::SeqCst);
            self.each_is_served();
            if !is_failed() {
                action();
                self.each_is_served();
            }
            drop(end);
            let mut served = BTreeSet::new();
            for client in clients {
                match client.join().expect("a client does not panic") {
                    Ok(numbers) => served.extend(numbers),
                    Err(failure) => panic!("{failure}"),
                }
            }
            served
        })
    }

    /// Waits until each client has received further responses, or one has failed.
    pub(crate) fn each_is_served(&self) {
        let counts = || self.counts.each_ref().map(|count| count.load(Ordering::SeqCst));
        let before = counts();
        let served = wait::until("each client's responses", Deadline::default(), || {
            let is_served = counts().iter().zip(before).all(|(now, before)| *now >= before + ENOUGH);
            (is_served || self.is_over.load(Ordering::SeqCst)).then_some(())
        });
        served.unwrap_or_else(|late| panic!("{late}: {before:?}, then {:?}", counts()));
    }

    /// Kills a worker by `kill`, and waits until each client is served again.
    pub(crate) fn kill(&self, kill: impl FnOnce()) {
        self.kills.fetch_add(1, Ordering::SeqCst);
        kill();
        self.each_is_served();
        self.survived.fetch_add(1, Ordering::SeqCst);
    }

    /// Directs new connections to another address, as a load balancer does.
    pub(crate) fn move_to(&self, address: SocketAddr) {
        *self.address.lock().expect("no panic") = address;
    }
}

/// Ends the clients when dropped.
struct End<'l>(&'l AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Asserts that the access log has each served request once, and no other request. `log` returns its text; a
/// response's line may be written after the client has received it.
#[track_caller]
pub(crate) fn served_once(served: &BTreeSet<u64>, log: impl Fn() -> String) {
    let written = || log().lines().count() >= served.len();
    let complete = wait::until("the access log", Deadline::default(), || written().then_some(()));
    complete.unwrap_or_else(|late| panic!("{late}: {} of {}", log().lines().count(), served.len()));
    let mut left = served.clone();
    for line in log().lines() {
        let number = line.split_once("?n=").and_then(|(_, rest)| rest.split(' ').next()?.parse().ok());
        let is_expected = line.contains("\" 200 ") && number.is_some_and(|number| left.remove(&number));
        assert!(is_expected, "no request, or a duplicate line: {line}");
    }
    assert!(left.is_empty(), "not in the log: {left:?}");
}

/// The end of a connection.
enum Ended {
    /// The test is over.
    Over,
    /// The server closed the connection where it may. These requests were not begun.
    Closed(Vec<u64>),
    /// The connection was lost, with these requests in flight.
    Lost(Vec<u64>, Error),
}

/// One client.
struct Client<'l> {
    load: &'l Load,
    index: usize,
    protocol: Protocol,
    /// Number of requests so far.
    begun: u64,
    /// Requests to repeat.
    waiting: VecDeque<u64>,
    served: Vec<u64>,
    /// Number of kills when the last connection was lost.
    lost_at: usize,
}

/// The outcome of a client: the numbers of its served requests, or a description of its failure.
type Outcome<T> = std::result::Result<T, String>;

impl<'l> Client<'l> {
    fn new(load: &'l Load, index: usize) -> Client<'l> {
        let (waiting, served) = (VecDeque::new(), Vec::new());
        Client { load, index, protocol: CLIENTS[index], begun: 0, waiting, served, lost_at: 0 }
    }

    fn run(mut self) -> Outcome<Vec<u64>> {
        // A failure ends all clients.
        let _end = End(&self.load.is_over);
        loop {
            let ended = match self.protocol {
                Protocol::Http2 => self.on_http2()?,
                Protocol::Http1 | Protocol::Close => self.on_http1()?,
            };
            match ended {
                Ended::Over => return Ok(self.served),
                Ended::Closed(numbers) => self.waiting.extend(numbers),
                Ended::Lost(numbers, error) => {
                    if !self.may_lose() {
                        let kills = self.lost_at;
                        return Err(self.failure(format_args!("{error} during {numbers:?}, {kills} kills")));
                    }
                    self.lost_at = self.load.kills.load(Ordering::SeqCst);
                    self.waiting.extend(numbers);
                }
            }
        }
    }

    fn failure(&self, what: std::fmt::Arguments<'_>) -> String {
        let (index, protocol, served) = (self.index, self.protocol, self.served.len());
        format!("client {index} ({protocol:?}) after {served} responses: {what}")
    }

    fn is_over(&self) -> bool {
        self.load.is_over.load(Ordering::SeqCst) && self.waiting.is_empty()
    }

    /// Returns the number of the next request.
    fn next(&mut self) -> u64 {
        self.waiting.pop_front().unwrap_or_else(|| {
            self.begun += 1;
            self.index as u64 * 1_000_000 + self.begun
        })
    }

    /// Counts a response, and checks that it is complete.
    fn check(&mut self, number: u64, response: &Response<'_>) -> Outcome<()> {
        let field = |name: &str| {
            let found = response.fields.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
            found.map(|(_, value)| value.as_str())
        };
        let path = path(self.protocol, number);
        let is_complete = match path {
            "/small" => response.body == number.to_string().as_bytes(),
            "/file" => response.body.len() == FILE_LEN,
            "/passed" => response.body == b"passed",
            _ => {
                let is_ok = |(name, value): &(String, String)| name == "grpc-status" && value == "0";
                response.body == MESSAGE && response.trailers.iter().any(is_ok)
            }
        };
        if response.status != 200 || field("x-number") != Some(number.to_string().as_str()) || !is_complete {
            let (status, len) = (response.status, response.body.len());
            return Err(self.failure(format_args!("{path} {number}: status {status}, {len} bytes")));
        }
        self.served.push(number);
        self.load.counts[self.index].fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    /// Opens a connection, before the handshake.
    fn connect(&self, config: &Arc<ClientConfig>) -> Result<Wire> {
        let socket = TcpStream::connect(*self.load.address.lock().expect("no panic"))?;
        socket.set_read_timeout(Deadline::default().left())?;
        socket.set_nodelay(true)?;
        let name = ServerName::try_from("a.test").expect("a name");
        let session = ClientConnection::new(Arc::clone(config), name).expect("a session");
        Ok(Wire { session, socket })
    }

    /// Sends requests on an HTTP/1 connection until it ends.
    fn on_http1(&mut self) -> Outcome<Ended> {
        if self.is_over() {
            return Ok(Ended::Over);
        }
        let mut wire = match self.connect(&self.load.http1) {
            Ok(wire) => wire,
            Err(error) => return Ok(Ended::Lost(Vec::new(), error)),
        };
        let (mut received, mut is_first) = (Vec::new(), true);
        while !self.is_over() {
            let number = self.next();
            let more = if self.protocol == Protocol::Close { "Connection: close\r\n" } else { "" };
            let target = path(self.protocol, number);
            let request = format!("GET {target}?n={number} HTTP/1.1\r\nHost: a.test\r\n{more}\r\n");
            let sent = wire.write_all(request.as_bytes());
            let head = match sent.and_then(|()| read_response(&mut wire, &mut received)) {
                Ok(head) => head,
                // The connection had an earlier response, and ends before the first byte of this one.
                Err(error) if is_end(&error) && received.is_empty() && !is_first && !self.may_lose() => {
                    return Ok(Ended::Closed(vec![number]));
                }
                Err(error) => return Ok(Ended::Lost(vec![number], error)),
            };
            let end = head.len + head.content_length;
            let body = &received[head.len..end];
            let response = Response { status: head.status, fields: &head.fields, body, trailers: &[] };
            self.check(number, &response)?;
            received.drain(..end);
            is_first = false;
            if head.is_last {
                return Ok(Ended::Closed(Vec::new()));
            }
        }
        Ok(Ended::Over)
    }

    /// Returns whether a worker is being killed, and this client has not yet lost a connection because of it.
    fn may_lose(&self) -> bool {
        let kills = self.load.kills.load(Ordering::SeqCst);
        kills > self.lost_at && kills > self.load.survived.load(Ordering::SeqCst)
    }

    /// Sends concurrent requests on an HTTP/2 connection until it ends.
    fn on_http2(&mut self) -> Outcome<Ended> {
        if self.is_over() {
            return Ok(Ended::Over);
        }
        let connected = self.connect(&self.load.http2).and_then(|wire| Http2::try_over(wire, &[]));
        let mut client = match connected {
            Ok(client) => client,
            Err(error) => return Ok(Ended::Lost(Vec::new(), error)),
        };
        let (mut open, mut is_first) = (BTreeMap::<u32, u64>::new(), true);
        loop {
            let is_leaving = !client.goaways.is_empty();
            while open.len() < STREAMS && !is_leaving && !self.is_over() {
                let number = self.next();
                let stream = client.next_stream();
                open.insert(stream, number);
                // The end of the connection is seen by reading.
                let _ = client.try_send(&request(stream, number));
            }
            let is_complete = |stream: &u32| client.streams.get(stream).is_some_and(|got| got.ended);
            let complete: Vec<u32> = open.keys().copied().filter(is_complete).collect();
            for stream in complete {
                let (number, got) = (open.remove(&stream), client.streams.remove(&stream));
                let (Some(number), Some(got)) = (number, got) else { continue };
                let (fields, trailers) = (&got.fields, &got.trailers);
                let response = Response { status: got.status, fields, body: &got.body, trailers };
                self.check(number, &response)?;
                is_first = false;
            }
            if let Some((stream, got)) = client.streams.iter().find(|(_, got)| got.reset.is_some()) {
                return Err(self.failure(format_args!("stream {stream} was reset: {got:?}")));
            }
            if open.is_empty() && self.is_over() {
                return Ok(Ended::Over);
            }
            let last = client.goaways.last().copied();
            if let Some((last, code)) = last
                && open.keys().all(|stream| *stream > last)
            {
                let not_begun: Vec<u64> = open.into_values().collect();
                if code != 0 || is_first {
                    return Err(self.failure(format_args!("GOAWAY with code {code} for {not_begun:?}")));
                }
                return Ok(Ended::Closed(not_begun));
            }
            if !open.is_empty()
                && let Err(error) = client.read_frame()
            {
                return Ok(Ended::Lost(open.into_values().collect(), error));
            }
        }
    }
}

/// Returns whether the error is the end of the connection, not a timeout or a TLS error.
fn is_end(error: &Error) -> bool {
    use ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
}

/// Returns the path of a request.
fn path(protocol: Protocol, number: u64) -> &'static str {
    match (number % 4, protocol) {
        (0, _) => "/file",
        (1, _) => "/passed",
        (2, Protocol::Http2) => "/calls.Calls/Unary",
        _ => "/small",
    }
}

/// Returns the frames of an HTTP/2 request.
fn request(stream: u32, number: u64) -> Vec<u8> {
    let path = path(Protocol::Http2, number);
    let is_call = path.starts_with("/calls");
    let target = format!("{path}?n={number}");
    let method = if is_call { "POST" } else { "GET" };
    let mut fields =
        vec![(":method", method), (":scheme", "https"), (":path", &target), (":authority", "a.test")];
    if !is_call {
        return frame(HEADERS, WHOLE | END, stream, &block(&fields));
    }
    fields.extend([("content-type", "application/grpc"), ("te", "trailers")]);
    [frame(HEADERS, WHOLE, stream, &block(&fields)), frame(DATA, END, stream, &MESSAGE)].concat()
}

/// A received response.
struct Response<'r> {
    status: u16,
    fields: &'r Fields,
    body: &'r [u8],
    trailers: &'r [(String, String)],
}

/// The header section of an HTTP/1 response.
struct Head {
    status: u16,
    fields: Fields,
    /// Bytes of the header section.
    len: usize,
    content_length: usize,
    /// Whether the server closes the connection after the response.
    is_last: bool,
}

/// Reads a complete response into `received`.
fn read_response(wire: &mut Wire, received: &mut Vec<u8>) -> Result<Head> {
    let mut head: Option<Head> = None;
    loop {
        if head.is_none()
            && let Some(end) = received.windows(4).position(|four| four == b"\r\n\r\n")
        {
            head = Some(parse(&received[..end], end + 4));
        }
        if let Some(head) = head.take_if(|head| received.len() >= head.len + head.content_length) {
            return Ok(head);
        }
        let mut piece = [0; 16_384];
        match wire.read(&mut piece)? {
            0 => return Err(Error::new(ErrorKind::UnexpectedEof, "close_notify")),
            count => received.extend_from_slice(&piece[..count]),
        }
    }
}

fn parse(text: &[u8], len: usize) -> Head {
    let text = String::from_utf8_lossy(text);
    let mut lines = text.split("\r\n");
    let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok()).unwrap_or(0);
    let pair = |line: &str| line.split_once(": ").map(|(name, value)| (name.to_owned(), value.to_owned()));
    let fields: Fields = lines.filter_map(pair).collect();
    let field = |name: &str| {
        fields.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    };
    let content_length = field("content-length").and_then(|value| value.parse().ok());
    let is_last = field("connection") == Some("close");
    let content_length = content_length.expect("all of these responses have a length");
    Head { status, len, content_length, is_last, fields }
}

/// A TLS connection. A failed send is not an error: the server may have closed the connection, and the bytes that it
/// sent before can still be read.
struct Wire {
    session: ClientConnection,
    socket: TcpStream,
}

impl Wire {
    fn send(&mut self) {
        while self.session.wants_write() && self.session.write_tls(&mut self.socket).is_ok() {}
    }
}

impl Read for Wire {
    fn read(&mut self, buf: &mut [u8]) -> Result<usize> {
        loop {
            self.send();
            match self.session.reader().read(buf) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                done => return done,
            }
            self.session.read_tls(&mut self.socket)?;
            self.session.process_new_packets().map_err(Error::other)?;
        }
    }
}

impl Write for Wire {
    fn write(&mut self, buf: &[u8]) -> Result<usize> {
        let count = self.session.writer().write(buf)?;
        self.send();
        Ok(count)
    }

    fn flush(&mut self) -> Result<()> {
        self.send();
        Ok(())
    }
}
