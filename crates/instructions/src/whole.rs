//! Complete requests, from the first byte sent by a client to the last byte received: a file, a proxied response without and with
//! traces, a proxied upload, and a response from the cache's memory.
//!
//! One thread is the client, the origin and the server: it writes to a unix socket, runs turns of the event loop, and
//! reads. So no step waits, and each repetition has the same turns. The system calls of the client and the origin add a
//! few instructions to the count, which excludes the kernel. The engine is epoll with blocking reads, because valgrind
//! does not support io_uring, and the timing of pool threads would vary.

use std::error::Error;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use ::io::engine::{DRAIN_DEFAULT, EngineConfig, NetKind};
use conf::{MapLoader, Source};
use exchange::files::root_facts;
use exchange::thread::{ConfigVersion, Thread};
use frontend::accept::ThreadListeners;
use frontend::quic::Steering;
use peers::Upstreams;
use rt::Runtime;
use site::settings::listen::ListenAddr;
use site::shared_zone::Zones;
use telemetry::files::LogFiles;
use telemetry::shared::Shared;

use crate::streams;

/// All workloads, each with directives of `http` and the location of its server.
pub(crate) const ALL: [(Workload, &str, &str); 13] = [
    (course_static, "", ""),
    (course_streams, "", ""),
    (course_counted, "", "location = /metrics { metrics; }"),
    (course_proxied, "", "proxy_pass http://origin;"),
    (course_trace_off, COLLECTOR, "proxy_pass http://origin;"),
    (course_trace_1, COLLECTOR, "proxy_pass http://origin; otel_trace 1%;"),
    (course_trace_field, COLLECTOR, "proxy_pass http://origin; otel_trace 1%; otel_trace_context propagate;"),
    (
        course_trace_split,
        SPLIT,
        "proxy_pass http://origin; otel_trace $sampled; otel_trace_context propagate;",
    ),
    (course_trace_dead, DEAD, "proxy_pass http://origin; otel_trace 1%;"),
    (course_trace_on, COLLECTOR, "proxy_pass http://origin; otel_trace on;"),
    (course_upload, "", "proxy_pass http://origin; client_body_buffer_size 64k;"),
    (
        course_hit,
        "",
        "proxy_pass http://origin; proxy_cache hits; add_header X-Cache $upstream_cache_status;",
    ),
    (
        course_hit_of_file,
        "",
        "proxy_pass http://origin; proxy_cache files; add_header X-Cache $upstream_cache_status;",
    ),
];

/// A collector, which responds in another thread.
const COLLECTOR: &str = "otel_exporter { endpoint unix:/proc/self/cwd/collector; protocol http; }";

/// A collector that cannot be reached.
const DEAD: &str = "otel_exporter { endpoint unix:/proc/self/cwd/nobody; protocol http; }";

/// The share of requests as in `examples/tracing`.
const SPLIT: &str = "otel_exporter { endpoint unix:/proc/self/cwd/collector; protocol http; } \
    split_clients $otel_trace_id $sampled { 1% on; * off; }";

/// A workload of requests to a running server.
pub(crate) type Workload = fn(&mut Server, u32);

/// A file from the page cache.
#[inline(never)]
fn course_static(server: &mut Server, repetitions: u32) {
    server.requests(repetitions, REQUEST, &["200 OK", "text/html", "Last-Modified"]);
}

/// Ten concurrent requests for the file by HTTP/2, on streams of one connection.
#[inline(never)]
fn course_streams(server: &mut Server, repetitions: u32) {
    server.streams(repetitions);
}

/// A file by HTTP/1, with requests counted for `metrics`. The difference to [`course_static`] is the cost of counting.
#[inline(never)]
fn course_counted(server: &mut Server, repetitions: u32) {
    server.requests(repetitions, REQUEST, &["200 OK", "text/html", "Last-Modified"]);
    std::hint::black_box(());
}

/// A response of an origin over a keep-alive connection.
#[inline(never)]
fn course_proxied(server: &mut Server, repetitions: u32) {
    server.requests(repetitions, REQUEST, &["200 OK", "text/html", "ETag"]);
}

/// A proxied response of a server with a collector, in a location without traces. The differences of this and the following to
/// [`course_proxied`] are the costs of traces.
#[inline(never)]
fn course_trace_off(server: &mut Server, repetitions: u32) {
    server.requests(repetitions, REQUEST, &["200 OK", "text/html", "ETag"]);
    std::hint::black_box(0);
}

/// The same with a trace of 1 % of the requests, which do not have the trace context in their fields.
#[inline(never)]
fn course_trace_1(server: &mut Server, repetitions: u32) {
    server.requests(repetitions, REQUEST, &["200 OK", "text/html", "ETag"]);
    std::hint::black_box(1);
}

