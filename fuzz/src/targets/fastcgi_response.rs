//! Responses of FastCGI servers: [`http::gateway::fastcgi::Decoder`] through [`Decoder`].

use http::fields::Method;
use http::gateway::{BodyEvent, Decoder, HeadEvent, fastcgi};
use http::response::parse::{Limits, ParsedResponse};

use super::take_byte;
use crate::Target;

/// See the module.
pub const TARGET: Target = Target {
    name: "fastcgi_response",
    run,
    tokens: &[
        "\x01\x06\0\x01\0\x10\0\0",
        "\x01\x06\0\x01\0\0\0\0",
        "\x01\x07\0\x01\0\x04\0\0",
        "\x01\x03\0\x01\0\x08\0\0\0\0\0\0\0\0\0\0",
        "Status: 404 x\r\n",
        "Content-Length: 5\r\n",
        "Location: /\r\n",
        "\r\n\r\n",
        "\n\n",
    ],
};

/// The decoded response.
#[derive(Debug, PartialEq, Eq)]
struct Decoded {
    status: Option<u16>,
    body: Vec<u8>,
    is_over: bool,
}

/// Decodes the bytes in one call and in pieces.
pub fn run(mut data: &[u8]) {
    let cut = usize::from(take_byte(&mut data)) + 1;
    let (whole, pieces) = (decode(data, data.len().max(1)), decode(data, cut));
    // A response without content (204, 304) ends without parsing the bytes after its head, so pieces may change the
    // result.
    let is_bare = |found: &Result<Decoded, ()>| {
        found.as_ref().is_ok_and(|found| matches!(found.status, Some(204 | 304)))
    };
    if !is_bare(&whole) && !is_bare(&pieces) {
        assert_eq!(whole, pieces, "pieces change the result");
    }
    if let Ok(found) = whole {
        assert!(found.body.len() <= data.len());
    }
}

fn decode(data: &[u8], piece: usize) -> Result<Decoded, ()> {
    let request = fastcgi::Encoder::new(false).end();
    let mut decoder = Decoder::new(&request, Method::Get, Limits::default());
    let (mut head, mut input) = (ParsedResponse::new(), Vec::new());
    let mut found = Decoded { status: None, body: Vec::new(), is_over: false };
    for piece in data.chunks(piece) {
        let mut rest = piece.to_vec();
        if found.status.is_none() {
            let range = decoder.unframe(&mut rest).map_err(|_| ())?;
            input.extend_from_slice(&rest[range]);
            match decoder.head(&mut head, &input).map_err(|_| ())? {
                HeadEvent::Head(len) => {
                    found.status = Some(head.status().code());
                    rest = input.split_off(len as usize);
                    assert!(!decoder.ends_within(&rest) || decoder.remaining().is_some());
                }
                _ => continue,
            }
        }
        let mut at = 0;
        loop {
            let step = decoder.body(&rest[at..]).map_err(|_| ())?;
            assert!(step.consumed <= rest.len() - at);
            match step.event {
                BodyEvent::Data { start, end } => {
                    assert!(start < end && end <= step.consumed);
                    found.body.extend_from_slice(&rest[at + start..at + end]);
                }
                BodyEvent::More => break,
                BodyEvent::End => {
                    found.is_over = true;
                    return Ok(found);
                }
            }
            at += step.consumed;
        }
    }
    // The stored messages are limited in size.
    assert!(decoder.take_messages().is_none_or(|text| text.len() <= 64 << 10));
    Ok(found)
}
