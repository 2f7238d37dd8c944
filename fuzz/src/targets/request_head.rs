//! The header section of a request: [`http::request::parse`] (RFC 9112 sections 2 to 5).

use http::request::{Head, ParseError, Policy, Progress, parse};

use super::take_byte;
use crate::Target;

/// See the module.
pub const TARGET: Target = Target {
    name: "request_head",
    run,
    tokens: &[
        "GET ",
        "POST ",
        "OPTIONS * ",
        "CONNECT a:443 ",
        "/a?b",
        "http://a:80/",
        " HTTP/1.1\r\n",
        " HTTP/1.0\r\n",
        "Host: a\r\n",
        "Host:",
        "Content-Length: 5\r\n",
        "Content-Length: 18446744073709551616\r\n",
        "Transfer-Encoding: chunked\r\n",
        "Transfer-Encoding: gzip, chunked\r\n",
        "\r\n\r\n",
        "\n",
        "\r",
        "X_Y: 1\r\n",
        " folded\r\n",
        "\t",
        "\0",
        "[::1]",
        "%00",
        ":",
    ],
};

/// Parses the bytes in one call and in pieces, and checks that a complete head observes the limits of the policy.
pub fn run(mut data: &[u8]) {
    let (flags, cut) = (take_byte(&mut data), take_byte(&mut data));
    let policy = policy(flags);
    let whole = parse_whole(data, &policy);
    let pieces = parse_in_pieces(data, usize::from(cut) + 1, &policy);
    match (&whole, &pieces) {
        (Ok((head, progress)), Ok((other, other_progress))) => {
            assert_eq!(progress, other_progress, "pieces change the progress");
            if matches!(progress, Progress::Complete { .. }) {
                assert_eq!(digest(head, data), digest(other, data), "pieces change the head");
            }
        }
        // A line that is both malformed and too long may be rejected for either reason, as documented at `parse`.
        (Err(one), Err(other)) => {
            let is_length = |error: &ParseError| {
                matches!(
                    error,
                    ParseError::RequestLineTooLong | ParseError::FieldLineTooLong | ParseError::HeadTooLong
                )
            };
            assert!(one == other || is_length(one) || is_length(other), "{one:?} and in pieces {other:?}");
        }
        // A line that arrives in pieces is parsed after its line feed, so its error is detected later.
        (Err(_), Ok((head, Progress::Incomplete))) => {
            let rest = &data[head.line_start() as usize..];
            assert!(!rest.contains(&b'\n'), "pieces hide {:?}", whole.as_ref().err());
        }
        _ => panic!("whole: {:?}, in pieces: {:?}", whole.is_ok(), pieces.is_ok()),
    }
    if let Ok((head, Progress::Complete { head_len })) = whole {
        check_complete(&head, head_len, data, &policy);
    }
}

fn policy(flags: u8) -> Policy {
    let is_short = flags & 32 != 0;
    let defaults = Policy::default();
    Policy {
        ignore_invalid_headers: flags & 1 == 0,
        underscores_in_headers: flags & 2 != 0,
        strict: flags & 4 != 0,
        allow_connect: flags & 8 != 0,
        allow_trace: flags & 16 != 0,
        request_line_max: if is_short { 60 } else { defaults.request_line_max },
        field_line_max: if is_short { 40 } else { defaults.field_line_max },
        head_max: if is_short { 200 } else { defaults.head_max },
        fields_max: if is_short { 6 } else { defaults.fields_max },
    }
}

fn parse_whole(data: &[u8], policy: &Policy) -> Result<(Head, Progress), ParseError> {
    let mut head = Head::new();
    let progress = parse(&mut head, data, policy)?;
    Ok((head, progress))
}

fn parse_in_pieces(data: &[u8], piece: usize, policy: &Policy) -> Result<(Head, Progress), ParseError> {
    let mut head = Head::new();
    let mut end = 0;
    loop {
        end = (end + piece).min(data.len());
        let progress = parse(&mut head, &data[..end], policy)?;
        if progress != Progress::Incomplete || end == data.len() {
            return Ok((head, progress));
        }
    }
}

/// Returns all properties that a server reads from a head.
fn digest(head: &Head, buf: &[u8]) -> String {
    format!(
        "{:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?}",
        head.method(),
        head.target(),
        head.path(),
        head.request_line().of(buf),
        head.version(),
        head.fields(),
        head.host(),
        head.host_text(),
        head.body(),
        (head.ignored_count(), head.first_ignored()),
    )
}

fn check_complete(head: &Head, head_len: u32, data: &[u8], policy: &Policy) {
    let len = head_len as usize;
    assert!(len <= data.len() && head_len <= policy.head_max, "the head exceeds the input or the limit");
    assert!(data[..len].ends_with(b"\n"), "the head does not end with a line feed");
    assert!(head.fields().len() + usize::from(head.ignored_count()) <= usize::from(policy.fields_max));
    for field in head.fields() {
        let (name, value) = (field.name.of(&data[..len]), field.value.of(&data[..len]));
        assert!(!name.is_empty() && !name.iter().any(|byte| b" \t\r\n:\0".contains(byte)), "name {name:?}");
        assert!(!value.iter().any(|byte| b"\r\n\0".contains(byte)), "value {value:?}");
        let is_blank = |byte: Option<&u8>| byte.is_some_and(|byte| b" \t".contains(byte));
        assert!(
            !is_blank(value.first()) && !is_blank(value.last()),
            "value {value:?} has blanks at its ends"
        );
    }
    assert!(!head.request_line().of(data).contains(&b'\n'), "a line feed in the request line");
    let again = parse_whole(&data[..len], policy);
    assert_eq!(
        again.map(|(other, _)| digest(&other, data)),
        Ok(digest(head, data)),
        "bytes after the head change the result"
    );
}
