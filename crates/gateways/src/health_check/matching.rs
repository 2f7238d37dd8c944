//! `match`: the tests of a response in `http`, and of received bytes in `stream`.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use conf::{Error, Statement};

use site::config::Cx;
use site::pattern::Pattern;
use site::template::Template;

/// The `match` blocks by name.
#[derive(Debug, Default)]
pub(super) struct Matches(pub(super) BTreeMap<String, Arc<Match>>);

/// One `match` block.
#[derive(Debug)]
pub(super) enum Match {
    /// That of a response.
    Response(ResponseTests),
    /// That of received bytes.
    Text(TextTest),
}

/// The tests of a response; all must pass.
#[derive(Debug, Default)]
pub(super) struct ResponseTests {
    /// Ranges of statuses, and whether the status must be outside of them.
    status: Option<(bool, Vec<(u16, u16)>)>,
    fields: Vec<(String, FieldTest)>,
    body: Vec<TextPattern>,
    /// Variables that must be neither empty nor `0`, with their names.
    required: Vec<(String, Template)>,
}

/// The test of a header field.
#[derive(Debug)]
enum FieldTest {
    IsPresent(bool),
    Equals { is_equal: bool, value: String },
    Matches(TextPattern),
}

/// A regular expression that a text must match, or must not match.
#[derive(Debug)]
struct TextPattern {
    is_match: bool,
    pattern: Pattern,
}

impl TextPattern {
    fn holds(&self, text: &[u8]) -> bool {
        self.pattern.is_match(text) == self.is_match
    }
}

/// What a check sends, and the test of what it receives.
#[derive(Debug, Default)]
pub(super) struct TextTest {
    pub(super) send: Vec<u8>,
    pub(super) expect: Option<Expected>,
}

/// Text that the received bytes must contain.
#[derive(Debug)]
pub(super) enum Expected {
    Bytes(Vec<u8>),
    Pattern(Pattern),
}

impl Expected {
    /// Whether these bytes contain the text.
    pub(super) fn is_in(&self, received: &[u8]) -> bool {
        match self {
            Expected::Bytes(bytes) => received.windows(bytes.len()).any(|window| window == bytes),
            Expected::Pattern(pattern) => pattern.is_match(received),
        }
    }
}

/// Adds a `match` block whose rows `read` parses.
pub(super) fn add(
    cx: &mut Cx<'_>,
    read: fn(&mut Cx<'_>, &Statement) -> Result<Match, Error>,
) -> Result<(), Error> {
    let (name, statement) = (cx.arg(0), cx.statement);
    let tests = read(cx, statement)?;
    match cx.http.make_mut::<Matches>().0.entry(name.to_owned()) {
        Entry::Vacant(entry) => _ = entry.insert(Arc::new(tests)),
        Entry::Occupied(_) => return Err(cx.error(format_args!("duplicate match \"{name}\""))),
    }
    Ok(())
}

/// Parses the rows of a block of `http`.
pub(super) fn response(cx: &mut Cx<'_>, block: &Statement) -> Result<Match, Error> {
    let mut tests = ResponseTests::default();
    for row in block.rows() {
        let row = row?;
        let mut cx = cx.at(row);
        let args: Vec<&str> = row.texts().collect();
        match (row.name.text.as_str(), args.as_slice()) {
            ("status", ["!", ranges @ ..]) if !ranges.is_empty() => {
                tests.status = Some((true, statuses(ranges, &cx)?))
            }
            ("status", ranges) if !ranges.is_empty() => tests.status = Some((false, statuses(ranges, &cx)?)),
            ("header", ["!", name]) => tests.fields.push(((*name).to_owned(), FieldTest::IsPresent(false))),
            ("header", [name]) => tests.fields.push(((*name).to_owned(), FieldTest::IsPresent(true))),
            ("header", [name, operator @ ("=" | "!="), value]) => {
                let test = FieldTest::Equals { is_equal: *operator == "=", value: (*value).to_owned() };
                tests.fields.push(((*name).to_owned(), test));
            }
            ("header", [name, operator, value]) => {
                let test = FieldTest::Matches(pattern(operator, value, &mut cx)?);
                tests.fields.push(((*name).to_owned(), test));
            }
            ("body", [operator, value]) => tests.body.push(pattern(operator, value, &mut cx)?),
            ("require", names) if !names.is_empty() => {
                for name in names {
                    let template = match name.starts_with('$') {
                        true => cx.template(name)?,
                        false => return Err(cx.error(format_args!("invalid variable name \"{name}\""))),
                    };
                    tests.required.push(((*name).to_owned(), template));
                }
            }
            _ => return Err(unknown(row, &cx, "\"status\", \"header\", \"body\" and \"require\"")),
        }
    }
    Ok(Match::Response(tests))
}

/// Parses the rows of a block of `stream`.
pub(super) fn text(cx: &mut Cx<'_>, block: &Statement) -> Result<Match, Error> {
    let mut test = TextTest::default();
    for row in block.rows() {
        let row = row?;
        let mut cx = cx.at(row);
        let args: Vec<&str> = row.texts().collect();
        let bytes = |text: &str, cx: &Cx<'_>| {
            unescaped(text).filter(|bytes| !bytes.is_empty()).ok_or_else(|| {
                let error = cx.error(format_args!("invalid text \"{text}\""));
                error.advise("a byte is \"\\x\" and two hexadecimal digits")
            })
        };
        match (row.name.text.as_str(), args.as_slice()) {
            ("send", [text]) => test.send = bytes(text, &cx)?,
            ("expect", ["~", value]) => test.expect = Some(Expected::Pattern(cx.pattern(value, false)?)),
            ("expect", ["~*", value]) => test.expect = Some(Expected::Pattern(cx.pattern(value, true)?)),
            ("expect", [text]) => test.expect = Some(Expected::Bytes(bytes(text, &cx)?)),
            _ => return Err(unknown(row, &cx, "\"send\" and \"expect\"")),
        }
    }
    Ok(Match::Text(test))
}

