//! The measured pieces. Each prepares its data and then repeats one operation.
//!
//! They are the steps of a request that do no I/O: parsing the head, validating the host name, evaluating conditions,
//! and writing the head; and for a proxy the upstream's head, the cache key and the cache index. A new piece gets its
//! figure by `cargo xtask instructions --bless`.
//!
//! They are not inlined, so that each is a separate function for callgrind. Arguments and results pass through
//! [`black_box`], so that the compiler cannot optimise them away.

use std::hint::black_box;

use cache::Key;
use cache::index::{Index, ObjectSource, Used};
use http::cache_control::CacheControl;
use http::conditional::{self, Evaluator, IfModifiedSince, Validators};
use http::fields::HeaderId;
use http::range::ByteRange;
use http::request::{self, Head, Policy};
use http::response::encode::{ConnectionField, HeadWriter, Opening, ResponseHead};
use http::response::parse::{Limits, ParsedResponse, parse};
use http::{StatusCode, date, host, range, uri};

/// All pieces, in the order of their use in a request.
pub(crate) const ALL: [fn(u32); 16] = [
    request_head_small,
    request_head_browser,
    host_name,
    uri_clean,
    uri_escaped,
    range_of_file,
    condition_met,
    response_head_small,
    response_head_file,
    date_written,
    date_read,
    reply_head,
    cache_control,
    cache_key,
    index_hit,
    index_insert,
];

/// A request as sent by load generators and health checks.
const SMALL: &[u8] = b"GET /index.html HTTP/1.1\r\nHost: www.example.org\r\n\r\n";

/// The request of a browser for a page that it has visited before.
const BROWSER: &[u8] = b"GET /articles/2026/november?page=2&sort=date HTTP/1.1\r\n\
    Host: www.example.org\r\n\
    Connection: keep-alive\r\n\
    sec-ch-ua: \"Chromium\";v=\"142\", \"Not_A Brand\";v=\"99\"\r\n\
    sec-ch-ua-mobile: ?0\r\n\
    sec-ch-ua-platform: \"Linux\"\r\n\
    Upgrade-Insecure-Requests: 1\r\n\
    User-Agent: Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/142.0.0.0 Safari/537.36\r\n\
    Accept: text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8\r\n\
    Sec-Fetch-Site: same-origin\r\n\
    Sec-Fetch-Mode: navigate\r\n\
    Sec-Fetch-User: ?1\r\n\
    Sec-Fetch-Dest: document\r\n\
    Referer: https://www.example.org/articles/\r\n\
    Accept-Encoding: gzip, deflate, br, zstd\r\n\
    Accept-Language: en-GB,en;q=0.9\r\n\
    Cookie: session=0123456789abcdef0123456789abcdef; theme=dark\r\n\
    If-None-Match: \"6561f2a0-1a2b\"\r\n\
    If-Modified-Since: Sun, 22 Nov 2026 10:00:00 GMT\r\n\r\n";

/// The response of an origin.
const REPLY: &[u8] = b"HTTP/1.1 200 OK\r\nServer: origin\r\nDate: Sun, 22 Nov 2026 10:00:00 GMT\r\n\
    Content-Type: text/html; charset=utf-8\r\nContent-Length: 12345\r\nCache-Control: public, max-age=3600\r\n\
    ETag: \"6561f2a0-1a2b\"\r\nVary: Accept-Encoding\r\nLast-Modified: Sat, 21 Nov 2026 09:00:00 GMT\r\n\r\n";

/// A time in November 2026.
const NOW_S: i64 = 1_795_341_600;

/// Parses requests. The head is reused between requests, as in a connection: only the first one allocates space for
/// fields.
fn parse_request(text: &[u8], repetitions: u32) {
    let (mut head, policy) = (Head::new(), Policy::default());
    for _ in 0..repetitions {
        head.clear();
        let parsed = request::parse(&mut head, black_box(text), &policy);
        assert!(parsed.is_ok(), "the head is well formed");
        black_box(&head);
    }
}

/// Parses three lines: the base cost of a header section.
#[inline(never)]
fn request_head_small(repetitions: u32) {
    parse_request(SMALL, repetitions);
}

/// Parses eighteen fields, a dozen of which the server does not use: the cost of skipping a line.
#[inline(never)]
fn request_head_browser(repetitions: u32) {
    parse_request(BROWSER, repetitions);
}

/// Validates a host name with a port, which is removed.
#[inline(never)]
fn host_name(repetitions: u32) {
    for _ in 0..repetitions {
        let _ = black_box(host::validate(black_box(b"www.example.org:8080")));
    }
}

/// Normalises a path without escapes and double slashes: it is checked once and not copied.
#[inline(never)]
fn uri_clean(repetitions: u32) {
    let mut out = Vec::new();
    for _ in 0..repetitions {
        let _ = black_box(uri::normalise(black_box(b"/static/images/2026/logo.png?v=17"), true, &mut out));
    }
}

/// Normalises a path that must be rewritten: escapes, repeated slashes, segments with dots.
#[inline(never)]
fn uri_escaped(repetitions: u32) {
    let mut out = Vec::new();
    for _ in 0..repetitions {
        let _ = black_box(uri::normalise(black_box(b"/a%20b//c/./d/../e%2Ff.txt?x=%41"), true, &mut out));
    }
}

/// Parses one range, as requested by players and downloads.
#[inline(never)]
fn range_of_file(repetitions: u32) {
    let mut ranges: Vec<ByteRange> = Vec::new();
    for _ in 0..repetitions {
        ranges.clear();
        black_box(range::parse(black_box(b"bytes=1048576-2097151"), 100 << 20, 16, &mut ranges));
    }
}

