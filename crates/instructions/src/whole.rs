//! Whole requests, from the first byte that a client sends to the last one that it gets: a file, a response that passes
//! through from an origin, and one out of the cache's memory.
//!
//! The piece is the client, the origin and the only thread of the server at once: it writes to a unix socket, lets the
//! executor turn, and reads. So nothing waits, and each repetition takes the same turns. The client and the origin add
//! a few system calls, of which callgrind counts what happens outside of the kernel. The engine is epoll with blocking
//! reads: valgrind knows no ring, and threads of a pool would come when they like.

use std::error::Error;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ::io::engine::{DRAIN_DEFAULT, EngineConfig, NetKind};
use conf::{MapLoader, Source};
use exchange::files::root_facts;
use exchange::settings::listen::ListenAddr;
use exchange::shared_zone::Zones;
use exchange::thread::{ConfigVersion, Thread};
use frontend::accept::Doors;
use rt::Runtime;
use telemetry::files::LogFiles;
use telemetry::shared::Shared;
use upstream::caching;
use upstream::peers::Upstreams;

/// A file, out of the page cache.
#[inline(never)]
pub(crate) fn course_static(repetitions: u32) {
    repeat(repetitions, "", &["200 OK", "text/html", "Last-Modified"]);
}

/// A response of an origin to which a connection is kept.
#[inline(never)]
pub(crate) fn course_proxied(repetitions: u32) {
    repeat(repetitions, "proxy_pass http://origin;", &["200 OK", "text/html", "ETag"]);
}

/// A response out of the cache, with its body in memory.
#[inline(never)]
pub(crate) fn course_hit(repetitions: u32) {
    let location = "proxy_pass http://origin; proxy_cache hits; add_header X-Cache $upstream_cache_status;";
    repeat(repetitions, location, &["200 OK", "text/html", "ETag", "X-Cache: HIT"]);
}

/// What the client sends.
const REQUEST: &[u8] = b"GET /page.html HTTP/1.1\r\nHost: www.example.org\r\nUser-Agent: client/1.0\r\n\
    Accept: text/html,*/*;q=0.8\r\nAccept-Encoding: gzip\r\n\r\n";

/// The head of what the origin sends.
const REPLY: &[u8] = b"HTTP/1.1 200 OK\r\nServer: origin\r\nDate: Sun, 22 Nov 2026 10:00:00 GMT\r\n\
    Content-Type: text/html\r\nContent-Length: 2048\r\nCache-Control: public, max-age=864000000\r\n\
    ETag: \"6561f2a0-1a2b\"\r\n\r\n";

/// The end of the body, by which a response is known to be whole.
const END: &[u8] = b"</html>\n";

/// A small page.
fn body() -> Vec<u8> {
    let mut body = vec![b'x'; 2048 - END.len()];
    body.extend_from_slice(END);
    body
}

/// Requests before those that are compared: connections are made, the cache is filled, tables have grown.
const WARM_UP: u32 = 50;

/// How often a response may be another one than it should become, until the cache has stored it.
const TRIES_MAX: u32 = 1000;

/// Makes requests of a server with this location, after some whose responses come to hold all of `expected`.
fn repeat(repetitions: u32, location: &str, expected: &[&str]) {
    serve(repetitions, location, expected).expect("epoll, unix sockets and temporary files can be had");
}

/// The same, where anything may fail that a machine has to offer.
fn serve(repetitions: u32, location: &str, expected: &[&str]) -> Result<(), Box<dyn Error>> {
    let folder = Folder::new()?;
    let engine = EngineConfig { net: NetKind::Epoll, disk_ring: false, ..EngineConfig::default() };
    let mut runtime = Runtime::new(::io::build(engine)?);
    runtime.block_on(async {
        let mut course = Course::start(&folder.0, location)?;
        // The store writes its entry in threads of its own, when they come to it.
        for _ in 0..TRIES_MAX {
            if course.request().await?.holds(expected) {
                break;
            }
            rt::sleep_until(rt::now() + Duration::from_millis(1)).await;
        }
        for _ in 0..WARM_UP + repetitions {
            course.request().await?;
        }
        assert!(course.request().await?.holds(expected), "{location} should bring {expected:?}");
        course.end().await;
        Ok::<_, Box<dyn Error>>(())
    })?;
    runtime.shutdown(Instant::now() + DRAIN_DEFAULT);
    Ok(())
}

/// A server of one thread, its client and its origin.
struct Course {
    thread: Rc<Thread>,
    /// Where the server accepts.
    doors: Doors,
    /// The only connection of the only client.
    client: UnixStream,
    /// Where the server finds its upstream.
    origin: UnixListener,
    /// The connection that the server keeps to the origin.
    link: Option<UnixStream>,
    /// What the origin sends, as a whole.
    reply: Vec<u8>,
    /// What was received of a response, and how many bytes of it.
    received: Vec<u8>,
    length: usize,
}

