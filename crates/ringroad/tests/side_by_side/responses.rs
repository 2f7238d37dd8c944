//! The same requests to Debian's nginx and to this server ([`common::beside`]): files, locations, conditions, ranges,
//! connections, and refused requests. Other groups of modules have separate test files.

use std::path::Path;
use std::time::{Duration, SystemTime};

use crate::common::beside::{self, Case, ask, get, raw};
use testkit::{Content, TempDir};

/// Modification time of the files: Sun, 06 Nov 1994 08:49:37 GMT, the example of RFC 9110.
const MODIFIED: u64 = 784_111_777;
const MODIFIED_TEXT: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
const LATER_TEXT: &str = "Mon, 07 Nov 1994 08:49:37 GMT";
const EARLIER_TEXT: &str = "Sat, 05 Nov 1994 08:49:37 GMT";

/// The entity tag that nginx generates for that time and the ten bytes of `a.txt`.
const ETAG: &str = "\"2ebc98a1-a\"";

const CONF: &str = r#"
worker_processes 1;
events {}
http {
    server_tokens off;
    types { text/html html; text/plain txt; }
    default_type application/octet-stream;
    server {
        listen 127.0.0.1:0;
        root ROOT;
        location = /204 { return 204; }
        location = /200 { default_type text/plain; return 200 "text of $request_method\n"; }
        location = /301 { return 301 /there; }
        location = /302 { return 302 http://example.org/$request_uri; }
        location = /307 { return 307 /there?$args; }
        location = /308 { return 308 https://example.org/; }
        location = /403 { return 403; }
        location = /404 { return 404 "gone\n"; }
        location = /500 { return 500; }
        location = /503 { return 503; }
        location = /599 { return 599; }
        location = /url { return http://example.org/; }
        location = /close { return 444; }
        location = /vars {
            return 200 "$request_method|$uri|$args|$arg_a|$http_x_y|$host|$is_args|$server_protocol|$cookie_c\n";
        }
        location /try/ { try_files $uri $uri/ /index.html; }
        location /try404/ { try_files $uri =404; }
        location /named/ { try_files $uri @fallback; }
        location @fallback { return 200 "fallback $uri\n"; }
        location /alias/ { alias ROOT/dir/; }
        location ~ \.(foo|bar)$ { return 200 "pattern $1\n"; }
        location /internal/ { internal; }
        location /page/ { error_page 404 /page.html; }
        location /page200/ { error_page 404 =200 /page.html; }
        location /pageurl/ { error_page 404 http://example.org/x; }
        location /pagenamed/ { error_page 404 = @fallback; }
        location /deny/ { deny all; }
        location /only/ { limit_except GET { deny all; } alias ROOT/; }
        location /idle/ { keepalive_timeout 65 20; alias ROOT/; }
        location /once/ { keepalive_timeout 0; alias ROOT/; }
        location /untagged/ { etag off; alias ROOT/; }
        location /before/ { if_modified_since before; alias ROOT/; }
        location /relative/ { absolute_redirect off; alias ROOT/; }
        location /gif { empty_gif; if ($arg_expires) { expires 1h; } }
        location /list/ { autoindex on; index nope; alias ROOT/; }
        location /jsonp/ { autoindex on; index nope; autoindex_format jsonp; alias ROOT/; }
        location /cached/ { open_file_cache max=10; open_file_cache_errors on; alias ROOT/; }
        location /links/ { disable_symlinks on from=ROOT; alias ROOT/; }
        location /trystatic/ { try_files none /trystatic/a.txt a.txt =404; alias ROOT/; }
        location /trylast/ { try_files none $uri; alias ROOT/; }
        location ~ ^/tryalias/(.*)$ { try_files /$1 /$1/ /dir/$1 =405; alias ROOT; }
        location ~ ^/indexalias/(.*)$ { alias ROOT/$1; }
        location /unranged/ { max_ranges 0; alias ROOT/; }
        location /try444/ { try_files $uri =444; error_page 444 /page.html; }
        location = /first { error_page 404 /second; return 404; }
        location = /second { recursive_error_pages on; error_page 403 =200 /page.html; return 403; }
        rewrite ^/size/server$ /size/small last;
        location = /size/small { client_max_body_size 10; return 200 small; }
        location = /size/location { rewrite ^ /size/small last; }
        location = /size/files { try_files none /size/small; }
        location = /size/error { error_page 404 /size/small; return 404; }
        location = /size/named { try_files none @small; }
        location @small { client_max_body_size 10; return 200 named; }
        location = /size/later { try_files none @later; }
        location @later { client_max_body_size 10; rewrite ^ /size/small last; }
        location = /size/page { client_max_body_size 10; error_page 413 /size/text; }
        location = /size/text { client_max_body_size 10; return 200 text; }
        location = /size/again { client_max_body_size 10; error_page 413 @small; }
        location = /all { recursive_error_pages on; error_page 404 /second; return 404; }
    }
}
"#;

/// Returns a request for `a.txt` with these fields.
fn file_with(fields: &[(&str, &str)]) -> Case {
    ask("GET", "/a.txt", fields)
}

/// Creates the files that both servers serve: one directory, so that times and tags are equal.
fn site() -> TempDir {
    let dir = TempDir::new("site");
    for (name, text) in [
        ("a.txt", "0123456789"),
        ("empty.txt", ""),
        ("index.html", "<p>front</p>\n"),
        ("page.html", "<p>page</p>\n"),
        ("dir/index.html", "<p>dir</p>\n"),
        ("dir/b.txt", "b of dir\n"),
        ("try/there.txt", "there\n"),
        ("with space.txt", "spaced\n"),
        ("bare/nothing.txt", ""),
        ("none", "no extension\n"),
    ] {
        dir.write(name, text);
        set_time(&dir.path().join(name));
    }
    std::os::unix::fs::symlink("a.txt", dir.path().join("link")).expect("a link is made");
    std::os::unix::fs::symlink("dir", dir.path().join("linked")).expect("a link is made");
    let large = dir.path().join("large.bin");
    Content::new(3, 100_003).write_to(&large);
    set_time(&large);
    dir
}

fn set_time(path: &Path) {
    let file = std::fs::File::options().write(true).open(path).expect("it was just written");
    file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(MODIFIED)).expect("it is ours");
}

/// Sends the cases to both servers with the configuration and the files above.
fn compare(cases: Vec<Case>) {
    beside::compare(CONF, &site(), cases);
}

#[test]
fn files_and_directories_match_nginx() {
    compare(vec![
        get("/a.txt"),
        get("/empty.txt"),
        get("/none"),
        get("/large.bin"),
        get("/"),
        get("/dir/"),
        get("/dir"),
        get("/dir?a=b"),
        get("/bare/"),
        get("/missing"),
        get("/a.txt/"),
        get("/with%20space.txt"),
        get("/dir/../a.txt"),
        get("//dir//b.txt"),
        get("/%2e%2e/a.txt"),
        get("/../a.txt"),
        get("/a%00.txt"),
        get("/a.txt?x=y#z"),
        get("/%zz"),
        get("/alias/b.txt"),
        get("/alias/"),
        get("/alias/missing"),
        get("/relative/dir"),
        get("/untagged/a.txt"),
        ask("HEAD", "/a.txt", &[]),
        ask("HEAD", "/missing", &[]),
        ask("HEAD", "/dir", &[]),
        ask("POST", "/a.txt", &[("Content-Length", "0")]),
        ask("DELETE", "/a.txt", &[]),
        ask("PUT", "/missing", &[("Content-Length", "0")]),
        ask("OPTIONS", "/a.txt", &[]),
        ask("TRACE", "/a.txt", &[]),
        ask("POST", "/only/a.txt", &[("Content-Length", "0")]),
        ask("GET", "/only/a.txt", &[]),
    ]);
}

#[test]
fn locations_and_redirects_match_nginx() {
    compare(vec![
        get("/204"),
        get("/200"),
        ask("HEAD", "/200", &[]),
        ask("POST", "/200", &[("Content-Length", "0")]),
        get("/301"),
        get("/302?q"),
        get("/307?q=1"),
        get("/308"),
        get("/403"),
        get("/404"),
        get("/500"),
        get("/503"),
        get("/599"),
        get("/url"),
        get("/close"),
        ask("GET", "/vars?a=1&b=%20", &[("X-Y", "z"), ("Cookie", "b=1; c=2"), ("Host", "Example.ORG:80")]),
        get("/vars"),
        get("/try/there.txt"),
        get("/try/nothing"),
        get("/try404/nothing"),
        get("/named/nothing?x"),
        get("/some.foo"),
        get("/some.foox"),
        get("/internal/x"),
        get("/page/missing"),
        get("/page200/missing"),
        get("/pageurl/missing"),
        get("/pagenamed/missing"),
        get("/try444/missing"),
        get("/first"),
        get("/all"),
        get("/deny/x"),
    ]);
}

#[test]
fn empty_gif_and_listings_match_nginx() {
    compare(vec![
        get("/gif"),
        get("/gif?expires=1"),
        ask("HEAD", "/gif", &[]),
        ask("POST", "/gif", &[("Content-Length", "0")]),
        ask("GET", "/gif", &[("If-Modified-Since", "Mon, 28 Sep 1970 06:00:00 GMT")]),
        get("/list/").differs("H40"),
        ask("HEAD", "/list/", &[]),
        ask("POST", "/list/", &[("Content-Length", "0")]),
        get("/list/missing/"),
        get("/jsonp/?callback=a-b"),
        get("/cached/a.txt"),
        get("/cached/a.txt"),
        get("/cached/dir"),
        get("/cached/missing"),
        get("/cached/missing"),
        get("/links/a.txt"),
        get("/links/link"),
        get("/links/linked/b.txt"),
        get("/links/linked/"),
        get("/links/linked"),
        get("/trystatic/x"),
        get("/trylast/x"),
        get("/tryalias/a.txt"),
        get("/tryalias/b.txt"),
        get("/tryalias/dir"),
        get("/tryalias/missing"),
        get("/indexalias/dir/"),
        get("/indexalias/a.txt"),
    ]);
}

#[test]
fn conditional_requests_match_nginx() {
    let both = [("If-None-Match", ETAG), ("If-Modified-Since", EARLIER_TEXT)];
    let weak = format!("W/{ETAG}");
    let weak = weak.as_str();
    compare(vec![
        file_with(&[("If-Modified-Since", MODIFIED_TEXT)]),
        file_with(&[("If-Modified-Since", LATER_TEXT)]),
        file_with(&[("If-Modified-Since", "yesterday")]),
        ask("GET", "/before/a.txt", &[("If-Modified-Since", LATER_TEXT)]),
        file_with(&[("If-None-Match", ETAG)]),
        file_with(&[("If-None-Match", weak)]),
        file_with(&[("If-None-Match", "\"x\", *")]),
        file_with(&[("If-None-Match", "*")]),
        file_with(&[("If-None-Match", "\"x\"")]),
        file_with(&[("If-Match", ETAG)]),
        file_with(&[("If-Match", "\"x\"")]),
        file_with(&[("If-Unmodified-Since", EARLIER_TEXT)]),
        file_with(&[("If-Unmodified-Since", MODIFIED_TEXT)]),
        ask("HEAD", "/a.txt", &[("If-None-Match", ETAG)]),
        ask("POST", "/200", &[("Content-Length", "0"), ("If-None-Match", "*")]).differs("H18"),
        file_with(&both).differs("H1"),
        file_with(&[("If-Match", ETAG), ("If-Unmodified-Since", EARLIER_TEXT)]).differs("H2"),
        file_with(&[("If-Unmodified-Since", "yesterday")]).differs("H3"),
        file_with(&[("Range", "bytes=0-1"), ("If-Range", ETAG)]),
        file_with(&[("Range", "bytes=0-1"), ("If-Range", weak)]),
        file_with(&[("Range", "bytes=0-1"), ("If-Range", "\"x\"")]),
        file_with(&[("Range", "bytes=0-1"), ("If-Range", MODIFIED_TEXT)]),
        file_with(&[("Range", "bytes=0-1"), ("If-Range", LATER_TEXT)]),
    ]);
}

#[test]
fn ranges_match_nginx() {
    let range = |value: &str| file_with(&[("Range", value)]);
    compare(vec![
        range("bytes=0-0"),
        range("bytes=3-"),
        range("bytes=-3"),
        range("bytes=-300"),
        range("bytes=8-100"),
        range("bytes=10-"),
        range("bytes=-0"),
        range("bytes=5-4"),
        range("bytes=x-"),
        range("bytes="),
        range("lines=0-1"),
        range("bytes=0-1,3-4"),
        range("bytes=0-1, 8-, -1"),
        range("bytes=0-1,20-"),
        range("bytes=0-9,0-9,0-9"),
        ask("GET", "/large.bin", &[("Range", "bytes=65535-65537,100000-")]),
        ask("GET", "/empty.txt", &[("Range", "bytes=0-0")]),
        ask("GET", "/unranged/a.txt", &[("Range", "bytes=0-0")]),
        ask("HEAD", "/a.txt", &[("Range", "bytes=1-2")]),
        ask("GET", "/missing", &[("Range", "bytes=1-2")]),
    ]);
}

#[test]
fn connections_and_versions_match_nginx() {
    compare(vec![
        raw("GET /a.txt HTTP/1.0\r\n\r\n"),
        raw("GET /a.txt HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"),
        raw("GET /missing HTTP/1.0\r\n\r\n"),
        raw("GET /dir HTTP/1.0\r\n\r\n"),
        raw("HEAD /a.txt HTTP/1.0\r\n\r\n"),
        raw("GET /a.txt HTTP/1.1\r\n\r\n"),
        raw("GET /a.txt HTTP/1.2\r\nHost: a\r\n\r\n"),
        raw("GET /a.txt HTTP/2.0\r\nHost: a\r\n\r\n"),
        raw("GET http://other.example/vars HTTP/1.1\r\nHost: a\r\n\r\n"),
        raw("GET /a.txt HTTP/1.1\nHost: a\n\n"),
        raw("\r\nGET /a.txt HTTP/1.1\r\nHost: a\r\n\r\n"),
        ask("GET", "/a.txt", &[("Connection", "close")]),
        ask("GET", "/a.txt", &[("Connection", "keep-alive")]),
        get("/idle/a.txt"),
        get("/once/a.txt"),
        ask("GET", "/a.txt", &[("Expect", "100-continue")]).differs("H9"),
        ask("POST", "/200", &[("Content-Length", "5")]),
    ]);
}

#[test]
fn refused_head_requests_match_nginx() {
    let head = |lines: &str| raw(format!("HEAD /a.txt HTTP/1.1\r\n{lines}\r\n"));
    compare(vec![
        head(""),
        head("Host: a\r\nHost: b\r\n"),
        head("Host: a\r\nContent-Length: x\r\n"),
        head("Host: a\r\nTransfer-Encoding: gzip\r\n"),
        raw(format!("HEAD /{} HTTP/1.1\r\nHost: a\r\n\r\n", "x".repeat(9000))),
        raw("HEAD /a.txt HTTP/3.0\r\nHost: a\r\n\r\n"),
    ]);
}

/// More than `client_max_body_size` is discarded too.
#[test]
fn discarded_chunked_bodies_match_nginx() {
    let chunk = "x".repeat(60_000);
    let body: String = (0..20).map(|_| format!("{:x}\r\n{chunk}\r\n", chunk.len())).collect();
    compare(vec![raw(format!(
        "POST /403 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{body}0\r\n\r\n\
         GET /a.txt HTTP/1.1\r\nHost: a\r\n\r\n"
    ))]);
}

#[test]
fn body_sizes_after_redirects_match_nginx() {
    let targets = ["small", "server", "location", "files", "error", "named", "later", "page", "again"];
    let cases = targets.iter().flat_map(|target| {
        [5, 20].map(|length| {
            let body = "x".repeat(length);
            raw(format!("POST /size/{target} HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n{body}"))
        })
    });
    compare(cases.collect());
}

#[test]
fn refused_requests_match_nginx() {
    let with = |lines: &str| raw(format!("GET /a.txt HTTP/1.1\r\nHost: a\r\n{lines}\r\n"));
    let chunked = |body: &str| {
        raw(format!("POST /200 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{body}"))
    };
    compare(vec![
        raw("GARBAGE\r\n\r\n"),
        raw("GET /a.txt HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"),
        raw("GET  /a.txt  HTTP/1.1\r\nHost: a\r\n\r\n"),
        with("A B: x\r\n"),
        with("A : x\r\n"),
        with(" A: x\r\n"),
        with("A: x\0y\r\n"),
        with("Content-Length: x\r\n"),
        with("Content-Length: 1\r\nContent-Length: 1\r\n"),
        with("Content-Length: 1\r\nTransfer-Encoding: chunked\r\n"),
        with("Transfer-Encoding: gzip\r\n"),
        with("X_Y: z\r\nX@Y: z\r\n"),
        chunked("5\r\nhello\r\n0\r\n\r\n"),
        raw(format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "x".repeat(9000))),
        with("If-None-Match: \"a\"\r\nIf-None-Match: \"b\"\r\n"),
        with("User-Agent: a\r\nUser-Agent: b\r\n"),
        with("A: x\x01y\r\n").differs("R1"),
        with("A: x\x7fy\r\n").differs("R1"),
        with("A: x\ry\r\n"),
        with("A: x\r\r\n").differs("R2"),
        raw("\rGET /a.txt HTTP/1.1\r\nHost: a\r\n\r\n").differs("R3"),
        raw("GET /a.txt\r\n").differs("R4"),
        chunked("5\nhello\r\n0\r\n\r\n").differs("R5"),
        with("Content-Length: 1\r\nTransfer-Encoding: gzip\r\n").differs("R6"),
        with("Content-Length: \r\n"),
        raw("GET /a.txt HTTP/1.1\r\nHost: a:x\r\n\r\n").differs("R7"),
        raw("GET /a.txt HTTP/1.1\r\nHost: a b\r\n\r\n"),
        with(": x\r\n"),
        raw("GET /a.txt HTTP/1.1\r\n: x\r\nHost: a\r\n\r\n"),
        with(&format!("A: {}\r\n", "x".repeat(9000))).differs("H5"),
        raw("CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n").differs("H6"),
        raw("GET /vars HTTP/1.1\r\nHost: a\r\nX-Y: z \t\r\n\r\n").differs("H7"),
        raw("GET /vars HTTP/1.1\r\nHost: a\r\nX-Y\r\n\r\n"),
    ]);
}
