//! Tests `gzip`, `brotli`, `zstd`, `gunzip` and the modules for precompressed files, over a socket.

use std::io::Read;

use crate::support::Site;
use testkit::Response;
use testkit::response::BodyLength;

/// Returns text that compresses as pages do, with numbers so that no two lines are equal.
fn text(len: usize) -> Vec<u8> {
    let lines =
        (0u64..).map(|line| format!("<p class=\"line\">{} is line {line}</p>\n", line * 7919 % 10_007));
    let mut text: Vec<u8> = lines.take(len / 30 + 1).flat_map(String::into_bytes).collect();
    text.truncate(len);
    text
}

/// Returns the decoded body.
fn body(response: &Response) -> Vec<u8> {
    match response.field("Content-Encoding") {
        None => response.body.clone(),
        Some("gzip") => gunzip(&response.body),
        Some("br") => {
            let mut body = Vec::new();
            brotli::Decompressor::new(&response.body[..], 4096).read_to_end(&mut body).expect("it is brotli");
            body
        }
        Some("zstd") => {
            let mut context = zstd_safe::DCtx::create();
            let (mut body, mut from) = (Vec::new(), zstd_safe::InBuffer::around(&response.body));
            loop {
                body.reserve(1 << 16);
                let start = body.len();
                let mut to = zstd_safe::OutBuffer::around_pos(&mut body, start);
                if context.decompress_stream(&mut to, &mut from).expect("it is zstd") == 0 {
                    return body;
                }
            }
        }
        Some(other) => panic!("Content-Encoding: {other}"),
    }
}

fn gunzip(bytes: &[u8]) -> Vec<u8> {
    let mut inflate = flate2::Decompress::new_gzip(15);
    let mut body = Vec::new();
    loop {
        body.reserve(1 << 16);
        let taken = inflate.total_in() as usize;
        let status = inflate.decompress_vec(&bytes[taken..], &mut body, flate2::FlushDecompress::None);
        match status.expect("it is gzip") {
            flate2::Status::StreamEnd => break,
            _ => assert!(
                (inflate.total_in() as usize) < bytes.len() || body.len() == body.capacity(),
                "it is complete"
            ),
        }
    }
    assert_eq!(inflate.total_in(), bytes.len() as u64, "nothing follows");
    body
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut deflate = flate2::Compress::new_gzip(flate2::Compression::new(6), 15);
    let mut out = Vec::with_capacity(bytes.len() + 100);
    let status = deflate.compress_vec(bytes, &mut out, flate2::FlushCompress::Finish);
    assert_eq!(status.expect("it compresses"), flate2::Status::StreamEnd);
    out
}

fn accepting(site: &Site, target: &str, accepted: &str) -> Response {
    site.client().request("GET", target, &[("Accept-Encoding", accepted)])
}

/// Returns status, coding, `Vary`, and whether there is a length.
fn head(response: &Response) -> (u16, Option<&str>, Option<&str>, bool) {
    let coding = response.field("Content-Encoding");
    (response.status, coding, response.field("Vary"), response.field("Content-Length").is_some())
}

const SIZES: &[usize] = &[0, 1, 19, 20, 21, 5000, (64 << 10) - 1, 64 << 10, (64 << 10) + 1, 1 << 20];

