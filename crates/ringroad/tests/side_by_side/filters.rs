//! The same requests to Debian's nginx and to this server ([`common::beside`]): added fields, charsets, replaced and
//! added text.

use std::time::{Duration, SystemTime};

use crate::common::beside::{self, Case, ask, get, raw};
use testkit::TempDir;

const CONF: &str = r#"
worker_processes 1;
events {}
http {
    server_tokens off;
    types { text/html html; text/plain txt; text/css css; image/png png; }
    default_type application/octet-stream;
    charset_map koi8-r utf-8 { C1 D0B0; C2 D0B1; 80 E29480; }
    charset_map koi8-r windows-1251 { C1 E0; C2 E1; }
    map $uri $nothing { default ""; }
    server {
        listen 127.0.0.1:0;
        root ROOT;
        location /fields/ {
            alias ROOT/;
            add_header X-A "$uri|$args"; add_header X-B b always; add_header X-Empty $arg_none;
            add_header Cache-Control public; add_header Cache-Control no-transform; add_header Link a; add_header Link b;
            error_page 404 /fields/a.html;
            location /fields/own/ { alias ROOT/; add_header X-C c; }
            location /fields/none/ { alias ROOT/; expires max; }
        }
        location = /seen { add_header X-A "$sent_http_content_type|$sent_http_content_length|$sent_http_last_modified|$sent_http_location|$sent_http_connection"; add_header X-B $sent_http_x_a; return 200 text; }
        location = /created { add_header Location /new; return 201 text; }
        location = /moved { add_header X-A a; return 301 /there; }
        location = /see { add_header X-A a; return 303 /there; }
        location = /nocontent { add_header X-A a; return 204 text; }
        location = /refused { add_header X-A a; add_header X-B b always; return 403; }
        location = /text { default_type text/html; return 200 "one text"; }
        location /validators/ { alias ROOT/; add_header ETag '"own"'; add_header Last-Modified "Mon, 07 Nov 1994 08:49:37 GMT"; }
        location /bare/ { alias ROOT/; add_header ETag $nothing; add_header Last-Modified $nothing; }
        location /nodate/ { alias ROOT/; add_header Last-Modified never; }
        location /epoch/ { alias ROOT/; expires epoch; add_header Cache-Control x; }
        location /max/ { alias ROOT/; expires max; error_page 404 /a.html; }
        location /past/ { alias ROOT/; expires modified -1h; }
        location /old/ { alias ROOT/; expires modified +1y; }
        location /never/ { alias ROOT/; expires $arg_e; }
        location /trailers/ { alias ROOT/; add_trailer X-T "$status"; }
        location /utf8/ { alias ROOT/; charset utf-8; }
        location /utf8/text { charset UTF-8; default_type text/plain; return 200 text; }
        location /utf8/moved { charset utf-8; return 302 /there; }
        location /types/ { alias ROOT/; charset utf-8; charset_types text/css; }
        location /alltypes/ { alias ROOT/; charset utf-8; charset_types *; }
        location /twice/ { alias ROOT/; default_type "text/plain; charset=x"; types { } charset utf-8; charset_types "text/plain; charset=x"; }
        location /recode/ { alias ROOT/; source_charset koi8-r; charset utf-8; }
        location /bytes/ { alias ROOT/; source_charset koi8-r; charset windows-1251; }
        location /back/ { alias ROOT/; source_charset utf-8; charset koi8-r; }
        location /list/ { alias ROOT/list/; autoindex on; autoindex_format xml; source_charset koi8-r; charset windows-1251; }
        location /listed/ { alias ROOT/list/; autoindex on; autoindex_format xml; charset koi8-r; override_charset on; }
        location /unknown/ { alias ROOT/; source_charset koi8-r; charset $arg_charset; }
        location /sub/ { alias ROOT/; sub_filter one "[$uri]"; sub_filter '<P>' '<b>'; }
        location /suball/ { alias ROOT/; sub_filter one 1; sub_filter text 2; sub_filter_once off; sub_filter_last_modified on; sub_filter_types *; }
        location /subvar/ { alias ROOT/; sub_filter $arg_from x; sub_filter_once off; }
        location /subempty { default_type text/html; sub_filter a b; return 200; }
        location /subcharset/ { alias ROOT/; sub_filter one 1; source_charset koi8-r; charset utf-8; }
        location /around/ { alias ROOT/; add_before_body /before; add_after_body /after.html; add_header X-A a; }
        location /after/ { alias ROOT/; add_after_body /after.html; addition_types text/plain; }
        location /lost/ { alias ROOT/; add_before_body /missing; add_after_body /deny; }
        location /mixed/ { alias ROOT/; add_before_body /koi; add_after_body /after.html; source_charset koi8-r; charset utf-8; sub_filter one 1; sub_filter_once off; }
        location /included/ { alias ROOT/; ssi on; sub_filter one 1; sub_filter_once off; source_charset koi8-r; charset utf-8; add_before_body /koi; add_header X-A a; add_trailer X-T $uri; }
        location /commands/ { alias ROOT/; ssi on; sub_filter '<#' '<!--#'; sub_filter '#>' '-->'; sub_filter_once off; add_after_body /after.html; }
        location /paged/ { alias ROOT/; error_page 412 416 /page; }
        location /again/ { alias ROOT/; error_page 412 416 =200 /a.html; }
        location /named/ { alias ROOT/; error_page 412 416 = @page; }
        location = /page { add_header X-B b always; return 200 "page of $status"; }
        location @page { add_header X-B b always; return 202 "page of $status"; }
        error_page 400 /page;
        location = /emptyaround { default_type text/html; add_before_body /before; add_after_body /after.html; return 200; }
        location = /before { default_type text/plain; return 200 "before $uri|"; }
        location = /koi { default_type text/plain; source_charset koi8-r; alias ROOT/koi.txt; }
        location = /deny { deny all; }
        location = /after.html { sub_filter one 3; }
    }
}
"#;

