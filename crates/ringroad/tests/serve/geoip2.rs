//! `geoip2`: variables from a MaxMind database, by the client's address, a trusted proxy's field or a variable; a
//! database file that is replaced.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::common::BINARY;
use rustix::process::Signal;
use testkit::mmdb::{Mmdb, map};
use testkit::program::signal_process;
use testkit::{Client, Deadline, Server, Setup, wait};

const CONF: &str = r#"worker_processes 2; error_log logs/error.log notice;
events { }
http {
  access_log off;
  geoip2_proxy 127.0.0.0/8;
  geoip2_proxy 10.0.0.0/8;
  geoip2_proxy_recursive on;
  geoip2 @DATA@/db/country.mmdb {
    auto_reload 1s;
    $country default=none country iso_code;
    $by_arg default=none source=$arg_ip country iso_code;
    $without country iso_code further;
    $made metadata build_epoch;
  }
  map $country $is_close { default no; DE yes; }
  server {
    listen 127.0.0.1:0;
    location / { return 200 "$country $by_arg [$without] $made $is_close"; }
  }
}
"#;

fn database(epoch: u64, country: &str) -> Vec<u8> {
    let record = |code: &str| map([("country", map([("iso_code", code.into())]))]);
    Mmdb::new(epoch).with("1.2.0.0/16", &record(country)).with("2001:db8::/32", &record("IT")).bytes()
}

/// Replaces the database file atomically.
fn publish(folder: &Path, bytes: &[u8]) {
    let (new, path) = (folder.join("new"), folder.join("country.mmdb"));
    std::fs::write(&new, bytes).expect("the directory is writable");
    std::fs::set_permissions(&new, std::fs::Permissions::from_mode(0o644)).expect("it is ours");
    std::fs::rename(new, path).expect("both are there");
}

fn setup(interval: &str) -> Setup {
    let setup = Setup::new(&CONF.replace("auto_reload 1s", &format!("auto_reload {interval}")));
    let folder = setup.data().join("db");
    std::fs::create_dir(&folder).expect("a new directory");
    std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o755)).expect("it is ours");
    publish(&folder, &database(1_700_000_000, "DE"));
    setup
}

fn send_request(server: &Server, target: &str, forwarded: &str) -> String {
    let mut client = Client::connect(server.addr(0));
    client.send(testkit::client::request_bytes("GET", target, &[("X-Forwarded-For", forwarded)]));
    client.response().text()
}

#[test]
fn values_are_those_of_the_client_address() {
    let setup = setup("1s");
    let server = setup.start(BINARY);
    for (target, forwarded, expected) in [
        ("/", "1.2.3.4", "DE none [] 1700000000 yes"),
        ("/", "9.9.9.9, 1.2.3.4, 10.1.1.1", "DE none [] 1700000000 yes"),
        ("/", "1.2.3.4, 9.9.9.9", "none none [] 1700000000 no"),
        ("/", "2001:db8::5", "IT none [] 1700000000 no"),
        ("/?ip=1.2.0.1", "x", "none DE [] 1700000000 no"),
        ("/?ip=2001:db8::", "x", "none IT [] 1700000000 no"),
        ("/?ip=1.2.0.1x", "1.2.3.4", "DE none [] 1700000000 yes"),
    ] {
        assert_eq!(send_request(&server, target, forwarded), expected, "{target} {forwarded}");
    }
    assert!(server.quit_and_wait().success());
}

#[test]
fn a_replaced_database_is_read_again() {
    let setup = setup("1s");
    let folder = setup.data().join("db");
    let server = setup.start(BINARY);
    let is = |expected: &str| {
        wait::until(expected, Deadline::default(), || {
            (send_request(&server, "/", "1.2.3.4") == expected).then_some(())
        })
        .unwrap_or_else(|late| panic!("{late}\n{}", server.error_log()));
    };
    is("DE none [] 1700000000 yes");
    publish(&folder, &database(1_700_000_001, "PL"));
    is("PL none [] 1700000001 no");
    server.wait_for_log("Reload MMDB", Deadline::default());
    // If the new file is not a database, the old one stays in use, with one log line.
    publish(&folder, b"no database");
    server.wait_for_log("was not reloaded, the old one stays in use", Deadline::default());
    is("PL none [] 1700000001 no");
    publish(&folder, &database(1_700_000_002, "FR"));
    is("FR none [] 1700000002 no");
    let log = server.error_log();
    assert_eq!(log.matches("was not reloaded").count(), 1, "{log}");
    // A reload of the configuration loads the current file, and continues to check it.
    publish(&folder, &database(1_700_000_003, "ES"));
    server.reload();
    is("ES none [] 1700000003 no");
    publish(&folder, &database(1_700_000_004, "DE"));
    is("DE none [] 1700000004 yes");
    assert!(server.quit_and_wait().success());
}

/// The master sends the content of the last reload to the new worker.
#[test]
fn a_worker_that_replaces_a_killed_one_reads_the_replaced_database() {
    let setup = setup("1h");
    let server = setup.start(BINARY);
    assert_eq!(send_request(&server, "/", "1.2.3.4"), "DE none [] 1700000000 yes");
    publish(&setup.data().join("db"), &database(1_700_000_001, "PL"));
    let killed = server.worker();
    signal_process(killed, Signal::KILL).expect("it runs");
    let is_over = || (!server.workers().contains(&killed)).then_some(());
    wait::until("the end of the worker", Deadline::default(), is_over).expect("a signal");
    let is_read = || (send_request(&server, "/", "1.2.3.4") == "PL none [] 1700000001 no").then_some(());
    wait::until("the new content", Deadline::default(), is_read)
        .unwrap_or_else(|late| panic!("{late}\n{}", server.error_log()));
    assert!(server.quit_and_wait().success());
}
