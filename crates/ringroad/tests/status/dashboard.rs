//! `dashboard`: the page in Debian's chromium, with requests and a dead upstream in its data. The page loads nothing
//! from other servers, and its policy forbids it. Without chromium the test prints that it is skipped, and passes.

use std::io::Read;
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::common::{BINARY, Running, ours_only};
use serde_json::{Value, json};
use testkit::origin::Reply;
use testkit::wait::{self, Deadline};
use testkit::{Client, Content, Origin, Server, Setup, TempDir};

const CONF: &str = "worker_processes 2;
error_log logs/error.log notice;
events {}
stream { server { listen 127.0.0.2:0; status_zone texts; return 'a text'; } }
http {
    limit_req_zone $uri zone=files:64k rate=1r/m;
    proxy_cache_path @CACHE@ keys_zone=pages:1m max_size=10m;
    upstream back { zone back 64k; server @ORIGIN@; server 127.0.0.1:@DEAD@ max_fails=1 fail_timeout=1h; }
    server {
        listen 127.0.0.1:0;
        server_name a.example;
        location = /file { root html; }
        location = /limited { root html; limit_req zone=files; }
        location /up/ { proxy_pass http://back; }
        location /cached/ { proxy_pass http://back; proxy_cache pages; proxy_cache_valid 200 1h; }
        location /<b>bold</b> { return 503; }
        location = /status { dashboard; status_zone off; }
    }
}
";

/// Timeout of the browser in seconds. On an idle machine the browser starts in two seconds.
const BROWSER_SECONDS_MAX: &str = "120";

struct Site {
    server: Server,
    _origin: Origin,
    _dead: Origin,
    _setup: Setup,
}

/// Starts a server and sends it requests of all kinds.
fn start() -> Site {
    let origin = Origin::start(|_| Reply::text("from behind"));
    let dead = Origin::start(|_| Reply::ok());
    dead.refuse();
    let setup = Setup::new(CONF).origin(&origin).value("DEAD", &dead.port().to_string());
    let server = setup.builder(BINARY).file("html/file", Content::new(1, 3000)).start();
    let mut client = Client::connect(server.addr(0));
    for target in [
        "/file",
        "/up/a",
        "/up/b",
        "/up/c",
        "/cached/a",
        "/cached/a",
        "/%3Cb%3Ebold%3C/b%3E",
        "/none",
        "/limited",
    ] {
        client.get(target);
    }
    let stream = server.logged_addresses().into_iter().map(|address| address.tcp());
    let stream = stream.into_iter().find(|address| address.ip() == std::net::Ipv4Addr::new(127, 0, 0, 2));
    let mut text = String::new();
    let mut session = TcpStream::connect(stream.expect("it listens")).expect("it listens");
    session.read_to_string(&mut text).expect("a text");
    assert_eq!(text, "a text");
    Site { server, _origin: origin, _dead: dead, _setup: setup }
}

fn snapshot(server: &Server) -> Value {
    let response = Client::connect(server.addr(0)).get("/status?snapshot");
    assert_eq!((response.status, response.field("Content-Type")), (200, Some("application/json")));
    serde_json::from_slice(&response.body).expect("JSON")
}

#[test]
fn the_snapshot_contains_all_values_of_the_page() {
    if !ours_only("dashboard") {
        return;
    }
    let site = start();
    let zone = |value: &Value, location: &str| {
        let zones = value["zones"].as_array().expect("a list").clone();
        zones.into_iter().find(|zone| zone["location"] == location)
    };
    let found = wait::until("all requests", Deadline::default(), || {
        let value = snapshot(&site.server);
        let is_there = |location| zone(&value, location).is_some_and(|zone| zone["requests"] == 2);
        is_there("/cached/").then_some(value)
    });
    let value = found.expect("they are counted");
    assert_eq!(zone(&value, "/up/").expect("a zone")["codes"], json!({ "200": 3 }));
    let times = zone(&value, "/up/").expect("a zone")["times"].clone();
    let count: u64 = times.as_array().expect("pairs").iter().filter_map(|pair| pair[1].as_u64()).sum();
    assert_eq!(count, 3);
    let states: Vec<_> =
        value["peers"].as_array().expect("a list").iter().map(|peer| peer["state"].clone()).collect();
    assert_eq!(states, [json!("up"), json!("unavail")]);
    assert_eq!(value["caches"][0]["requests"]["hit"], json!(1), "{}", value["caches"]);
    let limit = json!({ "zone": "files", "kind": "requests", "results": [1, 0, 0, 0, 0], "used": 128, "size": 65536 });
    assert_eq!(value["limits"], json!([limit]));
    let tls = json!({ "handshakes": 0, "session_reuses": 0, "handshakes_failed": 0 });
    assert_eq!(value["tls"], tls);
    assert_eq!(
        (&value["sessions"][0]["server"], &value["sessions"][0]["sent"]),
        (&json!("texts"), &json!(6))
    );
    assert!(value.to_string().len() < 20_000, "it is read each second");
}

#[test]
fn the_page_may_load_only_its_data() {
    if !ours_only("dashboard") {
        return;
    }
    let site = start();
    let get = || Client::connect(site.server.addr(0)).get("/status");
    let (first, second) = (get(), get());
    let policy = first.field("Content-Security-Policy").expect("a policy");
    assert!(policy.starts_with("default-src 'none'; script-src 'nonce-"), "{policy}");
    assert_ne!(Some(policy), second.field("Content-Security-Policy"), "the nonce is used once");
    assert_eq!(first.field("Cache-Control"), Some("no-store"));
    assert_eq!(Client::connect(site.server.addr(0)).request("POST", "/status", &[]).status, 405);
}

/// Returns the browser's path, if it is installed.
fn browser() -> Option<PathBuf> {
    let folders = std::env::var_os("PATH")?;
    let names = ["chromium", "chromium-browser", "google-chrome"];
    std::env::split_paths(&folders)
        .flat_map(|folder| names.map(|name| folder.join(name)))
        .find(|path| path.is_file())
}

/// Returns the page after some seconds, and the browser's messages. No name resolves.
fn load(browser: &PathBuf, address: &str) -> (String, String) {
    let folder = TempDir::new("dashboard");
    let output = Command::new("timeout")
        .arg(BROWSER_SECONDS_MAX)
        .arg(browser)
        .args([
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
            "--disable-background-networking",
        ])
        .args([
            "--enable-logging=stderr",
            "--window-size=390,900",
            "--dump-dom",
            "--virtual-time-budget=5000",
        ])
        .arg("--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1")
        .arg(format!("--user-data-dir={}", folder.path().display()))
        .arg(format!("http://{address}/status"))
        .stdin(Stdio::null())
        .output()
        .expect("timeout of the core utilities");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{} failed: {}", browser.display(), text(&output.stderr));
    (text(&output.stdout), text(&output.stderr))
}

#[test]
fn a_browser_shows_the_values_without_console_errors() {
    if !ours_only("dashboard") {
        return;
    }
    let Some(browser) = browser() else {
        testkit::skip(format_args!("chromium is not installed (apt-get install chromium)"));
        return;
    };
    let site = start();
    let (page, said) = load(&browser, &site.server.addr(0).to_string());
    assert!(!said.contains(":CONSOLE"), "{said}");
    let text: Vec<&str> =
        page.split(['<', '>']).skip(2).step_by(2).filter(|text| !text.trim().is_empty()).collect();
    for expected in [
        "a.example",
        "/up/",
        "= /file",
        "unavail",
        "up",
        "pages",
        "No certificates.",
        "Requests per second",
        "No handshakes yet.",
        "texts",
        "files",
        "1 min ago",
        "now",
    ] {
        assert!(text.contains(&expected), "{expected}: {text:?}");
    }
    // A name in the configuration is shown as text, whatever it contains.
    assert!(page.contains("/&lt;b&gt;bold&lt;/b&gt;") && !page.contains("<b>bold"), "{text:?}");
    assert!(text.contains(&"50.0 %"), "one of two was a hit: {text:?}");
    assert!(!text.iter().any(|text| text.contains("No numbers")), "{text:?}");
}

#[test]
fn a_terminal_shows_the_same_values() {
    if !ours_only("ringroad stat") {
        return;
    }
    let site = start();
    let url = format!("http://{}/status", site.server.addr(0));
    let found = wait::until("all requests", Deadline::default(), || {
        let done = testkit::program::run(BINARY, &["stat", "-1", &url]);
        assert!(done.status.success(), "{}", done.stderr);
        done.stdout.contains("a.example /cached/\n").then_some(done.stdout)
    });
    let text = found.expect("they are shown");
    for expected in [
        "ringroad ",
        "  location\n",
        "a.example = /file\n",
        "unavail  back 127.0.0.1:",
        "up  back 127.0.0.1:",
    ] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    let other = format!("http://{}/file", site.server.addr(0));
    let done = testkit::program::run(BINARY, &["stat", &other]);
    assert_eq!(done.status.code(), Some(1));
    assert!(done.stderr.contains("the location has no \"dashboard;\""), "{}", done.stderr);
    assert_eq!(testkit::program::run(BINARY, &["stat", &url, &url]).status.code(), Some(2));
}

#[test]
fn the_terminal_view_ends_when_its_reader_ends() {
    if !ours_only("ringroad stat") {
        return;
    }
    let site = start();
    let url = format!("http://{}/status", site.server.addr(0));
    let child = Command::new(BINARY).args(["stat", &url]).stdout(Stdio::piped()).spawn();
    let mut child = Running(child.expect("it starts"));
    let mut first = [0; 1];
    let mut stdout = child.0.stdout.take().expect("it is piped");
    stdout.read_exact(&mut first).expect("it prints");
    drop(stdout);
    let ended = wait::until("the end", Deadline::default(), || child.0.try_wait().expect("it is ours"));
    assert!(ended.expect("the next write fails").success());
}
