//! Path patterns with the rules of glob(3) in the C locale: `*`, `?`, `[a-z]`, `[!a-z]`, backslash.
//!
//! Matching, and expansion over directories that the caller lists.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};

/// Whether a path argument of `include` is a pattern, that is, contains one of the three characters that nginx checks.
pub(crate) fn is_pattern(text: &str) -> bool {
    text.contains(['*', '?', '['])
}

/// Whether the complete path matches. A wildcard matches neither a slash nor a leading dot of a name.
pub fn matches(pattern: &Path, path: &Path) -> bool {
    if pattern.is_absolute() != path.is_absolute() {
        return false;
    }
    let (wanted, found) = (pattern.iter(), path.iter());
    wanted.clone().count() == found.clone().count()
        && wanted
            .zip(found)
            .all(|(pattern, name)| name_matches(pattern.as_encoded_bytes(), name.as_encoded_bytes()))
}

/// Returns the paths that match, in the order of glob(3), for a [`Loader`](crate::Loader) that reads from disk.
///
/// `list` returns the names in a directory; the empty path is the working directory. As in nginx, a directory that cannot be listed
/// counts as empty, and a directory is listed only for a segment with wildcards. `exists` is whether a path exists.
pub fn expand(
    pattern: &Path,
    list: &dyn Fn(&Path) -> io::Result<Vec<OsString>>,
    exists: &dyn Fn(&Path) -> bool,
) -> Vec<PathBuf> {
    let root = if pattern.is_absolute() { PathBuf::from("/") } else { PathBuf::new() };
    let mut found = vec![root];
    for segment in pattern.iter().filter(|segment| *segment != OsStr::new("/")) {
        let is_literal = !segment.as_encoded_bytes().iter().any(|byte| b"*?[\\".contains(byte));
        let names_in = |folder: &PathBuf| -> Vec<PathBuf> {
            if is_literal {
                // A missing directory matches nothing.
                return Some(folder.join(segment)).filter(|path| exists(path)).into_iter().collect();
            }
            let names = list(folder).unwrap_or_default();
            let matching =
                names.iter().filter(|name| name_matches(segment.as_encoded_bytes(), name.as_encoded_bytes()));
            matching.map(|name| folder.join(name)).collect()
        };
        found = found.iter().flat_map(names_in).collect();
    }
    sort(&mut found);
    found
}

/// Sorts by bytes, like strcmp(3). The order of [`Path`] differs: it sorts `a/x` before `a-b/x`.
pub(crate) fn sort(paths: &mut [PathBuf]) {
    paths.sort_by(|a, b| a.as_os_str().as_encoded_bytes().cmp(b.as_os_str().as_encoded_bytes()));
}

/// Matches a name greedily with one backtracking point: a later `*` makes every earlier one final, so the time is at most the
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

/// Matches one byte with the start of a pattern, which is not `*`. Returns the number of pattern bytes used.
fn one_matches(pattern: &[u8], byte: u8) -> Option<usize> {
    match *pattern {
        [b'?', ..] => Some(1),
        [b'[', ..] => match set_matches(pattern, byte) {
            // An unclosed bracket is literal.
            None => (byte == b'[').then_some(1),
            Some((length, is_in)) => is_in.then_some(length),
        },
        [b'\\', escaped, ..] => (escaped == byte).then_some(2),
        [literal, ..] => (literal == byte).then_some(1),
        [] => None,
    }
}

/// Matches `[...]` at the start of the pattern. Returns its length and whether the byte is in the set; `None` if it is not closed.
fn set_matches(pattern: &[u8], byte: u8) -> Option<(usize, bool)> {
    let inverted = matches!(pattern.get(1), Some(b'!' | b'^'));
    let first = if inverted { 2 } else { 1 };
    let (mut at, mut is_in) = (first, false);
    loop {
        match *pattern.get(at..)? {
            [] => return None,
            // The first character of a set may be a closing bracket.
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
    fn matches_like_glob_of_libc() {
        let table = [
            ("/etc/*.conf", "/etc/a.conf", true),
            ("/etc/*.conf", "/etc/.a.conf", false),
            ("/etc/.*", "/etc/.a", true),
            ("/etc/*.conf", "/etc/d/a.conf", false),
            ("/etc/*/*.conf", "/etc/d/a.conf", true),
            ("/etc//*", "/etc/a", true),
            ("/etc/./*", "/etc/a", true),
            ("etc/*", "/etc/a", false),
            ("*/a", "/a", false),
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

    #[test]
    fn expands_across_directories() {
        let list = |folder: &Path| -> io::Result<Vec<OsString>> {
            let names: &[&str] = match folder.to_str() {
                Some("/etc") => &["a", "a-b", ".hidden", "locked", "file"],
                Some("/etc/a" | "/etc/a-b") => &["y.conf", "x.conf", "z"],
                _ => return Err(io::ErrorKind::PermissionDenied.into()),
            };
            Ok(names.iter().map(OsString::from).collect())
        };
        // The root directory can be searched, but not listed.
        let exists = |path: &Path| {
            let names = path.parent().and_then(|parent| list(parent).ok()).unwrap_or_default();
            path == Path::new("/etc") || names.iter().any(|name| path.file_name() == Some(name))
        };
        let cases: [(&str, &[&str]); 6] = [
            ("/*/a", &[]),
            ("/etc/*/*.conf", &["/etc/a-b/x.conf", "/etc/a-b/y.conf", "/etc/a/x.conf", "/etc/a/y.conf"]),
            ("/etc/a/[x].conf", &["/etc/a/x.conf"]),
            ("/etc/*/z", &["/etc/a-b/z", "/etc/a/z"]),
            ("/etc/*/nope", &[]),
            ("/nope/*", &[]),
        ];
        for (pattern, expected) in cases {
            let expected: Vec<PathBuf> = expected.iter().map(PathBuf::from).collect();
            assert_eq!(expand(Path::new(pattern), &list, &exists), expected, "{pattern}");
        }
    }
}
