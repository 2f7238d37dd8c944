//! Texts in arguments: variables, patterns, addresses, similar names.

/// Returns the names of the variables in a text, without `$`.
pub(crate) fn variables(text: &str) -> Vec<&str> {
    let mut names = Vec::new();
    let mut rest = text;
    while let Some((_, behind)) = rest.split_once('$') {
        let name = behind.strip_prefix('{').unwrap_or(behind);
        let is_part = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
        let length = name.find(|letter| !is_part(letter)).unwrap_or(name.len());
        if length > 0 {
            names.push(&name[..length]);
        }
        rest = &name[length..];
    }
    names
}

/// Whether a variable contains what a client sends, unchanged.
pub(crate) fn is_of_client(name: &str) -> bool {
    let sent = ["http_", "arg_", "cookie_"].iter().any(|start| name.starts_with(start));
    sent || matches!(
        name,
        "args" | "query_string" | "request_uri" | "uri" | "document_uri" | "request" | "request_body"
    )
}

/// Whether a variable contains the decoded path, which may have line breaks.
pub(crate) fn is_decoded_path(name: &str) -> bool {
    matches!(name, "uri" | "document_uri")
}

/// Returns the authority of a URL: the text between `://` and the next slash.
pub(crate) fn authority(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    rest.split(['/', '?']).next().unwrap_or(rest)
}

/// Returns the text after the authority of a URL, if there is one.
pub(crate) fn path_of(url: &str) -> Option<&str> {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    rest.find('/').map(|at| &rest[at..])
}

/// Returns the host of an authority, without the port.
pub(crate) fn host(authority: &str) -> &str {
    match authority.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => authority,
    }
}

/// Whether a host is an IP address.
pub(crate) fn is_address(host: &str) -> bool {
    host.trim_start_matches('[').trim_end_matches(']').parse::<std::net::IpAddr>().is_ok()
}

/// Whether an address of `listen` is reached only from this machine.
pub(crate) fn is_loopback(address: &str) -> bool {
    address.starts_with("unix:")
        || address.starts_with("127.")
        || address.starts_with("[::1]")
        || address.starts_with("localhost")
}

/// Whether a regular expression has a quantified group whose content is quantified too, such as `(a+)+`: matching may need time
/// exponential in the length of the text.
pub(crate) fn is_exponential(pattern: &str) -> bool {
    let bytes = pattern.as_bytes();
    // For each open group, whether its content has an unbounded quantifier and no separator around it.
    let mut open: Vec<(usize, bool)> = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 1,
            b'[' => {
                let mut end = at + 1;
                if bytes.get(end) == Some(&b'^') {
                    end += 1;
                }
                if bytes.get(end) == Some(&b']') {
                    end += 1;
                }
                while end < bytes.len() && bytes[end] != b']' {
                    end += if bytes[end] == b'\\' { 2 } else { 1 };
                }
                at = end;
            }
            b'(' => open.push((at, false)),
            b')' => {
                let Some((start, _)) = open.pop() else { return false };
                let is_repeated = matches!(bytes.get(at + 1), Some(b'+' | b'*'));
                if is_repeated && repeats_itself(&pattern[start + 1..at]) {
                    return true;
                }
            }
            _ => {}
        }
        at += 1;
    }
    false
}

/// Whether the content of a repeated group can match the same text in several ways: one quantified item, with at most optional
/// items around it.
fn repeats_itself(content: &str) -> bool {
    let content = content.strip_prefix("?:").unwrap_or(content);
    branches(content).into_iter().any(|branch| {
        let items = items_of(branch);
        let is_optional = |quantifier: u8| matches!(quantifier, b'*' | b'?');
        let unbounded = items.iter().filter(|(_, quantifier)| matches!(quantifier, b'+' | b'*')).count();
        let fixed =
            items.iter().filter(|(_, quantifier)| !is_optional(*quantifier) && *quantifier != b'+').count();
        unbounded > 0 && fixed == 0
    })
}

