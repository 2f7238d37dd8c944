//! `admin_socket` with `ringroad log`, `ringroad top`, `explain` and `-t --diff`: fields of a request, limits, clients
//! that hang or disconnect, reloads.

use crate::common;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::common::{BINARY, ours_only};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv, send,
    socket_with,
};
use serde_json::{Value, json};
use testkit::client::request_bytes;
use testkit::origin::Reply;
use testkit::program::{Program, run};
use testkit::wait::{self, Deadline};
use testkit::{Client, Content, Origin, Server, Setup};

const CONF: &str = "worker_processes 2;
admin_socket admin.sock;
events {}
http {
    keepalive_requests 100000;
    proxy_cache_path @CACHE@ keys_zone=pages:1m;
    server {
        listen 127.0.0.1:0;
        server_name a.example;
        location = /file { root html; sendfile off; }
        location /up/ { proxy_pass http://@ORIGIN@; }
        location /cached/ { proxy_pass http://@ORIGIN@; proxy_cache pages; proxy_cache_valid 200 1h; }
        location /none { return 404; }
        location /empty { return 204; }
    }
}
";

/// Returns a deadline for any wait on a busy machine.
fn deadline() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}

struct Site {
    server: Server,
    setup: Setup,
    origin: Origin,
}

fn start(main: &str) -> Site {
    let origin = Origin::start(|_| Reply::text("from behind"));
    let setup = Setup::new(&format!("{main}{CONF}")).origin(&origin);
    let server = setup.builder(BINARY).file("html/file", Content::new(1, 3000)).start();
    Site { server, setup, origin }
}

impl Site {
    fn socket(&self) -> PathBuf {
        self.server.path("admin.sock")
    }

    fn get(&self, target: &str) -> u16 {
        Client::connect(self.server.addr(0)).get(target).status
    }

    /// Runs a command that queries this server.
    fn command(&self, args: &[&str]) -> testkit::program::Finished {
        let socket = self.socket().display().to_string();
        run(BINARY, &[args, &["--socket", &socket]].concat())
    }
}

/// A client of the admin socket, like the commands of `ringroad`.
struct Watch {
    socket: OwnedFd,
    answer: Value,
    lines: Vec<Value>,
}

impl Watch {
    /// Sends the request; returns once a worker reports requests, or after a refusal.
    fn begin(site: &Site, filter: &str) -> Watch {
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let socket = socket.expect("a socket");
        connect(&socket, &SocketAddrUnix::new(site.socket()).expect("a path")).expect("the server listens");
        let call = json!({ "command": "log", "filter": filter }).to_string();
        send(&socket, call.as_bytes(), SendFlags::NOSIGNAL).expect("there is room");
        let mut watch = Watch { socket, answer: Value::Null, lines: Vec::new() };
        assert!(watch.receive());
        watch.answer = watch.lines.remove(0);
        if watch.answer["error"].is_null() {
            watch.wait_for_worker();
        }
        watch
    }

    /// Waits until a worker begins; returns its process ID.
    fn wait_for_worker(&mut self) -> u64 {
        loop {
            if let Some(place) = self.lines.iter().position(|line| line["watching"].is_u64()) {
                return self.lines.remove(place)["watching"].as_u64().expect("a number");
            }
            assert!(self.receive(), "the server ended");
        }
    }

    /// Receives a packet; returns false at the end of the stream.
    fn receive(&mut self) -> bool {
        let mut buffer = vec![0; 256 << 10];
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            let mut wait = [PollFd::new(&self.socket, PollFlags::IN)];
            let _ = poll(&mut wait, Some(&Timespec { tv_sec: 1, tv_nsec: 0 }));
            match recv(&self.socket, &mut buffer[..], RecvFlags::DONTWAIT) {
                Ok((0, _)) => return false,
                Ok((count, _)) => {
                    let lines = buffer[..count].split(|&byte| byte == b'\n').filter(|line| !line.is_empty());
                    self.lines.extend(lines.map(|line| {
                        serde_json::from_slice::<Value>(line)
                            .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(line)))
                    }));
                    return true;
                }
                Err(_) => assert!(Instant::now() < end, "nothing came; there are {:?}", self.lines),
            }
        }
    }

    /// Receives lines until there are `count` of them; returns them ordered by URI.
    fn lines(&mut self, count: usize) -> Vec<Value> {
        while self.lines.len() < count {
            assert!(self.receive(), "the server ended");
        }
        let mut lines = std::mem::take(&mut self.lines);
        lines.sort_by_key(|line| line["uri"].as_str().unwrap_or_default().to_owned());
        lines
    }
}

