//! Both directions, with the examples of RFC 7541 and with random fields.

use proptest::prelude::*;

use super::*;
use crate::multiplexed::coding::integer;

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
    let digit = |digit: u8| (digit as char).to_digit(16).expect("a digit") as u8;
    digits.chunks(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}

fn decoded(decoder: &mut Decoder, block: &[u8]) -> Result<Vec<String>, HpackError> {
    let mut fields = Vec::new();
    let text = |text: &[u8]| String::from_utf8_lossy(text).into_owned();
    decoder.decode(block, |name, value| fields.push(format!("{}: {}", text(name), text(value))))?;
    Ok(fields)
}

/// RFC 7541 appendix C.1.
#[test]
fn integers_of_the_rfc_are_decoded() {
    for (value, prefix, hex) in [(10, 5, "0a"), (1337, 5, "1f9a0a"), (42, 8, "2a")] {
        let mut out = Vec::new();
        push_integer(&mut out, 0, prefix, value);
        assert_eq!(out, bytes(hex));
        assert_eq!(integer(&out, prefix), Ok((value, out.len())));
    }
}

/// RFC 7541 section 5.1: a number that exceeds its valid range is an error.
#[test]
fn too_large_or_truncated_integers_are_refused() {
    assert_eq!(integer(&bytes("1f"), 5), Err(CodingError::Truncated));
    assert_eq!(integer(&bytes("1f ff ff ff"), 5), Err(CodingError::Truncated));
    assert_eq!(integer(&bytes("1f ff ff ff 7f"), 5), Err(CodingError::Integer));
    assert_eq!(integer(&bytes("1f 80 80 80 80 80 80 00"), 5), Err(CodingError::Integer));
    assert_eq!(integer(&bytes("1f 80 80 80 00"), 5), Ok((31, 5)), "redundant zero bytes");
}

/// RFC 7541 appendices C.2.1 to C.2.4.
#[test]
fn each_field_representation_is_decoded() {
    let decoder = || Decoder::new(4096);
    for (hex, wanted) in [
        ("400a 6375 7374 6f6d 2d6b 6579 0d63 7573 746f 6d2d 6865 6164 6572", "custom-key: custom-header"),
        ("040c 2f73 616d 706c 652f 7061 7468", ":path: /sample/path"),
        ("1008 7061 7373 776f 7264 0673 6563 7265 74", "password: secret"),
        ("82", ":method: GET"),
    ] {
        assert_eq!(decoded(&mut decoder(), &bytes(hex)), Ok(vec![wanted.to_owned()]));
    }
}

/// RFC 7541 section 2.3.2: the dynamic table may contain equal entries.
#[test]
fn equal_entries_are_allowed() {
    let mut decoder = Decoder::default();
    let twice = bytes("4001 61 01 62 4001 61 01 62 be bf");
    assert_eq!(decoded(&mut decoder, &twice), Ok(vec!["a: b".to_owned(); 4]));
}

/// RFC 7541 sections 6.2.3 and 7.1.3: a never-indexed field is recognised, and encoded in the same representation.
#[test]
fn never_indexed_fields_remain_never_indexed() {
    let mut decoder = Decoder::default();
    // The first field is indexed. The others are not: their names are from the static table, from the dynamic table, and a literal.
    let block = bytes("4001 62 01 31 1f08 03 616263 1f2f 01 32 1001 63 01 33");
    let fields = decoded(&mut decoder, &block).expect("a good block");
    assert_eq!(fields, ["b: 1", "authorization: abc", "b: 2", "c: 3"]);
    let never = decoder.take_never_indexed().expect("some fields");
    assert!(never.has(b"Authorization") && never.has(b"b") && never.has(b"c") && !never.has(b"d"));
    decoded(&mut decoder, &bytes("82")).expect("a good block");
    assert_eq!(decoder.take_never_indexed(), None, "only names of the last block");
    let (mut out, mut sent) = (Vec::new(), Vec::new());
    let mut encoder = Encoder::default();
    push_never_indexed(&mut out, b"Authorization", b"abc");
    push_never_indexed(&mut out, b"C", b"3");
    for _ in 0..2 {
        sent.clear();
        encoder.compress(&out, &mut sent);
        assert_eq!(sent, bytes("1f08 03 616263 1001 63 01 33"));
    }
    // More names than are stored: then every field counts as never indexed.
    let many: Vec<u8> = (b'a'..=b'z').flat_map(|name| [0x10, 1, name, 1, b'x']).collect();
    decoded(&mut decoder, &many).expect("a good block");
    assert!(decoder.take_never_indexed().is_some_and(|never| never.has(b"another")));
}

