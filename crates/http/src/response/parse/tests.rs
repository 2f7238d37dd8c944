//! Tables for the head parser: accepted input, refused input, and independence of how the input is split.

use super::*;
use proptest::prelude::*;

const LIMITS: Limits = Limits { head_max: HEAD_MAX_DEFAULT, fields_max: FIELDS_MAX_DEFAULT };

fn run(text: &[u8]) -> Result<(ParsedResponse, ResponseProgress), ResponseError> {
    let mut head = ParsedResponse::new();
    parse(&mut head, text, &LIMITS).map(|progress| (head, progress))
}

fn complete(text: &str) -> ParsedResponse {
    let (head, progress) = run(text.as_bytes()).unwrap_or_else(|error| panic!("{text:?}: {error:?}"));
    assert_eq!(progress, ResponseProgress::Complete { head_len: text.len() as u32 }, "{text:?}");
    head
}

/// Creates a 200 response with these field lines.
fn with(lines: &str) -> String {
    format!("HTTP/1.1 200 OK\r\n{lines}\r\n")
}

fn refuse(lines: &str, error: ResponseError) {
    assert_eq!(run(with(lines).as_bytes()).err(), Some(error), "{lines:?}");
}

#[test]
fn a_response_is_parsed_into_ranges() {
    let text = "HTTP/1.1 404 Not  Here\r\nX-One:  two words \t\r\ncontent-length: 5\r\nETag: \"a\"\r\nX-One: 2\r\n\r\n";
    let buf = text.as_bytes();
    let head = complete(text);
    assert_eq!((head.version(), head.status().code()), (Version::Http11, 404));
    assert_eq!(head.status_text().of(buf), b"404 Not  Here");
    assert_eq!(head.reason().of(buf), b"Not  Here");
    assert_eq!(head.get(buf, HeaderId::Etag), Some(&b"\"a\""[..]));
    assert_eq!(head.content_length(), Some(5));
    assert!(!head.is_chunked() && !head.is_interim());
    assert_eq!(head.named(buf, b"x-one").collect::<Vec<_>>(), [&b"two words"[..], b"2"]);
    assert_eq!(head.variable(buf, b"x_one").collect::<Vec<_>>(), [&b"two words"[..], b"2"]);
    let lines: Vec<FieldLine<'_>> = head.lines(buf).collect();
    assert_eq!(lines.len(), 4);
    assert_eq!(lines[2], FieldLine::new(b"ETag", b"\"a\""));
    assert_eq!(head.all(buf, HeaderId::Etag).count(), 1);
    assert_eq!(head.all(buf, HeaderId::Vary).count(), 0);
}

#[test]
fn the_body_is_not_consumed() {
    let text = "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc\n";
    let (_, progress) = run(text.as_bytes()).expect("valid");
    assert_eq!(progress, ResponseProgress::Complete { head_len: text.len() as u32 - 4 });
}

#[test]
fn status_lines_are_parsed() {
    for (line, version, code, text, reason) in [
        ("HTTP/1.1 200 OK", Version::Http11, 200, "200 OK", "OK"),
        ("HTTP/1.0 301 Moved", Version::Http10, 301, "301 Moved", "Moved"),
        ("HTTP/1.1 200", Version::Http11, 200, "200", ""),
        ("HTTP/1.1 200 ", Version::Http11, 200, "200 ", ""),
        ("HTTP/1.1   200  two  blanks", Version::Http11, 200, "200  two  blanks", " two  blanks"),
        ("HTTP/1.1 403.1 Forbidden", Version::Http11, 403, "403.1 Forbidden", "Forbidden"),
        ("HTTP/1.1 403.", Version::Http11, 403, "403.", ""),
        ("HTTP/1.2 200 OK", Version::Http11, 200, "200 OK", "OK"),
        ("HTTP/1.01 200 OK", Version::Http11, 200, "200 OK", "OK"),
        ("HTTP/2.0 200 OK", Version::Http11, 200, "200 OK", "OK"),
        ("HTTP/10.100 999 x", Version::Http11, 999, "999 x", "x"),
        ("HTTP/1.1 200 t\u{e4}b\tbed", Version::Http11, 200, "200 t\u{e4}b\tbed", "t\u{e4}b\tbed"),
    ] {
        for end in ["\r\n", "\n"] {
            let input = format!("{line}{end}{end}");
            let head = complete(&input);
            assert_eq!((head.version(), head.status().code()), (version, code), "{line}");
            assert_eq!(head.status_text().of(input.as_bytes()), text.as_bytes(), "{line}");
            assert_eq!(head.reason().of(input.as_bytes()), reason.as_bytes(), "{line}");
        }
    }
}

