//! A minimal parser of the configuration language, sufficient to complete a test's configuration.
//!
//! The harness adds the main directives that it depends on (`pid`, `error_log`, `daemon`) if a test does not set them.
//! For a server that does not report its ports (Debian's nginx) it inserts port numbers. It deliberately does not use
//! crate `conf`, whose bugs could otherwise hide from the tests.

/// Returns the first argument of a directive in the main context, if the text contains it.
pub fn main_directive(text: &str, name: &str) -> Option<String> {
    let mut depth = 0_u32;
    let mut words: Vec<String> = Vec::new();
    for token in Tokens::new(text) {
        match token.as_str() {
            ";" => {
                if depth == 0 && words.first().is_some_and(|word| word == name) {
                    return words.get(1).cloned();
                }
                words.clear();
            }
            "{" => {
                depth += 1;
                words.clear();
            }
            "}" => {
                depth = depth.saturating_sub(1);
                words.clear();
            }
            _ => words.push(token),
        }
    }
    None
}

/// Inserts directives before the first line without adding lines: errors keep their line numbers.
pub fn with_preamble(text: &str, directives: &[String]) -> String {
    let mut out = String::new();
    for directive in directives {
        out.push_str(directive);
        out.push(' ');
    }
    out.push_str(text);
    out
}

/// Inserts a directive at the start of the `http` block, on the same line, unless the text contains that directive
/// anywhere.
pub fn with_http_default(text: &str, name: &str, arguments: &str) -> String {
    match after_opening(text, "http") {
        Some(at) if !uses(text, name) => format!("{} {name} {arguments};{}", &text[..at], &text[at..]),
        _ => text.to_owned(),
    }
}

/// Inserts directives at the start of the `events` block, on the same line, except those that the text contains
/// anywhere.
pub fn with_events(text: &str, directives: &str) -> String {
    let name = |directive: &str| directive.split_whitespace().next().map(str::to_owned);
    let missing =
        directives.split_inclusive(';').filter(|line| name(line).is_some_and(|name| !uses(text, &name)));
    match after_opening(text, "events") {
        Some(at) => format!("{}{}{}", &text[..at], missing.collect::<String>(), &text[at..]),
        None => text.to_owned(),
    }
}

/// Whether the text contains this word.
fn uses(text: &str, name: &str) -> bool {
    text.split(|c: char| c.is_whitespace() || ";{}".contains(c)).any(|word| word == name)
}

/// Returns the offset at which the content of a block begins.
fn after_opening(text: &str, block: &str) -> Option<usize> {
    text.match_indices(block).find_map(|(at, word)| {
        let rest = text[at + word.len()..].trim_start();
        rest.starts_with('{').then(|| text.len() - rest.len() + 1)
    })
}

/// Replaces each port `:0` at the end of an address (`listen 127.0.0.1:0`, `[::1]:0`) by the port that `pick` returns.
pub fn with_ports(text: &str, mut pick: impl FnMut() -> u16) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(":0") {
        let (before, after) = rest.split_at(at);
        let after = &after[2..];
        out.push_str(before);
        let ends = after.starts_with([';', ' ', '\t', '\n', '/']);
        let address = before.ends_with(|c: char| c.is_ascii_digit() || c == ']');
        if ends && address {
            out.push_str(&format!(":{}", pick()));
        } else {
            out.push_str(":0");
        }
        rest = after;
    }
    out.push_str(rest);
    out
}

/// Replaces each `@NAME@` by its value; the error is the name of a placeholder without a value. A placeholder consists
/// of capital letters, digits and underscores and ends with `@`, so named locations are not affected.
pub fn with_values(text: &str, values: &[(&str, &str)]) -> Result<String, String> {
    let is_name = |name: &str| {
        let all = name.bytes().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_');
        all && !name.is_empty()
    };
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('@') {
        out.push_str(before);
        rest = match after.split_once('@') {
            Some((name, behind)) if is_name(name) => {
                let value = values.iter().find(|(known, _)| *known == name);
                let (_, value) = value.ok_or_else(|| name.to_owned())?;
                out.push_str(value);
                behind
            }
            _ => {
                out.push('@');
                after
            }
        };
    }
    out.push_str(rest);
    Ok(out)
}

/// Iterator over the words and punctuation of a configuration, without comments and quotes.
struct Tokens<'a> {
    rest: std::iter::Peekable<std::str::Chars<'a>>,
}

