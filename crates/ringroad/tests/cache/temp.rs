//! `use_temp_path` as an operator sees it: the directory to which a response is written before it is complete.

use std::path::{Path, PathBuf};

use crate::common::BINARY;
use crate::common::cache::{checked, entries, get, get_until, object, wait_for_entries};
use testkit::origin::{Objects, Origin};
use testkit::{Client, Deadline, Gate, Server, Setup, TempDir, wait};

/// Starts a server whose two locations have separate directories for temporary files.
fn start(origin: &Origin, parameter: &str, first: &Path, second: &Path) -> (Setup, Server) {
    let text = "worker_processes 1; error_log logs/error.log info;
events { }
http {
  proxy_cache_path @CACHE@ levels=1:2 keys_zone=one:1m @PARAMETER@;
  proxy_temp_path @FIRST@ 1 2;
  proxy_cache one; proxy_cache_key $uri;
  add_header X-Cache $upstream_cache_status always;
  server { listen 127.0.0.1:0;
    location / { proxy_pass http://@ORIGIN@; }
    location /second { proxy_temp_path @SECOND@; proxy_pass http://@ORIGIN@; } }
}
";
    let setup = Setup::new(text)
        .origin(origin)
        .value("PARAMETER", parameter)
        .value("FIRST", &first.display().to_string())
        .value("SECOND", &second.display().to_string());
    let server = setup.start(BINARY);
    (setup, server)
}

/// Returns the files below a directory that the worker has open, unnamed ones included.
fn open_below(server: &Server, folder: &Path) -> Vec<PathBuf> {
    let fds = std::fs::read_dir(format!("/proc/{}/fd", server.worker())).expect("the worker lives");
    let targets = fds.flatten().filter_map(|entry| std::fs::read_link(entry.path()).ok());
    targets.filter(|target| target.starts_with(folder) && target.as_path() != folder).collect()
}

/// Starts an origin with objects of a megabyte whose second half waits.
fn paused_origin(gate: &Gate) -> Origin {
    let (objects, gate) = (Objects::new(), gate.clone());
    let handler = objects.handler();
    objects.rule(move |target| {
        let gate = gate.clone();
        let object = object(if target.contains("small") { 500 } else { 1 << 20 });
        Some(object.tune(
            move |_, reply| if reply.body_len() > 1000 { reply.wait_at(600_000, &gate) } else { reply },
        ))
    });
    Origin::start(handler)
}

#[test]
fn responses_are_first_written_to_proxy_temp_path() {
    let Some(other) = TempDir::on_other_filesystem("cache-temp") else { return };
    let here = TempDir::new("cache-temp");
    let gate = Gate::new();
    let origin = paused_origin(&gate);
    let (setup, server) = start(&origin, "use_temp_path=on", here.path(), other.path());
    for (number, (target, folder)) in
        [("/first", here.path()), ("/second", other.path())].into_iter().enumerate()
    {
        let mut clients: Vec<Client> = (0..3).map(|_| Client::connect(server.addr(0))).collect();
        for client in &mut clients {
            client.send(testkit::client::request_bytes("GET", target, &[]));
        }
        gate.wait_reached_by(number as u64 + 1);
        let begun = || (!open_below(&server, folder).is_empty()).then_some(());
        wait::until("a file without a name", Deadline::default(), begun).expect("it is being filled");
        assert_eq!(open_below(&server, &setup.cache().join("ringroad.tmp")), Vec::<PathBuf>::new());
        gate.let_through(1);
        // All clients, including those that joined the fetch.
        for client in &mut clients {
            checked(target, &client.response());
        }
        get_until(&server, target, "HIT");
        assert_eq!(std::fs::read_dir(folder).map_or(0, Iterator::count), 0);
    }
    for target in ["/small", "/second-small"] {
        get_until(&server, target, "HIT");
    }
    assert_eq!(wait_for_entries(&setup, 4).len(), entries(&setup).len());
    assert_eq!(origin.stats().requests, 4);
    // The moved entry survives a restart.
    assert!(server.quit_and_wait().success());
    let server = setup.start(BINARY);
    gate.open();
    for target in ["/first", "/second", "/small", "/second-small"] {
        assert_eq!(get(&server, target), "HIT", "{target}");
    }
}

/// Without `use_temp_path=on` a response is only written inside the cache's directory, unlike in nginx.
#[test]
fn responses_are_otherwise_written_inside_the_cache_directory() {
    let here = TempDir::new("cache-temp");
    let gate = Gate::new();
    let origin = paused_origin(&gate);
    for (number, parameter) in ["", "use_temp_path=off"].into_iter().enumerate() {
        let (setup, server) = start(&origin, parameter, here.path(), here.path());
        let mut client = Client::connect(server.addr(0));
        client.send(testkit::client::request_bytes("GET", "/first", &[]));
        gate.wait_reached_by(number as u64 + 1);
        let inside = setup.cache().join("ringroad.tmp");
        let begun = || (!open_below(&server, &inside).is_empty()).then_some(());
        wait::until("a file", Deadline::default(), begun).expect("it is being filled");
        assert_eq!(open_below(&server, here.path()), Vec::<PathBuf>::new());
        gate.let_through(1);
        checked("/first", &client.response());
    }
}

#[test]
fn an_unavailable_directory_is_reported_once_and_not_used() {
    let folder = TempDir::new("cache-temp");
    let gone = folder.path().join("gone");
    let gate = Gate::new();
    gate.open();
    let origin = paused_origin(&gate);
    let (_setup, server) = start(&origin, "use_temp_path=on", &gone, &gone);
    // A master that runs as root has created it for its workers.
    if gone.exists() {
        std::fs::remove_dir_all(&gone).expect("it is ours");
    }
    folder.write("gone", "a file");
    for target in ["/first", "/other", "/small"] {
        get_until(&server, target, "HIT");
    }
    let told = "incomplete entries are written inside the cache's directory until";
    let line = server.wait_for_log(told, Deadline::default());
    assert!(line.contains("[error]") && line.contains(&gone.display().to_string()), "{line}");
    assert_eq!(server.error_log().matches(told).count(), 1);
}
