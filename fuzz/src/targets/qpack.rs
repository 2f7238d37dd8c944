//! HTTP/3 header sections: [`http::h3::qpack`], with the instructions that fill the table, both directions.

use http::h3::qpack::{Decoder, Section, push_field, push_never_indexed, push_status};

use super::take_byte;
use crate::Target;

/// See the module.
pub const TARGET: Target = Target {
    name: "qpack",
    run,
    tokens: &[
        "\u{0}\u{0}",
        "\u{2}\u{0}",
        "\u{3}\u{1}\u{10}\u{11}",
        "?\u{0}",
        "?a\u{1}",
        "Aa\u{1}b",
        "\u{1}",
        "Q\u{b}/index.html",
        "P\u{f}www.example.com",
        "!a\u{1}b",
        "'\u{4}custom-name\u{1}b",
    ],
};

/// Names and values of a section.
type Lines = Vec<(Vec<u8>, Vec<u8>)>;

/// Passes alternating parts of the input to the table and decodes them as sections. Instructions are received in one call and in
/// pieces, with the same result.
pub fn run(mut data: &[u8]) {
    let limit = usize::from(take_byte(&mut data)) * 16;
    let (size, piece) = (usize::from(take_byte(&mut data)) + 1, usize::from(take_byte(&mut data)) + 1);
    let (mut whole, mut cut) = (Decoder::new(limit), Decoder::new(limit));
    for (index, part) in data.chunks(size).enumerate() {
        if index % 2 == 0 {
            let result = whole.receive(part);
            let pieces: Result<u32, _> = part.chunks(piece).map(|piece| cut.receive(piece)).sum();
            assert_eq!(result, pieces, "pieces change the result");
            if result.is_err() {
                return;
            }
            continue;
        }
        let (mut fields, mut other): (Lines, Lines) = (Vec::new(), Vec::new());
        let section = whole.decode(part, |name, value| fields.push((name.to_vec(), value.to_vec())));
        let again = cut.decode(part, |name, value| other.push((name.to_vec(), value.to_vec())));
        assert_eq!((section, &fields), (again, &other), "pieces change the table");
        // Each byte of a section can refer to at most one entry.
        let bytes: usize = fields.iter().map(|(name, value)| name.len() + value.len()).sum();
        assert!(fields.len() <= part.len() && bytes <= part.len() * (limit + 64));
        if let Ok(Section::Blocked { required }) = section {
            assert!(fields.is_empty() && !whole.has(required));
        }
        check_encoder(&fields);
    }
}

/// Encodes fields, and checks that they are decoded unchanged.
fn check_encoder(fields: &Lines) {
    let mut block = vec![0, 0];
    push_status(&mut block, 200);
    for (index, (name, value)) in fields.iter().enumerate() {
        match index % 4 {
            0 => push_never_indexed(&mut block, name, value),
            _ => push_field(&mut block, name, value),
        }
    }
    let mut read: Lines = Vec::new();
    let decoded = Decoder::new(0).decode(&block, |name, value| read.push((name.to_vec(), value.to_vec())));
    assert_eq!(decoded, Ok(Section::Complete { required: 0 }));
    assert_eq!(read.remove(0), (b":status".to_vec(), b"200".to_vec()));
    let wanted: Lines =
        fields.iter().map(|(name, value)| (name.to_ascii_lowercase(), value.clone())).collect();
    assert_eq!(read, wanted, "decoded fields differ from the encoded ones");
}
