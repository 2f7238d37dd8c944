//! The header section of a response from an upstream: [`http::response::parse::parse`], its writer and its second parser.

use http::response::parse::{
    HeadWriter, Limits, ParsedResponse, ResponseError, ResponseProgress, parse, parse_fields, parse_written,
};

use super::take_byte;
use crate::Target;

/// See the module.
pub const TARGET: Target = Target {
    name: "response_head",
    run,
    tokens: &[
        "HTTP/1.1 200 OK\r\n",
        "HTTP/1.0 304\r\n",
        "HTTP/1.1 100 Continue\r\n\r\n",
        "Content-Length: 5\r\n",
        "Content-Length: 6\r\n",
        "Transfer-Encoding: chunked\r\n",
        "Connection: close\r\n",
        "Vary: a\r\n",
        "ETag: \"x\"\r\n",
        "\r\n\r\n",
        "\n",
        "\r",
        ": ",
        ":",
        " ",
        "\t",
        "\0",
        "Set-Cookie: a=b\r\n",
        "HTTP/2 200\r\n",
    ],
};

/// Parses the bytes in one call and in pieces; a complete head is written by [`HeadWriter`] and parsed by both parsers.
pub fn run(mut data: &[u8]) {
    let (flags, cut) = (take_byte(&mut data), take_byte(&mut data));
    let limits = match flags & 1 {
        0 => Limits::default(),
        _ => Limits { head_max: 200, fields_max: 6 },
    };
    let whole = parse_whole(data, &limits);
    let pieces = parse_in_pieces(data, usize::from(cut) + 1, &limits);
    match (&whole, &pieces) {
        (Ok((head, progress)), Ok((other, other_progress))) => {
            assert_eq!(progress, other_progress, "pieces change the progress");
            if matches!(progress, ResponseProgress::Complete { .. }) {
                assert_eq!(digest(head), digest(other), "pieces change the head");
            }
        }
        (Err(one), Err(other)) => {
            let is_length = |error: &ResponseError| matches!(error, ResponseError::HeadTooLong);
            assert!(one == other || is_length(one) || is_length(other), "{one:?} and in pieces {other:?}");
        }
        _ => panic!("whole: {:?}, in pieces: {:?}", whole.as_ref().err(), pieces.as_ref().err()),
    }
    if let Ok((head, ResponseProgress::Complete { head_len })) = &whole {
        check_complete(head, *head_len as usize, data, &limits);
    }
    check_section(data);
}

fn parse_whole(data: &[u8], limits: &Limits) -> Result<(ParsedResponse, ResponseProgress), ResponseError> {
    let mut head = ParsedResponse::new();
    let progress = parse(&mut head, data, limits)?;
    Ok((head, progress))
}

fn parse_in_pieces(
    data: &[u8],
    piece: usize,
    limits: &Limits,
) -> Result<(ParsedResponse, ResponseProgress), ResponseError> {
    let mut head = ParsedResponse::new();
    let mut end = 0;
    loop {
        end = (end + piece).min(data.len());
        let progress = parse(&mut head, &data[..end], limits)?;
        if progress != ResponseProgress::Incomplete || end == data.len() {
            return Ok((head, progress));
        }
    }
}

fn digest(head: &ParsedResponse) -> String {
    format!(
        "{:?} {:?} {:?} {:?} {:?} {:?}",
        (head.version(), head.status()),
        head.status_text(),
        head.reason(),
        head.fields(),
        (head.content_length(), head.is_chunked()),
        (head.ignored_count(), head.first_ignored()),
    )
}

fn check_complete(head: &ParsedResponse, len: usize, data: &[u8], limits: &Limits) {
    assert!(len <= data.len() && len <= limits.head_max as usize);
    assert!(head.fields().len() <= usize::from(limits.fields_max));
    for line in head.lines(&data[..len]) {
        assert!(
            !line.name.is_empty() && !line.name.iter().any(|byte| b"\r\n:\0".contains(byte)),
            "{:?}",
            line.name
        );
        assert!(!line.value.iter().any(|byte| b"\r\n\0".contains(byte)), "{:?}", line.value);
    }
    // The cache stores heads in this form and parses them without the checks.
    let Ok(mut writer) = HeadWriter::new(head.status(), head.status_text().of(data), len) else { return };
    for line in head.lines(data) {
        if writer.push(&line).is_err() {
            return;
        }
    }
    let Ok((bytes, written)) = writer.finish() else { return };
    let roomy = Limits { head_max: u32::MAX, fields_max: u16::MAX };
    let parsed = parse_whole(&bytes, &roomy).map(|(head, _)| digest(&head));
    assert_eq!(parsed, Ok(digest(&written)), "the writer and the parser disagree");
    let quick = parse_written(&bytes).map(|head| digest(&head));
    assert_eq!(quick, Some(digest(&written)), "the parser without checks disagrees");
}

/// Checks trailers and stored fields.
fn check_section(data: &[u8]) {
    let mut fields = Vec::new();
    if parse_fields(data, 100, &mut fields).is_ok() {
        assert!(fields.len() <= 100);
        for field in &fields {
            assert!(!field.name.of(data).is_empty());
            assert!(!field.value.of(data).iter().any(|byte| b"\r\n\0".contains(byte)));
        }
    } else {
        assert!(fields.is_empty());
    }
}
