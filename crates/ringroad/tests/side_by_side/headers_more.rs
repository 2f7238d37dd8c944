//! The same requests to Debian's nginx with the headers-more module and to this server ([`common::beside`]): fields
//! that are set, replaced and removed. Skipped if the module is not installed
//! (`libnginx-mod-http-headers-more-filter`).

use crate::common;
use std::path::Path;

use crate::common::beside::{self, ask, get};
use testkit::{Client, Server, TempDir};

/// Path of the module in Debian.
const MODULE: &str = "/usr/lib/nginx/modules/ngx_http_headers_more_filter_module.so";

const SERVERS: &str = r#"
worker_processes 1;
events {}
http {
    server_tokens off;
    types { text/html html; text/plain txt; }
    default_type application/octet-stream;
    more_set_headers "X-Outer: http";
    server {
        listen 127.0.0.1:0;
        root ROOT;
        location /plain/ { alias ROOT/; }
        location /set/ { alias ROOT/; more_set_headers "X-A: $uri" 'X-B:b' "X-Empty: $arg_none" "Server: own"; error_page 404 /set/a.html; }
        location /twice/ { alias ROOT/; add_header X-A add; add_header X-A more; more_set_headers "X-A: set" "X-A: again"; }
        location /own/ { alias ROOT/; more_set_headers "Content-Type: text/x; a=b" "ETag: \"own\"" "Last-Modified: Mon, 07 Nov 1994 08:49:37 GMT"; }
        location /clear/ { alias ROOT/; more_clear_headers Server Content-Type ETag Last-Modified Accept-Ranges X-Outer; }
        location /some/ { alias ROOT/; more_clear_headers 'X-*' 'Etag: whatever'; }
        location /status/ { alias ROOT/; more_set_headers -s '404 416' "X-S: $status" ; more_set_headers -s 200 -s 206 "X-Fine: yes"; }
        location /type/ { alias ROOT/; more_set_headers -t 'text/plain text/css' "X-T: text"; more_set_headers -t text/html -s 200 "X-H: html"; }
        location /moved { more_set_headers "X-A: a" "Location: /elsewhere"; return 302 /there; }
        location /stay { more_clear_headers Location; return 302 /there; }
        location /text { default_type text/plain; more_set_headers "Content-Type: text/html"; charset utf-8; return 200 text; }
        location /if/ { alias ROOT/; more_set_headers "X-A: outer"; if ($arg_a) { more_set_headers "X-B: inner"; } }
        location /cache { more_set_headers "Cache-Control: no-store" "Expires: 0"; expires 1h; return 200 text; }
        location /auth { more_set_headers "WWW-Authenticate: Other realm=x"; auth_basic x; auth_basic_user_file ROOT/none; }
        location /length { more_set_headers "Accept-Ranges: none" "X-L: $sent_http_content_length"; return 200 text; }
        location /in/ {
            more_set_input_headers "X-In: $http_x_in+" "X-New: new" "User-Agent: other";
            more_set_input_headers -r "X-Only: replaced";
            more_clear_input_headers X-Gone "X-Many-*";
            return 200 "$http_x_in|$http_x_new|$http_user_agent|$http_x_only|$http_x_gone|$http_x_many_a|$http_x_other";
        }
        location /host { more_set_input_headers "Host: Other.example:81"; proxy_pass http://127.0.0.1:PORT/; }
        location /ctype { more_set_input_headers -t 'text/plain' "X-A: text"; proxy_pass http://127.0.0.1:PORT/in/; }
        location /seen { default_type text/plain; more_set_input_headers "Cookie: a=1; b=2" "X-Forwarded-For: 1.2.3.4"; proxy_pass http://127.0.0.1:PORT/show/; }
    }
    server {
        listen 127.0.0.1:0;
        location / { return 200 "$http_host|$host|$request_uri"; }
        location /in/ { return 200 "$http_x_a|$content_type"; }
        location /show/ { return 200 "$http_cookie|$cookie_b|$http_x_forwarded_for"; }
    }
}
"#;

#[test]
fn fields_are_the_same_as_with_headers_more() {
    if !Path::new(MODULE).exists() {
        return testkit::skip(
            "nginx-headers-more is not installed (apt-get install libnginx-mod-http-headers-more-filter)",
        );
    }
    let site = TempDir::new("headers-more");
    for (name, bytes) in [("a.html", "<p>page</p>"), ("a.txt", "text")] {
        site.write(name, bytes);
    }
    let conf = format!("load_module {MODULE};\n{}", without_upstreams(SERVERS));
    let range = [("Range", "bytes=0-1")];
    beside::compare(
        &conf,
        &site,
        vec![
            get("/plain/a.html"),
            get("/set/a.html"),
            get("/set/missing"),
            ask("HEAD", "/set/a.html", &[]),
            get("/twice/a.html"),
            get("/own/a.html"),
            ask("GET", "/own/a.html", &[("If-None-Match", "\"own\"")]),
            get("/clear/a.html"),
            ask("GET", "/clear/a.html", &range),
            get("/some/a.html"),
            get("/status/a.html"),
            get("/status/missing"),
            ask("GET", "/status/a.html", &range),
            get("/type/a.html"),
            get("/type/a.txt"),
            get("/type/missing"),
            get("/moved"),
            get("/stay"),
            get("/text"),
            get("/if/a.html"),
            get("/if/a.html?a=1"),
            get("/cache"),
            get("/auth"),
            get("/length"),
            get("/in/x"),
            ask(
                "GET",
                "/in/x",
                &[("X-In", "1"), ("X-Only", "1"), ("X-Gone", "1"), ("X-Many-A", "1"), ("X-Other", "1")],
            ),
            ask("GET", "/in/x", &[("X-In", "1"), ("User-Agent", "mine")]),
        ],
    );
}

/// Removes locations with ports: a port is known only after a server has started, so these locations work with one
/// server alone.
fn without_upstreams(conf: &str) -> String {
    conf.lines().filter(|line| !line.contains("PORT")).map(|line| format!("{line}\n")).collect()
}

#[test]
fn upstreams_get_the_changed_fields() {
    let behind = Server::start(
        common::BINARY,
        "events {} http { server { listen 127.0.0.1:0;
            location / { return 200 \"$http_host|$host|$request_uri\"; }
            location /in/ { return 200 \"$http_x_a|$content_type\"; }
            location /show/ { return 200 \"$http_cookie|$cookie_b|$http_x_forwarded_for\"; } } }",
    );
    let conf = SERVERS.replace("PORT", &behind.addr(0).tcp().port().to_string());
    let server = Server::start(common::BINARY, &conf.replace("ROOT", "/nowhere"));
    let mut client = Client::connect(server.addr(0));
    let mut text = |target: &str, fields: &[(&str, &str)]| {
        client.send(testkit::client::request_bytes("GET", target, fields));
        client.response().text()
    };
    let upstream = behind.addr(0).tcp();
    assert_eq!(text("/host", &[]), format!("{upstream}|127.0.0.1|/"));
    assert_eq!(text("/ctype", &[("Content-Type", "text/plain; charset=x")]), "text|text/plain; charset=x");
    assert_eq!(text("/ctype", &[("Content-Type", "text/html")]), "|text/html");
    assert_eq!(text("/seen", &[("Cookie", "c=3")]), "a=1; b=2|2|1.2.3.4");
    // Framing fields of a request cannot be changed like other fields.
    let body = "5\r\nhello\r\n0\r\n\r\n";
    client.send(format!("POST /seen HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{body}"));
    assert_eq!(client.response().text(), "a=1; b=2|2|1.2.3.4");
}

/// The `if` block has another plan than its location: without the script, so with other indices of handlers.
#[test]
fn input_fields_are_changed_in_a_location_of_which_an_if_matches() {
    let behind = Server::start(
        common::BINARY,
        "events {} http { server { listen 127.0.0.1:0; return 200 \"$http_x_user|$http_x_set|$http_x_own\"; } }",
    );
    let upstream = behind.addr(0).tcp();
    let server = Server::start(
        common::BINARY,
        &format!(
            "events {{}} http {{ server {{ listen 127.0.0.1:0;
            more_clear_input_headers X-User; more_set_input_headers 'X-Set: set';
            location /set {{ if ($arg_debug) {{ set $dbg 1; }} proxy_pass http://{upstream}; }}
            location /empty {{ if ($arg_debug) {{ }} proxy_pass http://{upstream}; }}
            location /two {{ if ($arg_debug) {{ }} if ($arg_debug = 1) {{ set $x 1; }} proxy_pass http://{upstream}; }}
            location /file {{ if (!-f /nowhere) {{ set $x 1; }} proxy_pass http://{upstream}; }}
            location /own {{ if ($arg_debug) {{ more_set_input_headers 'X-Own: own'; }} proxy_pass http://{upstream}; }}
            location /pass {{ if ($arg_debug) {{ proxy_pass http://{upstream}; }} }}
            location /break {{ if ($arg_debug) {{ break; }} proxy_pass http://{upstream}; }}
            location /named {{ if ($arg_debug) {{ set $x 1; }} error_page 404 = @named; }}
            location @named {{ if ($arg_debug) {{ set $x 1; }} proxy_pass http://{upstream}; }}
            location /post {{ limit_except GET {{ proxy_pass http://{upstream}; }} if ($arg_debug) {{ }} }}
        }} }}"
        ),
    );
    let mut client = Client::connect(server.addr(0));
    for (method, target, expected) in [
        ("GET", "/set", "|set|"),
        ("GET", "/set?debug=1", "|set|"),
        ("GET", "/empty?debug=1", "|set|"),
        ("GET", "/two?debug=1", "|set|"),
        ("GET", "/file", "|set|"),
        ("GET", "/own", "|set|"),
        ("GET", "/own?debug=1", "|set|own"),
        ("GET", "/pass?debug=1", "|set|"),
        ("GET", "/break?debug=1", "|set|"),
        ("GET", "/named?debug=1", "|set|"),
        ("PUT", "/post?debug=1", "|set|"),
    ] {
        client.send(testkit::client::request_bytes(
            method,
            target,
            &[("X-User", "admin"), ("Content-Length", "0")],
        ));
        assert_eq!(client.response().text(), expected, "{method} {target}");
    }
}
