//! Random requests, and random responses of application servers: equal for the same seed.
#![allow(dead_code, reason = "each suite is a program of its own and uses a part")]

pub(crate) mod programs;

use testkit::fastcgi::{END_REQUEST, STDERR, STDOUT};

/// xorshift64*, which generates the same numbers on every machine.
pub(crate) struct Random(u64);

impl Random {
    /// Returns the generator for one case of a seed.
    pub(crate) fn of(seed: u64, case: u64) -> Random {
        let mut random = Random((seed ^ case.wrapping_mul(0x9e37_79b9_7f4a_7c15)) | 1);
        // The first numbers of neighbouring seeds are similar.
        for _ in 0..8 {
            random.next();
        }
        random
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        ((self.next() >> 33) % end as u64) as usize
    }

    pub(crate) fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    pub(crate) fn one_of<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len())]
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Vec<u8> {
        const BYTES: &[u8] = b"abcdefghij \r\n%<>&\0";
        (0..len).map(|_| self.one_of(BYTES)).collect()
    }
}

const METHODS: &[&str] = &[
    "GET", "GET", "GET", "GET", "HEAD", "POST", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "PROPFIND",
    "FOO",
];

const SEGMENTS: &[&str] = &[
    "a",
    "b.php",
    "c.css",
    "b.php/info",
    "%20",
    "%2F",
    "%41",
    "%25",
    "%c3%a4",
    "a+b",
    ".",
    "..",
    "...",
    "",
    "~x",
    "a;b",
    "%3f",
    "@",
    "a=b",
    "*",
    "(x)",
    "'",
    "a:b",
    "%7E",
    "x.html",
    "%5c",
    "!$",
];

const QUERIES: &[&str] = &[
    "",
    "",
    "?",
    "?a=b",
    "?empty=&x=1",
    "?empty=1",
    "?x=%20y",
    "??",
    "?a=b?c",
    "?%",
    "?a&b",
    "?x=/../",
    "?é",
    "?to=x%26y",
    "?a=b#c",
];

const FIELDS: &[(&str, &[&str])] = &[
    ("Accept", &["*/*", "text/html, */*;q=0.1"]),
    ("Accept-Encoding", &["gzip", "identity", "br, gzip"]),
    ("Accept-Language", &["de, en;q=0.5"]),
    ("Authorization", &["Basic YTpi"]),
    ("Cache-Control", &["no-cache", "max-age=0"]),
    ("Content-Type", &["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"]),
    ("Cookie", &["a=b", "c=d; e=f", ""]),
    ("If-Match", &["\"x\"", "*"]),
    ("If-None-Match", &["\"x\"", "W/\"y\"", "*"]),
    ("If-Modified-Since", &["Sun, 22 Nov 2026 10:00:00 GMT"]),
    ("Origin", &["http://example.com"]),
    ("Pragma", &["no-cache"]),
    ("Proxy", &["http://evil.example/"]),
    ("Referer", &["http://example.org/x?y"]),
    ("TE", &["trailers"]),
    ("User-Agent", &["client/1", "\u{e4}"]),
    ("X-A", &["1", "", "a,b", "  padded  "]),
    ("X-Set", &["of the client"]),
    ("X-Opt", &["", "0", "given"]),
    ("X_Under", &["dropped"]),
    ("X-Forwarded-For", &["1.2.3.4"]),
    ("X-Long", &[LONG]),
];

const LONG: &str = "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789\
    0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789";

/// A request.
pub(crate) struct Ask {
    pub(crate) bytes: Vec<u8>,
    pub(crate) is_head: bool,
    pub(crate) target: String,
}