impl<'a> Tokens<'a> {
    fn new(text: &'a str) -> Tokens<'a> {
        Tokens { rest: text.chars().peekable() }
    }

    fn quoted(&mut self, quote: char) -> String {
        let mut word = String::new();
        while let Some(c) = self.rest.next() {
            match c {
                '\\' => word.extend(self.rest.next()),
                c if c == quote => break,
                c => word.push(c),
            }
        }
        word
    }

    fn bare(&mut self, first: char) -> String {
        let mut word = String::from(first);
        // The braces of `${name}` are not a block.
        let mut in_variable = false;
        while let Some(&c) = self.rest.peek() {
            in_variable = (in_variable && c != '}') || (c == '{' && word.ends_with('$'));
            let ends = c.is_whitespace() || matches!(c, ';' | '{' | '}');
            if ends && !in_variable && !(c == '}' && word.contains("${")) {
                break;
            }
            word.push(c);
            self.rest.next();
        }
        word
    }
}

impl Iterator for Tokens<'_> {
    type Item = String;

    fn next(&mut self) -> Option<String> {
        loop {
            match self.rest.next()? {
                c if c.is_whitespace() => {}
                '#' => while self.rest.next().is_some_and(|c| c != '\n') {},
                c @ (';' | '{' | '}') => return Some(c.to_string()),
                quote @ ('"' | '\'') => return Some(self.quoted(quote)),
                first => return Some(self.bare(first)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_main_context_is_searched() {
        let text = "# pid wrong;\nevents { pid inner; }\nhttp { error_log in.log; }\npid \"run/a b.pid\";\n";
        assert_eq!(main_directive(text, "pid").as_deref(), Some("run/a b.pid"));
        assert_eq!(main_directive(text, "error_log"), None);
        assert_eq!(main_directive("events{}error_log x notice;", "error_log").as_deref(), Some("x"));
    }

    #[test]
    fn variables_and_quotes_do_not_open_blocks() {
        let text = "http { set $a ${b}c; return 200 'x { y'; log_format f \"#;{\"; } daemon off;";
        assert_eq!(main_directive(text, "daemon").as_deref(), Some("off"));
    }

    #[test]
    fn ports_are_inserted_at_the_end_of_an_address() {
        let mut next = 8000;
        let text = "listen 127.0.0.1:0; listen [::1]:0 reuseport; if ($a ~ x:0) {} listen 10.0.0.1:08;";
        let filled = with_ports(text, || {
            next += 1;
            next
        });
        let expected =
            "listen 127.0.0.1:8001; listen [::1]:8002 reuseport; if ($a ~ x:0) {} listen 10.0.0.1:08;";
        assert_eq!(filled, expected);
    }

    #[test]
    fn an_http_default_is_overridden_by_the_text() {
        let with = |text: &str| with_http_default(text, "access_log", "a.log");
        assert_eq!(with("# http x\nhttp\n{ b; }"), "# http x\nhttp\n{ access_log a.log; b; }");
        assert_eq!(with("http { access_log off; }"), "http { access_log off; }");
        assert_eq!(with("events {}"), "events {}");
    }

    #[test]
    fn events_get_missing_directives() {
        let with = |text: &str| with_events(text, "a 1; b 2; b 3;");
        assert_eq!(with("events {}\nhttp {}"), "events {a 1; b 2; b 3;}\nhttp {}");
        assert_eq!(with("events { b 4; }"), "events {a 1; b 4; }");
        assert_eq!(with("http {}"), "http {}");
        assert_eq!(with_events("events {}", ""), "events {}");
    }

    #[test]
    fn values_replace_their_placeholders() {
        let values = [("A", "1"), ("B_2", "@A@")];
        let filled = with_values("x@A@y @named @b@ @ @A@@B_2@ a@b.c", &values);
        assert_eq!(filled.as_deref(), Ok("x1y @named @b@ @ 1@A@ a@b.c"));
        assert_eq!(with_values("@A@@C@", &values), Err("C".to_owned()));
    }

    #[test]
    fn a_preamble_does_not_shift_lines() {
        let text = with_preamble("events {}\nbad", &["daemon off;".to_owned(), "pid p;".to_owned()]);
        assert_eq!(text, "daemon off; pid p; events {}\nbad");
    }
}
