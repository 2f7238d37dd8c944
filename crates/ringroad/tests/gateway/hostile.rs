//! Application servers that violate FastCGI, SCGI, uwsgi or memcached, or hang: the client gets 502 or 504, or detects
//! that its response is truncated; the log has one line; the same worker thread still serves other clients; nothing is
//! stored.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use crate::common::BINARY;
use rustix::net::sockopt;
use testkit::client::request_bytes;
use testkit::fastcgi::{END_REQUEST, STDERR, STDOUT, record};
use testkit::wait::{self, Deadline};
use testkit::{Client, Server, Setup};

/// One worker thread.
const CONF: &str = r"worker_processes 1; error_log logs/error.log info;
events { }
http {
  access_log off;
  @PATHS@
  @SERVERS@
}
";

/// Addresses and timeouts: the first server waits long for a busy machine, the second is for applications that hang.
const LIMITS: [(&str, &str); 2] = [("127.0.0.1", "30s"), ("127.0.0.2", "1s")];

const SERVER: &str = r#"server {
    listen @HOST@:0;
    set $memcached_key $uri;
    @P@_read_timeout @LIMIT@;
    location /good { return 200 "good\n"; }
    location /plain/ { @P@_pass @APP@; }
    location /status { stub_status; }
    @LOCATIONS@
  }
"#;

/// Directives that do not exist for memcached.
const PATHS: &str =
    "@P@_temp_path @DATA@/temp; @P@_cache_path @CACHE@ keys_zone=c:1m; @P@_param REQUEST_URI $request_uri;";
const LOCATIONS: &str =
    "location /cache/ { @P@_cache c; @P@_cache_key $uri; @P@_cache_valid any 1h; @P@_pass @APP@; }
    location /stream/ { @P@_buffering off; @P@_request_buffering off; @P@_pass @APP@; }";

/// Actions of a server after it has sent its bytes.
#[derive(Clone, Debug)]
enum End {
    /// Closes the connection.
    Close,
    /// Resets the connection.
    Reset,
    /// Sends nothing more.
    Hang,
    /// Sends these bytes repeatedly for as long as they are read.
    Endless(Vec<u8>),
}

/// The response that the client must get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gets {
    Status(u16),
    /// A truncated response, or an error if none of it has been sent.
    Cut,
}

/// A violation of the protocol by a server.
#[derive(Clone, Debug)]
struct Case {
    name: &'static str,
    bytes: Vec<u8>,
    end: End,
    gets: Gets,
}

impl Case {
    /// Whether the client gets its response only after the timeout.
    fn waits(&self) -> bool {
        matches!(self.end, End::Hang) && self.gets != Gets::Status(502)
    }
}

fn case(name: &'static str, bytes: impl Into<Vec<u8>>, end: End, gets: Gets) -> Case {
    Case { name, bytes: bytes.into(), end, gets }
}

/// A server that selects the case by the request's path.
struct Hostile {
    address: SocketAddr,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Hostile {
    fn start(cases: Vec<Case>) -> Hostile {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port of loopback");
        let address = listener.local_addr().expect("it is bound");
        let is_over = Arc::new(AtomicBool::new(false));
        let (ends, cases) = (Arc::clone(&is_over), Arc::new(cases));
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if ends.load(Ordering::Relaxed) {
                    break;
                }
                let (cases, ends) = (Arc::clone(&cases), Arc::clone(&ends));
                std::thread::spawn(move || serve(stream, &cases, &ends));
            }
        });
        Hostile { address, is_over, thread: Some(thread) }
    }
}

