//! The same requests to Debian's nginx and to this server ([`common::beside`]), both in front of one scripted origin:
//! the requests that the origin receives, which it returns in its responses, and the responses to the client.
//!
//! nginx 1.22 uses HTTP/1.0 to upstreams and sends `Connection: close`; since 1.29.7 it has the same defaults as this server. The
//! configuration makes both use HTTP/1.1 and keep-alive connections.

use crate::common::beside::{self, Case, ask, get, raw};
use testkit::TempDir;
use testkit::origin::{Origin, OriginRequest, Reply};

const CONF: &str = r#"
worker_processes 1;
events {}
http {
    server_tokens off;
    default_type text/plain;
    proxy_http_version 1.1;
    proxy_set_header Connection "";
    proxy_temp_path ROOT/temp;
    map $http_x_secure $flag { default ""; "1" secure; }
    upstream group { server ORIGIN; }
    server {
        listen 127.0.0.1:0;
        server_name own.example;
        root ROOT;
        location / { proxy_pass http://ORIGIN; }
        location /slash/ { proxy_pass http://ORIGIN/; }
        location /uri/ { proxy_pass http://ORIGIN/deep/er; }
        location /query/ { proxy_pass http://ORIGIN?a=b; }
        location = /exact { proxy_pass http://ORIGIN/one; }
        location = /exact-slash/ { proxy_pass http://ORIGIN; }
        location /group/ { proxy_pass http://group/g/; }
        location /group-var/ { set $to group; proxy_pass http://$to; }
        location /var/ { proxy_pass http://ORIGIN$request_uri; }
        location /var-uri/ { proxy_pass http://ORIGIN/fixed?u=$arg_u; }
        location /var-host/ { set $to ORIGIN; proxy_pass http://$to; }
        location /var-bad/ { set $to ftp://x; proxy_pass $to; }
        location ~ ^/regex/(.*) { proxy_pass http://ORIGIN; }
        location ~ ^/regex-var/(.*) { proxy_pass http://ORIGIN/r/$1?x; }
        location /rewritten/ { rewrite ^/rewritten/(.*) /new/$1 break; proxy_pass http://ORIGIN; }
        location /rewritten-uri/ { rewrite ^/rewritten-uri/(.*) /new/$1 break; proxy_pass http://ORIGIN/lost/; }
        location /args/ { set $args c=d; proxy_pass http://ORIGIN; }
        location /again/ { rewrite ^/again/(.*) /slash/$1; }
        location /if/ { if ($arg_to) { proxy_pass http://ORIGIN; } return 204; }
        location /if-in/ { proxy_pass http://ORIGIN/in/; if ($arg_x) { set $y z; } }
        location /limited/ { proxy_pass http://ORIGIN/limited-ok/; limit_except GET { allow all; } }
        location /named/ { try_files /none @named; }
        location @named { proxy_pass http://ORIGIN; }
        location /nested/ { proxy_pass http://ORIGIN/n/; location /nested/in/ { proxy_pass http://ORIGIN/m/; } }
        location /nested-none/ { proxy_pass http://ORIGIN/n/; location /nested-none/in/ { } }
        location /method/ { proxy_method POST; proxy_pass http://ORIGIN; }
        location /head/ { proxy_method GET; proxy_pass http://ORIGIN; }
        location /set/ {
            proxy_set_header Connection "";
            proxy_set_header Host $host:81;
            proxy_set_header X-Real-IP $remote_addr;
            proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
            proxy_set_header User-Agent "";
            proxy_set_header X-Var "$arg_v";
            proxy_pass http://ORIGIN;
        }
        location /upgrade/ {
            proxy_set_header Connection "upgrade";
            proxy_set_header Upgrade $http_upgrade;
            proxy_pass http://ORIGIN;
        }
        location /te/ { proxy_set_header Connection "te"; proxy_set_header TE trailers; proxy_pass http://ORIGIN; }
        location /bare/ { proxy_pass_request_headers off; proxy_pass http://ORIGIN; }
        location /nobody/ {
            proxy_pass_request_body off; proxy_set_header Content-Length ""; proxy_set_header Connection "";
            proxy_pass http://ORIGIN;
        }
        location /setbody/ { proxy_set_body "<$request_body|$arg_b>"; proxy_pass http://ORIGIN; }
        location /unbuffered/ { proxy_request_buffering off; proxy_buffering off; proxy_pass http://ORIGIN; }
        location /10/ { proxy_http_version 1.0; proxy_pass http://ORIGIN; }
        location /hide/ {
            proxy_hide_header X-One; proxy_pass_header Server; proxy_pass_header X-Accel-Expires;
            proxy_pass http://ORIGIN/;
        }
        location /redirect-off/ { proxy_redirect off; proxy_pass http://ORIGIN/; }
        location /redirect/ {
            proxy_redirect http://there/a/ /b/;
            proxy_redirect ~^http://re([0-9]+)\.example(.*) /re/$1$2;
            proxy_redirect http://ORIGIN/ http://$host/;
            proxy_pass http://ORIGIN/;
        }
        location /cookies/ {
            proxy_cookie_domain .origin.example $host;
            proxy_cookie_domain ~^re\.(.*)$ $1;
            proxy_cookie_path /a/ /b/;
            proxy_cookie_path ~*^/re(.*) /new$1;
            proxy_cookie_flags one secure httponly samesite=strict;
            proxy_cookie_flags ~^tw $flag nohttponly nosamesite;
            proxy_pass http://ORIGIN/;
        }
        location /intercept/ {
            proxy_intercept_errors on; error_page 404 /page; error_page 503 = @fallback; error_page 401 /page;
            proxy_pass http://ORIGIN/;
        }
        location /not-intercepted/ { error_page 404 /page; proxy_pass http://ORIGIN/; }
        location = /page { internal; return 200 "page for $status\n"; }
        location @fallback { return 200 "fallback\n"; }
        location /dead/ { proxy_pass http://127.0.0.1:1; error_page 502 @dead; }
        location /dead-plain/ { proxy_pass http://127.0.0.1:1; }
        location @dead { proxy_pass http://ORIGIN; }
        location /ignore/ { proxy_ignore_headers X-Accel-Redirect X-Accel-Charset; proxy_pass http://ORIGIN/; }
        location /files/ { internal; alias ROOT/; }
        location /hidden/ { internal; proxy_pass http://ORIGIN; }
        location /filtered/ {
            sub_filter_types *; sub_filter_once off; sub_filter answer ANSWER; proxy_pass http://ORIGIN/;
        }
        location /gunzip/ { gunzip on; proxy_pass http://ORIGIN/; }
        location /ranges/ { proxy_force_ranges on; proxy_pass http://ORIGIN/; }
        location /charset/ { charset utf-8; proxy_pass http://ORIGIN/; }
        location /headers/ { add_header X-Added $upstream_status always; expires 1h; proxy_pass http://ORIGIN/; }
        location /vars/ { add_header X-Vars "$proxy_host|$proxy_port"; proxy_pass http://ORIGIN/; }
        location /ssi/ { ssi on; ssi_types *; proxy_pass http://ORIGIN/; }
        location /included { proxy_pass http://ORIGIN; }
    }
}
"#;

/// Returns the request received by the origin, in an order that does not depend on the sender.
fn shown(request: &OriginRequest) -> String {
    let mut lines: Vec<String> =
        request.lines.iter().map(|line| String::from_utf8_lossy(line).into_owned()).collect();
    lines.sort();
    let (method, target, version) = (&request.method, &request.target, &request.version);
    let body = String::from_utf8_lossy(&request.body);
    format!("{method} {target} {version}\n{}\n\n{body}\n", lines.join("\n"))
}

/// Returns the response that the query selects, or else the request itself.
fn answer(request: &OriginRequest) -> Reply {
    let wanted = request.target.split_once("r=").map_or("", |(_, name)| name);
    let text = "an answer with words, an answer\n";
    let reply = || Reply::text(text).header("Content-Type", "text/plain");
    match wanted {
        "fields" => reply()
            .header("Server", "origin/1")
            .header("Date", "Thu, 01 Jan 2026 00:00:00 GMT")
            .header("X-One", "1")
            .header("X-Two", "2")
            .header("X-Pad", "x")
            .header("X-Accel-Expires", "0")
            .header("Keep-Alive", "timeout=5")
            .header("Vary", "Accept")
            .header("Link", "</a>; rel=x")
            .header("Link", "</b>; rel=x")
            .header("ETag", "\"e\"")
            .header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
            .header("Expires", "Thu, 01 Jan 2026 00:00:00 GMT")
            .header("Cache-Control", "max-age=5")
            .header("Cache-Control", "public"),
        "date" => reply().header("Last-Modified", "Thursday, 01-Jan-26 00:00:00 GMT"),
        "ranges" => reply().header("Accept-Ranges", "bytes").header("ETag", "\"e\""),
        "partial" => Reply::new(206)
            .body("an")
            .header("Content-Range", "bytes 0-1/32")
            .header("Content-Type", "text/plain"),
        "others" => reply()
            .header("Set-Cookie", "a=b")
            .header("Access-Control-Allow-Origin", "*")
            .header("Vary", "Origin")
            .header("ETag", "\"e\""),
        "there" => Reply::new(302).header("Location", "http://there/a/b?c"),
        "re" => Reply::new(301).header("Location", "http://re12.example/x"),
        "relative" => Reply::new(302).header("Location", "/rel"),
        "refresh" => reply().header("Refresh", "5; URL=http://there/a/r"),
        "cookies" => reply()
            .header("Set-Cookie", "one=1; Domain=.Origin.example; Path=/a/x")
            .header("Set-Cookie", "two=2; domain=re.net ;path=/RE/x; HttpOnly; SameSite=Lax")
            .header("Set-Cookie", "three=3; Path=/c"),
        "404" => Reply::new(404).body("nothing\n").header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT"),
        "503" => Reply::new(503).body("busy\n").header("Retry-After", "5"),
        "401" => Reply::new(401).header("WWW-Authenticate", "Basic realm=\"o\"").header("X-Other", "1"),
        "299" => Reply::new(299).reason("Own Words").body("x"),
        "204" => Reply::new(204),
        // RFC 9110 forbids neither field in a response without content.
        "204-typed" => Reply::new(204).header("Content-Type", "text/x-y").header("Content-Language", "de"),
        "304" => Reply::new(304).header("ETag", "\"e\""),
        "accel" => Reply::text(text)
            .header("Content-Type", "text/x-kept")
            .header("X-Accel-Redirect", "/files/kept.bin?q")
            .header("Set-Cookie", "a=b")
            .header("Content-Disposition", "attachment")
            .header("X-Lost", "1"),
        "accel-named" => reply().header("X-Accel-Redirect", "@fallback"),
        "accel-bad" => reply().header("X-Accel-Redirect", "/files/../../etc/passwd"),
        "accel-coded" => reply().header("X-Accel-Redirect", "/files/%2e%2e/%2E./etc/passwd"),
        "accel-nul" => reply().header("X-Accel-Redirect", "/files/kept.bin%00x"),
        "accel-last" => reply().header("X-Accel-Redirect", "/files/.."),
        "accel-dots" => reply().header("X-Accel-Redirect", "/files/..kept.bin"),
        "charset" => reply().header("X-Accel-Charset", "koi8-r"),
        "latin" => Reply::text("x").header("Content-Type", "text/html; charset=iso-8859-1"),
        "zipped" => Reply::ok().body(GZIPPED).header("Content-Encoding", "gzip"),
        "ssi" => Reply::text("<!--#include virtual=\"/included?a=b\" -->!"),
        "close" => reply().closing(),
        "old" => reply().version("HTTP/1.0"),
        _ => Reply::text(shown(request)).header("X-Seen", "1"),
    }
}

/// `hello\n`
const GZIPPED: &[u8] = &[
    0x1f, 0x8b, 0x08, 0, 0, 0, 0, 0, 0, 0x03, 0xcb, 0x48, 0xcd, 0xc9, 0xc9, 0xe7, 0x02, 0, 0x20, 0x30, 0x3a,
    0x36, 0x06, 0, 0, 0,
];

fn compare(cases: Vec<Case>) {
    let origin = Origin::start(answer);
    let site = TempDir::new("proxied");
    site.write("kept.bin", "kept\n");
    beside::compare(&CONF.replace("ORIGIN", &origin.addr().to_string()), &site, cases);
}

fn post(target: &str, body: &str) -> Case {
    let length = body.len();
    raw(format!("POST {target} HTTP/1.1\r\nHost: own.example\r\nContent-Length: {length}\r\n\r\n{body}"))
}

#[test]
fn uris_sent_to_upstreams_match_nginx() {
    let paths = [
        "/a?b=c",
        "/a%20b/%2F?d%20e",
        "/a//b/../c",
        "/",
        "/slash/x?y",
        "/slash/%41%20b",
        "/slash/",
        "/uri/x",
        "/uri/",
        "/exact?q",
        "/group/x",
        "/group-var/x?y",
        "/var/%41?x",
        "/var-uri/?u=v",
        "/var-host/a?b",
        "/regex/x%20y?z",
        "/regex-var/ab",
        "/rewritten/x?y",
        "/rewritten/%20",
        "/rewritten-uri/x",
        "/args/x?y",
        "/again/x?y",
        "/if/x?to=1",
        "/if/x",
        "/if-in/a%20b",
        "/if-in/a?x=1",
        "/limited/x",
        "/named/x%41?y",
        "/nested/x",
        "/nested/in/x",
        "/nested-none/in/x",
        "/dead/x?y",
        "/10/x",
        "/included",
    ];
    let mut cases: Vec<Case> = paths.map(get).into();
    cases.push(get("/var-bad/"));
    cases.push(get("/dead-plain/"));
    cases.push(get("/query/").differs("P3"));
    for missing in ["/slash", "/slash?q", "/exact-slash", "/nested/in", "/group-var?x=y", "/if", "/hidden"] {
        cases.push(get(missing));
    }
    // A decoded line end in a path is encoded again; nginx forwards it if it is from a variable.
    cases.push(get("/rewritten/a%0d%0ab"));
    compare(cases);
}

#[test]
fn requests_sent_to_upstreams_match_nginx() {
    let mut cases = vec![
        ask("HEAD", "/a", &[]),
        ask("OPTIONS", "/a", &[]),
        ask("DELETE", "/a", &[]),
        ask("PROPFIND", "/a", &[("Depth", "1")]),
        ask("GET", "/method/a", &[]),
        ask("GET", "/a", &[("Accept", "x"), ("Cookie", "a=b"), ("Cookie", "c"), ("X-A", "1"), ("X-A", "2")]),
        ask("GET", "/a", &[("TE", "trailers"), ("Keep-Alive", "x"), ("Upgrade", "h2c"), ("Expect", "x")]),
        ask("GET", "/a", &[("Range", "bytes=0-1"), ("If-Range", "\"e\""), ("If-None-Match", "\"e\"")]),
        ask("GET", "/a", &[("Connection", "close")]),
        ask("GET", "/a", &[("Authorization", "Basic x"), ("Proxy-Authorization", "y")]),
        ask("GET", "/set/a?v=1", &[("X-Forwarded-For", "1.2.3.4"), ("User-Agent", "u"), ("X-Real-IP", "no")]),
        ask("GET", "/set/a", &[("X-Forwarded-For", "a"), ("X-Forwarded-For", "b"), ("X-Var", "no")]),
        ask("GET", "/set/a", &[]),
        ask("GET", "/te/a", &[("TE", "x")]),
        ask("GET", "/bare/a", &[("X-A", "1"), ("Host", "x")]),
        ask("GET", "/upgrade/a", &[]),
        post("/a", "a=b"),
        post("/a", ""),
        post("/bare/a", "body"),
        post("/nobody/a", "body"),
        post("/setbody/a?b=c", "body"),
        post("/unbuffered/a", "body"),
        post("/10/a", "body"),
        post("/named/x", "body"),
        post("/limited/x", "body"),
        post("/dead/x", "body"),
        get("/setbody/a"),
        raw("GET /a HTTP/1.0\r\n\r\n"),
        raw("GET http://other.example/a?b HTTP/1.1\r\nHost: x\r\n\r\n"),
    ];
    let chunked = |target: &str| {
        raw(format!(
            "POST {target} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
        ))
    };
    cases.extend(["/a", "/setbody/a", "/10/a", "/unbuffered/a"].map(chunked));
    let hop = [("Connection", "close, X-Hop"), ("X-Hop", "1")];
    cases.push(ask("GET", "/a", &hop).differs("P1"));
    compare(cases);
}

#[test]
fn responses_sent_to_clients_match_nginx() {
    let targets = [
        "/a?r=fields",
        "/hide/a?r=fields",
        "/a?r=date",
        "/a?r=ranges",
        "/a?r=partial",
        "/a?r=404",
        "/a?r=503",
        "/a?r=401",
        "/a?r=299",
        "/a?r=204",
        "/a?r=204-typed",
        "/charset/?r=204-typed",
        "/a?r=304",
        "/a?r=close",
        "/a?r=old",
        "/slash/a?r=there",
        "/slash/a?r=relative",
        "/redirect-off/?r=there",
        "/redirect-off/?r=relative",
        "/redirect/?r=there",
        "/redirect/?r=re",
        "/redirect/?r=relative",
        "/redirect/?r=refresh",
        "/cookies/?r=cookies",
        "/a?r=cookies",
        "/intercept/?r=404",
        "/intercept/?r=503",
        "/intercept/?r=401",
        "/intercept/?r=299",
        "/not-intercepted/?r=404",
        "/slash/?r=accel",
        "/slash/?r=accel-named",
        "/slash/?r=accel-bad",
        "/slash/?r=accel-coded",
        "/slash/?r=accel-nul",
        "/slash/?r=accel-last",
        "/slash/?r=accel-dots",
        "/ignore/?r=accel",
        "/filtered/?r=x",
        "/filtered/?r=fields",
        "/gunzip/?r=zipped",
        "/slash/?r=zipped",
        "/charset/?r=x",
        "/charset/?r=latin",
        "/charset/?r=404",
        "/headers/?r=404",
        "/headers/?r=x",
        "/vars/?r=ranges",
        "/ssi/?r=ssi",
        "/unbuffered/?r=fields",
        "/10/?r=fields",
    ];
    let mut cases: Vec<Case> = targets.map(get).into();
    for target in targets {
        cases.push(ask("HEAD", target, &[]));
    }
    cases.push(get("/filtered/?r=ranges").differs("P2"));
    compare(cases);
}

#[test]
fn proxied_conditions_and_ranges_match_nginx() {
    compare(vec![
        ask("GET", "/a?r=fields", &[("If-None-Match", "\"e\"")]),
        ask("GET", "/a?r=fields", &[("If-Modified-Since", "Thu, 01 Jan 2026 00:00:00 GMT")]),
        ask("GET", "/a?r=fields", &[("If-Match", "\"x\"")]),
        ask("GET", "/a?r=ranges", &[("Range", "bytes=0-1")]),
        ask("GET", "/ranges/?r=ranges", &[("Range", "bytes=3-8")]),
        ask("GET", "/ranges/?r=fields", &[("Range", "bytes=-5")]),
        ask("GET", "/ranges/?r=ranges", &[("Range", "bytes=100-")]),
        // Fields unrelated to the content are retained; fields that would let a cache store the error are removed.
        ask("GET", "/ranges/?r=others", &[("Range", "bytes=100-")]),
        ask("GET", "/ranges/?r=fields", &[("Range", "bytes=100-")]).differs("H10"),
        ask("GET", "/ranges/?r=ranges", &[]),
        ask("GET", "/ranges/?r=404", &[("Range", "bytes=0-1")]),
        ask("HEAD", "/ranges/?r=ranges", &[("Range", "bytes=0-1")]),
        ask("GET", "/gunzip/?r=zipped", &[("Accept-Encoding", "gzip")]),
        ask("GET", "/cookies/?r=cookies", &[("X-Secure", "1")]),
        ask("GET", "/slash/?r=accel", &[("Range", "bytes=1-2")]),
        post("/slash/?r=accel", "body"),
    ]);
}

/// After a failure the page runs with the method and body that nginx gives it, whether or not a body was sent before.
#[test]
fn error_pages_after_bodies_match_nginx() {
    let origin = Origin::start(|request| match request.target.starts_with("/fails") {
        true => Reply::close(),
        false => Reply::text(shown(request)),
    });
    let dead = "127.0.0.1:1";
    let (live, site) = (origin.addr().to_string(), TempDir::new("proxied-pages"));
    site.write("page.txt", "page\n");
    let mut locations = String::new();
    let mut cases = Vec::new();
    for (upstream, to) in [("dead", dead), ("fails", &live)] {
        for buffering in ["on", "off"] {
            for (name, page) in [
                ("named", "= @passed"),
                ("status", "@passed"),
                ("unbuffered", "= @unbuffered"),
                ("uri", "= /passed"),
                ("file", "= /page.txt"),
                ("named-file", "= @file"),
                ("return", "= @returned"),
                ("code", "=200 /returned"),
            ] {
                let path = format!("/{upstream}/{buffering}/{name}/");
                locations += &format!(
                    "location {path} {{ error_page 502 {page}; proxy_request_buffering {buffering}; proxy_pass http://{to}/{upstream}/; }}\n"
                );
                let large = "x".repeat(300_000);
                cases.push(get(&format!("{path}a?b")));
                cases.extend(["body", ""].map(|body| post(&format!("{path}a?b"), body)));
                let case = post(&format!("{path}a?b"), &large);
                let is_passed = ["named", "status", "unbuffered", "uri"].contains(&name);
                cases.push(match (buffering, upstream) {
                    ("off", _) if is_passed => case.differs("P61"),
                    ("off", "dead") => case.differs_in_head("P62"),
                    _ => case,
                });
                cases.push(raw(format!(
                    "POST {path} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
                )));
            }
        }
    }
    let conf = format!(
        "worker_processes 1; events {{}} http {{ server_tokens off; default_type text/plain; proxy_http_version 1.1;
         proxy_set_header Connection \"\"; proxy_read_timeout 1s; proxy_temp_path ROOT/temp; client_body_temp_path ROOT/body;
         server {{ listen 127.0.0.1:0; root ROOT; {locations}
           location @passed {{ proxy_pass http://{live}; }}
           location @unbuffered {{ proxy_request_buffering off; proxy_pass http://{live}; }}
           location /passed {{ proxy_pass http://{live}; }}
           location @file {{ try_files /page.txt =404; }}
           location @returned {{ return 200 \"$request_method $uri $status\"; }}
           location /returned {{ return 200 \"$request_method $uri $status\"; }} }} }}"
    );
    beside::compare(&conf, &site, cases);
}
