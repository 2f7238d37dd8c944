//! CONNECT: the same requests to this server and to nginx if it has the module `tunnel` (1.31), and tests of this
//! server alone.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::common::BINARY;
use testkit::{Deadline, Server, Setup};

const CONF: &str = r#"worker_processes 1; error_log logs/error.log info;
events { }
http {
  server_tokens off;
  log_format l "$request_method $status $upstream_addr $upstream_bytes_sent $upstream_bytes_received";
  access_log logs/access.log l;
  map $host $to { one.test @ECHO@; two.test @OTHER@; default ""; }
  # Permits the ports of `tunnel_pass` without an argument in a strict sandbox.
  upstream ports { server @ECHO@; server @OTHER@; }
  upstream tries { server 127.0.0.1:1; server @ECHO@; keepalive 4; }
  server { listen 127.0.0.1:0; @BODY@ }
}
"#;

/// Contents of the server block.
const BODIES: [&str; 8] = [
    "location / { tunnel_pass; }",
    "tunnel_pass $to;",
    "location / { tunnel_pass tries; }",
    "location / { tunnel_next_upstream off; tunnel_pass tries; error_page 502 = @page; } location @page { return 207 page; }",
    "location / { return 200 none; }",
    "location / { deny all; tunnel_pass; }",
    "location / { add_header X-To $upstream_addr; if ($host = one.test) { tunnel_pass @ECHO@; } return 403; }",
    "location / { tunnel_read_timeout 200ms; tunnel_pass; }",
];

/// Returns the received bytes after a letter, until the peer has closed its side.
struct Echo(SocketAddr, Option<JoinHandle<()>>);

impl Echo {
    fn start(letter: u8) -> Echo {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port of loopback");
        let address = listener.local_addr().expect("it is bound");
        let thread = std::thread::spawn(move || {
            for mut stream in listener.incoming().map_while(Result::ok) {
                let mut first = [0; 4];
                if stream.read_exact(&mut first).is_ok() && &first == b"stop" {
                    return;
                }
                std::thread::spawn(move || {
                    let mut reader = stream.try_clone().expect("a descriptor");
                    let _ = stream.write_all(&[&[letter][..], &first].concat());
                    let _ = std::io::copy(&mut reader, &mut stream);
                    let _ = stream.shutdown(Shutdown::Write);
                });
            }
        });
        Echo(address, Some(thread))
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        let _ = TcpStream::connect(self.0).and_then(|mut stream| stream.write_all(b"stop"));
        if let Some(thread) = self.1.take() {
            let _ = thread.join();
        }
    }
}

fn setup(body: usize, one: &Echo, two: &Echo) -> Setup {
    Setup::new(&CONF.replace("@BODY@", BODIES[body]))
        .value("ECHO", &one.0.to_string())
        .value("OTHER", &two.0.to_string())
}

/// Sends a head, and `data` either after the response or immediately; returns all received bytes without the parts that
/// differ.
fn send_request(server: &Server, head: &str, data: &[u8], at_once: bool) -> String {
    let mut stream = TcpStream::connect(server.addr(0).tcp()).expect("it listens");
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a time");
    stream.write_all(head.as_bytes()).expect("it reads");
    let mut found = Vec::new();
    if at_once {
        let _ = stream.write_all(data);
    } else {
        let mut byte = [0];
        while !found.ends_with(b"\r\n\r\n") && matches!(stream.read(&mut byte), Ok(1)) {
            found.push(byte[0]);
        }
        if found.starts_with(b"HTTP/1.1 200") {
            let _ = stream.write_all(data);
        }
    }
    // nginx closes a tunnel whose client has closed its side, so this client does not close before it has received
    // everything.
    let mut byte = [0];
    while !(found.ends_with(b"hello") && found.starts_with(b"HTTP/1.1 200"))
        && matches!(stream.read(&mut byte), Ok(1))
    {
        found.push(byte[0]);
    }
    let text = String::from_utf8_lossy(&found).replace("ringroad", "nginx");
    let lines =
        text.lines().filter(|line| !line.starts_with("Date: ") && !line.starts_with("Content-Length: "));
    lines.map(|line| format!("{line}\n")).collect()
}

