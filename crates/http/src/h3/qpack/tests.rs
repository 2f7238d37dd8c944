//! Both directions, with the examples of RFC 9204 and with random fields.

use proptest::prelude::*;

use super::static_table::STATIC;
use super::*;
use crate::multiplexed::KnownField;
use crate::multiplexed::coding::push_integer;

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
    let digit = |digit: u8| (digit as char).to_digit(16).expect("a digit") as u8;
    digits.chunks(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}

type Lines = Vec<(Vec<u8>, Vec<u8>)>;

fn read(decoder: &mut Decoder, block: &[u8]) -> Result<(Section, Lines), QpackError> {
    let mut fields = Vec::new();
    let section = decoder.decode(block, |name, value| fields.push((name.to_vec(), value.to_vec())))?;
    Ok((section, fields))
}

fn shown(decoder: &mut Decoder, hex: &str) -> Result<Vec<String>, QpackError> {
    let text = |text: &[u8]| String::from_utf8_lossy(text).into_owned();
    let (section, fields) = read(decoder, &bytes(hex))?;
    assert!(matches!(section, Section::Complete { .. }), "{hex} is blocked");
    Ok(fields.iter().map(|(name, value)| format!("{}: {}", text(name), text(value))).collect())
}

/// Returns a decoder with the table of appendix B.3: absolute indices 0 to 2.
fn filled() -> Decoder {
    let mut decoder = Decoder::new(220);
    let inserts = "3fbd01 c00f 7777772e6578616d706c652e636f6d c10c 2f73616d706c652f70617468
        4a 637573746f6d2d6b6579 0c 637573746f6d2d76616c7565";
    decoder.receive(&bytes(inserts)).expect("good instructions");
    decoder
}

/// RFC 9204 appendix B.
#[test]
fn the_examples_of_the_rfc_are_decoded() {
    let mut decoder = Decoder::new(220);
    assert_eq!(shown(&mut decoder, "0000 510b 2f696e6465782e68746d6c").unwrap(), [":path: /index.html"]);
    let inserts = "3fbd01 c00f 7777772e6578616d706c652e636f6d c10c 2f73616d706c652f70617468";
    decoder.receive(&bytes(inserts)).unwrap();
    let (section, _) = read(&mut decoder, &bytes("0381 10 11")).unwrap();
    assert_eq!(section, Section::Complete { required: 2 });
    assert_eq!(
        shown(&mut decoder, "0381 10 11").unwrap(),
        [":authority: www.example.com", ":path: /sample/path"]
    );
    decoder.receive(&bytes("4a 637573746f6d2d6b6579 0c 637573746f6d2d76616c7565")).unwrap();
    decoder.receive(&bytes("02")).unwrap();
    let wanted = [":authority: www.example.com", ":path: /", "custom-key: custom-value"];
    assert_eq!(shown(&mut decoder, "0500 80 c1 81").unwrap(), wanted);
    decoder.receive(&bytes("810d 637573746f6d2d76616c756532")).unwrap();
    assert_eq!(
        shown(&mut decoder, "0600 80 82").unwrap(),
        ["custom-key: custom-value2", "custom-key: custom-value"]
    );
    // The first entry was evicted: the table has 4 * 32 + 92 bytes at most.
    assert_eq!(shown(&mut decoder, "0200 80"), Err(QpackError::UnknownIndex));
}

/// Another implementation fills and evicts the table, refers to entries, and sends sections before their entries.
#[test]
fn sections_of_ls_qpack_are_decoded() {
    let (mut decoder, mut fields, mut blocked) = (Decoder::new(512), Vec::new(), None);
    let (mut sections, mut waited, mut with_table) = (0, 0, 0);
    for line in include_str!("vectors.txt").lines().filter(|line| !line.starts_with('#')) {
        if let Some((name, value)) = line.strip_prefix("  ").and_then(|line| line.rsplit_once(": ")) {
            assert_eq!(fields.remove(0), (name.as_bytes().to_vec(), bytes(value)), "{line}");
            continue;
        }
        let (kind, hex) = line.split_once(' ').expect("two words");
        let block = match kind {
            "section" => {
                assert!(fields.is_empty(), "more fields than sent before {line}");
                bytes(hex)
            }
            _ => {
                assert_eq!(decoder.receive(&bytes(hex)), Ok(0));
                let Some(block) = blocked.take() else { continue };
                block
            }
        };
        match read(&mut decoder, &block).expect("a good section") {
            (Section::Complete { required }, decoded) => {
                fields = decoded;
                sections += 1;
                with_table += u32::from(required > 0);
            }
            (Section::Blocked { .. }, _) => {
                blocked = Some(block);
                waited += 1;
            }
        }
    }
    assert!(fields.is_empty() && blocked.is_none());
    assert_eq!((sections, with_table > 30, waited > 3), (40, true, true), "{with_table} {waited}");
}

