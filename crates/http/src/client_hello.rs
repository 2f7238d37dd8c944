//! The ClientHello of TLS, as far as it selects a server: name, protocols of ALPN, version (RFC 8446 section 4.1.2, RFC 6066
//! section 3, RFC 7301 section 3.1).
//!
//! [`parse`] gets the bytes that a client has sent so far, and keeps no state between calls. The message may be fragmented into
//! records of any size. The bytes are only read: another server performs the handshake.

/// The content of a ClientHello.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientHello {
    /// The server name in the spelling of the client; empty if it sent none.
    pub name: Vec<u8>,
    /// The protocols of ALPN, in the order of the client.
    pub alpn: Vec<Vec<u8>>,
    /// The highest version that the client supports.
    pub version: u16,
}

/// The result of parsing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HelloProgress {
    /// The bytes so far may be the start of a ClientHello.
    Incomplete,
    /// The message is complete.
    Complete(ClientHello),
    /// The bytes are not a ClientHello.
    Other,
}

/// Type of a record with handshake messages.
const HANDSHAKE: u8 = 22;

/// Type of the message.
const CLIENT_HELLO: u8 = 1;

/// Length of a record's header, and of a message's header.
const RECORD_HEAD: usize = 5;
const MESSAGE_HEAD: usize = 4;

/// Maximum length of the content of a record (RFC 8446 section 5.1).
const RECORD_MAX: usize = 1 << 14;

/// Extensions.
const SERVER_NAME: u16 = 0;
const ALPN: u16 = 16;
const SUPPORTED_VERSIONS: u16 = 43;

/// Versions that have a name.
const VERSIONS: [(u16, &str); 6] = [
    (0x0002, "SSLv2"),
    (0x0300, "SSLv3"),
    (0x0301, "TLSv1"),
    (0x0302, "TLSv1.1"),
    (0x0303, "TLSv1.2"),
    (0x0304, "TLSv1.3"),
];

impl ClientHello {
    /// Returns nginx's name of the version; empty if it is unknown.
    pub fn protocol(&self) -> &'static str {
        VERSIONS.iter().find(|(version, _)| *version == self.version).map_or("", |(_, name)| name)
    }
}

/// Parses the bytes received so far.
pub fn parse(input: &[u8]) -> HelloProgress {
    if let Some(progress) = ssl2(input) {
        return progress;
    }
    match message(input) {
        Ok(message) => match hello(&message) {
            Some(hello) => HelloProgress::Complete(hello),
            None => HelloProgress::Other,
        },
        Err(Gap::More) => HelloProgress::Incomplete,
        Err(Gap::Other) => HelloProgress::Other,
    }
}

/// Parses the first message of SSL 2.0, which has no records; `None` for other input.
fn ssl2(input: &[u8]) -> Option<HelloProgress> {
    input.first().filter(|&&first| first & 0x80 != 0)?;
    let is_hello = input.get(2).is_none_or(|&kind| kind == CLIENT_HELLO)
        && input.get(3).is_none_or(|&major| matches!(major, 0 | 3));
    Some(match input.get(3..5) {
        _ if !is_hello => HelloProgress::Other,
        None => HelloProgress::Incomplete,
        Some(version) => {
            let version = u16::from_be_bytes([version[0], version[1]]);
            HelloProgress::Complete(ClientHello { version, ..ClientHello::default() })
        }
    })
}

/// The reason why there is no complete message.
enum Gap {
    /// Bytes are missing.
    More,
    /// The bytes are another protocol or message.
    Other,
}

/// Returns the content of the first message, which is joined from the records.
fn message(input: &[u8]) -> Result<Vec<u8>, Gap> {
    let (mut rest, mut joined) = (input, Vec::new());
    loop {
        match rest.first() {
            None => return Err(Gap::More),
            Some(&HANDSHAKE) => {}
            Some(_) => return Err(Gap::Other),
        }
        if rest.get(1).is_some_and(|&major| major != 3) {
            return Err(Gap::Other);
        }
        let Some((head, after)) = rest.split_first_chunk::<RECORD_HEAD>() else { return Err(Gap::More) };
        let len = usize::from(u16::from_be_bytes([head[3], head[4]]));
        if len == 0 || len > RECORD_MAX {
            return Err(Gap::Other);
        }
        let content = &after[..len.min(after.len())];
        joined.extend_from_slice(content);
        if joined.first().is_some_and(|&kind| kind != CLIENT_HELLO) {
            return Err(Gap::Other);
        }
        if let Some((head, body)) = joined.split_first_chunk::<MESSAGE_HEAD>() {
            let len = usize::from(head[1]) << 16 | usize::from(head[2]) << 8 | usize::from(head[3]);
            if body.len() >= len {
                return Ok(body[..len].to_vec());
            }
        }
        if content.len() < len {
            return Err(Gap::More);
        }
        rest = &after[len..];
    }
}

/// Parses the content of a ClientHello; `None` if its lengths are inconsistent.
fn hello(message: &[u8]) -> Option<ClientHello> {
    let mut reader = Reader(message);
    let mut found = ClientHello { version: reader.u16()?, ..ClientHello::default() };
    // The random bytes.
    reader.take(32)?;
    reader.list8()?;
    reader.list16()?;
    reader.list8()?;
    if reader.0.is_empty() {
        return Some(found);
    }
    let mut extensions = reader.list16()?;
    while !extensions.0.is_empty() {
        let kind = extensions.u16()?;
        let content = extensions.list16()?;
        match kind {
            SERVER_NAME => found.name = server_name(content)?,
            ALPN => found.alpn = protocols(content)?,
            SUPPORTED_VERSIONS => found.version = newest(content)?.unwrap_or(found.version),
            _ => {}
        }
    }
    Some(found)
}