/// Returns a random request to this location. Its field `X-Case` selects the response.
pub(crate) fn request(random: &mut Random, case: u64, place: &str, methods: &[&str]) -> Ask {
    let method = if methods.is_empty() { random.one_of(METHODS) } else { random.one_of(methods) };
    let mut target = place.to_owned();
    for part in 0..random.below(4) {
        if part > 0 {
            target.push('/');
        }
        target.push_str(random.one_of(SEGMENTS));
    }
    target.push_str(random.one_of(QUERIES));
    let mut head =
        format!("{method} {target} HTTP/1.1\r\nHost: example.org\r\nConnection: close\r\nX-Case: {case}\r\n");
    let (mut is_conditional, mut once) = (false, Vec::new());
    for _ in 0..random.below(7) {
        let (name, values) = random.one_of(FIELDS);
        // Several lines with the same name are one parameter since nginx 1.23, and were several before. Responses to
        // requests with credentials are stored by other rules (row C7 of docs/caching.md).
        if once.contains(&name) || (place == "/cache/" && name == "Authorization") {
            continue;
        }
        once.push(name);
        // Two conditions in a request, and conditions with unsafe methods, are documented in docs/nginx-differences.md.
        let is_condition = name.starts_with("If-");
        // Neither server stores a response that failed a precondition. Conditions are not applied to error pages (row
        // H17).
        let is_refusal = (name == "If-Match" && place == "/cache/") || place == "/page/";
        if is_condition && (is_conditional || is_refusal || method != "GET") {
            continue;
        }
        is_conditional |= is_condition;
        head.push_str(&format!("{name}: {}\r\n", random.one_of(values)));
    }
    let has_body = matches!(method, "POST" | "PUT" | "PATCH" | "PROPFIND" | "FOO") || random.chance(5);
    let mut body = Vec::new();
    // Whether the length is known when such a request is forwarded depends on how much of it has been received.
    let is_chunked = random.chance(30) && place != "/unbuffered/";
    // The location `/bare/` announces a body and does not send it, so the application server would wait for the body.
    if has_body && place != "/bare/" {
        let len = random.one_of(&[0, 1, 7, 300, 5_000, 40_000]);
        body = random.bytes(len);
        if is_chunked {
            head.push_str("Transfer-Encoding: chunked\r\n");
            let pieces = body
                .chunks(1 + random.below(9_000))
                .map(|piece| [format!("{:x}\r\n", piece.len()).as_bytes(), piece, b"\r\n"].concat());
            body = pieces.chain([b"0\r\n\r\n".to_vec()]).flatten().collect();
        } else {
            head.push_str(&format!("Content-Length: {len}\r\n"));
        }
    }
    head.push_str("\r\n");
    Ask { bytes: [head.as_bytes(), &body].concat(), is_head: method == "HEAD", target }
}

/// The output of a script.
pub(crate) struct Script {
    pub(crate) text: Vec<u8>,
    /// Whether the response has a Content-Length.
    pub(crate) has_length: bool,
}

const STATUSES: &[&str] = &[
    "200",
    "200 OK",
    "201 Made",
    "202 ",
    "204 None",
    "206 Part",
    "301 Moved",
    "302 Found",
    "303",
    "304 Same",
    "307 T",
    "400 Bad",
    "401 Who",
    "403 No",
    "404 Not there",
    "410 Gone",
    "418 Tea pot",
    "422",
    "429 Slow",
    "500 Broken",
    "503 Later",
    "599 Odd",
];

const REPLY_FIELDS: &[(&str, &[&str])] = &[
    (
        "Content-Type",
        &["text/html; charset=utf-8", "text/plain", "application/json", "image/png", "text/css;x=y"],
    ),
    ("Location", &["/elsewhere", "http://example.com/x", "relative", ""]),
    ("Set-Cookie", &["a=b", "c=d; Path=/; HttpOnly", "e=f"]),
    ("X-One", &["1", "", "two words"]),
    ("X-Powered-By", &["PHP/8"]),
    ("Server", &["app"]),
    ("Date", &["Sun, 22 Nov 2026 10:00:00 GMT"]),
    ("X-Accel-Expires", &["0", "60", "@4000000000"]),
    ("X-Accel-Buffering", &["no", "yes"]),
    ("X-Accel-Charset", &["utf-8"]),
    ("X-Accel-Limit-Rate", &["0", "10000000"]),
    ("X-Accel-Redirect", &["/page", "/page?x=y", "@named"]),
    ("X-Pad", &["p"]),
    ("Cache-Control", &["no-cache", "max-age=60", "private", "no-store"]),
    ("Expires", &["Sun, 22 Nov 2026 10:00:00 GMT", "0"]),
    ("Pragma", &["no-cache"]),
    ("Vary", &["Accept-Encoding", "*"]),
    ("ETag", &["\"x\"", "W/\"y\""]),
    ("Last-Modified", &["Sun, 22 Nov 2026 10:00:00 GMT"]),
    ("Content-Language", &["de"]),
    ("Content-Disposition", &["attachment; filename=\"x\""]),
    ("Refresh", &["5; url=/x"]),
    ("WWW-Authenticate", &["Basic realm=x"]),
    ("Link", &["</a.css>; rel=preload"]),
    ("P3P", &["CP=x"]),
    ("Retry-After", &["5"]),
    ("x-lower-Case", &["kept"]),
];

