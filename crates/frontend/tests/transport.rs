//! Tests `exchange::pump` with a minimal protocol that resembles HTTP/2. Header sections arrive as separate fields; responses have
//! no text form, no chunks and no separate connection; files must be read; trailers are fields.

use std::cell::Cell;
use std::convert::Infallible;
use std::net::Ipv4Addr;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::fields::Version;
use http::request::{Composer, Policy};
use io::engine::{EngineConfig, NetKind};
use io::segments::Source;
use io::{Errno, Segments};
use rt::Runtime;
use rt::net::FilePart;
use testkit::TempDir;

use exchange::course::BodyNeed;
use exchange::files::root_facts;
use exchange::pump;
use exchange::request::{Address, ConnInfo, Request, ThreadConfig};
use exchange::request_body::{BodyFailure, Feed};
use exchange::response_head::{self, OtherField};
use exchange::takeover::{Takeover, TakeoverEnd};
use exchange::thread::{ConfigVersion, Thread};
use exchange::transport::{After, Received, Transport};
use modules::testing;
use site::config::ServerId;
use site::settings::core::Core;
use site::settings::listen::Listen;
use telemetry::files::{LogFiles, Opened};
use telemetry::shared::Shared;
use transfer::body::outlet::{Follows, Outlet, SendError, Trailers};
use transfer::body::{BodyError, Rate};
use transfer::received::ReceivedBody;

/// One stream: the body of a request, and the response that its client received.
#[derive(Default)]
struct Stream {
    request_body: Vec<u8>,
    got: Got,
}

/// Names and values.
type Fields = Vec<(Vec<u8>, Vec<u8>)>;

/// A response as received by its client.
#[derive(Default)]
struct Got {
    status: u16,
    length: Option<u64>,
    content_type: Option<Vec<u8>>,
    fields: Fields,
    body: Vec<u8>,
    trailers: Fields,
    /// Number of frames of the body.
    frames: usize,
    is_ended: bool,
}

/// Receives a body as frames. After each flush, the client accepts the frames only when the flush is polled again.
struct Frames<'a> {
    got: &'a mut Got,
    head: Vec<u8>,
    added: Vec<u8>,
    pieces: usize,
    sent: u64,
    is_taken: bool,
}

impl Frames<'_> {
    fn poll_taken(&mut self, context: &mut Context<'_>) -> Poll<Result<(), SendError>> {
        if !std::mem::replace(&mut self.is_taken, true) {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.is_taken = false;
        self.sent += (self.head.len() + self.added.len()) as u64;
        self.got.frames += 1;
        self.got.body.append(&mut self.added);
        self.head.clear();
        self.pieces = 0;
        Poll::Ready(Ok(()))
    }
}

impl Outlet for Frames<'_> {
    fn accepts_files(&self) -> bool {
        false
    }

    fn chunk_bytes(&self) -> Option<u64> {
        None
    }

    fn file_bytes(&self, _: u64) -> u64 {
        panic!("files are read")
    }

    fn begin(&mut self, head: Vec<u8>) {
        self.head = head;
    }

    fn push_range(&mut self, source: Source, start: usize, end: usize) {
        self.pieces += 1;
        self.added.extend_from_slice(&source.bytes()[start..end]);
    }

    fn has_space(&self) -> bool {
        self.pieces < 8
    }

    fn holds_buffers(&self) -> bool {
        false
    }

    fn poll_flush(&mut self, context: &mut Context<'_>, _: Follows) -> Poll<Result<(), SendError>> {
        self.poll_taken(context)
    }

    fn poll_space(&mut self, _: &mut Context<'_>, wanted: u64) -> Poll<Result<u64, SendError>> {
        Poll::Ready(Ok(wanted))
    }

    fn poll_file(
        &mut self,
        _: &mut Context<'_>,
        _: &FilePart<'_>,
    ) -> Poll<Result<Result<u32, Errno>, SendError>> {
        panic!("files are read")
    }

    fn poll_end(&mut self, context: &mut Context<'_>, trailers: &Trailers) -> Poll<Result<(), SendError>> {
        std::task::ready!(self.poll_taken(context))?;
        self.got.trailers = trailers.to_vec();
        self.got.is_ended = true;
        Poll::Ready(Ok(()))
    }

    fn sent(&self) -> u64 {
        self.sent
    }

    fn take_spare(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.head)
    }
}

