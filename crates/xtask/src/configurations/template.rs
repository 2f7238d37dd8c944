//! Renders templates as plain text: tags of Jinja, Go, ERB, Handlebars and Liquid, and variables of `envsubst`.
//!
//! It does not interpret the templates: it uses the first alternative, executes a loop once, and takes a value from the
//! row or chooses a plausible one by its name.

/// Opening and closing delimiters of tags; in [`Style::Braces`] a tag is a value unless it begins with a control
/// keyword.
const TAGS: [(&str, &str, Style); 4] = [
    ("{{", "}}", Style::Braces),
    ("{%", "%}", Style::Control),
    ("{#", "#}", Style::Comment),
    ("<%", "%>", Style::Ruby),
];

/// Syntax of a tag.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Style {
    /// Go, Handlebars and the values of Jinja.
    Braces,
    /// Statements of Jinja and Liquid.
    Control,
    /// A comment, which is removed.
    Comment,
    /// ERB.
    Ruby,
}

/// The meaning of a tag.
#[derive(Debug, PartialEq, Eq)]
enum Tag<'a> {
    /// Begins a block that ends with `End`.
    Begin,
    /// Begins a definition, whose content is not inserted at its position.
    BeginUnused,
    /// Begins an alternative, which is omitted.
    Else,
    /// Ends the innermost block.
    End,
    /// An assignment, a comment, or an include of the template language.
    Nothing,
    /// An expression to insert.
    Value(&'a str),
}

/// Renders a text. Files without tags and variables stay unchanged.
pub(super) fn fill(text: &str, values: &[(String, String)]) -> String {
    environment(&tags(text, values), values)
}

/// Replaces all tags. A tag without its end stays unchanged, with the remaining text.
fn tags(text: &str, values: &[(String, String)]) -> String {
    let mut result = String::new();
    // Whether the content of each open block is omitted.
    let mut parts: Vec<bool> = Vec::new();
    let mut rest = text;
    while let Some((at, open, close, style)) = next(rest) {
        let Some(len) = rest[at + open.len()..].find(close) else { break };
        let used = !parts.contains(&true);
        if used {
            result.push_str(&rest[..at]);
        }
        match tag(&rest[at + open.len()..][..len], style) {
            Tag::Begin => parts.push(false),
            Tag::BeginUnused => parts.push(true),
            Tag::Else => parts.last_mut().into_iter().for_each(|unused| *unused = true),
            Tag::End => drop(parts.pop()),
            Tag::Value(name) if used => result.push_str(&value(name, values)),
            Tag::Nothing | Tag::Value(_) => {}
        }
        rest = rest[at + open.len() + len + close.len()..].trim_start_matches('}');
    }
    result + rest
}

/// Returns the first tag: its offset, delimiters and style.
fn next(text: &str) -> Option<(usize, &'static str, &'static str, Style)> {
    let found = TAGS.iter().filter_map(|&(open, close, style)| Some((text.find(open)?, open, close, style)));
    found.min_by_key(|tag| tag.0)
}

/// Parses the content of a tag. The order matters: control keywords before values.
fn tag(inner: &str, style: Style) -> Tag<'_> {
    let bare = inner.trim_matches(|c: char| c.is_whitespace() || matches!(c, '-' | '~' | '+'));
    let word = bare.split(|c: char| c.is_whitespace() || c == '(').next().unwrap_or("");
    match (style, word) {
        (Style::Comment, _) => Tag::Nothing,
        (Style::Ruby, _) if bare.starts_with('=') => Tag::Value(bare.trim_start_matches('=').trim()),
        (_, "else" | "elif" | "elsif" | "elseif" | "when") => Tag::Else,
        (Style::Ruby, "if" | "unless" | "case" | "for" | "while") => Tag::Begin,
        (Style::Ruby, _) if bare.contains(" do") => Tag::Begin,
        (Style::Ruby | Style::Braces, "end") => Tag::End,
        (Style::Control, "if" | "for" | "block" | "with" | "call" | "filter" | "raw" | "unless") => {
            Tag::Begin
        }
        (Style::Control, "macro") => Tag::BeginUnused,
        (Style::Control, _) if word.starts_with("end") => Tag::End,
        (Style::Braces, "if" | "range" | "with") => Tag::Begin,
        (Style::Braces, "define" | "block") => Tag::BeginUnused,
        (Style::Braces, "template") => Tag::Nothing,
        (Style::Braces, _) if bare.starts_with('#') => Tag::Begin,
        (Style::Braces, _) if bare.starts_with("/*") || bare.contains(":=") || bare.starts_with('!') => {
            Tag::Nothing
        }
        (Style::Braces, _) if bare.starts_with('/') => Tag::End,
        (Style::Braces, _) => Tag::Value(bare),
        (Style::Control | Style::Ruby, _) => Tag::Nothing,
    }
}

