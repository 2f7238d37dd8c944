//! Lists of media types for `gzip_types`, `ssi_types`, `sub_filter_types`, `addition_types` and `charset_types`. They
//! select the responses that a module processes.

use std::sync::Arc;

use conf::Error;

use crate::config::Cx;

/// The media types that a body filter processes.
///
/// The first default type is part of every configured list, as in nginx: `gzip_types text/css` includes HTML.
#[derive(Clone, Debug)]
pub struct MediaTypes {
    default: &'static [&'static str],
    /// The types in the list.
    pub chosen: Chosen,
    /// The block of the directive; 0 if there is none.
    block: u32,
}

/// The types of a list.
#[derive(Clone, Debug)]
pub enum Chosen {
    /// The default types.
    Default,
    /// These types, in lower case.
    List(Arc<Vec<Box<str>>>),
    /// `*`: all responses, including those without a type.
    Any,
}

impl MediaTypes {
    /// HTML, which is the default of all lists but one.
    pub const HTML: MediaTypes = MediaTypes::new(&["text/html"]);

    /// Returns a list with these default types; the first of them always applies.
    pub const fn new(default: &'static [&'static str]) -> MediaTypes {
        MediaTypes { default, chosen: Chosen::Default, block: 0 }
    }

    /// Parses the arguments of the directive at `cx`. The first directive in a block replaces the inherited types,
    /// further ones add to them.
    pub fn parse(&mut self, cx: &mut Cx<'_>) -> Result<(), Error> {
        if self.block != cx.block {
            (self.chosen, self.block) = (Chosen::Default, cx.block);
        }
        let mut list = match &self.chosen {
            // nginx stops here too, without a check for duplicates.
            Chosen::Any => return Ok(()),
            Chosen::Default => self.default.iter().take(1).map(|&name| name.into()).collect(),
            Chosen::List(list) => Vec::clone(list),
        };
        for text in cx.statement.texts() {
            if text == "*" {
                self.chosen = Chosen::Any;
                return Ok(());
            }
            let name = text.to_ascii_lowercase().into_boxed_str();
            if list.contains(&name) {
                cx.warn(format_args!("duplicate MIME type \"{name}\""));
                continue;
            }
            list.push(name);
        }
        self.chosen = Chosen::List(Arc::new(list));
        Ok(())
    }

    /// Whether the list has this type; `None` is a response without a type.
    pub fn has(&self, name: Option<&str>) -> bool {
        let is_equal = |known: &str| name.is_some_and(|name| known.eq_ignore_ascii_case(name));
        match &self.chosen {
            Chosen::Any => true,
            Chosen::Default => self.default.iter().any(|known| is_equal(known)),
            Chosen::List(list) => list.iter().any(|known| is_equal(known)),
        }
    }
}

/// Splits a type into media type and charset: `text/html; charset="utf-8"` gives `text/html` and `utf-8`.
pub fn split_charset(text: &str) -> (&str, Option<&str>) {
    const NAME: &str = "charset=";
    for (semicolon, _) in text.match_indices(';') {
        let parameter = text[semicolon + 1..].trim_start_matches(' ');
        if !parameter.get(..NAME.len()).is_some_and(|name| name.eq_ignore_ascii_case(NAME)) {
            continue;
        }
        let value = &parameter[NAME.len()..];
        let value = value.strip_prefix('"').unwrap_or(value);
        return (&text[..semicolon], Some(value.strip_suffix('"').unwrap_or(value)));
    }
    (text, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_charset_is_distinguished_from_other_parameters() {
        for (text, expected) in [
            ("text/html", ("text/html", None)),
            ("text/html; charset=utf-8", ("text/html", Some("utf-8"))),
            ("text/html;CHARSET=\"KOI8-R\"", ("text/html", Some("KOI8-R"))),
            ("text/x; a=b;  charset=c", ("text/x; a=b", Some("c"))),
            ("text/x; a=b", ("text/x; a=b", None)),
            ("text/x;", ("text/x;", None)),
            ("text/x; chars\u{e9}t=b", ("text/x; chars\u{e9}t=b", None)),
        ] {
            assert_eq!(split_charset(text), expected, "{text}");
        }
    }
}