/// Evaluates the conditions of a browser that has the current response.
#[inline(never)]
fn condition_met(repetitions: u32) {
    let mut head = Head::new();
    let parsed = request::parse(&mut head, BROWSER, &Policy::default());
    assert!(parsed.is_ok() && head.field(HeaderId::IfNoneMatch).is_some(), "the head is well formed");
    let validators = Validators { etag: Some(b"\"6561f2a0-1a2b\""), last_modified: Some(NOW_S) };
    let mode = IfModifiedSince::Exact;
    for _ in 0..repetitions {
        black_box(conditional::evaluate(&head, black_box(BROWSER), validators, mode, Evaluator::Origin));
    }
}

/// Writes a head into an existing buffer, as for a connection. The previous head had the same first lines, as is usual.
fn write_response(head: &ResponseHead<'_>, more: &[(&[u8], &[u8])], repetitions: u32) {
    let (mut out, mut opening) = (Vec::with_capacity(1024), Opening::default());
    for _ in 0..repetitions {
        out.clear();
        let Ok(mut writer) = HeadWriter::begin(&mut out, black_box(head), &mut opening) else { return };
        for (name, value) in more {
            let _ = writer.field(name, value);
        }
        writer.finish();
        black_box(&out);
    }
}

/// Writes the head of `return 200`.
#[inline(never)]
fn response_head_small(repetitions: u32) {
    let date = date::http(NOW_S);
    let head = ResponseHead {
        server: Some(b"ringroad"),
        content_type: Some(b"text/plain"),
        content_length: Some(0),
        connection: ConnectionField::KeepAlive { timeout_s: None },
        ..ResponseHead::new(StatusCode::OK, &date)
    };
    write_response(&head, &[], repetitions);
}

/// Writes the head of a file.
#[inline(never)]
fn response_head_file(repetitions: u32) {
    let date = date::http(NOW_S);
    let head = ResponseHead {
        server: Some(b"ringroad"),
        content_type: Some(b"text/html"),
        charset: Some(b"utf-8"),
        content_length: Some(12_345),
        last_modified: Some(NOW_S - 100_000),
        connection: ConnectionField::KeepAlive { timeout_s: None },
        ..ResponseHead::new(StatusCode::OK, &date)
    };
    write_response(&head, &[(b"ETag", b"\"6561f2a0-1a2b\""), (b"Accept-Ranges", b"bytes")], repetitions);
}

/// Formats another second in each repetition, because a server caches the date of the current second.
#[inline(never)]
fn date_written(repetitions: u32) {
    for second in 0..i64::from(repetitions) {
        black_box(date::http(black_box(NOW_S + second)));
    }
}

/// Parses the common date format; the other two are rare.
#[inline(never)]
fn date_read(repetitions: u32) {
    for _ in 0..repetitions {
        black_box(date::parse_http(black_box(b"Sun, 22 Nov 2026 10:00:00 GMT")));
    }
}

/// Parses the response head that a proxy receives from its origin.
#[inline(never)]
fn reply_head(repetitions: u32) {
    let (mut head, limits) = (ParsedResponse::new(), Limits::default());
    for _ in 0..repetitions {
        head.clear();
        let parsed = parse(&mut head, black_box(REPLY), &limits);
        assert!(parsed.is_ok(), "the head is well formed");
        black_box(&head);
    }
}

/// Parses the field that determines whether a response is stored, and for how long.
#[inline(never)]
fn cache_control(repetitions: u32) {
    for _ in 0..repetitions {
        let value: &[u8] = black_box(b"public, max-age=3600, stale-while-revalidate=60");
        black_box(CacheControl::parse([value]));
    }
}

/// Computes MD5, the cache key as in nginx.
#[inline(never)]
fn cache_key(repetitions: u32) {
    for _ in 0..repetitions {
        black_box(Key::of(black_box(b"http://www.example.org/static/images/2026/logo.png?v=17")));
    }
}

/// Creates an index for a hundred thousand entries; the seed is fixed, so that all runs have the same buckets.
fn index(used: &Used) -> Index {
    Index::new(6 << 20, [1, 2], used.clone())
}

/// Returns keys, so few that they stay in the CPU cache.
fn keys() -> Vec<Key> {
    (0..64_u32).map(|number| Key::of(&number.to_le_bytes())).collect()
}

/// Looks up an entry: hash, lock, lookup, and the count of the request.
#[inline(never)]
fn index_hit(repetitions: u32) {
    let (index, keys) = prepared_index(&Used::default());
    for at in 0..repetitions as usize {
        black_box(index.touch(black_box(&keys[at % keys.len()].0), 7));
    }
}

/// Creates an index with all keys, so that each lookup is a hit.
fn prepared_index(used: &Used) -> (Index, Vec<Key>) {
    let (index, keys) = (index(used), keys());
    for key in &keys {
        index.insert(&key.0, used.adopt(1), ObjectSource::Written { epoch: 1 }, 1);
    }
    (index, keys)
}

/// Replaces an earlier entry of the key.
#[inline(never)]
fn index_insert(repetitions: u32) {
    let used = Used::default();
    let (index, keys) = prepared_index(&used);
    // The same keys repeatedly, so that the index does not become full and evict entries.
    for at in 0..repetitions as usize {
        black_box(index.insert(
            black_box(&keys[at % keys.len()].0),
            used.adopt(2),
            ObjectSource::Written { epoch: 1 },
            7,
        ));
    }
}
