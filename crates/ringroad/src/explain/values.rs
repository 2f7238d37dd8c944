//! Variables whose values follow from the request alone, and conditions that use such variables.

use std::net::IpAddr;

use conf::Statement;

use crate::adapter;

/// The known values of a request.
pub(super) struct Values {
    pub(super) method: String,
    pub(super) scheme: &'static str,
    pub(super) host: String,
    pub(super) port: u16,
    /// The request target as received.
    pub(super) target: String,
    pub(super) from: IpAddr,
    /// Header fields; names are in lower case.
    pub(super) fields: Vec<(String, String)>,
    /// Decoded URI, after rewriting so far.
    pub(super) uri: String,
    pub(super) args: String,
}

/// Text whose known variables have been replaced.
pub(super) struct Expanded {
    pub(super) text: String,
    /// Whether all variables were known.
    pub(super) is_known: bool,
}

impl Values {
    /// Returns the value of a variable; `None` if it is not known here.
    fn of(&self, name: &str) -> Option<String> {
        let field = |name: &str| {
            let found = self.fields.iter().find(|(known, _)| known.replace('-', "_") == name);
            found.map_or(String::new(), |(_, value)| value.clone())
        };
        Some(match name {
            "request_method" => self.method.clone(),
            "scheme" => self.scheme.to_owned(),
            "host" => self.host.clone(),
            "https" => if self.scheme == "https" { "on" } else { "" }.to_owned(),
            "server_port" => self.port.to_string(),
            "request_uri" => self.target.clone(),
            "uri" | "document_uri" => self.uri.clone(),
            "args" | "query_string" => self.args.clone(),
            "is_args" => if self.args.is_empty() { "" } else { "?" }.to_owned(),
            "remote_addr" => self.from.to_string(),
            "http_host" => {
                let host = field("host");
                if host.is_empty() { self.host.clone() } else { host }
            }
            _ => match (name.strip_prefix("http_"), name.strip_prefix("arg_")) {
                (Some(name), _) => field(name),
                (_, Some(name)) => {
                    let pairs = self.args.split('&').filter_map(|pair| pair.split_once('='));
                    let found = pairs.into_iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
                    found.map_or(String::new(), |(_, value)| value.to_owned())
                }
                _ => return None,
            },
        })
    }

    /// Replaces variables by their values. `groups` are the captures of a regular expression, the complete match first.
    pub(super) fn expand(&self, text: &str, groups: &[String]) -> Expanded {
        let mut expanded = Expanded { text: String::new(), is_known: true };
        let mut rest = text;
        while let Some((before, behind)) = rest.split_once('$') {
            expanded.text.push_str(before);
            let is_braced = behind.starts_with('{');
            let name = behind.trim_start_matches('{');
            let is_number = name.starts_with(|first: char| first.is_ascii_digit());
            let length = match is_number {
                true => 1,
                false => name.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(name.len()),
            };
            let (name, tail) = name.split_at(length);
            rest = if is_braced { tail.strip_prefix('}').unwrap_or(tail) } else { tail };
            let value = match name.parse::<usize>() {
                Ok(group) => Some(groups.get(group).cloned().unwrap_or_default()),
                Err(_) => self.of(name),
            };
            match value {
                Some(value) => expanded.text.push_str(&value),
                None => {
                    expanded.is_known = false;
                    expanded.text.push('$');
                    expanded.text.push_str(name);
                }
            }
        }
        expanded.text.push_str(rest);
        expanded
    }

    /// Evaluates the condition of an `if`; returns `None` if the result is not known here.
    pub(super) fn holds(&self, statement: &Statement) -> Option<bool> {
        let mut words: Vec<&str> = statement.texts().collect();
        let first = words.first_mut()?;
        *first = first.strip_prefix('(')?;
        let last = words.last_mut()?;
        *last = last.strip_suffix(')')?;
        let words: Vec<&str> = words.into_iter().filter(|word| !word.is_empty()).collect();
        let known =
            |text: &str| Some(self.expand(text, &[])).filter(|value| value.is_known).map(|value| value.text);
        match words.as_slice() {
            [variable] => known(variable).map(|value| !matches!(value.as_str(), "" | "0")),
            [variable, "=", text] => Some(known(variable)? == known(text)?),
            [variable, "!=", text] => Some(known(variable)? != known(text)?),
            [variable, operator @ ("~" | "~*" | "!~" | "!~*"), pattern] => {
                let caseless = if operator.ends_with('*') { "(?i)" } else { "" };
                let found = groups(&format!("{caseless}{pattern}"), &known(variable)?).is_some();
                Some(found != operator.starts_with('!'))
            }
            _ => None,
        }
    }
}

/// Returns the groups of a regular expression in a text, if it matches.
pub(super) fn groups(pattern: &str, text: &str) -> Option<Vec<String>> {
    let found = adapter::search_pattern(pattern.as_bytes(), text.as_bytes()).ok()??;
    let group = |span: Option<(usize, usize)>| {
        let bytes = span.and_then(|(start, end)| text.as_bytes().get(start..end)).unwrap_or_default();
        String::from_utf8_lossy(bytes).into_owned()
    };
    Some(found.spans.into_iter().map(group).collect())
}
