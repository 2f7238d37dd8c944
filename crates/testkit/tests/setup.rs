//! The harness for proxies: Debian's nginx as a caching proxy, and as an origin.

use std::path::PathBuf;

use testkit::burst::{Burst, assert_all_right};
use testkit::origin::objects::check;
use testkit::origin::{Object, Objects};
use testkit::response::Response;
use testkit::setup::{Setup, nginx_origin};
use testkit::{Client, Content, Gate, Origin, Server, TempDir};

const CONF: &str = "worker_processes 1;
events { worker_connections 1024; }
http {
    proxy_cache_path @CACHE@ levels=2 keys_zone=zone:1m use_temp_path=off;
    server {
        listen 127.0.0.1:0;
        add_header X-Cache $upstream_cache_status;
        location / { proxy_pass http://@ORIGIN@; proxy_cache zone; proxy_cache_lock @LOCK@; }
    }
}
";

fn get(server: &Server, target: &str) -> Response {
    Client::connect(server.addr(0)).get(target)
}

#[test]
fn nginx_caches_in_front_of_the_scripted_origin_and_after_a_restart() {
    let objects = Objects::new();
    objects.put("/a", Object::new(300_000).cache_control("max-age=600"));
    let dir = TempDir::new("setup-test");
    let origin = Origin::start_unix(&dir.path().join("origin"), objects.handler());
    let setup = Setup::new(CONF).origin(&origin).value("LOCK", "off");
    let Some(server) = setup.start_nginx() else { return };
    for expected in ["MISS", "HIT"] {
        let response = get(&server, "/a");
        assert_eq!(response.field("x-cache"), Some(expected));
        check("/a", &response).expect("it is right");
    }
    assert_eq!(setup.cache_files().len(), 1);
    assert!(server.quit_and_wait().success());
    let again = setup.start_nginx().expect("it is installed");
    assert_eq!(get(&again, "/a").field("x-cache"), Some("HIT"));
    assert_eq!(origin.stats().of("/a"), 1);
}

#[test]
fn many_clients_share_one_request_to_the_origin() {
    let gate = Gate::new();
    let held = gate.clone();
    let objects = Objects::new();
    let object = Object::new(100_000).cache_control("max-age=600");
    objects.put("/a", object.tune(move |_, reply| reply.wait_at(50_000, &held)));
    let origin = Origin::objects(&objects);
    let setup = Setup::new(CONF).origin(&origin).value("LOCK", "on");
    let Some(server) = setup.start_nginx() else { return };
    let burst = Burst::new(server.addr(0)).get("/a", 200).keep(0).expect(objects.content("/a")).start();
    gate.wait_reached();
    burst.wait_for("all requests", |progress| progress.sent == 200);
    gate.open();
    assert_all_right(&burst.join(), 200);
    let stats = origin.stats();
    assert_eq!((stats.requests, stats.in_flight_max), (1, 1));
}

#[test]
fn nginx_serves_files_as_an_origin() {
    let site = TempDir::new("setup-site");
    let content = Content::new(8, 70_000);
    content.write_to(&site.path().join("a.bin"));
    let Some(server) = nginx_origin(site.path()) else { return };
    for (target, expected) in [
        ("/a.bin", Some("max-age=3600")),
        ("/second/a.bin", Some("max-age=1")),
        ("/never/a.bin", Some("no-store")),
        ("/silent/a.bin", None),
    ] {
        let response = get(&server, target);
        assert_eq!((response.status, response.field("cache-control")), (200, expected), "{target}");
        content.assert_body(&response.body);
        assert!(response.field("etag").is_some());
    }
}

#[test]
fn the_binary_under_test_gets_the_completed_configuration() {
    let origin = Origin::start(|_| testkit::Reply::ok());
    let fake = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fake_server.sh");
    let setup = Setup::new("events {} # @ORIGIN@ @CACHE@ @DNS@").origin(&origin).value("DNS", "x");
    let server = setup.value("DNS", "127.0.0.1:53").start(fake);
    let text = std::fs::read_to_string(server.path("conf/nginx.conf")).expect("the harness wrote it");
    let expected = format!("# 127.0.0.1:{} ", origin.port());
    assert!(text.contains(&expected) && text.ends_with("/cache 127.0.0.1:53"), "{text}");
}

#[test]
#[should_panic(expected = "@ORIGIN@ has no value")]
fn a_placeholder_without_a_value_is_reported() {
    let _ = Setup::new("proxy_pass http://@ORIGIN@;").text();
}
