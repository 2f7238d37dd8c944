//! Upstream responses and their requests where nginx has a special rule: the upstream's fields in place of this
//! server's, charsets, internal redirects, trailers, and the related variables.
//!
//! Each expectation was compared with nginx 1.31.5. Logging of upstreams in general is tested in `proxy/variables.rs`.

use crate::common::BINARY;
use testkit::origin::{Origin, OriginRequest, Reply};
use testkit::{Client, Deadline, Gate, Response, Server, Setup};

/// Starts a server with these directives in `http` and in its server block.
fn start(origin: &Origin, http: &str, locations: &str) -> Server {
    let text = format!(
        "worker_processes 1; error_log logs/error.log info;
events {{ }}
http {{
  {http}
  server {{ listen 127.0.0.1:0; {locations} location / {{ proxy_pass http://@ORIGIN@; }} }}
}}
"
    );
    Setup::new(&text).origin(origin).start(BINARY)
}

fn send_request(server: &Server, target: &str, fields: &[(&str, &str)]) -> Response {
    Client::connect(server.addr(0)).request("GET", target, fields)
}

fn get(server: &Server, target: &str) -> Response {
    send_request(server, target, &[])
}

#[test]
fn an_include_is_converted_without_a_charset_of_its_location() {
    let origin = Origin::start(|request| match request.path() {
        "/page" => Reply::text("<!--# include virtual=\"/part\" -->").header("Content-Type", "text/html"),
        _ => Reply::text(b"\xe1!").header("Content-Type", "text/html; charset=koi8-r"),
    });
    let server = start(
        &origin,
        "charset_map koi8-r utf-8 { E1 D090; }",
        "location = /page { ssi on; charset utf-8; proxy_pass http://@ORIGIN@; }",
    );
    let page = get(&server, "/page");
    assert_eq!(page.field("Content-Type"), Some("text/html; charset=utf-8"));
    assert_eq!(page.text(), "\u{410}!");
    // The client's requests are not converted.
    assert_eq!(get(&server, "/part").body, b"\xe1!");
}

/// Sends a request whose body arrives together with its head.
fn post(server: &Server, target: &str, body: &str) -> Response {
    let mut client = Client::connect(server.addr(0));
    let length = body.len();
    client.send(format!("POST {target} HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n{body}"));
    client.response()
}

#[test]
fn server_and_date_can_be_passed_on_from_the_upstream() {
    let origin = Origin::start(|request| match request.path() {
        "/both" => {
            Reply::text("x").header("Server", "theirs").header("Date", "Tue, 01 Jan 2019 00:00:00 GMT")
        }
        _ => Reply::text("x"),
    });
    let server = start(
        &origin,
        "log_format shown '$sent_http_server|$sent_http_date'; access_log logs/access.log shown;",
        "proxy_pass_header Server; proxy_pass_header Date;",
    );
    let both = get(&server, "/both");
    assert_eq!(both.head.all("server").collect::<Vec<_>>(), ["theirs"]);
    assert_eq!(both.head.all("date").collect::<Vec<_>>(), ["Tue, 01 Jan 2019 00:00:00 GMT"]);
    // RFC 9110 section 6.6.1: a message is forwarded with a date.
    let none = get(&server, "/none");
    assert_eq!((none.head.all("server").count(), none.head.all("date").count()), (0, 1));
    let log = server.wait_for_access_log(2, Deadline::default());
    assert_eq!(log.lines().collect::<Vec<_>>(), ["theirs|Tue, 01 Jan 2019 00:00:00 GMT", "-|-"]);
}

#[test]
fn a_charset_of_an_upstream_is_converted() {
    let origin = Origin::start(|request| {
        if let Some(charset) = request.path().strip_prefix("/unnamed/") {
            return Reply::text("x").header("Content-Type", "text/html").header("X-Accel-Charset", charset);
        }
        let charset = request.path()[1..].to_owned();
        let reply = Reply::text("\u{410}!").header("Content-Type", "text/html; charset=utf-8");
        reply.header("X-Accel-Charset", charset)
    });
    let map = "charset_map koi8-r utf-8 { E1 D090; }";
    let server = start(
        &origin,
        map,
        "location /koi8-r { charset utf-8; proxy_pass http://@ORIGIN@; }
         location /unnamed/ { charset utf-8; proxy_pass http://@ORIGIN@; }",
    );
    let seen = |target: &str| {
        let response = get(&server, target);
        (response.field("content-type").unwrap_or_default().to_owned(), response.body)
    };
    let html = |charset: &str| format!("text/html; charset={charset}");
    assert_eq!(seen("/koi8-r"), (html("koi8-r"), b"\xe1!".to_vec()), "it takes precedence over the location");
    assert_eq!(seen("/utf-8"), (html("utf-8"), "\u{410}!".into()));
    assert_eq!(seen("/other"), (html("utf-8"), "\u{410}!".into()), "an unknown charset is not used");
    server.wait_for_log("unknown charset \"other\" to override", Deadline::default());
    // As in nginx, the location's charset is not used either.
    assert_eq!(seen("/unnamed/off").0, "text/html");
    assert_eq!(seen("/unnamed/koi8-r").0, "text/html; charset=koi8-r");
    server.wait_for_log("unknown charset \"off\" to override", Deadline::default());
}

#[test]
fn an_odd_field_of_an_upstream_does_not_lose_the_response() {
    let origin = Origin::raw(|connection| {
        while connection.read_request().is_some() {
            let head =
                b"HTTP/1.1 401 No\r\nContent-Length: 2\r\nX(A: 1\r\nX-\x80: 2\r\nX-B: a\x01\x1bb\tc\r\n";
            let fields =
                b"WWW-Authenticate: Basic realm=\"\x01\"\r\nContent-Type: text/\x7fa\r\nX-C: \xe4\r\n\r\nok";
            connection.send([&head[..], fields].concat());
        }
    });
    let server = start(
        &origin,
        "proxy_cache_path @CACHE@ keys_zone=c:1m;",
        "location /page { return 200 page; }
         location /intercept/ { proxy_intercept_errors on; error_page 401 /page; proxy_pass http://@ORIGIN@; }
         location /cache/ { proxy_cache c; proxy_cache_valid any 1m; add_header X-Cache $upstream_cache_status always;
           proxy_pass http://@ORIGIN@; }",
    );
    for target in ["/", "/cache/", "/cache/"] {
        let response = get(&server, target);
        assert_eq!((response.status, response.text().as_str()), (401, "ok"), "{target}");
        assert_eq!(response.field("x-b"), Some("a  b\tc"), "{target}");
        assert_eq!(response.field("www-authenticate"), Some("Basic realm=\" \""), "{target}");
        assert_eq!(response.field("content-type"), Some("text/ a"), "{target}");
        let names: Vec<&str> = response.head.fields.iter().map(|(name, _)| name.as_str()).collect();
        assert!(names.contains(&"X-C") && !names.iter().any(|name| name.contains('(')), "{names:?}");
    }
    assert_eq!(get(&server, "/intercept/").field("www-authenticate"), Some("Basic realm=\" \""));
    let log = server.wait_for_log("upstream sent invalid header \"X-\\x80\"", Deadline::default());
    let place = origin.addr();
    assert!(log.contains("[warn]") && log.contains(&format!("upstream: \"http://{place}/\"")), "{log}");
    server.wait_for_log(
        "upstream sent invalid header \"X(A\", ignored while reading response header from upstream",
        Deadline::default(),
    );
}

#[test]
fn messages_about_a_response_show_its_field() {
    let origin = Origin::raw(|connection| {
        while let Some(request) = connection.read_request() {
            let fields = match request.path() {
                "/length" => "Content-Length: abc\r\nX: y",
                "/coding" => "X: y\r\nTransfer-Encoding: gzip, chunked\r\nZ: y",
                "/twice" => "Content-Length: 2\r\ncontent-length: 3",
                _ => "Content-Length: 2\r\nETag: \"a\"\r\nETAG: \"b\"",
            };
            connection.send(format!("HTTP/1.1 200 OK\r\n{fields}\r\n\r\nok"));
        }
    });
    let server = start(&origin, "", "");
    for (target, status, message) in [
        ("/length", 502, "sent invalid \"Content-Length\" header: \"Content-Length: abc\" while reading"),
        ("/coding", 502, "sent unknown \"Transfer-Encoding\": \"gzip, chunked\" while reading"),
        (
            "/twice",
            502,
            "sent duplicate header line: \"content-length: 3\", previous value: \"Content-Length: 2\" while reading",
        ),
    ] {
        assert_eq!(get(&server, target).status, status, "{target}");
        server.wait_for_log(message, Deadline::default());
    }
}

#[test]
fn x_accel_redirect_uses_get_and_retains_the_content_type() {
    let origin = Origin::start(|request| {
        let target = &request.path()["/to".len()..];
        Reply::text("x").header("X-Accel-Redirect", target).header("Content-Type", "text/own; charset=x")
    });
    let server = start(
        &origin,
        "map $request_method $mapped { default $request_method; }",
        "location /return { return 200 \"$request_method $mapped\"; }
         location /page { error_page 404 /return; return 404; }",
    );
    let response = post(&server, "/to/return", "body");
    assert_eq!(
        (response.text().as_str(), response.field("content-type")),
        ("GET GET", Some("text/own; charset=x"))
    );
    assert_eq!(post(&server, "/page", "body").text(), "GET GET", "an error page is fetched too");
    assert_eq!(post(&server, "/return", "body").text(), "POST POST");
}

/// An error page has no ranges, whatever the response supports that it replaces.
#[test]
fn an_error_after_x_accel_redirect_has_no_accept_ranges() {
    let origin = Origin::start(|request| {
        let target = &request.path()["/to".len()..];
        Reply::text("x").header("X-Accel-Redirect", target).header("Accept-Ranges", "bytes")
    });
    let server = start(
        &origin,
        "",
        "location /missing { root /nowhere; } location /refused { deny all; } location /text { return 200 x; }",
    );
    for (target, status) in [("/to/missing", 404), ("/to/refused", 403)] {
        let response = get(&server, target);
        assert_eq!((response.status, response.field("accept-ranges")), (status, None), "{target}");
    }
    assert_eq!(get(&server, "/to/text").field("accept-ranges"), Some("bytes"));
}

#[test]
fn a_streamed_body_received_with_its_head_is_complete() {
    let echo = |request: &OriginRequest| {
        let field = |name: &str| request.header(name).unwrap_or_default();
        Reply::text(format!(
            "{}|{}|{}",
            field("x-body"),
            field("content-length"),
            String::from_utf8_lossy(&request.body)
        ))
    };
    let origin = Origin::start(echo);
    let server = start(
        &origin,
        "proxy_request_buffering off; proxy_http_version 1.1; proxy_set_header X-Body $request_body;
         log_format body $request_body; access_log logs/access.log body;",
        "",
    );
    assert_eq!(post(&server, "/", "hello").text(), "hello|5|hello");
    let mut client = Client::connect(server.addr(0));
    client.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n");
    assert_eq!(client.response().text(), "hello|5|hello");
    // The rest of this request's body arrives later.
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhel");
    origin.wait_for("its connection", |stats| stats.connections > 2);
    client.send("lo");
    assert_eq!(client.response().text(), "|5|hello");
    assert_eq!(server.wait_for_access_log(3, Deadline::default()), "hello\nhello\n-\n");
}

#[test]
fn a_426_response_names_the_required_protocol() {
    let origin = Origin::start(|request| {
        let status = if request.path() == "/426" { 426 } else { 200 };
        Reply::new(status).header("Upgrade", "other/2").header("Connection", "upgrade").body("x")
    });
    let server = start(&origin, "", "");
    assert_eq!(get(&server, "/426").field("upgrade"), Some("other/2"));
    assert_eq!(get(&server, "/200").field("upgrade"), None, "Upgrade is hop-by-hop");
}

#[test]
fn an_error_for_a_wrong_slice_has_no_content_range() {
    let origin = Origin::start(|_| Reply::new(206).header("Content-Range", "bytes 5-9/100").body("12345"));
    let slices =
        "location /slice { slice 10; proxy_set_header Range $slice_range; proxy_pass http://@ORIGIN@; }";
    let response = get(&start(&origin, "", slices), "/slice");
    assert_eq!((response.status, response.field("content-range")), (500, None));
}

#[test]
fn the_error_page_of_a_redirect_retains_its_location() {
    let origin = Origin::start(|_| Reply::text("x"));
    let server = start(
        &origin,
        "",
        "location /uri { error_page 302 /page; return 302 text; }
         location /named { error_page 301 @named; return 301 https://else.test/x; }
         location /changed { error_page 302 =200 /page; return 302 /there; }
         location /elsewhere { error_page 302 http://other.test/; return 302 /there; }
         location = /page { return 200 page; }
         location @named { return 200 named; }",
    );
    for (target, status, text, place) in [
        ("/uri", 302, "page", "text"),
        ("/named", 301, "named", "https://else.test/x"),
        ("/changed", 200, "page", "/there"),
        ("/elsewhere", 302, "<html>", "http://other.test/"),
    ] {
        let response = get(&server, target);
        assert_eq!(response.status, status, "{target}");
        assert!(response.text().starts_with(text), "{target}: {}", response.text());
        let location = response.field("location").unwrap_or_default();
        assert!(location.ends_with(place), "{target}: {location}");
    }
}

#[test]
fn the_first_of_two_cookies_of_the_same_name_is_used() {
    let origin = Origin::start(|_| {
        let reply = Reply::text("x").header("Set-Cookie", "sid=1; Path=/").header("Set-Cookie", "SID=2");
        reply.header("Set-Cookie", "other=3, sid=4")
    });
    let shown = "add_header Shown '$upstream_cookie_sid|$upstream_cookie_other|$cookie_sid';";
    let server = start(&origin, "", shown);
    let seen =
        |cookie: &str| send_request(&server, "/", &[("Cookie", cookie)]).field("shown").map(str::to_owned);
    assert_eq!(seen("a=1; sid=2; sid=3").as_deref(), Some("1|3, sid=4|2"));
    assert_eq!(seen("a=1, sid=2").as_deref(), Some("1|3, sid=4|"), "a comma is a part of a value");
}

#[test]
fn long_trailers_and_chunk_extensions_of_an_upstream_are_discarded() {
    const HEAD: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    let origin = Origin::start(|request| {
        let long = "x".repeat(200_000);
        Reply::raw(match request.path() {
            "/trailer" => format!("{HEAD}2\r\nok\r\n0\r\nX: {}\r\n\r\n", &long[..40_000]),
            "/trailers" => format!("{HEAD}2\r\nok\r\n0\r\n{}\r\n", "X-Sum: 1\r\n".repeat(4_000)),
            _ => format!("{HEAD}2;{long}\r\nok\r\n0;{long}\r\n\r\n"),
        })
    });
    let server = start(&origin, "proxy_http_version 1.1; proxy_pass_trailers on;", "");
    let mut client = Client::connect(server.addr(0));
    for target in ["/trailer", "/trailers", "/extension"] {
        assert_eq!(client.get(target).text(), "ok", "{target}");
    }
}

#[test]
fn trailers_of_a_stored_response_reach_its_first_client() {
    let gate = Gate::new();
    let held = gate.clone();
    let origin = Origin::start(move |request| {
        let reply = Reply::ok().chunked(&[6]).body("first second").trailer("X-Sum", "10");
        // The other response arrives at once. It ends like a response without trailer fields.
        if request.path() == "/stored/a" { reply.wait_at(6, &held) } else { reply }
    });
    let server = start(
        &origin,
        "proxy_cache_path @CACHE@ keys_zone=c:1m; proxy_pass_trailers on;",
        "location /stored/ { proxy_cache c; proxy_cache_valid 1m; proxy_pass http://@ORIGIN@; }",
    );
    for target in ["/stored/a", "/stored/b"] {
        let mut client = Client::connect(server.addr(0));
        client.send(testkit::client::request_bytes("GET", target, &[("Connection", "close")]));
        assert_eq!(client.head().field("Transfer-Encoding"), Some("chunked"), "{target}");
        gate.open();
        let wire = String::from_utf8(client.read_to_end()).expect("it is text");
        assert!(wire.ends_with("0\r\nX-Sum: 10\r\n\r\n"), "{target}: {wire:?}");
    }
}

#[test]
fn an_upstream_without_tls_times_out() {
    let origin = Origin::start(|_| Reply::text("x"));
    let server = start(&origin, "proxy_connect_timeout 1s;", "location /to {\nproxy_pass $arg_to; }");
    let place = origin.addr();
    assert_eq!(
        get(&server, &format!("/to?to=https://{place}/")).status,
        504,
        "it waits for more of a request"
    );
    let log = server.wait_for_log("while SSL handshaking to upstream", Deadline::default());
    assert!(log.contains(&format!("upstream: \"https://{place}/\"")), "{log}");
    assert_eq!(get(&server, &format!("/to?to=http://{place}/")).status, 200);
    assert_eq!(get(&server, "/to?to=ftp://a.test/").status, 500, "as in nginx");
}

#[test]
fn variables_of_header_fields_are_the_same_as_in_nginx() {
    let origin = Origin::start(|request| match request.path() {
        "/trailer" => Reply::text("x").chunked(&[1]).trailer("X-Sum", "1").trailer("X-Sum", "2"),
        _ => Reply::echo("own"),
    });
    let server = start(
        &origin,
        "proxy_http_version 1.1;
         log_format shown '$uri $sent_http_connection $sent_trailer_x_sum $sent_trailer_later $content_length'
           ' $sent_http_content_type $sent_http_server';
         access_log logs/access.log shown;",
        "location /type { return 200 $content_type; }
         location /trailer { proxy_pass_trailers on; proxy_pass http://@ORIGIN@; }
         location /empty { add_header Server own; return 204; }
         location /later { add_trailer X-Sum own; add_trailer Later $sent_trailer_x_sum; return 200 x; }
         location /upgrade {
           proxy_set_header Upgrade own; proxy_set_header Connection upgrade; proxy_pass http://@ORIGIN@;
         }",
    );
    let two = [("Content-Type", "a/b"), ("Content-Type", "c/d")];
    assert_eq!(send_request(&server, "/type", &two).text(), "a/b, c/d");
    let mut old = Client::connect(server.addr(0));
    old.send("GET /trailer HTTP/1.0\r\n\r\n").read_to_end();
    get(&server, "/later");
    get(&server, "/empty");
    let mut chunked = Client::connect(server.addr(0));
    chunked.send(
        "POST /trailer HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    );
    assert_eq!(chunked.response().status, 200);
    let mut upgraded = Client::connect(server.addr(0));
    upgraded.send("GET /upgrade HTTP/1.1\r\nHost: a\r\nUpgrade: own\r\nConnection: upgrade\r\n\r\n");
    assert_eq!(upgraded.head().status, 101);
    drop(upgraded);
    let log = server.wait_for_access_log(6, Deadline::default());
    let lines: Vec<&str> = log.lines().skip(1).collect();
    let expected = [
        "/trailer close 1, 2 - - - -",
        "/later keep-alive own own - text/plain -",
        "/empty keep-alive - - - - own",
        "/trailer keep-alive 1, 2 - 5 - -",
        "/upgrade upgrade - - - - -",
    ];
    assert_eq!(lines, expected, "{log}");
}

/// nginx's documented default key, written out: responses of one site must not be used for another.
#[test]
fn a_key_with_proxy_host_separates_upstreams() {
    let site = |name: &'static str| {
        Origin::start(move |_| Reply::text(name).header("X-Own", name).header("Set-Cookie", "a=b"))
    };
    let (one, two) = (site("one"), site("two"));
    let setup = Setup::new(
        "worker_processes 1; error_log logs/error.log info;
events { }
http {
  log_format shown '$proxy_host $proxy_port $upstream_http_x_own $upstream_cookie_a $upstream_cache_status';
  access_log logs/access.log shown;
  proxy_cache_path @CACHE@ keys_zone=one:1m;
  proxy_cache one; proxy_cache_valid 1h; proxy_ignore_headers Set-Cookie;
  proxy_cache_key $scheme$proxy_host$request_uri;
  add_header Shown '$upstream_http_x_own $upstream_cache_status';
  server { listen 127.0.0.1:0; server_name one; location / { proxy_pass http://@ONE@; } }
  server { listen 127.0.0.1:0; server_name two; set $to @TWO@; location / { proxy_pass http://$to; } }
}
",
    );
    // Returned, because dropping it removes the cache's directory.
    let setup = setup.upstream("ONE", one.addr()).upstream("TWO", two.addr());
    let server = setup.start(BINARY);
    for name in ["one", "two"] {
        let get = || send_request(&server, "/", &[("Host", name)]);
        assert_eq!(get().text(), name);
        let hit = testkit::wait::until("a hit", Deadline::default(), || {
            let response = get();
            (response.field("age").is_some()).then_some(response)
        });
        let hit = hit.expect("it is stored");
        assert_eq!((hit.text().as_str(), hit.field("shown")), (name, Some(format!("{name} HIT").as_str())));
    }
    let log = server.wait_for_access_log(4, Deadline::default());
    for origin in [&one, &two] {
        let start = format!("{} {} ", origin.addr(), origin.port());
        assert!(
            log.lines().any(|line| line.starts_with(&start) && line.ends_with(" b HIT")),
            "{start}: {log}"
        );
        assert!(
            log.lines().any(|line| line.starts_with(&start) && line.ends_with(" b MISS")),
            "{start}: {log}"
        );
    }
}

/// With a cache another task contacts the upstream.
#[test]
fn tries_of_earlier_locations_are_shown_with_a_cache_too() {
    let origin =
        Origin::start(|request| Reply::new(if request.path() == "/a" { 503 } else { 200 }).body("ok"));
    let server = start(
        &origin,
        "proxy_cache_path @CACHE@ keys_zone=c:1m; add_header X-Tries '$upstream_addr|$upstream_status';",
        "location = /a { proxy_intercept_errors on; error_page 503 = @other; proxy_pass http://@ORIGIN@; }
         location @other { rewrite ^ /b break; proxy_cache c; proxy_cache_valid 1m; proxy_pass http://@ORIGIN@; }",
    );
    let response = get(&server, "/a");
    let (place, tries) = (origin.addr(), response.field("x-tries"));
    assert_eq!((response.status, tries), (200, Some(format!("{place} : {place}|503 : 200").as_str())));
}

#[test]
fn the_cache_status_is_not_that_of_an_earlier_location() {
    let origin = Origin::start(|request| {
        Reply::new(if request.path() == "/a" { 503 } else { 200 }).header("X-Own", "here").body("ok")
    });
    let server = start(
        &origin,
        "proxy_cache_path @CACHE@ keys_zone=c:1m; add_header X-Told '[$upstream_cache_status] $upstream_http_x_own';",
        "location = /a { proxy_cache c; proxy_cache_valid any 1m; proxy_intercept_errors on; error_page 503 = @other;
           proxy_pass http://@ORIGIN@; }
         location @other { rewrite ^ /b break; proxy_pass http://@ORIGIN@; }",
    );
    for _ in 0..2 {
        let response = get(&server, "/a");
        assert_eq!((response.status, response.field("x-told")), (200, Some("[] here")));
    }
}

/// The first location has a hit from the second request on: the failure that `proxy_cache_valid` retains.
#[test]
fn the_cache_status_is_that_of_the_last_location_with_a_cache() {
    let origin =
        Origin::start(|request| if request.path() == "/a" { Reply::close() } else { Reply::text("ok") });
    let server = start(
        &origin,
        "proxy_cache_path @CACHE@ keys_zone=c:1m; proxy_cache c; proxy_cache_key $uri;
         add_header X-Told $upstream_cache_status;",
        "location = /a { proxy_cache_valid any 1m; error_page 502 = @other; proxy_pass http://@ORIGIN@; }
         location @other { rewrite ^ /b break; proxy_pass http://@ORIGIN@; }",
    );
    for _ in 0..2 {
        let response = get(&server, "/a");
        assert_eq!((response.status, response.field("x-told")), (200, Some("MISS")));
    }
}

#[test]
fn a_map_can_replace_the_cookie_of_a_client() {
    let origin = Origin::start(|_| Reply::text("x"));
    let server = start(
        &origin,
        "map $arg_reset $uid_reset { default \"\"; yes 1; }",
        "location /uid { userid on; return 200 '$uid_reset|$uid_set'; }
         location /set { userid on; set $uid_reset 1; return 200 '$uid_set'; }",
    );
    let given = get(&server, "/uid").field("set-cookie").expect("a cookie").to_owned();
    let cookie = given.split(';').next().expect("its value").to_owned();
    let again = |target: &str| send_request(&server, target, &[("Cookie", &cookie)]);
    assert_eq!(again("/uid").field("set-cookie"), None);
    let reset = again("/uid?reset=yes");
    assert!(reset.field("set-cookie").is_some_and(|new| !new.starts_with(&cookie)), "{cookie}");
    assert!(reset.text().starts_with("1|uid="), "{}", reset.text());
    assert!(again("/set").field("set-cookie").is_some());
}

/// The client has a weak tag because its copy is compressed; the upstream's 304 has the strong one.
#[test]
fn a_304_of_an_upstream_has_the_tag_and_vary_of_the_compressed_200() {
    let origin = Origin::start(|request| match request.header("if-none-match") {
        Some(_) => Reply::new(304).header("ETag", "\"a\""),
        None => Reply::text("a page that is long enough")
            .header("Content-Type", "text/html")
            .header("ETag", "\"a\""),
    });
    let server = start(&origin, "gzip on; gzip_proxied any; gzip_vary on;", "");
    let whole = send_request(&server, "/", &[("Accept-Encoding", "gzip")]);
    assert_eq!((whole.field("ETag"), whole.field("Vary")), (Some("W/\"a\""), Some("Accept-Encoding")));
    let same = |tag: &str| send_request(&server, "/", &[("Accept-Encoding", "gzip"), ("If-None-Match", tag)]);
    let weak = same("W/\"a\"");
    assert_eq!(weak.status, 304);
    assert_eq!((weak.field("ETag"), weak.field("Vary")), (Some("W/\"a\""), Some("Accept-Encoding")));
    // The client has the unchanged copy.
    assert_eq!(same("\"a\"").field("ETag"), Some("\"a\""));
}
