//! A small part of XML 1.0 with namespaces, for bodies of WebDAV requests: elements, attributes, character data, and the
//! predefined entities. Document types and processing instructions in the content are refused.

use std::borrow::Cow;
use std::fmt::Write;

/// Maximum depth of elements. Requests of known clients have at most 6.
pub const DEPTH_MAX: usize = 32;

/// Maximum number of elements. Requests of known clients have fewer than 100.
pub const ELEMENTS_MAX: usize = 1000;

/// Maximum number of namespace declarations that are in scope.
const NAMESPACES_MAX: usize = 64;

/// Maximum length in bytes of a namespace. Each element of a document has a copy of its own.
pub const NAMESPACE_BYTES_MAX: usize = 256;

/// The namespace of the elements of RFC 4918.
pub const DAV: &str = "DAV:";

/// The reason why a text is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XmlError {
    /// Not UTF-8.
    Encoding,
    /// Not well-formed, or with a part of XML that WebDAV does not need.
    Malformed,
    /// A limit is exceeded.
    TooLarge,
}

/// The name of an element: namespace and local name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PropertyName {
    /// The namespace; empty for none.
    pub namespace: String,
    /// The name without its prefix.
    pub local: String,
}

impl PropertyName {
    /// Whether this is the name of an element of RFC 4918.
    #[must_use]
    pub fn is_dav(&self, local: &str) -> bool {
        self.namespace == DAV && self.local == local
    }
}

/// An element.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Element {
    /// Its name.
    pub name: PropertyName,
    /// Character data directly in the element.
    pub text: String,
    /// The elements in it.
    pub children: Vec<Element>,
}

impl Element {
    /// Returns the first child of this name of RFC 4918.
    #[must_use]
    pub fn child(&self, local: &str) -> Option<&Element> {
        self.children.iter().find(|child| child.name.is_dav(local))
    }
}

/// Parses a document, and returns its outermost element.
///
/// # Errors
/// The reason why the text is refused.
pub fn parse(text: &[u8]) -> Result<Element, XmlError> {
    let text = std::str::from_utf8(text).map_err(|_| XmlError::Encoding)?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut parser = Parser { rest: prolog(text)?, open: Vec::new(), scopes: Vec::new(), count: 0 };
    loop {
        if let Some(root) = parser.step()? {
            return if is_trailer(parser.rest) { Ok(root) } else { Err(XmlError::Malformed) };
        }
    }
}

/// Appends text for the content of an element or for an attribute.
pub fn escape(text: &str, out: &mut String) {
    for character in text.chars() {
        match character {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '"' => out.push_str("&quot;"),
            // Characters that XML does not permit.
            '\0'..='\u{8}' | '\u{b}' | '\u{c}' | '\u{e}'..='\u{1f}' | '\u{fffe}' | '\u{ffff}' => {
                out.push('\u{fffd}')
            }
            '\r' => {
                let _ = write!(out, "&#13;");
            }
            other => out.push(other),
        }
    }
}

/// Returns the text after the XML declaration and comments.
fn prolog(text: &str) -> Result<&str, XmlError> {
    let mut rest = text.trim_start();
    if let Some(declaration) = rest.strip_prefix("<?xml") {
        rest = declaration.split_once("?>").ok_or(XmlError::Malformed)?.1.trim_start();
    }
    while let Some(comment) = rest.strip_prefix("<!--") {
        rest = comment.split_once("-->").ok_or(XmlError::Malformed)?.1.trim_start();
    }
    Ok(rest)
}

/// Whether only comments follow.
fn is_trailer(text: &str) -> bool {
    let mut rest = text.trim_matches(|character: char| character.is_whitespace() || character == '\0');
    while let Some(comment) = rest.strip_prefix("<!--") {
        let Some((_, after)) = comment.split_once("-->") else { return false };
        rest = after.trim_start();
    }
    rest.is_empty()
}

