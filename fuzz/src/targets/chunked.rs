//! Chunked bodies: [`http::framing::ChunkedDecoder`] (RFC 9112 section 7.1) and the encoder.

use http::framing::{
    CHUNK_END, CHUNK_HEADER_LEN_MAX, ChunkedDecoder, ChunkedError, Event, TRAILER_LEN_MAX, chunk_header,
    push_last_chunk,
};

use super::take_byte;
use crate::Target;

/// See the module.
pub const TARGET: Target = Target {
    name: "chunked",
    run,
    tokens: &[
        "5\r\nhello\r\n",
        "0\r\n\r\n",
        "0\r\n",
        "\r\n",
        ";a=b",
        ";a=\"b\\\"\"",
        "ffffffffffffffff\r\n",
        "7fffffffffffffff\r\n",
        "A: b\r\n",
        " ",
        "\t",
        "\n",
        "\r",
        "\0",
        "1\r\nx\r\n",
        "00000000000000000000",
    ],
};

/// The decoded body.
#[derive(Debug, PartialEq, Eq)]
struct Decoded {
    data: Vec<u8>,
    trailers: Vec<u8>,
    /// Number of bytes up to the end of the body; `None` if the body did not end.
    end: Option<usize>,
}

/// Decodes the bytes in one call and in pieces. Encodes the result as one body, and decodes that body.
pub fn run(mut data: &[u8]) {
    let (flags, cut) = (take_byte(&mut data), take_byte(&mut data));
    let decoder = match flags & 3 {
        0 | 1 => ChunkedDecoder::strict(flags & 1 != 0),
        _ => ChunkedDecoder::without_limits(),
    };
    let whole = decode(decoder, data, data.len().max(1));
    let pieces = decode(decoder, data, usize::from(cut) + 1);
    assert_eq!(whole, pieces, "pieces change the result");
    if let Ok(found) = &whole {
        assert!(found.data.len() + found.trailers.len() <= data.len());
        assert!(found.trailers.len() <= 2 * TRAILER_LEN_MAX as usize);
    }
    check_round_trip(decoder, data, usize::from(cut) + 1);
}

fn decode(mut decoder: ChunkedDecoder, input: &[u8], piece: usize) -> Result<Decoded, ChunkedError> {
    let mut found = Decoded { data: Vec::new(), trailers: Vec::new(), end: None };
    let mut at = 0;
    for part in input.chunks(piece) {
        let mut rest = part;
        loop {
            let step = decoder.handle_with_trailers(rest, &mut found.trailers)?;
            at += step.consumed;
            match step.event {
                Event::Data { start, end } => {
                    found.data.extend_from_slice(&rest[start..end]);
                    assert_eq!(decoder.total(), found.data.len() as u64);
                    rest = &rest[step.consumed..];
                }
                Event::More => {
                    assert_eq!(step.consumed, rest.len(), "the decoder needs more input before its end");
                    break;
                }
                Event::End => {
                    assert!(decoder.is_done());
                    found.end = Some(at);
                    return Ok(found);
                }
            }
            assert!(decoder.announced() >= decoder.total());
        }
    }
    Ok(found)
}

fn check_round_trip(decoder: ChunkedDecoder, data: &[u8], piece: usize) {
    let mut body = Vec::new();
    for part in data.chunks(piece) {
        let mut header = [0; CHUNK_HEADER_LEN_MAX];
        body.extend_from_slice(chunk_header(part.len() as u64, &mut header));
        body.extend_from_slice(part);
        body.extend_from_slice(CHUNK_END);
    }
    push_last_chunk(&[(b"A", b"b")], &mut body).expect("a valid trailer");
    let end = Some(body.len());
    body.extend_from_slice(b"GET / HTTP/1.1\r\n");
    let found = decode(decoder, &body, body.len());
    assert_eq!(found, Ok(Decoded { data: data.to_vec(), trailers: b"A: b\r\n".to_vec(), end }));
}
