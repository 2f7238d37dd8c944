//! HTTP/2 header blocks: [`http::h2::hpack`], both directions.

use http::h2::hpack::{Decoder, Encoder, push_field, push_status};

use super::take_byte;
use crate::Target;

/// See the module.
pub const TARGET: Target = Target {
    name: "hpack",
    run,
    tokens: &[
        "\u{2}",
        "\u{1}a\u{1}b",
        "@\u{1}a\u{1}b",
        "\u{0}\u{1}a\u{1}b",
        "?",
        " ",
        "A\u{f}www.example.com",
        "\u{7f}",
        "cache-control",
    ],
};

/// Decodes blocks of a size that the first byte sets; encodes their content, and checks that it is decoded unchanged.
pub fn run(mut data: &[u8]) {
    let (size, limit) = (usize::from(take_byte(&mut data)) + 1, usize::from(take_byte(&mut data)) * 16);
    let (mut decoder, mut encoder, mut reader) =
        (Decoder::new(limit), Encoder::default(), Decoder::default());
    for (index, block) in data.chunks(size).enumerate() {
        let mut fields: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
        let decoded = decoder.decode(block, |name, value| fields.push((name.to_vec(), value.to_vec())));
        // Each byte of a block can refer to at most one entry of the table.
        let bytes: usize = fields.iter().map(|(name, value)| name.len() + value.len()).sum();
        assert!(fields.len() <= block.len() && bytes <= block.len() * (limit + 64));
        if index % 3 == 2 {
            encoder.set_limit(size * 8);
        }
        check_encoder(&mut encoder, &mut reader, &fields);
        if decoded.is_err() {
            return;
        }
    }
}

fn check_encoder(encoder: &mut Encoder, reader: &mut Decoder, fields: &[(Vec<u8>, Vec<u8>)]) {
    let (mut block, mut sent) = (Vec::new(), Vec::new());
    push_status(&mut block, 200);
    fields.iter().for_each(|(name, value)| push_field(&mut block, name, value));
    encoder.compress(&block, &mut sent);
    let mut read = Vec::new();
    let decoded = reader.decode(&sent, |name, value| read.push((name.to_vec(), value.to_vec())));
    assert_eq!(decoded, Ok(()));
    assert_eq!(read.remove(0), (b":status".to_vec(), b"200".to_vec()));
    let wanted: Vec<_> =
        fields.iter().map(|(name, value)| (name.to_ascii_lowercase(), value.clone())).collect();
    assert_eq!(read, wanted, "decoded fields differ from the encoded ones");
}
