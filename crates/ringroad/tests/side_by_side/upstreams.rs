//! The same requests to Debian's nginx and to this server ([`common::beside`]): which servers of a group get requests,
//! in which order, and which are avoided after a failure.
//!
//! Both use the same upstream servers, at ports that differ between runs, so hashes select other servers in each run.
//! `$upstream_addr` lists every server that got the request.

use std::fmt::Write;

use crate::common::beside::{self, Case, ask, get};
use testkit::TempDir;
use testkit::origin::{Origin, Reply};

/// Head of a configuration. A failed server stays marked as failed during the test.
const HEAD: &str = r#"
worker_processes 1;
events {}
http {
    server_tokens off;
    default_type text/plain;
    add_header X-Peers "$upstream_addr|$upstream_status" always;
    set_real_ip_from 127.0.0.1;
    real_ip_header X-Real-IP;
    proxy_next_upstream error timeout http_500;
"#;

/// The upstream servers of a test.
struct Behind {
    origins: Vec<Origin>,
    site: TempDir,
    groups: String,
    locations: String,
}

impl Behind {
    fn new(servers: usize) -> Behind {
        let origins = (0..servers).map(|number| {
            Origin::start(move |request| {
                let is_ill = request.target.contains(&format!("ill={number}"));
                Reply::new(if is_ill { 500 } else { 200 }).body(format!("{number}\n"))
            })
        });
        let (groups, locations) = (String::new(), String::new());
        Behind { origins: origins.collect(), site: TempDir::new("upstreams"), groups, locations }
    }

    /// Returns the address of a server, or for a letter an address without a listener.
    fn address(&self, name: &str) -> String {
        match name.parse::<usize>() {
            Ok(number) => self.origins[number].addr().to_string(),
            Err(_) => format!("unix:{}/{name}.sock", self.site.path().display()),
        }
    }

    /// Adds a group and a location of its name: `lines` has a server each, `0 weight=5`, or `x` for one without a
    /// listener.
    fn group(mut self, name: &str, method: &str, lines: &[&str]) -> Behind {
        let _ = writeln!(self.groups, "upstream {name} {{ {method}");
        for line in lines {
            let (server, rest) = line.split_once(' ').unwrap_or((line, ""));
            let address = self.address(server);
            let _ = writeln!(self.groups, "server {address} fail_timeout=1h {rest};");
        }
        let _ = writeln!(self.groups, "}}");
        let _ = writeln!(self.locations, "location /{name}/ {{ proxy_pass http://{name}; }}");
        self
    }

    fn location(mut self, text: &str) -> Behind {
        let _ = writeln!(self.locations, "{text}");
        self
    }

    fn compare(self, cases: Vec<Case>) {
        let Behind { groups, locations, .. } = &self;
        let conf = format!("{HEAD}{groups}server {{ listen 127.0.0.1:0;\n{locations} }} }}");
        beside::compare(&conf, &self.site, cases);
    }
}

fn times(count: usize, target: &str) -> Vec<Case> {
    (0..count).map(|_| get(target)).collect()
}

fn keys(count: usize, target: &str) -> Vec<Case> {
    (0..count).map(|key| get(&format!("{target}?k={key}"))).collect()
}

#[test]
fn round_robin_matches_nginx() {
    let behind = Behind::new(3)
        .group("rr", "", &["0", "1", "2"])
        .group("weighted", "", &["0 weight=5", "1", "2 weight=2"])
        .group("least", "least_conn;", &["0 weight=3", "1", "2 weight=2"])
        .group("down", "", &["0", "1 down", "2"])
        .group("one", "", &["1"]);
    let targets = [(8, "/rr/"), (20, "/weighted/"), (16, "/least/"), (4, "/down/"), (2, "/one/")];
    behind.compare(targets.iter().flat_map(|(count, target)| times(*count, target)).collect());
}

#[test]
fn hash_matches_nginx() {
    let behind = Behind::new(4)
        .group("hash", "hash $arg_k;", &["0", "1", "2", "3"])
        .group("weighted", "hash $arg_k$arg_l;", &["0 weight=3", "1", "2 weight=2"])
        .group("ring", "hash $arg_k consistent;", &["0", "1", "2", "3"])
        .group("heavy", "hash $arg_k consistent;", &["0 weight=3", "1 weight=10", "2", "2"])
        .group("down", "hash $arg_k consistent;", &["0", "1 down", "2"]);
    let mut cases = Vec::new();
    for target in ["/hash/", "/weighted/", "/ring/", "/heavy/", "/down/"] {
        cases.extend(keys(60, target));
        cases.extend(times(3, target));
    }
    behind.compare(cases);
}

#[test]
fn ip_hash_matches_nginx() {
    let behind = Behind::new(4).group("ip", "ip_hash;", &["0", "1", "2", "3"]).group(
        "weighted",
        "ip_hash;",
        &["0 weight=3", "1", "2 down", "x weight=4", "3 weight=2"],
    );
    let mut cases = Vec::new();
    for target in ["/ip/", "/weighted/"] {
        for number in 0..30 {
            let network = format!("192.{number}.{}.{}", 255 - 7 * number, number);
            let v6 = format!("2001:db8::{number:x}");
            for client in [network, v6] {
                cases.push(ask("GET", target, &[("X-Real-IP", &client)]));
            }
        }
    }
    behind.compare(cases);
}

#[test]
fn unreachable_servers_match_nginx() {
    let behind = Behind::new(3)
        .group("rr", "", &["x", "0", "y max_fails=3", "1"])
        .group("weighted", "", &["x weight=6 max_fails=3", "0 weight=3", "1"])
        .group("counted", "", &["x max_fails=0", "0 weight=2"])
        .group("least", "least_conn;", &["x", "0 weight=2", "y weight=3 max_fails=2", "1"])
        .group("hash", "hash $arg_k;", &["x max_fails=0", "0", "y max_fails=2", "1", "z"])
        .group("ring", "hash $arg_k consistent;", &["x max_fails=0", "0", "y max_fails=2", "1", "z"])
        .group("ip", "ip_hash;", &["x max_fails=0", "0", "y max_fails=0", "1", "z max_fails=0"])
        .group("none", "", &["x", "y weight=2"])
        .group("alone", "", &["x"]);
    let mut cases = Vec::new();
    for target in ["/rr/", "/weighted/", "/counted/", "/least/"] {
        cases.extend(times(12, target));
    }
    cases.extend(keys(40, "/hash/"));
    cases.extend(keys(40, "/ring/"));
    for number in 0..20 {
        cases.push(ask("GET", "/ip/", &[("X-Real-IP", &format!("10.1.{number}.1"))]));
    }
    cases.extend(times(4, "/none/"));
    cases.extend(times(3, "/alone/"));
    behind.compare(cases);
}

#[test]
fn backup_servers_match_nginx() {
    let behind = Behind::new(3)
        .group("rr", "", &["x", "y", "0 backup", "1 backup weight=2"])
        .group("least", "least_conn;", &["x", "0 backup", "1 backup"])
        .group("well", "", &["0", "1 backup"])
        .group("ill", "", &["x", "y backup", "z backup"])
        .group("late", "", &["0", "1 backup", "x"]);
    let mut cases = Vec::new();
    for target in ["/rr/", "/least/", "/well/", "/ill/", "/late/"] {
        cases.extend(times(7, target));
    }
    behind.compare(cases);
}

#[test]
fn failed_responses_match_nginx() {
    let behind = Behind::new(3)
        .group("rr", "", &["0 max_fails=2", "1", "2"])
        .group("tries", "", &["0 max_fails=0", "1 max_fails=0", "2 max_fails=0"])
        .location("location /two/ { proxy_pass http://tries; proxy_next_upstream_tries 2; }")
        .location("location /off/ { proxy_pass http://tries; proxy_next_upstream off; }");
    let mut cases = Vec::new();
    for target in ["/rr/", "/rr/?ill=0", "/rr/", "/rr/?ill=0", "/rr/", "/rr/?ill=1", "/rr/"] {
        cases.extend(times(3, target));
    }
    for target in ["/tries/?ill=0", "/tries/?ill=1&ill=2", "/tries/?ill=0&ill=1&ill=2", "/two/?ill=0&ill=1"] {
        cases.extend(times(4, target));
    }
    cases.extend(times(4, "/off/?ill=1"));
    behind.compare(cases);
}

#[test]
fn names_of_groups_match_nginx() {
    let behind = Behind::new(2);
    let address = behind.address("1");
    behind
        .group("Named", "", &["0", "1"])
        .location("location /lower/ { proxy_pass http://named; }")
        .location("location /variable/ { proxy_pass http://$arg_g; }")
        .location(&format!("location /address/ {{ proxy_pass http://{address}; }}"))
        .compare(
            ["/Named/", "/lower/", "/variable/?g=named", "/variable/?g=NAMED", "/address/"]
                .iter()
                .flat_map(|target| times(3, target))
                .collect(),
        );
}