#[test]
fn files_of_all_sizes_are_served_in_all_codings() {
    let site = Site::start(
        "codings",
        "access_log off; root .; types { text/html html; application/x-noise noise; }
         gzip on; gzip_min_length 0; gzip_types *; brotli on; brotli_min_length 0; brotli_types *;
         zstd on; zstd_min_length 0; zstd_types *;
         server { listen 127.0.0.1:PORT; location /high { alias ./; gzip_comp_level 9; brotli_comp_level 9; zstd_comp_level 12; }
           location /low { alias ./; gzip_comp_level 1; brotli_comp_level 1; zstd_comp_level -3; } }",
    );
    for &size in SIZES {
        let text = text(size);
        let noise: Vec<u8> = testkit::Content::new(size as u64 + 1, size as u64).bytes(0..size as u64);
        site.folder.write(&format!("{size}.html"), &text);
        site.folder.write(&format!("{size}.noise"), &noise);
        for coding in ["gzip", "br", "zstd"] {
            // One connection for all: the next response shows that the previous one ended correctly.
            let mut client = site.client();
            for (name, expected) in [("html", &text), ("noise", &noise)] {
                for folder in ["", "/high", "/low"] {
                    let target = format!("{folder}/{size}.{name}");
                    let response = client.request("GET", &target, &[("Accept-Encoding", coding)]);
                    assert_eq!(head(&response), (200, Some(coding), None, false), "{target}");
                    assert_eq!(response.length, BodyLength::Chunked, "{target}");
                    assert!(body(&response) == *expected, "{target} in {coding} comes back");
                    if name == "html" && size > 5000 {
                        assert!(response.body.len() < size / 2, "{target} is {} bytes", response.body.len());
                    }
                }
            }
        }
    }
}

/// The encoder of a large body is recycled for the next one, whose positions are other ones.
#[test]
fn a_small_page_after_a_large_one_is_complete_at_all_levels_of_brotli() {
    let levels =
        (0..=11).map(|level| format!("location /{level}/ {{ alias ./; brotli_comp_level {level}; }}"));
    let http = format!(
        "access_log off; types {{ text/html html; }} brotli on; server {{ listen 127.0.0.1:PORT; {} }}",
        levels.collect::<String>()
    );
    let site = Site::start("recycled", &http);
    let pages = [("big", text(100_000)), ("small", text(1000))];
    for (name, text) in &pages {
        site.folder.write(&format!("{name}.html"), text);
    }
    for level in 0..=11 {
        for (name, expected) in &pages {
            let target = format!("/{level}/{name}.html");
            let response = accepting(&site, &target, "br");
            assert_eq!(head(&response).1, Some("br"), "{target}");
            assert!(body(&response) == *expected, "{target}");
        }
    }
}

