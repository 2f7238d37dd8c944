//! Tables for the head parser: accepted input, refused input, and independence of how the input is split.

use super::*;
use crate::StatusCode;
use crate::host::HostError;
use proptest::prelude::*;

const LENIENT: Policy = Policy {
    ignore_invalid_headers: true,
    underscores_in_headers: false,
    strict: false,
    allow_connect: false,
    allow_trace: false,
    request_line_max: LINE_MAX_DEFAULT,
    field_line_max: LINE_MAX_DEFAULT,
    head_max: HEAD_MAX_DEFAULT,
    fields_max: FIELDS_MAX_DEFAULT,
};
const STRICT: Policy = Policy { strict: true, ..LENIENT };

fn run(text: &[u8], policy: &Policy) -> Result<(Head, Progress), ParseError> {
    let mut head = Head::new();
    parse(&mut head, text, policy).map(|progress| (head, progress))
}

fn complete(text: &str) -> Head {
    let (head, progress) =
        run(text.as_bytes(), &LENIENT).unwrap_or_else(|error| panic!("{text:?}: {error:?}"));
    assert_eq!(progress, Progress::Complete { head_len: text.len() as u32 }, "{text:?}");
    head
}

/// Checks one refusal under both policies.
fn refuse(text: &str, error: ParseError) {
    assert_eq!(run(text.as_bytes(), &LENIENT).err(), Some(error), "{text:?}");
    assert!(run(text.as_bytes(), &STRICT).is_err(), "{text:?} under the strict policy");
    assert!(error.closes());
}

fn refuse_400(text: &str, error: ParseError) {
    refuse(text, error);
    assert_eq!(error.status(), StatusCode::BAD_REQUEST, "{text:?}");
}

/// Creates a 1.1 request with these field lines.
fn with(lines: &str) -> String {
    format!("GET / HTTP/1.1\r\nHost: a\r\n{lines}\r\n")
}

#[test]
fn a_request_is_parsed_into_ranges() {
    let text =
        "POST /a?b=c HTTP/1.1\r\nHost: Example.com:81\r\nX-One:  two words \t\r\ncontent-length: 5\r\n\r\n";
    let buf = text.as_bytes();
    let head = complete(text);
    assert_eq!(head.method(), Method::Post);
    assert_eq!(head.method_span().of(buf), b"POST");
    assert_eq!(head.target(), Target::Origin);
    assert_eq!(head.path().of(buf), b"/a?b=c");
    assert_eq!(head.request_line().of(buf), b"POST /a?b=c HTTP/1.1");
    assert_eq!(head.version(), Version::Http11);
    assert_eq!(head.get(buf, HeaderId::ContentLength), Some(&b"5"[..]));
    assert_eq!(head.body(), BodyLength::Exactly(5));
    assert_eq!(head.named(buf, b"x-one").collect::<Vec<_>>(), [b"two words"]);
    assert_eq!(head.variable(buf, b"x_one").collect::<Vec<_>>(), [b"two words"]);
    let host = head.host().expect("a host");
    assert_eq!((host.name.of(buf), host.port, host.has_upper), (&b"Example.com"[..], Some(81), true));
    assert_eq!(head.host_text().of(buf), b"Example.com:81");
    assert_eq!(head.fields().len(), 3);
    assert_eq!(head.phase(), Phase::Done);
}

#[test]
fn a_head_can_be_reused() {
    let mut head = Head::new();
    let first = with("Content-Length: 5\r\nX_Y: 1\r\n");
    parse(&mut head, first.as_bytes(), &LENIENT).expect("valid");
    assert_eq!(head.ignored_count(), 1);
    assert_eq!(head.first_ignored().map(|span| span.of(first.as_bytes())), Some(&b"X_Y: 1"[..]));
    head.clear();
    let second = "GET /2 HTTP/1.0\r\n\r\n";
    let progress = parse(&mut head, second.as_bytes(), &LENIENT).expect("valid");
    assert_eq!(progress, Progress::Complete { head_len: second.len() as u32 });
    assert_eq!((head.body(), head.host(), head.ignored_count()), (BodyLength::None, None, 0));
    assert_eq!(head.get(second.as_bytes(), HeaderId::Host), None);
    assert!(head.fields().is_empty() && head.first_ignored().is_none());
}