#[test]
fn malformed_status_lines_are_refused() {
    for line in [
        "HTTP/",
        "HTTP/1",
        "HTTP/1.",
        "HTTP/1.1",
        "HTTP/1.1 ",
        "HTTP/1.1 2",
        "HTTP/1.1 20",
        "HTTP/1.1 20 OK",
        "HTTP/1.1 2000 OK",
        "HTTP/1.1 200OK",
        "HTTP/1.1\t200 OK",
        "HTTP/1.1 200\tOK",
        "HTTP/1.1 2 0 OK",
        "HTTP/1.1 -20 OK",
        "HTTP/1.1 099 low",
        "HTTP/1.1 000 none",
        "HTTP/0.9 200 OK",
        "HTTP/01.1 200 OK",
        "HTTP/1.1x 200 OK",
        "HTTP/1,1 200 OK",
        "HTTP/ 1.1 200 OK",
        "HTTP/1111.1 200 OK",
        "HTTP/1.1111 200 OK",
        "HTTP/1.1 200 a\rb",
        "HTTP/1.1 200 OK\r",
        "HTTP/1.1 200 a\0b",
        "HTTP/1.1 200 a\x1bb",
    ] {
        let text = format!("{line}\r\n\r\n");
        assert_eq!(run(text.as_bytes()).err(), Some(ResponseError::InvalidStatusLine), "{line:?}");
    }
}

#[test]
fn a_missing_status_line_is_detected_at_the_first_byte() {
    for text in ["<html>", "\r\nHTTP/1.1 200 OK\r\n\r\n", "http/1.1 200 OK", "HTTQ", "HTTP 200", "\0", "HX"] {
        assert_eq!(
            run(text.as_bytes()).map(|(_, progress)| progress),
            Ok(ResponseProgress::Http09),
            "{text:?}"
        );
    }
    for text in ["", "H", "HTTP", "HTTP/", "HTTP/1.1 200 OK"] {
        assert_eq!(
            run(text.as_bytes()).map(|(_, progress)| progress),
            Ok(ResponseProgress::Incomplete),
            "{text:?}"
        );
    }
}

#[test]
fn interim_responses_are_reported() {
    for (code, interim) in
        [(100, true), (101, false), (102, true), (103, true), (199, true), (200, false), (304, false)]
    {
        let head = complete(&format!("HTTP/1.1 {code} x\r\nLink: </a>\r\n\r\n"));
        assert_eq!(head.is_interim(), interim, "{code}");
    }
    let text = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nX: 1\r\n\r\n";
    let mut head = ParsedResponse::new();
    let Ok(ResponseProgress::Complete { head_len }) = parse(&mut head, text, &LIMITS) else {
        panic!("complete")
    };
    head.clear();
    let rest = &text[head_len as usize..];
    assert_eq!(
        parse(&mut head, rest, &LIMITS),
        Ok(ResponseProgress::Complete { head_len: rest.len() as u32 })
    );
    assert_eq!((head.status(), head.fields().len()), (StatusCode::OK, 1));
}

