//! Responses of memcached: [`http::gateway::memcached::Decoder`] through [`Decoder`].

use http::fields::Method;
use http::gateway::{BodyEvent, Decoder, HeadEvent, memcached};
use http::response::parse::{Limits, ParsedResponse};

use super::take_byte;
use crate::Target;

/// See the module.
pub const TARGET: Target = Target {
    name: "memcached_response",
    run,
    tokens: &[
        "VALUE k 0 5\r\n",
        "VALUE k 2 0\r\n",
        "\r\nEND\r\n",
        "END\r\n",
        "hello",
        "ERROR\r\n",
        " 7",
        "\r\n",
    ],
};

/// The decoded response.
#[derive(Debug, PartialEq, Eq)]
struct Decoded {
    status: Option<u16>,
    length: Option<u64>,
    body: Vec<u8>,
    is_over: bool,
}

/// Decodes the bytes in one call and in pieces, and compares the result with the bytes.
pub fn run(mut data: &[u8]) {
    let cut = usize::from(take_byte(&mut data)) + 1;
    let (whole, pieces) = (decode(data, data.len().max(1)), decode(data, cut));
    let Ok((whole, keeps)) = whole else {
        assert!(pieces.is_err(), "pieces change the result");
        return;
    };
    let (pieces, _) = pieces.expect("the complete input is valid");
    assert_eq!(whole, pieces, "pieces change the result");
    if let Some(length) = whole.length {
        assert!(whole.body.len() as u64 <= length);
        assert!(!whole.is_over || whole.body.len() as u64 == length, "the value is incomplete");
        assert!(!keeps || whole.status == Some(404) || data.ends_with(b"\r\nEND\r\n"));
    }
}

/// Returns the result, and whether the connection stays open.
fn decode(data: &[u8], piece: usize) -> Result<(Decoded, bool), ()> {
    let request = memcached::get(b"k", 2);
    let mut decoder = Decoder::new(&request, Method::Get, Limits::default());
    let (mut head, mut input) = (ParsedResponse::new(), Vec::new());
    let mut found = Decoded { status: None, length: None, body: Vec::new(), is_over: false };
    for piece in data.chunks(piece) {
        let mut rest = piece.to_vec();
        if found.status.is_none() {
            input.extend_from_slice(&rest);
            match decoder.head(&mut head, &input).map_err(|_| ())? {
                HeadEvent::Written(len) => {
                    let raw = decoder.take_written();
                    assert!(head.lines(&raw).all(|line| !line.value.contains(&b'\n')));
                    (found.status, found.length) = (Some(head.status().code()), head.content_length());
                    rest = input.split_off(len as usize);
                }
                HeadEvent::More => continue,
                event => panic!("{event:?}"),
            }
        }
        let ends = decoder.ends_within(&rest);
        let mut at = 0;
        loop {
            let step = decoder.body(&rest[at..]).expect("no body is rejected");
            assert!(step.consumed <= rest.len() - at);
            match step.event {
                BodyEvent::Data { start, end } => {
                    assert!(start < end && end <= step.consumed);
                    found.body.extend_from_slice(&rest[at + start..at + end]);
                }
                BodyEvent::More => break,
                BodyEvent::End => {
                    found.is_over = true;
                    return Ok((found, decoder.keeps_alive()));
                }
            }
            at += step.consumed;
        }
        assert!(!ends, "`ends_within` reported an end that does not occur");
    }
    Ok((found, decoder.keeps_alive()))
}
