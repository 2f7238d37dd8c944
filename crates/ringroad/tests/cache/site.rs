//! The cache of the write-up in `examples/write-up-000-cache`, run unchanged except for the port and the origin's
//! address: filled, restarted, served from disk under a memory limit, and purged manually.
//!
//! The origin is Debian's nginx; without it the test is skipped.

use crate::common;
use std::fs;
use std::path::{Path, PathBuf};

use crate::common::{BINARY, ours_only};
use testkit::cgroup::MemoryLimit;
use testkit::server::ServerBuilder;
use testkit::setup::nginx_origin;
use testkit::{Client, Content, Server, Setup, TempDir, wait};

/// Sizes used in the write-up.
const SIZES: [u64; 3] = [4096, 100 * 1024, 1 << 20];

/// Number of objects of each size: with the limit below, more than fits into memory.
const COUNT: u64 = 48;

/// Memory limit of the server including its page cache.
const LIMIT_BYTES: u64 = 40 << 20;

fn read(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/write-up-000-cache").join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the configuration with its paths and addresses replaced, each of which occurs once.
fn conf(name: &str, origin: &str, cache: &Path) -> String {
    let cache = cache.display().to_string();
    let places = [
        ("127.0.0.1:8010", "127.0.0.1:0"),
        ("127.0.0.1:8011", origin),
        ("path cache0", &format!("path {cache}")),
    ];
    places.iter().fold(read(name), |text, (from, to)| {
        assert_eq!(text.matches(from).count(), 1, "{from} in {text}");
        text.replace(from, to)
    })
}

fn target(size: u64, number: u64) -> String {
    format!("/{size}object{number}")
}

fn content(size: u64, number: u64) -> Content {
    Content::new(size + number, size)
}

/// Requests all objects sequentially on one connection; returns the size and the value of `field` of each.
fn all(server: &Server, field: &str) -> Vec<(u64, String)> {
    let mut client = Client::connect(server.addr(0));
    let each = (0..COUNT).flat_map(|number| SIZES.map(|size| (size, number)));
    each.map(|(size, number)| {
        let response = client.get(&target(size, number));
        assert_eq!(response.status, 200);
        content(size, number).assert_body(&response.body);
        (size, response.field(field).unwrap_or("").to_owned())
    })
    .collect()
}

fn start(conf: &str, limit: Option<&MemoryLimit>) -> Result<Server, String> {
    let prepare = |builder: ServerBuilder| {
        // The configuration logs only errors; the test harness reads the port from a notice.
        let builder =
            builder.arg("-g").arg("error_log error.log notice;").text("conf/mime.types", &read("mime.types"));
        match limit {
            Some(limit) => builder.shell(&limit.enter()),
            None => builder,
        }
    };
    prepare(Server::builder(BINARY).conf(conf)).try_start()
}

/// Runs one of the two copies; returns the reason if the server does not start.
fn fill_restart_serve_and_purge(name: &str) -> Option<String> {
    let files = TempDir::new("origin");
    for number in 0..COUNT {
        SIZES
            .iter()
            .for_each(|&size| content(size, number).write_to(&files.path().join(&target(size, number)[1..])));
    }
    // Without nginx the test is skipped; that is not a failure of the engine.
    let origin = nginx_origin(files.path())?;
    let setup = Setup::new("");
    let conf = conf(name, &origin.addr(0).to_string(), setup.cache());
    let server = match start(&conf, None) {
        Ok(server) => server,
        Err(reason) => return Some(reason),
    };
    assert!(all(&server, "X-Cache").iter().all(|(_, status)| status == "MISS"));
    // If the disk is slow, some responses are not stored.
    let stored = || all(&server, "X-Cache").iter().all(|(_, status)| status == "HIT").then_some(());
    wait::until("all in the cache", testkit::Deadline::default(), stored).expect("they may be stored");
    assert!(server.quit_and_wait().success());
    // From here on only the disk has the objects.
    let address = origin.addr(0).clone();
    assert!(origin.quit_and_wait().success());
    assert!(Client::try_connect(&address).is_err(), "it is gone");
    let limit = MemoryLimit::new(name, LIMIT_BYTES);
    let server = testkit::server::start_with_memory(|| start(&conf, limit.as_ref()));
    assert!(all(&server, "X-Cache").iter().all(|(_, status)| status == "HIT"), "{}", server.error_log());
    // The engine named by the configuration reads the body, bypassing the page cache.
    for (size, engine) in all(&server, "X-Body-Engine") {
        assert!(engine.contains("direct"), "{size}: {engine:?}");
    }
    // Operators may purge an entry by deleting its file.
    let key = format!("http://{address}{}", target(4096, COUNT - 1));
    let file = file_of(&setup, &key);
    fs::remove_file(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let mut client = Client::connect(server.addr(0));
    assert_eq!(client.get(&target(4096, COUNT - 1)).status, 502, "the origin is still gone");
    assert_eq!(client.get(&target(4096, 0)).field("X-Cache"), Some("HIT"));
    drop(client);
    assert!(server.quit_and_wait().success());
    None
}

/// Returns the file of the entry with this key, which is in the file's head.
fn file_of(setup: &Setup, key: &str) -> PathBuf {
    let holds = |path: &PathBuf| {
        let bytes = fs::read(path).unwrap_or_default();
        bytes.windows(key.len()).any(|window| window == key.as_bytes())
    };
    let mut found = common::cache::entries(setup).into_iter().filter(holds);
    found.next().unwrap_or_else(|| panic!("no entry for {key}"))
}

#[test]
fn the_cache_example_serves_with_asynchronous_reads() {
    if ours_only("the examples are run with the binary of this project") {
        assert_eq!(fill_restart_serve_and_purge("nginx.conf"), None, "epoll is everywhere");
    }
}

#[test]
fn the_cache_example_serves_with_io_uring() {
    if !ours_only("the examples are run with the binary of this project") {
        return;
    }
    if let Some(reason) = fill_restart_serve_and_purge("nginx-io_uring.conf") {
        assert!(reason.contains("io_uring"), "{reason}");
        testkit::skip(format_args!("io_uring is not available: {reason}"));
    }
}

#[test]
fn the_example_copies_differ_only_in_the_backend() {
    assert_eq!(read("nginx.conf").replace("use epoll;", "use io_uring;"), read("nginx-io_uring.conf"));
}