impl Course {
    /// What `server::process` does for each of its threads, without the thread: it would be no part of the piece, as
    /// callgrind keeps a stack of calls for each.
    fn start(folder: &Path, location: &str) -> Result<Course, Box<dyn Error>> {
        std::fs::write(folder.join("page.html"), body())?;
        let text = configuration(folder, location);
        let loader: MapLoader = [("/nginx.conf", text)].into_iter().collect();
        let config =
            exchange::config::load(modules::all(), &Source::new("/nginx.conf"), folder, &loader)?.config;
        config.http.zones.begin(&Zones::default());
        config.http.of::<Upstreams>().begin(&Upstreams::default());
        // Lines go nowhere: the disk is not to be heard of.
        let log =
            |name| Ok((folder.join(name), OwnedFd::from(File::options().append(true).open("/dev/null")?)));
        let logs: io::Result<Vec<_>> = ["access.log", "error.log"].into_iter().map(log).collect();
        let version = ConfigVersion::new(&config, root_facts(&config), 1, Arc::new(()));
        let files = LogFiles::new(None, 1, false);
        let thread = Rc::new(Thread::new(Arc::new(Shared::default()), version, files, logs?));
        let origin = listener(&folder.join("origin"))?;
        let mut doors = Doors::new(&thread, true);
        let front = folder.join("front");
        doors.open(vec![(ListenAddr::Unix(front.clone()), vec![OwnedFd::from(listener(&front)?)])]);
        thread.begin();
        let client = UnixStream::connect(&front)?;
        client.set_nonblocking(true)?;
        let reply = [REPLY, &body()].concat();
        Ok(Course { thread, doors, client, origin, link: None, reply, received: vec![0; 8192], length: 0 })
    }

    /// One request, until its response is there.
    async fn request(&mut self) -> io::Result<&Course> {
        self.client.write_all(REQUEST)?;
        self.length = 0;
        while !self.received[..self.length].ends_with(END) {
            rt::yield_now().await;
            self.answer()?;
            self.length += read(&mut self.client, &mut self.received[self.length..])?;
        }
        Ok(self)
    }

    /// Whether these words are in the response.
    fn holds(&self, expected: &[&str]) -> bool {
        let text = String::from_utf8_lossy(&self.received[..self.length]);
        expected.iter().all(|words| text.contains(words))
    }

    /// The origin's part.
    fn answer(&mut self) -> io::Result<()> {
        let Some(link) = &mut self.link else {
            if let Ok((link, _)) = self.origin.accept() {
                link.set_nonblocking(true)?;
                self.link = Some(link);
            }
            return Ok(());
        };
        let mut request = [0; 1024];
        let length = read(link, &mut request)?;
        if length > 0 {
            assert!(request[..length].ends_with(b"\r\n\r\n"), "a request comes as a whole");
            link.write_all(&self.reply)?;
        }
        Ok(())
    }

    /// Ends what the next piece must not meet: the cache writes what it knows, and lets go of its folder.
    async fn end(mut self) {
        self.doors.close_all();
        self.thread.drain();
        drop(self.client);
        caching::tasks::ended(&self.thread).await;
    }
}

/// What is there; the other end must not be closed.
fn read(from: &mut UnixStream, into: &mut [u8]) -> io::Result<usize> {
    match from.read(into) {
        Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(0),
        read => read,
    }
}

/// A socket that is asked in each turn, and never waited for.
fn listener(path: &Path) -> io::Result<UnixListener> {
    let listener = UnixListener::bind(path)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// A log with a buffer, and connections that are kept for all repetitions. The file is opened once: valgrind does not know
/// openat2(2), so that each opening would go another way than on a machine.
fn configuration(folder: &Path, location: &str) -> String {
    let folder = folder.display();
    format!(
        "error_log {folder}/error.log; \
        events {{ use epoll; }} \
        http {{ \
            access_log {folder}/access.log combined buffer=64k; \
            proxy_cache_path {folder}/cache keys_zone=hits:1m memory=4m; \
            types {{ text/html html; }} \
            proxy_http_version 1.1; \
            proxy_set_header Connection ''; \
            upstream origin {{ server unix:{folder}/origin; keepalive 4; keepalive_requests 1000000; }} \
            server {{ \
                listen unix:{folder}/front; \
                keepalive_requests 1000000; \
                root {folder}; \
                open_file_cache max=100; \
                open_file_cache_valid 1h; \
                location / {{ {location} }} \
            }} \
        }}"
    )
}

/// A new folder, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new() -> io::Result<Folder> {
        let folder = std::env::temp_dir().join(format!("ringroad-instructions-{}", std::process::id()));
        // One that a run left behind which had the same number.
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir(&folder)?;
        Ok(Folder(folder))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
