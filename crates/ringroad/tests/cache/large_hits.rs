//! Hits of entries that are too large for memory: repeated hits are sent from the page cache by `sendfile`, without a
//! copy.

use crate::common::cache::{checked, sized_objects, start, wait_for_entries};
use testkit::{Client, Deadline, Server, Setup, wait};

const CONF: &str = "worker_processes 1; error_log logs/error.log info;
events { }
http {
  proxy_cache_path @CACHE@ keys_zone=one:1m use_temp_path=off;
  proxy_cache one; proxy_cache_key $uri;
  add_header X-Cache $upstream_cache_status always;
  add_header X-Engine $body_engine always;
  server { listen 127.0.0.1:0;
    location / { proxy_pass http://@ORIGIN@; }
    location /off/ { sendfile off; proxy_pass http://@ORIGIN@; }
    location /aio/ { aio on; proxy_pass http://@ORIGIN@; } }
}
";

/// Returns the engine of a hit.
fn engine(server: &Server, target: &str) -> String {
    let response = Client::connect(server.addr(0)).get(target);
    assert_eq!(checked(target, &response), "HIT", "{target}");
    response.field("X-Engine").unwrap_or("").to_owned()
}

#[test]
fn repeated_hits_of_large_entries_are_sent_by_sendfile() {
    let (_objects, origin) = sized_objects();
    let setup = Setup::new(CONF).origin(&origin);
    let server = start(&setup);
    let others = ["/small-4096", "/off/large-100000", "/aio/large-100000"];
    for target in others.into_iter().chain(["/large-100000"]) {
        Client::connect(server.addr(0)).get(target);
    }
    wait_for_entries(&setup, 4);
    // An open file is closed after two seconds without a request.
    let is_sent = || engine(&server, "/large-100000").starts_with("sendfile").then_some(());
    wait::until("a hit that is sent by sendfile", Deadline::default(), is_sent).expect("its file is open");
    for target in others {
        let engines: Vec<String> = (0..5).map(|_| engine(&server, target)).collect();
        assert!(engines.iter().all(|engine| !engine.starts_with("sendfile")), "{target}: {engines:?}");
    }
}
