//! The header of a cache entry on disk: [`cache::fuzzing::entry_header`].

use crate::Target;

/// See the module.
pub const TARGET: Target = Target {
    name: "entry_header",
    run,
    tokens: &[
        "rrcache\x02",
        "\0\0\0\0",
        "\x01\0\0\0",
        "\0\x04\0\0",
        "\0\x10\0\0\0\0\0\0",
        "\u{7f}",
        "HTTP/1.1 200\r\n\r\n",
    ],
};

/// See [`cache::fuzzing::entry_header`].
pub fn run(data: &[u8]) {
    cache::fuzzing::entry_header(data);
}
