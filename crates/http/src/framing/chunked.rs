//! [`ChunkedDecoder`]: decodes a chunked body without copying it (RFC 9112 section 7.1).
//!
//! The decoder is stricter towards clients than nginx 1.31, which accepts a bare LF as line end and skips extensions of any
//! length. Either could let two parties disagree about the start of the next request. Extensions and trailers of upstreams may
//! have any length ([`ChunkedDecoder::without_limits`]). A [`ChunkedDecoder::strict`] decoder also refuses white space after the
//! size, and extensions that violate the grammar.
//!
//! ```text
//!   Size -> SizeDigits -> Extension -> SizeLf -> Data -> DataCr -> DataLf -> Size
//!                                        |
//!                                        +- size 0 -> TrailerStart -> Trailer -> TrailerLf -> TrailerStart
//!                                                          |
//!                                                          +-> EndLf -> Done
//! ```

use crate::bytes::{hex_value, is_token};

/// Maximum length in bytes of a chunk-size line including its extension. Real extensions contain at most a signature (about 90
/// bytes); an endless extension is an attack.
pub const LINE_LEN_MAX: u32 = 512;

/// Maximum length of a trailer section in bytes: as much as two ordinary header sections. It limits the memory of a caller that
/// stores trailers, and the bytes skipped by a caller that drops them.
pub const TRAILER_LEN_MAX: u32 = 8 * 1024;

/// Reason to refuse a chunked body with 400; the connection must be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkedError {
    /// A chunk without a size, or an invalid byte after the size: not CRLF, white space or an extension.
    InvalidSize,
    /// Strict only: white space after the size, or an extension that violates RFC 9112 section 7.1.1.
    InvalidExtension,
    /// A size above `i64::MAX`, or a sum of sizes above it.
    SizeOverflow,
    /// The size line is longer than [`LINE_LEN_MAX`].
    LineTooLong,
    /// A line feed without a carriage return.
    BareLf,
    /// A carriage return without a line feed.
    BareCr,
    /// No CRLF after the data: the chunk is longer than its size.
    MissingLineEnd,
    /// A control byte in an extension or a trailer.
    ControlByte,
    /// Trailers longer than [`TRAILER_LEN_MAX`].
    TrailersTooLong,
}

/// Event of a [`Step`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Body bytes: this range of the input.
    Data {
        /// Index of the first body byte.
        start: usize,
        /// Index after the last body byte of this piece.
        end: usize,
    },
    /// The input is used up; more bytes are needed.
    More,
    /// The body has ended.
    End,
}

/// Result of [`ChunkedDecoder::handle`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Number of input bytes processed; call again with the remaining bytes.
    pub consumed: usize,
    /// The event.
    pub event: Event,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChunkState {
    /// Before the first digit of a size.
    Size,
    /// After the first digit.
    SizeDigits,
    /// White space or an extension after the size.
    Extension,
    /// In an extension whose syntax is checked.
    Strict(Ext),
    /// After the CR of a size line.
    SizeLf,
    /// In the data.
    Data,
    /// Before the CR after the data.
    DataCr,
    /// Before the LF after the data.
    DataLf,
    /// At the start of a trailer line.
    TrailerStart,
    /// In a trailer line.
    Trailer,
    /// After the CR of a trailer line.
    TrailerLf,
    /// After the CR of the empty line.
    EndLf,
    /// The body has ended.
    Done,
}

/// Positions in chunk extensions: `;name`, `;name=token`, `;name="quoted"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ext {
    /// After the semicolon.
    Start,
    /// In the name.
    Name,
    /// After the equals sign.
    Value,
    /// In a token.
    Token,
    /// In a quoted string.
    Quoted,
    /// After a backslash in a quoted string.
    Escaped,
    /// After the closing quote.
    End,
}

/// Decoder of one chunked body; reusable through `Default`.
#[derive(Clone, Copy, Debug)]
pub struct ChunkedDecoder {
    state: ChunkState,
    /// Whether the syntax of extensions is checked.
    strict: bool,
    /// Value of the size digits read so far; later the remaining bytes of the chunk's data.
    remaining: u64,
    /// Number of data bytes returned.
    total: u64,
    /// Number of bytes of the current size line, or of the trailer section.
    line_len: u32,
    /// Whether the length of extensions and trailers is limited.
    is_limited: bool,
}