/// Returns the response of a case; equal for every server that requests it.
pub(crate) fn script(seed: u64, case: u64, may_have_line: bool, plain: bool) -> Script {
    let random = &mut Random::of(seed ^ 0x5c21_9e00, case);
    let end = if random.chance(15) { "\n" } else { "\r\n" };
    let mut head = String::new();
    let mut status = random.one_of(STATUSES);
    if plain && (status.starts_with("304") || status.starts_with("206")) {
        // Row C35 of docs/caching.md.
        status = "200 OK";
    }
    match random.below(10) {
        0..3 => {}
        3 if may_have_line => head.push_str(&format!("HTTP/1.1 {status}{end}")),
        _ => head.push_str(&format!("Status: {status}{end}")),
    }
    let mut once: Vec<&str> = Vec::new();
    for _ in 0..random.below(9) {
        let (name, values) = random.one_of(REPLY_FIELDS);
        let is_special = name.starts_with("X-Accel")
            || matches!(name, "Cache-Control" | "Date" | "Expires" | "Vary" | "Pragma");
        if (plain && is_special) || (once.contains(&name) && name != "Set-Cookie") {
            continue;
        }
        once.push(name);
        head.push_str(&format!("{name}: {}{end}", random.one_of(values)));
    }
    if random.chance(8) {
        // Smaller than one buffer, or larger. nginx would store the 502 that a larger field causes in a cached location.
        let len = if plain { 1_000 } else { random.one_of(&[1_000, 6_000]) };
        head.push_str(&format!("X-Big: {}{end}", "b".repeat(len)));
    }
    let len = random.one_of(&[0, 1, 20, 20, 3_000, 9_000, 70_000]);
    let body = random.bytes(len);
    // Row P36.
    let has_length = random.chance(30) && !status.starts_with("204");
    if has_length {
        head.push_str(&format!("Content-Length: {len}{end}"));
    }
    head.push_str(end);
    Script { text: [head.as_bytes(), &body].concat(), has_length }
}

/// Splits a FastCGI response into records of any length, with padding, and with messages between them.
pub(crate) fn records(random: &mut Random, text: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut in_head = true;
    let mut record = |random: &mut Random, in_head: bool, kind: u8, content: &[u8]| {
        // In nginx the record headers count towards the size of the header section (row P35).
        let padding = random.one_of(if in_head { &[0, 1, 7] } else { &[0, 7, 255] });
        let [high, low] = (content.len() as u16).to_be_bytes();
        out.extend([1, kind, 0, 1, high, low, padding, 0]);
        out.extend_from_slice(content);
        out.extend(std::iter::repeat_n(0xa5, padding.into()));
    };
    let mut rest = text;
    while !rest.is_empty() {
        if random.chance(10) {
            record(random, in_head, STDERR, b"PHP message: a word for the log\n");
        }
        let sizes: &[usize] = if in_head { &[50, 4_000] } else { &[1, 8, 100, 4_000, 65_535] };
        let len = random.one_of(sizes).min(rest.len());
        record(random, in_head, STDOUT, &rest[..len]);
        in_head &= !rest[..len].windows(2).any(|two| two == b"\n\n" || two == b"\n\r");
        rest = &rest[len..];
    }
    if random.chance(50) {
        record(random, false, STDOUT, b"");
    }
    record(random, false, END_REQUEST, &[0; 8]);
    out
}
