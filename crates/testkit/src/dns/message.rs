//! Messages of DNS, as far as a test server needs them: RFC 1035 section 4, SRV from RFC 2782.
//!
//! [`Question`] is read from a query, [`Record`]s are written into an answer. Names are written without compression
//! but for the question's own name, so that a resolver meets both forms.

use std::net::{Ipv4Addr, Ipv6Addr};

/// The types of records that are known here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// An IPv4 address.
    A,
    /// Another name for the name.
    Cname,
    /// An IPv6 address.
    Aaaa,
    /// Where a service is.
    Srv,
    /// Any other, by its number.
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
    /// Another name.
    Cname(String),
    /// Priority, weight, port and name of a server.
    Srv(u16, u16, u16, String),
}

/// A record of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The owner; empty for the name of the question.
    pub name: String,
    /// How long it may be kept.
    pub ttl_seconds: u32,
    /// The data.
    pub data: Data,
}

impl Record {
    /// An address of the requested name, of its own family. Panics when it is none.
    #[track_caller]
    pub fn address(address: &str, ttl_seconds: u32) -> Record {
        let data = match address.parse() {
            Ok(std::net::IpAddr::V4(address)) => Data::A(address),
            Ok(std::net::IpAddr::V6(address)) => Data::Aaaa(address),
            Err(error) => panic!("{address:?}: {error}"),
        };
        Record { name: String::new(), ttl_seconds, data }
    }

    /// Another name for the requested name.
    pub fn cname(to: &str, ttl_seconds: u32) -> Record {
        Record { name: String::new(), ttl_seconds, data: Data::Cname(to.to_owned()) }
    }

    /// A server of the requested service.
    pub fn srv(priority: u16, weight: u16, port: u16, name: &str, ttl_seconds: u32) -> Record {
        let data = Data::Srv(priority, weight, port, name.to_owned());
        Record { name: String::new(), ttl_seconds, data }
    }

    /// The same record of another owner: the records after a CNAME, or beside an SRV.
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
            // A pointer to the question's name, which follows the header.
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

/// The class of the internet.
const CLASS_IN: u16 = 1;

/// Bytes before the question.
const HEADER_BYTES: usize = 12;

/// The type of a query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// The identifier, which the answer repeats.
    pub id: u16,
    /// The name in lower case, without a dot at the end.
    pub name: String,
    /// The type.
    pub kind: Kind,
}

impl Question {
    /// Reads a query with one question. `None` when it is no such thing.
    pub(crate) fn parse(query: &[u8]) -> Option<Question> {
        let word = |at: usize| Some(u16::from_be_bytes([*query.get(at)?, *query.get(at + 1)?]));
        let (id, flags, questions) = (word(0)?, word(2)?, word(4)?);
        // The top bit marks an answer.
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

/// The header of an answer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) code: u8,
    pub(crate) truncated: bool,
}

/// Writes an answer.
pub(crate) fn answer(question: &Question, outcome: Outcome, records: &[Record]) -> Vec<u8> {
    // QR and RD and RA: an answer of a server that resolves.
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
        // A longer one is the test's slip, and no label.
        let label = &label.as_bytes()[..label.len().min(63)];
        out.push(label.len() as u8);
        out.extend_from_slice(label);
    }
    out.push(0);
}
