//! FastCGI: the same requests to this server and to nginx with one scripted application server; effects of hostile
//! application servers; and Debian's php-fpm if it is installed.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::{Arc, Mutex};

use crate::common::BINARY;
use crate::gateways::programs::{self, Program};
use testkit::fastcgi::{END_REQUEST, FastCgi, Reply, Request, STDERR, STDOUT, record};
use testkit::{Client, Deadline, Server, Setup};

const CONF: &str = r#"worker_processes 1; error_log logs/error.log info;
events { }
http {
  server_tokens off;
  fastcgi_temp_path @DATA@/fastcgi_temp;
  fastcgi_cache_path @CACHE@ keys_zone=c:1m;
  upstream php { server @APP@; keepalive 4; }
  fastcgi_param SCRIPT_NAME $fastcgi_script_name;
  fastcgi_param PATH_INFO $fastcgi_path_info;
  fastcgi_param QUERY_STRING $query_string;
  fastcgi_param REQUEST_METHOD $request_method;
  fastcgi_param CONTENT_LENGTH $content_length;
  fastcgi_param EMPTY $arg_empty if_not_empty;
  fastcgi_param HTTP_X_SET set;
  server {
    listen 127.0.0.1:0;
    access_log off;
    client_max_body_size 100m;
    client_body_temp_path @DATA@/body_temp;
    location / { fastcgi_pass @APP@; fastcgi_index index.php; }
    location /info/ { fastcgi_split_path_info ^(.+\.php)(/.*)?$; fastcgi_index i.php; fastcgi_pass php; }
    location /kept/ { fastcgi_keep_conn on; fastcgi_pass php; }
    location /variable/ { set $to php; fastcgi_pass $to; }
    location /bare/ { fastcgi_pass_request_headers off; fastcgi_pass_request_body off; fastcgi_pass php; }
    location /stream/ { fastcgi_request_buffering off; fastcgi_buffering off; fastcgi_pass php; }
    location /hide/ { fastcgi_hide_header X-One; fastcgi_pass_header X-Accel-Expires; fastcgi_pass php; }
    location /intercept/ { fastcgi_intercept_errors on; error_page 404 /page; fastcgi_pass php; }
    location = /page { internal; return 200 "page for $status\n"; }
    location /caught/ { fastcgi_catch_stderr "PHP Fatal"; fastcgi_pass php; }
    location /host/ { fastcgi_param SCRIPT_NAME $uri; fastcgi_param HTTP_HOST $http_host; fastcgi_pass php; }
    location /nohost/ { fastcgi_param SCRIPT_NAME $uri; fastcgi_param HTTP_HOST ""; fastcgi_pass php; }
    location /dead/ { fastcgi_pass 127.0.0.1:1; error_page 502 = @dead; }
    location @dead { fastcgi_pass php; }
    location /cache/ {
      fastcgi_cache c; fastcgi_cache_key $uri; fastcgi_cache_valid 200 404 1h; fastcgi_cache_bypass $arg_new;
      add_header X-Cache $upstream_cache_status always; fastcgi_pass php;
    }
  }
}
"#;

/// Responds according to the path: with all received parameters, or with the response that the path names.
fn script(request: &Request) -> Reply {
    let name = request.param("SCRIPT_NAME").unwrap_or_default();
    let text = |text: &str| Reply::script(request, text);
    match name.rsplit('/').next().unwrap_or_default() {
        "status" => text("Status: 404 Not there\r\nContent-Type: text/plain\r\nX-One: 1\r\n\r\ngone"),
        "location" => text("Location: /elsewhere\r\nContent-Type: text/plain\r\n\r\n"),
        "dated" => text(
            "Date: Sun, 22 Nov 2026 10:00:00 GMT\r\nServer: app\r\nX-Accel-Expires: 5\r\nX-Pad: p\r\n\
             Set-Cookie: a=b\r\nX-One: 1\r\nContent-Type: text/plain\r\n\r\ndated",
        ),
        "redirect" => text("X-Accel-Redirect: /page\r\nContent-Type: text/plain\r\n\r\nlost"),
        "none" => text("Status: 204 None\r\n\r\n"),
        "lf" => text("Content-Type: text/plain\n\nlines"),
        "length" => text("Content-Length: 3\r\nContent-Type: text/plain\r\n\r\nabc"),
        "fatal" => {
            let good = b"Content-Type: text/plain\r\n\r\nhalf";
            let bytes =
                [record(STDERR, b"PHP Fatal error: x\n"), record(STDOUT, good), record(END_REQUEST, &[0; 8])];
            Reply::raw(bytes.concat(), !request.keeps)
        }
        _ => {
            let mut all = String::from("Content-Type: text/plain\r\n\r\n");
            for (name, value) in &request.params {
                all.push_str(&format!("{name}={value}\n"));
            }
            let body: u64 = request.body.iter().map(|byte| u64::from(*byte)).sum();
            all.push_str(&format!("keeps {} body {} {body}\n", request.keeps, request.body.len()));
            text(&all)
        }
    }
}

