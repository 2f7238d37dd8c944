//! The streams of an HTTP/3 connection that are not requests, and header sections that wait for the QPACK table:
//! [`http::h3::Http3Session`].

use http::h3::{
    Block, DecodedSection, Http3Fault, Http3Limits, Http3Output, Http3Session, RequestEvent, RequestStream,
    StreamFailure, UniEvent,
};

use super::take_byte;
use crate::Target;

/// See the module.
pub const TARGET: Target = Target {
    name: "h3_session",
    run,
    tokens: &[
        "\u{0}\u{3}\u{0}\u{4}\u{0}",
        "\u{0}\u{5}\u{4}\u{2}\u{6}\u{1}",
        "\u{0}\u{3}\u{7}\u{1}\u{0}",
        "\u{0}\u{3}\u{d}\u{1}\u{5}",
        "\u{0}\u{4}\u{21}\u{2}xx",
        "\u{1}\u{4}\u{2}?\u{1}\u{1}",
        "\u{1}\u{4}Aa\u{1}b",
        "\u{2}\u{2}\u{3}D",
        "\u{3}\u{2}!x",
        "\u{4}\u{7}\u{1}\u{5}\u{2}\u{0}\u{10}\u{11}",
        "\u{5}\u{0}",
        "\u{6}\u{0}",
    ],
};

/// Number of streams of the peer of each direction.
const STREAMS: u64 = 4;

/// Maximum number of request streams, as the session is configured.
const STREAMS_MAX: u32 = 3;

/// Executes the steps of the input. Bytes of streams are received in one call and in pieces, with the same result.
pub fn run(mut data: &[u8]) {
    let (flags, piece) = (take_byte(&mut data), usize::from(take_byte(&mut data)) + 1);
    let mut whole = Connection::new(flags);
    let mut cut = Connection::new(flags);
    let (result, other) = (whole.run(data, usize::MAX), cut.run(data, piece));
    // Sections wait for a part of the instructions that arrive in one piece, and are decoded after all of them. A peer that violates
    // the rules of eviction can cause another error then.
    if result.is_err() && other.is_err() && whole.has_waited || is_of_qpack(result) || is_of_qpack(other) {
        return;
    }
    assert_eq!(result, other, "pieces change the result");
    if result.is_ok() {
        assert_eq!(whole.seen, cut.seen, "pieces change what was received");
        assert_eq!(whole.out.control, cut.out.control, "pieces change what was sent");
    }
}

/// Whether a header section could not be decoded.
fn is_of_qpack(result: Result<(), StreamFailure>) -> bool {
    matches!(result, Err(StreamFailure::Connection(Http3Fault::Decompression(_))))
}

struct Connection {
    session: Http3Session,
    out: Http3Output,
    streams: Vec<Option<RequestStream>>,
    /// Unidirectional streams whose bytes are ignored.
    ignored: [bool; STREAMS as usize],
    /// Text of the events, without their positions in the input.
    seen: Vec<String>,
    /// Whether a section has waited for the table.
    has_waited: bool,
}

impl Connection {
    fn new(flags: u8) -> Connection {
        let limits = Http3Limits {
            streams_max: STREAMS_MAX,
            table_capacity: if flags & 2 == 0 { 220 } else { 0 },
            blocked_max: 2,
            ..Http3Limits::default()
        };
        let mut out = Http3Output::default();
        let session = match flags & 1 {
            0 => Http3Session::server(limits, &mut out),
            _ => Http3Session::client(limits, &mut out),
        };
        Connection {
            session,
            out,
            streams: Vec::new(),
            ignored: [false; STREAMS as usize],
            seen: Vec::new(),
            has_waited: false,
        }
    }

    fn run(&mut self, mut data: &[u8], piece: usize) -> Result<(), StreamFailure> {
        while !data.is_empty() {
            let (step, len) = (take_byte(&mut data), usize::from(take_byte(&mut data)));
            let (bytes, rest) = data.split_at(len.min(data.len()));
            data = rest;
            match step % 8 {
                number @ 0..=3 => {
                    for input in bytes.chunks(piece.min(bytes.len()).max(1)) {
                        self.uni(number.into(), input)?;
                    }
                }
                4 => self.request(bytes, piece)?,
                5 => {
                    if let Some(stream) = self.streams.iter_mut().rev().find_map(Option::as_mut) {
                        self.session.cancelled(stream, &mut self.out)?;
                    }
                    self.streams.pop();
                }
                6 => self.session.announce_end(&mut self.out),
                _ => self.session.end_uni(4 * u64::from(step / 8) + 2)?,
            }
        }
        Ok(())
    }

    fn uni(&mut self, number: u64, input: &[u8]) -> Result<(), Http3Fault> {
        let mut at = 0;
        while at < input.len() && !self.ignored[number as usize] {
            let step = self.session.receive_uni(4 * number + 2, &input[at..], &mut self.out)?;
            assert!(step.used > 0 && at + step.used <= input.len());
            at += step.used;
            match step.event {
                UniEvent::More => {}
                UniEvent::Ignored => self.ignored[number as usize] = true,
                UniEvent::Unblocked => self.unblock()?,
                event => self.seen.push(format!("{event:?}")),
            }
        }
        Ok(())
    }

    /// Receives a request stream without its end.
    fn request(&mut self, bytes: &[u8], piece: usize) -> Result<(), StreamFailure> {
        let id = 4 * self.streams.len() as u64;
        let Some(mut stream) = self.session.open(id) else { return Ok(()) };
        let update = self.session.take_update(id);
        self.seen.push(format!("{update:?}"));
        for input in bytes.chunks(piece.min(bytes.len()).max(1)) {
            let mut at = 0;
            while at < input.len() {
                let step = self.session.receive(&mut stream, &input[at..])?;
                if let RequestEvent::Head { block } | RequestEvent::Trailers { block } = step.event {
                    let here = &input[at..];
                    let decoded = self.session.decode(&mut stream, block, here, &mut self.out, |_, _| ())?;
                    self.seen.push(format!("{decoded:?}"));
                    if decoded == DecodedSection::Blocked {
                        self.has_waited = true;
                        self.streams.push(Some(stream));
                        return Ok(());
                    }
                }
                at += step.used;
            }
        }
        self.streams.push(Some(stream));
        Ok(())
    }

    /// Decodes the sections whose entries have arrived.
    fn unblock(&mut self) -> Result<(), Http3Fault> {
        let mut count = 0;
        while let Some(id) = self.session.take_unblocked() {
            let stream = self.streams[(id / 4) as usize].as_mut().expect("a blocked stream is open");
            let decoded = self.session.decode(stream, Block::Gathered, b"", &mut self.out, |_, _| ())?;
            assert_eq!(decoded, DecodedSection::Fields);
            self.seen.push("unblocked".to_owned());
            count += 1;
        }
        assert!((1..=2).contains(&count), "streams were blocked");
        Ok(())
    }
}
