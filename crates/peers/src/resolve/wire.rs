//! DNS messages: encoding of queries, parsing of responses (RFC 1035 section 4, AAAA from RFC 3596, SRV from RFC 2782).
//!
//! Pure functions on bytes. A response is untrusted until [`Response::parse`] has matched it with the [`Question`]; sections other
//! than the answer section are ignored. Names are stored in wire format, in lower case.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Maximum length in bytes of a name, including label lengths and root (RFC 1035 section 2.3.4).
const NAME_MAX: usize = 255;

/// Maximum length in bytes of a label.
const LABEL_MAX: usize = 63;

/// Length in bytes of the header before the question.
const HEADER_BYTES: usize = 12;

/// Maximum number of consecutive aliases, as in other resolvers (BIND: 16).
const ALIASES_MAX: usize = 16;

/// Maximum number of addresses of one name; each becomes a server, or an element of a list that is copied.
pub(super) const ADDRESSES_MAX: usize = 256;

/// The class of the internet.
const CLASS_IN: u16 = 1;

/// A domain name in wire format: length-prefixed labels without the root, in lower case.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Name(Box<[u8]>);

impl Name {
    /// Parses a name in text form, with or without the final dot. `None` if it is not a valid DNS name.
    pub(super) fn parse(text: &[u8]) -> Option<Name> {
        let text = text.strip_suffix(b".").unwrap_or(text);
        let mut wire = Vec::with_capacity(text.len() + 1);
        for label in text.split(|&byte| byte == b'.') {
            if label.is_empty() || label.len() > LABEL_MAX {
                return None;
            }
            wire.push(label.len() as u8);
            wire.extend(label.iter().map(u8::to_ascii_lowercase));
        }
        // The root adds one byte.
        (wire.len() < NAME_MAX).then(|| Name(wire.into()))
    }

    /// Parses the name at `at`; returns it with the position after it.
    fn read(message: &[u8], at: usize) -> Option<(Name, usize)> {
        let (mut wire, mut at, mut end) = (Vec::new(), at, None);
        // Start of the current sequence of labels: a pointer must point before it, so that parsing terminates.
        let mut start = at;
        loop {
            let length = *message.get(at)?;
            match length >> 6 {
                0 if length == 0 => return Some((Name(wire.into()), end.unwrap_or(at + 1))),
                0 => {
                    let label = message.get(at + 1..at + 1 + usize::from(length))?;
                    wire.push(length);
                    wire.extend(label.iter().map(u8::to_ascii_lowercase));
                    if wire.len() >= NAME_MAX {
                        return None;
                    }
                    at += 1 + label.len();
                }
                3 => {
                    let to = usize::from(read_u16(message, at)? & 0x3fff);
                    if to >= start {
                        return None;
                    }
                    end.get_or_insert(at + 2);
                    (at, start) = (to, to);
                }
                // Reserved.
                _ => return None,
            }
        }
    }

    fn labels(&self) -> impl Iterator<Item = &[u8]> {
        let mut rest = &*self.0;
        std::iter::from_fn(move || {
            let (&length, behind) = rest.split_first()?;
            let (label, after) = behind.split_at_checked(usize::from(length))?;
            rest = after;
            Some(label)
        })
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, label) in self.labels().enumerate() {
            let dot = if index == 0 { "" } else { "." };
            write!(f, "{dot}{}", label.escape_ascii())?;
        }
        Ok(())
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Name({self})")
    }
}

/// The record types of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum RecordType {
    A = 1,
    Aaaa = 28,
    Srv = 33,
}

/// The type of a record that names an alias.
const CNAME: u16 = 5;

/// One question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Question {
    /// The ID, which cannot be guessed without seeing the query.
    pub(super) id: u16,
    pub(super) name: Name,
    pub(super) kind: RecordType,
}

impl Question {
    /// Encodes the query, with recursion desired.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        const RECURSION_DESIRED: u16 = 0x0100;
        let mut out = Vec::with_capacity(HEADER_BYTES + self.name.0.len() + 5);
        for word in [self.id, RECURSION_DESIRED, 1, 0, 0, 0] {
            out.extend_from_slice(&word.to_be_bytes());
        }
        out.extend_from_slice(&self.name.0);
        out.push(0);
        out.extend_from_slice(&(self.kind as u16).to_be_bytes());
        out.extend_from_slice(&CLASS_IN.to_be_bytes());
        out
    }
}