/// The client demands an unchanged body.
const NO_TRANSFORM: [(&str, &str); 1] = [("Cache-Control", "no-transform")];

/// Creates files that do not change, so that both servers report the same times.
fn site() -> TempDir {
    let dir = TempDir::new("filters");
    let files: [(&str, &[u8]); 13] = [
        ("a.html", b"<p>one ONE one text</p><p>"),
        ("a.txt", b"one text"),
        ("a.css", b"one {}"),
        ("a.png", b"one"),
        ("plain", b"one text"),
        ("empty.html", b""),
        ("after.html", b"|after one"),
        ("koi.txt", b"a\xc1\xc2\x80\xff<one>"),
        ("koi.html", b"a\xc1\xc2\x80\xff<one>"),
        ("ssi.html", b"\xc1<!--# include virtual=\"/koi\" -->one<!--# include virtual=\"/sub/a.html\" --><!--# echo var=\"uri\" -->"),
        ("made.html", b"<# echo var=\"uri\" #>!<# include virtual=\"/before\" #>"),
        ("list/\u{430}\u{44f}", b""),
        ("utf.txt", "a\u{430}\u{431}\u{2500}\u{44f}\u{1f600}b".as_bytes()),
    ];
    for (name, bytes) in files {
        dir.write(name, bytes);
        let file =
            std::fs::File::options().write(true).open(dir.path().join(name)).expect("it was just written");
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
        file.set_modified(time).expect("it is ours");
    }
    dir
}

fn compare(cases: Vec<Case>) {
    beside::compare(CONF, &site(), cases);
}

/// Returns a request for a range of a file.
fn range(target: &str, range: &str) -> Case {
    ask("GET", target, &[("Range", range)])
}

#[test]
fn header_filters_match_nginx() {
    let tag = [("If-None-Match", "\"own\"")];
    compare(vec![
        get("/fields/a.html?x"),
        ask("HEAD", "/fields/a.html", &[]),
        ask("GET", "/fields/a.html", &[("If-Modified-Since", "Sun, 06 Nov 1994 08:49:37 GMT")]),
        get("/fields/missing"),
        get("/fields/own/a.html"),
        get("/fields/own/missing"),
        get("/fields/none/a.html"),
        range("/fields/a.html", "bytes=0-1"),
        range("/fields/a.html", "bytes=100-").differs("H10"),
        ask("GET", "/fields/a.html", &[("If-Match", "\"x\"")]),
        raw("GET /fields/a.html HTTP/1.0\r\n\r\n"),
        ask("GET", "/paged/a.html", &[("If-Match", "\"x\"")]),
        ask("GET", "/again/a.html", &[("If-Match", "\"x\"")]).differs("H17"),
        ask("GET", "/named/a.html", &[("If-Match", "\"x\"")]),
        range("/paged/a.txt", "bytes=100-").differs("H10"),
        raw("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"),
        raw("GET /%zz HTTP/1.1\r\nHost: a\r\n\r\n"),
        raw("GET / HTTP/1.1\r\n\r\n"),
        raw("GET / HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n"),
        raw("BROKEN\r\n\r\n"),
        get("/seen"),
        get("/created"),
        get("/moved"),
        get("/see"),
        get("/nocontent"),
        get("/refused"),
        get("/validators/a.html"),
        ask("GET", "/validators/a.html", &tag),
        ask("GET", "/validators/a.html", &[("Range", "bytes=0-1"), ("If-Range", "\"own\"")]),
        get("/bare/a.html"),
        get("/nodate/a.html"),
        get("/epoch/a.html"),
        get("/epoch/missing"),
        get("/max/a.html"),
        get("/max/missing"),
        get("/past/a.html"),
        get("/old/a.html"),
        get("/never/a.html"),
        get("/never/a.html?e=epoch"),
        get("/never/a.html?e=max"),
        get("/never/a.html?e=wrong"),
        get("/never/a.html?e=off"),
        get("/trailers/a.html"),
        get("/trailers/missing"),
        ask("HEAD", "/trailers/a.html", &[]),
        raw("GET /trailers/a.html HTTP/1.0\r\n\r\n"),
    ]);
}