/// RFC 7541 appendix C.3: requests without Huffman codes; C.4: the same with them.
#[test]
fn requests_of_the_rfc_share_a_table() {
    let plain = [
        "8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
        "8286 84be 5808 6e6f 2d63 6163 6865",
        "8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65",
    ];
    let coded = [
        "8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff",
        "8286 84be 5886 a8eb 1064 9cbf",
        "8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf",
    ];
    let wanted: [&[&str]; 3] = [
        &[":method: GET", ":scheme: http", ":path: /", ":authority: www.example.com"],
        &[
            ":method: GET",
            ":scheme: http",
            ":path: /",
            ":authority: www.example.com",
            "cache-control: no-cache",
        ],
        &[
            ":method: GET",
            ":scheme: https",
            ":path: /index.html",
            ":authority: www.example.com",
            "custom-key: custom-value",
        ],
    ];
    for blocks in [plain, coded] {
        let mut decoder = Decoder::default();
        for (hex, wanted) in blocks.iter().zip(wanted) {
            assert_eq!(decoded(&mut decoder, &bytes(hex)).expect("a good block"), wanted);
        }
    }
}

/// RFC 7541 appendix C.6: responses in a table of 256 bytes, whose entries are evicted.
#[test]
fn responses_of_the_rfc_evict_entries() {
    let blocks = [
        "4882 6402 5885 aec3 771a 4b61 96d0 7abe 9410 54d4 44a8 2005 9504 0b81 66e0 82a6 2d1b ff6e 919d 29ad 1718 \
         63c7 8f0b 97c8 e9ae 82ae 43d3",
        "4883 640e ffc1 c0bf",
        "88c1 6196 d07a be94 1054 d444 a820 0595 040b 8166 e084 a62d 1bff c05a 839b d9ab 77ad 94e7 821d d7f2 e6c7 \
         b335 dfdf cd5b 3960 d5af 2708 7f36 72c1 ab27 0fb5 291f 9587 3160 65c0 03ed 4ee5 b106 3d50 07",
    ];
    let (control, site) = ("cache-control: private", "location: https://www.example.com");
    let (early, late) = ("date: Mon, 21 Oct 2013 20:13:21 GMT", "date: Mon, 21 Oct 2013 20:13:22 GMT");
    let cookie = "set-cookie: foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1";
    let wanted: [&[&str]; 3] = [
        &[":status: 302", control, early, site],
        &[":status: 307", control, early, site],
        &[":status: 200", control, late, site, "content-encoding: gzip", cookie],
    ];
    let mut decoder = Decoder::new(256);
    for (hex, wanted) in blocks.iter().zip(wanted) {
        assert_eq!(decoded(&mut decoder, &bytes(hex)).expect("a good block"), wanted);
    }
}

/// RFC 7541 sections 2.3.3, 4.2, 5.1, 5.2 and 6.1: invalid blocks.
#[test]
fn invalid_blocks_are_refused() {
    for (hex, wanted) in [
        ("80", HpackError::Index),
        ("be", HpackError::Index),
        ("7e 00", HpackError::Index),
        ("ff ff ff ff ff 7f", HpackError::Integer),
        ("41", HpackError::Truncated),
        ("41 02 61", HpackError::Truncated),
        ("40 01", HpackError::Truncated),
        ("41 81 00", HpackError::Huffman),
        ("3f e2 1f", HpackError::TableSize),
        ("82 20", HpackError::TableSize),
    ] {
        assert_eq!(decoded(&mut Decoder::new(4096), &bytes(hex)), Err(wanted), "{hex}");
    }
    // Two size changes before the first field, the second up to the limit.
    assert_eq!(decoded(&mut Decoder::new(4096), &bytes("20 3f e1 1f 82")), Ok(vec![":method: GET".into()]));
}

fn compressed(encoder: &mut Encoder, status: u16, fields: &[(&str, &str)]) -> Vec<u8> {
    let (mut block, mut out) = (Vec::new(), Vec::new());
    push_status(&mut block, status);
    fields.iter().for_each(|(name, value)| push_field(&mut block, name.as_bytes(), value.as_bytes()));
    // The block is self-contained.
    assert_eq!(decoded(&mut Decoder::new(0), &block).expect("a good block").len(), fields.len() + 1);
    encoder.compress(&block, &mut out);
    out
}