impl Default for ChunkedDecoder {
    fn default() -> Self {
        Self { state: ChunkState::Size, strict: false, remaining: 0, total: 0, line_len: 0, is_limited: true }
    }
}

impl ChunkedDecoder {
    /// Creates a decoder for a trusted sender: extensions and trailers may have any length. A trailer section longer than
    /// [`TRAILER_LEN_MAX`] is skipped and not returned.
    #[must_use]
    pub fn without_limits() -> Self {
        Self { is_limited: false, ..Self::default() }
    }

    /// Creates a decoder. With `strict`, it refuses size lines that violate the grammar of RFC 9112 section 7.1.
    #[must_use]
    pub fn strict(strict: bool) -> Self {
        Self { strict, ..Self::default() }
    }

    /// Decodes the next piece of the body. Call until it returns [`Event::More`] (then with new bytes) or [`Event::End`]; bytes
    /// after `consumed` belong to the next request.
    ///
    /// # Errors
    /// [`ChunkedError`]; the decoder must not be used again.
    pub fn handle(&mut self, input: &[u8]) -> Result<Step, ChunkedError> {
        self.step(input, None)
    }

    /// Works like [`Self::handle`]; also appends the field lines of the trailer section to `trailers`. The lines include their line
    /// ends, without the final empty line: at most [`TRAILER_LEN_MAX`] bytes plus the line ends. At [`Event::End`] the caller
    /// parses them with [`crate::response::parse::parse_fields`].
    ///
    /// # Errors
    /// As [`Self::handle`].
    pub fn handle_with_trailers(
        &mut self,
        input: &[u8],
        trailers: &mut Vec<u8>,
    ) -> Result<Step, ChunkedError> {
        self.step(input, Some(trailers))
    }

    fn step(&mut self, input: &[u8], mut trailers: Option<&mut Vec<u8>>) -> Result<Step, ChunkedError> {
        for (at, &byte) in input.iter().enumerate() {
            match self.state {
                ChunkState::Done => return Ok(Step { consumed: at, event: Event::End }),
                ChunkState::Data => return Ok(self.data(at, input.len())),
                state => {
                    self.state = self.framing_byte(state, byte)?;
                    let in_trailer = matches!(self.state, ChunkState::Trailer | ChunkState::TrailerLf);
                    if in_trailer || state == ChunkState::TrailerLf {
                        let is_kept = self.line_len <= TRAILER_LEN_MAX;
                        trailers.iter_mut().for_each(|trailers| match is_kept {
                            true => trailers.push(byte),
                            // An incomplete trailer section would differ from the one sent.
                            false => trailers.clear(),
                        });
                    }
                }
            }
        }
        let event = if self.state == ChunkState::Done { Event::End } else { Event::More };
        Ok(Step { consumed: input.len(), event })
    }

    /// Returns the number of body bytes returned so far.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Returns the number of body bytes returned so far plus the announced remainder of the current chunk. The caller can thus
    /// refuse a chunk that exceeds a limit before its data arrives.
    #[must_use]
    pub fn announced(&self) -> u64 {
        if self.state == ChunkState::Data { self.total.saturating_add(self.remaining) } else { self.total }
    }