/// Splits a pattern at its alternations outside of groups and classes.
fn branches(pattern: &str) -> Vec<&str> {
    let (mut found, mut start, mut depth, mut in_class, mut escaped) = (Vec::new(), 0, 0_u32, false, false);
    for (at, byte) in pattern.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'[' => in_class = true,
            b']' => in_class = false,
            _ if in_class => {}
            b'(' => depth += 1,
            b')' => depth = depth.saturating_sub(1),
            b'|' if depth == 0 => {
                found.push(&pattern[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    found.push(&pattern[start..]);
    found
}

/// Splits a branch into items with their quantifiers; 0 for none.
fn items_of(branch: &str) -> Vec<(&str, u8)> {
    let bytes = branch.as_bytes();
    let (mut items, mut at) = (Vec::new(), 0);
    while at < bytes.len() {
        let start = at;
        match bytes[at] {
            b'\\' => at += 2,
            b'[' => {
                at += 1;
                while at < bytes.len() && (bytes[at] != b']' || at == start + 1) {
                    at += if bytes[at] == b'\\' { 2 } else { 1 };
                }
                at += 1;
            }
            b'(' => {
                let mut depth = 0;
                while at < bytes.len() {
                    match bytes[at] {
                        b'\\' => at += 1,
                        b'(' => depth += 1,
                        b')' => depth -= 1,
                        _ => {}
                    }
                    at += 1;
                    if depth == 0 {
                        break;
                    }
                }
            }
            _ => at += 1,
        }
        let end = at.min(bytes.len());
        let quantifier = match bytes.get(end) {
            Some(&found @ (b'+' | b'*' | b'?')) => {
                at = end + 1;
                // A lazy or possessive quantifier.
                if matches!(bytes.get(at), Some(b'+' | b'?')) {
                    at += 1;
                }
                found
            }
            Some(b'{') => {
                at = end + branch[end..].find('}').map_or(1, |length| length + 1);
                if branch[end..at.min(bytes.len())].ends_with(",}") { b'+' } else { 0 }
            }
            _ => 0,
        };
        items.push((branch.get(start..end).unwrap_or_default(), quantifier));
    }
    items
}

/// Whether a pattern for a host name has a dot that matches any character: a dot without a backslash between letters.
pub(crate) fn has_open_dot(pattern: &str) -> bool {
    let bytes = pattern.as_bytes();
    let is_letter =
        |at: usize| bytes.get(at).is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte == b'-');
    (1..bytes.len().saturating_sub(1)).any(|at| bytes[at] == b'.' && is_letter(at - 1) && is_letter(at + 1))
}

/// Whether a pattern names a file extension whose dot matches any character, such as `.php$`.
pub(crate) fn has_open_extension(pattern: &str) -> bool {
    let Some(body) = pattern.strip_suffix('$') else { return false };
    let Some(dot) = body.rfind('.') else { return false };
    let extension = &body[dot + 1..];
    let is_word = !extension.is_empty()
        && extension.trim_matches(['(', ')', '?', ':']).split('|').all(|word| {
            (2..6).contains(&word.len()) && word.bytes().all(|byte| byte.is_ascii_alphanumeric())
        });
    // `.` with a quantifier, in a class or after a backslash is meant as it is.
    let before = body[..dot].bytes().last();
    is_word && !matches!(before, Some(b'\\' | b'['))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_found() {
        assert_eq!(variables("a$b-${c}d$1$"), ["b", "c", "1"]);
        assert_eq!(authority("http://$host:80/a?b"), "$host:80");
        assert_eq!((host("a:80"), host("[::1]:80"), host("a")), ("a", "[::1]", "a"));
        assert_eq!((path_of("http://a"), path_of("http://a/b")), (None, Some("/b")));
    }

    #[test]
    fn nested_quantifiers_are_found() {
        for pattern in ["(a+)+$", "^(.*)*x", "(\\w+\\s?)+$", "(?:[a-z]+)*", "((a|b)+)+", "(.+?)+", "(x{2,})*"]
        {
            assert!(is_exponential(pattern), "{pattern}");
        }
        for pattern in [
            "^/(.*)$",
            "(/[^/]+)+",
            "\\.(?:jpg|png)$",
            "([^.]+\\.)+",
            "(ab)+",
            "[(a+)+]",
            "^/a(/.*)?$",
            "(\\d{3})+",
        ] {
            assert!(!is_exponential(pattern), "{pattern}");
        }
    }

    #[test]
    fn unescaped_dots_are_found() {
        assert!(has_open_dot("^https://www.example.com$") && has_open_dot("a.b"));
        assert!(!has_open_dot("^https://www\\.example\\.com$") && !has_open_dot("a.*b"));
        assert!(has_open_extension(".php$") && has_open_extension("/x.(jpg|png)$"));
        for pattern in ["\\.php$", "[^.]php$", ".php", "/.*$", "\\.(jpg|png)$"] {
            assert!(!has_open_extension(pattern), "{pattern}");
        }
    }
}
