//! Fuzzes the decoders of a collector's responses: `telemetry::otlp`. The file of the decoders is compiled here.

#[expect(dead_code, unused_imports, reason = "only the decoders are called")]
#[path = "../../../crates/telemetry/src/otlp.rs"]
mod otlp;

use crate::Target;

/// See the module.
pub const TARGET: Target = Target {
    name: "otlp_response",
    run,
    tokens: &[
        "\x0a\x02",
        "\x08\x01",
        "\x12\x02no",
        "\x1a\x2e\x0a\x28type.googleapis.com/google.rpc.RetryInfo",
        "\x12\x04\x0a\x02\x08\x05",
        "\x7f\x7f\x7f\x7f",
        "\x09",
        "\x0d",
    ],
};

/// Maximum length of a message of the log, in bytes: invalid bytes are replaced by three.
const MESSAGE_BYTES_MAX: usize = 3 * 256;

/// Checks that results are bounded, and that every prefix of the input is decoded without a panic.
pub fn run(data: &[u8]) {
    for end in [data.len(), data.len() / 2, data.len().saturating_sub(1)] {
        let input = &data[..end];
        if let Some(rejected) = otlp::rejected(input) {
            assert!(rejected.message.len() <= MESSAGE_BYTES_MAX);
            // Appended fields of an unknown number change nothing.
            let longer = [input, &[0x78, 1]].concat();
            assert_eq!(otlp::rejected(&longer), Some(rejected));
        }
        let _ = otlp::retry_delay_ms(input);
        assert!(otlp::message_of(input).len() <= MESSAGE_BYTES_MAX);
    }
}
