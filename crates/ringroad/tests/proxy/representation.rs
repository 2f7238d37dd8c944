//! Fields that describe the body of an upstream's response, when this server sends another body: a part of it, another
//! coding, other text, or none.

use crate::common::BINARY;
use testkit::origin::{Origin, Reply};
use testkit::{Client, Server, Setup};

/// Fields of a complete response that describe its body. `Content-Range` has no meaning in a 200.
const FIELDS: [(&str, &str); 6] = [
    ("Content-Range", "bytes 0-99/100"),
    ("Content-MD5", "Q2hlY2sgSW50ZWdyaXR5IQ=="),
    ("Content-Digest", "sha-256=:X48E9qOokqqrvdts8nOJRJN3OWDUoyWxBf7kbu9DBPE=:"),
    ("Repr-Digest", "sha-256=:X48E9qOokqqrvdts8nOJRJN3OWDUoyWxBf7kbu9DBPE=:"),
    ("Digest", "sha-256=X48E9qOokqqrvdts8nOJRJN3OWDUoyWxBf7kbu9DBPE="),
    ("X-Other", "stays"),
];

fn origin() -> Origin {
    Origin::start(|_| {
        let reply = Reply::text("a text of a hundred bytes. ".repeat(4).get(..100).unwrap_or_default());
        let reply = reply.header("Content-Type", "text/plain").header("ETag", "\"x\"");
        FIELDS.iter().fold(reply, |reply, (name, value)| reply.header(name, value))
    })
}

fn start(origin: &Origin, locations: &str) -> (Setup, Server) {
    let text = format!(
        "events {{}} http {{ charset_map koi8-r utf-8 {{ C0 D18E; }} proxy_cache_path @CACHE@ keys_zone=z:1m; proxy_http_version 1.1;
         server {{ listen 127.0.0.1:0; {locations} }} }}"
    );
    let setup = Setup::new(&text).origin(origin);
    let server = setup.start(BINARY);
    (setup, server)
}

/// RFC 9110 section 15.3.7.2: a multipart response must not have `Content-Range` in its header section.
#[test]
fn ranges_of_a_response_with_content_range_have_only_their_own() {
    let origin = origin();
    let (_setup, server) = start(
        &origin,
        "location / { proxy_pass http://@ORIGIN@; proxy_cache z; proxy_cache_valid 1h; proxy_ignore_headers Cache-Control; }",
    );
    let mut client = Client::connect(server.addr(0));
    assert_eq!(client.get("/a").status, 200);
    for (range, expected) in [("bytes=0-1", Some("bytes 0-1/100")), ("bytes=0-1,5-6", None)] {
        let response = client.request("GET", "/a", &[("Range", range)]);
        assert_eq!(response.status, 206, "{range}");
        assert_eq!(response.field("content-range"), expected, "{range}");
        for gone in ["content-md5", "content-digest"] {
            assert_eq!(response.field(gone), None, "{range} {gone}");
        }
        // These concern the complete representation, whatever part is sent.
        assert!(response.field("repr-digest").is_some() && response.field("digest").is_some(), "{range}");
    }
    let outside = client.request("GET", "/a", &[("Range", "bytes=200-")]);
    assert_eq!((outside.status, outside.field("content-range")), (416, Some("bytes */100")));
    for (name, _) in &FIELDS[1..5] {
        assert_eq!(outside.field(name), None, "an error page has another body: {name}");
    }
}

#[test]
fn filters_that_change_the_body_remove_the_fields_of_the_old_one() {
    let origin = origin();
    let locations = [
        ("gzip", "gzip on; gzip_types text/plain; gzip_min_length 1; gzip_proxied any;"),
        ("brotli", "brotli on; brotli_types text/plain; brotli_min_length 1;"),
        ("zstd", "zstd on; zstd_types text/plain; zstd_min_length 1;"),
        ("sub", "sub_filter text word; sub_filter_types text/plain;"),
        ("ssi", "ssi on; ssi_types text/plain;"),
        ("addition", "add_after_body /after; addition_types text/plain;"),
        ("charset", "source_charset koi8-r; charset utf-8; charset_types text/plain;"),
    ];
    let texts =
        locations.map(|(name, text)| format!("location /{name} {{ {text} proxy_pass http://@ORIGIN@; }}\n"));
    let (_setup, server) = start(&origin, &format!("location /after {{ return 200 x; }} {}", texts.concat()));
    let mut client = Client::connect(server.addr(0));
    for (name, _) in &locations {
        let coding = if *name == "gzip" || *name == "zstd" { name } else { "br" };
        let response = client.request("GET", &format!("/{name}"), &[("Accept-Encoding", coding)]);
        assert_eq!((response.status, response.field("x-other")), (200, Some("stays")), "{name}");
        for (gone, _) in &FIELDS[..5] {
            assert_eq!(response.field(gone), None, "{name} {gone}");
        }
    }
}

#[test]
fn a_304_has_no_content_range() {
    let origin = origin();
    let (_setup, server) =
        start(&origin, "location / { proxy_pass http://@ORIGIN@; proxy_cache z; proxy_cache_valid 1h; }");
    let mut client = Client::connect(server.addr(0));
    assert_eq!(client.get("/a").status, 200);
    let response = client.request("GET", "/a", &[("If-None-Match", "\"x\"")]);
    assert_eq!((response.status, response.field("content-range")), (304, None));
}

