//! Each budget that clients share (docs/limits.md) is taken by a greedy client, as far as the client can. Meanwhile another client is
//! served within a second: GET and POST, over HTTP/1, HTTP/2 and TLS.

use std::any::Any;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustls::StreamOwned;

use crate::common::http2::{END, HEADERS, Http2, SETTINGS, WHOLE, block, frame, setting};
use crate::common::http2_origin::{Asked, Conn, Http2Origin};
use crate::common::{BINARY, tls};
use testkit::origin::{Origin, Reply};
use testkit::wait::{self, DEFAULT_LIMIT};
use testkit::{Client, Content, Deadline, Server, Setup};

/// `worker_connections`, and a number of connections above it.
const LIMIT: usize = 128;
const CROWD: usize = 300;

/// Size in bytes of the body of the other client.
const BODY: usize = 100_000;

/// Time within which the other client is served, in one of three attempts: the machine may be busy.
const TIME_MAX: Duration = Duration::from_secs(1);
const ATTEMPTS: usize = 3;

/// Maximum number of connections on which the other client tries a request.
const TRIES_MAX: usize = 3;

/// Words of the clients' failures if a connection was closed.
const CLOSED: [&str; 7] = [
    "Broken pipe",
    "BrokenPipe",
    "Connection reset",
    "ConnectionReset",
    "unexpected end of file",
    "UnexpectedEof",
    "connection ended",
];