/// RFC 9204 section 4.4: instructions for the peer's encoder.
#[test]
fn sections_and_inserts_are_acknowledged() {
    let mut decoder = filled();
    let mut out = Vec::new();
    decoder.acknowledge_section(4, 2, &mut out);
    decoder.acknowledge_inserts(&mut out);
    decoder.acknowledge_inserts(&mut out);
    decoder.acknowledge_section(4, 0, &mut out);
    decoder.cancel_stream(8, &mut out);
    assert_eq!(out, bytes("84 01 48"));
    out.clear();
    Decoder::new(0).cancel_stream(8, &mut out);
    assert_eq!(out, [], "RFC 9204 section 2.2.2.2");
}

/// RFC 9204 sections 2.1.2 and 2.2.1: a section waits for entries that have not arrived.
#[test]
fn a_section_is_blocked_until_its_entries_arrive() {
    let mut decoder = Decoder::new(220);
    let (section, fields) = read(&mut decoder, &bytes("0381 10 11")).unwrap();
    assert_eq!((section, fields), (Section::Blocked { required: 2 }, vec![]));
    assert!(!decoder.has(2) && decoder.has(0));
}

/// RFC 9204 sections 2.2.3, 3.2.4 to 3.2.6 and 4.5.1: a reference must exist, and be below the Required Insert Count.
#[test]
fn invalid_sections_are_refused() {
    for (hex, wanted) in [
        ("", QpackError::Incomplete),
        ("00", QpackError::Incomplete),
        ("0000 ff24", QpackError::UnknownIndex),
        ("0000 80", QpackError::UnknownIndex),
        ("0000 10", QpackError::UnknownIndex),
        ("0000 4001 61", QpackError::UnknownIndex),
        ("0000 0001 61", QpackError::UnknownIndex),
        ("0000 5f54 0161", QpackError::UnknownIndex),
        ("0200 81", QpackError::UnknownIndex),
        ("0200 10", QpackError::UnknownIndex),
        ("0d00", QpackError::Prefix),
        ("0b00", QpackError::Prefix),
        ("0080", QpackError::Prefix),
        ("0000 51", QpackError::Incomplete),
        ("0000 5102 61", QpackError::Incomplete),
        ("0000 2161", QpackError::Incomplete),
        ("0000 518100", QpackError::HuffmanCode),
        ("0000 ffffffffff7f", QpackError::Number),
    ] {
        let result = read(&mut filled(), &bytes(hex));
        assert_eq!(result, Err(wanted), "{hex}");
    }
    assert_eq!(
        read(&mut Decoder::new(0), &bytes("0200 80")),
        Err(QpackError::Prefix),
        "no table was announced"
    );
}

/// RFC 9204 sections 3.2.2, 3.2.3 and 4.3: the capacity that was announced, and entries that exist.
#[test]
fn invalid_instructions_are_refused() {
    for (hex, wanted) in [
        ("3fbe01", QpackError::Capacity),
        ("83 00", QpackError::UnknownIndex),
        ("03", QpackError::UnknownIndex),
        ("ff24 00", QpackError::UnknownIndex),
        ("20 4161 00", QpackError::Capacity),
        ("41 61 7f ffff03", QpackError::Capacity),
        ("41 61 8100", QpackError::HuffmanCode),
        ("3fffffffff7f", QpackError::Number),
    ] {
        assert_eq!(filled().receive(&bytes(hex)), Err(wanted), "{hex}");
    }
    assert_eq!(
        Decoder::new(220).receive(&bytes("4161 00")),
        Err(QpackError::Capacity),
        "the capacity is 0 first"
    );
    assert_eq!(Decoder::new(0).receive(&bytes("20")), Ok(0), "a capacity of 0 is always allowed");
}