/// The same with a trace of 1 % of the requests, and with the trace context in the fields for the origin.
#[inline(never)]
fn course_trace_field(server: &mut Server, repetitions: u32) {
    server.requests(repetitions, REQUEST, &["200 OK", "text/html", "ETag"]);
    std::hint::black_box(5);
}

/// The same with a trace of 1 % of the requests, chosen by a variable, and with the trace context in the fields for the origin.
#[inline(never)]
fn course_trace_split(server: &mut Server, repetitions: u32) {
    server.requests(repetitions, REQUEST, &["200 OK", "text/html", "ETag"]);
    std::hint::black_box(2);
}

/// The same as [`course_trace_1`], with a collector that cannot be reached.
#[inline(never)]
fn course_trace_dead(server: &mut Server, repetitions: u32) {
    server.requests(repetitions, REQUEST, &["200 OK", "text/html", "ETag"]);
    std::hint::black_box(3);
}

/// The same with a trace of each request.
#[inline(never)]
fn course_trace_on(server: &mut Server, repetitions: u32) {
    server.requests(repetitions, REQUEST, &["200 OK", "text/html", "ETag"]);
    std::hint::black_box(4);
}

/// A request with a body of 16 KiB, which is buffered in memory before it is passed on.
#[inline(never)]
fn course_upload(server: &mut Server, repetitions: u32) {
    let upload = [UPLOAD, &[b'u'; UPLOAD_LEN - HEAD_END.len()], HEAD_END].concat();
    server.requests(repetitions, &upload, &["200 OK", "text/html", "ETag"]);
}

/// A response from the cache, with its body in memory (`memory=`).
#[inline(never)]
fn course_hit(server: &mut Server, repetitions: u32) {
    server.requests(repetitions, REQUEST, &["200 OK", "text/html", "ETag", "X-Cache: HIT"]);
}

/// The same without `memory=`: the content of the open file of the entry is retained, and fstat(2) checks the file.
#[inline(never)]
fn course_hit_of_file(server: &mut Server, repetitions: u32) {
    server.requests(repetitions, REQUEST, &["200 OK", "text/html", "ETag", "X-Cache: HIT"]);
    std::hint::black_box(());
}

/// The request of the client.
const REQUEST: &[u8] = b"GET /page.html HTTP/1.1\r\nHost: www.example.org\r\nUser-Agent: client/1.0\r\n\
    Accept: text/html,*/*;q=0.8\r\nAccept-Encoding: gzip\r\n\r\n";

/// The header section of an upload.
const UPLOAD: &[u8] = b"POST /page.html HTTP/1.1\r\nHost: www.example.org\r\nUser-Agent: client/1.0\r\n\
    Accept: */*\r\nContent-Type: application/octet-stream\r\nContent-Length: 16384\r\n\r\n";

/// Length of an upload's body in bytes.
const UPLOAD_LEN: usize = 16384;

/// The end of a header section. An upload's body ends with the same bytes, by which the origin recognises its end too.
const HEAD_END: &[u8] = b"\r\n\r\n";

/// The header section of the origin's response.
const REPLY: &[u8] = b"HTTP/1.1 200 OK\r\nServer: origin\r\nDate: Sun, 22 Nov 2026 10:00:00 GMT\r\n\
    Content-Type: text/html\r\nContent-Length: 2048\r\nCache-Control: public, max-age=864000000\r\n\
    ETag: \"6561f2a0-1a2b\"\r\n\r\n";

/// The end of the body, by which a complete response is recognised.
const END: &[u8] = b"</html>\n";

/// Length of the body in bytes.
const BODY_LEN: usize = 2048;

/// Returns a small page.
fn body() -> Vec<u8> {
    let mut body = vec![b'x'; BODY_LEN - END.len()];
    body.extend_from_slice(END);
    body
}

/// Maximum number of responses before the expected one, until the cache has stored it.
const TRIES_MAX: u32 = 1000;

/// The time of day during all requests, in seconds since 1970: that of the origin's `Date`. A clock that runs would change
/// the server's `Date` in each second, and each change is a further entry in the HPACK table that later responses search.
const TIME: Duration = Duration::from_secs(1_795_341_600);

/// A server with its executor, its client and its origin. It is started before counting and ended afterwards, because
/// the cost of both depends on the machine.
pub(crate) struct Server {
    runtime: Runtime,
    parts: Parts,
    /// Removed after all other fields have been dropped.
    _directory: Directory,
}

impl Server {
    /// Starts a server with this location.
    pub(crate) fn start(http: &str, location: &str) -> Result<Server, Box<dyn Error>> {
        let directory = Directory::new()?;
        let engine = EngineConfig { net: NetKind::Epoll, disk_ring: false, ..EngineConfig::default() };
        let mut runtime = Runtime::new(::io::build(engine)?);
        let parts = runtime.block_on(async {
            rt::fix_wall(SystemTime::UNIX_EPOCH + TIME);
            Parts::start(Path::new(Directory::PATH), http, location)
        })?;
        Ok(Server { runtime, parts, _directory: directory })
    }

