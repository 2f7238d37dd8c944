//! The log of purges on disk: [`cache::fuzzing::purge_log`].

use crate::Target;

/// See the module.
pub const TARGET: Target = Target {
    name: "purge_log",
    run,
    tokens: &[
        "\x0a\0\0\0",
        "\x1a\0\0\0",
        "\x01\x01",
        "\x02\0",
        "\x03\x01",
        "/a/*",
        "*",
        "\0\0\0\0\0\0\0\x01",
    ],
};

/// See [`cache::fuzzing::purge_log`].
pub fn run(data: &[u8]) {
    cache::fuzzing::purge_log(data);
}