/// RFC 9204 section 4.3: an entry with the name of an entry that it evicts, and instructions in pieces.
#[test]
fn instructions_are_read_from_any_pieces() {
    let all = bytes(
        "3fbd01 c00f 7777772e6578616d706c652e636f6d c10c 2f73616d706c652f70617468
        4a 637573746f6d2d6b6579 0c 637573746f6d2d76616c7565 02 810d 637573746f6d2d76616c756532",
    );
    for piece in 1..all.len() {
        let mut decoder = Decoder::new(220);
        all.chunks(piece).for_each(|bytes| assert_eq!(decoder.receive(bytes), Ok(0)));
        assert_eq!(shown(&mut decoder, "0600 80").unwrap(), ["custom-key: custom-value2"]);
    }
}

/// An instruction of one byte can cause the copy of an entry as large as the table.
#[test]
fn instructions_that_copy_much_are_counted() {
    let mut decoder = Decoder::new(4096);
    let mut inserts = bytes("3fe11f 4161");
    push_integer(&mut inserts, 0, 7, 1000);
    inserts.resize(inserts.len() + 1000, b'x');
    assert_eq!(decoder.receive(&inserts), Ok(0));
    assert_eq!(decoder.receive(&[0, 0, 0]), Ok(3));
    assert_eq!(decoder.receive(&bytes("8001 61")), Ok(0), "a short name");
}

/// RFC 9204 section 7.1.3.
#[test]
fn never_indexed_fields_are_marked_in_both_directions() {
    let mut block = STATIC_PREFIX.to_vec();
    push_never_indexed(&mut block, b"Authorization", b"secret");
    push_never_indexed(&mut block, b"X-Key", b"secret");
    push_field(&mut block, b"x-other", b"1");
    let mut decoder = filled();
    let (_, fields) = read(&mut decoder, &block).unwrap();
    assert_eq!(fields[1], (b"x-key".to_vec(), b"secret".to_vec()));
    let names = decoder.take_never_indexed().expect("two names");
    assert!(names.has(b"authorization") && names.has(b"x-key") && !names.has(b"x-other"));
    // With the name of an entry, before and after the base.
    for hex in ["0400 6001 61", "0481 0801 61"] {
        read(&mut decoder, &bytes(hex)).unwrap();
        assert!(decoder.take_never_indexed().is_some(), "{hex}");
    }
    read(&mut decoder, &bytes("0400 4001 61")).unwrap();
    assert!(decoder.take_never_indexed().is_none());
}

/// Each field of the static table is encoded as its index; another value refers to the name.
#[test]
fn the_static_table_is_used() {
    for (index, (name, value)) in STATIC.iter().enumerate().filter(|(_, (name, _))| !name.starts_with(':')) {
        let mut out = Vec::new();
        push_field(&mut out, name.to_ascii_uppercase().as_bytes(), value.as_bytes());
        let mut wanted = Vec::new();
        push_integer(&mut wanted, 0xc0, 6, index);
        assert_eq!(out, wanted, "{name}: {value}");
        out.clear();
        push_field(&mut out, name.as_bytes(), b"?");
        assert_eq!(out[0] & 0xf0, 0x50, "{name}");
    }
    for code in 100..600 {
        let mut block = STATIC_PREFIX.to_vec();
        push_status(&mut block, code);
        let wanted = (b":status".to_vec(), code.to_string().into_bytes());
        assert_eq!(read(&mut Decoder::new(0), &block).unwrap().1, [wanted]);
    }
    assert_eq!(STATIC.iter().filter(|(name, _)| *name == ":status").count(), 14);
}

#[test]
fn known_names_have_the_numbers_of_the_static_table() {
    for name in KnownField::ALL {
        for value in [&b"?"[..], b"bytes", b"0", b"text/css", b"text/plain", b"origin"] {
            let (mut known, mut field) = (Vec::new(), Vec::new());
            push_known(&mut known, name, value);
            push_field(&mut field, name.name(), value);
            assert_eq!(known, field, "{name:?} {value:?}");
        }
    }
    let mut out = Vec::new();
    push_known_decimal(&mut out, KnownField::ContentLength, 10);
    assert_eq!(out, b"\x54\x0210");
}

/// RFC 9114 section 4.3.1 and 4.4.
#[test]
fn requests_are_encoded() {
    for (line, wanted) in [
        (["GET", "https", "/", "a"], "d1 d7 c1 50 01 61"),
        (["PATCH", "x", "/y", ""], "5f00 05 5041544348 5f07 01 78 51 02 2f79"),
        (["CONNECT", "", "", "a:1"], "cf 50 03 613a31"),
    ] {
        let mut out = Vec::new();
        let [method, scheme, target, authority] = line.map(str::as_bytes);
        push_request(&mut out, method, scheme, target, authority);
        assert_eq!(out, bytes(wanted), "{line:?}");
    }
}