#[test]
fn requests_and_responses_are_the_same_as_with_nginx() {
    let (one, two) = (Echo::start(b'1'), Echo::start(b'2'));
    let target = one.0.to_string();
    let heads = [
        format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n"),
        "CONNECT one.test:443 HTTP/1.1\r\nHost: one.test:443\r\n\r\n".to_owned(),
        "CONNECT two.test:443 HTTP/1.1\r\nHost: other\r\n\r\n".to_owned(),
        "CONNECT three.test:443 HTTP/1.1\r\nHost: three.test\r\n\r\n".to_owned(),
        "CONNECT 127.0.0.1:1 HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(),
        format!("CONNECT {target} HTTP/1.0\r\nHost: a\r\n\r\n"),
        format!("CONNECT {target} HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody"),
        format!("CONNECT {target} HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"),
        format!("CONNECT {target} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
        format!("CONNECT {target} HTTP/1.1\r\n\r\n"),
        "CONNECT one.test HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(),
        "CONNECT / HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(),
        "CONNECT http://one.test:80/ HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(),
        "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".to_owned(),
        "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 4\r\n\r\nbody".to_owned(),
    ];
    // Older versions refuse CONNECT with other messages, and lack the module's directives.
    let has_tunnels = setup(0, &one, &two).start_nginx().is_some();
    let (mut wrong, mut passed) = (Vec::new(), 0);
    for (body, text) in BODIES.iter().enumerate().take(7) {
        let setup = setup(body, &one, &two);
        let ours = setup.start(BINARY);
        let nginx = if has_tunnels { setup.start_nginx() } else { None };
        for head in &heads {
            for at_once in [false, true] {
                let found = send_request(&ours, head, b"hello", at_once);
                passed += usize::from(found.ends_with("1hello\n") || found.ends_with("2hello\n"));
                let Some(nginx) = &nginx else { continue };
                let theirs = send_request(nginx, head, b"hello", at_once);
                if found != theirs {
                    wrong
                        .push(format!("{text} {head:?} {at_once}\n--- nginx\n{theirs}--- ringroad\n{found}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(passed >= 20, "{passed}");
}

#[test]
fn bytes_pass_in_both_directions_until_both_ends_close() {
    let (one, two) = (Echo::start(b'1'), Echo::start(b'2'));
    let server = setup(0, &one, &two).start(BINARY);
    let mut stream = TcpStream::connect(server.addr(0).tcp()).expect("it listens");
    stream.write_all(format!("CONNECT {} HTTP/1.1\r\nHost: a\r\n\r\n", one.0).as_bytes()).expect("it reads");
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).expect("a response");
        head.push(byte[0]);
    }
    let data: Vec<u8> = (0..5_000_000_u32).map(|index| (index / 7) as u8).collect();
    let mut writer = stream.try_clone().expect("a descriptor");
    let sent = data.clone();
    let writing = std::thread::spawn(move || {
        writer.write_all(&sent).expect("it reads");
        // The end of one direction is forwarded, and the other direction continues.
        writer.shutdown(Shutdown::Write).expect("it is open");
    });
    let mut found = Vec::new();
    stream.read_to_end(&mut found).expect("all of it");
    writing.join().expect("it was sent");
    assert!(found[0] == b'1' && found[1..] == data, "{} bytes", found.len());
    let line = format!("CONNECT 200 {} 5000000 5000001", one.0);
    let logged = || server.access_log().contains(&line).then_some(());
    testkit::wait::until("the line", Deadline::default(), logged)
        .unwrap_or_else(|_| panic!("{}", server.access_log()));
    // A silent tunnel is closed.
    let server = setup(7, &one, &two).start(BINARY);
    let silent =
        send_request(&server, &format!("CONNECT {} HTTP/1.1\r\nHost: a\r\n\r\n", one.0), b"abc", false);
    assert!(silent.starts_with("HTTP/1.1 200 "), "{silent}");
    // Connections of a group are never reused for tunnels.
    let server = setup(2, &one, &two).start(BINARY);
    for _ in 0..3 {
        assert!(
            send_request(&server, "CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n", b"hello", false)
                .ends_with("1hello\n")
        );
    }
}

/// User `u` with password `p`, and credentials of the user with this and with another password.
const USERS: &str = "u:{PLAIN}p\n";
const RIGHT: &str = "Basic dTpw";
const WRONG: &str = "Basic dTp4";

/// Contents of the server block of a forward proxy with a password, and the lines that a client may send.
const PROXIES: [&str; 6] = [
    "location / { auth_basic r; auth_basic_user_file users; tunnel_pass; }",
    "location / { satisfy any; deny all; auth_basic r; auth_basic_user_file users; tunnel_pass; }",
    "location / { satisfy any; allow all; auth_basic r; auth_basic_user_file users; tunnel_pass; }",
    "location / { auth_delay 100ms; auth_basic r; auth_basic_user_file users; tunnel_pass; }",
    "error_page 407 =407 /page; location = /page { return 200 'page'; } location / { auth_basic r; auth_basic_user_file users; tunnel_pass; }",
    "error_page 407 = @page; location @page { return 403 'page $remote_user'; } location / { auth_basic r; auth_basic_user_file users; tunnel_pass; }",
];

#[test]
fn a_forward_proxy_asks_for_its_own_credentials() {
    let (one, two) = (Echo::start(b'1'), Echo::start(b'2'));
    let target = one.0.to_string();
    for body in PROXIES {
        let conf = CONF.replace("$request_method $status", "$request_method $status $remote_user");
        let setup = Setup::new(&conf.replace("@BODY@", body))
            .value("ECHO", &one.0.to_string())
            .value("OTHER", &two.0.to_string());
        let users = setup.data().join("users");
        std::fs::write(&users, USERS).expect("the directory is writable");
        let setup = Setup::new(&conf.replace("@BODY@", body).replace("users", &users.display().to_string()))
            .value("ECHO", &one.0.to_string())
            .value("OTHER", &two.0.to_string());
        let servers = [Some(setup.start(BINARY)), setup.start_nginx()];
        let heads = [
            ("", ""),
            ("Proxy-Authorization", RIGHT),
            ("Proxy-Authorization", WRONG),
            ("Authorization", RIGHT),
        ];
        for (name, value) in heads {
            let line = if name.is_empty() { String::new() } else { format!("{name}: {value}\r\n") };
            let head = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n{line}\r\n");
            let all: Vec<String> = servers
                .iter()
                .flatten()
                .map(|server| send_request(server, &head, b"datahello", false))
                .collect();
            let is_open = value == RIGHT && name.starts_with("Proxy") || body.contains("allow all");
            let expected = if is_open {
                "HTTP/1.1 200"
            } else if body.contains("@page") {
                "HTTP/1.1 403"
            } else {
                "HTTP/1.1 407"
            };
            assert!(all[0].starts_with(expected), "{body} {line}: {}", all[0]);
            if expected == "HTTP/1.1 407" {
                assert!(
                    all[0].contains("Proxy-Authenticate: Basic realm=\"r\"\n"),
                    "{body} {line}: {}",
                    all[0]
                );
            }
            assert!(!all[0].contains("WWW-Authenticate"), "{body} {line}: {}", all[0]);
            if let Some(nginx) = all.get(1) {
                assert_eq!(&all[0], nginx, "{body} {line}");
            }
        }
        let log = servers[0].as_ref().expect("ours").wait_for_access_log(4, Deadline::default());
        let of_user = log.lines().filter(|line| line.contains(" u ")).count();
        assert_eq!(of_user, 2, "{body}: {log}");
    }
}

/// A client of a forward proxy does not expect a 401, so the verdict of the subrequest is translated.
#[test]
fn a_forward_proxy_asks_for_the_credentials_that_auth_request_demands() {
    let one = Echo::start(b'1');
    let target = one.0.to_string();
    let body = "location = /auth { internal; add_header WWW-Authenticate 'Basic realm=\"s\"' always; \
                if ($http_proxy_authorization = 'Basic dTpw') { return 204; } return 401; }\n\
                location / { auth_request /auth; tunnel_pass; }";
    let setup = setup_with(body, &one);
    let server = setup.start(BINARY);
    let ask = |line: &str| {
        send_request(
            &server,
            &format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n{line}\r\n"),
            b"datahello",
            false,
        )
    };
    let refused = ask("");
    assert!(refused.starts_with("HTTP/1.1 407"), "{refused}");
    assert!(ask(&format!("Proxy-Authorization: {RIGHT}\r\n")).starts_with("HTTP/1.1 200"));
    assert!(ask(&format!("Authorization: {RIGHT}\r\n")).starts_with("HTTP/1.1 407"));
}

fn setup_with(body: &str, one: &Echo) -> Setup {
    Setup::new(&CONF.replace("@BODY@", body))
        .value("ECHO", &one.0.to_string())
        .value("OTHER", &one.0.to_string())
}
