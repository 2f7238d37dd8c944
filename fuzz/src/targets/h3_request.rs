//! One request stream of HTTP/3, of a server and of a client: [`http::h3::RequestStream`].

use http::fields::{BodyLength, Version};
use http::h3::{
    DecodedSection, HeadReader, Http3Limits, Http3Output, Http3Session, RequestEvent, RequestStream,
    ResponseReader, Scratch, StreamFailure,
};
use http::request::{Head, Policy};
use http::response::parse::Limits;

use super::take_byte;
use crate::Target;

/// See the module.
pub const TARGET: Target = Target {
    name: "h3_request",
    run,
    tokens: &[
        "\u{1}\u{b}\u{0}\u{0}\u{51}\u{1}/\u{50}\u{4}here",
        "\u{1}\u{3}\u{0}\u{0}\u{59}",
        "\u{1}\u{6}\u{0}\u{0}\u{21}a\u{1}b",
        "\u{1}\u{6}\u{0}\u{0}\u{54}\u{1}3",
        "\u{0}\u{3}abc",
        "\u{0}\u{0}",
        "\u{21}\u{1}x",
        "\u{4}\u{0}",
        "@",
    ],
};

/// Receives the input in one call and in pieces, with the same result.
pub fn run(mut data: &[u8]) {
    let (flags, piece) = (take_byte(&mut data), usize::from(take_byte(&mut data)) + 1);
    let mut whole = Receiver::new(flags & 1 == 0);
    let mut cut = Receiver::new(flags & 1 == 0);
    let result = whole.receive(data, data.len());
    assert_eq!(result, cut.receive(data, piece), "pieces change the result");
    assert_eq!(whole.seen, cut.seen, "pieces change what was received");
}

/// One end with one stream.
struct Receiver {
    is_server: bool,
    session: Http3Session,
    out: Http3Output,
    scratch: Scratch,
    /// The received heads, bodies and trailers, one after the other.
    seen: Vec<u8>,
}

impl Receiver {
    fn new(is_server: bool) -> Receiver {
        let (mut out, limits) = (Http3Output::default(), Http3Limits::default());
        let session = match is_server {
            true => Http3Session::server(limits, &mut out),
            false => Http3Session::client(limits, &mut out),
        };
        Receiver { is_server, session, out, scratch: Scratch::default(), seen: Vec::new() }
    }

    fn receive(&mut self, data: &[u8], piece: usize) -> Result<(), StreamFailure> {
        let mut stream = self.session.open(0).expect("no GOAWAY was sent");
        for input in data.chunks(piece.max(1)) {
            let mut at = 0;
            while at < input.len() {
                let here = &input[at..];
                let step = self.session.receive(&mut stream, here)?;
                assert!(step.used > 0 && step.used <= here.len());
                at += step.used;
                match step.event {
                    RequestEvent::More => assert_eq!(step.used, here.len()),
                    RequestEvent::Head { block } if self.is_server => {
                        self.request(&mut stream, |session, stream, out, field| {
                            session.decode(stream, block, here, out, field)
                        })?;
                    }
                    RequestEvent::Head { block } => {
                        let limits = Limits { head_max: 1000, fields_max: 20 };
                        let mut reader = ResponseReader::new(limits);
                        let field = |name: &[u8], value: &[u8]| reader.field(name, value);
                        self.session.decode(&mut stream, block, here, &mut self.out, field)?;
                        if let Ok((text, head)) = reader.finish() {
                            self.seen.extend_from_slice(&text);
                            if head.is_interim() {
                                stream.expect_another_head();
                            }
                        }
                    }
                    RequestEvent::Data { start, end } => {
                        assert!(start < end && end <= here.len());
                        self.seen.extend_from_slice(&here[start..end]);
                    }
                    RequestEvent::Trailers { block } => {
                        let trailers =
                            self.session.decode_trailers(&mut stream, block, here, &mut self.out)?;
                        for (name, value) in trailers.expect("no table was announced") {
                            self.seen.extend(name.into_iter().chain(value));
                        }
                    }
                }
            }
        }
        self.session.receive_end(&mut stream)
    }

    /// Reads the head of a request.
    fn request(
        &mut self,
        stream: &mut RequestStream,
        decode: impl FnOnce(
            &mut Http3Session,
            &mut RequestStream,
            &mut Http3Output,
            &mut dyn FnMut(&[u8], &[u8]),
        ) -> Result<DecodedSection, http::h3::Http3Fault>,
    ) -> Result<(), StreamFailure> {
        let (mut head, mut raw, policy) = (Head::new(), Vec::new(), Policy::default());
        let mut reader =
            HeadReader::new(&mut self.scratch, &mut head, &mut raw, &policy).version(Version::Http3);
        decode(&mut self.session, stream, &mut self.out, &mut |name, value| reader.field(name, value))?;
        let finished = reader.finish(false);
        assert!(raw.len() <= policy.head_max as usize);
        if let BodyLength::Exactly(length) = head.body() {
            stream.expect(length);
        }
        if finished.is_ok() {
            assert!(
                head.fields().iter().all(|field| !field.name.of(&raw).iter().any(u8::is_ascii_uppercase))
            );
        }
        self.seen.extend_from_slice(&raw);
        Ok(())
    }
}