fn texts() -> impl Strategy<Value = Lines> {
    let name = prop_oneof![
        prop::sample::select(STATIC.to_vec())
            .prop_filter("not a pseudo-header field", |(name, _)| !name.starts_with(':'))
            .prop_map(|(name, _)| name.as_bytes().to_vec()),
        "[a-z][a-z0-9-]{0,40}".prop_map(String::into_bytes),
    ];
    let value = prop_oneof![
        prop::sample::select(STATIC.to_vec()).prop_map(|(_, value)| value.as_bytes().to_vec()),
        prop::collection::vec(any::<u8>(), 0..80),
    ];
    prop::collection::vec((name, value), 0..12)
}

/// Encoder with a dynamic table for tests: adds each field, and refers to it.
fn inserts(fields: &Lines, huffman: bool) -> (Vec<u8>, Vec<u8>) {
    use crate::multiplexed::coding::push_text;
    let (mut stream, mut block) = (Vec::new(), Vec::new());
    push_integer(&mut stream, 0x20, 5, 4096);
    // The base is 0, so that all references are post-base.
    let count = fields.len();
    let encoded = if count == 0 { 0 } else { count % 256 + 1 };
    push_integer(&mut block, 0, 8, encoded);
    match count {
        0 => block.push(0),
        _ => push_integer(&mut block, 0x80, 7, count - 1),
    }
    for (index, (name, value)) in fields.iter().enumerate() {
        push_text(&mut stream, 0x40, 5, name, huffman);
        push_text(&mut stream, 0, 7, value, huffman);
        push_integer(&mut block, 0x10, 4, index);
    }
    (stream, block)
}

proptest! {
    #[test]
    fn random_sections_are_decoded_unchanged(fields in texts()) {
        let mut block = STATIC_PREFIX.to_vec();
        for (index, (name, value)) in fields.iter().enumerate() {
            match index % 3 {
                0 => push_never_indexed(&mut block, name, value),
                _ => push_field(&mut block, name, value),
            }
        }
        let (section, decoded) = read(&mut Decoder::new(0), &block).expect("a good block");
        prop_assert_eq!(section, Section::Complete { required: 0 });
        prop_assert_eq!(decoded, fields);
    }

    #[test]
    fn random_entries_are_found_in_the_table(fields in texts(), huffman in any::<bool>(), piece in 1usize..20) {
        let (stream, block) = inserts(&fields, huffman);
        let mut decoder = Decoder::new(4096);
        for bytes in stream.chunks(piece) {
            decoder.receive(bytes).expect("good instructions");
        }
        let (section, decoded) = read(&mut decoder, &block).expect("a good block");
        prop_assert_eq!(section, Section::Complete { required: fields.len() as u64 });
        prop_assert_eq!(decoded, fields);
    }

    #[test]
    fn random_bytes_are_decoded_or_refused(
        limit in 0usize..300,
        stream in prop::collection::vec(any::<u8>(), 0..100),
        block in prop::collection::vec(any::<u8>(), 0..100),
    ) {
        let mut decoder = Decoder::new(limit);
        let _ = decoder.receive(&stream);
        let (mut count, mut len) = (0, 0);
        let _ = decoder.decode(&block, |name, value| {
            count += 1;
            len += name.len() + value.len();
        });
        prop_assert!(count <= block.len() && len <= block.len() * (limit + 64));
    }

    /// RFC 9204 section 4.5.1.1: each count that the peer may send is decoded, for any number of earlier inserts.
    #[test]
    fn required_insert_counts_are_decoded(inserted in 0u64..2000, back in 0u64..8, ahead in 0u64..8) {
        let mut decoder = Decoder::new(8 * 32);
        decoder.receive(&bytes("3fe101")).expect("a capacity of 256");
        for _ in 0..inserted {
            decoder.receive(&[0x40, 0x00]).expect("an empty field");
        }
        let required = (inserted + ahead).saturating_sub(back);
        let encoded = if required == 0 { 0 } else { required % 16 + 1 };
        let section = read(&mut decoder, &[encoded as u8, 0]).expect("a good prefix").0;
        let wanted = match required <= inserted {
            true => Section::Complete { required },
            false => Section::Blocked { required },
        };
        prop_assert_eq!(section, wanted);
    }
}