#[test]
fn a_finished_request_is_shown_with_its_details() {
    if !ours_only("admin_socket") {
        return;
    }
    let site = start("");
    let mode = std::fs::metadata(site.socket()).expect("the socket").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let mut watch = Watch::begin(&site, "");
    assert_eq!(watch.answer, json!({ "ok": true, "watchers": 1 }));
    let mut client = Client::connect(site.server.addr(0));
    client.send(request_bytes("GET", "/file?a=%1b", &[("Connection", "close")]));
    let bytes = client.read_to_end().len() as u64;
    for target in ["/cached/1", "/cached/1", "/none", "/up/1"] {
        site.get(target);
    }
    let lines = watch.lines(5);
    let [miss, hit, file, none, up] = &lines[..] else { panic!("{lines:?}") };
    for line in &lines {
        assert_eq!((&line["server"], &line["client"]), (&json!("a.example"), &json!("127.0.0.1")), "{line}");
        assert_eq!((&line["method"], &line["protocol"]), (&json!("GET"), &json!("HTTP/1.1")), "{line}");
        assert_eq!((&line["completed"], &line["scheme"]), (&json!(true), &json!("http")), "{line}");
        let phases = ["received", "found", "opened", "first_byte", "last_byte"]
            .map(|name| line["phases"][name].as_u64().unwrap_or_else(|| panic!("{name}: {line}")));
        assert!(phases.is_sorted(), "{line}");
    }
    assert_eq!((&file["uri"], &file["location"]), (&json!("/file?a=%1b"), &json!("= /file")));
    assert_eq!((&file["sent"], &file["code"]), (&json!(bytes), &json!(200)));
    assert!(file["engine"].is_string() && file["cache"].is_null() && file["upstreams"].is_null(), "{file}");
    assert_eq!((&none["code"], &none["location"]), (&json!(404), &json!("/none")));
    assert_eq!(up["upstreams"][0]["code"], json!(200), "{up}");
    assert!(up["upstreams"][0]["header"].as_u64() <= up["upstreams"][0]["response"].as_u64(), "{up}");
    let [miss, hit] = if miss["cache"] == "MISS" { [miss, hit] } else { [hit, miss] };
    assert_eq!((&miss["cache"], &hit["cache"]), (&json!("MISS"), &json!("HIT")));
    assert!(miss["cache_reason"].as_str().is_some_and(|why| why.starts_with("uri-miss, stored")), "{miss}");
    assert!(hit["cache_reason"].as_str().is_some_and(|why| why.starts_with("ttl ")), "{hit}");
    assert!(miss["upstreams"].is_array() && hit["upstreams"].is_null());
}

#[test]
fn a_request_without_a_response_is_shown() {
    if !ours_only("admin_socket") {
        return;
    }
    let site = start("");
    let mut watch = Watch::begin(&site, "");
    let mut client = Client::connect(site.server.addr(0));
    client.send("GET /up/\u{1} HTTP/1.1\r\n\r\n");
    client.response();
    let mut client = Client::connect(site.server.addr(0));
    client.send("GET /half HTTP/1.1\r\nHost:").half_close();
    client.read_to_end();
    let codes: Vec<_> = watch.lines(2).iter().map(|line| line["code"].clone()).collect();
    assert_eq!(codes, [json!(400), json!(400)]);
}

