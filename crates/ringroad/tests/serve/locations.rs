//! Selection of the server and the location, and effects of `return`, `try_files`, `error_page`, `alias` and similar
//! directives.
//!
//! Most responses are texts that name their location, so a wrong selection is visible.

use crate::common;
use crate::common::{client, error_page, one_server, serve, serve_with};
use testkit::{Client, ListenAddr, Server, TempDir};

fn texts(server: &Server, targets: &[(&str, &str)]) {
    let mut client = client(server);
    for (target, wanted) in targets {
        assert_eq!(client.get(target).text(), *wanted, "{target}");
    }
}

#[test]
fn the_longest_prefix_or_the_first_regex_is_selected() {
    let server = serve(&one_server(
        "",
        r"location / { return 200 root; }
          location = / { return 200 exact; }
          location /images { return 200 images; }
          location /images/ { return 200 folder; }
          location ^~ /images/raw/ { return 200 raw; }
          location ~ \.(gif|jpg)$ { return 200 case-$1; }
          location ~* \.(gif|png)$ { return 200 any-$1; }
          location ~ ^/images/(?<name>[a-z]+)\.txt$ { return 200 name-$name; }",
    ));
    texts(
        &server,
        &[
            ("/", "exact"),
            ("/x", "root"),
            ("/images", "images"),
            ("/images2", "images"),
            ("/images/", "folder"),
            ("/images/a.gif", "case-gif"),
            ("/images/a.GIF", "any-GIF"),
            ("/images/a.png", "any-png"),
            ("/images/raw/a.gif", "raw"),
            ("/images/cat.txt", "name-cat"),
            ("/images/cat.txt?x.gif", "name-cat"),
            ("/%69mages/./raw/../raw/x", "raw"),
        ],
    );
}

#[test]
fn nested_locations_are_selected() {
    let server = serve(&one_server(
        "",
        r"location /a { return 200 a;
              location /a/b { location ~ c$ { return 200 abc; } location = /a/b { return 200 ab; } return 200 ab-rest; }
              location ~ x$ { return 200 ax; } }
          location ~ y$ { return 200 y; }",
    ));
    texts(
        &server,
        &[("/a", "a"), ("/a/b", "ab"), ("/a/bz", "ab-rest"), ("/a/bc", "abc"), ("/ax", "ax"), ("/ay", "y")],
    );
}

#[test]
fn predicates_are_tested_after_regexes_and_before_prefixes() {
    if !common::ours_only("predicates, which Debian's nginx is too old for") {
        return;
    }
    let server = serve(&one_server(
        "map $arg_one $one { yes 1; zero 0; double 00; } map $made $seen { cat 1; }",
        r"location / { return 200 root; }
          location $one { return 200 one; }
          location ${arg_two} { location ^~ /in { return 200 in-two; } return 200 two; }
          location = /exact { return 200 exact; }
          location ^~ /kept { return 200 kept; }
          location ^~ /deep { location $one { return 200 deep-one; } return 200 deep; }
          location ~ x$ { return 200 x; }
          location ~ ^/(?<made>[a-z]+)\.y$ { location $seen { return 200 y-$made; } return 200 y; }",
    ));
    texts(
        &server,
        &[
            ("/", "root"),
            ("/?one=yes", "one"),
            ("/?one=zero", "root"),
            ("/?one=double", "one"),
            ("/?one=yes&two=1", "one"),
            ("/?two=1", "two"),
            ("/?two=0", "root"),
            ("/in?two=1", "in-two"),
            ("/exact?one=yes", "exact"),
            ("/kept?one=yes", "kept"),
            ("/deep", "deep"),
            ("/deep?one=yes", "deep-one"),
            ("/x?one=yes", "x"),
            ("/cat.y", "y-cat"),
            ("/dog.y?one=yes", "y"),
        ],
    );
}

