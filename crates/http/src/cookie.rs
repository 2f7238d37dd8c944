//! Lookup of values in `Cookie`; field lines are parsed like in nginx.

/// Returns the value of the cookie `name` in a field line.
///
/// As in nginx, only a semicolon ends a value; commas and spaces belong to the value. A name begins at the start of the line or
/// after a semicolon.
pub fn cookie_in<'l>(line: &'l [u8], name: &[u8]) -> Option<&'l [u8]> {
    let mut rest = line;
    while let Some((start, behind)) = rest.split_at_checked(name.len()) {
        if start.eq_ignore_ascii_case(name)
            && let Some(value) = behind.trim_ascii_start().strip_prefix(b"=")
        {
            let value = value.trim_ascii_start();
            return Some(&value[..memchr::memchr(b';', value).unwrap_or(value.len())]);
        }
        rest = rest[memchr::memchr(b';', rest)? + 1..].trim_ascii_start();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookies_are_found_as_in_nginx() {
        for (line, expected) in [
            ("c=1", Some("1")),
            ("C=1; c=2", Some("1")),
            ("b=1;c=2;d=3", Some("2")),
            ("b=1, c=2", None),
            ("b=1, c=2; c=3", Some("3")),
            ("c=1, b=2 ; d", Some("1, b=2 ")),
            ("c = 1", Some("1")),
            ("c=", Some("")),
            ("cc=1; bc=2", None),
            ("c; c=1", Some("1")),
            ("b=c=1", None),
            ("", None),
            ("c", None),
        ] {
            assert_eq!(cookie_in(line.as_bytes(), b"c"), expected.map(str::as_bytes), "{line}");
        }
    }
}