    /// Sends the request until a response contains all of `expected`, and then `repetitions` times.
    fn requests(&mut self, repetitions: u32, request: &[u8], expected: &[&str]) {
        let parts = &mut self.parts;
        let done: io::Result<()> = self.runtime.block_on(async {
            // The cache stores its entry later, in separate threads.
            for _ in 0..TRIES_MAX {
                if parts.request(request).await?.holds(expected) {
                    break;
                }
                rt::sleep_until(rt::now() + Duration::from_millis(1)).await;
            }
            for _ in 0..repetitions {
                parts.request(request).await?;
            }
            assert!(parts.request(request).await?.holds(expected), "a response should contain {expected:?}");
            Ok(())
        });
        done.expect("the only client and the only origin stay connected");
    }

    /// Makes HTTP/2 requests.
    fn streams(&mut self, repetitions: u32) {
        let parts = &mut self.parts;
        let done: io::Result<()> = self.runtime.block_on(async {
            for _ in 0..repetitions {
                parts.streams().await?;
            }
            Ok(())
        });
        done.expect("the only client stays connected");
    }

    /// Ends all state that could affect the next server: the cache saves its index, and releases its directory.
    pub(crate) fn end(mut self) {
        self.runtime.block_on(self.parts.end());
        self.runtime.shutdown(Instant::now() + DRAIN_DEFAULT);
    }
}

/// A single-threaded server, its client and its origin.
struct Parts {
    thread: Rc<Thread>,
    /// The server's listeners.
    listeners: ThreadListeners,
    /// The client's connection.
    client: UnixStream,
    /// State of the client, if it uses HTTP/2.
    http2: streams::Client,
    /// Listener of the origin.
    origin: UnixListener,
    /// The server's keep-alive connection to the origin.
    link: Option<UnixStream>,
    /// The request received by the origin.
    asked: Vec<u8>,
    /// The complete response of the origin.
    reply: Vec<u8>,
    /// The received part of a response, and its length.
    received: Vec<u8>,
    length: usize,
}

impl Parts {
    /// Sets up the state of a server thread like `server::process`, but in this thread: callgrind has a call stack per
    /// thread, so it would not attribute another thread's instructions to the workload.
    fn start(directory: &Path, http: &str, location: &str) -> Result<Parts, Box<dyn Error>> {
        std::fs::write(directory.join("page.html"), body())?;
        let text = configuration(directory, http, location);
        let loader: MapLoader = [("/nginx.conf", text)].into_iter().collect();
        let config = site::config::load(
            modules::all().declarations(),
            &Source::new("/nginx.conf"),
            directory,
            &loader,
        )?
        .config;
        collect_spans(UnixListener::bind(directory.join("collector"))?);
        config.http.zones.begin(&Zones::default());
        config.http.of::<Upstreams>().begin(&Upstreams::default());
        // Log lines go to /dev/null, so that the disk has no influence.
        let log =
            |name| Ok((directory.join(name), OwnedFd::from(File::options().append(true).open("/dev/null")?)));
        let logs: io::Result<Vec<_>> = ["access.log", "error.log"].into_iter().map(log).collect();
        let version = ConfigVersion::new(modules::all(), &config, root_facts(&config), 1, Arc::new(()));
        let files = LogFiles::new(1, false);
        let thread = Rc::new(Thread::new(Arc::new(Shared::default()), version, files, logs?));
        let origin = listener(&directory.join("origin"))?;
        let mut listeners = ThreadListeners::new(&thread, true, Steering::default(), Arc::default());
        let front = directory.join("front");
        listeners.open(vec![(ListenAddr::Unix(front.clone()), vec![OwnedFd::from(listener(&front)?)])]);
        thread.begin();
        let client = UnixStream::connect(&front)?;
        client.set_nonblocking(true)?;
        let reply = [REPLY, &body()].concat();
        let (asked, received) = (vec![0; 2 * UPLOAD_LEN], vec![0; 32768]);
        let http2 = streams::Client::default();
        Ok(Parts { thread, listeners, client, http2, origin, link: None, asked, reply, received, length: 0 })
    }

    /// Makes one request and waits for its response.
    async fn request(&mut self, request: &[u8]) -> io::Result<&Parts> {
        self.client.write_all(request)?;
        self.length = 0;
        while !self.received[..self.length].ends_with(END) {
            rt::yield_now().await;
            self.answer()?;
            self.length += read(&mut self.client, &mut self.received[self.length..])?;
        }
        Ok(self)
    }