#[test]
fn fields_that_nginx_accepts_are_accepted() {
    for (line, name, value) in [
        ("A: b", "A", "b"),
        ("A:b", "A", "b"),
        ("A: \t b \t ", "A", "b"),
        ("A:", "A", ""),
        ("A: ", "A", ""),
        ("no-colon", "no-colon", ""),
        ("X_Y: 1", "X_Y", "1"),
        ("X@(Y): 1", "X@(Y)", "1"),
        ("\u{e9}: 1", "\u{e9}", "1"),
        ("A: a:b", "A", "a:b"),
        ("A: \x01\x7f", "A", "\x01\x7f"),
        ("A: b\r\r", "A", "b"),
        ("A\r", "A", ""),
        ("HTTP: 1", "HTTP", "1"),
        ("XHTTP/1: 1", "XHTTP/1", "1"),
    ] {
        for end in ["\r\n", "\n"] {
            let text = with(&format!("{line}{end}"));
            let head = complete(&text);
            let [field] = head.fields() else { panic!("{line:?}: {:?}", head.fields()) };
            assert_eq!(field.name.of(text.as_bytes()), name.as_bytes(), "{line:?}");
            assert_eq!(field.value.of(text.as_bytes()), value.as_bytes(), "{line:?}");
        }
    }
}

#[test]
fn malformed_fields_are_refused() {
    for (line, error) in [
        ("A: 1\r\n b", ResponseError::ObsoleteFolding),
        ("A: 1\r\n\tb: c", ResponseError::ObsoleteFolding),
        (" A: 1", ResponseError::InvalidByteInName),
        ("A : 1", ResponseError::InvalidByteInName),
        ("A\t: 1", ResponseError::InvalidByteInName),
        ("A\0: 1", ResponseError::InvalidByteInName),
        ("A\x7f: 1", ResponseError::InvalidByteInName),
        ("\x01A: 1", ResponseError::InvalidByteInName),
        ("two words", ResponseError::InvalidByteInName),
        (": 1", ResponseError::EmptyName),
        (":", ResponseError::EmptyName),
        ("A: \0", ResponseError::NulInValue),
        ("A: b\0c", ResponseError::NulInValue),
        ("A: b\rc", ResponseError::BareCr),
        ("A: \rc", ResponseError::BareCr),
        ("A\r: 1", ResponseError::BareCr),
        ("\rA: 1", ResponseError::BareCr),
        ("\r", ResponseError::BareCr),
    ] {
        refuse(&format!("{line}\r\n"), error);
    }
}

#[test]
fn conflicting_framing_fields_are_refused() {
    use ResponseError as Error;
    for (lines, error) in [
        ("Content-Length: 5\r\nContent-Length: 5\r\n", Error::Duplicate(HeaderId::ContentLength)),
        (
            "Transfer-Encoding: chunked\r\ntransfer-encoding: chunked\r\n",
            Error::Duplicate(HeaderId::TransferEncoding),
        ),
        ("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", Error::LengthAndTransferEncoding),
        ("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", Error::LengthAndTransferEncoding),
        ("Content-Length: 5, 5\r\n", Error::InvalidContentLength),
        ("Content-Length: -1\r\n", Error::InvalidContentLength),
        ("Content-Length: +1\r\n", Error::InvalidContentLength),
        ("Content-Length:\r\n", Error::InvalidContentLength),
        ("Content-Length: 0x5\r\n", Error::InvalidContentLength),
        ("Content-Length: 9223372036854775808\r\n", Error::InvalidContentLength),
        ("Transfer-Encoding: gzip\r\n", Error::UnknownTransferEncoding),
        ("Transfer-Encoding: gzip, chunked\r\n", Error::UnknownTransferEncoding),
        ("Transfer-Encoding: chunked, chunked\r\n", Error::UnknownTransferEncoding),
        ("Transfer-Encoding:\r\n", Error::UnknownTransferEncoding),
    ] {
        refuse(lines, error);
    }
    assert_eq!(
        complete(&with("Content-Length: 9223372036854775807\r\n")).content_length(),
        Some(i64::MAX as u64)
    );
    assert!(complete(&with("Transfer-Encoding: ChunKed\r\n")).is_chunked());
    // White space cannot hide a field.
    refuse("Content-Length : 5\r\n", Error::InvalidByteInName);
}

