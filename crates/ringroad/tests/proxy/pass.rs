//! Forwarded requests for which the nginx of `side_by_side` is too old, or for which this server guarantees more than nginx.

use crate::common;
use crate::common::BINARY;
use testkit::origin::{At, Do, Origin, OriginRequest, Reply};
use testkit::response::Head;
use testkit::{Client, Content, Deadline, Gate, Response, Server, Setup, TempDir};

/// Starts a server in front of an origin, with these locations.
fn start(origin: &Origin, locations: &str) -> (Setup, Server) {
    let setup = Setup::new(&common::one_server("", locations)).origin(origin);
    let server = setup.start(BINARY);
    (setup, server)
}

fn get(server: &Server, target: &str) -> Response {
    common::client(server).get(target)
}

/// Starts an origin that responds with the received request.
fn mirror() -> Origin {
    Origin::start(|request| Reply::text(shown(request)))
}

fn shown(request: &OriginRequest) -> String {
    let lines: Vec<_> = request.lines.iter().map(|line| String::from_utf8_lossy(line)).collect();
    format!("{} {} {}\n{}\n", request.method, request.target, request.version, lines.join("\n"))
}

#[test]
fn client_input_cannot_inject_lines_into_the_request() {
    let origin = mirror();
    let (_setup, server) = start(
        &origin,
        "location ~ ^/value/(?s)(.*)$ { proxy_set_header X-Value \"<$1>\"; proxy_pass http://@ORIGIN@; }
         location ~ ^/uri/(?s)(.*)$ { proxy_pass http://@ORIGIN@/$1; }
         location ~ ^/method/(?s)(.*)$ { proxy_method \"GET$1\"; proxy_pass http://@ORIGIN@; }",
    );
    let attack = "a%0d%0aEvil:%201%0d%0a%0d%0aGET%20/";
    let text = get(&server, &format!("/value/{attack}")).text();
    assert!(text.contains("\nX-Value: <a  Evil: 1    GET />\n"), "{text}");
    let text = get(&server, &format!("/uri/{attack}")).text();
    assert!(text.starts_with("GET /a%0D%0AEvil:%201%0D%0A%0D%0AGET%20/ HTTP/1.1\n"), "{text}");
    assert_eq!(get(&server, "/method/%0d%0aX:%201").status, 500);
    server.wait_for_log("invalid method \"GET\\x0D\\x0AX: 1\" for an upstream", Deadline::default());
    assert_eq!(origin.stats().requests, 2);
}

#[test]
fn exactly_one_host_is_sent_as_the_first_field() {
    let origin = mirror();
    let (_setup, server) = start(
        &origin,
        "location / { proxy_set_header X-A a; proxy_set_header Host one; proxy_set_header host $arg_h; proxy_pass http://@ORIGIN@; }
         location /first/ { proxy_set_header X-A a; proxy_pass http://@ORIGIN@; }
         location /own/ { proxy_set_header Host $http_host; proxy_pass http://@ORIGIN@; }
         location /none/ { proxy_set_header Host ''; proxy_pass http://@ORIGIN@; }
         location /old/ { proxy_http_version 1.0; proxy_set_header Host $http_host; proxy_pass http://@ORIGIN@; }",
    );
    let place = origin.addr();
    let text = |request: &str| {
        let mut client = common::client(&server);
        client.send(format!("{request}\r\n\r\n"));
        client.response().text()
    };
    let default = format!("Host: {place}");
    for (request, host) in [
        ("GET /?h=two HTTP/1.1\r\nHost: a", "Host: two"),
        ("GET / HTTP/1.1\r\nHost: a", &default),
        ("GET /first/ HTTP/1.1\r\nHost: a", &default),
        ("GET /own/ HTTP/1.1\r\nHost: A:1", "Host: A:1"),
        ("GET /own/ HTTP/1.0", &default),
        ("GET /none/ HTTP/1.1\r\nHost: a", &default),
        ("GET /old/ HTTP/1.1\r\nHost: a", "Host: a"),
    ] {
        let text = text(request);
        assert_eq!(text.lines().nth(1), Some(host), "{request}: {text}");
        assert_eq!(text.to_lowercase().matches("\nhost:").count(), 1, "{request}: {text}");
    }
    assert!(!text("GET /old/ HTTP/1.0").contains("Host"), "HTTP/1.0 requests need no Host");
}

#[test]
fn unix_sockets_and_ipv6_addresses_in_brackets_work() {
    let folder = TempDir::new("upstream");
    std::fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .expect("it is ours");
    let path = folder.path().join("socket");
    let origin = Origin::start_unix(&path, |request| Reply::text(shown(request)));
    let locations = "location /plain/ { proxy_pass http://@ORIGIN@; }
         location /uri/ { proxy_pass http://@ORIGIN@:/other/; }
         location /var/ { set $to @ORIGIN@; proxy_pass http://$to:/fixed$is_args$args; }";
    let (_setup, server) = start(&origin, locations);
    for (target, expected) in [
        ("/plain/a?b", "GET /plain/a?b HTTP/1.1\nHost: localhost\n"),
        ("/uri/a?b", "GET /other/a?b HTTP/1.1\nHost: localhost\n"),
        ("/var/a?b", "GET /fixed?b HTTP/1.1\nHost: localhost\n"),
    ] {
        let text = get(&server, target).text();
        assert_eq!(text.trim_end(), expected.trim_end(), "{target}");
    }
}

/// Returns the heads of interim responses and of the final response.
fn heads(client: &mut Client) -> Vec<Head> {
    let mut heads = Vec::new();
    loop {
        let head = client.head();
        let is_last = head.status >= 200;
        heads.push(head);
        if is_last {
            return heads;
        }
    }
}

#[test]
fn early_hints_are_passed_on_where_configured() {
    let origin = Origin::start(|_| {
        Reply::text("x")
            .interim(103, &[("Link", "</a.css>; rel=preload"), ("Server", "origin"), ("X-Hint", "1")])
    });
    let (_setup, server) = start(
        &origin,
        "location / { proxy_pass http://@ORIGIN@; }
         location /hints { early_hints 0 $arg_hints; proxy_hide_header X-Hint; proxy_pass http://@ORIGIN@; }",
    );
    let statuses = |target: &str| {
        let mut client = common::client(&server);
        client.send(format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n"));
        heads(&mut client)
    };
    for target in ["/", "/hints", "/hints?hints=0"] {
        assert_eq!(statuses(target).len(), 1, "{target}");
    }
    let heads = statuses("/hints?hints=1");
    let found: Vec<u16> = heads.iter().map(|head| head.status).collect();
    assert_eq!(found, [103, 200]);
    assert_eq!(heads[0].field("link"), Some("</a.css>; rel=preload"));
    assert_eq!((heads[0].field("server"), heads[0].field("x-hint")), (None, None));
    // An HTTP/1.0 client gets no interim response.
    let mut client = common::client(&server);
    client.send("GET /hints?hints=1 HTTP/1.0\r\n\r\n");
    assert_eq!(client.head().status, 200);
}

/// RFC 9112 section 6.3: a 1xx ends with its head, whatever its fields announce. An empty hint is not passed on, as in nginx.
#[test]
fn an_interim_response_that_announces_a_body_does_not_cost_the_final_response() {
    let interims = [
        "100 Continue\r\nContent-Length: 0",
        "102 Processing\r\nContent-Length: 5",
        "103 Early Hints\r\nContent-Length: 5\r\nContent-Length: 6\r\nLink: </a>",
        "103 Early Hints\r\nTransfer-Encoding: chunked\r\nLink: </a>",
        "103 Early Hints\r\nContent-Length: x\r\nTransfer-Encoding: gzip\r\nLink: </a>",
        "103 Early Hints\r\nContent-Length: 0",
        "103 Early Hints\r\nServer: hidden",
        "103 Early Hints",
    ];
    let origin = Origin::start(move |request| {
        let number: usize = request.path()[1..].parse().expect("a number");
        let interim = format!("HTTP/1.1 {}\r\n\r\n", interims[number]);
        Reply::text("final").before(interim)
    });
    let (_setup, server) = start(&origin, "location / { early_hints 1; proxy_pass http://@ORIGIN@; }");
    for (number, interim) in interims.iter().enumerate() {
        let mut client = common::client(&server);
        client.send(format!("GET /{number} HTTP/1.1\r\nHost: a\r\n\r\n"));
        let heads = heads(&mut client);
        let hints: Vec<u16> = heads.iter().map(|head| head.status).filter(|status| *status == 103).collect();
        assert_eq!(heads.last().map(|head| head.status), Some(200), "{interim}");
        assert_eq!(hints.len(), usize::from(interim.contains("Link")), "{interim}");
        for head in &heads[..heads.len() - 1] {
            assert_eq!((head.field("content-length"), head.field("transfer-encoding")), (None, None));
        }
    }
}

/// Interim responses are optional: the upstream does not wait for a client that does not read them.
#[test]
fn early_hints_do_not_wait_for_a_client_that_does_not_read() {
    const HINTS: usize = 60;
    let origin = Origin::start(|_| {
        let link = "x".repeat(3000);
        (0..HINTS).fold(Reply::text("final"), |reply, _| reply.interim(103, &[("Link", link.as_str())]))
    });
    let text = common::one_server(
        "",
        "location / { early_hints 1; proxy_read_timeout 10s; proxy_pass http://@ORIGIN@; }",
    );
    let narrow = text.replacen("listen 127.0.0.1:0", "listen 127.0.0.1:0 sndbuf=16k", 1);
    let server = Setup::new(&narrow).origin(&origin).start(BINARY);
    let mut client = Client::connect_narrow(server.addr(0).tcp(), 4096);
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    let log = server.wait_for_access_log(1, Deadline::default());
    assert!(log.contains("\" 200 "), "{log}");
    let heads = heads(&mut client);
    assert!(heads.len() <= HINTS, "{}", heads.len());
    assert_eq!(heads.last().map(|head| head.status), Some(200));
}

#[test]
fn connection_fields_are_not_passed_on() {
    let origin = Origin::start(|_| {
        Reply::text("x")
            .header("Connection", "X-Hop, keep-alive")
            .header("X-Hop", "1")
            .header("Upgrade", "h2c")
            .header("X-End", "1")
    });
    let (_setup, server) = start(&origin, "location / { proxy_pass http://@ORIGIN@; }");
    let response = get(&server, "/");
    let fields = ["x-hop", "upgrade", "x-end"].map(|name| response.field(name));
    assert_eq!(fields, [None, None, Some("1")]);
}

#[test]
fn upstream_responses_are_compressed_and_rate_limited() {
    let origin = Origin::start(|_| {
        Reply::text("word ".repeat(100))
            .header("Content-Type", "text/html")
            .header("ETag", "\"e\"")
            .header("X-Accel-Limit-Rate", "100000")
    });
    let (_setup, server) =
        start(&origin, "location / { gzip on; add_header X-Rate $limit_rate; proxy_pass http://@ORIGIN@; }");
    let mut client = common::client(&server);
    let response = client.request("GET", "/", &[("Accept-Encoding", "gzip")]);
    let fields =
        ["content-encoding", "etag", "x-rate", "x-accel-limit-rate"].map(|name| response.field(name));
    assert_eq!(fields, [Some("gzip"), Some("W/\"e\""), Some("100000"), None]);
}

#[test]
fn responses_are_stored_as_files() {
    use std::os::unix::fs::MetadataExt;
    let origin = Origin::start(|request| match request.path() {
        "/broken" => Reply::text("half").declared_length(100).closing(),
        "/missing" => Reply::new(404).body("none"),
        _ => Reply::text("kept").header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT"),
    });
    let (setup, server) = start(
        &origin,
        "proxy_temp_path @DATA@/temp;
         location /store/ { root @DATA@; proxy_store on; proxy_store_access group:rw all:r;
           error_page 404 = @fetch; }
         location @fetch { root @DATA@; proxy_store on; proxy_store_access group:rw all:r; proxy_pass http://@ORIGIN@; }
         location /at/ { proxy_store @DATA@/other$uri; proxy_pass http://@ORIGIN@/; }",
    );
    let seen = |path: &str| setup.data().join(path);
    let appears = |path: &str| {
        let path = seen(path);
        testkit::wait::until("a stored file", Deadline::default(), || std::fs::metadata(&path).ok())
            .expect("it is stored")
    };
    assert_eq!(get(&server, "/store/deep/a").text(), "kept");
    let stat = appears("store/deep/a");
    assert_eq!((stat.mode() & 0o777, stat.mtime()), (0o664, 1_767_225_600));
    assert_eq!(get(&server, "/store/deep/a").text(), "kept");
    assert_eq!(origin.stats().requests, 1, "the second time it is a file");
    assert_eq!(get(&server, "/at/b").text(), "kept");
    appears("other/at/b");
    // Only a complete response with status 200 becomes a file; these files would exist by the time that the last one is
    // stored.
    assert_eq!(get(&server, "/at/missing").status, 404);
    let mut client = common::client(&server);
    client.send("GET /at/broken HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(client.try_response().map_or(true, |response| response.status == 502), "a truncated response");
    assert_eq!(get(&server, "/at/c").text(), "kept");
    appears("other/at/c");
    assert!(!seen("other/at/missing").exists() && !seen("other/at/broken").exists());
}

/// Waits for a stored file and checks that it is the complete response.
fn assert_stored(path: &std::path::Path, content: Content) {
    // The file has its name only when it is complete.
    let read = || std::fs::read(path).ok();
    let bytes = testkit::wait::until("a stored file", Deadline::default(), read).expect("it is stored");
    content.assert_body(&bytes);
}

/// A rename cannot cross file systems.
#[test]
fn responses_are_stored_across_file_systems() {
    use std::os::unix::fs::MetadataExt;
    let Some(temp) = TempDir::on_other_filesystem("temp") else { return };
    let content = Content::new(5, 700_000);
    let origin = Origin::start(move |_| {
        Reply::ok().content(content).header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
    });
    let locations = "proxy_temp_path @TEMP@; proxy_store @DATA@/kept$uri; proxy_store_access group:rw all:r;
         location / { proxy_pass http://@ORIGIN@; }";
    let setup = Setup::new(&common::one_server("", locations))
        .origin(&origin)
        .value("TEMP", &temp.path().display().to_string());
    let server = setup.start(BINARY);
    content.assert_body(&get(&server, "/deep/a").body);
    let path = setup.data().join("kept/deep/a");
    assert_stored(&path, content);
    let stat = std::fs::metadata(&path).expect("it is stored");
    assert_eq!((stat.mode() & 0o777, stat.mtime()), (0o664, 1_767_225_600));
    // A second response replaces the first one, and no other file remains in either directory.
    content.assert_body(&get(&server, "/deep/a").body);
    let left = |folder: &std::path::Path| std::fs::read_dir(folder).map_or(0, Iterator::count);
    let is_clean = || (left(temp.path()) == 0 && left(path.parent()?) == 1).then_some(());
    testkit::wait::until("the end of the temporary files", Deadline::default(), is_clean).expect("they go");
}

#[test]
fn a_response_is_not_stored_outside_the_root_through_a_link() {
    let content = Content::new(8, 1000);
    let origin = Origin::start(move |_| Reply::ok().content(content));
    for rule in ["root_beneath on", "disable_symlinks on from=@DATA@/site"] {
        let (setup, server) = start(
            &origin,
            &format!(
                "proxy_temp_path @DATA@/temp; root @DATA@/site; {rule};
                 location / {{ proxy_store on; proxy_pass http://@ORIGIN@; }}"
            ),
        );
        let (site, outside) = (setup.data().join("site"), setup.data().join("outside"));
        for directory in [&site, &outside] {
            use std::os::unix::fs::PermissionsExt;
            std::fs::create_dir_all(directory).expect("a directory");
            // The worker may run as another user.
            let all = std::fs::Permissions::from_mode(0o777);
            std::fs::set_permissions(directory, all).expect("its permissions");
        }
        std::os::unix::fs::symlink(&outside, site.join("out")).expect("a link");
        for path in ["/out/a", "/out/deep/a", "/in/deep/a"] {
            content.assert_body(&get(&server, path).body);
        }
        assert_stored(&site.join("in/deep/a"), content);
        assert_eq!(std::fs::read_dir(&outside).map_or(0, Iterator::count), 0, "{rule}");
    }
}

/// Small bodies of other responses are sent together with their header section.
#[test]
fn a_small_response_is_stored_after_its_client_has_disconnected() {
    let gate = Gate::new();
    let held = gate.clone();
    let content = Content::new(7, 1000);
    let origin = Origin::start(move |_| Reply::ok().content(content).wait_at(300, &held));
    let (setup, server) = start(
        &origin,
        "proxy_temp_path @DATA@/temp;
         location /at/ { proxy_store @DATA@/kept$uri; proxy_pass http://@ORIGIN@; }",
    );
    let mut client = common::client(&server);
    client.send("GET /at/small HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.head().status, 200);
    gate.wait_reached();
    drop(client);
    server.wait_for_access_log(1, Deadline::default());
    gate.open();
    assert_stored(&setup.data().join("kept/at/small"), content);
}

#[test]
fn an_empty_response_is_stored_as_an_empty_file() {
    let origin = Origin::start(|_| Reply::ok().body(""));
    let (setup, server) = start(
        &origin,
        "proxy_temp_path @DATA@/temp;
         location /at/ { proxy_store @DATA@/kept$uri; proxy_pass http://@ORIGIN@; }",
    );
    assert_eq!(common::client(&server).request("HEAD", "/at/head", &[]).status, 200);
    assert_eq!(get(&server, "/at/a").text(), "");
    let path = setup.data().join("kept/at/a");
    let length = || std::fs::metadata(&path).ok().map(|file| file.len());
    assert_eq!(testkit::wait::until("a stored file", Deadline::default(), length).ok(), Some(0));
    assert!(!setup.data().join("kept/at/head").exists());
}

#[test]
fn an_empty_body_becomes_an_empty_file_with_client_body_in_file_only() {
    let origin = Origin::start(|request| Reply::text(request.header("x-file").unwrap_or_default()));
    let (_setup, server) = start(
        &origin,
        "client_body_in_file_only on; client_body_temp_path @DATA@/temp;
         proxy_set_header X-File $request_body_file;
         location / { proxy_pass http://@ORIGIN@; }
         location /streamed/ { proxy_request_buffering off; proxy_pass http://@ORIGIN@; }",
    );
    let post =
        |target: &str| common::client(&server).request("POST", target, &[("Content-Length", "0")]).text();
    let path = post("/");
    assert_eq!(std::fs::read(&path).ok(), Some(Vec::new()), "{path}");
    assert_eq!(post("/streamed/"), "");
    assert_eq!(get(&server, "/").text(), "", "a request without a body");
}

#[test]
fn an_unbuffered_response_is_not_stored_as_a_file() {
    let origin = Origin::start(|request| match request.path() {
        "/at/field" => Reply::text("x").header("X-Accel-Buffering", "no"),
        _ => Reply::text("x"),
    });
    let (setup, server) = start(
        &origin,
        "proxy_temp_path @DATA@/temp; proxy_store @DATA@/kept$uri;
         location /at/ { proxy_pass http://@ORIGIN@; }
         location /at/off/ { proxy_buffering off; proxy_pass http://@ORIGIN@; }",
    );
    for target in ["/at/field", "/at/off/a", "/at/last"] {
        assert_eq!(get(&server, target).text(), "x");
    }
    // The other copies would have been begun before this one.
    let stored = |name: &str| std::fs::read(setup.data().join("kept/at").join(name)).ok();
    let last = testkit::wait::until("a stored file", Deadline::default(), || stored("last"));
    assert_eq!(last.expect("it is stored"), b"x");
    assert_eq!(["field", "off/a"].map(stored), [None, None]);
}

/// At this rate the body would take an hour.
#[test]
fn limit_rate_does_not_apply_to_unbuffered_responses() {
    let content = Content::new(8, 3_000);
    let origin = Origin::start(move |_| Reply::ok().content(content).header("X-Accel-Limit-Rate", "1"));
    let (_setup, server) =
        start(&origin, "limit_rate 1; location / { proxy_buffering off; proxy_pass http://@ORIGIN@; }");
    content.assert_body(&get(&server, "/").body);
}

/// As in nginx: a begun response is stored for the next client.
#[test]
fn a_response_is_stored_after_its_client_has_disconnected() {
    let gate = Gate::new();
    let held = gate.clone();
    let content = Content::new(6, 900_000);
    let origin = Origin::start(move |request| {
        let reply = Reply::ok().content(content).wait_at(300_000, &held);
        if request.path() == "/at/broken" { reply.at(At::Body(600_000), Do::Close) } else { reply }
    });
    let (setup, server) = start(
        &origin,
        "proxy_temp_path @DATA@/temp;
         location /at/ { proxy_store @DATA@/kept$uri; proxy_pass http://@ORIGIN@; }",
    );
    for (number, target) in ["/at/broken", "/at/whole"].into_iter().enumerate() {
        let mut client = common::client(&server);
        client.send(format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n"));
        client.read_exact(1000);
        gate.wait_reached_by(number as u64 + 1);
        drop(client);
    }
    server.wait_for_access_log(2, Deadline::default());
    gate.open();
    assert_stored(&setup.data().join("kept/at/whole"), content);
    origin.wait_for("the end of all", |stats| stats.connections_open == 0);
    assert!(!setup.data().join("kept/at/broken").exists(), "an incomplete response is not stored");
    let _ = origin.take_faults();
}

/// As in nginx: the client has its response, and may leave before the action has ended.
#[test]
fn a_post_action_continues_after_its_client_has_disconnected() {
    for cache in ["", "proxy_cache one;"] {
        let gate = Gate::new();
        let held = gate.clone();
        let origin = Origin::start(move |_| Reply::text("done").wait_first(&held));
        let text = common::one_server(
            "log_format action '$uri $status $upstream_status'; access_log logs/access.log action;
             proxy_cache_path @CACHE@ keys_zone=one:1m;",
            &format!(
                "location / {{ post_action /action; return 200 first; }}
                 location = /action {{ {cache} proxy_pass http://@ORIGIN@; }}
                 location = /other {{ access_log off; return 200 other; }}"
            ),
        );
        let server = Setup::new(&text).origin(&origin).start(BINARY);
        let mut client = common::client(&server);
        assert_eq!(client.get("/").text(), "first");
        gate.wait_reached_by(1);
        drop(client);
        // The thread has seen the disconnection when it has served other connections.
        for _ in 0..3 {
            assert_eq!(get(&server, "/other").text(), "other");
        }
        gate.open();
        assert_eq!(server.wait_for_access_log(1, Deadline::default()), "/action 200 200\n", "{cache}");
    }
}
