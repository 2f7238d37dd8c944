//! `ringroad health` and the addresses of `ringroad stat`: URLs, unix sockets, https, and locations of the configuration.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use crate::common::tls::Authority;
use crate::control::BINARY;
use rustix::process::Signal;
use testkit::ports::free_port;
use testkit::program::{Finished, run};
use testkit::{Deadline, Server, TempDir, wait};

/// Runs a command for the configuration of a server.
fn command(server: &Server, name: &str, more: &[&str]) -> Finished {
    let prefix = format!("{}/", server.dir().display());
    run(BINARY, &[&[name, "-p", &prefix, "-c", "conf/nginx.conf"], more].concat())
}

/// Starts a server with an admin socket, and these servers in `http`.
fn start(servers: &str) -> Server {
    let conf = format!(
        "admin_socket admin.sock; error_log logs/error.log notice; events {{}} http {{ access_log off; {servers} }}"
    );
    Server::start(BINARY, &conf)
}

#[test]
fn the_location_of_the_configuration_tells_whether_the_server_serves() {
    let port = free_port();
    // The first server has no address for a plain request; the second one is not the default server of its address.
    let mut server = start(&format!(
        "server {{ listen 127.0.0.1:{port}; server_name other.example; return 404; }}
         server {{ listen 127.0.0.1:{port}; server_name *.b.example a.example;
             location / {{ return 404; location = /ready {{ health ready; }} }} }}"
    ));
    let said = command(&server, "health", &[]);
    let url = format!("http://127.0.0.1:{port}/ready");
    assert_eq!(
        (said.status.code(), said.stdout),
        (Some(0), format!("{url}: status 200, \"ok\"\n")),
        "{}",
        said.stderr
    );
    assert!(command(&server, "drain", &[]).status.success());
    let drained = wait::until("the thread to be drained", Deadline::default(), || {
        let said = command(&server, "health", &[]);
        (said.status.code() == Some(1)).then_some(said.stderr)
    });
    assert_eq!(drained.expect("in time"), format!("ringroad health: {url}: status 503, \"drained\"\n"));
    assert!(command(&server, "undrain", &[]).status.success());
    server.signal(Signal::TERM);
    server.wait_until_ended(Deadline::default());
    let said = command(&server, "health", &[]);
    assert_eq!(said.status.code(), Some(1));
    assert!(said.stderr.contains("Connection refused"), "{}", said.stderr);
}

#[test]
fn a_unix_socket_has_the_health_and_the_metrics() {
    let dir = TempDir::new("health");
    let socket = dir.path().join("status.sock").display().to_string();
    let server = start(&format!(
        "server {{ listen unix:{socket}; location = /live {{ health live; }} location /status/ {{ dashboard; }} }}"
    ));
    let socket = format!("http://unix:{socket}");
    for (name, more, expected) in [
        ("health", vec![], "status 200, \"ok\""),
        ("health", vec![format!("{socket}:/live")], "status 200, \"ok\""),
        ("stat", vec!["-1".to_owned()], "requests/s"),
        ("stat", vec!["-1".to_owned(), format!("{socket}:/status/")], "requests/s"),
    ] {
        let more: Vec<&str> = more.iter().map(String::as_str).collect();
        let said = command(&server, name, &more);
        assert!(said.status.success() && said.stdout.contains(expected), "{name} {more:?}: {}", said.stderr);
    }
}

