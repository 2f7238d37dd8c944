//! `api`: its paths and their numbers, changes of upstream servers, and the permission for changes. Debian's Prometheus exporter
//! reads the API, if it is installed.

use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use crate::common::{BINARY, Running, ours_only};
use serde_json::{Value, json};
use testkit::origin::Reply;
use testkit::server::StrictLimit;
use testkit::wait::{self, Deadline};
use testkit::{Client, Origin, Response, Server, Setup};

const CONF: &str = "worker_processes 2;
events {}
http {
    limit_req_zone $arg_key zone=rate:64k rate=1r/m;
    limit_req_zone $arg_key zone=tells:64k rate=1r/m;
    limit_conn_zone $arg_key zone=conns:64k;
    upstream back { zone back 64k; server @ORIGIN@; server @SECOND@ backup max_conns=7; }
    server {
        listen 127.0.0.1:0;
        server_name a.example;
        location / { proxy_pass http://back; }
        location /named { status_zone named; return 204; }
        location /slow { limit_req zone=rate burst=1 delay=1; limit_conn conns 5; root html; }
        location /dry { limit_req zone=tells; limit_req_dry_run on; root html; }
        location /api { api write=on; }
        location /read/ { api; status_zone off; }
    }
    server { listen 127.0.0.1:0; server_name b.example; status_zone second; }
}
";

struct Site {
    server: Server,
    first: Origin,
    second: Origin,
    _setup: Setup,
}

fn start() -> Site {
    let [first, second] = ["first", "second"].map(|name| Origin::start(move |_| Reply::text(name)));
    let setup = Setup::new(CONF).origin(&first).upstream("SECOND", second.addr());
    let server = setup.builder(BINARY).not_strict(StrictLimit::PortOfRequest).start();
    Site { server, first, second, _setup: setup }
}

impl Site {
    fn get(&self, target: &str) -> Response {
        Client::connect(self.server.addr(0)).get(target)
    }

    fn json(&self, path: &str) -> Value {
        let response = self.get(&format!("/api/9/{path}"));
        assert_eq!(
            (response.status, response.field("Content-Type")),
            (200, Some("application/json")),
            "{path}"
        );
        serde_json::from_slice(&response.body).expect("JSON")
    }

    /// Waits until a number has this value: requests are counted after their responses have been sent.
    fn settled(&self, path: &str, pointer: &str, expected: &Value) -> Value {
        let found = wait::until(pointer, Deadline::default(), || {
            Some(self.json(path)).filter(|value| value.pointer(pointer) == Some(expected))
        });
        found.unwrap_or_else(|_| panic!("{path} {pointer}: {}", self.json(path)))
    }

    fn change(&self, method: &str, path: &str, fields: &[(&str, &str)], body: &str) -> (u16, Value) {
        let length = body.len().to_string();
        let own = [("Content-Length", length.as_str()), ("Content-Type", "application/json")];
        let typed = fields.iter().any(|(name, _)| *name == "Content-Type");
        let fields = [if typed { &own[..1] } else { &own[..] }, fields].concat();
        let mut client = Client::connect(self.server.addr(0));
        client.send(testkit::client::request_bytes(method, path, &fields)).send(body);
        let response = client.response();
        (response.status, serde_json::from_slice(&response.body).unwrap_or(Value::Null))
    }

    /// Returns the ID of the server with this address.
    fn id(&self, origin: &Origin) -> u64 {
        let servers = self.json("http/upstreams/back/servers");
        let address = origin.addr().to_string();
        let found = servers.as_array().expect("a list").iter().find(|server| server["server"] == *address);
        found.expect("it is there")["id"].as_u64().expect("a number")
    }
}

#[test]
fn the_api_has_the_paths_of_nginx() {
    if !ours_only("api") {
        return;
    }
    let site = start();
    for target in ["/x", "/y", "/named", "/named", "/named"] {
        site.get(target);
    }
    let codes = site.settled("http/location_zones", "/named/requests", &json!(3));
    assert_eq!(codes["named"]["responses"]["codes"], json!({ "204": 3 }));
    assert_eq!(codes["named"]["responses"]["2xx"], json!(3));
    let zones = site.settled("http/location_zones", "/a.example ~1/requests", &json!(2));
    assert_eq!(zones["a.example /"]["responses"]["total"], json!(2));
    assert_eq!(site.json("http/location_zones/named")["requests"], json!(3));
    let zones = site.json("http/server_zones");
    let names: Vec<_> = zones.as_object().expect("an object").keys().collect();
    assert_eq!(names, ["a.example", "second"]);
    assert!(zones["a.example"]["requests"].as_u64() > Some(5), "with those of the API: {zones}");
    let peers = site.json("http/upstreams/back")["peers"].clone();
    let [first, second] = [&peers[0], &peers[1]];
    assert_eq!(
        (&first["state"], &first["requests"], &first["backup"]),
        (&json!("up"), &json!(2), &json!(false))
    );
    assert_eq!(first["responses"]["codes"], json!({ "200": 2 }));
    assert_eq!(
        (&second["requests"], &second["max_conns"], &second["backup"]),
        (&json!(0), &json!(7), &json!(true))
    );
    let requests = site.json("http/requests");
    assert!(requests["total"].as_u64() >= Some(6) && requests["current"].as_u64() >= Some(1), "{requests}");
    // The connections of the preceding requests may still be closing.
    let alone = || (site.json("connections")["active"] == json!(1)).then_some(());
    wait::until("one connection", Deadline::default(), alone).expect("the others are closed");
    assert!(site.json("connections")["accepted"].as_u64() >= Some(6));
    assert_eq!(site.json("workers").as_array().map(Vec::len), Some(2), "its threads");
    assert_eq!(site.json("nginx")["generation"], json!(1));
    assert_eq!(site.json("nginx?fields=address,pid").as_object().expect("an object").len(), 2);
    assert_eq!(site.json("http/server_zones?fields=sent")["second"], json!({ "sent": 0 }), "a collection");
    assert_eq!(site.json("processes"), json!({ "respawned": 0 }));
    let zone = &site.json("slabs")["rate"];
    assert_eq!((&zone["pages"]["used"], &zone["pages"]["free"]), (&json!(0), &json!(16)), "64 KiB");
    let empty = ["resolvers", "http/keyvals", "stream/upstreams"];
    for path in empty {
        assert_eq!(site.json(path), json!({}), "{path}");
    }
}

#[test]
fn results_of_limits_are_counted() {
    if !ours_only("api") {
        return;
    }
    let site = start();
    let statuses = |target: &str| [(); 4].map(|()| site.get(target).status);
    assert_eq!(statuses("/slow/x?key=a"), [404, 404, 503, 503]);
    assert_eq!(statuses("/dry/x?key=a"), [404; 4]);
    let limits = site.json("http/limit_reqs");
    let expected =
        json!({ "passed": 2, "delayed": 0, "rejected": 2, "delayed_dry_run": 0, "rejected_dry_run": 0 });
    assert_eq!(limits["rate"], expected);
    let expected =
        json!({ "passed": 1, "delayed": 0, "rejected": 0, "delayed_dry_run": 0, "rejected_dry_run": 3 });
    assert_eq!(limits["tells"], expected);
    assert_eq!(
        site.json("http/limit_conns/conns"),
        json!({ "passed": 2, "rejected": 0, "rejected_dry_run": 0 })
    );
}

#[test]
fn unknown_paths_and_methods_are_refused() {
    if !ours_only("api") {
        return;
    }
    let site = start();
    assert_eq!(site.get("/api/").text(), "[8,9]");
    for (target, code) in [
        ("/api/7/nginx", "UnknownVersion"),
        ("/api/9/license", "PathNotFound"),
        ("/api/9/http/caches/a", "PathNotFound"),
    ] {
        let response = site.get(target);
        let body: Value = serde_json::from_slice(&response.body).expect("JSON");
        assert_eq!((response.status, &body["error"]["code"]), (404, &json!(code)), "{target}");
    }
    let (status, body) = site.change("POST", "/read/9/http/upstreams/back/servers", &[], "{}");
    assert_eq!((status, &body["error"]["code"]), (405, &json!("MethodDisabled")));
    assert_eq!(site.get("/read/9/nginx").status, 200);
}

#[test]
fn servers_are_disabled_added_and_removed() {
    if !ours_only("api") {
        return;
    }
    let site = start();
    let servers = "/api/9/http/upstreams/back/servers";
    let one = |origin: &Origin| format!("{servers}/{}", site.id(origin));
    assert_eq!(site.get("/").text(), "first");
    let (status, server) = site.change("PATCH", &one(&site.first), &[], "{\"down\": true, \"weight\": 3}");
    assert_eq!((status, &server["down"], &server["weight"]), (200, &json!(true), &json!(3)));
    assert_eq!(site.get("/").text(), "second", "the backup");
    let (status, _) = site.change("PATCH", &one(&site.first), &[], "{\"down\": false}");
    assert_eq!((status, site.get("/").text().as_str()), (200, "first"));
    let third = Origin::start(|_| Reply::text("third"));
    let body = json!({ "server": third.addr().to_string(), "max_fails": 0 }).to_string();
    let (status, server) = site.change("POST", servers, &[], &body);
    assert_eq!((status, &server["max_fails"]), (201, &json!(0)));
    assert_eq!(site.change("POST", servers, &[], &body).0, 409, "it is there");
    let (status, left) = site.change("DELETE", &one(&site.first), &[], "");
    assert_eq!((status, left.as_array().map(Vec::len)), (200, Some(2)));
    assert_eq!([site.get("/").text(), site.get("/").text()], ["third", "third"]);
    for (method, path, body, expected) in [
        ("PATCH", &one(&third), "{\"weight\": 0}", 400),
        ("PATCH", &one(&third), "no JSON", 400),
        ("POST", &servers.to_owned(), "{\"server\": \"name.example:80\"}", 400),
        ("PATCH", &format!("{servers}/9999"), "{}", 404),
        ("POST", &"/api/9/http/upstreams/none/servers".to_owned(), "{}", 404),
        ("PATCH", &servers.to_owned(), "{}", 405),
        ("POST", &"/api/9/nginx".to_owned(), "{}", 405),
    ] {
        assert_eq!(site.change(method, path, &[], body).0, expected, "{method} {path} {body}");
    }
    assert_eq!(site.get("/").text(), "third");
}

#[test]
fn cross_site_requests_change_nothing() {
    if !ours_only("api") {
        return;
    }
    let site = start();
    let path = format!("/api/9/http/upstreams/back/servers/{}", site.id(&site.second));
    let host = "localhost";
    for (fields, expected) in [
        (&[("Origin", "https://evil.example")][..], 403),
        (&[("Origin", "null")], 403),
        (&[("Sec-Fetch-Site", "cross-site")], 403),
        (&[("Sec-Fetch-Site", "same-site")], 403),
        (&[("Content-Type", "text/plain")], 415),
        (&[("Origin", &*format!("http://{host}")), ("Sec-Fetch-Site", "same-origin")], 200),
    ] {
        assert_eq!(site.change("PATCH", &path, fields, "{\"weight\": 2}").0, expected, "{fields:?}");
    }
}

/// A page of another site, whose name resolves to this server's address, has the same origin as its requests.
#[test]
fn dns_rebinding_changes_nothing() {
    if !ours_only("api") {
        return;
    }
    let site = start();
    let path = format!("/api/9/http/upstreams/back/servers/{}", site.id(&site.second));
    for (host, expected) in
        [("evil.example", 403), ("evil.example:80", 403), ("127.0.0.1", 200), ("[::1]:80", 200)]
    {
        let origin = format!("http://{host}");
        let fields = [("Host", host), ("Origin", &*origin), ("Content-Type", "application/json")];
        let mut client = Client::connect(site.server.addr(0));
        let body = "{\"weight\": 2}";
        client.send(testkit::client::request_bytes(
            "PATCH",
            &path,
            &[&fields[..], &[("Content-Length", &*body.len().to_string())]].concat(),
        ));
        client.send(body);
        assert_eq!(client.response().status, expected, "{host}");
    }
}

/// Numbers must not be readable for a page of another site that a browser on the server's machine shows.
#[test]
fn dns_rebinding_reads_nothing() {
    if !ours_only("metrics") {
        return;
    }
    let conf = "worker_processes 1; events {} http { api_hosts own.example; set_real_ip_from 127.0.0.1;
        server { listen 127.0.0.1:0; listen [::1]:0; server_name a.example *.b.example ~^c[0-9]\\.example$;
            location /api { api; } location = /metrics { metrics; } location = /dashboard { dashboard; }
            location = /health { health live; }
            location = /behind { real_ip_header X-Real-IP; metrics; } }
        server { listen 127.0.0.2:0; server_name other.example; location = /metrics { metrics; } } }";
    let server = Server::start(BINARY, conf);
    let status = |index: usize, method: &str, target: &str, host: &str, more: &str| {
        let mut client = Client::connect(server.addr(index));
        client.send(format!("{method} {target} HTTP/1.1\r\nHost: {host}\r\n{more}Connection: close\r\n\r\n"));
        if method == "HEAD" { client.response_to_head().status } else { client.response().status }
    };
    for target in ["/api/9/nginx", "/metrics", "/dashboard", "/dashboard?snapshot"] {
        for host in
            ["evil.test", "evil.test:80", "127.0.0.1.evil.test", "localhost.evil.test", "other.example"]
        {
            assert_eq!(status(0, "GET", target, host, ""), 403, "{target} {host}");
        }
        for host in [
            "127.0.0.1",
            "[::1]:80",
            "localhost",
            "a.localhost:81",
            "own.example",
            "A.example",
            "x.b.example",
            "c1.example",
            "name",
        ] {
            assert_eq!(status(0, "GET", target, host, ""), 200, "{target} {host}");
        }
        assert_eq!(status(0, "HEAD", target, "evil.test", ""), 403, "{target}");
        assert_eq!(status(1, "GET", target, "evil.test", ""), 403, "{target} over IPv6");
    }
    assert_eq!(status(0, "GET", "/health", "evil.test", ""), 200, "it reveals nothing");
    assert_eq!(status(0, "GET", "/behind", "evil.test", "X-Real-IP: 192.0.2.1\r\n"), 200, "another machine");
    assert_eq!(status(0, "GET", "/behind", "evil.test", "X-Real-IP: 127.0.0.2\r\n"), 403);
    assert_eq!(status(2, "GET", "/metrics", "other.example", ""), 200, "the only server of its address");
    let line = server.wait_for_log("host \"evil.test\" is refused", Deadline::default());
    assert!(line.contains("[error]") && line.contains("add it to \"api_hosts\""), "{line}");
}