/// A name server's response to a query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Response {
    /// 0 is success (RFC 1035 section 4.1.1).
    pub(super) code: u8,
    records: Vec<DnsRecord>,
}

/// The code of a name that does not exist.
pub(super) const NXDOMAIN: u8 = 3;

/// The code of a server that failed.
pub(super) const SERVFAIL: u8 = 2;

/// Reason why a message is not a usable response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MessageFault {
    /// It does not respond to this query, and is ignored.
    NoMatch,
    /// The response was truncated; the complete response is available over TCP.
    Truncated,
    /// The message is malformed.
    Malformed,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct DnsRecord {
    name: Name,
    ttl_s: u32,
    data: Data,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Data {
    Address(IpAddr),
    Alias(Name),
    Service(Service),
}

/// An SRV record: the location of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Service {
    /// Lower values are tried first.
    pub(super) priority: u16,
    pub(super) weight: u16,
    pub(super) port: u16,
    pub(super) target: Name,
}

/// Content of a response for the queried name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Lookup<T> {
    /// These records, with this TTL in seconds.
    Found(Vec<T>, u32),
    /// An alias whose target the response does not resolve.
    Alias(Name, u32),
    /// No record of the requested type, or aliases without a result.
    Nothing,
}

impl Response {
    /// Parses the response to a query.
    ///
    /// # Errors
    /// See [`MessageFault`].
    pub(super) fn parse(message: &[u8], question: &Question) -> Result<Response, MessageFault> {
        let flags = matching_flags(message, question).ok_or(MessageFault::NoMatch)?;
        const TRUNCATED: u16 = 0x0200;
        if flags & TRUNCATED != 0 {
            return Err(MessageFault::Truncated);
        }
        let records = records(message, question).ok_or(MessageFault::Malformed)?;
        Ok(Response { code: (flags & 0x0f) as u8, records })
    }

    /// Returns the addresses of a name.
    pub(super) fn addresses(&self, name: &Name) -> Lookup<IpAddr> {
        self.find_records(name, ADDRESSES_MAX, |data| match data {
            Data::Address(address) => Some(*address),
            _ => None,
        })
    }

    /// Returns the servers of a service.
    pub(super) fn services(&self, name: &Name) -> Lookup<Service> {
        self.find_records(name, SERVICES_MAX, |data| match data {
            Data::Service(service) => Some(service.clone()),
            _ => None,
        })
    }

    /// Follows the aliases of a name. The shortest TTL in the chain applies.
    fn find_records<T>(&self, name: &Name, most: usize, read: impl Fn(&Data) -> Option<T>) -> Lookup<T> {
        let (mut name, mut ttl_s) = (name, u32::MAX);
        for _ in 0..=ALIASES_MAX {
            let of_name = || self.records.iter().filter(|record| record.name == *name);
            let found: Vec<T> = of_name().filter_map(|record| read(&record.data)).take(most).collect();
            if !found.is_empty() {
                let least = of_name().map(|record| record.ttl_s).min().unwrap_or(0);
                return Lookup::Found(found, ttl_s.min(least));
            }
            let alias = of_name().find_map(|record| match &record.data {
                Data::Alias(to) => Some((to, record.ttl_s)),
                _ => None,
            });
            match alias {
                Some((to, least)) => (name, ttl_s) = (to, ttl_s.min(least)),
                None if ttl_s == u32::MAX => return Lookup::Nothing,
                None => return Lookup::Alias(name.clone(), ttl_s),
            }
        }
        Lookup::Nothing
    }
}

/// Maximum number of SRV records; the addresses of each need separate lookups.
const SERVICES_MAX: usize = 64;