#[test]
fn charsets_match_nginx() {
    compare(vec![
        get("/utf8/a.html"),
        get("/utf8/a.png"),
        get("/utf8/text"),
        get("/utf8/moved"),
        get("/utf8/missing"),
        range("/utf8/a.html", "bytes=0-1"),
        ask("GET", "/utf8/a.html", &NO_TRANSFORM),
        ask("GET", "/recode/koi.txt", &NO_TRANSFORM).differs("H58"),
        range("/utf8/a.html", "bytes=0-1,3-4"),
        range("/utf8/a.html", "bytes=100-"),
        range("/utf8/a.png", "bytes=100-"),
        ask("GET", "/utf8/a.html", &[("If-Modified-Since", "Sun, 06 Nov 1994 08:49:37 GMT")]),
        get("/types/a.css"),
        get("/types/a.html"),
        get("/types/a.txt"),
        get("/alltypes/a.png"),
        get("/alltypes/plain"),
        get("/twice/plain"),
        get("/recode/koi.txt"),
        get("/recode/empty.html"),
        get("/recode/a.png"),
        get("/recode/missing"),
        ask("HEAD", "/recode/koi.txt", &[]),
        range("/recode/koi.txt", "bytes=0-1"),
        raw("GET /recode/koi.txt HTTP/1.0\r\n\r\n"),
        raw("GET /recode/koi.txt HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"),
        get("/bytes/koi.txt"),
        ask("HEAD", "/bytes/koi.txt", &[]),
        range("/bytes/koi.txt", "bytes=1-2"),
        range("/bytes/koi.txt", "bytes=1-2,4-"),
        raw("GET /bytes/koi.txt HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"),
        get("/back/utf.txt"),
        get("/back/koi.txt").differs("H14"),
        get("/list/").differs("H40"),
        get("/listed/"),
        get("/unknown/koi.txt?charset=x"),
        get("/unknown/koi.txt?charset=KOI8-R"),
        get("/unknown/koi.txt").differs("H15"),
    ]);
}

#[test]
fn body_filters_match_nginx() {
    let since = [("If-Modified-Since", "Sun, 06 Nov 1994 08:49:37 GMT")];
    compare(vec![
        get("/sub/a.html"),
        get("/sub/a.txt"),
        get("/sub/empty.html"),
        get("/sub/missing"),
        ask("HEAD", "/sub/a.html", &[]),
        ask("GET", "/sub/a.html", &since).differs("H54"),
        range("/sub/a.html", "bytes=0-1"),
        ask("GET", "/sub/a.html", &NO_TRANSFORM).differs("H58"),
        ask("GET", "/around/a.html", &NO_TRANSFORM).differs("H58"),
        raw("GET /sub/a.html HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"),
        get("/suball/a.html"),
        get("/suball/a.png"),
        get("/suball/plain"),
        ask("GET", "/suball/a.html", &[("If-None-Match", "W/\"2ebc98a1-1a\"")]),
        get("/subvar/a.html?from=ONE"),
        get("/subvar/a.html?from="),
        get("/subempty"),
        get("/subcharset/koi.html"),
        get("/around/a.html"),
        get("/around/a.txt"),
        get("/around/empty.html"),
        get("/around/missing"),
        ask("HEAD", "/around/a.html", &[]),
        ask("GET", "/around/a.html", &since).differs("H54"),
        range("/around/a.html", "bytes=0-1"),
        raw("GET /around/a.html HTTP/1.0\r\n\r\n"),
        get("/after/a.txt"),
        get("/after/a.html"),
        get("/lost/a.html"),
        get("/emptyaround"),
        get("/mixed/koi.html"),
        get("/included/ssi.html"),
        ask("HEAD", "/included/ssi.html", &[]),
        range("/included/ssi.html", "bytes=0-1"),
        get("/commands/made.html"),
        ask("POST", "/text", &[("Content-Length", "0")]),
    ]);
}