#[test]
fn commands_show_requests_that_match_their_filter() {
    if !ours_only("ringroad log") {
        return;
    }
    let site = start("");
    let socket = site.socket().display().to_string();
    let args = ["log", "-f", "code=4xx", "-f", "location=/none", "-n", "2", "--socket", &socket];
    let mut log = Program::start(BINARY, &args);
    let ended = wait::until("two lines", deadline(), || {
        site.get("/none?seen");
        site.get("/empty");
        site.get("/missing");
        log.exited()
    });
    assert!(ended.is_ok_and(|status| status.success()), "{}", log.stderr());
    let text = log.stdout();
    assert_eq!(text.lines().count(), 2, "{text}");
    assert!(
        text.lines()
            .all(|line| line
                .contains(" 404 GET http://localhost/none?seen from 127.0.0.1 by a.example /none, ")),
        "{text}"
    );
    let mut json = Program::start(BINARY, &["log", "--json", "-n", "1", "--socket", &socket]);
    let ended = wait::until("a line", deadline(), || {
        site.get("/empty");
        json.exited()
    });
    assert!(ended.is_ok_and(|status| status.success()), "{}", json.stderr());
    let line: Value = serde_json::from_str(json.stdout().trim_end()).expect("JSON");
    assert_eq!(line["code"], json!(204));
    let said = site.command(&["log", "-f", "status=5xx"]);
    assert_eq!(said.status.code(), Some(2));
    assert!(
        said.stderr.starts_with("ringroad log: a filter has no key \"status\"; the keys are server"),
        "{}",
        said.stderr
    );
}

#[test]
fn top_ranks_names() {
    if !ours_only("ringroad top") {
        return;
    }
    let site = start("");
    let socket = site.socket().display().to_string();
    let args = ["top", "-1", "--every", "3", "--by", "misses", "-n", "2", "--socket", &socket];
    let mut top = Program::start(BINARY, &args);
    let mut count = 0;
    let ended = wait::until("the tables", deadline(), || {
        count += 1;
        site.get("/empty");
        site.get(&format!("/cached/new{count}?x"));
        top.exited()
    });
    assert!(ended.is_ok_and(|status| status.success()), "{}", top.stderr());
    let text = top.stdout();
    let rows = |title: &str| {
        let rest = text.split(&format!("  {title}\n")).nth(1).unwrap_or_else(|| panic!("{title}: {text}"));
        rest.lines().take(2).map(str::to_owned).collect::<Vec<_>>()
    };
    assert!(rows("URL")[0].contains("  localhost/cached/new"), "{text}");
    assert!(rows("client")[0].ends_with("  127.0.0.1"), "{text}");
    assert!(rows("location")[0].ends_with("  a.example /cached/"), "{text}");
    assert!(rows("location")[1].ends_with("  a.example /empty"), "{text}");
}

/// The client reads nothing until all requests have been served: lines that do not fit are dropped and counted.
#[test]
fn a_stalled_log_client_only_loses_lines() {
    if !ours_only("admin_socket") {
        return;
    }
    const REQUESTS: usize = 10_000;
    let site = start("");
    let mut watch = Watch::begin(&site, "location=/empty");
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut client = Client::connect(site.server.addr(0));
                client.deadline(Duration::from_secs(120));
                let mut bytes = request_bytes("GET", "/empty", &[]).repeat(99);
                bytes.extend(request_bytes("GET", "/empty", &[]));
                for _ in 0..REQUESTS / 200 {
                    client.send(&bytes);
                    for _ in 0..100 {
                        assert_eq!(client.response().status, 204);
                    }
                }
            });
        }
    });
    let (mut shown, mut dropped) = (0, 0);
    while shown + dropped < REQUESTS as u64 {
        assert!(watch.receive(), "the server ended");
        for line in watch.lines.drain(..) {
            match line["dropped"].as_u64() {
                Some(count) => dropped += count,
                None => shown += 1,
            }
        }
    }
    assert_eq!(shown + dropped, REQUESTS as u64);
    assert!(shown > 0 && dropped > 0, "{shown} {dropped}");
    common::assert_no_errors(&site.server);
}