/// Debian's exporter requests all paths, and reports that the server is up if each of them responds.
#[test]
fn the_prometheus_exporter_reads_the_api() {
    if !ours_only("api") {
        return;
    }
    let site = start();
    site.get("/x");
    // A port that was free shortly before.
    let port = Origin::start(|_| Reply::ok()).port();
    let command = Command::new("prometheus-nginx-exporter")
        .args(["-nginx.plus", &format!("-nginx.scrape-uri=http://{}/api", site.server.addr(0))])
        .arg(format!("-web.listen-address=127.0.0.1:{port}"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let Ok(child) = command else {
        testkit::skip(format_args!("prometheus-nginx-exporter is not installed"));
        return;
    };
    let _running = Running(child);
    let address = testkit::server::ListenAddr::Tcp(([127, 0, 0, 1], port).into());
    let page = wait::until("the exporter", Deadline::default(), || {
        Some(Client::try_connect(&address).ok()?.get("/metrics").text())
    });
    let page = page.expect("its page");
    for line in [
        "nginxplus_up 1\n".to_owned(),
        "nginxplus_server_zone_requests{server_zone=\"second\"} 0\n".to_owned(),
        format!(
            "nginxplus_upstream_server_requests{{server=\"{}\",upstream=\"back\"}} 1\n",
            site.first.addr()
        ),
    ] {
        assert!(page.contains(&line), "{line}{page}");
    }
}

/// A group whose servers are stored in a state file.
const STATE: &str = "worker_processes 2; error_log logs/error.log notice;
events {}
http {
    upstream back { state @DATA@/state/back.state; }
    upstream hashed { hash $uri; state @DATA@/state/hashed.state; }
    server {
        listen 127.0.0.1:0;
        location / { proxy_pass http://back; }
        location /hashed { proxy_pass http://hashed; }
        location /api { api write=on; client_body_in_file_only clean; }
        location /mirrored { api write=on; client_body_in_file_only clean; mirror /copy; }
        location /copy { return 204; }
    }
}
";

/// Starts a server with groups that are stored in files; returns their directory too.
fn start_with_state() -> (Site, std::path::PathBuf) {
    let [first, second] = ["first", "second"].map(|name| Origin::start(move |_| Reply::text(name)));
    let setup = Setup::new(STATE);
    let folder = setup.data().join("state");
    std::fs::create_dir(&folder).expect("a new directory");
    let open = PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(&folder, open).expect("it is ours");
    let server = setup.builder(BINARY).not_strict(StrictLimit::PortOfRequest).start();
    (Site { server, first, second, _setup: setup }, folder)
}

#[test]
fn accepted_changes_are_read_again_after_a_reload() {
    if !ours_only("state") {
        return;
    }
    let (site, folder) = start_with_state();
    let [back, hashed] = ["back", "hashed"].map(|name| format!("/api/9/http/upstreams/{name}/servers"));
    let add = |path: &str, body: &str| site.change("POST", path, &[], body).0;
    assert_eq!(add(&back, r#"{"server": "unix:/my app;x.sock", "backup": true}"#), 201);
    assert_eq!(add(&hashed, r#"{"server": "10.0.0.1:80"}"#), 201);
    for refused in [
        r#"{"server": "10.0.0.2:80", "backup": true}"#,
        r#"{"server": "10.0.0.2:80", "slow_start": "10s"}"#,
        r#"{"server": "10.0.0.2:80", "max_conns": 18446744073709551615}"#,
        r#"{"server": "unix:/a\nserver evil.example"}"#,
        "",
    ] {
        assert_eq!(add(&hashed, refused), 400, "{refused}");
    }
    assert_eq!(site.change("PATCH", &format!("{hashed}/0"), &[], r#"{"slow_start": "10s"}"#).0, 400);
    assert_eq!(
        std::fs::read_to_string(folder.join("back.state")).expect("it was written"),
        "server \"unix:/my app;x.sock\" backup;\n"
    );
    // Other users may not write to the file.
    let mode = std::fs::metadata(folder.join("back.state")).expect("it was written").permissions().mode();
    assert_eq!(mode & 0o777, 0o644);
    site.server.reload();
    site.server.wait_for_log("was replaced by 2 in place", Deadline::default());
    assert_eq!(site.json("http/upstreams/back/servers")[0]["server"], json!("unix:/my app;x.sock"));
    // The copy of a mirrored request has the same body.
    let mirrored = "/mirrored/9/http/upstreams/hashed/servers";
    assert_eq!(add(mirrored, r#"{"server": "10.0.0.3:80"}"#), 201);
    // The files of the bodies are removed after the responses.
    let bodies = site.server.path("client_body_temp");
    let no_files = || std::fs::read_dir(&bodies).is_ok_and(|mut files| files.next().is_none()).then_some(());
    wait::until("the end of the files", Deadline::default(), no_files).expect("they are removed");
}

#[test]
fn changes_are_stored_in_a_file() {
    if !ours_only("state") {
        return;
    }
    let (site, folder) = start_with_state();
    let file = folder.join("back.state");
    let servers = "/api/9/http/upstreams/back/servers";
    assert_eq!(site.get("/").status, 502, "there is no server yet");
    let added = |origin: &Origin, more: &str| {
        let body = format!("{{\"server\": \"{}\"{more}}}", origin.addr());
        site.change("POST", servers, &[], &body).0
    };
    assert_eq!(added(&site.first, ""), 201);
    assert_eq!(added(&site.second, ", \"weight\": 5, \"down\": true"), 201);
    let text = |weight: u32| {
        format!("server {};\nserver {} weight={weight} down;\n", site.first.addr(), site.second.addr())
    };
    assert_eq!(std::fs::read_to_string(&file).expect("it was written"), text(5));
    assert_eq!(site.get("/").text(), "first");
    let path = format!("{servers}/{}", site.id(&site.second));
    assert_eq!(site.change("PATCH", &path, &[], "{\"weight\": 7}").0, 200);
    assert_eq!(std::fs::read_to_string(&file).expect("it was written"), text(7));
    // After a reload, and in a worker that replaces a crashed one, the changes are still active.
    site.server.reload();
    site.server.wait_for_log("was replaced by 2 in place", Deadline::default());
    assert_eq!(site.json("http/upstreams/back/servers").as_array().map(Vec::len), Some(2));
    let path = format!("{servers}/{}", site.id(&site.second));
    assert_eq!(site.change("DELETE", &path, &[], "").0, 200);
    let before = site.server.workers();
    for worker in &before {
        testkit::program::signal_process(*worker, rustix::process::Signal::KILL).expect("it runs");
    }
    let is_new = || site.server.is_replaced(&before).then_some(());
    wait::until("another worker", Deadline::default(), is_new).expect("it is started");
    let names = || {
        let mut client = Client::try_connect(site.server.addr(0)).ok()?;
        client.send("GET /api/9/http/upstreams/back/servers HTTP/1.1\r\nHost: h\r\n\r\n");
        let response = client.try_response().ok()?;
        let servers: Value = serde_json::from_slice(&response.body).ok()?;
        Some(servers.as_array()?.iter().map(|server| server["server"].clone()).collect::<Vec<_>>())
    };
    let found = wait::until("servers", Deadline::default(), names).expect("it serves");
    assert_eq!(found, [json!(site.first.addr().to_string())]);
    assert_eq!(site.json("processes"), json!({ "respawned": 1 }));
    // A directory without write access: the change is active, and the log reports that it will be lost at a restart.
    std::fs::remove_dir_all(&folder).expect("it is ours");
    assert_eq!(added(&site.second, ""), 201);
    site.server.wait_for_log("the state of upstream \"back\" was not written to", Deadline::default());
    assert_eq!(site.json("http/upstreams/back/servers").as_array().map(Vec::len), Some(2));
}