/// Returns the first host name in the extension.
fn server_name(mut content: Reader<'_>) -> Option<Vec<u8>> {
    const HOST_NAME: u8 = 0;
    let mut names = content.list16()?;
    while !names.0.is_empty() {
        let kind = names.u8()?;
        let name = names.list16()?;
        if kind == HOST_NAME {
            return Some(name.0.to_vec());
        }
    }
    Some(Vec::new())
}

fn protocols(mut content: Reader<'_>) -> Option<Vec<Vec<u8>>> {
    let (mut names, mut found) = (content.list16()?, Vec::new());
    while !names.0.is_empty() {
        found.push(names.list8()?.0.to_vec());
    }
    Some(found)
}

/// Returns the highest known version of the extension. Unknown versions are ignored (RFC 8701).
fn newest(mut content: Reader<'_>) -> Option<Option<u16>> {
    let (mut versions, mut newest) = (content.list8()?, None);
    while !versions.0.is_empty() {
        let version = versions.u16()?;
        if VERSIONS.iter().any(|(known, _)| *known == version) {
            newest = newest.max(Some(version));
        }
    }
    Some(newest)
}

/// The unread bytes of a message.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn u8(&mut self) -> Option<u8> {
        self.take(1).map(|bytes| bytes[0])
    }

    fn u16(&mut self) -> Option<u16> {
        self.take(2).map(|bytes| u16::from_be_bytes([bytes[0], bytes[1]]))
    }

    /// Takes bytes after their length of one byte.
    fn list8(&mut self) -> Option<Reader<'a>> {
        let len = self.u8()?;
        self.take(usize::from(len)).map(Reader)
    }

    /// Takes bytes after their length of two bytes.
    fn list16(&mut self) -> Option<Reader<'a>> {
        let len = self.u16()?;
        self.take(usize::from(len)).map(Reader)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_len16(bytes: &[u8]) -> Vec<u8> {
        [&(bytes.len() as u16).to_be_bytes()[..], bytes].concat()
    }

    fn extension(kind: u16, content: &[u8]) -> Vec<u8> {
        [&kind.to_be_bytes()[..], &with_len16(content)].concat()
    }

    /// Returns a ClientHello message with these extensions.
    fn message_of(extensions: &[u8]) -> Vec<u8> {
        let mut body = vec![3, 3];
        body.extend_from_slice(&[7; 32]);
        body.extend_from_slice(&[0, 0, 2, 0x13, 0x01, 1, 0]);
        body.extend_from_slice(&with_len16(extensions));
        let len = (body.len() as u32).to_be_bytes();
        [&[1, len[1], len[2], len[3]][..], &body].concat()
    }

    fn in_records(message: &[u8], size: usize) -> Vec<u8> {
        let record = |part: &[u8]| [&[22, 3, 1][..], &with_len16(part)].concat();
        message.chunks(size).flat_map(record).collect()
    }

    fn example() -> Vec<u8> {
        let name = [&[0][..], &with_len16(b"A.Example")].concat();
        let extensions = [
            extension(0, &with_len16(&name)),
            extension(16, &with_len16(b"\x02h2\x08http/1.1")),
            extension(43, b"\x06\x0a\x0a\x03\x04\x03\x03"),
        ]
        .concat();
        message_of(&extensions)
    }

    #[test]
    fn name_protocols_and_version_are_found_in_records_of_any_size() {
        let message = example();
        let expected = ClientHello {
            name: b"A.Example".to_vec(),
            alpn: vec![b"h2".to_vec(), b"http/1.1".to_vec()],
            version: 0x0304,
        };
        assert_eq!(expected.protocol(), "TLSv1.3");
        for size in [1, 2, 3, 5, 40, message.len()] {
            let input = in_records(&message, size);
            for end in 0..input.len() {
                assert_eq!(parse(&input[..end]), HelloProgress::Incomplete, "{size} {end}");
            }
            assert_eq!(parse(&input), HelloProgress::Complete(expected.clone()), "{size}");
            let longer = [&input[..], b"further"].concat();
            assert_eq!(parse(&longer), HelloProgress::Complete(expected.clone()), "{size}");
        }
    }

    #[test]
    fn a_message_without_extensions_has_its_own_version() {
        let HelloProgress::Complete(hello) = parse(&in_records(&message_of(b""), 100)) else {
            panic!("it is complete");
        };
        assert_eq!((hello.name.as_slice(), hello.protocol()), (&b""[..], "TLSv1.2"));
        for end in 1..5 {
            assert_eq!(parse(&b"\x80\x2e\x01\x00\x02"[..end]), HelloProgress::Incomplete);
        }
        assert_eq!(parse(b"\x80\x2e\x02"), HelloProgress::Other);
        let HelloProgress::Complete(hello) = parse(b"\x80\x2e\x01\x00\x02") else { panic!("it is SSL 2.0") };
        assert_eq!(hello.protocol(), "SSLv2");
    }

    #[test]
    fn other_protocols_and_inconsistent_lengths_are_no_hello() {
        for input in
            [&b"GET / HTTP/1.1\r\n"[..], b"\x16\x02", b"\x16\x03\x01\0\0", b"\x16\x03\x01\xff\xff", b"\x17"]
        {
            assert_eq!(parse(input), HelloProgress::Other, "{input:?}");
        }
        assert_eq!(parse(&in_records(&[2, 0, 0, 0], 4)), HelloProgress::Other);
        // The list of names is longer than its extension.
        let wrong = message_of(&extension(0, &[0, 9, 0]));
        assert_eq!(parse(&in_records(&wrong, 500)), HelloProgress::Other);
    }
}
