//! Responses of name servers (RFC 1035 section 4): the codec of crate `peers`.
//!
//! Its source file is compiled here directly: it needs only the standard library, and the complete crate would make
//! this program ten times as large.

#[allow(dead_code, missing_docs)]
#[path = "../../../crates/peers/src/resolve/wire.rs"]
mod wire;

use wire::{ADDRESSES_MAX, Lookup, MessageFault, Name, Question, RecordType, Response};

use super::take_byte;
use crate::Target;

/// See the module.
pub const TARGET: Target = Target {
    name: "dns_message",
    run,
    tokens: &[
        "\u{c}\0",
        "\0\x01\0\x01",
        "\0\x1c\0\x01",
        "\0\x05\0\x01",
        "\0\x21\0\x01",
        "\0\0\0\x3c\0\x04",
        "\x01a\0",
        "\x03www",
        "\0\0\0\x3c\0\x10",
        "\x3f",
        "\u{7f}",
        "\0",
    ],
};

/// Parses raw bytes, and the bytes as the answer section of a message that matches the question.
pub fn run(mut data: &[u8]) {
    let choice = take_byte(&mut data);
    let kind = [RecordType::A, RecordType::Aaaa, RecordType::Srv][usize::from(choice) % 3];
    let count = u16::from(take_byte(&mut data));
    let name = Name::parse(b"a.example").expect("a name");
    let question = Question { id: 0x1234, name, kind };
    check(data, &question);

    let mut message = question.to_bytes();
    message[2..4].copy_from_slice(&0x8180_u16.to_be_bytes());
    message[6..8].copy_from_slice(&count.to_be_bytes());
    message.extend_from_slice(data);
    let result = Response::parse(&message, &question);
    assert_ne!(result.as_ref().err(), Some(&MessageFault::NoMatch), "the response matches the question");
    check(&message, &question);
    check_name(data);
}

fn check(message: &[u8], question: &Question) {
    let Ok(response) = Response::parse(message, question) else { return };
    assert!(response.code < 16);
    if let Lookup::Found(addresses, ttl_s) = response.addresses(&question.name) {
        assert!(!addresses.is_empty() && addresses.len() <= ADDRESSES_MAX && ttl_s <= i32::MAX as u32);
    }
    match response.services(&question.name) {
        Lookup::Found(services, _) => services.iter().for_each(|service| check_shown(&service.target)),
        Lookup::Alias(name, _) => check_shown(&name),
        Lookup::Nothing => {}
    }
}

/// Checks that a parsed name fits into a query.
fn check_shown(name: &Name) {
    let question = Question { id: 1, name: name.clone(), kind: RecordType::A };
    assert!(question.to_bytes().len() <= 12 + 255 + 4, "{name}");
}

/// Checks that a valid name stays the same in capitals and with a trailing dot.
fn check_name(text: &[u8]) {
    let Some(name) = Name::parse(text) else { return };
    assert_eq!(Name::parse(&text.to_ascii_uppercase()), Some(name.clone()));
    if !text.ends_with(b".") {
        assert_eq!(Name::parse(&[text, b"."].concat()), Some(name));
    }
}
