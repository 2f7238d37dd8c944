//! The same requests to Debian's nginx and to this server ([`common::beside`]): limits, subrequests that decide on
//! access, statuses of `return`, and responses to old browsers.

use crate::common::beside::{self, Case, ask, get};
use testkit::TempDir;

const CONF: &str = r#"
worker_processes 1;
events {}
http {
    server_tokens off;
    default_type text/plain;
    limit_req_zone $arg_key zone=one:1m rate=1r/m;
    limit_req_zone $arg_other zone=other:1m rate=1r/m;
    limit_req_zone $arg_key zone=dry:1m rate=1r/m;
    limit_conn_zone $arg_key zone=held:1m;
    limit_conn_zone $arg_other zone=held2:1m;
    map $http_x_auth $decided { default 200; ~^(\d+)$ $1; }
    ssl_protocols TLSv1.2 TLSv1.3;
    ssl_prefer_server_ciphers on;
    ssl_session_timeout 5m;
    server {
        listen 127.0.0.1:0;
        root ROOT;
        ssl_session_tickets off;
        error_page 418 /page/;
        location /page/ { return 200 "page of $limit_req_status\n"; }
        location @show { limit_req_status 410; return 200 "$limit_req_status|$limit_conn_status\n"; }
        location /req/ { limit_req zone=one burst=1 nodelay; try_files /none @show; }
        location /req/strict/ { limit_req zone=one; limit_req_status 429; try_files /none @show; }
        location /req/page/ { limit_req zone=one; limit_req_status 418; try_files /none @show; }
        location /req/both/ { limit_req zone=one; limit_req zone=other; try_files /none @show; }
        location /req/delay/ { limit_req zone=one burst=9 delay=8; try_files /none @show; }
        location /req/dry/ { limit_req zone=dry burst=1; limit_req_dry_run on; try_files /none @show; }
        location /conn/ { limit_conn held 1; try_files /none @show; }
        location /conn/both/ { limit_conn held 1; limit_conn held2 1; limit_conn_dry_run on; try_files /none @show; }
        location = /ask {
            if ($decided = 200) { return 200; }
            if ($decided = 204) { add_header X-User "of $decided"; return 204; }
            if ($decided = 299) { return 299 "a text"; }
            if ($decided = 301) { return 301 /there; }
            if ($decided = 302) { return 302 http://there/; }
            if ($decided = 401) { return 401; }
            if ($decided = 403) { return 403; }
            if ($decided = 404) { return 404; }
            if ($decided = 444) { return 444; }
            return 500;
        }
        location @user { return 200 "for $user|$answered|$auth_uri\n"; }
        location /guarded/ {
            auth_request /ask;
            auth_request_set $user $sent_http_x_user;
            auth_request_set $answered $status;
            auth_request_set $auth_uri $uri;
            try_files /none @user;
            location /guarded/off/ { auth_request off; try_files /none @user; }
            location /guarded/own/ { auth_request_set $answered own; try_files /none @user; }
            location /guarded/any/ { satisfy any; deny all; try_files /none @user; }
            location /guarded/open/ { satisfy any; allow all; try_files /none @user; }
            location /guarded/shut/ { deny all; try_files /none @user; }
            location /guarded/page/ { error_page 401 403 500 =203 @user; try_files /none @user; }
            location /guarded/static/ { alias ROOT/; }
        }
        location /file-guard/ { auth_request /a.txt; try_files /none @user; }
        location /no-guard/ { auth_request /nowhere; try_files /none @user; }
        location /loop-guard/ { auth_request /loop-guard/; alias ROOT/; }
        location = /status { stub_status; default_type text/html; }
        location /rate/ { limit_rate $arg_r; limit_rate_after 1k; try_files /none @rate; }
        location @rate { return 200 "$limit_rate\n"; }
        location /set-rate/ { set $limit_rate 4k; set $limit_rate $arg_r; return 200 "$limit_rate\n"; }
        location /padded/ { return 404; }
        location /plain/ { msie_padding off; return 404; }
        location = /r204 { return 204 "a text"; }
        location = /r206 { return 206 "a text"; }
        location = /r226 { return 226; }
        location = /r303 { return 303 /there; }
        location = /r304 { return 304; }
        location = /r304t { return 304 "a text"; }
        location = /r305 { return 305 /there; }
        location = /r400 { return 400; }
        location = /r401 { return 401; }
        location = /r405 { return 405 ""; }
        location = /r408 { return 408; }
        location = /r408page { error_page 408 /page/; if ($arg_x) { return 499; } return 408; }
        location = /r412 { return 412; }
        location = /r416 { return 416; }
        location = /r494 { return 494; }
        location = /r497 { return 497; }
        location = /r499 { return 499 "a text"; }
        location = /r505 { return 505; }
        location = /r600 { return 600; }
        location = /r999 { return 999 "a text"; }
        location = /rempty { return 200 ""; }
        location = /runset { return 301 $http_none; }
    }
}
"#;

fn compare(cases: Vec<Case>) {
    let site = TempDir::new("limits");
    site.write("a.txt", "0123456789");
    site.write("guarded", "a file\n");
    beside::compare(CONF, &site, cases);
}

/// The cases run in the same order on both servers, so buckets fill equally; at one request per minute the drain during
/// the test is negligible.
#[test]
fn limits_match_nginx() {
    let long = "x".repeat(300);
    compare(vec![
        get("/req/"),
        get("/req/?key=a"),
        get("/req/?key=a"),
        get("/req/?key=a"),
        ask("HEAD", "/req/?key=a", &[]),
        get("/req/strict/?key=a"),
        get("/req/page/?key=a"),
        get("/req/strict/?key=b"),
        get("/req/strict/?key=b"),
        ask("POST", "/req/strict/?key=b", &[("Content-Length", "0")]),
        get("/req/both/?key=c&other=c"),
        get("/req/both/?key=c&other=d"),
        get("/req/both/?key=d&other=c"),
        get("/req/both/?key=d&other=e"),
        get("/req/both/?other=f"),
        get("/req/both/?key=g"),
        get("/req/delay/?key=h"),
        get("/req/delay/?key=h"),
        get("/req/dry/?key=a"),
        get("/req/dry/?key=a"),
        get("/req/dry/?key=a"),
        get("/conn/"),
        get("/conn/?key=a"),
        get("/conn/?key=a"),
        get(&format!("/conn/?key={long}")),
        get("/conn/both/?other=a"),
        get("/conn/both/"),
    ]);
}

#[test]
fn auth_request_matches_nginx() {
    let mut cases = Vec::new();
    for place in ["", "off/", "own/", "any/", "open/", "shut/", "page/", "static/a.txt"] {
        for status in ["200", "204", "299", "301", "302", "401", "403", "404", "444", "500"] {
            let target = format!("/guarded/{place}?x=1");
            let case = ask("GET", &target, &[("X-Auth", status)]);
            let asked = !matches!(place, "off/" | "open/" | "shut/");
            cases.push(if status == "444" && asked { case.differs("S8") } else { case });
        }
        let fields = [("X-Auth", "204"), ("Content-Length", "0")];
        cases.push(ask("POST", &format!("/guarded/{place}"), &fields));
        cases.push(ask("HEAD", &format!("/guarded/{place}"), &[("X-Auth", "401")]));
    }
    cases.extend([get("/file-guard/"), get("/no-guard/"), get("/loop-guard/a.txt"), get("/ask")]);
    compare(cases);
}

#[test]
fn status_page_and_old_browsers_match_nginx() {
    // After so few requests each counter has one digit.
    let mut cases = vec![
        ask("HEAD", "/status", &[]),
        ask("POST", "/status", &[("Content-Length", "0")]),
        ask("OPTIONS", "/status", &[]),
    ];
    for target in [
        "/r204",
        "/r206",
        "/r226",
        "/r303",
        "/r304",
        "/r304t",
        "/r305",
        "/r400",
        "/r401",
        "/r405",
        "/r408",
        "/r408page",
        "/r408page?x=1",
        "/r412",
        "/r416",
        "/r494",
        "/r497",
        "/r499",
        "/r505",
        "/r600",
        "/r999",
        "/rempty",
        "/runset",
    ] {
        cases.push(if target == "/r494" { get(target).differs("H5") } else { get(target) });
    }
    for rate in ["", "1k", "0", "x", "-1", "5m", "99999999999999999999"] {
        cases.push(get(&format!("/rate/?r={rate}")));
        cases.push(get(&format!("/set-rate/?r={rate}")));
    }
    for agent in [
        "Mozilla/4.0 (compatible; MSIE 6.0; X)",
        "Mozilla/4.0 (compatible; MSIE 5.0; X) Opera 8",
        "Mozilla/5.0 Chrome/5",
        "curl",
    ] {
        for target in ["/padded/", "/plain/", "/r303", "/r400", "/req/"] {
            cases.push(ask("GET", target, &[("User-Agent", agent)]));
        }
    }
    compare(cases);
}