fn setup() -> (FastCgi, Setup) {
    let app = FastCgi::start(script);
    let setup = Setup::new(CONF).value("APP", &app.address().to_string());
    (app, setup)
}

/// Sends a request with a fixed host; returns the response as text.
fn send_request(
    client: &mut Client,
    method: &str,
    target: &str,
    fields: &[(&str, &str)],
    body: &[u8],
) -> String {
    let length = body.len().to_string();
    let mut all = vec![("Host", "example.org")];
    all.extend(fields);
    if !body.is_empty() {
        all.push(("Content-Length", &length));
    }
    client.send([testkit::client::request_bytes(method, target, &all), body.to_vec()].concat());
    let response = if method == "HEAD" { client.response_to_head() } else { client.response() };
    let shown = ["Content-Type", "Location", "X-One", "X-Pad", "Status", "Set-Cookie", "X-Cache"];
    let fields: Vec<_> = shown.iter().filter_map(|name| Some((name, response.field(name)?))).collect();
    let has = |name: &str| response.field(name).is_some_and(|value| value != "nginx");
    let own = ("X-Accel-Expires", has("X-Accel-Expires"));
    format!("{} {fields:?} {own:?}\n{}", response.status, response.text())
}

/// Method, target and fields of a request.
type Case = (&'static str, &'static str, &'static [(&'static str, &'static str)]);

/// Requests for both servers.
const CASES: &[Case] = &[
    (
        "GET",
        "/a.php?b=c",
        &[("User-Agent", "client/1"), ("X-Set", "of the client"), ("Accept-Language", "en")],
    ),
    ("GET", "/", &[]),
    ("GET", "/sub/", &[("Cookie", "a=1"), ("Connection", "keep-alive"), ("If-None-Match", "\"x\"")]),
    ("GET", "/a%20b/c.php?empty=1", &[]),
    ("HEAD", "/a.php", &[]),
    ("DELETE", "/a.php", &[]),
    ("GET", "/info/x.php/path/info", &[]),
    ("GET", "/info/x.php", &[]),
    ("GET", "/info/dir/", &[]),
    ("GET", "/kept/a", &[]),
    ("GET", "/kept/b", &[]),
    ("GET", "/variable/a", &[]),
    ("GET", "/bare/a", &[("X-A", "b")]),
    ("GET", "/status", &[]),
    ("GET", "/location", &[]),
    ("GET", "/hide/status", &[]),
    ("GET", "/hide/dated", &[]),
    ("GET", "/dated", &[]),
    ("GET", "/redirect", &[]),
    ("GET", "/none", &[]),
    ("GET", "/lf", &[]),
    ("GET", "/length", &[]),
    ("HEAD", "/length", &[]),
    ("GET", "/intercept/status", &[]),
    ("GET", "/fatal", &[]),
    ("GET", "/caught/fatal", &[]),
    ("GET", "/dead/a", &[]),
    ("GET", "/cache/a", &[("If-None-Match", "\"x\"")]),
    ("GET", "/cache/b", &[]),
    ("GET", "/cache/b", &[]),
    ("HEAD", "/cache/b", &[]),
    ("GET", "/cache/b?new=1", &[]),
    ("GET", "/cache/status", &[]),
    ("GET", "/cache/status", &[]),
];

#[test]
fn requests_and_responses_are_the_same_as_with_nginx() {
    let (_app, setup) = setup();
    let ours = setup.start(BINARY);
    let mut client = Client::connect(ours.addr(0));
    let found: Vec<_> = CASES
        .iter()
        .map(|(method, target, fields)| send_request(&mut client, method, target, fields, b""))
        .collect();
    drop(client);
    drop(ours);
    let _ = std::fs::remove_dir_all(setup.cache());
    let Some(nginx) = setup.start_nginx() else { return };
    let mut client = Client::connect(nginx.addr(0));
    for ((method, target, fields), ours) in CASES.iter().zip(found) {
        let theirs = send_request(&mut client, method, target, fields, b"");
        // Built-in pages differ in the server's name.
        let page = |text: String| text.replace("ringroad", "nginx").replace("<hr>", "");
        // Row P43: without the client's fields, nginx 1.22 does not send HTTP_HOST.
        let page = |text: String| match target.starts_with("/bare/") {
            true => page(text).replace("HTTP_HOST=example.org\n", ""),
            false => page(text),
        };
        assert_eq!(page(ours), page(theirs), "{method} {target}");
    }
}

/// Applications build links from this parameter: if the target is an absolute URI, a `Host` field must not change it.
#[test]
fn http_host_is_the_host_that_selected_the_server() {
    let (_app, setup) = setup();
    let server = setup.start(BINARY);
    let hosts = |request: &str| {
        let mut client = Client::connect(server.addr(0));
        client.send(format!("{request}\r\nConnection: close\r\n\r\n"));
        let text = client.response().text();
        text.lines().filter(|line| line.starts_with("HTTP_HOST=")).collect::<Vec<_>>().join(" ")
    };
    let absolute = "GET http://Abs.example:81/a HTTP/1.1\r\nHost: other.example:82";
    assert_eq!(hosts(absolute), "HTTP_HOST=abs.example:81");
    assert_eq!(hosts("GET /a HTTP/1.1\r\nHost: Own.example:82"), "HTTP_HOST=own.example:82");
    assert_eq!(hosts("GET /bare/a HTTP/1.1\r\nHost: own.example"), "HTTP_HOST=own.example");
    assert_eq!(hosts("GET /a HTTP/1.0"), "", "neither the request nor the server has a name");
    assert_eq!(hosts("GET /host/a HTTP/1.1\r\nHost: Own.example:82"), "HTTP_HOST=Own.example:82");
    assert_eq!(hosts("GET /host/a HTTP/1.0"), "HTTP_HOST=");
    assert_eq!(hosts("GET /nohost/a HTTP/1.1\r\nHost: own.example"), "");
}

#[test]
fn bodies_arrive_complete_in_records() {
    let (_app, setup) = setup();
    let server = setup.start(BINARY);
    let mut client = Client::connect(server.addr(0));
    for len in [1, 8, 65_527, 65_528, 65_529, 65_536, 300_000, 3_000_000] {
        let body: Vec<u8> = (0..len).map(|index| (index % 251) as u8).collect();
        let sum: u64 = body.iter().map(|byte| u64::from(*byte)).sum();
        for target in ["/up", "/stream/up", "/kept/up"] {
            let shown = send_request(&mut client, "POST", target, &[], &body);
            assert!(shown.contains(&format!("body {len} {sum}\n")), "{target} {len}: {shown}");
            assert!(shown.contains(&format!("CONTENT_LENGTH={len}\n")), "{target} {len}: {shown}");
        }
        let shown = send_request(&mut client, "POST", "/bare/up", &[], &body);
        assert!(shown.contains("body 0 0\n"), "{shown}");
    }
    // A chunked body, whose length is unknown.
    client.send(
        "POST /stream/up HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    );
    assert!(client.response().text().contains("body 3 294\n"));
}

#[test]
fn fields_of_the_same_name_become_one_parameter() {
    let (_app, setup) = setup();
    let server = setup.start(BINARY);
    let fields = [("X-A", "1"), ("Cookie", "a=b"), ("x-a", "2"), ("Cookie", "c=d"), ("X-B", "")];
    let shown = send_request(&mut Client::connect(server.addr(0)), "GET", "/a", &fields, b"");
    assert!(shown.contains("HTTP_X_A=1, 2\n") && shown.contains("HTTP_COOKIE=a=b; c=d\n"), "{shown}");
    assert_eq!(shown.matches("HTTP_X_A").count() + shown.matches("HTTP_COOKIE").count(), 2, "{shown}");
}

#[test]
fn a_connection_is_reused_if_both_sides_allow_it() {
    let (app, setup) = setup();
    let server = setup.start(BINARY);
    let mut client = Client::connect(server.addr(0));
    for _ in 0..20 {
        assert!(send_request(&mut client, "GET", "/kept/a", &[], b"").contains("keeps true"));
    }
    assert_eq!(app.connections(), 1);
    for _ in 0..3 {
        assert!(send_request(&mut client, "GET", "/a", &[], b"").contains("keeps false"));
    }
    assert_eq!(app.connections(), 4);
}

/// A response of 2500 bytes is requested in slices; the application notes each range that it receives.
#[test]
fn slices_are_stored_and_requested_with_one_range() {
    let conf = "worker_processes 1; error_log logs/error.log info;
events { }
http {
  fastcgi_cache_path @CACHE@ keys_zone=c:1m;
  server {
    listen 127.0.0.1:0;
    slice 1k;
    fastcgi_cache c; fastcgi_cache_key $uri$slice_range; fastcgi_cache_valid 200 206 1h;
    fastcgi_param HTTP_RANGE $slice_range;
    location / { fastcgi_pass @APP@; }
  }
}
";
    let ranges = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&ranges);
    let app = FastCgi::start(move |request| {
        let named = request.params.iter().filter(|(name, _)| name == "HTTP_RANGE");
        let range = named.map(|(_, value)| value.as_str()).collect::<Vec<_>>().join(" ");
        let first: Option<usize> =
            range.strip_prefix("bytes=").and_then(|range| range.split('-').next()?.parse().ok());
        noted.lock().unwrap().push(range);
        let first = first.unwrap_or(0);
        let end = (first + 1024).min(2500);
        let text = format!(
            "Status: 206 Partial Content\r\nContent-Range: bytes {first}-{}/2500\r\nContent-Length: {}\r\n\
             Content-Type: text/plain\r\n\r\n{}",
            end - 1,
            end - first,
            "x".repeat(end - first)
        );
        Reply::script(request, text)
    });
    let server = Setup::new(conf).value("APP", &app.address().to_string()).start(BINARY);
    let mut client = Client::connect(server.addr(0));
    let received = |expected: &[&str]| {
        assert_eq!(std::mem::take(&mut *ranges.lock().unwrap()), expected);
    };
    let part = client.request("GET", "/a", &[("Range", "bytes=1500-1599")]);
    assert_eq!((part.status, part.body.len()), (206, 100));
    received(&["bytes=1024-2047"]);
    let complete = client.get("/a");
    assert_eq!((complete.status, complete.body.len()), (200, 2500));
    received(&["bytes=0-1023", "bytes=2048-3071"]);
    assert_eq!(client.get("/a").body.len(), 2500);
    received(&[]);
}

#[test]
fn messages_of_the_application_are_written_to_the_error_log() {
    let (_app, setup) = setup();
    let server = setup.start(BINARY);
    assert!(send_request(&mut Client::connect(server.addr(0)), "GET", "/fatal", &[], b"").starts_with("200"));
    let line = "FastCGI sent in stderr: \"PHP Fatal error: x\" while reading response header from upstream";
    server.wait_for_log(line, Deadline::default());
}

/// Bytes from servers that violate the protocol, with the message in the log.
fn hostile() -> Vec<(Vec<u8>, &'static str)> {
    let head = || record(STDOUT, b"Content-Type: a\r\n\r\n");
    vec![
        (b"HTTP/1.1 200 OK\r\n\r\nhello".to_vec(), "unsupported FastCGI protocol version"),
        (vec![1, 6, 0, 2, 0, 0, 0, 0], "unexpected FastCGI request id"),
        (vec![1, 11, 0, 1, 0, 0, 0, 0], "unexpected FastCGI record"),
        (record(END_REQUEST, &[0; 8]), "prematurely closed FastCGI stdout"),
        (record(STDOUT, b"no header\r\nat all\x00\r\n\r\n"), "upstream sent invalid header"),
        (record(STDOUT, b"Status: abc\r\n\r\n"), "upstream sent invalid status"),
        (record(STDOUT, &b"X-Long: aaaaaaaaaaaaaaa\r\n".repeat(400)), "upstream sent too big header"),
        (Vec::new(), "prematurely closed connection"),
        (head()[..5].to_vec(), "prematurely closed connection"),
        ([record(STDOUT, b"Content-Length: 9\r\n\r\nabc"), record(END_REQUEST, &[0; 8])].concat(), "stdout"),
        (record(STDERR, b"x").repeat(3), "FastCGI sent in stderr"),
    ]
}

#[test]
fn hostile_applications_cause_a_502_and_a_log_line() {
    for (bytes, words) in hostile() {
        let sent = bytes.clone();
        let app = FastCgi::start(move |_| Reply::raw(sent.clone(), true));
        let setup = Setup::new(CONF).value("APP", &app.address().to_string());
        let server = setup.start(BINARY);
        let mut client = Client::connect(server.addr(0));
        for target in ["/a", "/cache/a", "/stream/a", "/kept/a"] {
            let shown = send_request(&mut client, "GET", target, &[], b"");
            assert!(shown.starts_with("502"), "{target} {bytes:?}: {shown}");
        }
        server.wait_for_log(words, Deadline::default());
        assert!(
            setup.cache_files().iter().all(|path| !path.to_string_lossy().contains("entry")),
            "{bytes:?}"
        );
    }
}

/// A body that is truncated after its header section: the client detects that it is incomplete.
#[test]
fn a_truncated_response_is_detected_by_the_client() {
    for bytes in [
        record(STDOUT, b"Content-Type: a\r\n\r\nhalf of it"),
        [record(STDOUT, b"Content-Type: a\r\n\r\nhalf of it"), vec![1, 99, 0, 1, 0, 0, 0, 0]].concat(),
    ] {
        let sent = bytes.clone();
        let app = FastCgi::start(move |_| Reply::raw(sent.clone(), true));
        let setup = Setup::new(CONF).value("APP", &app.address().to_string());
        let server = setup.start(BINARY);
        for target in ["/a", "/stream/a", "/cache/a"] {
            let mut client = Client::connect(server.addr(0));
            client.send(testkit::client::request_bytes("GET", target, &[]));
            // A failure that is detected before the header section was sent is a 502.
            let is_seen = client.try_response().map_or(true, |response| response.status == 502);
            assert!(is_seen, "{target} {bytes:?}");
        }
    }
}

/// A flood of messages fills neither memory nor the log, and the response after them is still read.
#[test]
fn the_response_after_a_flood_of_messages_is_read() {
    let app = FastCgi::start(|request| {
        let flood = record(STDERR, &[b'e'; 60_000]).repeat(200);
        let end = [record(STDOUT, b"Content-Type: a\r\n\r\nfine"), record(END_REQUEST, &[0; 8])].concat();
        Reply::raw([flood, end].concat(), !request.keeps)
    });
    let setup = Setup::new(CONF).value("APP", &app.address().to_string());
    let server = setup.start(BINARY);
    let shown = send_request(&mut Client::connect(server.addr(0)), "GET", "/a", &[], b"");
    assert!(shown.starts_with("200") && shown.ends_with("fine"), "{shown}");
    assert!(server.error_log().len() < 1 << 20, "{}", server.error_log().len());
}

/// Starts Debian's php-fpm with its status page at `/fpm-status`.
fn php(folder: &Path) -> Option<Program> {
    let (path, socket) = (folder.join("php.conf"), folder.join("php.sock"));
    let folder = folder.display();
    let conf = format!(
        "[global]\nerror_log = {folder}/php-errors.log\ndaemonize = no\n[www]\nlisten = {folder}/php.sock\n\
         user = nobody\ngroup = nogroup\npm = static\npm.max_children = 2\ncatch_workers_output = yes\npm.status_path = /fpm-status\n\
         php_admin_value[upload_max_filesize] = 20M\nphp_admin_value[post_max_size] = 20M\nphp_admin_flag[log_errors] = on\n\
         php_admin_value[display_errors] = off\n"
    );
    std::fs::write(&path, conf).expect("the directory is writable");
    programs::php_fpm(&path, &socket)
}

const FRONT_CONTROLLER: &str = r#"<?php
if (isset($_GET['fatal'])) { undefined_function(); }
if (isset($_GET['log'])) { error_log('words for the log'); }
if (isset($_GET['slow'])) { header('Content-Type: text/plain'); for ($i = 0; $i < 3; $i++) { echo "$i\n"; flush(); usleep(1000); } exit; }
if (isset($_GET['code'])) { http_response_code((int)$_GET['code']); }
header('X-Method: ' . $_SERVER['REQUEST_METHOD']);
echo $_SERVER['SCRIPT_NAME'], ' ', $_SERVER['PATH_INFO'] ?? '', ' ', $_SERVER['QUERY_STRING'], ' ',
  strlen(file_get_contents('php://input')), ' ', md5(file_get_contents('php://input'));
"#;

fn php_site(folder: &Path) -> Server {
    let data = folder.display();
    let conf = format!(
        "worker_processes 1; error_log logs/error.log info; events {{ }} http {{ client_max_body_size 20m; server {{ \
         listen 127.0.0.1:0; root {data}/site; index index.php; \
         location / {{ try_files $uri $uri/ /index.php$is_args$args; }} \
         location ~ [^/]\\.php(/|$) {{ \
           fastcgi_split_path_info ^(.+?\\.php)(/.*)$; \
           if (!-f $document_root$fastcgi_script_name) {{ return 404; }} \
           fastcgi_param SCRIPT_FILENAME $document_root$fastcgi_script_name; fastcgi_param SCRIPT_NAME $fastcgi_script_name; \
           fastcgi_param PATH_INFO $fastcgi_path_info; fastcgi_param QUERY_STRING $query_string; \
           fastcgi_param REQUEST_METHOD $request_method; fastcgi_param CONTENT_TYPE $content_type; \
           fastcgi_param CONTENT_LENGTH $content_length; fastcgi_index index.php; fastcgi_pass unix:{data}/php.sock; }} \
         location = /fpm-status {{ fastcgi_param SCRIPT_NAME /fpm-status; fastcgi_param SCRIPT_FILENAME /fpm-status; \
           fastcgi_param REQUEST_METHOD GET; fastcgi_pass unix:{data}/php.sock; }} \
         }} }}"
    );
    Server::builder(BINARY).conf(&conf).start()
}

#[test]
fn a_front_controller_of_php_works() {
    let setup = Setup::new(CONF);
    let folder = setup.data();
    let Some(_php) = php(folder) else { return };
    std::fs::create_dir(folder.join("site")).expect("a new directory");
    let open = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("it is ours");
    };
    open(&folder.join("site"), 0o755);
    std::fs::write(folder.join("site/index.php"), FRONT_CONTROLLER).expect("the directory is writable");
    open(&folder.join("site/index.php"), 0o644);
    let server = php_site(folder);
    let mut client = Client::connect(server.addr(0));
    let mut get = |target: &str| {
        let response = client.get(target);
        (response.status, response.text())
    };
    assert_eq!(get("/article/7?a=b"), (200, "/index.php  a=b 0 d41d8cd98f00b204e9800998ecf8427e".to_owned()));
    assert_eq!(get("/index.php/more?x").1, "/index.php /more x 0 d41d8cd98f00b204e9800998ecf8427e");
    assert_eq!(get("/none.php").0, 404);
    assert_eq!(get("/?code=418").0, 418);
    assert_eq!(get("/?slow=1"), (200, "0\n1\n2\n".to_owned()));
    assert_eq!(get("/?fatal=1").0, 500);
    assert!(get("/fpm-status").1.contains("pool:"), "the status page");
    get("/?log=1");
    let upload = vec![b'u'; 10 << 20];
    let fields =
        [("Content-Length", upload.len().to_string()), ("Content-Type", "application/octet-stream".into())];
    let fields = fields.each_ref().map(|(name, value)| (*name, value.as_str()));
    client.send([testkit::client::request_bytes("POST", "/upload", &fields), upload].concat());
    let text = client.response().text();
    assert!(text.starts_with("/index.php   10485760 "), "{text}");
    server.wait_for_log("FastCGI sent in stderr: \"PHP message: words for the log", Deadline::default());
    server.wait_for_log("undefined_function", Deadline::default());
}