impl Drop for Hostile {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(self.address);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn serve(mut stream: TcpStream, cases: &[Case], is_over: &AtomicBool) {
    let mut request = Vec::new();
    let case = loop {
        let mut piece = [0; 4096];
        match stream.read(&mut piece) {
            Ok(count @ 1..) => request.extend_from_slice(&piece[..count]),
            _ => return,
        }
        let text = String::from_utf8_lossy(&request);
        if let Some(number) = text.split("case-").nth(1) {
            let digits: String = number.chars().take_while(char::is_ascii_digit).collect();
            break &cases[digits.parse::<usize>().expect("a number")];
        }
    };
    // A memcached response contains the key.
    let text = String::from_utf8_lossy(&request).into_owned();
    let key = text.strip_prefix("get ").and_then(|rest| rest.split("\r\n").next()).unwrap_or_default();
    let bytes = match case.bytes.windows(5).position(|window| window == b"@KEY@") {
        Some(at) => [&case.bytes[..at], key.as_bytes(), &case.bytes[at + 5..]].concat(),
        None => case.bytes.clone(),
    };
    if stream.write_all(&bytes).is_err() {
        return;
    }
    match &case.end {
        End::Close => {
            // The peer reads the sent bytes before it sees the end of the connection.
            let _ = stream.shutdown(Shutdown::Write);
            let _ = stream.read_to_end(&mut request);
        }
        End::Reset => {
            let _ = sockopt::set_socket_linger(&stream, Some(std::time::Duration::ZERO));
        }
        End::Hang => drop(stream.read_to_end(&mut request)),
        End::Endless(bytes) => while !is_over.load(Ordering::Relaxed) && stream.write_all(bytes).is_ok() {},
    }
}

/// Returns the cases that are the same for all script protocols; `part` encodes a text.
fn of_scripts(part: impl Fn(&[u8]) -> Vec<u8>) -> Vec<Case> {
    use Gets::{Cut, Status};
    let (bad, late) = (Status(502), Status(504));
    vec![
        case("nothing", [], End::Hang, late),
        case("an end at once", [], End::Close, bad),
        case("a reset at once", [], End::Reset, bad),
        case("half a line, then nothing", part(b"Status: 20"), End::Hang, late),
        case("half a line, then the end", part(b"Status: 20"), End::Close, bad),
        case("no empty line, then nothing", part(b"Status: 200\r\nX-A: b\r\n"), End::Hang, late),
        case("no empty line, then a reset", part(b"Status: 200\r\nX-A: b\r\n"), End::Reset, bad),
        case(
            "endless fields",
            part(b"Status: 200\r\n"),
            End::Endless(part(b"X-A: bbbbbbbbbbbbbbbb\r\n")),
            bad,
        ),
        case("an endless line", part(b"X-A: "), End::Endless(part(&[b'a'; 1000])), bad),
        case("a status that is none", part(b"Status: abc\r\n\r\n"), End::Close, bad),
        case("a status of zero", part(b"Status: 000\r\n\r\n"), End::Close, bad),
        case("no field at all", part(b"<html>\r\n\r\n"), End::Close, bad),
        case("a zero byte in a name", part(b"X\0A: b\r\n\r\n"), End::Close, bad),
        case("two lengths", part(b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabc"), End::Close, bad),
        case("a length that is none", part(b"Content-Length: 3x\r\n\r\nabc"), End::Close, bad),
        case("too large a length", part(b"Content-Length: 99999999999999999999\r\n\r\nabc"), End::Close, bad),
        case("a short body, then the end", part(b"Content-Length: 90000\r\n\r\nabc"), End::Close, Cut),
        case("a short body, then nothing", part(b"Content-Length: 90000\r\n\r\nabc"), End::Hang, Cut),
        case("a short body, then a reset", part(b"Content-Length: 90000\r\n\r\nabc"), End::Reset, Cut),
    ]
}

fn of_fastcgi() -> Vec<Case> {
    use Gets::{Cut, Status};
    let (bad, late) = (Status(502), Status(504));
    let stdout = |text: &[u8]| record(STDOUT, text);
    let good = || stdout(b"Content-Type: a\r\n\r\nhalf of it");
    let header = |version: u8, kind: u8, id: u8, len: u16, padding: u8| {
        let [high, low] = len.to_be_bytes();
        vec![version, kind, 0, id, high, low, padding, 0]
    };
    let mut cases = of_scripts(stdout);
    cases.extend([
        case("half a record's header, then nothing", [1, 6, 0, 1], End::Hang, late),
        case("half a record's header, then the end", [1, 6, 0, 1], End::Close, bad),
        case(
            "less content than the record says, then nothing",
            [&header(1, 6, 1, 65_535, 0)[..], b"X-A: b\r\n"].concat(),
            End::Hang,
            late,
        ),
        case(
            "less content than the record says, then the end",
            [&header(1, 6, 1, 65_535, 0)[..], b"X-A: b\r\n"].concat(),
            End::Close,
            bad,
        ),
        case(
            "no padding, then nothing",
            [&header(1, 6, 1, 8, 255)[..], b"X-A: b\r\n"].concat(),
            End::Hang,
            late,
        ),
        case(
            "no padding, then the end",
            [&header(1, 6, 1, 8, 255)[..], b"X-A: b\r\n"].concat(),
            End::Close,
            bad,
        ),
        case(
            "more content than the record says",
            [&header(1, 6, 1, 3, 0)[..], b"X-A: b\r\n\r\n"].concat(),
            End::Close,
            bad,
        ),
        case("version 0", header(0, 6, 1, 0, 0), End::Close, bad),
        case("version 2", header(2, 6, 1, 0, 0), End::Close, bad),
        case("another request", header(1, 6, 2, 0, 0), End::Close, bad),
        case("no request", header(1, 11, 0, 8, 0), End::Close, bad),
        case("a record of a web server", header(1, 4, 1, 0, 0), End::Close, bad),
        case("a record of no type", header(1, 99, 1, 0, 0), End::Close, bad),
        case("an end without a response", record(END_REQUEST, &[0; 8]), End::Hang, bad),
        case("a short end", record(END_REQUEST, &[0; 3]), End::Close, bad),
        case("a refusal: overloaded", record(END_REQUEST, &[0, 0, 0, 0, 2, 0, 0, 0]), End::Close, bad),
        case("a refusal: no such role", record(END_REQUEST, &[0, 0, 0, 0, 3, 0, 0, 0]), End::Close, bad),
        case("an end of the output without a response", stdout(b""), End::Hang, bad),
        case("messages and no response", record(STDERR, b"x").repeat(20), End::Close, bad),
        case("messages, then nothing", record(STDERR, b"x").repeat(20), End::Hang, late),
        case("endless messages", [], End::Endless(record(STDERR, &[b'e'; 60_000])), Cut),
        case("endless empty messages", [], End::Endless(record(STDERR, b"").repeat(1_000)), Cut),
        case("endless ends of the output", [], End::Endless(stdout(b"").repeat(1_000)), bad),
        case("a body without an end, then the end", good(), End::Close, Cut),
        case("a body without an end, then nothing", good(), End::Hang, Cut),
        case("a bad record in a body", [good(), header(1, 99, 1, 0, 0)].concat(), End::Close, Cut),
        case("another request in a body", [good(), header(1, 6, 7, 9, 0)].concat(), End::Hang, Cut),
        case("endless messages in a body", good(), End::Endless(record(STDERR, &[b'e'; 60_000])), Cut),
        case("a cut record in a body", [good(), header(1, 6, 1, 9_000, 0)].concat(), End::Close, Cut),
    ]);
    cases
}

fn of_memcached() -> Vec<Case> {
    use Gets::{Cut, Status};
    let (bad, late) = (Status(502), Status(504));
    vec![
        case("nothing", [], End::Hang, late),
        case("an end at once", [], End::Close, bad),
        case("a reset at once", [], End::Reset, bad),
        case("half a line, then nothing", b"VALUE /x".as_slice(), End::Hang, late),
        case("half a line, then the end", b"VALUE /x".as_slice(), End::Close, bad),
        case("an endless line", [], End::Endless(vec![b'x'; 1000]), bad),
        case("endless lines", [], End::Endless(b"STAT a b\r\n".repeat(100)), bad),
        case("another key", b"VALUE /other 0 5\r\nhello\r\nEND\r\n".as_slice(), End::Hang, bad),
        case("a short value, then the end", b"VALUE @KEY@ 0 90000\r\nhello".as_slice(), End::Close, Cut),
        case("a short value, then nothing", b"VALUE @KEY@ 0 90000\r\nhello".as_slice(), End::Hang, Cut),
        case("a short value, then a reset", b"VALUE @KEY@ 0 90000\r\nhello".as_slice(), End::Reset, Cut),
    ]
}

fn start(prefix: &str, cases: Vec<Case>) -> (Hostile, Setup, Server) {
    let hostile = Hostile::start(cases);
    let (paths, locations) = if prefix == "memcached" { ("", "") } else { (PATHS, LOCATIONS) };
    let servers =
        LIMITS.map(|(host, limit)| SERVER.replace("@HOST@", host).replace("@LIMIT@", limit)).concat();
    let text =
        CONF.replace("@PATHS@", paths).replace("@SERVERS@", &servers).replace("@LOCATIONS@", locations);
    let setup = Setup::new(&text).value("P", prefix).value("APP", &hostile.address.to_string());
    let server = setup.start(BINARY);
    (hostile, setup, server)
}

/// Maximum size in bytes of log lines about a request: 64 KiB of messages, and the rest of their lines.
const MESSAGES_MAX: usize = 80 << 10;

/// Waits for the log line about the end of a request; returns all lines of the error log about its target.
fn lines(server: &Server, target: &str) -> Vec<String> {
    let request = format!("request: \"GET {target} HTTP/1.1\"");
    let look = || {
        let log = server.error_log();
        let lines: Vec<_> = log.lines().filter(|line| line.contains(&request)).map(str::to_owned).collect();
        lines.iter().any(|line| is_about_end(line)).then_some(lines)
    };
    wait::until("a line about the end", Deadline::default(), look)
        .unwrap_or_else(|late| panic!("{target}: {late}\n{}", server.error_log()))
}

/// Whether a line is not a message of the application.
fn is_about_end(line: &str) -> bool {
    !line.contains("sent in stderr")
}

/// Sends each case to each location. While a case waits for its response, another client is served.
fn check(prefix: &str, cases: Vec<Case>, places: &[&str]) {
    let (hostile, setup, server) = start(prefix, cases.clone());
    let mut wrong = Vec::new();
    for (number, case) in cases.iter().enumerate() {
        let mut clients = Vec::new();
        for place in places {
            let target = format!("{place}case-{number}");
            let mut client = Client::connect(server.addr(usize::from(case.waits())));
            client.send(request_bytes("GET", &target, &[("Connection", "close")]));
            clients.push((target, client));
        }
        assert_eq!(Client::connect(server.addr(0)).get("/good").text(), "good\n", "during {}", case.name);
        for (target, mut client) in clients {
            let got = client.try_response().map(|response| response.status);
            let is_right = match (case.gets, &got) {
                (Gets::Status(expected), Ok(status)) => expected == *status,
                (Gets::Cut, Ok(status)) => matches!(status, 502 | 504),
                (Gets::Cut, Err(_)) => true,
                (Gets::Status(_), Err(_)) => false,
            };
            let lines = lines(&server, &target);
            // Messages of the application have additional lines.
            let about = lines.iter().filter(|line| is_about_end(line)).count();
            let messages: usize = lines.iter().map(String::len).sum();
            if !is_right || about != 1 || messages > MESSAGES_MAX {
                wrong.push(format!("{prefix} {target}, {}: {got:?}\n{}", case.name, lines.join("\n")));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let stored = setup.cache_files();
    let is_entry = |name: &str| name.len() == 32 && name.bytes().all(|byte| byte.is_ascii_hexdigit());
    let entries =
        stored.iter().filter(|path| path.file_name().is_some_and(|name| is_entry(&name.to_string_lossy())));
    assert_eq!(entries.count(), 0, "{stored:?}");
    let closed = || {
        let status = Client::connect(server.addr(0)).get("/status").text();
        status.starts_with("Active connections: 1 ").then_some(())
    };
    wait::until("the end of all other connections", Deadline::default(), closed).expect("they are closed");
    drop(hostile);
    assert!(server.quit_and_wait().success());
}

const PLACES: &[&str] = &["/plain/", "/cache/", "/stream/"];

#[test]
fn hostile_fastcgi_servers_affect_only_their_request() {
    check("fastcgi", of_fastcgi(), PLACES);
}

#[test]
fn hostile_scgi_servers_affect_only_their_request() {
    check("scgi", of_scripts(<[u8]>::to_vec), PLACES);
}

#[test]
fn hostile_uwsgi_servers_affect_only_their_request() {
    check("uwsgi", of_scripts(<[u8]>::to_vec), PLACES);
}

#[test]
fn hostile_memcached_servers_affect_only_their_request() {
    check("memcached", of_memcached(), &["/plain/"]);
}
