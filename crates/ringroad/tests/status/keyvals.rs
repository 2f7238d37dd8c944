//! `keyval`: pairs that the API changes, the variables that look them up, and state files over reloads, crashes, restarts and
//! upgrades.

use std::io::Read;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use rustix::process::Signal;
use serde_json::{Value, json};
use testkit::wait::{self, Deadline};
use testkit::{Client, Server, Setup};

use crate::common::{BINARY, ours_only};

const CONF: &str = "worker_processes 2; error_log logs/error.log notice;
events {}
http {
    keyval_zone zone=one:64k state=@DATA@/state/one.json;
    keyval_zone zone=times:64k timeout=1h;
    keyval_zone zone=nets:64k type=ip state=@DATA@/state/nets.json;
    keyval_zone zone=paths:64k type=prefix;
    keyval_zone zone=large:8m;
    keyval $arg_text $text zone=one;
    keyval $arg_from $blocked zone=nets;
    keyval $uri $target zone=paths;
    server {
        listen 127.0.0.1:0;
        client_max_body_size 32m;
        location / { if ($blocked) { return 403 \"$blocked\"; } return 200 \"$text|$target\"; }
        location /api { api write=on; }
        location /read { api; }
    }
}
stream {
    keyval_zone zone=names:64k state=@DATA@/state/names.json;
    keyval $remote_addr $name zone=names;
    server { listen 127.0.0.2:0; return \"<$name>\"; }
}
";

struct Site {
    server: Server,
    folder: PathBuf,
    setup: Setup,
}

fn start() -> Site {
    start_with("")
}

/// Starts a server with further directives in the main context.
fn start_with(main: &str) -> Site {
    let setup = Setup::new(&format!("{main}{CONF}"));
    let folder = setup.data().join("state");
    std::fs::create_dir(&folder).expect("a new directory");
    // The worker may have another user.
    std::fs::set_permissions(&folder, PermissionsExt::from_mode(0o777)).expect("it is ours");
    let server = setup.builder(BINARY).start();
    Site { server, folder, setup }
}

/// Sends a request with a body of JSON; returns the status and the body.
fn send(server: &Server, method: &str, path: &str, body: &str) -> (u16, Value) {
    let length = body.len().to_string();
    let fields = [("Content-Length", length.as_str()), ("Content-Type", "application/json")];
    let mut client = Client::connect(server.addr(0));
    client.send(testkit::client::request_bytes(method, path, &fields)).send(body);
    let response = client.response();
    (response.status, serde_json::from_slice(&response.body).unwrap_or(Value::Null))
}

impl Site {
    fn send(&self, method: &str, path: &str, body: &str) -> (u16, Value) {
        send(&self.server, method, &format!("/api/9/{path}"), body)
    }

    /// Returns the status and the code of the error, or an empty text.
    fn code(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        let (status, value) = self.send(method, path, body);
        (status, value["error"]["code"].as_str().unwrap_or_default().to_owned())
    }

    fn get(&self, path: &str) -> Value {
        let (status, value) = self.send("GET", path, "");
        assert_eq!(status, 200, "{path}: {value}");
        value
    }

    /// Returns the text of a page.
    fn page(&self, target: &str) -> String {
        Client::connect(self.server.addr(0)).get(target).text()
    }

    fn state(&self, name: &str) -> Value {
        let text = std::fs::read(self.folder.join(name)).expect("it was written");
        serde_json::from_slice(&text).expect("it is JSON")
    }
}

/// Returns the bytes that the `stream` server sends.
fn name(server: &Server) -> String {
    let mut text = String::new();
    let mut client = TcpStream::connect(server.addr(1).tcp()).expect("it listens");
    client.set_read_timeout(Some(std::time::Duration::from_secs(20))).expect("a time limit");
    client.read_to_string(&mut text).expect("a text");
    text
}

#[test]
fn pairs_are_added_changed_and_removed() {
    if !ours_only("keyval") {
        return;
    }
    let site = start();
    assert_eq!(site.page("/?text=a"), "|");
    assert_eq!(site.send("POST", "http/keyvals/one", r#"{"a": "1", "b": "2"}"#).0, 201);
    assert_eq!(site.page("/?text=a"), "1|");
    assert_eq!(site.send("PATCH", "http/keyvals/one", r#"{"a": "3"}"#).0, 204);
    assert_eq!((site.page("/?text=a"), site.page("/?text=A")), ("3|".to_owned(), "|".to_owned()));
    assert_eq!(site.send("PATCH", "http/keyvals/one", r#"{"b": null}"#).0, 204);
    assert_eq!(site.get("http/keyvals/one"), json!({ "a": "3" }));
    assert_eq!(site.get("http/keyvals/one?key=a"), json!({ "a": "3" }));
    assert_eq!(site.send("POST", "http/keyvals/one", r#"{"ä &": "4"}"#).0, 201);
    assert_eq!(site.get("http/keyvals/one?key=%C3%A4%20%26"), json!({ "ä &": "4" }));
    assert_eq!(site.state("one.json"), json!({ "a": "3", "ä &": "4" }));
    // Keys of other types.
    assert_eq!(site.send("POST", "http/keyvals/nets", r#"{"10.0.0.0/8": "ten", "10.1.0.0/16": ""}"#).0, 201);
    assert_eq!(
        (site.page("/?from=10.2.3.4"), site.page("/?from=10.1.3.4")),
        ("ten".to_owned(), "|".to_owned())
    );
    assert_eq!(site.send("POST", "http/keyvals/paths", r#"{"/a/": "first", "/a/b": "second"}"#).0, 201);
    assert_eq!(
        (site.page("/a/x"), site.page("/a/bc"), site.page("/a")),
        ("|first".into(), "|second".into(), "|".into())
    );
    let all = site.get("http/keyvals");
    assert_eq!(all["paths"]["/a/b"], json!("second"));
    assert_eq!(all["large"], json!({}));
    assert_eq!(site.get("http/keyvals?fields="), json!(["one", "times", "nets", "paths", "large"]));
    // Zones of `stream` are separate.
    assert_eq!((site.get("stream/keyvals"), name(&site.server)), (json!({ "names": {} }), "<>".to_owned()));
    assert_eq!(site.send("POST", "stream/keyvals/names", r#"{"127.0.0.1": "me"}"#).0, 201);
    assert_eq!(
        (site.get("stream/keyvals/names"), name(&site.server)),
        (json!({ "127.0.0.1": "me" }), "<me>".to_owned())
    );
    assert_eq!(site.code("GET", "http/keyvals/names", ""), (404, "KeyvalNotFound".to_owned()));
    assert_eq!(site.send("DELETE", "http/keyvals/one", "").0, 204);
    assert_eq!((site.get("http/keyvals/one"), site.state("one.json")), (json!({}), json!({})));
    assert!(site.get("slabs")["nets"]["pages"]["used"].as_u64().is_some_and(|pages| pages > 0));
    // Other users may not read the values.
    let mode = std::fs::metadata(site.folder.join("one.json")).expect("it was written").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let files = std::fs::read_dir(&site.folder).expect("a directory").count();
    assert_eq!(files, 3, "no temporary file remains");
}

#[test]
fn wrong_changes_are_refused_with_the_codes_of_nginx() {
    if !ours_only("keyval") {
        return;
    }
    let site = start();
    assert_eq!(site.send("POST", "http/keyvals/one", r#"{"a": "1"}"#).0, 201);
    let one = "http/keyvals/one";
    for (method, path, body, status, code) in [
        ("GET", "http/keyvals/none", "", 404, "KeyvalNotFound"),
        ("GET", "http/keyvals/one?key=x", "", 404, "KeyvalKeyNotFound"),
        ("GET", "http/keyvals/one/a", "", 404, "PathNotFound"),
        ("POST", "http/keyvals", "{\"a\":\"1\"}", 405, "MethodDisabled"),
        ("PUT", one, "{\"a\":\"1\"}", 405, "MethodDisabled"),
        ("POST", "http/keyvals/none", "{\"a\":\"1\"}", 404, "KeyvalNotFound"),
        ("PATCH", "http/keyvals/none", "{\"a\":\"1\"}", 404, "KeyvalNotFound"),
        ("DELETE", "http/keyvals/none", "", 404, "KeyvalNotFound"),
        ("POST", one, "", 400, "KeyvalFormatError"),
        ("POST", one, "{}", 400, "KeyvalFormatError"),
        ("POST", one, "{\"a\"", 400, "KeyvalFormatError"),
        ("POST", one, "{\"b\":1}", 400, "KeyvalFormatError"),
        ("POST", one, "{\"b\":null}", 400, "KeyvalFormatError"),
        ("POST", one, "{\"\":\"1\"}", 400, "KeyvalFormatError"),
        ("POST", one, "{\"b\":\"1\",\"c\":\"2\"}", 400, "KeyvalFormatError"),
        ("POST", one, "{\"b\":{\"value\":\"1\",\"expire\":1000}}", 400, "KeyvalFormatError"),
        ("POST", one, "{\"a\":\"2\"}", 409, "KeyvalKeyExists"),
        ("PATCH", one, "{}", 400, "KeyvalFormatError"),
        ("PATCH", one, "{\"a\":\"2\",\"b\":\"2\"}", 400, "KeyvalFormatError"),
        ("PATCH", one, "{\"b\":\"2\"}", 404, "KeyvalKeyNotFound"),
        ("POST", "http/keyvals/nets", "{\"host\":\"1\"}", 400, "KeyvalFormatError"),
    ] {
        assert_eq!(site.code(method, path, body), (status, code.to_owned()), "{method} {path} {body}");
    }
    assert_eq!(send(&site.server, "POST", "/api/7/http/keyvals/one", "{\"b\":\"1\"}").0, 404);
    let (status, value) = send(&site.server, "POST", "/read/9/http/keyvals/one", "{\"b\":\"1\"}");
    assert_eq!((status, &value["error"]["code"]), (405, &json!("MethodDisabled")));
    assert_eq!(send(&site.server, "DELETE", "/read/9/http/keyvals/one", "").0, 405);
    assert_eq!(send(&site.server, "GET", "/read/9/http/keyvals/one", ""), (200, json!({ "a": "1" })));
    // A form of another site cannot send this type.
    let fields = [("Content-Length", "9"), ("Content-Type", "text/plain")];
    let mut client = Client::connect(site.server.addr(0));
    client
        .send(testkit::client::request_bytes("POST", "/api/9/http/keyvals/one", &fields))
        .send("{\"b\":\"1\"}");
    assert_eq!(client.response().status, 415);
    let fields =
        [("Content-Length", "9"), ("Content-Type", "application/json"), ("Sec-Fetch-Site", "cross-site")];
    let mut client = Client::connect(site.server.addr(0));
    client
        .send(testkit::client::request_bytes("POST", "/api/9/http/keyvals/one", &fields))
        .send("{\"b\":\"1\"}");
    assert_eq!(client.response().status, 403);
    assert_eq!((site.get(one), site.state("one.json")), (json!({ "a": "1" }), json!({ "a": "1" })));
}

#[test]
fn a_full_zone_refuses_pairs_and_retains_the_others() {
    if !ours_only("keyval") {
        return;
    }
    let site = start();
    let add = |number: usize, len: usize| {
        site.code("POST", "http/keyvals/one", &format!("{{\"key{number}\":\"{}\"}}", "x".repeat(len)))
    };
    let added = (0..100).take_while(|number| add(*number, 4000).0 == 201).count();
    assert!((10..16).contains(&added), "{added} pairs of 4000 bytes in 64 KiB");
    assert_eq!(add(100, 4000), (507, "KeyvalOutOfMemory".to_owned()));
    assert_eq!(site.get("http/keyvals/one").as_object().map(serde_json::Map::len), Some(added));
    assert_eq!(site.send("DELETE", "http/keyvals/one", "").0, 204);
    assert_eq!(add(100, 4000).0, 201);
    // Many pairs at once are possible in an empty zone; other requests are served meanwhile.
    let pairs: Vec<String> = (0..30_000).map(|number| format!("\"k{number}\":\"v{number}\"")).collect();
    assert_eq!(site.send("POST", "http/keyvals/large", &format!("{{{}}}", pairs.join(","))).0, 201);
    assert_eq!(site.get("http/keyvals/large").as_object().map(serde_json::Map::len), Some(30_000));
    assert_eq!(site.get("http/keyvals/large?key=k29999"), json!({ "k29999": "v29999" }));
    let too_long = format!("{{\"a\":\"{}\"}}", "x".repeat(17 << 20));
    assert_eq!(site.code("PATCH", "http/keyvals/large", &too_long), (413, "KeyvalFormatError".to_owned()));
}

#[test]
fn pairs_expire_at_their_time() {
    if !ours_only("keyval") {
        return;
    }
    let site = start();
    let times = "http/keyvals/times";
    assert_eq!(
        site.send(
            "POST",
            times,
            r#"{"a": {"value": "1", "expire": 3600000}, "b": {"value": "2", "expire": 1}}"#
        )
        .0,
        201
    );
    let is_expired = || (site.get(times) == json!({ "a": "1" })).then_some(());
    wait::until("the end of a pair", Deadline::default(), is_expired).expect("it expires");
    assert_eq!(site.send("POST", times, r#"{"b": "3"}"#).0, 201, "its key is free");
    assert_eq!(site.send("PATCH", times, r#"{"a": {"expire": 1}}"#).0, 204);
    let is_expired = || (site.get(times) == json!({ "b": "3" })).then_some(());
    wait::until("the end of a pair", Deadline::default(), is_expired).expect("it expires");
}

/// Waits until the server responds with these pairs: a new process has started.
fn wait_for(server: &Server, path: &str, expected: &Value) {
    let found = wait::until(path, Deadline::default(), || {
        let mut client = Client::try_connect(server.addr(0)).ok()?;
        client.try_send(format!("GET /api/9/{path} HTTP/1.1\r\nHost: h\r\n\r\n").as_bytes()).ok()?;
        let response = client.try_response().ok()?;
        let value: Value = serde_json::from_slice(&response.body).ok()?;
        (value == *expected).then_some(())
    });
    found.unwrap_or_else(|_| panic!("{path} is not {expected}: {}", server.error_log()));
}

#[test]
fn pairs_survive_reloads_crashes_upgrades_and_restarts() {
    if !ours_only("keyval") {
        return;
    }
    let mut site = start();
    assert_eq!(site.send("POST", "http/keyvals/one", r#"{"a": "1"}"#).0, 201);
    assert_eq!(site.send("POST", "http/keyvals/paths", r#"{"/": "kept"}"#).0, 201);
    assert_eq!(site.send("POST", "stream/keyvals/names", r#"{"127.0.0.1": "me"}"#).0, 201);
    // In place: zones without a state file are retained too.
    site.server.reload();
    site.server.wait_for_log("was replaced by 2 in place", Deadline::default());
    assert_eq!(site.get("http/keyvals/paths"), json!({ "/": "kept" }));
    assert_eq!(site.page("/?text=a"), "1|kept");
    // A state file that another program has damaged: the reload is refused, and the running process continues.
    let file = site.folder.join("one.json");
    let good = std::fs::read(&file).expect("it was written");
    std::fs::write(&file, "{\"a\":").expect("it is ours");
    site.server.signal(Signal::HUP);
    site.server.wait_for_log("is wrong: invalid JSON", Deadline::default());
    assert_eq!(site.page("/?text=a"), "1|kept");
    std::fs::write(&file, good).expect("it is ours");
    // Another file: the pairs of an empty zone file are retained and written to it.
    let moved = site.setup.text().replace("state/one.json", "state/moved.json");
    site.server.rewrite_conf(&moved);
    site.server.signal(Signal::HUP);
    site.server.wait_for_log("was replaced by 3 in place", Deadline::default());
    let is_written = || std::fs::read(site.folder.join("moved.json")).ok();
    let text = wait::until("the new file", Deadline::default(), is_written).expect("it is written");
    assert_eq!(serde_json::from_slice::<Value>(&text).expect("JSON"), json!({ "a": "1" }));
    // A crash: the next worker reads the present file.
    assert_eq!(site.send("PATCH", "http/keyvals/one", r#"{"a": "2"}"#).0, 204);
    let before = site.server.workers();
    for worker in &before {
        testkit::program::signal_process(*worker, Signal::KILL).expect("it runs");
    }
    let is_new = || site.server.is_replaced(&before).then_some(());
    wait::until("another worker", Deadline::default(), is_new).expect("it is started");
    wait_for(&site.server, "http/keyvals/one", &json!({ "a": "2" }));
    assert_eq!(site.get("http/keyvals/paths"), json!({}), "it has no file");
    assert_eq!(name(&site.server), "<me>");
    // A new worker because of the configuration.
    let more = moved.replace("worker_processes 2", "worker_processes 1");
    let before = site.server.workers();
    site.server.rewrite_conf(&more);
    site.server.signal(Signal::HUP);
    let is_new = || site.server.is_replaced(&before).then_some(());
    wait::until("another worker", Deadline::default(), is_new).expect("it is started");
    wait_for(&site.server, "http/keyvals/one", &json!({ "a": "2" }));
    assert_eq!(site.send("PATCH", "http/keyvals/one", r#"{"a": "3"}"#).0, 204);
    assert_eq!(site.state("moved.json"), json!({ "a": "3" }));
}

#[test]
fn pairs_that_the_api_changes_are_no_changes_of_the_configuration() {
    if !ours_only("keyval") {
        return;
    }
    let site = start_with("admin_socket admin.sock; ");
    assert_eq!(site.send("POST", "http/keyvals/one", r#"{"a": "1"}"#).0, 201);
    assert_eq!(site.state("one.json"), json!({ "a": "1" }));
    let prefix = format!("{}/", site.server.dir().display());
    let said = testkit::program::run(BINARY, &["-t", "-q", "--diff", "-p", &prefix, "-c", "conf/nginx.conf"]);
    assert_eq!(said.stdout, "a reload changes nothing in configuration 1\n", "{}", said.stderr);
}

#[test]
fn changes_that_are_not_written_are_reported() {
    if !ours_only("keyval") {
        return;
    }
    let site = start();
    assert_eq!(site.send("POST", "http/keyvals/one", r#"{"a": "1"}"#).0, 201);
    std::fs::remove_dir_all(&site.folder).expect("it is ours");
    assert_eq!(site.code("PATCH", "http/keyvals/one", r#"{"a": "2"}"#), (500, "KeyvalStateError".to_owned()));
    let line =
        site.server.wait_for_log("the state of keyval zone \"one\" was not written to", Deadline::default());
    assert!(line.contains("[error]"), "{line}");
    assert_eq!(site.page("/?text=a"), "2|");
    // When the directory exists again, changes are written. With a sandbox that is a matter for a new worker, whose zone is empty.
    std::fs::create_dir(&site.folder).expect("it is ours");
    std::fs::set_permissions(&site.folder, PermissionsExt::from_mode(0o777)).expect("it is ours");
    let is_written = || {
        let mut client = Client::try_connect(site.server.addr(0)).ok()?;
        client.try_send(b"DELETE /api/9/http/keyvals/one HTTP/1.1\r\nHost: h\r\n\r\n").ok()?;
        (client.try_response().ok()?.status == 204).then_some(())
    };
    wait::until("a write", Deadline::default(), is_written).expect("it is possible again");
    assert_eq!(site.send("POST", "http/keyvals/one", r#"{"a": "3"}"#).0, 201);
    assert_eq!(site.state("one.json"), json!({ "a": "3" }));
}

#[test]
fn concurrent_changes_are_all_in_the_file() {
    if !ours_only("keyval") {
        return;
    }
    let site = start();
    let server = &site.server;
    std::thread::scope(|scope| {
        for thread in 0..8 {
            scope.spawn(move || {
                for number in 0..10 {
                    let body = format!("{{\"{thread}-{number}\":\"v\"}}");
                    assert_eq!(send(server, "POST", "/api/9/http/keyvals/one", &body).0, 201);
                }
            });
        }
    });
    assert_eq!(site.state("one.json").as_object().map(serde_json::Map::len), Some(80));
    assert_eq!(site.state("one.json"), site.get("http/keyvals/one"));
}

/// `explain` shows the value from the state file, and carries out no change.
#[test]
fn explain_changes_nothing() {
    if !ours_only("keyval") {
        return;
    }
    let site = start();
    assert_eq!(site.send("POST", "http/keyvals/one", r#"{"a": "1"}"#).0, 201);
    let conf = site.server.path("conf/nginx.conf");
    let explain = |arguments: &[&str]| {
        let output = Command::new(BINARY)
            .args(["explain", "-p"])
            .arg(site.server.dir())
            .arg("-c")
            .arg(&conf)
            .args(arguments)
            .output()
            .expect("it runs");
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
    };
    let text = explain(&["-X", "DELETE", "http://localhost:0/api/9/http/keyvals/one"]);
    assert!(text.contains("not carried out"), "{text}");
    assert_eq!(
        (site.get("http/keyvals/one"), site.state("one.json")),
        (json!({ "a": "1" }), json!({ "a": "1" }))
    );
}