#[test]
fn repeated_fields_are_all_found() {
    let text = with("Cookie: a\r\nX: 1\r\ncookie: b\r\nCOOKIE:\r\n");
    let head = complete(&text);
    let cookies: Vec<&[u8]> = head.all(text.as_bytes(), HeaderId::Cookie).collect();
    assert_eq!(cookies, [&b"a"[..], b"b", b""]);
    assert_eq!(head.all(text.as_bytes(), HeaderId::Range).count(), 0);
}

#[test]
fn methods_are_parsed() {
    for name in [
        "GET",
        "HEAD",
        "POST",
        "PUT",
        "DELETE",
        "MKCOL",
        "COPY",
        "MOVE",
        "OPTIONS",
        "PROPFIND",
        "PROPPATCH",
        "LOCK",
        "UNLOCK",
        "PATCH",
    ] {
        let head = complete(&format!("{name} / HTTP/1.1\r\nHost: a\r\n\r\n"));
        assert_eq!(head.method().name(), name);
    }
    let head = complete("MY-OWN_METHOD / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(head.method(), Method::Other);
    for bad in
        ["get / HTTP/1.1", "G@T / HTTP/1.1", " GET / HTTP/1.1", "GET\t/ HTTP/1.1", "G\0T / HTTP/1.1", "GET"]
    {
        refuse_400(&format!("{bad}\r\nHost: a\r\n\r\n"), ParseError::InvalidMethod);
    }
}

#[test]
fn a_tls_hello_is_refused_at_its_first_byte() {
    assert_eq!(run(b"\x16", &LENIENT).err(), Some(ParseError::InvalidMethod));
}

#[test]
fn trace_and_connect_are_not_allowed() {
    refuse("TRACE / HTTP/1.1\r\nHost: a\r\n\r\n", ParseError::TraceRefused);
    refuse("CONNECT a:443 HTTP/1.1\r\nHost: a\r\n\r\n", ParseError::ConnectRefused);
    assert_eq!(ParseError::ConnectRefused.status(), StatusCode::NOT_ALLOWED);
    for target in ["a", "a:", "[::1]", "[::1]:", "/"] {
        refuse_400(&format!("CONNECT {target} HTTP/1.1\r\nHost: a\r\n\r\n"), ParseError::InvalidTarget);
    }
    let policy = Policy { allow_connect: true, allow_trace: true, ..LENIENT };
    let text = b"CONNECT a.b:443 HTTP/1.1\r\nHost: a\r\n\r\n";
    let (head, _) = run(text, &policy).expect("allowed");
    let Target::Authority { authority } = head.target() else { panic!("{:?}", head.target()) };
    assert_eq!(authority.of(text), b"a.b:443");
    assert!(run(b"TRACE / HTTP/1.1\r\nHost: a\r\n\r\n", &policy).is_ok());
}

#[test]
fn absolute_targets_are_parsed() {
    for (target, host, port, path) in [
        ("http://Example.com/a?b", "Example.com", None, "/a?b"),
        ("http://example.com:8080/", "example.com", Some(8080), "/"),
        ("https://example.com", "example.com", None, ""),
        ("HTTP://example.com?x=1", "example.com", None, "?x=1"),
        ("http://[::1]:80/x", "[::1]", Some(80), "/x"),
    ] {
        let text = format!("GET {target} HTTP/1.1\r\nHost: other:99\r\n\r\n");
        let head = complete(&text);
        let found = head.host().expect("a host");
        assert_eq!(found.name.of(text.as_bytes()), host.as_bytes(), "{target}");
        assert_eq!(found.port, port, "{target}");
        assert_eq!(head.path().of(text.as_bytes()), path.as_bytes(), "{target}");
        assert!(matches!(head.target(), Target::Absolute { .. }));
    }
    let text = "GET http://a HTTP/1.1\r\nHost: b\r\n\r\n";
    assert_eq!(complete(text).request_uri(text.as_bytes()), b"/");
}

#[test]
fn bad_targets_are_refused() {
    for target in [
        "*",
        "a",
        "http:/a",
        "http:a",
        "http//a/",
        "http://u@h/",
        "http://a_b/",
        "http://a:x/",
        "1http://a/",
        "?x",
        "%2f",
        "http://[::1/",
        "\\",
        "#",
    ] {
        refuse_400(&format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n"), ParseError::InvalidTarget);
    }
    refuse_400("GET http:///x HTTP/1.1\r\nHost: a\r\n\r\n", ParseError::InvalidAuthority(HostError::Empty));
    assert_eq!(complete("OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n").target(), Target::Asterisk);
}

#[test]
fn control_bytes_in_the_target_are_refused() {
    for byte in (0..0x20u8).chain([0x7f]).filter(|byte| !b"\r\n".contains(byte)) {
        refuse_400(
            &format!("GET /a{}b HTTP/1.1\r\nHost: a\r\n\r\n", byte as char),
            ParseError::InvalidTarget,
        );
    }
    complete("GET /\u{e4} HTTP/1.1\r\nHost: a\r\n\r\n");
}

#[test]
fn versions_are_parsed() {
    for (version, shown, wanted) in [
        ("1.0", "HTTP/1.0", Version::Http10),
        ("1.1", "HTTP/1.1", Version::Http11),
        ("1.2", "HTTP/1.2", Version::Http11),
        ("1.999", "HTTP/1.999", Version::Http11),
        ("1.00", "HTTP/1.0", Version::Http10),
    ] {
        let head = complete(&format!("GET / HTTP/{version}\r\nHost: a\r\n\r\n"));
        let mut protocol = Vec::new();
        head.push_protocol(&mut protocol);
        assert_eq!((head.version(), protocol), (wanted, shown.into()), "{version}");
    }
    for version in ["2.0", "3.0", "9", "10.1", "2"] {
        refuse(&format!("GET / HTTP/{version}\r\nHost: a\r\n\r\n"), ParseError::UnsupportedVersion);
    }
    assert_eq!(ParseError::UnsupportedVersion.status(), StatusCode::VERSION_NOT_SUPPORTED);
    for version in [
        "HTTP/0.9",
        "HTTP/1",
        "HTTP/1.",
        "HTTP/1.x",
        "HTTP/1.1234",
        "http/1.1",
        "HTTP 1.1",
        "HTTQ/1.1",
        "X",
        "HTTP/1.1x",
        "HTTP/1.1 x",
    ] {
        refuse_400(&format!("GET / {version}\r\nHost: a\r\n\r\n"), ParseError::InvalidVersion);
    }
}

#[test]
fn http_09_is_refused() {
    for text in ["GET /\r\n", "GET /\n", "GET / \r\n", "GET /\r\n\r\n"] {
        refuse_400(text, ParseError::Http09);
    }
}

#[test]
fn spaces_in_the_request_line_depend_on_the_policy() {
    for line in ["GET  / HTTP/1.1", "GET /   HTTP/1.1", "GET / HTTP/1.1  "] {
        let text = format!("{line}\r\nHost: a\r\n\r\n");
        complete(&text);
        assert_eq!(run(text.as_bytes(), &STRICT).err(), Some(ParseError::LooseRequestLine), "{line}");
    }
    refuse_400("GET /a b HTTP/1.1\r\nHost: a\r\n\r\n", ParseError::InvalidVersion);
}

#[test]
fn empty_lines_before_a_request_are_skipped() {
    for lead in ["\r\n", "\n", "\r\n\r\n", "\n\r\n"] {
        let text = format!("{lead}GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(complete(&text).request_line().start as usize, lead.len());
    }
    refuse_400("\rGET / HTTP/1.1\r\nHost: a\r\n\r\n", ParseError::BareCr);
}

#[test]
fn a_bare_lf_may_end_a_line() {
    let head = complete("GET / HTTP/1.1\nHost: a\nX: y\n\n");
    assert_eq!(head.fields().len(), 2);
    complete("GET / HTTP/1.1\r\nHost: a\nX: y\r\n\n");
    assert!(run(b"GET / HTTP/1.1\nHost: a\n\n", &STRICT).is_ok());
}

#[test]
fn bare_cr_is_refused() {
    for text in ["GET / HTTP/1.1\rHost: a\r\n\r\n", "GET / HTTP/1.1\r\r\nHost: a\r\n\r\n"] {
        refuse_400(text, ParseError::BareCr);
    }
    for lines in ["X: a\rb\r\n", "X: a\r\r\n", "X: \rY: b\r\n", "X\rY: b\r\n", "\rX: b\r\n"] {
        refuse_400(&with(lines), ParseError::BareCr);
    }
}

#[test]
fn nul_and_control_bytes_are_refused_in_names_and_values() {
    for byte in (0..0x20u8).chain([0x7f]).filter(|byte| !b"\r\n\t".contains(byte)) {
        let byte = byte as char;
        refuse_400(&with(&format!("X: a{byte}b\r\n")), ParseError::InvalidByteInValue);
        refuse_400(&with(&format!("X:{byte}\r\n")), ParseError::InvalidByteInValue);
        refuse_400(&with(&format!("X{byte}Y: a\r\n")), ParseError::InvalidByteInName);
        refuse_400(&with(&format!("{byte}X: a\r\n")), ParseError::InvalidByteInName);
    }
    let text = with("X: a\tb \u{e4}\r\n");
    assert_eq!(complete(&text).named(text.as_bytes(), b"x").next(), Some("a\tb \u{e4}".as_bytes()));
}

#[test]
fn space_or_colon_at_the_start_of_a_name_is_refused() {
    refuse_400("GET / HTTP/1.1\r\n Host: a\r\n\r\n", ParseError::InvalidByteInName);
    refuse_400("GET / HTTP/1.1\r\n\tHost: a\r\n\r\n", ParseError::InvalidByteInName);
    refuse_400("GET / HTTP/1.1\r\n: a\r\nHost: a\r\n\r\n", ParseError::EmptyName);
    refuse_400(&with(": a\r\n"), ParseError::EmptyName);
}

#[test]
fn space_before_the_colon_is_refused() {
    for lines in ["X : a\r\n", "X\t: a\r\n", "X Y: a\r\n", "Content-Length : 5\r\n", "X_ : a\r\n"] {
        refuse_400(&with(lines), ParseError::InvalidByteInName);
    }
}

#[test]
fn obs_fold_is_refused() {
    for lines in ["X: a\r\n b\r\n", "X: a\r\n\tb\r\n", "X: a\r\n \r\n", "X: a\n b\n", "X_Y: a\r\n b\r\n"] {
        refuse_400(&with(lines), ParseError::ObsoleteFolding);
    }
}

#[test]
fn content_length_with_transfer_encoding_is_refused() {
    for lines in [
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
        "Content-Length: 0\r\nTransfer-Encoding: identity\r\n",
    ] {
        refuse_400(&with(lines), ParseError::LengthAndTransferEncoding);
    }
}

#[test]
fn differing_or_malformed_content_length_is_refused() {
    for lines in ["Content-Length: 5\r\nContent-Length: 6\r\n", "Content-Length: 5\r\ncontent-length: 5\r\n"]
    {
        refuse_400(&with(lines), ParseError::Duplicate(HeaderId::ContentLength));
    }
    for value in
        ["", "x", "-1", "+5", "5, 5", "5,6", "0x5", "5 5", "5.0", "1e3", "9223372036854775808", "\u{665}"]
    {
        refuse_400(&with(&format!("Content-Length: {value}\r\n")), ParseError::InvalidContentLength);
    }
    assert_eq!(
        complete(&with("Content-Length: 9223372036854775807\r\n")).body(),
        BodyLength::Exactly(i64::MAX as u64)
    );
    assert_eq!(complete(&with("Content-Length: \t007 \r\n")).body(), BodyLength::Exactly(7));
    assert!(!complete(&with("Content-Length: 0\r\n")).body().has_body());
    assert!(!complete(&with("")).body().has_body());
}

#[test]
fn several_or_unknown_transfer_encodings_are_refused() {
    refuse_400(
        &with("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"),
        ParseError::Duplicate(HeaderId::TransferEncoding),
    );
    refuse_400(
        &with("Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n"),
        ParseError::Duplicate(HeaderId::TransferEncoding),
    );
    for value in [
        "gzip",
        "identity",
        "gzip, chunked",
        "chunked, chunked",
        "chunked, identity",
        "",
        "chunke",
        "xchunked",
        "chunked;q=1",
        "\"chunked\"",
        "chunked,",
    ] {
        let text = with(&format!("Transfer-Encoding: {value}\r\n"));
        refuse(&text, ParseError::UnknownTransferEncoding);
    }
    assert_eq!(ParseError::UnknownTransferEncoding.status(), StatusCode::NOT_IMPLEMENTED);
    refuse_400("GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", ParseError::TransferEncodingIn10);
    let head = complete(&with("Transfer-Encoding: CHUNKED\r\n"));
    assert_eq!((head.body(), head.body().has_body()), (BodyLength::Unknown, true));
}

/// Ways to hide one of the two framing fields from one of two parties. Each must be refused, or the unusual field must be removed
/// before the request is passed on.
#[test]
fn smuggling_attempts_are_refused_or_neutralised() {
    let refused = [
        "Content-Length: 5\r\nTransfer-Encoding : chunked\r\n",
        "Content-Length: 5\r\nTransfer-Encoding\t: chunked\r\n",
        "Content-Length: 5\r\n Transfer-Encoding: chunked\r\n",
        "Content-Length: 5\r\nX: y\r\n Transfer-Encoding: chunked\r\n",
        "Content-Length: 5\r\nX: y\rTransfer-Encoding: chunked\r\n",
        "Content-Length: 5\r\nX: y\0Transfer-Encoding: chunked\r\n",
        "Content-Length: 5\r\nTransfer-Encoding:\x0bchunked\r\n",
        "Content-Length: 5\r\nTransfer-Encoding:\x0cchunked\r\n",
        "Content-Length: 5\r\nTransfer-Encoding: chunked\x0b\r\n",
        "Content-Length: 5\r\nTransfer-Encoding: \tchunked\r\n",
        "Content-Length: 5\r\nTransfer-Encoding: xchunked\r\n",
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n",
        "Content-Length: 5\r\nTransfer-Encoding:\r\n chunked\r\n",
        "Content-Length: 5\r\nTransfer-Encoding:\n chunked\r\n",
        "Content-Length: 5\r\n\x01Transfer-Encoding: chunked\r\n",
        "Content-Length: 5\r\nTransfer-Encoding\0: chunked\r\n",
        "Content-Length: 5\r\n:Transfer-Encoding: chunked\r\n",
        "Content-Length : 5\r\n",
        "Content-Length: 5\r\nContent-Length : 6\r\n",
        "Content-Length: 5\r\n Content-Length: 6\r\n",
        "Content-Length: 5\r\nContent-Length:\r\n",
        "Content-Length: 5\rContent-Length: 6\r\n",
        "Content-Length: 5 6\r\n",
        "Content-Length: \u{b2}\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-encoding: cow\r\n",
        "Transfer-Encoding: cow\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: 'chunked'\r\n",
        "Transfer-Encoding: \u{e7}hunked\r\n",
        "Transfer-Encoding: chunked \t x\r\n",
        "Host: b\r\n",
        "Host : b\r\n",
    ];
    for lines in refused {
        let text = with(lines);
        assert!(run(text.as_bytes(), &LENIENT).is_err(), "{lines:?}");
        assert!(run(text.as_bytes(), &STRICT).is_err(), "{lines:?} under the strict policy");
    }
    let dropped = [
        "Transfer_Encoding: chunked\r\n",
        "Transfer-Encoding\u{a0}: chunked\r\n",
        "(Transfer-Encoding: chunked\r\n",
        "Transfer-Encoding;: chunked\r\n",
        "Transfer-Encoding\r\n",
        "Content_Length: 6\r\n",
        "\"Content-Length: 6\r\n",
    ];
    for lines in dropped {
        let text = with(&format!("Content-Length: 5\r\n{lines}"));
        let head = complete(&text);
        assert_eq!((head.body(), head.ignored_count()), (BodyLength::Exactly(5), 1), "{lines:?}");
        assert_eq!(head.fields().len(), 2, "{lines:?} is not passed on");
        assert_eq!(run(text.as_bytes(), &STRICT).err(), Some(ParseError::InvalidName), "{lines:?}");
    }
}

#[test]
fn missing_duplicate_or_invalid_host_is_refused() {
    refuse_400("GET / HTTP/1.1\r\n\r\n", ParseError::MissingHost);
    refuse_400("GET http://a/ HTTP/1.1\r\n\r\n", ParseError::MissingHost);
    refuse_400(&with("host: a\r\n"), ParseError::Duplicate(HeaderId::Host));
    for host in ["", "a b", "a/b", "a..b", "a:x", "[::1", "a@b"] {
        let text = format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n");
        assert!(matches!(run(text.as_bytes(), &LENIENT), Err(ParseError::InvalidHost(_))), "{host:?}");
        let text = format!("GET http://good/ HTTP/1.1\r\nHost: {host}\r\n\r\n");
        assert!(
            matches!(run(text.as_bytes(), &LENIENT), Err(ParseError::InvalidHost(_))),
            "{host:?} with an absolute target"
        );
        let text = format!("GET / HTTP/1.0\r\nHost: {host}\r\n\r\n");
        assert!(
            matches!(run(text.as_bytes(), &LENIENT), Err(ParseError::InvalidHost(_))),
            "{host:?} in HTTP/1.0"
        );
    }
    assert_eq!(complete("GET / HTTP/1.0\r\n\r\n").host(), None);
}

#[test]
fn single_fields_must_not_be_repeated() {
    for name in [
        "If-Match",
        "If-None-Match",
        "If-Modified-Since",
        "If-Unmodified-Since",
        "If-Range",
        "Expect",
        "Authorization",
    ] {
        let error = ParseError::Duplicate(HeaderId::of(name.as_bytes()));
        refuse_400(&with(&format!("{name}: a\r\n{name}: a\r\n")), error);
    }
    complete(&with("Range: a\r\nRange: b\r\nUser-Agent: a\r\nUser-Agent: b\r\n"));
}

#[test]
fn invalid_names_follow_the_policy() {
    let text = with("X_Y: 1\r\nX@Y: 2\r\nNo-Colon\r\n\u{e4}: 3\r\n");
    let kept = |policy: &Policy| {
        let (head, _) = run(text.as_bytes(), policy).expect("lenient");
        let names = head.fields()[1..].iter();
        names
            .map(|field| String::from_utf8_lossy(field.name.of(text.as_bytes())).into_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(kept(&LENIENT), Vec::<String>::new());
    assert_eq!(kept(&Policy { underscores_in_headers: true, ..LENIENT }), ["X_Y"]);
    let keep_all = Policy { ignore_invalid_headers: false, ..LENIENT };
    assert_eq!(kept(&keep_all), ["X_Y", "X@Y", "No-Colon", "\u{e4}"]);
    assert_eq!(run(text.as_bytes(), &STRICT).err(), Some(ParseError::InvalidName));
    let underscores = Policy { underscores_in_headers: true, ..STRICT };
    assert!(run(with("X_Y: 1\r\n").as_bytes(), &underscores).is_ok());
}

#[test]
fn limits_distinguish_the_request_line_and_the_fields() {
    let small = Policy { request_line_max: 40, field_line_max: 30, head_max: 100, fields_max: 4, ..LENIENT };
    let uri = "x".repeat(40);
    assert_eq!(run(format!("GET /{uri}").as_bytes(), &small).err(), Some(ParseError::RequestLineTooLong));
    let whole = format!("GET /{uri} HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(run(whole.as_bytes(), &small).err(), Some(ParseError::RequestLineTooLong));
    assert_eq!(ParseError::RequestLineTooLong.status(), StatusCode::URI_TOO_LONG);
    let fits = format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "x".repeat(40 - 16));
    assert!(run(fits.as_bytes(), &small).is_ok(), "a line of exactly the limit fits");
    assert_eq!(
        run(with(&format!("X: {uri}\r\n")).as_bytes(), &small).err(),
        Some(ParseError::FieldLineTooLong)
    );
    assert_eq!(run(with(&format!("X: {uri}")).as_bytes(), &small).err(), Some(ParseError::FieldLineTooLong));
    assert_eq!(
        run(with(&"X: 45678901234567890\r\n".repeat(4)).as_bytes(), &small).err(),
        Some(ParseError::HeadTooLong)
    );
    assert_eq!(run(with(&"X:\r\n".repeat(4)).as_bytes(), &small).err(), Some(ParseError::TooManyFields));
    assert_eq!(
        run(with(&"X_:\r\n".repeat(4)).as_bytes(), &small).err(),
        Some(ParseError::TooManyFields),
        "dropped lines count"
    );
    assert!(run(with(&"X:\r\n".repeat(3)).as_bytes(), &small).is_ok());
    for error in [ParseError::FieldLineTooLong, ParseError::HeadTooLong, ParseError::TooManyFields] {
        assert_eq!(error.status(), StatusCode::REQUEST_HEADER_TOO_LARGE);
    }
}

#[test]
fn phases_report_the_progress_of_the_parser() {
    let mut head = Head::new();
    let text = b"\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n";
    for (len, phase, in_request_line, line_start) in [
        (0, Phase::BeforeRequest, true, 0),
        (2, Phase::BeforeRequest, true, 2),
        (5, Phase::RequestLine, true, 2),
        (20, Phase::Fields, false, 18),
        (30, Phase::Done, false, 29),
    ] {
        let len = len.min(text.len());
        parse(&mut head, &text[..len], &LENIENT).expect("valid so far");
        assert_eq!(
            (head.phase(), head.in_request_line(), head.line_start()),
            (phase, in_request_line, line_start),
            "{len}"
        );
    }
}

/// Formats all parts of a result that a caller can see.
fn digest(result: Result<(Head, Progress), ParseError>) -> String {
    match result {
        Err(error) => format!("{error:?}"),
        Ok((_, Progress::Incomplete)) => "incomplete".to_owned(),
        Ok((head, progress)) => format!(
            "{progress:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?} {}",
            head.method(),
            head.target(),
            head.path(),
            head.version(),
            head.fields(),
            head.host(),
            head.body(),
            head.ignored_count()
        ),
    }
}

fn in_pieces(text: &[u8], cuts: &[usize], policy: &Policy) -> Result<(Head, Progress), ParseError> {
    let mut head = Head::new();
    for &cut in cuts.iter().chain([&text.len()]) {
        let progress = parse(&mut head, &text[..cut], policy)?;
        if matches!(progress, Progress::Complete { .. }) {
            return Ok((head, progress));
        }
    }
    Ok((head, Progress::Incomplete))
}

const CORPUS: &[&str] = &[
    "GET / HTTP/1.1\r\nHost: a\r\n\r\nGET /next",
    "\r\n\nPOST http://a.b:8/c?d HTTP/1.10\r\nhost: x\r\nContent-Length: 3\r\nX_Y: z\r\nEmpty:\r\n\r\nabc",
    "GET  /  HTTP/1.0  \nA: b\n\n",
    "GET / HTTP/1.1\r\nHost: a\r\nX: a\rb\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: a\r\n folded\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: a\r\nX : b\r\n\r\n",
    "GET / HTTP/2.0\r\n\r\n",
    "GET /\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
    "GET / HTTP/1.1\r\n\r\n",
    "OPTIONS * HTTP/1.1\r\nHost: a\r\nno-colon\r\n\r\n",
];

#[test]
fn every_split_point_gives_the_same_result() {
    for text in CORPUS {
        let bytes = text.as_bytes();
        for policy in [LENIENT, STRICT, Policy { ignore_invalid_headers: false, ..LENIENT }] {
            let whole = digest(run(bytes, &policy));
            // Miri would need hours for all split points.
            for first in (0..=bytes.len()).step_by(if cfg!(miri) { 17 } else { 1 }) {
                for second in [first, (first + 1).min(bytes.len()), bytes.len()] {
                    assert_eq!(
                        digest(in_pieces(bytes, &[first, second], &policy)),
                        whole,
                        "{text:?} at {first}, {second}"
                    );
                }
            }
            let bytewise: Vec<usize> = (0..bytes.len()).collect();
            assert_eq!(digest(in_pieces(bytes, &bytewise, &policy)), whole, "{text:?} by bytes");
        }
    }
}

proptest! {
    #[test]
    fn split_points_of_any_request_do_not_matter(
        lines in proptest::collection::vec("([A-Z][a-z_@]{0,3}|Host|Content-Length|Transfer-Encoding| )?:? ?[a-z0-9\t\u{1}]{0,6}", 0..5),
        ends in proptest::collection::vec("\r\n|\n|\r", 6),
        start in "(GET|POST|get) {1,2}(/|\\*|http://a)[a-z?]{0,4} HTTP/1.[01]",
        cuts in proptest::collection::vec(0usize..120, 0..6),
    ) {
        let mut text = start;
        for (line, end) in lines.iter().map(String::as_str).chain([""]).zip(&ends) {
            text.push_str(if text.contains('\n') || text.contains('\r') { line } else { "" });
            text.push_str(end);
        }
        text.push_str("\r\n");
        let bytes = text.as_bytes();
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
        cuts.sort_unstable();
        prop_assert_eq!(digest(in_pieces(bytes, &cuts, &LENIENT)), digest(run(bytes, &LENIENT)));
    }

    #[test]
    fn no_input_panics(tail in proptest::collection::vec(any::<u8>(), 0..200), strict: bool) {
        let policy = Policy { strict, ..LENIENT };
        let _ = run(&tail, &policy);
        let _ = run(&[b"GET / HTTP/1.1\r\n".as_slice(), &tail].concat(), &policy);
        let _ = run(&[b"GET / HTTP/1.1\r\nHost: a\r\nX: ".as_slice(), &tail].concat(), &policy);
    }
}