#[test]
fn the_first_of_repeated_single_value_fields_is_used() {
    let text = with(
        "Date: one\r\ndate: two\r\nSet-Cookie: a\r\nSet-Cookie: b\r\nETag: \"x\"\r\nHTTP/1.1 200 OK\r\nETag: \"y\"\r\n",
    );
    let head = complete(&text);
    let buf = text.as_bytes();
    assert_eq!(head.all(buf, HeaderId::Date).collect::<Vec<_>>(), [b"one"]);
    assert_eq!(head.all(buf, HeaderId::Etag).collect::<Vec<_>>(), [b"\"x\""]);
    assert_eq!(head.all(buf, HeaderId::SetCookie).count(), 2);
    assert_eq!(head.ignored_count(), 3);
    assert_eq!(head.first_ignored().map(|span| span.of(buf)), Some(&b"date: two"[..]));
}

#[test]
fn limits_of_bytes_and_fields_are_enforced() {
    let text = with("A: 1\r\nB: 2\r\n");
    let bytes = text.as_bytes();
    for head_max in 0..text.len() as u32 {
        let result = parse(&mut ParsedResponse::new(), bytes, &Limits { head_max, ..LIMITS });
        assert_eq!(result, Err(ResponseError::HeadTooLong), "{head_max}");
        let cut = &bytes[..head_max as usize];
        let result = parse(&mut ParsedResponse::new(), cut, &Limits { head_max, ..LIMITS });
        assert_eq!(result, Err(ResponseError::HeadTooLong), "a full buffer of {head_max}");
    }
    let exact = Limits { head_max: text.len() as u32, ..LIMITS };
    assert!(parse(&mut ParsedResponse::new(), &[bytes, b"body"].concat(), &exact).is_ok());
    for (fields_max, fits) in [(1, false), (2, true)] {
        let result = parse(&mut ParsedResponse::new(), bytes, &Limits { fields_max, ..LIMITS });
        assert_eq!(result.is_ok(), fits, "{fields_max}");
    }
    let repeated = with(&"Date: x\r\n".repeat(20));
    let result = parse(&mut ParsedResponse::new(), repeated.as_bytes(), &Limits { fields_max: 10, ..LIMITS });
    assert_eq!(result, Err(ResponseError::TooManyFields), "ignored lines count too");
}

#[test]
fn a_head_can_be_reused() {
    let mut head = ParsedResponse::new();
    let first = with("Content-Length: 5\r\nDate: a\r\nDate: b\r\n");
    parse(&mut head, first.as_bytes(), &LIMITS).expect("valid");
    head.clear();
    let second = b"HTTP/1.0 204 x\n\n";
    assert_eq!(parse(&mut head, second, &LIMITS), Ok(ResponseProgress::Complete { head_len: 16 }));
    assert_eq!((head.content_length(), head.ignored_count(), head.first_ignored()), (None, 0, None));
    assert!(head.fields().is_empty() && head.get(second, HeaderId::Date).is_none());
    assert_eq!(
        parse(&mut head, second, &LIMITS),
        Ok(ResponseProgress::Complete { head_len: 16 }),
        "another call"
    );
}

#[test]
fn field_sections_are_parsed() {
    let mut fields = Vec::new();
    let section = b"A: 1\r\nB:2\nX: y";
    parse_fields(section, 3, &mut fields).expect("valid");
    let pairs: Vec<(&[u8], &[u8])> =
        fields.iter().map(|field| (field.name.of(section), field.value.of(section))).collect();
    assert_eq!(pairs, [(&b"A"[..], &b"1"[..]), (b"B", b"2"), (b"X", b"y")]);
    assert_eq!(parse_fields(section, 2, &mut fields), Err(ResponseError::TooManyFields));
    assert!(fields.is_empty());
    assert_eq!(
        parse_fields(b"A: 1\r\n\r\nB: 2\r\n", 9, &mut fields),
        Err(ResponseError::BareCr),
        "an empty line"
    );
    assert_eq!(parse_fields(b"A: 1\r\n b: 2\r\n", 9, &mut fields), Err(ResponseError::ObsoleteFolding));
    parse_fields(b"", 0, &mut fields).expect("no fields");
}

