//! Finds commands in text: `<!--#name parameter="value" ... -->`, in pieces of any size.
//!
//! ```text
//!   Text --> Begin(1..4) --#--> BeforeName --> Name --> BeforeParameter --> Parameter --> BeforeEquals
//!    ^                                          |        ^  |                                 |
//!    |                                          |        |  |    AfterValue <-- Value <-- BeforeValue
//!    +--------- '>' -- End(2) <-- End(1) <--'-'-+--------|--+--------+  |         |
//!    |                   |          |                    +--------------+      Escaped
//!    +--------- '>' -- Skip(2) <-- Skip(1) <-- Skip(0) <-- an unexpected byte
//! ```
//!
//! The parser does not interpret commands.

use std::ops::Range;

use telemetry::ForLog;

/// The beginning of a command, before the `#`.
const BEGIN: &[u8] = b"<!--";

/// Maximum length in bytes of a command's or a parameter's name, as in nginx.
const NAME_MAX: usize = 32;

/// Maximum number of parameters of a command, as in nginx.
pub(super) const PARAMETERS_MAX: usize = 16;

/// Parses text. [`Parser::take_command`] returns a command after [`Element::Command`].
pub(super) struct Parser {
    state: State,
    command: Command,
    /// Maximum length of a value in bytes (`ssi_value_length`).
    value_max: usize,
}

/// A command with its parameters.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Command {
    pub(super) name: Vec<u8>,
    /// The parameters, up to one above the limit, so that an excess can be detected.
    pub(super) parameters: Vec<(Vec<u8>, Vec<u8>)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// In text.
    Text,
    /// After N bytes of [`BEGIN`].
    Begin(usize),
    /// White space before the name.
    BeforeName,
    Name,
    /// White space before a parameter or the end.
    BeforeParameter,
    Parameter,
    /// White space before `=`.
    BeforeEquals,
    /// White space before the quote.
    BeforeValue,
    /// In a value, up to this quote.
    Value(u8),
    /// After a backslash in a value with this quote.
    Escaped(u8),
    /// Right after the closing quote.
    AfterValue,
    /// After N bytes of `--` at the end of a command.
    End(usize),
    /// In an invalid command, after N bytes of `--`.
    Skip(usize),
}

/// The next element of the text.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Element {
    /// Nothing; all input was consumed.
    Nothing,
    /// Text, a range of the input.
    Text(Range<usize>),
    /// Text that was held back because it could have been the beginning of a command.
    Held(&'static [u8]),
    /// A complete command.
    Command,
    /// An error in a command, for the log.
    Fault(String),
    /// The end of an invalid command.
    Broken,
}

impl Parser {
    /// Creates a parser that is outside of a command. A value of a parameter has at most `value_max` bytes.
    pub(super) fn new(value_max: usize) -> Parser {
        Parser { state: State::Text, command: Command::default(), value_max }
    }

    /// Returns the last command found.
    pub(super) fn take_command(&mut self) -> Command {
        std::mem::take(&mut self.command)
    }

    /// Finds the next element; returns how many bytes of the input were consumed.
    pub(super) fn next(&mut self, input: &[u8]) -> (usize, Element) {
        let mut at = 0;
        while let Some(&byte) = input.get(at) {
            match self.state {
                State::Text => {
                    let end = memchr::memchr(b'<', &input[at..]).map(|index| at + index);
                    if let Some(begin) = end {
                        self.state = State::Begin(1);
                        if begin == at {
                            at += 1;
                            continue;
                        }
                    }
                    // The first byte of a possible command is consumed with the text, and held back.
                    let text = at..end.unwrap_or(input.len());
                    return (end.map_or(input.len(), |begin| begin + 1), Element::Text(text));
                }
                State::Begin(seen) => {
                    if byte == *BEGIN.get(seen).unwrap_or(&b'#') {
                        let whole = seen == BEGIN.len();
                        self.state = if whole { State::BeforeName } else { State::Begin(seen + 1) };
                        at += 1;
                        continue;
                    }
                    // A command may start at this byte; any other byte is text and parsed again.
                    let again = byte == b'<';
                    self.state = if again { State::Begin(1) } else { State::Text };
                    debug_assert!(seen <= BEGIN.len(), "only the start of a command is held back");
                    return (at + usize::from(again), Element::Held(&BEGIN[..seen]));
                }
                _ => {
                    at += 1;
                    match self.take(byte) {
                        Element::Nothing => {}
                        found => return (at, found),
                    }
                }
            }
        }
        (at, Element::Nothing)
    }

