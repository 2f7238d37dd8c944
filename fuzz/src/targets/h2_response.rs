//! Response heads of HTTP/2 upstreams: [`http::h2::ResponseReader`] after [`http::h2::hpack`].

use http::h2::ResponseReader;
use http::h2::hpack::Decoder;
use http::response::parse::{Limits, ParsedResponse, ResponseProgress, parse, parse_written};

use super::take_byte;
use crate::Target;

/// See the module.
pub const TARGET: Target = Target {
    name: "h2_response",
    run,
    tokens: &[
        "\u{8}\u{3}200",
        "\u{8}\u{3}103",
        "\u{0}\u{1}a\u{1}b",
        "\u{0}\u{a}connection\u{5}close",
        "\u{0}\u{e}content-length\u{2}12",
        "\u{0}\u{b}grpc-status\u{1}0",
    ],
};

/// Checks that an accepted head observes the limits, and that the HTTP/1 parser reads the same fields from its bytes.
pub fn run(mut data: &[u8]) {
    let head_max = u32::from(take_byte(&mut data)) * 16;
    let fields_max = u16::from(take_byte(&mut data));
    let mut reader = ResponseReader::new(Limits { head_max, fields_max });
    let mut fields: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    let decoded = Decoder::default().decode(data, |name, value| {
        reader.field(name, value);
        fields.push((name.to_vec(), value.to_vec()));
    });
    let (Ok(()), Ok((bytes, head))) = (decoded, reader.finish()) else { return };
    let (_, regular) = fields.split_first().expect("an accepted head begins with its status");
    let size: usize = fields.iter().map(|(name, value)| name.len() + value.len()).sum();
    assert!(size <= head_max as usize && regular.len() <= usize::from(fields_max));
    let mut parsed = ParsedResponse::new();
    let limits = Limits { head_max: bytes.len() as u32, fields_max: u16::MAX };
    let head_len = bytes.len() as u32;
    assert_eq!(parse(&mut parsed, &bytes, &limits), Ok(ResponseProgress::Complete { head_len }));
    assert_eq!(format!("{:?}", parse_written(&bytes)), format!("{:?}", Some(&head)));
    assert_eq!((parsed.status(), parsed.content_length()), (head.status(), head.content_length()));
    let lines = |head: &ParsedResponse| -> Vec<(Vec<u8>, Vec<u8>)> {
        head.lines(&bytes).map(|line| (line.name.to_vec(), line.value.to_vec())).collect()
    };
    assert_eq!(lines(&parsed), lines(&head));
    assert!(lines(&head).iter().all(|line| regular.contains(line)), "a field is not in the header block");
}