/// Formats the complete result, for comparison.
fn digest(result: Result<(ParsedResponse, ResponseProgress), ResponseError>) -> String {
    result.map_or_else(
        |error| format!("{error:?}"),
        |(head, progress)| {
            let counts =
                (head.ignored_count(), head.first_ignored(), head.content_length(), head.is_chunked());
            format!("{progress:?} {:?} {:?} {:?} {counts:?}", head.status(), head.reason(), head.fields())
        },
    )
}

fn in_pieces(bytes: &[u8], cuts: &[usize]) -> Result<(ParsedResponse, ResponseProgress), ResponseError> {
    let mut head = ParsedResponse::new();
    for &cut in cuts {
        match parse(&mut head, &bytes[..cut], &LIMITS)? {
            ResponseProgress::Incomplete => {}
            progress => return Ok((head, progress)),
        }
    }
    let progress = parse(&mut head, bytes, &LIMITS)?;
    Ok((head, progress))
}

const CORPUS: &[&str] = &[
    "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nA: b\r\n\r\nabc",
    "HTTP/1.0 403.1 No\nX:  y \n\nrest",
    "HTTP/1.1 200 OK\r\nA: b\r\r\nHTTP/1.1 200 OK\r\nDate: 1\r\nDate: 2\r\n\r\n",
    "HTTP/1.1 200 OK\r\n folded\r\n\r\n",
    "HTTP/1.1 20x\r\n\r\n",
    "HTTP/1.1 200 OK\r\nA: b\0\r\n\r\n",
    "HTTP/1.1 200 OK\r\n\rA: b\r\n\r\n",
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: x\r\n\r\n",
    "HTTPX/1.1 200 OK\r\n",
    "<html>\n",
];

#[test]
fn every_split_point_gives_the_same_result() {
    for text in CORPUS {
        let bytes = text.as_bytes();
        let whole = digest(run(bytes));
        for first in 0..=bytes.len() {
            for second in [first, (first + 1).min(bytes.len())] {
                assert_eq!(
                    digest(in_pieces(bytes, &[first, second])),
                    whole,
                    "{text:?} at {first}, {second}"
                );
            }
        }
        let bytewise: Vec<usize> = (0..bytes.len()).collect();
        assert_eq!(digest(in_pieces(bytes, &bytewise)), whole, "{text:?} by bytes");
    }
}

proptest! {
    #[test]
    fn split_points_of_any_response_do_not_matter(
        start in "HTTP/1.[01] {1,2}[0-4]{2,4}[. ]?[a-z ]{0,4}",
        lines in proptest::collection::vec("(Date|Content-Length|Transfer-Encoding|[A-Z][a-z_@]{0,3}|HTTP/| )?:? ?[a-z0-9\t\u{1}]{0,6}", 0..5),
        ends in proptest::collection::vec("\r\n|\n|\r|\r\r\n", 6),
        cuts in proptest::collection::vec(0usize..120, 0..6),
    ) {
        let mut text = start;
        for (line, end) in lines.iter().map(String::as_str).chain([""]).zip(&ends) {
            text.push_str(end);
            text.push_str(line);
        }
        text.push_str("\r\n\r\n");
        let bytes = text.as_bytes();
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
        cuts.sort_unstable();
        prop_assert_eq!(digest(in_pieces(bytes, &cuts)), digest(run(bytes)));
    }

    #[test]
    fn no_input_panics(tail in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = run(&tail);
        let _ = run(&[b"HTTP/".as_slice(), &tail].concat());
        let _ = run(&[b"HTTP/1.1 200 OK\r\n".as_slice(), &tail].concat());
        let _ = run(&[b"HTTP/1.1 200 OK\r\nX: ".as_slice(), &tail].concat());
        let mut fields = Vec::new();
        if parse_fields(&tail, 50, &mut fields).is_ok() {
            prop_assert!(fields.iter().all(|field| !field.name.is_empty() && field.value.end as usize <= tail.len()));
        }
    }
}
