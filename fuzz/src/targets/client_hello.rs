//! The ClientHello of a TLS client: [`http::client_hello`].

use http::client_hello::{HelloProgress, parse};

use crate::Target;

/// See the module.
pub const TARGET: Target = Target {
    name: "client_hello",
    run,
    tokens: &[
        "\x16\x03\x01",
        "\x16\x03\x01\0\x01\x01",
        "\x01\0\0",
        "\x03\x03",
        "\0\0\0\x0e\0\x0c\0\0\x09",
        "a.example",
        "\0\x10\0\x05\0\x03\x02h2",
        "\0\x2b\0\x03\x02\x03\x04",
    ],
};

/// Maximum number of bytes of an input: more than `preread_buffer_size`.
const INPUT_MAX: usize = 20 << 10;

/// Parses prefixes of the bytes: a result must not change when more bytes arrive.
pub fn run(data: &[u8]) {
    let data = &data[..data.len().min(INPUT_MAX)];
    let whole = parse(data);
    // Long input is tested in steps, so that the total work stays small.
    let step = 1 + data.len() / 64;
    let mut is_known = false;
    for end in (0..data.len()).step_by(step) {
        match (parse(&data[..end]), is_known) {
            (HelloProgress::Incomplete, false) => {}
            (HelloProgress::Incomplete, true) => panic!("incomplete again with {end} bytes"),
            (result, _) => {
                assert_eq!(result, whole, "the result differs with {end} bytes");
                is_known = true;
            }
        }
    }
    if let HelloProgress::Complete(hello) = whole {
        let size = hello.name.len() + hello.alpn.iter().map(Vec::len).sum::<usize>();
        assert!(size <= data.len(), "names are longer than the message");
    }
}