    /// Makes concurrent HTTP/2 requests and waits for their responses.
    async fn streams(&mut self) -> io::Result<()> {
        let before = self.http2.body;
        self.http2.ask(&mut self.client)?;
        while !self.http2.is_served() {
            rt::yield_now().await;
            let length = read(&mut self.client, &mut self.received)?;
            self.http2.take(&self.received[..length], &mut self.client)?;
        }
        assert_eq!(
            self.http2.body - before,
            streams::AT_ONCE as usize * BODY_LEN,
            "all responses are complete"
        );
        Ok(())
    }

    /// Whether the response contains these words.
    fn holds(&self, expected: &[&str]) -> bool {
        let text = String::from_utf8_lossy(&self.received[..self.length]);
        expected.iter().all(|words| text.contains(words))
    }

    /// The origin's side: accepts, reads requests and sends responses.
    fn answer(&mut self) -> io::Result<()> {
        let Some(link) = &mut self.link else {
            if let Ok((link, _)) = self.origin.accept() {
                link.set_nonblocking(true)?;
                self.link = Some(link);
            }
            return Ok(());
        };
        let length = read(link, &mut self.asked)?;
        if length > 0 {
            assert!(self.asked[..length].ends_with(HEAD_END), "a request arrives in one read");
            link.write_all(&self.reply)?;
        }
        Ok(())
    }

    /// Ends the server.
    async fn end(mut self) {
        self.listeners.close_all();
        self.thread.drain();
        drop(self.client);
        caching::tasks::ended(&self.thread).await;
    }
}

/// Starts a collector of OTLP/HTTP, which accepts everything. Its thread is not counted, and ends with the process.
fn collect_spans(listener: UnixListener) {
    std::thread::spawn(move || {
        let mut received = vec![0; 1 << 20];
        for link in listener.incoming() {
            let Ok(mut link) = link else { return };
            let _ = collect(&mut link, &mut received);
        }
    });
}

/// Responds to the requests of a connection.
fn collect(link: &mut UnixStream, received: &mut [u8]) -> io::Result<()> {
    let mut length = 0;
    loop {
        match link.read(&mut received[length..])? {
            0 => return Ok(()),
            more => length += more,
        }
        let Some(end) = received[..length].windows(HEAD_END.len()).position(|bytes| bytes == HEAD_END) else {
            continue;
        };
        let head = String::from_utf8_lossy(&received[..end]);
        let body = head.lines().find_map(|line| line.strip_prefix("Content-Length: ")?.parse::<usize>().ok());
        if length >= end + HEAD_END.len() + body.unwrap_or_default() {
            link.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")?;
            length = 0;
        }
    }
}

/// Reads the available bytes; fails if the peer has closed the connection.
fn read(from: &mut UnixStream, into: &mut [u8]) -> io::Result<usize> {
    match from.read(into) {
        Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(0),
        read => read,
    }
}

/// Creates a non-blocking listener, which is polled in each turn.
fn listener(path: &Path) -> io::Result<UnixListener> {
    let listener = UnixListener::bind(path)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Returns a configuration with a buffered log, and with connections that stay open for all repetitions. The file is
/// opened only once, because valgrind does not support openat2(2): each open would execute other code than a server
/// without valgrind.
fn configuration(directory: &Path, http: &str, location: &str) -> String {
    let directory = directory.display();
    format!(
        "error_log {directory}/error.log; \
        events {{ use epoll; }} \
        http {{ \
            access_log {directory}/access.log combined buffer=64k; \
            proxy_cache_path {directory}/cache keys_zone=hits:1m memory=4m; \
            proxy_cache_path {directory}/files keys_zone=files:1m; \
            types {{ text/html html; }} \
            {http} \
            proxy_http_version 1.1; \
            proxy_set_header Connection ''; \
            upstream origin {{ server unix:{directory}/origin; keepalive 4; keepalive_requests 1000000; }} \
            server {{ \
                listen unix:{directory}/front; \
                http2 on; \
                keepalive_requests 1000000; \
                root {directory}; \
                open_file_cache max=100; \
                open_file_cache_valid 1h; \
                location / {{ {location} }} \
            }} \
        }}"
    )
}

/// A new directory, removed at the end, which is the working directory of the process.
struct Directory(PathBuf);

impl Directory {
    /// The same path on every machine, because hashing and comparing a longer path takes more instructions. A long path
    /// could also exceed the limit of unix sockets.
    const PATH: &str = "/proc/self/cwd";

    fn new() -> io::Result<Directory> {
        let path = std::env::temp_dir().join(format!("ringroad-instructions-{}", std::process::id()));
        // A directory left by a process with the same id.
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir(&path)?;
        std::env::set_current_dir(&path)?;
        Ok(Directory(path))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
