//! `metrics`: a page read under load has correct counters, in a format that Debian's promtool accepts.

use std::collections::HashMap;
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common::{BINARY, ours_only};
use rcgen::{CertificateParams, KeyPair, date_time_ymd};
use testkit::client::request_bytes;
use testkit::origin::Reply;
use testkit::wait::{self, Deadline};
use testkit::{Client, Content, Origin, Server, Setup};

/// Number of requests per client and target.
const EACH: u64 = 200;

/// Number of concurrent clients.
const CLIENTS: u64 = 4;

/// Targets, with the location and the status under which they are counted.
const TARGETS: [(&str, &str, &str); 5] = [
    ("/file", "= /file", "200"),
    ("/in/x", "named", "204"),
    ("/up/x", "/up/", "200"),
    ("/cond/x?skip=1", "/cond/", "402"),
    ("/none", "", "404"),
];

const CONF: &str = "worker_processes 2;
events {}
http {
    log_not_found off;
    upstream back { server @ORIGIN@; server @ORIGIN@ backup; }
    server {
        listen 127.0.0.1:0;
        server_name a.example b.example;
        location = /file { root html; sendfile off; }
        location /in/ { status_zone named; return 204; }
        location /up/ { proxy_pass http://back; }
        location /cond/ { if ($arg_skip) { return 402; } return 200; }
        location = /metrics { metrics; status_zone off; }
    }
}
";

/// Metrics of a page by name and labels.
type Numbers = HashMap<String, f64>;

fn numbers(page: &str) -> Numbers {
    let lines = page.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            let (name, number) = line.rsplit_once(' ').expect("a name and a number");
            (name.to_owned(), number.parse().expect("a number"))
        })
        .collect()
}

fn page(server: &Server) -> String {
    let response = Client::connect(server.addr(0)).get("/metrics");
    assert_eq!((response.status, response.field("Content-Type")), (200, Some("text/plain; version=0.0.4")));
    response.text()
}

/// Sends all requests for a target on one connection; returns the numbers of bytes sent and received.
fn send(server: &Server, target: &str) -> (u64, u64) {
    let mut bytes = request_bytes("GET", target, &[]).repeat(EACH as usize - 1);
    bytes.extend(request_bytes("GET", target, &[("Connection", "close")]));
    let mut client = Client::connect(server.addr(0));
    client.send(&bytes);
    (bytes.len() as u64, client.read_to_end().len() as u64)
}

/// Returns the counters that have decreased.
fn fallen<'n>(before: &'n Numbers, now: &'n Numbers) -> Vec<&'n str> {
    let counters = before.iter().filter(|(name, _)| name.contains("_total") || name.contains("_bucket"));
    let less = counters.filter(|(name, before)| now.get(*name).is_some_and(|now| now < before));
    less.map(|(name, _)| name.as_str()).collect()
}

fn promtool(page: &str) {
    let Ok(mut child) = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
    else {
        testkit::skip(format_args!("promtool is not installed (apt-get install prometheus)"));
        return;
    };
    child.stdin.take().expect("it is a pipe").write_all(page.as_bytes()).expect("promtool reads");
    let output = child.wait_with_output().expect("promtool ends");
    let found = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && found.is_empty(), "{found}{page}");
}

fn start() -> (Server, Origin, Setup) {
    let origin = Origin::start(|_| Reply::text("from behind"));
    let setup = Setup::new(CONF).origin(&origin);
    let server = setup.builder(BINARY).file("html/file", Content::new(1, 3000)).start();
    (server, origin, setup)
}

/// Returns the metrics when all requests of `rounds` rounds have been counted.
fn settled(server: &Server, rounds: u64) -> Numbers {
    let all = (rounds * CLIENTS * EACH) as f64;
    let counted = |numbers: &Numbers| {
        TARGETS.iter().all(|(_, location, code)| numbers.get(&requests(location, code)) == Some(&all))
    };
    let found = wait::until("the counts of all requests", Deadline::default(), || {
        Some(numbers(&page(server))).filter(counted)
    });
    found.unwrap_or_else(|_| panic!("{}", page(server)))
}