impl Transport for Stream {
    type Unsent = Segments;
    type UnreadBody = ();
    type Outlet<'a> = Frames<'a>;

    fn listen<'g>(&self, thread_config: &'g ThreadConfig) -> Option<&'g Listen> {
        thread_config.config.http.listens.first()
    }

    fn release_buffers(&mut self) {}

    fn body_is_broken(&self, _: &Request) -> bool {
        false
    }

    fn has_complete_body(&self, _: &Request) -> bool {
        true
    }

    async fn read_body(
        &mut self,
        request: &mut Request,
        _: BodyNeed,
    ) -> Result<Option<Box<Feed<()>>>, BodyFailure> {
        let mut body = ReceivedBody::default();
        body.add(&self.request_body);
        body.seal();
        (request.body, request.is_body_consumed) = (Some(Rc::new(body)), true);
        Ok(None)
    }

    async fn begin_feed(&mut self, _: &mut Request, _: bool) -> Result<Feed<()>, BodyFailure> {
        Err(BodyFailure::Refused(500))
    }

    async fn feed(&mut self, _: Feed<()>) -> Infallible {
        std::future::pending().await
    }

    async fn discard_body(&mut self, _: &mut Request) -> bool {
        self.request_body.clear();
        true
    }

    fn begin_response(&mut self, request: &mut Request, _: &Core) -> bool {
        // The end of a stream does not end the connection.
        request.keepalive = true;
        false
    }

    fn write_head(&mut self, request: &mut Request, core: &Core, out: &mut Vec<u8>) -> bool {
        response_head::with(request, core, |head| {
            (self.got.status, self.got.length) = (head.status.code(), head.content_length);
            self.got.content_type = head.content_type.map(<[u8]>::to_vec);
        });
        response_head::each_other_field(&request.response, |field| match field {
            OtherField::One(name, value) => self.got.fields.push((name.to_vec(), value.to_vec())),
            OtherField::Lines(lines) => {
                self.got.fields.extend(lines.iter().map(|(name, value)| (name.to_vec(), value.to_vec())));
            }
        });
        out.extend_from_slice(b"\x00head");
        true
    }

    fn send(&mut self, request: &mut Request, data: Segments) -> Result<Option<Segments>, BodyError> {
        request.sent = data.len() as u64;
        Ok(Some(data))
    }

    async fn send_remaining(&mut self, request: &mut Request, rest: &mut Segments) -> Result<(), BodyError> {
        rt::yield_now().await;
        rest.advance(request.sent_head as usize);
        rest.parts().for_each(|part| self.got.body.extend_from_slice(part.bytes()));
        self.got.is_ended = true;
        Ok(())
    }

    fn outlet<'a>(&'a mut self, _: &Request, _: &Core, _: Option<Rate>, _: bool) -> Frames<'a> {
        let got = &mut self.got;
        Frames { got, head: Vec::new(), added: Vec::new(), pieces: 0, sent: 0, is_taken: false }
    }

    async fn wait_for_delivery(&mut self, _: &Request, _: &Core, _: &BodyError) {}

    fn break_off(&mut self, _: &Request, _: &BodyError) {
        self.got.is_ended = false;
    }

    async fn take_over(
        &mut self,
        _: &mut Request,
        _: Vec<u8>,
        _: Box<dyn Takeover>,
    ) -> Result<TakeoverEnd, BodyError> {
        Err(BodyError::Broken)
    }
}

/// A request of the test.
struct Asked<'t> {
    method: &'t str,
    target: &'t str,
    body: &'t [u8],
}

fn get(target: &str) -> Asked<'_> {
    Asked { method: "GET", target, body: b"" }
}

