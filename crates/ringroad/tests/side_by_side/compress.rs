//! The same requests to Debian's nginx and to this server ([`common::beside`]): which responses are compressed for
//! which clients, and their heads. Each compressor generates different bytes, so only precompressed bodies are compared
//! here; `crates/server/tests/requests/compress.rs` decompresses the others.

use crate::common::beside::{self, Case, ask, raw};
use testkit::TempDir;

const CONF: &str = r#"
worker_processes 1;
events {}
http {
    server_tokens off;
    types { text/html html; text/css css; text/plain txt; }
    default_type application/octet-stream;
    gzip on;
    gzip_vary on;
    server {
        listen 127.0.0.1:0;
        root ROOT;
        location /css/ { alias ROOT/; gzip_types text/css; }
        location /all/ { alias ROOT/; gzip_types *; gzip_comp_level 9; gzip_window 4k; gzip_hash 8k; }
        location /min/ { alias ROOT/; gzip_min_length 1000; }
        location /none/ { alias ROOT/; gzip_min_length 0; }
        location /off/ { alias ROOT/; gzip off; gzip_vary off; }
        location /silent/ { alias ROOT/; gzip_vary off; }
        location /10/ { alias ROOT/; gzip_http_version 1.0; }
        location /old/ { alias ROOT/; gzip_disable msie6 ^bad; }
        location /any/ { alias ROOT/; gzip_proxied any; }
        location /auth/ { alias ROOT/; gzip_proxied auth; }
        location /date/ { alias ROOT/; gzip_proxied no_last_modified no_etag; }
        location /kept/ { alias ROOT/; gzip_proxied no-cache no-store private expired; expires 1h; }
        location /expired/ { alias ROOT/; gzip_proxied expired; expires -1h; }
        location /private/ { alias ROOT/; gzip_proxied private; add_header Cache-Control "max-age=1, private"; }
        location = /403 { return 403; }
        location = /500 { return 500; }
        location = /204 { return 204; }
        location = /200 { default_type text/html; return 200 "a text that is long enough to be compressed"; }
        location = /short { default_type text/html; return 200 "short"; }
        location /static/ { alias ROOT/; gzip off; gzip_static on; }
        location /static-silent/ { alias ROOT/; gzip off; gzip_vary off; gzip_static on; }
        location /always/ { alias ROOT/; gzip off; gzip_static always; }
        location /gunzip/ { alias ROOT/; gzip off; gzip_static always; gunzip on; }
        location /page/ { alias ROOT/; error_page 404 /a.html; }
    }
}
"#;

/// "compressed before" as gzip(1) writes it.
const BEFORE: &[u8] = &[
    0x1f, 0x8b, 0x08, 0x00, 0x00, 0x00, 0x00, 0x00, 0x02, 0xff, 0x4b, 0xce, 0xcf, 0x2d, 0x28, 0x4a, 0x2d,
    0x2e, 0x4e, 0x4d, 0x51, 0x48, 0x4a, 0x4d, 0xcb, 0x2f, 0x4a, 0x05, 0x00, 0xa5, 0xe4, 0x92, 0xfe, 0x11,
    0x00, 0x00, 0x00,
];

/// Creates the files that both servers serve.
fn site() -> TempDir {
    let dir = TempDir::new("site");
    let page = "<p>A page that is long enough to be compressed.</p>\n".repeat(10);
    for name in ["a.html", "a.css", "a.txt", "a.bin"] {
        dir.write(name, &page);
    }
    dir.write("empty.html", "");
    dir.write("before.html", "the original");
    dir.write("before.html.gz", BEFORE);
    dir.dir("folder.html.gz");
    dir.write("folder.html", "beside a folder");
    dir.write("only.html.gz", BEFORE);
    dir
}

fn compare(cases: Vec<Case>) {
    beside::compare(CONF, &site(), cases);
}

/// Returns a HEAD request: these cases are compared by their heads only, as HEAD has no body that could differ.
fn head(target: &str, fields: &[(&str, &str)]) -> Case {
    ask("HEAD", target, &[&[("Accept-Encoding", "gzip, deflate, br")], fields].concat())
}

fn accepting(target: &str, accepted: &str) -> Case {
    ask("HEAD", target, &[("Accept-Encoding", accepted)])
}