fn requests(location: &str, code: &str) -> String {
    format!("ringroad_http_requests_total{{server=\"a.example\",location=\"{location}\",code=\"{code}\"}}")
}

/// Runs one round of all clients, while the page is read: no counter decreases. Returns bytes by target.
fn load(server: &Server) -> HashMap<&'static str, (u64, u64)> {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut before = numbers(&page(server));
            loop {
                let is_last = is_over.load(Ordering::Relaxed);
                let now = numbers(&page(server));
                assert_eq!(fallen(&before, &now), [""; 0]);
                if is_last {
                    break;
                }
                before = now;
            }
        });
        let each = |_| scope.spawn(|| TARGETS.map(|(target, ..)| (target, send(server, target))));
        let clients: Vec<_> = (0..CLIENTS).map(each).collect();
        let mut bytes = HashMap::new();
        for client in clients {
            for (target, (sent, received)) in client.join().expect("a client") {
                let sum: &mut (u64, u64) = bytes.entry(target).or_default();
                *sum = (sum.0 + sent, sum.1 + received);
            }
        }
        is_over.store(true, Ordering::Relaxed);
        reader.join().expect("the reader");
        bytes
    })
}

#[test]
fn counters_under_load_match_the_requests_sent() {
    if !ours_only("metrics") {
        return;
    }
    let (server, origin, _setup) = start();
    let bytes = load(&server);
    let found = settled(&server, 1);
    let all = (CLIENTS * EACH) as f64;
    for (target, location, _) in TARGETS {
        // The page itself is counted with the server's own requests.
        if location.is_empty() {
            continue;
        }
        let (sent, received) = bytes[target];
        let labels = format!("{{server=\"a.example\",location=\"{location}\"}}");
        let of = |name: &str| found.get(&format!("ringroad_http_{name}{labels}")).copied();
        assert_eq!(of("request_duration_seconds_count"), Some(all), "{target}");
        assert_eq!(of("received_bytes_total"), Some(sent as f64), "{target}");
        assert_eq!(of("sent_bytes_total"), Some(received as f64), "{target}");
    }
    let file = found.iter().filter(|(name, _)| name.contains("http_bodies_total"));
    let moved: f64 = file.map(|(_, number)| number).sum();
    assert_eq!(moved, all, "each response with the file has an engine");
    let peer = format!("{{upstream=\"back\",peer=\"{}\"", origin.addr());
    let of = |name: &str| found.get(&format!("ringroad_upstream_{name}")).copied();
    assert_eq!(of(&format!("requests_total{peer},code=\"200\"}}")), Some(all));
    assert_eq!(of(&format!("first_byte_seconds_count{peer}}}")), Some(all));
    assert_eq!(of(&format!("up{peer}}}")), Some(1.0));
    assert_eq!(of(&format!("active{peer}}}")), Some(0.0));
    let of = |name: &str| found[&format!("ringroad_{name}")];
    let (turns, entries) = (of("loop_turn_seconds_count"), of("engine_kernel_entries_total"));
    // Several clients may be served in one turn, and each turn ends with a wait.
    assert!(turns > 0.0 && entries > 0.0 && of("engine_operations_total") > 0.0, "{turns} {entries}");
    assert!(of("loop_turn_seconds_sum") > 0.0);
    promtool(&page(&server));
}

#[test]
fn a_reload_in_place_retains_the_counters() {
    if !ours_only("metrics") {
        return;
    }
    let (mut server, _origin, setup) = start();
    let before = settled_after_load(&server, 1);
    server.rewrite_conf(
        &setup.text().replace("location = /file {", "location /new { return 200; } location = /file {"),
    );
    server.reload();
    let changed = wait::until("the reload", Deadline::default(), || {
        Some(()).filter(|()| numbers(&page(&server))["ringroad_config_generation"] == 2.0)
    });
    changed.expect("another configuration");
    let after = settled_after_load(&server, 2);
    assert_eq!(fallen(&before, &after), [""; 0]);
    let peer = after.iter().filter(|(name, _)| name.contains("upstream_requests_total"));
    let tries: f64 = peer.map(|(_, number)| number).sum();
    assert_eq!(tries, (2 * CLIENTS * EACH) as f64);
}