/// Sends a request on an HTTP/2 stream to a server with this configuration; all of it runs on one thread.
fn send_request(server: &str, asked: &Asked<'_>) -> (Got, After) {
    let config = testing::loaded(&format!("access_log off; server {{ listen 127.0.0.1:80; {server} }}"));
    let engine = io::build(EngineConfig { net: NetKind::Epoll, ..EngineConfig::default() });
    let mut runtime = Runtime::new(engine.expect("epoll is everywhere"));
    runtime.block_on(async {
        let version = ConfigVersion::new(modules::all(), &config, root_facts(&config), 1, Arc::new(()));
        let logs = LogFiles::new(1, false);
        let thread = Rc::new(Thread::new(Arc::new(Shared::default()), version, logs, Opened::default()));
        let here = Address::Inet((Ipv4Addr::LOCALHOST, 80).into());
        let info = Rc::new(ConnInfo { requests: Cell::new(1), ..ConnInfo::new(&thread, here.clone(), here) });
        let mut request = thread.take_request(&thread.thread_config(), &info, ServerId(0));
        let (mut raw, policy) = (Vec::new(), Policy::default());
        let line = (asked.method.as_bytes(), asked.target.as_bytes());
        let mut composer =
            Composer::begin(&mut request.head, &mut raw, &policy, Version::Http2, line).expect("a good line");
        composer.field(b"host", b"here").expect("a good field");
        composer.finish(!asked.body.is_empty()).expect("a good head");
        request.take_head(Source::Vec(raw), 0);
        let mut stream = Stream { request_body: asked.body.to_vec(), ..Stream::default() };
        let after = pump::run(&mut stream, &mut request, Received::Head).await;
        (stream.got, after)
    })
}

#[test]
fn a_response_in_memory_needs_no_outlet() {
    let server = "default_type text/plain; add_header X-One 1;
        location / { return 200 '$server_protocol|$request|$host'; }";
    let (got, after) = send_request(server, &get("/a?b"));
    assert_eq!(String::from_utf8_lossy(&got.body), "HTTP/2.0|GET /a?b HTTP/2.0|here");
    assert_eq!((got.status, got.length, got.frames), (200, Some(31), 0));
    assert_eq!(got.content_type.as_deref(), Some(&b"text/plain"[..]));
    assert_eq!(got.fields, [(b"X-One".to_vec(), b"1".to_vec())]);
    assert!(got.is_ended && after == After::KeepAlive);
}

/// With any settings for sending files, the files are read if the outlet does not accept files.
#[test]
fn files_are_read_if_they_cannot_be_sent_directly() {
    let folder = TempDir::new("transport");
    let content: Vec<u8> = (0..700_001_u32).map(|place| (place % 251) as u8).collect();
    std::fs::write(folder.path().join("file"), &content).expect("a temporary directory");
    for settings in
        ["", "sendfile on;", "sendfile on; aio threads;", "sendfile on; aio off;", "aio_sendfile 512k;"]
    {
        let server = format!("root {}; {settings}", folder.path().display());
        let (got, _) = send_request(&server, &get("/file"));
        assert_eq!((got.status, got.length), (200, Some(content.len() as u64)), "{settings}");
        assert!(got.body == content && got.is_ended && got.frames > 1, "{settings}");
        let (got, _) = send_request(&server, &Asked { method: "HEAD", ..get("/file") });
        assert_eq!((got.length, got.body.len(), got.is_ended), (Some(content.len() as u64), 0, true));
    }
}

#[test]
fn filtered_bodies_are_not_chunked_and_trailers_become_fields() {
    let server =
        "add_trailer X-One $server_protocol; sub_filter a bb; sub_filter_types *; sub_filter_once off;
        location / { return 200 'xaya'; }";
    let (got, _) = send_request(server, &get("/"));
    assert_eq!((got.body.as_slice(), got.length), (&b"xbbybb"[..], None));
    assert_eq!(got.trailers, [(b"X-One".to_vec(), b"HTTP/2.0".to_vec())]);
    assert!(got.is_ended);
}

#[test]
fn a_body_is_read_if_needed_and_otherwise_discarded() {
    let asked = Asked { method: "POST", target: "/", body: b"hello" };
    let (got, _) =
        send_request("client_body_early_read 1; location / { return 200 '[$request_body]'; }", &asked);
    assert_eq!(got.body, b"[hello]");
    let (got, after) = send_request("location / { return 200 'no'; }", &asked);
    assert_eq!((got.body.as_slice(), after), (&b"no"[..], After::KeepAlive));
}
