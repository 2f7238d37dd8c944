//! DNS messages, as far as a test server needs them: RFC 1035 section 4, SRV from RFC 2782.
//!
//! A [`Question`] is parsed from a query, [`Record`]s are encoded into a response. Names are written uncompressed,
//! except the question's name, so that a resolver must handle both forms.

use std::net::{Ipv4Addr, Ipv6Addr};

/// Supported record types.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// An IPv4 address.
    A,
    /// A canonical name (alias).
    Cname,
    /// An IPv6 address.
    Aaaa,
    /// The location of a service.
    Srv,
    /// Any other type, by its number.
    Other(u16),
}

impl Kind {
    fn number(self) -> u16 {
        match self {
            Kind::A => 1,
            Kind::Cname => 5,
            Kind::Aaaa => 28,
            Kind::Srv => 33,
            Kind::Other(number) => number,
        }
    }

    fn of(number: u16) -> Kind {
        match number {
            1 => Kind::A,
            5 => Kind::Cname,
            28 => Kind::Aaaa,
            33 => Kind::Srv,
            other => Kind::Other(other),
        }
    }
}

/// The data of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Data {
    /// An IPv4 address.
    A(Ipv4Addr),
    /// An IPv6 address.
    Aaaa(Ipv6Addr),
    /// A canonical name.
    Cname(String),
    /// Priority, weight, port and name of a server.
    Srv(u16, u16, u16, String),
}

/// A record of a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Owner name; empty for the name of the question.
    pub name: String,
    /// Time to live in seconds.
    pub ttl_seconds: u32,
    /// The data.
    pub data: Data,
}

impl Record {
    /// Returns an address record for the queried name, with the type of the address family. Panics if the text is not
    /// an address.
    #[track_caller]
    pub fn address(address: &str, ttl_seconds: u32) -> Record {
        let data = match address.parse() {
            Ok(std::net::IpAddr::V4(address)) => Data::A(address),
            Ok(std::net::IpAddr::V6(address)) => Data::Aaaa(address),
            Err(error) => panic!("{address:?}: {error}"),
        };
        Record { name: String::new(), ttl_seconds, data }
    }

    /// Returns a CNAME record for the queried name.
    pub fn cname(to: &str, ttl_seconds: u32) -> Record {
        Record { name: String::new(), ttl_seconds, data: Data::Cname(to.to_owned()) }
    }

    /// Returns an SRV record for the queried name.
    pub fn srv(priority: u16, weight: u16, port: u16, name: &str, ttl_seconds: u32) -> Record {
        let data = Data::Srv(priority, weight, port, name.to_owned());
        Record { name: String::new(), ttl_seconds, data }
    }

    /// Returns the same record with another owner: for records after a CNAME, or in addition to an SRV record.
    pub fn of(self, name: &str) -> Record {
        Record { name: name.to_owned(), ..self }
    }

    fn kind(&self) -> Kind {
        match self.data {
            Data::A(_) => Kind::A,
            Data::Aaaa(_) => Kind::Aaaa,
            Data::Cname(_) => Kind::Cname,
            Data::Srv(..) => Kind::Srv,
        }
    }

    fn write(&self, out: &mut Vec<u8>) {
        match self.name.is_empty() {
            // A compression pointer to the question's name, which follows the header.
            true => out.extend_from_slice(&[0xc0, HEADER_BYTES as u8]),
            false => write_name(&self.name, out),
        }
        out.extend_from_slice(&self.kind().number().to_be_bytes());
        out.extend_from_slice(&CLASS_IN.to_be_bytes());
        out.extend_from_slice(&self.ttl_seconds.to_be_bytes());
        let mut data = Vec::new();
        match &self.data {
            Data::A(address) => data.extend_from_slice(&address.octets()),
            Data::Aaaa(address) => data.extend_from_slice(&address.octets()),
            Data::Cname(name) => write_name(name, &mut data),
            Data::Srv(priority, weight, port, name) => {
                for number in [priority, weight, port] {
                    data.extend_from_slice(&number.to_be_bytes());
                }
                write_name(name, &mut data);
            }
        }
        out.extend_from_slice(&(data.len() as u16).to_be_bytes());
        out.extend_from_slice(&data);
    }
}

/// The class IN.
const CLASS_IN: u16 = 1;

/// Size of the message header in bytes.
const HEADER_BYTES: usize = 12;

/// The question of a query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// Message id, which the response repeats.
    pub id: u16,
    /// Name in lower case, without a trailing dot.
    pub name: String,
    /// The type.
    pub kind: Kind,
}

impl Question {
    /// Parses a query with one question; returns `None` for anything else.
    pub(crate) fn parse(query: &[u8]) -> Option<Question> {
        let word = |at: usize| Some(u16::from_be_bytes([*query.get(at)?, *query.get(at + 1)?]));
        let (id, flags, questions) = (word(0)?, word(2)?, word(4)?);
        // The top bit (QR) marks a response.
        if flags & 0x8000 != 0 || questions != 1 {
            return None;
        }
        let mut at = HEADER_BYTES;
        let mut labels = Vec::new();
        loop {
            let length = usize::from(*query.get(at)?);
            at += 1;
            match length {
                0 => break,
                1..=63 => labels.push(String::from_utf8_lossy(query.get(at..at + length)?).into_owned()),
                _ => return None,
            }
            at += length;
        }
        let name = labels.join(".").to_ascii_lowercase();
        (word(at + 2)? == CLASS_IN).then_some(Question { id, name, kind: Kind::of(word(at)?) })
    }
}

/// Header of a response.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) code: u8,
    pub(crate) truncated: bool,
}

/// Encodes a response.
pub(crate) fn answer(question: &Question, outcome: Outcome, records: &[Record]) -> Vec<u8> {
    // QR, RD and RA: a response of a recursive server.
    let flags = 0x8180 | u16::from(outcome.code) | if outcome.truncated { 0x0200 } else { 0 };
    let mut out = Vec::new();
    for word in [question.id, flags, 1, records.len() as u16, 0, 0] {
        out.extend_from_slice(&word.to_be_bytes());
    }
    write_name(&question.name, &mut out);
    out.extend_from_slice(&question.kind.number().to_be_bytes());
    out.extend_from_slice(&CLASS_IN.to_be_bytes());
    records.iter().for_each(|record| record.write(&mut out));
    out
}

fn write_name(name: &str, out: &mut Vec<u8>) {
    for label in name.split('.').filter(|label| !label.is_empty()) {
        // A longer label is a mistake in the test; it is truncated.
        let label = &label.as_bytes()[..label.len().min(63)];
        out.push(label.len() as u8);
        out.extend_from_slice(label);
    }
    out.push(0);
}