struct Parser<'t> {
    rest: &'t str,
    /// The elements that have not ended, with their names as written.
    open: Vec<(Element, &'t str)>,
    /// Declarations of namespaces: depth, prefix, namespace.
    scopes: Vec<(usize, &'t str, String)>,
    /// Number of elements so far.
    count: usize,
}

impl<'t> Parser<'t> {
    /// Parses the next tag or text; returns the outermost element at its end.
    fn step(&mut self) -> Result<Option<Element>, XmlError> {
        if let Some(rest) = self.rest.strip_prefix("<!--") {
            self.rest = rest.split_once("-->").ok_or(XmlError::Malformed)?.1;
            return Ok(None);
        }
        if let Some(rest) = self.rest.strip_prefix("<![CDATA[") {
            let (text, rest) = rest.split_once("]]>").ok_or(XmlError::Malformed)?;
            self.rest = rest;
            let (element, _) = self.open.last_mut().ok_or(XmlError::Malformed)?;
            element.text.push_str(text);
            return Ok(None);
        }
        if let Some(rest) = self.rest.strip_prefix("</") {
            let (name, rest) = rest.split_once('>').ok_or(XmlError::Malformed)?;
            self.rest = rest;
            return self.end(name.trim_end());
        }
        if let Some(rest) = self.rest.strip_prefix('<') {
            self.rest = rest;
            return self.begin();
        }
        let end = self.rest.find('<').ok_or(XmlError::Malformed)?;
        let (text, rest) = self.rest.split_at(end);
        let text = unescape(text)?;
        let (element, _) = self.open.last_mut().ok_or(XmlError::Malformed)?;
        element.text.push_str(&text);
        self.rest = rest;
        Ok(None)
    }

    fn end(&mut self, name: &str) -> Result<Option<Element>, XmlError> {
        let (element, opened) = self.open.pop().ok_or(XmlError::Malformed)?;
        if opened != name {
            return Err(XmlError::Malformed);
        }
        let depth = self.open.len();
        self.scopes.retain(|(declared, ..)| *declared < depth + 1);
        Ok(match self.open.last_mut() {
            Some((parent, _)) => {
                parent.children.push(element);
                None
            }
            None => Some(element),
        })
    }

    /// Parses a start tag after its `<`.
    fn begin(&mut self) -> Result<Option<Element>, XmlError> {
        self.count += 1;
        if self.count > ELEMENTS_MAX || self.open.len() >= DEPTH_MAX {
            return Err(XmlError::TooLarge);
        }
        let written = self.name()?;
        let is_empty = self.attributes()?;
        let name = self.resolve(written)?;
        self.open.push((Element { name, ..Element::default() }, written));
        if is_empty { self.end(written) } else { Ok(None) }
    }

    /// Parses the attributes and the end of a start tag; returns whether the element is empty.
    fn attributes(&mut self) -> Result<bool, XmlError> {
        loop {
            let trimmed = self.rest.trim_start();
            if let Some(rest) = trimmed.strip_prefix("/>") {
                self.rest = rest;
                return Ok(true);
            }
            if let Some(rest) = trimmed.strip_prefix('>') {
                self.rest = rest;
                return Ok(false);
            }
            if trimmed.len() == self.rest.len() {
                return Err(XmlError::Malformed);
            }
            self.rest = trimmed;
            self.attribute()?;
        }
    }

    fn attribute(&mut self) -> Result<(), XmlError> {
        let name = self.name()?;
        let value = self.rest.trim_start().strip_prefix('=').ok_or(XmlError::Malformed)?.trim_start();
        let quote =
            value.chars().next().filter(|quote| matches!(quote, '"' | '\'')).ok_or(XmlError::Malformed)?;
        let (value, rest) = value[1..].split_once(quote).ok_or(XmlError::Malformed)?;
        self.rest = rest;
        if value.contains('<') {
            return Err(XmlError::Malformed);
        }
        let prefix = match name.strip_prefix("xmlns:") {
            Some(prefix) => prefix,
            None if name == "xmlns" => "",
            None => return unescape(value).map(drop),
        };
        if self.scopes.len() >= NAMESPACES_MAX || value.len() > NAMESPACE_BYTES_MAX {
            return Err(XmlError::TooLarge);
        }
        self.scopes.push((self.open.len() + 1, prefix, unescape(value)?.into_owned()));
        Ok(())
    }

    /// Parses a name.
    fn name(&mut self) -> Result<&'t str, XmlError> {
        let is_end = |character: char| {
            character.is_whitespace()
                || matches!(character, '>' | '/' | '=' | '<' | '"' | '\'' | '&' | '!' | '?')
        };
        let end = self.rest.find(is_end).ok_or(XmlError::Malformed)?;
        let (name, rest) = self.rest.split_at(end);
        if name.is_empty() || name.contains('\0') {
            return Err(XmlError::Malformed);
        }
        self.rest = rest;
        Ok(name)
    }

    /// Returns the namespace and the local name of an element.
    fn resolve(&self, written: &str) -> Result<PropertyName, XmlError> {
        let (prefix, local) = written.split_once(':').unwrap_or(("", written));
        let found = self.scopes.iter().rev().find(|(_, declared, _)| *declared == prefix);
        let namespace = match found {
            Some((.., namespace)) => namespace.clone(),
            None if prefix.is_empty() => String::new(),
            None => return Err(XmlError::Malformed),
        };
        if local.is_empty() || local.contains(':') {
            return Err(XmlError::Malformed);
        }
        Ok(PropertyName { namespace, local: local.to_owned() })
    }
}

