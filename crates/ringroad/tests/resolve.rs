//! Names of upstream servers: those that the system resolves, and those that `resolver` does.
//!
//! The system's name servers cannot be replaced by a test. What it answers for names that it has to ask for is tested
//! in the crate `server`, over a seam; here it knows what every machine knows.

mod common;

use testkit::{Deadline, Origin, Reply, Setup};

use common::BINARY;

const PLAIN: &str = "events { }
http {
    server {
        listen 127.0.0.1:0;
        @EXTRA@
    }
    @GROUPS@
}
";

/// No label of a name has so many letters, so that no name server is asked for it.
fn no_name() -> String {
    format!("{}.example", "a".repeat(64))
}

fn setup(extra: &str, groups: &str) -> Setup {
    Setup::new(PLAIN).value("EXTRA", extra).value("GROUPS", groups)
}

/// A name that this machine has for a loopback address of IPv4 in its hosts file.
fn hosts_name() -> String {
    let text = std::fs::read_to_string("/etc/hosts").unwrap_or_default();
    let names = text.lines().filter_map(|line| line.strip_prefix("127.0.0.1"));
    let mut names = names.flat_map(str::split_whitespace).map(str::to_owned);
    names.next_back().unwrap_or_else(|| "localhost".to_owned())
}

#[test]
fn localhost_and_names_of_the_hosts_file_are_found_without_a_network() {
    let origin = Origin::start(|request| Reply::text(request.header("host").unwrap_or_default()));
    let (port, name) = (origin.port(), hosts_name());
    let server = setup(
        &format!(
            "location /written {{ proxy_pass http://localhost:{port}; }}
             location /group {{ proxy_pass http://group; }}"
        ),
        &format!("upstream group {{ server {name}:{port}; }}"),
    );
    let server = server.start(BINARY);
    let mut client = common::client(&server);
    for (target, host) in [("/written", format!("localhost:{port}")), ("/group", "group".to_owned())] {
        let response = client.get(target);
        assert_eq!((response.status, response.text()), (200, host), "{target}");
    }
}

#[test]
fn a_name_that_is_not_found_stops_nothing() {
    let origin = Origin::start(|_| Reply::text("here"));
    let (addr, no_name) = (origin.addr(), no_name());
    let setup = setup(
        &format!(
            "location /lost {{ proxy_pass http://{no_name}:8080; }}
             location /half {{ proxy_pass http://half; }}
             location / {{ return 200 up; }}"
        ),
        &format!("upstream half {{ server {no_name}; server {addr}; }}"),
    );
    let server = setup.start(BINARY);
    let mut client = common::client(&server);
    assert_eq!(client.get("/").text(), "up");
    assert_eq!(client.get("/lost").status, 502);
    assert_eq!(client.get("/lost").status, 502);
    assert_eq!(client.get("/half").text(), "here");
    let log = server.wait_for_log("host not found in upstream", Deadline::default());
    assert!(log.contains("[error]") && log.contains("nginx.conf:"), "{log}");
    assert_eq!(log.matches("host not found in upstream").count(), 1, "once, whoever wants it: {log}");
}

#[test]
fn a_test_of_the_configuration_warns_of_names() {
    let no_name = no_name();
    let extra = format!(
        "location / {{ proxy_pass http://{no_name}/; }} location /l {{ proxy_pass http://localhost; }}"
    );
    let (status, text) = setup(&extra, "").builder(BINARY).arg("-t").run_to_end();
    assert!(status.success(), "{text}");
    let warned: Vec<&str> = text.lines().filter(|line| line.contains("host not found")).collect();
    let [line] = warned[..] else { panic!("{text}") };
    assert!(line.contains("[warn]") && line.contains(&no_name) && line.contains("nginx.conf:"), "{line}");
    assert!(text.contains("test is successful"), "{text}");
}