#[test]
fn disconnected_log_clients_are_removed() {
    if !ours_only("admin_socket") {
        return;
    }
    let site = start("");
    let all: Vec<_> = (0..16).map(|_| Watch::begin(&site, "")).collect();
    assert_eq!(all[15].answer["watchers"], json!(16));
    let refused = Watch::begin(&site, "");
    assert_eq!(refused.answer, json!({ "error": "16 clients watch requests already" }));
    drop(all);
    site.get("/empty");
    let alone = wait::until("all are removed", deadline(), || {
        // The preceding request may be logged after its response.
        let watch = Watch::begin(&site, "location=/none");
        (watch.answer["watchers"] == 1).then_some(watch)
    });
    let mut alone = alone.expect("the number falls");
    site.get("/none");
    assert_eq!(alone.lines(1)[0]["code"], json!(404));
}

#[test]
fn a_log_client_survives_reloads_until_the_socket_closes() {
    if !ours_only("admin_socket") {
        return;
    }
    let mut site = start("");
    let mut watch = Watch::begin(&site, "");
    let text = site.setup.text();
    site.server.rewrite_conf(&text.replace("server_name a.example", "server_name b.example"));
    site.server.reload();
    site.server.wait_for_log("was replaced by 2 in place", deadline());
    site.get("/empty");
    assert_eq!(watch.lines(1)[0]["server"], json!("b.example"));
    site.server.rewrite_conf(&text.replace("worker_processes 2", "worker_processes 1"));
    site.server.reload();
    // The new process reports that it begins.
    watch.wait_for_worker();
    let shown = wait::until("a line of the new process", deadline(), || {
        site.get("/empty");
        watch.receive();
        watch.lines.drain(..).any(|line| line["server"] == "a.example").then_some(())
    });
    shown.expect("it shows requests");
    let moved = text.replace("worker_processes 2", "worker_processes 1").replace("admin.sock", "other.sock");
    site.server.rewrite_conf(&moved);
    site.server.reload();
    let is_moved = || site.server.path("other.sock").exists() && !site.socket().exists();
    wait::until("the other socket", deadline(), || is_moved().then_some(())).expect("it is moved");
    site.server.rewrite_conf(&moved.replace("admin_socket other.sock;", ""));
    site.server.reload();
    while watch.receive() {}
    assert!(!site.server.path("other.sock").exists());
}

#[test]
fn requests_are_shown_without_a_master() {
    if !ours_only("admin_socket") {
        return;
    }
    let site = start("master_process off;\n");
    let mut watch = Watch::begin(&site, "code=404");
    site.get("/empty");
    site.get("/none");
    assert_eq!(watch.lines(1)[0]["code"], json!(404));
    let said = site.command(&["log", "-f", "x"]);
    assert!(said.stderr.contains("\"x\" is no term of a filter"), "{}", said.stderr);
    let socket = site.socket();
    assert!(site.server.quit_and_wait().success());
    assert!(!socket.exists());
}

#[test]
fn a_test_of_the_configuration_shows_what_a_reload_would_change() {
    if !ours_only("-t --diff") {
        return;
    }
    let mut site = start("");
    let prefix = format!("{}/", site.server.dir().display());
    let args = ["-t", "-q", "--diff", "-p", &prefix, "-c", "conf/nginx.conf"];
    let said = run(BINARY, &args);
    assert_eq!(said.stdout, "a reload changes nothing in configuration 1\n", "{}", said.stderr);
    let text = site.setup.text();
    site.server.rewrite_conf(&text.replace("return 404", "return 410"));
    let said = run(BINARY, &args);
    let place = format!("{prefix}conf/nginx.conf:");
    assert!(said.stdout.starts_with("a reload changes configuration 1:\n"), "{}", said.stdout);
    assert!(said.stdout.contains("404 -> 410") && said.stdout.contains(&place), "{}", said.stdout);
    assert!(said.stdout.ends_with("\nthe worker process takes it in place\n"), "{}", said.stdout);
    assert_eq!(site.get("/none"), 404, "nothing was changed");
    site.server.rewrite_conf(&text.replace("worker_processes 2", "worker_processes 3"));
    let said = run(BINARY, &args);
    let expected = "\na new worker process is needed: worker_processes 2 -> 3\n";
    assert!(said.stdout.ends_with(expected), "{}", said.stdout);
    // The command finds the server by the socket in the tested file.
    site.server.rewrite_conf(&text.replace("admin_socket admin.sock;", ""));
    let said = run(BINARY, &args);
    assert_eq!(said.status.code(), Some(1));
    assert!(said.stderr.contains("has no \"admin_socket\""), "{}", said.stderr);
}