#[test]
fn compressed_responses_and_settings_match_nginx() {
    compare(vec![
        head("/a.html", &[]),
        head("/a.css", &[]),
        head("/a.txt", &[]),
        head("/css/a.css", &[]),
        head("/css/a.html", &[]),
        head("/css/a.txt", &[]),
        head("/all/a.bin", &[]),
        head("/all/a.txt", &[]),
        head("/min/a.html", &[]),
        head("/empty.html", &[]),
        head("/none/empty.html", &[]),
        head("/off/a.html", &[]),
        head("/silent/a.html", &[]),
        head("/403", &[]),
        head("/404", &[]),
        head("/500", &[]),
        head("/204", &[]),
        head("/200", &[]),
        head("/short", &[]),
        head("/page/none", &[]),
        head("/a.html", &[("Range", "bytes=0-9")]),
        head("/a.html", &[("If-None-Match", "*")]).differs("H54"),
        head("/a.html", &[("If-Match", "\"x\"")]),
        ask("GET", "/a.html", &[]),
        ask("GET", "/none/empty.html", &[]),
        ask("POST", "/a.html", &[("Accept-Encoding", "gzip"), ("Content-Length", "0")]),
    ]);
}

#[test]
fn accept_encoding_matches_nginx() {
    let words = [
        "gzip",
        "GZIP",
        "gzip;q=1",
        "gzip;q=0",
        "gzip; q=0.0",
        "gzip;q=0.001",
        "gzip;q=1.000",
        "gzip;q=1.001",
        "gzip;q=2",
        "gzip;q=",
        "gzip;q",
        "gzip;",
        "gzip ; Q=0.5",
        "gzip;x=1",
        "gzip;q=0.1234",
        "gzip;q=0.5x",
        "gzip;q=0.",
        "gzip;q=1.",
        "*",
        "identity",
        "deflate,gzip",
        "x-gzip",
        "xgzip",
        "gzipx",
        "xgzip, gzip",
        "gzip, gzip;q=0",
        "gzip;q=0, gzip",
        "xgzipgzip",
        "gz",
        "",
    ];
    compare(words.iter().map(|accepted| accepting("/a.html", accepted)).collect());
}

#[test]
fn compression_for_proxies_versions_and_browsers_matches_nginx() {
    let via = ("Via", "1.1 proxy");
    let agent = |agent| [("User-Agent", agent)];
    let mut cases = vec![
        head("/a.html", &[via]),
        head("/any/a.html", &[via]),
        head("/any/a.html", &[("Cache-Control", "no-transform")]).differs("H58"),
        head("/auth/a.html", &[via]),
        head("/auth/a.html", &[via, ("Authorization", "Basic eDp5")]),
        head("/date/a.html", &[via]),
        head("/date/404", &[via]),
        head("/kept/a.html", &[via]),
        head("/expired/a.html", &[via]),
        head("/private/a.html", &[via]),
        head("/private/404", &[via]),
        head("/old/a.html", &agent("Mozilla/4.0 (compatible; MSIE 6.0; Windows NT 5.1)")),
        head("/old/a.html", &agent("Mozilla/4.0 (compatible; MSIE 6.0; Windows NT 5.1; SV1)")),
        head("/old/a.html", &agent("Mozilla/4.0 (compatible; MSIE 7.0; Windows NT 6.0)")),
        head("/old/a.html", &agent("BADLY")),
        head("/a.html", &agent("badly")),
    ];
    for target in ["/a.html", "/10/a.html"] {
        for keep in ["", "Connection: keep-alive\r\n"] {
            cases.push(raw(format!("HEAD {target} HTTP/1.0\r\n{keep}Accept-Encoding: gzip\r\n\r\n")));
        }
    }
    compare(cases);
}

#[test]
fn precompressed_files_match_nginx() {
    let mut cases = Vec::new();
    for folder in ["static", "static-silent", "always", "gunzip"] {
        for name in ["before.html", "a.html", "folder.html", "only.html", "none.html", "", "before.html/"] {
            for accepted in ["gzip", "x"] {
                let target = format!("/{folder}/{name}");
                let is_compressed = ["before.html", "only.html"].contains(&name)
                    && (accepted == "gzip" || folder == "always");
                for method in ["GET", "HEAD"] {
                    let case = ask(method, &target, &[("Accept-Encoding", accepted)]);
                    cases.push(if is_compressed { case.differs("Z1") } else { case });
                }
            }
        }
    }
    let with = |target: &str, field: (&'static str, &'static str)| {
        ask("GET", target, &[("Accept-Encoding", "gzip"), field])
    };
    cases.extend([
        with("/static/before.html", ("Range", "bytes=0-1")).differs("Z1"),
        with("/static/before.html", ("Range", "bytes=0-1,4-5")).differs("Z1"),
        with("/static/before.html", ("If-None-Match", "*")),
        with("/static/before.html", ("If-Match", "\"x\"")),
        with("/static/before.html", ("Content-Length", "0")).differs("Z1"),
        ask("POST", "/static/before.html", &[("Accept-Encoding", "gzip"), ("Content-Length", "0")]),
        ask("GET", "/gunzip/before.html", &[("Range", "bytes=0-1")]),
        ask("GET", "/gunzip/before.html", &[("If-None-Match", "*")]).differs("H54"),
    ]);
    compare(cases);
}