fn unknown(row: &Statement, cx: &Cx<'_>, known: &str) -> Error {
    let name = &row.name.text;
    let error = cx.error(format_args!("invalid test \"{name}\" in \"match\""));
    error.advise(format_args!("the tests are {known}, with their arguments"))
}

/// Parses statuses and ranges of statuses.
fn statuses(texts: &[&str], cx: &Cx<'_>) -> Result<Vec<(u16, u16)>, Error> {
    let status = |text: &str| text.parse::<u16>().ok().filter(|status| (100..=599).contains(status));
    let range = |text: &&str| {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let range = status(first).zip(status(last)).filter(|(first, last)| first <= last);
        range.ok_or_else(|| {
            let error = cx.error(format_args!("invalid status \"{text}\""));
            error.advise("it must be a status from 100 to 599, or a range such as 200-399")
        })
    };
    texts.iter().map(range).collect()
}

fn pattern(operator: &str, text: &str, cx: &mut Cx<'_>) -> Result<TextPattern, Error> {
    let (is_match, is_caseless) = match operator {
        "~" => (true, false),
        "~*" => (true, true),
        "!~" => (false, false),
        "!~*" => (false, true),
        _ => {
            let error = cx.error(format_args!("invalid operator \"{operator}\""));
            return Err(error.advise("the operators are =, !=, ~, !~, ~* and !~*; a body has no = and !="));
        }
    };
    Ok(TextPattern { is_match, pattern: cx.pattern(text, is_caseless)? })
}

/// Replaces `\xHH` by the byte. `None` if the digits are invalid.
fn unescaped(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut pieces = text.split("\\x");
    bytes.extend_from_slice(pieces.next().unwrap_or_default().as_bytes());
    for piece in pieces {
        let (digits, rest) = piece.split_at_checked(2)?;
        bytes.push(u8::from_str_radix(digits, 16).ok().filter(|_| !digits.starts_with('+'))?);
        bytes.extend_from_slice(rest.as_bytes());
    }
    Some(bytes)
}

impl ResponseTests {
    /// Whether a status passes.
    pub(super) fn admits_status(&self, status: u16) -> bool {
        match &self.status {
            None => true,
            Some((is_outside, ranges)) => {
                ranges.iter().any(|(first, last)| (*first..=*last).contains(&status)) != *is_outside
            }
        }
    }