#[test]
fn servers_are_selected_by_name() {
    // All on one address, which is not possible with a port that the kernel assigns to each `listen`.
    let dir = TempDir::new("names");
    let socket = dir.path().join("socket");
    let conf = r#"events {} http {
        server { listen ADDRESS default_server; server_name _; return 200 default; }
        server { listen ADDRESS; server_name exact.test Second.test; return 200 exact-$server_name; }
        server { listen ADDRESS; server_name *.wild.test .both.test; return 200 front; }
        server { listen ADDRESS; server_name www.tail.*; return 200 tail; }
        server { listen ADDRESS; server_name "~^u(?<id>\d{2})\.test$"; return 200 id-$id; }
        server { listen ADDRESS; server_name ""; return 200 none; }
    }"#;
    let _server = serve(&conf.replace("ADDRESS", &format!("unix:{}", socket.display())));
    let mut client = Client::connect(&ListenAddr::Unix(socket));
    for (host, wanted) in [
        ("exact.test", "exact-exact.test"),
        ("EXACT.test", "exact-exact.test"),
        ("exact.test:8080", "exact-exact.test"),
        ("exact.test.", "exact-exact.test"),
        ("second.test", "exact-exact.test"),
        ("a.wild.test", "front"),
        ("a.b.wild.test", "front"),
        ("wild.test", "default"),
        ("both.test", "front"),
        ("x.both.test", "front"),
        ("www.tail.org", "tail"),
        ("www.tail.co.uk", "tail"),
        ("u42.test", "id-42"),
        ("u4.test", "default"),
        ("nobody.test", "default"),
        ("127.0.0.1", "default"),
        ("[::1]:80", "default"),
    ] {
        assert_eq!(client.request("GET", "/", &[("Host", host)]).text(), wanted, "{host}");
    }
    client.send("GET / HTTP/1.0\r\n\r\n");
    assert_eq!(client.response().text(), "none");
}

