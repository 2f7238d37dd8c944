//! Fuzzes the parser of `grpc-timeout`: [`http::grpc::timeout`].

use http::grpc::timeout;

use crate::Target;

/// See the module.
pub const TARGET: Target = Target {
    name: "grpc_timeout",
    run,
    tokens: &["H", "M", "S", "m", "u", "n", "99999999", "0", "00000001"],
};

/// Checks that a parsed timeout has one to eight digits and a unit, and that the duration is right.
pub fn run(data: &[u8]) {
    let Some(read) = timeout(data) else { return };
    let (unit, digits) = data.split_last().expect("a timeout is not empty");
    assert!((1..=8).contains(&digits.len()) && digits.iter().all(u8::is_ascii_digit));
    let count: u128 = digits.iter().fold(0, |count, digit| count * 10 + u128::from(digit - b'0'));
    let nanoseconds: u128 = match unit {
        b'H' => 3_600_000_000_000,
        b'M' => 60_000_000_000,
        b'S' => 1_000_000_000,
        b'm' => 1_000_000,
        b'u' => 1_000,
        b'n' => 1,
        _ => panic!("no unit"),
    };
    assert_eq!(read.as_nanos(), count * nanoseconds);
}
