//! The configurations of the write-ups in `examples/` run unchanged, except for the port.
//!
//! They must work for every user: `user` takes effect only for root.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::{BINARY, ours_only};
use testkit::client::request_bytes;
use testkit::server::ServerBuilder;
use testkit::{Client, Content, Deadline, Server, wait};

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples")
}

fn read(name: &str) -> String {
    let path = examples().join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the configuration with a kernel-assigned port.
fn conf(name: &str, port: &str) -> String {
    let text = read(name);
    assert_eq!(text.matches(port).count(), 1, "one listener: {text}");
    text.replace(port, ":0")
}

fn serve(conf: &str, prepare: impl Fn(ServerBuilder) -> ServerBuilder) -> Result<Server, String> {
    prepare(Server::builder(BINARY).conf(conf)).try_start()
}

#[test]
fn the_example_without_a_file_serves() {
    if !ours_only("the examples are run with the binary of this project") {
        return;
    }
    let server = serve(&conf("write-up-004/nginx.conf", ":8004"), |builder| builder).expect("it starts");
    let mut clients: Vec<Client> = (0..100).map(|_| Client::connect(server.addr(0))).collect();
    for client in &mut clients {
        client.send(request_bytes("GET", "/", &[]).repeat(10));
    }
    for client in &mut clients {
        for _ in 0..10 {
            let response = client.response();
            assert_eq!((response.status, response.body.len()), (200, 0));
        }
    }
    let mut closing = Client::connect(server.addr(0));
    assert_eq!(closing.request("GET", "/any/where", &[("Connection", "Close")]).status, 200);
    closing.expect_end();
    assert_eq!(server.access_log(), "", "access_log off");
    drop(clients);
    assert!(server.quit_and_wait().success());
}

/// Sizes used in the write-up, and those around `directio 2k`.
const SIZES: [u64; 7] = [0, 100, 2047, 2048, 4096, 100 * 1024, 1 << 20];

fn files_through(name: &str) -> Option<String> {
    let conf = conf(&format!("write-up-000/{name}"), ":8000");
    let started = serve(&conf, |mut builder| {
        // The configuration logs only errors; the test harness reads the port from a notice.
        builder = builder.arg("-g").arg("error_log error.log notice;");
        builder = builder.text("conf/mime.types", &read("write-up-000/mime.types"));
        for page in ["index.html", "numbers.txt"] {
            builder = builder.text(&format!("html/{page}"), &read(&format!("write-up-000/html/{page}")));
        }
        SIZES.iter().fold(builder, |builder, &size| {
            builder.file(&format!("html/{size}object"), Content::new(size, size))
        })
    });
    let server = match started {
        Ok(server) => server,
        Err(reason) => return Some(reason),
    };
    let mut client = Client::connect(server.addr(0));
    let index = client.get("/");
    assert_eq!(
        (index.text(), index.field("content-type")),
        (read("write-up-000/html/index.html"), Some("text/html"))
    );
    let numbers = client.get("/numbers.txt");
    assert_eq!(
        (numbers.text(), numbers.field("content-type")),
        (read("write-up-000/html/numbers.txt"), Some("text/plain"))
    );
    let mut clients: Vec<Client> = (0..20).map(|_| Client::connect(server.addr(0))).collect();
    for size in SIZES {
        for client in &mut clients {
            client.send(request_bytes("GET", &format!("/{size}object"), &[]));
        }
        for client in &mut clients {
            let response = client.response();
            assert_eq!(response.field("content-type"), Some("application/octet-stream"));
            Content::new(size, size).assert_body(&response.body);
        }
    }
    // `access_log on` names a file `on`.
    let log = || fs::read_to_string(server.path("on")).expect("the log that the configuration names");
    let logged = || log().contains("\"GET /4096object HTTP/1.1\" 200 4096 ").then_some(());
    wait::until("a line", Deadline::default(), logged).unwrap_or_else(|late| panic!("{late}: {}", log()));
    assert!(server.path("error.log").exists());
    drop((client, clients));
    assert!(server.quit_and_wait().success());
    None
}

#[test]
fn the_example_serves_with_asynchronous_reads() {
    if ours_only("the examples are run with the binary of this project") {
        assert_eq!(files_through("nginx.conf"), None, "epoll is everywhere");
    }
}

#[test]
fn the_example_serves_with_io_uring() {
    if !ours_only("the examples are run with the binary of this project") {
        return;
    }
    if let Some(reason) = files_through("nginx-io_uring.conf") {
        assert!(reason.contains("io_uring"), "{reason}");
        testkit::skip(format_args!("io_uring is not available: {reason}"));
    }
}

#[test]
fn the_example_copies_differ_only_in_the_backend() {
    let epoll = read("write-up-000/nginx.conf");
    assert_eq!(epoll.replace("use epoll;", "use io_uring;"), read("write-up-000/nginx-io_uring.conf"));
}