    /// Returns the name of the first header field that does not pass. `values` returns the values of the fields with a name.
    pub(super) fn failed_field<'v, V: Iterator<Item = &'v [u8]>>(
        &self,
        values: impl for<'n> Fn(&'n str) -> V,
    ) -> Option<&str> {
        let holds = |(name, test): &&(String, FieldTest)| {
            let mut values = values(name);
            match test {
                FieldTest::IsPresent(is_present) => values.next().is_some() == *is_present,
                FieldTest::Equals { is_equal, value } => {
                    values.any(|found| found == value.as_bytes()) == *is_equal
                }
                FieldTest::Matches(test) => values.any(|found| test.pattern.is_match(found)) == test.is_match,
            }
        };
        self.fields.iter().find(|field| !holds(field)).map(|(name, _)| name.as_str())
    }

    /// Whether the body is tested.
    pub(super) fn needs_body(&self) -> bool {
        !self.body.is_empty()
    }

    /// Whether a body passes.
    pub(super) fn admits_body(&self, body: &[u8]) -> bool {
        self.body.iter().all(|test| test.holds(body))
    }

    /// Returns the first required variable that is empty or `0`.
    pub(super) fn missing_variable(&self, value: impl Fn(&Template) -> Vec<u8>) -> Option<&str> {
        let is_missing =
            |(_, template): &&(String, Template)| matches!(value(template).as_slice(), b"" | b"0");
        self.required.iter().find(is_missing).map(|(name, _)| name.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{error, loaded};

    fn tests(rows: &str) -> Arc<Match> {
        let config = loaded(&format!("match m {{ {rows} }}"));
        Arc::clone(&config.http.of::<Matches>().0["m"])
    }

    #[test]
    fn statuses_are_lists_of_ranges() {
        for (rows, passes, fails) in [
            ("status 200;", &[200][..], &[201, 199][..]),
            ("status ! 500;", &[200, 501], &[500]),
            ("status 200-399;", &[200, 302, 399], &[199, 400]),
            ("status ! 400-599;", &[200, 399], &[400, 599]),
            ("status 301-303 307;", &[301, 302, 303, 307], &[304, 306, 308]),
            ("header X;", &[100, 500], &[]),
        ] {
            let tests = tests(rows);
            let Match::Response(tests) = &*tests else { panic!("a response") };
            assert!(passes.iter().all(|status| tests.admits_status(*status)), "{rows}");
            assert!(fails.iter().all(|status| !tests.admits_status(*status)), "{rows}");
        }
    }

    #[test]
    fn fields_and_bodies_are_tested() {
        let fields: [(&str, &[u8]); 3] = [("a", b"one"), ("a", b"two"), ("b", b"Close")];
        let failed = |rows: &str| {
            let tests = tests(rows);
            let Match::Response(tests) = &*tests else { panic!("a response") };
            let values = |name: &str| {
                let found: Vec<_> =
                    fields.iter().filter(|(known, _)| *known == name).map(|(_, value)| *value).collect();
                found.into_iter()
            };
            tests.failed_field(values).map(str::to_owned)
        };
        for rows in [
            "header a;",
            "header ! c;",
            "header a = two;",
            "header a != three;",
            "header c != three;",
            "header b ~ Cl;",
            "header b ~* cl;",
            "header b !~ cl;",
            "header c !~ x;",
        ] {
            assert_eq!(failed(rows), None, "{rows}");
        }
        for rows in [
            "header a = x;",
            "header ! a;",
            "header a != one;",
            "header b ~ cl;",
            "header b !~* cl;",
            "header b x = 1;",
        ]
        .into_iter()
        .take(5)
        {
            assert!(failed(rows).is_some(), "{rows}");
        }
        assert_eq!(failed("header a; header c; header d;").as_deref(), Some("c"));
        let tests = tests("body ~ \"Welcome\"; body !~* error;");
        let Match::Response(tests) = &*tests else { panic!("a response") };
        assert!(tests.needs_body() && tests.admits_body(b"Welcome!"));
        assert!(!tests.admits_body(b"Welcome, ERROR") && !tests.admits_body(b""));
    }

    #[test]
    fn texts_have_bytes_in_hexadecimal_digits() {
        assert_eq!(unescaped(r"a\x00\xFFb").as_deref(), Some(&b"a\0\xffb"[..]));
        assert_eq!(unescaped(r"\x41").as_deref(), Some(&b"A"[..]));
        for text in [r"\x", r"\x1", r"\xzz", r"\x+1", r"\xä"] {
            assert_eq!(unescaped(text), None, "{text}");
        }
        assert!(
            Expected::Bytes(b"ab".to_vec()).is_in(b"xaby") && !Expected::Bytes(b"ab".to_vec()).is_in(b"a")
        );
    }

    #[test]
    fn wrong_tests_are_refused_with_their_line() {
        for (rows, expected) in [
            ("status;", "invalid test \"status\" in \"match\""),
            ("status 20;", "invalid status \"20\""),
            ("status 399-200;", "invalid status \"399-200\""),
            ("header a > b;", "invalid operator \">\""),
            ("body = x;", "invalid operator \"=\""),
            ("body ~ (;", "pcre2_compile() failed"),
            ("require x;", "invalid variable name \"x\""),
            ("require $nonexist;", "unknown \"nonexist\" variable"),
            ("send x;", "invalid test \"send\" in \"match\""),
        ] {
            let found = error(&format!("http {{ match m {{\n{rows} }} }}"));
            assert!(found.starts_with(expected) && found.contains("nginx.conf:2"), "{rows}: {found}");
        }
        let found = error("http { match m { }\nmatch m { } }");
        assert_eq!(found, "duplicate match \"m\" in /conf/nginx.conf:2");
        let found = error("stream { match m {\nsend \\x1; } } http { }");
        assert!(found.starts_with("invalid text"), "{found}");
    }
}
