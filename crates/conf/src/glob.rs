//! Path patterns as glob(3) matches them in the C locale: `*`, `?`, `[a-z]`, `[!a-z]`, backslash.
//!
//! Only the matching; walking folders is up to the [`Loader`](crate::Loader) that has a disk.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// True if a path argument of `include` is a pattern. The same three characters as in nginx.
pub(crate) fn is_pattern(text: &str) -> bool {
    text.contains(['*', '?', '['])
}

/// Does the whole path match? A wildcard matches neither a slash nor the dot that a name starts with.
pub fn matches(pattern: &Path, path: &Path) -> bool {
    let segments = |path: &Path| -> Vec<Vec<u8>> {
        let bytes = path.as_os_str().as_bytes();
        bytes.split(|&byte| byte == b'/').filter(|segment| !segment.is_empty()).map(<[u8]>::to_vec).collect()
    };
    let (wanted, found) = (segments(pattern), segments(path));
    pattern.is_absolute() == path.is_absolute()
        && wanted.len() == found.len()
        && wanted.iter().zip(&found).all(|(pattern, name)| name_matches(pattern, name))
}

/// Greedy with one point of return: a later `*` makes every earlier one final, so the time is at most the
/// product of the lengths.
fn name_matches(pattern: &[u8], name: &[u8]) -> bool {
    if name.first() == Some(&b'.') && pattern.first().is_some_and(|first| b"*?[".contains(first)) {
        return false;
    }
    let (mut at, mut read) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    loop {
        if pattern.get(at) == Some(&b'*') {
            at += 1;
            star = Some((at, read));
            continue;
        }
        if at == pattern.len() && read == name.len() {
            return true;
        }
        let step = name.get(read).and_then(|&byte| one_matches(&pattern[at..], byte));
        match (step, star) {
            (Some(length), _) => (at, read) = (at + length, read + 1),
            (None, Some((after, from))) if from < name.len() => {
                star = Some((after, from + 1));
                (at, read) = (after, from + 1);
            }
            (None, _) => return false,
        }
    }
}

/// Matches one byte against the head of a pattern that is no `*`; the answer is how much of the pattern it took.
fn one_matches(pattern: &[u8], byte: u8) -> Option<usize> {
    match *pattern {
        [b'?', ..] => Some(1),
        [b'[', ..] => match set_matches(pattern, byte) {
            // An unclosed bracket stands for itself.
            None => (byte == b'[').then_some(1),
            Some((length, is_in)) => is_in.then_some(length),
        },
        [b'\\', escaped, ..] => (escaped == byte).then_some(2),
        [literal, ..] => (literal == byte).then_some(1),
        [] => None,
    }
}

/// `[...]` at the head of the pattern: its length and whether the byte is in the set; `None` if it is not closed.
fn set_matches(pattern: &[u8], byte: u8) -> Option<(usize, bool)> {
    let inverted = matches!(pattern.get(1), Some(b'!' | b'^'));
    let first = if inverted { 2 } else { 1 };
    let (mut at, mut is_in) = (first, false);
    loop {
        match *pattern.get(at..)? {
            [] => return None,
            // The first character of a set may be the bracket itself.
            [b']', ..] if at > first => return Some((at + 1, is_in != inverted)),
            [low, b'-', high, ..] if high != b']' => {
                is_in |= (low..=high).contains(&byte);
                at += 3;
            }
            [member, ..] => {
                is_in |= member == byte;
                at += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_as_glob_of_libc_does() {
        let table = [
            ("/etc/*.conf", "/etc/a.conf", true),
            ("/etc/*.conf", "/etc/.a.conf", false),
            ("/etc/.*", "/etc/.a", true),
            ("/etc/*.conf", "/etc/d/a.conf", false),
            ("/etc/*/*.conf", "/etc/d/a.conf", true),
            ("/etc//*", "/etc/a", true),
            ("etc/*", "/etc/a", false),
            ("/a?c", "/abc", true),
            ("/a?c", "/ac", false),
            ("/[a-c]x", "/bx", true),
            ("/[!a-c]x", "/bx", false),
            ("/[^a-c]x", "/dx", true),
            ("/[]]x", "/]x", true),
            ("/[a-]x", "/-x", true),
            ("/[ax", "/[ax", true),
            ("/\\*", "/*", true),
            ("/\\*", "/a", false),
            ("/*a*b*", "/xxaxxbxx", true),
            ("/*a*b", "/xxaxxbxx", false),
            ("/*", "/", false),
            ("/**", "/a", true),
            ("/a*", "/a", true),
        ];
        for (pattern, path, expected) in table {
            assert_eq!(matches(Path::new(pattern), Path::new(path)), expected, "{pattern} against {path}");
        }
    }
}