#[test]
fn return_works_in_all_forms() {
    let server = serve(&one_server(
        "server_tokens off;",
        r#"location = /code { return 403; }
           location = /text { return 404 "no $uri"; }
           location = /redirect { return 302 /other?$args; }
           location = /permanent { return 308 https://else.test/x; }
           location = /see { return 303 $scheme://$host/y; }
           location = /url { return http://else.test/z; }
           location = /empty { return 200; }
           location = /close { return 444; }
           location = /odd { return 599 odd; }
           location = /typed { default_type text/x-own; return 200 typed; }"#,
    ));
    let mut client = client(&server);
    let code = client.get("/code");
    assert_eq!((code.status, code.text()), (403, error_page("403 Forbidden")));
    let text = client.get("/text");
    assert_eq!((text.status, text.text().as_str()), (404, "no /text"));
    let location = |response: testkit::Response| {
        (response.status, response.field("location").unwrap_or("none").to_owned())
    };
    let port = server.addr(0).tcp().port();
    assert_eq!(location(client.get("/redirect?a=b")), (302, format!("http://localhost:{port}/other?a=b")));
    assert_eq!(location(client.get("/permanent")), (308, "https://else.test/x".to_owned()));
    assert_eq!(location(client.get("/see")), (303, "http://localhost/y".to_owned()));
    assert_eq!(location(client.get("/url")), (302, "http://else.test/z".to_owned()));
    let empty = client.get("/empty");
    assert_eq!((empty.status, empty.body.len(), empty.field("content-length")), (200, 0, Some("0")));
    assert_eq!((client.get("/odd").status, client.get("/odd").text().as_str()), (599, "odd"));
    assert_eq!(client.get("/typed").field("content-type"), Some("text/x-own"));
    client.send("GET /close HTTP/1.1\r\nHost: a\r\n\r\n").expect_end();
}

#[test]
fn a_redirect_can_be_relative_or_without_a_port() {
    let server = serve_with(
        &one_server(
            "",
            "root html; location /rel { absolute_redirect off; location = /rel/r { return 301 /to; } } \
             location /bare { port_in_redirect off; location = /bare/r { return 301 /to; } } \
             location /name { server_name_in_redirect on; location = /name/r { return 301 /to; } } \
             server_name own.test;",
        ),
        |builder| builder.text("html/rel/d/x", "").text("html/bare/d/x", ""),
    );
    let mut client = client(&server);
    let mut location = |target: &str| client.get(target).field("location").map(str::to_owned);
    let port = server.addr(0).tcp().port();
    assert_eq!(location("/rel/r").as_deref(), Some("/to"));
    assert_eq!(location("/rel/d").as_deref(), Some("/rel/d/"));
    assert_eq!(location("/bare/r").as_deref(), Some("http://localhost/to"));
    assert_eq!(location("/bare/d").as_deref(), Some("http://localhost/bare/d/"));
    assert_eq!(location("/name/r"), Some(format!("http://own.test:{port}/to")));
}

#[test]
fn try_files_serves_the_first_existing_file() {
    let server = serve_with(
        &one_server(
            "",
            "root html; \
             location / { try_files $uri $uri/index.html /fallback.txt; } \
             location /code/ { try_files $uri =404; } \
             location /named/ { try_files $uri @named; } \
             location /query/ { try_files $uri /query-target?u=$uri; } \
             location = /query-target { return 200 query-$args; } \
             location /dir/ { try_files $uri/ =418; } \
             location @named { return 200 named-$uri; }",
        ),
        |builder| {
            builder
                .text("html/a.txt", "a")
                .text("html/sub/index.html", "sub")
                .text("html/fallback.txt", "fallback")
                .text("html/code/there", "there")
                .text("html/dir/d/index.html", "d")
        },
    );
    texts(
        &server,
        &[
            ("/a.txt", "a"),
            ("/sub", "sub"),
            ("/nothing", "fallback"),
            ("/code/there", "there"),
            ("/named/x", "named-/named/x"),
            ("/query/x", "query-u=/query/x"),
        ],
    );
    let mut client = client(&server);
    assert_eq!(client.get("/code/missing").status, 404);
    assert_eq!(client.get("/dir/missing").status, 418);
}

#[test]
fn alias_replaces_the_prefix() {
    let server = serve_with(
        &one_server(
            "",
            r"location /i/ { alias html/real/; }
              location /file { alias html/real/a.txt; }
              location ~ ^/u/(.+)\.t$ { alias html/real/$1.txt; }",
        ),
        |builder| builder.text("html/real/a.txt", "a").text("html/real/index.html", "index"),
    );
    texts(&server, &[("/i/a.txt", "a"), ("/i/", "index"), ("/file", "a"), ("/u/a.t", "a")]);
    assert_eq!(client(&server).get("/i/../a.txt").status, 404, "the path is resolved against the root");
}

#[test]
fn error_page_works_in_all_forms() {
    let server = serve_with(
        &one_server(
            "",
            r"root html;
              error_page 404 /404.html;
              location = /404.html { internal; }
              location /code/ { error_page 404 =200 /ok.txt; }
              location /keep/ { error_page 404 = /teapot; }
              location = /teapot { return 418 tea; }
              location /named/ { error_page 403 404 @named; }
              location @named { return 410 named-$uri; }
              location /moved/ { error_page 404 =301 http://else.test/; }
              location /found/ { error_page 404 http://else.test$uri; }
              location /twice/ { error_page 404 /missing-too.html; }",
        ),
        |builder| builder.text("html/404.html", "own page").text("html/ok.txt", "ok"),
    );
    let mut client = client(&server);
    let mut get = |target: &str| {
        let response = client.get(target);
        (response.status, response.text())
    };
    assert_eq!(get("/missing"), (404, "own page".to_owned()));
    assert_eq!(get("/404.html"), (404, "own page".to_owned()), "an internal location is missing for clients");
    assert_eq!(get("/code/x"), (200, "ok".to_owned()));
    assert_eq!(get("/keep/x"), (418, "tea".to_owned()));
    assert_eq!(get("/named/x"), (404, "named-/named/x".to_owned()));
    assert_eq!(get("/twice/x").0, 404, "an error page that is missing is an error without a page");
    assert!(get("/twice/x").1.contains("404 Not Found"));
    let moved = client.get("/moved/x");
    assert_eq!((moved.status, moved.field("location")), (301, Some("http://else.test/")));
    let found = client.get("/found/x");
    assert_eq!((found.status, found.field("location")), (302, Some("http://else.test/found/x")));
    let head = client.request("HEAD", "/missing", &[]);
    assert_eq!((head.status, head.field("content-length")), (404, Some("8")));
    let posted = client.request("POST", "/ok.txt", &[("Content-Length", "0")]);
    assert_eq!(posted.status, 405);
}

#[test]
fn errors_in_error_pages_do_not_loop() {
    let server = serve(&one_server(
        "",
        "error_page 404 /loop; recursive_error_pages on; location / { root html; } location = /loop { return 404; }",
    ));
    let response = client(&server).get("/missing");
    assert!(matches!(response.status, 404 | 500), "{}", response.status);
    // The connection, and with it the server, still works.
    assert!(matches!(client(&server).get("/missing").status, 404 | 500));
}

#[test]
fn internal_locations_are_only_reached_by_redirects() {
    let server = serve_with(
        &one_server(
            "",
            "root html; location /in/ { internal; } location /out/ { try_files $uri /in/a.txt; }",
        ),
        |builder| builder.text("html/in/a.txt", "inside"),
    );
    let mut client = client(&server);
    assert_eq!(client.get("/in/a.txt").status, 404);
    assert_eq!(client.get("/out/x").text(), "inside");
}

#[test]
fn an_index_is_an_internal_redirect() {
    let server = serve_with(
        &one_server(
            "",
            r"root html; index first.html second.txt /last;
              location ~ \.txt$ { return 200 redirected-$uri; }
              location = /last { return 200 last; }",
        ),
        |builder| builder.text("html/a/second.txt", "x").text("html/b/first.html", "b").text("html/c/x", ""),
    );
    texts(&server, &[("/a/", "redirected-/a/second.txt"), ("/b/", "b"), ("/c/", "last")]);
}

#[test]
fn set_assigns_variables() {
    let server = serve(&one_server(
        "",
        r#"set $greeting "hello $arg_name";
           location / { set $greeting $greeting!; return 200 "$greeting|$args|$request_method|$http_x_own|${uri}y"; }
           location /facts { return 200 "$request_uri $document_uri $query_string $is_args $server_protocol $scheme $request_length $remote_addr $http_missing- $cookie_a $host $server_port"; }"#,
    ));
    let mut client = client(&server);
    let response = client.request("GET", "/x%20y?name=z&b", &[("X-Own", "own")]);
    assert_eq!(response.text(), "hello z!|name=z&b|GET|own|/x yy");
    let port = server.addr(0).tcp().port();
    let request = "GET /facts?q HTTP/1.1\r\nHost: h\r\nCookie: b=1; a=2\r\n\r\n";
    client.send(request);
    let length = request.len();
    assert_eq!(
        client.response().text(),
        format!("/facts?q /facts q ? HTTP/1.1 http {length} 127.0.0.1 - 2 h {port}")
    );
}

#[test]
fn limit_except_refuses_the_other_methods() {
    let server = serve(&one_server(
        "",
        "location / { limit_except GET { deny all; } return 200 ok; } location /f { root html; limit_except GET { deny all; } }",
    ));
    let mut client = client(&server);
    assert_eq!(client.get("/").status, 200);
    assert_eq!(client.request("POST", "/f", &[("Content-Length", "0")]).status, 403);
    assert_eq!(client.get("/f").status, 404);
}