#[test]
fn certificates_of_https_are_verified_unless_an_option_says_otherwise() {
    let authority = Authority::new("root");
    let (certificate, key) = authority.server("localhost");
    let dir = TempDir::new("health");
    dir.write("a.pem", certificate + &key);
    let (root, pem) = (dir.write("root.pem", &authority.pem), dir.path().join("a.pem"));
    let (port, pem) = (free_port(), pem.display().to_string());
    let server = start(&format!(
        "server {{ listen 127.0.0.1:{port} ssl; ssl_certificate {pem}; ssl_certificate_key {pem};
             location = /live {{ health live; }} location = /status {{ dashboard; }} }}"
    ));
    let (url, root) = (format!("https://localhost:{port}/live"), root.display().to_string());
    let status = format!("https://localhost:{port}/status");
    for (args, code, expected) in [
        (&["health", &url][..], 1, "the certificate of localhost is not trusted"),
        (&["health", "--ca", &root, &url], 0, "status 200"),
        (&["health", "--insecure", &url.replace("localhost", "127.0.0.1")], 0, "status 200"),
        (&["health", "--ca", &root, &url.replace("localhost", "127.0.0.1")], 1, "it is for another name"),
        (&["stat", "-1", "--ca", &root, &status], 0, "requests/s"),
        (&["stat", "-1", &status], 1, "is not trusted"),
        (&["health", "--ca", "/nonexistent", &url], 1, "--ca: "),
    ] {
        let said = run(BINARY, args);
        let all = said.stdout + &said.stderr;
        assert_eq!(said.status.code(), Some(code), "{args:?}: {all}");
        assert!(all.contains(expected), "{args:?}: {all}");
    }
    // No location is reachable without TLS.
    let said = command(&server, "health", &[]);
    assert_eq!(said.status.code(), Some(1));
    let remedy = "add \"location = /health { health ready; }\" to a server, or write the URL";
    assert!(said.stderr.contains(remedy), "{}", said.stderr);
}

#[test]
fn a_check_has_a_time_limit() {
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = silent.local_addr().expect("it is bound");
    for scheme in ["http", "https"] {
        let before = Instant::now();
        let said =
            run(BINARY, &["health", "--insecure", "--timeout", "1", &format!("{scheme}://{address}/")]);
        assert_eq!(said.status.code(), Some(1));
        assert!(said.stderr.contains("no response within 1 seconds"), "{}", said.stderr);
        assert!(before.elapsed() >= Duration::from_millis(900));
    }
    for (args, expected) in [
        (["health", "--timeout", "0", "http://a/"], "is not a number of seconds from 1 to 3600"),
        (["health", "--timeout", "1", "ftp://a/"], "write the address with http:// or https://"),
    ] {
        let said = run(BINARY, &args);
        assert_eq!(said.status.code(), Some(2));
        assert!(said.stderr.contains(expected), "{}", said.stderr);
    }
}

/// A refusal says which rule it is, and what permits the command.
#[test]
fn a_refused_command_names_the_rule_and_the_remedy() {
    let port = free_port();
    let server = start(&format!(
        "server {{ listen 127.0.0.1:{port}; server_name a.example; return 404; }}
         server {{ listen 127.0.0.1:{port}; server_name b.example;
             location = /ready {{ health ready; allow 10.0.0.0/8; deny all; }}
             location = /status {{ dashboard; deny all; }} }}"
    ));
    let conf = server.path("conf/nginx.conf").display().to_string();
    let url = |path: &str| format!("http://127.0.0.1:{port}{path}");
    let remedy = "\"allow 127.0.0.1;\" before it permits this command";
    let said = command(&server, "health", &[]);
    let (url_of_health, refused) = (url("/ready"), format!("refused by deny all at {conf}:3; {remedy}\n"));
    let start = format!("ringroad health: {url_of_health}: status 403, ");
    assert_eq!(said.status.code(), Some(1));
    assert!(said.stderr.starts_with(&start) && said.stderr.ends_with(&refused), "{}", said.stderr);
    let said = command(&server, "stat", &["-1"]);
    let refused = format!("refused by deny all at {conf}:4; {remedy}\n");
    assert!(said.status.code() == Some(1) && said.stderr.ends_with(&refused), "{}", said.stderr);
    // Without the configuration the rule is not known.
    let other = start_refusing();
    let url = format!("http://{}/", other.addr(0));
    for args in [&["health", &url][..], &["stat", "-1", &url]] {
        let said = run(BINARY, args);
        assert!(said.status.code() == Some(1) && said.stderr.contains(remedy), "{}", said.stderr);
        assert!(said.stderr.contains("\"ringroad explain URL\" shows the reason"), "{}", said.stderr);
    }
    let said = run(BINARY, &["health", &format!("{url}secret")]);
    assert!(said.stderr.contains("the location needs a password"), "{}", said.stderr);
}