/// RFC 9110 section 7.7: the content of such a response must not be changed.
#[test]
fn no_transform_is_obeyed_by_all_filters_that_change_a_body() {
    let text = "a text of a hundred bytes. ".repeat(4);
    let body = text.clone();
    let origin = Origin::start(move |request| {
        let control = if request.path().ends_with("/no") { "public, No-Transform" } else { "public" };
        Reply::text(&body).header("Content-Type", "text/plain").header("Cache-Control", control)
    });
    let locations = [
        ("gzip", "gzip on; gzip_types text/plain; gzip_min_length 1; gzip_proxied any;"),
        ("br", "brotli on; brotli_types text/plain; brotli_min_length 1;"),
        ("zstd", "zstd on; zstd_types text/plain; zstd_min_length 1;"),
        ("sub", "sub_filter text word; sub_filter_types text/plain;"),
        ("addition", "add_after_body /after; addition_types text/plain;"),
    ];
    let all =
        locations.map(|(name, text)| format!("location /{name} {{ {text} proxy_pass http://@ORIGIN@; }}\n"));
    let (_setup, server) = start(&origin, &format!("location /after {{ return 200 x; }} {}", all.concat()));
    let mut client = Client::connect(server.addr(0));
    for (name, _) in locations {
        let changed = client.request("GET", &format!("/{name}"), &[("Accept-Encoding", name)]);
        assert_ne!(changed.body, text.as_bytes(), "{name}");
        let kept = client.request("GET", &format!("/{name}/no"), &[("Accept-Encoding", name)]);
        assert_eq!((kept.text(), kept.field("content-encoding")), (text.clone(), None), "{name}");
        // RFC 9111 section 5.2.1.6: a client may demand the same. The response still depends on `Accept-Encoding`.
        let asked =
            [("Accept-Encoding", name), ("Cache-Control", "max-age=9"), ("Cache-Control", "x, No-Transform")];
        let kept = client.request("GET", &format!("/{name}"), &asked);
        assert_eq!((kept.text(), kept.field("content-encoding")), (text.clone(), None), "{name}");
        assert_eq!(kept.field("vary"), changed.field("vary"), "{name}");
    }
}

/// RFC 9110 section 12.5.3: the coding with the highest weight is preferred.
#[test]
fn the_coding_with_the_highest_weight_is_used() {
    let origin = origin();
    let all = "gzip on; gzip_types text/plain; gzip_min_length 1; gzip_proxied any;
        brotli on; brotli_types text/plain; brotli_min_length 1; zstd on; zstd_types text/plain; zstd_min_length 1;";
    let short = all.replace("gzip_min_length 1;", "gzip_min_length 1m;");
    let (_setup, server) = start(
        &origin,
        &format!(
            "location / {{ {all} proxy_pass http://@ORIGIN@; }} location /short {{ {short} proxy_pass http://@ORIGIN@; }}"
        ),
    );
    let mut client = Client::connect(server.addr(0));
    for (target, accepted, expected) in [
        ("/", "br;q=0.1, gzip;q=1", "gzip"),
        ("/", "zstd;q=0.1, br;q=0.5, gzip;q=0.4", "br"),
        ("/", "gzip, br, zstd", "zstd"),
        ("/", "gzip;q=0.5, br;q=0.5", "br"),
        ("/", "gzip;q=0, br;q=0.2", "br"),
        // gzip is preferred, but this location does not use it for such a small body.
        ("/short", "br;q=0.1, gzip;q=1", "br"),
    ] {
        let response = client.request("GET", target, &[("Accept-Encoding", accepted)]);
        assert_eq!(response.field("content-encoding"), Some(expected), "{target} {accepted}");
    }
}

/// A decoded URI has blanks, and a client would cut the field there.
#[test]
fn a_blank_in_location_is_encoded() {
    let origin = origin();
    let (_setup, server) = start(
        &origin,
        "location /a { return 301 $uri; } location /b { rewrite ^ https://x.example$uri permanent; }
         location /c { absolute_redirect off; return 302 $uri; }",
    );
    let mut client = Client::connect(server.addr(0));
    for (target, expected) in
        [("/a%20b", "/a%20b"), ("/b%20%20", "https://x.example/b%20%20"), ("/c%20d%0d%0ae", "/c%20d%20%20e")]
    {
        let response = client.get(target);
        let location = response.field("location").unwrap_or_default();
        assert!(location.ends_with(expected) && !location.contains(' '), "{target} {location}");
    }
}

/// 4 KiB, the default of nginx, are too few for many applications: cookies and policies.
#[test]
fn a_header_section_of_8_kib_is_accepted_by_default() {
    let origin = Origin::start(|request| {
        let length: usize = request.path()[1..].parse().expect("a number");
        Reply::text("x").header("X-Long", "x".repeat(length))
    });
    let (_setup, server) = start(&origin, "location / { proxy_pass http://@ORIGIN@; }");
    let mut client = Client::connect(server.addr(0));
    for (length, status) in [(3000, 200), (7000, 200), (9000, 502)] {
        assert_eq!(client.get(&format!("/{length}")).status, status, "{length}");
    }
}