fn settled_after_load(server: &Server, rounds: u64) -> Numbers {
    load(server);
    settled(server, rounds)
}

#[test]
fn openmetrics_scrapers_get_openmetrics() {
    if !ours_only("metrics") {
        return;
    }
    let (server, ..) = start();
    let accept =
        ("Accept", "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3");
    let response = Client::connect(server.addr(0)).request("GET", "/metrics", &[accept]);
    let expected = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    assert_eq!(response.field("Content-Type"), Some(expected));
    let text = response.text();
    assert!(text.ends_with("# EOF\n") && text.contains("# TYPE ringroad_requests counter\n"), "{text}");
    assert_eq!(Client::connect(server.addr(0)).request("POST", "/metrics", &[]).status, 405);
}

#[test]
fn certificates_are_listed_with_their_expiration() {
    if !ours_only("metrics") {
        return;
    }
    let pem = |end| {
        let mut params = CertificateParams::new(vec!["a.example".to_owned()]).expect("a name");
        params.not_after = end;
        let key = KeyPair::generate().expect("a key");
        format!("{}{}", params.self_signed(&key).expect("a certificate").pem(), key.serialize_pem())
    };
    let (long, over) = (pem(date_time_ymd(2100, 1, 1)), pem(date_time_ymd(2020, 2, 3)));
    let conf = "events {}
http {
    ssl_certificate long.pem;
    ssl_certificate_key long.pem;
    server { listen 127.0.0.1:0; location = /metrics { metrics; } }
    server { listen [::1]:0 ssl; server_name b.example; ssl_certificate over.pem; ssl_certificate_key over.pem; }
}
";
    let builder = Server::builder(BINARY).conf(conf);
    let server = builder.text("conf/long.pem", &long).text("conf/over.pem", &over).start();
    let page = page(&server);
    let line = |server: &str, file: &str, end: u64| {
        let path = server_path(&page, file);
        format!(
            "ringroad_tls_certificate_expiry_timestamp_seconds{{server=\"{server}\",certificate=\"{path}\"}} {end}\n"
        )
    };
    for line in [line("_", "long.pem", 4_102_444_800), line("b.example", "over.pem", 1_580_688_000)] {
        assert!(page.contains(&line), "{line}{page}");
    }
    server.wait_for_log("over.pem\" of server \"b.example\" has expired", Deadline::default());
    assert!(!server.error_log().contains("long.pem"), "{}", server.error_log());
}

/// A running server warns when its certificate is about to expire, not only when it loads the certificate.
#[test]
fn a_running_server_warns_of_expiring_certificates() {
    if !ours_only("warnings of certificates") {
        return;
    }
    let mut params = CertificateParams::new(vec!["a.example".to_owned()]).expect("a name");
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
    params.not_after = date_time_ymd(1970, 1, 1) + now + Duration::from_secs(5);
    let key = KeyPair::generate().expect("a key");
    let pem = params.self_signed(&key).expect("a certificate").pem() + &key.serialize_pem();
    let conf = "events {} http { server { listen 127.0.0.1:0 ssl; ssl_certificate a.pem; ssl_certificate_key a.pem; } }";
    for master in ["on", "off"] {
        let conf = format!("master_process {master}; {conf}");
        let server = Server::builder(BINARY).conf(&conf).text("conf/a.pem", &pem).start();
        let log = server.wait_for_log("a.pem\" of server \"_\" has expired", Deadline::default());
        assert_eq!(log.matches("has expired").count(), 1, "{log}");
    }
}

/// Returns a file's path as the page contains it.
fn server_path<'p>(page: &'p str, file: &str) -> &'p str {
    let end = page.find(file).expect("the file") + file.len();
    let begin = page[..end].rfind('"').expect("a quote") + 1;
    &page[begin..end]
}