/// Replaces `${NAME}`, `${NAME:-text}`, `$NAME` and `__NAME__` in capital letters. nginx's own variables are in lower
/// case.
fn environment(text: &str, values: &[(String, String)]) -> String {
    let mut result = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(['$', '_']) {
        result.push_str(&rest[..at]);
        rest = &rest[at..];
        let within_word = result.ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == '\\');
        match variable(rest).filter(|_| rest.starts_with('$') || !within_word) {
            Some((len, name, default)) => {
                let known = values.iter().any(|(key, _)| key == name);
                result
                    .push_str(&default.filter(|_| !known).map_or_else(|| value(name, values), String::from));
                rest = &rest[len..];
            }
            None => {
                result.push_str(&rest[..1]);
                rest = &rest[1..];
            }
        }
    }
    result + rest
}

/// Parses a variable at the start; returns its length, name and default.
fn variable(text: &str) -> Option<(usize, &str, Option<&str>)> {
    let name_len = |text: &str| {
        text.find(|c: char| !c.is_ascii_uppercase() && !c.is_ascii_digit() && c != '_').unwrap_or(text.len())
    };
    let is_name = |name: &str| name.len() > 1 && name.starts_with(|c: char| c.is_ascii_uppercase());
    if let Some(inner) = text.strip_prefix("${") {
        let (inner, _) = inner.split_once('}')?;
        let (name, default) = inner.split_once(":-").map_or((inner, None), |(name, text)| (name, Some(text)));
        return (is_name(name) && name_len(name) == name.len()).then_some((inner.len() + 3, name, default));
    }
    if let Some(inner) = text.strip_prefix('$') {
        let name = &inner[..name_len(inner)];
        let ends = !inner[name.len()..].starts_with(|c: char| c.is_ascii_lowercase());
        return (is_name(name) && ends).then_some((name.len() + 1, name, None));
    }
    let inner = text.strip_prefix("__")?;
    let name = inner[..name_len(inner)].strip_suffix("__")?;
    is_name(name).then_some((name.len() + 4, name, None))
}

/// Returns the row's value that the expression names, or a plausible one.
fn value(name: &str, values: &[(String, String)]) -> String {
    match values.iter().find(|(key, _)| name.contains(key.as_str())) {
        Some((_, value)) => value.clone(),
        None => plain(name).into(),
    }
}

/// Returns a plausible value for a setting with this name.
fn plain(name: &str) -> &'static str {
    const BY_NAME: [(&[&str], &str); 9] = [
        (&["port"], "8080"),
        (&["size", "max_body", "body_limit"], "10m"),
        (&["timeout"], "60"),
        (&["connections", "workers", "processes", "count", "nofile"], "1024"),
        (&["url"], "http://127.0.0.1"),
        (&["domain", "fqdn", "server_name", "servername"], "example.com"),
        (&["host", "addr", "upstream", "backend", "resolver", "_ip", "nameserver"], "127.0.0.1"),
        (&["level"], "warn"),
        (&["path", "dir", "root", "folder"], "/srv"),
    ];
    let name = name.to_lowercase();
    BY_NAME
        .iter()
        .find(|(parts, _)| parts.iter().any(|part| name.contains(part)))
        .map_or("value", |(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_filled_in() {
        let values = [("site".to_string(), "a.test".to_string())];
        let filled = |text: &str| fill(text, &values);
        assert_eq!(filled("{% if x %}a{% else %}b{% if y %}c{% endif %}{% endif %}d"), "ad");
        assert_eq!(filled("{{ if .X }}a{{ else }}b{{ end }}{{ .site }}:{{ .Port }}"), "aa.test:8080");
        assert_eq!(filled("{{ define \"x\" }}a{{ end }}b"), "b");
        assert_eq!(filled("<% if @a -%>x<% else -%>y<% end -%> <%= @site %>"), "x a.test");
        assert_eq!(filled("{{#if a}}b{{else}}c{{/if}}{{{site}}}"), "ba.test");
    }

    #[test]
    fn environment_variables_are_filled_in() {
        let values = [("NAME".to_string(), "x".to_string())];
        let filled = |text: &str| fill(text, &values);
        assert_eq!(filled("${NAME} $NAME; ${name} $name ${PORT:-81}"), "x x; ${name} $name 81");
        assert_eq!(filled("__NAME__ a__NAME__ proxy_pass $host"), "x a__NAME__ proxy_pass $host");
    }
}