/// Name of a budget, and what takes it. The connections stay open while the result lives.
type Greedy = (&'static str, fn(&Site) -> Box<dyn Any>);

const GREEDY: &[Greedy] = &[
    ("connections, silent", |site| site.crowd(site.plain(), b"")),
    ("connections, incomplete header sections", |site| {
        site.crowd(site.plain(), b"GET / HTTP/1.1\r\nHost: a\r\n")
    }),
    ("connections, stalled bodies", |site| {
        site.crowd(site.plain(), b"POST /post HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\nbody")
    }),
    ("connections, silent before TLS", |site| site.crowd(site.secure(), b"")),
    ("connections, incomplete TLS handshakes", |site| site.crowd(site.secure(), &[22, 3, 1, 2, 0, 1, 0])),
    ("connections, stalled responses", |site| {
        site.crowd(site.plain(), b"GET /big.html HTTP/1.1\r\nHost: a\r\n\r\n")
    }),
    ("connections, stalled responses over HTTP/2", |site| {
        site.streams(CROWD, |client| {
            client.frame(SETTINGS, 0, 0, &setting(4, 0));
            client.ask("/big.html");
        })
    }),
    ("windows of bodies that never arrive", |site| {
        site.streams(40, |client| {
            (0..128).for_each(|_| _ = client.begin("POST", "/held", &[], false));
            client.settle();
        })
    }),
    ("memory for bodies that are not consumed", |site| {
        site.streams(12, |client| {
            for _ in 0..40 {
                let stream = client.begin("POST", "/held", &[], false);
                if client.offer(stream, 1 << 20) == 0 {
                    return;
                }
            }
        })
    }),
    ("memory for responses of upstreams over HTTP/2 that nobody reads", |site| site.unread("/two/big")),
    ("memory for responses of gRPC upstreams that nobody reads", |site| site.unread("/grpc/big")),
    ("windows of idle calls of gRPC", |site| {
        site.streams(40, |client| {
            let calls: Vec<_> = (0..8).map(|_| client.begin("POST", "/grpc/idle", GRPC, true)).collect();
            client.until(|client| {
                calls.iter().all(|call| client.streams.get(call).is_some_and(|got| got.status == 200))
            });
        })
    }),
    ("encoders of responses that nobody reads", |site| {
        site.streams(16, |client| {
            client.frame(SETTINGS, 0, 0, &setting(4, 0));
            for _ in 0..32 {
                client.begin("GET", "/big.html", &[("accept-encoding", "br, zstd, gzip")], true);
            }
        })
    }),
    ("buffers of responses that nobody reads", |site| {
        site.streams(16, |client| {
            client.opens = false;
            (0..64).for_each(|_| _ = client.begin("GET", "/big.html", &[], true));
        })
    }),
    ("lookups of a silent name server", |site| {
        site.streams(6, |client| {
            let names: Vec<String> =
                (0..100).map(|number| format!("/name/{number}-{}", client.number())).collect();
            names.iter().for_each(|name| _ = client.ask(name));
        })
    }),
    ("jobs for passwords", |site| {
        site.streams(4, |client| {
            for _ in 0..32 {
                client.begin("GET", "/secret", &[("authorization", "Basic YTp3cm9uZw==")], true);
            }
        })
    }),
    ("keys of a shared zone", |site| {
        site.streams(2, |client| {
            for number in 0..500 {
                assert_eq!(client.get(&format!("/key?k={number}-{}", client.number())).status, 200);
            }
        })
    }),
];

/// The fields of a gRPC call.
const GRPC: &[(&str, &str)] = &[("te", "trailers"), ("content-type", "application/grpc")];

/// Number of bytes of responses that nobody reads, after which most of the memory for them is taken.
const UNREAD: usize = 64 << 20;

/// The protocol of the other client, and its requests.
type Request = (&'static str, fn(&Site));

/// The server under test. Its first address uses TLS.
struct Site {
    server: Server,
    clients: Arc<rustls::ClientConfig>,
    _origin: Origin,
    _app: Http2Origin,
    /// Number of body bytes that the HTTP/2 upstream has sent.
    sent: Arc<AtomicUsize>,
    _silent: UdpSocket,
}

impl Site {
    fn start() -> Site {
        let authority = tls::Authority::new("budgets");
        let (certificate, key) = authority.server("a.test");
        let mut clients = (*authority.clients(tls::BOTH, None)).clone();
        clients.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let origin = Origin::start(|request| Reply::text(request.body.len().to_string()));
        let sent = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&sent);
        let app = Http2Origin::start(&[], move |conn| answer_all(conn, &counted));
        let silent = UdpSocket::bind("127.0.0.1:0").expect("a port");
        let text = format!(
            "worker_processes 1; events {{ worker_connections {LIMIT}; }} http {{ http2 on; http2_body_preread_size 1m;
             upstream app {{ server {app}; keepalive 8; }}
             limit_req_zone $request_method zone=held:1m rate=1r/m; limit_req_zone $arg_k zone=keys:32k rate=100r/s;
             resolver {}; client_max_body_size 0; root html; gzip on; gzip_types text/html; brotli on; zstd on;
             server {{ listen 127.0.0.1:0 ssl; listen 127.0.0.2:0; server_name a.test;
             ssl_certificate a.pem; ssl_certificate_key a.key;
             location /ok {{ return 200 ok; }} location / {{ }}
             location /post {{ proxy_pass http://@ORIGIN@; }}
             location /two/ {{ proxy_http_version 2; proxy_buffering off; proxy_pass http://app; }}
             location /grpc/ {{ grpc_pass app; }}
             location /held {{ limit_req zone=held burst=10000; proxy_pass http://@ORIGIN@; }}
             location /key {{ limit_req zone=keys burst=100 nodelay; try_files /none =200; }}
             location /secret {{ auth_basic a; auth_basic_user_file users; try_files /none =200; }}
             location ~ ^/name/(.*)$ {{ proxy_pass http://$1.test:1/; }} }} }}",
            silent.local_addr().expect("a port"),
            app = app.address()
        );
        let setup = Setup::new(&text).origin(&origin);
        let builder = setup.builder(BINARY).text("conf/a.pem", &certificate).text("conf/a.key", &key);
        let builder = builder
            .text("conf/users", "a:$6$rounds=100000$saltsalt$Eht6kFoEapisZc1YzR5WjWSnWlWIi6D1zT1Q7UQurzi6o4MRBZbfJt5TCZ75XiVLl7sbkQKh/hv20fm4IMGPx0\n")
            .file("html/big.html", Content::new(1, 4 << 20));
        Site {
            server: builder.try_start().unwrap_or_else(|reason| panic!("{reason}")),
            clients: Arc::new(clients),
            _origin: origin,
            _app: app,
            sent,
            _silent: silent,
        }
    }

    fn secure(&self) -> SocketAddr {
        self.server.addr(0).tcp()
    }

    fn plain(&self) -> SocketAddr {
        self.server.addr(1).tcp()
    }

    /// Opens many connections, each with these bytes.
    fn crowd(&self, address: SocketAddr, bytes: &[u8]) -> Box<dyn Any> {
        let connect = |_| {
            let mut stream = TcpStream::connect(address).expect("a listener");
            // The server may have closed the connection for a later one already.
            let _ = stream.write_all(bytes);
            stream
        };
        Box::new((0..CROWD).map(connect).collect::<Vec<_>>())
    }

    /// Opens HTTP/2 connections.
    fn streams(&self, count: usize, mut take: impl FnMut(&mut Http2<TcpStream>)) -> Box<dyn Any> {
        let connect = |_| {
            let mut client = Http2::over(connected(self.plain()), &[]);
            take(&mut client);
            client
        };
        Box::new((0..count).map(connect).collect::<Vec<_>>())
    }

    /// Requests large responses of an HTTP/2 upstream that are not read.
    fn unread(&self, path: &str) -> Box<dyn Any> {
        let all = self.streams(16, |client| {
            client.frame(SETTINGS, 0, 0, &setting(4, 0));
            (0..8).for_each(|_| _ = client.begin("POST", path, GRPC, true));
        });
        let is_full = || (self.sent.load(Ordering::Relaxed) > UNREAD).then_some(());
        wait::until("responses that fill the memory", Deadline::default(), is_full).expect("they are sent");
        all
    }

    /// Makes all requests of the other client; returns the slowest and its time.
    fn others(&self) -> (&'static str, Duration) {
        let all: [Request; 4] = [
            ("HTTP/1", |site| {
                let mut client = Client::connect(site.server.addr(1));
                assert_eq!(client.get("/ok").text(), "ok");
                client.send(format!("POST /post HTTP/1.1\r\nHost: a\r\nContent-Length: {BODY}\r\n\r\n"));
                client.send(vec![b'x'; BODY]);
                assert_eq!(client.response().text(), BODY.to_string());
            }),
            ("HTTP/1 over TLS", |site| {
                let mut config = (*site.clients).clone();
                config.alpn_protocols = vec![b"http/1.1".to_vec()];
                let mut client = tls::connect(&site.server, &Arc::new(config), "a.test");
                let head = |first: &str| {
                    format!("{first} HTTP/1.1\r\nHost: a.test\r\nContent-Length: {BODY}\r\n\r\n")
                };
                client.write_all(b"GET /ok HTTP/1.1\r\nHost: a.test\r\n\r\n").expect("it is sent");
                client.write_all(head("POST /post").as_bytes()).expect("it is sent");
                client.write_all(&vec![b'x'; BODY]).expect("it is sent");
                client
                    .write_all(b"GET /ok HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n")
                    .expect("it is sent");
                let text = tls::text(&tls::to_end(&mut client));
                assert!(!text.is_empty(), "connection ended before a response: {text}");
                assert!(text.matches("200 OK").count() == 3 && text.contains("\r\n\r\n100000"), "{text}");
            }),
            ("HTTP/2", |site| exchange(Http2::over(connected(site.plain()), &[]))),
            ("HTTP/2 over TLS", |site| {
                let StreamOwned { conn, sock } = tls::connect(&site.server, &site.clients, "a.test");
                exchange(Http2::over(StreamOwned::new(conn, sock), &[]));
            }),
        ];
        let timed = all.map(|(name, request)| {
            let began = Instant::now();
            // A connection without a request may be closed for another client. A client then connects again (RFC 9112, section 9.3.1).
            let is_served = || match catch_unwind(AssertUnwindSafe(|| request(self))) {
                Err(failure) if !was_closed(&*failure) => resume_unwind(failure),
                outcome => outcome.is_ok(),
            };
            assert!((0..TRIES_MAX).any(|_| is_served()), "{name}: not served");
            (name, began.elapsed())
        });
        timed.into_iter().max_by_key(|(_, time)| *time).expect("four")
    }
}

/// Whether a request failed because its connection was closed.
fn was_closed(failure: &dyn Any) -> bool {
    let text = failure.downcast_ref::<String>();
    text.is_some_and(|text| CLOSED.iter().any(|word| text.contains(word)))
}

fn connected(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("a listener");
    stream.set_read_timeout(Some(DEFAULT_LIMIT)).expect("a socket");
    stream.set_nodelay(true).expect("a socket");
    stream
}

fn exchange<S: Read + Write>(mut client: Http2<S>) {
    assert_eq!(client.get("/ok").text(), "ok");
    for (path, fields) in [("/post", &[][..]), ("/two/post", &[]), ("/grpc/call", GRPC)] {
        assert_eq!(client.post(path, fields, &vec![b'x'; BODY]).text(), BODY.to_string(), "{path}");
    }
}

/// Answers the requests to the HTTP/2 upstream: with as many bytes as the windows permit, with a header section that nothing follows,
/// or with the length of the body.
fn answer_all(conn: &mut Conn, sent: &AtomicUsize) {
    let mut begun = BTreeSet::new();
    let is_read = Cell::new(false);
    while conn.until(|_| is_read.replace(!is_read.get())) {
        let complete = |asked: &&Asked| asked.ended && asked.reset.is_none();
        let asked: Vec<Asked> = conn.requests.values().filter(complete).cloned().collect();
        for asked in asked {
            let id = asked.stream;
            if begun.insert(id) {
                conn.head(id, 200, &[("content-type", "application/grpc")], false);
            }
            if asked.path().ends_with("/big") {
                let body = vec![0; conn.window(0).min(conn.window(id)) as usize];
                conn.data(id, &body, false);
                sent.fetch_add(body.len(), Ordering::Relaxed);
            } else if !asked.path().ends_with("/idle") {
                conn.data(id, asked.body.len().to_string().as_bytes(), false);
                conn.trailers(id, &[("grpc-status", "0")]);
                conn.requests.remove(&id);
            }
        }
    }
}

#[test]
fn whoever_takes_a_shared_budget_others_are_served_within_a_second() {
    testkit::burst::allow_fds(8192);
    for (name, take) in GREEDY {
        let site = Site::start();
        let taken = take(&site);
        let times: Vec<_> = (0..ATTEMPTS).map(|_| site.others()).collect();
        let (slowest, best) = times.iter().min_by_key(|(_, time)| *time).expect("attempts");
        assert!(*best < TIME_MAX, "{name}: {slowest} took {best:?} of {times:?}");
        drop(taken);
    }
}

/// A slow client makes requests without a slot wait, because it may turn out to stall. Meanwhile the greedy client always has a request
/// that waits, and does not read the responses that take all slots.
#[test]
fn requests_that_wait_for_a_slot_do_not_protect_unread_responses() {
    const PATIENCE: Duration = Duration::from_millis(100);
    let origin = Origin::start(|request| match request.target.as_str() {
        "/up/big" => Reply::text("x".repeat(1 << 20)),
        _ => Reply::text("served"),
    });
    let text = "worker_processes 1; events { worker_connections 32; } http { http2 on; root html; server { listen 127.0.0.1:0;
                location / { } location /up/ { proxy_buffering off; proxy_pass http://@ORIGIN@; } } }";
    let setup = Setup::new(text).origin(&origin);
    let server = setup.builder(BINARY).file("html/big.html", Content::new(1, 16 << 20)).try_start();
    let server = server.unwrap_or_else(|reason| panic!("{reason}"));
    let address = server.addr(0).tcp();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let mut slow = connected(address);
        slow.write_all(b"GET /big.html HTTP/1.1\r\nHost: a\r\n\r\n").expect("it is sent");
        scope.spawn(|| {
            let mut slow = slow;
            while !is_over.load(Ordering::Relaxed)
                && slow.read(&mut [0; 64 << 10]).is_ok_and(|count| count > 0)
            {
                wait::let_pass(PATIENCE);
            }
        });
        let mut greedy = Http2::over(connected(address), &setting(4, 0));
        // Two slots are reserved for clients, and two are in use by clients.
        let unread: Vec<u32> = (0..28).map(|_| greedy.ask("/up/big")).collect();
        greedy.until(|client| {
            unread.iter().all(|stream| client.streams.get(stream).is_some_and(|got| got.status == 200))
        });
        scope.spawn(|| {
            let mut greedy = greedy;
            let fields = [(":method", "GET"), (":scheme", "http"), (":path", "/up/"), (":authority", "here")];
            while !is_over.load(Ordering::Relaxed) {
                let stream = greedy.next_stream();
                if greedy.try_send(&frame(HEADERS, WHOLE | END, stream, &block(&fields))).is_err() {
                    break;
                }
                wait::let_pass(PATIENCE);
            }
        });
        let response = catch_unwind(|| Client::connect(server.addr(0)).get("/up/").text());
        is_over.store(true, Ordering::Relaxed);
        assert_eq!(response.unwrap_or_else(|failure| resume_unwind(failure)), "served");
    });
}