    /// Ends the text; returns the bytes held back. An incomplete command is dropped, as in nginx.
    pub(super) fn finish(&mut self) -> &'static [u8] {
        match std::mem::replace(&mut self.state, State::Text) {
            State::Begin(seen) => &BEGIN[..seen],
            _ => b"",
        }
    }

    /// Parses a byte of a command.
    fn take(&mut self, byte: u8) -> Element {
        let is_space = matches!(byte, b' ' | b'\r' | b'\n' | b'\t');
        let before = self.state;
        let last = self.command.parameters.last();
        let (name_len, value_len) = last.map_or((0, 0), |(name, value)| (name.len(), value.len()));
        let state = match before {
            state @ (State::BeforeName
            | State::BeforeParameter
            | State::BeforeEquals
            | State::BeforeValue)
                if is_space =>
            {
                state
            }
            State::BeforeName => {
                self.command = Command { name: vec![byte], parameters: Vec::new() };
                State::Name
            }
            State::Name | State::AfterValue if is_space => State::BeforeParameter,
            State::Name | State::BeforeParameter | State::AfterValue if byte == b'-' => State::End(1),
            State::Name if self.command.name.len() < NAME_MAX => {
                self.command.name.push(byte);
                State::Name
            }
            State::BeforeParameter => {
                // At most one excess parameter is stored.
                self.command.parameters.truncate(PARAMETERS_MAX);
                self.command.parameters.push((vec![byte], Vec::new()));
                State::Parameter
            }
            // White space is allowed on both sides of `=`.
            State::Parameter if is_space => State::BeforeEquals,
            State::Parameter | State::BeforeEquals if byte == b'=' => State::BeforeValue,
            State::Parameter if byte != b'-' && name_len < NAME_MAX => {
                self.parameter().0.push(byte);
                State::Parameter
            }
            State::BeforeValue if matches!(byte, b'"' | b'\'') => State::Value(byte),
            State::Value(quote) if byte == quote => State::AfterValue,
            State::Value(quote) | State::Escaped(quote) if value_len < self.value_max => {
                self.parameter().1.push(byte);
                // The backslash is retained, because its meaning depends on the command.
                let escapes = byte == b'\\' && before == State::Value(quote);
                if escapes { State::Escaped(quote) } else { State::Value(quote) }
            }
            // Both dashes and the bracket must be adjacent.
            State::End(1) if byte == b'-' => State::End(2),
            State::End(2) if byte == b'>' => {
                self.state = State::Text;
                return Element::Command;
            }
            State::Skip(2) if byte == b'>' => {
                self.state = State::Text;
                return Element::Broken;
            }
            State::Skip(seen) => {
                self.state = State::Skip(if byte == b'-' && seen < 2 { seen + 1 } else { 0 });
                return Element::Nothing;
            }
            _ => return self.fault(byte),
        };
        self.state = state;
        Element::Nothing
    }

    /// Returns the parameter being parsed.
    fn parameter(&mut self) -> &mut (Vec<u8>, Vec<u8>) {
        self.command.parameters.last_mut().expect("its first byte made it")
    }

    /// Skips the command and reports the error in nginx's words.
    fn fault(&mut self, byte: u8) -> Element {
        let bytes = [byte];
        let (name, shown) = (self.command.name.for_log(), bytes.for_log());
        let none = Default::default();
        let (parameter, value) = self.command.parameters.last().unwrap_or(&none);
        let (parameter, value) = (parameter.for_log(), value.for_log());
        let text = match self.state {
            State::Name => format!("the \"{name}{shown}...\" SSI command is too long"),
            State::Parameter if byte == b'-' => {
                format!("invalid \"{parameter}-\" parameter in \"{name}\" SSI command")
            }
            State::Parameter => {
                format!("too long \"{parameter}{shown}...\" parameter in \"{name}\" SSI command")
            }
            State::BeforeEquals => {
                format!(
                    "unexpected \"{shown}\" symbol after \"{parameter}\" parameter in \"{name}\" SSI command"
                )
            }
            State::BeforeValue => format!(
                "unexpected \"{shown}\" symbol before value of \"{parameter}\" parameter in \"{name}\" SSI command"
            ),
            State::Value(_) | State::Escaped(_) => format!(
                "too long \"{value}{shown}...\" value of \"{parameter}\" parameter in \"{name}\" SSI command"
            ),
            State::AfterValue => format!(
                "unexpected \"{shown}\" symbol after \"{value}\" value of \"{parameter}\" parameter \
                 in \"{name}\" SSI command"
            ),
            _ => format!("unexpected \"{shown}\" symbol in \"{name}\" SSI command"),
        };
        // An unexpected dash may be the first one of the end, as in nginx.
        let may_end = matches!(self.state, State::Parameter | State::BeforeEquals | State::BeforeValue);
        self.state = State::Skip(usize::from(may_end && byte == b'-'));
        Element::Fault(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the elements found as text: commands in brackets, errors with an exclamation mark.
    fn parse<'a>(pieces: impl IntoIterator<Item = &'a [u8]>, value_max: usize) -> String {
        let (mut parser, mut out) = (Parser::new(value_max), Vec::new());
        for piece in pieces {
            let mut rest = piece;
            while !rest.is_empty() {
                let (used, found) = parser.next(rest);
                match found {
                    Element::Nothing => assert_eq!(used, rest.len()),
                    Element::Text(range) => out.extend_from_slice(&rest[range]),
                    Element::Held(text) => out.extend_from_slice(text),
                    Element::Fault(text) => out.extend_from_slice(format!("!{text}!").as_bytes()),
                    Element::Broken => out.extend_from_slice(b"[broken]"),
                    Element::Command => {
                        let command = parser.take_command();
                        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                        let parameters: String = (command.parameters.iter())
                            .map(|(name, value)| format!(" {}={}", text(name), text(value)))
                            .collect();
                        out.extend_from_slice(format!("[{}{parameters}]", text(&command.name)).as_bytes());
                    }
                }
                rest = &rest[used..];
            }
        }
        out.extend_from_slice(parser.finish());
        String::from_utf8_lossy(&out).into_owned()
    }

    const CASES: &[(&str, &str)] = &[
        ("text", "text"),
        ("", ""),
        ("a<b<!c<!-d<!--e", "a<b<!c<!-d<!--e"),
        ("<<!<!-<!--<!--#a -->", "<<!<!-<!--[a]"),
        ("<!-", "<!-"),
        ("x<!--#echo var=\"a\" -->y", "x[echo var=a]y"),
        ("<!--#\r\n echo\tvar = 'a\"b' default=\"c'd\"-->", "[echo var=a\"b default=c'd]"),
        ("<!--#endif-->", "[endif]"),
        ("<!--#a b=\"\\\"c\\\\\" -->", "[a b=\\\"c\\\\]"),
        ("<!--#a b=\"-->\" -->", "[a b=-->]"),
        ("<!--#a b=\"c\"", ""),
        ("<!--#a b -->z", "!unexpected \"-\" symbol after \"b\" parameter in \"a\" SSI command![broken]z"),
        ("<!--#a b-->z", "!invalid \"b-\" parameter in \"a\" SSI command![broken]z"),
        (
            "<!--#a b=c -->",
            "!unexpected \"c\" symbol before value of \"b\" parameter in \"a\" SSI command![broken]",
        ),
        (
            "<!--#a b=\"c\"d -->",
            "!unexpected \"d\" symbol after \"c\" value of \"b\" parameter in \"a\" SSI command![broken]",
        ),
        ("<!--#a -x-->", "!unexpected \"x\" symbol in \"a\" SSI command![broken]"),
        ("<!--#a --x -->", "!unexpected \"x\" symbol in \"a\" SSI command![broken]"),
        ("<!--#a b=\"0123456789\" -->", "[a b=0123456789]"),
        (
            "<!--#a b=\"0123456789a\" -->",
            "!too long \"0123456789a...\" value of \"b\" parameter in \"a\" SSI command![broken]",
        ),
        (
            "<!--#a b=\"012345678\\\"\" -->",
            "!too long \"012345678\\\"...\" value of \"b\" parameter in \"a\" SSI command![broken]",
        ),
    ];

    #[test]
    fn commands_are_found_at_every_split_point() {
        for (input, expected) in CASES {
            let bytes = input.as_bytes();
            for split in 0..=bytes.len() {
                assert_eq!(parse([&bytes[..split], &bytes[split..]], 10), *expected, "{input} at {split}");
            }
            assert_eq!(parse(bytes.chunks(1), 10), *expected, "{input} by bytes");
        }
    }

    #[test]
    fn names_and_parameters_have_limits() {
        let name = "n".repeat(NAME_MAX);
        assert_eq!(
            parse([format!("<!--#{name} {name}='x'-->").as_bytes()], 10),
            format!("[{name} {name}=x]")
        );
        let long = parse([format!("<!--#{name}x -->").as_bytes()], 10);
        assert_eq!(long, format!("!the \"{name}x...\" SSI command is too long![broken]"));
        let long = parse([format!("<!--#a {name}x='' -->").as_bytes()], 10);
        assert_eq!(long, format!("!too long \"{name}x...\" parameter in \"a\" SSI command![broken]"));
        let mut parser = Parser::new(10);
        let many = format!("<!--#a {} -->", "b='' ".repeat(1000));
        assert_eq!(parser.next(many.as_bytes()), (many.len(), Element::Command));
        assert_eq!(parser.take_command().parameters.len(), PARAMETERS_MAX + 1);
    }

    #[test]
    fn no_input_panics_and_split_points_do_not_matter() {
        // A simple generator suffices: the characters of the grammar must only occur in all orders.
        let mut seed = 1u64;
        let mut next = move |below: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) as usize % below
        };
        const PARTS: &[&[u8]] = &[
            b"<!--#", b"-->", b"<", b"!", b"-", b"#", b"=", b"\"", b"'", b"\\", b" ", b"if", b"echo",
            b"expr", b"a", b"\0", b"\xff", b"<!--", b"--", b">",
        ];
        for _ in 0..3000 {
            let count = next(40);
            let input: Vec<u8> = (0..count).flat_map(|_| PARTS[next(PARTS.len())].to_vec()).collect();
            let whole = parse([&input[..]], 6);
            let split = next(input.len() + 1);
            assert_eq!(parse([&input[..split], &input[split..]], 6), whole, "{}", input.escape_ascii());
            assert_eq!(parse(input.chunks(1), 6), whole, "{}", input.escape_ascii());
        }
    }
}