/// Starts a server that refuses all requests.
fn start_refusing() -> Server {
    let location = "location = /secret { auth_basic a; auth_basic_user_file users; }";
    let conf = format!(
        "events {{}} http {{ server {{ listen 127.0.0.1:0; {location} location / {{ deny all; }} }} }}"
    );
    Server::builder(BINARY).conf(&conf).text("conf/users", "a:{PLAIN}b\n").start()
}

/// A server goes on with its configuration when the file gets an error, and the commands still find it.
#[test]
fn commands_find_the_server_of_a_configuration_with_an_error() {
    let port = free_port();
    let server = start(&format!(
        "server {{ listen 127.0.0.1:{port}; location = /ready {{ health ready; }} location = /status {{ dashboard; }} }}"
    ));
    let conf = server.path("conf/nginx.conf");
    let valid = std::fs::read_to_string(&conf).expect("it is there");
    let url = format!("http://127.0.0.1:{port}/ready");
    for fault in ["sendfile maybe; }", "include none.conf; }", "root /a }", "ssl_certificate none; }", ""] {
        let (start, _) = valid.rsplit_once('}').expect("an end");
        std::fs::write(&conf, format!("{start} {fault}")).expect("it can be written");
        assert!(!command(&server, "-t", &[]).status.success(), "{fault}");
        for (name, more) in [
            ("drain", &[][..]),
            ("undrain", &[]),
            ("top", &["-1", "--every", "1"]),
            ("explain", &["--running", &url]),
            ("health", &[]),
            ("stat", &["-1"]),
        ] {
            let said = command(&server, name, more);
            assert!(said.status.success(), "{name}, {fault}: {}", said.stderr);
        }
    }
    // The directive cannot be found any more.
    let hint = "name the socket of a running server by --socket PATH";
    for (text, expected) in [
        ("sendfile maybe;", format!("{hint}, such as /run/ringroad-admin.sock")),
        ("events {} admin_socket off;", "has no \"admin_socket\"; add \"admin_socket".to_owned()),
    ] {
        std::fs::write(&conf, text).expect("it can be written");
        for name in ["drain", "log"] {
            let said = command(&server, name, &[]);
            assert!(
                said.status.code() == Some(1) && said.stderr.contains(&expected),
                "{text}: {}",
                said.stderr
            );
        }
    }
    std::fs::remove_file(&conf).expect("it is there");
    let said = command(&server, "drain", &[]);
    assert!(said.stderr.contains("No such file") && said.stderr.contains(hint), "{}", said.stderr);
    let socket = server.path("admin.sock").display().to_string();
    assert!(run(BINARY, &["drain", "--socket", &socket]).status.success());
}

#[test]
fn another_response_is_a_failure() {
    let server = Server::start(BINARY, &crate::control::site("", "here"));
    let url = format!("http://{}/", server.addr(0));
    assert_eq!(run(BINARY, &["health", &url]).stdout, format!("{url}: status 200, \"here\"\n"));
    let (dir, listener) =
        (TempDir::new("no-http"), TcpListener::bind("127.0.0.1:0").expect("a port is free"));
    let address = listener.local_addr().expect("it is bound");
    let conf = dir.write("a.conf", "events {} http { server { listen 80; } }");
    std::thread::spawn(move || {
        let (mut client, _) = listener.accept().expect("a client");
        std::io::Write::write_all(&mut client, b"SSH-2.0-x\r\n").expect("it is sent");
    });
    let said = run(BINARY, &["health", &format!("http://{address}/")]);
    assert_eq!(said.status.code(), Some(1), "{}", said.stderr);
    let said = run(BINARY, &["health", "-c", &conf.display().to_string()]);
    assert_eq!(said.status.code(), Some(1));
    assert!(said.stderr.contains("has no location with \"health ready;\""), "{}", said.stderr);
}
