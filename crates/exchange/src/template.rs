//! Text with variables in it, compiled when the configuration is read.

use std::sync::Arc;

use conf::{Error, Statement};
use io::op::Source;

use crate::request::Request;
use crate::variables::{Registry, VarRef};

/// Text with variables, such as `/data/$host$uri`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Template {
    parts: Vec<Part>,
}

/// A piece of the text.
#[derive(Clone, Debug, PartialEq)]
enum Part {
    Text(Arc<str>),
    Variable(VarRef),
}

impl Template {
    /// Text without variables.
    pub fn text(text: &str) -> Template {
        let parts = if text.is_empty() { Vec::new() } else { vec![Part::Text(text.into())] };
        Template { parts }
    }

    /// Compiles `text`; `$name`, `${name}` and `$1` are variables.
    pub fn compile(text: &str, registry: &mut Registry, statement: &Statement) -> Result<Template, Error> {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some(dollar) = rest.find('$') {
            if dollar > 0 {
                parts.push(Part::Text(rest[..dollar].into()));
            }
            let after = &rest[dollar + 1..];
            // A dollar sign cannot be escaped in nginx either: it always begins a name.
            let (name, len) = variable_name(after).map_err(|fault| Error::at(statement, fault))?;
            parts.push(Part::Variable(registry.reference(name, statement)));
            rest = &after[len..];
        }
        if !rest.is_empty() {
            parts.push(Part::Text(rest.into()));
        }
        Ok(Template { parts })
    }

    /// The text, when there is no variable in it.
    pub fn constant(&self) -> Option<&str> {
        match self.parts.as_slice() {
            [] => Some(""),
            // Neighbouring texts never occur: each is read up to the next variable.
            [Part::Text(text)] => Some(text),
            _ => None,
        }
    }

    /// Appends the text with the variables of `request` to `out`. What has no value is empty.
    pub fn render(&self, request: &Request, out: &mut Vec<u8>) {
        self.render_groups(request, false, out);
    }

    /// As [`Template::render`]; with `escaped`, the groups of the last match are escaped for a query.
    pub fn render_groups(&self, request: &Request, escaped: bool, out: &mut Vec<u8>) {
        for part in &self.parts {
            match part {
                Part::Text(text) => out.extend_from_slice(text.as_bytes()),
                Part::Variable(VarRef::Capture(number)) if escaped => {
                    let mut group = Vec::new();
                    request.capture(*number, &mut group);
                    http::uri::escape_args(&group, out);
                }
                Part::Variable(variable) => {
                    variable.value(request, out);
                }
            }
        }
    }

    /// The text with the variables of `request`.
    pub fn rendered(&self, request: &Request) -> Vec<u8> {
        let mut out = Vec::new();
        self.render(request, &mut out);
        out
    }

    /// As [`Template::rendered`], for an answer: what is the same in each is shared.
    pub fn source(&self, request: &Request) -> Source {
        match self.parts.as_slice() {
            [Part::Text(text)] => Source::Shared(Arc::clone(text).into()),
            _ => Source::Vec(self.rendered(request)),
        }
    }
}

/// What is wrong behind a `$`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameFault<'a> {
    /// There is no name.
    Missing,
    /// The brace before this name is not closed behind it.
    Unclosed(&'a str),
}

impl std::fmt::Display for NameFault<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            NameFault::Missing => f.write_str("invalid variable name"),
            NameFault::Unclosed(name) => {
                write!(f, "the closing bracket in \"{name}\" variable is missing")
            }
        }
    }
}

/// The name behind a `$` and how many bytes it takes with its braces.
pub fn variable_name(text: &str) -> Result<(&str, usize), NameFault<'_>> {
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    // A group is one digit, so `$10` is group 1 and a zero; nginx reads it in the same way.
    if matches!(text.as_bytes().first(), Some(b'1'..=b'9')) {
        return Ok((&text[..1], 1));
    }
    let start = usize::from(text.starts_with('{'));
    let rest = &text[start..];
    let end = rest.bytes().position(|byte| !is_name(byte)).unwrap_or(rest.len());
    match (start, &rest[..end]) {
        (1, name) if !rest[end..].starts_with('}') => Err(NameFault::Unclosed(name)),
        (_, "") => Err(NameFault::Missing),
        (braces, name) => Ok((name, end + 2 * braces)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_end_where_nginx_ends_them() {
        for (text, expected) in [
            ("uri/x", Ok(("uri", 3))),
            ("{uri}x", Ok(("uri", 5))),
            ("1abc", Ok(("1", 1))),
            ("0abc", Ok(("0abc", 4))),
            ("", Err(NameFault::Missing)),
            ("-", Err(NameFault::Missing)),
            ("{uri", Err(NameFault::Unclosed("uri"))),
            ("{}", Err(NameFault::Missing)),
            ("{a-b}", Err(NameFault::Unclosed("a"))),
        ] {
            assert_eq!(variable_name(text), expected, "{text}");
        }
    }
}