/// Returns the flags of a message, if it is a response with the ID and the question of the query.
fn matching_flags(message: &[u8], question: &Question) -> Option<u16> {
    let (id, flags, questions) = (read_u16(message, 0)?, read_u16(message, 2)?, read_u16(message, 4)?);
    const RESPONSE: u16 = 0x8000;
    const OPCODE: u16 = 0x7800;
    if id != question.id || flags & RESPONSE == 0 || flags & OPCODE != 0 || questions != 1 {
        return None;
    }
    let (name, at) = Name::read(message, HEADER_BYTES)?;
    let asked = (read_u16(message, at)?, read_u16(message, at + 2)?);
    (name == question.name && asked == (question.kind as u16, CLASS_IN)).then_some(flags)
}

/// Returns the usable records of the answer section.
fn records(message: &[u8], question: &Question) -> Option<Vec<DnsRecord>> {
    let count = read_u16(message, 6)?;
    // The question, which `matching_flags` has parsed.
    let (_, mut at) = Name::read(message, HEADER_BYTES)?;
    at += 4;
    let mut records = Vec::new();
    for _ in 0..count {
        let (name, behind) = Name::read(message, at)?;
        let (kind, class) = (read_u16(message, behind)?, read_u16(message, behind + 2)?);
        let ttl_s =
            u32::from(read_u16(message, behind + 4)?) << 16 | u32::from(read_u16(message, behind + 6)?);
        let (start, length) = (behind + 10, usize::from(read_u16(message, behind + 8)?));
        let data = message.get(start..start + length)?;
        at = start + length;
        if class == CLASS_IN
            && let Some(data) = read_data(message, (start, data), kind, question.kind)?
        {
            // A TTL with the top bit set counts as zero (RFC 2181 section 8).
            let ttl_s = if ttl_s > i32::MAX as u32 { 0 } else { ttl_s };
            records.push(DnsRecord { name, ttl_s, data });
        }
    }
    Some(records)
}

/// Parses the data of a record of the requested type or an alias; `Some(None)` for other types.
fn read_data(
    message: &[u8],
    (at, data): (usize, &[u8]),
    kind: u16,
    wanted: RecordType,
) -> Option<Option<Data>> {
    // A name must end where its data ends.
    let name_at = |start: usize| {
        let (name, end) = Name::read(message, start)?;
        (end == at + data.len()).then_some(name)
    };
    Some(Some(match (kind, wanted) {
        (CNAME, _) => Data::Alias(name_at(at)?),
        (1, RecordType::A) => Data::Address(IpAddr::V4(Ipv4Addr::from(<[u8; 4]>::try_from(data).ok()?))),
        (28, RecordType::Aaaa) => Data::Address(IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(data).ok()?))),
        (33, RecordType::Srv) => Data::Service(Service {
            priority: read_u16(data, 0)?,
            weight: read_u16(data, 2)?,
            port: read_u16(data, 4)?,
            target: name_at(at + 6)?,
        }),
        _ => return Some(None),
    }))
}

