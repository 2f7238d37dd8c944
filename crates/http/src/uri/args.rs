//! Arguments of a query, for nginx's variables `$arg_name`. Values stay encoded, as in nginx.

/// Returns the arguments of `query` in order, as name and value; the value is `None` when there is no equals sign.
pub fn args(query: &[u8]) -> impl Iterator<Item = (&[u8], Option<&[u8]>)> {
    query.split(|&byte| byte == b'&').filter(|piece| !piece.is_empty()).map(|piece| {
        match piece.iter().position(|&byte| byte == b'=') {
            Some(at) => (&piece[..at], Some(&piece[at + 1..])),
            None => (piece, None),
        }
    })
}

/// Returns the value of the first argument `name` that has an equals sign; names are compared without regard to case.
#[must_use]
pub fn arg<'a>(query: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    if name.is_empty() {
        return None;
    }
    args(query).filter(|(key, _)| key.eq_ignore_ascii_case(name)).find_map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_found_by_name() {
        let query = b"a=1&b=&c&A=2&&=x&d=1=2&c=3&ab=9";
        for (name, wanted) in [
            ("a", Some("1")),
            ("A", Some("1")),
            ("b", Some("")),
            ("c", Some("3")),
            ("d", Some("1=2")),
            ("ab", Some("9")),
            ("e", None),
            ("", None),
        ] {
            assert_eq!(arg(query, name.as_bytes()), wanted.map(str::as_bytes), "{name}");
        }
        assert_eq!(args(b"a&b=c").collect::<Vec<_>>(), [(&b"a"[..], None), (b"b", Some(&b"c"[..]))]);
        assert_eq!(args(b"").count(), 0);
    }
}