    /// Whether the body has ended.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.state == ChunkState::Done
    }

    /// Returns the data of the current chunk in `at..input_len`.
    fn data(&mut self, at: usize, input_len: usize) -> Step {
        let available = (input_len - at) as u64;
        let taken = available.min(self.remaining);
        self.remaining -= taken;
        self.total += taken;
        if self.remaining == 0 {
            self.state = ChunkState::DataCr;
        }
        let end = at + taken as usize;
        Step { consumed: end, event: Event::Data { start: at, end } }
    }

    /// Returns the state after a byte that is not data.
    fn framing_byte(&mut self, state: ChunkState, byte: u8) -> Result<ChunkState, ChunkedError> {
        match state {
            ChunkState::Size => {
                self.line_len = 0;
                self.remaining = 0;
                self.digit(byte)
            }
            ChunkState::SizeDigits if byte.is_ascii_hexdigit() => self.digit(byte),
            ChunkState::SizeDigits if self.strict && byte != b'\n' => self.behind_extension(byte),
            ChunkState::SizeDigits => match byte {
                b'\r' | b'\n' | b';' | b' ' | b'\t' => self.extension(byte),
                _ => Err(ChunkedError::InvalidSize),
            },
            ChunkState::Extension => self.extension(byte),
            ChunkState::Strict(place) => self.strict_extension(place, byte),
            ChunkState::SizeLf => {
                expect_lf(byte)?;
                self.line_len = 0;
                Ok(if self.remaining == 0 { ChunkState::TrailerStart } else { ChunkState::Data })
            }
            ChunkState::DataCr => match byte {
                b'\r' => Ok(ChunkState::DataLf),
                b'\n' => Err(ChunkedError::BareLf),
                _ => Err(ChunkedError::MissingLineEnd),
            },
            ChunkState::DataLf => expect_lf(byte).map(|()| ChunkState::Size),
            ChunkState::TrailerStart if byte == b'\r' => Ok(ChunkState::EndLf),
            ChunkState::TrailerStart | ChunkState::Trailer => self.trailer(byte),
            ChunkState::TrailerLf => expect_lf(byte).map(|()| ChunkState::TrailerStart),
            ChunkState::EndLf => expect_lf(byte).map(|()| ChunkState::Done),
            ChunkState::Data | ChunkState::Done => unreachable!("handled by the caller"),
        }
    }

    fn digit(&mut self, byte: u8) -> Result<ChunkState, ChunkedError> {
        let digit = hex_value(byte).ok_or(ChunkedError::InvalidSize)?;
        self.count_line_byte()?;
        if self.remaining > i64::MAX as u64 >> 4 {
            return Err(ChunkedError::SizeOverflow);
        }
        self.remaining = self.remaining << 4 | u64::from(digit);
        if self.remaining > i64::MAX as u64 - self.total {
            return Err(ChunkedError::SizeOverflow);
        }
        Ok(ChunkState::SizeDigits)
    }

    /// Skips an extension; quoted strings need no special handling because they cannot contain CR and LF.
    fn extension(&mut self, byte: u8) -> Result<ChunkState, ChunkedError> {
        self.count_line_byte()?;
        match byte {
            b'\r' => Ok(ChunkState::SizeLf),
            b'\n' => Err(ChunkedError::BareLf),
            _ if is_control(byte) => Err(ChunkedError::ControlByte),
            _ => Ok(ChunkState::Extension),
        }
    }

    /// Checks the grammar of extensions; refuses the white space around `=` and `;` that the RFC calls bad (BWS).
    fn strict_extension(&mut self, place: Ext, byte: u8) -> Result<ChunkState, ChunkedError> {
        let next = match (place, byte) {
            (Ext::Start | Ext::Name, _) if is_token(byte) => Ext::Name,
            (Ext::Name, b'=') => Ext::Value,
            (Ext::Value, b'"') => Ext::Quoted,
            (Ext::Value | Ext::Token, _) if is_token(byte) => Ext::Token,
            (Ext::Quoted, b'"') => Ext::End,
            (Ext::Quoted, b'\\') => Ext::Escaped,
            (Ext::Quoted | Ext::Escaped, _) if !is_control(byte) => Ext::Quoted,
            (Ext::Name | Ext::Token | Ext::End, _) => return self.behind_extension(byte),
            _ => return Err(ChunkedError::InvalidExtension),
        };
        self.count_line_byte()?;
        Ok(ChunkState::Strict(next))
    }

    /// Handles a byte after the size or a complete extension: another extension or the end of the line must follow.
    fn behind_extension(&mut self, byte: u8) -> Result<ChunkState, ChunkedError> {
        match byte {
            b'\r' | b'\n' => self.extension(byte),
            b';' => self.count_line_byte().map(|()| ChunkState::Strict(Ext::Start)),
            _ => Err(ChunkedError::InvalidExtension),
        }
    }

    fn trailer(&mut self, byte: u8) -> Result<ChunkState, ChunkedError> {
        self.line_len = self.line_len.saturating_add(1);
        match byte {
            _ if self.is_limited && self.line_len > TRAILER_LEN_MAX => Err(ChunkedError::TrailersTooLong),
            b'\r' => Ok(ChunkState::TrailerLf),
            b'\n' => Err(ChunkedError::BareLf),
            _ if is_control(byte) => Err(ChunkedError::ControlByte),
            _ => Ok(ChunkState::Trailer),
        }
    }

    fn count_line_byte(&mut self) -> Result<(), ChunkedError> {
        self.line_len = self.line_len.saturating_add(1);
        if self.is_limited && self.line_len > LINE_LEN_MAX { Err(ChunkedError::LineTooLong) } else { Ok(()) }
    }
}