#[test]
fn a_repeated_field_is_encoded_in_one_byte() {
    let (mut encoder, mut decoder) = (Encoder::default(), Decoder::default());
    let fields = [("Server", "ringroad"), ("Content-Length", "12"), ("X-Own", "a value"), ("ETag", "\"1\"")];
    let wanted = [":status: 418", "server: ringroad", "content-length: 12", "x-own: a value", "etag: \"1\""];
    let first = compressed(&mut encoder, 418, &fields);
    assert_eq!(decoded(&mut decoder, &first).expect("a good block"), wanted);
    let second = compressed(&mut encoder, 418, &fields);
    assert_eq!(decoded(&mut decoder, &second).expect("a good block"), wanted);
    // Status, server and x-own by index; length and tag as literals.
    assert_eq!(second.len(), 1 + 1 + 5 + 1 + 6, "{second:x?}");
}

/// RFC 7541 section 4.2: a size change is announced before the first field, with the smallest intermediate size.
#[test]
fn a_smaller_table_is_announced_before_the_next_block() {
    let (mut encoder, mut decoder) = (Encoder::default(), Decoder::default());
    let fields = [("server", "ringroad")];
    let first = compressed(&mut encoder, 200, &fields);
    decoded(&mut decoder, &first).expect("a good block");
    encoder.set_limit(0);
    encoder.set_limit(100);
    let second = compressed(&mut encoder, 200, &fields);
    assert_eq!(second[..3], [0x20, 0x3f, 100 - 31]);
    assert_eq!(decoded(&mut decoder, &second).expect("a good block")[1], "server: ringroad");
    // A size above the default is neither used nor announced.
    let mut encoder = Encoder::default();
    encoder.set_limit(1 << 20);
    assert_eq!(compressed(&mut encoder, 200, &[]), [0x88]);
}

#[test]
fn static_names_are_found_except_rare_ones() {
    for (index, (name, _)) in static_table::STATIC.iter().enumerate().skip(14) {
        let mut block = Vec::new();
        push_field(&mut block, name.to_uppercase().as_bytes(), b"");
        let shown = decoded(&mut Decoder::new(0), &block).expect("a good block");
        assert_eq!(shown, [format!("{name}: ")]);
        // Names of seldom sent fields are literals.
        let seldom = [
            "accept-charset",
            "expect",
            "from",
            "host",
            "if-match",
            "if-range",
            "if-unm",
            "max-",
            "transfer-encoding",
        ];
        let wanted = seldom.iter().any(|start| name.starts_with(start));
        assert_eq!(block[0] == 0, wanted, "{} {name}", index + 1);
    }
}

proptest! {
    /// The decoder returns the fields that the encoder has received, for any fields and any table sizes.
    #[test]
    fn random_blocks_are_decoded_unchanged(
        heads in prop::collection::vec(
            (100u16..600, prop::collection::vec(("[a-z-]{1,12}", "[ -~]{0,80}"), 0..12), 0usize..300),
            1..20,
        ),
    ) {
        let (mut encoder, mut decoder) = (Encoder::default(), Decoder::default());
        for (status, fields, limit) in heads {
            if limit < 100 {
                encoder.set_limit(limit);
            }
            let fields: Vec<(&str, &str)> =
                fields.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
            let block = compressed(&mut encoder, status, &fields);
            let mut wanted = vec![format!(":status: {status}")];
            wanted.extend(fields.iter().map(|(name, value)| format!("{name}: {value}")));
            prop_assert_eq!(decoded(&mut decoder, &block), Ok(wanted));
        }
    }

    /// Malicious bytes are decoded to fields or cause an error.
    #[test]
    fn random_bytes_are_decoded_or_refused(blocks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..64), 0..8)) {
        let mut decoder = Decoder::new(4096);
        for block in blocks {
            if decoded(&mut decoder, &block).is_err() {
                break;
            }
        }
    }
}

#[test]
fn known_names_have_the_numbers_of_the_static_table() {
    use super::known;
    use super::static_table::STATIC;
    for (index, name) in [
        (known::ACCEPT_RANGES, "accept-ranges"),
        (known::CONTENT_LENGTH, "content-length"),
        (known::CONTENT_TYPE, "content-type"),
        (known::DATE, "date"),
        (known::ETAG, "etag"),
        (known::LAST_MODIFIED, "last-modified"),
        (known::LOCATION, "location"),
        (known::SERVER, "server"),
        (known::VARY, "vary"),
    ] {
        assert_eq!(STATIC[index - 1].0, name);
    }
}