/// `explain` uses the running configuration, whatever the file contains now, and queries the cache.
fn explains(main: &str) {
    let mut site = start(main);
    let explained = |site: &Site, args: &[&str]| {
        let said = site.command(&[&["explain"], args].concat());
        assert!(said.status.success(), "{args:?}: {}", said.stderr);
        said.stdout
    };
    let text = site.setup.text();
    site.server.rewrite_conf(&text.replace("return 404", "return 410"));
    let text = explained(&site, &["http://a.example:0/none"]);
    assert!(
        text.contains("location   /none at ") && text.contains("404") && !text.contains("stored "),
        "{text}"
    );
    // Port 0 is the port in the configuration.
    let url = "http://a.example:0/cached/1";
    let text = explained(&site, &[url]);
    let key = format!("key http://{}/cached/1\n", site.origin.addr());
    assert!(text.contains(&key), "{key}{text}");
    let expected = "\nstored     not cached: MISS, nothing is stored under this key\n";
    assert!(text.ends_with(expected), "{text}");
    site.get("/cached/1");
    let found = wait::until("the entry", deadline(), || {
        Some(explained(&site, &[url])).filter(|text| text.contains("\nstored     cached: HIT, fresh for "))
    });
    let text = found.unwrap_or_else(|_| panic!("{}", explained(&site, &[url])));
    assert!(text.contains("           status 200, 11 bytes, "), "{text}");
    let text = explained(&site, &["-X", "POST", url]);
    assert!(text.contains("neither read nor written") && !text.contains("\nstored "), "{text}");
    let said = site.command(&["explain", "nonsense"]);
    assert_eq!(said.status.code(), Some(2));
    assert!(said.stderr.contains("\"nonsense\" is not a URL"), "{}", said.stderr);
}

#[test]
fn explain_can_query_a_running_server() {
    if ours_only("explain --running") {
        explains("");
    }
}

#[test]
fn explain_can_query_a_server_without_a_master() {
    if ours_only("explain --running") {
        explains("master_process off;\n");
    }
}

#[test]
fn the_socket_of_a_running_server_is_not_replaced() {
    if !ours_only("admin_socket") {
        return;
    }
    let site = start("");
    let text = format!(
        "admin_socket {};\nevents {{}}\nhttp {{ server {{ listen 127.0.0.1:0; }} }}\n",
        site.socket().display()
    );
    let (status, said) = Server::builder(BINARY).conf(&text).run_to_end();
    assert!(!status.success() && said.contains("another server listens on"), "{said}");
    assert_eq!(site.get("/empty"), 204);
    Watch::begin(&site, "");
}

/// `tunnel_pass` needs no argument. A panic of an operator's command would end the master, and with it the server.
#[test]
fn explaining_a_tunnel_without_an_argument_does_not_end_the_server() {
    if !ours_only("admin_socket") {
        return;
    }
    for main in ["", "master_process off;"] {
        let conf = format!(
            "{main} admin_socket admin.sock; events {{}}
             http {{ server {{ listen 127.0.0.1:0; location / {{ tunnel_pass; }} location /ok {{ return 204; }} }} }}"
        );
        let server = Server::start(BINARY, &conf);
        let socket = server.path("admin.sock").display().to_string();
        for _ in 0..2 {
            let said = run(BINARY, &["explain", "--socket", &socket, "http://a.example:0/"]);
            assert!(said.status.success(), "{} {}", said.stdout, said.stderr);
            // A tunnel needs a CONNECT request.
            assert!(said.stdout.contains("\nlocation   / at "), "{}", said.stdout);
            assert!(said.stdout.contains("\nresponse   405\n"), "{}", said.stdout);
        }
        assert_eq!(Client::connect(server.addr(0)).get("/ok").status, 204);
    }
}
