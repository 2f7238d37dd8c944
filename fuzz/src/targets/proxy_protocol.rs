//! The header of the PROXY protocol, versions 1 and 2: [`http::proxy_protocol`].

use http::proxy_protocol::{Progress, V1_LEN_MAX, V2_LEN_MAX, first_line, parse};

use crate::Target;

/// See the module.
pub const TARGET: Target = Target {
    name: "proxy_protocol",
    run,
    tokens: &[
        "PROXY ",
        "TCP4 ",
        "TCP6 ",
        "UNKNOWN",
        "10.0.0.1 ",
        "::1 ",
        "80 443\r\n",
        "65536",
        "\r\n",
        "\n",
        "\r\n\r\n\0\r\nQUIT\n",
        "\x21\x11\0\x0c",
        "\x21\x21\0\x24",
        "\x20\0\0\0",
        "\x20\0\x05",
        "\x01\0\x02h2",
    ],
};

/// Names of values after the addresses.
const NAMES: [&[u8]; 9] = [
    b"alpn",
    b"authority",
    b"unique_id",
    b"netns",
    b"ssl",
    b"ssl_verify",
    b"ssl_cn",
    b"ssl_version",
    b"0xea",
];

/// Parses every prefix of the bytes: a result must not change when more bytes arrive.
pub fn run(data: &[u8]) {
    let data = &data[..data.len().min(V2_LEN_MAX + 64)];
    let whole = parse(data);
    let mut is_settled = false;
    // Long input is tested in steps, so that the total work stays linear.
    let step = 1 + data.len() / 256;
    for end in (0..data.len()).step_by(step) {
        let result = parse(&data[..end]);
        match (&result, is_settled) {
            (Ok(Progress::Incomplete), false) => {}
            (Ok(Progress::Incomplete), true) => panic!("incomplete again with {end} bytes"),
            _ => {
                assert_eq!(result, whole, "the result differs with {end} bytes");
                is_settled = true;
            }
        }
    }
    if let Ok(Progress::Complete { len, header }) = &whole {
        let len_max = if data.starts_with(b"PROXY ") { V1_LEN_MAX } else { V2_LEN_MAX };
        assert!(*len <= data.len() && *len <= len_max);
        assert_eq!(parse(&data[..*len]), whole, "bytes after the header change the result");
        if let Some(header) = header {
            let is_address =
                |text: &[u8]| text.iter().all(|byte| byte.is_ascii_hexdigit() || b":.".contains(byte));
            assert!(is_address(&header.src_addr) && is_address(&header.dst_addr));
            for name in NAMES {
                let _ = header.tlv(name);
            }
        }
    }
    assert!(!first_line(data).contains(&b'\n'));
}