fn expect_lf(byte: u8) -> Result<(), ChunkedError> {
    if byte == b'\n' { Ok(()) } else { Err(ChunkedError::BareCr) }
}

fn is_control(byte: u8) -> bool {
    (byte < 0x20 && byte != b'\t') || byte == 0x7f
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Decodes `input` in the given pieces. Returns the body, the number of bytes used, and whether the end was found.
    fn decode<'a>(
        pieces: impl IntoIterator<Item = &'a [u8]>,
    ) -> Result<(Vec<u8>, usize, bool), ChunkedError> {
        let mut decoder = ChunkedDecoder::default();
        let (mut body, mut used) = (Vec::new(), 0);
        for piece in pieces {
            let mut rest = piece;
            loop {
                let step = decoder.handle(rest)?;
                if let Event::Data { start, end } = step.event {
                    body.extend_from_slice(&rest[start..end]);
                    assert_eq!(decoder.total(), body.len() as u64);
                }
                used += step.consumed;
                rest = &rest[step.consumed..];
                match step.event {
                    Event::Data { .. } => {}
                    Event::More => break,
                    Event::End => return Ok((body, used, true)),
                }
            }
        }
        Ok((body, used, false))
    }

    const GOOD: &[(&str, &str)] = &[
        ("0\r\n\r\n", ""),
        ("5\r\nhello\r\n0\r\n\r\n", "hello"),
        ("5\r\nhello\r\n6;a=b;c=\"d\"\r\n world\r\n000\r\n\r\n", "hello world"),
        ("A\r\n0123456789\r\n0\r\nX: 1\r\nY: 2\r\n\r\n", "0123456789"),
        ("a \t\r\n0123456789\r\n0 ;x\r\n\r\n", "0123456789"),
        ("00000000000000000000000000002\r\n\r\n\r\n0\r\n\r\n", "\r\n"),
    ];

    #[test]
    fn bodies_decode_the_same_at_every_split_point() {
        for (input, body) in GOOD {
            let with_next = format!("{input}GET /next");
            let bytes = with_next.as_bytes();
            for split in 0..=bytes.len() {
                let got = decode([&bytes[..split], &bytes[split..]]);
                assert_eq!(got, Ok((body.as_bytes().to_vec(), input.len(), true)), "{input:?} at {split}");
            }
            let got = decode(bytes.chunks(1));
            assert_eq!(got, Ok((body.as_bytes().to_vec(), input.len(), true)), "{input:?} by bytes");
        }
    }

    const BAD: &[(&str, ChunkedError)] = &[
        ("\r\n", ChunkedError::InvalidSize),
        ("g\r\n", ChunkedError::InvalidSize),
        ("-1\r\n", ChunkedError::InvalidSize),
        ("+1\r\n", ChunkedError::InvalidSize),
        (" 1\r\n", ChunkedError::InvalidSize),
        ("0x1\r\n", ChunkedError::InvalidSize),
        ("1_0\r\n", ChunkedError::InvalidSize),
        (";ext\r\n", ChunkedError::InvalidSize),
        ("5\nhello\r\n", ChunkedError::BareLf),
        ("5;a\nhello\r\n", ChunkedError::BareLf),
        ("5\r\nhello\n0\r\n\r\n", ChunkedError::BareLf),
        ("0\r\n\n", ChunkedError::BareLf),
        ("0\r\nX: 1\n\r\n", ChunkedError::BareLf),
        ("5\rhello", ChunkedError::BareCr),
        ("5;a\rb\r\n", ChunkedError::BareCr),
        ("5\r\r\n", ChunkedError::BareCr),
        ("5\r\nhello\rx", ChunkedError::BareCr),
        ("0\r\n\rx", ChunkedError::BareCr),
        ("0\r\nX: a\rb\r\n\r\n", ChunkedError::BareCr),
        ("5\r\nhello0\r\n\r\n", ChunkedError::MissingLineEnd),
        ("5;\0\r\n", ChunkedError::ControlByte),
        ("0\r\nX: \x01\r\n\r\n", ChunkedError::ControlByte),
        ("8000000000000000\r\n", ChunkedError::SizeOverflow),
        ("10000000000000000\r\n", ChunkedError::SizeOverflow),
        ("1\r\na\r\n7fffffffffffffff\r\n", ChunkedError::SizeOverflow),
    ];

    #[test]
    fn bad_chunked_framing_is_refused_at_every_split_point() {
        for (input, error) in BAD {
            let bytes = input.as_bytes();
            for split in 0..=bytes.len() {
                assert_eq!(decode([&bytes[..split], &bytes[split..]]), Err(*error), "{input:?} at {split}");
            }
        }
    }

    #[test]
    fn a_strict_decoder_needs_valid_extensions_without_blanks() {
        let decode = |line: &str, strict: bool| {
            let text = format!("{line}\r\nx\r\n0\r\n\r\n");
            let mut decoder = ChunkedDecoder::strict(strict);
            // Byte by byte, so that pieces end in every state.
            text.as_bytes().chunks(1).map(|piece| decoder.handle(piece)).find_map(Result::err)
        };
        for line in ["1", "01", "1;a", "1;a=b", "1;a=\"b;\\\" \t\"", "1;a=\"\"", "1;a;b=c;d=\"e\";f"] {
            assert_eq!((decode(line, true), decode(line, false)), (None, None), "{line:?}");
        }
        for line in [
            "1 ",
            "1\t",
            "1;",
            "1;;a",
            "1;a;",
            "1 ;a",
            "1; a",
            "1;a ",
            "1;a=",
            "1;a=b c",
            "1;=b",
            "1;a=\"b\"c",
            "1;a=\"b",
            "1;a@",
        ] {
            assert_eq!(decode(line, true), Some(ChunkedError::InvalidExtension), "{line:?}");
            assert_eq!(decode(line, false), None, "{line:?}");
        }
        assert_eq!(decode("1g", true), Some(ChunkedError::InvalidExtension));
    }

    #[test]
    fn long_extensions_and_trailers_are_refused() {
        let long = "x".repeat(LINE_LEN_MAX as usize);
        assert_eq!(decode([format!("5;{long}").as_bytes()]), Err(ChunkedError::LineTooLong));
        assert_eq!(decode(["0".repeat(600).as_bytes()]), Err(ChunkedError::LineTooLong));
        let line = format!("X: {long}\r\n");
        let trailers = line.repeat(TRAILER_LEN_MAX as usize / line.len() + 1);
        assert_eq!(decode([format!("0\r\n{trailers}\r\n").as_bytes()]), Err(ChunkedError::TrailersTooLong));
    }

    #[test]
    fn long_extensions_and_trailers_are_skipped_without_limits() {
        let (long, sum) = ("x".repeat(200_000), "X-Sum: 1\r\n".repeat(5_000));
        for (end, section) in
            [("0;LONG\r\nX: 1\r\n\r\n", "X: 1\r\n"), ("0\r\nX: LONG\r\n\r\n", ""), ("0\r\nSUM\r\n", "")]
        {
            let input = format!("2;{long}\r\nok\r\n{}", end.replace("LONG", &long).replace("SUM", &sum));
            let mut decoder = ChunkedDecoder::without_limits();
            let (mut body, mut trailers) = (Vec::new(), Vec::new());
            for piece in input.as_bytes().chunks(4096) {
                let mut rest = piece;
                while !rest.is_empty() {
                    let step = decoder.handle_with_trailers(rest, &mut trailers).expect("valid");
                    if let Event::Data { start, end } = step.event {
                        body.extend_from_slice(&rest[start..end]);
                    }
                    rest = &rest[step.consumed..];
                }
                assert!(trailers.len() <= 2 * TRAILER_LEN_MAX as usize);
            }
            assert!(decoder.is_done());
            assert_eq!((body.as_slice(), trailers.as_slice()), (&b"ok"[..], section.as_bytes()));
        }
    }

    #[test]
    fn a_chunk_is_announced_before_it_arrives() {
        let mut decoder = ChunkedDecoder::default();
        let step = decoder.handle(b"1\r\na\r\n").expect("valid");
        assert_eq!(step.event, Event::Data { start: 3, end: 4 });
        assert_eq!(decoder.handle(b"\r\nffff\r\n").expect("valid").event, Event::More);
        assert_eq!((decoder.total(), decoder.announced()), (1, 0x10000));
        assert!(!decoder.is_done());
    }

    /// Decodes `input` in pieces of `len` bytes. Returns the body and the trailer section.
    fn decode_with_trailers(input: &[u8], len: usize) -> Result<(Vec<u8>, Vec<u8>), ChunkedError> {
        let mut decoder = ChunkedDecoder::default();
        let (mut body, mut trailers) = (Vec::new(), Vec::new());
        for piece in input.chunks(len) {
            let mut rest = piece;
            while !rest.is_empty() {
                let step = decoder.handle_with_trailers(rest, &mut trailers)?;
                match step.event {
                    Event::Data { start, end } => body.extend_from_slice(&rest[start..end]),
                    Event::More => break,
                    Event::End => return Ok((body, trailers)),
                }
                rest = &rest[step.consumed..];
            }
        }
        panic!("the body has no end: {body:?}");
    }

    #[test]
    fn trailers_are_stored_on_request() {
        for (input, section) in [
            ("0\r\n\r\n", ""),
            ("0\r\nX: 1\r\n\r\n", "X: 1\r\n"),
            (
                "3\r\nabc\r\n0;x\r\nX: 1\r\nDigest:  a=b \r\n\r\nHTTP/1.1 200 OK\r\n",
                "X: 1\r\nDigest:  a=b \r\n",
            ),
        ] {
            for len in 1..=input.len() {
                let (_, trailers) = decode_with_trailers(input.as_bytes(), len).expect(input);
                assert_eq!(trailers, section.as_bytes(), "{input:?} by {len}");
            }
        }
        let (body, trailers) =
            decode_with_trailers(b"3\r\nabc\r\n0\r\nX: 1\r\nX-Two:2\r\n\r\n", 4).expect("valid");
        let mut fields = Vec::new();
        crate::response::parse::parse_fields(&trailers, 10, &mut fields).expect("valid");
        let values: Vec<&[u8]> = fields.iter().map(|field| field.value.of(&trailers)).collect();
        assert_eq!((body.as_slice(), values), (&b"abc"[..], vec![&b"1"[..], b"2"]));
    }

    #[test]
    fn stored_trailers_are_bounded() {
        let mut trailers = Vec::new();
        let mut decoder = ChunkedDecoder::default();
        let input = format!("0\r\n{}", "X: 1\r\n".repeat(4 * TRAILER_LEN_MAX as usize));
        let end = decoder.handle_with_trailers(input.as_bytes(), &mut trailers);
        assert_eq!(end, Err(ChunkedError::TrailersTooLong));
        assert!(trailers.len() <= 2 * TRAILER_LEN_MAX as usize, "{}", trailers.len());
    }

    proptest! {
        #[test]
        fn split_points_do_not_matter(input in "[0-9a;\r\n x]{0,40}", cuts in proptest::collection::vec(0usize..40, 0..4)) {
            let bytes = input.as_bytes();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
            cuts.push(0);
            cuts.push(bytes.len());
            cuts.sort_unstable();
            let pieces: Vec<&[u8]> = cuts.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect();
            prop_assert_eq!(decode(pieces), decode([bytes]));
        }

        #[test]
        fn no_input_panics(input in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode([input.as_slice()]);
        }

        #[test]
        fn encoded_bodies_are_decoded(pieces in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 1..50), 0..6)) {
            let mut coded = Vec::new();
            for piece in &pieces {
                let mut header = [0; super::super::CHUNK_HEADER_LEN_MAX];
                coded.extend_from_slice(super::super::chunk_header(piece.len() as u64, &mut header));
                coded.extend_from_slice(piece);
                coded.extend_from_slice(super::super::CHUNK_END);
            }
            coded.extend_from_slice(super::super::LAST_CHUNK);
            prop_assert_eq!(decode([coded.as_slice()]), Ok((pieces.concat(), coded.len(), true)));
        }
    }
}