#[test]
fn the_first_coding_accepted_by_the_client_is_used() {
    let site = Site::start(
        "choice",
        "access_log off; gzip on; brotli on; zstd on; default_type text/html;
         server { listen 127.0.0.1:PORT; location / { return 200 \"a body that is long enough\"; }
           location /gzip { brotli off; zstd off; return 200 \"a body that is long enough\"; } }",
    );
    let coding = |target: &str, accepted: &str| {
        let response = accepting(&site, target, accepted);
        assert_eq!(body(&response), b"a body that is long enough");
        response.field("Content-Encoding").map(str::to_owned)
    };
    for (accepted, expected) in [
        ("gzip, deflate, br, zstd", Some("zstd")),
        ("gzip, deflate, br, zstd;q=0", Some("br")),
        ("br;q=0, gzip", Some("gzip")),
        ("br; q=0.000, zstd;q=0.0, gzip;q=0", None),
        ("deflate", None),
        ("*", None),
        ("", None),
        ("GZIP", Some("gzip")),
        ("gzip;q=0.001", Some("gzip")),
        ("zstdx, br", Some("br")),
    ] {
        assert_eq!(coding("/", accepted).as_deref(), expected, "{accepted:?}");
    }
    assert_eq!(coding("/gzip", "br, zstd"), None);
    assert_eq!(coding("/gzip", "br, gzip").as_deref(), Some("gzip"));
}

#[test]
fn only_eligible_responses_are_compressed() {
    let site = Site::start(
        "eligible",
        "access_log off; root .; gzip on; gzip_vary on; types { text/html html; text/css css; text/plain txt; }
         server { listen 127.0.0.1:PORT;
           location /css { alias ./; gzip_types text/css; location /css/html { alias ./; gzip_types text/plain; } }
           location /min { alias ./; gzip_min_length 6000; } location /off { alias ./; gzip off; gzip_vary off; }
           location /all { alias ./; gzip_types *; }
           location = /403 { return 403; } location = /500 { return 500; } location = /404 { return 404 \"<p>nothing is here at all</p>\"; }
           location = /204 { return 204; } location = /201 { return 201 \"a body that is long enough\"; } }",
    );
    let page = text(5000);
    for name in ["a.html", "a.css", "a.txt"] {
        site.folder.write(name, &page);
    }
    let (vary, gzip) = (Some("Accept-Encoding"), Some("gzip"));
    let plain = (200, None, None, true);
    for (target, expected) in [
        ("/a.html", (200, gzip, vary, false)),
        ("/a.css", plain),
        ("/css/a.css", (200, gzip, vary, false)),
        ("/css/a.html", (200, gzip, vary, false)),
        ("/css/a.txt", plain),
        ("/css/html/a.txt", (200, gzip, vary, false)),
        ("/css/html/a.css", plain),
        ("/min/a.html", plain),
        ("/off/a.html", plain),
        ("/all/a.txt", (200, gzip, vary, false)),
        ("/403", (403, gzip, vary, false)),
        ("/404", (404, None, None, true)),
        ("/none", (404, gzip, vary, false)),
        ("/500", (500, None, None, true)),
        ("/204", (204, None, None, false)),
        ("/201", (201, None, None, true)),
    ] {
        assert_eq!(head(&accepting(&site, target, "gzip")), expected, "{target}");
    }
    // The response depends on `Accept-Encoding`, even if that is absent.
    assert_eq!(head(&site.get("/a.html")), (200, None, vary, true));
    assert!(body(&accepting(&site, "/a.html", "gzip")) == page);
    // A compressed version has a weak entity tag and no ranges.
    let whole = site.get("/a.html");
    let response =
        site.client().request("GET", "/a.html", &[("Accept-Encoding", "gzip"), ("Range", "bytes=0-9")]);
    assert_eq!(head(&response), (200, gzip, vary, false));
    assert_eq!(response.field("ETag"), whole.field("ETag").map(|tag| format!("W/{tag}")).as_deref());
    assert_eq!(response.field("Last-Modified"), whole.field("Last-Modified"));
    assert_eq!((response.field("Accept-Ranges"), whole.field("Accept-Ranges")), (None, Some("bytes")));
    // A conditional request matches the weak entity tag too.
    let tag = response.field("ETag").expect("it has one").to_owned();
    let fields = [("Accept-Encoding", "gzip"), ("If-None-Match", tag.as_str())];
    let response = site.client().request("GET", "/a.html", &fields);
    assert_eq!(head(&response), (304, None, vary, false), "`Vary` as in the 200");
    assert_eq!(response.field("ETag"), Some(tag.as_str()));
}

#[test]
fn compression_depends_on_versions_proxies_and_browsers() {
    let site = Site::start(
        "clients",
        "access_log off; gzip on; root .; default_type text/html;
         server { listen 127.0.0.1:PORT; location / { } location /10 { alias ./; gzip_http_version 1.0; }
           location /old { alias ./; gzip_disable msie6 \"^bad[0-9]\"; location /old/new { alias ./; gzip_disable ^other; } }
           location /any { alias ./; gzip_proxied any; } location /auth { alias ./; gzip_proxied auth; }
           location /date { alias ./; gzip_proxied no_last_modified; } location /tag { alias ./; gzip_proxied no_etag; etag off; }
           location /expired { alias ./; gzip_proxied expired no-cache no-store private; } }",
    );
    let page = text(5000);
    site.folder.write("a", &page);
    let coded = |target: &str, fields: &[(&str, &str)]| {
        let response =
            site.client().request("GET", target, &[&[("Accept-Encoding", "gzip")], fields].concat());
        assert!(body(&response) == page);
        response.field("Content-Encoding").is_some()
    };
    let via = ("Via", "1.1 proxy");
    assert!(coded("/a", &[]) && !coded("/a", &[via]) && coded("/any/a", &[via]));
    assert!(coded("/auth/a", &[via, ("Authorization", "Basic eDp5")]));
    assert!(!coded("/date/a", &[via]) && coded("/tag/a", &[via]));
    assert!(coded("/expired/a", &[via]), "the response has no Cache-Control");
    for (agent, old, new) in [
        ("Mozilla/4.0 (compatible; MSIE 6.0; Windows NT 5.1)", false, false),
        ("Mozilla/4.0 (compatible; MSIE 6.0; Windows NT 5.1; SV1)", true, true),
        ("BAD7", false, true),
        ("other", true, false),
    ] {
        assert_eq!(coded("/old/a", &[("User-Agent", agent)]), old, "{agent}");
        assert_eq!(coded("/old/new/a", &[("User-Agent", agent)]), new, "{agent}");
        assert!(coded("/a", &[("User-Agent", agent)]));
    }
    let old = |target: &str, keep: &str| {
        let request = format!("GET {target} HTTP/1.0\r\n{keep}Accept-Encoding: gzip\r\n\r\n");
        let mut client = site.client();
        let response = client.send(request).response();
        (response, client)
    };
    let (response, _) = old("/a", "");
    assert_eq!(head(&response), (200, None, None, true));
    // No chunked coding for HTTP/1.0: the end of the connection ends the body.
    let (response, mut client) = old("/10/a", "Connection: keep-alive\r\n");
    assert_eq!((response.length, response.field("Connection")), (BodyLength::Close, Some("close")));
    assert!(body(&response) == page);
    client.expect_end();
}

#[test]
fn head_has_the_fields_of_get_without_a_body() {
    let site = Site::start(
        "head",
        "access_log off; gzip on; root .; default_type text/html; server { listen 127.0.0.1:PORT; }",
    );
    site.folder.write("a", text(100_000));
    let mut client = site.client();
    let fields = [("Accept-Encoding", "gzip")];
    let response = client.request("HEAD", "/a", &fields);
    assert_eq!(head(&response), (200, Some("gzip"), None, false));
    assert_eq!(
        (response.field("Transfer-Encoding"), response.field("Connection")),
        (None, Some("keep-alive"))
    );
    assert!(body(&client.request("GET", "/a", &fields)) == text(100_000));
}

#[test]
fn concurrent_compressed_bodies_do_not_mix() {
    let site = Site::start(
        "many",
        "access_log off; gzip on; brotli on; zstd on; zstd_comp_level 9; root .; default_type text/html;
         server { listen 127.0.0.1:PORT; }",
    );
    for number in 0..8 {
        site.folder.write(&number.to_string(), text(100_000 + number * 30_000));
    }
    let mut clients: Vec<_> = (0..48).map(|number| (number, site.client())).collect();
    for round in 0..3 {
        for (number, client) in &mut clients {
            let coding = ["gzip", "br", "zstd"][(*number + round) % 3];
            let request =
                format!("GET /{} HTTP/1.1\r\nHost: a\r\nAccept-Encoding: {coding}\r\n\r\n", *number % 8);
            client.send(request);
        }
        for (number, client) in &mut clients {
            assert!(body(&client.response()) == text(100_000 + *number % 8 * 30_000));
        }
    }
}

#[test]
fn disconnected_clients_end_their_compression() {
    let site = Site::start(
        "leave",
        "access_log off; gzip on; brotli on; root .; default_type text/html; server { listen 127.0.0.1:PORT; }",
    );
    site.folder.write("large", text(8 << 20));
    site.folder.write("small", text(5000));
    for coding in ["gzip", "br"] {
        for _ in 0..4 {
            let mut client = site.client();
            client.send(format!("GET /large HTTP/1.1\r\nHost: a\r\nAccept-Encoding: {coding}\r\n\r\n"));
            client.read_exact(1000);
            client.reset();
        }
        assert!(body(&accepting(&site, "/small", coding)) == text(5000));
    }
}

#[test]
fn compression_ratios_are_available_as_variables() {
    let site = Site::start(
        "ratios",
        "log_format ratios '$uri $gzip_ratio $brotli_ratio $zstd_ratio'; access_log ratios.log ratios;
         gzip on; brotli on; zstd on; root .; default_type text/html; server { listen 127.0.0.1:PORT; }",
    );
    site.folder.write("a", text(50_000));
    let mut client = site.client();
    let mut sizes = Vec::new();
    for coding in ["gzip", "br", "zstd", "none"] {
        sizes.push(client.request("GET", "/a", &[("Accept-Encoding", coding)]).body.len() as f64);
    }
    let lines = site.lines("ratios.log", 4);
    let ratio = |len: f64| 50_000.0 / len;
    assert_eq!(lines[0], format!("/a {:.2} - -", ratio(sizes[0])));
    assert_eq!(lines[1], format!("/a - {:.2} -", ratio(sizes[1])));
    assert_eq!(lines[2], format!("/a - - {:.3}", (ratio(sizes[2]) * 1000.0).floor() / 1000.0));
    assert_eq!(lines[3], "/a - - -");
}

#[test]
fn precompressed_files_are_sent() {
    let site = Site::start(
        "static",
        "access_log off; root .; types { text/html html; } gzip_vary on;
         server { listen 127.0.0.1:PORT; gzip_static on; brotli_static on; zstd_static on;
           location /silent/ { alias ./; gzip_vary off; } location /always/ { alias ./; gzip_static always; brotli_static off; zstd_static off; }
           location /off/ { alias ./; gzip_static off; brotli_static off; zstd_static off; }
           location /brotli/ { alias ./; brotli_static always; } }",
    );
    site.folder.write("a.html", "original");
    site.folder.write("a.html.gz", gzip(b"gzipped before"));
    // The files are sent without a check of their content.
    site.folder.write("a.html.br", "brotli before");
    site.folder.write("a.html.zst", "zstd before");
    site.folder.write("plain.html", "plain");
    site.folder.dir("folder.html.gz");
    site.folder.write("folder.html", "beside a folder");
    site.folder.write("folder/index.html.gz", gzip(b"index"));
    site.folder.write("folder/index.html", "plain index");
    let vary = Some("Accept-Encoding");
    for (target, accepted, coding, vary, sent) in [
        ("/a.html", "gzip", Some("gzip"), vary, gzip(b"gzipped before")),
        ("/a.html", "gzip, br", Some("br"), vary, b"brotli before".to_vec()),
        ("/a.html", "gzip, br, zstd", Some("zstd"), vary, b"zstd before".to_vec()),
        ("/a.html", "br;q=0, gzip;q=0", None, vary, b"original".to_vec()),
        ("/silent/a.html", "gzip", Some("gzip"), None, gzip(b"gzipped before")),
        ("/silent/a.html", "x", None, None, b"original".to_vec()),
        ("/plain.html", "gzip, br, zstd", None, None, b"plain".to_vec()),
        ("/always/a.html", "x", Some("gzip"), None, gzip(b"gzipped before")),
        ("/brotli/a.html", "x", Some("br"), vary, b"brotli before".to_vec()),
        ("/off/a.html", "gzip, br, zstd", None, None, b"original".to_vec()),
        ("/folder.html", "gzip", None, vary, b"beside a folder".to_vec()),
        ("/folder/", "gzip", Some("gzip"), vary, gzip(b"index")),
    ] {
        let response = accepting(&site, target, accepted);
        assert_eq!(head(&response), (200, coding, vary, true), "{target} for {accepted}");
        assert!(response.body == sent, "{target} for {accepted}: {}", response.body.escape_ascii());
        assert_eq!(response.field("Content-Type"), Some("text/html"), "{target}");
    }
    // The compressed file has its own entity tag, length and ranges.
    let whole = accepting(&site, "/a.html", "gzip");
    let tag = |response: &Response| response.field("ETag").expect("it has one").to_owned();
    assert!(tag(&whole).ends_with(&format!("-{:x}\"", gzip(b"gzipped before").len())), "{}", tag(&whole));
    let fields = [("Accept-Encoding", "gzip"), ("Range", "bytes=0-1")];
    let response = site.client().request("GET", "/a.html", &fields);
    assert_eq!((response.status, response.body.as_slice()), (206, &[0x1f, 0x8b][..]));
    assert_eq!(response.field("Content-Encoding"), Some("gzip"));
    let fields = [("Accept-Encoding", "gzip"), ("If-None-Match", &tag(&whole))];
    assert_eq!(head(&site.client().request("GET", "/a.html", &fields)), (304, None, vary, false));
    let fields = [("Accept-Encoding", "gzip"), ("If-Match", "\"x\"")];
    assert_eq!(head(&site.client().request("GET", "/a.html", &fields)).1, None, "the page of 412 is plain");
    assert_eq!(site.client().request("POST", "/a.html", &[("Content-Length", "0")]).status, 405);
}

#[test]
fn compressed_files_are_decompressed_for_other_clients() {
    let site = Site::start(
        "gunzip",
        "access_log off; root .; types { text/html html; } gzip_static always; gunzip on; gzip_vary on;
         server { listen 127.0.0.1:PORT; location /off/ { alias ./; gunzip off; } location /zstd/ { alias ./; zstd on; } }",
    );
    let page = text(3 << 20);
    site.folder.write("page.html.gz", gzip(&page));
    site.folder.write("members.html.gz", [gzip(b"one, "), gzip(&page), gzip(b"")].concat());
    // A thousand times larger than the stored bytes.
    site.folder.write("zeros.html.gz", gzip(&vec![0; 10 << 20]));
    let mut corrupt = gzip(&page);
    let middle = corrupt.len() / 2;
    corrupt[middle..middle + 100].fill(0x55);
    site.folder.write("corrupt.html.gz", corrupt);
    site.folder.write("short.html.gz", &gzip(&page)[..100_000]);
    let vary = Some("Accept-Encoding");
    let mut client = site.client();
    let response = client.request("GET", "/page.html", &[]);
    assert_eq!((head(&response), response.length), ((200, None, vary, false), BodyLength::Chunked));
    assert!(response.body == page);
    assert!(response.field("ETag").is_some_and(|tag| tag.starts_with("W/")));
    assert_eq!((response.field("Accept-Ranges"), response.field("Content-Type")), (None, Some("text/html")));
    assert!(client.get("/members.html").body == [b"one, ".to_vec(), page.clone()].concat());
    let zeros = client.get("/zeros.html").body;
    assert!(zeros.len() == 10 << 20 && zeros.iter().all(|&byte| byte == 0));
    assert_eq!(head(&client.request("HEAD", "/page.html", &[])), (200, None, vary, false));
    let response = client.request("GET", "/page.html", &[("Accept-Encoding", "gzip")]);
    assert_eq!(head(&response), (200, Some("gzip"), vary, true));
    assert!(body(&response) == page);
    assert_eq!(client.get("/off/page.html").field("Content-Encoding"), Some("gzip"));
    // A client without gzip may accept a better coding.
    let response = client.request("GET", "/zstd/page.html", &[("Accept-Encoding", "zstd")]);
    assert_eq!(response.field("Content-Encoding"), Some("zstd"));
    assert!(body(&response) == page);
    // A corrupt body closes the connection after its valid beginning.
    for target in ["/corrupt.html", "/short.html"] {
        let mut client = site.client();
        client.send(format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n"));
        assert!(client.try_response().is_err(), "{target} has no end");
    }
    let lines = site.lines("error.log", 2);
    assert!(lines[0].contains(" inflate() failed: 0, -3 while sending"), "{lines:?}");
    assert!(lines[1].contains(" inflate() returned -5 on response end while sending"), "{lines:?}");
}

#[test]
fn output_of_other_filters_is_compressed_completely() {
    let site = Site::start(
        "behind",
        "access_log off; root .; types { text/html html; } gzip on; brotli on; zstd on; brotli_comp_level 5;
         server { listen 127.0.0.1:PORT;
           location /changed/ { alias ./; sub_filter line ROW; sub_filter_once off;
             add_before_body /before.html; add_after_body /after.html; }
           location /if/ { alias ./; gzip off; brotli off; zstd off; if ($arg_gzip) { gzip on; } } }",
    );
    let page = text(300_000);
    site.folder.write("page.html", &page);
    site.folder.write("before.html", "<!-- before, and long enough to be compressed alone -->");
    site.folder.write("after.html", "<!-- after, and long enough to be compressed alone -->");
    let changed = String::from_utf8(page).expect("it is text").replace("line", "ROW");
    let expected = [
        b"<!-- before, and long enough to be compressed alone -->".to_vec(),
        changed.into_bytes(),
        b"<!-- after, and long enough to be compressed alone -->".to_vec(),
    ]
    .concat();
    for coding in ["gzip", "br", "zstd"] {
        let response = accepting(&site, "/changed/page.html", coding);
        assert_eq!(head(&response), (200, Some(coding), None, false));
        assert!(body(&response) == expected, "{coding}");
    }
    assert_eq!(accepting(&site, "/if/page.html", "gzip").field("Content-Encoding"), None);
    assert_eq!(accepting(&site, "/if/page.html?gzip=1", "gzip").field("Content-Encoding"), Some("gzip"));
}

#[test]
fn levels_windows_and_blocks_change_the_size() {
    let site = Site::start(
        "levels",
        "access_log off; root .; default_type text/html; gzip on; brotli on; zstd on;
         server { listen 127.0.0.1:PORT;
           location /low/ { alias ./; gzip_comp_level 1; brotli_comp_level 0; zstd_comp_level -50; }
           location /high/ { alias ./; gzip_comp_level 9; brotli_comp_level 9; zstd_comp_level 15; }
           location /narrow/ { alias ./; gzip_window 512; brotli_window 1k; zstd_target_cblock_size 1340; }
           location /wide/ { alias ./; gzip_window 32k; brotli_window 16m; } }",
    );
    // The second half repeats the first, which only a large window finds.
    let noise = testkit::Content::new(7, 8000).bytes(0..8000);
    let pages = [("text", text(200_000)), ("twice", [noise.clone(), noise].concat())];
    for (name, page) in &pages {
        site.folder.write(name, page);
    }
    let size = |folder: &str, page: usize, coding: &str| {
        let (name, page) = &pages[page];
        let response = accepting(&site, &format!("/{folder}/{name}"), coding);
        assert!(body(&response) == *page, "{coding} of {folder}");
        response.body.len()
    };
    for coding in ["gzip", "br", "zstd"] {
        assert!(size("high", 0, coding) < size("low", 0, coding), "levels of {coding}");
    }
    for coding in ["gzip", "br"] {
        assert!(size("wide", 1, coding) + 7000 < size("narrow", 1, coding), "windows of {coding}");
    }
    assert!(size("wide", 0, "zstd") < size("narrow", 0, "zstd"), "smaller blocks cost some bytes");
}

#[test]
fn brotli_and_zstd_have_separate_types_and_lengths() {
    let site = Site::start(
        "types",
        "access_log off; root .; types { text/html html; text/css css; text/plain txt; } brotli on; zstd on; gzip_vary on;
         server { listen 127.0.0.1:PORT; brotli_types text/css; zstd_types text/plain; brotli_min_length 100;
           location /inner/ { alias ./; brotli_types text/plain; zstd_types *; zstd_min_length 6000; }
           location /off/ { alias ./; brotli off; zstd off; } }",
    );
    for name in ["a.html", "a.css", "a.txt"] {
        site.folder.write(name, text(5000));
    }
    site.folder.write("short.css", text(99));
    site.folder.write("long.css", text(6000));
    let coding = |target: &str, accepted: &str| {
        let response = accepting(&site, target, accepted);
        assert!(response.status == 200, "{target}");
        response.field("Content-Encoding").map(str::to_owned)
    };
    for (target, accepted, expected) in [
        ("/a.html", "br", Some("br")),
        ("/a.css", "br", Some("br")),
        ("/a.txt", "br", None),
        ("/a.txt", "zstd", Some("zstd")),
        ("/a.css", "zstd", None),
        // A type or length that one coding excludes is compressed with the other.
        ("/a.css", "br, zstd", Some("br")),
        ("/short.css", "br", None),
        ("/inner/a.css", "br", None),
        ("/inner/a.txt", "br", Some("br")),
        ("/inner/a.txt", "zstd", None),
        ("/inner/long.css", "zstd", Some("zstd")),
        ("/off/a.html", "br, zstd", None),
    ] {
        assert_eq!(coding(target, accepted).as_deref(), expected, "{target} for {accepted}");
    }
    assert_eq!(accepting(&site, "/a.html", "x").field("Vary"), Some("Accept-Encoding"));
}