/// Replaces references to characters and to the predefined entities.
fn unescape(text: &str) -> Result<Cow<'_, str>, XmlError> {
    if !text.contains('&') {
        return Ok(Cow::Borrowed(text));
    }
    let (mut out, mut rest) = (String::with_capacity(text.len()), text);
    while let Some((before, after)) = rest.split_once('&') {
        out.push_str(before);
        let (entity, after) = after.split_once(';').ok_or(XmlError::Malformed)?;
        out.push(character(entity).ok_or(XmlError::Malformed)?);
        rest = after;
    }
    out.push_str(rest);
    Ok(Cow::Owned(out))
}

fn character(entity: &str) -> Option<char> {
    Some(match entity {
        "lt" => '<',
        "gt" => '>',
        "amp" => '&',
        "quot" => '"',
        "apos" => '\'',
        _ => {
            let number = entity.strip_prefix('#')?;
            let code = match number.strip_prefix('x') {
                Some(digits) => u32::from_str_radix(digits, 16).ok()?,
                None => number.parse().ok()?,
            };
            char::from_u32(code).filter(|character| *character != '\0')?
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_are_resolved() {
        let text = b"<?xml version=\"1.0\"?><!-- c --><D:a xmlns:D='DAV:'><b xmlns=\"x\"/><D:c>1 &lt;&#x41;<![CDATA[<]]></D:c></D:a>\n";
        let root = parse(text).unwrap();
        assert!(root.name.is_dav("a"));
        assert_eq!((&*root.children[0].name.namespace, &*root.children[0].name.local), ("x", "b"));
        assert_eq!(root.child("c").unwrap().text, "1 <A<");
    }

    #[test]
    fn hostile_documents_are_refused() {
        let deep = "<a>".repeat(DEPTH_MAX + 1);
        let wide = format!("<a>{}</a>", "<b/>".repeat(ELEMENTS_MAX));
        for (text, error) in [
            ("<!DOCTYPE a [<!ENTITY x \"y\">]><a>&x;</a>", XmlError::Malformed),
            ("<a>&x;</a>", XmlError::Malformed),
            (&*deep, XmlError::TooLarge),
            (&*wide, XmlError::TooLarge),
            ("<a><b></a></b>", XmlError::Malformed),
            ("<a", XmlError::Malformed),
            ("<D:a/>", XmlError::Malformed),
            ("<a/><b/>", XmlError::Malformed),
            ("", XmlError::Malformed),
            ("text", XmlError::Malformed),
            ("<a b='<'/>", XmlError::Malformed),
            ("<a>&#0;</a>", XmlError::Malformed),
        ] {
            assert_eq!(parse(text.as_bytes()), Err(error), "{text:.60}");
        }
        assert_eq!(parse(b"<a>\xff</a>"), Err(XmlError::Encoding));
    }

    #[test]
    fn a_long_namespace_is_not_copied_to_each_element() {
        let document = |length: usize| format!("<a xmlns=\"{}\"><b/></a>", "x".repeat(length));
        assert_eq!(parse(document(NAMESPACE_BYTES_MAX + 1).as_bytes()), Err(XmlError::TooLarge));
        assert!(parse(document(NAMESPACE_BYTES_MAX).as_bytes()).is_ok());
    }

    #[test]
    fn escaped_text_is_parsed_again() {
        let mut text = "<a>".to_owned();
        escape("a<b>&\"c\r\u{1}", &mut text);
        text.push_str("</a>");
        assert_eq!(parse(text.as_bytes()).unwrap().text, "a<b>&\"c\r\u{fffd}");
    }
}
