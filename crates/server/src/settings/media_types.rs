//! Lists of media types, as `gzip_types`, `ssi_types`, `sub_filter_types`, `addition_types` and `charset_types`
//! have them: which answers a module looks at.

use std::sync::Arc;

use conf::Error;

use crate::config::Cx;
use crate::request::Request;
use crate::response::ContentType;

/// The media types that a filter of bodies is for.
///
/// The first type of the default belongs to each list that the configuration makes, as in nginx: `gzip_types
/// text/css` means HTML too.
#[derive(Clone, Debug)]
pub(crate) struct MediaTypes {
    default: &'static [&'static str],
    chosen: Chosen,
    /// The block whose directive these are; 0 is nobody's.
    block: u32,
}

#[derive(Clone, Debug)]
enum Chosen {
    /// Those that hold without a directive.
    Default,
    /// These, in lower case.
    List(Arc<Vec<Box<str>>>),
    /// `*`: all answers, those without a type too.
    Any,
}

impl MediaTypes {
    /// HTML, which is the default of all lists but one.
    pub(crate) const HTML: MediaTypes = MediaTypes::new(&["text/html"]);

    /// What holds without a directive; the first of them always does.
    pub(crate) const fn new(default: &'static [&'static str]) -> MediaTypes {
        MediaTypes { default, chosen: Chosen::Default, block: 0 }
    }

    /// Takes the arguments of the directive that `cx` is at. The first one in a block replaces what was
    /// inherited, further ones add.
    pub(crate) fn parse(&mut self, cx: &mut Cx<'_>) -> Result<(), Error> {
        if self.block != cx.block {
            (self.chosen, self.block) = (Chosen::Default, cx.block);
        }
        let mut list = match &self.chosen {
            // nginx reads nothing further: no duplicate can matter.
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

    /// Whether the answer of `request` is of one of these types. A charset that came with the type from
    /// another server does not count, but what `types` and `default_type` say is compared as it was written.
    pub(crate) fn matches(&self, request: &Request) -> bool {
        let has = |name: &str| match &self.chosen {
            Chosen::Any => true,
            Chosen::Default => self.default.iter().any(|known| known.eq_ignore_ascii_case(name)),
            Chosen::List(list) => list.iter().any(|known| known.eq_ignore_ascii_case(name)),
        };
        let content_type = &request.response.content_type;
        match (content_type.of(request), content_type) {
            (None, _) => matches!(self.chosen, Chosen::Any),
            (Some(text), ContentType::Text(_)) => has(split_charset(text).0),
            (Some(text), _) => has(text),
        }
    }
}

/// The type and its charset, where it has one: `text/html; charset="utf-8"` are `text/html` and `utf-8`.
pub(crate) fn split_charset(text: &str) -> (&str, Option<&str>) {
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
    use crate::config::testing::{error, loaded, warnings};

    /// What `addition_types` lists in a location, for all directives of the kind.
    fn listed(http: &str, name: &str) -> Vec<String> {
        let config = loaded(http);
        let location = config.http.locations.iter().find(|location| location.name == name);
        match &location.expect("it is there").scope.of::<crate::modules::addition::Conf>().types().chosen {
            Chosen::Default => vec!["default".to_owned()],
            Chosen::Any => vec!["*".to_owned()],
            Chosen::List(list) => list.iter().map(|name| name.to_string()).collect(),
        }
    }

    #[test]
    fn lists_add_up_in_a_block_and_replace_inherited_ones() {
        let http = "addition_types text/A; addition_types text/b; server { location /in { }
            location /own { addition_types text/c; } location /any { addition_types text/c *; addition_types text/d; } }";
        assert_eq!(listed(http, "/in"), ["text/html", "text/a", "text/b"]);
        assert_eq!(listed(http, "/own"), ["text/html", "text/c"]);
        assert_eq!(listed(http, "/any"), ["*"]);
        assert_eq!(
            listed("addition_types *; server { addition_types text/x; }", "server"),
            ["text/html", "text/x"]
        );
        assert_eq!(listed("server { }", "server"), ["default"]);
    }

    #[test]
    fn wrong_lists() {
        let found = warnings("http {\naddition_types text/a TEXT/A text/html; }");
        let duplicate = |name: &str| format!("duplicate MIME type \"{name}\" in /conf/nginx.conf:2");
        assert_eq!(found, [duplicate("text/a"), duplicate("text/html")]);
        for name in ["addition_types", "charset_types", "sub_filter_types"] {
            let found = error(&format!("http {{\n{name}; }}"));
            let expected =
                format!("invalid number of arguments in \"{name}\" directive in /conf/nginx.conf:2");
            assert!(found.starts_with(&expected), "{found}");
        }
    }

    #[test]
    fn a_charset_is_told_from_other_parameters() {
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