/// Returns the 16-bit value at `at`.
fn read_u16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]))
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn name(text: &str) -> Name {
        Name::parse(text.as_bytes()).expect("a name")
    }

    fn question(text: &str, kind: RecordType) -> Question {
        Question { id: 0x1234, name: name(text), kind }
    }

    /// A record to encode: owner, type, TTL and data, with uncompressed names.
    struct Out<'a>(&'a str, u16, u32, Vec<u8>);

    fn wire(text: &str) -> Vec<u8> {
        [&*name(text).0, &[0]].concat()
    }

    fn response(question: &Question, flags: u16, records: &[Out<'_>]) -> Vec<u8> {
        let mut out = question.to_bytes();
        out[2..4].copy_from_slice(&flags.to_be_bytes());
        out[6..8].copy_from_slice(&(records.len() as u16).to_be_bytes());
        for Out(owner, kind, ttl_s, data) in records {
            match owner.is_empty() {
                true => out.extend_from_slice(&[0xc0, 12]),
                false => out.extend_from_slice(&wire(owner)),
            }
            out.extend_from_slice(&kind.to_be_bytes());
            out.extend_from_slice(&CLASS_IN.to_be_bytes());
            out.extend_from_slice(&ttl_s.to_be_bytes());
            out.extend_from_slice(&(data.len() as u16).to_be_bytes());
            out.extend_from_slice(data);
        }
        out
    }

    const OK: u16 = 0x8180;

    fn addresses(texts: &[&str]) -> Vec<IpAddr> {
        texts.iter().map(|text| text.parse().expect("an address")).collect()
    }

    #[test]
    fn only_valid_dns_names_are_accepted() {
        assert_eq!(name("A.b.").to_string(), "a.b");
        assert_eq!(Name::parse(b"a.b"), Name::parse(b"A.B"));
        let long = "a".repeat(63);
        let longest = [&*long, &long, &long, &long[..61]].join(".");
        assert_eq!(name(&longest).0.len(), 254);
        for text in ["", ".", "a..b", ".a", &"a".repeat(64), &format!("{longest}a")] {
            assert_eq!(Name::parse(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn a_query_is_encoded_as_in_the_rfc() {
        let bytes = question("ab.c", RecordType::Aaaa).to_bytes();
        assert_eq!(bytes, b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0\x02ab\x01c\0\0\x1c\0\x01");
    }

    #[test]
    fn addresses_are_returned_with_the_shortest_ttl() {
        let asked = question("a.example", RecordType::A);
        let records = [
            Out("", 1, 60, vec![10, 0, 0, 1]),
            Out("", 28, 1, vec![0; 16]),
            Out("", 16, 1, b"\x01x".to_vec()),
            Out("A.Example", 1, 30, vec![10, 0, 0, 2]),
            Out("other", 1, 5, vec![10, 0, 0, 3]),
        ];
        let found = Response::parse(&response(&asked, OK, &records), &asked).expect("a response");
        assert_eq!(found.code, 0);
        // The AAAA record belongs to the name but has another type than requested.
        let expected = Lookup::Found(addresses(&["10.0.0.1", "10.0.0.2"]), 30);
        assert_eq!(found.addresses(&asked.name), expected);
        let time_of_none = [Out("", 1, 1 << 31, vec![10, 0, 0, 1])];
        let found = Response::parse(&response(&asked, OK, &time_of_none), &asked).expect("a response");
        assert_eq!(found.addresses(&asked.name), Lookup::Found(addresses(&["10.0.0.1"]), 0));
    }

    #[test]
    fn aliases_are_followed_but_not_in_cycles() {
        let asked = question("a", RecordType::A);
        let alias = |from: &'static str, to: &str, ttl_s| Out(from, 5, ttl_s, wire(to));
        let find_records = |records: &[Out<'_>]| {
            let found = Response::parse(&response(&asked, OK, records), &asked);
            found.map(|found| found.addresses(&asked.name))
        };
        let chain = [alias("", "b", 50), alias("b", "c", 20), Out("c", 1, 90, vec![1, 2, 3, 4])];
        assert_eq!(find_records(&chain), Ok(Lookup::Found(addresses(&["1.2.3.4"]), 20)));
        assert_eq!(find_records(&chain[..2]), Ok(Lookup::Alias(name("c"), 20)));
        assert_eq!(find_records(&[alias("", "b", 1), alias("b", "a", 1)]), Ok(Lookup::Nothing));
        assert_eq!(find_records(&[]), Ok(Lookup::Nothing));
        assert_eq!(find_records(&[alias("b", "c", 1)]), Ok(Lookup::Nothing));
        // A name that does not end where its record ends.
        let mut data = wire("b");
        data.push(0);
        assert_eq!(find_records(&[Out("", 5, 1, data)]), Err(MessageFault::Malformed));
    }

    #[test]
    fn srv_records_are_parsed() {
        let asked = question("_http._tcp.a", RecordType::Srv);
        let data = [&[0, 1, 0, 2, 0x1f, 0x90], &*wire("b.a")].concat();
        let bytes = response(&asked, OK, &[Out("", 33, 7, data)]);
        let found = Response::parse(&bytes, &asked).expect("a response");
        let service = Service { priority: 1, weight: 2, port: 8080, target: name("b.a") };
        assert_eq!(found.services(&asked.name), Lookup::Found(vec![service], 7));
        let short = response(&asked, OK, &[Out("", 33, 7, vec![0, 1, 0, 2, 0])]);
        assert_eq!(Response::parse(&short, &asked), Err(MessageFault::Malformed));
    }

    #[test]
    fn only_the_response_to_the_sent_query_is_accepted() {
        let asked = question("a", RecordType::A);
        let parse = |bytes: &[u8]| Response::parse(bytes, &asked).map(|found| found.code);
        assert_eq!(parse(&response(&asked, OK, &[])), Ok(0));
        assert_eq!(parse(&response(&asked, OK | 3, &[])), Ok(NXDOMAIN));
        assert_eq!(parse(&response(&asked, OK | 0x0200, &[])), Err(MessageFault::Truncated));
        assert_eq!(parse(&asked.to_bytes()), Err(MessageFault::NoMatch), "a query");
        assert_eq!(
            parse(&response(&asked, OK | 0x0800, &[])),
            Err(MessageFault::NoMatch),
            "another operation"
        );
        for other in [
            Question { id: 0x1235, ..asked.clone() },
            Question { name: name("b"), ..asked.clone() },
            Question { kind: RecordType::Aaaa, ..asked.clone() },
        ] {
            assert_eq!(parse(&response(&other, OK, &[])), Err(MessageFault::NoMatch), "{other:?}");
        }
        let full = response(&asked, OK, &[Out("", 1, 1, vec![1, 2, 3, 4])]);
        for end in 0..full.len() {
            assert!(parse(&full[..end]).is_err(), "cut at {end}");
        }
    }

    #[test]
    fn compression_pointers_must_point_backwards() {
        let asked = question("a", RecordType::A);
        let owner = |pointer: &[u8]| {
            let mut bytes = response(&asked, OK, &[]);
            bytes[7] = 1;
            bytes.extend_from_slice(pointer);
            bytes.extend_from_slice(&[0, 1, 0, 1, 0, 0, 0, 1, 0, 4, 1, 2, 3, 4]);
            Response::parse(&bytes, &asked).map(|found| found.addresses(&asked.name))
        };
        let here = 12 + 3 + 4;
        assert_eq!(owner(&[0xc0, 12]), Ok(Lookup::Found(addresses(&["1.2.3.4"]), 1)));
        assert_eq!(owner(&[0xc0, here]), Err(MessageFault::Malformed), "to itself");
        assert_eq!(owner(&[0xc0, here + 2]), Err(MessageFault::Malformed), "ahead");
        assert_eq!(owner(&[1, b'x', 0xc0, here]), Err(MessageFault::Malformed), "to its own start");
        assert_eq!(owner(&[0x40, 12]), Err(MessageFault::Malformed), "a length that is reserved");
        assert_eq!(owner(&[1, b'x', 0xc0, 12]), Ok(Lookup::Nothing), "x.a");
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_parsed_without_a_panic(bytes in vec(any::<u8>(), 0..600)) {
            let asked = question("a.example", RecordType::A);
            let _ = Response::parse(&bytes, &asked);
        }

        #[test]
        fn broken_responses_are_parsed_without_a_panic(
            changes in vec((0..200usize, any::<u8>()), 1..8),
            kind in prop_oneof![Just(RecordType::A), Just(RecordType::Aaaa), Just(RecordType::Srv)],
        ) {
            let asked = question("a.example", kind);
            let service = [&[0, 1, 0, 2, 0, 80], &*wire("b.example")].concat();
            let mut bytes = response(&asked, OK, &[
                Out("", 5, 9, wire("c.example")),
                Out("c.example", 1, 9, vec![1, 2, 3, 4]),
                Out("c.example", 28, 9, vec![7; 16]),
                Out("c.example", 33, 9, service),
            ]);
            for (index, byte) in changes {
                let length = bytes.len();
                bytes[index % length] = byte;
            }
            if let Ok(found) = Response::parse(&bytes, &asked) {
                let _ = (found.addresses(&asked.name), found.services(&asked.name));
            }
        }

        #[test]
        fn names_are_decoded_as_they_were_encoded(labels in vec("[a-z0-9_-]{1,63}", 1..4)) {
            let text = labels.join(".");
            let parsed = name(&text);
            prop_assert_eq!(parsed.to_string(), text);
            let bytes = [&*parsed.0, &[0]].concat();
            prop_assert_eq!(Name::read(&bytes, 0), Some((parsed, bytes.len())));
        }
    }
}
