//! Text with variables in it, compiled when the configuration is read.

use std::sync::Arc;

use conf::{Error, Statement};

use crate::var_ref::VarRef;

/// Text with variables, such as `/data/$host$uri`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Template {
    /// Shared with the clones of the template.
    pub(crate) parts: Arc<[Part]>,
}

/// A piece of the text.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Part {
    Text(Arc<str>),
    Variable(VarRef),
}

impl Template {
    /// Returns a template without variables.
    pub fn text(text: &str) -> Template {
        if text.is_empty() {
            Template::default()
        } else {
            Template { parts: [Part::Text(text.into())].into() }
        }
    }

    /// Compiles `text`; `$name`, `${name}` and `$1` are variables, which `reference` looks up by name.
    pub fn compile(
        text: &str,
        statement: &Statement,
        mut reference: impl FnMut(&str) -> VarRef,
    ) -> Result<Template, Error> {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some(dollar) = rest.find('$') {
            if dollar > 0 {
                parts.push(Part::Text(rest[..dollar].into()));
            }
            let after = &rest[dollar + 1..];
            // A dollar sign cannot be escaped in nginx either: it always starts a variable name.
            let (name, len) = variable_name(after).map_err(|fault| Error::at(statement, fault))?;
            parts.push(Part::Variable(reference(name)));
            debug_assert!(len <= after.len(), "a name is part of the text");
            rest = &after[len..];
        }
        if !rest.is_empty() {
            parts.push(Part::Text(rest.into()));
        }
        Ok(Template { parts: parts.into() })
    }

    /// Returns the template with `text` before it.
    pub(crate) fn after(self, text: &str) -> Template {
        let (first, rest) = match &*self.parts {
            [Part::Text(first), rest @ ..] => (format!("{text}{first}"), rest),
            parts => (text.to_owned(), parts),
        };
        Template { parts: std::iter::once(Part::Text(first.into())).chain(rest.iter().cloned()).collect() }
    }

    /// Returns the text, if it has no variables.
    pub fn constant(&self) -> Option<&str> {
        match &*self.parts {
            [] => Some(""),
            // Adjacent texts never occur, because each extends to the next variable.
            [Part::Text(text)] => Some(text),
            _ => None,
        }
    }
}

/// An error after a `$`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameFault<'a> {
    /// No name follows.
    Missing,
    /// The brace around this name is not closed.
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

/// Returns the name after a `$`, and its length in bytes including braces.
pub fn variable_name(text: &str) -> Result<(&str, usize), NameFault<'_>> {
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    // A group is one digit, so `$10` is group 1 followed by a zero, as in nginx.
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
    fn text_before_a_template_has_no_variables() {
        let files = Template::text("files").after("/a$b/");
        assert_eq!(files.constant(), Some("/a$b/files"));
        assert_eq!(Template::default().after("/a$b/").constant(), Some("/a$b/"));
        let variable = Template { parts: [Part::Variable(VarRef::Capture(1))].into() };
        assert_eq!(variable.after("/a$b/").parts.len(), 2);
    }

    #[test]
    fn variable_names_end_as_in_nginx() {
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
